"""A problem's optimum with some decisions pinned to values: many at once, each verified."""

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from allocator.errors import AllocatorError
from allocator.optimum import certificates
from allocator.optimum.interior import at_open_end
from allocator.optimum.many import FEW, in_batches, optimise_many
from allocator.optimum.result import Plan
from allocator.problem import Problem, Vector
from allocator.regrets import planned_coordinates

STARTS = 8  # of Newton, besides the one that is given, where nothing certifies an optimum
MANY = 4096  # Newton runs up to which small pieces beat the compilation of a large one


class PinnedOptima(NamedTuple):
    """Optima in a row each; where none was found the objective is infinite and the rest is NaN."""

    z: Float[np.ndarray, "rows 4"]  # in the solver's coordinates
    value: Float[np.ndarray, " rows"]  # the objective: log of the reducible loss, or log of the cost
    slope: Float[np.ndarray, "rows 4"]  # of the value in each decision that is pinned or held by a bound
    convex: Bool[np.ndarray, " rows"]  # the problem's structure makes a local optimum the global one

    @property
    def found(self) -> Bool[np.ndarray, " rows"]:
        """Whether there is an optimum."""
        return np.isfinite(self.value)


def solved_problem(plan: Plan, who: str) -> tuple[Problem, Float[np.ndarray, "4"]]:
    """A solved plan's problem and where the plan stands in it; raise `AllocatorError` for any other plan."""
    if plan.problem is None or plan.decision is None or plan.status == "evaluated":
        raise AllocatorError(f"plan: its status is {plan.status}; {who} needs a plan that `solve` found")
    return plan.problem, planned_coordinates(plan.problem, plan)


def at_loss(problem: Problem, log_reducible: float) -> Problem:
    """The same choices at the least cost that reaches a loss, given as log of the loss above the law's floor."""
    where = (np.float64(log_reducible), np.float64(1.0))
    return eqx.tree_at(lambda p: (p.log_limit, p.minimise_cost), problem, where)


def pinned_problem(problem: Problem, pins: Float[Vector, "4"]) -> Problem:
    """The problem with some decisions fixed, in the solver's coordinates; NaN leaves a decision as it is."""
    free = np.isnan(pins)
    ends = [np.where(free, end, pins) for end in (problem.lower, problem.upper)]
    return eqx.tree_at(lambda p: (p.lower, p.upper), problem, tuple(ends))


def optimise_pinned(
    problem: Problem,
    pins: Float[np.ndarray, "rows 4"],
    near: Float[np.ndarray, "rows 4"],
    *,
    log_limits: Float[np.ndarray, " rows"] | None = None,
    seed: int = 0,
) -> PinnedOptima:
    """Solve the problem once for each row of pins, from a point near the optimum of each.

    Pins are in the solver's coordinates and inside the box; NaN leaves a decision free. `log_limits` gives each row a
    limit of its own. A point counts if its recomputed residuals, multipliers and reduced Hessian are those of a local
    optimum and it is not at an end of the search range that nobody set.
    """
    count = len(pins)
    out = PinnedOptima(
        np.full((count, 4), np.nan), np.full(count, np.inf), np.full((count, 4), np.nan), np.zeros(count, bool)
    )
    for rows, convex in _alike(problem, pins):
        out.convex[rows] = convex
        size = FEW if len(rows) * (1 if convex else STARTS) <= MANY else len(rows)
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            problems = _stacked(problem, pins[some], None if log_limits is None else log_limits[some])
            _solve(problems, near[some], convex, seed, some, out)
    return out


