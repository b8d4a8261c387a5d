"""Rounded plans against solving again with the rounded decisions fixed, and shapes against counting parameters."""

import io
import itertools
import math
import re
from typing import Any

import pytest
from rich.console import Console

import allocator
from allocator import catalog, near_optimal_report
from allocator.errors import AllocatorError, CatalogError
from allocator.optimum.result import Plan
from allocator.problem import DECISIONS
from allocator.roofline.architecture import architecture
from allocator.rounding import RoundedPlan, round_plan
from allocator.scenario.reading import load, with_values
from allocator.whole_shapes import nearest_shapes, resized

FREE = with_values(
    load("lecture-free"),
    {"decisions.k": "free", "objective.compute_flop": 1e27, "deployment.tokens_per_second": 2e6,
     "hardware": {"chip": "h100-sxm", "mfu": 0.4}},
)  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    """All free; little demand, so that the best k is several samples and not whole."""
    return allocator.solve(FREE)


@pytest.fixture(scope="module")
def rounded(plan: Plan) -> RoundedPlan:
    return round_plan(plan)


def least_budget(loss: float) -> float:
    """Cost of the cheapest plan of a loss, all decisions free."""
    total = allocator.solve(with_values(FREE, {"objective": {"target_loss": loss}})).total
    assert total is not None
    return total.flop


def test_the_plan_is_what_the_tests_need(plan: Plan):
    assert plan.decision is not None
    assert plan.decision.k > 2
    assert abs(plan.decision.k - round(plan.decision.k)) > 0.01


def test_whole_samples_either_way(plan: Plan, rounded: RoundedPlan):
    assert plan.decision is not None
    assert sorted(c.decision.k for c in rounded.candidates if c.decision) == [
        math.floor(plan.decision.k),
        math.ceil(plan.decision.k),
    ]
    assert rounded.best is rounded.candidates[0]
    assert rounded.candidates[0].regret < rounded.candidates[1].regret


def test_regret_when_solved_again(rounded: RoundedPlan):
    for c in rounded.candidates:
        assert c.decision is not None
        again = allocator.solve(with_values(FREE, {"decisions.k": c.decision.k}))
        assert again.decision is not None
        for name in DECISIONS:
            assert getattr(c.decision, name) == pytest.approx(getattr(again.decision, name), rel=1e-7)
        assert c.cost == pytest.approx(1e27, rel=1e-9)
        assert c.regret == pytest.approx(1e27 / least_budget(again.loss) - 1, abs=1e-8)
        assert c.rounded == ("k",)


def test_the_best_scenario_solves_to_the_best_candidate(rounded: RoundedPlan):
    again = allocator.solve(rounded.best_scenario())
    assert again.loss == pytest.approx(rounded.best.loss, rel=1e-12)
    assert again.decision_status is not None
    assert again.decision_status["k"] == "fixed"


def test_a_shape_after_whole_samples(plan: Plan, rounded: RoundedPlan):
    found = round_plan(plan, shape="llama-3.1-70b")
    assert len(found.candidates) == 8
    assert all(c.regret >= 0 for c in found.candidates)
    assert [c.regret for c in found.candidates] == sorted(c.regret for c in found.candidates)
    # A shape cannot be better than the size that it stands for, and is near to it.
    for c in found.candidates:
        assert c.shape is not None
        assert c.decision is not None
        assert c.decision.n_active == c.shape.n_active
        unshaped = next(other for other in rounded.candidates if other.decision and other.decision.k == c.decision.k)
        assert unshaped.regret - 1e-9 <= c.regret < unshaped.regret + 1e-3
    frame = found.to_frame()
    assert frame["best"].tolist() == [True] + [False] * 7
    assert (frame["d_model"] % 128 == 0).all()


