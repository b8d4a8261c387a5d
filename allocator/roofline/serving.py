"""What serving is expected to take, which `allocator roofline` prints and `allocator roofline check` validates."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.calibration import SERVING, Calibration
from allocator.roofline.layout import Layout
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.shape import Shape
from allocator.roofline.step import StepTime, decode_step

LEAST_KV_BYTES = 1.0  # an element; serving engines keep caches in 8 bits at least, whatever the weights are


def expected_step_s(
    shape: Shape, op: Operation, layout: Layout | None = None, *,
    prompt: Float[Array, ""] | float, prompts_per_step: Float[Array, ""] | float = 0.0,
    calibration: Calibration = SERVING,
) -> Float[Array, ""]:  # fmt: skip
    """Time per output token that measurements lead one to expect.

    Where prompts are read on the same chips, a step has batch/output of them on average, `prompts_per_step`; 0 where
    other chips read them.
    """
    share = jnp.asarray(prompts_per_step, float) / in_flight(op, layout)
    prefill_s: Float[Array, ""] = share * one_prompt_a_group(shape, op, layout, prompt=prompt).compute_s
    return calibration.step_s(decode_step(shape, op, layout), shape.dimensions.layers, prefill_s)


def expected_prefill_s(
    shape: Shape, op: Operation, layout: Layout | None = None, *, prompt: Float[Array, ""] | float,
    calibration: Calibration = SERVING,
) -> Float[Array, ""]:  # fmt: skip
    """Time of a prefill under the constants that decode was fitted with; no measured one is in them."""
    return calibration.step_s(one_prompt_a_group(shape, op, layout, prompt=prompt), shape.dimensions.layers)


def one_prompt_a_group(
    shape: Shape, op: Operation, layout: Layout | None = None, *, prompt: Float[Array, ""] | float
) -> StepTime:
    """Terms of a prefill in which each stage of each data-parallel group reads one prompt."""
    once = eqx.tree_at(lambda o: (o.batch, o.context), op, (in_flight(op, layout), jnp.asarray(prompt, float)))
    return prefill_step(shape, once, layout)


def in_flight(op: Operation, layout: Layout | None) -> Float[Array, ""]:
    """Prompts at work at once: one a stage in each data-parallel group; one where nothing is cut."""
    return jnp.asarray(1.0 if layout is None else layout.in_flight(op.chips), float)
