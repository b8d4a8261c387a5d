"""Degrees of parallelism for a deployment that does not state them."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.accelerator import Accelerator
from allocator.roofline.layout import Layout
from allocator.roofline.memory import fitting_batch
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape
from allocator.roofline.step import decode_step


def tensor_degrees(shape: Shape, chip: Accelerator, stage: int) -> list[int]:
    """Ways to cut heads over the chips of a stage, within the scale-up domain."""
    heads, inside = int(shape.dimensions.query_heads), min(stage, int(chip.scale_up_chips))
    return [n for n in range(1, inside + 1) if stage % n == 0 and heads % n == 0]


def expert_degree(shape: Shape, stage: int) -> int:
    """Most ways to cut experts over the chips of a stage; 1 for a dense model."""
    experts = int(shape.dimensions.experts)
    return math.gcd(stage, experts) if experts else 1


def layouts(
    shape: Shape, chip: Accelerator, chips: float, *,
    tensor: float | None = None, expert: float | None = None, pipeline: float = 1.0,
) -> list[Layout]:  # fmt: skip
    """Layouts to choose from; degrees that are stated are kept."""
    stage = int(chips / pipeline)
    cut = float(expert_degree(shape, stage) if expert is None else expert)
    degrees = tensor_degrees(shape, chip, stage) if tensor is None else [tensor]
    return [Layout(float(n), cut, float(pipeline)) for n in degrees]


def stack(choices: Sequence[Layout], length: int | None = None) -> Layout:
    """Layouts as one whose degrees are arrays, the last repeated up to a length."""
    filled = [*choices, *[choices[-1]] * ((length or len(choices)) - len(choices))]
    return jax.tree.map(lambda *leaves: jnp.asarray(leaves, float), *filled)


def best(shape: Shape, op: Operation, choices: Layout) -> tuple[Layout, Float[Array, ""]]:
    """Of stacked layouts that which fits most of the batch, then that of the shortest step; and how much fits."""

    def merit(layout: Layout) -> tuple[Array, Array]:
        held = jnp.minimum(op.batch, fitting_batch(shape, op, layout))
        step = decode_step(shape, eqx.tree_at(lambda o: o.batch, op, jnp.maximum(held, 1.0)), layout)
        return held, step.step_s

    held, seconds = jax.vmap(merit)(choices)
    # Links that are not on record make a layout's time NaN: it is taken only where nothing else holds as much.
    first = jnp.argmin(jnp.where(held == held.max(), jnp.nan_to_num(seconds, nan=1e300), jnp.inf))
    return jax.tree.map(lambda leaf: leaf[first], choices), held[first]
