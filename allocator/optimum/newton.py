"""Damped Newton on the KKT system with an active set of bounds; pure JAX, so that one problem and a batch share it.

For objective f, constraint g <= 0 and a box, a KKT point has df + lam dg = 0 in every free coordinate, g = 0 (or
lam = 0 where g < 0), and bound multipliers of the right sign.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from allocator.problem import Problem

MAX_STEPS = 200
SETTLED = 1e-6  # Newton step, in logs, at which the active set is judged; the iteration itself goes on until it stalls
ROUNDING = 1e-11  # Newton step below which steps are mostly noise
SIGN_TOLERANCE = 1e-9  # a multiplier this wrong, relative to what it balances, is rounding
SHORTEN, SHORTEST = 0.25, 1e-7  # backtracking
PUSHES = 4  # off bounds that Newton would fall back on: by 1 in logs, then 2, 4 and 8


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
    step: Float[Array, ""]  # largest change of a coordinate that Newton still wants: the decisions' relative error
    wrong_sign: Float[Array, ""]  # largest multiplier of a wrong sign, relative to what it balances
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


class State(NamedTuple):
    """Where the iteration is."""

    z: Array
    multiplier: Array
    active: Array
    binding: Array
    at: Derivatives  # at z
    inverse: Array  # of the KKT matrix at z
    dz: Array  # Newton direction at z
    dlam: Array
    length: Array  # of the next step to try
    stopper: Array  # coordinate whose bound that step runs into, or -1
    pushes: Array  # off bounds, so far
    fresh: Array  # nothing is known at z yet, so the step there is accepted whatever it finds
    steps: Array
    done: Array


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


def _kkt_matrix(d: Derivatives, multiplier, active, binding):
    free = (active == 0).astype(float)
    hessian = (d.hessian[0] + multiplier * d.hessian[1]) * free[:, None] * free[None, :] + jnp.diag(1 - free)
    column = d.jacobian[1] * free
    row = jnp.where(binding, column, 0.0)
    corner = jnp.where(binding, 0.0, 1.0)
    return jnp.block([[hessian, column[:, None]], [row[None, :], corner[None, None]]])


def inverse(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Inverse of a small matrix by Gauss and Jordan's elimination; not finite where it has none.

    Rows are scaled by their largest entry first, since elasticities differ by orders of magnitude. Spelt out, so that
    a batch eliminates all its matrices at once; LAPACK would take them one by one, ten times slower.
    """
    size = matrix.shape[0]
    scale = jnp.max(jnp.abs(matrix), axis=1, keepdims=True)
    scale = jnp.where(scale > 0, scale, 1.0)
    rows = jnp.concatenate([matrix / scale, jnp.eye(size) / scale], axis=1)
    for i in range(size):
        below = jnp.arange(size) >= i
        largest = jnp.argmax(jnp.where(below, jnp.abs(rows[:, i]), -1.0))
        chosen = (jnp.arange(size) == largest)[:, None]
        pivot = jnp.sum(jnp.where(chosen, rows, 0.0), axis=0)
        rows = jnp.where(chosen, rows[i][None, :], rows).at[i].set(pivot / pivot[i])
        others = jnp.arange(size) != i
        rows = rows - jnp.outer(jnp.where(others, rows[:, i], 0.0), rows[i])
    return rows[:, size:]


def _step_to_box(problem: Problem, z, dz):
    """Longest step in [0, 1] inside the box, and the coordinate that stops it (-1 if none does)."""
    room = jnp.where(dz > 0, problem.upper - z, problem.lower - z)
    lengths = jnp.where(dz == 0, jnp.inf, room / jnp.where(dz == 0, 1.0, dz))
    stopper = jnp.argmin(lengths)
    longest = jnp.clip(lengths[stopper], 0.0, 1.0)
    return longest, jnp.where(longest < 1.0, stopper, -1)


def _wrong_signs(problem: Problem, active, d: Derivatives, multiplier):
    """By how much each bound multiplier has the wrong sign, relative to the two terms that make it up."""
    gradient = _gradient_of_lagrangian(d.jacobian, multiplier)
    size = jnp.abs(d.jacobian[0]) + jnp.abs(multiplier * d.jacobian[1])
    free = (active == 0) | (problem.lower == problem.upper) | (size == 0)
    return jnp.where(free, 0.0, jnp.maximum(active * gradient, 0.0) / jnp.where(free, 1.0, size))


