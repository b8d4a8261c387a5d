"""The least loss (or cost) at each N, for problems that are convex once N is fixed: all its local minima, by a scan."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from allocator.optimum.newton import KktPoint, polish
from allocator.optimum.starts import scan
from allocator.problem import Problem, Vector

SIZES = 151  # a third apart in log N; the profile is made of powers below 1, which bend on a scale of 1/exponent > 1
ROUNDS = 40  # of handing solutions on to unsolved neighbours
REACH = 25.0  # scanned on either side of the first optimum in log N: eleven decades


@jax.jit
def _optima_at_sizes(problem: Problem, log_n: Float[np.ndarray, " sizes"], z: Float[np.ndarray, "sizes 4"]) -> KktPoint:
    def at(log_n, z):
        ends = (jnp.asarray(problem.lower).at[0].set(log_n), jnp.asarray(problem.upper).at[0].set(log_n))
        return polish(eqx.tree_at(lambda p: (p.lower, p.upper), problem, ends), z)

    return jax.vmap(at)(log_n, z)


def _solved(points: KktPoint) -> np.ndarray:
    return np.asarray((points.step < 1e-7) & (points.wrong_sign < 1e-8))


class Minima(NamedTuple):
    """Local minima of the profile, as points from which Newton reaches them, and how well the scan went."""

    z: Float[np.ndarray, "minima 4"]
    sizes: int  # sizes scanned
    complete: bool  # every feasible size of the scan was solved


def minima_in_size(problem: Problem, z: Float[Vector, "4"]) -> Minima:
    """Find every local minimum of the profile within `REACH` of the point z.

    A minimum is where the profile's slope, the multiplier of fixing N, turns from negative to positive.
    """
    low = max(float(problem.lower[0]), z[0] - REACH)
    high = min(float(problem.upper[0]), z[0] + REACH)
    log_n = np.linspace(low, high, SIZES)
    starts, merit = scan(problem, log_n).best_by_size()
    lawful = np.isfinite(merit)
    # A size that the budget cannot pay for is solved as its neighbour again: the batch would wait for it in vain.
    stand_in = np.flatnonzero(lawful)[np.clip(np.cumsum(lawful) - 1, 0, None)] if lawful.any() else np.arange(SIZES)
    log_n, starts = log_n[stand_in], starts[stand_in]
    points = jax.tree.map(np.asarray, _optima_at_sizes(problem, log_n, starts))
    solved = _solved(points)
    for _ in range(ROUNDS):
        if solved.all() or not solved.any():
            break
        # Where the crude start led nowhere, the solved neighbour's optimum is a better one.
        known = np.flatnonzero(solved)
        nearest = known[np.argmin(np.abs(np.arange(SIZES)[:, None] - known[None, :]), axis=1)]
        starts = np.where(solved[:, None], points.z, points.z[nearest])
        starts[:, 0] = log_n
        points = jax.tree.map(np.asarray, _optima_at_sizes(problem, log_n, starts))
        solved = _solved(points)
    solved &= lawful
    slope = points.derivatives.jacobian[:, 0, 0] + points.multiplier * points.derivatives.jacobian[:, 1, 0]
    found, slope = points.z[solved], slope[solved]
    turns = np.flatnonzero((slope[:-1] < 0) & (slope[1:] >= 0))
    rows = {*turns.tolist(), *(turns + 1).tolist()}
    if len(slope) and slope[0] >= 0:
        rows.add(0)
    if len(slope) and slope[-1] < 0:
        rows.add(len(slope) - 1)
    return Minima(found[sorted(rows)], SIZES, bool((solved == lawful).all()))
