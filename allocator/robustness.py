"""Plans made before demand and law are known: N, D and R are committed, k adapts to what is left of the budget."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.optimize import brentq

from allocator.errors import InfeasibleError, ScenarioError, SolveError
from allocator.laws.law import Law
from allocator.optimum import certificates
from allocator.optimum.committed import Committed, interior, lowest, minimise, outcome
from allocator.optimum.planning import UNITS, solve
from allocator.optimum.result import Certificate, Notice, Objective
from allocator.precision import require_float64
from allocator.robust_plans import CRITERIA, Commitment, Derating, Evaluated, Knowledge, RobustPlan
from allocator.scenario.building import objective_of
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Scenario
from allocator.states import DEMAND, States
from allocator.worlds import TOLD, World, refuse_target, world_of

REGRET_ROUNDS, REGRET_STEP = 25, 1e-10  # of the least worst log regret
HUGE = 1e3  # a log loss that no state has
LEAST_PRICE = 1e-6  # where a state's own optimum leaves budget unused, its shadow price is 0


def robust(
    scenario: Scenario,
    states: States,
    *,
    criterion: str = "expected",
    level: float = 0.9,
    law: Law | None = None,
    seed: int = 0,
) -> RobustPlan:
    """Commit N, D and R before the state of the world is known, so that the criterion over all states is least.

    In each state k is what the budget left by pre-training and RL buys, within the scenario's bounds. A decision whose
    budget does not pay for the least k (a fixed k is the least) in some state is no plan and never chosen. `criterion`:
    "expected" loss, "cvar" (mean loss over the worst 1 - `level` of probability), or "regret" (the worst state's extra
    budget over its own optimum). A state whose demand is 0 serves nobody: its loss counts for nothing.

    Raises `ScenarioError` for wrong input, `InfeasibleError` where one decision cannot serve all states or a state has
    no plan even on its own, `SolveError` where no decision verifies.
    """
    require_float64()
    _check(criterion, level)
    world = world_of(scenario, states, law, seed)
    starts = _starts(world)
    found, tried = _commit(world, starts, criterion, level)
    if found is None:
        raise SolveError(f"no start of {tried} led to a decision that verifies as an optimum over all states")
    if np.any(_at_open_end(world, found.v)):
        raise SolveError("no interior optimum: a decision ran to the end of the search range; fix or bound it",
                         status="no_interior_optimum")  # fmt: skip
    world.improve_own(found.v)
    told = world.evaluate(found.v, level)
    mean, reason = _mean_plan(world, level)
    demand, whole = _knowing(world, found.v, starts, told.expected_loss)
    kinds = set(world.plans.certificate[world.solved].tolist())
    convex = len(kinds) == 1 and kinds <= {certificates.GEOMETRIC_PROGRAM, certificates.CONVEX_FIXED_N}
    kind = kinds.pop() if convex else certificates.BEST_OF_STARTS
    example = world.plans[int(np.flatnonzero(world.solved)[0])]
    objective, value, _ = objective_of(scenario)
    return RobustPlan(
        title=scenario.title,
        objective=Objective(objective, value, UNITS[objective]),
        law=example.law,
        assumed=tuple(path for path in example.assumed if path not in world.arrays),
        criterion=criterion,
        level=level,
        status="optimal" if convex else "best_of_starts",
        certificate=Certificate(kind, tried, found.residual, found.excess),
        states=States(world.arrays, states.probability),
        outcome=told,
        own=world.own_columns(),
        mean_demand=mean,
        mean_reason=reason,
        knowing_demand=demand,
        knowing_state=whole,
        loss_unit=example.loss_unit,
        warnings=_notices(world, told, mean, demand),
        provenance={**example.provenance, "scenario": scenario.to_values()},
        lifetime_tokens=world.whole(np.asarray(world.problems.costs.lifetime_tokens, float)),
    )


def evaluate_committed(
    scenario: Scenario,
    states: States,
    *,
    n_active: float,
    d_pretrain: float,
    d_rl: float,
    level: float = 0.9,
    law: Law | None = None,
    seed: int = 0,
) -> Evaluated:
    """Score a given commitment (parameters, tokens, tokens) on all states, whatever the scenario's decisions say."""
    require_float64()
    _check("expected", level)
    world = world_of(scenario, states, law, seed)
    zero = bool(world.stage.axis.allows_zero)
    for name, number in (("n_active", n_active), ("d_pretrain", d_pretrain), ("d_rl", d_rl)):
        least = name == "d_rl" and zero and number == 0
        if not isinstance(number, Real) or not (least or (number > 0 and math.isfinite(number))):
            raise ScenarioError([f"{name}: got {number!r}; must be {'0 or ' if name == 'd_rl' and zero else ''}> 0 "
                                 "and finite"])  # fmt: skip
    v = world.coordinates(n_active, d_pretrain, d_rl)
    return world.evaluate(v, level, Commitment(float(n_active), float(d_pretrain), float(d_rl)))


