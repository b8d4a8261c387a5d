"""Charts of frontiers, sensitivities and uncertainty: functions of a data frame that return an altair chart."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from allocator.charts import HEIGHT, WIDTH
from allocator.decision_words import FIGURES, name_of

# Okabe and Ito's colours, which colour-blind eyes tell apart; each also has a dash or a shape of its own.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"
INK, GREY = "#333333", "#6b6b6b"
WIDE = WIDTH + 120
COLOURS = [BLUE, ORANGE, GREEN, RED, PURPLE]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3]]


def frontier(frame: pd.DataFrame, x: str, y: str, x_title: str, y_title: str, about: str = "") -> Any:
    """The frontier as a line through its points; columns `x`, `y` and kept."""
    known = frame[frame["kept"]]
    if known.empty:
        nothing = alt.Chart(alt.InlineData(values=[{}]), title=_title("Frontier", about))
        return nothing.mark_text(text="no plan at any point").properties(width=WIDE, height=HEIGHT)
    drawn = pd.DataFrame({"x": known[x], "y": known[y]})
    return (
        alt.Chart(drawn, title=_title(f"{y_title} against {x_title}", about))
        .mark_line(color=BLUE, point=alt.OverlayMarkDef(color=BLUE, size=18))
        .encode(
            x=_axis(alt.X, "x", x_title, np.asarray(drawn["x"], float)),
            y=_axis(alt.Y, "y", y_title, np.asarray(drawn["y"], float)),
            tooltip=[
                alt.Tooltip("x:Q", title=x_title, format=".4~g"),
                alt.Tooltip("y:Q", title=y_title, format=".5~g"),
            ],
        )
        .properties(width=WIDE, height=HEIGHT)
    )


def tornado(frame: pd.DataFrame, base: float, outcome: str, about: str = "", rows: int = 12) -> Any:
    """Outcome at both ends of each assumption's range, widest first; columns of `Sensitivity.swings_frame`."""
    known = frame[np.isfinite(frame["at_low"]) & np.isfinite(frame["at_high"])].head(rows)
    drawn = known.assign(
        label=[f"{name_of(path)}  ({low:.3g} to {high:.3g})"
               for path, low, high in zip(known["path"], known["low"], known["high"], strict=True)]
    )[["label", "at_low", "at_high", "source"]]  # fmt: skip
    values = np.concatenate([np.asarray(drawn["at_low"]), np.asarray(drawn["at_high"]), [base]])
    x = _axis(alt.X, "at_low", FIGURES.get(outcome, outcome), values)
    y = alt.Y("label:N", title=None, sort=None).axis(labelLimit=430)
    tips = ["label:N", "source:N", alt.Tooltip("at_low:Q", format=".4~g"), alt.Tooltip("at_high:Q", format=".4~g")]
    bars = alt.Chart(drawn).mark_rule(strokeWidth=9, color="#c9d6e2").encode(x=x, x2="at_high:Q", y=y, tooltip=tips)
    lows = alt.Chart(drawn).mark_point(filled=True, size=55, color=BLUE, opacity=1, shape="circle")
    highs = alt.Chart(drawn).mark_point(filled=True, size=55, color=ORANGE, opacity=1, shape="triangle-up")
    rule = alt.Chart(alt.InlineData(values=[{"base": base}])).mark_rule(color=INK, strokeDash=[4, 3]).encode(x="base:Q")
    layers = bars, rule, lows.encode(x=x, y=y, tooltip=tips), highs.encode(x="at_high:Q", y=y, tooltip=tips)
    title = _title(
        "What the answer hangs on", about, "circle: low end of the range, triangle: high end, dashed: the plan"
    )
    return alt.layer(*layers, title=title).properties(width=WIDTH)


