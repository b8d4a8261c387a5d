"""What a decision gives and costs: loss, elasticities, FLOP by phase, chip-hours, USD and energy, all recomputed."""

from dataclasses import dataclass

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


@jax.jit
def _figures(problem: Problem, z: Float[Array, "4"]):
    costs = problem.costs
    decision = problem.decision(z)
    # From the RL coordinate r to log R: d r / d log R = R / (dR/dr), which is 0 without RL.
    tokens, slope = jax.value_and_grad(problem.law.rl_axis.tokens)(z[2])
    overheads = [phase.overhead(z[0]) for phase in (costs.pretrain, costs.rl, costs.decode)]
    return (
        jnp.stack(decision),
        tokens / slope,
        jnp.stack(costs.model_flop(*decision)),
        jnp.stack(costs.phase_costs(z[0], *decision[1:])),
        jnp.stack(overheads),
    )


def account(problem: Problem, z: Float[Vector, "4"]) -> Account:
    """Read a decision in the solver's coordinates."""
    figures = jax.device_get(_figures(problem, z))
    decision, rl_to_log, model, flop, overheads = (f.tolist() for f in figures)
    # What the solver minimised and limited, taken apart again.
    value, jacobian = (np.asarray(x) for x in values_and_gradients(problem, z))
    loss_row, cost_row = (1, 0) if float(problem.minimise_cost) > 0.5 else (0, 1)
    value = value + np.array([0.0, float(problem.log_limit)])
    reducible = float(np.exp(value[loss_row]))
    if float(problem.costs.prompt_tokens) > 0:  # decode and prefill together, by what they cost
        overheads[2] = flop[2] / model[2]
    return Account(
        decision=Decision(*decision),
        d_inference=decision[3] * float(problem.costs.lifetime_tokens),
        loss=float(problem.law.floor) + reducible,
        reducible_loss=reducible,
        log_reducible=float(value[loss_row]),
        elasticities=Decision(*(-jacobian[loss_row] * np.array([1.0, 1.0, rl_to_log, 1.0])).tolist()),
        model_flop=model,
        flop=flop,
        cost=float(np.exp(value[cost_row])),
        overheads=overheads,
    )


@jax.jit
def _log_optimal_tokens(law: PretrainingLaw, log_n):
    return law.log_optimal_tokens(log_n)


def chinchilla_tokens(law: PretrainingLaw, n_active: float) -> float:
    """Pre-training tokens that make N compute-optimal when serving is free."""
    return float(np.exp(_log_optimal_tokens(law, np.log(n_active))))
