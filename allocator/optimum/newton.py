"""Damped Newton on the KKT system with an active set of bounds; pure JAX, so the same code serves one problem or a batch.

For objective f, constraint g <= 0 and a box, a KKT point has df + lam dg = 0 in every free coordinate, g = 0 (or lam = 0
where g < 0), and bound multipliers of the right sign.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from allocator.problem import Problem

MAX_STEPS = 100
SETTLED = 1e-9  # residual at which the active set is judged; the iteration itself goes on until it stalls
SIGN_TOLERANCE = 1e-10  # a multiplier this wrong is rounding
STEP_FRACTIONS = (1.0, 0.5, 0.2, 0.05, 0.01, 1e-3, 1e-5)


class Derivatives(NamedTuple):
    """Objective and constraint with first and second derivatives in z."""

    value: Float[Array, "2"]
    jacobian: Float[Array, "2 4"]
    hessian: Float[Array, "2 4 4"]


class KktPoint(NamedTuple):
    """Where Newton stopped; whether that is an optimum is for the caller to judge."""

    z: Float[Array, "4"]
    multiplier: Float[Array, ""]  # of the constraint, >= 0 at an optimum
    active: Int[Array, "4"]  # -1 at the lower bound, +1 at the upper, 0 free
    binding: Bool[Array, ""]  # the constraint holds with equality
    residual: Float[Array, ""]  # largest |df + lam dg| over free coordinates, and |g| where binding
    wrong_sign: Float[Array, ""]  # largest multiplier of a wrong sign, or constraint violation
    curvature: Float[Array, ""]  # smallest eigenvalue of the reduced Hessian; +inf where nothing is left free
    derivatives: Derivatives
    steps: Int[Array, ""]


def derivatives(problem: Problem, z: Float[Array, "4"]) -> Derivatives:
    """Values, gradients and Hessians of objective and constraint."""
    jacobian = jax.jacfwd(problem.objective_and_constraint)
    return Derivatives(problem.objective_and_constraint(z), jacobian(z), jax.jacfwd(jacobian)(z))


@jax.jit
def values_and_gradients(problem: Problem, z: Float[Array, "4"]) -> tuple[Float[Array, "2"], Float[Array, "2 4"]]:
    """Values and gradients only, for SLSQP."""
    return problem.objective_and_constraint(z), jax.jacfwd(problem.objective_and_constraint)(z)


class _State(NamedTuple):
    z: Array
    multiplier: Array
    active: Array
    binding: Array
    steps: Array
    done: Array
    at: Derivatives  # where the last step began; at the end nothing has moved since


def _gradient_of_lagrangian(jacobian, multiplier):
    return jacobian[0] + multiplier * jacobian[1]


def _residual(value, jacobian, state_multiplier, active, binding):
    """KKT residual under an active set: four stationarity rows and the constraint row (its multiplier where slack)."""
    stationary = jnp.where(active == 0, _gradient_of_lagrangian(jacobian, state_multiplier), 0.0)
    return jnp.append(stationary, jnp.where(binding, value[1], state_multiplier))


def _least_squares_multiplier(jacobian, active, binding):
    free = active == 0
    df, dg = jnp.where(free, jacobian[0], 0.0), jnp.where(free, jacobian[1], 0.0)
    square = dg @ dg
    return jnp.where(binding & (square > 0), -(df @ dg) / jnp.where(square > 0, square, 1.0), 0.0)


def _newton_direction(d: Derivatives, state: _State, residual):
    free = (state.active == 0).astype(float)
    hessian = (d.hessian[0] + state.multiplier * d.hessian[1]) * free[:, None] * free[None, :] + jnp.diag(1 - free)
    column = d.jacobian[1] * free
    row = jnp.where(state.binding, d.jacobian[1] * free, 0.0)
    corner = jnp.where(state.binding, 0.0, 1.0)
    matrix = jnp.block([[hessian, column[:, None]], [row[None, :], corner[None, None]]])
    step = jnp.linalg.solve(matrix, -residual)
    return step[:4] * free, step[4]


def _length_to_box(problem: Problem, z, dz):
    """Longest step in [0, 1] inside the box, and the coordinate that stops it."""
    room = jnp.where(dz > 0, problem.upper - z, problem.lower - z)
    lengths = jnp.where(dz == 0, jnp.inf, room / jnp.where(dz == 0, 1.0, dz))
    stopper = jnp.argmin(lengths)
    return jnp.clip(lengths[stopper], 0.0, 1.0), stopper


def _change_active_set(problem: Problem, state: _State, gradient, value):
    """Release the worst bound whose multiplier has the wrong sign, or switch the constraint on or off."""
    fixed = problem.lower == problem.upper
    wrong = jnp.where(fixed, 0.0, jnp.maximum(-gradient * jnp.sign(-state.active), 0.0) * jnp.abs(state.active))
    worst = jnp.argmax(wrong)
    release = wrong[worst] > SIGN_TOLERANCE
    active = jnp.where(release & (jnp.arange(4) == worst), 0, state.active)
    slack = state.binding & (state.multiplier < -SIGN_TOLERANCE)
    violated = ~state.binding & (value[1] > SIGN_TOLERANCE)
    binding = jnp.where(slack, False, jnp.where(violated, True, state.binding))
    return active, binding, release | slack | violated


def _step(problem: Problem, state: _State) -> _State:
    d = derivatives(problem, state.z)
    first = _least_squares_multiplier(d.jacobian, state.active, state.binding)
    state = state._replace(multiplier=jnp.where(state.steps == 0, first, state.multiplier))
    residual = _residual(d.value, d.jacobian, state.multiplier, state.active, state.binding)
    merit = residual @ residual
    gradient = _gradient_of_lagrangian(d.jacobian, state.multiplier)

    dz, dlam = _newton_direction(d, state, residual)
    longest, stopper = _length_to_box(problem, state.z, dz)
    lengths = longest * jnp.asarray(STEP_FRACTIONS)

    def trial(length):
        z = jnp.clip(state.z + length * dz, problem.lower, problem.upper)
        value, jacobian = problem.objective_and_constraint(z), jax.jacfwd(problem.objective_and_constraint)(z)
        r = _residual(value, jacobian, state.multiplier + length * dlam, state.active, state.binding)
        square = r @ r
        return jnp.where(jnp.isfinite(square), square, jnp.inf)

    merits = jax.vmap(trial)(lengths)
    best = jnp.argmin(merits)
    blocked = (longest < 1.0) & ((best == 0) | (longest < 1e-12))
    length = jnp.where(blocked, longest, lengths[best])
    # Near rounding only a real gain counts, or noise would keep the loop alive.
    improved = merits[best] < jnp.where(merit < 1e-24, 0.1, 0.999) * merit
    moves = improved | blocked

    settled = jnp.sqrt(merit) < SETTLED
    active, binding, changed = _change_active_set(problem, state, gradient, d.value)
    judge = settled & ~moves  # the iteration has stalled at a point that solves the current active set
    new_active = jnp.where(blocked & (jnp.arange(4) == stopper), jnp.sign(dz).astype(state.active.dtype), state.active)
    new_z = jnp.where(moves, jnp.clip(state.z + length * dz, problem.lower, problem.upper), state.z)
    return _State(
        z=new_z,
        multiplier=jnp.where(moves, state.multiplier + length * dlam, state.multiplier),
        active=jnp.where(judge, active, new_active),
        binding=jnp.where(judge, binding, state.binding),
        steps=state.steps + 1,
        done=~moves & ~(judge & changed),
        at=d,
    )


def _reduced_curvature(d: Derivatives, multiplier, active, binding):
    """Smallest eigenvalue of the Lagrangian's Hessian along directions that the active constraints leave open."""
    free = (active == 0).astype(float)
    normal = jnp.where(binding, d.jacobian[1], 0.0) * free
    square = normal @ normal
    projector = jnp.diag(free) - jnp.outer(normal, normal) / jnp.where(square > 0, square, 1.0)
    hessian = projector @ (d.hessian[0] + multiplier * d.hessian[1]) @ projector
    open_directions = jnp.sum(free) - (square > 0)
    # Closed directions get a large eigenvalue so that the smallest belongs to an open one.
    shifted = hessian + 1e6 * (jnp.eye(4) - projector)
    return jnp.where(open_directions > 0, jnp.linalg.eigvalsh(shifted)[0], jnp.inf)


