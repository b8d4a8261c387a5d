"""Each warning comes from the least scenario that calls for it, and from no other."""

import pytest

import allocator
from allocator.optimum.notices import LARGEST_PUBLIC_RL_SHARE
from allocator.optimum.result import Notice, Plan
from allocator.scenario.reading import from_values, load

INSIDE = {"n_active": 1e9, "d_pretrain": 2e10, "d_rl": 0.0, "k": 1.0}  # inside every shipped law's runs
QUIET = {  # nothing to warn of: a training run with traffic, all figures stated
    "objective": {"compute_flop": 1e23},
    "deployment": {"lifetime_tokens": 1e11},
    "inference": {"overhead": 3.0},
}


def notices(plan: Plan, code: str) -> list[Notice]:
    return [notice for notice in plan.warnings if notice.code == code]


def scored(*overrides: str, source: str = "lecture", **decisions: float) -> Plan:
    """Given decisions under a shipped scenario."""
    return allocator.evaluate(load(source, overrides=overrides), **(INSIDE | decisions))


def codes(plan: Plan) -> set[str]:
    return {notice.code for notice in plan.warnings}


def test_a_scenario_without_anything_to_warn_of():
    assert allocator.evaluate(from_values(QUIET), **INSIDE).warnings == ()


def test_every_notice_has_a_path_and_a_sentence():
    plan = allocator.solve(load("lecture"))
    assert {
        "exponents_chosen_for_equal_cost", "assumed_parameter", "extrapolates_rl", "extrapolates_n_active",
        "extrapolates_d_pretrain", "extrapolates_tokens_per_param",
    } == codes(plan)  # fmt: skip
    for notice in plan.warnings:
        assert notice.path
        assert len(notice.message) > 20
        assert "\n" not in notice.message


# --- extrapolates_rl ---


def test_rl_beyond_public_runs():
    """RL at 3 x 3 N R over 6 N D; 3e-5 of pre-training is the largest public study's."""
    assert LARGEST_PUBLIC_RL_SHARE == 3e-5
    at_limit = 3e-5 * 6 * 2e10 / 9
    (notice,) = notices(scored(d_rl=2 * at_limit), "extrapolates_rl")
    assert notice.path == "law.rl"
    assert notice.value == pytest.approx(2.0, rel=1e-9)
    assert not notices(scored(d_rl=0.9 * at_limit), "extrapolates_rl")
    assert not notices(scored(d_rl=0.0), "extrapolates_rl")


def test_the_lecture_extrapolates_rl_by_four_and_a_half_decades():
    (notice,) = notices(allocator.solve(load("lecture")), "extrapolates_rl")
    assert 1e4 < notice.value < 1e5


# --- exponents_chosen_for_equal_cost ---


def chosen(*overrides: str) -> list[str]:
    return [notice.path for notice in notices(scored(*overrides), "exponents_chosen_for_equal_cost")]


def test_the_exponents_that_make_equal_cost_optimal():
    """ab/(a + 3b): .0880 for Besiroglu, .0809 for Hoffmann's TeX digits."""
    assert chosen() == ["law.rl.exponent", "law.test_time.exponent"]
    assert chosen("law.rl.exponent=0.09") == ["law.test_time.exponent"]
    assert chosen("law.rl.exponent=0.09", "law.test_time.exponent=0.09") == []
    assert chosen("law.pretraining=hoffmann-2022") == []
    hoffmann = ["law.pretraining=hoffmann-2022", "law.rl.exponent=0.08093888284916068"]
    assert chosen(*hoffmann) == ["law.rl.exponent"]


def test_the_additive_form_has_no_such_exponents():
    assert chosen("law.form=additive", "law.rl.scale=0.1", "law.test_time.scale=0.1") == []


# --- assumed_parameter ---


def test_what_is_assumed_is_warned_of():
    plan = scored()
    found = {notice.path for notice in notices(plan, "assumed_parameter")}
    assert found == set(plan.assumed) == {"law.rl.exponent", "law.rl.scale_tokens", "law.test_time.exponent"}
    assert not notices(scored('law.rl.source="x"', 'law.test_time.source="x"'), "assumed_parameter")


def test_a_default_overhead_is_warned_of_where_it_counts():
    without = {key: value for key, value in QUIET.items() if key != "inference"}
    (notice,) = notices(allocator.evaluate(from_values(without), **INSIDE), "assumed_parameter")
    assert notice.path == "inference.overhead"


# --- outside a law's runs ---


