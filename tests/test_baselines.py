"""Rules of thumb against their definitions, and regret against an independent search over the budget."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import allocator
from allocator.baselines import with_baselines
from allocator.errors import AllocatorError
from allocator.optimum.result import Baseline, Plan
from allocator.scenario.reading import load, with_values
from allocator.scenario.schema import Scenario

LECTURE = load("lecture")
NAMES = ("equal_cost", "chinchilla", "lecture")
PURE_POWER = {  # every decision free, closed forms apply
    "law.rl.unit_tokens": 1e9,
    "decisions.n_active": "free",
    "decisions.k": "free",
    "objective.compute_flop": 1e26,
}


def planned(scenario: Scenario = LECTURE, **changes) -> Plan:
    """An optimum with its baselines; changes are key paths with `__` for the dot."""
    given = {path.replace("__", "."): value for path, value in changes.items()}
    return with_baselines(allocator.solve(with_values(scenario, given)))


def baseline(plan: Plan, name: str) -> Baseline:
    (found,) = [b for b in plan.baselines if b.name == name]
    return found


def amounts(found: Baseline) -> dict[str, float]:
    """Decisions as keywords of `evaluate`."""
    assert found.decision is not None, found.reason
    return {name: getattr(found.decision, name) for name in ("n_active", "d_pretrain", "d_rl", "k")}


def rescored(scenario: Scenario, found: Baseline) -> Plan:
    return allocator.evaluate(scenario, **amounts(found))


def least_budget(scenario: Scenario, loss: float) -> float:
    """Least budget whose optimum reaches a loss, by bisection over the budget of `solve` alone."""
    low, high = math.log(1e22), math.log(1e30)
    for _ in range(60):
        middle = (low + high) / 2
        plan = allocator.solve(with_values(scenario, {"objective.compute_flop": math.exp(middle)}), throw=False)
        reached = plan.decision is not None and plan.loss <= loss
        low, high = (low, middle) if reached else (middle, high)
    return math.exp(high)


SCENARIOS = {
    "lecture": {},
    "model size free": {"decisions.n_active": "free"},
    "all free": {"decisions.n_active": "free", "decisions.k": "free"},
    "pure power": PURE_POWER,
    "hoffmann": {"law.pretraining": "hoffmann-2022"},
    "other overheads": {"rl.overhead": 7.0, "inference.overhead": 2.0, "pretraining.overhead": 1.2},
    "prompts": {"deployment.prompt_tokens_per_output_token": 1.0},
    "additive": {"law.form": "additive", "law.rl.scale": 0.1, "law.test_time.scale": 0.1},
}
every_scenario = pytest.mark.parametrize("changes", SCENARIOS.values(), ids=SCENARIOS)


# --- what every baseline owes ---


@every_scenario
def test_each_baseline_costs_the_budget_and_is_scored_by_evaluate(changes: dict):
    scenario = with_values(LECTURE, changes)
    plan = with_baselines(allocator.solve(scenario))
    assert tuple(b.name for b in plan.baselines) == NAMES
    for found in plan.baselines:
        again = rescored(scenario, found)
        assert found.loss == pytest.approx(again.loss, rel=1e-12)
        assert found.cost == pytest.approx(again.total.flop, rel=1e-12)
        assert found.cost == pytest.approx(scenario.objective.compute_flop, rel=1e-9)
        assert found.decision.d_inference == pytest.approx(found.decision.k * 2.592e14, rel=1e-12)


@every_scenario
def test_a_rule_inside_the_scenarios_choices_is_never_better(changes: dict):
    """Regret >= 0 where the rule keeps to what the scenario fixes."""
    plan = with_baselines(allocator.solve(with_values(LECTURE, changes)))
    assert baseline(plan, "equal_cost").regret >= -1e-9
    assert baseline(plan, "lecture").regret >= -1e-9
    if plan.decision_status["n_active"] == "free":
        assert baseline(plan, "chinchilla").regret >= -1e-9
        assert all(b.loss >= plan.loss * (1 - 1e-12) for b in plan.baselines)


@pytest.mark.parametrize("changes", [{}, {"decisions.n_active": "free"}], ids=["size fixed", "size free"])
@pytest.mark.parametrize("name", NAMES)
def test_regret_against_bisection(changes: dict, name: str):
    scenario = with_values(LECTURE, changes)
    found = baseline(with_baselines(allocator.solve(scenario)), name)
    assert found.regret == pytest.approx(found.cost / least_budget(scenario, found.loss) - 1, rel=1e-6)


@settings(max_examples=15)
@given(st.floats(25.5, 27.5), st.floats(13, 15), st.floats(0.03, 0.16), st.floats(0.03, 0.16))
def test_regret_is_never_negative_where_all_is_free(budget: float, traffic: float, rho: float, gamma: float):
    changes = PURE_POWER | {
        "objective.compute_flop": 10**budget,
        "deployment.lifetime_tokens": 10**traffic,
        "law.rl.exponent": rho,
        "law.test_time.exponent": gamma,
    }
    plan = with_baselines(allocator.solve(with_values(LECTURE, changes)))
    assert all(b.regret >= -1e-9 for b in plan.baselines if b.decision is not None)


# --- equal_cost ---


def test_equal_cost_shares_what_the_fixed_phase_leaves():
    """The lecture's serving is fixed at a third, so the other two are a third each: D = 1.5 R = T."""
    found = baseline(planned(), "equal_cost")
    shares = [phase.share for phase in rescored(LECTURE, found).phases.values()]
    assert shares == pytest.approx([1 / 3] * 3, rel=1e-9)
    assert found.decision.d_pretrain == pytest.approx(2.592e14, rel=1e-9)
    assert found.decision.d_rl == pytest.approx(2.592e14 / 1.5, rel=1e-9)


