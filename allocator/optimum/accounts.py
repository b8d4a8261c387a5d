"""What a decision gives and costs: loss, elasticities, FLOP by phase, chip-hours, USD and energy, all recomputed."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator.laws.law import PretrainingLaw
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


@jax.jit
def _figures(problem: Problem, z: Float[Array, "4"]):
    law, costs = problem.law, problem.costs
    decision = problem.decision(z)
    gradient = jax.grad(problem.log_reducible)(z)
    # From the RL coordinate r to log R: d r / d log R = R / (dR/dr), which is 0 without RL.
    tokens, slope = jax.value_and_grad(law.rl_axis.tokens)(z[2])
    to_logs = jnp.stack([jnp.ones(()), jnp.ones(()), tokens / slope, jnp.ones(())])
    overheads = [phase.overhead(z[0]) for phase in (costs.pretrain, costs.rl, costs.decode)]
    return (
        jnp.stack(decision),
        problem.log_reducible(z),
        -gradient * to_logs,
        jnp.stack(costs.model_flop(*decision)),
        jnp.stack(costs.phase_costs(z[0], *decision[1:])),
        jnp.stack(costs.phase_costs(z[0], *decision[1:], problem.currency)),
        jnp.stack(overheads),
    )


def account(problem: Problem, z: Float[Vector, "4"]) -> Account:
    """Read a decision in the solver's coordinates."""
    figures = jax.device_get(_figures(problem, z))
    decision, log_reducible, elasticities, model, flop, cost, overheads = (f.tolist() for f in figures)
    reducible = float(np.exp(log_reducible))
    if float(problem.costs.prompt_tokens) > 0:  # decode and prefill together, by what they cost
        overheads[2] = flop[2] / model[2]
    return Account(
        decision=Decision(*decision),
        d_inference=decision[3] * float(problem.costs.lifetime_tokens),
        loss=float(problem.law.floor) + reducible,
        reducible_loss=reducible,
        log_reducible=log_reducible,
        elasticities=Decision(*elasticities),
        model_flop=model,
        flop=flop,
        cost=sum(cost),
        overheads=overheads,
    )


@jax.jit
def _log_optimal_tokens(law: PretrainingLaw, log_n):
    return law.log_optimal_tokens(log_n)


def chinchilla_tokens(law: PretrainingLaw, n_active: float) -> float:
    """Pre-training tokens that make N compute-optimal when serving is free."""
    return float(np.exp(_log_optimal_tokens(law, np.log(n_active))))
