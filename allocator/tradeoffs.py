"""What training saves in serving: plans of least weighted cost at one quality, and plans under a cap on either cost."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import elementwise

from allocator.laws.law import Law
from allocator.optimum.batches import Plans, solve_batch, told_at, without
from allocator.optimum.planning import solve
from allocator.scenario.building import objective_of
from allocator.scenario.building_costs import demand_of
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Scenario

# Quantities that can be capped, with the weight on serving cost at which nothing but the cap counts: farther off,
# rounding of the weighed cost would blur the other.
CAPS = {"training_cost": 1e-12, "serving_cost": 1e10}
LEANEST, HEAVIEST = 1e-6, 1e6  # weight at which a limit and a cap are both met
MET = 1e-8  # how far beyond a limit counts as meeting it, relative


def phase_costs(plans: Plans) -> tuple[Float[np.ndarray, " plans"], Float[np.ndarray, " plans"]]:
    """(training cost, serving cost) in the objective's currency."""
    cost = np.asarray(plans.figures.phase_cost)
    return cost[:, 0] + cost[:, 1], cost[:, 2]


def at_one_quality(
    scenario: Scenario, weights: Float[np.ndarray, " points"], law: Law | None, starts: int, seed: int
) -> Plans:
    """Plans of least training cost plus weight times serving cost, at the loss of the scenario's own plan.

    Both costs of each are on their frontier, whatever the weight.
    """
    kind, _, currency = objective_of(scenario)
    if kind != "target_loss":
        plan = solve(scenario, law=law, seed=seed)
        scenario = with_values(scenario, {"objective.target_loss": plan.loss, "objective.currency": currency})
    return _weighed(scenario, weights, None, law, starts, seed)


def capped(
    scenario: Scenario, name: str, caps: Float[np.ndarray, " points"], law: Law | None, starts: int, seed: int
) -> Plans:
    """Best plans under the scenario's own limit and a cap, in its currency, on what training or serving costs.

    Where the cap binds, limit and cap have a multiplier each, so the plan is also the best under a single limit on
    training plus weighted serving cost; the weight is the one at which the cap is met. Where the cap leaves part of
    the budget without use, that is the weight at which nothing else counts.
    """
    kind, limit, _ = objective_of(scenario)
    budget = None if kind == "target_loss" else limit
    which, alone = list(CAPS).index(name), math.log(CAPS[name])

    def plans_at(log_weight: np.ndarray, cap: np.ndarray) -> Plans:
        weight = np.exp(log_weight)
        if budget is None:
            spent = None
        else:
            both = weight * budget + (1 - weight) * cap if which == 0 else budget + (weight - 1) * cap
            spent = np.where(log_weight == alone, cap * np.maximum(weight, 1.0), both)
        return _weighed(scenario, weight, spent, law, starts, seed)

    def excess(log_weight: np.ndarray, cap: np.ndarray) -> np.ndarray:
        return np.log(phase_costs(plans_at(log_weight, cap))[which] / cap)

    log_weight = np.zeros(len(caps))
    # Where there is no plan without the cap, its own reason stands.
    binds = np.flatnonzero(excess(log_weight, caps) > 0)
    if len(binds):
        ends = (np.full(len(binds), end) for end in sorted((0.0, math.log((LEANEST, HEAVIEST)[which]))))
        found = elementwise.find_root(excess, tuple(ends), args=(caps[binds],), tolerances={"fatol": MET / 100})
        log_weight[binds] = np.where(found.success, found.x, alone)
    plans = plans_at(log_weight, caps)
    over = phase_costs(plans)[which] > caps * (1 + MET)
    if budget is not None:
        over |= np.exp(plans.figures.log_cost) > budget * (1 + MET)
    none = (log_weight != 0) & (over | (plans.status == "infeasible"))
    return without(plans, none, f"{name}: no plan costs so little")


def _weighed(scenario: Scenario, weight: Any, budget: Any, law: Law | None, starts: int, seed: int) -> Plans:
    """Plans for a demand so many times the scenario's, told at its own demand."""
    key, demand = demand_of(scenario)
    values = {key: demand * weight}
    if budget is not None:
        values[f"objective.{objective_of(scenario)[0]}"] = budget
    plans = solve_batch(scenario, values, law=law, starts=starts, seed=seed)
    return told_at(plans, {key: np.full(len(plans), demand)})
