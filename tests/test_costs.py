"""Costs of the phases against numbers worked by hand."""

import math

import jax
import jax.numpy as jnp
import pytest

import allocator
from allocator.costs import Constant, Costs, Machine, PhaseCost
from allocator.errors import LawError
from allocator.scenario.building_costs import build_costs

H100 = Machine(peak_flop_per_s=989e12, usd_per_chip_hour=2.0, power_w=700.0)  # vendor's dense bf16 peak and TDP
ONE = Constant(1.0)
LLAMA_N, LLAMA_D = 405e9, 15.6e12  # arXiv 2407.21783, section 3.2


def costs(
    machine: Machine = H100, *, lifetime_tokens: float = 1e13, prompt_tokens: float = 0.0, mfu: float = 0.4
) -> Costs:
    return Costs(
        PhaseCost(6.0, ONE, machine),
        PhaseCost(4.0, Constant(5.0), machine),
        PhaseCost(2.0, Constant(3.0), machine),
        PhaseCost(2.0, Constant(1.5), machine),
        lifetime_tokens,
        prompt_tokens,
        mfu,
    )


def paid(costs: Costs, n: float, d: float, r: float, k: float, currency: str = "compute_flop") -> list[float]:
    return [float(cost) for cost in costs.phase_costs(jnp.log(n), d, r, k, currency)]


# --- model FLOP and overheads ---


def test_model_flop_are_six_kappa_and_two_per_parameter_and_token():
    flop = costs().model_flop(1e10, 2e12, 3e11, 4.0)
    assert [float(x) for x in flop] == pytest.approx([6 * 1e10 * 2e12, 4 * 1e10 * 3e11, 2 * 1e10 * 4 * 1e13], rel=1e-15)


def test_paid_flop_are_model_flop_times_overhead():
    assert paid(costs(), 1e10, 2e12, 3e11, 4.0) == pytest.approx([1.2e23, 5 * 1.2e22, 3 * 8e23], rel=1e-13)


def test_llama_405b_took_its_published_flop():
    flop, _, _ = costs().model_flop(LLAMA_N, LLAMA_D, 0.0, 1.0)
    assert float(flop) == pytest.approx(3.8e25, rel=3e-3)  # arXiv 2407.21783, section 3.2


# --- currencies ---


def test_llama_405b_in_chip_hours():
    """6 x 405e9 x 15.6e12 = 3.7908e25 FLOP over 989e12 x 0.4 = 3.956e14 FLOP/s is 9.5824e10 s = 2.66178e7 h."""
    hours, _, _ = paid(costs(), LLAMA_N, LLAMA_D, 0.0, 1.0, "chip_hours")
    assert hours == pytest.approx(2.66178e7, rel=1e-5)
    assert hours == pytest.approx(
        30.84e6, rel=0.2
    )  # Meta's model card; MFU was 0.38 to 0.43, and not all hours trained


def test_llama_405b_in_dollars_and_joules():
    dollars, _, _ = paid(costs(), LLAMA_N, LLAMA_D, 0.0, 1.0, "usd")
    joules, _, _ = paid(costs(), LLAMA_N, LLAMA_D, 0.0, 1.0, "energy_joule")
    assert dollars == pytest.approx(5.32356e7, rel=1e-5)  # 2.66178e7 h x 2 $/h
    assert joules == pytest.approx(6.70768e13, rel=1e-5)  # 9.5824e10 s x 700 W


def test_cost_of_a_round_number_of_flop():
    """3.8e25 FLOP on H100 at MFU 0.4: 3.8e25 / (989e12 x 0.4 x 3600) = 2.66824e7 chip-hours."""
    hours, _, _ = paid(costs(), 1e12, 3.8e25 / 6e12, 0.0, 1.0, "chip_hours")
    assert hours == pytest.approx(2.66824e7, rel=1e-5)


def test_overhead_stretches_chip_time_of_rl_and_serving_alike():
    """A chip-second does peak x MFU of paid FLOP in every phase, since overheads bring all to the pre-training MFU."""
    flop = paid(costs(), 1e10, 2e12, 3e11, 4.0)
    hours = paid(costs(), 1e10, 2e12, 3e11, 4.0, "chip_hours")
    assert hours == pytest.approx([x / (989e12 * 0.4) / 3600 for x in flop], rel=1e-13)