def test_equal_cost_shares_equally_at_another_budget():
    found = baseline(planned(objective__compute_flop=1e27), "equal_cost")
    scenario = with_values(LECTURE, {"objective.compute_flop": 1e27})
    pretrain, rl, inference = (phase.flop for phase in rescored(scenario, found).phases.values())
    assert pretrain == pytest.approx(rl, rel=1e-9)
    assert inference == pytest.approx(1.5552e26, rel=1e-9)


def test_equal_cost_is_thirds_where_all_is_free_and_best_in_size():
    scenario = with_values(LECTURE, PURE_POWER | {"law.rl.exponent": 0.05, "law.test_time.exponent": 0.12})
    found = baseline(with_baselines(allocator.solve(scenario)), "equal_cost")
    assert [p.share for p in rescored(scenario, found).phases.values()] == pytest.approx([1 / 3] * 3, rel=1e-9)
    for factor in (0.99, 1.01):  # the same shares at another size are worse
        n = found.decision.n_active * factor
        other = {"n_active": n, "d_pretrain": 1e26 / 18 / n, "d_rl": 1e26 / 27 / n, "k": 1e26 / 18 / n / 2.592e14}
        assert allocator.evaluate(scenario, **other).loss > found.loss


def test_equal_cost_keeps_a_bounded_phase_at_its_bound():
    """RL is held at 1e12 tokens; pre-training takes the rest of what serving leaves."""
    scenario = with_values(LECTURE, {"decisions.d_rl": {"max": 1e12}})
    found = baseline(with_baselines(allocator.solve(scenario)), "equal_cost")
    assert found.decision.d_rl == pytest.approx(1e12, rel=1e-9)
    assert found.decision.d_pretrain == pytest.approx((4.6656e26 - 1.5552e26 - 9e11 * 1e12) / 6e11, rel=1e-9)


