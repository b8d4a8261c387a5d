"""What fits: weights and KV cache against the usable memory of the chips."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.layout import Layout
from allocator.roofline.loads import held_sequences, stage_share
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape, ShapeFamily
from allocator.roofline.step import sequence_bytes_per_chip


def weight_bytes_per_chip(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Bytes of weights that a chip holds."""
    if layout is None:
        return shape.total_bytes(op.bytes_per_weight) / op.chips
    held = jnp.asarray(shape.n_shared) / layout.tensor + jnp.asarray(shape.n_routed) / layout.expert
    return op.bytes_per_weight * held * stage_share(shape, layout)


def cache_bytes_per_chip(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Bytes of KV cache that one sequence takes of each chip that holds it, per sequence of the whole batch.

    Stages hold their own layers' cache of every sequence in flight, and the fullest counts; a data-parallel group holds
    its own sequences; heads beyond the model's KV heads hold copies.
    """
    if layout is None:
        return shape.kv_bytes(jnp.asarray(op.context, float), op.bytes_per_kv_element) / op.chips
    return sequence_bytes_per_chip(shape, op, layout) * stage_share(shape, layout) / layout.data(op.chips)


def free_bytes(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Usable bytes left beside weights and the batch's cache, all chips as full as the fullest; < 0: they do not."""
    usable = op.chip.hbm_bytes * op.usable_memory
    held = op.batch if layout is None else held_sequences(op, layout) * layout.data(op.chips)
    cache = held * cache_bytes_per_chip(shape, op, layout)
    return op.chips * (usable - weight_bytes_per_chip(shape, op, layout) - cache)


def fitting_batch(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Largest whole number of sequences that fits beside the weights; 0 if the weights alone do not leave room.

    Each data-parallel group holds whole sequences.
    """
    room = op.chip.hbm_bytes * op.usable_memory - weight_bytes_per_chip(shape, op, layout)
    groups = jnp.asarray(1.0 if layout is None else layout.data(op.chips))
    each = groups * cache_bytes_per_chip(shape, op, layout)  # of a sequence, on the chips of its group
    return groups * jnp.maximum(jnp.floor(room / each * (1 + 1e-12)), 0.0)


def largest_batch(shape: Shape, op: Operation, layout: Layout | None = None) -> int:
    """The same as a number."""
    return round(float(fitting_batch(shape, op, layout)))


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


def largest_size(family: ShapeFamily, op: Operation) -> Float[Array, ""]:
    """Largest N whose weights and cache fit, by bisection of a falling function; 0 if none does."""

    def fits(log_n):
        return free_bytes(family.at(log_n), op) >= 0

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        inside = fits(middle)
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    smallest, largest = jnp.log(1e3), jnp.log(1e18)
    low, _ = jax.lax.fori_loop(0, 80, halve, (smallest, largest))
    return jnp.where(fits(smallest), jnp.exp(low), 0.0)
