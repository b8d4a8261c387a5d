"""From a problem to its verified optimum."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator.errors import InfeasibleError, SolveError
from allocator.optimum import certificates
from allocator.optimum.interior import runaway, runaway_decisions
from allocator.optimum.newton import KktPoint, polish
from allocator.optimum.profiles import minima_in_size
from allocator.optimum.slsqp import find_basin
from allocator.optimum.starts import Grid, scan, scattered_starts, whole_range
from allocator.precision import require_float64
from allocator.problem import DECISIONS, Decision, Problem, Vector, to_decision

RESIDUAL = 1e-8  # relative to the largest elasticity
CONSTRAINT = 1e-9  # relative to the budget or to the reducible target loss
STEP = 1e-7  # Newton's last step in logs, which is the decisions' relative error; 1e-12 and less as a rule
RETRIES = 8  # further starts where the first fails although one local optimum is all there is
STARTS = 32  # for problems that may have several local optima


@dataclass(frozen=True)
class Solution:
    """A verified optimum: a KKT point with multipliers of the right sign and a positive definite reduced Hessian."""

    problem: Problem
    point: KktPoint  # NumPy arrays
    certificate: str
    starts: int
    kkt_residual: float
    constraint_residual: float

    @property
    def decision(self) -> Decision[float]:
        """Parameters, tokens, tokens and samples, as floats."""
        return to_decision(self.problem, self.point.z)

    @property
    def status(self) -> str:
        """`optimal` needs a certificate; the best of many starts is called just that."""
        return "best_of_starts" if self.certificate == certificates.BEST_OF_STARTS else "optimal"


def optimise(
    problem: Problem, *, start: Float[np.ndarray, "4"] | None = None, starts: int = STARTS, seed: int = 0
) -> Solution:
    """Find the optimum; raise `InfeasibleError` or `SolveError` with a reason where there is none to be had.

    `start`, in the solver's coordinates, saves the scan for a first guess where a neighbouring optimum is known.
    `starts` is how many starts compete where nothing certifies the optimum.
    """
    require_float64()
    error = runaway(problem)
    if error is not None:
        raise error
    kind = certificates.certificate_kind(problem)
    if kind == certificates.BEST_OF_STARTS:
        grid = _feasible_grid(problem)
        first = _best_point(grid) if start is None else start
        guesses = [first, *scattered_starts(problem, grid, starts - 1, seed=seed)]
        found = [p for p in (_local_optimum(problem, z) for z in guesses) if p is not None]
        return _best(problem, found, kind, len(guesses))

    # A given start is near the optimum already; otherwise SLSQP finds the basin first.
    point = None if start is None else _polished(problem, start)
    tried = 1
    if point is None:
        grid = _feasible_grid(problem)
        first = _best_point(grid)
        point = _local_optimum(problem, first)
        if point is None:
            for z in scattered_starts(problem, grid, RETRIES, seed=seed):
                point, tried = _local_optimum(problem, z), tried + 1
                if point is not None:
                    break
    else:
        first = point.z
    if kind != certificates.ONE_DIMENSIONAL:
        return _best(problem, [point], kind, tried)
    minima = minima_in_size(problem, first if point is None else point.z)
    found = [point, *(_polished(problem, z) for z in minima.z)]
    kind = kind if minima.complete else certificates.BEST_OF_STARTS
    return _best(problem, found, kind, minima.sizes)


def _feasible_grid(problem: Problem) -> Grid:
    grid = scan(problem, whole_range(problem))
    if np.isfinite(grid.merit).any():
        return grid
    raise _infeasible(problem, grid)


def _best_point(grid: Grid) -> Float[np.ndarray, "4"]:
    z, merit = grid.best_by_size()
    return z[np.argmin(merit)]


def _infeasible(problem: Problem, grid: Grid) -> InfeasibleError:
    """Say what the least demanding decisions cost, or what loss the most generous ones reach."""
    if float(problem.minimise_cost) > 0.5:
        best = float(problem.log_reducible(np.asarray(problem.upper)))
        loss = float(problem.law.floor) + float(np.exp(best))
        return InfeasibleError(
            f"objective.target_loss: no decision within the bounds reaches it; the best they allow is {loss:.6g}",
            {"path": "objective.target_loss", "value": loss},
        )
    if not np.isfinite(grid.left).any() or np.nanmax(grid.left) > 0:
        return InfeasibleError(f"the law has no finite loss at any feasible point{_where_broken(problem, grid)}")
    budget = float(np.exp(problem.log_limit))
    needed = budget - float(np.nanmax(grid.left))
    return InfeasibleError(
        f"objective.{problem.currency}: {budget:.6g} does not pay for what the decisions and the demand fix, "
        f"which costs {needed:.6g}",
        {"path": f"objective.{problem.currency}", "value": needed},
    )


def _raise_if_runaway(problem: Problem, z: Float[Vector, "4"]) -> None:
    names = runaway_decisions(problem, z)
    if names:
        raise SolveError(
            f"no interior optimum: {', '.join(names)} ran to the end of the search range; fix or bound it",
            {"path": f"decisions.{names[0]}", "value": None},
            status="no_interior_optimum",
        )


def _where_broken(problem: Problem, grid: Grid) -> str:
    """Name a point at which the law is NaN, as a user's own may be."""
    points = grid.broken()
    if not len(points):
        return ""
    decision = to_decision(problem, points[0])
    named = ", ".join(f"{name} = {value:.6g}" for name, value in zip(DECISIONS, decision, strict=True))
    return f"; it is NaN at {named}"