def test_each_phase_pays_for_its_own_machine():
    cheap = Machine(peak_flop_per_s=2 * 989e12, usd_per_chip_hour=3.0, power_w=1000.0)
    train, rl, serve = PhaseCost(6.0, ONE, H100), PhaseCost(4.0, ONE, cheap), PhaseCost(2.0, ONE, cheap)
    mixed = Costs(train, rl, serve, serve, 1e13, 0.0, 0.4)
    n, d = 1e10, 1e12
    train, rl, _ = paid(mixed, n, d, 1.5 * d, 1.0, "usd")  # as many FLOP for RL as for pre-training
    assert rl / train == pytest.approx(3 / 2 / 2, rel=1e-13)  # price per hour over work per hour
    train, rl, _ = paid(mixed, n, d, 1.5 * d, 1.0, "energy_joule")
    assert rl / train == pytest.approx(1000 / 700 / 2, rel=1e-13)


@pytest.mark.parametrize(
    ("machine", "mfu", "unknown"),
    [
        (Machine(), None, {"chip_hours", "usd", "energy_joule"}),
        (H100, None, {"chip_hours", "usd", "energy_joule"}),
        (Machine(peak_flop_per_s=989e12), 0.4, {"usd", "energy_joule"}),
        (Machine(peak_flop_per_s=989e12, usd_per_chip_hour=2.0), 0.4, {"energy_joule"}),
        (H100, 0.4, set()),
    ],
    ids=["nothing known", "no mfu", "no price and power", "no power", "all known"],
)
def test_unknown_figure_makes_only_its_currencies_unknown(machine: Machine, mfu: float, unknown: set[str]):
    for currency in ("compute_flop", "chip_hours", "usd", "energy_joule"):
        found = paid(costs(machine, mfu=mfu), 1e10, 2e12, 3e11, 4.0, currency)
        assert [math.isnan(x) for x in found] == [currency in unknown] * 3


# --- prompts ---


def test_prompts_are_charged_once_whatever_k_is():
    with_prompts = costs(prompt_tokens=5e13)
    prompt_flop = 2 * 1e10 * 5e13
    for k in (0.5, 1.0, 8.0):
        _, _, serving = with_prompts.model_flop(1e10, 1.0, 0.0, k)
        assert float(serving) == pytest.approx(2 * 1e10 * k * 1e13 + prompt_flop, rel=1e-14)
        assert paid(with_prompts, 1e10, 1.0, 0.0, k)[2] == pytest.approx(6e10 * k * 1e13 + 1.5 * prompt_flop, rel=1e-14)
    assert float(with_prompts.rates(jnp.log(1e10)).fixed) == pytest.approx(1.5 * prompt_flop, rel=1e-13)


def test_plan_charges_prompts_once_whatever_k_is():
    prompts = "deployment.prompt_tokens_per_output_token=4"
    serving = {}
    for k in (1.0, 3.0):
        scenario = allocator.load("lecture", overrides=[prompts, f"decisions.k={k}", "objective.compute_flop=1e27"])
        serving[k] = allocator.solve(scenario).phases["inference"]
    output, prompt = 2 * 1e11 * 2.592e14, 2 * 1e11 * 4 * 2.592e14
    assert serving[1.0].flop == pytest.approx(3 * output + prompt, rel=1e-12)
    assert serving[3.0].flop == pytest.approx(3 * 3 * output + prompt, rel=1e-12)
    assert serving[3.0].overhead == pytest.approx((9 * output + prompt) / (3 * output + prompt), rel=1e-12)


# --- overheads from MFUs ---


def test_agentic_rl_at_one_percent_mfu_costs_fifteen_times_its_flop():
    """user_voices.csv, V92 (marin-community/marin#7074): RL at ~1 % MFU against ~15 % of pre-training."""
    mfus = ["pretraining.mfu=0.15", "rl.mfu=0.01", "inference.mfu=0.05"]
    free = ["law.rl.unit_tokens=1e9", "decisions.n_active=free", "decisions.k=free", "objective.compute_flop=1e26"]
    plan = allocator.solve(allocator.load("lecture", overrides=mfus + free))
    pretrain, rl = plan.phases["pretrain"], plan.phases["rl"]
    assert rl.overhead == pytest.approx(15, rel=1e-12)
    assert rl.mfu == pytest.approx(0.01, rel=1e-12)
    # Shares of hardware follow the law alone (a third each: model.md section 4), shares of model FLOP do not.
    assert rl.share == pytest.approx(1 / 3, rel=1e-9)
    assert rl.model_flop / pretrain.model_flop == pytest.approx(1 / 15, rel=1e-9)
    # The same plan with RL as fast as pre-training buys 15 times the RL tokens for the same money.
    fast = allocator.solve(allocator.load("lecture", overrides=[*mfus[:1], "rl.mfu=0.15", mfus[2], *free]))
    assert fast.decision.d_rl / plan.decision.d_rl == pytest.approx(15, rel=1e-9)
    assert fast.decision.d_pretrain == pytest.approx(plan.decision.d_pretrain, rel=1e-9)


