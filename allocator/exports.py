"""Answers as files: tables as CSV, charts as SVG, PNG and one HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from allocator import charts
from allocator.comparisons import Comparison
from allocator.feedback import depends_on_size, size_feedback
from allocator.optimum.result import Plan, PlannedDecision
from allocator.sweeps import sweep, sweep_frame

BUDGETS = 21  # of the curves along the budget


def frames(plan: Plan) -> dict[str, Any]:
    """Data frames of a plan: decisions, phases, baselines, warnings."""
    values = plan.to_dict()
    decision, status = values["decision"] or {}, values["decision_status"] or {}
    elasticities, assumed = values["elasticities"] or {}, set(plan.assumed)
    return {
        "decisions": pd.DataFrame(
            [
                {
                    "decision": name,
                    "value": decision[name],
                    "status": status.get(name, "follows"),
                    "elasticity": elasticities.get(name),
                }
                for name in decision
            ]
        ),
        "phases": plan.to_frame(),
        "baselines": pd.DataFrame(
            [
                {
                    "baseline": b["name"],
                    **(b["decision"] or {}),
                    "loss": b["loss"],
                    "cost": b["cost"],
                    "regret": b["regret"],
                    "reason": b["reason"],
                }
                for b in values["baselines"]
            ],
            columns=["baseline", *PlannedDecision.__dataclass_fields__, "loss", "cost", "regret", "reason"],
        ),
        "warnings": pd.DataFrame(
            [{**w, "assumed": w["path"] in assumed} for w in values["warnings"]],
            columns=["code", "path", "value", "message", "assumed"],
        ),
    }


def plan_files(plan: Plan) -> dict[str, str | bytes]:
    """A plan's tables as CSV and its charts as SVG, PNG and one HTML file; solves again along the budget."""
    tables: dict[str, str | bytes] = {f"{name}.csv": frame.to_csv(index=False) for name, frame in frames(plan).items()}
    if plan.status == "evaluated" or plan.scenario is None:
        return tables
    key = f"objective.{plan.objective.kind}"
    values = budgets_around(plan)
    along = sweep_frame(key, values, sweep(plan.scenario, key, values, law=plan.user_law))
    own = sweep_frame("plan", [plan.title], [plan])
    drawn = {"shares": charts.shares(own, "plan")}
    if plan.objective.kind != "target_loss":
        drawn |= {
            "loss_by_budget": charts.loss_by_budget(along, key, plan.loss_unit),
            "shares_by_budget": charts.shares_by_budget(along, key),
            "decisions_by_budget": charts.decisions_by_budget(along, key),
        }
    if plan.problem is not None and depends_on_size(plan.problem.costs):
        feedback = size_feedback(plan)
        tables["mfu_by_size.csv"] = feedback.curves.to_csv(index=False)
        drawn["mfu_by_size"] = charts.mfu_by_size(feedback.curves, feedback.n_active, feedback.n_active_frozen)
    return tables | {"by_budget.csv": along.to_csv(index=False)} | charts.files(drawn)


def budgets_around(plan: Plan) -> list[float]:
    """Budgets from a tenth to ten times the plan's; target losses from a little above its floor to twice the gap."""
    value = plan.objective.value
    factors = np.geomspace(0.1, 10.0, BUDGETS)
    if plan.objective.kind != "target_loss":
        return [float(value * factor) for factor in factors]
    floor = plan.loss - plan.reducible_loss
    return [float(floor + (value - floor) * factor) for factor in np.geomspace(0.5, 2.0, BUDGETS)]


def comparison_files(compared: Comparison) -> dict[str, str | bytes]:
    """A comparison's tables as CSV and its charts as SVG, PNG and one HTML file."""
    frame = compared.to_frame()
    drawn = {"shares": charts.shares(frame), "overtraining": charts.overtraining_by_law(frame)}
    return {
        "laws.csv": frame.to_csv(index=False),
        "regret.csv": compared.regret_frame().to_csv(),
    } | charts.files(drawn)


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV."""
    return pd.DataFrame(list(rows)).to_csv(index=False)
