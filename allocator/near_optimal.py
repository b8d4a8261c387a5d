"""How flat the optimum is: what each decision may be while the plan's loss costs hardly more than it has to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from allocator.errors import AllocatorError
from allocator.near_optimal_edges import SMALLEST_WITHIN, Centre, Edges, centre_of, edges, levels
from allocator.optimum.result import Plan, PlannedDecision, plain_values
from allocator.pinned_optima import solved_problem
from allocator.problem import DECISIONS, Decision, Problem, to_coordinates, to_decision
from allocator.units import one_line, short_count, significant

if TYPE_CHECKING:
    import pandas as pd

WITHIN = 0.01  # extra budget
RAYS = 64  # of a contour
ROOM = 0.1  # in logs, around plans to show
HELD_BY = {
    "tolerance": "the extra budget is used up",
    "bound": "the scenario allows no more, and the extra budget is not used up",
    "open": "no end within the search range",
    "loss": "beyond it no plan within the scenario's bounds reaches the loss",
    "unsolved": "no plan beyond it could be verified",
}


@dataclass(frozen=True)
class Interval:
    """What one decision may be within the tolerance, the others re-optimised at each of its values."""

    name: str
    least: float
    best: float
    greatest: float
    ratio: float  # greatest / least; infinite where the least is 0
    held_by: tuple[str, str]  # what ends it below and above: a key of `HELD_BY`
    regret: tuple[float, float]  # at both ends
    certificate: str  # convex: each point is the optimum for its value; best_of_starts: the best that was found
    connected: bool  # no value looked at between the ends was outside the tolerance
    at_least: PlannedDecision  # the whole plan at the lower end
    at_greatest: PlannedDecision


@dataclass(frozen=True)
class NearOptimal:
    """The plans that reach a plan's loss for at most so much more than they have to, a decision at a time.

    Each interval re-optimises the other decisions, so a corner of two intervals is as a rule outside the set.
    """

    title: str
    within: float
    loss: float
    cost: float  # least for that loss, in the currency
    currency: str
    intervals: tuple[Interval, ...]  # of the free decisions
    fixed: Mapping[str, float]
    provenance: Mapping[str, Any] = field(repr=False)

    def __getitem__(self, name: str) -> Interval:
        for interval in self.intervals:
            if interval.name == name:
                return interval
        raise AllocatorError(f"{name}: no interval; the free decisions are {', '.join(i.name for i in self.intervals)}")

    def rows(self) -> list[dict[str, Any]]:
        """A flat row a free decision."""
        return [
            {"decision": i.name, "least": i.least, "best": i.best, "greatest": i.greatest, "ratio": i.ratio,
             "least_held_by": i.held_by[0], "greatest_held_by": i.held_by[1], "least_regret": i.regret[0],
             "greatest_regret": i.regret[1], "certificate": i.certificate, "connected": i.connected}
            for i in self.intervals
        ]  # fmt: skip

    def to_frame(self) -> "pd.DataFrame":
        """One row a free decision; parameters, tokens, samples."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=[*_COLUMNS])

    def ends_frame(self) -> "pd.DataFrame":
        """One row an end: the whole plan there."""
        import pandas as pd

        rows = [
            {"decision": i.name, "end": end, "held_by": i.held_by[j], "regret": i.regret[j], **vars(plan)}
            for i in self.intervals
            for j, (end, plan) in enumerate((("least", i.at_least), ("greatest", i.at_greatest)))
        ]
        columns = ["decision", "end", "held_by", "regret", *PlannedDecision.__dataclass_fields__]
        return pd.DataFrame(rows, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, every number finite or None."""
        rows = [
            row | {"at_least": i.at_least, "at_greatest": i.at_greatest}
            for row, i in zip(self.rows(), self.intervals, strict=True)
        ]
        return plain_values(
            {"schema": "allocator.near-optimal/1", "title": self.title, "within": self.within, "loss": self.loss,
             "cost": self.cost, "currency": self.currency, "rows": rows, "fixed": dict(self.fixed), "warnings": (),
             "provenance": self.provenance}
        )  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"  {i.name} {told(i.name, i.least)} to {told(i.name, i.greatest)} (best {told(i.name, i.best)})"
            for i in self.intervals
        ]
        head = f"{one_line(self.title)}: loss {self.loss:.4f} for at most {significant(100 * self.within)} % more"
        return "\n".join([head, *lines])


_COLUMNS = ("decision", "least", "best", "greatest", "ratio", "least_held_by", "greatest_held_by", "least_regret",
            "greatest_regret", "certificate", "connected")  # fmt: skip


@dataclass(frozen=True)
class Valley:
    """Regret over two decisions, the others re-optimised at each point; arrays have a row a value of y."""

    title: str
    x: str
    y: str
    within: float
    best: PlannedDecision
    x_values: Float[np.ndarray, " columns"]
    y_values: Float[np.ndarray, " rows"]
    regret: Float[np.ndarray, "rows columns"]  # NaN where no plan reaches the loss
    decisions: Float[np.ndarray, "rows columns 4"] = field(repr=False)
    contour: Float[np.ndarray, "points 2"] = field(repr=False)  # (x, y) where the regret is `within`, in order
    contour_held_by: tuple[str, ...] = field(repr=False)
    certificate: str = "convex"

    def to_frame(self) -> "pd.DataFrame":
        """One row a point: its decisions and the regret."""
        import pandas as pd

        columns = {name: self.decisions[..., i].ravel() for i, name in enumerate(DECISIONS)}
        return pd.DataFrame(columns | {"regret": self.regret.ravel()})

    def contour_frame(self) -> "pd.DataFrame":
        """Points of the contour, in order."""
        import pandas as pd

        held = {"held_by": list(self.contour_held_by)}
        return pd.DataFrame({self.x: self.contour[:, 0], self.y: self.contour[:, 1]} | held)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, every number finite or None."""
        return plain_values(
            {"schema": "allocator.valley/1", "title": self.title, "x": self.x, "y": self.y, "within": self.within,
             "best": self.best, "certificate": self.certificate, "rows": self.to_frame().to_dict("records"),
             "contour": self.contour_frame().to_dict("records"), "warnings": ()}
        )  # fmt: skip

    def __str__(self) -> str:
        known = self.regret[np.isfinite(self.regret)]
        share = float(np.mean(known <= self.within)) if len(known) else math.nan
        return (
            f"{one_line(self.title)}: regret over {self.x} and {self.y} at {self.regret.size} points, "
            f"{significant(100 * share)} % of them within {significant(100 * self.within)} %"
        )


def near_optimal(plan: Plan, *, within: float = WITHIN) -> NearOptimal:
    """Find what each free decision may be while the plan's loss costs at most `within` more than the least.

    `within` is regret, a share of the budget. At each end the other decisions are optimal for it. Raises `SolveError`
    where the search comes upon a plan that is cheaper than the one given, which then was no optimum.
    """
    check_within(within)
    problem, z = solved_problem(plan, "near_optimal")
    centre = centre_of(problem, z)
    free = np.flatnonzero(np.asarray(problem.lower) < np.asarray(problem.upper))
    rays = np.full((2 * len(free), 4), np.nan)
    rays[::2][np.arange(len(free)), free] = -centre.widths(within)[free]
    rays[1::2][np.arange(len(free)), free] = centre.widths(within)[free]
    found = edges(centre, rays, within)
    intervals = [_interval(plan, problem, centre, found, int(i), 2 * row) for row, i in enumerate(free)]
    best = vars(plan.decision)
    return NearOptimal(
        title=plan.title,
        within=float(within),
        loss=plan.loss,
        cost=math.exp(centre.log_cost),
        currency=problem.currency,
        intervals=tuple(intervals),
        fixed={name: best[name] for i, name in enumerate(DECISIONS) if i not in free},
        provenance=plan.provenance,
    )


def valley(
    plan: Plan,
    x: str = "n_active",
    y: str = "d_pretrain",
    points: int = 41,
    *,
    within: float = WITHIN,
    reach: float = 4.0,
    show: Mapping[str, PlannedDecision] | None = None,
) -> Valley:
    """Regret over a grid of two decisions around the plan, the others re-optimised to keep the plan's loss.

    The grid is even in logs, has the plan on one of its points, and goes `reach` times as far as the near-optimal
    interval of either decision, or as far as the decisions of `show`, and no further than the scenario's bounds.
    """
    check_within(within, zero=False)
    problem, z = solved_problem(plan, "valley")
    ix, iy = _axes(problem, x, y)
    if isinstance(points, bool) or not isinstance(points, int | np.integer) or points < 3 or points % 2 == 0:
        raise AllocatorError(
            f"points: got {points!r}; must be an odd whole number >= 3, for the plan to be on the grid"
        )
    if isinstance(reach, bool) or not isinstance(reach, int | float) or not 0 < reach < math.inf:
        raise AllocatorError(f"reach: got {reach!r}; must be a finite number > 0")
    centre = centre_of(problem, z)
    contour = _contour(centre, ix, iy, within)
    shown = np.array([to_coordinates(problem, four(d)) for d in (show or {}).values()]).reshape(-1, 4)
    at_x, at_y = (_axis(centre, i, contour.z[:, i], shown[:, i], reach, int(points)) for i in (ix, iy))
    pins = np.full((len(at_y), len(at_x), 4), np.nan)
    pins[..., ix], pins[..., iy] = at_x[None, :], at_y[:, None]
    pins = pins.reshape(-1, 4)
    found = levels(centre, pins, np.broadcast_to(centre.z, pins.shape))
    decisions = _amounts(problem, np.where(np.isnan(pins), found.z, pins)).reshape(len(at_y), len(at_x), 4)
    regret = np.where(np.isfinite(found.log_excess), np.expm1(np.maximum(found.log_excess, 0.0)), np.nan)
    assert plan.decision is not None
    return Valley(
        title=plan.title,
        x=x,
        y=y,
        within=float(within),
        best=plan.decision,
        x_values=decisions[0, :, ix],
        y_values=decisions[:, 0, iy],
        regret=regret.reshape(len(at_y), len(at_x)),
        decisions=decisions,
        contour=_amounts(problem, contour.z)[:, [ix, iy]],
        contour_held_by=tuple(contour.held_by),
        certificate=_word(bool(found.convex.all())),
    )


def check_within(within: Any, *, zero: bool = True) -> None:
    """Raise `AllocatorError` unless a tolerance is a number that makes sense."""
    number = isinstance(within, int | float | np.floating) and not isinstance(within, bool)
    if not number or not (0 <= within < math.inf) or (within < SMALLEST_WITHIN and not zero):
        rule = ">= 0" if zero else f">= {SMALLEST_WITHIN:g}"
        raise AllocatorError(f"within: got {within!r}; must be a finite number {rule} (0.01 is 1 % more budget)")


def told(name: str, value: float) -> str:
    """An amount of a decision as people say it."""
    return significant(value) if name == "k" else short_count(value)


def four(decision: PlannedDecision) -> Decision[float]:
    """The four decisions of a planned one."""
    return Decision(*(getattr(decision, name) for name in DECISIONS))


def _interval(plan: Plan, problem: Problem, centre: Centre, found: Edges, i: int, row: int) -> Interval:
    name = DECISIONS[i]
    assert plan.decision is not None
    tokens = float(problem.costs.lifetime_tokens)
    ends = [PlannedDecision.of(to_decision(problem, found.z[row + j]), tokens) for j in (0, 1)]
    best = getattr(plan.decision, name)
    # The plan is between the ends, whatever the last digits of two solutions say.
    least, greatest = min(getattr(ends[0], name), best), max(getattr(ends[1], name), best)
    regret = np.expm1(np.maximum(found.log_excess[row : row + 2], 0.0)).tolist()
    return Interval(
        name=name,
        least=least,
        best=best,
        greatest=greatest,
        ratio=greatest / least if least > 0 else math.inf if greatest > 0 else 1.0,
        held_by=(found.held_by[row], found.held_by[row + 1]),
        regret=(regret[0], regret[1]),
        certificate=_word(bool(found.convex[row : row + 2].all())),
        connected=bool(found.connected[row : row + 2].all()),
        at_least=ends[0],
        at_greatest=ends[1],
    )


def _word(convex: bool) -> str:
    return "convex" if convex else "best_of_starts"


def _axes(problem: Problem, x: str, y: str) -> tuple[int, int]:
    """Places of two decisions among the free ones, of which there must be a third to hold the loss."""
    free = [name for name, low, high in zip(DECISIONS, problem.lower, problem.upper, strict=True) if low < high]
    for key, name in (("x", x), ("y", y)):
        if name not in free:
            raise AllocatorError(f"{key}: got {name!r}; must be a free decision, of which there are {', '.join(free)}")
    if x == y:
        raise AllocatorError(f"y: got {y!r}; must be another decision than x")
    if len(free) < 3:
        raise AllocatorError(f"y: got {y!r}; a third decision must be free, to keep the loss where x and y are given")
    return DECISIONS.index(x), DECISIONS.index(y)


def _contour(centre: Centre, ix: int, iy: int, within: float) -> Edges:
    """Points of the contour, in order around the optimum."""
    level = math.log1p(within)
    spread = centre.covariance[np.ix_([ix, iy], [ix, iy])]
    if np.isfinite(spread).all():
        # Where bounds hold the other decisions the parabola runs along one line, yet the set has a width.
        root = np.linalg.cholesky(2 * level * spread + level**2 * np.eye(2))
    else:
        root = np.diag(centre.widths(within)[[ix, iy]])
    angle = 2 * np.pi * np.arange(RAYS) / RAYS
    rays = np.full((RAYS, 4), np.nan)
    rays[:, [ix, iy]] = np.stack([np.cos(angle), np.sin(angle)], axis=1) @ root.T
    return edges(centre, rays, within)


def _axis(
    centre: Centre, i: int, contour: np.ndarray, shown: np.ndarray, reach: float, points: int
) -> Float[np.ndarray, " points"]:
    """Even steps on either side of the optimum, in the solver's coordinate and inside the scenario's bounds."""
    at = centre.z[i]
    low = min(at + reach * (contour.min() - at), shown.min(initial=np.inf) - ROOM)
    high = max(at + reach * (contour.max() - at), shown.max(initial=-np.inf) + ROOM)
    low, high = max(low, float(centre.problem.lower[i])), min(high, float(centre.problem.upper[i]))
    half = points // 2 + 1
    if at - low < 1e-6 or high - at < 1e-6:  # the optimum is at a bound
        return np.linspace(at if at - low < 1e-6 else low, at if high - at < 1e-6 else high, points)
    return np.concatenate([np.linspace(low, at, half), np.linspace(at, high, half)[1:]])


def _amounts(problem: Problem, z: Float[np.ndarray, "rows 4"]) -> Float[np.ndarray, "rows 4"]:
    """Parameters, tokens, tokens and samples at each row of coordinates."""
    tokens = problem.law.rl_axis.tokens(jnp.asarray(z[:, 2]))
    return np.stack([np.exp(z[:, 0]), np.exp(z[:, 1]), np.asarray(tokens), np.exp(z[:, 3])], axis=1)
