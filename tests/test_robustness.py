"""Robust plans against conditions worked out in plain NumPy, against single plans, and under changes of no matter."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize, minimize_scalar

import allocator
from allocator import catalog
from allocator.errors import AllocatorError, InfeasibleError, ScenarioError
from allocator.robust_plans import RobustPlan, tail_mean
from allocator.robustness import derating, evaluate_committed, robust
from allocator.scenario.reading import load, with_values
from allocator.scenario.schema import Scenario
from allocator.states import LIFETIME, States, crossed, law_states, lognormal_demand

T = 2.592e14
BUDGET = 4.6656e26
COMMITTED = ("n_active", "d_pretrain", "d_rl")


def powers(*overrides: str) -> Scenario:
    """Additive form in pure powers, everything free: convex in logs, and demand matters."""
    return load("lecture-free", overrides=[
        'law.form="additive"', "law.pretraining=chinchilla-epoch", "law.rl={exponent=0.3,unit_tokens=1e9,scale=0.5}",
        "law.test_time={exponent=0.3,scale=0.3}", "decisions.k=free", *overrides,
    ])  # fmt: skip


def logs(decision: object) -> np.ndarray:
    return np.log([getattr(decision, name) for name in COMMITTED])


def demand(sigma: float = 0.9, points: int = 5) -> States:
    return lognormal_demand(T, sigma, points=points)


@pytest.fixture(scope="module")
def plans() -> dict[str, RobustPlan]:
    return {name: robust(powers(), demand(), criterion=name, level=0.5) for name in ("expected", "cvar", "regret")}


@pytest.mark.parametrize("criterion", ["expected", "cvar", "regret"])
@pytest.mark.parametrize("sigma", [0.0, 1e-8])
def test_without_spread_it_is_the_single_plan(criterion: str, sigma: float):
    single = allocator.solve(powers())
    plan = robust(powers(), demand(sigma), criterion=criterion)
    assert logs(plan.decision) == pytest.approx(logs(single.decision), abs=1e-6)
    assert plan.loss == pytest.approx(single.loss, rel=1e-8)
    assert plan.k == pytest.approx(single.decision.k, rel=1e-6)
    assert plan.worst_regret == pytest.approx(0, abs=1e-6)
    assert plan.status == single.status == "optimal"
    assert plan.certificate.kind == single.certificate.kind == "geometric_program"


def test_residuals_are_recomputed_and_small(plans: dict[str, RobustPlan]):
    for plan in plans.values():
        assert plan.certificate.kkt_residual < 1e-9
        assert plan.certificate.constraint_residual < 1e-9
        assert plan.outcome.spent == pytest.approx(1, rel=1e-12)


class Hand:
    """N and R given, D to be found; pure powers and costs as model.md writes them, in plain NumPy."""

    def __init__(self, demands: list[float], gammas: list[float]):
        law = catalog.law_record("chinchilla-epoch").content["parameters"]
        self.E, self.A, self.B, self.a, self.b = (law[name] for name in ("E", "A", "B", "alpha", "beta"))
        self.N, self.R, self.T, self.g = 2e10, 1e13, np.array(demands), np.array(gammas)

    def left(self, D: float) -> float:
        return BUDGET - 6 * self.N * D - 3 * 3 * self.N * self.R

    def k(self, D: float) -> np.ndarray:
        return self.left(D) / (2 * 3 * self.N * self.T)

    def loss(self, D: float) -> np.ndarray:
        rl = 0.5 * (self.R / 1e9) ** -0.3
        return self.E + self.A * self.N**-self.a + self.B * D**-self.b + rl + 0.3 * self.k(D) ** -self.g

    def slope(self, D: float) -> np.ndarray:
        """dL/dD in each state: k falls by 6 N / (2 m N T) a token."""
        return -self.b * self.B * D ** (-self.b - 1) + 0.3 * self.g * self.k(D) ** -self.g * 6 * self.N / self.left(D)

    def root(self, function) -> float:
        return math.exp(brentq(lambda x: function(math.exp(x)), math.log(1e12), math.log(3.5e15), xtol=1e-14))


GIVEN = ("decisions.n_active=2e10", "decisions.d_rl=1e13")


def test_two_states_by_hand():
    hand = Hand([1e14, 8e14], [0.3, 0.2])
    p = np.array([0.7, 0.3])
    states = States({LIFETIME: hand.T, "law.test_time.exponent": hand.g}, p)
    plan = robust(powers(*GIVEN), states)
    D = hand.root(lambda D: p @ hand.slope(D))
    assert plan.decision.d_pretrain == pytest.approx(D, rel=1e-9)
    assert plan.decision.n_active == 2e10
    assert plan.decision.d_rl == 1e13
    assert plan.k == pytest.approx(hand.k(D), rel=1e-9)
    assert plan.loss == pytest.approx(hand.loss(D), rel=1e-12)
    assert plan.expected_loss == pytest.approx(p @ hand.loss(D), rel=1e-12)
    own = [hand.root(lambda D, i=i: hand.slope(D)[i]) for i in (0, 1)]
    assert plan.own["d_pretrain"] == pytest.approx(own, rel=1e-7)
    known = sum(p[i] * hand.loss(own[i])[i] for i in (0, 1))
    assert plan.knowing_demand.loss == pytest.approx(p @ hand.loss(D) - known, rel=1e-7)
    # The worst half: all of the second state's probability and 0.2 of the first's, over 0.5.
    tail = robust(powers(*GIVEN), states, criterion="cvar", level=0.5)
    assert tail.loss[1] > tail.loss[0]
    share = np.array([0.2, 0.3])
    D = hand.root(lambda D: share @ hand.slope(D))
    assert tail.decision.d_pretrain == pytest.approx(D, rel=1e-9)
    assert tail.cvar == pytest.approx(share @ hand.loss(D) / 0.5, rel=1e-12)


def test_two_states_least_worst_regret_by_hand():
    hand = Hand([1e14, 8e14], [0.3, 0.3])

    def least_budget(i: int, loss: float) -> float:
        """Budget at which the state's best D gives a loss."""

        def best(budget: float) -> float:
            at = Hand(list(hand.T), list(hand.g))
            at.left = lambda D: budget - 6 * at.N * D - 9 * at.N * at.R  # pyright: ignore
            top = math.log((budget - 9 * at.N * at.R) / (6 * at.N)) - 1e-3
            told = minimize_scalar(
                lambda x: at.loss(math.exp(x))[i], bounds=(math.log(1e12), top), method="bounded",
                options={"xatol": 1e-11},
            )  # fmt: skip
            return float(told.fun)

        return math.exp(brentq(lambda x: best(math.exp(x)) - loss, math.log(2e25), math.log(BUDGET * 1.01), xtol=1e-12))

    def regret(D: float, i: int) -> float:
        return BUDGET / least_budget(i, hand.loss(D)[i]) - 1

    own = [hand.root(lambda D, i=i: hand.slope(D)[i]) for i in (0, 1)]
    D = brentq(lambda D: regret(D, 0) - regret(D, 1), own[0], own[1], xtol=1e3)
    plan = robust(powers(*GIVEN), States({LIFETIME: hand.T}, [0.9, 0.1]), criterion="regret")
    assert plan.decision.d_pretrain == pytest.approx(D, rel=1e-6)
    assert plan.regret == pytest.approx([regret(D, 0), regret(D, 1)], rel=1e-5)
    assert plan.regret[0] == pytest.approx(plan.regret[1], rel=1e-9)


