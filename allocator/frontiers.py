"""What can be had for what: the best plans along a budget, a demand, a limit on speed or price, or between phases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from allocator import catalog
from allocator.errors import AllocatorError
from allocator.laws.law import Law
from allocator.optimum.batches import STARTS, Plans, built_at, solve_batch
from allocator.optimum.planning import UNITS, loss_unit
from allocator.problem import LARGEST, SMALLEST, Problem
from allocator.roofline.step import decode_step
from allocator.scenario.assumptions import find_path
from allocator.scenario.building import build, objective_of
from allocator.scenario.building_costs import lifetime_tokens, serving_roofline
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Bounds, Scenario
from allocator.tradeoffs import CAPS, at_one_quality, capped, phase_costs

if TYPE_CHECKING:
    import pandas as pd

TRADEOFF = "training-serving"
LIMITS = ("tpot_s", "usd_per_mtok")  # what a limit on N is a limit on
OWN = (*LIMITS, *CAPS, TRADEOFF)  # quantities that are no numbers of a scenario
DEMAND = ("deployment.tokens_per_second", "deployment.lifetime_tokens", "deployment.lifetime_days", "deployment.derate")
BISECTIONS = 80


@dataclass(frozen=True)
class Frontier:
    """The best plan at each point; `kept` says which are solved and not beaten by another in both quantities."""

    scenario: Scenario
    vary: str
    x_name: str
    y_name: str
    x: Float[np.ndarray, " points"]  # what the plan uses of the varied quantity, NaN without a plan
    y: Float[np.ndarray, " points"]
    asked: Float[np.ndarray, " points"]  # values that were set
    kept: np.ndarray
    plans: Plans

    @property
    def loss_unit(self) -> str:
        """Unit of the loss; nothing where there is no plan."""
        solved = np.flatnonzero(self.plans.solved)
        if not len(solved):
            return ""
        values = {path: float(numbers[solved[0]]) for path, numbers in self.plans.values.items()}
        return loss_unit(*built_at(self.plans.scenario, values, self.plans.user_law))

    def to_frame(self) -> "pd.DataFrame":
        """One row a point: both quantities, whether it is kept, then the plan; units in the names."""
        frame = self.plans.to_frame()
        own = {self.x_name: self.x, self.y_name: self.y, "kept": self.kept, "asked": self.asked}
        for name in reversed(own):
            frame = frame.drop(columns=name, errors="ignore")
            frame.insert(0, name, own[name])
        return frame

    def __len__(self) -> int:
        return len(self.plans)

    def __str__(self) -> str:
        return f"{self.y_name} against {self.x_name}: {int(self.kept.sum())} of {len(self)} points on the frontier"


def frontier(
    scenario: Scenario,
    values: Mapping[str, Sequence[float]] | None = None,
    *,
    law: Law | None = None,
    starts: int = STARTS,
    seed: int = 0,
    **named: Sequence[float],
) -> Frontier:
    """The best plans along one quantity: `frontier(scenario, compute_flop=budgets)` or `{key path: values}`.

    The quantity is a number of the scenario (a budget, target loss, demand, or an end of a decision's range such as
    `decisions.n_active.max`), a limit on serving through the scenario's hardware: `tpot_s`, seconds per output token
    by the inference roofline, or `usd_per_mtok`, USD per million output tokens; a cap, beside the scenario's own limit
    and in its currency, on `training_cost` or `serving_cost`; or `training-serving`, whose values weigh serving cost
    against training cost at the quality of the scenario's plan. Each point is a plan of its own;
    one that cannot be made is kept with its reason, and is no part of the frontier.
    """
    given = {**(values or {}), **named}
    if len(given) != 1:
        raise AllocatorError(f"frontier: vary exactly one quantity, got {', '.join(given) or 'none'}")
    ((name, numbers),) = given.items()
    if name == TRADEOFF:
        return _tradeoff(scenario, numbers, law, starts, seed)
    if name in LIMITS:
        return _limited(scenario, name, numbers, law, starts, seed)
    if name in CAPS:
        return _capped(scenario, name, numbers, law, starts, seed)
    path = find_path(scenario, name)
    plans = solve_batch(scenario, {path: numbers}, law=law, starts=starts, seed=seed)
    x = np.where(plans.solved, plans.values[path], np.nan)
    target = objective_of(plans.scenario)[0] == "target_loss"
    y = np.exp(plans.figures.log_cost) if target else np.asarray(plans.figures.loss)
    # A lower loss is harder to reach; so is more demand to serve.
    more_is_better = path in DEMAND
    known_direction = more_is_better or (path.startswith(("objective.", "decisions.")) and not path.endswith(".min"))
    kept = undominated(-x if more_is_better else x, y) if known_direction else plans.solved
    unit = f"cost_{objective_of(plans.scenario)[2]}" if target else "loss"
    return Frontier(scenario, name, path, unit, x, np.asarray(y), plans.values[path], kept, plans)


def undominated(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> np.ndarray:
    """Which points no other beats in one quantity while being as good in the other; lower is better, NaN is out."""
    kept = np.zeros(len(x), bool)
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    best = np.inf
    for i in known[np.lexsort((y[known], x[known]))]:
        # As good to rounding is no gain.
        if y[i] < best - 1e-12 * abs(best if np.isfinite(best) else 0.0):
            kept[i], best = True, y[i]
    return kept


def _tradeoff(scenario: Scenario, weights: Any, law: Law | None, starts: int, seed: int) -> Frontier:
    """Least weighted cost at one quality: both costs of each plan are on their frontier, whatever the weight."""
    weight = _positive(TRADEOFF, "weights", weights)
    plans = at_one_quality(scenario, weight, law, starts, seed)
    training, serving = phase_costs(plans)
    currency = objective_of(plans.scenario)[2]
    kept = undominated(training, serving)
    names = f"training_{currency}", f"serving_{currency}"
    return Frontier(scenario, TRADEOFF, *names, training, serving, weight, kept, plans)


def _capped(scenario: Scenario, name: str, caps: Any, law: Law | None, starts: int, seed: int) -> Frontier:
    """The best plan with one of its two costs capped."""
    limits = _positive(name, "limits", caps)
    plans = capped(scenario, name, limits, law, starts, seed)
    kind, _, currency = objective_of(scenario)
    x = phase_costs(plans)[list(CAPS).index(name)]
    y = np.asarray(np.exp(plans.figures.log_cost) if kind == "target_loss" else plans.figures.loss)
    names = f"{name.removesuffix('cost')}{currency}", f"cost_{currency}" if kind == "target_loss" else "loss"
    return Frontier(scenario, name, *names, x, y, limits, undominated(x, y), plans)


def _positive(name: str, what: str, values: Any) -> np.ndarray:
    try:
        numbers = np.atleast_1d(np.asarray(values, float))
    except (TypeError, ValueError):
        raise AllocatorError(f"{name}: {what} must be numbers") from None
    if numbers.ndim != 1 or not len(numbers) or not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise AllocatorError(f"{name}: {what} must be > 0 and finite")
    return numbers


def _limited(scenario: Scenario, name: str, limits: Any, law: Law | None, starts: int, seed: int) -> Frontier:
    """A limit on a quantity that rises with N is a largest N."""
    numbers = _positive(name, "limits", limits)
    if not isinstance(scenario.decisions.n_active, str) and isinstance(scenario.decisions.n_active, float):
        raise AllocatorError(f"{name}: decisions.n_active is fixed at {scenario.decisions.n_active:g}; free it, "
                             "since the limit works through the size")  # fmt: skip
    problem = build(scenario, law).problem
    of_size = serving_quantity(scenario, problem, name)
    largest = np.exp(_inverse(of_size, np.log(numbers)))
    own = scenario.decisions.n_active
    if isinstance(own, Bounds):
        largest = np.minimum(largest, np.inf if own.max is None else own.max)
        if own.min is not None and (largest < own.min).any():
            limit, size = numbers[np.argmin(largest)], largest.min()
            raise AllocatorError(
                f"{name}: {limit:g} allows {size:.4g} parameters, below decisions.n_active.min = {own.min:g}"
            )
    plans = solve_batch(scenario, {"decisions.n_active.max": largest}, law=law, starts=starts, seed=seed)
    x = np.exp(np.asarray(jax.vmap(of_size)(jnp.log(plans.figures.decision.n_active))))
    target = objective_of(scenario)[0] == "target_loss"
    y = np.asarray(np.exp(plans.figures.log_cost) if target else plans.figures.loss)
    y_name = f"cost_{objective_of(scenario)[2]}" if target else "loss"
    return Frontier(scenario, name, name, y_name, x, y, numbers, undominated(x, y), plans)


def serving_quantity(scenario: Scenario, problem: Problem, name: str) -> Callable[[Any], Any]:
    """Log of a quantity of serving as a function of log N."""
    if name == "tpot_s":
        found = serving_roofline(scenario)
        if found is None:
            raise AllocatorError("inference.roofline: required, since tpot_s is a time per token on real chips")
        family, operation = found
        return lambda log_n: jnp.log(decode_step(family.at(log_n), operation).step_s)
    costs = problem.costs
    if not np.isfinite(float(costs.price_of_flop(costs.decode.machine, "usd", 0.0))):
        raise AllocatorError("hardware: usd_per_mtok needs a chip with a price, and pretraining.mfu")
    tokens = lifetime_tokens(scenario)
    return lambda log_n: jnp.log(costs.rates(log_n, "usd").k / tokens * 1e6)


def _inverse(of_size: Callable[[Any], Any], targets: np.ndarray) -> np.ndarray:
    """Log N at which a rising function takes its targets."""
    low, high = jnp.full(len(targets), np.log(SMALLEST)), jnp.full(len(targets), np.log(LARGEST))

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        below = jax.vmap(of_size)(middle) < targets
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return np.asarray(jax.jit(lambda ends: jax.lax.fori_loop(0, BISECTIONS, halve, ends))((low, high))[0])


@dataclass(frozen=True)
class OvertrainingByDemand:
    """Over-training of the best plan against demand, law by law, and released models for comparison."""

    plans: Mapping[str, Plans]  # by law
    demand_tokens: Float[np.ndarray, " points"]

    def to_frame(self) -> "pd.DataFrame":
        """One row a law and demand."""
        import pandas as pd

        frames = [
            plans.to_frame().assign(law=name, demand_tokens=self.demand_tokens) for name, plans in self.plans.items()
        ]
        return pd.concat(frames, ignore_index=True)


def overtraining_by_demand(
    scenario: Scenario, demand_tokens: Sequence[float], *, laws: Sequence[str] | None = None, seed: int = 0
) -> OvertrainingByDemand:
    """Solve a scenario at many demands (output tokens over the lifetime, k = 1) under several pre-training laws."""
    own = scenario.law.pretraining
    names = (
        list(laws)
        if laws is not None
        else [own, *(name for name in ("hoffmann-2022", "chinchilla-epoch") if name != own)]
    )
    demand = np.atleast_1d(np.asarray(demand_tokens, float))
    plans = {}
    for name in names:
        changed = with_values(scenario, {"law.pretraining": name})
        plans[name] = solve_batch(changed, {"deployment.lifetime_tokens": demand}, seed=seed)
    return OvertrainingByDemand(plans, demand)


def released_models() -> "pd.DataFrame":
    """Released models with known sizes and tokens: name, date, n_active, d_pretrain, tokens_per_param, source."""
    import pandas as pd

    rows = [{"name": record.fields["name"], **record.fields, "source": record.source}
            for record in catalog.table("released_models")]  # fmt: skip
    return pd.DataFrame([row for row in rows if row["tokens_per_param"] is not None])


def axis_unit(name: str, loss_unit: str) -> str:
    """Unit of a frontier's quantity, for headings and axes."""
    kind = name.rpartition(".")[2].removeprefix("cost_").removeprefix("training_").removeprefix("serving_")
    units = UNITS | {"tpot_s": "s", "usd_per_mtok": "USD per million output tokens", "tokens_per_second": "tokens/s"}
    units |= {"lifetime_tokens": "tokens", "lifetime_days": "days", "target_loss": loss_unit, "loss": loss_unit}
    return units.get(kind, "")
