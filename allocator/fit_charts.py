"""Charts of a fitted law: functions of the data frames of `fit_tables` that return an altair chart."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from allocator.charts import COLOURS, HEIGHT, WIDTH
from allocator.units import short_count

BLUE, ORANGE = COLOURS[:2]
GREY, INK = "#767676", "#333333"
LIMIT = 3.84  # 95% quantile of chi-squared with one degree of freedom
PANEL = 230
TALLEST = 8.0  # deviance at which profiles are cut off
_FULL = 3 * PANEL + 120


def data_and_law(
    points: pd.DataFrame,
    lines: pd.DataFrame,
    about: str,
    *,
    x_title: str,
    y_title: str,
    series_title: str | None = None,
    log_x: bool = True,
    log_y: bool = True,
    remark: str = "",
) -> Any:
    """Runs as points, the law as a line a level of `series`; columns x, y, series and, of the points, row."""
    x = _quantity(alt.X, "x", x_title, [_numbers(points, "x"), _numbers(lines, "x")], log_x)
    y = _quantity(alt.Y, "y", y_title, [_numbers(points, "y"), _numbers(lines, "y")], log_y, most=7)
    by_level = series_title is not None
    drawn, law = (part.assign(level=[_short(value) for value in part["series"]]) for part in (points, lines))
    colours: list[Any] = [{}, {}]
    if by_level:
        colour = _levels(
            "series", np.concatenate([_numbers(points, "series"), _numbers(lines, "series")]), series_title
        )
        colours = [{"color": colour}, {"color": colour, "detail": alt.Detail("series:Q")}]
    tips: list[Any] = [alt.Tooltip("row:Q")] if "row" in points.columns else []
    if by_level:
        tips.append(alt.Tooltip("level:N", title=series_title))
    tips += [alt.Tooltip(f"{name}:Q", title=words, format=".4~g") for name, words in (("x", x_title), ("y", y_title))]
    dots = alt.Chart(drawn).mark_circle(size=34, opacity=0.75, color=BLUE)
    curve = alt.Chart(law).mark_line(strokeWidth=1.8, clip=True, color=ORANGE)
    layers = curve.encode(x=x, y=y, **colours[1]), dots.encode(x=x, y=y, tooltip=tips, **colours[0])
    said = "points: runs; lines: the law" if by_level else "points: observed; line: the law"
    title = _title("The runs and the law", about, remark or said, width=WIDTH + 150)
    return alt.layer(*layers, title=title).properties(width=WIDTH + 120, height=HEIGHT + 90)


def predicted_and_observed(runs: pd.DataFrame, about: str, *, title: str, log: bool) -> Any:
    """Observed against predicted, with the diagonal; columns row, predicted, observed and, for colour, n_active."""
    both = [_numbers(runs, "predicted"), _numbers(runs, "observed")]
    log = log and all(bool((values > 0).all()) for values in both)
    low, high = _domain(both, log)
    x = _quantity(alt.X, "predicted", f"predicted {title}", both, log)
    y = _quantity(alt.Y, "observed", f"observed {title}", both, log)
    ends = alt.InlineData(values=[{"predicted": end, "observed": end} for end in (low, high)])
    diagonal = alt.Chart(ends).mark_line(color=INK, strokeDash=[4, 4], strokeWidth=1)
    known = "n_active" in runs.columns
    dots = alt.Chart(runs).mark_circle(size=34, opacity=0.75, color=BLUE)
    tips = [alt.Tooltip("row:Q"), *(alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("predicted", "observed"))]
    colour: dict[str, Any] = {}
    if known:
        drawn = runs.assign(level=[_short(value) for value in _numbers(runs, "n_active")])
        dots = alt.Chart(drawn).mark_circle(size=34, opacity=0.75)
        colour["color"] = _levels("n_active", _numbers(runs, "n_active"), "active parameters, N")
    layers = diagonal.encode(x="predicted:Q", y="observed:Q"), dots.encode(x=x, y=y, tooltip=tips, **colour)
    head = _title("Observed against predicted", about, "points: runs; dashed: where both are equal", width=WIDTH)
    return alt.layer(*layers, title=head).properties(width=HEIGHT + 90, height=HEIGHT + 90)


def residuals(runs: pd.DataFrame, panels: Mapping[str, str], about: str, *, title: str, labelled: int = 5) -> Any:
    """Residuals against each column of `panels`; the largest bear their row; columns row, residual and those."""
    residual, rows = _numbers(runs, "residual"), _numbers(runs, "row").astype(int)
    reach = 1.12 * float(np.abs(residual).max()) or 1.0
    y_axis = alt.Y("residual:Q", title=title).scale(domain=[-reach, reach], nice=False).axis(_plain_axis(5))
    largest = np.argsort(-np.abs(residual), kind="stable")[:labelled]
    charts = []
    for i, (name, words) in enumerate(panels.items()):
        values = _numbers(runs, name)
        log = bool((values > 0).all()) and values.max() > 20 * values.min()
        frame = pd.DataFrame({"row": rows, "value": values, "residual": residual})
        x = _quantity(alt.X, "value", words, [values], log)
        y = y_axis if i % 3 == 0 else y_axis.title(None)
        dots = alt.Chart(frame).mark_circle(size=26, color=BLUE, opacity=0.65)
        tips = ["row:Q", alt.Tooltip("value:Q", title=words, format=".4~g"), alt.Tooltip("residual:Q", format=".3~g")]
        zero = alt.Chart(alt.InlineData(values=[{"residual": 0}])).mark_rule(color=INK, strokeWidth=1)
        layers: list[Any] = [zero.encode(y=y), dots.encode(x=x, y=y, tooltip=tips)]
        sides = _sides(frame.iloc[largest], _domain([values], log), log, reach)
        for side in ("left", "right"):
            part = alt.Chart(frame.iloc[[run for run, to in zip(largest, sides, strict=True) if to == side]])
            text: dict[str, Any] = {"align": side, "dx": 5 if side == "left" else -5, "fontSize": 10}
            halo, ink = part.mark_text(**text, stroke="white", strokeWidth=3), part.mark_text(**text, color=INK)
            layers += [mark.encode(x=x, y=y, text="row:Q") for mark in (halo, ink)] if side in sides else []
        charts.append(alt.layer(*layers).properties(width=PANEL, height=190))
    head = _title("Residuals", about, "numbers: rows of the largest; a trend is something that the law misses")
    return alt.concat(*charts, columns=3, title=head)


def profiles(frame: pd.DataFrame, about: str) -> Any:
    """Deviance against each parameter; columns parameter, unit, log, estimate, value, deviance."""
    charts = []
    for i, (name, part) in enumerate(frame.groupby("parameter", sort=False)):
        estimate = float(part["estimate"].iloc[0])
        unit = str(part["unit"].iloc[0])
        words = textwrap.wrap(str(name) if unit in ("1", "") else f"{name} ({unit})", 38)
        # Beyond the height of the chart there is nothing to see, but the grid may go on for decades.
        seen = np.flatnonzero(_numbers(part, "deviance") <= TALLEST)
        part = part.iloc[max(seen[0] - 1, 0) : seen[-1] + 2] if len(seen) else part
        values = _numbers(part, "value")
        log = bool(part["log"].iloc[0]) and values.max() > 20 * values.min()
        x = _quantity(alt.X, "value", words, [values], log, tight=True)
        y = alt.Y("deviance:Q", title="deviance" if i % 3 == 0 else None)
        y = y.scale(domain=[0, TALLEST], nice=False).axis(_plain_axis(5))
        line = alt.Chart(part[["value", "deviance"]]).mark_line(color=BLUE, clip=True, strokeWidth=2)
        tips = [alt.Tooltip("value:Q", format=".4~g"), alt.Tooltip("deviance:Q", format=".3~g")]
        limit = alt.Chart(alt.InlineData(values=[{"deviance": LIMIT}])).mark_rule(color=ORANGE, strokeDash=[5, 4])
        best = alt.Chart(alt.InlineData(values=[{"value": estimate}])).mark_rule(color=INK)
        layers = limit.encode(y=y), best.encode(x=x), line.encode(x=x, y=y, tooltip=tips)
        charts.append(alt.layer(*layers).properties(width=PANEL, height=150))
    remark = f"black: estimate; dashed: {LIMIT}, below which a value lies in the 95% interval"
    head = _title("Profiles: the best fit with one parameter held", about, remark)
    return alt.concat(*charts, columns=3, title=head)


def bootstrap(frame: pd.DataFrame, about: str) -> Any:
    """Histograms of bootstrap refits; the columns of `fit_tables.histograms`."""
    charts = []
    groups = list(frame.groupby("quantity", sort=False))
    width = int(1.5 * PANEL) if len(groups) <= 2 else PANEL
    columns = 2 if len(groups) <= 2 else 3
    for i, (_, part) in enumerate(groups):
        first = part.iloc[0]
        log = bool(first["log"])
        ends = [value for value in (first["low_95"], first["high_95"]) if np.isfinite(value)]
        marks = [_numbers(part, "low"), _numbers(part, "high"), np.array([first["estimate"], *ends])]
        words = [*textwrap.wrap(str(first["title"]), width // 6)]
        if first["beyond"]:
            words.append(f"{first['beyond']} beyond the axis")
        x = _quantity(alt.X, "low", words, marks, log)
        top = 1.08 * float(_numbers(part, "count").max())
        y = alt.Y("count:Q", title="refits" if i % columns == 0 else None).scale(domain=[0, top], nice=False)
        bars = alt.Chart(part[["low", "high", "count"]]).mark_rect(color=BLUE, opacity=0.75)
        tips = [alt.Tooltip("low:Q", title="from", format=".3~g"), alt.Tooltip("high:Q", title="to", format=".3~g"),
                "count:Q"]  # fmt: skip
        layers: list[Any] = [bars.encode(x=x, x2="high:Q", y=y.axis(_plain_axis(4)), y2=alt.datum(0), tooltip=tips)]
        interval = alt.Chart(alt.InlineData(values=[{"low": end} for end in ends]))
        layers.append(interval.mark_rule(color=ORANGE, strokeDash=[5, 4], strokeWidth=2).encode(x=x))
        estimate = alt.Chart(alt.InlineData(values=[{"low": float(first["estimate"])}]))
        layers.append(estimate.mark_rule(color=INK, strokeWidth=2).encode(x=x))
        charts.append(alt.layer(*layers).properties(width=width, height=170))
    head = _title("Bootstrap refits", about, "black: estimate; dashed: 95% interval")
    return alt.concat(*charts, columns=columns, title=head)


def influence(frame: pd.DataFrame, about: str, *, of: str, most: int = 10) -> Any:
    """The largest effects of leaving out a run or a size, as bars; columns label, change."""
    part = frame.head(most)[["label", "change"]]
    part = part.assign(said=[f"{change:+.1%}" for change in part["change"]])
    values = [0.0, *(float(value) for value in part["change"])]
    room = 0.25 * (max(values) - min(values) or 1.0)
    ends = [min(values) - room * (min(values) < 0), max(values) + room * (max(values) > 0)]
    x = alt.X("change:Q", title=f"change of {of}").scale(domain=ends, nice=False).axis(_plain_axis(6, "~%"))
    y = alt.Y("label:N", title=None, sort=None).axis(labelLimit=240, ticks=False, domain=False)
    bars = alt.Chart(part).mark_bar(color=BLUE, height=13).encode(
        x=x, y=y, tooltip=["label:N", alt.Tooltip("change:Q", format="+.2%")]
    )  # fmt: skip
    layers: list[Any] = [bars]
    up = np.array(values[1:]) >= 0
    texts = (alt.Chart(part[up]).mark_text(align="left", dx=4, fontSize=10, color=INK),
             alt.Chart(part[~up]).mark_text(align="right", dx=-4, fontSize=10, color=INK))  # fmt: skip
    layers += [mark.encode(x=x, y=y, text="said:N") for mark, some in zip(texts, (up, ~up), strict=True) if some.any()]
    zero = alt.Chart(alt.InlineData(values=[{"change": 0}])).mark_rule(color=INK)
    layers.append(zero.encode(x="change:Q"))
    head = _title(
        f"What moves {of} most when left out", about, "each bar: a refit without that run or size", width=WIDTH
    )
    return alt.layer(*layers, title=head).properties(width=WIDTH)


def _sides(frame: pd.DataFrame, domain: tuple[float, float], log: bool, reach: float) -> list[str]:
    """The side of its point that each label fits on without touching those before it; "" where it fits on none."""
    low, high = (math.log(end) for end in domain) if log else domain
    sides: list[str] = []
    boxes: list[tuple[float, float, float]] = []
    for row, value, residual in zip(frame["row"], frame["value"], frame["residual"], strict=True):
        wide = 7.0 + 6 * len(str(row))
        at_x = PANEL * ((math.log(value) if log else value) - low) / (high - low)
        at_y = 95 - 95 * residual / reach
        chosen = ""
        for side, left in (("left", at_x), ("right", at_x - wide)):
            free = all(left > b + w + 1 or b > left + wide + 1 or abs(at_y - h) > 12 for b, w, h in boxes)
            if left >= 0 and left + wide <= PANEL and free:
                boxes.append((left, wide, at_y))
                chosen = side
                break
        sides.append(chosen)
    return sides


def _levels(field: str, values: np.ndarray, title: str | None) -> alt.Color:
    """Viridis without its palest end: a legend entry a level or, of many levels, round numbers."""
    scheme = alt.SchemeParams(name="viridis", extent=[0, 0.88])
    known = np.unique(values)
    names = [_short(value) for value in known]
    if len(known) <= 10 and len({*names}) == len(names):
        return alt.Color("level:N", title=title, sort=names).scale(scheme=scheme, domain=names)
    low, high = _domain([known], True, 0)
    colour = alt.Color(f"{field}:Q", title=title).scale(type="log", scheme=scheme, domain=[low, high])
    words = "replace(format(datum.value, '.3~s'), 'G', 'B')"  # d3 counts in giga, people in billions
    return colour.legend(labelExpr=words, values=_ticks(low, high, True), gradientLength=HEIGHT - 60)


def _numbers(frame: pd.DataFrame, name: str) -> np.ndarray:
    return np.asarray(frame[name], float)


def _short(value: float | None) -> str:
    """A level without zeros that say nothing: 8 and 7B, not 8.00 and 7.00B."""
    if value is None or not math.isfinite(value):
        return ""
    text = short_count(value)
    return re.sub(r"\.?0+(?=[A-Z]?$)", "", text) if "." in text else text


def _quantity(
    channel: Any, field: str, title: Any, values: Sequence[np.ndarray], log: bool, tight: bool = False, most: int = 5
) -> Any:
    """A quantitative channel whose ends and ticks are chosen here: those of Vega crowd a short log axis."""
    low, high = _domain(values, log, 0.0 if tight else 0.04)
    ticks = _ticks(low, high, log, most)
    small, large = min(abs(t) for t in ticks), max(abs(t) for t in ticks)
    scientific = large >= 1e5 or (log and small < 1e-4) or large < 1e-3
    scale: dict[str, Any] = {"type": "log"} if log else {"zero": False}
    axis = alt.Axis(values=ticks, format=".3~e" if scientific else ".6~g", labelOverlap="greedy", labelSeparation=6,
                    gridColor="#eeeeee", titleFontWeight="normal")  # fmt: skip
    name = field.replace(".", "\\.")
    return channel(f"{name}:Q", title=title).scale(**scale, domain=[low, high], nice=False).axis(axis)


def _plain_axis(count: int, form: str | None = None) -> alt.Axis:
    axis: dict[str, Any] = {"format": form} if form else {}
    return alt.Axis(tickCount=count, gridColor="#eeeeee", labelOverlap="greedy", titleFontWeight="normal", **axis)


def _domain(values: Sequence[np.ndarray], log: bool, room: float = 0.04) -> tuple[float, float]:
    """Ends with a little room; of equal values, with some."""
    known = np.concatenate(values)
    known = known[np.isfinite(known) & ((known > 0) | (not log))]
    if not len(known):
        return (0.5, 2.0) if log else (0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    if log:
        low, high = math.log(low), math.log(high)
        pad = room * (high - low) if high - low > 1e-9 else 0.5
        return math.exp(low - pad), math.exp(high + pad)
    pad = room * (high - low) if high - low > 1e-12 * max(abs(high), 1e-300) else 0.1 * abs(high) or 0.5
    return low - pad, high + pad


def _ticks(low: float, high: float, log: bool, most: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `most` of them."""
    if not log or high < 3 * low:
        raw = (high - low) / most
        decade = 10 ** math.floor(math.log10(raw))
        step = next((m * decade for m in (1, 2, 2.5, 5, 10) if m * decade >= raw), 10 * decade)
        first = math.ceil(low / step)
        found = [float(f"{i * step:.12g}") for i in range(first, math.floor(high / step) + 1)]
        return found or [float(f"{end:.4g}") for end in (low, high)]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for parts in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [float(f"{part}e{power}") for power in range(first, last + 1) for part in parts]
        found = [tick for tick in found if low <= tick <= high]
        if 1 <= len(found) <= most + 2:
            return found
    step = math.ceil((last - first) / most)
    return [tick for power in range(first, last + 1, step) if low <= (tick := float(f"1e{power}")) <= high]


def _title(text: str, about: str, remark: str = "", width: int = _FULL) -> alt.TitleParams:
    lines = [*textwrap.wrap(about, max(width // 6, 40)), *(textwrap.wrap(remark, max(width // 6, 40)))]
    return alt.TitleParams(text, subtitle=lines, anchor="start", subtitleColor=GREY, offset=10)
