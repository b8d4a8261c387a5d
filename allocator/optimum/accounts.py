"""What a decision gives and costs: loss, elasticities, FLOP by phase, chip-hours, USD and energy, all recomputed."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator.laws.law import PretrainingLaw
from allocator.optimum.newton import values_and_gradients
from allocator.problem import Decision, Problem, Vector

PHASES = ("pretrain", "rl", "inference")


@dataclass(frozen=True)
class Account:
    """Figures of one decision in base units."""

    decision: Decision[float]
    d_inference: float
    loss: float
    reducible_loss: float
    log_reducible: float
    elasticities: Decision[float]  # -dlog(L - floor)/dlog x
    model_flop: list[float]  # by phase
    flop: list[float]  # model FLOP x overhead, by phase
    cost: float  # in the problem's currency
    overheads: list[float]  # paid over model FLOP, by phase


class Figures(NamedTuple):
    """Figures of one decision as JAX computes them; batches have a leading axis."""

    decision: Decision[Array]
    d_inference: Float[Array, ""]
    loss: Float[Array, ""]
    log_reducible: Float[Array, ""]
    elasticities: Decision[Array]
    model_flop: Float[Array, "3"]
    flop: Float[Array, "3"]
    phase_cost: Float[Array, "3"]  # in the problem's currency
    log_cost: Float[Array, ""]
    overheads: Float[Array, "3"]


def figures(problem: Problem, z: Float[Array, "4"], value: Float[Array, "2"], jacobian: Float[Array, "2 4"]) -> Figures:
    """Read a decision, given the values and gradients of what the solver minimised and limited there."""
    costs = problem.costs
    decision = problem.decision(z)
    # From the RL coordinate r to log R: d r / d log R = R / (dR/dr), which is 0 without RL.
    tokens, slope = jax.value_and_grad(problem.law.rl_axis.tokens)(z[2])
    target = jnp.asarray(problem.minimise_cost) > 0.5
    log_reducible = jnp.where(target, value[1] + problem.log_limit, value[0])
    log_cost = jnp.where(target, value[0], value[1] + problem.log_limit)
    slopes = -jnp.where(target, jacobian[1], jacobian[0])
    return Figures(
        decision=decision,
        d_inference=decision.k * costs.lifetime_tokens,
        loss=problem.law.floor + jnp.exp(log_reducible),
        log_reducible=log_reducible,
        elasticities=Decision(slopes[0], slopes[1], slopes[2] * tokens / slope, slopes[3]),
        model_flop=jnp.stack(costs.model_flop(*decision)),
        flop=jnp.stack(costs.phase_costs(z[0], *decision[1:])),
        phase_cost=jnp.stack(costs.phase_costs(z[0], *decision[1:], problem.currency)),
        log_cost=log_cost,
        overheads=jnp.stack([phase.overhead(z[0]) for phase in (costs.pretrain, costs.rl, costs.decode)]),
    )


_figures = jax.jit(figures)


def account(problem: Problem, z: Float[Vector, "4"]) -> Account:
    """Read a decision in the solver's coordinates."""
    # Compiled already, for SLSQP.
    told = jax.device_get(_figures(problem, z, *values_and_gradients(problem, z)))
    model, flop, overheads = (x.tolist() for x in (told.model_flop, told.flop, told.overheads))
    if float(problem.costs.prompt_tokens) > 0:  # decode and prefill together, by what they cost
        overheads[2] = flop[2] / model[2]
    reducible = float(np.exp(told.log_reducible))
    return Account(
        decision=Decision(*map(float, told.decision)),
        d_inference=float(told.d_inference),
        loss=float(problem.law.floor) + reducible,
        reducible_loss=reducible,
        log_reducible=float(told.log_reducible),
        elasticities=Decision(*map(float, told.elasticities)),
        model_flop=model,
        flop=flop,
        cost=float(np.exp(told.log_cost)),
        overheads=overheads,
    )


@jax.jit
def _log_optimal_tokens(law: PretrainingLaw, log_n):
    return law.log_optimal_tokens(log_n)


def chinchilla_tokens(law: PretrainingLaw, n_active: float) -> float:
    """Pre-training tokens that make N compute-optimal when serving is free."""
    return float(np.exp(_log_optimal_tokens(law, np.log(n_active))))
