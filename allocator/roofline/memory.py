"""What fits: weights and KV cache against the usable memory of the chips."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape, ShapeFamily


def free_bytes(shape: Shape, op: Operation) -> Float[Array, ""]:
    """Usable bytes left once weights and the batch's cache are in memory; negative where they do not fit."""
    usable = op.chips * op.chip.hbm_bytes * op.usable_memory
    cache = op.batch * shape.kv_bytes(jnp.asarray(op.context, float), op.bytes_per_kv_element)
    return usable - shape.total_bytes(op.bytes_per_weight) - cache


def largest_batch(shape: Shape, op: Operation) -> int:
    """Largest whole number of sequences that fits beside the weights; 0 if the weights alone do not leave room."""
    cache = float(shape.kv_bytes(jnp.asarray(op.context, float), op.bytes_per_kv_element))
    room = float(op.chips * op.chip.hbm_bytes * op.usable_memory - shape.total_bytes(op.bytes_per_weight))
    return max(math.floor(room / cache * (1 + 1e-12)), 0)


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
