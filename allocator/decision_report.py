"""Frontiers, sensitivities and uncertainty as tables for a terminal, plain values for JSON, and files."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from allocator import charts, decision_charts
from allocator.decision_words import FIGURES, name_of, titles_of, told, worths
from allocator.distributions import Distribution
from allocator.frontiers import Frontier, OvertrainingByDemand, released_models
from allocator.information import Information, VarianceShares
from allocator.optimum.result import Plan, plain_values
from allocator.report import rows_dict
from allocator.sensitivities import Sensitivity
from allocator.tables import plain_table
from allocator.uncertainties import OVERTRAINING, Uncertainty
from allocator.units import one_line, significant

TERMINAL_ROWS = 15
LONGEST_HEAD = 22  # of a column, beyond which the quantity goes by its short name


def about(plan_or_frontier: Plan | Frontier) -> str:
    """Scenario and law, for subtitles."""
    scenario = plan_or_frontier.scenario
    assert scenario is not None
    return one_line(f"{scenario.title}; {scenario.law.pretraining}, {scenario.law.form}")


def frontier_dict(found: Frontier) -> dict[str, Any]:
    """A frontier as plain values, a row a point."""
    rows = [{str(key): value for key, value in row.items()} for row in found.to_frame().to_dict("records")]
    values = rows_dict("frontier", plain_values(rows), (), provenance(found.scenario))
    return values | {"x": found.x_name, "y": found.y_name, "vary": found.vary}


def print_frontier(found: Frontier, console: Console) -> None:
    """Print the points of a frontier, thinned to what fits a screen."""
    console.print(Text(about(found), style="bold"))
    frame = found.to_frame()
    names = zip((found.x_name, found.y_name), titles_of(found), strict=True)
    heads = (title if len(title) <= LONGEST_HEAD else name for name, title in names)
    table = plain_table(*heads, "N", "D", "R", "k", "pre/RL/inf %", "x 20", "")
    chosen = np.unique(np.linspace(0, len(frame) - 1, TERMINAL_ROWS).astype(int))
    shares = found.plans.shares
    for i in chosen.tolist():
        row = frame.iloc[i]
        if row["status"] not in ("optimal", "best_of_starts"):
            table.add_row(f"{row['asked']:.4g}", *[""] * 7, str(row["status"]))
            continue
        split = "/".join(f"{100 * share:.0f}" for share in shares[i])
        figures = [told(name, float(row[name])) for name in ("n_active", "d_pretrain", "d_rl", "k")]
        x, y = (f"{row[name]:.4g}" if name != "loss" else f"{row[name]:.5f}" for name in (found.x_name, found.y_name))
        table.add_row(x, y, *figures, split, significant(float(row["vs_20"])), "" if row["kept"] else "beaten")
    console.print(Padding(table, (1, 0, 0, 2)))
    solved = found.plans.solved
    beaten, none = int((solved & ~found.kept).sum()), int((~solved).sum())
    if beaten:
        console.print(Padding(Text(f"{beaten} of {len(found)} points are beaten by another in both"), (1, 0, 0, 2)))
    if none:
        reason = next(str(text) for text in found.plans.reason if text is not None)
        console.print(Padding(Text(f"{none} of {len(found)} points have no plan; the first: {reason}"), (1, 0, 0, 2)))


def frontier_files(found: Frontier) -> dict[str, str | bytes]:
    """A frontier's table and charts."""
    frame, own = found.to_frame(), about(found)
    drawn = {"frontier": decision_charts.frontier(frame, found.x_name, found.y_name, *titles_of(found), own)}
    if found.x_name.startswith("objective.") and found.x_name != "objective.target_loss":
        drawn["decisions"] = charts.decisions_by_budget(frame, found.x_name)
        drawn["shares"] = charts.shares_by_budget(frame, found.x_name)
    return {"frontier.csv": frame.to_csv(index=False)} | charts.files(drawn)


def demand_dict(found: OvertrainingByDemand, provenance: Mapping[str, Any] | None) -> dict[str, Any]:
    """Over-training against demand, a row a law and demand, and the released models."""
    values = rows_dict("demand", plain_values(found.to_frame().to_dict("records")), (), provenance)
    return values | {"released_models": plain_values(released_models().to_dict("records"))}


def print_demand(found: OvertrainingByDemand, console: Console) -> None:
    """Print over-training by law at a few demands."""
    names = list(found.plans)
    table = plain_table("tokens served", *names)
    chosen = np.unique(np.linspace(0, len(found.demand_tokens) - 1, TERMINAL_ROWS).astype(int))
    for i in chosen.tolist():
        cells = [significant(float(plans.tokens_per_param[i] / 20)) for plans in found.plans.values()]
        table.add_row(f"{found.demand_tokens[i]:.3g}", *cells)
    console.print(Text("Pre-training tokens over 20 per parameter, by demand and law", style="bold"))
    console.print(Padding(table, (1, 0, 0, 2)))


