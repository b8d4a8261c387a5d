"""The optimisation problem: decisions in the solver's coordinates, a box, an objective and one constraint."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.costs import CURRENCIES, Costs
from allocator.laws.checks import is_known
from allocator.laws.law import Law, Point

DECISIONS = ("n_active", "d_pretrain", "d_rl", "k")
# The box of a decision that nobody bounds, far outside any budget: an optimum on it means that there is none inside.
SMALLEST, LARGEST = 1e-40, 1e60


T = TypeVar("T")
Vector = Array | np.ndarray
Number = float | Array


class Decision(NamedTuple, Generic[T]):
    """Active parameters, pre-training tokens, RL tokens, samples per query; numbers or arrays of one shape."""

    n_active: T
    d_pretrain: T
    d_rl: T
    k: T


class Problem(eqx.Module):
    """Minimise log(L - floor) with cost <= budget, or log cost with L <= target; a pytree, so it can be batched.

    The solver's coordinates are z = (log N, log D, r, log k) with r from the law's RL axis.
    """

    law: Law
    costs: Costs
    log_limit: Float[Array, ""] | float  # log budget, or log(target loss - floor)
    minimise_cost: (
        Float[Array, ""] | float
    )  # 0: loss under a budget, 1: cost under a target; traced, so both share one program
    lower: Float[Vector, "4"]  # box in z; equal ends fix a decision
    upper: Float[Vector, "4"]
    open_lower: Bool[Vector, "4"]  # ends that nobody set: an optimum there means that there is none inside
    open_upper: Bool[Vector, "4"]
    currency: str = eqx.field(static=True, default="compute_flop")

    def log_reducible(self, z: Float[Vector, "4"]) -> Float[Array, ""]:
        """Natural log of L - floor."""
        return self.law.log_reducible(Point(z[0], z[1], z[2], z[3]))

    def log_cost(self, z: Float[Vector, "4"]) -> Float[Array, ""]:
        """Natural log of the total cost in the problem's currency."""
        rates = self.costs.rates(z[0], self.currency)
        cost = rates.d * jnp.exp(z[1]) + rates.r * self.law.rl_axis.tokens(z[2]) + rates.k * jnp.exp(z[3]) + rates.fixed
        return jnp.log(cost)

    def objective_and_constraint(self, z: Float[Vector, "4"]) -> Float[Array, "2"]:
        """(objective, constraint); feasible where the constraint is <= 0."""
        loss, cost = self.log_reducible(z), self.log_cost(z)
        swap = self.minimise_cost > 0.5
        return jnp.stack([jnp.where(swap, cost, loss), jnp.where(swap, loss, cost) - self.log_limit])

    def decision(self, z: Float[Vector, "4"]) -> Decision[Array]:
        """Decisions in tokens and parameters."""
        return Decision(jnp.exp(z[0]), jnp.exp(z[1]), self.law.rl_axis.tokens(z[2]), jnp.exp(z[3]))

    def coordinates(self, decision: Decision) -> Float[Array, "4"]:
        """Inverse of `decision`."""
        n, d, r, k = (jnp.asarray(x, float) for x in decision)
        return jnp.stack([jnp.log(n), jnp.log(d), self.law.rl_axis.coordinate(r), jnp.log(k)])


def make_problem(
    law: Law,
    costs: Costs,
    *,
    budget: Number | None = None,
    target_loss: Number | None = None,
    currency: str = "compute_flop",
    fixed: Mapping[str, Number] | None = None,
    bounds: Mapping[str, tuple[Number | None, Number | None]] | None = None,
) -> Problem:
    """Build a problem from numbers: exactly one of `budget` and `target_loss`; decisions are free unless named.

    `fixed` and `bounds` are keyed by the names in `DECISIONS`, in parameters and tokens; an end that is None is open.
    Numbers may be tracers, whose range nobody checks.
    """
    if (budget is None) == (target_loss is None):
        raise ValueError("make_problem: exactly one of budget and target_loss")
    if currency not in CURRENCIES:
        raise ValueError(f"currency: {currency!r} is not one of {', '.join(CURRENCIES)}")
    ends = {name: (value, value) for name, value in (fixed or {}).items()}
    ends |= {name: ends.get(name, pair) for name, pair in (bounds or {}).items()}
    for name in ends:
        if name not in DECISIONS:
            raise ValueError(f"{name!r} is not one of {', '.join(DECISIONS)}")
    smallest_rl = 0.0 if law.rl_axis.allows_zero else SMALLEST
    pairs = [ends.get(name, (None, None)) for name in DECISIONS]
    smallest = [smallest_rl if name == "d_rl" else SMALLEST for name in DECISIONS]
    low = [default if start is None else start for (start, _), default in zip(pairs, smallest, strict=True)]
    high = [LARGEST if stop is None else stop for _, stop in pairs]
    limit = budget if target_loss is None else target_loss - law.floor
    assert limit is not None
    if is_known(limit) and not 0 < limit < np.inf:
        raise ValueError(
            f"budget: must be > 0 and finite, got {budget}"
            if target_loss is None
            else f"target_loss: must be > {float(law.floor):g}, the law's floor, and finite, got {target_loss}"
        )
    problem = Problem(
        law=law,
        costs=costs,
        log_limit=np.log(float(limit)) if is_known(limit) else jnp.log(limit),
        minimise_cost=np.float64(budget is None),
        lower=np.zeros(4),
        upper=np.zeros(4),
        # No RL at all is a bound like any other, not a running away.
        open_lower=np.array([s is None and x > 0 for (s, _), x in zip(pairs, smallest, strict=True)]),
        open_upper=np.array([stop is None for _, stop in pairs]),
        currency=currency,
    )
    traced = not all(is_known(leaf) for leaf in jax.tree.leaves((low, high, law)))
    convert: Any = problem.coordinates if traced else partial(to_coordinates, problem)
    lower, upper = (convert(Decision(*side)) for side in (low, high))
    return eqx.tree_at(lambda p: (p.lower, p.upper), problem, (lower, upper))


def to_coordinates(problem: Problem, decision: Decision[float]) -> Float[np.ndarray, "4"]:
    """The solver's coordinates of a decision in plain numbers."""
    return np.asarray(_coordinates(problem, Decision(*map(float, decision))))


def to_decision(problem: Problem, z: Float[Vector, "4"]) -> Decision[float]:
    """The decision, in plain numbers, at the solver's coordinates."""
    return Decision(*map(float, _decision(problem, z)))


# Compiled whole: dispatched one by one, each small operation would cost a compilation of its own.
_coordinates = jax.jit(Problem.coordinates)
_decision = jax.jit(Problem.decision)
