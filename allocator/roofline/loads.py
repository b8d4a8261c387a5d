"""What the busiest chip of a layout has to do: sequences of its group, tokens at its experts, layers of its stage."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.layout import Layout
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape

Number = Float[Array, ""] | float


def fullest(items: Number, parts: Number) -> Float[Array, ""]:
    """Whole items of the fullest of so many parts, items/parts rounded up.

    Linear between whole numbers of items, so that its slope is finite everywhere, and 1 where there is one part.
    """
    amount = jnp.asarray(items, float)
    below = jnp.floor(amount)

    def ceiling(count):
        return jnp.ceil(count / parts * (1 - 1e-12))

    return ceiling(below) + (amount - below) * (ceiling(below + 1) - ceiling(below))


def held_sequences(op: Operation, layout: Layout) -> Float[Array, ""]:
    """Sequences whose cache the fullest data-parallel group holds."""
    return fullest(op.batch, layout.data(op.chips))


def group_sequences(op: Operation, layout: Layout) -> Float[Array, ""]:
    """Sequences of the busiest data-parallel group in a micro-batch, which is one of P; one at least."""
    return jnp.maximum(fullest(op.batch, layout.data(op.chips) * layout.pipeline), 1.0)


def expert_sequences(op: Operation, layout: Layout) -> Float[Array, ""]:
    """Sequences of a micro-batch whose tokens meet at one set of all experts, which lies on `expert` chips.

    A stage has as many sets as its chips allow. A set serves the groups on its own chips; where a group's chips hold
    several sets, they divide its tokens.
    """
    sets = op.chips / (layout.pipeline * layout.expert)
    across = jnp.maximum(fullest(op.batch, sets * layout.pipeline), 1.0)
    part = jnp.asarray(layout.expert, float) / layout.tensor
    return jnp.where(part >= 1, across, part * group_sequences(op, layout))


def stage_share(shape: Shape, layout: Layout | None) -> Float[Array, ""]:
    """Share of the model in the fullest stage, 1/P where P divides the layers; embeddings are spread like layers."""
    layers = jnp.asarray(shape.dimensions.layers, float)
    stages = jnp.asarray(1.0 if layout is None else layout.pipeline, float)
    return jnp.where(stages > 1, jnp.ceil(layers / stages * (1 - 1e-12)) / layers, 1.0)


def passes(shape: Shape, op: Operation, layout: Layout) -> Float[Array, ""]:
    """Time of a step in passes of one micro-batch through all layers: 1 where stages are alike.

    The fullest stage takes all micro-batches in flight one after another, while others wait; a micro-batch alone waits
    for none.
    """
    in_flight = jnp.clip(held_sequences(op, layout), 1.0, layout.pipeline)
    return jnp.maximum(in_flight * stage_share(shape, layout), 1.0)
