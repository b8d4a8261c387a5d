"""States of the world with their problems, each one's own optimum at any budget, and a commitment scored on them."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from allocator.errors import AllocatorError, InfeasibleError, NoPlanError, ScenarioError, SolveError
from allocator.laws.law import Law, RlAxis
from allocator.optimum import certificates
from allocator.optimum.batches import ZERO_MATTERS, Plans, built_at, problems_at, solve_batch
from allocator.optimum.committed import Stage, outcome
from allocator.optimum.many import optimise_many
from allocator.optimum.solving import optimise
from allocator.problem import DECISIONS, Problem
from allocator.regrets import least_cost, least_costs
from allocator.robust_plans import Commitment, Evaluated, tail_mean
from allocator.scenario.assumptions import find_path
from allocator.scenario.schema import Scenario
from allocator.states import DEMAND, States
from allocator.units import tidy

LANES = (16, 64, 256, 1024, 4096)  # numbers of states, since each number is compiled once
OVER = 1e-9  # of the budget; a state whose least service costs more than that above it cannot be served
TOLD = 3  # states that an error names


class World:
    """States with their problems, which of them count, and each one's own optimum at any budget."""

    def __init__(self, scenario: Scenario, arrays: Mapping[str, np.ndarray], states: States, law: Law | None,
                 plans: Plans, rows: Int[np.ndarray, " served"], problems: Problem, seed: int):  # fmt: skip
        self.scenario, self.arrays, self.law, self.seed = scenario, arrays, law, seed
        self.count, self.rows, self.plans = len(states), rows, plans  # `rows`: which states `plans` are those of
        self.solved: Bool[np.ndarray, " served"] = np.asarray(plans.solved)
        self.problems = problems
        weight = np.where(self.solved, states.probability[rows], 0.0)
        self.weight = weight / weight.sum()
        self.floor = np.broadcast_to(np.asarray(problems.law.floor, float), len(rows))
        self.own_log = np.array(plans.figures.log_reducible)
        self.own_z, self.own_price = np.array(plans.z), np.array(plans.shadow_price)
        self.warm = self.own_z.copy()
        self.convex = certificates.one_local_optimum(problems)
        self.stage = self._stage(_axis(problems))
        self.mean = _mean_decision(self, states)

    @property
    def counted(self) -> Bool[np.ndarray, " served"]:
        """States that serve something and may happen."""
        return self.weight > 0

    def _stage(self, axis: RlAxis) -> Stage:
        lower, upper = _shared_box(self.problems, axis, self.counted)
        some = self.counted
        lanes = _lanes(len(self.rows))
        padding = np.minimum(np.arange(lanes), len(self.rows) - 1)
        scale = float(self.weight[some] @ np.exp(self.own_log[some]))
        return Stage(
            problems=jax.tree.map(lambda x: np.asarray(x)[padding], self.problems),
            axis=axis,
            weight=self.padded(self.weight, 0.0),
            lower=lower,
            upper=upper,
            shift=np.float64(0.0),
            scale=np.float64(scale),
            offset=np.float64(self.weight[some] @ self.floor[some]),
            threshold=np.float64(0.0),
            in_logs=np.float64(0.0),
            target=np.zeros(lanes),
            price=np.ones(lanes),
        )

    def padded(self, x: np.ndarray, fill: float) -> Any:
        """An array with an entry for each row of the stage."""
        out = np.full(_lanes(len(self.rows)), fill)
        out[: len(x)] = np.where(self.counted, x, fill)
        return out

    def whole(self, x: np.ndarray) -> Float[np.ndarray, " states"]:
        """An array with an entry for each state, NaN where nothing is served."""
        out = np.full(self.count, math.nan)
        out[self.rows] = x
        return out

    def coordinates(self, n: Any, d: Any, r: Any) -> Float[np.ndarray, "... 4"]:
        """Shared coordinates of commitments."""
        shared = np.asarray(self.stage.axis.coordinate(jnp.asarray(r, float)))
        return np.stack([np.log(n), np.log(d), shared, np.zeros_like(shared)], axis=-1)

    def commitment(self, v: np.ndarray) -> Commitment:
        """N, D and R at shared coordinates."""
        fixed = {name: choice for name in DECISIONS[:3]
                 if isinstance(choice := getattr(self.scenario.decisions, name), float)}  # fmt: skip
        tokens = float(self.stage.axis.tokens(jnp.asarray(v[2])))
        values = {"n_active": math.exp(v[0]), "d_pretrain": math.exp(v[1]), "d_rl": max(tokens, 0.0)}
        return Commitment(**{name: tidy(value) for name, value in (values | fixed).items()})

    def own_at(self, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(log reducible loss, shadow price) of each state's own optimum at its budget over exp(shift); NaN: none."""
        problems = eqx.tree_at(lambda p: p.log_limit, self.problems, np.asarray(self.problems.log_limit) - shift)
        found = optimise_many(problems, starts=1, convex=self.convex, reference=self.warm, seed=self.seed)
        value, price = np.array(found.point.derivatives.value[:, 0]), np.array(found.point.multiplier)
        z, good = np.array(found.point.z), found.found.copy()
        for i in np.flatnonzero(self.solved & ~good):
            try:
                problem = jax.tree.map(lambda x, i=i: np.asarray(x)[i], problems)
                point = optimise(problem, start=self.warm[i], seed=self.seed).point
            except AllocatorError:
                value[i] = price[i] = math.nan
                continue
            value[i], price[i], z[i], good[i] = point.derivatives.value[0], point.multiplier, point.z, True
        self.warm[good] = z[good]
        return np.where(good, value, math.nan), np.where(good, price, math.nan)

    def improve_own(self, v: np.ndarray) -> None:
        """Where a shared decision beats what was taken for a state's own optimum, look for that one again from here."""
        told = jax.tree.map(np.asarray, outcome(self.stage, v))
        count = len(self.rows)
        better = self.counted & (told.log_reducible[:count] < self.own_log - 1e-9)
        for i in np.flatnonzero(better):
            problem = jax.tree.map(lambda x, i=i: np.asarray(x)[i], self.problems)
            point = optimise(problem, start=told.z[i], seed=self.seed).point
            if point.derivatives.value[0] < self.own_log[i]:
                self.own_log[i], self.own_price[i] = point.derivatives.value[0], point.multiplier
                self.own_z[i] = self.warm[i] = point.z

    def regrets(self, log_reducible: np.ndarray) -> np.ndarray:
        """Budget over the least one at which the state's own optimum has this loss, minus 1."""
        wanted = self.solved & np.isfinite(log_reducible)
        limit = np.asarray(self.problems.log_limit)
        aims = np.where(wanted, log_reducible, self.own_log)
        least, found = least_costs(self.problems, aims, reference=self.own_z, convex=self.convex, seed=self.seed)
        # The own optimum itself may leave part of a budget unused.
        out = np.where(np.abs(aims - self.own_log) < 1e-13, 0.0, np.expm1(limit - least))
        for i in np.flatnonzero(wanted & ~found):
            problem = jax.tree.map(lambda x, i=i: np.asarray(x)[i], self.problems)
            try:
                out[i] = math.exp(limit[i]) / least_cost(problem, log_reducible[i], self.own_z[i]) - 1
            except NoPlanError:
                out[i] = math.nan
        return np.where(wanted, out, np.where(self.solved, math.inf, math.nan))

    def evaluate(self, v: np.ndarray, level: float, decision: Commitment | None = None) -> Evaluated:
        """A commitment on all states."""
        told = jax.tree.map(lambda x: np.asarray(x)[: len(self.rows)], outcome(self.stage, v))
        short = ~(np.expm1(told.excess) <= OVER)
        log_reducible = np.where(short, math.inf, told.log_reducible)
        loss = self.floor + np.exp(log_reducible)
        gap = loss - (self.floor + np.exp(self.own_log))
        regret = self.regrets(log_reducible)
        spent = np.exp(told.log_cost - np.asarray(self.problems.log_limit))
        some = self.counted
        return Evaluated(
            decision=decision or self.commitment(v),
            k=self.whole(np.where(short, math.nan, np.exp(told.z[:, 3]))),
            loss=self.whole(loss),
            loss_gap=self.whole(gap),
            regret=self.whole(regret),
            spent=self.whole(spent),
            expected_loss=float(self.weight[some] @ loss[some]),
            cvar=tail_mean(loss[some], self.weight[some], level),
            worst_loss=float(loss[some].max()),
            worst_regret=float(regret[some].max()),
            worst_loss_gap=float(gap[some].max()),
            unserved=tuple(self.rows[short & some].tolist()),
        )

    def own_columns(self) -> dict[str, np.ndarray]:
        """Decisions and loss of each state's own optimum."""
        decision = jax.tree.map(np.asarray, jax.vmap(Problem.decision)(self.problems, self.own_z))
        columns = {name: self.whole(getattr(decision, name)) for name in DECISIONS}
        return columns | {"loss": self.whole(self.floor + np.exp(self.own_log))}


def refuse_target(scenario: Scenario) -> None:
    if scenario.objective.target_loss is not None:
        raise ScenarioError(["objective.target_loss: a robust plan spends one budget whatever happens, so it needs "
                             "compute_flop, chip_hours, usd or energy_joule in its place"])  # fmt: skip


def world_of(scenario: Scenario, states: States, law: Law | None, seed: int) -> World:
    """The states of a scenario as problems, each with its own optimum; raises where one that may happen has none."""
    refuse_target(scenario)
    if not isinstance(states, States):
        raise ScenarioError([f"states: got {type(states).__name__}; must be allocator.states.States"])
    arrays: dict[str, np.ndarray] = {}
    for name, numbers in states.values.items():
        path = find_path(scenario, name)
        if path in arrays:
            raise ScenarioError([f"states.values: {path} is given twice"])
        if path.split(".")[0] in ("objective", "decisions"):
            raise ScenarioError([f"states.values: {path}: the budget and the bounds on decisions are the same in every "
                                 "state"])  # fmt: skip
        arrays[path] = numbers
    served = np.ones(len(states), bool)
    for path in set(DEMAND) & set(arrays):
        served &= arrays[path] != 0
    if not (served & (states.probability > 0)).any():
        raise ScenarioError(["states: nothing is served in any state that may happen; give one a demand > 0"])
    rows = np.flatnonzero(served)
    shown = {path: numbers[rows] for path, numbers in arrays.items()}
    for path in set(ZERO_MATTERS) & set(shown):
        if (shown[path] == 0).any() and shown[path].any():
            raise ScenarioError([f"{path}: 0 leaves a term of the law out, so it is 0 in all states or in none"])
    plans = solve_batch(scenario, shown, law=law, seed=seed)
    _raise_if_unplanned(plans, rows, states, arrays)
    varied = {path: x for path, x in shown.items() if path not in ZERO_MATTERS or x[0] != 0}
    problems = problems_at(plans.scenario, varied, law, len(rows))[0]
    return World(scenario, arrays, states, law, plans, rows, problems, seed)


def _raise_if_unplanned(plans: Plans, rows: np.ndarray, states: States, arrays: Mapping[str, np.ndarray]) -> None:
    failed = np.flatnonzero(~np.asarray(plans.solved) & (states.probability[rows] > 0))
    if not len(failed):
        return
    told = []
    for i in failed[:TOLD]:
        numbers = ", ".join(f"{path} = {x[rows[i]]:.6g}" for path, x in arrays.items())
        told.append(f"states[{rows[i]}] ({numbers}) has no plan even on its own: {plans.reason[i]}")
    more = [f"and {len(failed) - TOLD} more states"] if len(failed) > TOLD else []
    reason, nearest = "; ".join([*told, *more]), {"states": rows[failed].tolist()}
    if plans.status[failed[0]] == "infeasible":
        raise InfeasibleError(reason, nearest)
    raise SolveError(reason, nearest, status=str(plans.status[failed[0]]))


def _lanes(count: int) -> int:
    return next((lanes for lanes in LANES if lanes >= count), -(-count // LANES[-1]) * LANES[-1])


def _axis(problems: Problem) -> RlAxis:
    """The first state's RL coordinate, which the shared decision uses."""
    return jax.tree.map(lambda x: np.ravel(np.asarray(x, float))[0], problems.law.rl_axis)


def _shared_box(problems: Problem, axis: RlAxis, counted: np.ndarray) -> tuple[Any, Any]:
    """The box that all states allow, in shared coordinates."""

    def shared(problem: Problem, z):
        return jnp.stack([z[0], z[1], axis.coordinate(problem.law.rl_axis.tokens(z[2]))])

    lower, upper = (np.asarray(jax.vmap(shared)(problems, z))[counted] for z in (problems.lower, problems.upper))
    fixed = (np.asarray(problems.lower) == np.asarray(problems.upper))[counted, :3].all(axis=0)
    low, high = np.where(fixed, lower[0], lower.max(axis=0)), np.where(fixed, lower[0], upper.min(axis=0))
    crossed = np.flatnonzero(low > high)
    if len(crossed):
        raise InfeasibleError(f"decisions.{DECISIONS[crossed[0]]}: no value lies within the bounds of all states")
    if fixed.all():
        raise ScenarioError(["decisions: n_active, d_pretrain and d_rl are all fixed, so nothing is left to commit; "
                             "evaluate_committed scores them"])  # fmt: skip
    return low, high


def _mean_decision(world: World, states: States) -> tuple[np.ndarray | None, str | None, Commitment | None]:
    """The plan that takes the mean of all states for certain: (shared coordinates, why there is none, decision)."""
    values = States(world.arrays, states.probability).mean()
    try:
        built = built_at(world.scenario, values, world.law)[1]
        decision = optimise(built.problem, seed=world.seed).decision
    except AllocatorError as error:
        return None, " ".join(str(error).split()), None
    v = world.coordinates(*decision[:3])
    return v, None, Commitment(*(tidy(x) for x in decision[:3]))
