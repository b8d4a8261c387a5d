"""A plan as one page that one opens, drags, prints and shares: verdict, live planner, tables, charts, reasons."""

import dataclasses
import math
import shlex
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files as resources
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import tomli_w

from allocator import catalog, charts, comparisons, decision_charts, exports
from allocator.baselines import with_baselines
from allocator.decision_words import FIGURES, name_of, title_of, told, worths
from allocator.errors import AllocatorError
from allocator.exports import budgets_around
from allocator.frontiers import Frontier, frontier
from allocator.live_planner import live_planner
from allocator.optimum.planning import solve
from allocator.optimum.result import Notice, Plan
from allocator.pages import document, figures, html_list, html_table, script_safe
from allocator.report import gathered, verdict
from allocator.scenario.assumptions import LAW, assumptions
from allocator.scenario.schema import Scenario
from allocator.sensitivities import Sensitivity, sensitivity
from allocator.uncertainties import OVERTRAINING, Uncertainty, uncertainty
from allocator.units import short_count, significant

DRAWS = 1000
POINTS = 41
ADVICE = {
    "extrapolates_rl": "Treat the RL share as a bet; fit your own RL runs (allocator fit) before committing compute.",
    "assumed_parameter": "See what the answer hangs on; measure it where that is much.",
    "extrapolates_n_active": "See how far other laws differ, and fit runs of your own at larger sizes.",
    "extrapolates_d_pretrain": "See how far other laws differ, and fit longer runs of your own.",
    "extrapolates_tokens_per_param": "See how far other laws differ, and fit runs of your own that are over-trained.",
    "exponents_chosen_for_equal_cost": "Put in exponents of your own; these were chosen to illustrate the heuristic.",
    "overhead_unusual": "Check MFU, peak and units of that phase.",
    "ideal_roofline": "Give the roofline an efficiency that your engine reaches.",
    "k_below_one": "Fix or bound decisions.k if answers cannot be shorter than the forecast's.",
    "bound_active": "Ask whether the bound is real: without it the plan would go further.",
    "implausible_size": "Check the units of budget and traffic.",
    "rounded_constants": "Use hoffmann-2022, which has the unrounded constants.",
    "repetition_borrowed": "Use a law fitted to repeated data, such as muennighoff-2023.",
    "limit_slack": "Widen the bounds on the decisions, or ask for less.",
    "memory_bound": "Serve on more chips, at a smaller batch or context.",
    "attention_approximated": "Compare with a measured time per token of that model.",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Report:
    """What a page tells; parts that could not be made carry their reason instead."""

    plan: Plan
    along: Frontier | None
    sensitivity: Sensitivity | None
    uncertainty: Uncertainty | None
    comparison: comparisons.Comparison | None
    live: Mapping[str, Any] | None
    missing: Mapping[str, str]  # part -> why it is not there


def report(scenario: Scenario, *, draws: int = DRAWS, seed: int = 0) -> Report:
    """Make everything that a page of a scenario tells; raises `NoPlanError` where there is no plan."""
    plan = with_baselines(solve(scenario, seed=seed))
    missing: dict[str, str] = {}

    def attempt(part: str, make: Any) -> Any:
        try:
            return make()
        except AllocatorError as error:
            missing[part] = " ".join(str(error).split())
            return None

    key = f"objective.{plan.objective.kind}"
    values: list[float] = np.geomspace(*_ends(plan), POINTS).tolist()
    return Report(
        plan=plan,
        along=attempt("frontier", lambda: frontier(scenario, {key: values}, seed=seed)),
        sensitivity=attempt("sensitivity", lambda: sensitivity(scenario, seed=seed)),
        uncertainty=attempt("uncertainty", lambda: uncertainty(scenario, draws=draws, seed=seed)),
        comparison=attempt("comparison", lambda: comparisons.compare(plan)),
        live=attempt("live planner", lambda: live_planner(plan, seed=seed)),
        missing=missing,
    )


def _ends(plan: Plan) -> tuple[float, float]:
    around = budgets_around(plan)
    return min(around), max(around)


def page_files(made: Report, source: str) -> dict[str, str | bytes]:
    """The page and the tables behind it; `source` is how the command named the scenario."""
    tables: dict[str, str | bytes] = {
        f"{name}.csv": frame.to_csv(index=False) for name, frame in exports.frames(made.plan).items()
    }
    if made.along is not None:
        tables["frontier.csv"] = made.along.to_frame().to_csv(index=False)
    if made.sensitivity is not None:
        tables |= {"elasticities.csv": made.sensitivity.to_frame().to_csv(index=False),
                   "swings.csv": made.sensitivity.swings_frame().to_csv(index=False)}  # fmt: skip
    if made.uncertainty is not None:
        tables["intervals.csv"] = made.uncertainty.to_frame().to_csv(index=False)
    if made.comparison is not None:
        tables["laws.csv"] = made.comparison.to_frame().to_csv(index=False)
    return {"report.html": page(made, source)} | tables


def page(made: Report, source: str) -> str:
    """The page as HTML."""
    plan = made.plan
    drawn = charts_of(made)

    def chart(*names: str) -> str:
        return figures({name: drawn[name] for name in names if name in drawn})

    sections = [
        ("Move the plan", _live_section(made)),
        ("What to buy", _decisions(plan) + _phases(plan) + chart("shares")),
        ("What more buys", _missing(made, "frontier") + chart("frontier", "decisions")),
        ("Rules of thumb", _baselines(plan)),
        ("What the answer hangs on", _missing(made, "sensitivity") + _sensitivity(made) + chart("tornado")),
        ("How sure that is", _missing(made, "uncertainty") + _uncertainty(made) + chart("overtraining")),
        ("Other laws", _missing(made, "comparison") + _laws(made) + chart("laws")),
        ("Warnings", _warnings(plan.warnings)),
        ("Assumptions", _assumptions(plan)),
        ("Where this comes from", _provenance(plan, source)),
    ]
    head = f'<p class="verdict">{escape(verdict(plan))}</p>'
    script = ""
    if made.live is not None:
        live = {**made.live, "chart": _live_chart(made).to_dict()}
        mover = resources("allocator").joinpath("live_planner.js").read_text("utf-8")
        script = f"const live = {script_safe(live)};\n{mover}"
    return document(plan.title, head, sections, drawn, script)


def charts_of(made: Report) -> dict[str, Any]:
    """The page's charts by name."""
    plan, about = made.plan, ""
    assert plan.scenario is not None
    own = pd.DataFrame([{"plan": "plan", **comparisons.plan_row(plan)}])
    drawn: dict[str, Any] = {"shares": charts.shares(own, "plan")}
    if made.along is not None and made.along.kept.any():
        frame = made.along.to_frame()
        x, y = _axis_title(plan), title_of(made.along.y_name, plan.loss_unit)
        drawn["frontier"] = decision_charts.frontier(frame, made.along.x_name, made.along.y_name, x, y, about)
        if plan.objective.kind != "target_loss":
            drawn["decisions"] = charts.decisions_by_budget(frame, made.along.x_name)
    if made.sensitivity is not None:
        drawn["tornado"] = decision_charts.tornado(made.sensitivity.swings_frame(), made.sensitivity.base,
                                                   made.sensitivity.outcome)  # fmt: skip
    if made.uncertainty is not None and plan.overtraining is not None:
        values = {name: spread.figures["vs_20"].tolist() for name, spread in made.uncertainty.spreads().items()}
        rules = {f"{limit:.0f}x": limit for limit in OVERTRAINING}
        drawn["overtraining"] = decision_charts.spread(decision_charts.cumulative(values), "vs_20",
                                                       plan.overtraining.vs_20, rules)  # fmt: skip
    if made.comparison is not None:
        drawn["laws"] = charts.overtraining_by_law(made.comparison.to_frame())
    return drawn


def _axis_title(plan: Plan) -> str:
    word = "target loss" if plan.objective.kind == "target_loss" else "budget"
    return f"{word} ({plan.objective.unit})"


def _live_chart(made: Report) -> Any:
    """Loss along the budget and where the sliders stand; the page puts the rows in."""
    plan = made.plan
    x = alt.X("budget:Q", title=_axis_title(plan)).scale(type="log", nice=False).axis(
        format="~e", tickCount=5, labelOverlap=True, gridColor="#eee")  # fmt: skip
    y = alt.Y("loss:Q", title=f"loss ({plan.loss_unit})").scale(zero=False).axis(gridColor="#eee")
    rows: Any = [{"budget": plan.objective.value, "loss": plan.loss, "shown": 1}]  # until the page puts in its own
    curve = alt.Chart(alt.InlineData(name="curve", values=rows)).mark_line(color="#0072b2").encode(x=x, y=y)
    here = alt.Chart(alt.InlineData(name="here", values=rows)).mark_point(
        filled=True, size=90, color="#d55e00", opacity=1
    )
    return alt.layer(curve, here.encode(x=x, y=y, opacity=alt.Opacity("shown:Q").scale(None))).properties(
        width=300, height=190
    )


def _live_section(made: Report) -> str:
    live = made.live
    if live is None:
        return _missing(made, "live planner")
    rows = []
    for slider in live["sliders"]:
        name = escape(slider["id"])
        rows.append(
            f'<div class="row" id="row-{name}"><label for="slide-{name}">{escape(slider["label"])}</label>'
            f'<input type="range" id="slide-{name}" min="0" max="1000" step="1">'
            f'<output id="value-{name}" for="slide-{name}"></output></div>'
        )
    laws = "".join(f"<option>{escape(law['name'])}</option>" for law in live["laws"])
    modes = '<option value="free">free</option><option value="fixed">fixed</option>'
    cells = "".join(f'<dt>{words}</dt><dd id="live-{key}"></dd>' for key, words in (
        ("n_active", "active parameters"), ("d_pretrain", "pre-training tokens"), ("d_rl", "RL tokens"),
        ("k", "samples per query"), ("d_inference", "tokens served"), ("tokens_per_param", "tokens per parameter"),
        ("loss", f"loss ({escape(str(live['loss_unit']))})")))  # fmt: skip
    shares = "".join(f'<div id="share-{i}" class="share share-{i}"></div>' for i in range(3))
    texts = "".join(f'<li class="key-{i}" id="share-text-{i}"></li>' for i in range(3))
    worst = max((error["decisions"] for law in live["laws"] for grid in law["grids"].values()
                 if math.isfinite((error := grid["error"])["decisions"])), default=math.nan)  # fmt: skip
    remark = (
        f"Interpolated between solved plans; at random points between them within {significant(100 * worst, 2)} % of a "
        "plan of their own."
    )
    moving = (
        '<p class="remark">MFU moves with the size here, by the rooflines: sliders change what is asked at this '
        "operating point, not the overheads.</p>" if live["moving"] else ""
    )  # fmt: skip
    return (
        '<p id="live-verdict" class="verdict" aria-live="polite"></p>'
        '<p id="live-notice" class="caution" role="status" hidden></p>'
        f'<div class="live"><div class="controls">{"".join(rows)}'
        f'<div class="row"><label for="live-law">law</label><select id="live-law">{laws}</select></div>'
        '<div class="row"><label for="live-mode">active parameters are</label>'
        f'<select id="live-mode">{modes}</select></div>'
        f'<p><button type="button" id="live-reset">Back to the plan</button> '
        f'<button type="button" id="live-toml">Scenario at this position</button></p></div>'
        f'<div><div id="live-figures"><dl>{cells}</dl><div id="live-shares"><div class="shares" role="img" '
        f'aria-label="shares of paid FLOP">{shares}</div><ul class="keys">{texts}</ul></div></div>'
        '<div class="box"><div id="live-chart" role="figure" aria-label="loss along the budget"></div></div>'
        "</div></div>"
        f'<pre id="live-scenario" tabindex="0" hidden></pre><p class="remark">{remark} The address of this page keeps '
        f"the sliders: copy it to share them.</p>{moving}"
    )


def _missing(made: Report, part: str) -> str:
    reason = made.missing.get(part)
    return "" if reason is None else f'<p class="caution">No {part}: {escape(reason)}</p>'


def _decisions(plan: Plan) -> str:
    assert plan.decision is not None
    assert plan.decision_status is not None
    assert plan.elasticities is not None
    words = {"fixed": "given", "free": "chosen", "at_min": "at its min", "at_max": "at its max"}
    rows = [[FIGURES[name], told(name, getattr(plan.decision, name)), words[plan.decision_status[name]],
             f"{significant(plan.elasticities[name])} %"]
            for name in ("n_active", "d_pretrain", "d_rl", "k")]  # fmt: skip
    rows.append([FIGURES["d_inference"], told("d_inference", plan.decision.d_inference), "k x demand", ""])
    return html_table(["buy", "amount", "", "1% more cuts the reducible loss by"], rows)


def _phases(plan: Plan) -> str:
    assert plan.phases is not None
    assert plan.total is not None
    known = {"chip_hours": "chip-hours", "usd": "USD", "energy_joule": "J"}
    extra = [name for name in known if math.isfinite(getattr(plan.total, name))]
    names = {"pretrain": "pre-training", "rl": "RL", "inference": "inference"}
    rows = [[names[name], f"{phase.model_flop:.3g}", significant(phase.overhead), f"{phase.flop:.3g}",
             *(short_count(getattr(phase, column)) for column in extra), f"{100 * phase.share:.1f} %"]
            for name, phase in plan.phases.items()]  # fmt: skip
    rows.append(
        ["total", "", "", f"{plan.total.flop:.4g}", *(short_count(getattr(plan.total, c)) for c in extra), "100 %"]
    )
    heads = ["cost of", "model FLOP", "x overhead", "= paid FLOP", *(known[name] for name in extra), "share of FLOP"]
    return html_table(heads, rows, "stack")


def _baselines(plan: Plan) -> str:
    rows = []
    for b in plan.baselines:
        if b.decision is None:
            rows.append([b.name, "", "", "", "", "", f"not possible: {b.reason}"])
            continue
        amounts = (told(name, getattr(b.decision, name)) for name in ("n_active", "d_pretrain", "d_rl", "k"))
        rows.append([b.name, *amounts, told("loss", b.loss), f"{significant(100 * b.regret)} %"])
    heads = ["rule of thumb", "N", "D", "R", "k", "loss", "extra budget to match"]
    return html_table(heads, rows, "stack")


def _sensitivity(made: Report) -> str:
    if made.sensitivity is None:
        return ""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in worths(made.sensitivity)[:6])}</ul>"


