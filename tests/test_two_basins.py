"""Overlap strong enough for two optima, "no RL, large k" and "RL, k at 1": both cases of model.md, section 4.

The printed digits are model.md's; further ones come from the optimality conditions of each basin solved in mpmath,
where h is a pure factor of one lever.
"""

import contextlib
import functools

import jax
import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

from allocator.costs import Costs, PhaseCost
from allocator.errors import SolveError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.joint import JointFactor
from allocator.laws.rl import SaturatingRl
from allocator.laws.shared import Shared
from allocator.laws.test_time import TestTime
from allocator.optimum.newton import polish
from allocator.optimum.solving import optimise
from allocator.problem import Decision, Problem, make_problem, to_coordinates

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
BUDGET, R0, G = 1e24, 1e10, 0.5
SYMMETRIC = (0.6, 0.6, 2.0)  # rho, gamma, om
ASYMMETRIC = (0.5, 0.6, 2.5)
SYMMETRIC_TIE, ASYMMETRIC_TIE = 1.5 * R0, 3.659230424851e10
STARTS, SEEDS = 60, (0, 1, 2)


def problem(demand: float, exponents=SYMMETRIC, **fixed: float) -> Problem:
    """Cost 6 N D + 9 N R + 6 N k T."""
    rho, gamma, overlap = exponents
    costs = Costs(PhaseCost(6.0, 1.0), PhaseCost(3.0, 3.0), PhaseCost(2.0, 3.0), PhaseCost(2.0, 1.0), demand)
    law = Shared(BESIROGLU, JointFactor(SaturatingRl(rho, R0), TestTime(gamma), overlap), G)
    return make_problem(law, costs, budget=BUDGET, fixed=fixed, bounds={"k": (1.0, None)})


def reducible(solution) -> float:
    return float(np.exp(solution.point.derivatives.value[0]))


def loss(decision, exponents) -> float:
    """L - E in plain floats."""
    (n, d, r, k), (rho, gamma, overlap) = decision, exponents
    u, v = (1 + r / R0) ** rho, k**gamma
    return 482.01 * n**-0.3478 + 2085.43 * d**-0.3658 + G * (u**overlap + v**overlap - 1) ** (-1 / overlap)


@functools.cache
def basin(demand: float, exponents, *, rl: bool) -> tuple[tuple[float, ...], float]:
    """Decision and L - E of one basin: its optimality conditions with the other lever at its bound, in 40 digits."""
    with mpmath.workdps(40):
        a, b, A, B = (mpmath.mpf(str(x)) for x in (0.3478, 0.3658, 482.01, 2085.43))
        rho, gamma, T = (mpmath.mpf(x) for x in (exponents[0], exponents[1], demand))

        def conditions(log_n, log_d, log_x):
            n, d, x = (mpmath.exp(z) for z in (log_n, log_d, log_x))
            if rl:  # x = R, k = 1; elasticity of R against its price
                lever, price = rho * G * (1 + x / R0) ** -rho * x / (x + R0), 9 * x
                total = n * (6 * d + 9 * x + 6 * T)
            else:  # x = k, R = 0
                lever, price = gamma * G * x**-gamma, 6 * T * x
                total = n * (6 * d + 6 * T * x)
            size, data = a * A * n**-a, b * B * d**-b
            # Elasticity per unit of cost is the same for N (all of the cost), D and the lever.
            return [total / BUDGET - 1, data * total / (size * 6 * n * d) - 1, lever * total / (size * price * n) - 1]

        n, d, x = (mpmath.exp(z) for z in mpmath.findroot(conditions, [mpmath.log(3.4e10), mpmath.log(2.8e12),
                                                                       mpmath.log(1.4e12 if rl else 150)]))  # fmt: skip
        decision = (float(n), float(d), float(x) if rl else 0.0, 1.0 if rl else float(x))
    return decision, loss(decision, exponents)