@settings(max_examples=8)
@given(
    sigma=st.floats(0.05, 1.5), alpha=st.floats(0.3, 0.5), gamma=st.floats(0.1, 0.6), scale=st.floats(0.01, 1.0),
    prompts=st.sampled_from([0.001, 3.0]), least=st.sampled_from([1e-3, 1.0]), log_budget=st.floats(26.3, 28.0),
)  # fmt: skip
def test_never_worse_than_the_plan_made_at_mean_demand(sigma, alpha, gamma, scale, prompts, least, log_budget):
    scenario = with_values(powers(), {
        "objective.compute_flop": 10**log_budget, "law.test_time.exponent": gamma, "law.test_time.scale": scale,
        "deployment.prompt_tokens_per_output_token": prompts, "decisions.k": {"min": least},
    })  # fmt: skip
    likely = np.array([0.4, 0.3, 0.2, 0.1])
    states = States({LIFETIME: T * np.exp(sigma * np.array([-1, 0, 1, 2])),
                     "law.pretraining.alpha": alpha + np.array([0.02, 0, -0.01, 0.01])}, likely)  # fmt: skip
    plan = robust(scenario, states)
    assert plan.mean_demand is not None
    assert plan.outcome.unserved == ()
    assert plan.expected_loss <= plan.mean_demand.expected_loss * (1 + 1e-12)
    assert plan.expected_loss == pytest.approx(likely @ plan.loss, rel=1e-12)
    assert plan.outcome.loss_gap.min() > -1e-9
    assert 0 <= plan.knowing_demand.loss <= plan.knowing_state.loss + 1e-9