def test_overhead_and_mfu_say_the_same():
    as_mfu = build_costs(
        allocator.load("lecture", overrides=["pretraining.mfu=0.45", "rl.mfu=0.15", "inference.mfu=0.15"])
    )
    stated = build_costs(allocator.load("lecture"))
    assert paid(as_mfu, 1e11, 2e14, 1e14, 1.0) == pytest.approx(paid(stated, 1e11, 2e14, 1e14, 1.0), rel=1e-12)


def test_wasted_pretraining_is_paid_but_does_not_slow_serving():
    stated, wasteful = (build_costs(allocator.load("lecture", overrides=o)) for o in ([], ["pretraining.overhead=1.3"]))
    before, after = (paid(c, 1e11, 2e14, 1e14, 1.0) for c in (stated, wasteful))
    assert after == pytest.approx([1.3 * before[0], *before[1:]], rel=1e-13)


def test_budgets_in_four_currencies_buy_the_same_plan():
    """One chip for all phases: 4.6656e26 FLOP are so many hours, dollars and joules."""
    hardware = [
        "hardware.peak_flop_per_s=989e12",
        "hardware.mfu=0.4",
        "hardware.usd_per_chip_hour=2.0",
        "hardware.power_w=700",
    ]
    seconds = 4.6656e26 / (989e12 * 0.4)
    budgets = {
        "compute_flop": 4.6656e26,
        "chip_hours": seconds / 3600,
        "usd": seconds / 1800,
        "energy_joule": seconds * 700,
    }
    for name, budget in budgets.items():
        plan = allocator.solve(allocator.load("lecture", overrides=[*hardware, f"objective.{name}={budget!r}"]))
        assert plan.decision.d_pretrain == pytest.approx(1.960e14, rel=5e-4)  # model.md section 4, second row
        totals = {"compute_flop": plan.total.flop, "chip_hours": plan.total.chip_hours, "usd": plan.total.usd,
                  "energy_joule": plan.total.energy_joule}  # fmt: skip
        assert totals == pytest.approx(budgets, rel=1e-9)


# --- a pytree like any other, and what it refuses ---


def test_jit_vmap_and_grad_pass_through_costs():
    log_n = jnp.log(jnp.array([1e9, 1e11]))

    def total(costs, log_n):
        return sum(costs.phase_costs(log_n, 2e12, 3e11, 4.0))

    batch = jax.jit(jax.vmap(total, in_axes=(None, 0)))(costs(), log_n)
    assert batch.tolist() == pytest.approx([sum(paid(costs(), n, 2e12, 3e11, 4.0)) for n in (1e9, 1e11)], rel=1e-14)
    slopes = jax.grad(total)(costs(), log_n[0])
    assert float(slopes.rl.overhead.value) == pytest.approx(4 * 1e9 * 3e11, rel=1e-13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0.0), "Constant.value: must be > 0 and finite, got 0.0"),
        (lambda: Constant(math.nan), "Constant.value: must be > 0 and finite, got nan"),
        (lambda: PhaseCost(-2.0, ONE), "PhaseCost.flop_per_param_token: must be > 0 and finite, got -2.0"),
        (lambda: Machine(peak_flop_per_s=0.0), "Machine.peak_flop_per_s: must be > 0 and finite, got 0.0"),
        (lambda: Machine(usd_per_chip_hour=-1.0), "Machine.usd_per_chip_hour: must be > 0 and finite, got -1.0"),
        (lambda: Machine(power_w=math.inf), "Machine.power_w: must be > 0 and finite, got inf"),
        (lambda: costs(lifetime_tokens=-1.0), "Costs.lifetime_tokens: must be >= 0 and finite, got -1.0"),
        (lambda: costs(prompt_tokens=math.nan), "Costs.prompt_tokens: must be >= 0 and finite, got nan"),
    ],
)
def test_figure_out_of_range_is_refused_by_name(make, message: str):
    with pytest.raises(LawError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize("mfu", [-0.4, 0.0, 1.5])
def test_impossible_mfu_is_refused_by_name(mfu: float):
    with pytest.raises(LawError, match="pretrain_mfu"):
        costs(mfu=mfu)
