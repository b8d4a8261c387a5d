"""The optimum: the model's printed plans, its identities, bounds, and the problems that have no plan.

Expected values come from model.md, from other ways to the same number, or from a search that shares no code with the
solver; never from an earlier run.
"""

import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import allocator
from allocator.costs import Constant, Costs, PhaseCost
from allocator.errors import InfeasibleError, ScenarioError, SolveError
from allocator.laws.additive import Additive
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.law import Law
from allocator.laws.product import Product
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime
from allocator.optimum.solving import optimise
from allocator.problem import Problem, make_problem, to_coordinates
from allocator.scenario.reading import with_values

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
RHO = 0.08803296429559924  # alpha beta / (alpha + 3 beta): model.md, section 4
HOFFMANN_RHO = 0.08093888284916068
SERVING = 2 * 1e11 * 3 * 2.592e14  # the lecture's inference cost, 2 N m T

FREE = {"decisions.n_active": "free", "decisions.k": "free"}
POWER = {"law.rl.unit_tokens": 1e9}


def scenario(name: str = "lecture", **changes: Any) -> allocator.Scenario:
    """A shipped scenario with keys changed; `a__b=1` is `a.b = 1`."""
    return with_values(allocator.load(name), {key.replace("__", "."): value for key, value in changes.items()})


def solve(changes: dict[str, Any] | None = None, **more: Any) -> allocator.Plan:
    return allocator.solve(with_values(allocator.load("lecture"), {**(changes or {}), **more}))


def shares(plan: allocator.Plan) -> dict[str, float]:
    return {name: phase.share for name, phase in plan.phases.items()}


def costs(demand: float = 1e13, *, kappa: float = 3.0, rl: float = 3.0, serve: float = 3.0) -> Costs:
    one = Constant(1.0)
    return Costs(
        PhaseCost(6.0, one), PhaseCost(kappa, Constant(rl)), PhaseCost(2.0, Constant(serve)),
        PhaseCost(2.0, one), demand,
    )  # fmt: skip


def reducible(law: Product, n: float, d: float, r: float, k: float) -> float:
    """L - E of Chinchilla with an RL factor and a power of k in the product form, in plain floats."""
    base = law.pretraining.a * n**-law.pretraining.alpha + law.pretraining.b * d**-law.pretraining.beta
    rl, test_time = law.joint.rl, law.joint.test_time
    if isinstance(rl, SaturatingRl):
        base *= (1 + r / rl.scale_tokens) ** -rl.exponent
    elif isinstance(rl, PowerRl):
        base *= (r / rl.unit_tokens) ** -rl.exponent
    return base * k**-test_time.exponent


# --- model.md's table of optima, in its own digits ---

SIZE_FREE = {"decisions.n_active": "free"}
TABLE = {  # law, budget, choices, (N, D, R, k), shares, D/20N
    "Besiroglu, all free": (
        "besiroglu-2024", 1e26, FREE, "1.241e11 4.478e13 2.985e13 0.173", "0.333 0.333 0.333", "18.0"
    ),
    "Besiroglu, N and k fixed": (
        "besiroglu-2024", 4.6656e26, {}, "1.000e11 1.960e14 2.150e14 1", ".252 .415 .333", "98.0"
    ),
    "Besiroglu, k fixed": (
        "besiroglu-2024", 4.6656e26, SIZE_FREE, "1.374e11 1.317e14 1.166e14 1", ".233 .309 .458", "47.9"
    ),
    "Hoffmann, all free": (
        "hoffmann-2022", 1e26, FREE, "4.426e10 1.255e14 8.367e13 0.484", "0.333 0.333 0.333", "141.8"
    ),
    "Hoffmann, N and k fixed": (
        "hoffmann-2022", 4.6656e26, {}, "1.000e11 2.650e14 1.689e14 1", ".341 .326 .333", "132.5"
    ),
    "Hoffmann, k fixed": (
        "hoffmann-2022", 4.6656e26, SIZE_FREE, "9.570e10 2.799e14 1.823e14 1", ".345 .337 .319", "146.3"
    ),
}  # fmt: skip


def as_printed(values: list[float], texts: str) -> bool:
    """Whether each value rounds to what is printed."""
    for value, text in zip(values, texts.split(), strict=True):
        mantissa, _, exponent = text.partition("e")
        unit = 10.0 ** int(exponent or 0)
        if round(value / unit, len(mantissa.partition(".")[2])) != float(mantissa):
            return False
    return True