def test_each_criterion_is_best_at_its_own(plans: dict[str, RobustPlan]):
    scenario, states = powers(), demand()
    rng = np.random.default_rng(0)
    candidates = [*(plan.outcome for plan in plans.values())]
    expected = plans["expected"]
    assert expected.mean_demand is not None
    candidates.append(expected.mean_demand)
    near = [*(logs(plan.decision) + rng.normal(size=3) * 0.05 for plan in plans.values() for _ in range(2))]
    own = np.log(np.stack([expected.own[name] for name in COMMITTED], axis=1))
    for point in np.exp([*near, *own]):
        given = dict(zip(COMMITTED, point.tolist(), strict=True))
        candidates.append(evaluate_committed(scenario, states, **given, level=0.5))
    for name, figure in (("expected", "expected_loss"), ("cvar", "cvar"), ("regret", "worst_regret")):
        least = min(getattr(told, figure) for told in candidates)
        assert getattr(plans[name].outcome, figure) == pytest.approx(least, rel=1e-10)
    assert plans["regret"].worst_regret < 0.99 * min(expected.worst_regret, expected.mean_demand.worst_regret)


@pytest.mark.parametrize(("criterion", "figure"), [("expected", "expected_loss"), ("cvar", "cvar")])
def test_kinks_where_k_meets_its_upper_bound(criterion: str, figure: str):
    """Nelder and Mead, who know nothing of kinks, find nothing better from around."""
    scenario, states = powers("decisions.k={min=1.0,max=12.0}"), demand(points=4)
    plan = robust(scenario, states, criterion=criterion, level=0.6)
    assert plan.k.max() == pytest.approx(12, rel=1e-12)
    assert plan.k.min() < 11
    law = catalog.law_record("chinchilla-epoch").content["parameters"]

    def loss(x: np.ndarray) -> float:
        n, d, r = np.exp(x)
        left = BUDGET - 6 * n * d - 9 * n * r
        k = np.minimum(left / (6 * n * states.values[LIFETIME]), 12)
        if k.min() < 1:
            return 100.0
        trained = law["E"] + law["A"] * n ** -law["alpha"] + law["B"] * d ** -law["beta"] + 0.5 * (r / 1e9) ** -0.3
        losses = trained + 0.3 * k**-0.3
        return float(losses.mean()) if criterion == "expected" else tail_mean(losses, states.probability, 0.6)

    assert loss(logs(plan.decision)) == pytest.approx(getattr(plan, figure), rel=1e-12)
    options = {"xatol": 1e-8, "fatol": 1e-14, "maxiter": 2000}
    for shift in ([0.2, -0.1, 0.1], [-0.3, 0, -0.2]):
        found = minimize(loss, logs(plan.decision) + shift, method="Nelder-Mead", options=options)
        assert getattr(plan, figure) <= found.fun * (1 + 1e-12)


