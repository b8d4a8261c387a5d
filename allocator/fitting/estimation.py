"""From a table of runs to a fitted law."""

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from allocator.errors import FitError
from allocator.fitting import diagnostics
from allocator.fitting.batches import descend_all, mapped
from allocator.fitting.descent import MAX_STEPS
from allocator.fitting.form import Form
from allocator.fitting.forms import find, for_sizes
from allocator.fitting.losses import Loss, parse
from allocator.fitting.notes import Note
from allocator.fitting.reference import GOPHER_FLOP, has_optimum, log_optima
from allocator.fitting.resampling import pair_weights, wild_targets
from allocator.fitting.result import Fit, Resampling
from allocator.fitting.runs import Runs, read
from allocator.fitting.scaled import Scaled, physical, scale
from allocator.fitting.search import Search, search
from allocator.precision import require_float64

if TYPE_CHECKING:
    import pandas as pd

STARTS, DRAWS = 256, 1000
MOST = 200_000  # starts or draws
MOST_NUMBERS = 200_000_000  # weights of all refits, in memory at once
FEW_CLUSTERS = 8


def fit(
    frame: "pd.DataFrame",
    law: str | Form = "chinchilla",
    loss: str = "huber",
    *,
    columns: Mapping[str, str] | None = None,
    residuals: str | None = None,
    fixed: Mapping[str, float] | None = None,
    starts: int = STARTS,
    bootstrap: int = DRAWS,
    resample: str = "pairs",
    cluster: str | None = None,
    reduction: str = "sum",
    at_flop: float = GOPHER_FLOP,
    seed: int = 0,
) -> Fit:
    """Fit a law to a table of runs, with bootstrap draws and diagnostics.

    `law` is a name of `allocator.fitting.forms` or a `Form` (`user_form` makes one from a JAX function); `columns`
    maps its column names to those of the table; `fixed` gives parameters that are not estimated, in the table's units.
    Residuals are those of logs where the law is positive, or `linear`.
    `loss`: `huber[:DELTA]` (1e-3), `asymmetric[:PENALTY]` (10) or `least-squares`. `bootstrap` refits resample pairs
    of runs, or `wild` flips residuals; `cluster` names a column whose runs are drawn together. Neither the units of
    the table, nor the order of its rows, nor `reduction` (`sum` or `mean` of the loss) moves an estimate. `at_flop` is
    the budget 6 N D at which N* and D*/N* are told. Raises `FitError` with a code where the table cannot be fitted.
    """
    require_float64()
    if not isinstance(law, str | Form) or not isinstance(loss, str):
        raise FitError("law" if not isinstance(law, str | Form) else "loss", "must be a name")
    form = _with_residuals(find(law) if isinstance(law, str) else law, residuals)
    chosen = Loss("likelihood", float("inf")) if form.log_likelihood is not None else parse(loss)
    for name, count, least in (("starts", starts, 1), ("bootstrap", bootstrap, 0)):
        if isinstance(count, bool) or not isinstance(count, Integral) or not least <= count <= MOST:
            raise FitError(name, f"must be a whole number from {least} to {MOST:,}, got {count!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise FitError("seed", f"must be a whole number >= 0, got {seed!r}")
    for name, value, choices in (("resample", resample, ("pairs", "wild")), ("reduction", reduction, ("sum", "mean"))):
        if value not in choices:
            raise FitError(name, f"must be {' or '.join(choices)}, got {value!r}")
    if resample == "wild" and (form.log_likelihood is not None or chosen.overestimate != 1.0):
        raise FitError("resample", f"wild flips residuals, which a {chosen} fit does not treat alike; take pairs")
    if not isinstance(at_flop, int | float) or not 1 <= at_flop < 1e40:
        raise FitError("at_flop", f"must be a number >= 1 and < 1e40, got {at_flop!r}")
    runs = read(frame, [*form.inputs, form.target], columns=columns, extra=() if cluster is None else (cluster,))
    _counts(runs)
    form = for_sizes(form, runs.columns["n_active"]) if form.sizes else form
    if len(runs) * max(bootstrap, 1) > MOST_NUMBERS:
        raise FitError("too_many_runs", f"{len(runs):,} runs times {bootstrap:,} refits; at most {MOST_NUMBERS:.0e}")
    pinned = _pinned(form, fixed or {})
    _enough(form, runs, pinned)
    scaled = scale(form, runs)
    found = search(form, chosen, scaled, starts=starts, seed=seed, pinned=pinned)
    values = np.asarray(physical(form, found.theta, scaled))
    if not np.isfinite(values).all() or not np.isfinite(found.objective):
        raise FitError("no_minimum", f"no start led to a finite {form.name} law; check the columns and their units")
    groups = len(runs) if cluster is None else len(np.unique(runs.columns[cluster]))
    if groups < 2 and bootstrap:
        raise FitError("one_cluster", f"{cluster or 'runs'}: only one group of runs, so nothing can be resampled")
    resampling = Resampling(resample, cluster, bootstrap, seed)
    draws = _draws(form, chosen, runs, scaled, found, pinned, resampling)
    optimum, optimum_draws = _optima(form, values, draws, at_flop)
    few = []
    if cluster is not None and groups < FEW_CLUSTERS:
        said = f"{cluster}: only {groups} clusters, too few for intervals that hold"
        few.append(Note("few_clusters", said, path=cluster, value=groups))
    notes = (*runs.notes, *few, *diagnostics.shape_notes(form, runs.columns))
    done = Fit(form, chosen, runs, scaled, found, pinned, values, draws, resampling, at_flop, optimum, optimum_draws,
               reduction, notes)  # fmt: skip
    left_out, held_out = diagnostics.influence(done), diagnostics.holdouts(done)
    notes += (*diagnostics.notes_of(done), *diagnostics.influence_notes(done, left_out),
              *diagnostics.holdout_notes(held_out))  # fmt: skip
    return replace(done, notes=notes, influence=tuple(left_out), holdouts=tuple(held_out))


def _counts(runs: Runs) -> None:
    """Counts of samples are whole, and no more are correct than were drawn."""
    for name in ("n_correct", "n_samples"):
        values = runs.columns.get(name)
        if values is not None and len(broken := values[values != np.floor(values)]):
            raise FitError("out_of_range", f"{name}: must be whole numbers, got {broken[0]:g}")
    if "n_correct" in runs.columns and (runs.columns["n_correct"] > runs.columns["n_samples"]).any():
        raise FitError("out_of_range", "n_correct: must be <= n_samples in every row")


def _optima(
    form: Form, values: np.ndarray, draws: np.ndarray, at_flop: float
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(N*, D*) of the estimate and of each draw; None where there is none that a number can hold."""
    if not has_optimum(form):
        return None, None
    with np.errstate(over="ignore", under="ignore"):
        optimum = np.exp(log_optima(form, values[None], at_flop)[0])
        each = np.exp(log_optima(form, draws, at_flop)) if len(draws) else np.empty((0, 2))
    return (optimum, each) if (np.isfinite(optimum) & (optimum > 0)).all() else (None, None)


def _with_residuals(form: Form, residuals: str | None) -> Form:
    if residuals not in (None, "log", "linear"):
        raise FitError("residuals", f"must be log or linear, got {residuals!r}")
    if residuals == "log" and not form.positive:
        raise FitError("residuals", f"a {form.name} law may predict 0: its residuals are linear")
    return replace(form, residuals=residuals) if residuals else form


def _pinned(form: Form, fixed: Mapping[str, float]) -> np.ndarray:
    if not isinstance(fixed, Mapping):
        raise FitError("fixed", f"must map parameters to numbers, got {fixed!r}")
    pinned = np.full(len(form.names), np.nan)
    for name, value in fixed.items():
        if name not in form.names:
            raise FitError("fixed", f"{name!r} is no parameter of {form.name}; it has {', '.join(form.names)}")
        parameter = form.parameters[form.names.index(name)]
        positive = form.is_logged(parameter) or parameter.bounds[0] > 0
        low = parameter.bounds[0] == 0
        number = isinstance(value, int | float) and np.isfinite(value)
        exponent = parameter in form.shape and not parameter.log and parameter.scale_of is None
        most = parameter.bounds[1] if exponent else np.inf
        if not number or (positive and value <= 0) or (low and value < 0) or value > most:
            rule = (" > 0" if positive else " >= 0" if low else "") + (f" and <= {most:g}" if exponent else "")
            raise FitError("fixed", f"{name}: must be a finite number{rule}, got {value!r}")
        pinned[form.names.index(name)] = value
    return pinned


def _enough(form: Form, runs: Runs, pinned: np.ndarray) -> None:
    free = int(np.isnan(pinned).sum())
    if not free:
        raise FitError("fixed", "every parameter is given: there is nothing to estimate")
    target = runs.columns[form.target.name]
    if len(runs) > 1 and np.ptp(target) == 0 and form.log_likelihood is None:
        raise FitError("constant_target", f"{form.target.name}: every run has {target[0]:g}: nothing can be learned")
    repeats = "r_star" in form.names and np.isnan(pinned[form.names.index("r_star")])
    if repeats and not (runs.columns["d_tokens"] > runs.columns["unique_tokens"]).any():
        raise FitError("no_repeats", "unique_tokens: no run repeats its data, so r_star cannot be estimated; fix it")
    if len(runs) < free:
        raise FitError("too_few_runs", f"{len(runs)} runs for {free} parameters ({', '.join(form.names)})")
    for name, code in (("n_active", "one_size_only"), ("d_tokens", "one_token_count_only"), ("k", "one_k_only")):
        if name in [column.name for column in form.inputs] and len(np.unique(runs.columns[name])) < 2:
            needs = [part for part in {"n_active": ("A", "alpha"), "d_tokens": ("B", "beta"), "k": ("gamma",)}[name]
                     if part in form.names]  # fmt: skip
            held = (not needs and form.kind is None) or (
                bool(needs) and all(np.isfinite(pinned[form.names.index(part)]) for part in needs)
            )
            if not held:
                advice = f" or fix {' and '.join(needs)}" if needs else ""
                raise FitError(code, f"{name}: all {len(runs)} runs have {runs.columns[name][0]:g}, so its exponent "
                               f"cannot be estimated; add runs{advice}")  # fmt: skip


def _draws(
    form: Form, loss: Loss, runs: Runs, scaled: Scaled, found: Search, pinned: np.ndarray, how: Resampling
) -> np.ndarray:
    """Physical parameters of bootstrap refits, a row each; each starts from the best fit and the next best minima."""
    if not how.draws:
        return np.empty((0, len(form.names)))
    clusters = np.arange(len(runs)) if how.cluster is None else runs.columns[how.cluster]
    weights, targets = None, None
    if how.method == "pairs":
        weights = pair_weights(clusters, how.draws, how.seed)
    else:
        targets = _flipped(form, scaled, found, clusters, how)
    thetas = np.full((how.draws, len(form.names)), np.nan)
    lowest = np.full(how.draws, np.inf)
    for start in (found.theta, *found.others[:1]):
        starts = np.tile(start, (how.draws, 1))
        one = descend_all(form, loss, scaled, starts, weights=weights, targets=targets, pinned=pinned)
        # A refit that came to nothing stays NaN; one that ran out of steps is no minimum.
        better = (np.asarray(one.objective) < lowest) & (np.asarray(one.steps) < MAX_STEPS)
        thetas[better], lowest[better] = np.asarray(one.theta)[better], np.asarray(one.objective)[better]
    return mapped(form, physical, thetas, scaled)


def _flipped(form: Form, scaled: Scaled, found: Search, clusters: np.ndarray, how: Resampling) -> np.ndarray:
    """Targets of the wild bootstrap; where residuals are linear and the law positive, those stay positive."""
    predicted, target = np.asarray(form.predict(found.theta, scaled.rows)), np.asarray(scaled.target)
    if form.logs or not form.positive:
        return wild_targets(predicted, target - predicted, clusters, how.draws, how.seed)
    level = np.exp(predicted)
    drawn = wild_targets(level, np.exp(target) - level, clusters, how.draws, how.seed)
    return np.log(np.maximum(drawn, 1e-3 * level))
