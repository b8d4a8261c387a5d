"""Prefill: all tokens of the batch's prompts at once."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.layout import Layout
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape
from allocator.roofline.step import StepTime, linear_flop_per_chip, network_s, rates, weights_per_chip


def prefill_step(shape: Shape, op: Operation, layout: Layout | None = None) -> StepTime:
    r"""Terms of the prefill of `batch` prompts of `context` tokens; causal attention sees half the prompt.

    $$t = \max\left(\frac{W}{n\,bw\,e_m},\ \frac{B T (2N + a T/2)}{n\,F\,e_c}\right)$$

    With a layout, a data-parallel group takes whole prompts: a single one is not divided over groups.
    """
    tokens = jnp.asarray(op.batch * op.context, float)
    bandwidth, peak = rates(op)
    stages = 1.0 if layout is None else layout.pipeline
    chips, micro = op.chips / stages, tokens / stages
    scores = shape.prompt_attention_flop_per_token(jnp.asarray(op.context / 2, float))
    linear, attention = (micro * flop / chips for flop in (2 * shape.n_compute, scores))
    latency = jnp.asarray(op.layer_latency_s * shape.dimensions.layers)
    if layout is None:
        read, network = shape.weight_bytes(micro, op.bytes_per_weight) / chips, jnp.zeros(())
    else:
        read = weights_per_chip(shape, op, layout, micro)
        share = jnp.maximum(micro * layout.tensor / chips, jnp.asarray(op.context, float))  # a prompt is not divided
        linear = linear_flop_per_chip(shape, layout, share, micro / chips)
        attention = share * scores / layout.tensor
        network = network_s(shape, op, layout, share, share / layout.tensor)
        latency = latency + (stages - 1) * layout.hop_s
    return StepTime(read / bandwidth, jnp.zeros(()), linear / peak, attention / peak, network, latency)


def prefill_mfu(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """MFU of prefill, 2 N FLOP per token."""
    step = prefill_step(shape, op, layout).step_s
    return 2 * shape.n_compute * op.batch * op.context / (op.chips * op.chip.peak_flop_per_s * step)
