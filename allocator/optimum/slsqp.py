"""SciPy's SLSQP on one problem: finds the basin from a rough start, in the solver's logarithmic coordinates."""

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from allocator.optimum.newton import values_and_gradients
from allocator.problem import Problem

FTOL = 1e-9  # tighter gains nothing: Newton finishes
MAX_ITERATIONS = 200
SLACK = 1e-4  # of log cost (or log loss): beyond what SLSQP leaves where the constraint binds


def find_basin(problem: Problem, z: Float[np.ndarray, "4"]) -> tuple[Float[np.ndarray, "4"], bool]:
    """Return where SLSQP stops, and whether the constraint binds there.

    Its own verdict is ignored, since it calls wrong answers a success.
    """
    lower, upper = np.asarray(problem.lower), np.asarray(problem.upper)
    free = lower < upper
    whole = np.array(z, float)
    memory: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def evaluate(x):
        key = x.tobytes()
        if key not in memory:
            whole[free] = x
            value, jacobian = values_and_gradients(problem, whole.copy())
            memory.clear()  # SLSQP asks for both functions at one point, never for older ones
            memory[key] = np.array(value), np.array(jacobian)[:, free]
        return memory[key]

    result = minimize(
        lambda x: evaluate(x)[0][0],
        whole[free],
        jac=lambda x: evaluate(x)[1][0].copy(),  # SLSQP writes into the gradients it is given
        bounds=list(zip(lower[free], upper[free], strict=True)),
        constraints={"type": "ineq", "fun": lambda x: -evaluate(x)[0][1], "jac": lambda x: -evaluate(x)[1][1]},
        method="SLSQP",
        options={"ftol": FTOL, "maxiter": MAX_ITERATIONS},
    )
    x = np.clip(result.x, lower[free], upper[free])
    slack = evaluate(x)[0][1] < -SLACK
    whole[free] = x
    return whole, not slack