@pytest.mark.parametrize("row", TABLE)
def test_row_of_the_model_s_table(row: str):
    law, budget, choices, decision, split, vs_20 = TABLE[row]
    exponent = RHO if law == "besiroglu-2024" else HOFFMANN_RHO
    changes = {"law.pretraining": law, "objective.compute_flop": budget}
    plan = solve(changes | {"law.rl.exponent": exponent, "law.test_time.exponent": exponent} | choices)
    d = plan.decision
    assert as_printed([d.n_active, d.d_pretrain, d.d_rl, d.k], decision)
    assert as_printed(list(shares(plan).values()), split)
    assert as_printed([plan.overtraining.vs_20], vs_20)
    assert plan.status == "optimal"
    assert plan.total.flop == pytest.approx(budget, rel=1e-9)


def test_printed_digits_are_read_as_written():
    assert as_printed([1.24149e11, 0.4844], "1.241e11 0.484")
    assert not as_printed([1.24151e11], "1.241e11")
    assert not as_printed([0.2526], ".252")


def test_lecture_plan_is_108_times_over_chinchilla():
    assert f"{solve().overtraining.vs_chinchilla:.1f}" == "108.3"  # interface.md


def test_equal_thirds_are_exact_with_a_pure_power():
    for budget in (1e22, 1e26, 1e29):
        plan = solve(FREE | POWER, **{"objective.compute_flop": budget})
        assert list(shares(plan).values()) == pytest.approx([1 / 3] * 3, rel=1e-9)


# --- identities of model.md, section 4 ---

IDENTITY_LAWS = [{}, POWER, {"law.pretraining": "hoffmann-2022"}, {"law.rl.exponent": 0.05, "rl.overhead": 7.0}]


@pytest.mark.parametrize("changes", IDENTITY_LAWS, ids=["lecture", "power", "hoffmann", "weak and dear RL"])
def test_shares_are_elasticity_shares(changes: dict[str, Any]):
    free = solve(changes | FREE)
    e, s = free.elasticities, shares(free)
    assert e["n_active"] == pytest.approx(e["d_pretrain"] + e["d_rl"] + e["k"], rel=1e-8)
    assert s == pytest.approx(
        {name: e[x] / e["n_active"] for name, x in (("pretrain", "d_pretrain"), ("rl", "d_rl"), ("inference", "k"))},
        rel=1e-8,
    )
    k_fixed = solve(changes | {"decisions.n_active": "free"})
    e, s = k_fixed.elasticities, shares(k_fixed)
    assert s["pretrain"] == pytest.approx(e["d_pretrain"] / e["n_active"], rel=1e-8)
    assert s["rl"] == pytest.approx(e["d_rl"] / e["n_active"], rel=1e-8)
    assert s["inference"] == pytest.approx(1 - s["pretrain"] - s["rl"], rel=1e-12)
    both_fixed = solve(changes)
    e, s = both_fixed.elasticities, shares(both_fixed)
    assert s["pretrain"] / s["rl"] == pytest.approx(e["d_pretrain"] / e["d_rl"], rel=1e-8)


ADDITIVE = {"law.form": "additive", "law.rl.scale": 0.3, "law.test_time.scale": 0.2}


@pytest.mark.parametrize(
    "changes", [*IDENTITY_LAWS, ADDITIVE], ids=["lecture", "power", "hoffmann", "weak and dear RL", "additive"]
)
def test_overtraining_is_set_by_the_share_of_pretraining(changes: dict[str, Any]):
    beta = 0.2849083 if changes.get("law.pretraining") == "hoffmann-2022" else 0.3658
    for choices in (FREE, {"decisions.n_active": "free"}):
        plan = solve(changes | choices)
        assert plan.overtraining.vs_chinchilla == pytest.approx(shares(plan)["pretrain"] ** (-1 / beta), rel=1e-7)


def test_overtraining_identity_fails_with_the_size_fixed():
    plan = solve()
    assert f"{shares(plan)['pretrain'] ** (-1 / 0.3658):.1f}" == "43.3"  # model.md, section 4: 108.3 against 43.3