def spread(frame: pd.DataFrame, figure: str, plan: float, rules: Mapping[str, float], about: str = "") -> Any:
    """Cumulative share of draws below a figure; columns sources, value and below, as `cumulative` makes them."""
    kinds = list(dict.fromkeys(frame["sources"]))
    colours = [BLUE, ORANGE, GREEN][: len(kinds)]
    ends = np.array([*np.asarray(frame["value"], float), plan, *rules.values()])
    x = _axis(alt.X, "value", FIGURES.get(figure, figure), ends)
    lines = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2.2)
        .encode(
            x=x,
            y=alt.Y("below:Q", title="share of draws below").axis(format="%").scale(domain=[0, 1]),
            color=alt.Color("sources:N", title=None, sort=kinds)
            .scale(domain=kinds, range=colours)
            .legend(orient="bottom"),
            strokeDash=alt.StrokeDash("sources:N", title=None, sort=kinds)
            .legend(orient="bottom")
            .scale(domain=kinds, range=DASHES[: len(kinds)]),
        )
    )
    layers: list[Any] = [lines]
    # The plan is named above, the rules below, where the curves leave room.
    for value, label, dash, height in (
        (plan, "the plan", [1, 0], 8),
        *((rule, name, [3, 3], HEIGHT - 8) for name, rule in rules.items()),
    ):
        data = alt.Chart(alt.InlineData(values=[{"value": value, "label": label}]))
        layers.append(data.mark_rule(color=INK, strokeDash=dash).encode(x=x))
        said: dict[str, Any] = {"align": "right" if label == "the plan" else "left", "fontSize": 10}
        said["dx"] = -4 if label == "the plan" else 4
        for text in (data.mark_text(stroke="white", strokeWidth=4, **said), data.mark_text(color=INK, **said)):
            layers.append(text.encode(x=x, y=alt.value(height), text="label:N"))
    return alt.layer(*layers, title=_title("How sure that is", about)).properties(width=WIDE, height=HEIGHT)


def shares_of_variance(frame: pd.DataFrame, outcome: str, about: str = "") -> Any:
    """Sobol's indices by source, alone and with interactions; columns source, first_order, total."""
    drawn = frame.assign(source=[name_of(name) for name in frame["source"]])
    long = drawn.melt(["source"], ["first_order", "total"], "kind", "share")
    words = {"first_order": "alone", "total": "with interactions"}
    kinds = [words[str(kind)] for kind in long["kind"]]
    long = long.assign(kind=kinds, share=np.clip(np.asarray(long["share"], float), 0, 1))
    return (
        alt.Chart(long, title=_title(f"Variance of {FIGURES.get(outcome, outcome)} explained", about))
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of the variance of the log").axis(format="%"),
            y=alt.Y("source:N", title=None, sort=list(drawn["source"])).axis(labelLimit=360),
            yOffset=alt.YOffset("kind:N", sort=["alone", "with interactions"]),
            color=alt.Color("kind:N", title=None).scale(domain=["alone", "with interactions"], range=[BLUE, "#a6c8e0"])
            .legend(orient="bottom"),
        )
        .properties(width=WIDTH)
    )  # fmt: skip


def measurements(frame: pd.DataFrame, now: float, about: str = "", rows: int = 10) -> Any:
    """Budget saved in expectation by knowing sources first; columns sources, saved, standard_error."""
    best = frame.head(rows)
    drawn = best.assign(
        label=[" and ".join(name_of(part) for part in name.split(" + ")) for name in best["sources"]],
        low=best["saved"] - 2 * best["standard_error"],
        high=best["saved"] + 2 * best["standard_error"],
    )
    y = alt.Y("label:N", title=None, sort=list(drawn["label"])).axis(labelLimit=520)
    bars = alt.Chart(drawn).mark_bar(color=GREEN, height=11).encode(
        x=alt.X("saved:Q", title="share of the budget saved in expectation").axis(format=".1%"), y=y)  # fmt: skip
    errors = alt.Chart(drawn).mark_rule(color=INK).encode(x="low:Q", x2="high:Q", y=y)
    remark = f"planning now wastes {now:.1%} in expectation; whiskers: two standard errors"
    return alt.layer(bars, errors, title=_title("What to measure first", about, remark)).properties(width=WIDTH - 60)


