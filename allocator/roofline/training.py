"""Training: compute bound, with causal attention on top of 6 N FLOP per token."""

from jaxtyping import Array, Float

from allocator.roofline.flop import attention_flop_per_token
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape


def training_mfu(shape: Shape, op: Operation) -> Float[Array, ""]:
    r"""MFU of training, 6 N FLOP per token.

    $$\text{MFU} = e_c \frac{6N}{6N + 3 a (T + 1)/2}$$

    Forward and backward are three forward passes; a token sees (T + 1)/2 of its sequence of T on average, and less
    where there are windows.
    """
    attention = 3 * attention_flop_per_token(shape, op.context)
    return op.compute_efficiency * 6 * shape.n_compute / (6 * shape.n_compute + attention)