def _solve(problems: Problem, near: np.ndarray, convex: bool, seed: int, rows: np.ndarray, out: PinnedOptima) -> None:
    """Solve a batch and write into its rows of the whole; once more, from corners, what the given start did not solve.

    Where bounds and the limit leave nothing free, Newton's last step may change no decision, and then it stops before
    it knows the multiplier; from the corner itself it knows it at once.
    """
    left = np.arange(len(rows))
    at = np.clip(near, problems.lower, problems.upper)
    corners = _corners(problems, at)
    for starts in (np.where(np.isfinite(corners[0]), corners[0], at), *corners[1:]):
        tried = left[np.isfinite(starts[left]).all(axis=1)]
        if not len(tried):
            continue
        some = jax.tree.map(lambda x, tried=tried: x[tried], problems)
        found = optimise_many(some, starts=1 if convex else STARTS, convex=convex, reference=starts[tried], seed=seed)
        z, d = np.asarray(found.point.z), found.point.derivatives
        held = (some.lower == some.upper) | ~np.isfinite(z)
        good = found.found & ~(at_open_end(some, z) & ~held).any(axis=1)
        slope = d.jacobian[:, 0] + np.asarray(found.point.multiplier)[:, None] * d.jacobian[:, 1]
        done = rows[tried[good]]
        out.z[done], out.value[done], out.slope[done] = z[good], d.value[good, 0], slope[good]
        left = np.setdiff1d(left, tried[good])


def _corners(problems: Problem, at: np.ndarray) -> list[np.ndarray]:
    """Points where the limit is met in one decision and another is at a bound that the scenario sets; else NaN.

    First those of rows with one free decision, then those of rows with two, a bound at a time.
    """
    low, high = np.asarray(problems.lower), np.asarray(problems.upper)
    free = low < high
    found = [_met(problems, at, free)]
    for bound, set_by_nobody in ((high, problems.open_upper), (low, problems.open_lower)):
        for j in range(4):
            usable = free[:, j] & ~np.asarray(set_by_nobody)[:, j] & (free.sum(axis=1) == 2)
            if usable.any():
                moved = np.where(np.arange(4) == j, bound, at)
                found.append(_met(problems, moved, free & (np.arange(4) != j) & usable[:, None]))
    return found


def _met(problems: Problem, at: np.ndarray, free: np.ndarray) -> np.ndarray:
    """The point with the limit met in the one free decision of a row; NaN where there are more, or it cannot be."""
    single = free.sum(axis=1) == 1
    low, high = (np.where(free, end, at) for end in (problems.lower, problems.upper))
    with np.errstate(invalid="ignore"):
        z, crossed = (np.asarray(x) for x in in_batches(_crossing, problems, low, high))
    return np.where((single & crossed)[:, None], z, np.nan)


@jax.jit
def _crossing(problems, low, high):
    """Where the constraint changes sign between two points, by bisection, and whether it does."""

    def at(problem, low, high):
        def excess(z):
            return problem.objective_and_constraint(z)[1]

        rising = excess(high) > 0

        def halve(_, ends):
            a, b = ends
            middle = (a + b) / 2
            below = (excess(middle) > 0) != rising
            return jnp.where(below, middle, a), jnp.where(below, b, middle)

        a, b = jax.lax.fori_loop(0, 70, halve, (low, high))
        return (a + b) / 2, (excess(low) > 0) != rising

    return jax.vmap(at)(problems, low, high)


def _alike(problem: Problem, pins: Float[np.ndarray, "rows 4"]) -> Iterator[tuple[np.ndarray, bool]]:
    """Rows that are convex problems, then rows that are not."""
    patterns, which = np.unique(~np.isnan(pins), axis=0, return_inverse=True)
    kinds = [
        certificates.certificate_kind(pinned_problem(problem, np.where(pattern, pins[np.argmax(which == i)], np.nan)))
        for i, pattern in enumerate(patterns)
    ]
    sure = np.isin(kinds, (certificates.GEOMETRIC_PROGRAM, certificates.CONVEX_FIXED_N))[which]
    for convex in (True, False):
        rows = np.flatnonzero(sure == convex)
        if len(rows):
            yield rows, convex


def _stacked(problem: Problem, pins: np.ndarray, log_limits: np.ndarray | None) -> Problem:
    """One problem a row, with a leading axis on every number."""
    count = len(pins)
    whole = jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (count, *np.shape(x))), problem)
    free = np.isnan(pins)
    ends = [np.where(free, end, pins) for end in (whole.lower, whole.upper)]
    limits = whole.log_limit if log_limits is None else log_limits
    return eqx.tree_at(lambda p: (p.lower, p.upper, p.log_limit), whole, (*ends, limits))
