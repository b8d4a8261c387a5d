"""Plans made before demand and law are known: N, D and R are committed, k adapts to what is left of the budget."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import brentq

from allocator.errors import AllocatorError, InfeasibleError, NoPlanError, ScenarioError, SolveError
from allocator.laws.law import Law, RlAxis
from allocator.optimum import certificates
from allocator.optimum.batches import ZERO_MATTERS, Plans, built_at, problems_at, solve_batch
from allocator.optimum.committed import Committed, Stage, interior, lowest, minimise, outcome
from allocator.optimum.many import optimise_many
from allocator.optimum.planning import UNITS, solve
from allocator.optimum.result import Certificate, Notice, Objective, Plan, plain_values
from allocator.optimum.solving import optimise
from allocator.precision import require_float64
from allocator.problem import DECISIONS, Problem
from allocator.regrets import least_cost
from allocator.scenario.assumptions import find_path
from allocator.scenario.building import objective_of
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Scenario
from allocator.states import DEMAND, States
from allocator.units import one_line, short_count, significant, tidy

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "allocator.robust/1"
CRITERIA = ("expected", "cvar", "regret")
LANES = (16, 64, 256, 1024, 4096)  # numbers of states, since each number is compiled once
OVER = 1e-9  # of the budget; a state whose least service costs more than that above it cannot be served
LEAST_PRICE = 1e-6  # where a state's own optimum leaves budget unused, its shadow price is 0
REGRET_ROUNDS, REGRET_STEP = 25, 1e-10  # of the least worst log regret
HUGE = 1e3  # a log loss that no state has
TOLD = 3  # states that an error names


@dataclass(frozen=True)
class Commitment:
    """What is decided before the state of the world is known."""

    n_active: float
    d_pretrain: float
    d_rl: float


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A commitment on all states; arrays have one entry a state, NaN where nothing is served, a loss of inf where
    the budget does not pay for the least service.

    `regret` is budget / (least budget at which that state's own optimum has the plan's loss) - 1; `loss_gap` is the
    loss above that of the state's own optimum at the same budget; `spent` is the share of the budget that is used.
    """

    decision: Commitment
    k: Float[np.ndarray, " states"]
    loss: Float[np.ndarray, " states"]
    loss_gap: Float[np.ndarray, " states"]
    regret: Float[np.ndarray, " states"]
    spent: Float[np.ndarray, " states"]
    expected_loss: float
    cvar: float
    worst_loss: float
    worst_regret: float
    worst_loss_gap: float
    unserved: tuple[int, ...]  # states that the budget does not suffice for


@dataclass(frozen=True)
class Knowledge:
    """What it is worth to know something before N, D and R are committed."""

    expected_loss: float  # of plans made with it known
    loss: float  # by which that is below the robust plan's expected loss
    budget: float  # fraction of the budget that such plans could do without at the robust plan's expected loss


