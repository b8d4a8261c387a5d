"""Feasible starting points for any problem, without knowing its units."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator.problem import LARGEST, SMALLEST, Problem

SIZES = 256  # log N over a hundred decades: only a start, Newton does the rest
BUDGETS = 128
# Shares of D, R and k. Without RL, since at R = 0 the RL factor is ill-scaled to approach from above; with few
# tokens D, since Newton takes long to get rid of tokens that a small model has no use for.
SPLITS = np.array([[1, 1, 1], [1, 0, 1], [0.01, 1, 1], [0.01, 0, 1]])


def _spend(problem: Problem, log_n, log_budget, shares) -> tuple[Array, Array]:
    """Split a budget at one N: (coordinates, what the lower bounds leave of it).

    Each decision gets its lower bound, then its share of what is left over. With a target loss the budget is what
    comes on top of the lower bounds, since training may be a tiny part of what serving costs.
    """
    at = problem.decision(jnp.stack([log_n, *problem.lower[1:]]))
    top = problem.decision(jnp.stack([log_n, *problem.upper[1:]]))
    rates = problem.costs.rates(log_n, problem.currency)
    spent = rates.d * at.d_pretrain + rates.r * at.d_rl + rates.k * at.k + rates.fixed
    left = jnp.exp(log_budget) - jnp.where(problem.minimise_cost > 0.5, 0.0, spent)
    free = problem.lower[1:] < problem.upper[1:]
    weights = shares * free
    weights = weights / jnp.maximum(jnp.sum(weights), 1e-300)
    positive = jnp.maximum(left, 0.0)
    tokens = [
        jnp.clip(low + weight * positive / jnp.where(rate > 0, rate, 1.0), low, high)
        for low, high, weight, rate in zip(at[1:], top[1:], weights, (rates.d, rates.r, rates.k), strict=True)
    ]
    z = problem.coordinates(at._replace(d_pretrain=tokens[0], d_rl=tokens[1], k=tokens[2]))
    return jnp.clip(z, problem.lower, problem.upper), left


@jax.jit
def _score(problem: Problem, log_n, log_budget, shares):
    """Coordinates, merit (lower is better, inf where infeasible) and what the lower bounds leave of the budget."""

    def one(log_n, log_budget, shares):
        z, left = _spend(problem, log_n, log_budget, shares)
        objective, constraint = problem.objective_and_constraint(z)
        broken = jnp.isnan(objective) | jnp.isnan(constraint)
        lawful = (left > 0) & jnp.isfinite(objective) & (constraint <= 1e-9)
        return z, jnp.where(lawful, objective, jnp.inf), jnp.where(broken, jnp.nan, left)

    return jax.vmap(one)(log_n, log_budget, shares)


class Grid(NamedTuple):
    """Points of a scan over N; at each size the options are ways of splitting budgets among the free phases."""

    z: Float[np.ndarray, "sizes options 4"]
    merit: Float[np.ndarray, "sizes options"]  # lower is better, inf where infeasible
    left: Float[np.ndarray, "sizes options"]  # budget left over once the lower bounds are paid; NaN where the law is
    log_budget: Float[np.ndarray, " options"]

    def best_by_size(self) -> tuple[Float[np.ndarray, "sizes 4"], Float[np.ndarray, " sizes"]]:
        """Best point at each size and its merit."""
        best = np.argmin(self.merit, axis=1)
        rows = np.arange(len(best))
        return self.z[rows, best], self.merit[rows, best]

    def broken(self) -> Float[np.ndarray, "points 4"]:
        """Points at which the law is NaN, those nearest to the best size first."""
        sizes, options = np.nonzero(np.isnan(self.left))
        best = np.argmin(np.min(self.merit, axis=1))
        return self.z[sizes, options][np.argsort(np.abs(sizes - best), kind="stable")]


def scan(problem: Problem, log_n: Float[np.ndarray, " sizes"]) -> Grid:
    """Score simple splits of the budget at each size; with a target loss, of every budget of a wide grid."""
    if float(problem.minimise_cost) > 0.5:
        log_budget = np.linspace(np.log(SMALLEST), np.log(LARGEST), BUDGETS)
    else:
        log_budget = np.array([float(problem.log_limit)])
    log_budget = np.repeat(log_budget, len(SPLITS))
    splits = np.tile(SPLITS, (len(log_budget) // len(SPLITS), 1))
    sizes, options = (a.ravel() for a in np.meshgrid(np.arange(len(log_n)), np.arange(len(log_budget)), indexing="ij"))
    z, merit, left = (np.asarray(a) for a in _score(problem, log_n[sizes], log_budget[options], splits[options]))
    shape = len(log_n), len(log_budget)
    return Grid(z.reshape(*shape, 4), merit.reshape(shape), left.reshape(shape), log_budget)


def whole_range(problem: Problem) -> Float[np.ndarray, " sizes"]:
    """Log N over the box; one point where N is fixed."""
    low, high = float(problem.lower[0]), float(problem.upper[0])
    return np.array([low]) if low == high else np.linspace(low, high, SIZES)


def scattered_starts(problem: Problem, grid: Grid, count: int, *, seed: int = 0) -> Float[np.ndarray, "found 4"]:
    """Feasible starts around the grid's feasible sizes, with shares drawn from a scrambled Sobol sequence."""
    from scipy.stats import qmc  # takes a second to import, and most problems need no further starts

    sizes, budgets = np.nonzero(np.isfinite(grid.merit))
    draws = qmc.Sobol(4, rng=seed).random(4 * (1 << (count - 1).bit_length()))
    rows = np.minimum((draws[:, 0] * len(sizes)).astype(int), len(sizes) - 1)
    shares = -np.log(np.clip(draws[:, 1:], 1e-12, None))  # exponentials, so the normalised shares are uniform
    log_n = grid.z[sizes[rows], budgets[rows], 0]
    found, merit, _ = (np.asarray(a) for a in _score(problem, log_n, grid.log_budget[budgets[rows]], shares))
    return found[np.isfinite(merit)][:count]


