"""A scenario at many values of its assumptions: plans as arrays, each point verified, each failure with its reason."""

import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from allocator.errors import AllocatorError, NoPlanError, ScenarioError, SolveError
from allocator.laws.law import Law, PretrainingLaw
from allocator.optimum import certificates
from allocator.optimum.accounts import PHASES, Figures, chinchilla_tokens, figures
from allocator.optimum.interior import at_open_end, exponents_too_large
from allocator.optimum.many import in_batches, optimise_many
from allocator.optimum.newton import derivatives, polish
from allocator.optimum.planning import evaluate, failed_plan, plan_of
from allocator.optimum.result import Plan
from allocator.optimum.solving import Solution, optimise, residuals
from allocator.precision import require_float64
from allocator.problem import DECISIONS, Decision, Problem
from allocator.scenario.assumptions import LAW, find_path, problem_at, template
from allocator.scenario.building import Built, build
from allocator.scenario.rules import EITHER_OR
from allocator.scenario.schema import Bounds, Scenario

if TYPE_CHECKING:
    import pandas as pd

STARTS = 12  # of Newton for each problem whose law may have several local optima
ZERO_MATTERS = ("law.overlap", "law.test_time.floor_share")  # 0 leaves a term out, and with it a bound on k


@dataclass(frozen=True)
class Plans:
    """Plans of one scenario at many values of some keys; arrays have one entry a plan, NaN where there is none."""

    scenario: Scenario
    values: Mapping[str, Float[np.ndarray, " plans"]]  # by key path
    status: np.ndarray  # as a plan's
    reason: np.ndarray  # why there is no plan, else None
    certificate: np.ndarray
    starts: np.ndarray  # tried for each plan
    figures: Figures  # of NumPy arrays
    chinchilla_tokens: Float[np.ndarray, " plans"]  # compute-optimal for the N of each plan, NaN for a user's law
    shadow_price: Float[np.ndarray, " plans"]
    kkt_residual: Float[np.ndarray, " plans"]
    constraint_residual: Float[np.ndarray, " plans"]
    z: Float[np.ndarray, "plans 4"] = field(repr=False)  # in the solver's coordinates
    binding: np.ndarray = field(repr=False)
    user_law: Law | None = field(default=None, repr=False)
    weighed: bool = False  # the decisions are the optimum of a weighted problem, told at `values`

    def __len__(self) -> int:
        return len(self.status)

    def __iter__(self) -> Iterator[Plan]:
        return (self[i] for i in range(len(self)))

    @property
    def solved(self) -> np.ndarray:
        """Whether there is a plan."""
        return np.isin(self.status.astype(str), ("optimal", "best_of_starts"))

    @property
    def tokens_per_param(self) -> Float[np.ndarray, " plans"]:
        """Pre-training tokens per active parameter."""
        return np.asarray(self.figures.decision.d_pretrain / self.figures.decision.n_active)

    @property
    def shares(self) -> Float[np.ndarray, "plans 3"]:
        """Shares of paid FLOP: pre-training, RL, inference."""
        flop = np.asarray(self.figures.flop)
        return flop / flop.sum(axis=1, keepdims=True)

    def __getitem__(self, i: int) -> Plan:
        """One plan, whole: with warnings, elasticities, certificate and provenance."""
        i = operator.index(i)
        values = {path: float(numbers[i]) for path, numbers in self.values.items()}
        if not self.solved[i]:
            return failed_plan(self.scenario, self.user_law, SolveError(self.reason[i], status=str(self.status[i])))
        scenario, built = built_at(self.scenario, values, self.user_law)
        if self.weighed:
            decision = {name: float(x[i]) for name, x in self.figures.decision._asdict().items()}
            return evaluate(scenario, law=self.user_law, **decision)
        point = jax.tree.map(np.asarray, polish(built.problem, self.z[i], self.binding[i]))
        kkt, constraint = residuals(point)
        solution = Solution(built.problem, point, str(self.certificate[i]), int(self.starts[i]), kkt, constraint)
        return plan_of(scenario, built, solution)

    def to_frame(self) -> "pd.DataFrame":
        """One row a plan: the values, decisions, shares of FLOP, loss, cost and over-training; units in the names."""
        import pandas as pd

        told, ratio = self.figures, self.tokens_per_param
        columns: dict[str, Any] = {**self.values, "status": self.status, "reason": self.reason}
        columns |= {**told.decision._asdict(), "d_inference": told.d_inference}
        columns |= {f"share_{name}": self.shares[:, i] for i, name in enumerate(PHASES)}
        columns |= {"loss": told.loss, "reducible_loss": np.exp(told.log_reducible), "flop": told.flop.sum(axis=1)}
        columns |= {"tokens_per_param": ratio, "vs_20": ratio / 20}
        columns |= {"vs_chinchilla": told.decision.d_pretrain / self.chinchilla_tokens}
        columns |= {"cost": np.exp(told.log_cost), "shadow_price": self.shadow_price}
        return pd.DataFrame(columns)

    def __str__(self) -> str:
        done = int(self.solved.sum())
        worst = float(np.nanmax(self.kkt_residual)) if done else float("nan")
        return f"{done} of {len(self)} plans over {', '.join(self.values)}; worst KKT residual {worst:.1e}"