def _local_optimum(problem: Problem, z: Float[np.ndarray, "4"]) -> KktPoint | None:
    """SLSQP from z, then Newton; None unless what comes out verifies as a local optimum."""
    basin, binding = find_basin(problem, z)
    point = _polished(problem, basin, binding=binding)
    # SLSQP may stop short of a limit that binds, where what it can still save is tiny beside what is fixed.
    return point if point is not None else _polished(problem, basin, binding=not binding)


def _polished(problem: Problem, z: Float[np.ndarray, "4"], *, binding: bool = True) -> KktPoint | None:
    point = jax.tree.map(np.asarray, polish(problem, z, binding))
    return point if verifies(point) else None


def residuals(point: KktPoint) -> tuple[float, float]:
    """(KKT residual over the largest elasticity, constraint residual as a relative error)."""
    kkt, constraint, _ = _verdict(point)
    return float(kkt), float(constraint)


def verdict(point: KktPoint) -> tuple[Array, Array, Array]:
    """(KKT residual over the largest elasticity, constraint residual as a relative error, whether it verifies)."""
    value, jacobian = point.derivatives.value, point.derivatives.jacobian
    gradient = jnp.where(point.active == 0, jacobian[0] + point.multiplier * jacobian[1], 0.0)
    # Where no constraint binds, the optimum has no elasticity to be relative to.
    scale = jnp.where(point.binding, jnp.max(jnp.abs(jacobian[0])), 1.0)
    kkt = jnp.max(jnp.abs(gradient)) / scale
    excess = jnp.expm1(value[1])
    constraint = jnp.where(point.binding, jnp.abs(excess), jnp.maximum(excess, 0.0))
    finite = jnp.isfinite(point.z).all() & jnp.isfinite(value).all()
    exact = (kkt < RESIDUAL) & (constraint < CONSTRAINT) & (point.step < STEP)
    return kkt, constraint, finite & exact & (point.wrong_sign < RESIDUAL) & (point.curvature > 0)


def verifies(point: KktPoint) -> bool:
    """Whether a point is a local optimum by its own residuals, signs and curvature."""
    return bool(_verdict(point)[2])


_verdict = jax.jit(verdict)


def _best(problem: Problem, found: Sequence[KktPoint | None], kind: str, starts: int) -> Solution:
    verified = [p for p in found if p is not None]
    if not verified:
        grid = scan(problem, whole_range(problem))
        _raise_if_runaway(problem, find_basin(problem, _best_point(grid))[0])
        broken = _where_broken(problem, grid)
        reason = f"no start of {starts} led to a point that verifies as an optimum{broken}"
        raise SolveError(reason, status="not_converged")
    point = min(verified, key=lambda p: float(p.derivatives.value[0]))
    _raise_if_runaway(problem, point.z)
    kkt, constraint = residuals(point)
    return Solution(problem, point, kind, starts, kkt, constraint)
