"""Near-optimal sets, rounded plans and the regret of equal cost as text for a terminal, and as files."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from allocator import near_optimal_charts
from allocator.baselines import with_baselines
from allocator.charts import files as charts_files
from allocator.equal_cost import EqualCostRegret
from allocator.near_optimal import HELD_BY, NearOptimal, Valley, told
from allocator.optimum.result import Plan, PlannedDecision
from allocator.problem import DECISIONS
from allocator.rounding import RoundedPlan, percent
from allocator.tables import plain_table
from allocator.units import one_line, short_count, significant

MOST = 12  # ways of rounding, and budgets of a law, that a terminal shows; files have all
NAMES = near_optimal_charts.NAMES


def print_near_optimal(found: NearOptimal, console: Console) -> None:
    """Print what each decision may be, what ends it, and the plans at the ends."""
    console.print(Text(one_line(found.title), style="bold"))
    most = significant(100 * found.within, 2)
    console.print(
        Text(f"Loss {found.loss:.4f} for at most {most} % more than the least budget, one decision at a time:")
    )
    table = plain_table("decision", "least", "plan", "greatest", "greatest/least", "")
    table.columns[-1].justify = "left"
    for i in found.intervals:
        ratio = "-" if i.least == 0 else f"{significant(i.ratio)} x"
        amounts = (told(i.name, value) for value in (i.least, i.best, i.greatest))
        table.add_row(NAMES[i.name], *amounts, ratio, _held(i.held_by))
    for name, value in found.fixed.items():
        table.add_row(NAMES[name], "", told(name, value), "", "", "given")
    console.print(Padding(table, (1, 0, 0, 2)))
    ends = plain_table("the plan with", "N", "D", "R", "k")
    for i in found.intervals:
        for word, decision in (("least", i.at_least), ("greatest", i.at_greatest)):
            ends.add_row(f"the {word} {NAMES[i.name]}", *_amounts(decision))
    console.print(Padding(ends, (1, 0, 0, 2)))
    for line in remarks(found):
        console.print(Padding(Text(line), (0, 0, 0, 2)))


def remarks(found: NearOptimal) -> list[str]:
    """What a reader has to know about the intervals, a line each."""
    held = [word for i in found.intervals for word in i.held_by if word != "tolerance"]
    lines = [f"{word}: {HELD_BY[word]}." for word in dict.fromkeys(held)]
    unsure = [NAMES[i.name] for i in found.intervals if i.certificate != "convex"]
    if unsure:
        lines.append(f"best_of_starts: nothing proves that no cheaper plan exists at given {', '.join(unsure)}.")
    split = [NAMES[i.name] for i in found.intervals if not i.connected]
    if split:
        lines.append(f"gap: between the ends of {', '.join(split)} are values outside the tolerance.")
    return lines


def print_rounding(found: RoundedPlan, console: Console) -> None:
    """Print the ways of rounding, the cheapest first."""
    console.print(Text(one_line(found.title), style="bold"))
    phases = [phase for phase in ("pretrain", "rl", "inference") if any(phase in c.chips for c in found.candidates)]
    shapes = any(c.shape is not None for c in found.candidates)
    names = {"pretrain": "chips, pre-training", "rl": "chips, RL", "inference": "chips, serving"}
    table = plain_table("", "N", "D", "R", "k", *(names[phase] for phase in phases), "extra budget", "shape")
    table.columns[-1].justify = "left"
    table.add_row("as planned", *_amounts(found.unrounded), *[""] * len(phases), "0 %", "")
    for i, c in enumerate(found.candidates[:MOST]):
        shape = str(c.shape) if c.shape is not None else ""
        if c.decision is None:
            table.add_row(f"[{i + 1}]", *[""] * (4 + len(phases)), "-", shape)
            continue
        chips = (f"{c.chips[phase]:,}" if phase in c.chips else "" for phase in phases)
        table.add_row("best" if i == 0 else f"[{i + 1}]", *_amounts(c.decision), *chips, percent(c.regret), shape)
    if not shapes:
        table.columns.pop()
    console.print(Padding(table, (1, 0, 0, 2)))
    for i, c in enumerate(found.candidates[:MOST]):
        if c.reason is not None:
            console.print(Padding(Text(f"[{i + 1}]: {c.reason}"), (0, 0, 0, 2)))
    if len(found.candidates) > MOST:
        console.print(Padding(Text(f"and {len(found.candidates) - MOST} more"), (0, 0, 0, 2)))


def print_equal_cost(found: EqualCostRegret, console: Console) -> None:
    """Print the regret of equal cost, a row a law and a column a budget."""
    console.print(Text(one_line(found.title), style="bold"))
    console.print(Text(f"Extra budget that equal cost needs for the loss it reaches, % (budgets in {found.unit})"))
    budgets = list(dict.fromkeys(row["budget"] for row in found.table))
    step = max(-(-len(budgets) // MOST), 1)
    shown = budgets[::step]
    table = plain_table("law", *(f"{budget:.3g}" for budget in shown))
    for law in dict.fromkeys(row["law"] for row in found.table):
        regret = {row["budget"]: row["regret"] for row in found.table if row["law"] == law}
        table.add_row(Text(law), *(significant(100 * regret[budget], 2) for budget in shown))
    console.print(Padding(table, (1, 0, 0, 2)))
    reasons = dict.fromkeys((row["law"], row["reason"]) for row in found.table if row["reason"])
    for law, reason in list(reasons)[:MOST]:
        console.print(Padding(Text(f"{law}: - : {one_line(reason)}"), (0, 0, 0, 2)))


def rules_of(plan: Plan) -> pd.DataFrame:
    """The plan and its rules of thumb as points: name, decisions, regret; those that cannot be made are left out."""
    named = plan if plan.baselines else with_baselines(plan)
    made = [(b.name, b.decision, b.regret) for b in named.baselines if b.decision is not None]
    assert plan.decision is not None
    rows = [(near_optimal_charts.PLAN, plan.decision, 0.0), *made]
    points = [{"name": name, **_four(decision), "regret": max(regret, 0.0)} for name, decision, regret in rows]
    return pd.DataFrame(points)


def files(
    *,
    near: NearOptimal | None = None,
    valley: Valley | None = None,
    rules: pd.DataFrame | None = None,
    rounding: RoundedPlan | None = None,
    equal: EqualCostRegret | None = None,
) -> dict[str, str | bytes]:
    """Tables as CSV and charts as SVG, PNG and one HTML file, of the answers given; `rules` are `rules_of`."""
    tables: dict[str, pd.DataFrame] = {}
    drawn: dict[str, Any] = {}
    if near is not None:
        tables |= {"near_optimal": near.to_frame(), "near_optimal_ends": near.ends_frame()}
        drawn["near_optimal"] = near_optimal_charts.intervals(near.to_frame(), near.within)
    if valley is not None:
        points = valley.to_frame()
        own = pd.DataFrame([{"name": near_optimal_charts.PLAN, **_four(valley.best), "regret": 0.0}])
        plans = own if rules is None else rules
        tables |= {"valley": points, "valley_contour": valley.contour_frame()}
        tables |= {} if rules is None else {"rules": rules}
        args = points, valley.contour_frame(), plans, valley.x, valley.y, valley.within
        drawn["valley"] = near_optimal_charts.valley(*args)
    if rounding is not None:
        tables["rounding"] = rounding.to_frame()
    if equal is not None:
        tables["equal_cost"] = equal.to_frame()
        drawn["equal_cost"] = near_optimal_charts.equal_cost(equal.to_frame(), equal.unit)
    texts: dict[str, str | bytes] = {f"{name}.csv": frame.to_csv(index=False) for name, frame in tables.items()}
    return texts | charts_files(drawn)


def _held(held_by: tuple[str, str]) -> str:
    """What ends an interval, where that is not the tolerance."""
    words = zip(("least", "greatest"), held_by, strict=True)
    return ", ".join(f"{end}: {word}" for end, word in words if word != "tolerance")


def _four(decision: PlannedDecision) -> Mapping[str, float]:
    return {name: getattr(decision, name) for name in DECISIONS}


def _amounts(decision: PlannedDecision) -> tuple[str, str, str, str]:
    d = decision
    return short_count(d.n_active), short_count(d.d_pretrain), short_count(d.d_rl), significant(d.k)
