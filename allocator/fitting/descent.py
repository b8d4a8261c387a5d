"""Damped Newton on a robust objective inside a box; pure JAX, so that starts and resamples share one batched run."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float

from allocator.fitting.form import Form
from allocator.fitting.losses import rho
from allocator.fitting.scaled import Scaled, pin

MAX_STEPS = 400
WIDEST = 0.3  # first delta of the sequence that ends at the loss's own: a nearly quadratic problem first
NARROWING = 3.0
LONGEST = 2.0  # step, in estimated coordinates
NOTHING = 1e-16  # a decrease this small, relative to the objective, is rounding
ROUNDING = 1e-13  # of a residual: where the runs lie on the law, the objective has no size to compare with


class Problem(NamedTuple):
    """One fit of a batch."""

    scaled: Scaled
    weight: Float[Array, " rows"]  # of each run; resampling changes these
    pinned: Float[Array, " parameters"]  # physical values of parameters that are held, NaN elsewhere
    delta: Float[Array, ""]  # of the loss
    overestimate: Float[Array, ""]


class Minimum(NamedTuple):
    """Where a descent ended."""

    theta: Float[Array, " parameters"]
    objective: Float[Array, ""]
    gradient: Float[Array, ""]  # largest component among free coordinates, relative to the sum of its terms' sizes
    at_bound: Bool[Array, " parameters"]
    steps: Array


class _State(NamedTuple):
    theta: Array
    damping: Array
    delta: Array
    steps: Array
    done: Array


def contributions(
    form: Form, problem: Problem, theta: Float[Array, " parameters"], delta: Array
) -> Float[Array, " rows"]:
    """What each run adds to the objective, for some delta in place of the loss's own."""
    scaled = problem.scaled
    theta = pin(form, theta, scaled, problem.pinned)
    if form.log_likelihood is not None:
        rows = {**scaled.rows, form.target.name: scaled.target}
        return -problem.weight * form.log_likelihood(theta, rows)
    return problem.weight * rho(form.residual(theta, scaled.rows, scaled.target), delta, problem.overestimate)


def objective(form: Form, problem: Problem, theta: Float[Array, " parameters"], delta: Array) -> Array:
    """Sum of the runs' contributions."""
    return jnp.sum(contributions(form, problem, theta, delta))


def box(form: Form) -> tuple[Array, Array]:
    """Lower and upper bounds of the estimated vector."""
    bounds = jnp.array([parameter.bounds for parameter in form.parameters], float)
    return bounds[:, 0], bounds[:, 1]


def derivatives(
    form: Form, problem: Problem, theta: Float[Array, " parameters"], delta: Array
) -> tuple[Array, Float[Array, " parameters"], Float[Array, "parameters parameters"]]:
    """Value, gradient and Hessian of the objective."""

    def slope(theta):
        value, gradient = jax.value_and_grad(partial(objective, form, problem))(theta, delta)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(theta)
    return value, gradient, hessian


@partial(jax.jit, static_argnums=0)
def relative_gradient(form: Form, problem: Problem, theta: Float[Array, " parameters"]) -> Array:
    """Each component of the gradient, signed, over the sum of the sizes of its runs' contributions."""
    each = jax.jacfwd(lambda point: contributions(form, problem, point, problem.delta))(theta)
    size = jnp.sum(jnp.abs(each), axis=0)
    return jnp.sum(each, axis=0) / jnp.where(size > 0, size, 1.0)


@partial(jax.jit, static_argnums=0)
def descend(form: Form, problem: Problem, start: Float[Array, " parameters"]) -> Minimum:
    """Follow the minimum while delta narrows to the loss's own, then settle."""
    low, high = box(form)
    held = jnp.isfinite(problem.pinned)
    final = problem.delta
    rounding = 0.5 * len(problem.weight) * ROUNDING**2

    def step(state: _State) -> _State:
        # The only place with derivatives: each copy of them is compiled anew, and that takes longer than the fit.
        before, slope, hessian = derivatives(form, problem, state.theta, state.delta)
        free = ~_stuck(state.theta, slope, low, high, held)
        move = _newton(slope, hessian, state.damping, free)
        # At a bound that the gradient leaves but the coupled step presses against, solve without that coordinate.
        blocked = free & (((state.theta <= low) & (move < 0)) | ((state.theta >= high) & (move > 0)))
        free = free & ~blocked
        move = _newton(slope, hessian, state.damping, free)
        solid = jnp.all(jnp.isfinite(move))  # else the damped Hessian is not positive definite
        move = jnp.where(solid, move, 0.0)
        room = jnp.where(move < 0, low - state.theta, high - state.theta) / jnp.where(move == 0, 1.0, move)
        longest = jnp.min(jnp.where(move == 0, jnp.inf, room), initial=LONGEST / jnp.max(jnp.abs(move), initial=1e-300))
        move = jnp.clip(state.theta + jnp.minimum(longest, 1.0) * move, low, high) - state.theta
        promised = -(jnp.where(free, slope, 0.0) @ move + 0.5 * move @ hessian @ move)
        value = objective(form, problem, state.theta + move, state.delta)
        better = solid & (value < before)
        gained = before - value
        gain = gained / jnp.where(promised > 0, promised, jnp.inf)
        calmer = jnp.where(gain > 0.75, state.damping / 5, jnp.where(gain < 0.25, state.damping * 2, state.damping))
        damping = jnp.clip(jnp.where(better, calmer, state.damping * 4), 1e-12, 1e13)
        exhausted = solid & ~jnp.any(blocked) & (state.damping < 1.0) & (longest >= 1.0)
        settled = (damping > 1e12) | (exhausted & (promised <= NOTHING * jnp.abs(before) + rounding))
        loose = state.delta > final
        advance = loose & (settled | (better & (gained < 1e-3 * jnp.abs(before))))
        delta = jnp.where(advance, jnp.maximum(state.delta / NARROWING, final), state.delta)
        return _State(
            theta=jnp.where(better, state.theta + move, state.theta),
            damping=jnp.where(advance, 1e-3, damping),
            delta=delta,
            steps=state.steps + 1,
            done=settled & ~loose,
        )

    first = jnp.where(jnp.isfinite(final), jnp.maximum(final, WIDEST), final)
    theta = jnp.clip(start, low, high)
    state = _State(theta, jnp.asarray(1e-2), first, jnp.asarray(0), jnp.asarray(False))
    state = jax.lax.while_loop(lambda state: (state.steps < MAX_STEPS) & ~state.done, step, state)
    theta = pin(form, state.theta, problem.scaled, problem.pinned)
    slope = relative_gradient(form, problem, theta)
    flatness = jnp.where(_stuck(theta, slope, low, high, held), 0.0, jnp.abs(slope))
    at_bound = ~held & ((theta <= low) | (theta >= high))
    return Minimum(theta, objective(form, problem, theta, final), jnp.max(flatness), at_bound, state.steps)


def _newton(gradient, hessian, damping, free):
    """Damped Newton step of the free coordinates; NaN where the damped Hessian is not positive definite."""
    hessian = jnp.where(free[:, None] & free[None, :], hessian, 0.0)
    diagonal = jnp.abs(jnp.diag(hessian))
    ridge = jnp.maximum(diagonal, 1e-3 * jnp.max(diagonal)) + 1e-300
    factor = jnp.linalg.cholesky(hessian + jnp.diag(jnp.where(free, damping * ridge, 1.0)))
    return -cho_solve((factor, True), jnp.where(free, gradient, 0.0))


def _stuck(theta, gradient, low, high, held):
    """Coordinates that may not move: held, or at a bound that the objective presses against."""
    return held | ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
