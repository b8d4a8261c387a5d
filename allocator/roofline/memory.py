"""What fits: weights and KV cache against the usable memory of the chips."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.layout import Layout
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape, ShapeFamily


def weight_bytes_per_chip(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Bytes of weights that a chip holds."""
    if layout is None:
        return shape.total_bytes(op.bytes_per_weight) / op.chips
    held = jnp.asarray(shape.n_shared) / layout.tensor + jnp.asarray(shape.n_routed) / layout.expert
    return op.bytes_per_weight * held / layout.pipeline


def cache_bytes_per_chip(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Bytes of KV cache that one sequence takes of each chip that holds it, per sequence of the whole batch.

    Stages hold their own layers' cache of every sequence in flight; a data-parallel group holds its own sequences;
    heads beyond the model's KV heads hold copies.
    """
    whole = shape.kv_bytes(jnp.asarray(op.context, float), op.bytes_per_kv_element)
    if layout is None:
        return whole / op.chips
    cut = jnp.minimum(jnp.asarray(layout.tensor, float), shape.dimensions.kv_heads)
    return whole / (layout.data(op.chips) * layout.pipeline * cut)


def free_bytes(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Usable bytes left on all chips beside weights and the batch's cache; negative where they do not fit."""
    usable = op.chip.hbm_bytes * op.usable_memory
    cache = op.batch * cache_bytes_per_chip(shape, op, layout)
    return op.chips * (usable - weight_bytes_per_chip(shape, op, layout) - cache)


def largest_batch(shape: Shape, op: Operation, layout: Layout | None = None) -> int:
    """Largest whole number of sequences that fits beside the weights; 0 if the weights alone do not leave room.

    Each data-parallel group holds whole sequences.
    """
    room = float(op.chip.hbm_bytes * op.usable_memory - weight_bytes_per_chip(shape, op, layout))
    groups = 1 if layout is None else round(float(layout.data(op.chips)))
    each = groups * float(cache_bytes_per_chip(shape, op, layout))  # of a sequence, on the chips of its group
    return groups * max(math.floor(room / each * (1 + 1e-12)), 0)


def largest_context(shape: Shape, op: Operation, layout: Layout | None = None) -> int:
    """Longest context, in tokens, at which the batch still fits; 0 if none does. Cache grows with context."""
    groups = 1.0 if layout is None else float(layout.data(op.chips))
    held = math.ceil(float(op.batch) / groups * (1 - 1e-12)) * groups  # as if all groups had as much as the fullest

    def fits(context: int) -> bool:
        longer = eqx.tree_at(lambda o: (o.batch, o.context), op, (held, float(context)))
        return float(free_bytes(shape, longer, layout)) >= 0

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < 1 << 50:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_size(family: ShapeFamily, op: Operation) -> float:
    """Largest N whose weights and cache fit, by bisection of a falling function; 0 if none does."""
    low, high = math.log(1e3), math.log(1e18)
    if float(free_bytes(family.at(jnp.asarray(low)), op)) < 0:
        return 0.0
    for _ in range(80):
        middle = (low + high) / 2
        if float(free_bytes(family.at(jnp.asarray(middle)), op)) >= 0:
            low = middle
        else:
            high = middle
    return math.exp(low)
