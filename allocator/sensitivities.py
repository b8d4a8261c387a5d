"""How the best plan answers to each number that it rests on, and what a little more of each is worth."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from allocator.distributions import Distribution, assumed_ranges
from allocator.errors import AllocatorError
from allocator.laws.law import Law
from allocator.optimum.batches import solve_batch
from allocator.optimum.implicit import plan_function
from allocator.optimum.planning import solve
from allocator.optimum.result import Plan
from allocator.scenario.assumptions import LAW, find_path
from allocator.scenario.building import objective_of
from allocator.scenario.forms import least_k
from allocator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

# Keys whose numbers have a largest lawful value.
TOPS = dict.fromkeys(("derate", "mfu", "efficiency", "efficiency.compute", "efficiency.memory"), 1.0)
TOPS |= {"floor_share": 0.999, "th2": 0.999, "exponent": 10.0}
TENTH = 0.1  # either way, for a number that nobody gives a range
OUTCOMES = ("n_active", "d_pretrain", "d_rl", "k", "loss", "cost", "tokens_per_param")


@dataclass(frozen=True)
class Elasticity:
    """Relative change of the optimum per relative change of one assumption, from the implicit function theorem."""

    path: str
    value: float
    assumed: bool  # no source gives the number
    n_active: float
    d_pretrain: float
    d_rl: float
    k: float
    reducible_loss: float  # of L - floor
    loss_nats: float  # change of the loss itself, in its own unit, per relative change
    cost: float  # in the objective's currency; 0 under a budget
    tokens_per_param: float
    worth: float  # relative change of the budget that does as much for the loss; at a target, of cost, saved if > 0


@dataclass(frozen=True)
class Swing:
    """Outcome of the plan at the two ends of an assumption's range, the other numbers as they are."""

    path: str
    low: float
    high: float
    source: str  # of the range
    at_low: float  # NaN where there is no plan
    at_high: float
    reason: str | None  # why there is none


@dataclass(frozen=True)
class Sensitivity:
    """Elasticities, largest worth first, and swings of one outcome, widest first."""

    plan: Plan
    elasticities: tuple[Elasticity, ...]
    outcome: str
    base: float  # the outcome of the plan itself
    swings: tuple[Swing, ...]

    def to_frame(self) -> "pd.DataFrame":
        """One row an assumption: its value and the elasticities."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.elasticities], columns=list(Elasticity.__dataclass_fields__))

    def swings_frame(self) -> "pd.DataFrame":
        """One row an assumption: its range and the outcome at both ends."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.swings], columns=list(Swing.__dataclass_fields__))

    def __str__(self) -> str:
        lines = [f"{row.path} = {row.value:.4g}: {row.worth:+.3f}" for row in self.elasticities[:8]]
        unit = "cost" if self.plan.objective.kind == "target_loss" else "budget"
        return f"worth of 1% more, in % of the {unit}\n  " + "\n  ".join(lines)


def sensitivity(
    scenario: Scenario,
    *,
    outcome: str = "tokens_per_param",
    ranges: dict[str, Distribution] | None = None,
    law: Law | None = None,
    seed: int = 0,
) -> Sensitivity:
    """Differentiate the optimum in every number behind it, and re-solve at the ends of each number's range.

    `outcome` is what the swings are of: a decision, loss, cost or tokens_per_param. `ranges` go before the assumed
    ones; a number without a range swings by a tenth. Raises where the scenario itself has no plan.
    """
    if outcome not in OUTCOMES:
        raise AllocatorError(f"outcome: {outcome!r} is not one of {', '.join(OUTCOMES)}")
    own_ranges = {find_path(scenario, name): given for name, given in (ranges or {}).items()}
    plan = solve(scenario, law=law, seed=seed)
    function, at = plan_function(scenario, law=law, seed=seed)
    values = {path: jnp.asarray(value) for path, value in at.items()}

    def outcomes(values):
        told = function(values)
        figures = told.figures
        logs = jnp.log(jnp.stack([figures.decision.n_active, figures.decision.d_pretrain, figures.decision.k]))
        others = [figures.decision.d_rl, figures.log_reducible, figures.loss, figures.log_cost, told.shadow_price]
        return jnp.concatenate([logs, jnp.stack(others)])

    base = outcomes(values)
    if not np.isfinite(np.asarray(base)).all():
        raise AllocatorError("sensitivity: the optimum cannot be followed from the scenario's own plan")
    slopes = jax.jit(jax.jacfwd(outcomes))(values)
    target = objective_of(scenario)[0] == "target_loss"
    rows = [_elasticity(plan, path, at[path], np.asarray(slopes[path]), np.asarray(base), target) for path in at]
    # Equal worth, as of factors of one demand, is told in the order of the paths.
    rows.sort(key=lambda row: (-round(abs(row.worth), 12), row.path))
    swings = _swings(scenario, outcome, at, own_ranges, law, seed)
    return Sensitivity(plan, tuple(rows), outcome, outcome_of(plan, outcome), swings)


