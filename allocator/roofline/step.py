"""One decode step: every sequence of a batch gets its next token."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape


class StepTime(NamedTuple):
    """Time of a step and its terms, in seconds; with full overlap the longest term is the bound."""

    step_s: Float[Array, ""]
    memory_s: Float[Array, ""]
    compute_s: Float[Array, ""]


def decode_step(shape: Shape, op: Operation) -> StepTime:
    r"""Time of a decode step, max form.

    $$t = \max\left(\frac{W(B) + B\,kv}{n\,bw\,e_m},\ \frac{B (2N + a\,\text{context})}{n\,F\,e_c}\right)$$
    """
    batch = jnp.asarray(op.batch, float)
    read = shape.weight_bytes(batch, op.bytes_per_weight) + batch * shape.kv_bytes(
        jnp.asarray(op.context, float), op.bytes_per_kv_element
    )
    flop = batch * (2 * shape.n_active + shape.attention_flop_per_token(jnp.asarray(op.context, float)))
    memory = read / (op.chips * op.chip.hbm_bytes_per_s * op.memory_efficiency)
    compute = flop / (op.chips * op.chip.peak_flop_per_s * op.compute_efficiency)
    return StepTime(jnp.maximum(memory, compute), memory, compute)


def decode_mfu(shape: Shape, op: Operation) -> Float[Array, ""]:
    """MFU of decode: 2 N FLOP per token (attention is time, not model FLOP) over what the chips could do meanwhile."""
    step = decode_step(shape, op).step_s
    return 2 * shape.n_active * op.batch / (op.chips * op.chip.peak_flop_per_s * step)