def test_elasticities_are_those_of_the_loss():
    plan = solve()
    law = Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO))
    at = {name: getattr(plan.decision, name) for name in ("n_active", "d_pretrain", "d_rl", "k")}
    for i, name in enumerate(at):
        ends = [
            math.log(reducible(law, *(x * math.exp(s * 1e-4 * (i == j)) for j, x in enumerate(at.values()))))
            for s in (-1, 1)
        ]
        assert plan.elasticities[name] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-7)


@pytest.mark.parametrize("changes", [{}, {"decisions.n_active": "free"}, FREE | {"decisions.d_rl": {"max": 1e13}}],
                         ids=["lecture", "size free", "RL at its bound"])  # fmt: skip
def test_shadow_price_matches_plans_at_nearby_budgets(changes: dict[str, Any]):
    step, budget = 1e-4, 4.6656e26
    low, high = (solve(changes, **{"objective.compute_flop": budget * math.exp(s * step)}) for s in (-1, 1))
    price = math.log(low.reducible_loss / high.reducible_loss) / (2 * step)
    assert solve(changes).shadow_price.value == pytest.approx(price, rel=1e-6)


def test_shadow_price_of_a_target_matches_plans_at_nearby_targets():
    step, target, floor = 1e-4, 1.947, 1.69
    ends = [
        allocator.solve(
            scenario("serve-two-trillion", objective__target_loss=floor + (target - floor) * math.exp(s * step))
        )
        for s in (-1, 1)
    ]
    price = math.log(ends[0].total.flop / ends[1].total.flop) / (2 * step)
    plan = allocator.solve(scenario("serve-two-trillion"))
    assert plan.shadow_price.value == pytest.approx(price, rel=1e-6)
    assert plan.shadow_price.of == "objective.target_loss"


def test_budget_and_target_are_two_sides_of_one_plan():
    plan = solve()
    back = solve(**{"objective.target_loss": plan.loss})
    assert back.total.flop == pytest.approx(4.6656e26, rel=1e-9)
    assert back.decision.d_pretrain == pytest.approx(plan.decision.d_pretrain, rel=1e-7)
    assert back.shadow_price.value == pytest.approx(1 / plan.shadow_price.value, rel=1e-6)


@pytest.mark.parametrize(
    "objective", [{"objective.target_loss": 1.947}, {"objective.compute_flop": 1e24}], ids=["quality", "budget"]
)
def test_more_demand_means_a_smaller_model_trained_longer(objective: dict[str, float]):
    """user_voices.csv, V15: arXiv 2401.00448 says smaller and longer, not larger and shorter."""
    demands = np.geomspace(1e10, 1e14, 9) if "objective.target_loss" in objective else np.geomspace(1e10, 1e13, 7)
    base = allocator.load("serve-two-trillion")
    plans = [allocator.solve(with_values(base, objective | {"deployment.lifetime_tokens": float(t)})) for t in demands]
    sizes = [plan.decision.n_active for plan in plans]
    ratios = [plan.overtraining.tokens_per_param for plan in plans]
    assert all(np.diff(sizes) < 0)
    assert all(np.diff(ratios) > 0)
    if "objective.target_loss" in objective:  # at the same quality the smaller model also sees more tokens
        assert all(np.diff([plan.decision.d_pretrain for plan in plans]) > 0)


# --- several minima ---


def test_better_of_two_minima_in_size_is_found_from_anywhere():
    """model.md, section 4: with N free the saturating factor leaves two minima in N.

    The printed rho and gamma have four and three digits, which leaves some 2e-4 in log(L - E).
    """
    law = Product(BESIROGLU, SaturatingRl(0.2808, 3.866e13), TestTime(0.0383))
    problem = make_problem(law, costs(1e10), budget=9.439e25)
    better = to_coordinates(problem, (3.25e9, 1e14, 2.69e15, 100.0))
    worse = to_coordinates(problem, (6.52e11, 1e13, 0.0, 100.0))
    rng = np.random.default_rng(3)
    scattered = [to_coordinates(problem, 10 ** rng.uniform((8, 11, 8, 0), (13, 15, 15, 3))) for _ in range(4)]
    for start in (None, better, worse, *scattered):
        solution = optimise(problem, start=start)
        n, d, r, k = solution.decision
        assert n == pytest.approx(3.25e9, rel=2e-3)
        assert r == pytest.approx(2.69e15, rel=2e-3)
        assert math.log(reducible(law, n, d, r, k)) == pytest.approx(-3.00663, abs=3e-4)
        assert solution.certificate == "one_dimensional"
        assert solution.status == "optimal"


