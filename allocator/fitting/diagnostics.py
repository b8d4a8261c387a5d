"""What is doubtful about a fit, by code."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from allocator.fitting.batches import descend_all, mapped
from allocator.fitting.form import Form
from allocator.fitting.notes import Note
from allocator.fitting.reference import log_optima
from allocator.fitting.result import Fit
from allocator.fitting.runs import FLOP_PER_PARAM_TOKEN
from allocator.fitting.scaled import physical
from allocator.fitting.search import EXACT

WIDE = 10.0  # a 90% interval of N* or D*/N* that spans this factor says little
VAGUE = 0.5  # relative standard error of an exponent
ILL_CONDITIONED = 1e4  # of the scaled Jacobian: some combination of parameters is open
INFLUENTIAL = 0.10  # change of N* when one run is left out
TREND, TREND_P = 0.3, 0.01  # Spearman correlation of residuals with a lever, and its p-value
SHARE_HELD_OUT = 0.2
POOR = 2.0  # error of held-out runs over that of the runs kept
MOST_LEFT_OUT = 400  # runs that are left out one at a time
FAR = 10.0  # of the largest run's compute, beyond which the reference budget is an extrapolation
LOW_AGREEMENT = 0.5  # share of starts at the best minimum


def shape_notes(form: Form, columns: Mapping[str, np.ndarray]) -> list[Note]:
    """What the table's design leaves open, whatever the losses are."""
    notes = []
    levers = [column.name for column in form.inputs if column.name in ("n_active", "d_tokens", "d_rl", "k")]
    for name in levers:
        distinct = len(np.unique(columns[name]))
        if distinct < 3:
            code = "two_sizes_only" if name == "n_active" else "few_levels"
            notes.append(Note(code, f"{name}: only {distinct} different values: exponent and floor cannot be told "
                              "apart", path=name, value=distinct))  # fmt: skip
    if {"n_active", "d_tokens"} <= set(levers):
        ratio = np.log(columns["d_tokens"] / columns["n_active"])
        if np.std(ratio) < 0.1:
            notes.append(Note("one_ratio_only", "d_tokens: every run has about the same tokens per parameter: what N "
                              "and what D contribute cannot be told apart", path="d_tokens",
                              value=float(np.exp(np.mean(ratio)))))  # fmt: skip
    return notes


def notes_of(fit: Fit) -> list[Note]:
    """Findings on a finished fit."""
    notes: list[Note] = []
    search = fit.search
    for name, stuck in zip(fit.form.names, search.at_bound, strict=True):
        if stuck:
            notes.append(Note("parameter_at_bound", f"{name} ran into the end of its range: the data do not determine "
                              "it", path=name, value=fit.parameters[name]))  # fmt: skip
    if search.share_at_best < LOW_AGREEMENT:
        notes.append(Note("starts_disagree", f"only {search.share_at_best:.0%} of {search.starts} starts came to the "
                          "best minimum: raise --starts", value=search.share_at_best))  # fmt: skip
    if search.gradient > 1e-6:
        notes.append(Note("not_stationary", f"the gradient is {search.gradient:.1e} of its terms at the best point",
                          value=search.gradient))  # fmt: skip
    return notes + _beyond(fit) + _weak(fit) + _trends(fit) + _stuck_draws(fit)


def _beyond(fit: Fit) -> list[Note]:
    """How far the reference budget lies beyond the runs."""
    columns = fit.runs.columns
    if fit.optimum is None or not {"n_active", "d_tokens"} <= columns.keys():
        return []
    largest = float(np.max(FLOP_PER_PARAM_TOKEN * columns["n_active"] * columns["d_tokens"]))
    if fit.at_flop <= FAR * largest:
        return []
    ratio = fit.at_flop / largest
    return [Note("extrapolates", f"N* is told at {fit.at_flop:.3g} FLOP, {ratio:,.0f} times the largest run: intervals "
                 "hold only if the form does", path="at_flop", value=ratio)]  # fmt: skip


def _weak(fit: Fit) -> list[Note]:
    reasons = []
    if fit.condition_number > ILL_CONDITIONED:
        reasons.append(f"condition number {fit.condition_number:.1e}")
    if len(fit.draws) > 1:
        for parameter in fit.form.parameters:
            value = abs(fit.parameters[parameter.name])
            if parameter.essential and fit.stderr[parameter.name] > VAGUE * value:
                reasons.append(f"{parameter.name} = {value:.3g} with a standard error of "
                               f"{fit.stderr[parameter.name]:.2g}")  # fmt: skip
        if fit.optimum is not None:
            for name, label in (("n_active", "N*"), ("tokens_per_param", "D*/N*")):
                low, high = fit.interval(name, 0.9)
                if not high < WIDE * low:
                    reasons.append(f"{label} at {fit.at_flop:.3g} FLOP anywhere from {low:.3g} to {high:.3g} (90%)")
    if not reasons:
        return []
    return [Note("weakly_identified", "the runs leave the law open: " + "; ".join(reasons), value=fit.condition_number)]


def _trends(fit: Fit) -> list[Note]:
    notes = []
    columns = dict(fit.runs.columns)
    levers = {name: columns[name] for name in ("n_active", "d_tokens", "d_rl", "k", "rl_amount") if name in columns}
    if {"n_active", "d_tokens"} <= levers.keys():
        levers["tokens_per_param"] = levers["d_tokens"] / levers["n_active"]
    for name, lever in levers.items():
        if len(np.unique(lever)) < 4 or np.ptp(fit.residual) < EXACT:
            continue
        strength, p_value = map(float, spearmanr(lever, fit.residual))
        if abs(strength) > TREND and p_value < TREND_P:
            notes.append(Note("residual_trend", f"residuals {'rise' if strength > 0 else 'fall'} with {name} (Spearman "
                              f"{strength:+.2f}): the form misses something along it", path=name,
                              value=strength))  # fmt: skip
    return notes


