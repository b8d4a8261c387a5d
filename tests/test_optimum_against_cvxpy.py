"""Optima of pure-power problems against cvxpy's geometric programming: a second opinion, not an exact one.

At the tolerance used here cvxpy knows N to some 5e-5 and the objective to some 2e-9 (model.md, section 4).
"""

import math

import cvxpy as cp
import pytest
from test_optimum_against_closed_forms import FAMILIES, Numbers, costs_of, draws, fixed_in, law_of, log_loss

from allocator.optimum.solving import optimise
from allocator.problem import make_problem


def geometric_program(family: str, x: Numbers) -> tuple[float, float]:
    """N and log(L - E) at cvxpy's optimum; variables are counted in a rough plan's amounts, which conditions it."""
    rough = math.sqrt(x.budget / 120)  # N with 20 tokens a parameter, and a third of the budget for each phase
    n0, amounts = rough, [x.budget / (3 * rate * rough) for rate in x.rates]
    n, d, r, k = (cp.Variable(pos=True) for _ in range(4))
    d0, r0, k0 = amounts
    if family == "product, k fixed":
        k, k0 = 1.0, 1.0
    base = x.a * n0**-x.alpha * n**-x.alpha + x.b * d0**-x.beta * d**-x.beta
    rl, test_time = (r0 / x.rl_unit) ** -x.rho * r**-x.rho, k0**-x.gamma * k**-x.gamma
    loss = base + x.rl_scale * rl + x.k_scale * test_time if family == "additive" else base * rl * test_time
    cost = sum(
        rate * n0 * unit / x.budget * n * v for rate, unit, v in zip(x.rates, (d0, r0, k0), (d, r, k), strict=True)
    )
    problem = cp.Problem(cp.Minimize(loss), [cost <= 1])
    tight = {name: 1e-10 for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas")}
    problem.solve(gp=True, solver=cp.CLARABEL, **tight)
    assert problem.status == cp.OPTIMAL
    return n0 * float(n.value), math.log(problem.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_ten_random_problems(family: str):
    for x in draws(10, seed=400 + FAMILIES.index(family)):
        ours = optimise(make_problem(law_of(family, x), costs_of(x), budget=x.budget, fixed=fixed_in(family))).decision
        n, log_reducible = geometric_program(family, x)
        assert ours.n_active == pytest.approx(n, rel=1e-3)
        assert math.expm1(log_loss(family, x, ours) - log_reducible) == pytest.approx(0, abs=1e-8)
