"""From a scenario to costs, law and decisions: the contract's rules, with numbers by hand from the catalogue's rows."""

import math

import jax.numpy as jnp
import pytest

from allocator import catalog
from allocator.costs import Costs, PhaseCost
from allocator.errors import InfeasibleError, ScenarioError
from allocator.laws.law import Point
from allocator.laws.repetition import R_STAR, Repeated
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.optimum.planning import evaluate
from allocator.problem import DECISIONS, to_decision
from allocator.scenario.building import Built, build, fixed_decisions, objective_of
from allocator.scenario.building_costs import build_costs, lifetime_tokens
from allocator.scenario.reading import from_values, load
from allocator.scenario.schema import Scenario


def scenario(*overrides: str, source: str = "lecture") -> Scenario:
    return load(source, overrides=overrides)


def costs(*overrides: str, source: str = "lecture") -> Costs:
    return build_costs(scenario(*overrides, source=source))


def built(*overrides: str, source: str = "lecture") -> Built:
    return build(scenario(*overrides, source=source))


def overhead(phase: PhaseCost) -> float:
    return float(phase.overhead(jnp.asarray(25.0)))


# --- tokens served ---


def test_the_lectures_traffic():
    """01:30: 5e7 token/s for 60 days, 2.592e14 tokens."""
    assert lifetime_tokens(scenario()) == 5e7 * 86400 * 60 == 2.592e14


@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [
        (["deployment.derate=0.25"], 0.25 * 2.592e14),
        (["deployment.lifetime_tokens=1e14"], 1e14),
        (["deployment.lifetime_tokens=1e14", "deployment.derate=0.5"], 5e13),
        (["deployment.tokens_per_second=1", "deployment.lifetime_days=1e-9"], 86400e-9),
    ],
)
def test_traffic_is_derate_times_rate_times_days(overrides: list[str], tokens: float):
    assert lifetime_tokens(scenario(*overrides)) == pytest.approx(tokens, rel=1e-15)


def test_nothing_is_served_without_a_deployment():
    assert lifetime_tokens(scenario(source="gopher-budget")) == 0.0


@pytest.mark.parametrize("k", [0.5, 1.0, 8.0])
def test_traffic_never_changes_with_k_and_tokens_served_do(k: float):
    given = scenario(f"decisions.k={k}")
    assert lifetime_tokens(given) == 2.592e14
    plan = evaluate(given, n_active=1e11, d_pretrain=1e14, d_rl=1e14, k=k)
    assert plan.decision.d_inference == pytest.approx(k * 2.592e14, rel=1e-14)
    # 2 N m k T, with m = 3
    assert plan.phases["inference"].flop == pytest.approx(2 * 1e11 * 3 * k * 2.592e14, rel=1e-12)


@pytest.mark.parametrize("k", [0.5, 1.0, 8.0])
def test_prompts_are_charged_once_per_query_at_their_own_overhead(k: float):
    given = scenario("deployment.prompt_tokens_per_output_token=4", "inference.prefill_overhead=1.25")
    plan = evaluate(given, n_active=1e11, d_pretrain=1e14, d_rl=1e14, k=k)
    expected = 2 * 1e11 * 2.592e14 * (3 * k + 1.25 * 4)
    assert plan.phases["inference"].flop == pytest.approx(expected, rel=1e-12)
    assert plan.phases["inference"].model_flop == pytest.approx(2 * 1e11 * 2.592e14 * (k + 4), rel=1e-12)


@pytest.mark.parametrize("key", ["lifetime_days", "prompt_tokens_per_output_token"])
def test_an_overflow_is_told_by_its_key(key: str):
    values = ["deployment.tokens_per_second=1e300", f"deployment.{key}=1e300"]
    with pytest.raises(ScenarioError, match="deployment"):
        build(scenario(*values))


# --- overheads ---


