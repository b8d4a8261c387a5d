"""Problems whose optimum runs away: which exponents send N to its bound."""

from jaxtyping import Float

from allocator.errors import SolveError
from allocator.laws.product import Product
from allocator.problem import DECISIONS, Problem, Vector

NEAR_END = 1.0  # in the solver's logarithmic coordinates, of a box a hundred decades wide


def runaway(problem: Problem) -> SolveError | None:
    """The error that says which exponents send N to 0 in the product form, or None where they do not.

    Shrinking N by a factor buys that factor more RL tokens and samples; that pays for ever once
    rho + gamma >= alpha (the larger of the two where they overlap), counting only decisions that are free to grow.
    """
    law = problem.law
    if not isinstance(law, Product) or not problem.open_lower[0]:
        return None
    rl, test_time, counted = law.joint.rl, law.joint.test_time, []
    if rl is not None and problem.open_upper[2]:
        counted.append(("law.rl.exponent", float(rl.exponent)))
    if test_time is not None and problem.open_upper[3] and not test_time.floor_share:
        counted.append(("law.test_time.exponent", float(test_time.exponent)))
    if law.joint.overlap is not None:
        counted = [max(counted, key=lambda pair: pair[1])] if counted else []
    alpha = float(law.pretraining.size_exponents()[0])
    total = sum(value for _, value in counted)
    if total < alpha:
        return None
    names = " + ".join(name for name, _ in counted)
    return SolveError(
        f"no interior optimum: {names} = {total:.6g} must be < {alpha:.6g}, the law's exponent in N: as it is, an ever "
        "smaller model with ever more tokens is ever better; fix decisions.n_active or give it a min",
        {"path": names, "value": total, "below": alpha},
        status="no_interior_optimum",
    )


def runaway_decisions(problem: Problem, z: Float[Vector, "4"]) -> list[str]:
    """Decisions that ended on an end of the box that nobody set."""
    at_lower = problem.open_lower & (z - problem.lower < NEAR_END)
    at_upper = problem.open_upper & (problem.upper - z < NEAR_END)
    return [name for name, gone in zip(DECISIONS, at_lower | at_upper, strict=True) if gone]