@dataclass(frozen=True, eq=False)
class RobustPlan:
    """One commitment for all states of the world, with what it leads to in each."""

    title: str
    objective: Objective
    law: Mapping[str, str | None]
    assumed: tuple[str, ...]
    criterion: str
    level: float
    status: str
    certificate: Certificate
    states: States
    outcome: Evaluated
    own: Mapping[str, Float[np.ndarray, " states"]]  # decisions and loss of the plan made with the state known
    mean_demand: Evaluated | None  # the plan that takes the mean for certain, on the same states
    mean_reason: str | None  # why there is none
    knowing_demand: Knowledge  # with the law still unknown
    knowing_state: Knowledge  # demand and law
    loss_unit: str
    warnings: tuple[Notice, ...]
    provenance: Mapping[str, Any]
    lifetime_tokens: Float[np.ndarray, " states"] = field(repr=False)

    @property
    def decision(self) -> Commitment:
        """N, D and R."""
        return self.outcome.decision

    @property
    def k(self) -> Float[np.ndarray, " states"]:
        """Samples per query in each state."""
        return self.outcome.k

    @property
    def loss(self) -> Float[np.ndarray, " states"]:
        """Loss in each state."""
        return self.outcome.loss

    @property
    def regret(self) -> Float[np.ndarray, " states"]:
        """Extra budget, as a fraction, that the plan needs in each state over that state's own optimum."""
        return self.outcome.regret

    @property
    def expected_loss(self) -> float:
        """Mean loss over the states that serve something."""
        return self.outcome.expected_loss

    @property
    def cvar(self) -> float:
        """Mean loss over the worst 1 - level of probability."""
        return self.outcome.cvar

    @property
    def worst_regret(self) -> float:
        """Largest extra budget of any state."""
        return self.outcome.worst_regret

    def rows(self) -> list[dict[str, Any]]:
        """A row a state: its numbers, what the plan does there, the state's own optimum, the mean-demand plan."""
        mean = self.mean_demand
        nothing = np.full(len(self.states), math.nan)
        columns = {**self.states.values, "probability": self.states.probability}
        mine = {name: getattr(self.outcome, name) for name in ("k", "loss", "loss_gap", "regret", "spent")}
        columns |= {"k": mine.pop("k"), "d_inference": self.k * self.lifetime_tokens, **mine}
        columns |= {f"own_{name}": numbers for name, numbers in self.own.items()}
        for name in ("k", "loss", "regret"):
            columns[f"mean_demand_{name}"] = nothing if mean is None else getattr(mean, name)
        return [{"state": i, **{name: float(x[i]) for name, x in columns.items()}} for i in range(len(self.states))]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values for JSON, every number finite or None."""
        return plain_values({
            "schema": SCHEMA,
            "title": self.title,
            "objective": self.objective,
            "law": self.law,
            "assumed": self.assumed,
            "criterion": self.criterion,
            "level": self.level,
            "status": self.status,
            "certificate": self.certificate,
            "decision": self.decision,
            **criteria(self.outcome),
            "loss_unit": self.loss_unit,
            "mean_demand": None if self.mean_demand is None
            else asdict(self.mean_demand.decision) | criteria(self.mean_demand),
            "mean_demand_reason": self.mean_reason,
            "knowing_demand": self.knowing_demand,
            "knowing_state": self.knowing_state,
            "rows": self.rows(),
            "warnings": self.warnings,
            "provenance": self.provenance,
        })  # fmt: skip

    def to_frame(self) -> "pd.DataFrame":
        """One row a state."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        d, mean = self.decision, self.mean_demand
        asked = {
            "expected": "least expected loss",
            "cvar": f"least mean loss of the worst {100 * (1 - self.level):g} %",
            "regret": "least worst regret",
        }[self.criterion]
        if mean is None:
            against = f"no plan at mean demand: {self.mean_reason}"
        elif mean.unserved:
            against = f"the plan made at mean demand cannot serve {len(mean.unserved)} of {len(self.states)} states"
        else:
            against = (
                f"the plan made at mean demand: expected loss {mean.expected_loss:.5f}, "
                f"worst regret {100 * mean.worst_regret:.3g} %"
            )
        return (
            f"{one_line(self.title)}: {self.status}, {asked} over {len(self.states)} states\n"
            f"  n_active {short_count(d.n_active)}, d_pretrain {short_count(d.d_pretrain)}, "
            f"d_rl {short_count(d.d_rl)}, k {significant(np.nanmin(self.k))} to {significant(np.nanmax(self.k))}\n"
            f"  expected loss {self.expected_loss:.5f}, worst {100 * (1 - self.level):g} % {self.cvar:.5f}, "
            f"worst regret {100 * self.worst_regret:.3g} %\n"
            f"  {against}\n"
            f"  knowing the demand would save {100 * self.knowing_demand.budget:.3g} % of the budget"
        )