def derating(scenario: Scenario, probability: float, *, law: Law | None = None, seed: int = 0) -> Derating:
    """Plan a model that ships, and meets the scenario's demand, with a probability, and is never served otherwise."""
    if not (isinstance(probability, int | float) and 0 < probability <= 1) or isinstance(probability, bool):
        raise ScenarioError([f"probability: got {probability!r}; must be > 0 and <= 1"])
    if scenario.deployment is None:
        raise ScenarioError(["deployment: required, since without demand there is nothing to derate"])
    refuse_target(scenario)
    derate = scenario.deployment.derate
    path = "deployment.derate"
    lone = States({path: [derate, 0.0]}, [probability, 1 - probability])
    committed = robust(scenario, lone if probability < 1 else States({path: [derate]}), law=law, seed=seed)
    pooled = solve(with_values(scenario, {path: derate * probability}), law=law, seed=seed)
    assert pooled.problem is not None
    assert pooled.decision is not None
    costs, d = pooled.problem.costs, pooled.decision
    full = eqx.tree_at(
        lambda c: (c.lifetime_tokens, c.prompt_tokens), costs,
        (costs.lifetime_tokens / probability, costs.prompt_tokens / probability),
    )  # fmt: skip
    cost = sum(float(x) for x in full.phase_costs(math.log(d.n_active), d.d_pretrain, d.d_rl, d.k,
                                                  pooled.problem.currency))  # fmt: skip
    return Derating(float(probability), committed, pooled, cost / pooled.objective.value - 1)


def _check(criterion: str, level: float) -> None:
    if criterion not in CRITERIA:
        raise ScenarioError([f"criterion: got {criterion!r}; must be one of {', '.join(CRITERIA)}"])
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 <= level < 1:
        raise ScenarioError([f"level: got {level!r}; must be >= 0 and < 1"])


def _at_open_end(world: World, v: np.ndarray) -> np.ndarray:
    ends = [np.asarray(side)[world.counted, :3].all(axis=0)
            for side in (world.problems.open_lower, world.problems.open_upper)]  # fmt: skip
    lower, upper = np.asarray(world.stage.lower), np.asarray(world.stage.upper)
    return (ends[0] & (v[:3] - lower < 1)) | (ends[1] & (upper - v[:3] < 1))


def _starts(world: World) -> np.ndarray:
    """Strictly feasible starts: the plan at the mean, states' own optima from small N to large, and their mixture."""
    some = world.counted
    decision = jax.tree.map(lambda x: np.asarray(x)[some], world.plans.figures.decision)
    own = world.coordinates(decision.n_active, decision.d_pretrain, decision.d_rl)
    weight = world.weight[some]
    order = np.lexsort(own.T)
    passed = np.cumsum(weight[order])
    quantiles = [own[order[np.searchsorted(passed, q)]] for q in (1e-9, 0.25, 0.5, 0.75, 1 - 1e-9)]
    candidates = [weight @ own, *quantiles]
    mean = world.mean[0]
    candidates = candidates if mean is None else [mean, *candidates]
    found: list[np.ndarray] = []
    for v in candidates:
        inside = interior(world.stage, v)
        if inside is not None and not any(np.abs(inside - other).max() < 1e-9 for other in found):
            found.append(inside)
    if not found:
        raise _unservable(world)
    while len(found) < len(quantiles) + 2:  # as many for every problem, since each number is compiled once
        found.append(found[0])
    return np.stack(found)


