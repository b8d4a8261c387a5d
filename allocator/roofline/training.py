"""Training: compute bound, with causal attention on top of 6 N FLOP per token."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape


def training_mfu(shape: Shape, op: Operation) -> Float[Array, ""]:
    r"""MFU of training, 6 N FLOP per token.

    $$\text{MFU} = e_c \frac{6N}{6N + 3 a T/2}$$

    Forward and backward are three forward passes; a token sees half of its sequence of T on average.
    """
    attention = 3 * shape.prompt_attention_flop_per_token(jnp.asarray(op.context / 2, float))
    return op.compute_efficiency * 6 * shape.n_compute / (6 * shape.n_compute + attention)
