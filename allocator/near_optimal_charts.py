"""Charts of near-optimal sets: functions of data frames that return an altair chart."""

import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from allocator.charts import HEIGHT, WIDTH
from allocator.units import short_count, significant

NAMES = {
    "n_active": "active parameters",
    "d_pretrain": "pre-training tokens",
    "d_rl": "RL tokens",
    "k": "samples per query, k",
}
INK, GREY, BAR = "#222222", "#767676", "#4c78a8"
# Extra budget at which the shade changes. One hue from dark to light, so that grey and colour-blind eyes see the order.
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SHADES = ("#08306b", "#0b4f97", "#2a7ab9", "#5a9fcf", "#8fc0e0", "#bcd7ec", "#dde8f3", "#f4f7fa")
# Lines told apart without colour: by marks in the legend, and dashes.
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2, 1, 2], [12, 4])
MARKS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
LINES = ("#1f4e79", "#c8590a", "#2f7d32", "#7a3e9d", "#5f5f5f", "#b08900")  # lightness differs as well as hue
PLAN = "the plan"
PANEL = 400


def valley(points: pd.DataFrame, contour: pd.DataFrame, plans: pd.DataFrame, x: str, y: str, within: float) -> Any:
    """Regret over two decisions in log axes, the contour of the tolerance, and plans as points.

    `points` is a valley's frame: columns x, y, regret; `contour` has x and y in order; `plans` has name, x, y and
    regret, in the order of the legend. Points where a decision is 0 have no place on a log axis and are left out.
    """
    cells: Any = _cells(points, x, y)
    if cells.empty:
        return _nothing("no point of the valley has a place on log axes")
    ends = {name: (float(cells[f"{name}_low"].min()), float(cells[f"{name}_high"].max())) for name in (x, y)}
    axes = {name: _log(channel, name, NAMES.get(name, name), ends[name]) for name, channel in ((x, alt.X), (y, alt.Y))}
    shade = alt.Color("extra:O", title="extra budget for the same loss", sort=[*_WORDS])
    shade = shade.scale(domain=[*_WORDS], range=[*SHADES]).legend(orient="right", symbolType="square", labelLimit=200)
    ground = alt.Chart(cells).mark_rect(stroke=None, clip=True).encode(
        x=_end(axes[x], f"{x}_low"), x2=f"{x}_high", y=_end(axes[y], f"{y}_low"), y2=f"{y}_high", color=shade,
        tooltip=[alt.Tooltip(f"{x}:Q", format=".3~e"), alt.Tooltip(f"{y}:Q", format=".3~e"),
                 alt.Tooltip("regret:Q", format=".2%")],
    )  # fmt: skip
    closed = pd.concat([contour, contour.head(1)]).assign(order=np.arange(len(contour) + 1))
    ring: Any = alt.Chart(closed[(closed[x] > 0) & (closed[y] > 0)])
    halo = ring.mark_line(color="white", strokeWidth=4, clip=True).encode(x=axes[x], y=axes[y], order="order:Q")
    line = ring.mark_line(color=INK, strokeWidth=1.6, clip=True).encode(x=axes[x], y=axes[y], order="order:Q")
    shown = _inside(plans, ends)
    kind = alt.Shape("label:N", title="plan, its extra budget", sort=shown["label"].tolist())
    kind = kind.scale(domain=shown["label"].tolist(), range=_marks(len(shown)))
    kind = kind.legend(orient="right", labelLimit=220)
    dots = alt.Chart(shown).mark_point(filled=True, size=130, color=INK, stroke="white", opacity=1, clip=True)
    dots = dots.encode(x=axes[x], y=axes[y], shape=kind)
    title = alt.TitleParams(
        "The valley around the plan",
        anchor="start",
        subtitleColor=GREY,
        subtitle=_valley_subtitle(points, plans, shown, within),
    )
    blank = alt.Chart(points[points["regret"].isna() & (points[x] > 0) & (points[y] > 0)])
    crosses = blank.mark_text(text="×", color=GREY, fontSize=8, clip=True).encode(x=axes[x], y=axes[y])
    layers = alt.layer(ground, crosses, halo, line, dots, title=title).properties(width=PANEL, height=PANEL)
    return layers.resolve_scale(shape="independent", color="independent")