# Of a batch's starts, phases that are left out in turn: as few samples as allowed, or no RL, from where the way to an
# optimum with RL is long. Of 1,000 laws with overlap, six starts reach the optimum of all, and without this 986.
LEFT_OUT = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 0, 1]])
BATCH_SPLITS = SPLITS[[0, 3]]  # a scan of all four takes half of a large batch's time, and finds no more
BATCH_SIZES, BATCH_BUDGETS, REACH = 36, 32, 4.0  # of the scan; starts scatter within e^REACH of its best size


@partial(jax.jit, static_argnames="target")
def spread(
    problems: Problem, draws: Float[np.ndarray, "starts 4"], *, target: bool
) -> Float[Array, "problems starts 4"]:
    """Starts for a batch of problems, in JAX alone: the best of a coarse scan, then `draws` in [0, 1) around its size.

    `target` says that the problems have a target loss, whose budgets are part of the scan. Where a draw cannot be paid
    for, the scan's best stands in; where nothing can, starts are not finite.
    """
    budgets = np.linspace(np.log(SMALLEST), np.log(LARGEST), BATCH_BUDGETS) if target else np.zeros(1)

    def at(problem: Problem):
        log_n = jnp.linspace(problem.lower[0], problem.upper[0], BATCH_SIZES)
        sizes, options, splits = (x.ravel() for x in np.meshgrid(
            np.arange(BATCH_SIZES), np.arange(len(budgets)), np.arange(len(BATCH_SPLITS)), indexing="ij"))  # fmt: skip
        log_budget = jnp.asarray(budgets)[options] if target else jnp.broadcast_to(problem.log_limit, options.shape)
        z, merit, _ = _score(problem, log_n[sizes], log_budget, jnp.asarray(BATCH_SPLITS)[splits])
        best = jnp.argmin(merit)
        first = jnp.where(jnp.isfinite(merit[best]), z[best], jnp.nan)
        width = jnp.minimum(REACH, (problem.upper[0] - problem.lower[0]) / 2)
        near = jnp.clip(first[0] + width * (2 * draws[:, 0] - 1), problem.lower[0], problem.upper[0])
        shares = -jnp.log(jnp.maximum(draws[:, 1:], 1e-12)) * LEFT_OUT[np.arange(len(draws)) % len(LEFT_OUT)]
        others, worth, _ = _score(problem, near, jnp.broadcast_to(log_budget[best], near.shape), shares)
        others = jnp.where(jnp.isfinite(worth)[:, None], others, first[None])
        return jnp.concatenate([first[None], others])

    return jax.vmap(at)(problems)