def _elasticity(plan: Plan, path: str, value: float, slope: np.ndarray, base: np.ndarray, target: bool) -> Elasticity:
    log_n, log_d, log_k, rl, reducible, loss, cost, _ = (slope * value).tolist()
    rl_tokens, price = float(base[3]), float(base[7])
    worth = -cost if target else -reducible / price if price > 0 else math.nan
    return Elasticity(
        path, value, path in plan.assumed, log_n, log_d, rl / rl_tokens if rl_tokens > 0 else 0.0, log_k, reducible,
        loss, cost if target else 0.0, log_d - log_n, worth,
    )  # fmt: skip


def _swings(
    scenario: Scenario, outcome: str, at: dict[str, float], ranges: dict[str, Distribution], law: Law | None, seed: int
) -> tuple[Swing, ...]:
    known = (assumed_ranges(scenario) if law is None else {}) | ranges
    # A law's parameters come from one fit and move together: their draws are for `uncertainty`.
    # Ends of a decision's range have none either: a tenth of one may cross the other.
    paths = [path for path in at if path in known or not (path.startswith(LAW) or path.endswith((".min", ".max")))]
    others = [path for path in ranges if path not in paths]
    ends = {path: _ends(path, at.get(path, math.nan), known.get(path)) for path in (*paths, *others)}
    least = least_k(scenario.law.model_dump()) if law is None else None
    if least is not None and "decisions.k" in ends and "decisions.k" not in known:
        low, high, source = ends["decisions.k"]
        ends["decisions.k"] = max(low, least), high, source
    # All ends in one batch: a row moves one number and leaves the others as they are.
    grid = {path: np.full(2 * len(paths), at[path]) for path in paths}
    for i, path in enumerate(paths):
        grid[path][2 * i : 2 * i + 2] = ends[path][:2]
    batches = [(paths, solve_batch(scenario, grid, law=law, seed=seed))] if paths else []
    # A number that the scenario does not have yet may replace one that it has.
    batches += [([path], solve_batch(scenario, {path: ends[path][:2]}, law=law, seed=seed)) for path in others]
    swings = []
    for names, plans in batches:
        figures = outcomes_of(plans)[outcome]
        for i, path in enumerate(names):
            both = slice(2 * i, 2 * i + 2)
            reason = next((str(text) for text in plans.reason[both] if text is not None), None)
            at_low, at_high = figures[both].tolist()
            swings.append(Swing(path, *ends[path], at_low, at_high, reason))
    return tuple(sorted(swings, key=lambda swing: -_width(swing)))


def _ends(path: str, value: float, given: Distribution | None) -> tuple[float, float, str]:
    if given is not None:
        return *given.ends(), given.source
    top = next((most for key, most in TOPS.items() if path.endswith(key)), math.inf)
    low, high = sorted((value * (1 - TENTH), value * (1 + TENTH)))
    return low, min(high, top), "a tenth either way"


def _width(swing: Swing) -> float:
    """How wide a swing is; one that breaks the plan is the widest."""
    ends = swing.at_low, swing.at_high
    if not all(math.isfinite(end) for end in ends):
        return math.inf
    return abs(math.log(ends[1] / ends[0])) if min(ends) > 0 else abs(ends[1] - ends[0])


def outcome_of(plan: Plan, outcome: str) -> float:
    """One figure of a plan."""
    assert plan.decision is not None
    if outcome == "loss":
        return plan.loss
    if outcome == "tokens_per_param":
        assert plan.overtraining is not None
        return plan.overtraining.tokens_per_param
    if outcome == "cost":
        assert plan.problem is not None
        kind = plan.problem.currency
        return float(getattr(plan.total, "flop" if kind == "compute_flop" else kind))
    return float(getattr(plan.decision, outcome))


def outcomes_of(plans: Any) -> dict[str, np.ndarray]:
    """Figures of a batch, by name."""
    figures = plans.figures
    return {**{name: np.asarray(x) for name, x in figures.decision._asdict().items()},
            "loss": np.asarray(figures.loss), "cost": np.exp(figures.log_cost),
            "tokens_per_param": plans.tokens_per_param}  # fmt: skip