def intervals(frame: pd.DataFrame, within: float) -> Any:
    """What each decision may be, over the plan's own; columns as `NearOptimal.to_frame` has them."""
    known: Any = frame[frame["best"] > 0]
    if known.empty:
        return _nothing("no decision is free")
    low, high = known["least"] / known["best"], known["greatest"] / known["best"]
    smallest = float(low[low > 0].min()) if bool((low > 0).any()) else 0.5
    largest = float(high[np.isfinite(high)].max())
    span = math.log(max(largest / smallest, 1.05))
    left, right = smallest * math.exp(-0.3 * span), largest * math.exp(0.3 * span)
    drawn = known.assign(
        name=[NAMES.get(name, name) for name in known["decision"]],
        low=low.clip(lower=left),
        high=high.clip(upper=right),
        least_text=_end_texts(known, "least"),
        greatest_text=_end_texts(known, "greatest"),
        best_text=_amounts(known, "best"),
    )
    y = alt.Y("name:N", title=None, sort=None).axis(labelLimit=220, ticks=False, domain=False, labelPadding=8)
    x = alt.X("low:Q", title="over the plan's own").scale(type="log", domain=[left, right], nice=False)
    x = x.axis(values=_ratios(left, right), format="~r", gridColor="#eeeeee", labelExpr="datum.label + ' x'",
               labelOverlap="greedy")  # fmt: skip
    base = alt.Chart(drawn)
    bars = base.mark_bar(height=12, color=BAR).encode(x=x, x2="high:Q", y=y)
    one = alt.Chart(alt.InlineData(values=[{"low": 1.0}])).mark_rule(color=INK, strokeDash=[3, 3]).encode(x="low:Q")
    # A halo where the rule runs through.
    halo = base.mark_text(dy=-14, fontWeight="bold", stroke="white", strokeWidth=5)
    bold = base.mark_text(dy=-14, fontWeight="bold", color=INK)
    texts = [
        base.mark_text(align="right", dx=-6).encode(x="low:Q", y=y, text="least_text:N"),
        base.mark_text(align="left", dx=6).encode(x="high:Q", y=y, text="greatest_text:N"),
        *(mark.encode(x=alt.datum(1.0), y=y, text="best_text:N") for mark in (halo, bold)),
    ]
    held = sorted({*known["least_held_by"], *known["greatest_held_by"]} - {"tolerance"})
    remark = [_HELD[word] for word in held]
    title = alt.TitleParams(
        f"What each decision may be within {_percent(within)} of the budget", anchor="start", subtitleColor=GREY,
        subtitle=["the others re-optimised for the same loss; bold: the plan", *remark],
    )  # fmt: skip
    return alt.layer(one, bars, *texts, title=title).properties(width=WIDTH + 60, height=alt.Step(46))


def equal_cost(frame: pd.DataFrame, unit: str = "FLOP") -> Any:
    """Extra budget that equal cost needs along the budget, a line a law; columns law, budget and regret (a share)."""
    known: Any = frame.dropna(subset=["regret"])
    if known.empty:
        return _nothing("equal cost has no regret at any of these budgets")
    laws = known["law"].drop_duplicates().tolist()
    drawn: Any = known.assign(percent=100 * known["regret"])
    ends = float(drawn["budget"].min()), float(drawn["budget"].max())
    x = _log(alt.X, "budget", f"budget ({unit})", ends)
    # Square roots, since regret is the square of how far shares are from the best ones, and may be 0.
    y = alt.Y("percent:Q", title="extra budget that equal cost needs, %").scale(type="sqrt", zero=True, nice=True)
    y = y.axis(gridColor="#eeeeee", tickCount=6, format=".3~r", labelOverlap="greedy")
    legend = alt.Legend(orient="right", labelLimit=260, symbolStrokeWidth=0, title=None)
    count = len(laws)
    colour = alt.Color("law:N", sort=laws, legend=legend).scale(domain=laws, range=_repeat(LINES, count))
    dash = alt.StrokeDash("law:N", sort=laws, legend=None).scale(domain=laws, range=_repeat(DASHES, count, 1))
    kind = alt.Shape("law:N", sort=laws, legend=legend).scale(domain=laws, range=_repeat(MARKS, count, 1))
    base = alt.Chart(drawn)
    lines = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour, strokeDash=dash)
    dots = base.mark_point(size=45, filled=True, opacity=1).encode(
        x=x, y=y, color=colour, shape=kind,
        tooltip=["law:N", alt.Tooltip("budget:Q", format=".3~e"), alt.Tooltip("percent:Q", format=".3~g")],
    )  # fmt: skip
    title = alt.TitleParams("Regret of equal cost, by law", anchor="start")
    return alt.layer(lines, dots, title=title).properties(width=WIDTH + 60, height=HEIGHT + 60)


_HELD = {
    "bound": "[: a bound of the scenario, with budget to spare",
    "open": "...: no end within the search range",
    "loss": "|: beyond it no plan within the bounds reaches the loss",
    "unsolved": "?: no plan beyond it could be verified",
}
_SIGNS = {"tolerance": "", "bound": "[", "open": "...", "loss": "|", "unsolved": "?"}
_WORDS = (
    "up to 1 %",
    "1 to 2 %",
    "2 to 5 %",
    "5 to 10 %",
    "10 to 20 %",
    "20 to 50 %",
    "50 to 100 %",
    "more than 100 %",
)