def test_worse_of_the_two_minima_is_the_best_without_rl():
    """So the other printed value is right too: N 6.52e11, R 0, log(L - E) -2.95021."""
    law = Product(BESIROGLU, SaturatingRl(0.2808, 3.866e13), TestTime(0.0383))
    n, d, r, k = optimise(make_problem(law, costs(1e10), budget=9.439e25, fixed={"d_rl": 0.0})).decision
    assert n == pytest.approx(6.52e11, rel=2e-3)
    assert math.log(reducible(law, n, d, r, k)) == pytest.approx(-2.95021, abs=3e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_seed_does_not_matter(seed: int):
    law = allocator.UserLaw(
        lambda n, d, r, k: 1.8172 + (482.01 * n**-0.3478 + 2085.43 * d**-0.3658) * (1 + r / 1e9) ** -RHO * k**-RHO,
        floor=1.8172, rl_scale_tokens=1e9,
    )  # fmt: skip
    for subject in (scenario(), scenario(decisions__n_active="free", decisions__k="free")):
        plan, own = allocator.solve(subject), allocator.solve(subject, law=law, seed=seed)
        assert own.loss == pytest.approx(plan.loss, rel=1e-12)
        for name in ("n_active", "d_pretrain", "d_rl", "k"):  # a user's law equals the preset that it repeats
            assert getattr(own.decision, name) == pytest.approx(getattr(plan.decision, name), rel=1e-6)
            assert getattr(allocator.solve(subject, seed=seed).decision, name) == pytest.approx(
                getattr(plan.decision, name), rel=1e-9
            )


# --- any plan: on the budget, and nothing beside it is better ---


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    alpha, beta = draw(st.floats(0.2, 0.6)), draw(st.floats(0.2, 0.6))
    rho, gamma = (draw(st.floats(0.02, 0.48)) * alpha for _ in range(2))
    base = Chinchilla(e=1.7, a=10 ** draw(st.floats(1, 4)), b=10 ** draw(st.floats(1, 4)), alpha=alpha, beta=beta)
    rl = draw(st.sampled_from([SaturatingRl, PowerRl]))(rho, 10 ** draw(st.floats(7, 13)))
    kappa, overhead, serve = (draw(st.floats(1, 8)) for _ in range(3))
    prices = costs(10 ** draw(st.floats(9, 15)), kappa=kappa, rl=overhead, serve=serve)
    budget = 10 ** draw(st.floats(20, 28))
    fixed = draw(st.sampled_from([{}, {"k": 1.0}]))
    return make_problem(Product(base, rl, TestTime(gamma)), prices, budget=budget, fixed=fixed)


@settings(max_examples=60)
@given(problems(), st.integers(0, 2**32 - 1))
def test_plan_costs_its_budget_and_nothing_on_the_budget_is_better(problem: Problem, seed: int):
    law, prices = problem.law, problem.costs
    n, d, r, k = optimise(problem).decision
    budget = math.exp(problem.log_limit)
    kappa, serve = (p.flop_per_param_token * p.overhead.value for p in (prices.rl, prices.decode))
    assert 6 * n * d + kappa * n * r + serve * n * k * prices.lifetime_tokens == pytest.approx(budget, rel=1e-9)

    best, rng = reducible(law, n, d, r, k), np.random.default_rng(seed)
    for width in (1e-3, 0.1, 1.0, 3.0):
        for _ in range(25):
            factors = np.exp(rng.normal(0, width, 3))
            other_r = r * factors[1] if r > 0 else abs(rng.normal()) * width * law.joint.rl.scale_tokens
            other_n, other_k = n * factors[0], k if problem.lower[3] == problem.upper[3] else k * factors[2]
            left = budget / other_n - kappa * other_r - serve * other_k * prices.lifetime_tokens
            if left > 0:
                assert reducible(law, other_n, left / 6, other_r, other_k) >= best * (1 - 1e-12)


def test_plan_of_fixed_size_matches_nelder_mead():
    """A search without derivatives over R, with D from the budget, on the lecture's numbers."""
    law = Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO))

    def loss(x):
        d = (4.6656e26 - SERVING - 9 * 1e11 * math.exp(x[0])) / 6e11
        return reducible(law, 1e11, d, math.exp(x[0]), 1.0) if d > 0 else math.inf

    found = minimize(loss, [math.log(1e14)], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-16})
    assert solve().decision.d_rl == pytest.approx(math.exp(found.x[0]), rel=1e-5)


