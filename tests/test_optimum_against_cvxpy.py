"""Optima of pure-power problems against cvxpy's geometric programming: a second opinion, not an exact one.

cvxpy knows N to some 5e-5 at the tolerance used here, the objective to 1e-8 (model.md, section 4).
"""

import math

import cvxpy as cp
import pytest
from test_optimum_against_closed_forms import FAMILIES, Numbers, costs_of, draws, fixed_in, law_of, log_loss

from allocator.optimum.solving import optimise
from allocator.problem import make_problem


def geometric_program(family: str, x: Numbers) -> tuple[float, float]:
    """N and log(L - E) at cvxpy's optimum, each variable scaled to be near 1."""
    c_d, c_r, c_k = x.rates
    n, d, r = (cp.Variable(pos=True) for _ in range(3))
    k = 1.0 if family == "product, k fixed" else cp.Variable(pos=True)
    base = x.a * n**-x.alpha + x.b * d**-x.beta
    rl, test_time = (r / x.rl_unit) ** -x.rho, k**-x.gamma
    loss = base + x.rl_scale * rl + x.k_scale * test_time if family == "additive" else base * rl * test_time
    cost = (c_d * n * d + c_r * n * r + c_k * n * k) / x.budget
    problem = cp.Problem(cp.Minimize(loss), [cost <= 1])
    tight = {name: 1e-12 for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas")}
    problem.solve(gp=True, solver=cp.CLARABEL, **tight)
    assert problem.status == cp.OPTIMAL
    return float(n.value), math.log(problem.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_ten_random_problems(family: str):
    for x in draws(10, seed=400 + FAMILIES.index(family)):
        ours = optimise(make_problem(law_of(family, x), costs_of(x), budget=x.budget, fixed=fixed_in(family))).decision
        n, log_reducible = geometric_program(family, x)
        assert ours.n_active == pytest.approx(n, rel=1e-3)
        assert math.expm1(log_loss(family, x, ours) - log_reducible) == pytest.approx(0, abs=1e-8)
