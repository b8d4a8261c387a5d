"""Fits for tests of charts and pages: one that was fitted, and quick ones of every form that were not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from allocator.fitting import losses
from allocator.fitting.estimation import fit
from allocator.fitting.form import Column
from allocator.fitting.forms import FORMS, for_sizes
from allocator.fitting.recipes import Recipe, make
from allocator.fitting.reference import GOPHER_FLOP, has_optimum, log_optima
from allocator.fitting.result import Fit, Resampling
from allocator.fitting.runs import Runs
from allocator.fitting.scaled import physical, scale
from allocator.fitting.search import Search

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"


def recipe(**changes) -> Recipe:
    return make({"data": {"path": "runs.csv"}, **changes}, "test")


def table() -> pd.DataFrame:
    """Runs of a Chinchilla law with a little noise."""
    rng = np.random.default_rng(3)
    n, d = (grid.ravel() for grid in np.meshgrid([1e8, 3e8, 1e9, 3e9], [2e9, 6e9, 2e10, 6e10, 2e11]))
    loss = (1.7 + 400 * n**-0.34 + 410 * d**-0.28) * np.exp(rng.normal(0, 0.004, n.size))
    return pd.DataFrame({"n_active": n, "d_tokens": d, "loss": loss, HOSTILE: np.arange(n.size) // 2})


def fitted(bootstrap: int = 50) -> Fit:
    cluster = HOSTILE if bootstrap else None
    return fit(table(), "chinchilla", starts=16, bootstrap=bootstrap, cluster=cluster)


@cache
def unfitted(name: str, draws: int = 50) -> Fit:
    """A law of any form at the middle of its starting box, with made-up runs, draws and influence."""
    if not draws:  # the same law, so that nothing is compiled twice
        whole = unfitted(name)
        optima = None if whole.optimum is None else np.empty((0, 2))
        how = replace(whole.resampling, draws=0)
        bare = replace(whole, draws=whole.draws[:0], optimum_draws=optima, resampling=how)
        vars(bare)["condition_number"] = 10.0
        return bare
    rng = np.random.default_rng(7)
    form = FORMS[name]
    columns = {column.name: _values(column, rng) for column in form.inputs}
    if "unique_tokens" in columns:
        columns["unique_tokens"] = columns["d_tokens"] / rng.choice([1.0, 4.0], 24)
    top = form.target.highest or 3.0
    columns[form.target.name] = rng.uniform(0.1, 0.9, 24) * top
    if name == "beta-binomial":
        columns = {"n_samples": np.full(24, 50.0), "n_correct": rng.integers(0, 40, 24).astype(float)}
    form = for_sizes(form, columns["n_active"]) if form.sizes else form
    runs = Runs(columns, rng.permutation(24))
    scaled = scale(form, runs)
    low, high = np.array([parameter.start for parameter in form.parameters]).T
    theta = (low + high) / 2
    around = [theta + rng.normal(0, 0.02, len(theta)) for _ in range(draws)]
    values = np.asarray(physical(form, theta, scaled))
    drawn = np.array([np.asarray(physical(form, one, scaled)) for one in around])
    optimum = np.exp(log_optima(form, values[None], GOPHER_FLOP)[0]) if has_optimum(form) else None
    optima = np.exp(log_optima(form, drawn, GOPHER_FLOP)) if optimum is not None else None
    search = Search(theta, 1.0, 16, 1.0, 0.0, np.zeros(len(theta), bool), np.empty((0, len(theta))))
    moved = tuple({"left_out": "run", "row": int(row) + 1, "change": 0.2 - 0.01 * row} for row in runs.row)
    kept = {"held_out": "largest_n_active", "runs": 5, "from": 1e9, "error_held_out": 0.1, "bias_held_out": -0.05,
            "error_kept": 0.02}  # fmt: skip
    fit = Fit(form, losses.parse("huber"), runs, scaled, search, np.full(len(theta), np.nan), values, drawn,
              Resampling("pairs", None, draws, 0), GOPHER_FLOP, optimum, optima,
              influence=moved, holdouts=(kept,))  # fmt: skip
    vars(fit)["condition_number"] = 10.0  # a second derivative of each form would take most of the tests' time
    return fit


def _values(column: Column, rng: np.random.Generator) -> np.ndarray:
    levels = {
        "n_active": [1e8, 1e9, 1e10],
        "k": [1.0, 4.0, 16.0],
        "d_rl": [0.0, 1e9, 1e11],
        "rl_amount": [0.0, 1e3, 1e5],
    }
    if column.name == "rl_amount" and column.scaling == "log":
        return rng.choice([1e2, 1e3, 1e5], 24)
    if column.name in levels:
        return rng.choice(levels[column.name], 24)
    return rng.uniform(2, 4, 24) if "loss" in column.name else np.exp(rng.uniform(20, 27, 24))
