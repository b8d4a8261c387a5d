"""Time of a step, term by term: decode gives every sequence of a batch its next token."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.collectives import all_reduce_s, all_to_all_s
from allocator.roofline.layout import Layout
from allocator.roofline.loads import expert_sequences, group_sequences, passes
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape

Overlap = Literal["full", "none", "book"]
TERMS = ("memory", "compute", "network")


class StepTime(NamedTuple):
    """Seconds of each term of a step on the busiest chip."""

    weights_s: Float[Array, ""]  # reading weights
    cache_s: Float[Array, ""]  # reading KV cache
    linear_s: Float[Array, ""]  # matrix products with weights
    attention_s: Float[Array, ""]
    network_s: Float[Array, ""]
    latency_s: Float[Array, ""]  # what no overlap hides: hops between stages, fixed time per layer

    @property
    def memory_s(self) -> Float[Array, ""]:
        """Reading from high-bandwidth memory."""
        return self.weights_s + self.cache_s

    @property
    def compute_s(self) -> Float[Array, ""]:
        """Arithmetic."""
        return self.linear_s + self.attention_s

    @property
    def step_s(self) -> Float[Array, ""]:
        """The bound: all terms overlap."""
        return self.total_s("full")

    def total_s(self, overlap: Overlap) -> Float[Array, ""]:
        """Step time when terms overlap fully (the longest counts), not at all (their sum), or as in the scaling book.

        The scaling book has attention by itself and overlaps the rest: max(cache, attention) + max(linear, weights).
        """
        match overlap:
            case "full":
                busy = jnp.maximum(jnp.maximum(self.memory_s, self.compute_s), self.network_s)
            case "none":
                busy = self.memory_s + self.compute_s + self.network_s
            case _:
                attending = jnp.maximum(self.cache_s, self.attention_s)
                busy = attending + jnp.maximum(jnp.maximum(self.linear_s, self.weights_s), self.network_s)
        return busy + self.latency_s

    def binding(self) -> str:
        """The term that binds: memory, compute or network."""
        sizes = [float(self.memory_s), float(self.compute_s), float(self.network_s)]
        return TERMS[sizes.index(max(sizes))]


def decode_step(shape: Shape, op: Operation, layout: Layout | None = None) -> StepTime:
    r"""Terms of a decode step; without a layout all chips share everything and nothing is exchanged.

    $$t_{mem} = \frac{W(B) + B\,kv}{n\,bw\,e_m},\quad t_{comp} = \frac{B (2N + a\,\text{context})}{n\,F\,e_c}$$

    With P pipeline stages a micro-batch of B/P passes through n/P chips at a time, P times; with a layout, each chip
    reads its own part of the weights, once for its data-parallel group's sequences. The fullest group counts, with one
    sequence at least, however small the batch, and the fullest stage; visited experts are spread over the chips that
    share a set of them. States of linear layers are read and written back.
    """
    batch, context = jnp.asarray(op.batch, float), jnp.asarray(op.context, float)
    attention = shape.attention_flop_per_token(context)
    bandwidth, peak = rates(op)
    if layout is None:
        moved = shape.kv_bytes(context, op.bytes_per_kv_element) + shape.state_bytes
        parts = [shape.weight_bytes(batch, op.bytes_per_weight), batch * moved,
                 batch * 2 * shape.n_compute, batch * attention]  # fmt: skip
        weights, cache, linear, scores = (part / op.chips for part in parts)
        network, rounds = jnp.zeros(()), jnp.ones(())
    else:
        share, visiting = group_sequences(op, layout), expert_sequences(op, layout)
        rounds = passes(shape, op, layout)
        weights = rounds * weights_per_chip(shape, op, layout, visiting)
        cache = rounds * share * sequence_bytes_per_chip(shape, op, layout, written=True)
        linear = rounds * linear_flop_per_chip(shape, layout, share, visiting / layout.expert)
        scores = rounds * share * attention / layout.tensor
        network = rounds * network_s(shape, op, layout, share, share / layout.tensor)
    latency = jnp.asarray(0.0 if layout is None else (layout.pipeline - 1) * layout.hop_s)
    latency = latency + rounds * op.layer_latency_s * shape.dimensions.layers
    return StepTime(weights / bandwidth, cache / bandwidth, linear / peak, scores / peak, network, latency)


def rates(op: Operation) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Bytes/s and FLOP/s of a chip that are reached."""
    return (jnp.asarray(op.chip.hbm_bytes_per_s * op.memory_efficiency),
            jnp.asarray(op.chip.peak_flop_per_s * op.compute_efficiency))  # fmt: skip


def sequence_bytes_per_chip(shape: Shape, op: Operation, layout: Layout, *, written: bool = False) -> Float[Array, ""]:
    """Bytes of a sequence's cache, all layers, on that chip of its group that holds most of it.

    KV heads are not divided: a chip has whole ones, copies where there are fewer than chips. States of linear layers
    are cut like query heads; with `written` they count twice.
    """
    whole = shape.kv_bytes(jnp.asarray(op.context, float), op.bytes_per_kv_element)
    states, heads = shape.state_bytes, jnp.asarray(shape.dimensions.kv_heads, float)
    cut = jnp.ceil(heads / layout.tensor * (1 - 1e-12)) / heads
    return (whole - states) * cut + states / layout.tensor * (2 if written else 1)


def weights_per_chip(shape: Shape, op: Operation, layout: Layout, tokens) -> Float[Array, ""]:
    """Bytes of weights that a chip reads, all layers, for so many tokens at its set of experts."""
    routed = shape.n_routed * shape.touched(tokens) / layout.expert
    return op.bytes_per_weight * (shape.n_shared / layout.tensor + routed)


def linear_flop_per_chip(shape: Shape, layout: Layout, share, tokens_per_chip) -> Float[Array, ""]:
    """FLOP of matrix products for the busiest group's tokens, and for those sent to a chip's experts."""
    visited = shape.n_routed * shape.routed_share
    return 2 * ((shape.n_compute - visited) * share / layout.tensor + visited * tokens_per_chip)


def network_s(shape: Shape, op: Operation, layout: Layout, sequences, tokens_per_chip) -> Float[Array, ""]:
    d = shape.dimensions
    payload = sequences * d.d_model * layout.bytes_combine
    reduce = d.layers * layout.all_reduces * all_reduce_s(op.chip, layout.tensor, payload)
    bytes_both = layout.bytes_dispatch + layout.bytes_combine
    exchange = d.moe_layers * all_to_all_s(
        op.chip, layout.expert, tokens_per_chip, d.destinations, d.d_model, bytes_both
    )
    return jnp.where(jnp.asarray(layout.tensor, float) > 1, reduce, 0.0) + exchange


def decode_mfu(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """MFU of decode: 2 FLOP a token and multiplying parameter over what the chips could do in a step's time.

    Attention takes time and is not counted, nor is the input embedding, a look-up.
    """
    step = decode_step(shape, op, layout).step_s
    return 2 * shape.n_compute * op.batch / (op.chips * op.chip.peak_flop_per_s * step)
