"""The optimum as a differentiable function of everything the plan assumes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.errors import AllocatorError
from allocator.laws.law import Law
from allocator.optimum.accounts import Figures, figures
from allocator.optimum.newton import derivatives, inverse, polish
from allocator.optimum.solving import optimise, verdict
from allocator.problem import Problem
from allocator.scenario.assumptions import LAW, assumptions, find_path, problem_at, template
from allocator.scenario.building import build
from allocator.scenario.schema import Scenario


class Optimum(NamedTuple):
    """An optimum in the solver's coordinates, with the constraint's multiplier."""

    z: Float[Array, "4"]
    multiplier: Float[Array, ""]


@jax.custom_jvp
def optimum(problem: Problem, near: Float[Array, "4"]) -> Optimum:
    """The optimum that Newton reaches from a point near it; NaN unless it verifies.

    Derivatives in the problem's numbers come from the implicit function theorem on the KKT conditions, with the active
    bounds as they are at the optimum; `near` has no influence on them. Of any order, under jit and vmap.
    """
    point = polish(problem, near)
    good = verdict(point)[2]
    return Optimum(jnp.where(good, point.z, jnp.nan), jnp.where(good, point.multiplier, jnp.nan))


@optimum.defjvp
def _optimum_jvp(primals: Any, tangents: Any) -> tuple[Optimum, Optimum]:
    problem, near = primals
    found = optimum(problem, near)
    # The constraint binds where it has a multiplier; a decision is held where it sits on its bound.
    binding = found.multiplier > 1e-12
    at_lower = found.z - problem.lower <= BOUND
    at_upper = ~at_lower & (jnp.asarray(problem.upper) - found.z <= BOUND)

    def conditions(problem: Problem, unknown: Float[Array, "5"]) -> Float[Array, "5"]:
        z, multiplier = unknown[:4], unknown[4]
        value = problem.objective_and_constraint(z)
        slopes = jax.jacfwd(problem.objective_and_constraint)(z)
        free = slopes[0] + multiplier * slopes[1]
        rows = jnp.where(at_lower, z - problem.lower, jnp.where(at_upper, z - problem.upper, free))
        return jnp.append(rows, jnp.where(binding, value[1], multiplier))

    unknown = jnp.append(found.z, found.multiplier)
    _, moved = jax.jvp(lambda p: conditions(p, unknown), (problem,), (tangents[0],))
    change = -inverse(jax.jacfwd(partial(conditions, problem))(unknown)) @ moved
    return found, Optimum(change[:4], change[4])


BOUND = 1e-9  # in logs; an optimum this near to a bound is held by it


class PlanFigures(NamedTuple):
    """What a plan says, as JAX arrays: figures, and over-training."""

    figures: Figures
    shadow_price: Float[Array, ""]  # -dlog reducible loss / dlog budget; for a target -dlog cost / dlog reducible loss
    tokens_per_param: Float[Array, ""]
    vs_chinchilla: Float[Array, ""]  # NaN for a user's law


def plan_function(
    scenario: Scenario, paths: list[str] | None = None, *, law: Law | None = None, seed: int = 0
) -> tuple[Callable[[Mapping[str, Array]], PlanFigures], dict[str, float]]:
    """The plan as a differentiable function of its assumptions, and the point at which the scenario stands.

    The function takes numbers by key path (see `solve_batch`) and gives figures, NaN where the optimum cannot be
    followed from the scenario's own: `jax.grad` and `jax.jacobian` of it are exact. `paths` are the keys that it
    takes, by default all that the scenario states or assumes. Raises `InfeasibleError` or `SolveError` where the
    scenario itself has no plan.
    """
    known = assumptions(scenario, law=law is None)
    wanted = list(known) if paths is None else [find_path(scenario, name) for name in paths]
    for path in wanted:
        if path not in known:
            raise AllocatorError(f"{path}: the scenario has no such number, or it is 0; known: {', '.join(known)}")
    at = {path: known[path] for path in wanted}
    whole = template(scenario, at)
    built = build(whole, law, parameters={p.removeprefix(LAW): v for p, v in at.items() if p.startswith(LAW)})
    near = jnp.asarray(optimise(built.problem, seed=seed).point.z)

    return partial(figures_at, whole, near, law=law), at


def figures_at(
    scenario: Scenario, near: Float[Array, "4"], values: Mapping[str, Array], *, law: Law | None = None
) -> PlanFigures:
    """Figures of the optimum that Newton reaches from `near` with some of the scenario's numbers replaced."""
    built = problem_at(scenario, values, law)
    found = optimum(built.problem, near)
    d = derivatives(built.problem, found.z)
    told = figures(built.problem, found.z, d.value, d.jacobian)
    if built.pretraining is None:
        vs_chinchilla = jnp.asarray(jnp.nan)
    else:
        vs_chinchilla = jnp.exp(found.z[1] - built.pretraining.log_optimal_tokens(found.z[0]))
    return PlanFigures(told, found.multiplier, jnp.exp(found.z[1] - found.z[0]), vs_chinchilla)