def solve_batch(
    scenario: Scenario,
    values: Mapping[str, Any] | None = None,
    *,
    law: Law | None = None,
    starts: int = STARTS,
    seed: int = 0,
    **named: Any,
) -> Plans:
    """Solve a scenario at many values of its numbers at once.

    `values` maps key paths of the scenario, or `law.pretraining.NAME` for a parameter of the pre-training law, to
    arrays of one length (or numbers); keywords do the same for names that are clear without their path. `law` replaces
    the scenario's own. Each point is verified by its residuals, multipliers and reduced Hessian; where Newton's points
    do not verify, the problem is solved as `solve` does. A point without a plan is NaN with status and reason.

    Raises `ScenarioError` for a value out of range and `AllocatorError` for values that are not numbers, or no values.
    """
    require_float64()
    given = {find_path(scenario, name): value for name, value in {**(values or {}), **named}.items()}
    arrays = _arrays(given)
    if law is not None:
        own = [path for path in arrays if path.startswith("law.")]
        if own:
            raise ScenarioError([f"{path}: the given law replaces [law]" for path in own])
    base = _checked(scenario, arrays)
    groups = _groups(base, arrays)
    if len(groups) == 1:
        return _solve(base, arrays, law, starts, seed)
    parts = []
    for rows in groups:
        own = template(base, {path: float(arrays[path][rows[0]]) for path in ZERO_MATTERS if path in arrays})
        parts.append(_solve(own, {path: numbers[rows] for path, numbers in arrays.items()}, law, starts, seed))
    return _joined(base, arrays, groups, parts)