def _stuck_draws(fit: Fit) -> list[Note]:
    """Bootstrap refits that failed are counted, never dropped in silence."""
    lost = int((~np.isfinite(fit.draws).all(axis=1)).sum()) if len(fit.draws) else 0
    if not lost:
        return []
    return [Note("draws_failed", f"{lost} of {len(fit.draws)} bootstrap refits came to no minimum", value=lost)]


def influence(fit: Fit) -> list[dict[str, Any]]:
    """Effect of leaving out each run, and each model size, on N* (or, without N*, on the first exponent).

    The largest effects come first; `change` is relative.
    """
    columns, count = fit.runs.columns, len(fit.runs)
    weights, labels = [], []
    # Of very many runs, those that lie farthest off; the others cannot move much.
    farthest = np.sort(np.argsort(-np.abs(fit.residual), kind="stable")[:MOST_LEFT_OUT])
    for i in farthest:
        weights.append(np.arange(count) != i)
        labels.append({"left_out": "run", "row": int(fit.runs.row[i]) + 1})
    if "n_active" in columns and 3 < len(sizes := np.unique(columns["n_active"])) <= 40 and not fit.form.sizes:
        for size in sizes:
            weights.append(columns["n_active"] != size)
            labels.append(
                {"left_out": "size", "n_active": float(size), "runs": int((columns["n_active"] == size).sum())}
            )
    quantity, values = _refitted(fit, np.array(weights, float))
    with np.errstate(all="ignore"):
        changes = values / quantity - 1
    rows = [label | {"change": float(change)} for label, change in zip(labels, changes, strict=True)
            if np.isfinite(change)]  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row["change"]))


def influence_notes(fit: Fit, rows: list[dict[str, Any]]) -> list[Note]:
    """A note on the most influential run, where it moves the answer much."""
    of = "N*" if fit.optimum is not None else watched(fit.form)
    for row in rows:
        if row["left_out"] == "run" and abs(row["change"]) > INFLUENTIAL:
            return [Note("influential_run", f"leaving out row {row['row']} alone moves {of} by {row['change']:+.0%}",
                         path="", value=row["change"])]  # fmt: skip
    return []


def _refitted(fit: Fit, weights: np.ndarray) -> tuple[float, np.ndarray]:
    starts = np.tile(fit.search.theta, (len(weights), 1))
    found = descend_all(fit.form, fit.loss, fit.scaled, starts, weights=weights, pinned=fit.pinned)
    values = mapped(fit.form, physical, np.asarray(found.theta), fit.scaled)
    if fit.optimum is not None:
        with np.errstate(over="ignore"):
            return float(fit.optimum[0]), np.exp(log_optima(fit.form, values, fit.at_flop)[:, 0])
    index = fit.form.names.index(watched(fit.form))
    return float(fit.values[index]), values[:, index]


def watched(form: Form) -> str:
    """What leaving out a run is judged by where there is no N*: the first exponent or, without one, coefficient."""
    return form.shape[0].name if form.shape else form.linear[0].name


def holdouts(fit: Fit) -> list[dict[str, Any]]:
    """Refits without the largest models, and without the most over-trained runs, asked for what they left out."""
    columns = fit.runs.columns
    tests = {}
    if "n_active" in columns and not fit.form.sizes:
        tests["largest_n_active"] = columns["n_active"]
        if "d_tokens" in columns:
            tests["largest_tokens_per_param"] = columns["d_tokens"] / columns["n_active"]
    rows = []
    for name, by in tests.items():
        edge = np.quantile(by, 1 - SHARE_HELD_OUT)
        out = by > edge if (by > edge).any() else by == by.max()
        if (~out).sum() <= len(fit.form.names) or len(np.unique(columns["n_active"][~out])) < 3:
            continue
        found = descend_all(fit.form, fit.loss, fit.scaled, fit.search.theta[None], weights=(~out).astype(float)[None],
                            pinned=fit.pinned)  # fmt: skip
        missed = np.asarray(fit.form.residual(jnp.asarray(found.theta[0]), fit.scaled.rows, fit.scaled.target))
        rows.append({"held_out": name, "runs": int(out.sum()), "from": float(by[out].min()),
                     "error_held_out": float(np.sqrt(np.mean(missed[out] ** 2))),
                     "bias_held_out": float(np.mean(missed[out])),
                     "error_kept": float(np.sqrt(np.mean(missed[~out] ** 2)))})  # fmt: skip
    return rows


def holdout_notes(rows: list[dict[str, Any]]) -> list[Note]:
    """A note for each hold-out that is predicted much worse than what was kept."""
    return [
        Note("extrapolates_poorly", f"without the runs of {row['held_out'].replace('_', ' ')} the law misses them by "
             f"{row['error_held_out']:.3g} (kept: {row['error_kept']:.3g}; rms of residuals)", path=row["held_out"],
             value=row["error_held_out"] / row["error_kept"])
        for row in rows
        if row["error_held_out"] > max(POOR * row["error_kept"], EXACT)
    ]  # fmt: skip
