"""How often nominal intervals hold the truth, on runs made from a known law."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allocator.errors import FitError
from allocator.fitting.batches import descend_all, mapped
from allocator.fitting.forms import find
from allocator.fitting.intervals import interval
from allocator.fitting.losses import parse
from allocator.fitting.reference import log_optima
from allocator.fitting.resampling import pair_weights
from allocator.fitting.runs import read
from allocator.fitting.scaled import physical, scale
from allocator.fitting.search import starting_points

STARTS = 8  # the first batch decides; bootstrap refits start from its best


@dataclass(frozen=True)
class Design:
    """Sizes and tokens per parameter of the simulated runs, every pair once, `repeats` times."""

    n_active: Sequence[float]
    tokens_per_param: Sequence[float]
    repeats: int = 1

    def levers(self) -> tuple[np.ndarray, np.ndarray]:
        """(N, D) of every run."""
        n, ratio = np.meshgrid(self.n_active, self.tokens_per_param)
        return np.tile(n.ravel(), self.repeats), np.tile((n * ratio).ravel(), self.repeats)


@dataclass(frozen=True)
class Coverage:
    """Share of simulations whose interval holds the true N* (and, since 6 N D is fixed, the true D*/N*)."""

    simulations: int
    level: float
    covered: float
    bias: float  # mean error of log N*
    spread: float  # standard deviation of log N* over the simulations
    failed: int  # simulations without an interval; they count as not covered

    @property
    def standard_error(self) -> float:
        """Of `covered`."""
        return float(np.sqrt(self.covered * (1 - self.covered) / self.simulations))


def simulate(
    design: Design, truth: Sequence[float], law: str, noise: float, seed: Sequence[int]
) -> dict[str, np.ndarray]:
    """Columns of simulated runs: the law's loss times exp(noise z), z standard normal."""
    n, d = design.levers()
    form = find(law)
    rows = {"n_active": np.log(n), "d_tokens": np.log(d)}
    m = len(form.linear)
    theta = np.concatenate([np.log(truth[:m]), truth[m:]])
    loss = np.exp(np.asarray(form.predict(theta, rows)))
    error = np.random.default_rng(list(seed)).standard_normal(len(n))
    return {"n_active": n, "d_tokens": d, "loss": loss * np.exp(noise * error)}


def coverage(
    design: Design,
    truth: Sequence[float],
    *,
    law: str = "chinchilla",
    loss: str = "huber",
    noise: float = 0.005,
    simulations: int = 1000,
    draws: int = 200,
    level: float = 0.9,
    at_flop: float = 5.76e23,
    seed: int = 0,
) -> Coverage:
    """Fit simulated tables with bootstrap intervals and count how often they hold the true N*.

    `truth` gives the parameters in the form's order; simulation i has the seed (seed, i).
    """
    import pandas as pd

    form, chosen = find(law), parse(loss)
    if len(truth) != len(form.names):
        raise FitError("truth", f"{law} has the parameters {', '.join(form.names)}, got {len(truth)} numbers")
    true = float(log_optima(form, np.array([truth], float), at_flop)[0, 0])
    errors, hits, failed = [], 0, 0
    for i in range(simulations):
        frame = pd.DataFrame(simulate(design, truth, law, noise, (seed, i)))
        scaled = scale(form, read(frame, [*form.inputs, form.target]))
        found = descend_all(form, chosen, scaled, starting_points(form, scaled, STARTS, seed))
        best = np.asarray(found.theta)[np.nanargmin(found.objective)]
        weights = pair_weights(np.arange(len(frame)), draws, seed + i)
        refits = descend_all(form, chosen, scaled, np.tile(best, (draws, 1)), weights=weights)
        thetas = np.vstack([best, np.asarray(refits.theta)])
        log_n = log_optima(form, mapped(form, physical, thetas, scaled), at_flop)[:, 0]
        low, high = interval(log_n[1:], log_n[0], level)
        errors.append(log_n[0] - true)
        hits += low <= true <= high
        failed += not np.isfinite(low)
    return Coverage(simulations, level, hits / simulations, float(np.mean(errors)), float(np.std(errors)), failed)
