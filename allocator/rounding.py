"""A plan in whole things: samples, layers, widths, chips; what each way of rounding costs."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from allocator.errors import AllocatorError
from allocator.optimum.accounts import PHASES, account
from allocator.optimum.result import Plan, PlannedDecision, plain_values
from allocator.pinned_optima import at_loss, optimise_pinned, solved_problem
from allocator.problem import DECISIONS, Decision, Problem, to_coordinates, to_decision
from allocator.scenario.reading import with_values
from allocator.scenario.schema import Scenario
from allocator.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, one_line, short_count, significant, tidy
from allocator.whole_shapes import MULTIPLE, WholeShape, nearest_shapes

if TYPE_CHECKING:
    import pandas as pd

WHOLE = "whole"
RUNS = {"pretrain": 1, "rl": 2}  # phases whose run has a length, and the decision that fills it
HOURS_PER_DAY = SECONDS_PER_DAY / SECONDS_PER_HOUR
SAME = 1e-9  # relative: what is this near to a whole number is one


@dataclass(frozen=True)
class Candidate:
    """One way of rounding, the other decisions re-optimised; without a plan it has a reason."""

    decision: PlannedDecision | None
    rounded: tuple[str, ...]  # decisions that were held at their rounded values
    loss: float
    cost: float  # in the scenario's currency
    regret: float  # extra budget over the unrounded optimum of the same loss
    chips: Mapping[str, int] = field(default_factory=dict)  # by phase, for the run lengths asked for
    shape: WholeShape | None = None
    reason: str | None = None


@dataclass(frozen=True)
class RoundedPlan:
    """Ways of rounding a plan, the cheapest first, those without a plan last."""

    title: str
    candidates: tuple[Candidate, ...]
    unrounded: PlannedDecision
    days: Mapping[str, float]
    scenario: Scenario | None = field(default=None, repr=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def best(self) -> Candidate:
        """The candidate of least regret; raise `AllocatorError` where none has a plan."""
        first = self.candidates[0]
        if first.decision is None:
            raise AllocatorError(f"round_plan: no way of rounding gives a plan: {first.reason}")
        return first

    def best_scenario(self) -> Scenario:
        """The scenario with the best candidate's rounded decisions fixed, to solve (or evaluate, if that is all)."""
        if self.scenario is None:
            raise AllocatorError("plan: has no scenario to fix decisions in")
        best = self.best
        values = {f"decisions.{name}": getattr(best.decision, name) for name in best.rounded}
        return with_values(self.scenario, values)

    def rows(self) -> list[dict[str, Any]]:
        """A flat row a candidate."""
        rows = []
        for i, c in enumerate(self.candidates):
            row: dict[str, Any] = {"best": i == 0 and c.decision is not None, "regret": c.regret}
            row |= dict.fromkeys(PlannedDecision.__dataclass_fields__, math.nan)
            row |= asdict(c.decision) if c.decision is not None else {}
            row |= {"loss": c.loss, "cost": c.cost, "rounded": ", ".join(c.rounded)}
            row |= {f"chips_{phase}": c.chips.get(phase) for phase in PHASES}
            shape = None if c.shape is None else asdict(c.shape)
            row |= {
                key: None if shape is None else shape[key]
                for key in ("layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "d_expert")
            }
            rows.append(row | {"reason": c.reason})
        return rows

    def to_frame(self) -> "pd.DataFrame":
        """One row a candidate."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, every number finite or None."""
        return plain_values(
            {"schema": "allocator.round/1", "title": self.title, "unrounded": self.unrounded,
             "days": dict(self.days), "rows": self.rows(), "warnings": (), "provenance": self.provenance}
        )  # fmt: skip

    def __str__(self) -> str:
        best = self.candidates[0]
        if best.decision is None:
            return f"{one_line(self.title)}: not rounded: {best.reason}"
        d = best.decision
        lines = [
            f"{one_line(self.title)}: {len(self.candidates)} ways of rounding, the best needs "
            f"{percent(best.regret)} more budget",
            f"  n_active {short_count(d.n_active)}, d_pretrain {short_count(d.d_pretrain)}, "
            f"d_rl {short_count(d.d_rl)}, k {significant(d.k)}",
        ]
        lines += [f"  {best.shape.family}: {best.shape}"] if best.shape is not None else []
        return "\n".join(lines)


def round_plan(
    plan: Plan,
    *,
    k: str | float | None = WHOLE,
    shape: str | None = None,
    multiple: int = MULTIPLE,
    days: float | Mapping[str, float] | None = None,
) -> RoundedPlan:
    """Round a plan's decisions, re-optimise the rest under the same objective, and tell what each way costs.

    `k`: "whole" takes the whole samples on either side, a number that number, None leaves k alone; so is a k that the
    scenario fixes. `shape` names a catalogued model in whose family the nearest shapes are sought, with widths that
    are multiples of `multiple`. `days` is the length of the pre-training run, or of the runs by phase (pretrain, rl):
    tokens then fill a whole number of chips, either way, at the scenario's chip and MFU, and N is held. Samples are
    rounded first, then the size that is best for them, then the tokens that are best for both.

    Raises `AllocatorError` for wrong input and where there is nothing to round.
    """
    problem, z = solved_problem(plan, "round_plan")
    assert plan.decision is not None
    free = np.asarray(problem.lower) < np.asarray(problem.upper)
    runs = _runs(problem, days, free)
    _check_shape(plan.decision.n_active, shape, free)
    samples = _samples(problem, plan.decision.k, k, free)
    if not runs and shape is None and samples == [None]:
        own = f"fixed at {plan.decision.k:g}" if not free[3] else "left as it is"
        raise AllocatorError(f"decisions.k: {own}, so nothing is left to round: give a shape or days")
    pins = np.array([_pins(problem, {3: count}) for count in samples])
    # Samples first: they move the size, whose shapes move the tokens, which fill the chips.
    ways = [_Way(pins[0], None, z)] if samples == [None] else _solved(problem, pins, [None] * len(pins), z)
    if shape is not None:
        ways = _shaped(problem, ways, shape, multiple)
    if runs:
        ways = _filled(problem, ways, runs)
    candidates = _candidates(problem, ways, z, {**runs, **_serving(plan)})
    return RoundedPlan(
        title=plan.title,
        candidates=tuple(sorted(candidates, key=lambda c: (c.decision is None, c.regret))),
        unrounded=plan.decision,
        days=runs,
        scenario=plan.scenario,
        provenance=plan.provenance,
    )


def percent(share: float) -> str:
    """A share as people say it; what is beneath a millionth is nothing."""
    return "0 %" if abs(share) < 1e-6 else f"{significant(100 * share, 2)} %"


@dataclass
class _Way:
    """Decisions held at rounded values, in the solver's coordinates, and the optimum for them."""

    pins: Float[np.ndarray, "4"]
    shape: WholeShape | None
    z: Float[np.ndarray, "4"] | None
    reason: str | None = None


def _pins(problem: Problem, values: Mapping[int, float | None]) -> Float[np.ndarray, "4"]:
    """Coordinates of some decisions, NaN for the others."""
    given = Decision(*(1.0 if values.get(i) is None else float(values[i] or 0.0) for i in range(4)))
    at = to_coordinates(problem, given)
    return np.array([np.nan if values.get(i) is None else at[i] for i in range(4)])


def _samples(problem: Problem, planned: float, k: Any, free: np.ndarray) -> list[float | None]:
    low, high = float(np.exp(problem.lower[3])), float(np.exp(problem.upper[3]))
    if k is None or not free[3]:
        if isinstance(k, int | float) and not isinstance(k, bool) and not math.isclose(k, planned, rel_tol=SAME):
            raise AllocatorError(f"k: got {k!r}; the scenario fixes it at {planned:g}")
        _check_k(k)
        return [None]
    _check_k(k)
    if k == WHOLE:
        near = round(planned)
        both = [near] if abs(planned - near) < SAME * planned else [math.floor(planned), math.ceil(planned)]
        options = sorted({max(float(value), 1.0) for value in both})
        inside = [value for value in options if low * (1 - SAME) <= value <= high * (1 + SAME)]
        if not inside:
            raise AllocatorError(f"k: got {k!r}; no whole number >= 1 next to {planned:.4g} is within the bounds on k")
        return [*inside]
    if not low * (1 - SAME) <= k <= high * (1 + SAME):
        raise AllocatorError(f"k: got {k!r}; must be from {low:g} to {high:g}, the bounds on k")
    return [float(k)]


def _check_k(k: Any) -> None:
    number = isinstance(k, int | float) and not isinstance(k, bool) and 0 < k < math.inf
    if not (k is None or number or (isinstance(k, str) and k == WHOLE)):
        raise AllocatorError(f'k: got {k!r}; must be "whole", a number > 0 or None')


def _check_shape(planned: float, shape: Any, free: np.ndarray) -> None:
    if shape is not None and not isinstance(shape, str):
        raise AllocatorError(f"shape: got {shape!r}; must be the name of a model, see allocator catalog models")
    if shape is not None and not free[0]:
        raise AllocatorError(f"shape: got {shape!r}; the scenario fixes n_active at {planned:g}, so no size is left")


def _shaped(problem: Problem, ways: list[_Way], shape: str, multiple: int) -> list[_Way]:
    """Each way once for every shape next to its size that is within the bounds."""
    pins, shapes, near, lost = [], [], [], [way for way in ways if way.z is None]
    low, high = float(problem.lower[0]), float(problem.upper[0])
    for way in ways:
        for found in () if way.z is None else nearest_shapes(shape, math.exp(way.z[0]), multiple=multiple):
            log_n = math.log(found.n_active)
            if low - SAME <= log_n <= high + SAME:
                pins.append(np.where(np.arange(4) == 0, np.clip(log_n, low, high), way.pins))
                shapes.append(found)
                near.append(way.z)
    if not pins and not lost:
        raise AllocatorError(
            f"shape: got {shape!r}; none of its shapes next to the plan's size is within the bounds on N"
        )
    return (_solved(problem, np.array(pins), shapes, np.array(near)) if pins else []) + lost


def _runs(problem: Problem, days: Any, free: np.ndarray) -> dict[str, float]:
    """Run lengths by phase, checked."""
    if days is None:
        return {}
    given = days if isinstance(days, Mapping) else {"pretrain": days}
    for phase, length in given.items():
        if phase not in RUNS:
            raise AllocatorError(f"days: got phase {phase!r}; must be one of {', '.join(RUNS)}")
        if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length < math.inf:
            raise AllocatorError(f"days: got {length!r} for {phase}; must be a finite number > 0")
        if not free[RUNS[phase]]:
            raise AllocatorError(
                f"days: got {length!r} for {phase}; {DECISIONS[RUNS[phase]]} is fixed and fills no chips"
            )
        if not math.isfinite(_chip_hours(problem, 25.0)[RUNS[phase] - 1]):
            raise AllocatorError(f"days: got {length!r} for {phase}; needs [hardware] with a chip, and pretraining.mfu")
    return {phase: float(length) for phase, length in given.items()}


def _chip_hours(problem: Problem, log_n: float) -> tuple[float, float]:
    """Chip-hours per token of pre-training and of RL at a size."""
    rates = problem.costs.rates(np.float64(log_n), "chip_hours")  # pyright: ignore[reportArgumentType]
    return float(rates.d), float(rates.r)


def _solved(problem: Problem, pins: np.ndarray, shapes: list[WholeShape | None], z: np.ndarray) -> list[_Way]:
    """The optimum for each row of pins; where nothing is left free, the pins themselves."""
    fixed = np.asarray(problem.lower) >= np.asarray(problem.upper)
    whole = (~np.isnan(pins) | fixed).all(axis=1)
    at = np.where(np.isnan(pins), np.broadcast_to(problem.lower, pins.shape), pins)
    rows = np.flatnonzero(~whole)
    if len(rows):
        at[rows] = optimise_pinned(problem, pins[rows], np.broadcast_to(z, pins.shape)[rows]).z
    found = [bool(np.isfinite(row).all()) for row in at]
    limit = "the target loss is not reached" if float(problem.minimise_cost) > 0.5 else "the budget does not pay for it"
    return [
        _Way(pins[i], shapes[i], at[i] if found[i] else None, None if found[i] else f"{limit}, or no optimum verified")
        for i in range(len(pins))
    ]


def _filled(problem: Problem, ways: list[_Way], runs: Mapping[str, float]) -> list[_Way]:
    """Each way once for every number of chips, floor and ceiling, that its tokens can fill; its size is held."""
    pins, shapes, near, lost = [], [], [], [way for way in ways if way.z is None]
    for way in ways:
        if way.z is None:
            continue
        tokens, per_token = to_decision(problem, way.z), _chip_hours(problem, float(way.z[0]))
        held = np.where(np.arange(4) == 0, way.z, way.pins)
        options = []
        for phase, days in runs.items():
            i = RUNS[phase]
            each = days * HOURS_PER_DAY / per_token[i - 1]  # tokens of one chip
            chips = tokens[i] / each
            both = {round(chips)} if abs(chips - round(chips)) < SAME * chips else {math.floor(chips), math.ceil(chips)}
            options.append([(i, count * each) for count in sorted(both) if count >= 1 or tokens[i] == 0])
        for choice in product(*options):
            pin = _pins(problem, dict(choice))
            pin = np.where(np.isnan(pin), held, pin)
            nearest = np.clip(pin, problem.lower, problem.upper)
            if not (np.abs(nearest - pin) > SAME).any():  # NaN compares as false
                pins.append(nearest)
                shapes.append(way.shape)
                near.append(way.z)
    if not pins and not lost:
        raise AllocatorError("days: no whole number of chips keeps the tokens within their bounds; give other lengths")
    return (_solved(problem, np.array(pins), shapes, np.array(near)) if pins else []) + lost


def _serving(plan: Plan) -> dict[str, float]:
    """Days over which the plan's tokens are served, where the scenario says."""
    deployment = None if plan.scenario is None else plan.scenario.deployment
    days = None if deployment is None else deployment.lifetime_days
    return {} if days is None else {"inference": float(days)}


def _candidates(problem: Problem, ways: list[_Way], z: np.ndarray, days: Mapping[str, float]) -> list[Candidate]:
    solved = [way for way in ways if way.z is not None]
    figures = [account(problem, way.z) for way in solved if way.z is not None]
    least = np.zeros(0)
    if solved:
        target = at_loss(problem, figures[0].log_reducible)
        limits = np.array([told.log_reducible for told in figures])
        none = np.full((len(solved), 4), np.nan)
        least = optimise_pinned(target, none, np.broadcast_to(z, none.shape), log_limits=limits).value
    tokens = float(problem.costs.lifetime_tokens)
    out = [Candidate(None, _names(way), math.nan, math.nan, math.nan, {}, way.shape, way.reason)
           for way in ways if way.z is None]  # fmt: skip
    for way, told, log_least in zip(solved, figures, least, strict=True):
        exact = [tidy(x) for x in told.decision]
        if way.shape is not None:
            exact[0] = way.shape.n_active
        reason = None if math.isfinite(log_least) else "no optimum of its loss verified, so its regret is not known"
        # Rounding cannot gain; what is below 0 is the noise of two solutions.
        regret = math.nan if reason else max(math.expm1(math.log(told.cost) - log_least), 0.0)
        chips = _chips(problem, told, days)
        decision = PlannedDecision.of(Decision(*exact), tokens) if reason is None else None
        out.append(Candidate(decision, _names(way), told.loss, told.cost, regret, chips, way.shape, reason))
    return out


def _names(way: _Way) -> tuple[str, ...]:
    return tuple(name for name, pin in zip(DECISIONS, way.pins, strict=True) if not np.isnan(pin))


def _chips(problem: Problem, told: Any, days: Mapping[str, float]) -> dict[str, int]:
    """Whole chips that the phases need for so many days: those that runs fill, and enough to serve."""
    log_n, costs = math.log(told.decision.n_active), problem.costs
    machines = costs.pretrain.machine, costs.rl.machine, costs.decode.machine
    out: dict[str, int] = {}
    for phase, flop, machine in zip(PHASES, told.flop, machines, strict=True):
        if phase in days:
            hours = flop * float(costs.price_of_flop(machine, "chip_hours", log_n))
            if math.isfinite(hours):
                out[phase] = math.ceil(hours / (days[phase] * HOURS_PER_DAY) * (1 - SAME))
    return out