def test_chips_are_whole_and_full(plan: Plan):
    found = round_plan(plan, k=None, days={"pretrain": 90, "rl": 30})
    assert len(found.candidates) == 4
    peak = catalog.dense_peak_flop_per_s(catalog.find("hardware", "h100-sxm"), "bf16")
    for c in found.candidates:
        d = c.decision
        assert d is not None
        chips = 6 * d.n_active * d.d_pretrain / (peak * 0.4 * 86400 * 90)
        assert chips == pytest.approx(c.chips["pretrain"], rel=1e-9)
        assert 9 * d.n_active * d.d_rl / (peak * 0.4 * 86400 * 30) == pytest.approx(c.chips["rl"], rel=1e-9)
        serving = 6 * d.n_active * d.d_inference / (peak * 0.4 * 86400 * 60)
        assert c.chips["inference"] == math.ceil(serving)
        assert c.regret >= 0
        assert c.regret < 1e-6
    assert len({(c.chips["pretrain"], c.chips["rl"]) for c in found.candidates}) == 4


def test_a_long_run_needs_few_chips_and_rounding_costs_more(plan: Plan):
    """With half a dozen chips, one chip is a sixth of the run."""
    total = plan.phases["pretrain"].chip_hours if plan.phases else math.nan
    found = round_plan(plan, k=None, days=total / 24 / 6.5)
    assert sorted(c.chips["pretrain"] for c in found.candidates) == [6, 7]
    for c in found.candidates:
        assert c.decision is not None
        values = {"decisions.n_active": c.decision.n_active, "decisions.d_pretrain": c.decision.d_pretrain}
        again = allocator.solve(with_values(FREE, values))
        assert c.loss == pytest.approx(again.loss, rel=1e-12)
        assert c.regret == pytest.approx(1e27 / least_budget(again.loss) - 1, abs=1e-8)
        assert 1e-6 < c.regret < 0.01


def test_a_fixed_k_is_left_alone():
    plan = allocator.solve(with_values(FREE, {"decisions.k": 1.5}))
    with pytest.raises(AllocatorError, match=r"fixed at 1\.5, so nothing is left to round: give a shape or days"):
        round_plan(plan)
    with pytest.raises(AllocatorError, match=re.escape("k: got 2.0; the scenario fixes it at 1.5")):
        round_plan(plan, k=2.0)
    found = round_plan(plan, shape="llama-3.1-70b")
    assert {c.decision.k for c in found.candidates if c.decision} == {1.5}


def test_fewer_than_one_sample_becomes_one():
    plan = allocator.solve(with_values(FREE, {"deployment.tokens_per_second": 5e7}))
    assert plan.decision is not None
    assert plan.decision.k < 1
    found = round_plan(plan)
    assert [c.decision.k for c in found.candidates if c.decision] == [1.0]


def test_a_number_of_samples_and_a_bound_on_them(plan: Plan):
    assert round_plan(plan, k=2).best.decision.k == 2.0  # pyright: ignore[reportOptionalMemberAccess]
    bounded = allocator.solve(with_values(FREE, {"decisions.k": {"max": 2.5}}))
    assert [c.decision.k for c in round_plan(bounded).candidates if c.decision] == [2.0]
    with pytest.raises(AllocatorError, match=r"k: got 3; must be from .* to 2.5, the bounds on k"):
        round_plan(bounded, k=3)


def test_a_target_loss_is_kept(plan: Plan):
    target = allocator.solve(with_values(FREE, {"objective": {"target_loss": plan.loss}}))
    for c in round_plan(target).candidates:
        assert c.loss == pytest.approx(plan.loss, rel=1e-12)
        assert c.regret == pytest.approx(c.cost / 1e27 - 1, abs=1e-8)


# --- shapes ---


