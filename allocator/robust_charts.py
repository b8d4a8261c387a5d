"""Charts of a robust plan: functions of its data frame that return an altair chart."""

import math
import textwrap
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from allocator.charts import HEIGHT, WIDTH

# Okabe and Ito's colours, which colour-blind eyes tell apart; each also has a shape or a dash of its own.
BLUE, ORANGE, GREEN = "#0072b2", "#e69f00", "#009e73"
INK, GREY = "#333333", "#6b6b6b"
PANEL = 300
ROBUST, MEAN, OWN = "robust plan", "plan made at mean demand", "plan made with the state known"
COLOURS = {ROBUST: BLUE, MEAN: ORANGE, OWN: GREEN}
SHAPES = {ROBUST: "circle", MEAN: "triangle-up", OWN: "diamond"}
DASHES = {ROBUST: [1, 0], MEAN: [6, 3]}


def by_state(frame: pd.DataFrame, x: str, x_title: str, unit: str = "nats/token", about: str = "") -> Any:
    """Loss and k by state, of the robust plan and of two others; columns are those of `RobustPlan.to_frame`."""
    panels = []
    gaps = {"gap": frame["loss"] - frame["own_loss"], "mean_demand_gap": frame["mean_demand_loss"] - frame["own_loss"]}
    frame = frame.assign(**gaps, own_gap=math.nan)
    for name, title, log in (
        ("loss", f"loss ({unit})", False),
        ("gap", "loss above that with the state known", False),
        ("k", "samples per query, k", True),
    ):
        columns = {ROBUST: name, MEAN: f"mean_demand_{name}", OWN: f"own_{name}"}
        long = pd.concat([
            pd.DataFrame({"x": frame[x], "y": frame[column], "plan": plan, "state": frame["state"],
                          "probability": frame["probability"]})
            for plan, column in columns.items()
        ])  # fmt: skip
        long = pd.DataFrame(long[np.isfinite(long["x"]) & np.isfinite(long["y"])])
        panels.append(_points(long, x_title, title, log_x=x != "own_loss", log_y=log))
    missing = int(np.isinf(np.asarray(frame["mean_demand_loss"], float)).sum())
    remark = f"the plan made at mean demand cannot serve {missing} of {len(frame)} states" if missing else ""
    return alt.hconcat(*panels, title=_title("What one commitment leads to", about, remark, 180))


