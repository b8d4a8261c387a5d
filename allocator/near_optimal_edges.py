"""Where the set of near-optimal plans ends: along rays from the optimum, the other decisions re-optimised."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from allocator.errors import SolveError
from allocator.laws.additive import Additive
from allocator.laws.coverage import Coverage
from allocator.laws.pass_at_k import PassAtK
from allocator.laws.product import Product
from allocator.laws.shared import Shared
from allocator.optimum import certificates
from allocator.optimum.solving import optimise
from allocator.pinned_optima import at_loss, optimise_pinned
from allocator.problem import Problem
from allocator.regrets import STARTS as RIVALS

SMALLEST_WITHIN = 1e-11  # below this a regret is rounding, and the set is a point
EXACT = 1e-11  # of log cost, at the edge
NARROW = 1e-10  # width of a bracket in logs that is as good as a point
ROUNDS = 90  # of closing brackets in; half of them would do by bisection alone
LADDER = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)  # where to look first, in units of the ray
FAR, STRIDE = 12.0, 1.0  # in logs: how far, and how densely, to look for another basin where there may be one
HINTS = 3  # times that what one decision's search found is handed to the others
FALLBACK_WIDTH = 0.1  # in logs, at 1% of extra budget, where the optimum has no parabola
# Laws whose loss falls in every decision, so that the most generous decisions say whether any plan reaches a loss.
FALLING = (Additive, Coverage, PassAtK, Product, Shared)
BESIDE = 1e-6  # in logs: Newton takes what is nearer than a tenth of this to a bound as held by it
CHEAPER = 1e-8  # by so much, in log cost, a plan shows that the given one was no optimum


class Centre(NamedTuple):
    """The cheapest plan that reaches a loss, and the parabola of log cost around it."""

    problem: Problem  # least cost at that loss
    z: Float[np.ndarray, "4"]
    log_cost: float
    covariance: Float[np.ndarray, "4 4"]  # inverse Hessian of log cost along the loss; NaN for decisions that are held
    convex: bool  # the structure of the problem allows one basin only

    def widths(self, within: float) -> Float[np.ndarray, "4"]:
        """Half of each decision's interval, to second order, in the solver's coordinates."""
        square = 2 * math.log1p(within) * np.diag(self.covariance)
        fallback = FALLBACK_WIDTH * min(1.0, math.sqrt(within / 0.01))
        return np.where(square > 1e-20, np.sqrt(np.where(square > 1e-20, square, 1.0)), fallback)


class Edges(NamedTuple):
    """The last point of each ray within the tolerance."""

    z: Float[np.ndarray, "rays 4"]
    log_excess: Float[np.ndarray, " rays"]  # log of its cost over the least
    held_by: list[str]  # tolerance, bound, open, loss or unsolved
    convex: Bool[np.ndarray, " rays"]  # the optima along it are certified one by one
    connected: Bool[np.ndarray, " rays"]  # nothing outside the tolerance was seen before it


def centre_of(problem: Problem, z: Float[np.ndarray, "4"]) -> Centre:
    """The cheapest plan for the loss at a solved problem's optimum; raise `NoPlanError` where none verifies."""
    target = at_loss(problem, float(problem.log_reducible(z)))
    point = optimise(target, start=z, starts=RIVALS).point
    d, free = point.derivatives, point.active == 0
    both = np.outer(free, free)
    matrix = np.zeros((5, 5))
    matrix[:4, :4] = np.where(both, d.hessian[0] + point.multiplier * d.hessian[1], np.diag(~free))
    matrix[:4, 4] = matrix[4, :4] = np.where(free, d.jacobian[1], 0.0)
    matrix[4, 4] = 0.0 if point.binding and free.any() else 1.0
    try:
        covariance = np.where(both, np.linalg.inv(matrix)[:4, :4], np.nan)
    except np.linalg.LinAlgError:
        covariance = np.full((4, 4), np.nan)
    whole = (certificates.GEOMETRIC_PROGRAM, certificates.CONVEX_FIXED_N)
    convex = certificates.certificate_kind(target) in whole
    return Centre(target, np.asarray(point.z), float(d.value[0]), covariance, convex)


class Levels(NamedTuple):
    """Least cost with decisions pinned, a row each."""

    log_excess: Float[np.ndarray, " rows"]  # log of cost over the least of all; infinite where there is no plan
    z: Float[np.ndarray, "rows 4"]
    slope: Float[np.ndarray, "rows 4"]
    convex: Bool[np.ndarray, " rows"]