def test_overheads_as_numbers():
    prices = costs("rl.overhead=5", "inference.overhead=2", "pretraining.overhead=1.2")
    assert (overhead(prices.pretrain), overhead(prices.rl), overhead(prices.decode)) == (1.2, 5.0, 2.0)


def test_overheads_not_given_are_the_lectures_3():
    prices = build_costs(from_values({"objective": {"compute_flop": 1e26}, "deployment": {"lifetime_tokens": 1e14}}))
    assert (overhead(prices.pretrain), overhead(prices.rl), overhead(prices.decode)) == (1.0, 3.0, 3.0)
    assert overhead(prices.prefill) == 1.0


def test_overheads_from_mfus():
    prices = costs("pretraining.mfu=0.4", "rl.mfu=0.1", "inference.mfu=0.16", "inference.prefill_mfu=0.5")
    assert overhead(prices.rl) == pytest.approx(4.0, rel=1e-15)
    assert overhead(prices.decode) == pytest.approx(2.5, rel=1e-15)
    assert overhead(prices.prefill) == pytest.approx(0.8, rel=1e-15)


def test_overheads_from_the_hardwares_mfus():
    prices = costs("hardware={ mfu = 0.4, rl = { mfu = 0.1 }, inference = { mfu = 0.2 } }", "rl={}", "inference={}")
    assert (overhead(prices.rl), overhead(prices.decode)) == pytest.approx((4.0, 2.0), rel=1e-15)


@pytest.mark.parametrize("path", ["pretraining.mfu", "hardware.mfu", "hardware.pretraining.mfu"])
def test_pretrainings_mfu_has_three_places(path: str):
    given = scenario(f"{path}=0.5", "rl.mfu=0.1")
    assert overhead(build_costs(given).rl) == pytest.approx(5.0, rel=1e-15)
    plan = evaluate(given, n_active=1e11, d_pretrain=1e14, d_rl=1e14, k=1.0)
    assert plan.phases["pretrain"].mfu == pytest.approx(0.5, rel=1e-15)


def test_flop_by_phase_by_hand():
    """6 N m_pre D, kappa N m R, 2 N m k T."""
    given = scenario("pretraining.overhead=1.5", "rl.flop_per_param_token=4", "rl.overhead=7", "inference.overhead=2")
    plan = evaluate(given, n_active=2e10, d_pretrain=1e13, d_rl=3e12, k=1.0)
    flop = {name: phase.flop for name, phase in plan.phases.items()}
    assert flop["pretrain"] == pytest.approx(6 * 2e10 * 1.5 * 1e13, rel=1e-12)
    assert flop["rl"] == pytest.approx(4 * 2e10 * 7 * 3e12, rel=1e-12)
    assert flop["inference"] == pytest.approx(2 * 2e10 * 2 * 2.592e14, rel=1e-12)
    assert plan.total.flop == pytest.approx(sum(flop.values()), rel=1e-15)


# --- hardware ---

H100, GB200 = (catalog.find("hardware", name) for name in ("h100-sxm", "gb200-nvl72"))


def test_the_cards_figures_by_hand():
    """NVIDIA's data sheet: 989 TFLOP/s dense bf16, 1979 in fp8, 700 W."""
    machine = costs("hardware={ chip = 'h100-sxm', mfu = 0.4 }").pretrain.machine
    assert machine.peak_flop_per_s == 989e12
    assert machine.power_w == 700
    assert machine.usd_per_chip_hour == H100.fields["usd_per_chip_hour"]
    assert costs("hardware={ chip = 'h100-sxm', dtype = 'fp8' }").pretrain.machine.peak_flop_per_s == 1979e12


def test_an_alias_names_a_chip():
    machine = costs("hardware.chip=GB200").pretrain.machine
    assert machine.peak_flop_per_s == GB200.fields["bf16_dense_flop_per_s"]


def test_all_phases_run_on_the_common_chip():
    prices = costs("hardware.chip=h100-sxm")
    peaks = [phase.machine.peak_flop_per_s for phase in (prices.pretrain, prices.rl, prices.decode, prices.prefill)]
    assert peaks == [989e12] * 4


