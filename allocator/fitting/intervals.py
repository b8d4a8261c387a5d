"""Confidence intervals from bootstrap draws."""

import numpy as np

LEVELS = (0.9, 0.95)


def interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval; NaN where fewer than two draws are finite. Monotone maps of the draws map its ends."""
    known = draws[np.isfinite(draws)]
    if len(known) < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