def overtraining_by_demand(frame: pd.DataFrame, models: pd.DataFrame, about: str = "") -> Any:
    """Tokens per parameter against demand by law, released models as ticks; columns law, demand_tokens, vs_20."""
    known = frame[np.isfinite(frame["vs_20"])]
    laws = list(dict.fromkeys(known["law"]))[: len(COLOURS)]  # more than these cannot be told apart
    known = pd.DataFrame(known[[law in laws for law in known["law"]]])
    both = np.concatenate([np.asarray(known["vs_20"]), np.asarray(models["multiple_of_20"], float), [100.0]])
    y = _axis(alt.Y, "vs_20", "pre-training tokens / (20 x parameters)", both)
    x = _axis(alt.X, "demand_tokens", "tokens served over the lifetime", np.asarray(known["demand_tokens"], float))
    lines = alt.Chart(known[["law", "demand_tokens", "vs_20"]]).mark_line(strokeWidth=2.2).encode(
        x=x, y=y,
        color=alt.Color("law:N", title=None, sort=laws).scale(domain=laws, range=COLOURS[: len(laws)])
        .legend(orient="bottom"),
        strokeDash=alt.StrokeDash("law:N", title=None, sort=laws).legend(orient="bottom")
        .scale(domain=laws, range=DASHES[: len(laws)]),
    )  # fmt: skip
    rule = alt.Chart(alt.InlineData(values=[{"vs_20": 100.0}])).mark_rule(color=GREY, strokeDash=[4, 4]).encode(y=y)
    ends = [float(low) for low in (both.min() / 1.5, both.max() * 1.5)]
    side = _axis(alt.Y, "multiple_of_20", "", both, ends=ends).axis(None)
    shown = _apart(models.sort_values("multiple_of_20"), "multiple_of_20", ends)
    dots = (
        alt.Chart(models)
        .mark_tick(color=INK, thickness=1.5, width=14)
        .encode(y=side, tooltip=["name:N", "multiple_of_20:Q"])
    )
    names = alt.Chart(shown).mark_text(align="left", fontSize=9, color=INK)
    names = names.encode(x=alt.value(22), y=side, text="name:N")
    left = alt.layer(lines, rule).properties(width=WIDTH, height=HEIGHT + 140)
    right = alt.layer(dots, names).properties(
        width=190, height=HEIGHT + 140, title="released models", view={"stroke": None}
    )
    remark = (
        "dashed: the lecture's 100x; demand of the released models is not known, so they have no place along the axis"
    )
    title = _title("Over-training against demand", about, remark, width=WIDTH + 150)
    return alt.hconcat(left, right, title=title).resolve_scale(y="independent")


def cumulative(values: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Columns sources, value and below of finite values, a few hundred points each."""
    frames = []
    for name, numbers in values.items():
        known = np.sort(np.asarray(numbers, float)[np.isfinite(numbers)])
        rank = np.unique(np.linspace(0, len(known) - 1, 300).astype(int)) if len(known) else np.array([], int)
        frames.append(pd.DataFrame({"sources": name, "value": known[rank], "below": (rank + 1) / max(len(known), 1)}))
    return pd.concat(frames, ignore_index=True)


def _apart(models: pd.DataFrame, column: str, ends: Sequence[float]) -> pd.DataFrame:
    """Models whose names do not touch the one below."""
    gap = np.log(ends[1] / ends[0]) * 10 / (HEIGHT + 140)
    kept, last = [], -np.inf
    for i, value in enumerate(np.log(np.asarray(models[column], float))):
        if value - last >= gap:
            kept.append(i)
            last = value
    return models.iloc[kept]


def _axis(channel: Any, field: str, title: str, values: np.ndarray, ends: Sequence[float] | None = None) -> Any:
    """A log axis where the values span more than a factor of three, else a linear one that need not start at 0."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 2.0)
    made = channel(f"{field}:Q", title=title)
    if low > 0 and (high / low > 3 or ends is not None):
        domain = list(ends) if ends is not None else [low / 1.12, high * 1.12]
        form = "~e" if high > 9e5 or low < 1e-3 else "~r"
        made = made.scale(type="log", domain=domain, nice=False)
        return made.axis(format=form, tickCount=6, labelOverlap=True, labelSeparation=6, gridColor="#eee")
    return made.scale(zero=False).axis(tickCount=6, gridColor="#eee", format=".5~g")


def _title(text: str, about: str, remark: str = "", width: int = WIDE) -> alt.TitleParams:
    lines = [line for part in (about, remark) for line in textwrap.wrap(part, max(width // 6, 40))]
    return alt.TitleParams(text, subtitle=lines, anchor="start", subtitleColor=GREY, offset=10)