def _cells(points: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Rectangles around the points that have a regret, their edges midway in logs, and the shade of each."""
    positive: Any = points[(points[x] > 0) & (points[y] > 0)]
    known = positive.dropna(subset=["regret"])
    shade = np.searchsorted(STEPS, known["regret"].to_numpy(float) * (1 - 1e-9), side="left")
    out = known.assign(extra=np.array(_WORDS)[shade])
    for name in (x, y):
        places = np.sort(points.loc[points[name] > 0, name].unique())
        if len(places) < 2:
            return out.head(0)
        logs = np.log(places)
        middles = (logs[1:] + logs[:-1]) / 2
        edges = np.exp(np.concatenate([[2 * logs[0] - middles[0]], middles, [2 * logs[-1] - middles[-1]]]))
        rank = np.searchsorted(places, out[name])
        out = out.assign(**{f"{name}_low": edges[rank], f"{name}_high": edges[rank + 1]})
    return out


def _inside(plans: pd.DataFrame, ends: dict[str, tuple[float, float]]) -> pd.DataFrame:
    keep = np.ones(len(plans), bool)
    for name, (low, high) in ends.items():
        keep &= ((plans[name] >= low) & (plans[name] <= high)).to_numpy()
    kept: Any = plans[keep]
    return kept.assign(label=_labels(kept))


def _labels(plans: pd.DataFrame) -> list[str]:
    return [
        str(name) if name == PLAN else f"{str(name).replace('_', ' ')}, {_percent(regret)}"
        for name, regret in zip(plans["name"], plans["regret"], strict=True)
    ]


def _valley_subtitle(points: pd.DataFrame, plans: pd.DataFrame, shown: pd.DataFrame, within: float) -> list[str]:
    lines = [f"other decisions re-optimised for the same loss; line: {_percent(within)} of extra budget"]
    lines += ["×: no plan reaches the loss there"] if bool(points["regret"].isna().any()) else []
    outside: Any = plans[~plans["name"].isin(shown["name"])]
    beyond = outside.dropna(subset=["regret"])
    return [*lines, f"outside the picture: {'; '.join(_labels(beyond))}"] if len(beyond) else lines


def _marks(count: int) -> list[str]:
    return _repeat(("circle", "square", "triangle-up", "diamond", "cross"), count)


def _repeat(values: Any, count: int, shift: int = 0) -> list[Any]:
    """As many as wanted; each round around starts one further, so that combinations differ."""
    return [values[(i + shift * (i // len(values))) % len(values)] for i in range(count)]


def _end_texts(frame: pd.DataFrame, end: str) -> list[str]:
    signs = [_SIGNS[word] for word in frame[f"{end}_held_by"]]
    amounts = _amounts(frame, end)
    pairs = zip(signs, amounts, strict=True)
    return [f"{s} {a}".strip() if end == "least" else f"{a} {s.replace('[', ']')}".strip() for s, a in pairs]


def _amounts(frame: pd.DataFrame, column: str) -> list[str]:
    pairs = zip(frame["decision"], frame[column], strict=True)
    return [significant(value) if name == "k" else short_count(value) for name, value in pairs]


def _log(channel: Any, field: str, title: str, ends: tuple[float, float]) -> Any:
    low, high = ends if ends[0] < ends[1] else (ends[0] / 2, ends[1] * 2)
    # As people say them: billions with a B; plain numbers for samples, powers of ten where no prefix is known.
    form = ".2~e" if high > 9e17 or low < 1e-4 else ".3~r" if high < 1e4 else ".2~s"
    axis = alt.Axis(values=_round_numbers(low, high), format=form, labelOverlap="greedy", labelSeparation=8,
                    gridColor="#eeeeee", labelExpr="replace(datum.label, 'G', 'B')")  # fmt: skip
    return channel(f"{field}:Q", title=title).scale(type="log", domain=[low, high], nice=False).axis(axis)


def _end(channel: Any, field: str) -> Any:
    """The same axis for another column."""
    other = channel.copy(deep=False)
    other.shorthand = f"{field}:Q"
    return other


def _round_numbers(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers from `low` to `high`, about evenly spaced on a log axis."""
    powers = np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = np.outer(10.0**powers, parts).ravel()
        found = found[(found >= low * (1 - 1e-9)) & (found <= high * (1 + 1e-9))]
        if len(found) <= most:
            break
    found = found[:: max(math.ceil(len(found) / most), 1)]
    return [float(f"{value:.6g}") for value in found]


def _ratios(low: float, high: float) -> list[float]:
    inside = _round_numbers(low, high)
    return inside if 1.0 in inside else sorted([*inside, 1.0])


def _percent(share: float) -> str:
    if share >= 0.01 and abs(100 * share - round(100 * share)) < 1e-9:
        return f"{100 * share:,.0f} %"
    return "0 %" if abs(share) < 5e-6 else f"{significant(100 * share, 2)} %"


def _nothing(text: str) -> alt.Chart:
    blank = alt.Chart(alt.InlineData(values=[{}])).mark_text(text=text)
    return blank.properties(width=WIDTH, height=HEIGHT // 2)
