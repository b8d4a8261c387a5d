"""The best fit from many starts."""

from dataclasses import dataclass
from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.stats import qmc

from allocator.fitting.batches import descend_all
from allocator.fitting.descent import Minimum, Problem, box, derivatives, relative_gradient
from allocator.fitting.form import Form
from allocator.fitting.losses import Loss
from allocator.fitting.scaled import Scaled, pin

SAME = 1e-6  # relative difference of objectives below which two starts found the same minimum
EXACT = 1e-9  # residual, in logs or relative to the target, that no measurement resolves
MOST_SUBSETS = 4  # linear parameters up to which every sign pattern is tried


@dataclass(frozen=True)
class Search:
    """The best minimum and how sure it is."""

    theta: np.ndarray
    objective: float
    starts: int
    share_at_best: float  # of the starts that ended within 1e-6 of the best objective
    gradient: float  # largest component among free coordinates, relative to the sum of its terms' sizes
    at_bound: np.ndarray
    others: np.ndarray  # further minima, best first, a row each


def starting_points(form: Form, scaled: Scaled, count: int, seed: int) -> np.ndarray:
    """Sobol points over the shape parameters, each with the linear parameters that fit best (variable projection)."""
    low, high = np.array([parameter.start for parameter in form.parameters], float).T
    sampler = qmc.Sobol(len(low), rng=np.random.default_rng(seed))
    points = qmc.scale(sampler.random_base2(max(int(np.ceil(np.log2(count))), 0))[:count], low, high)
    m = len(form.linear)
    if m == 0 or form.combine is not None:
        return points
    best = np.asarray(_project(form, scaled, jnp.asarray(points)))
    bounds_low, bounds_high = (np.asarray(edge)[:m] for edge in box(form))
    return np.column_stack([np.clip(best, bounds_low, bounds_high), points[:, m:]])


@partial(jax.jit, static_argnums=0)
def _project(form: Form, scaled: Scaled, points):
    """Coefficients by weighted least squares at each point's shape; >= 0 for a positive form."""
    m = len(form.linear)
    # Relative residuals stand in for those of logs, which makes the problem linear.
    target = jnp.exp(scaled.target) if form.positive else scaled.target
    weight = 1 / target if form.positive else jnp.ones_like(target)
    subsets = [part for size in range(1, m + 1) for part in combinations(range(m), size)]
    masks = np.zeros((len(subsets), m), bool)
    for row, subset in zip(masks, subsets, strict=True):
        row[list(subset)] = True
    if m > MOST_SUBSETS or not form.positive:
        masks = np.ones((1, m), bool)

    def one(point):
        terms = form.terms(point[m:], scaled.rows)
        matrix = ((jnp.exp(terms) if form.positive else terms) * weight[None, :]).T
        size = jnp.sqrt(jnp.sum(matrix**2, axis=0)) + 1e-300
        matrix = matrix / size[None, :]
        gram, moment = matrix.T @ matrix, matrix.T @ (weight * target)

        def solve(mask):
            square = gram * (mask[:, None] & mask[None, :]) + jnp.diag(jnp.where(mask, 1e-12, 1.0))
            found = jnp.linalg.solve(square, jnp.where(mask, moment, 0.0))
            lawful = jnp.all(found >= 0) | (not form.positive)
            misfit = found @ gram @ found - 2 * found @ moment
            return found / size, jnp.where(lawful, misfit, jnp.inf)

        found, misfits = jax.vmap(solve)(jnp.asarray(masks))
        best = found[jnp.argmin(misfits)]
        return jnp.log(jnp.maximum(best, 1e-12)) if form.positive else best

    return jax.vmap(one)(points)


def search(form: Form, loss: Loss, scaled: Scaled, *, starts: int, seed: int, pinned: np.ndarray) -> Search:
    """Descend from every start, polish the best with scipy's trust region, and count who else came there."""
    points = starting_points(form, scaled, starts, seed)
    found = descend_all(form, loss, scaled, points, pinned=pinned)
    values = np.where(np.isfinite(found.objective), found.objective, np.inf)
    order = np.argsort(values, kind="stable")
    theta, value = _polish(form, loss, scaled, pinned, found, int(order[0]))
    problem = _problem(loss, scaled, pinned)
    flat = np.abs(np.asarray(relative_gradient(form, problem, jnp.asarray(theta))))
    at_bound = np.asarray(found.at_bound[order[0]])
    free = ~at_bound & ~np.isfinite(pinned)
    # Where a law fits exactly, objectives differ by rounding alone and gradients are rounding.
    exact = 0.0 if form.log_likelihood is not None else 0.5 * len(scaled.target) * EXACT**2
    same = values <= value + max(SAME * abs(value), exact)
    flat = flat * (abs(value) > exact or form.log_likelihood is not None)
    far = order[~same[order]]
    return Search(theta, value, len(points), float(np.mean(same)), float(np.max(flat[free], initial=0.0)), at_bound,
                  np.asarray(found.theta)[far[:3]])  # fmt: skip


def _problem(loss: Loss, scaled: Scaled, pinned: np.ndarray) -> Problem:
    numbers = jnp.asarray(loss.delta, float), jnp.asarray(loss.overestimate, float)
    return Problem(scaled, jnp.ones(len(scaled.target)), jnp.asarray(pinned), *numbers)


def _polish(form, loss, scaled, pinned, found: Minimum, best: int) -> tuple[np.ndarray, float]:
    """scipy's exact trust region on the free coordinates; kept only where it is lower."""
    theta, problem = np.asarray(found.theta[best]), _problem(loss, scaled, pinned)
    free = ~(np.isfinite(pinned) | np.asarray(found.at_bound[best]))
    value = float(found.objective[best])
    if not free.any() or value == 0 or not np.isfinite(value):
        return theta, value

    where = np.flatnonzero(free)

    def whole_of(x):
        return jnp.asarray(theta).at[where].set(x)

    def value_and_gradient(x):
        at, slope, _ = _derivatives(form, problem, whole_of(x))
        return float(at) / abs(value), np.asarray(slope)[where] / abs(value)

    def hessian(x):
        return np.asarray(_derivatives(form, problem, whole_of(x))[2])[np.ix_(where, where)] / abs(value)

    result = minimize(value_and_gradient, theta[free], jac=True, hess=hessian, method="trust-exact",
                      options={"gtol": 1e-12, "maxiter": 200})  # fmt: skip
    low, high = box(form)
    whole = np.array(theta)
    whole[free] = result.x
    whole = np.asarray(pin(form, jnp.asarray(whole), scaled, jnp.asarray(pinned)))
    if result.fun * abs(value) < value and np.all(whole >= low) and np.all(whole <= high):
        return whole, float(result.fun * abs(value))
    return theta, value


@partial(jax.jit, static_argnums=0)
def _derivatives(form, problem, theta):
    return derivatives(form, problem, theta, problem.delta)