def _wrong_multiplier(d: Derivatives, multiplier, active, binding):
    """By how much the constraint's multiplier is negative, relative to the elasticities it balances."""
    free = active == 0
    df, dg = (jnp.max(jnp.where(free, jnp.abs(row), 0.0)) for row in d.jacobian)
    size = jnp.where(dg > 0, df / jnp.where(dg > 0, dg, 1.0), 1.0)
    return jnp.where(binding, jnp.maximum(-multiplier, 0.0) / jnp.where(size > 0, size, 1.0), 0.0)


def _change_active_set(problem: Problem, state: State):
    """Release the bound whose multiplier is most wrong, or switch the constraint on or off.

    Returns the new active set, whether the constraint binds, the coordinate released (-1: none), whether any changed.
    """
    wrong = _wrong_signs(problem, state.active, state.at, state.multiplier)
    worst = jnp.argmax(wrong)
    release = wrong[worst] > SIGN_TOLERANCE
    # Off where it holds the point back, and where no decision is left free to meet it with equality.
    nothing_free = jnp.all(state.active != 0) & (state.at.value[1] < 0)
    held_back = _wrong_multiplier(state.at, state.multiplier, state.active, state.binding) > SIGN_TOLERANCE
    slack = state.binding & (held_back | nothing_free)
    violated = ~state.binding & (state.at.value[1] > SIGN_TOLERANCE)
    active = jnp.where(release & (jnp.arange(4) == worst), 0, state.active)
    released = jnp.where(release, worst, -1)
    return active, (state.binding | violated) & ~slack, released, release | slack | violated