def random_starts(built: Problem, demand: float, count: int, seed: int) -> list[np.ndarray]:
    """Sizes over three decades, with budgets split at random."""
    rng = np.random.default_rng(seed)
    starts = []
    for n, share in zip(10 ** rng.uniform(9, 12, count), rng.dirichlet(np.ones(3), count) * BUDGET, strict=True):
        k = max(share[2] / (6 * n * demand), 1.0)
        starts.append(to_coordinates(built, Decision(n, share[0] / (6 * n), share[1] / (9 * n), k)))
    return starts


# --- the printed optima ---

PRINTED = {  # T, exponents: best basin's N, D, R, k as printed, L - E; the other basin's L - E
    (1.2e10, SYMMETRIC): ((3.569163e10, 2.786768e12, 0.0, 156.9051), 0.1855338750, 0.1888481522),
    (1.8e10, SYMMETRIC): ((3.348744e10, 2.872901e12, 1.390726e12, 1.0), 0.1888923424, 0.1917699596),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("case", "rl"), [((1.2e10, SYMMETRIC), False), ((1.8e10, SYMMETRIC), True)])
def test_best_basin_from_sixty_starts(case, rl: bool, seed: int):
    decision, best, _ = PRINTED[case]
    found = optimise(problem(*case), starts=STARTS, seed=seed)
    assert list(found.decision) == pytest.approx(decision, rel=2e-7)  # half a unit of the seventh digit
    assert reducible(found) == pytest.approx(best, rel=3e-10)
    exact, value = basin(*case, rl=rl)
    assert list(found.decision) == pytest.approx(exact, rel=1e-9)
    assert reducible(found) == pytest.approx(value, rel=1e-13)
    assert found.status == "best_of_starts"
    assert found.starts == STARTS
    assert found.point.active.tolist() == ([0, 0, 0, -1] if rl else [0, 0, -1, 0])


@pytest.mark.parametrize("case", PRINTED)
def test_the_other_basin_is_where_model_md_says(case):
    other = PRINTED[case][2]
    held = {"d_rl": 0.0} if PRINTED[case][0][2] else {"k": 1.0}
    found = optimise(problem(*case, **held), starts=4)
    assert reducible(found) == pytest.approx(other, rel=3e-10)
    assert list(found.decision) == pytest.approx(basin(*case, rl="k" in held)[0], rel=1e-9)
    assert reducible(found) > PRINTED[case][1]


