"""The optimisation problem: decisions in the solver's coordinates, a box, an objective and one constraint."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.costs import CURRENCIES, Costs
from allocator.laws.law import Law, Point

DECISIONS = ("n_active", "d_pretrain", "d_rl", "k")
# The box of a decision that nobody bounds. Far outside any budget, so that an optimum on it means: there is none inside.
SMALLEST, LARGEST = 1e-40, 1e60


class Decision(NamedTuple):
    """Active parameters, pre-training tokens, RL tokens, samples per query; numbers or arrays of one shape."""

    n_active: Float[Array, "*batch"]
    d_pretrain: Float[Array, "*batch"]
    d_rl: Float[Array, "*batch"]
    k: Float[Array, "*batch"]


class Problem(eqx.Module):
    """Minimise log(L - floor) with cost <= budget, or log cost with L <= target; a pytree, so it can be batched.

    The solver's coordinates are z = (log N, log D, r, log k) with r from the law's RL axis.
    """

    law: Law
    costs: Costs
    log_limit: Float[Array, ""]  # log budget, or log(target loss - floor)
    minimise_cost: Float[Array, ""]  # 0: loss under a budget, 1: cost under a target; traced, so both share one program
    lower: Float[Array, "4"]  # box in z; equal ends fix a decision
    upper: Float[Array, "4"]
    currency: str = eqx.field(static=True, default="compute_flop")

    def log_reducible(self, z: Float[Array, "4"]) -> Float[Array, ""]:
        """Natural log of L - floor."""
        return self.law.log_reducible(Point(z[0], z[1], z[2], z[3]))

    def log_cost(self, z: Float[Array, "4"]) -> Float[Array, ""]:
        """Natural log of the total cost in the problem's currency."""
        rates = self.costs.rates(z[0], self.currency)
        cost = rates.d * jnp.exp(z[1]) + rates.r * self.law.rl_axis.tokens(z[2]) + rates.k * jnp.exp(z[3]) + rates.fixed
        return jnp.log(cost)

    def objective_and_constraint(self, z: Float[Array, "4"]) -> Float[Array, "2"]:
        """(objective, constraint); feasible where the constraint is <= 0."""
        loss, cost = self.log_reducible(z), self.log_cost(z)
        swap = self.minimise_cost > 0.5
        return jnp.stack([jnp.where(swap, cost, loss), jnp.where(swap, loss, cost) - self.log_limit])

    def decision(self, z: Float[Array, "4"]) -> Decision:
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
    budget: float | None = None,
    target_loss: float | None = None,
    currency: str = "compute_flop",
    fixed: dict[str, float] | None = None,
    bounds: dict[str, tuple[float | None, float | None]] | None = None,
) -> Problem:
    """Build a problem from plain numbers: exactly one of `budget` and `target_loss`; decisions are free unless named.

    `fixed` and `bounds` are keyed by the names in `DECISIONS`, in parameters and tokens; an end that is None is open.
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
    low, high = [], []
    for name in DECISIONS:
        start, stop = ends.get(name, (None, None))
        low.append((smallest_rl if name == "d_rl" else SMALLEST) if start is None else start)
        high.append(LARGEST if stop is None else stop)
    limit = np.log(budget) if budget is not None else np.log(target_loss - law.floor)
    problem = Problem(
        law=law,
        costs=costs,
        log_limit=np.float64(limit),
        minimise_cost=np.float64(budget is None),
        lower=np.zeros(4),
        upper=np.zeros(4),
        currency=currency,
    )
    lower, upper = (np.asarray(problem.coordinates(Decision(*side))) for side in (low, high))
    return eqx.tree_at(lambda p: (p.lower, p.upper), problem, (lower, upper))