# --- bounds ---


@pytest.mark.parametrize(
    ("name", "bound", "status"),
    [
        ("n_active", {"min": 3e11}, "at_min"),
        ("n_active", {"max": 5e10}, "at_max"),
        ("d_pretrain", {"min": 1e14}, "at_min"),
        ("d_pretrain", {"max": 1e13}, "at_max"),
        ("d_rl", {"min": 1e14}, "at_min"),
        ("d_rl", {"max": 1e13}, "at_max"),
        ("k", {"min": 1.0}, "at_min"),
        ("k", {"max": 0.1}, "at_max"),
    ],
)
def test_binding_bound_is_named_and_gives_the_plan_of_the_fixed_decision(
    name: str, bound: dict[str, float], status: str
):
    """All free at 1e26 FLOP model.md has N 1.24e11, D 4.48e13, R 2.98e13, k 0.173, so each of these binds."""
    budget = {"objective.compute_flop": 1e26}
    plan = solve(FREE | budget | {f"decisions.{name}": bound})
    (value,) = bound.values()
    fixed = solve(FREE | budget | {f"decisions.{name}": value})
    assert plan.decision_status == {n: status if n == name else "free" for n in plan.decision_status}
    assert getattr(plan.decision, name) == pytest.approx(value, rel=1e-12)
    assert [n.path for n in plan.warnings if n.code == "bound_active"] == [f"decisions.{name}"]
    for other in ("n_active", "d_pretrain", "d_rl", "k"):
        assert getattr(plan.decision, other) == pytest.approx(getattr(fixed.decision, other), rel=1e-7)
    # The bound costs something: giving way to it by 1 % helps.
    inward = value * (0.99 if status == "at_min" else 1.01)
    assert solve(FREE | budget | {f"decisions.{name}": inward}).loss < fixed.loss


def test_loose_bounds_change_nothing():
    loose = {"decisions.n_active": {"min": 1e9, "max": 1e13}, "decisions.k": {"min": 1e-3, "max": 1e3},
             "decisions.d_pretrain": {"min": 1e10}, "decisions.d_rl": {"max": 1e18}}  # fmt: skip
    plan, free = solve(FREE | loose), solve(FREE)
    assert set(plan.decision_status.values()) == {"free"}
    assert plan.decision.n_active == pytest.approx(free.decision.n_active, rel=1e-8)
    assert not [n for n in plan.warnings if n.code == "bound_active"]


def test_multipliers_of_bounds_have_the_right_sign_and_size():
    """-dlog(loss)/dlog(bound) between two bounds is what the KKT conditions say it is."""
    law = Product(BESIROGLU, PowerRl(RHO, 1e9), TestTime(RHO))
    step, losses = 1e-4, {}
    for s in (-1, 0, 1):
        bounds = {"d_rl": (None, 1e13 * math.exp(s * step))}
        solution = optimise(make_problem(law, costs(2.592e14), budget=1e26, bounds=bounds))
        losses[s] = math.log(reducible(law, *solution.decision))
        if s == 0:
            point = solution.point
    gradient = point.derivatives.jacobian[0] + point.multiplier * point.derivatives.jacobian[1]
    assert point.active.tolist() == [0, 0, 1, 0]
    assert gradient[2] < 0
    assert gradient[2] == pytest.approx((losses[1] - losses[-1]) / (2 * step), rel=1e-6)
    assert gradient[[0, 1, 3]] == pytest.approx(0, abs=1e-9)


def test_useless_rl_is_not_bought():
    """The first RL token gains rho/R0 for its price; below what pre-training gains for the same money R is 0."""
    plan = solve(**{"law.rl.scale_tokens": 1e17})
    assert plan.decision.d_rl == 0
    assert plan.decision_status["d_rl"] == "at_min"
    assert plan.phases["rl"].share == 0
    gain = RHO / 1e17 / (9 * 1e11)  # dlog(L - E)/dR per FLOP
    assert gain < plan.elasticities["d_pretrain"] / plan.decision.d_pretrain / (6 * 1e11)
    without = solve(**{"law.rl.scale_tokens": 1e17, "decisions.d_rl": 0.0})
    assert plan.loss == pytest.approx(without.loss, rel=1e-14)