def test_tail_at_level_0_is_the_mean_and_near_1_the_worst(plans: dict[str, RobustPlan]):
    scenario, states = powers(), demand()
    none = robust(scenario, states, criterion="cvar", level=0)
    assert logs(none.decision) == pytest.approx(logs(plans["expected"].decision), abs=1e-12)
    assert none.cvar == pytest.approx(none.expected_loss, rel=1e-14)
    little = robust(scenario, states, criterion="cvar", level=1e-6)
    assert logs(little.decision) == pytest.approx(logs(none.decision), abs=1e-5)
    worst = robust(scenario, states, criterion="cvar", level=1 - 1e-9)
    assert worst.cvar == pytest.approx(worst.outcome.worst_loss, rel=1e-12)
    # The highest demand is the worst state whatever is committed, so its own plan is the one of least worst loss.
    assert logs(worst.decision) == pytest.approx([math.log(worst.own[name][-1]) for name in COMMITTED], abs=1e-8)
    for plan in plans.values():
        assert worst.outcome.worst_loss <= plan.outcome.worst_loss


def test_tail_mean_of_a_table():
    loss, p = np.array([1.0, 4.0, 2.0, 3.0]), np.array([0.4, 0.1, 0.3, 0.2])
    assert tail_mean(loss, p, 0.9) == pytest.approx(4)
    assert tail_mean(loss, p, 0.8) == pytest.approx(3.5)
    assert tail_mean(loss, p, 0.5) == pytest.approx((0.1 * 4 + 0.2 * 3 + 0.2 * 2) / 0.5)
    assert tail_mean(loss, p, 0.0) == pytest.approx(p @ loss)


@pytest.mark.parametrize("criterion", ["expected", "cvar", "regret"])
def test_order_and_splitting_of_states_change_nothing(criterion: str, plans: dict[str, RobustPlan]):
    states = demand()
    order = np.array([3, 0, 4, 4, 2, 1])  # one state in two halves of its probability
    half = np.array([0.2, 0.2, 0.1, 0.1, 0.2, 0.2])
    again = robust(powers(), States({LIFETIME: states.values[LIFETIME][order]}, half), criterion=criterion, level=0.5)
    plan = plans[criterion]
    assert logs(again.decision) == pytest.approx(logs(plan.decision), abs=1e-9)
    assert again.loss == pytest.approx(plan.loss[order], rel=1e-11)
    assert again.regret == pytest.approx(plan.regret[order], rel=1e-6, abs=1e-9)
    assert again.cvar == pytest.approx(plan.cvar, rel=1e-12)
    assert again.knowing_demand.budget == pytest.approx(plan.knowing_demand.budget, rel=1e-6)


def test_units_change_nothing(plans: dict[str, RobustPlan]):
    peak, mfu = 1e15, 0.4
    hardware = {"peak_flop_per_s": peak, "mfu": mfu}
    hours = with_values(powers(), {"objective.chip_hours": BUDGET / (peak * mfu * 3600), "hardware": hardware})
    plan = robust(hours, demand(), criterion="regret", level=0.5)
    assert plan.objective.unit == "chip-hour"
    assert logs(plan.decision) == pytest.approx(logs(plans["regret"].decision), abs=1e-9)
    assert plan.worst_regret == pytest.approx(plans["regret"].worst_regret, rel=1e-8)
    days = powers("deployment={tokens_per_second=3e9,lifetime_days=1}")
    states = States({"deployment.tokens_per_second": demand().values[LIFETIME] / 86400})
    assert logs(robust(days, states).decision) == pytest.approx(logs(plans["expected"].decision), abs=1e-9)


def test_what_knowing_the_demand_saves_is_what_smaller_plans_reach(plans: dict[str, RobustPlan]):
    plan = plans["expected"]
    known = allocator.solve_batch(powers(), demand().values)
    assert plan.knowing_demand.expected_loss == pytest.approx(known.figures.loss.mean(), rel=1e-10)
    assert plan.knowing_demand.loss == pytest.approx(plan.expected_loss - known.figures.loss.mean(), rel=1e-6)
    smaller = with_values(powers(), {"objective.compute_flop": BUDGET * (1 - plan.knowing_demand.budget)})
    assert allocator.solve_batch(smaller, demand().values).figures.loss.mean() == pytest.approx(
        plan.expected_loss, rel=1e-8
    )
    assert plan.knowing_state == plan.knowing_demand  # nothing but demand is unknown


