"""Charts of a roofline: functions of data frames that return an altair chart."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from allocator.charts import HEIGHT, WIDTH

# Okabe and Ito's colours, which colour-blind eyes tell apart; each also has a shape or a dash of its own.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
MOST_MARKS = 2000  # of one chart, 1 MB of SVG; of more, some are drawn by lot
INK, GREY = "#333333", "#6b6b6b"
PANEL = 330
LEAST_SPAN = 4.0  # of an axis of times, highest over lowest


def roof(points: pd.DataFrame, peak_flop_per_s: float, bytes_per_s: float, about: str) -> Any:
    """FLOP/s per chip against FLOP per byte under the roof; columns phase, label, intensity, flop_per_s."""
    ridge = peak_flop_per_s / bytes_per_s
    known = np.asarray(points["intensity"], float).tolist()
    named = pd.DataFrame(points[points["label"] != ""])
    room = [at / 20 for at in np.asarray(named["intensity"], float).tolist()]  # for the labels, left of their points
    left, right = min([ridge / 500, *(at / 1.6 for at in known), *room]), max([ridge * 30, *known]) * 2.5
    low = min([left * bytes_per_s, *np.asarray(points["flop_per_s"], float)]) / 1.5
    x = _log(alt.X, "intensity", "arithmetic intensity (FLOP per byte of memory)", (left, right))
    y = _log(alt.Y, "flop_per_s", "FLOP/s per chip", (low, peak_flop_per_s * 3))
    ends = [(left, left * bytes_per_s), (ridge, peak_flop_per_s), (right, peak_flop_per_s)]
    line = alt.Chart(alt.InlineData(values=[{"intensity": a, "flop_per_s": b} for a, b in ends]))
    roofline = line.mark_line(color=INK, strokeWidth=2.5, clip=True).encode(x=x, y=y)
    phases = list(dict.fromkeys(points["phase"]))
    colours, shapes = [BLUE, ORANGE, GREEN, RED], ["circle", "diamond", "square", "triangle-up"]
    colour = alt.Color("phase:N", title=None, sort=phases).scale(domain=phases, range=colours[: len(phases)])
    form = alt.Shape("phase:N", title=None, sort=phases).scale(domain=phases, range=shapes[: len(phases)])
    tips = ["phase:N", "label:N", alt.Tooltip("intensity:Q", title="FLOP/byte", format=".3~s"),
            alt.Tooltip("flop_per_s:Q", title="FLOP/s per chip", format=".3~e")]  # fmt: skip
    dots = alt.Chart(points).mark_point(size=75, filled=True, opacity=1)
    dots = dots.encode(x=x, y=y, tooltip=tips, color=colour.legend(orient="bottom"), shape=form.legend(orient="bottom"))
    layers: list[Any] = [roofline, dots]
    # The line rises from left to right and no point is above it, so left of and above a point there is room.
    height = HEIGHT + 80
    close = 14 / height * math.log10(peak_flop_per_s * 3 / low)  # decades that a line of text takes
    merged = _merged(named, close)
    under = merged["flop_per_s"] < 0.97 * np.minimum(peak_flop_per_s, merged["intensity"] * bytes_per_s)
    layers += _labels(pd.DataFrame(merged[~under]), x, y, {"align": "right", "dx": -6, "dy": -8})
    layers += _labels(pd.DataFrame(merged[under]), x, y, {"align": "center", "dy": -13})  # others may stand beside it
    told = (f"dense peak: {peak_flop_per_s / 1e12:,.0f} TFLOP/s", f"memory: {bytes_per_s / 1e12:.3g} TB/s")
    top = alt.InlineData(values=[{"intensity": right / 1.1, "flop_per_s": peak_flop_per_s * above, "label": words}
                                 for above, words in zip((2.3, 1.5), told, strict=True)])  # fmt: skip
    foot = alt.InlineData(values=[{"intensity": ridge, "flop_per_s": low * 1.35, "label": f"{ridge:,.0f} FLOP/byte"}])
    said: dict[str, Any] = {"color": INK, "fontSize": 11}
    layers.append(alt.Chart(top).mark_text(align="right", **said).encode(x=x, y=y, text="label:N"))
    layers.append(alt.Chart(foot).mark_text(align="left", dx=6, **said).encode(x=x, y=y, text="label:N"))
    layers.insert(0, alt.Chart(foot).mark_rule(color=GREY, strokeDash=[4, 4]).encode(x=x))
    remark = ("right of the dashed line arithmetic binds, left of it memory; a bound below the line: the network, the "
              "busiest chip's share or fixed time binds; expected: as in measured serving")  # fmt: skip
    title = _title("Roofline", about, remark)
    return alt.layer(*layers, title=title).properties(width=WIDTH + 150, height=height)


def batches(frame: pd.DataFrame, marks: Mapping[str, float], floors: Mapping[str, float], about: str) -> Any:
    """Time and cost per output token against batch.

    Columns batch, fits, tpot_ms, expected_ms, cost, expected_cost (per million). `marks` are batches that get a line
    (critical, largest); `floors` has tpot_ms, and the cost under its unit.
    """
    fits = np.asarray(frame["fits"], bool)
    unit = next(key for key in floors if key != "tpot_ms")
    span = (float(np.asarray(frame["batch"]).min()), float(np.asarray(frame["batch"]).max()))
    inside = {words: at for words, at in marks.items() if span[0] <= at <= span[1]}
    panels = []
    for (column, expected), words, floor, note in (
        (("tpot_ms", "expected_ms"), "time per output token (ms)", floors["tpot_ms"], "weights alone"),
        (("cost", "expected_cost"), f"{unit} per million output tokens", floors[unit], "floor"),
    ):
        long = pd.concat([
            pd.DataFrame({"batch": frame["batch"], "value": frame[name], "fits": frame["fits"], "what": what})
            for name, what in ((column, "bound"), (expected, "expected from measurements"))
        ])  # fmt: skip
        values = np.asarray(long["value"], float)
        low, high = min(float(values.min()), floor), float(values.max())
        ends = (low / (high / low) ** 0.1 / 1.1, high * 1.3)
        x = _log(alt.X, "batch", "batch (sequences in a step)", span)
        y = _log(alt.Y, "value", words, ends)
        kinds = ["bound", "expected from measurements"]
        colour = alt.Color("what:N", title=None, sort=kinds).scale(domain=kinds, range=[BLUE, ORANGE])
        tips = ["what:N", alt.Tooltip("batch:Q", format=",.0f"), alt.Tooltip("value:Q", title=words, format=".4~g")]
        layers: list[Any] = []
        for part, dash in ((long[long["fits"]], [1, 0]), (long[~long["fits"]], [2, 4])):
            if len(part):
                drawn = alt.Chart(part).mark_line(strokeWidth=2.2, strokeDash=dash, clip=True)
                layers.append(drawn.encode(x=x, y=y, color=colour.legend(orient="bottom"), tooltip=tips))
        base = alt.Chart(alt.InlineData(values=[{"value": floor, "batch": span[0], "label": f"{note}: {floor:.3g}"}]))
        layers.append(base.mark_rule(color=GREEN, strokeDash=[6, 3]).encode(y=y))
        layers.append(
            base.mark_text(align="left", dx=4, dy=9, color=GREEN, fontSize=10).encode(x=x, y=y, text="label:N")
        )
        for i, (name, at) in enumerate(inside.items()):
            beyond = at > math.sqrt(span[0] * span[1])
            line = alt.Chart(alt.InlineData(values=[{"batch": at, "label": f"{name}: {at:,.0f}"}]))
            layers.append(line.mark_rule(color=INK, strokeDash=[3, 3] if i else [1, 0], strokeWidth=1).encode(x=x))
            # Above the frame, a row each: there is no curve, no other line and no frame to run into.
            text = line.mark_text(color=INK, align="right" if beyond else "left", fontSize=10)
            layers.append(text.encode(x=x, y=alt.value(-7 - 13 * i), text="label:N"))
        panels.append(alt.layer(*layers).properties(width=PANEL, height=HEIGHT))
    remark = "dotted: a batch that does not fit in memory" if not fits.all() else ""
    return alt.hconcat(*panels, title=_title("What a larger batch buys", about, remark, width=2 * PANEL))


def measured(frame: pd.DataFrame, about: str) -> Any:
    """Measured against predicted time per output token, of a check's rows."""
    both = np.concatenate([np.asarray(frame[name], float) for name in ("predicted_tpot_ms", "measured_tpot_ms")])
    margin = max(1.15, math.sqrt(LEAST_SPAN * both.min() / both.max()))  # few rows lie close together
    ends = (float(both.min()) / margin, float(both.max()) * margin)
    x = _log(alt.X, "predicted_tpot_ms", "predicted time per output token (ms)", ends)
    y = _log(alt.Y, "measured_tpot_ms", "measured time per output token (ms)", ends)
    kept = _sample(np.asarray(frame["beats"] != ""), MOST_MARKS)
    drawn = frame[["id", "hardware", "model", "predicted_tpot_ms", "measured_tpot_ms", "error", "beats"]].iloc[kept]
    names = sorted({*frame["model"]})
    colours = [BLUE, ORANGE, GREEN, RED, PURPLE, SKY, INK, "#b59f00"]
    forms = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "stroke", "wedge"]

    def cycle(values: Sequence[str]) -> list[str]:
        return [values[i % len(values)] for i in range(len(names))]

    colour = alt.Color("model:N", title=None).scale(domain=names, range=cycle(colours))
    form = alt.Shape("model:N", title=None).scale(domain=names, range=cycle(forms))
    legend = alt.Legend(orient="right", symbolOpacity=1, symbolSize=70)
    tips = ["id:N", "hardware:N", "model:N", alt.Tooltip("predicted_tpot_ms:Q", format=".4~g"),
            alt.Tooltip("measured_tpot_ms:Q", format=".4~g"), alt.Tooltip("error:Q", format="+.0%")]  # fmt: skip
    dots = alt.Chart(drawn).mark_point(size=22, filled=True, opacity=0.55)
    dots = dots.encode(x=x, y=y, color=colour.legend(legend), shape=form.legend(legend), tooltip=tips)
    layers: list[Any] = []
    for factor, dash in ((1.0, [1, 0]), (2.0, [4, 4]), (0.5, [4, 4])):
        line = [{"predicted_tpot_ms": end, "measured_tpot_ms": factor * end} for end in ends]
        rule = alt.Chart(alt.InlineData(values=line)).mark_line(color=INK, strokeDash=dash, strokeWidth=1, clip=True)
        layers.append(rule.encode(x=x, y=y))
    layers.insert(0, dots)
    odd = drawn[drawn["beats"] != ""]
    if len(odd):
        rings = alt.Chart(odd).mark_point(size=110, color=INK, strokeWidth=1.5, filled=False)
        layers.append(rings.encode(x=x, y=y, tooltip=[*tips, "beats:N"]))
    remark = "line: equal; dashed: twice and half" + ("; ringed: rows that beat the bound" if len(odd) else "")
    remark += f"; {len(drawn):,} of {len(frame):,} rows drawn, by lot" if len(drawn) < len(frame) else ""
    title = _title("Measured against predicted", about, remark)
    return alt.layer(*layers, title=title).properties(width=WIDTH, height=WIDTH)


