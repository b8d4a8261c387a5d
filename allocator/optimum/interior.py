"""Problems whose optimum runs away: which exponents send N to its bound."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from allocator.errors import SolveError
from allocator.laws.product import Product
from allocator.problem import DECISIONS, Problem, Vector

NEAR_END = 1.0  # in the solver's logarithmic coordinates, of a box a hundred decades wide


def runaway(problem: Problem) -> SolveError | None:
    """The error that says which exponents send N to 0 in the product form, or None where they do not.

    Shrinking N by a factor buys that factor more RL tokens and samples; that pays for ever once
    rho + gamma >= alpha (the larger of the two where they overlap), counting only decisions that are free to grow.
    """
    if not isinstance(problem.law, Product) or not bool(exponents_too_large(problem)):
        return None
    counted = _growing(problem)
    if problem.law.joint.overlap is not None:
        counted = [max(counted, key=lambda pair: pair[1])]
    alpha, total = float(problem.law.pretraining.size_exponents()[0]), float(sum(value for _, value in counted))
    names = " + ".join(name for name, _ in counted)
    return SolveError(
        f"no interior optimum: {names} = {total:.6g} must be < {alpha:.6g}, the law's exponent in N: as it is, an ever "
        "smaller model with ever more tokens is ever better; fix decisions.n_active or give it a min",
        {"path": names, "value": total, "below": alpha},
        status="no_interior_optimum",
    )


def exponents_too_large(problem: Problem) -> Bool[np.ndarray, "..."]:
    """Whether the exponents send N to 0; of one problem, or of each of a batch."""
    law, open_lower = problem.law, np.asarray(problem.open_lower)[..., 0]
    counted = [np.asarray(value) for _, value in _growing(problem)]
    if not counted:
        return np.zeros_like(open_lower)
    assert isinstance(law, Product)
    total = sum(counted) if law.joint.overlap is None else np.max(counted, axis=0)
    return open_lower & (total >= np.asarray(law.pretraining.size_exponents()[0]))


def _growing(problem: Problem) -> list[tuple[str, Any]]:
    """Exponents of the decisions that are free to grow without end, in the product form."""
    law, open_upper = problem.law, np.asarray(problem.open_upper)
    if not isinstance(law, Product):
        return []
    rl, test_time, counted = law.joint.rl, law.joint.test_time, []
    if rl is not None and open_upper[..., 2].all():
        counted.append(("law.rl.exponent", rl.exponent))
    if test_time is not None and open_upper[..., 3].all() and test_time.floor_share is None:
        counted.append(("law.test_time.exponent", test_time.exponent))
    return counted


def runaway_decisions(problem: Problem, z: Float[Vector, "4"]) -> list[str]:
    """Decisions that ended on an end of the box that nobody set."""
    return [name for name, gone in zip(DECISIONS, at_open_end(problem, z), strict=True) if gone]


def at_open_end(problem: Problem, z: Float[Vector, "... 4"]) -> Bool[np.ndarray, "... 4"]:
    """Which decisions ended on an end of the box that nobody set; of one problem, or of each of a batch."""
    low, high = np.asarray(problem.lower), np.asarray(problem.upper)
    below, above = np.asarray(problem.open_lower), np.asarray(problem.open_upper)
    return (below & (np.asarray(z) - low < NEAR_END)) | (above & (high - np.asarray(z) < NEAR_END))