def test_figures_given_win_over_the_catalogues():
    chip = "hardware={ chip = 'h100-sxm', peak_flop_per_s = 1e15, usd_per_chip_hour = 2.5, power_w = 1000 }"
    machine = costs(chip).rl.machine
    assert (machine.peak_flop_per_s, machine.usd_per_chip_hour, machine.power_w) == (1e15, 2.5, 1000)


def test_a_phase_may_have_a_chip_of_its_own():
    prices = costs(
        "hardware={ chip = 'h100-sxm', usd_per_chip_hour = 2.5, power_w = 1000, peak_flop_per_s = 1e15 }",
        "hardware.rl.chip=gb200-nvl72",
    )
    assert prices.pretrain.machine.peak_flop_per_s == 1e15
    assert prices.decode.machine.usd_per_chip_hour == 2.5
    # The common figures are those of the common chip.
    assert prices.rl.machine.peak_flop_per_s == GB200.fields["bf16_dense_flop_per_s"]
    assert prices.rl.machine.power_w == GB200.fields["tdp_w"]
    assert math.isnan(prices.rl.machine.usd_per_chip_hour)  # the catalogue has no price for it


def test_a_phase_may_have_figures_of_its_own():
    prices = costs("hardware={ chip = 'h100-sxm', rl = { dtype = 'fp8', usd_per_chip_hour = 9 } }")
    assert (prices.rl.machine.peak_flop_per_s, prices.rl.machine.usd_per_chip_hour) == (1979e12, 9)
    assert prices.decode.machine.peak_flop_per_s == 989e12


def test_chip_hours_and_usd_by_hand():
    given = scenario("hardware={ chip = 'h100-sxm', mfu = 0.4, usd_per_chip_hour = 2.5 }")
    plan = evaluate(given, n_active=1e11, d_pretrain=1e14, d_rl=1e14, k=1.0)
    hours = plan.total.flop / (989e12 * 0.4 * 3600)
    assert plan.total.chip_hours == pytest.approx(hours, rel=1e-12)
    assert plan.total.usd == pytest.approx(2.5 * hours, rel=1e-12)
    assert plan.total.energy_joule == pytest.approx(700 * 3600 * hours, rel=1e-12)
    # The MFU of a phase whose overhead is 3 is a third of pre-training's.
    assert plan.phases["rl"].mfu == pytest.approx(0.4 / 3, rel=1e-12)


def test_usd_by_hand_where_phases_run_on_different_chips():
    own = "hardware.rl={ chip = 'b200-sxm', usd_per_chip_hour = 5 }"
    given = scenario("hardware={ chip = 'h100-sxm', mfu = 0.4 }", own, "objective.usd=1e9")
    peak = catalog.find("hardware", "b200-sxm").fields["bf16_dense_flop_per_s"]
    plan = evaluate(given, n_active=1e11, d_pretrain=1e14, d_rl=1e14, k=1.0)
    assert plan.phases["rl"].usd == pytest.approx(3 * 1e11 * 3 * 1e14 / (peak * 0.4 * 3600) * 5, rel=1e-12)
    pretrain = 6 * 1e11 * 1e14 / (989e12 * 0.4 * 3600) * H100.fields["usd_per_chip_hour"]
    assert plan.phases["pretrain"].usd == pytest.approx(pretrain, rel=1e-12)


def test_without_hardware_only_flop_are_known():
    plan = evaluate(scenario(), n_active=1e11, d_pretrain=1e14, d_rl=1e14, k=1.0)
    assert math.isnan(plan.total.usd)
    assert math.isnan(plan.total.chip_hours)
    assert math.isnan(plan.phases["rl"].mfu)


# --- objective ---


HARDWARE = ("hardware.chip=h100-sxm", "hardware.mfu=0.4")


