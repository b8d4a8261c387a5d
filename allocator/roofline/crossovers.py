r"""Where one term of a decode step overtakes another: batches, contexts and cache sizes at equality.

With r = F e_c/(bw e_m) in FLOP/byte, B sequences of c tokens, kv bytes and a FLOP of attention per token of context:

$$W + B\,c\,kv = \frac{B\,(2N + a c)}{r}$$

Lecture, 00:10 to 00:20 and 01:36. `n_compute` are active parameters that multiply. These closed forms have all weights
read at any batch, and no layout; `batch_where_compute_binds` solves the step itself.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.accelerator import Accelerator
from allocator.roofline.layout import Layout
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Shape
from allocator.roofline.step import decode_step

Number = Float[Array, ""] | float
LAST_LOG_BATCH = 30.0  # 1e13 sequences: beyond it nothing but the caches and what goes with them counts


def flop_per_byte(chip: Accelerator, *, compute_efficiency: Number = 1.0, memory_efficiency: Number = 1.0):
    """FLOP that a chip computes while it reads a byte, r."""
    reached = jnp.asarray(chip.peak_flop_per_s * compute_efficiency, float)
    return reached / (chip.hbm_bytes_per_s * memory_efficiency)


def batch_where_compute_binds(shape: Shape, op: Operation, layout: Layout | None = None) -> Float[Array, ""]:
    """Batch above which arithmetic of a decode step takes longer than reading memory, solved on the step's own terms.

    At it both take the same time; 1 where arithmetic takes longer at every batch, inf where reading does. Experts
    that few sequences visit, caches that a layout copies, and groups with one sequence at least are all in it.
    """

    def lead(log_batch):  # of reading over arithmetic, in logs
        step = decode_step(shape, eqx.tree_at(lambda o: o.batch, op, jnp.exp(log_batch)), layout)
        return jnp.log(step.memory_s) - jnp.log(step.compute_s)

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        longer = lead(middle) > 0
        return jnp.where(longer, middle, ends[0]), jnp.where(longer, ends[1], middle)

    # Reading's lead has one top at most where groups have sequences of their own, so its last change is the crossing.
    grid = jnp.linspace(0.0, LAST_LOG_BATCH, 200)
    longer = jax.vmap(lead)(grid) > 0
    last = jnp.max(jnp.where(longer, jnp.arange(len(grid)), -1))
    low = grid[jnp.maximum(last, 0)]
    ends = jax.lax.fori_loop(0, 60, halve, (low, grid[jnp.minimum(last + 1, len(grid) - 1)]))
    found = jnp.exp((ends[0] + ends[1]) / 2)
    return jnp.where(last < 0, 1.0, jnp.where(last == len(grid) - 1, jnp.inf, found))


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
    """Context at which attention takes as many FLOP as the weights: of a decoded token, or with `causal` the length of
    a whole sequence, each of whose tokens sees those before it and itself."""
    linear = 2 * jnp.asarray(shape.n_compute, float)
    per_pair = shape.full_attention_flop_prompt if causal else shape.attention_flop
    full, windowed, window = (jnp.asarray(x, float) for x in (per_pair, shape.attention_flop_window, shape.window))
    inside = (2 * linear / (full + windowed) - 1) if causal else linear / (full + windowed)
    if causal:  # full (T + 1)/2 + windowed (w - w (w - 1)/(2 T)) = linear, a quadratic in T
        b, c = full / 2 + windowed * window - linear, windowed * window * (window - 1) / 2
        root = jnp.sqrt(jnp.where(windowed > 0, b**2 + 2 * full * c, 1.0))
        beyond = jnp.where(full > 0, _over(root - b, full), _over(c, b))
    else:
        beyond = _over(linear - windowed * window, full)
    return jnp.where((windowed > 0) & (inside > window), beyond, inside)


def _over(part: Float[Array, ""], rate: Number) -> Float[Array, ""]:
    """part/rate, inf where the rate is not positive; gradients stay finite there."""
    rate = jnp.asarray(rate, float)
    return jnp.where(rate > 0, part / jnp.where(rate > 0, rate, 1.0), jnp.inf)
