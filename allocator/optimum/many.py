"""Many problems at once: Newton under vmap from several starts each, and a strict look at what comes out."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import qmc

from allocator.optimum.newton import MAX_STEPS, KktPoint, advance, begin, conclude
from allocator.optimum.solving import verdict
from allocator.optimum.starts import spread
from allocator.problem import Problem

ROUNDS = (
    10,
    16,
    24,
    40,
    80,
    MAX_STEPS,
)  # steps of Newton, in all, after which the problems that are done leave the batch
PATIENCE = 16  # steps after which a start is given up if its problem has a verified point from another
FEW, MANY = 64, 4096  # problems that go together, since each number of them is compiled for itself


class Verified(NamedTuple):
    """The best verified KKT point of each problem."""

    point: KktPoint  # NumPy arrays with a leading axis
    found: Bool[np.ndarray, " problems"]  # whether any start led to a point that verifies
    kkt_residual: Float[np.ndarray, " problems"]
    constraint_residual: Float[np.ndarray, " problems"]
    starts: Int[np.ndarray, " problems"]  # tried


def optimise_many(
    problems: Problem, *, starts: int, convex: bool, reference: Float[np.ndarray, "... 4"] | None = None, seed: int = 0
) -> Verified:
    """Solve problems (a pytree with a leading axis) by Newton from several starts each; keep the best verified point.

    A point is verified if its recomputed residuals, the signs of its multipliers and its reduced Hessian are those of
    a local optimum. `reference` is a further start, the optimum of a problem like these, or one for each. With
    `convex`, where a local optimum is the global one, a problem is done with its first verified point. Raises nothing:
    `found` says where no start led anywhere.
    """
    problems = jax.tree.map(np.asarray, problems)
    count = len(problems.lower)
    best = _Best(count)
    draws = qmc.Sobol(4, rng=seed).random(1 << max(starts - 2, 0).bit_length())[: starts - 1]
    target = bool(np.ravel(problems.minimise_cost)[0] > 0.5)
    guesses = in_batches(partial(spread, target=target), problems, shared=(draws,))
    if reference is not None:
        others = np.broadcast_to(reference, (count, 4))
        guesses = np.concatenate([guesses, others[:, None]], axis=1)
    for i in range(guesses.shape[1]):
        wanted = np.isfinite(guesses[:, i]).all(axis=1) & ~(best.found & convex)
        # A start that only repeats the first one has nothing to add.
        wanted &= (guesses[:, i] != guesses[:, 0]).any(axis=1) | (i == 0)
        if wanted.any():
            best.try_starts(problems, np.flatnonzero(wanted), guesses[wanted, i])
    return best.verified(problems)


class _Best:
    """The best verified point of each problem so far."""

    def __init__(self, count: int):
        self.found, self.tried = np.zeros(count, bool), np.zeros(count, int)
        self.least = np.full(count, np.inf)
        self.points: Any = None
        self.residuals: Any = None

    def try_starts(self, problems: Problem, rows: np.ndarray, z: np.ndarray) -> None:
        """Run Newton on some problems from a start each."""
        part, judged = _polish_many(_take(problems, rows), z, self.found[rows])
        if self.points is None:
            self.points, self.residuals = (
                jax.tree.map(lambda x: np.full((len(self.found), *x.shape[1:]), 0, x.dtype), tree)
                for tree in (part, judged)
            )
        self.tried[rows] += 1
        value = np.where(judged[2], part.derivatives.value[:, 0], np.inf)
        better = value < self.least[rows]
        self.least[rows[better]] = value[better]
        self.found[rows] |= judged[2]
        _put(self.points, rows[better], _take(part, better))
        _put(self.residuals, rows[better], _take(judged, better))

    def verified(self, problems: Problem) -> Verified:
        """What was found."""
        if self.points is None:  # no start is finite anywhere
            self.try_starts(problems, np.arange(len(self.found)), np.full((len(self.found), 4), np.nan))
        point: Any = self.points
        return Verified(point, self.found, self.residuals[0], self.residuals[1], self.tried)


def _polish_many(problems: Problem, z: Float[np.ndarray, "problems 4"], found: np.ndarray) -> tuple[KktPoint, Any]:
    """Newton on all problems, and verdicts; after each round those that have settled leave, or all would wait.

    `found` says which problems have a verified point already, and so less to gain from a slow start.
    """
    states = in_batches(_begin, problems, z)
    left, given_up = np.arange(len(z)), np.zeros(len(z), bool)
    for steps in ROUNDS:
        _put(states, left, in_batches(_advance, *_take((problems, states), left), shared=(steps,)))
        left = left[~states.done[left]]
        if steps >= PATIENCE:
            given_up[left[found[left]]] = True
            left = left[~found[left]]
        if not len(left):
            break
    points, (kkt, constraint, verified) = in_batches(_conclude, problems, states)
    return points, (kkt, constraint, verified & ~given_up)


def in_batches(function: Any, *trees: Any, shared: tuple[Any, ...] = ()) -> Any:
    """Call a batched function on pieces of `FEW` or `MANY`; results are NumPy arrays of the whole length."""
    count = len(jax.tree.leaves(trees)[0])
    whole, start = None, 0
    while start < count:
        left = count - start
        size = MANY if left > MANY // 4 else FEW
        # The last row stands in for what is missing.
        rows = np.minimum(np.arange(start, start + size), count - 1)
        part = jax.tree.map(np.asarray, function(*_take(trees, rows), *shared))
        if whole is None:
            whole = jax.tree.map(lambda x: np.empty((count, *x.shape[1:]), x.dtype), part)
        _put(whole, slice(start, start + size), _take(part, slice(0, min(size, left))))
        start += size
    return whole


def _take(tree: Any, rows: Any) -> Any:
    return jax.tree.map(lambda x: x[rows], tree)


def _put(tree: Any, rows: Any, part: Any) -> None:
    for whole, some in zip(jax.tree.leaves(tree), jax.tree.leaves(part), strict=True):
        whole[rows] = some


@jax.jit
def _begin(problems, z):
    return jax.vmap(begin)(problems, z)


@jax.jit
def _advance(problems, states, steps):
    return jax.vmap(advance, in_axes=(0, 0, None))(problems, states, steps)


@jax.jit
def _conclude(problems, states):
    points = jax.vmap(conclude)(problems, states)
    return points, jax.vmap(verdict)(points)