def test_asymmetric_case_ties_where_model_md_says():
    printed = {False: (2.538464e10, 0.0, 89.8118), True: (2.804798e10, 1.852632e12, 1.0)}
    for rl, held in ((False, {"d_rl": 0.0}), (True, {"k": 1.0})):
        found = optimise(problem(ASYMMETRIC_TIE, ASYMMETRIC, **held), starts=4)
        n, _, r, k = found.decision
        assert (n, r, k) == pytest.approx(printed[rl], rel=6e-7)  # 89.8118 has six digits
        assert reducible(found) == pytest.approx(0.2046904101, rel=3e-10)
        assert list(found.decision) == pytest.approx(basin(ASYMMETRIC_TIE, ASYMMETRIC, rl=rl)[0], rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_the_tie_either_basin_will_do(seed: int):
    for tie, exponents in ((SYMMETRIC_TIE, SYMMETRIC), (ASYMMETRIC_TIE, ASYMMETRIC)):
        found = optimise(problem(tie, exponents), starts=STARTS, seed=seed)
        values = [basin(tie, exponents, rl=rl)[1] for rl in (False, True)]
        assert values[0] == pytest.approx(values[1], rel=1e-12)
        assert reducible(found) == pytest.approx(values[0], rel=1e-12)
        assert (found.decision.d_rl == 0) != (found.decision.k == pytest.approx(1, abs=1e-12))


@pytest.mark.parametrize("off", [1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize(
    ("tie", "exponents"), [(SYMMETRIC_TIE, SYMMETRIC), (ASYMMETRIC_TIE, ASYMMETRIC)], ids=["symmetric", "asymmetric"]
)
def test_right_basin_on_either_side_of_the_tie(tie: float, exponents, off: float):
    for factor, rl in ((1 - off, False), (1 + off, True)):  # dearer samples favour RL
        found = optimise(problem(tie * factor, exponents), starts=STARTS, seed=0)
        exact, value = basin(tie * factor, exponents, rl=rl)
        assert value < basin(tie * factor, exponents, rl=not rl)[1]
        assert reducible(found) == pytest.approx(value, rel=1e-13)
        assert list(found.decision) == pytest.approx(exact, rel=1e-8)


def test_a_start_in_the_wrong_basin_does_not_decide():
    for demand, rl in ((1.2e10, True), (1.8e10, False)):
        built = problem(demand)
        wrong = to_coordinates(built, Decision(*basin(demand, SYMMETRIC, rl=rl)[0]))
        found = optimise(built, start=wrong, starts=STARTS)
        assert reducible(found) == pytest.approx(PRINTED[demand, SYMMETRIC][1], rel=3e-10)
        # Alone it stays where it is: two optima there are indeed.
        alone = reducible(optimise(built, start=wrong, starts=1))
        assert alone == pytest.approx(PRINTED[demand, SYMMETRIC][2], rel=3e-10)


def from_single_starts(built: Problem, demand: float, count: int = 30) -> list:
    """What each start reaches on its own; those whose end does not verify are left out."""
    found = []
    for start in random_starts(built, demand, count, seed=4):
        with contextlib.suppress(SolveError):
            found.append(optimise(built, start=start, starts=1))
    assert len(found) >= 0.9 * count
    return found


@pytest.mark.parametrize("demand", [1.2e10, 1.8e10])
def test_each_single_start_ends_in_one_of_the_two_basins(demand: float):
    ends = [reducible(found) for found in from_single_starts(problem(demand), demand, 40)]
    low, high = PRINTED[demand, SYMMETRIC][1:]
    in_low, in_high = (np.isclose(ends, value, rtol=1e-9, atol=0) for value in (low, high))
    assert (in_low | in_high).all()
    assert in_low.any()
    assert in_high.any()


# --- no two basins ---


@pytest.mark.parametrize(
    ("demand", "exponents"),
    [(1.5e10, (0.45, 0.45, 2.0)), (1.5e10, (0.3, 0.3, 1.0)), (1.5e10, (0.2, 0.2, 4.0)), (2.2e10, (0.4, 0.45, 2.0))],
)
def test_weak_overlap_mixes_from_any_start(demand: float, exponents):
    """om rho <= 1 and om gamma <= 1: RL and samples are both bought, and the optimum is one."""
    assert max(exponents[:2]) * exponents[2] <= 1
    built = problem(demand, exponents)
    best = optimise(built, starts=STARTS)
    assert best.decision.d_rl > 0
    assert best.decision.k > 1
    assert best.point.active.tolist() == [0, 0, 0, 0]
    alone = np.array([found.decision for found in from_single_starts(built, demand)])
    assert alone == pytest.approx(np.tile(list(best.decision), (len(alone), 1)), rel=1e-6)
    # A search in three logs, D from the budget, that shares no code with the solver.
    n, _, r, k = best.decision

    def value(z):
        n, r, k = np.exp(z)
        d = (BUDGET / n - 9 * r - 6 * k * demand) / 6
        return loss((n, d, r, k), exponents) if d > 0 and k >= 1 else np.inf

    search = minimize(value, np.log([1.3 * n, 0.8 * r, 1.1 * k]), method="Nelder-Mead",
                      options={"xatol": 1e-9, "fatol": 1e-15, "maxiter": 4000})  # fmt: skip
    assert reducible(best) == pytest.approx(search.fun, rel=1e-10)
    assert [n, r, k] == pytest.approx(np.exp(search.x), rel=1e-3)


@pytest.mark.parametrize("exponents", [(0.3, 0.9, 1.1), (0.2, 0.25, 4.0)])
def test_weak_overlap_has_one_optimum_even_where_prices_forbid_rl(exponents):
    """om rho <= 1 alone: at R = 0 the saturating factor has a finite slope, so no RL may be best; it is so from any
    start."""
    built = problem(SYMMETRIC_TIE, exponents)
    best = optimise(built, starts=STARTS)
    assert best.decision.d_rl == 0
    assert list(best.decision) == pytest.approx(basin(SYMMETRIC_TIE, exponents, rl=False)[0], rel=1e-9)
    alone = np.array([found.decision for found in from_single_starts(built, SYMMETRIC_TIE)])
    assert alone == pytest.approx(np.tile(list(best.decision), (len(alone), 1)), rel=1e-6, abs=1.0)


def test_symmetric_weak_overlap_is_symmetric():
    """rho = gamma and T = 1.5 R0: log u = log v, that is 1 + R/R0 = k; against scipy on what is then two decisions."""
    exponents = (0.45, 0.45, 2.0)
    _, _, r, k = optimise(problem(SYMMETRIC_TIE, exponents), starts=8).decision
    assert 1 + r / R0 == pytest.approx(k, rel=1e-8)
    assert [r, k] == pytest.approx(mixed(exponents)[2:], rel=1e-4)


def mixed(exponents) -> Decision[float]:
    """Best decision with 1 + R/R0 = k at T = 1.5 R0, by Nelder-Mead in N and k."""

    def decision(z):
        n, k = np.exp(z)
        return n, (BUDGET / n - 9 * R0 * (k - 1) - 9 * R0 * k) / 6, R0 * (k - 1), k

    def value(z):
        point = decision(z)
        return loss(point, exponents) if point[1] > 0 and point[3] >= 1 else np.inf

    best = minimize(value, [np.log(3e10), np.log(50.0)], method="Nelder-Mead",
                    options={"xatol": 1e-10, "fatol": 1e-16, "maxiter": 4000})  # fmt: skip
    assert best.success
    return Decision(*map(float, decision(best.x)))


# --- saddle points ---


def test_the_mixed_point_of_strong_overlap_is_a_saddle_and_refused():
    built = problem(SYMMETRIC_TIE)
    between = mixed(SYMMETRIC)
    point = jax.tree.map(np.asarray, polish(built, to_coordinates(built, between)))
    n, d, r, k = (float(x) for x in built.decision(point.z))
    # Newton stays there, at a stationary point of residual 0 ...
    assert (n, d, r, k) == pytest.approx(between, rel=1e-3)
    assert 1 + r / R0 == pytest.approx(k, rel=1e-9)
    assert point.step < 1e-9
    assert point.wrong_sign < 1e-9
    gradient = point.derivatives.jacobian[0] + point.multiplier * point.derivatives.jacobian[1]
    assert np.abs(gradient).max() < 1e-12
    # ... that is no optimum: the loss falls both ways along the exchange of samples for RL at the same cost.
    assert point.curvature < -1e-3
    for shift in (-0.1, 0.1):
        moved_k = k * np.exp(shift)
        moved = (n, d, r - (moved_k - k) * R0, moved_k)
        assert loss(moved, SYMMETRIC) < loss((n, d, r, k), SYMMETRIC)
    found = optimise(built, start=point.z, starts=STARTS)
    assert reducible(found) < float(np.exp(point.derivatives.value[0])) * (1 - 1e-3)
    assert found.point.curvature > 0


def test_the_same_point_of_weak_overlap_is_an_optimum():
    exponents = (0.45, 0.45, 2.0)
    built = problem(SYMMETRIC_TIE, exponents)
    point = jax.tree.map(np.asarray, polish(built, to_coordinates(built, mixed(exponents))))
    assert point.step < 1e-9
    assert point.curvature > 0
