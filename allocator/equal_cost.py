"""What splitting the cost equally wastes, under each law and at each budget."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from allocator import __version__, catalog
from allocator.baselines import with_baselines
from allocator.comparisons import variants
from allocator.errors import AllocatorError
from allocator.optimum.batches import solve_batch
from allocator.optimum.planning import UNITS
from allocator.optimum.result import Plan, plain_values
from allocator.scenario.building import objective_of
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Scenario
from allocator.sweeps import sweep
from allocator.units import one_line, significant

if TYPE_CHECKING:
    import pandas as pd

MANY = 64  # budgets from which on a batch, which compiles first, is faster than one plan after another
RULE = "equal_cost"
_FIGURES = ("regret", "share_pretrain", "share_rl", "share_inference", "rule_loss", "loss")


@dataclass(frozen=True)
class EqualCostRegret:
    """Extra budget that an equal split of cost needs for the loss it reaches, a row a law and budget."""

    title: str
    budget: str  # key path of what is varied
    unit: str
    table: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any] = field(repr=False)

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows: law, budget, regret, shares of the optimum's paid FLOP, status, and why a regret is missing."""
        return [dict(row) for row in self.table]

    def to_frame(self) -> "pd.DataFrame":
        """One row a law and budget."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, every number finite or None."""
        return plain_values(
            {"schema": "allocator.equal-cost/1", "title": self.title, "budget": self.budget, "unit": self.unit,
             "rows": self.rows(), "warnings": (), "provenance": self.provenance}
        )  # fmt: skip

    def __str__(self) -> str:
        lines = []
        for law in dict.fromkeys(row["law"] for row in self.table):
            known = [row["regret"] for row in self.table if row["law"] == law and math.isfinite(row["regret"])]
            told = (
                f"{significant(100 * min(known))} to {significant(100 * max(known))} %" if known else "no regret known"
            )
            lines.append(f"  {law}: {told}")
        return "\n".join([f"{one_line(self.title)}: extra budget that equal cost needs", *lines])


def equal_cost_regret(
    scenario: Scenario, *, budgets: Sequence[float], laws: Sequence[str] | Mapping[str, Scenario] | None = None
) -> EqualCostRegret:
    """Set the rule of equal cost beside the optimum at each budget under each law.

    Budgets are in the scenario's currency; a target loss is replaced by them. `laws` are names of the catalogue, or
    whole scenarios by name; by default the scenario's own and those that `compare` sets beside it. Where there is no
    plan, or the rule cannot be made, a row is NaN and says why.
    """
    checked = _checked(budgets)
    currency = objective_of(scenario)[2]
    key = f"objective.{currency}"
    rows = []
    for name, own in _laws(scenario, laws, key, checked[0]):
        for budget, plan in zip(checked, _plans(own, key, checked), strict=True):
            rows.append({"law": name, "budget": budget, **_row(plan)})
    return EqualCostRegret(scenario.title, key, UNITS[currency], tuple(rows), {"allocator": __version__})


def _checked(budgets: Any) -> list[float]:
    try:
        numbers = np.atleast_1d(np.asarray(budgets, float))
    except (TypeError, ValueError):
        raise AllocatorError(f"budgets: got {budgets!r}; must be numbers > 0") from None
    if numbers.ndim != 1 or not len(numbers):
        raise AllocatorError(f"budgets: got an array of shape {numbers.shape}; must be a list of at least one number")
    wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
    if len(wrong):
        raise AllocatorError(f"budgets: got {wrong[0]:g}; each must be a finite number > 0")
    return numbers.tolist()


def _laws(scenario: Scenario, laws: Any, key: str, budget: float) -> Iterator[tuple[str, Scenario]]:
    own = with_values(scenario, {key: budget})
    if laws is None:
        yield f"{catalog.law_record(own.law.pretraining, folder=own.folder).name} ({own.law.form})", own
        yield from variants(own, budget)
    elif isinstance(laws, Mapping):
        for name, other in laws.items():
            yield name, with_values(other, {key: budget})
    elif isinstance(laws, str) or not len(laws):
        raise AllocatorError(f"laws: got {laws!r}; must be a list of names, see allocator catalog laws")
    else:
        for name in laws:
            yield name, with_values(own, {"law.pretraining": name})


def _plans(scenario: Scenario, key: str, budgets: list[float]) -> Iterator[Plan]:
    if len(budgets) < MANY:
        return iter(sweep(scenario, key, budgets))
    return iter(solve_batch(scenario, {key: budgets}))


def _row(plan: Plan) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(_FIGURES, math.nan)
    if plan.decision is None or plan.phases is None:
        return {**nothing, "status": plan.status, "reason": plan.reason}
    (rule,) = [found for found in with_baselines(plan).baselines if found.name == RULE]
    # An equal split that is the optimum comes out within rounding of 0, on either side.
    regret = max(rule.regret, 0.0) if rule.regret > -1e-9 else rule.regret
    shares = {f"share_{name}": phase.share for name, phase in plan.phases.items()}
    figures = {"regret": regret, **shares, "rule_loss": rule.loss, "loss": plan.loss}
    return {**figures, "status": plan.status, "reason": rule.reason}