def test_regret_is_the_budget_at_which_the_own_optimum_has_the_loss(plans: dict[str, RobustPlan]):
    plan = plans["expected"]
    for i, tokens in enumerate(demand().values[LIFETIME]):
        smaller = with_values(powers(), {LIFETIME: float(tokens),
                                         "objective.compute_flop": BUDGET / (1 + plan.regret[i])})  # fmt: skip
        assert allocator.solve(smaller).loss == pytest.approx(plan.loss[i], rel=1e-9)


def test_regret_where_the_law_has_two_basins():
    """Of a form without certificate: a smaller budget by the regret reaches the loss, one smaller still does not."""
    scenario = load("lecture-free", overrides=[
        'law.form="shared"', "law.sampling={scale=0.5}", "law.rl={exponent=0.6,scale_tokens=1e10}",
        "law.test_time={exponent=0.6}", "law.overlap=2.0", "objective.compute_flop=1e24",
        "deployment={lifetime_tokens=1.5e10}", 'decisions.k="free"'])  # fmt: skip
    demands = 1.5e10 * np.array([0.5, 0.9, 1.1, 2.0])
    middle = allocator.solve(scenario).decision
    assert middle is not None
    found = evaluate_committed(scenario, States({LIFETIME: demands}), n_active=middle.n_active,
                               d_pretrain=middle.d_pretrain, d_rl=middle.d_rl)  # fmt: skip
    for demand, loss, regret in zip(demands, found.loss, found.regret, strict=True):
        own = with_values(scenario, {LIFETIME: float(demand)})
        for slack, reached in ((1e-6, True), (-1e-6, False)):
            budget = 1e24 / (1 + regret) * (1 + slack)
            plan = allocator.solve(with_values(own, {"objective.compute_flop": budget}))
            assert (plan.loss <= loss) == reached


def test_law_and_demand_unknown_together():
    scenario = powers()
    states = crossed(demand(points=3), law_states(scenario, draws=5, seed=1))
    assert len(states) == 15
    plan = robust(scenario, states, criterion="cvar", level=0.8)
    assert 0 < plan.knowing_demand.loss < plan.knowing_state.loss
    assert plan.certificate.kkt_residual < 1e-9
    assert states.probability.sum() == pytest.approx(1)
    # The mean of the states keeps coefficients on the ridge that they share with their exponents.
    A = states.values["law.pretraining.A"]
    assert states.mean()["law.pretraining.A"] == pytest.approx(np.exp(np.log(A).mean()))


def test_law_alone_unknown():
    plan = robust(powers(), law_states(powers(), draws=6))
    assert plan.knowing_demand.loss == plan.knowing_demand.budget == 0
    assert plan.knowing_state.loss > 0
    assert np.ptp(plan.k) < 1e-12 * plan.k[0]


def test_product_form_with_k_free_does_not_care_for_demand():
    """There T only rescales k: the loss is a product of a power of T and a function of the commitment."""
    scenario = load("lecture-free", overrides=["decisions.k=free"])
    plan = robust(scenario, demand(1.0))
    single = allocator.solve(scenario)
    assert logs(plan.decision) == pytest.approx(logs(single.decision), abs=1e-7)
    assert plan.worst_regret == pytest.approx(0, abs=1e-7)
    codes = {notice.code for notice in plan.warnings}
    assert "demand_does_not_matter" in codes
    assert "k_below_one" in codes
    assert plan.status == "best_of_starts"


def test_fixed_k_pays_for_the_highest_demand():
    """With k given the loss is the same in every state, so what counts is to serve the highest demand."""
    states = demand(0.4)
    plan = robust(load("lecture-free"), states)
    highest = with_values(load("lecture-free"), {LIFETIME: float(states.values[LIFETIME].max())})
    assert logs(plan.decision) == pytest.approx(logs(allocator.solve(highest).decision), abs=1e-7)
    assert plan.k == pytest.approx(1)
    assert plan.outcome.spent.max() == pytest.approx(1, rel=1e-9)
    assert (np.diff(plan.outcome.spent) > 0).all()
    assert plan.mean_demand is not None
    assert plan.mean_demand.unserved == (3, 4)
    assert plan.mean_demand.expected_loss == math.inf
    assert "mean_demand_fails" in {notice.code for notice in plan.warnings}
    assert "cannot serve 2 of 5" in str(plan)
    json.dumps(plan.to_dict(), allow_nan=False)