def test_equal_cost_is_the_optimum_where_the_exponents_make_it_so():
    """Besiroglu's ab/(a + 3b) with all free: no regret."""
    assert abs(baseline(planned(LECTURE, **{k.replace(".", "__"): v for k, v in PURE_POWER.items()}),
                        "equal_cost").regret) < 1e-9  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "beta", "rho", "gamma"),
    [(0.3478, 0.3658, 0.05, 0.12), (0.3478, 0.3658, 0.1, 0.02), (0.3478, 0.3658, 0.02, 0.2)],
)
def test_equal_shares_cost_what_the_divergence_says(alpha, beta, rho, gamma):
    """K-10: along the best N for given shares, the loss is a power of the budget times a product of shares.

    With base optimised over N at fixed shares (pre-training's power b enters through N and D alone), the loss goes as
    C^-g prod s_i^-(g s*_i), g = b(1-w) + rho + gamma: the extra budget is exp(KL(s* || s)) - 1.
    """
    changes = PURE_POWER | {"law.rl.exponent": rho, "law.test_time.exponent": gamma}
    found = baseline(with_baselines(allocator.solve(with_values(LECTURE, changes))), "equal_cost")
    w = (beta + rho + gamma) / (alpha + beta)
    shares = [beta * (1 - w) / (alpha * w), rho / (alpha * w), gamma / (alpha * w)]
    assert sum(shares) == pytest.approx(1, rel=1e-12)
    divergence = sum(s * math.log(3 * s) for s in shares)
    assert found.regret > 0
    assert found.regret == pytest.approx(math.expm1(divergence), rel=1e-6)


# --- chinchilla ---


@every_scenario
def test_chinchilla_is_20_tokens_a_parameter_without_rl(changes: dict):
    scenario = with_values(LECTURE, changes)
    d = baseline(with_baselines(allocator.solve(scenario)), "chinchilla").decision
    assert d.d_pretrain == pytest.approx(20 * d.n_active, rel=1e-12)
    assert d.d_rl == pytest.approx(1e9 if "law.rl.unit_tokens" in changes else 0.0, rel=1e-12)
    assert d.k == 1.0


def test_chinchillas_size_by_hand():
    """120 N^2 + 6 T N = C (m = 3)."""
    size = (-6 * 2.592e14 + math.sqrt((6 * 2.592e14) ** 2 + 480 * 4.6656e26)) / 240
    assert baseline(planned(), "chinchilla").decision.n_active == pytest.approx(size, rel=1e-9)


def test_gophers_budget_buys_chinchilla():
    """120 N^2 = 5.76e23: 69.3B parameters."""
    found = baseline(planned(load("gopher-budget")), "chinchilla")
    assert found.decision.n_active == pytest.approx(math.sqrt(5.76e23 / 120), rel=1e-9)
    assert 0 < found.regret < 0.01


# --- lecture ---


@every_scenario
def test_the_lectures_proportions(changes: dict):
    """D / R = 1.5, whatever the scale; D = kT exactly at the lecture's own budget, and where N or k can follow."""
    scenario = with_values(LECTURE, changes)
    d = baseline(with_baselines(allocator.solve(scenario)), "lecture").decision
    assert d.d_pretrain == pytest.approx(1.5 * d.d_rl, rel=1e-12)
    if "decisions.n_active" in changes:
        assert d.d_pretrain == pytest.approx(d.d_inference, rel=1e-9)
    else:
        assert d.n_active == pytest.approx(1e11, rel=1e-12)
        assert d.k == 1.0


def test_the_lectures_own_scale():
    """N = 100B, D = kT = 2.592e14, R = D/1.5, three equal costs."""
    d = baseline(planned(), "lecture").decision
    assert (d.n_active, d.d_pretrain, d.d_rl, d.k) == pytest.approx((1e11, 2.592e14, 1.728e14, 1.0), rel=1e-9)


def test_the_lecture_scaled_to_another_budget():
    """Training takes what serving leaves: 6 N D + 9 N D/1.5 = 12 N D = C - 1.5552e26."""
    d = baseline(planned(objective__compute_flop=1e27), "lecture").decision
    assert d.d_pretrain == pytest.approx((1e27 - 1.5552e26) / 1.2e12, rel=1e-9)


