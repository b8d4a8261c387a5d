"""Regret: the extra budget that a decision needs, over the optimum that reaches the same loss."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from allocator.optimum.batches import Plans, problems_at
from allocator.optimum.certificates import one_local_optimum
from allocator.optimum.many import optimise_many
from allocator.optimum.result import Plan
from allocator.optimum.solving import optimise
from allocator.problem import DECISIONS, Decision, Problem, to_coordinates

STARTS = 8  # besides a start near the optimum, where nothing certifies the cheapest plan


def planned_coordinates(problem: Problem, plan: Plan) -> Float[np.ndarray, "4"]:
    """A plan's decisions in a problem's coordinates, inside its box."""
    assert plan.decision is not None
    decision = Decision(*(float(getattr(plan.decision, name)) for name in DECISIONS))
    return np.clip(to_coordinates(problem, decision), problem.lower, problem.upper)


def least_cost(problem: Problem, log_reducible: float, start: Float[np.ndarray, "4"]) -> float:
    """Least cost at which a problem's optimum, under the same fixed decisions, reaches a loss.

    Raises `InfeasibleError` or `SolveError` where no budget does.
    """
    target = eqx.tree_at(
        lambda p: (p.log_limit, p.minimise_cost), problem, (np.float64(log_reducible), np.float64(1.0))
    )
    return math.exp(float(optimise(target, start=start, starts=STARTS).point.derivatives.value[0]))


def regret(problem: Problem, z: Float[np.ndarray, "4"], start: Float[np.ndarray, "4"]) -> float:
    """Cost of a point over the least cost for its loss, minus one; `start` is near the optimum."""
    cost = math.exp(float(problem.log_cost(z)))
    return cost / least_cost(problem, float(problem.log_reducible(z)), start) - 1


def regrets_of(plans: Plans, decisions: Decision[np.ndarray]) -> Float[np.ndarray, " plans"]:
    """Regret of a decision at the assumptions of each plan: cost over the least cost for the loss it reaches there.

    NaN where there is no plan, and where no budget reaches that loss.
    """
    problems = problems_at(plans.scenario, plans.values, plans.user_law, len(plans))[0]
    z, cost, reducible = (np.asarray(x) for x in _at(problems, decisions))
    near = np.where(np.isfinite(plans.z), plans.z, z)
    least, found = least_costs(problems, reducible, reference=near, convex=one_local_optimum(problems))
    return np.where(found & plans.solved, np.expm1(cost - least), np.nan)


def least_costs(
    problems: Problem, log_reducible: np.ndarray, *, reference: np.ndarray, convex: bool, seed: int = 0
) -> tuple[Float[np.ndarray, " problems"], Bool[np.ndarray, " problems"]]:
    """(Log of the least cost at which each problem's optimum reaches a loss, whether a plan was found that does).

    Without `convex` the start of a scan and `reference` compete: points near the optimum, one a problem.
    """
    targets = eqx.tree_at(
        lambda p: (p.log_limit, p.minimise_cost), problems, (log_reducible, np.ones(len(log_reducible)))
    )
    found = optimise_many(targets, starts=1, convex=convex, reference=reference, seed=seed)
    return np.asarray(found.point.derivatives.value)[:, 0], found.found


@jax.jit
def _at(problems: Problem, decisions: Decision):
    def one(problem: Problem, decision: Decision):
        z = jnp.clip(problem.coordinates(decision), problem.lower, problem.upper)
        return z, problem.log_cost(z), problem.log_reducible(z)

    return jax.vmap(one)(problems, decisions)