def test_derating():
    """Demand T with probability p, else nothing: whose budget is it that an unshipped model leaves?"""
    p = 0.3
    told = derating(load("lecture-free"), p)
    full, derated = (allocator.solve(with_values(load("lecture-free"), {"deployment.derate": x})) for x in (1.0, p))
    # Its own budget has to pay for serving where it ships, so p is no matter.
    assert logs(told.committed.decision) == pytest.approx(logs(full.decision), abs=1e-7)
    assert np.isnan(told.committed.loss[1])
    assert np.isnan(told.committed.k[1])
    assert told.committed.expected_loss == pytest.approx(full.loss, rel=1e-10)
    # A budget that holds on average: 6 N D + 9 N R + p 2 N m T = C.
    d = told.pooled.decision
    assert d == derated.decision
    training = 6 * d.n_active * d.d_pretrain + 9 * d.n_active * d.d_rl
    assert training + p * 6 * d.n_active * T == pytest.approx(BUDGET, rel=1e-9)
    assert told.over_budget == pytest.approx((training + 6 * d.n_active * T) / BUDGET - 1, rel=1e-9)
    # That is the plan at mean demand of the two states, which the model's own budget cannot serve.
    assert told.committed.mean_demand is not None
    assert logs(told.committed.mean_demand.decision) == pytest.approx(logs(d), rel=1e-9)
    assert told.committed.mean_demand.unserved == (0,)
    assert "probability 0.3" in str(told)
    sure = derating(load("lecture-free"), 1)
    assert sure.over_budget == pytest.approx(0, abs=1e-9)
    with pytest.raises(ScenarioError, match="probability: got 0; must be > 0 and <= 1"):
        derating(load("lecture-free"), 0)


def test_what_is_unlikely_to_zero_counts_for_nothing(plans: dict[str, RobustPlan]):
    tokens = np.append(demand().values[LIFETIME], 1e16)
    plan = robust(powers(), States({LIFETIME: tokens}, [0.2] * 5 + [0]), criterion="regret", level=0.5)
    assert logs(plan.decision) == pytest.approx(logs(plans["regret"].decision), abs=1e-9)
    assert plan.worst_regret == pytest.approx(plans["regret"].worst_regret, rel=1e-8)
    assert np.isfinite(plan.loss).all()


def test_answers_as_tables(plans: dict[str, RobustPlan]):
    plan = plans["cvar"]
    told = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert told["schema"] == "allocator.robust/1"
    assert len(told["rows"]) == 5
    assert told["rows"][0]["loss"] == plan.loss[0]
    assert set(told["decision"]) == set(COMMITTED)
    mean = with_values(powers(), {LIFETIME: float(demand().values[LIFETIME].mean())})
    assert told["mean_demand"]["n_active"] == pytest.approx(allocator.solve(mean).decision.n_active, rel=1e-9)
    frame = plan.to_frame()
    assert list(frame.columns[:3]) == ["state", LIFETIME, "probability"]
    assert frame["d_inference"].to_numpy() == pytest.approx(plan.k * demand().values[LIFETIME])
    assert 3 <= len(str(plan).splitlines()) <= 6


@pytest.mark.parametrize(("probability", "words"), [
    ([0.5, 0.6], r"states.probability: sums to 1.1; must sum to 1"),
    ([1.5, -0.5], r"states.probability\[1\]: got -0.5; must be >= 0"),
    ([0.5, math.nan], "states.probability: entry 1 is nan; must be a finite number"),
    ([1.0], "states.probability: has 1 entries; must have 2"),
    ("half", "states.probability: must be numbers, got 'half'"),
])  # fmt: skip
def test_wrong_probabilities(probability, words):
    with pytest.raises(ScenarioError, match=words):
        States({LIFETIME: [1e14, 2e14]}, probability)