@pytest.mark.parametrize(
    ("decisions", "code", "word"),
    [
        ({"n_active": 1.7e10, "d_pretrain": 3e11}, "extrapolates_n_active", "above"),
        ({"n_active": 5e7, "d_pretrain": 1e9}, "extrapolates_n_active", "below"),
        ({"n_active": 1e10, "d_pretrain": 4e11}, "extrapolates_d_pretrain", "above"),
        ({"n_active": 1e8, "d_pretrain": 8e8}, "extrapolates_d_pretrain", "below"),
        ({"n_active": 1e9, "d_pretrain": 3.18e11 * 0.999, "k": 1.0}, None, ""),
        ({"n_active": 1e8, "d_pretrain": 3.5e10}, "extrapolates_tokens_per_param", "above"),
        ({"n_active": 1e10, "d_pretrain": 4e9}, "extrapolates_tokens_per_param", "below"),
    ],
)
def test_decisions_outside_the_runs_of_besiroglu(decisions: dict, code: str | None, word: str):
    """5.73e7 to 1.62e10 parameters, 8.19e8 to 3.18e11 tokens, 0.456 to 341 tokens per parameter."""
    found = [
        n for n in scored(**decisions).warnings if n.code.startswith("extrapolates") and n.code != "extrapolates_rl"
    ]
    assert [notice.code for notice in found] == ([] if code is None else [code])
    if code:
        assert word in found[0].message
        assert found[0].path == "law.pretraining"


@pytest.mark.parametrize("n_active", [5.73e7, 1.62e10])
def test_the_ends_of_the_runs_are_inside(n_active: float):
    plan = scored(n_active=n_active, d_pretrain=20 * n_active)
    assert not notices(plan, "extrapolates_n_active")


def test_the_ends_of_the_runs_are_inside_for_a_fixed_decision():
    plan = allocator.solve(load("gopher-budget", overrides=["decisions.n_active=1.62e10"]))
    assert not notices(plan, "extrapolates_n_active")


def test_a_law_without_a_range_in_tokens_per_parameter_warns_of_what_it_knows():
    found = codes(scored("law.pretraining=hoffmann-2022", n_active=1e11, d_pretrain=1e14))
    assert "extrapolates_n_active" in found
    assert "extrapolates_tokens_per_param" not in found


# --- rounded_constants, repetition_borrowed ---


def test_rounded_constants():
    (notice,) = notices(scored("law.pretraining=hoffmann-2022-rounded"), "rounded_constants")
    assert notice.path == "law.pretraining"
    assert "hoffmann-2022" in notice.message
    assert not notices(scored("law.pretraining=hoffmann-2022"), "rounded_constants")


def test_an_alias_of_the_rounded_constants_warns_too():
    assert notices(scored("law.pretraining=hoffmann-printed"), "rounded_constants")


def test_repetition_borrowed():
    (notice,) = notices(scored("pretraining.unique_tokens=1e10"), "repetition_borrowed")
    assert (notice.path, notice.value) == ("pretraining.unique_tokens", 15.387756)
    own = scored("pretraining.unique_tokens=1e10", "law.pretraining=muennighoff-2023")
    assert not notices(own, "repetition_borrowed")
    assert not notices(scored(), "repetition_borrowed")


# --- overhead_unusual ---


@pytest.mark.parametrize("path", ["pretraining.overhead", "rl.overhead", "inference.overhead"])
@pytest.mark.parametrize(("value", "unusual"), [(0.5, True), (1, False), (3, False), (30, False), (31, True)])
@pytest.mark.parametrize("n_active", [1e9, 1e11])
def test_an_overhead_outside_1_to_30(path: str, value: float, unusual: bool, n_active: float):
    plan = scored(f"{path}={value}", n_active=n_active, d_pretrain=20 * n_active, d_rl=1e10)
    found = [notice.path for notice in notices(plan, "overhead_unusual")]
    assert found == ([path] if unusual else [])


def test_an_overhead_from_mfus_counts_too():
    plan = scored("pretraining.mfu=0.4", "rl.mfu=0.01", d_rl=1e10)
    (notice,) = notices(plan, "overhead_unusual")
    assert notice.path == "rl.overhead"
    assert notice.value == pytest.approx(40, rel=1e-9)


def test_the_overhead_of_a_phase_that_is_not_there_is_nothing_to_warn_of():
    plan = allocator.evaluate(from_values({"objective": {"compute_flop": 1e23}}), **INSIDE)
    assert not notices(plan, "overhead_unusual")


# --- k ---


def test_k_below_one():
    (notice,) = notices(scored(k=0.5), "k_below_one")
    assert (notice.path, notice.value) == ("decisions.k", 0.5)
    assert not notices(scored(k=1.0), "k_below_one")
    assert not notices(scored(k=2.0), "k_below_one")