@pytest.mark.parametrize("kind", ["compute_flop", "chip_hours", "usd", "energy_joule"])
def test_a_budget_names_its_currency(kind: str):
    assert objective_of(scenario(f"objective.{kind}=7", *HARDWARE)) == (kind, 7.0, kind)


def test_a_target_counts_flop_unless_told():
    assert objective_of(scenario("objective.target_loss=2")) == ("target_loss", 2.0, "compute_flop")
    with_usd = scenario("objective.target_loss=2", "objective.currency=usd", *HARDWARE)
    assert objective_of(with_usd) == ("target_loss", 2.0, "usd")


@pytest.mark.parametrize("target", [1.8172, 1.7, 1e-300])
def test_a_target_at_or_below_the_floor_names_the_floor(target: float):
    """Besiroglu et al.: E = 1.8172."""
    with pytest.raises(InfeasibleError, match=r"objective\.target_loss: .*1\.8172") as caught:
        built(f"objective.target_loss={target}")
    assert caught.value.nearest == {"path": "objective.target_loss", "value": 1.8172}


# --- law ---


def test_the_terms_of_the_law():
    law = built().problem.law
    assert isinstance(law.rl_axis, SaturatingRl)
    assert (law.rl_axis.exponent, law.rl_axis.scale_tokens) == (0.08803296429559924, 1e9)
    power = built("law.rl.unit_tokens=1e8").problem.law.rl_axis
    assert isinstance(power, PowerRl)
    assert power.unit_tokens == 1e8


def test_the_loss_by_hand():
    """E + (A N^-a + B D^-b) (1 + R/R0)^-rho (s + (1 - s) k^-gamma), Besiroglu's constants."""
    given = scenario("law.test_time={ exponent = 0.2, floor_share = 0.25 }", "law.rl.exponent=0.1")
    plan = evaluate(given, n_active=1e10, d_pretrain=1e12, d_rl=9e9, k=4.0)
    base = 482.01 * 1e10**-0.3478 + 2085.43 * 1e12**-0.3658
    expected = base * 10**-0.1 * (0.25 + 0.75 * 4**-0.2)
    assert plan.reducible_loss == pytest.approx(expected, rel=1e-12)
    assert plan.loss == pytest.approx(1.8172 + expected, rel=1e-12)


def test_the_additive_loss_by_hand():
    given = scenario("law.form=additive", "law.rl.scale=0.3", "law.test_time.scale=0.2")
    plan = evaluate(given, n_active=1e10, d_pretrain=1e12, d_rl=9e9, k=4.0)
    base = 482.01 * 1e10**-0.3478 + 2085.43 * 1e12**-0.3658
    exponent = 0.08803296429559924
    assert plan.reducible_loss == pytest.approx(base + 0.3 * 10**-exponent + 0.2 * 4**-exponent, rel=1e-12)


@pytest.mark.parametrize(("law", "r_star"), [("besiroglu-2024", R_STAR), ("muennighoff-2023", 15.387756)])
def test_unique_tokens_bring_repetition(law: str, r_star: float):
    pretraining = built("pretraining.unique_tokens=1e12", f"law.pretraining={law}").pretraining
    assert isinstance(pretraining, Repeated)
    assert pretraining.unique_tokens == 1e12
    assert pretraining.r_star == r_star == 15.387756


def test_repeated_tokens_by_hand():
    """arXiv 2305.16264: 4 epochs of U are worth U (1 + R* (1 - exp(-3/R*)))."""
    law = built("pretraining.unique_tokens=1e12").pretraining
    worth = 1e12 * (1 + 15.387756 * (1 - math.exp(-3 / 15.387756)))
    base = 482.01 * 1e10**-0.3478 + 2085.43 * worth**-0.3658
    found = law.log_reducible(jnp.log(jnp.asarray(1e10)), jnp.log(jnp.asarray(4e12)))
    assert float(found) == pytest.approx(math.log(base), rel=1e-12)