@pytest.mark.parametrize("model", ["llama-3.1-70b", "gemma-3-27b", "deepseek-v3", "qwen3-30b-a3b", "llama-4-maverick"])
@pytest.mark.parametrize("multiple", [128, 256])
def test_shapes_are_whole_and_on_either_side(model: str, multiple: int):
    size = 1.2e11
    found = nearest_shapes(model, size, multiple=multiple)
    assert 2 <= len(found) <= 4
    assert min(s.n_active for s in found) <= size < max(s.n_active for s in found)
    distances = [abs(math.log(s.n_active / size)) for s in found]
    assert distances == sorted(distances)
    for s in found:
        assert s.d_model % multiple == 0
        assert s.n_heads % s.n_kv_heads == 0
        assert abs(math.log(s.n_active / size)) < 0.03
        assert s.family == model
    widths = {s.d_model for s in found}
    assert all(abs(a - b) == multiple for a, b in itertools.combinations(widths, 2))


def test_parameters_of_a_dense_shape_counted_by_hand():
    """Attention d (h + 2 kv + h) w, three matrices of d x d_ff, two embeddings of d x 128256."""
    for s in nearest_shapes("llama-3.1-70b", 3e10):
        attention = s.d_model * 128 * (2 * s.n_heads + 2 * s.n_kv_heads)
        by_hand = s.layers * (attention + 3 * s.d_model * s.d_ff) + 2 * 128256 * s.d_model
        assert s.n_active == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "llama-3.1-405b", "gemma-3-27b", "deepseek-v3", "kimi-k2"])
def test_a_familys_own_shape_is_one_of_its_shapes(model: str):
    own = architecture(catalog.find("models", model))
    again = resized(own, int(own.d_model), 128, int(own.layers))
    assert again == own
    (nearest, *_) = nearest_shapes(model, float(own.n_active))
    assert (nearest.layers, nearest.d_model, nearest.n_heads) == (own.layers, own.d_model, own.n_heads)
    assert nearest.n_active == float(own.n_active)


# --- wrong input ---


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"k": "half"}, """k: got 'half'; must be "whole", a number > 0 or None"""), ({"k": -1}, "k: got -1; must be"),
     ({"k": math.nan}, "k: got nan; must be"), ({"k": None}, "decisions.k: left as it is, so nothing is left"),
     ({"shape": 70}, "shape: got 70; must be the name of a model"),
     ({"shape": "llama-3.1-70b", "multiple": 0}, "multiple: got 0; must be a whole number"),
     ({"days": -1}, "days: got -1 for pretrain; must be a finite number > 0"),
     ({"days": {"inference": 3}}, "days: got phase 'inference'; must be one of pretrain, rl"),
     ({"days": math.inf}, "days: got inf for pretrain")],
)  # fmt: skip
def test_wrong_input_is_refused_in_one_line(plan: Plan, arguments: dict[str, Any], told: str):
    with pytest.raises(AllocatorError, match=re.escape(told)) as error:
        round_plan(plan, **arguments)
    assert "\n" not in str(error.value)


def test_an_unknown_model_is_refused(plan: Plan):
    with pytest.raises(CatalogError, match=r"models: 'llama-3.1-71b' is not known"):
        round_plan(plan, shape="llama-3.1-71b")


def test_what_cannot_be_rounded_says_so():
    fixed = allocator.solve(with_values(FREE, {"decisions.n_active": 1e11}))
    with pytest.raises(AllocatorError, match=r"shape: got 'llama-3.1-70b'; the scenario fixes n_active at 1e\+11"):
        round_plan(fixed, shape="llama-3.1-70b")
    given = allocator.evaluate(FREE, n_active=1e11, d_pretrain=1e13, d_rl=1e12, k=1.0)
    with pytest.raises(AllocatorError, match="plan: its status is evaluated; round_plan needs"):
        round_plan(given)


def test_printing_and_plain_values(plan: Plan):
    found = round_plan(plan, shape="deepseek-v3", days={"pretrain": 90})
    console = Console(file=io.StringIO(), width=160)
    near_optimal_report.print_rounding(found, console)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    for words in ("as planned", "best", "chips, pre-training", "and 4 more", "layers x"):
        assert words in text
    told = found.to_dict()
    assert told["schema"] == "allocator.round/1"
    assert len(told["rows"]) == 16
    assert "deepseek-v3:" in str(found)
    assert set(near_optimal_report.files(rounding=found)) == {"rounding.csv"}
