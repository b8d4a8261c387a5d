"""A robust plan as text for a terminal, as plain values, and as files: tables, charts and one page."""

import math
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from allocator import charts, robust_charts
from allocator.robust_plans import Derating, Evaluated, RobustPlan
from allocator.states import DEMAND
from allocator.tables import plain_table
from allocator.units import one_line, short_count, significant

TERMINAL_ROWS = 12
_LABELS = {
    "deployment.lifetime_tokens": "lifetime demand (output tokens at k = 1)",
    "deployment.tokens_per_second": "demand (output tokens/s at k = 1)",
    "deployment.derate": "share of the stated demand",
}


def robust_dict(plan: RobustPlan) -> dict[str, Any]:
    """The JSON object of the command: the plan with a row a state."""
    return plan.to_dict()


def verdict(plan: RobustPlan) -> str:
    """What is asked, and how sure the answer is."""
    asked = {
        "expected": "the least expected loss",
        "cvar": f"the least mean loss of the worst {100 * (1 - plan.level):.3g} % of probability",
        "regret": "the least worst regret",
    }[plan.criterion]
    sure = {
        "optimal": "convex, so nothing is better",
        "best_of_starts": f"best of {plan.certificate.starts} starts, no proof that nothing is better",
    }[plan.status]
    law = plan.law["pretraining"] or "a user's law"
    return f"One commitment with {asked} over {len(plan.states)} states, under {law}, {plan.law['form']} form ({sure})."


def print_robust(plan: RobustPlan, console: Console) -> None:
    """Print a robust plan that a person reads at a glance."""
    console.print(Text(one_line(plan.title), style="bold"))
    console.print(Text(verdict(plan)))
    table = plain_table(
        "plan", "N", "D", "R", "k", "expected loss", f"worst {100 * (1 - plan.level):.3g} %", "worst regret"
    )
    _add(table, "robust", plan.outcome)
    if plan.mean_demand is not None:
        _add(table, "made at mean demand", plan.mean_demand)
    console.print(Padding(table, (1, 0, 0, 2)))
    if plan.mean_demand is None:
        console.print(Padding(Text(f"made at mean demand: not possible: {plan.mean_reason}"), (0, 0, 0, 2)))
    console.print(Padding(Text("\n".join(remarks(plan))), (1, 0, 0, 2)))
    console.print(Padding(_states(plan), (1, 0, 0, 2)))
    if len(plan.states) > TERMINAL_ROWS:
        console.print(Padding(Text(f"{TERMINAL_ROWS} of {len(plan.states)} states; --json and --out have all"),
                              (0, 0, 0, 2)))  # fmt: skip
    if plan.warnings:
        console.print(Text("\nWarnings", style="bold"))
        for notice in plan.warnings:
            number = f"{notice.value:.0f} " if isinstance(notice.value, float) else ""
            console.print(Padding(Text(f"{notice.code}: {notice.path}: {number}{notice.message}"), (0, 0, 0, 2)))


def print_derating(told: Derating, console: Console) -> None:
    """Print both ways of planning a model that may not ship."""
    console.print(Text(f"Ships with probability {told.probability:g}", style="bold"))
    table = plain_table("budget", "N", "D", "R", "k where it ships", "cost where it ships")
    a, b = told.committed.decision, told.pooled.decision
    k = significant(float(told.committed.k[0]))
    table.add_row("the model's own", *map(short_count, (a.n_active, a.d_pretrain, a.d_rl)), k, "the budget")
    if b is not None:
        over = f"{significant(100 * told.over_budget)} % over it"
        amounts = map(short_count, (b.n_active, b.d_pretrain, b.d_rl))
        table.add_row("holds on average", *amounts, significant(b.k), over)
    console.print(Padding(table, (1, 0, 0, 2)))


def remarks(plan: RobustPlan) -> list[str]:
    """What the figures come to, a line each."""
    mean, lines = plan.mean_demand, []
    if mean is not None and mean.unserved:
        lines.append(f"The plan made at mean demand cannot serve {len(mean.unserved)} of {len(plan.states)} states.")
    elif mean is not None:
        gain = mean.expected_loss - plan.expected_loss
        word = "below" if gain >= 0 else "above"
        lines.append(f"Expected loss is {significant(abs(gain), 2)} {word} that of the plan made at mean demand.")
    for what, knowing in (("the demand", plan.knowing_demand), ("demand and law", plan.knowing_state)):
        if what == "demand and law" and plan.knowing_state == plan.knowing_demand:
            continue
        lines.append(f"To know {what} beforehand would be worth {significant(knowing.loss, 2)} of loss, or "
                     f"{significant(100 * knowing.budget, 2)} % of the budget.")  # fmt: skip
    return lines


