"""A fit as data frames: the table behind each of its charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.special import betaln

from allocator.fitting import diagnostics
from allocator.fitting.form import Column
from allocator.fitting.sampling import unbiased_pass_at_k
from allocator.fitting.scaled import scale_rows
from allocator.units import short_count, significant

if TYPE_CHECKING:
    from allocator.fitting.profiles import Profile
    from allocator.fitting.result import Fit

MOST_LINES = 8  # of the law in one chart; of more sizes some are picked
PICKED, CURVE_POINTS, BINS = 6, 60, 40
REACH = 0.05  # of the axis, by which a line goes on beyond the runs of its level

_WORDS = {
    "n_active": "active parameters, N",
    "d_tokens": "pre-training tokens, D",
    "unique_tokens": "unique tokens",
    "tokens_per_param": "tokens per parameter, D/N",
    "d_rl": "RL tokens",
    "k": "samples per problem, k",
    "rl_amount": "RL amount (FLOP, samples or tokens)",
    "pretraining_loss": "pre-training loss (nats/token)",
    "loss": "loss",
    "error_rate": "error rate",
    "pass_rate": "pass rate",
    "n_correct": "correct samples",
    "n_samples": "samples",
}


@dataclass(frozen=True)
class AgainstLever:
    """Runs and the law against one lever; both frames have columns x, y and series, the runs a row as well."""

    points: pd.DataFrame
    lines: pd.DataFrame
    x_title: str
    y_title: str
    series_title: str | None
    log_x: bool
    log_y: bool
    remark: str


def runs(fit: "Fit") -> pd.DataFrame:
    """`Fit.table` with the target once more as `observed` and, where there are both, tokens per parameter."""
    table = fit.table()
    if {"n_active", "d_tokens"} <= set(table.columns):
        table = table.assign(tokens_per_param=table["d_tokens"] / table["n_active"])
    return table.assign(observed=table[fit.form.target.name])


def target_title(fit: "Fit") -> str:
    """What the law predicts, with its unit."""
    target = fit.form.target
    if "-log pass@k" in target.unit:
        return "-log pass@k (nats)"
    return _titled(target)


def residual_title(fit: "Fit") -> str:
    """What a residual is, with its unit."""
    if fit.form.logs:
        return "residual, log(observed / predicted)"
    unit = "" if fit.form.target.unit in ("1", "") else f" ({fit.form.target.unit})"
    return f"residual, observed - predicted{unit}"


def against_lever(fit: "Fit") -> AgainstLever | None:
    """Runs and law against the lever that matters, a line a size; None where more levers vary than a chart shows."""
    form = fit.form
    if {"n_samples", "n_correct"} == {form.inputs[0].name, form.target.name}:
        return _coverage(fit)
    inputs = {column.name: column for column in form.inputs}
    names, remark, also = tuple(inputs), "", {}
    match names:
        case ("n_active", "d_tokens"):
            x, series = "d_tokens", "n_active"
        case ("n_active", "d_tokens", "unique_tokens"):
            x, series, remark = "d_tokens", "n_active", "lines: on fresh data"
            also = {"unique_tokens": "d_tokens"}
        case ("n_active", "rl_amount"):
            x, series = "rl_amount", "n_active"
        case ("pretraining_loss", "k"):
            x, series = "pretraining_loss", "k"
        case (only,):
            x, series = only, None
        case _:
            return None
    columns = fit.runs.columns
    if series is not None and columns[series].min() <= 0:
        return None
    values = columns[x]
    positive = values > 0
    log_x = x not in ("loss", "pretraining_loss") and bool(positive.any()) and float(values.max()) > 0
    shown = values
    if log_x and not positive.all():
        floor = float(values[positive].min()) / 10
        shown, remark = np.where(positive, values, floor), f"{x} of 0 is drawn at the left edge"
    low, high = float(shown.min()), float(shown.max())
    grid = np.geomspace(low, high, CURVE_POINTS) if log_x else np.linspace(low, high, CURVE_POINTS)
    levels: list[Any] = [None] if series is None else picked(columns[series])
    lines = []
    for level in levels:
        if series is not None:
            near = shown[_nearest(columns[series], levels) == levels.index(level)]
            grid = _stretch(float(near.min()), float(near.max()), low, high, log_x)
        at = {x: grid} | ({} if series is None else {series: np.full(CURVE_POINTS, level)})
        at |= {name: at[of] for name, of in also.items()}
        lines.append(pd.DataFrame({"x": grid, "y": predict(fit, at), "series": level}))
    if series is not None and not remark and len(levels) < len(np.unique(columns[series])):
        remark = f"points: runs; lines: the law at {', '.join(short_count(level) for level in levels)}"
    points = pd.DataFrame({"row": fit.runs.row + 1, "x": shown, "y": columns[form.target.name],
                           "series": None if series is None else columns[series]})  # fmt: skip
    line = pd.concat(lines, ignore_index=True)
    y_title, log_y = target_title(fit), form.positive
    if form.name == "pass-at-k":
        points["y"], line["y"], y_title = np.exp(-points["y"]), np.exp(-line["y"]), "pass@k"
    title = None if series is None else _titled(inputs[series])
    log_y = log_y and bool((points["y"] > 0).all())
    return AgainstLever(points.sort_values("row", ignore_index=True), line.dropna(subset=["y"]), _titled(inputs[x]),
                        y_title, title, log_x, log_y, remark)  # fmt: skip


def _coverage(fit: "Fit") -> AgainstLever:
    """pass@k over all problems: unbiased estimates from the counts, and what the law says."""
    n, c = fit.runs.columns["n_samples"], fit.runs.columns["n_correct"]
    most = int(n.min())
    ks = np.unique(np.geomspace(1, most, 12).round()) if most > 1 else np.array([1.0])

    a, b = fit.parameters["a"], fit.parameters["b"]
    grid = np.geomspace(1, max(most, 2) * 10, CURVE_POINTS)
    points = pd.DataFrame({"x": ks, "y": [unbiased_pass_at_k(n, c, int(k)).mean() for k in ks]})
    lines = pd.DataFrame({"x": grid, "y": -np.expm1(betaln(a, b + grid) - betaln(a, b))})
    remark = f"points: unbiased estimates from the counts, up to k = {most}; line: the law"
    return AgainstLever(points.assign(series=None), lines.assign(series=None), _WORDS["k"], "pass@k over all problems",
                        None, True, bool(points["y"].min() > 0), remark)  # fmt: skip


def predict(fit: "Fit", at: Mapping[str, np.ndarray]) -> np.ndarray:
    """The law at other values of its inputs, in the unit of the target."""
    rows = scale_rows(fit.form, fit.scaled.columns, at)
    found = np.asarray(fit.form.predict(jnp.asarray(fit.search.theta), rows))
    return np.exp(found + float(fit.scaled.offset)) if fit.form.positive else found * float(fit.scaled.unit)


def _nearest(values: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Index of the level that each value is nearest to, in logs."""
    return np.argmin(np.abs(np.log(values)[:, None] - np.log(np.asarray(levels))[None, :]), axis=1)