@dataclass(frozen=True, eq=False)
class Derating:
    """A model that may not ship, planned in two ways; they differ in who owns the budget that is not spent.

    `committed` has the whole budget to itself in either case, so what serving does not cost is lost to it: whether it
    ships then makes no difference to the best decision. `pooled` shares a budget that has to hold on average over many
    such models: its expected cost is the cost at the demand times the probability, which is the lecture's derating, and
    where it ships it costs `over_budget` more than its share.
    """

    probability: float
    committed: RobustPlan
    pooled: Plan
    over_budget: float

    def __str__(self) -> str:
        a, b = self.committed.decision, self.pooled.decision
        assert b is not None
        return (
            f"ships with probability {self.probability:g}\n"
            f"  budget of its own: n_active {short_count(a.n_active)}, d_pretrain {short_count(a.d_pretrain)}, "
            f"d_rl {short_count(a.d_rl)}\n"
            f"  budget on average: n_active {short_count(b.n_active)}, d_pretrain {short_count(b.d_pretrain)}, "
            f"d_rl {short_count(b.d_rl)}; {100 * self.over_budget:.3g} % over it where it ships"
        )


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
    world = _world(scenario, states, law, seed)
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
    world = _world(scenario, states, law, seed)
    zero = bool(world.stage.axis.allows_zero)
    for name, number in (("n_active", n_active), ("d_pretrain", d_pretrain), ("d_rl", d_rl)):
        least = name == "d_rl" and zero and number == 0
        if not (least or (number > 0 and math.isfinite(number))):
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
    _refuse_target(scenario)
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


def criteria(told: Evaluated) -> dict[str, Any]:
    """The figures of a commitment that are one number each."""
    names = ("expected_loss", "cvar", "worst_loss", "worst_regret", "worst_loss_gap", "unserved")
    return {name: getattr(told, name) for name in names}


def tail_mean(loss: Float[np.ndarray, " states"], probability: Float[np.ndarray, " states"], level: float) -> float:
    """Mean of the largest losses that hold 1 - `level` of the probability (CVaR); the largest one at level 1."""
    order = np.argsort(-loss, kind="stable")
    loss, probability = loss[order], probability[order]
    if level >= 1:
        return float(loss[probability > 0][0])
    before = np.concatenate([[0.0], np.cumsum(probability)[:-1]])
    taken = np.clip(1 - level - before, 0.0, probability)
    some = taken > 0  # an infinite loss beyond the tail is none of its business
    return float(taken[some] @ loss[some] / taken.sum())


class _World:
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
        found = optimise_many(problems, starts=1, convex=True, reference=self.warm, seed=self.seed)
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
        gap = np.where(wanted, log_reducible - self.own_log, 0.0)
        self.warm = self.own_z.copy()
        shift = np.where(wanted, gap / np.maximum(self.own_price, LEAST_PRICE), 0.0)
        shift = np.where(np.abs(gap) < 1e-13, 0.0, np.clip(shift, -1.0, 5.0))
        left = wanted & (np.abs(gap) >= 1e-13)
        for _ in range(25):
            if not left.any():
                break
            value, price = self.own_at(np.where(left, shift, 0.0))
            move = np.where(left, (log_reducible - value) / price, 0.0)
            left &= np.isfinite(move) & (price > LEAST_PRICE)
            shift = np.where(left, shift + np.clip(move, -2.0, 2.0), shift)
            left &= np.abs(move) > 1e-11 * (1 + np.abs(shift))
            if not np.isfinite(shift[wanted]).all():
                break
        value, _ = self.own_at(np.where(wanted, shift, 0.0))
        ill = wanted & ~(np.abs(value - log_reducible) < 1e-9)
        out = np.where(wanted, np.expm1(shift), np.where(self.solved, math.inf, math.nan))
        for i in np.flatnonzero(ill):
            problem = jax.tree.map(lambda x, i=i: np.asarray(x)[i], self.problems)
            try:
                out[i] = math.exp(problem.log_limit) / least_cost(problem, log_reducible[i], self.own_z[i]) - 1
            except NoPlanError:
                out[i] = math.nan
        return out

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