def test_rl_is_bought_as_soon_as_the_first_token_pays():
    """R0 on either side of where the first RL token gains just what pre-training does, with N and k fixed."""
    d = (4.6656e26 - SERVING) / 6e11  # all that serving leaves goes to pre-training
    data = 2085.43 * d**-0.3658
    e_d = 0.3658 * data / (482.01 * 1e11**-0.3478 + data)
    threshold = RHO / 9 * 6 * d / e_d
    assert solve(**{"law.rl.scale_tokens": threshold * 1.001}).decision.d_rl == 0
    bought = solve(**{"law.rl.scale_tokens": threshold * 0.999})
    assert bought.decision.d_rl > 0
    assert bought.decision_status["d_rl"] == "free"


# --- limits that nothing reaches ---


def test_bounds_on_everything_leave_part_of_the_budget():
    bounds = {"decisions.n_active": {"max": 1e11}, "decisions.d_pretrain": {"max": 1e13},
              "decisions.d_rl": {"max": 1e12}, "decisions.k": {"max": 2.0}}  # fmt: skip
    plan = solve(bounds, **{"objective.compute_flop": 1e30})
    assert plan.decision_status == dict.fromkeys(("n_active", "d_pretrain", "d_rl", "k"), "at_max")
    assert plan.shadow_price.value == 0
    assert "limit_slack" in [notice.code for notice in plan.warnings]
    assert plan.total.flop == pytest.approx(6e11 * 1e13 + 9e11 * 1e12 + 2 * SERVING, rel=1e-12)
    assert plan.status == "optimal"


def test_least_allowed_decisions_may_beat_the_target():
    bounds = {"decisions.n_active": {"min": 1e11}, "decisions.d_pretrain": {"min": 1e13}, "decisions.d_rl": 0.0}
    plan = solve(bounds, **{"objective.target_loss": 2.5})
    assert plan.decision.n_active == pytest.approx(1e11, rel=1e-12)
    assert plan.decision.d_pretrain == pytest.approx(1e13, rel=1e-12)
    assert plan.loss < 2.5
    assert plan.shadow_price.value == 0


@pytest.mark.parametrize("budget", [2.5, 10.0, 1e9])
def test_law_with_a_best_amount_of_its_own_leaves_the_rest_of_the_budget(budget: float):
    """3/D + 5 D is least at D = sqrt(3/5), far inside the budget."""
    law = allocator.UserLaw(lambda n, d, r, k: (3.0 / d + 5.0 * d) * n**-0.1)
    one = PhaseCost(1.0, Constant(1.0))
    fixed = {"n_active": 1.0, "d_rl": 1e-3, "k": 1.0}
    solution = optimise(make_problem(law, Costs(one, one, one, one, 1.0), budget=budget, fixed=fixed))
    assert solution.decision.d_pretrain == pytest.approx(math.sqrt(3 / 5), rel=1e-7)
    assert not solution.point.binding


# --- no plan ---


def test_budget_that_cannot_serve_says_what_serving_costs():
    with pytest.raises(InfeasibleError, match=r"objective\.compute_flop: 1e\+26 .* costs 1\.5552e\+26") as caught:
        solve(**{"objective.compute_flop": 1e26})
    assert caught.value.nearest["path"] == "objective.compute_flop"
    assert caught.value.nearest["value"] == pytest.approx(SERVING, rel=1e-9)
    assert solve(**{"objective.compute_flop": SERVING * 1.001}).total.flop == pytest.approx(SERVING * 1.001, rel=1e-9)


def test_budget_that_cannot_pay_for_prompts_counts_them():
    prompts = {"deployment.prompt_tokens_per_output_token": 10.0, "objective.compute_flop": 2e26}
    with pytest.raises(InfeasibleError) as caught:
        solve(prompts)
    assert caught.value.nearest["value"] == pytest.approx(SERVING + 2 * 1e11 * 10 * 2.592e14, rel=1e-9)