def _arrays(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not given:
        raise AllocatorError("solve_batch: name at least one key to vary, e.g. compute_flop=[1e26, 1e27]")
    arrays = {}
    for path, value in given.items():
        try:
            numbers = np.atleast_1d(np.asarray(value, float))
        except (TypeError, ValueError):
            raise AllocatorError(f"{path}: its values must be numbers") from None
        if numbers.ndim != 1 or not len(numbers):
            raise AllocatorError(
                f"{path}: must be a list of at least one number, got an array of shape {numbers.shape}"
            )
        if not np.isfinite(numbers).all():
            i = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise AllocatorError(f"{path}: value {i + 1} of {len(numbers)} is {numbers[i]}; must be a finite number")
        arrays[path] = numbers
    lengths = {len(numbers) for numbers in arrays.values()} - {1}
    if len(lengths) > 1:
        told = ", ".join(f"{path} has {len(numbers)}" for path, numbers in arrays.items())
        raise AllocatorError(f"solve_batch: keys must have as many values as each other: {told}")
    count = max(lengths, default=1)
    return {path: np.broadcast_to(numbers, count) for path, numbers in arrays.items()}


def _checked(scenario: Scenario, arrays: Mapping[str, np.ndarray]) -> Scenario:
    """The scenario with all keys present, after both ends of every key's values passed the checks of a file."""
    for group in EITHER_OR:
        named = [option for option in group if any(path in option for path in arrays)]
        if len(named) > 1:
            both = " and ".join(next(path for path in option if path in arrays) for option in named)
            raise ScenarioError([f"{both}: exclude each other; vary one"])
    first = {path: float(numbers[0]) for path, numbers in arrays.items()}
    base = template(scenario, first)
    for path, numbers in arrays.items():
        if path.startswith(LAW) and (numbers.min() < 0 or (numbers.min() == 0 and path != f"{LAW}E")):
            raise ScenarioError([f"{path}: got {numbers.min():g}; must be > 0"])
        low, high = int(np.argmin(numbers)), int(np.argmax(numbers))
        for row in {low, high} - {0}:  # whole rows, since keys have rules in common, as the ends of a range have
            template(base, {path: float(x[row]) for path, x in arrays.items()})
    for name in DECISIONS:
        ends = [arrays.get(f"decisions.{name}.{end}") for end in ("min", "max")]
        choice = getattr(base.decisions, name)
        if all(end is None for end in ends) or not isinstance(choice, Bounds):
            continue
        least = choice.min if ends[0] is None else ends[0]
        most = choice.max if ends[1] is None else ends[1]
        if least is not None and most is not None and (np.asarray(least) > np.asarray(most)).any():
            row = int(np.argmax(np.asarray(least) > np.asarray(most)))
            told = [float(np.ravel(x)[row if np.ndim(x) else 0]) for x in (least, most)]
            raise ScenarioError([f"decisions.{name}: row {row + 1}: min {told[0]:g} must be <= max {told[1]:g}"])
    return base


def _groups(scenario: Scenario, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Rows whose problems have the same structure: a term that is 0 is left out, and equal ends fix a decision."""
    keys = [arrays[path] == 0 for path in ZERO_MATTERS if path in arrays]
    for name in DECISIONS:
        choice = getattr(scenario.decisions, name)
        ends = [arrays.get(f"decisions.{name}.{end}", getattr(choice, end, None)) for end in ("min", "max")]
        if isinstance(choice, Bounds):
            least, most = (np.inf if end is None else np.asarray(end, float) for end in ends)
            keys.append(np.isfinite(most) & (least == most))
    count = len(next(iter(arrays.values())))
    codes = sum((np.broadcast_to(key, count).astype(int) << i for i, key in enumerate(keys)), np.zeros(count, int))
    return [np.flatnonzero(codes == code) for code in np.unique(codes)]


def _solve(scenario: Scenario, arrays: Mapping[str, np.ndarray], law: Law | None, starts: int, seed: int) -> Plans:
    count = len(next(iter(arrays.values())))
    rows = [{path: float(numbers[i]) for path, numbers in arrays.items()} for i in (0, count // 2)]
    rows.append({path: float(np.median(numbers)) for path, numbers in arrays.items()})
    example = reference = None
    for values in reversed(rows):
        with suppress(AllocatorError):
            example = built_at(scenario, values, law)[1]
            reference = np.asarray(optimise(example.problem, seed=seed).point.z)
            break
    if example is None:  # not one of its rows makes a problem, so each says why
        return _one_by_one(scenario, arrays, law, seed)
    kind = certificates.certificate_kind(example.problem)
    convex = kind in (certificates.GEOMETRIC_PROGRAM, certificates.CONVEX_FIXED_N)
    # A certificate of one dimension takes a scan of sizes for each problem, which a batch does not make.
    kind = kind if convex else certificates.BEST_OF_STARTS
    varied = {path: numbers for path, numbers in arrays.items() if path not in ZERO_MATTERS or numbers[0] != 0}
    problems, chinchilla = problems_at(scenario, varied, law, count)
    found = optimise_many(problems, starts=1 if convex else starts, convex=convex, reference=reference, seed=seed)
    solved = found.found & ~_ran_away(problems, np.asarray(found.point.z))
    point: Any = found.point
    d = point.derivatives
    told = in_batches(_figures, problems, point.z, d.value, d.jacobian)
    # Fixed decisions as they were stated, not through logs.
    stated = {name: _stated(name, arrays, np.full(count, value)) for name, value in example.fixed.items()}
    told = told._replace(decision=told.decision._replace(**stated))
    word = "best_of_starts" if kind == certificates.BEST_OF_STARTS else "optimal"
    return _with_repairs(
        Plans(
            scenario=scenario,
            values=arrays,
            status=np.where(solved, word, "").astype(object),
            reason=np.full(count, None),
            certificate=np.full(count, kind, object),
            starts=found.starts,
            figures=_blank(told, ~solved),
            chinchilla_tokens=_blank(in_batches(_optimal_tokens, chinchilla, point.z), ~solved)
            if chinchilla is not None else np.full(count, np.nan),
            shadow_price=_blank(point.multiplier, ~solved),
            kkt_residual=_blank(found.kkt_residual, ~solved),
            constraint_residual=_blank(found.constraint_residual, ~solved),
            z=_blank(point.z, ~solved),
            binding=point.binding,
            user_law=law,
        ),
        seed,
    )  # fmt: skip


def _stated(name: str, arrays: Mapping[str, np.ndarray], otherwise: np.ndarray) -> np.ndarray:
    """The values of a fixed decision, which may be fixed by equal ends."""
    keys = (f"decisions.{name}{end}" for end in ("", ".min", ".max"))
    return next((arrays[key] for key in keys if key in arrays), otherwise)


def problems_at(
    scenario: Scenario, varied: Mapping[str, np.ndarray], law: Law | None, count: int
) -> tuple[Problem, PretrainingLaw | None]:
    """Problems and their pre-training laws with a leading axis, built by tracing the scenario's own building."""

    def at(values, _):
        built = problem_at(scenario, values, law)
        return built.problem, built.pretraining

    return jax.tree.map(np.asarray, jax.vmap(at)(dict(varied), np.zeros(count)))


def _ran_away(problems: Problem, z: np.ndarray) -> np.ndarray:
    """Which problems have no interior optimum, whatever local one was found."""
    return exponents_too_large(problems) | np.any(at_open_end(problems, z), axis=-1)


def told_at(plans: Plans, values: Mapping[str, np.ndarray]) -> Plans:
    """The same decisions, with what they give and cost at other numbers of the scenario."""
    problems, _ = problems_at(plans.scenario, values, plans.user_law, len(plans))
    told = _blank(in_batches(_told, problems, plans.z), ~plans.solved)
    told = told._replace(decision=plans.figures.decision)
    return replace(plans, values=values, figures=told, weighed=True)


def without(plans: Plans, rows: np.ndarray, reason: str) -> Plans:
    """The same plans, but for some that turn out to be none."""
    told = {name: _blank(getattr(plans, name), rows) for name in (
        "figures", "chinchilla_tokens", "shadow_price", "kkt_residual", "constraint_residual", "z")}  # fmt: skip
    status, reasons = (np.where(rows, x, old) for x, old in (("infeasible", plans.status), (reason, plans.reason)))
    return replace(plans, status=status, reason=reasons, **told)


@jax.jit
def _told(problems, z):
    def at(problem, z):
        d = derivatives(problem, z)
        return figures(problem, z, d.value, d.jacobian)

    return jax.vmap(at)(problems, z)


@jax.jit
def _figures(problems, z, value, jacobian):
    return jax.vmap(figures)(problems, z, value, jacobian)


@jax.jit
def _optimal_tokens(laws, z):
    return jnp.exp(jax.vmap(lambda law, z: law.log_optimal_tokens(z[0]))(laws, z))


def _blank(tree: Any, rows: np.ndarray) -> Any:
    def fill(x):
        x = np.array(x)
        x[rows] = np.nan
        return x

    return jax.tree.map(fill, tree)


def _with_repairs(plans: Plans, seed: int) -> Plans:
    """What Newton did not solve, solved on its own; what that does not solve either says why."""
    for i in np.flatnonzero(plans.status == ""):
        values = {path: float(numbers[i]) for path, numbers in plans.values.items()}
        try:
            _, built = built_at(plans.scenario, values, plans.user_law)
            solution = optimise(built.problem, seed=seed)
        except AllocatorError as error:
            plans.status[i] = error.status if isinstance(error, NoPlanError) else "infeasible"
            plans.reason[i] = " ".join(str(error).split())
            continue
        z, d = solution.point.z, solution.point.derivatives
        plans.status[i], plans.certificate[i], plans.starts[i] = solution.status, solution.certificate, solution.starts
        plans.z[i], plans.binding[i], plans.shadow_price[i] = z, solution.point.binding, solution.point.multiplier
        plans.kkt_residual[i], plans.constraint_residual[i] = solution.kkt_residual, solution.constraint_residual
        told = jax.tree.map(lambda x: np.asarray(x)[0], _figures(*jax.tree.map(lambda x: np.asarray(x)[None],
                                                  (built.problem, z, d.value, d.jacobian))))  # fmt: skip
        for whole, one in zip(jax.tree.leaves(plans.figures), jax.tree.leaves(told), strict=True):
            whole[i] = one
        if built.pretraining is not None:
            plans.chinchilla_tokens[i] = chinchilla_tokens(built.pretraining, float(told.decision.n_active))
    return plans


def _one_by_one(scenario: Scenario, arrays: Mapping[str, np.ndarray], law: Law | None, seed: int) -> Plans:
    count = len(next(iter(arrays.values())))

    def nothing(*shape: int) -> np.ndarray:
        return np.full((count, *shape), np.nan)

    one_each: dict[str, Any] = {name: nothing() for name in ("d_inference", "loss", "log_reducible", "log_cost")}
    by_phase: dict[str, Any] = {name: nothing(3) for name in ("model_flop", "flop", "phase_cost", "overheads")}
    by_decision: dict[str, Any] = {
        name: Decision(*(nothing() for _ in DECISIONS)) for name in ("decision", "elasticities")
    }
    told = Figures(**one_each, **by_phase, **by_decision)
    none = Plans(
        scenario=scenario,
        values=arrays,
        status=np.full(count, "", object),
        reason=np.full(count, None),
        certificate=np.full(count, "", object),
        starts=np.zeros(count, int),
        figures=told,
        chinchilla_tokens=nothing(),
        shadow_price=nothing(),
        kkt_residual=nothing(),
        constraint_residual=nothing(),
        z=nothing(4),
        binding=np.ones(count, bool),
        user_law=law,
    )
    return _with_repairs(none, seed)


def built_at(scenario: Scenario, values: Mapping[str, float], law: Law | None) -> tuple[Scenario, Built]:
    """The scenario with keys set to numbers, checked as a file's are, and its problem."""
    changed = template(scenario, values)
    parameters = {path.removeprefix(LAW): value for path, value in values.items() if path.startswith(LAW)}
    return changed, build(changed, law, parameters=parameters)


def _joined(
    scenario: Scenario, arrays: Mapping[str, np.ndarray], groups: list[np.ndarray], parts: list[Plans]
) -> Plans:
    """Groups of rows put back in their order."""
    order = np.argsort(np.concatenate(groups), kind="stable")
    whole: dict[str, Any] = {"scenario": scenario, "values": arrays}
    whole |= {name: getattr(parts[0], name) for name in ("user_law", "weighed")}
    for name in Plans.__dataclass_fields__:
        if name not in whole:
            trees = [getattr(part, name) for part in parts]
            whole[name] = jax.tree.map(lambda *pieces: np.concatenate(pieces)[order], *trees)
    return Plans(**whole)