def _stretch(first: float, last: float, low: float, high: float, log: bool) -> np.ndarray:
    """A grid over the runs of one level and a little beyond: the law says nothing sure far from them."""
    ends = np.log([first, last, low, high]) if log else np.array([first, last, low, high])
    room = REACH * (ends[3] - ends[2])
    grid = np.linspace(max(ends[0] - room, ends[2]), min(ends[1] + room, ends[3]), CURVE_POINTS)
    return np.exp(grid) if log else grid


def picked(values: np.ndarray) -> list[float]:
    """All distinct values or, of many, some that spread evenly in logs."""
    known = np.unique(values)
    if len(known) <= MOST_LINES:
        return [float(value) for value in known]
    wanted = np.geomspace(known[0], known[-1], PICKED)
    return sorted({float(known[np.argmin(np.abs(np.log(known / value)))]) for value in wanted})


def residual_panels(fit: "Fit") -> dict[str, str]:
    """Columns of `runs` that residuals are drawn against, with their titles."""
    names = [column.name for column in fit.form.inputs]
    if {"n_active", "d_tokens"} <= set(names):
        names = ["n_active", "tokens_per_param", *(name for name in names if name not in ("n_active", "d_tokens"))]
    titles = {column.name: _titled(column) for column in fit.form.inputs}
    panels = {"predicted": f"predicted {target_title(fit)}"}
    return panels | {name: titles.get(name, _WORDS.get(name, name)) for name in names}


def profile(made: Sequence["Profile"], fit: "Fit") -> pd.DataFrame:
    """Columns parameter, unit, log (whether it is even in logs), estimate, value, deviance."""
    by_name = {parameter.name: parameter for parameter in fit.form.parameters}
    parts = []
    for p in made:
        parameter = by_name[p.parameter]
        parts.append(pd.DataFrame({"parameter": p.parameter, "unit": parameter.unit,
                                   "log": fit.form.is_logged(parameter), "estimate": fit.parameters[p.parameter],
                                   "value": p.values, "deviance": p.deviance}))  # fmt: skip
    columns = ["parameter", "unit", "log", "estimate", "value", "deviance"]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    return frame.replace([np.inf, -np.inf], np.nan).dropna(subset=["deviance"]).reset_index(drop=True)


