r"""Where one term of a decode step overtakes another: batches, contexts and cache sizes at equality.

With r = F e_c/(bw e_m) in FLOP/byte, B sequences of c tokens, kv bytes and a FLOP of attention per token of context:

$$W + B\,c\,kv = \frac{B\,(2N + a c)}{r}$$

Lecture, 00:10 to 00:20 and 01:36; roofline.md's sections 5 and 9. `n_compute` are active parameters that multiply.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.accelerator import Accelerator
from allocator.roofline.shape import Shape

Number = Float[Array, ""] | float


def flop_per_byte(chip: Accelerator, *, compute_efficiency: Number = 1.0, memory_efficiency: Number = 1.0):
    """FLOP that a chip computes while it reads a byte, r."""
    reached = jnp.asarray(chip.peak_flop_per_s * compute_efficiency, float)
    return reached / (chip.hbm_bytes_per_s * memory_efficiency)


def balanced_context(
    n_compute: Number, kv_bytes_per_token: Number, flop_per_byte: Number, *,
    weight_bytes: Number = 0.0, batch: Number = jnp.inf, attention_flop: Number = 0.0,
) -> Float[Array, ""]:  # fmt: skip
    """Context in tokens at which reading takes as long as arithmetic; 0: reading binds at any; inf: at none.

    Weights count by `weight_bytes`/`batch`; as they are, the batch is infinite and only the cache counts.
    """
    spare = 2 * n_compute / flop_per_byte - weight_bytes / jnp.asarray(batch, float)
    return _over(jnp.maximum(spare, 0.0), kv_bytes_per_token - attention_flop / flop_per_byte)


def balanced_cache_bytes(
    n_compute: Number, context: Number, flop_per_byte: Number, *,
    weight_bytes: Number = 0.0, batch: Number = jnp.inf, attention_flop: Number = 0.0, ratio: Number = 1.0,
) -> Float[Array, ""]:  # fmt: skip
    """Cache bytes per token at which reading takes `ratio` times as long as arithmetic at this context.

    A price that rises by a ratio, or output that costs a ratio of input, says so where price is cost; negative where
    the weights alone take longer.
    """
    arithmetic = (2 * n_compute + attention_flop * context) / flop_per_byte
    return (ratio * arithmetic - weight_bytes / jnp.asarray(batch, float)) / context


def critical_batch(
    weight_bytes: Number, n_compute: Number, flop_per_byte: Number, *,
    kv_bytes_per_token: Number = 0.0, context: Number = 0.0, attention_flop: Number = 0.0,
) -> Float[Array, ""]:  # fmt: skip
    r"""Batch at which reading takes as long as arithmetic; inf where the cache alone takes longer.

    $$B^* = \frac{W}{(2N + a c)/r - c\,kv}$$
    """
    spare = (2 * n_compute + attention_flop * context) / flop_per_byte - context * kv_bytes_per_token
    return _over(jnp.asarray(weight_bytes, float), spare)


def attention_equals_weights_context(shape: Shape, *, causal: bool = False) -> Float[Array, ""]:
    """Context at which attention takes as many FLOP as the weights; `causal` for a whole sequence, whose tokens see
    half of it on average (windows taken as full), else for decoding."""
    linear = 2 * jnp.asarray(shape.n_compute, float)
    prompt = shape.attention_flop if shape.attention_flop_prompt is None else shape.attention_flop_prompt
    full = jnp.asarray(prompt if causal else shape.attention_flop, float)
    windowed, window = (jnp.asarray(x, float) for x in (shape.attention_flop_window, shape.window))
    inside = linear / (full + windowed)
    seen = jnp.where((windowed > 0) & (inside > window), _over(linear - windowed * window, full), inside)
    return 2 * seen if causal else seen


def _over(part: Float[Array, ""], rate: Number) -> Float[Array, ""]:
    """part/rate, inf where the rate is not positive; gradients stay finite there."""
    rate = jnp.asarray(rate, float)
    return jnp.where(rate > 0, part / jnp.where(rate > 0, rate, 1.0), jnp.inf)