def _sample(first: np.ndarray, most: int) -> np.ndarray:
    """Places of at most so many elements, the same ones each time; up to a quarter are of those that come first."""
    if len(first) <= most:
        return np.arange(len(first))
    lot = np.random.default_rng(0).permutation(len(first))
    ahead = lot[first[lot]][: most // 4]
    return np.sort(np.concatenate([ahead, lot[~np.isin(lot, ahead)][: most - len(ahead)]]))


def _merged(named: pd.DataFrame, close: float) -> pd.DataFrame:
    """Labelled points; one too close to the next in height lends it its label."""
    rows = named.sort_values("flop_per_s").to_dict("records")
    for lower, upper in pairwise(rows):
        if math.log10(upper["flop_per_s"] / lower["flop_per_s"]) < close:
            upper["label"], lower["label"] = f"{lower['label']}, {upper['label']}", ""
    return pd.DataFrame([row for row in rows if row["label"]], columns=list(named.columns))


def _labels(frame: pd.DataFrame, x: Any, y: Any, mark: Mapping[str, Any]) -> Iterable[Any]:
    """Text with a halo, so that no line runs through it."""
    if not len(frame):
        return []
    part = alt.Chart(frame)
    halo = part.mark_text(fontSize=10, stroke="white", strokeWidth=3, **mark)
    ink = part.mark_text(fontSize=10, color=INK, **mark)
    return [text.encode(x=x, y=y, text="label:N") for text in (halo, ink)]


def _log(channel: Any, field: str, title: str, ends: tuple[float, float]) -> Any:
    """A log channel with ends of its own and ticks at round numbers."""
    low, high = ends
    for parts in ((1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [float(f"{part}e{power}") for power in powers for part in parts]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 8:
            break
    form = "~e" if high > 9e6 or low < 1e-4 else ",~f"
    axis = alt.Axis(values=ticks or [low, high], format=form, gridColor="#eeeeee", titleFontWeight="normal",
                    labelOverlap="greedy", labelSeparation=5)  # fmt: skip
    return channel(f"{field}:Q", title=title).scale(type="log", domain=[low, high], nice=False).axis(axis)


def _title(text: str, about: str, remark: str = "", width: int = WIDTH + 150) -> alt.TitleParams:
    lines = [line for part in (about, remark) for line in textwrap.wrap(part, max(width // 6, 40))]
    return alt.TitleParams(text, subtitle=lines, anchor="start", subtitleColor=GREY, offset=12)
