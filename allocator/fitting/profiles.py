"""Profile likelihoods: how much worse the best fit becomes when one parameter is held elsewhere."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2

from allocator.errors import FitError
from allocator.fitting.batches import descend_all
from allocator.fitting.intervals import interval
from allocator.fitting.result import Fit
from allocator.fitting.search import EXACT

if TYPE_CHECKING:
    import pandas as pd

POINTS = 41
REACH = 1.6  # of the 95% bootstrap interval's half-widths, on either side


@dataclass(frozen=True)
class Profile:
    """Deviance of the best fit with one parameter held; 0 at the estimate."""

    parameter: str
    values: np.ndarray
    deviance: np.ndarray

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the deviance is below the chi-squared quantile; NaN for an end that lies beyond the grid."""
        limit = float(chi2.ppf(level, 1))
        best = 0 if np.isnan(self.deviance).all() else int(np.nanargmin(self.deviance))
        low = _crossing(self.values[best::-1], self.deviance[best::-1], limit)
        return low, _crossing(self.values[best:], self.deviance[best:], limit)


def profiles(fit: Fit, parameters: tuple[str, ...] | None = None, points: int = POINTS) -> list[Profile]:
    """Profiles over a grid that the bootstrap draws span, one batched run for all; needs draws.

    The deviance is n log(S / S_min) for least squares, 2 (S - S_min) for a likelihood, and for a robust loss the latter
    times the mean slope of psi, the loss's derivative, over its mean square: the likelihood-ratio test of M-estimators
    (Heritier and Ronchetti, 1994). S is the sum of the loss. NaN where the runs lie on the law exactly.
    """
    free = [name for name, value in zip(fit.form.names, fit.pinned, strict=True) if not np.isfinite(value)]
    wanted = list(parameters or free)
    for name in wanted:
        if name not in free:
            raise FitError("parameter", f"{name!r} is not estimated; estimated ones: {', '.join(free)}")
    if len(fit.draws) < 2:
        raise FitError("bootstrap", "profiles need bootstrap draws to know how far to look; got none")
    grids = [_grid(fit, name, points) for name in wanted]
    pinned = np.tile(fit.pinned, (len(wanted) * points, 1))
    for i, (name, grid) in enumerate(zip(wanted, grids, strict=True)):
        pinned[i * points : (i + 1) * points, fit.form.names.index(name)] = grid
    found = [
        descend_all(fit.form, fit.loss, fit.scaled, np.tile(start, (len(pinned), 1)), pinned=pinned).objective
        for start in (fit.search.theta, *fit.search.others)
    ]
    objective = np.nanmin(np.array(jax.device_get(found)), axis=0).reshape(len(wanted), points)
    return [Profile(name, grid, _deviance(fit, row)) for name, grid, row in zip(wanted, grids, objective, strict=True)]


def to_frame(made: list[Profile]) -> "pd.DataFrame":
    """Columns parameter, value, deviance."""
    import pandas as pd

    parts = [pd.DataFrame({"parameter": p.parameter, "value": p.values, "deviance": p.deviance}) for p in made]
    return pd.concat(parts, ignore_index=True)


def _deviance(fit: Fit, objective: np.ndarray) -> np.ndarray:
    best = fit.search.objective
    if fit.form.log_likelihood is None and np.isinf(fit.loss.delta):
        exact = 0.5 * len(fit.runs) * EXACT**2
        if best <= exact:
            return np.full_like(objective, np.nan)
        return len(fit.runs) * np.log(np.maximum(objective, best) / best)
    return 2 * np.maximum(objective - best, 0.0) * _scale(fit)


def _scale(fit: Fit) -> float:
    """What takes the place of an error law: mean slope of psi over mean square of psi, 1 for a likelihood."""
    if fit.form.log_likelihood is not None:
        return 1.0
    residual = np.asarray(fit.form.residual(jnp.asarray(fit.search.theta), fit.scaled.rows, fit.scaled.target))
    weight = np.where(residual < 0, fit.loss.overestimate, 1.0)
    psi = weight * np.clip(residual, -fit.loss.delta, fit.loss.delta)
    slope, square = np.mean(weight * (np.abs(residual) < fit.loss.delta)), np.mean(psi**2)
    free = int(np.isnan(fit.pinned).sum())
    left = max(len(residual) - free, 1) / len(residual)  # degrees of freedom
    return float(slope / square * left) if square > EXACT**2 else float("nan")


def _grid(fit: Fit, name: str, points: int) -> np.ndarray:
    """Values around the estimate, which is one of them; even in logs where the parameter is estimated in logs."""
    i = fit.form.names.index(name)
    parameter, m = fit.form.parameters[i], len(fit.form.linear)
    logged = fit.form.is_logged(parameter)
    estimate = float(fit.values[i])
    ends = np.array(interval(fit.draws[:, i], estimate, 0.95))
    if logged:
        centre, ends = np.log(estimate), np.log(np.maximum(ends, 1e-300))
    else:
        centre = estimate
    below = min(REACH * max(centre - ends[0], 0.0) or 1e-6 * abs(centre) or 1e-6, 12.0 if logged else np.inf)
    above = min(REACH * max(ends[1] - centre, 0.0) or 1e-6 * abs(centre) or 1e-6, 12.0 if logged else np.inf)
    half = points // 2
    grid = np.concatenate(
        [np.linspace(centre - below, centre, points - half), np.linspace(centre, centre + above, half + 1)[1:]]
    )
    if i >= m:  # a shape parameter stays in its range; a coefficient's depends on the others
        low, high = parameter.bounds
        scale = float(fit.scaled.shape_scales[i - m])
        ends = (low + np.log(scale), high + np.log(scale)) if logged else (low * scale, high * scale)
        grid = np.clip(grid, *ends)
    return np.exp(grid) if logged else grid


def _crossing(values: np.ndarray, deviance: np.ndarray, limit: float) -> float:
    above = np.flatnonzero(deviance > limit)
    if not len(above) or not np.isfinite(deviance).all():
        return float("nan")
    j = int(above[0])
    share = (limit - deviance[j - 1]) / (deviance[j] - deviance[j - 1])
    return float(values[j - 1] + share * (values[j] - values[j - 1]))
