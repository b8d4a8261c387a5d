"""Prefill: all tokens of the batch's prompts at once."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.flop import attention_flop_per_token
from allocator.roofline.layout import Layout
from allocator.roofline.loads import expert_sequences, group_sequences, passes
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape
from allocator.roofline.step import StepTime, linear_flop_per_chip, network_s, rates, weights_per_chip


def prefill_step(shape: Shape, op: Operation, layout: Layout | None = None) -> StepTime:
    r"""Terms of the prefill of `batch` prompts of `context` tokens, whose attention is causal.

    $$t = \max\left(\frac{W}{n\,bw\,e_m},\ \frac{B T (2N + a (T + 1)/2)}{n\,F\,e_c}\right)$$

    Windows leave fewer pairs of query and key than (T + 1)/2 a token; `flop.causal_pairs` counts them.

    With a layout, a data-parallel group takes whole prompts: a single one is not divided over groups. P stages have a
    micro-batch each, of one prompt at least, which passes through all of them.
    """
    length = jnp.asarray(op.context, float)
    scores = attention_flop_per_token(shape, length)
    bandwidth, peak = rates(op)
    if layout is None:
        tokens = op.batch * length
        parts = [shape.weight_bytes(tokens, op.bytes_per_weight), tokens * 2 * shape.n_compute, tokens * scores]
        read, linear, attention = (part / op.chips for part in parts)
        network, rounds, hops = jnp.zeros(()), jnp.ones(()), 0.0
    else:
        tokens, visiting = group_sequences(op, layout) * length, expert_sequences(op, layout) * length
        rounds, hops = passes(shape, op, layout), (layout.pipeline - 1) * layout.hop_s
        read = rounds * weights_per_chip(shape, op, layout, visiting)
        linear = rounds * linear_flop_per_chip(shape, layout, tokens, visiting / layout.expert)
        attention = rounds * tokens * scores / layout.tensor
        network = rounds * network_s(shape, op, layout, tokens, tokens / layout.tensor)
    latency = jnp.asarray(hops + rounds * op.layer_latency_s * shape.dimensions.layers)
    return StepTime(read / bandwidth, jnp.zeros(()), linear / peak, attention / peak, network, latency)


def prefill_mfu(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """MFU of prefill, 2 N FLOP per token."""
    step = prefill_step(shape, op, layout).step_s
    return 2 * shape.n_compute * op.batch * op.context / (op.chips * op.chip.peak_flop_per_s * step)