def _one() -> Any:
    """1 as an array, for a stage."""
    return np.float64(1.0)


def _check(criterion: str, level: float) -> None:
    if criterion not in CRITERIA:
        raise ScenarioError([f"criterion: got {criterion!r}; must be one of {', '.join(CRITERIA)}"])
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 <= level < 1:
        raise ScenarioError([f"level: got {level!r}; must be >= 0 and < 1"])


def _refuse_target(scenario: Scenario) -> None:
    if scenario.objective.target_loss is not None:
        raise ScenarioError(["objective.target_loss: a robust plan spends one budget whatever happens, so it needs "
                             "compute_flop, chip_hours, usd or energy_joule in its place"])  # fmt: skip


def _world(scenario: Scenario, states: States, law: Law | None, seed: int) -> _World:
    _refuse_target(scenario)
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
    return _World(scenario, arrays, states, law, plans, rows, problems, seed)


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


def _at_open_end(world: _World, v: np.ndarray) -> np.ndarray:
    ends = [np.asarray(side)[world.counted, :3].all(axis=0)
            for side in (world.problems.open_lower, world.problems.open_upper)]  # fmt: skip
    lower, upper = np.asarray(world.stage.lower), np.asarray(world.stage.upper)
    return (ends[0] & (v[:3] - lower < 1)) | (ends[1] & (upper - v[:3] < 1))


def _starts(world: _World) -> np.ndarray:
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


def _unservable(world: _World) -> InfeasibleError:
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


def _mean_decision(world: _World, states: States) -> tuple[np.ndarray | None, str | None, Commitment | None]:
    """The plan that takes the mean of all states for certain: (shared coordinates, why there is none, decision)."""
    values = States(world.arrays, states.probability).mean()
    try:
        built = built_at(world.scenario, values, world.law)[1]
        decision = optimise(built.problem, seed=world.seed).decision
    except AllocatorError as error:
        return None, " ".join(str(error).split()), None
    v = world.coordinates(*decision[:3])
    return v, None, Commitment(*(tidy(x) for x in decision[:3]))


def _mean_plan(world: _World, level: float) -> tuple[Evaluated | None, str | None]:
    v, reason, decision = world.mean
    return (None, reason) if v is None else (world.evaluate(v, level, decision), None)


def _commit(world: _World, starts: np.ndarray, criterion: str, level: float) -> tuple[Committed | None, int]:
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


def _least_tail(world: _World, starts: np.ndarray, level: float) -> Committed | None:
    # The multipliers sum to 1, so a weight above 1 is as good as any and keeps the numbers in range.
    weight = np.minimum(np.asarray(world.stage.weight) / (1 - level), 2.0)
    stage = world.stage._replace(weight=weight, threshold=_one())
    some, scale, offset = world.counted, float(stage.scale), float(stage.offset)
    starts = starts.copy()
    for v in starts:
        told = np.asarray(outcome(stage, v).log_reducible)[: len(some)][some]
        loss = (world.floor[some] + np.exp(told) - offset) / scale
        order = np.argsort(loss)
        at = np.searchsorted(np.cumsum(world.weight[some][order]), level)
        v[3] = loss[order][min(at, len(loss) - 1)]  # the tail's threshold
    return minimise(stage, starts)


def _least_regret(world: _World, starts: np.ndarray) -> Committed | None:
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
            threshold=_one(),
            in_logs=_one(),
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


def _knowing(world: _World, v: np.ndarray, starts: np.ndarray, expected_loss: float) -> tuple[Knowledge, Knowledge]:
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


def _notices(world: _World, told: Evaluated, mean: Evaluated | None, knowing: Knowledge) -> tuple[Notice, ...]:
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