def levels(centre: Centre, pins: Float[np.ndarray, "rows 4"], near: Float[np.ndarray, "rows 4"]) -> Levels:
    """How much more than the least the loss costs with decisions pinned, in the solver's coordinates.

    Raises `SolveError` where that is less than the least: then the plan was no optimum.
    """
    excess, z, slope = np.full(len(pins), np.inf), np.full(pins.shape, np.nan), np.full(pins.shape, np.nan)
    wanted = np.ones(len(pins), bool)
    if isinstance(centre.problem.law, FALLING):
        wanted = _within_reach(centre.problem, pins)
    home = (np.isnan(pins) | (pins == centre.z)).all(axis=1)
    excess[home], z[home], slope[home] = 0.0, centre.z, 0.0
    rows = np.flatnonzero(wanted & ~home)
    convex = np.ones(len(pins), bool)
    if len(rows):
        found = optimise_pinned(centre.problem, pins[rows], near[rows])
        excess[rows], z[rows], slope[rows] = found.value - centre.log_cost, found.z, found.slope
        convex[rows] = found.convex
    if len(pins) and excess.min() < -CHEAPER:
        raise SolveError(
            f"the plan is not the cheapest for its loss: one that costs {-np.expm1(excess.min()):.3g} of it less was "
            "found; solve the scenario again with another seed"
        )
    return Levels(excess, z, slope, convex)


def edges(centre: Centre, rays: Float[np.ndarray, "rays 4"], within: float) -> Edges:
    """Follow rays from the optimum until the least cost for its loss exceeds the tolerance, an extra share of it.

    A ray has a number for each decision that it moves and NaN for those to re-optimise; its outermost crossing within
    the range looked at counts.
    """
    search = _Search(centre, rays, math.log1p(within))
    if within >= SMALLEST_WITHIN and len(rays):
        search.look_around()
        search.close_in()
        for _ in range(HINTS):
            if not search.take_hints():
                break
            search.close_in()
        search.explain()
    return Edges(search.z, search.excess, search.held_by, search.convex, search.connected)