def test_the_lecture_with_k_free_scales_d_r_and_k_together():
    """At N = 1e11, 12 N k T + 6 N k T = C."""
    d = baseline(planned(decisions__k="free", objective__compute_flop=1e27), "lecture").decision
    assert d.k == pytest.approx(1e27 / (18 * 1e11 * 2.592e14), rel=1e-9)
    assert d.d_pretrain == pytest.approx(d.k * 2.592e14, rel=1e-9)


# --- a target instead of a budget ---

TARGETS = {
    "size fixed": {"objective.target_loss": 1.85},
    "size free": {"objective.target_loss": 1.85, "decisions.n_active": "free"},
    "usd": {
        "objective.target_loss": 1.85,
        "objective.currency": "usd",
        "hardware": {"chip": "h100-sxm", "mfu": 0.4, "usd_per_chip_hour": 2.5},
    },
}


@pytest.mark.parametrize("changes", TARGETS.values(), ids=TARGETS)
def test_at_a_target_each_rule_reaches_the_loss_and_regret_is_what_it_costs_more(changes: dict):
    scenario = with_values(LECTURE, changes)
    plan = with_baselines(allocator.solve(scenario))
    currency = "usd" if "hardware" in changes else "flop"
    for found in plan.baselines:
        again = rescored(scenario, found)
        assert found.loss == pytest.approx(1.85, rel=1e-9)
        assert found.cost == pytest.approx(getattr(again.total, currency), rel=1e-9)
        assert found.regret == pytest.approx(found.cost / getattr(plan.total, currency) - 1, rel=1e-6, abs=1e-9)
    assert baseline(plan, "equal_cost").regret >= -1e-9
    assert baseline(plan, "lecture").regret >= -1e-9


# --- none, and why ---


def test_without_traffic_the_lecture_has_nothing_to_go_by():
    found = baseline(planned(load("gopher-budget")), "lecture")
    assert found.decision is None
    assert math.isnan(found.regret)
    assert math.isnan(found.loss)
    assert "served" in found.reason


def test_without_rl_the_lecture_has_no_rule():
    found = baseline(planned(decisions__d_rl=0.0), "lecture")
    assert found.decision is None
    assert "RL" in found.reason


def test_a_rule_whose_loss_the_optimum_cannot_match_is_none_with_a_reason_about_the_scenario():
    """With RL held at 1e10 tokens no budget reaches what the lecture's RL does; no target was ever set."""
    found = baseline(planned(decisions__d_rl={"max": 1e10}), "lecture")
    assert found.decision is None
    assert found.reason
    assert "target_loss" not in found.reason


def test_a_rule_worse_than_the_scenarios_cheapest_still_has_a_regret():
    """With D fixed at 1e14 the loss is below Chinchilla's for what D and serving cost alone, 2.1552e26."""
    found = baseline(planned(decisions__d_pretrain=1e14), "chinchilla")
    assert found.regret == pytest.approx(4.6656e26 / (6e25 + 1.5552e26) - 1, rel=1e-6)


def test_serving_that_takes_all_leaves_no_lecture():
    found = baseline(planned(objective__compute_flop=1.5552e26 * (1 + 1e-9)), "lecture")
    assert found.decision is None or found.regret >= -1e-9


def test_a_reason_comes_with_no_figures_and_figures_with_no_reason():
    for plan in (planned(), planned(load("gopher-budget"))):
        for found in plan.baselines:
            assert (found.decision is None) == (found.reason is not None) == math.isnan(found.regret)


def test_a_steep_law_has_baselines_or_reasons():
    """(1 + 1e60)^-10 is 1e-600, less than a float holds."""
    plan = planned(law__rl__exponent=10.0, law__rl__scale_tokens=1e-40)
    assert all(b.decision is not None or b.reason for b in plan.baselines)


def test_a_plan_without_decisions_has_nothing_to_compare():
    failed = allocator.solve(with_values(LECTURE, {"objective.compute_flop": 1e20}), throw=False)
    with pytest.raises(AllocatorError, match="no decision to compare"):
        with_baselines(failed)


def test_comparing_keeps_the_plan():
    plan = allocator.solve(LECTURE)
    assert plan.baselines == ()
    assert with_baselines(plan).decision == plan.decision