def regrets(frame: pd.DataFrame, about: str = "") -> Any:
    """Share of probability whose regret is at most x; columns probability, regret and mean_demand_regret."""
    probability = np.asarray(frame["probability"], float)
    served = np.isfinite(np.asarray(frame["loss"], float))
    total = float(probability[served].sum())
    parts, plans, lost = [], [], 0.0
    for plan, column in ((ROBUST, "regret"), (MEAN, "mean_demand_regret")):
        regret = np.asarray(frame[column], float)
        some = np.flatnonzero(served & np.isfinite(regret))
        some = some[np.argsort(regret[some], kind="stable")]
        share = np.cumsum(probability[some]) / total
        if plan == MEAN and not np.isnan(regret).all():  # there is such a plan
            lost = 1 - float(share[-1]) if len(some) else 1.0
        if len(some):
            x = [0.0, *np.maximum(100 * regret[some], 0.0)]
            parts.append(pd.DataFrame({"regret": x, "share": [0.0, *share], "plan": plan}))
            plans.append(plan)
    last = max((float(part["regret"].max()) for part in parts), default=1.0)
    # Both lines run on to the right end, where whatever share they have not reached stays unreached.
    ends = [pd.DataFrame({"regret": [1.05 * last], "share": [float(part["share"].max())], "plan": plan})
            for part, plan in zip(parts, plans, strict=True)]  # fmt: skip
    long = pd.concat([*parts, *ends])
    remark = (
        f"the plan made at mean demand cannot serve states of {100 * lost:.3g} % of the probability"
        if lost > 1e-9 else ""
    )  # fmt: skip
    colour = alt.Color("plan:N", title=None, sort=plans).scale(domain=plans, range=[COLOURS[p] for p in plans])
    dash = alt.StrokeDash("plan:N", title=None, sort=plans).scale(domain=plans, range=[DASHES[p] for p in plans])
    legend = alt.Legend(orient="bottom", symbolStrokeWidth=2, labelLimit=320)
    return (
        alt.Chart(long, title=_title("How much budget the commitment costs", about, remark))
        .mark_line(interpolate="step-after", strokeWidth=2.2)
        .encode(
            x=alt.X("regret:Q", title="extra budget over the state's own optimum (%)")
            .scale(domain=[0, 1.05 * last], nice=False)
            .axis(gridColor="#eee", titleFontWeight="normal"),
            y=alt.Y("share:Q", title="probability of at most that much")
            .scale(domain=[0, 1])
            .axis(format="%", gridColor="#eee", titleFontWeight="normal"),
            color=colour.legend(legend),
            strokeDash=dash.legend(legend),
            tooltip=["plan:N", alt.Tooltip("regret:Q", format=".3~g"), alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=WIDTH + 120, height=HEIGHT)
    )


def _points(long: pd.DataFrame, x_title: str, y_title: str, *, log_x: bool, log_y: bool) -> Any:
    plans = [plan for plan in COLOURS if plan in set(long["plan"])]
    colour = alt.Color("plan:N", title=None, sort=plans).scale(domain=plans, range=[COLOURS[p] for p in plans])
    shape = alt.Shape("plan:N", title=None, sort=plans).scale(domain=plans, range=[SHAPES[p] for p in plans])
    legend = alt.Legend(orient="bottom", symbolOpacity=1, symbolSize=60, labelLimit=320)
    dots = alt.Chart(long).mark_point(filled=True, size=60, opacity=0.8)
    return dots.encode(
        x=_axis(alt.X, "x", x_title, np.asarray(long["x"], float), log=log_x),
        y=_axis(alt.Y, "y", y_title, np.asarray(long["y"], float), log=log_y),
        color=colour.legend(legend),
        shape=shape.legend(legend),
        tooltip=["plan:N", "state:Q", alt.Tooltip("probability:Q", format=".3~g"),
                 alt.Tooltip("x:Q", title=x_title, format=".4~g"), alt.Tooltip("y:Q", title=y_title, format=".5~g")],
    ).properties(width=PANEL, height=HEIGHT)  # fmt: skip


def _axis(channel: Any, field: str, title: str, values: np.ndarray, *, log: bool) -> Any:
    """An axis with ends just outside its values, with ticks at round numbers where it is logarithmic."""
    low, high = float(values.min()), float(values.max())
    style: dict[str, Any] = {"gridColor": "#eee", "titleFontWeight": "normal"}
    if not (log and low > 0 and high > 3 * low):
        pad = 0.06 * (high - low) or 0.01 * abs(high)
        scale = {"domain": [low - pad, high + pad], "nice": False}
        return channel(f"{field}:Q", title=title).scale(**scale).axis(tickCount=6, labelOverlap=True, **style)
    factor = max((high / low) ** 0.06, 1.02)
    ends = low / factor, high * factor
    ticks: list[float] = []
    for parts in ((1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])) + 1)
        ticks = [x for power in powers for part in parts if ends[0] <= (x := float(f"{part}e{power}")) <= ends[1]]
        if len(ticks) <= 8:
            break
    form = "~e" if high > 9e6 or low < 1e-4 else ",~g"
    axis = alt.Axis(values=ticks if len(ticks) > 1 else [low, high], format=form, labelOverlap="greedy", **style)
    return channel(f"{field}:Q", title=title).scale(type="log", domain=list(ends), nice=False).axis(axis)


def _title(text: str, about: str, remark: str = "", width: int = 110) -> alt.TitleParams:
    lines = [line for part in (about, remark) for line in textwrap.wrap(part, width)]
    return alt.TitleParams(text, subtitle=lines, anchor="start", subtitleColor=GREY, color=INK, offset=12)
