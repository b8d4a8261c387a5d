"""pass@k from counts of samples, per problem."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from allocator.errors import FitError

if TYPE_CHECKING:
    import pandas as pd

_EXACT = 1000  # factors up to which the product is summed term by term rather than by log-gamma


def unbiased_pass_at_k(
    n_samples: Float[np.ndarray, "*problems"], n_correct: Float[np.ndarray, "*problems"], k: int
) -> Float[np.ndarray, "*problems"]:
    """Unbiased estimate 1 - C(n - c, k) / C(n, k) for each problem, in log space.

    Counts are per problem; counts of problems are not samples. Raises `FitError` where k > n, since fewer samples say
    nothing about k. Source: Chen et al., arXiv 2107.03374, eq. 1.
    """
    n, c = (np.asarray(values, float) for values in (n_samples, n_correct))
    if isinstance(k, bool) or not np.isfinite(k) or k != int(k) or k < 1:
        raise FitError("k", f"must be a whole number >= 1, got {k!r}")
    for name, values in (("n_samples", n), ("n_correct", c)):
        if not (np.isfinite(values) & (values >= 0) & (values == np.floor(values))).all():
            raise FitError(name, "must be whole numbers >= 0")
    if (c > n).any():
        raise FitError("n_correct", f"must be <= n_samples, got {c[c > n].flat[0]:g} of {n[c > n].flat[0]:g}")
    if (n < k).any():
        raise FitError("k_above_n", f"k = {k} needs at least {k} samples of each problem, got {n.min():g}")
    # C(n - c, k) / C(n, k) = prod over i < c of 1 - k / (n - i), and the same with c and k exchanged.
    fewer, more = np.minimum(c, k), np.maximum(c, k)
    log_fail = np.zeros(np.broadcast_shapes(n.shape, c.shape))
    certain = n - c < k
    short = ~certain & (fewer <= _EXACT)
    for i in range(int(fewer[short].max(initial=0))):
        counts = short & (i < fewer)
        log_fail += np.where(counts, np.log1p(-np.where(counts, more / np.maximum(n - i, 1), 0.0)), 0.0)
    long = ~certain & ~short
    gammas = gammaln(n - c + 1) + gammaln(n - k + 1) - gammaln(n + 1) - gammaln(np.maximum(n - c - k, 0) + 1)
    log_fail = np.where(long, gammas, log_fail)
    return np.where(certain, 1.0, -np.expm1(log_fail))


def pass_table(frame: "pd.DataFrame", by: Sequence[str], ks: Sequence[int]) -> "pd.DataFrame":
    """Mean pass@k over the problems of each group; columns `by`, k, pass_at_k, problems.

    The table has a problem a row, with columns n_samples and n_correct. Raises `FitError` where a column is absent.
    """
    import pandas as pd

    missing = [name for name in (*by, "n_samples", "n_correct") if name not in frame.columns]
    if missing:
        raise FitError("missing_column", f"{', '.join(missing)}: no such column; found {', '.join(frame.columns)}")
    parts = []
    for k in ks:
        rates = frame[list(by)].assign(
            k=float(k), rate=unbiased_pass_at_k(frame["n_samples"].to_numpy(), frame["n_correct"].to_numpy(), k)
        )
        parts.append(
            rates.groupby([*by, "k"], as_index=False).agg(pass_at_k=("rate", "mean"), problems=("rate", "size"))
        )
    return pd.concat(parts, ignore_index=True)