def histograms(fit: "Fit") -> pd.DataFrame:
    """Bootstrap draws in bins: of N* and D*/N* or, where the law implies none, of the shape parameters.

    Columns quantity, title, low, high, count, estimate, low_95, high_95, log, beyond. The bins hold the central 99%;
    `beyond` counts the draws outside.
    """
    rows = []
    for name, title, draws, estimate in _quantities(fit):
        known = draws[np.isfinite(draws)]
        if len(known) < 2 or not np.isfinite(estimate):
            continue
        low, high = np.quantile(known, [0.005, 0.995])
        low, high = min(low, estimate), max(high, estimate)
        if not high > low:
            continue
        star = fit.optimum is not None
        logged = low > 0 and (star or high > 20 * low)
        edges = np.geomspace(low, high, BINS + 1) if logged else np.linspace(low, high, BINS + 1)
        edges[0], edges[-1] = low, high
        counts, _ = np.histogram(known, edges)
        low_95, high_95 = fit.interval(name)
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True):
            rows.append({"quantity": name, "title": title, "low": left, "high": right, "count": int(count),
                         "estimate": estimate, "low_95": low_95, "high_95": high_95, "log": bool(logged),
                         "beyond": len(draws) - int(counts.sum())})  # fmt: skip
    columns = ["quantity", "title", "low", "high", "count", "estimate", "low_95", "high_95", "log", "beyond"]
    return pd.DataFrame(rows, columns=columns)


def _quantities(fit: "Fit") -> list[tuple[str, str, np.ndarray, float]]:
    if len(fit.draws) < 2:
        return []
    if fit.optimum is not None and fit.optimum_draws is not None:
        n, d = fit.optimum_draws.T
        best_n, best_d = map(float, fit.optimum)
        at = f"at {fit.at_flop:.3g} FLOP"
        return [("n_active", f"N* {at} (parameters)", n, best_n),
                ("tokens_per_param", f"D*/N* {at} (tokens per parameter)", d / n, best_d / best_n)]  # fmt: skip
    first = len(fit.form.linear) if fit.form.shape else 0
    found = []
    for i, parameter in list(enumerate(fit.form.parameters))[first:]:
        if not np.isfinite(fit.pinned[i]):
            found.append((parameter.name, _with_unit(parameter.name, parameter.unit), fit.draws[:, i],
                          float(fit.values[i])))  # fmt: skip
    return found


def parameters(fit: "Fit", made: Sequence["Profile"]) -> pd.DataFrame:
    """`Fit.to_frame` with the profile interval beside the bootstrap one; an end that was not reached is empty."""
    ends = {p.parameter: p.interval() for p in made}
    frame = fit.to_frame()
    for i, column in enumerate(("profile_low_95", "profile_high_95")):
        frame[column] = [ends.get(name, (np.nan, np.nan))[i] for name in frame["parameter"]]
    return frame


def watched(fit: "Fit") -> str:
    """What leaving out a run is judged by: N* or, without one, the first exponent."""
    if fit.optimum is not None:
        return "N*"
    return diagnostics.watched(fit.form)


def influence(fit: "Fit") -> pd.DataFrame:
    """Effect of leaving out a run or a size, largest first: columns left_out, row, n_active, runs, change, label."""
    columns = ["left_out", "row", "n_active", "runs", "change", "label"]
    sizes = [row["n_active"] for row in fit.influence if row["left_out"] == "size"]
    alike = len({short_count(size) for size in sizes}) < len(sizes)  # then they need all their digits
    rows = [{"runs": 1, **row, "label": _left_out(row, alike)} for row in fit.influence]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(row=frame["row"].astype("Int64"))


def _left_out(row: Mapping[str, Any], alike: bool) -> str:
    if row["left_out"] == "run":
        return f"without row {row['row']}"
    size = f"{row['n_active']:.12g}" if alike else short_count(row["n_active"])
    return f"without size {size} ({row['runs']} run{'s' if row['runs'] > 1 else ''})"


def holdouts(fit: "Fit") -> pd.DataFrame:
    """What refits without some runs say of those: columns held_out, runs, from, error and bias there, error kept."""
    columns = ["held_out", "runs", "from", "error_held_out", "bias_held_out", "error_kept"]
    return pd.DataFrame([dict(row) for row in fit.holdouts], columns=columns)


def number(value: float, column: str = "") -> str:
    """A number for a table or a label: counts of parameters and tokens as people say them."""
    counts = column in ("n_active", "d_tokens", "unique_tokens", "d_rl")
    return short_count(value) if counts else significant(value)


def _titled(column: Column) -> str:
    return _WORDS[column.name] if column.unit in ("1", "") and column.name in _WORDS else _with_unit(
        _WORDS.get(column.name, column.name), column.unit)  # fmt: skip


def _with_unit(words: str, unit: str) -> str:
    said = "parameter" in words or "token" in words or "sample" in words
    return words if unit in ("1", "") or "(" in words or said else f"{words} ({unit})"