@pytest.mark.parametrize("target", [1.8172, 1.5, 1e-3])
def test_target_at_or_below_the_floor_names_the_floor(target: float):
    with pytest.raises(
        InfeasibleError, match=r"objective\.target_loss: .* must be > 1\.8172, the law's floor"
    ) as caught:
        solve(**{"objective.target_loss": target})
    assert caught.value.nearest == {"path": "objective.target_loss", "value": 1.8172}


@pytest.mark.parametrize("target", [1.8172, 1.5])
def test_problem_with_a_target_at_or_below_the_floor_is_refused(target: float):
    with pytest.raises((ValueError, InfeasibleError), match="target_loss"):
        make_problem(Product(BESIROGLU), costs(), target_loss=target)


def test_target_out_of_reach_says_what_the_bounds_allow():
    bounds = {"decisions.d_pretrain": {"max": 1e13}, "decisions.d_rl": {"max": 1e12}}
    best = reducible(Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO)), 1e11, 1e13, 1e12, 1.0)
    with pytest.raises(InfeasibleError, match=r"objective\.target_loss") as caught:
        solve(bounds, **{"objective.target_loss": 1.8172 + best * 0.9})
    assert caught.value.nearest["value"] == pytest.approx(1.8172 + best, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (
            FREE | {"law.rl.exponent": 0.2, "law.test_time.exponent": 0.1478},
            ["law.rl.exponent", "law.test_time.exponent"],
        ),
        (FREE | {"law.rl.exponent": 0.3, "law.test_time.exponent": 0.3}, ["law.rl.exponent", "law.test_time.exponent"]),
        ({"decisions.n_active": "free", "law.rl.exponent": 0.3478}, ["law.rl.exponent"]),
        ({"decisions.n_active": "free", "law.rl.exponent": 0.9}, ["law.rl.exponent"]),
        (FREE | {"decisions.d_rl": 0.0, "law.test_time.exponent": 0.35}, ["law.test_time.exponent"]),
    ],
    ids=["sum equals alpha", "sum above alpha", "k fixed, rho equals alpha", "k fixed, rho above alpha", "R fixed"],
)
@pytest.mark.parametrize("kind", ["scale_tokens", "unit_tokens"])
def test_exponents_without_an_interior_optimum_are_named(changes: dict[str, Any], names: list[str], kind: str):
    if kind == "unit_tokens" and changes.get("decisions.d_rl") == 0.0:
        changes = changes | {"decisions.d_rl": 1e12}
    with pytest.raises(SolveError, match="no interior optimum") as caught:
        solve(changes | {f"law.rl.{kind}": 1e9})
    assert caught.value.status == "no_interior_optimum"
    assert [name for name in ("law.rl.exponent", "law.test_time.exponent") if name in str(caught.value)] == names
    assert "0.3478" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        FREE | {"law.rl.exponent": 0.15, "law.test_time.exponent": 0.15},
        {"decisions.n_active": "free", "law.rl.exponent": 0.25, "law.test_time.exponent": 0.3},
        FREE | {"law.rl.exponent": 0.3, "law.test_time.exponent": 0.3, "decisions.n_active": {"min": 1e9}},
        FREE | {"law.rl.exponent": 0.3, "law.test_time.exponent": 0.3, "decisions.d_rl": {"max": 1e14}},
        FREE | {"law.form": "additive", "law.rl.scale": 0.3, "law.test_time.scale": 0.3,
                "law.rl.exponent": 0.3, "law.test_time.exponent": 0.3},
    ],
    ids=["sum below alpha", "k fixed", "size has a minimum", "RL has a maximum", "additive"],
)  # fmt: skip
def test_exponents_with_an_optimum_are_not_refused(changes: dict[str, Any]):
    plan = solve(changes | POWER)
    assert plan.status == "optimal"
    assert plan.total.flop == pytest.approx(4.6656e26, rel=1e-9)


def test_failed_plan_carries_reason_and_no_figures():
    plan = allocator.solve(scenario(objective__compute_flop=1e26), throw=False)
    assert plan.status == "infeasible"
    values = plan.to_dict()
    assert values["decision"] is None
    assert values["loss"] is None
    assert "1.5552e+26" in values["reason"]
    assert values["nearest"]["value"] == pytest.approx(SERVING, rel=1e-9)
    json.dumps(values, allow_nan=False)
    runaway = allocator.solve(with_values(allocator.load("lecture"), FREE | {"law.rl.exponent": 0.9}), throw=False)
    assert runaway.status == "no_interior_optimum"