# --- bounds and limits ---


def solved(*overrides: str, source: str = "lecture") -> Plan:
    return allocator.solve(load(source, overrides=overrides))


@pytest.mark.parametrize(
    ("override", "path", "value", "word"),
    [
        ("decisions.d_pretrain={ max = 1e14 }", "decisions.d_pretrain", 1e14, "upper"),
        ("decisions.d_pretrain={ min = 3e14 }", "decisions.d_pretrain", 3e14, "lower"),
        ("decisions.d_rl={ max = 1e12 }", "decisions.d_rl", 1e12, "upper"),
        ("decisions.k={ min = 1.5 }", "decisions.k", 1.5, "lower"),
    ],
)
def test_an_active_bound_is_named(override: str, path: str, value: float, word: str):
    (notice,) = notices(solved(override), "bound_active")
    assert notice.path == path
    assert notice.value == pytest.approx(value, rel=1e-9)
    assert word in notice.message


def test_no_rl_is_a_bound_that_binds():
    """Below the price of its first token RL is not bought: R = 0 exactly, marked at_min."""
    plan = solved("law.rl.exponent=1e-9")
    assert plan.decision.d_rl == 0
    assert plan.decision_status["d_rl"] == "at_min"
    assert [notice.path for notice in notices(plan, "bound_active")] == ["decisions.d_rl"]


def test_no_rl_is_exactly_none_at_a_loose_target_too():
    plan = solved("objective.target_loss=100")
    assert plan.decision_status["d_rl"] == "at_min"
    assert plan.decision.d_rl == 0


def test_a_floor_share_shows_one_sample_as_an_active_bound():
    (notice,) = notices(solved("law.test_time.floor_share=0.5", "decisions.k=free"), "bound_active")
    assert (notice.path, notice.value) == ("decisions.k", 1.0)


def test_bounds_that_do_not_bind_are_silent():
    wide = ["decisions.d_pretrain={ min = 1e13, max = 1e15 }", "decisions.d_rl={ min = 1e13, max = 1e15 }"]
    plan = solved(*wide)
    assert not notices(plan, "bound_active")
    assert not notices(solved(), "bound_active")
    assert plan.decision.d_pretrain == pytest.approx(solved().decision.d_pretrain, rel=1e-9)


def test_limit_slack():
    """1e9 parameters on at most 1e10 tokens cost 6e19 of 5.76e23 FLOP."""
    plan = solved("decisions.n_active=1e9", "decisions.d_pretrain={ max = 1e10 }", source="gopher-budget")
    (notice,) = notices(plan, "limit_slack")
    assert notice.path == "objective.compute_flop"
    assert plan.decision.d_pretrain == pytest.approx(1e10, rel=1e-9)
    assert plan.total.flop == pytest.approx(6e19, rel=1e-9)
    assert not notices(solved(source="gopher-budget"), "limit_slack")


def test_over_budget():
    """6 N D = 1.2e20 and 2 N m T with m = 3."""
    cost = 6 * 1e9 * 2e10 + 2 * 1e9 * 3 * 2.592e14
    (notice,) = notices(scored(f"objective.compute_flop={cost / 2}"), "over_budget")
    assert notice.path == "objective.compute_flop"
    assert notice.value == pytest.approx(1.0, rel=1e-9)
    assert not notices(scored(f"objective.compute_flop={cost}"), "over_budget")


def test_misses_target():
    loss = 1.8172 + 482.01 * 1e9**-0.3478 + 2085.43 * 2e10**-0.3658
    (notice,) = notices(scored(f"objective.target_loss={loss / 1.25}"), "misses_target")
    assert notice.path == "objective.target_loss"
    assert notice.value == pytest.approx(0.25, rel=1e-9)
    assert not notices(scored(f"objective.target_loss={loss}"), "misses_target")


@pytest.mark.parametrize("target", [50, 300, 400, 1000])
def test_a_target_that_fewer_tokens_still_reach_is_not_slack(target: float):
    """At N = 1e11 without RL, L = E + A N^-a + B D^-b has a D for every target, however little training costs."""
    plan = solved(f"objective.target_loss={target}")
    assert not notices(plan, "limit_slack")
    assert plan.loss == pytest.approx(target, rel=1e-9)
    tokens = ((target - 1.8172 - 482.01 * 1e11**-0.3478) / 2085.43) ** (-1 / 0.3658)
    assert plan.decision.d_pretrain == pytest.approx(tokens, rel=1e-6)