@partial(jax.jit, static_argnames="max_steps")
def polish(problem: Problem, z: Float[Array, "4"], *, max_steps: int = MAX_STEPS) -> KktPoint:
    """Run Newton from z to a KKT point; vmap over problems or starts at will."""
    z = jnp.clip(z, problem.lower, problem.upper)
    fixed = problem.lower == problem.upper
    active = jnp.where(fixed | (z - problem.lower < 1e-7), -1, jnp.where(problem.upper - z < 1e-7, 1, 0))
    binding = jnp.asarray(True)
    nowhere = Derivatives(jnp.zeros(2), jnp.zeros((2, 4)), jnp.zeros((2, 4, 4)))
    state = _State(z, jnp.asarray(0.0), active, binding, jnp.asarray(0), jnp.asarray(False), nowhere)
    state = jax.lax.while_loop(lambda s: ~s.done & (s.steps < max_steps), partial(_step, problem), state)

    d = state.at
    gradient = _gradient_of_lagrangian(d.jacobian, state.multiplier)
    residual = _residual(d.value, d.jacobian, state.multiplier, state.active, state.binding)
    wrong = jnp.where(fixed, 0.0, jnp.maximum(-gradient * jnp.sign(-state.active), 0.0) * jnp.abs(state.active))
    wrong_sign = jnp.maximum(jnp.max(wrong), jnp.where(state.binding, -state.multiplier, d.value[1]))
    return KktPoint(
        z=state.z,
        multiplier=state.multiplier,
        active=state.active,
        binding=state.binding,
        residual=jnp.max(jnp.abs(residual)),
        wrong_sign=jnp.maximum(wrong_sign, 0.0),
        curvature=_reduced_curvature(d, state.multiplier, state.active, state.binding),
        derivatives=d,
        steps=state.steps,
    )