def demand_files(found: OvertrainingByDemand, title: str) -> dict[str, str | bytes]:
    """Over-training against demand as table and chart."""
    frame, models = found.to_frame(), released_models()
    drawn = {"overtraining_by_demand": decision_charts.overtraining_by_demand(frame, models, one_line(title))}
    return {"demand.csv": frame.to_csv(index=False), "released_models.csv": models.to_csv(index=False)} | charts.files(
        drawn
    )


def sensitivity_dict(found: Sensitivity) -> dict[str, Any]:
    """Elasticities as rows, and the swings."""
    values = rows_dict("sensitivity", [asdict(row) for row in found.elasticities], found.plan.warnings,
                       found.plan.provenance)  # fmt: skip
    return values | plain_values(
        {"outcome": found.outcome, "base": found.base, "swings": [asdict(s) for s in found.swings]}
    )


def print_sensitivity(found: Sensitivity, console: Console) -> None:
    """Print what each assumption moves and what a little more of it is worth."""
    console.print(Text(about(found.plan), style="bold"))
    target = found.plan.objective.kind == "target_loss"
    heads = "1% more of", "N %", "D %", "R %", "k %", "cost %" if target else "loss, 0.001"
    table = plain_table("", *heads[1:], f"worth, % of {'cost' if target else 'budget'}", "")
    table.columns[0].header = heads[0]
    for row in found.elasticities:
        changes = (f"{x:+.2f}" if abs(x) >= 5e-3 else "0" for x in (row.n_active, row.d_pretrain, row.d_rl, row.k))
        last = row.cost if target else 10 * row.loss_nats
        table.add_row(
            Text(row.path),
            *changes,
            _signed(last),
            "-" if np.isnan(row.worth) else _signed(row.worth),
            "assumed" if row.assumed else "",
        )
    console.print(Padding(table, (1, 0, 0, 2)))
    for line in worths(found)[:9]:
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    console.print(Text(f"\n{FIGURES[found.outcome]} over each assumption's range: {told(found.outcome, found.base)}",
                       style="bold"))  # fmt: skip
    swings = plain_table("assumption", "low", "high", "at low", "at high", "range")
    swings.columns[-1].justify = "left"
    for swing in found.swings[:TERMINAL_ROWS]:
        ends = (told(found.outcome, end) if np.isfinite(end) else "no plan" for end in (swing.at_low, swing.at_high))
        swings.add_row(name_of(swing.path), f"{swing.low:.3g}", f"{swing.high:.3g}", *ends, _clip(swing.source))
    console.print(Padding(swings, (1, 0, 0, 2)))


def _signed(x: float) -> str:
    return "0" if abs(x) < 5e-4 else f"{x:+.3f}"


def sensitivity_files(found: Sensitivity) -> dict[str, str | bytes]:
    """Elasticities and swings as tables, and the tornado."""
    swings = found.swings_frame()
    drawn = {"tornado": decision_charts.tornado(swings, found.base, found.outcome, about(found.plan))}
    return {"elasticities.csv": found.to_frame().to_csv(index=False), "swings.csv": swings.to_csv(index=False)} | (
        charts.files(drawn)
    )


def uncertainty_dict(
    found: Uncertainty, shares: VarianceShares | None = None, information: Information | None = None
) -> dict[str, Any]:
    """Intervals as rows, probabilities of over-training, and what the spread comes from."""
    values = rows_dict("uncertainty", plain_values(found.to_frame().to_dict("records")),
                       (*found.warnings, *found.plan.warnings), found.plan.provenance)  # fmt: skip
    extra: dict[str, Any] = {
        "draws": len(found.whole.plans),
        "seed": found.seed,
        "status_counts": {name: spread.status_counts() for name, spread in found.spreads().items()},
        "overtraining_above": [
            {"sources": name, "limit": limit, "least": spread.probability_above(limit)[0],
             "most": spread.probability_above(limit)[1]}
            for name, spread in found.spreads().items() for limit in OVERTRAINING
        ],
        "ranges": [_range(path, distribution) for path, distribution in found.ranges.items()],
    }  # fmt: skip
    if shares is not None:
        extra["variance"] = asdict(shares)
    if information is not None:
        extra["information"] = asdict(information)
    return values | plain_values(extra)


def _range(path: str, distribution: Distribution) -> dict[str, Any]:
    return {
        "path": path,
        "kind": distribution.kind,
        "numbers": list(distribution.numbers),
        "source": distribution.source,
    }


