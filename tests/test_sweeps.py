"""Sweeps: one scenario at many values of a key, each plan the single one, failures kept with their reason."""

import math

import numpy as np
import pytest

import allocator
from allocator.errors import AllocatorError, ScenarioError
from allocator.scenario.reading import load, with_values
from allocator.sweeps import plan_row, sweep, sweep_frame

KEY = "objective.compute_flop"
SERVING = 2 * 1e11 * 3 * 2.592e14  # the lecture's inference cost, 2 N m T
BUDGETS = [1e20, 4.6656e26, 1e28, 1.5e26]  # not in order; serving alone takes 1.5552e26


@pytest.fixture(scope="module")
def plans() -> list[allocator.Plan]:
    return sweep(load("lecture"), KEY, BUDGETS)


def test_each_plan_is_the_single_one(plans: list[allocator.Plan]):
    for budget, plan in zip(BUDGETS[1:3], plans[1:3], strict=True):
        single = allocator.solve(with_values(load("lecture"), {KEY: budget}))
        assert plan.objective.value == budget
        assert plan.status == single.status == "optimal"
        for name in ("n_active", "d_pretrain", "d_rl", "k", "d_inference"):
            assert getattr(plan.decision, name) == pytest.approx(getattr(single.decision, name), rel=1e-9)
        assert plan.loss == pytest.approx(single.loss, rel=1e-13)


def test_middle_plan_is_model_md_s(plans: list[allocator.Plan]):
    """Row 2 of the table of optima: D 1.960e14, R 2.150e14, shares .252 .415 .333, 98.0 x 20 tokens a parameter."""
    row = plan_row(plans[1])
    assert row["d_pretrain"] == pytest.approx(1.960e14, rel=5e-4)
    assert row["d_rl"] == pytest.approx(2.150e14, rel=5e-4)
    shares = [row[f"share_{name}"] for name in ("pretrain", "rl", "inference")]
    assert shares == pytest.approx([0.252, 0.415, 0.333], abs=5e-4)
    assert row["vs_20"] == pytest.approx(98.0, abs=0.05)
    assert row["flop"] == pytest.approx(4.6656e26, rel=1e-9)


@pytest.mark.parametrize("at", [0, 3])
def test_failure_keeps_its_place_status_and_reason(plans: list[allocator.Plan], at: int):
    plan = plans[at]
    assert len(plans) == len(BUDGETS)
    assert plan.status == "infeasible"
    assert f"{SERVING:.6g}" in plan.reason
    assert plan.decision is None
    assert plan.objective.value == BUDGETS[at]
    row = plan_row(plan)
    assert (row["status"], row["reason"]) == (plan.status, plan.reason)
    numbers = [value for name, value in row.items() if name not in ("status", "reason")]
    assert all(isinstance(value, float) and math.isnan(value) for value in numbers)


def test_frame_has_a_row_a_value_and_the_key_first(plans: list[allocator.Plan]):
    frame = sweep_frame(KEY, BUDGETS, plans)
    assert frame.columns[0] == KEY
    assert frame[KEY].tolist() == BUDGETS
    assert list(frame.columns[1:]) == list(plan_row(plans[0])) == list(plan_row(plans[1]))
    assert np.isnan(frame.loc[[0, 3], "loss"]).all()
    assert np.isfinite(frame.loc[[1, 2], "loss"]).all()
    assert frame.loc[1, "d_inference"] == pytest.approx(2.592e14, rel=1e-12)
    shares = frame.loc[[1, 2], ["share_pretrain", "share_rl", "share_inference"]]
    assert shares.sum(axis=1).tolist() == pytest.approx([1.0, 1.0], rel=1e-12)


def test_frame_refuses_values_and_plans_of_different_number(plans: list[allocator.Plan]):
    with pytest.raises(ValueError, match="zip"):
        sweep_frame(KEY, BUDGETS[:2], plans)


def test_more_budget_is_less_loss(plans: list[allocator.Plan]):
    assert plans[2].loss < plans[1].loss


def test_any_key_can_be_swept():
    overheads = [1.0, 3.0]
    plans = sweep(load("lecture"), "rl.overhead", overheads)
    assert [plan.phases["rl"].overhead for plan in plans] == overheads
    assert plans[0].decision.d_rl > plans[1].decision.d_rl


def test_key_of_an_either_or_group_replaces_the_others():
    """lifetime_tokens instead of tokens_per_second and lifetime_days."""
    (plan,) = sweep(load("lecture"), "deployment.lifetime_tokens", [1e14])
    assert plan.decision.d_inference == pytest.approx(1e14, rel=1e-12)


def test_numpy_values_are_taken():
    plans = sweep(load("lecture"), KEY, np.geomspace(1e27, 1e28, 2))
    assert [plan.status for plan in plans] == ["optimal", "optimal"]


def test_wrong_value_is_an_error_of_the_scenario_and_no_failed_plan():
    with pytest.raises(ScenarioError, match=r"^objective\.compute_flop: "):
        sweep(load("lecture"), KEY, [1e27, -1.0])
    with pytest.raises(ScenarioError, match=r"objective\.flops"):
        sweep(load("lecture"), "objective.flops", [1e27])


@pytest.mark.parametrize("values", [[], (), np.array([])])
def test_no_values_are_refused(values):
    with pytest.raises(AllocatorError, match=r"objective\.compute_flop: a sweep needs at least one value"):
        sweep(load("lecture"), KEY, values)


def test_scenario_is_left_as_it_was():
    scenario = load("lecture")
    before = scenario.to_values()
    sweep(scenario, KEY, [1e27])
    assert scenario.to_values() == before
