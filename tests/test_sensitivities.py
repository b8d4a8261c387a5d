"""Elasticities and swings: closed forms of what a little more is worth, and the single path at both ends."""

import math

import numpy as np
import pytest

import allocator
from allocator.decision_words import worth_of
from allocator.distributions import Distribution, assumed_ranges
from allocator.errors import AllocatorError
from allocator.scenario.reading import load, with_values
from allocator.sensitivities import Sensitivity, sensitivity


@pytest.fixture(scope="module")
def free() -> Sensitivity:
    return sensitivity(load("lecture-free"))


def row(found: Sensitivity, path: str):
    return next(row for row in found.elasticities if row.path == path)


def test_one_percent_more_budget_is_worth_itself(free: Sensitivity):
    assert row(free, "objective.compute_flop").worth == pytest.approx(1.0, abs=1e-9)
    price = free.plan.shadow_price
    assert price is not None
    assert row(free, "objective.compute_flop").reducible_loss == pytest.approx(-price.value, rel=1e-9)


def test_serving_s_share_is_what_its_overhead_costs(free: Sensitivity):
    """Envelope theorem: 1% more overhead of a phase costs its share of the budget in percent."""
    assert free.plan.phases is not None
    for path, phase in (
        ("inference.overhead", "inference"),
        ("rl.overhead", "rl"),
        ("pretraining.overhead", "pretrain"),
    ):
        assert row(free, path).worth == pytest.approx(-free.plan.phases[phase].share, rel=1e-8)
    # Demand and its factors multiply each other.
    for path in ("deployment.tokens_per_second", "deployment.lifetime_days", "deployment.derate"):
        assert row(free, path).worth == pytest.approx(-free.plan.phases["inference"].share, rel=1e-8)


def test_floor_moves_the_loss_and_no_decision(free: Sensitivity):
    floor = row(free, "law.pretraining.E")
    assert floor.loss_nats == pytest.approx(1.8172, rel=1e-9)
    assert [floor.n_active, floor.d_pretrain, floor.d_rl, floor.worth] == pytest.approx([0, 0, 0, 0], abs=1e-9)


def test_rows_are_ranked_and_assumed_ones_marked(free: Sensitivity):
    worth = [abs(row.worth) for row in free.elasticities]
    assert worth == pytest.approx(sorted(worth, reverse=True), rel=1e-9)
    assert {row.path for row in free.elasticities if row.assumed} == set(free.plan.assumed) & {
        row.path for row in free.elasticities
    }


def test_swings_are_plans_at_the_ends(free: Sensitivity):
    swing = next(s for s in free.swings if s.path == "rl.overhead")
    assert (swing.low, swing.high) == (2.0, 7.0)
    for end, told in ((2.0, swing.at_low), (7.0, swing.at_high)):
        plan = allocator.solve(with_values(load("lecture-free"), {"rl.overhead": end}))
        assert plan.overtraining is not None
        assert told == pytest.approx(plan.overtraining.tokens_per_param, rel=1e-8)
    widths = [abs(math.log(s.at_high / s.at_low)) for s in free.swings]
    assert widths == sorted(widths, reverse=True)


def test_a_swing_that_breaks_the_plan_says_why():
    found = sensitivity(load("lecture"), ranges={"objective.compute_flop": Distribution("uniform", (1e26, 1e27))})
    swing = found.swings[0]
    assert swing.path == "objective.compute_flop"
    assert math.isnan(swing.at_low)
    assert swing.reason is not None
    assert "does not pay" in swing.reason


def test_no_swing_leaves_what_the_form_allows_and_short_names_are_paths():
    """k is fixed at 1, below which overlap has no meaning."""
    scenario = with_values(load("lecture"), {"law.overlap": 0.1})
    given = {"compute_flop": Distribution("uniform", (4e26, 5e26))}
    found = sensitivity(scenario, ranges=given)
    swings = {swing.path: swing for swing in found.swings}
    assert swings["decisions.k"].low == 1.0
    assert swings["objective.compute_flop"].low == 4e26
    assert "compute_flop" not in swings


def test_cost_of_a_target_is_what_moves():
    found = sensitivity(load("serve-two-trillion"), outcome="cost")
    target = row(found, "objective.target_loss")
    assert target.cost < 0 < target.worth
    assert row(found, "inference.overhead").cost == pytest.approx(found.plan.phases["inference"].share, rel=1e-8)  # pyright: ignore
    assert found.base == pytest.approx(found.plan.total.flop)  # pyright: ignore


def test_sentences_speak_of_mfu():
    assert worth_of("inference.overhead", -0.458) == "1% more MFU of decode is worth 0.46% of the budget"
    assert worth_of("objective.compute_flop", 1.0) == "1% more budget is worth 1.0% of the budget"
    assert worth_of("law.test_time.exponent", 1e-9).endswith("no difference")


def test_unknown_outcome_and_impossible_scenario():
    with pytest.raises(AllocatorError, match="outcome: 'speed' is not one of"):
        sensitivity(load("lecture"), outcome="speed")
    with pytest.raises(allocator.InfeasibleError):
        sensitivity(with_values(load("lecture"), {"objective.compute_flop": 1e20}))


def test_assumed_ranges_follow_the_scenario():
    ranges = assumed_ranges(load("lecture"))
    assert ranges["rl.overhead"].numbers == (2.0, 3.0, 7.0)
    assert "law.test_time.exponent" not in ranges  # at a fixed k it only scales the loss
    sourced = with_values(load("lecture"), {"law.rl.source": "our own runs"})
    assert "law.rl.exponent" not in assumed_ranges(sourced)
    assert np.isclose(ranges["deployment.tokens_per_second"].quantile(np.array([0.5]))[0], 5e7)