@pytest.mark.parametrize(("values", "words"), [
    ({}, "states.values: must name at least one key"),
    ({LIFETIME: []}, "must be a list of at least one number"),
    ({LIFETIME: [1e14, math.inf]}, "entry 1 is inf; must be a finite number"),
    ({LIFETIME: [1e14, 2e14], "rl.overhead": [1.0]}, "keys must have as many entries as each other"),
])  # fmt: skip
def test_wrong_values(values, words):
    with pytest.raises(ScenarioError, match=words):
        States(values)


@pytest.mark.parametrize(("values", "words"), [
    ({"deployment.lifetime_token": [1e14]}, "deployment.lifetime_token: unknown key; did you mean lifetime_tokens"),
    ({LIFETIME: [-1e14, 1e14]}, "deployment.lifetime_tokens: got -100000000000000.0; must be > 0"),
    ({LIFETIME: [0.0, 0.0]}, "nothing is served in any state"),
    ({"objective.compute_flop": [1e26, 1e27]}, "objective.compute_flop: the budget and the bounds on decisions"),
    ({"law.pretraining.gamma": [0.3]}, "law.pretraining.gamma: not a parameter of chinchilla-epoch"),
    ({"lifetime_tokens": [1e14], LIFETIME: [1e14]}, "deployment.lifetime_tokens is given twice"),
])  # fmt: skip
def test_states_that_no_scenario_can_be_in(values, words):
    with pytest.raises(AllocatorError, match=words):
        robust(powers(), States(values))


def test_wrong_options():
    for options, words in (({"criterion": "mean"}, "criterion: got 'mean'; must be one of expected, cvar, regret"),
                           ({"level": 1.0}, "level: got 1.0; must be >= 0 and < 1"),
                           ({"level": math.nan}, "level: got nan")):  # fmt: skip
        with pytest.raises(ScenarioError, match=words):
            robust(powers(), demand(), **options)
    with pytest.raises(ScenarioError, match="states: got dict; must be"):
        robust(powers(), {LIFETIME: [1e14]})  # pyright: ignore
    with pytest.raises(ScenarioError, match="target_loss: a robust plan spends one budget"):
        robust(load("serve-two-trillion"), demand())
    with pytest.raises(ScenarioError, match="all fixed"):
        robust(powers(*GIVEN, "decisions.d_pretrain=1e14"), demand())
    for wrong in ({"median": 0}, {"sigma": -1}, {"points": 0}, {"rule": "monte-carlo"}, {"key": "law.overlap"}):
        with pytest.raises(ScenarioError, match=f"{next(iter(wrong))}: got"):
            lognormal_demand(**{"median": T, "sigma": 0.5} | wrong)
    given = {"n_active": np.int64(10**11), "d_pretrain": 10**14, "d_rl": np.float32(1e13)}
    assert np.isfinite(evaluate_committed(powers(), demand(), **given).loss).any()
    with pytest.raises(ScenarioError, match="n_active: got '1e11'; must be > 0 and finite"):
        evaluate_committed(powers(), demand(), **given | {"n_active": "1e11"})
    with pytest.raises(ScenarioError, match="besiroglu-2024 has no draws"):
        law_states(load("lecture-free"))
    with pytest.raises(ScenarioError, match="given by both sides"):
        crossed(demand(), demand())


def test_a_state_without_any_plan_is_named():
    scenario = load("lecture-free", overrides=["decisions.n_active=1e11"])
    with pytest.raises(InfeasibleError, match=r"states\[2\] \(deployment.lifetime_tokens = 1e\+18\) has no plan even"):
        robust(scenario, States({LIFETIME: [1e14, 2e14, 1e18]}))
    with pytest.raises(AllocatorError, match=r"states\[1\] .*law.rl.exponent"):
        robust(load("lecture-free", overrides=["decisions.k=free"]), States({"law.rl.exponent": [0.05, 0.4]}))


def test_quadratures():
    by_nodes = lognormal_demand(T, 0.5, points=9, rule="gauss-hermite")
    assert by_nodes.mean()[LIFETIME] == pytest.approx(T * math.exp(0.125), rel=1e-9)
    by_bands = lognormal_demand(T, 0.5, points=5)
    assert by_bands.values[LIFETIME][2] == pytest.approx(T)
    assert by_bands.probability == pytest.approx(0.2)