def _unservable(world: World) -> InfeasibleError:
    least = np.append(np.asarray(world.stage.lower), 0.0)
    excess = np.asarray(outcome(world.stage, least).excess)[: len(world.rows)]
    bad = np.flatnonzero(world.counted & ~(excess < -1e-6))
    if not len(bad):
        return InfeasibleError("no decision serves all states within the budget")
    worst = bad[np.argmax(excess[bad])]
    budget = objective_of(world.scenario)[1]
    named = ", ".join(f"states[{world.rows[i]}]" for i in bad[:TOLD]) + (", ..." if len(bad) > TOLD else "")
    needed = budget * math.exp(excess[worst])
    return InfeasibleError(
        f"objective.{objective_of(world.scenario)[0]}: {budget:.6g} does not "
        f"pay for the least service in {named}; states[{world.rows[worst]}] needs {needed:.6g}",
        {"path": f"objective.{objective_of(world.scenario)[0]}", "value": needed},
    )


def _mean_plan(world: World, level: float) -> tuple[Evaluated | None, str | None]:
    v, reason, decision = world.mean
    return (None, reason) if v is None else (world.evaluate(v, level, decision), None)


def _commit(world: World, starts: np.ndarray, criterion: str, level: float) -> tuple[Committed | None, int]:
    """The best verified decision under a criterion, and how many starts competed."""
    expected = minimise(world.stage, starts)
    if criterion == "expected" or (criterion == "cvar" and level == 0):
        return expected, len(starts)
    if expected is not None:
        inside = interior(world.stage, expected.v)
        starts = np.concatenate([starts[:-1], (starts[-1] if inside is None else inside)[None]])
    if criterion == "cvar":
        return _least_tail(world, starts, level), len(starts)
    return _least_regret(world, starts), len(starts)


def _least_tail(world: World, starts: np.ndarray, level: float) -> Committed | None:
    # The multipliers sum to 1, so a weight above 1 is as good as any and keeps the numbers in range.
    weight = np.minimum(np.asarray(world.stage.weight) / (1 - level), 2.0)
    stage = world.stage._replace(weight=weight, threshold=np.float64(1.0))
    some, scale, offset = world.counted, float(stage.scale), float(stage.offset)
    starts = starts.copy()
    for v in starts:
        told = np.asarray(outcome(stage, v).log_reducible)[: len(some)][some]
        loss = (world.floor[some] + np.exp(told) - offset) / scale
        order = np.argsort(loss)
        at = np.searchsorted(np.cumsum(world.weight[some][order]), level)
        v[3] = loss[order][min(at, len(loss) - 1)]  # the tail's threshold
    return minimise(stage, starts)


def _least_regret(world: World, starts: np.ndarray) -> Committed | None:
    """Least worst log regret: in each round regret is linear around the level that the last round reached.

    At the level's fixed point the linear regret is the true one in every state that binds, with its slopes.
    """
    level, starts = 0.0, starts.copy()
    weight = np.where(
        np.asarray(world.stage.weight) > 0, 2.0, 0.0
    )  # more than 1, so that nothing exceeds the threshold
    world.warm = world.own_z.copy()
    for _ in range(REGRET_ROUNDS):
        value, price = world.own_at(np.full(len(world.rows), level))
        known = np.isfinite(value)
        # A state without any plan at that level's smaller budget is nowhere near binding.
        target = world.padded(np.where(known, value, HUGE), HUGE)
        stage = world.stage._replace(
            weight=weight,
            threshold=np.float64(1.0),
            in_logs=np.float64(1.0),
            target=target,
            price=world.padded(np.where(known, np.maximum(price, LEAST_PRICE), 1.0), 1.0),
        )
        for v in starts:  # the worst state's
            told = np.asarray(outcome(stage, v).log_reducible)
            v[3] = np.max(np.where(weight > 0, (told - stage.target) / stage.price, -np.inf))
        best = minimise(stage, starts)
        if best is None:
            return None
        level += best.value
        if abs(best.value) < REGRET_STEP:
            return best
        inside = interior(world.stage, best.v, margin=1e-6)
        starts = starts if inside is None else np.repeat(inside[None], len(starts), axis=0)
    return None