def _uncertainty(made: Report) -> str:
    found = made.uncertainty
    if found is None:
        return ""
    frame, rows = found.to_frame(), []
    spreads = found.spreads()
    for figure in ("n_active", "d_pretrain", "d_rl", "loss", "vs_20"):
        own: Any = frame[frame["figure"] == figure]
        cells = [f"{told(figure, row['q50'])} ({told(figure, row['q05'])} to {told(figure, row['q95'])})"
                 for row in own.to_dict("records")]  # fmt: skip
        rows.append([FIGURES[figure], told(figure, own.to_dict("records")[0]["plan"]), *cells])
    heads = ["", "plan", *(f"median (90%), {name}" for name in spreads)]
    lines = []
    for name, spread in spreads.items():
        counts = ", ".join(f"{count:,} {status}" for status, count in spread.status_counts().items())
        chances = ", ".join(f"{limit:.0f}x: {_chance(*spread.probability_above(limit))}" for limit in OVERTRAINING)
        lines.append(f"{name}: {counts} of {len(spread.plans):,} draws; over-training exceeds {chances}")
    ranges = [(name_of(path), f"{d} ({d.source})") for path, d in found.ranges.items()]
    notes = "".join(f'<p class="caution">{escape(notice.message)}</p>' for notice in found.warnings)
    return (
        html_table(heads, rows, "stack") + f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" + notes
        + "<p>Ranges:</p>" + html_list(ranges)
    )  # fmt: skip