def files(plan: RobustPlan) -> dict[str, str | bytes]:
    """States and criteria as CSV, charts as SVG and PNG, and one HTML file of both charts."""
    frame = plan.to_frame()
    rows = [{"plan": name, **_flat(told)} for name, told in
            (("robust", plan.outcome), ("mean_demand", plan.mean_demand)) if told is not None]  # fmt: skip
    out: dict[str, str | bytes] = {
        "states.csv": frame.to_csv(index=False),
        "criteria.csv": pd.DataFrame(rows).to_csv(index=False),
    }
    return out | charts.files(charts_of(plan, frame))


def charts_of(plan: RobustPlan, frame: pd.DataFrame) -> dict[str, Any]:
    """The charts by name."""
    x = next((path for path in DEMAND if path in plan.states.values and np.ptp(plan.states.values[path]) > 0), None)
    column, title = (x, _LABELS[x]) if x else ("own_loss", f"loss of the state's own optimum ({plan.loss_unit})")
    drawn = frame.rename(columns={column: column.replace(".", "_")})  # a dot means nesting to Vega
    about = one_line(f"{plan.title}. {verdict(plan)}")
    return {
        "by_state": robust_charts.by_state(drawn, column.replace(".", "_"), title, plan.loss_unit, about),
        "regrets": robust_charts.regrets(drawn, about),
    }


def _flat(told: Evaluated) -> dict[str, Any]:
    d = told.decision
    names = ("expected_loss", "cvar", "worst_loss", "worst_regret", "worst_loss_gap")
    figures = {name: getattr(told, name) for name in names}
    decision = {"n_active": d.n_active, "d_pretrain": d.d_pretrain, "d_rl": d.d_rl}
    return {**decision, **figures, "states_unserved": len(told.unserved)}


def _add(table: Table, name: str, told: Evaluated) -> None:
    d = told.decision
    amounts = short_count(d.n_active), short_count(d.d_pretrain), short_count(d.d_rl)
    served = told.k[np.isfinite(told.k)]
    k = "-" if not len(served) else _range(float(served.min()), float(served.max()))
    table.add_row(name, *amounts, k, _loss(told.expected_loss), _loss(told.cvar), _percent(told.worst_regret))


def _states(plan: RobustPlan) -> Table:
    """Some states, evenly spread over their losses."""
    paths = list(plan.states.values)[:2]
    table = plain_table("state", *(path.rpartition(".")[2] for path in paths), "probability", "k", "loss", "regret",
                   "own N", "own D", "own R", "own k")  # fmt: skip
    count = len(plan.states)
    order = np.argsort(np.where(np.isfinite(plan.loss), plan.loss, math.inf), kind="stable")
    for i in order[np.unique(np.linspace(0, count - 1, min(count, TERMINAL_ROWS)).round().astype(int))].tolist():
        numbers = [_amount(path, float(plan.states.values[path][i])) for path in paths]
        own = [short_count(float(plan.own[name][i])) for name in ("n_active", "d_pretrain", "d_rl")]
        table.add_row(str(i), *numbers, f"{plan.states.probability[i]:.3g}", significant(float(plan.k[i])),
                      _loss(float(plan.loss[i])), _percent(float(plan.regret[i])), *own,
                      significant(float(plan.own["k"][i])))  # fmt: skip
    return table


def _amount(path: str, value: float) -> str:
    return short_count(value) if path in DEMAND[:2] else significant(value, 4)


def _range(low: float, high: float) -> str:
    a, b = significant(low), significant(high)
    return a if a == b else f"{a} to {b}"


def _loss(loss: float) -> str:
    if not math.isfinite(loss):
        return "none" if math.isinf(loss) else "-"
    return f"{loss:.5f}" if loss > 0.1 else significant(loss, 4)


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "none" if math.isinf(share) else "-"
    return "0 %" if abs(share) < 5e-7 else f"{significant(100 * share)} %"
