"""Charts: functions of a data frame that return an altair chart; each has a table as its twin."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import altair as alt

from allocator.decision_words import titles_of
from allocator.frontiers import Frontier

if TYPE_CHECKING:
    import pandas as pd

PHASES = {"pretrain": "pre-training", "rl": "RL", "inference": "inference"}
COLOURS = ["#4c78a8", "#f58518", "#54a24b"]  # told apart with colour-blind eyes and in grey
WIDTH, HEIGHT = 420, 260
_DECISIONS = {
    "n_active": "active parameters",
    "d_pretrain": "pre-training tokens",
    "d_rl": "RL tokens",
    "d_inference": "tokens served",
}


def shares(frame: "pd.DataFrame", label: str = "variant") -> alt.Chart:
    """Shares of paid FLOP by phase, a bar a row; columns share_pretrain, share_rl, share_inference and `label`."""
    return (
        alt.Chart(_long_shares(frame, label), title="Share of lifetime FLOP by phase")
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of paid FLOP").stack("normalize").axis(format="%"),
            y=alt.Y(f"{_field(label)}:N", title=None, sort=None).axis(labelLimit=320),
            color=_phase_colour(),
            order=alt.Order("order:Q"),
            tooltip=[f"{_field(label)}:N", "phase:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=WIDTH)
    )


def loss_by_budget(frame: "pd.DataFrame", budget: str, unit: str = "nats/token") -> alt.Chart:
    """Loss of the best plan at each budget; columns `budget` and loss."""
    return (
        alt.Chart(frame.dropna(subset=["loss"]), title="Loss of the best plan")
        .mark_line(point=alt.OverlayMarkDef(color=COLOURS[0]), color=COLOURS[0])
        .encode(
            x=_log_axis(budget, _axis_title(budget)),
            y=alt.Y("loss:Q", title=f"loss ({unit})").scale(zero=False),
            tooltip=[alt.Tooltip(f"{_field(budget)}:Q", title=_axis_title(budget), format=".3e"),
                     alt.Tooltip("loss:Q", format=".4f")],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )  # fmt: skip


def shares_by_budget(frame: "pd.DataFrame", budget: str) -> alt.Chart:
    """The optimal split along the budget; columns `budget` and the three shares."""
    return (
        alt.Chart(_long_shares(frame, budget), title="The best split along the budget")
        .mark_area()
        .encode(
            x=_log_axis(budget, _axis_title(budget)),
            y=alt.Y("share:Q", title="share of paid FLOP").stack("normalize").axis(format="%"),
            color=_phase_colour(),
            order=alt.Order("order:Q"),
        )
        .properties(width=WIDTH, height=HEIGHT)
    )


def decisions_by_budget(frame: "pd.DataFrame", budget: str) -> alt.HConcatChart:
    """Parameters and tokens along the budget, and samples per query beside them."""
    known = frame.dropna(subset=["loss"])
    if known.empty:
        nothing = alt.Chart(alt.InlineData(values=[{}]), title="What to buy along the budget")
        return alt.hconcat(nothing.mark_text(text="no plan at any budget").properties(width=WIDTH, height=HEIGHT))
    names = list(_DECISIONS.values())
    long = known.melt([budget], list(_DECISIONS), "decision", "amount").replace({"decision": _DECISIONS})
    tokens = (
        alt.Chart(long[long["amount"] > 0], title="What to buy along the budget")
        .mark_line(point=True)
        .encode(
            x=_log_axis(budget, _axis_title(budget)),
            y=_log_axis("amount", "parameters, tokens", alt.Y),
            color=alt.Color("decision:N", title=None, sort=names).scale(domain=names).legend(orient="bottom"),
            # Dashes, since tokens served and pre-training tokens coincide at equal cost.
            strokeDash=alt.StrokeDash("decision:N", title=None, sort=names).scale(domain=names).legend(orient="bottom"),
            tooltip=["decision:N", alt.Tooltip("amount:Q", format=".3e")],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    samples = (
        alt.Chart(known, title="Samples per query")
        .mark_line(point=alt.OverlayMarkDef(color=COLOURS[2]), color=COLOURS[2])
        .encode(x=_log_axis(budget, _axis_title(budget)), y=alt.Y("k:Q", title="k").scale(zero=False))
        .properties(width=WIDTH // 2, height=HEIGHT)
    )
    return alt.hconcat(tokens, samples).resolve_scale(color="independent", strokeDash="independent")


def overtraining_by_law(frame: "pd.DataFrame", label: str = "variant") -> Any:
    """Tokens per parameter over Chinchilla's 20, a dot a law, with the lecture's 100x as a rule; column vs_20."""
    known = frame.dropna(subset=["vs_20"])
    values = [100.0, *(float(value) for value in known["vs_20"])]
    ends = [min(values) / 1.5, max(values) * 2]
    x = alt.X("vs_20:Q", title="pre-training tokens / (20 x active parameters)")
    x = x.scale(type="log", domain=ends, nice=False).axis(
        format="~r", tickCount=6, labelOverlap=True, labelSeparation=6, gridColor="#eee"
    )
    y = alt.Y(f"{_field(label)}:N", title=None, sort=None).axis(labelLimit=320)
    # Bars on a log axis start at its left end, which a dot does not have to explain.
    dots = alt.Chart(known).mark_circle(size=110, color=COLOURS[0], opacity=1)
    dots = dots.encode(x=x, y=y, tooltip=[f"{_field(label)}:N", alt.Tooltip("vs_20:Q", format=".3g")])

    def numbers(**mark: Any) -> alt.Chart:
        text = alt.Chart(known).mark_text(align="left", dx=9, **mark)
        return text.encode(x=x, y=y, text=alt.Text("vs_20:Q", format=".3~g"))

    rule = _rule(100.0, strokeDash=[4, 4], color="#888")
    # The white halo keeps the rule from running through a number.
    layers = rule, dots, numbers(stroke="white", strokeWidth=5), numbers()
    title = "Over-training by law (dashed: the lecture's 100x)"
    return alt.layer(*layers, title=title).properties(width=WIDTH)


def mfu_by_size(curves: "pd.DataFrame", n_active: float, n_active_frozen: float) -> Any:
    """MFU of each phase against N; solid the optimum that feels it, dashed the one with MFU frozen at that N."""
    phases = ["pre-training", "RL", "decode"]
    colour = alt.Color("phase:N", title=None, scale=alt.Scale(domain=phases, range=COLOURS)).legend(orient="bottom")
    lines = alt.Chart(curves).mark_line().encode(
        x=_log_axis("n_active", "active parameters"), y=alt.Y("mfu:Q", title="MFU").scale(zero=True), color=colour,
        tooltip=["phase:N", alt.Tooltip("n_active:Q", format=".3e"), alt.Tooltip("mfu:Q", format=".3f")],
    )  # fmt: skip
    felt = _rule(n_active, color="#444")
    held = _rule(n_active_frozen, color="#444", strokeDash=[5, 4])
    title = alt.TitleParams(
        "MFU that the optimum feels", subtitle="optimum with MFU(N): solid; with MFU frozen at that N: dashed"
    )
    return alt.layer(lines, felt, held, title=title).properties(width=WIDTH, height=HEIGHT)


def frontier(found: Frontier) -> Any:
    """A frontier as a line through its points, those that nothing beats."""
    from allocator.decision_charts import frontier as drawn  # which takes widths from here

    return drawn(found.to_frame(), found.x_name, found.y_name, *titles_of(found))


def files(charts: Mapping[str, Any]) -> dict[str, str | bytes]:
    """Each chart as SVG and PNG, and all of them in one HTML file that needs no network."""
    out = pictures(charts)
    if charts:
        page = io.StringIO()
        whole = alt.vconcat(*charts.values()).resolve_scale(color="independent")
        whole.save(page, format="html", inline=True)
        out["charts.html"] = page.getvalue()
    return out


def pictures(charts: Mapping[str, Any]) -> dict[str, str | bytes]:
    """Each chart as SVG and PNG."""
    out: dict[str, str | bytes] = {}
    for name, chart in charts.items():
        svg, png = io.StringIO(), io.BytesIO()
        chart.save(svg, format="svg")
        chart.save(png, format="png", scale_factor=2)
        out[f"{name}.svg"], out[f"{name}.png"] = svg.getvalue(), png.getvalue()
    return out


def _long_shares(frame: "pd.DataFrame", label: str) -> "pd.DataFrame":
    columns = {f"share_{name}": words for name, words in PHASES.items()}
    known = frame.dropna(subset=list(columns))
    long = known.melt([label], list(columns), "phase", "share").replace({"phase": columns})
    return long.assign(order=[list(PHASES.values()).index(phase) for phase in long["phase"]])


def _phase_colour() -> alt.Color:
    scale = alt.Scale(domain=list(PHASES.values()), range=COLOURS)
    return alt.Color("phase:N", title=None, scale=scale).legend(orient="bottom")


def _rule(x: float, **mark: Any) -> alt.Chart:
    """A vertical line with data of its own, or it would be drawn once a row."""
    return alt.Chart(alt.InlineData(values=[{"x": x}])).mark_rule(**mark).encode(x="x:Q")


def _log_axis(field: str, title: str, channel: Any = alt.X) -> Any:
    return (
        channel(f"{_field(field)}:Q", title=title)
        .scale(type="log", nice=False)
        .axis(format="~e", tickCount=6, labelOverlap=True, labelSeparation=6, gridColor="#eee")
    )


def _field(name: str) -> str:
    """A dot in a column's name means nesting to Vega, unless it is escaped."""
    return name.replace(".", "\\.")


def _axis_title(budget: str) -> str:
    units = {"compute_flop": "budget (FLOP)", "chip_hours": "budget (chip-hours)", "usd": "budget (USD)",
             "energy_joule": "budget (J)", "target_loss": "target loss (nats/token)"}  # fmt: skip
    return units.get(budget.rpartition(".")[2], budget)