def _chance(least: float, most: float) -> str:
    return f"{100 * least:.0f} %" if most - least < 5e-3 else f"{100 * least:.0f} to {100 * most:.0f} %"


def _laws(made: Report) -> str:
    if made.comparison is None:
        return ""
    rows = []
    own = next(iter(made.comparison.plans))
    for name, plan in made.comparison.plans.items():
        if plan.decision is None or plan.overtraining is None:
            rows.append([name, "", "", "", "", "", str(plan.status)])
            continue
        amounts = (told(key, getattr(plan.decision, key)) for key in ("n_active", "d_pretrain", "d_rl", "k"))
        regret = made.comparison.regret[own][name]
        wasted = f"{significant(100 * regret)} %" if math.isfinite(regret) else "-"
        rows.append([name, *amounts, significant(plan.overtraining.vs_20), wasted])
    return html_table(["law", "N", "D", "R", "k", "x 20", "this plan wastes if it holds"], rows, "stack")


def _warnings(notices: Iterable[Notice]) -> str:
    items = [
        f"<li><code>{escape(code)}</code> {escape(', '.join(paths))}: {escape(message)}"
        f"{f'. <span class=do>{escape(ADVICE[code])}</span>' if code in ADVICE else ''}</li>"
        for code, paths, message in gathered(notices)
    ]
    return f"<ul>{''.join(items)}</ul>" if items else "<p>None.</p>"


