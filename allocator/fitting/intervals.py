"""Confidence intervals from bootstrap draws."""

import numpy as np
from scipy.special import ndtr, ndtri


def interval(draws: np.ndarray, estimate: float, level: float = 0.95) -> tuple[float, float]:
    """Bias-corrected percentile interval (Efron); NaN where fewer than two draws are finite.

    The percentiles shift by how far the estimate lies from the median of its own draws. A monotone map of estimate
    and draws maps the ends, so it does not matter whether N* or its log is asked for.
    """
    known = draws[np.isfinite(draws)]
    if len(known) < 2:
        return float("nan"), float("nan")
    below = np.mean(known < estimate) + np.mean(known == estimate) / 2
    shift = 2 * ndtri(np.clip(below, 1 / len(known), 1 - 1 / len(known)))
    ends = ndtr(shift + ndtri([(1 - level) / 2, (1 + level) / 2]))
    low, high = np.quantile(known, ends)
    return float(low), float(high)
