"""How far the optimum moves because MFU depends on N."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from allocator.costs import Constant, Costs, frozen
from allocator.errors import AllocatorError
from allocator.optimum.result import Plan
from allocator.optimum.solving import Solution, optimise

if TYPE_CHECKING:
    import pandas as pd

DECADES, POINTS = 1.5, 61  # of the curves, on either side of the optimum


@dataclass(frozen=True)
class Feedback:
    """The optimum that feels MFU(N), and the one where MFU is frozen at that N."""

    n_active: float
    n_active_frozen: float
    frozen: Solution
    curves: "pd.DataFrame"  # n_active, phase, mfu


def size_feedback(plan: Plan) -> Feedback:
    """Re-solve a plan with its overheads and MFUs held at their values at the plan's N."""
    if plan.problem is None or plan.decision is None or not depends_on_size(plan.problem.costs):
        raise AllocatorError("size_feedback: needs a plan whose MFU depends on N, that is, one with a roofline")
    problem, n = plan.problem, plan.decision.n_active
    held = eqx.tree_at(lambda p: p.costs, problem, frozen(problem.costs, np.log(n)))
    solution = optimise(held)
    return Feedback(n, solution.decision.n_active, solution, _curves(problem.costs, n))


def depends_on_size(costs: Costs) -> bool:
    """Whether any overhead or MFU is a function of N."""
    functions = (costs.pretrain_mfu, costs.pretrain.overhead, costs.rl.overhead, costs.decode.overhead)
    return not all(function is None or isinstance(function, Constant) for function in functions)


def _curves(costs: Costs, n_active: float) -> "pd.DataFrame":
    import pandas as pd

    log_n = np.log(n_active) + np.linspace(-DECADES, DECADES, POINTS) * np.log(10)
    mfu = jax.vmap(costs.pretrain_mfu if costs.pretrain_mfu is not None else Constant(1.0))(jnp.asarray(log_n))
    phases = {"pre-training": None, "RL": costs.rl.overhead, "decode": costs.decode.overhead}
    rows = []
    for name, overhead in phases.items():
        values = np.asarray(mfu if overhead is None else mfu / jax.vmap(overhead)(jnp.asarray(log_n)))
        rows += [
            {"n_active": float(np.exp(x)), "phase": name, "mfu": float(y)} for x, y in zip(log_n, values, strict=True)
        ]
    return pd.DataFrame(rows)
