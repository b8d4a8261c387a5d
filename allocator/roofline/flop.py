r"""FLOP of a token, and the share of a peak that a run reaches.

Conventions: a multiply-add is 2 FLOP; attention counts the pairs of query and key that an exact causal mask leaves, no
half of the square; a look-up in the input embedding is free; the head is 2 V d; a backward pass is two forward ones.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator.catalog import PEAKS, Record, dense_peak_flop_per_s
from allocator.errors import RooflineError
from allocator.laws.checks import is_known, require_number
from allocator.roofline.shape import Shape
from allocator.units import significant

Number = Float[Array, ""] | float
SPARSE_HEADLINES = (2.0, 4.0)  # vendors' 2:4 and 4:8 sparsity, over the dense peak


def causal_pairs(queries: Number, keys: Number, window: Number = jnp.inf) -> Float[Array, ""]:
    r"""Pairs of query and key under a causal mask aligned at the last key: $\sum_i \min(K - Q + i, w)$, i = 1 to Q.

    For 4 queries on 10 keys 34, where the convention Q (K - Q) + Q^2/2 has 32 and no mask has 40. Raises
    `RooflineError` for more queries than keys, of which some would see nothing; tracers pass.
    """
    if is_known(queries) and is_known(keys) and bool((np.asarray(queries, float) > np.asarray(keys, float)).any()):
        raise RooflineError(f"causal_pairs: got {_shown(queries)} queries on {_shown(keys)} keys; must be <= the keys")
    q, k = jnp.asarray(queries, float), jnp.asarray(keys, float)
    whole = jnp.clip(jnp.asarray(window, float) - (k - q), 0.0, q)  # queries that the window does not cut
    cut = jnp.where(whole < q, (q - whole) * jnp.where(whole < q, window, 1.0), 0.0)
    return whole * (k - q) + whole * (whole + 1) / 2 + cut


def attention_flop(
    queries: Number, keys: Number, key_dim: Number, value_dim: Number, *,
    heads: Number = 1.0, causal: bool = True, window: Number = jnp.inf,
) -> Float[Array, ""]:  # fmt: skip
    """FLOP of one layer's attention forward: scores and values, 2 (key_dim + value_dim) a pair and head."""
    pairs = causal_pairs(queries, keys, window) if causal else jnp.asarray(queries, float) * keys
    return 2 * heads * pairs * (key_dim + value_dim)


def head_flop(vocab: Number, d_model: Number) -> Float[Array, ""]:
    """FLOP of the output head per token, forward."""
    return 2 * jnp.asarray(vocab, float) * d_model


def attention_flop_per_token(shape: Shape, sequence: Number) -> Float[Array, ""]:
    """FLOP of attention forward, the mean over a sequence's tokens: a (T + 1)/2, and what windows leave of it."""
    tokens = jnp.asarray(sequence, float)
    windowed = causal_pairs(tokens, tokens, jnp.where(jnp.asarray(shape.window) > 0, shape.window, 1.0)) / tokens
    return shape.full_attention_flop_prompt * (tokens + 1) / 2 + shape.attention_flop_window * windowed


def forward_flop_per_token(shape: Shape, sequence: Number) -> Float[Array, ""]:
    """FLOP of a forward pass per token: 2 N of what multiplies, active experts only, and attention."""
    return 2 * jnp.asarray(shape.n_compute, float) + attention_flop_per_token(shape, sequence)


def training_flop_per_token(shape: Shape, sequence: Number) -> Float[Array, ""]:
    """FLOP of training per token, three forward passes."""
    return 3 * forward_flop_per_token(shape, sequence)


def attention_share(shape: Shape, sequence: Number) -> Float[Array, ""]:
    """Share of attention in a pass over a sequence; above a tenth, 2 N or 6 N alone mislead."""
    return attention_flop_per_token(shape, sequence) / forward_flop_per_token(shape, sequence)


def mfu(
    tokens: Number, seconds: Number, chips: Number, peak_flop_per_s: Number, flop_per_token: Number
) -> Float[Array, ""]:
    """Model FLOP/s over the chips' dense peak; raise `RooflineError` above 1, with what went in. Tracers pass."""
    given = {"tokens": tokens, "seconds": seconds, "chips": chips, "peak_flop_per_s": peak_flop_per_s,
             "flop_per_token": flop_per_token}  # fmt: skip
    for name, value in given.items():
        require_number(f"mfu.{name}", value)
    reached = jnp.asarray(tokens * flop_per_token / (seconds * chips * peak_flop_per_s), float)
    if is_known(reached) and bool((reached > 1).any()):
        figures = ", ".join(f"{name} = {_shown(value)}" for name, value in given.items())
        raise RooflineError(
            f"mfu: got {significant(float(reached.max()))} from {figures}; must be <= 1: check the peak (dense, of the "
            "dtype that computes, of all chips) and the FLOP count"
        )
    return reached


def _shown(value: Number) -> str:
    numbers = np.asarray(value, float)
    return f"{numbers:.10g}" if numbers.ndim == 0 else f"[{', '.join(f'{number:.10g}' for number in numbers.flat)}]"


class Utilisation(NamedTuple):
    """An MFU with the peak that it is a share of, without which it says nothing."""

    mfu: float
    dtype: str
    peak_flop_per_s: float


def utilisation(
    record: Record, dtype: str, *, tokens: float, seconds: float, chips: float, flop_per_token: float
) -> Utilisation:
    """MFU against a chip's dense peak in the dtype that computes."""
    peak = dense_peak_flop_per_s(record, dtype)
    return Utilisation(float(mfu(tokens, seconds, chips, peak, flop_per_token)), dtype, peak)


def check_dense_peak(record: Record, dtype: str, peak_flop_per_s: float) -> None:
    """Raise `RooflineError` where a peak is not the chip's dense one; say if it looks sparse (2 or 4 times as high)."""
    dense = dense_peak_flop_per_s(record, dtype)
    ratio = peak_flop_per_s / dense
    if abs(ratio - 1) < 0.02:
        return
    others = [name for name in PEAKS if name != dtype and record.fields.get(PEAKS[name]) == peak_flop_per_s]
    sparse = any(abs(ratio / headline - 1) < 0.02 for headline in SPARSE_HEADLINES)
    guesses = ["the sparse headline"] * sparse + [f"the peak of {name}" for name in others]
    looks = f"; it looks like {' or '.join(guesses)}" if guesses else ""
    raise RooflineError(
        f"peak_flop_per_s: got {peak_flop_per_s:g}, {ratio:.3g} times the dense {dtype} peak of {record.name}, "
        f"{dense:g}{looks}"
    )
