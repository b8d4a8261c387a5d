"""Why a KKT point is, or is not, the global optimum: the kind of certificate that a problem's structure allows."""

import numpy as np
from jaxtyping import Bool

from allocator.costs import Constant
from allocator.laws.additive import Additive
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.gadre import Gadre
from allocator.laws.law import Law, PretrainingLaw
from allocator.laws.product import Product
from allocator.laws.repetition import Repeated
from allocator.laws.rl import SaturatingRl
from allocator.laws.shared import Shared
from allocator.problem import Problem

GEOMETRIC_PROGRAM = "geometric_program"  # convex in logs: a KKT point is the optimum
CONVEX_FIXED_N = "convex_fixed_n"  # convex in D, R, k themselves
ONE_DIMENSIONAL = "one_dimensional"  # convex at each N: all minima of the profile in N are compared
BEST_OF_STARTS = "best_of_starts"  # no certificate: the best of so many local optima


def certificate_kind(problem: Problem) -> str:
    """Name the strongest certificate that the problem's structure allows."""
    return _kind(problem, np.asarray(problem.lower) == np.asarray(problem.upper))


def one_local_optimum(problems: Problem) -> bool:
    """Whether problems with a leading axis have no local optima but global ones."""
    fixed = np.unique(np.asarray(problems.lower) == np.asarray(problems.upper), axis=0)
    return {_kind(problems, pattern) for pattern in fixed} <= {GEOMETRIC_PROGRAM, CONVEX_FIXED_N}


def _kind(problem: Problem, fixed: Bool[np.ndarray, "4"]) -> str:
    if not (_convex_at_each_size(problem.law) and _constant_overheads(problem)):
        return BEST_OF_STARTS
    # With R fixed the RL factor is a constant, and the rest are power laws.
    if not isinstance(problem.law.rl_axis, SaturatingRl) or fixed[2]:
        return GEOMETRIC_PROGRAM
    return CONVEX_FIXED_N if fixed[0] else ONE_DIMENSIONAL


def _convex_at_each_size(law: Law) -> bool:
    """Forms that are convex in D, R and k at each N, and in logs of all four where the RL factor is a pure power.

    Product, additive and shared, without overlap, over pre-training losses that are log-log convex.
    """
    if isinstance(law, Product | Shared):
        return law.joint.overlap is None and _log_log_convex(law.pretraining)
    return isinstance(law, Additive) and _log_log_convex(law.pretraining)


def _log_log_convex(law: PretrainingLaw) -> bool:
    if isinstance(law, Repeated):  # log D' is concave in log D and the loss falls in it
        return _log_log_convex(law.law)
    return isinstance(law, Chinchilla | Gadre)


def _constant_overheads(problem: Problem) -> bool:
    costs = problem.costs
    # In FLOP the pre-training MFU cancels; in any other currency it prices every phase.
    if problem.currency != "compute_flop" and not isinstance(costs.pretrain_mfu, Constant):
        return False
    return all(isinstance(p.overhead, Constant) for p in (costs.pretrain, costs.rl, costs.decode, costs.prefill))
