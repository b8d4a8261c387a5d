"""One scenario at many values of a key: plans side by side, failures kept with their reason."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from allocator.errors import AllocatorError
from allocator.laws.law import Law
from allocator.optimum.planning import solve
from allocator.optimum.result import Plan
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd


def sweep(scenario: Scenario, key: str, values: Sequence[Any], *, law: Law | None = None) -> list[Plan]:
    """Solve the scenario at each value of a key path; a plan that cannot be made carries status and reason.

    `law` replaces the scenario's own, as in `solve`.
    """
    if not len(values):
        raise AllocatorError(f"{key}: a sweep needs at least one value")
    return [solve(with_values(scenario, {key: value}), law=law, throw=False) for value in values]


def plan_row(plan: Plan) -> dict[str, Any]:
    """A plan in one flat row: decisions, shares, loss, cost and over-training, NaN where there is no plan."""
    nothing = float("nan")
    row: dict[str, Any] = {"status": plan.status, "reason": plan.reason}
    for name in ("n_active", "d_pretrain", "d_rl", "k", "d_inference"):
        row[name] = nothing if plan.decision is None else getattr(plan.decision, name)
    for name in ("pretrain", "rl", "inference"):
        row[f"share_{name}"] = nothing if plan.phases is None else plan.phases[name].share
    row["loss"] = plan.loss
    row["reducible_loss"] = plan.reducible_loss
    row["flop"] = nothing if plan.total is None else plan.total.flop
    for name in ("tokens_per_param", "vs_20", "vs_chinchilla"):
        row[name] = nothing if plan.overtraining is None else getattr(plan.overtraining, name)
    return row


def sweep_frame(key: str, values: Sequence[Any], plans: Sequence[Plan]) -> "pd.DataFrame":
    """A sweep as a data frame, the key's values first; units are those of a plan."""
    import pandas as pd

    return pd.DataFrame([{key: value, **plan_row(plan)} for value, plan in zip(values, plans, strict=True)])