def _knowing(world: World, v: np.ndarray, starts: np.ndarray, expected_loss: float) -> tuple[Knowledge, Knowledge]:
    """The worth of knowing the demand, and of knowing the whole state."""
    some = world.counted
    weight, floor = world.weight[some], world.floor[some]

    def with_state(shift: float) -> float:
        value = world.own_at(np.full(len(world.rows), shift))[0][some]
        return float(weight @ (floor + np.exp(np.where(np.isfinite(value), value, math.inf))))

    slope = float(weight @ (np.exp(world.own_log[some]) * world.own_price[some]))
    world.warm = world.own_z.copy()
    whole = _knowledge(with_state, slope, expected_loss)
    keys = [path for path in DEMAND if path in world.arrays]
    demand = [world.arrays[path][world.rows][some] for path in keys]
    groups = np.unique(np.array(demand), axis=1, return_inverse=True)[1].ravel() if keys else np.zeros(len(weight), int)
    count = int(groups.max()) + 1
    if count == 1:
        return Knowledge(expected_loss, 0.0, 0.0), whole
    alike = np.unique(np.array([x[world.rows][some] for x in world.arrays.values()]), axis=1).shape[1] == count
    if alike:
        return whole, whole
    members = np.full(len(world.rows), -1)
    members[some] = groups

    def with_demand(shift: float) -> float:
        total = float(weight @ floor)
        for group in range(count):
            inside = np.where(members == group, world.weight, 0.0)
            stage = world.stage._replace(weight=world.padded(inside, 0.0), shift=np.float64(shift))
            moved = [point for point in (interior(stage, start) for start in (v, *starts[:2])) if point is not None]
            if not moved:
                return math.inf
            moved = [*moved, *[moved[0]] * (len(starts) - len(moved))]
            total += lowest(stage, np.stack(moved)) * float(stage.scale)
        return total

    return _knowledge(with_demand, slope, expected_loss), whole


def _knowledge(value: Callable[[float], float], slope: float, expected_loss: float) -> Knowledge:
    """From the expected loss of informed plans as a function of how many times, in logs, their budget is smaller."""
    known = min(value(0.0), expected_loss)
    saved = expected_loss - known
    tolerance = 1e-10 * abs(expected_loss)
    if saved < tolerance or not slope > 0:
        return Knowledge(known, max(saved, 0.0), 0.0)
    # The loss rises as the budget shrinks: bracket, then close in.
    high = saved / slope
    for _ in range(40):
        if value(high) >= expected_loss:
            break
        high *= 1.5
    shift: Any = brentq(lambda x: min(value(x), 1e300) - expected_loss, 0.0, high, xtol=1e-7 * high)
    return Knowledge(known, saved, -math.expm1(-float(shift)))


def _notices(world: World, told: Evaluated, mean: Evaluated | None, knowing: Knowledge) -> tuple[Notice, ...]:
    found = []
    idle = world.count - len(world.rows)
    if idle:
        text = "states in which nothing is served: their loss is nobody's, so they count for nothing"
        found.append(Notice("not_served", "states", float(idle), text))
    if mean is not None and mean.unserved:
        text = "states that the plan made at mean demand cannot serve within the budget"
        found.append(Notice("mean_demand_fails", "states", float(len(mean.unserved)), text))
    below = int((told.k < 1).sum())
    if below and world.scenario.deployment is not None:
        text = "states in which answers are shorter than the traffic forecast assumes (k < 1)"
        found.append(Notice("k_below_one", "decisions.k", float(below), text))
    varied = any(path in world.arrays and np.ptp(world.arrays[path][world.rows]) > 0 for path in DEMAND)
    if varied and knowing.loss <= 1e-9 * told.expected_loss:
        text = "plans made with the demand known are no better: what is best to commit does not hang on it"
        found.append(Notice("demand_does_not_matter", "states", None, text))
    return tuple(found)
