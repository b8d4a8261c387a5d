"""Problems whose optimum runs away: which exponents send N to its bound."""

import numpy as np

from allocator.laws.product import Product
from allocator.problem import DECISIONS, LARGEST, SMALLEST, Problem


def runaway_reason(problem: Problem) -> str | None:
    """Say which exponents send N to 0 in the product form, or None where they do not.

    Shrinking N by a factor buys that factor more RL tokens and samples; that pays for ever once
    rho + gamma >= alpha, counting only the factors whose decision is free to grow.
    """
    law = problem.law
    if not isinstance(law, Product) or float(problem.lower[0]) > np.log(SMALLEST) * 0.999:
        return None
    counted = []
    if law.rl is not None and _free_to_grow(problem, 2):
        counted.append(("law.rl.exponent", float(law.rl.exponent)))
    if law.test_time is not None and _free_to_grow(problem, 3) and float(law.test_time.floor_share) == 0:
        counted.append(("law.test_time.exponent", float(law.test_time.exponent)))
    alpha = float(law.pretraining.size_exponents()[0])
    total = sum(value for _, value in counted)
    if total < alpha:
        return None
    names = " + ".join(name for name, _ in counted)
    return (
        f"{names} = {total:.6g} must be < {alpha:.6g}, the law's exponent in N: as it is, an ever smaller model with "
        "ever more tokens is ever better; fix decisions.n_active or give it a min"
    )


def runaway_decisions(problem: Problem, z: np.ndarray) -> list[str]:
    """Decisions that ended on an end of the box that nobody set."""
    names = []
    for i, name in enumerate(DECISIONS):
        low, high = float(problem.lower[i]), float(problem.upper[i])
        outer = problem.decision(np.array([low] * 4))[i], problem.decision(np.array([high] * 4))[i]
        if low == high:
            continue
        if (z[i] - low < 1.0 and 0 < float(outer[0]) <= SMALLEST * 1.001) or (
            high - z[i] < 1.0 and float(outer[1]) >= LARGEST * 0.999
        ):
            names.append(name)
    return names


def _free_to_grow(problem: Problem, index: int) -> bool:
    """Whether a decision has no upper bound of its own."""
    top = float(problem.decision(np.asarray(problem.upper))[index])
    return top >= LARGEST * 0.999