class _Search:
    """Brackets of the edges: a ray's parameter t inside the tolerance and one outside (NaN until there is one)."""

    def __init__(self, centre: Centre, rays: np.ndarray, level: float):
        count = len(rays)
        self.centre, self.level = centre, level
        self.pinned, self.step = ~np.isnan(rays), np.nan_to_num(rays)
        self.scale = np.abs(self.step).max(axis=1, initial=1e-300)
        problem = centre.problem
        ends = np.where(self.step > 0, problem.upper, problem.lower)
        moving = self.step != 0
        rooms = np.where(moving, (ends - centre.z) / np.where(moving, self.step, 1.0), np.inf)
        first = rooms.argmin(axis=1)
        self.room = np.maximum(rooms.min(axis=1), 0.0)
        open_ends = np.where(self.step > 0, problem.open_upper, problem.open_lower)
        self.at_room = ["open" if open_ends[j, first[j]] else "bound" for j in range(count)]
        self.held_by = ["tolerance"] * count
        self.inside, self.outside = np.zeros(count), np.full(count, np.nan)
        self.z, self.excess, self.slope = np.tile(centre.z, (count, 1)), np.zeros(count), np.zeros(count)
        self.excess_out, self.slope_out = np.full(count, np.inf), np.full(count, np.nan)
        self.convex, self.connected = np.ones(count, bool), np.ones(count, bool)
        self.members = np.tile(centre.z, (1, 1))  # points within the tolerance that were come upon

    def look(self, rows: np.ndarray, t: np.ndarray, near: np.ndarray | None = None) -> None:
        """Solve at a parameter of each of some rays, and narrow or widen their brackets by what comes out."""
        problem = self.centre.problem
        pins = np.clip(self.centre.z + t[:, None] * self.step[rows], problem.lower, problem.upper)
        pins = np.where(self.pinned[rows], pins, np.nan)
        at = levels(self.centre, pins, self.z[rows] if near is None else near)
        slope = np.sum(np.where(self.pinned[rows], at.slope, 0.0) * self.step[rows], axis=1)
        self.convex[rows] &= at.convex
        good = at.log_excess <= self.level
        self.members = np.concatenate([self.members, at.z[good]])
        inner, outer = rows[good & (t > self.inside[rows])], rows[~good & ~(t > self.outside[rows])]
        kept = np.isin(rows, inner)
        self.connected[inner] &= ~(t[kept] > self.outside[inner])
        self.outside[inner] = np.where(t[kept] > self.outside[inner], np.nan, self.outside[inner])
        self.inside[inner], self.excess[inner] = t[kept], at.log_excess[kept]
        self.slope[inner], self.z[inner] = slope[kept], at.z[kept]
        kept = np.isin(rows, outer)
        self.outside[outer] = t[kept]
        self.excess_out[outer], self.slope_out[outer] = at.log_excess[kept], slope[kept]

    def look_around(self) -> None:
        """Find a point outside on each ray, or its end; where basins may lie further out, look for them too."""
        rungs = np.outer(np.ones(len(self.room)), LADDER)
        self._climb(rungs, beyond=~self.convex)
        if not self.centre.convex:
            strides = np.arange(STRIDE, FAR + STRIDE / 2, STRIDE) / self.scale[:, None]
            self._climb(strides, beyond=np.ones(len(self.room), bool))
        doublings = LADDER[-1] * 2.0 ** np.arange(1, 40)
        self._climb(np.outer(np.ones(len(self.room)), doublings), beyond=np.zeros(len(self.room), bool))
        self._say_where_open()

    def take_hints(self) -> bool:
        """Go on from members of the set that lie further out along a ray than its end; say whether there were any.

        A plan found for one decision's sake may show another decision in a basin that the strides stepped over.
        """
        along = np.where(self.pinned.sum(axis=1) == 1, self.scale, np.nan)
        with np.errstate(invalid="ignore"):
            places = np.sum((self.members - self.centre.z)[None] * self.step[:, None], axis=2) / along[:, None] ** 2
        rows = np.flatnonzero(places.max(axis=1, initial=0.0) > self.inside + BESIDE / self.scale)
        if not len(rows):
            return False
        which = places[rows].argmax(axis=1)
        self.look(rows, np.minimum(places[rows, which], self.room[rows]), self.members[which])
        self._climb(self.inside[:, None] + np.array(LADDER), beyond=np.zeros(len(self.room), bool))
        self._climb(self.inside[:, None] + LADDER[-1] * 2.0 ** np.arange(1, 40), beyond=np.zeros(len(self.room), bool))
        self._say_where_open()
        return True

    def _say_where_open(self) -> None:
        for j in range(len(self.held_by)):
            self.held_by[j] = self.at_room[j] if np.isnan(self.outside[j]) else "tolerance"

    def _climb(self, rungs: np.ndarray, *, beyond: np.ndarray) -> None:
        """Look at each rung within the room; `beyond` says which rays go on once they are outside."""
        for rung in rungs.T:
            t = np.minimum(rung, self.room)
            known = np.maximum(self.inside, np.nan_to_num(self.outside)) if beyond.any() else self.inside
            rows = np.flatnonzero((t > known) & (t * self.scale > NARROW) & (np.isnan(self.outside) | beyond))
            if len(rows):
                self.look(rows, t[rows])

    def close_in(self) -> None:
        """Newton's steps on log cost, kept inside the brackets; the inner end is the answer."""
        exact = min(EXACT, 1e-3 * self.level)
        for i in range(ROUNDS):
            short = self.level - self.excess > exact
            wide = (self.outside - self.inside) * self.scale > NARROW * min(1.0, self.level)
            rows = np.flatnonzero(short & wide)  # NaN compares as false
            if not len(rows):
                break
            a, b = self.inside[rows], self.outside[rows]
            under, over = self.level - self.excess[rows], self.excess_out[rows] - self.level
            from_a = ~np.isfinite(over) | (under < over)
            slope = np.where(from_a, self.slope[rows], self.slope_out[rows])
            # A little inside, so that it is the inner end that gets exact.
            gap = np.where(from_a, under, -over) - 0.3 * exact
            usable = np.isfinite(gap) & (slope > 0)
            t = np.where(from_a, a, b) + np.where(usable, gap, np.nan) / np.where(usable, slope, 1.0)
            t = np.where((t > a) & (t < b) & (i % 4 != 3), t, (a + b) / 2)
            self.look(rows, t)

    def explain(self) -> None:
        """Why a ray ends where its tolerance is not used up."""
        for j in np.flatnonzero((self.level - self.excess > 1e-6 * self.level) & ~np.isnan(self.outside)):
            t = self.outside[j] + BESIDE / self.scale[j]
            pins = np.where(self.pinned[j], self.centre.z + t * self.step[j], np.nan)
            self.held_by[j] = "unsolved" if _within_reach(self.centre.problem, pins[None])[0] else "loss"


@jax.jit
def _reached(problem: Problem, pins):
    def at(pin):
        top = jnp.where(jnp.isnan(pin), problem.upper, pin)
        return problem.objective_and_constraint(top)[1]

    return jax.vmap(at)(pins)


def _within_reach(problem: Problem, pins: Float[np.ndarray, "rows 4"]) -> Bool[np.ndarray, " rows"]:
    """Whether the loss is reached with pins as given and all else as high as allowed; a doubt counts as yes."""
    return ~(np.asarray(_reached(problem, pins)) > 0)
