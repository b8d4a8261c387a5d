"""What a decision gives and costs: loss, elasticities, FLOP by phase, chip-hours, USD and energy, all recomputed."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator.costs import CURRENCIES
from allocator.laws.law import PretrainingLaw
from allocator.problem import Decision, Problem

PHASES = ("pretrain", "rl", "inference")


@dataclass(frozen=True)
class Account:
    """Figures of one decision in base units; a currency whose figures are unknown is NaN."""

    decision: Decision
    d_inference: float
    loss: float
    reducible_loss: float
    elasticities: Decision  # -dlog(L - floor)/dlog x
    model_flop: tuple[float, float, float]
    costs: dict[str, tuple[float, float, float]]  # by currency, by phase
    overheads: tuple[float, float, float]  # of paid over model FLOP; of serving, prompts included


@jax.jit
def _figures(problem: Problem, z: Float[Array, "4"]):
    law, costs = problem.law, problem.costs
    decision = problem.decision(z)
    gradient = jax.grad(problem.log_reducible)(z)
    tokens, slope = jax.value_and_grad(law.rl_axis.tokens)(z[2])
    elasticities = -gradient * jnp.array([1.0, 1.0, 0.0, 1.0]) - gradient * jnp.array([0.0, 0.0, 1.0, 0.0]) * (
        tokens / slope
    )
    model = costs.model_flop(*decision)
    paid = {name: costs.phase_costs(z[0], *decision[1:], name) for name in CURRENCIES}
    return decision, problem.log_reducible(z), elasticities, model, paid


def account(problem: Problem, z: Float[np.ndarray, "4"]) -> Account:
    """Read a decision in the solver's coordinates."""
    decision, log_reducible, elasticities, model, paid = jax.tree.map(float, jax.device_get(_split(problem, z)))
    reducible = float(np.exp(log_reducible))
    flop = paid["compute_flop"]
    names = ("pretrain", "rl", "decode")
    idle = [float(getattr(problem.costs, name).overhead(z[0])) for name in names]
    return Account(
        decision=Decision(*decision),
        d_inference=decision[3] * float(problem.costs.lifetime_tokens),
        loss=float(problem.law.floor) + reducible,
        reducible_loss=reducible,
        elasticities=Decision(*elasticities),
        model_flop=tuple(model),
        costs={name: tuple(values) for name, values in paid.items()},
        overheads=tuple(f / m if m > 0 else i for f, m, i in zip(flop, model, idle, strict=True)),
    )


def _split(problem: Problem, z):
    decision, log_reducible, elasticities, model, paid = _figures(problem, z)
    return tuple(decision), log_reducible, tuple(jax.device_get(elasticities)), model, paid


def chinchilla_tokens(law: PretrainingLaw, n_active: float) -> float:
    """Pre-training tokens that make N compute-optimal when serving is free."""
    return float(np.exp(_log_optimal_tokens(law, np.log(n_active))))


@jax.jit
def _log_optimal_tokens(law: PretrainingLaw, log_n):
    return law.log_optimal_tokens(log_n)