def _assumptions(plan: Plan) -> str:
    """Every number behind the plan, its source, and a mark where none exists."""
    scenario = plan.scenario
    assert scenario is not None
    record = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
    rows = []
    for path, value in assumptions(scenario).items():
        terms = getattr(scenario.law, path.split(".")[1], None) if path.startswith("law.") else None
        source = getattr(terms, "source", None)
        source = f"law {record.name}" if path.startswith(LAW) else source
        where = source or ("default" if not _stated(scenario, path) else "stated in the scenario")
        rows.append([path, f"{value:.6g}", where, "assumed" if path in plan.assumed else ""])
    rows += [[path, "", "default", "assumed"] for path in plan.assumed if path not in {row[0] for row in rows}]
    about = f"<p>Law {escape(record.name)}: {escape(str(record.content.get('source', '')))}.</p>"
    return about + html_table(["number", "value", "source", ""], rows, "stack")


def _stated(scenario: Scenario, path: str) -> bool:
    node: Any = scenario.to_values()
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node is not None


def _provenance(plan: Plan, source: str) -> str:
    about = plan.provenance
    versions = ", ".join(f"{name} {about[name]}" for name in ("allocator", "jax", "scipy"))
    assert plan.scenario is not None
    toml = tomli_w.dumps(plan.scenario.to_values())
    command = f"allocator report {shlex.quote(source)} --out DIR"
    certificate = plan.certificate
    assert certificate is not None
    facts = [
        ("status", f"{plan.status} ({certificate.kind}, {certificate.starts} starts)"),
        ("residuals", f"KKT {certificate.kkt_residual:.1e}, constraint {certificate.constraint_residual:.1e}"),
        ("versions", versions),
        ("SHA-256 of the law's file", str(about["law_sha256"])),
    ]
    return (
        html_list(facts)
        + f"<p>Save the scenario below as a file and run:</p><pre>{escape(command)}</pre>"
        + f"<details><summary>Scenario</summary><pre>{escape(toml)}</pre></details>"
    )
