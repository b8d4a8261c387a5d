"""The same question under every law that makes sense for it, so that no number is quoted without its law."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from allocator import catalog
from allocator.baselines import with_baselines
from allocator.errors import AllocatorError, NoPlanError
from allocator.optimum.planning import solve
from allocator.optimum.result import Plan
from allocator.regrets import planned_coordinates, regret
from allocator.scenario.building import objective_of
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Scenario
from allocator.sweeps import plan_row

if TYPE_CHECKING:
    import pandas as pd

OWN_LAW = "the user's law"
OVERLAPS = (0.5, 1.0, 2.0)  # a toy measurement finds 1 to 2 best; 0 is the plain product


@dataclass(frozen=True)
class Comparison:
    """Plans of one scenario under several laws, and how much each wastes where another law holds."""

    plan: Plan  # of the scenario itself, with its baselines
    plans: Mapping[str, Plan]  # by variant, the scenario's own first
    regret: Mapping[str, Mapping[str, float]]  # regret[a][b]: of a's plan where b is the truth; NaN where undefined

    def to_frame(self) -> "pd.DataFrame":
        """One row a variant: decisions, shares, loss and over-training."""
        import pandas as pd

        return pd.DataFrame([{"variant": name, **plan_row(plan)} for name, plan in self.plans.items()])

    def regret_frame(self) -> "pd.DataFrame":
        """Rows are plans, columns the law that holds."""
        import pandas as pd

        return pd.DataFrame({b: {a: self.regret[a][b] for a in self.plans} for b in self.plans}).rename_axis("plan_of")


def compare(plan: Plan, *, also: Mapping[str, Scenario] | None = None) -> Comparison:
    """Set a plan beside its rules of thumb and beside the plans of other laws.

    `also` adds scenarios by name, say the same deployment in another form of the law, whose numbers no scenario of
    this form can give.
    """
    if plan.scenario is None or plan.problem is None or plan.decision is None or plan.status == "evaluated":
        raise AllocatorError(f"compare: needs a solved plan made from a scenario, got one that is {plan.status}")
    cost = float(np.exp(plan.problem.log_cost(planned_coordinates(plan.problem, plan))))
    plans = {OWN_LAW if plan.user_law is not None else _own_name(plan.scenario): plan}
    for name, scenario in (*variants(plan.scenario, cost), *(also or {}).items()):
        plans[name] = solve(scenario, throw=False)
    regret = {a: {b: _regret(plans[a], plans[b]) for b in plans} for a in plans}
    return Comparison(with_baselines(plan), plans, regret)


def variants(scenario: Scenario, cost: float) -> Iterator[tuple[str, Scenario]]:
    """Other pre-training laws in the scenario's form, and other overlaps of RL and test time where those matter.

    One law's loss means nothing under another, so a target becomes a budget: what the scenario's own plan costs.
    """
    kind, _, currency = objective_of(scenario)
    at_same_cost = {f"objective.{currency}": cost} if kind == "target_loss" else {}
    own = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
    for record in catalog.entries("laws"):
        # A law that its own file warns of is no yardstick for others.
        usable = record.fields["kind"] in ("chinchilla", "gadre") and not record.fields.get("caution")
        if usable and record.name != own.name and record.fields["unit"] == own.content["unit"]:
            changes = {"law.pretraining": record.name} | at_same_cost
            yield _name(record.name, scenario), with_values(scenario, changes)
    law = scenario.law
    if law.form not in ("product", "shared", "coverage") or law.rl is None or law.test_time is None:
        return
    if law.rl.scale_tokens is None or scenario.decisions.k == 1.0:
        return  # overlap needs the saturating factor, and at one sample there is nothing to overlap with
    for overlap in (0.0, *OVERLAPS):
        if overlap != law.overlap:
            varied = with_values(scenario, {"law.overlap": overlap} | at_same_cost)
            yield _name(own.name, varied), varied


def _own_name(scenario: Scenario) -> str:
    record = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
    return _name(record.name, scenario)


def _name(law: str, scenario: Scenario) -> str:
    overlap = f", overlap {scenario.law.overlap:g}" if scenario.law.overlap else ""
    return f"{law} ({scenario.law.form}{overlap})"


def _regret(plan: Plan, truth: Plan) -> float:
    """Extra budget that a plan's decisions need where another law holds, over the optimum for the loss they reach."""
    if plan is truth:
        return 0.0
    if plan.decision is None or truth.problem is None or truth.decision is None:
        return math.nan
    problem = truth.problem
    k_min = float(np.exp(problem.lower[3]))
    if plan.decision.k < k_min * (1 - 1e-9):
        return math.nan  # the other law has no meaning there
    try:
        return regret(problem, planned_coordinates(problem, plan), planned_coordinates(problem, truth))
    except NoPlanError:
        return math.nan


def diff(a: Plan, b: Plan) -> list[dict[str, Any]]:
    """What differs between two plans, a row a figure, then a row for each key of their scenarios that differs."""
    rows = []
    left, right = plan_row(a), plan_row(b)
    for name in left:
        if name not in ("status", "reason"):
            ratio = right[name] / left[name] if left[name] else math.nan
            rows.append({"figure": name, "a": left[name], "b": right[name], "b_over_a": ratio})
    before, after = (_flat(p.scenario.model_dump(mode="json", exclude_none=True) if p.scenario else {}) for p in (a, b))
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            rows.append({"figure": f"scenario.{key}", "a": before.get(key), "b": after.get(key), "b_over_a": None})
    return rows


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