def _step(problem: Problem, state: State) -> State:
    """Try the planned step: move and plan the next one, or shorten it, or conclude that the iteration has settled.

    A step is good if the correction that the old matrix would make from the new point is shorter than the last one:
    a test in the decisions themselves, which no scaling of objective or constraint can fool.
    """
    z = jnp.clip(state.z + state.length * state.dz, problem.lower, problem.upper)
    stopped = jnp.arange(4) == state.stopper
    z = jnp.where(stopped, jnp.where(state.dz > 0, problem.upper, problem.lower), z)  # on the bound, not beside it
    d = derivatives(problem, z)
    active = jnp.where(stopped, jnp.sign(state.dz).astype(state.active.dtype), state.active)
    first_multiplier = _least_squares_multiplier(d.jacobian, active, state.binding)
    multiplier = jnp.where(state.fresh, first_multiplier, state.multiplier + state.length * state.dlam)

    residual = _residual(d.value, d.jacobian, multiplier, state.active, state.binding)
    planned = jnp.max(jnp.abs(state.dz))
    left = jnp.max(jnp.abs((state.inverse @ residual)[:4]))
    # Near rounding only a real gain counts, or noise would keep the loop alive.
    gain = jnp.where(planned < ROUNDING, 0.1, 1 - state.length / 4)
    at_bound_already = (state.stopper >= 0) & (state.length < 1e-12)
    accepted = state.fresh | at_bound_already | (left < gain * planned)

    shorter = state.length * SHORTEN
    stalled = ~accepted & ((planned < ROUNDING) | (shorter < SHORTEST))
    changed_active, changed_binding, released, changed = _change_active_set(problem, state)
    judged = stalled & (planned < SETTLED) & changed

    def choose(if_accepted, if_judged, otherwise):
        return jnp.where(accepted, if_accepted, jnp.where(judged, if_judged, otherwise))

    here = state._replace(
        z=jnp.where(accepted, z, state.z),
        multiplier=jnp.where(accepted, multiplier, state.multiplier),
        active=choose(active, changed_active, state.active),
        binding=choose(state.binding, changed_binding, state.binding),
        at=jax.tree.map(lambda new, old: jnp.where(accepted, new, old), d, state.at),
        steps=state.steps + 1,
        done=stalled & ~judged,
    )
    inverted = inverse(_kkt_matrix(here.at, here.multiplier, here.active, here.binding))
    residual = _residual(here.at.value, here.at.jacobian, here.multiplier, here.active, here.binding)
    correction = -inverted @ residual
    dz = jnp.where(here.active == 0, correction[:4], 0.0)
    longest, stopper = _step_to_box(problem, here.z, dz)
    # Where the way off a released bound is not convex at first, Newton's direction leads back to it, time and again.
    side = jnp.where(judged & (jnp.arange(4) == released), state.active, 0)
    falls_back = jnp.any(dz * side > 0)
    give_up = falls_back & (state.pushes == PUSHES)
    back = falls_back & ~give_up
    room = (problem.upper - problem.lower) / 2
    pushed = here.z - side * jnp.minimum(2.0**state.pushes, room)
    return here._replace(
        z=jnp.where(back, pushed, here.z),
        inverse=inverted,
        dz=jnp.where(back, 0.0, dz),
        dlam=correction[4],
        length=jnp.where(back, 0.0, choose(longest, longest, shorter)),
        stopper=jnp.where(back, -1, choose(stopper, stopper, -1)),
        pushes=state.pushes + back,
        fresh=back,
        done=here.done | give_up,
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
    shifted = hessian + 10 * jnp.max(jnp.abs(hessian)) * (jnp.eye(4) - projector)
    return jnp.where(open_directions > 0, jnp.linalg.eigvalsh(shifted)[0], jnp.inf)


def begin(problem: Problem, z: Float[ArrayLike, "4"], binding: Bool[ArrayLike, ""] = True) -> State:
    """The state from which `advance` starts at z.

    `binding` says whether the constraint is taken to hold with equality at first.
    """
    fixed = problem.lower == problem.upper
    at_lower, at_upper = fixed | (z - problem.lower < 1e-7), problem.upper - z < 1e-7
    active = jnp.where(at_lower, -1, jnp.where(at_upper, 1, 0))
    z = jnp.where(at_lower, problem.lower, jnp.where(at_upper, problem.upper, z))
    zero, nothing = jnp.asarray(0.0), jnp.zeros(4)
    return State(
        z=z,
        multiplier=zero,
        active=active,
        binding=jnp.asarray(binding),
        at=Derivatives(jnp.zeros(2), jnp.zeros((2, 4)), jnp.zeros((2, 4, 4))),
        inverse=jnp.eye(5),
        dz=nothing,
        dlam=zero,
        length=zero,
        stopper=jnp.asarray(-1),
        pushes=jnp.asarray(0),
        fresh=jnp.asarray(True),
        steps=jnp.asarray(0),
        done=jnp.asarray(False),
    )


def advance(problem: Problem, state: State, max_steps: Int[ArrayLike, ""]) -> State:
    """Iterate until Newton has settled, or for so many steps in all."""
    return jax.lax.while_loop(lambda s: ~s.done & (s.steps < max_steps), partial(_step, problem), state)


def conclude(problem: Problem, state: State) -> KktPoint:
    """What a state amounts to as a KKT point."""
    wrong = jnp.max(_wrong_signs(problem, state.active, state.at, state.multiplier))
    wrong = jnp.maximum(wrong, _wrong_multiplier(state.at, state.multiplier, state.active, state.binding))
    return KktPoint(
        z=state.z,
        multiplier=state.multiplier,
        active=state.active,
        binding=state.binding,
        step=jnp.where(state.fresh, jnp.inf, jnp.max(jnp.abs(state.dz))),
        wrong_sign=jnp.where(state.binding, wrong, jnp.maximum(wrong, state.at.value[1])),
        curvature=_reduced_curvature(state.at, state.multiplier, state.active, state.binding),
        derivatives=state.at,
        steps=state.steps,
    )


@partial(jax.jit, static_argnames="max_steps")
def polish(
    problem: Problem, z: Float[ArrayLike, "4"], binding: Bool[ArrayLike, ""] = True, *, max_steps: int = MAX_STEPS
) -> KktPoint:
    """Run Newton from z to a KKT point; vmap over problems or starts at will."""
    return conclude(problem, advance(problem, begin(problem, z, binding), max_steps))