def test_everything_fixed_is_refused():
    with pytest.raises(ScenarioError, match="nothing is left free"):
        solve(**{"decisions.d_pretrain": 1e14, "decisions.d_rl": 1e14})


# --- problems from plain numbers ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of budget and target_loss"),
        ({"budget": 1e24, "target_loss": 2.0}, "exactly one of budget and target_loss"),
        ({"budget": 1e24, "currency": "eur"}, "currency: 'eur' is not one of compute_flop"),
        ({"budget": 1e24, "fixed": {"n": 1e9}}, "'n' is not one of n_active"),
        ({"budget": 1e24, "bounds": {"tokens": (1.0, 2.0)}}, "'tokens' is not one of n_active"),
    ],
)
def test_problem_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        make_problem(Product(BESIROGLU), costs(), **arguments)


def test_coordinates_and_decisions_are_inverse():
    law = Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO))
    problem = make_problem(law, costs(), budget=1e24)
    decision = (1e11, 2e14, 3e5, 0.3)
    assert [float(x) for x in problem.decision(to_coordinates(problem, decision))] == pytest.approx(decision, rel=1e-12)


@pytest.mark.parametrize(
    ("law", "fixed", "kind"),
    [
        (Product(BESIROGLU, PowerRl(RHO, 1e9), TestTime(RHO)), {}, "geometric_program"),
        (Product(BESIROGLU, PowerRl(RHO, 1e9), TestTime(RHO, 0.2)), {}, "geometric_program"),
        (Additive(BESIROGLU, PowerRl(RHO, 1e9, 0.3), TestTime(RHO, None, 0.2)), {}, "geometric_program"),
        (Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO)), {"n_active": 1e11}, "convex_fixed_n"),
        (Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO)), {}, "one_dimensional"),
        (Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO)), {"d_rl": 0.0}, "geometric_program"),
    ],
    ids=["power", "floor share", "additive", "size fixed", "size free", "no RL"],
)
def test_certificate_is_the_model_s(law: Law, fixed: dict[str, float], kind: str):
    solution = optimise(make_problem(law, costs(), budget=1e25, fixed=fixed))
    assert solution.certificate == kind
    assert solution.status == "optimal"


@pytest.mark.parametrize("exponent", [0.04, 0.05, 0.088, 0.135])
def test_lecture_with_the_size_free_is_certified_at_any_assumed_strength_of_rl(exponent: float):
    """Over the range that model.md, section 2, assumes for rho, all minima in N are found and compared."""
    plan = solve(SIZE_FREE, **{"law.rl.exponent": exponent})
    assert plan.certificate.kind == "one_dimensional"
    assert plan.status == "optimal"


def test_plan_with_a_floor_share_has_shares_by_its_own_elasticity():
    """g = s + (1-s) k^-gamma has elasticity gamma (1-s) k^-gamma / g."""
    s, gamma = 0.3, 0.2
    plan = solve(
        FREE | POWER,
        **{"law.test_time.floor_share": s, "law.test_time.exponent": gamma, "deployment.lifetime_tokens": 1e12},
    )
    power = (1 - s) * plan.decision.k**-gamma
    assert plan.elasticities["k"] == pytest.approx(gamma * power / (s + power), rel=1e-10)
    assert plan.decision.k > 1
    assert shares(plan)["inference"] == pytest.approx(plan.elasticities["k"] / plan.elasticities["n_active"], rel=1e-8)
    demand = {"deployment.lifetime_tokens": 1e17}
    assert solve(FREE | POWER | demand, **{"law.test_time.exponent": gamma}).decision.k < 1
    dear = solve(FREE | POWER | demand, **{"law.test_time.floor_share": s, "law.test_time.exponent": gamma})
    assert dear.decision.k == pytest.approx(1.0, rel=1e-12)  # interface.md: k >= 1 is imposed with a floor share
    assert dear.decision_status["k"] == "at_min"


def test_residuals_are_those_of_the_returned_point():
    for changes in ({}, FREE, FREE | {"decisions.d_rl": {"max": 1e13}}):
        plan = solve(changes)
        assert plan.certificate.kkt_residual < 1e-8
        assert plan.certificate.constraint_residual == pytest.approx(abs(plan.total.flop / 4.6656e26 - 1), abs=1e-13)
        assert jnp.isfinite(plan.loss)