def test_unique_tokens_change_nothing_before_they_are_used_up():
    point = Point(*map(jnp.asarray, (23.0, math.log(9e11), 1.0, 0.0)))
    fresh, repeated = built().problem.law, built("pretraining.unique_tokens=1e12").problem.law
    assert float(fresh.log_reducible(point)) == float(repeated.log_reducible(point))


# --- decisions ---


def box(found: Built) -> dict[str, tuple[float, float]]:
    low, high = (to_decision(found.problem, side) for side in (found.problem.lower, found.problem.upper))
    return {name: (getattr(low, name), getattr(high, name)) for name in DECISIONS}


def test_numbers_fix_and_absence_frees():
    found = built()
    assert found.fixed == {"n_active": 1e11, "k": 1.0}
    ends = box(found)
    assert ends["n_active"] == pytest.approx((1e11, 1e11), rel=1e-12)
    assert ends["d_pretrain"][0] < 1e-30
    assert ends["d_pretrain"][1] > 1e50


def test_bounds_become_the_box():
    ends = box(built("decisions.d_pretrain={ min = 1e12, max = 1e13 }", "decisions.n_active.max=1e12"))
    assert ends["d_pretrain"] == pytest.approx((1e12, 1e13), rel=1e-12)
    assert ends["n_active"][1] == pytest.approx(1e12, rel=1e-12)


def test_equal_bounds_fix():
    assert built("decisions.k={ min = 2, max = 2 }").fixed["k"] == 2.0


def test_k_is_1_without_a_test_time_term():
    given = {"objective": {"compute_flop": 1e26}, "deployment": {"lifetime_tokens": 1e14}}
    assert fixed_decisions(from_values(given))["k"] == 1.0
    assert build(from_values(given)).fixed == {"d_rl": 0.0, "k": 1.0}


def test_k_is_1_without_a_deployment():
    given = {"objective": {"compute_flop": 1e26}, "law": {"test_time": {"exponent": 0.1}}}
    assert fixed_decisions(from_values(given))["k"] == 1.0


def test_k_is_free_with_both():
    assert "k" not in built("decisions={}").fixed


def test_no_rl_tokens_without_an_rl_term():
    assert fixed_decisions(scenario(source="gopher-budget")) == {"d_rl": 0.0, "k": 1.0}


def test_a_floor_share_imposes_one_sample():
    assert box(built("law.test_time.floor_share=0.5", "decisions.k=free"))["k"][0] == 1.0
    # An explicit larger min stays; without a floor share shorter answers are allowed.
    assert box(built("law.test_time.floor_share=0.5", "decisions.k.min=2"))["k"][0] == pytest.approx(2.0)
    assert box(built("decisions.k=free"))["k"][0] < 1e-30


# --- what no source gives ---


def test_terms_without_a_source_are_assumed():
    assert built().assumed == ("law.rl.exponent", "law.rl.scale_tokens", "law.test_time.exponent")


def test_a_source_clears_its_term():
    found = built('law.rl.source="our runs"').assumed
    assert found == ("law.test_time.exponent",)
    assert built('law.rl.source="our runs"', 'law.test_time.source="our runs"').assumed == ()


def test_defaults_that_count_are_assumed():
    found = set(built("rl={}", "inference={}").assumed)
    assert {"rl.flop_per_param_token", "rl.overhead", "inference.overhead"} <= found


def test_defaults_that_do_not_count_are_not():
    """Without an RL term and a deployment nothing is spent on either."""
    assert built(source="gopher-budget").assumed == ()


def test_an_mfu_is_no_assumption():
    found = built("pretraining.mfu=0.4", "rl.mfu=0.1", "inference={}", "hardware.inference.mfu=0.1").assumed
    assert "rl.overhead" not in found
    assert "inference.overhead" not in found


def test_unit_tokens_are_assumed_too():
    assert "law.rl.unit_tokens" in built("law.rl.unit_tokens=1e9").assumed