def print_uncertainty(
    found: Uncertainty, shares: VarianceShares | None, information: Information | None, console: Console
) -> None:
    """Print intervals of both kinds side by side, and what they come from."""
    console.print(Text(about(found.plan), style="bold"))
    spreads = found.spreads()
    frame = found.to_frame()
    table = plain_table("", "plan", *(part for name in spreads for part in ("median", f"90%, {name}")))
    for figure in ("n_active", "d_pretrain", "d_rl", "k", "loss", "vs_20", "vs_chinchilla"):
        rows: Any = frame[frame["figure"] == figure]
        cells = []
        for row in rows.to_dict("records"):
            cells += [told(figure, row["q50"]), f"{told(figure, row['q05'])} to {told(figure, row['q95'])}"]
        table.add_row(FIGURES[figure], told(figure, rows.to_dict("records")[0]["plan"]), *cells)
    console.print(Padding(table, (1, 0, 0, 2)))
    for name, spread in spreads.items():
        counts = ", ".join(f"{count:,} {status}" for status, count in spread.status_counts().items())
        console.print(Padding(Text(f"{len(spread.plans):,} draws of {name}: {counts}"), (0, 0, 0, 2)))
        chances = ", ".join(f"{limit:.0f}x {_chance(*spread.probability_above(limit))}" for limit in OVERTRAINING)
        console.print(Padding(Text(f"  probability that over-training exceeds {chances}"), (0, 0, 0, 2)))
    for path, distribution in found.ranges.items():
        text = f"{name_of(path)}: {distribution} ({distribution.source})"
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    if shares is not None:
        console.print(
            Text(f"\nVariance of {FIGURES[shares.outcome]} explained (Sobol's indices of its log)", style="bold")
        )
        explained = plain_table("source", "alone", "with interactions")
        for row in shares.rows:
            explained.add_row(
                name_of(row.source), *(f"{100 * max(x, 0.0):.1f} %" for x in (row.first_order, row.total))
            )
        console.print(Padding(explained, (1, 0, 0, 2)))
        if shares.without_plan:
            text = f"{shares.without_plan:,} of {shares.evaluations:,} evaluations have no plan and stand at the median"
            console.print(Padding(Text(text), (0, 0, 0, 2)))
    if information is not None:
        console.print(Text("\nWhat to measure first", style="bold"))
        wasted = (
            f"planning now needs {100 * information.expected_regret:.2f} % more budget in expectation than hindsight"
        )
        console.print(Padding(Text(wasted), (0, 0, 0, 2)))
        measured = plain_table("knowing", "saves, % of budget", "standard error")
        for row in information.rows[:8]:
            names = " and ".join(name_of(name) for name in row.sources)
            measured.add_row(names, f"{100 * row.saved:.2f}", f"{100 * row.standard_error:.2f}")
        console.print(Padding(measured, (1, 0, 0, 2)))
    for notice in found.warnings:
        console.print(Padding(Text(f"{notice.code}: {notice.path}: {notice.message}"), (0, 0, 0, 2)))


def uncertainty_files(
    found: Uncertainty, shares: VarianceShares | None, information: Information | None
) -> dict[str, str | bytes]:
    """Intervals and draws as tables, and charts."""
    own = about(found.plan)
    tables: dict[str, str | bytes] = {"intervals.csv": found.to_frame().to_csv(index=False)}
    for name, spread in found.spreads().items():
        tables[f"draws_{name.replace(' ', '_')}.csv"] = spread.plans.to_frame().to_csv(index=False)
    values = {name: spread.figures["vs_20"].tolist() for name, spread in found.spreads().items()}
    rules = {f"{limit:.0f}x": limit for limit in OVERTRAINING}
    assert found.plan.overtraining is not None
    drawn = {"overtraining": decision_charts.spread(decision_charts.cumulative(values), "vs_20",
                                                    found.plan.overtraining.vs_20, rules, own)}  # fmt: skip
    if shares is not None:
        tables["variance.csv"] = shares.to_frame().to_csv(index=False)
        drawn["variance"] = decision_charts.shares_of_variance(shares.to_frame(), shares.outcome, own)
    if information is not None:
        frame = information.to_frame()
        tables["information.csv"] = frame.to_csv(index=False)
        drawn["information"] = decision_charts.measurements(frame, information.expected_regret, own)
    return tables | charts.files(drawn)


def _chance(least: float, most: float) -> str:
    if most - least < 5e-4:
        return f"{least:.2f}"
    return f"{least:.2f} to {most:.2f}"


def provenance(scenario: Any) -> dict[str, Any]:
    """What an answer that is not one plan came from: this version and the scenario."""
    from allocator import __version__

    return {"allocator": __version__, "scenario": scenario.to_values()}


def _clip(text: str) -> str:
    return text if len(text) <= 34 else f"{text[:33]}…"
