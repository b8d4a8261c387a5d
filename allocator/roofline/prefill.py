"""Prefill: all tokens of the batch's prompts at once."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape
from allocator.roofline.step import StepTime


def prefill_step(shape: Shape, op: Operation) -> StepTime:
    r"""Time to prefill `batch` prompts of `context` tokens, max form; causal attention sees half the prompt.

    $$t = \max\left(\frac{W}{n\,bw\,e_m},\ \frac{B T (2N + a T/2)}{n\,F\,e_c}\right)$$
    """
    tokens = jnp.asarray(op.batch * op.context, float)
    flop = tokens * (2 * shape.n_active + shape.attention_flop_per_token(jnp.asarray(op.context / 2, float)))
    read = shape.weight_bytes(tokens, op.bytes_per_weight)
    memory = read / (op.chips * op.chip.hbm_bytes_per_s * op.memory_efficiency)
    compute = flop / (op.chips * op.chip.peak_flop_per_s * op.compute_efficiency)
    return StepTime(jnp.maximum(memory, compute), memory, compute)


def prefill_mfu(shape: Shape, op: Operation) -> Float[Array, ""]:
    """MFU of prefill, 2 N FLOP per token."""
    step = prefill_step(shape, op).step_s
    return 2 * shape.n_active * op.batch * op.context / (op.chips * op.chip.peak_flop_per_s * step)
