"""MFU as a function of N inside the optimum: identities of model.md, section 4, with the roofline written out anew."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import allocator
from allocator.costs import Constant, Costs, Machine, PhaseCost, RelativeOverhead
from allocator.errors import AllocatorError, ScenarioError
from allocator.feedback import depends_on_size, size_feedback
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.product import Product
from allocator.laws.rl import SaturatingRl
from allocator.laws.test_time import TestTime
from allocator.optimum.certificates import certificate_kind
from allocator.optimum.solving import optimise
from allocator.problem import make_problem
from allocator.scenario.building import build
from allocator.scenario.reading import from_values, with_values

# Llama 3.1 70B: parameters, cache bytes a token in bf16, attention FLOP per token and token of context
N0, KV0, A0 = 70552387584.0, 327680.0, 4 * 128 * 64 * 80.0
COUNTED = 1 - 128256 * 8192 / N0  # of N: the input embedding, 128,256 x 8,192, is a look-up
PEAK, BANDWIDTH, HBM = 9.89e14, 3.35e12, 80e9  # H100 SXM, bf16
CHIPS, BATCH, CONTEXT = 128.0, 256.0, 8192.0
COMPUTE, MEMORY, TRAIN = 0.36, 0.65, 0.45
KAPPA, TOKENS = 3.0, 5e7 * 60 * 86400
SERVE = {"model": "llama-3.1-70b", "chips": CHIPS, "batch": BATCH, "context": CONTEXT,
         "efficiency": {"compute": COMPUTE, "memory": MEMORY}}  # fmt: skip
VALUES: dict[str, Any] = {
    "objective": {"chip_hours": 3e8},
    "law": {"rl": {"exponent": 0.088, "scale_tokens": 1e9}, "test_time": {"exponent": 0.088}},
    "deployment": {"tokens_per_second": 5e7, "lifetime_days": 60},
    "hardware": {"chip": "h100-sxm"},
    "pretraining": {"roofline": {"model": "llama-3.1-70b", "context": CONTEXT, "efficiency": TRAIN}},
    "rl": {"roofline": SERVE, "flop_per_param_token": KAPPA},
    "inference": {"roofline": SERVE},
    "decisions": {"k": 1.0},
}


# --- the equations of docs/roofline.md, with all chips sharing everything, in plain floats ---


def cache_bytes(n: float) -> float:
    return KV0 * (n / N0) ** (1 / 3) * CONTEXT


def decode_mfu(n: float) -> float:
    memory = (2 * n + BATCH * cache_bytes(n)) / (CHIPS * BANDWIDTH * MEMORY)
    compute = BATCH * (2 * n * COUNTED + A0 * (n / N0) ** (2 / 3) * CONTEXT) / (CHIPS * PEAK * COMPUTE)
    return 2 * n * COUNTED * BATCH / (CHIPS * PEAK * max(memory, compute))


def prefill_mfu(n: float) -> float:
    attention = A0 * (n / N0) ** (2 / 3) * (CONTEXT + 1) / 2  # a token sees itself too
    memory = 2 * n / (CHIPS * BANDWIDTH * MEMORY)
    compute = BATCH * CONTEXT * (2 * n * COUNTED + attention) / (CHIPS * PEAK * COMPUTE)
    return 2 * n * COUNTED * BATCH * CONTEXT / (CHIPS * PEAK * max(memory, compute))


def training_mfu(n: float) -> float:
    return TRAIN * 6 * n * COUNTED / (6 * n * COUNTED + 3 * A0 * (n / N0) ** (2 / 3) * (CONTEXT + 1) / 2)


def rl_mfu(n: float) -> float:
    return KAPPA / (2 / decode_mfu(n) + (KAPPA - 2) / training_mfu(n))


def slope(mfu, n: float) -> float:
    """dlog MFU/dlog N by central differences."""
    step = 1e-4
    return (math.log(mfu(n * math.exp(step))) - math.log(mfu(n * math.exp(-step)))) / (2 * step)


# --- plans, each made once ---


@functools.cache
def felt(currency: str = "chip_hours", amount: float = 3e8, prompts: float = 0.0) -> allocator.Plan:
    changes = {f"objective.{currency}": amount, "deployment.prompt_tokens_per_output_token": prompts}
    return allocator.solve(with_values(from_values(VALUES), changes))


@functools.cache
def feedback():
    return size_feedback(felt())


def test_phases_run_at_the_roofline_s_mfu():
    plan = felt()
    n = plan.decision.n_active
    for name, mfu in (("pretrain", training_mfu), ("rl", rl_mfu), ("inference", decode_mfu)):
        phase = plan.phases[name]
        assert phase.mfu == pytest.approx(mfu(n), rel=1e-10)
        assert phase.chip_hours == pytest.approx(phase.model_flop / (PEAK * mfu(n)) / 3600, rel=1e-10)
        assert phase.overhead == pytest.approx(training_mfu(n) / mfu(n), rel=1e-10)
    assert plan.total.chip_hours == pytest.approx(3e8, rel=1e-9)
    assert plan.status == "best_of_starts"  # MFU as a function of N: no certificate


def chip_hours(n: float, d: float, r: float, k: float, prompts: float = 0.0) -> np.ndarray:
    """By phase: pre-training, RL, decode, prefill."""
    flop = np.array([6 * n * d, KAPPA * n * r, 2 * n * k * TOKENS, 2 * n * prompts * TOKENS])
    mfu = np.array([training_mfu(n), rl_mfu(n), decode_mfu(n), prefill_mfu(n)])
    return flop / (PEAK * mfu) / 3600


@pytest.mark.parametrize("prompts", [0.0, 5.0])
def test_elasticity_of_size_is_what_the_phases_pay_for_it(prompts: float):
    """e_N = lambda sum_x s_x (1 - dlog MFU_x/dlog N), in chip-hours; e_x = lambda s_x for D and R."""
    plan = felt(prompts=prompts)
    d = plan.decision
    paid = chip_hours(d.n_active, d.d_pretrain, d.d_rl, d.k, prompts)
    assert paid.sum() == pytest.approx(3e8, rel=1e-9)
    shares = paid / paid.sum()
    slopes = np.array([slope(mfu, d.n_active) for mfu in (training_mfu, rl_mfu, decode_mfu, prefill_mfu)])
    assert (np.abs(slopes[:3]) > 1e-3).all()  # all of them felt
    multiplier = plan.shadow_price.value
    e = plan.elasticities
    assert e["n_active"] == pytest.approx(multiplier * (shares @ (1 - slopes)), rel=1e-6)
    assert e["d_pretrain"] == pytest.approx(multiplier * shares[0], rel=1e-9)
    # R in tokens: the price of RL is linear in them.
    assert e["d_rl"] == pytest.approx(multiplier * shares[1], rel=1e-9)


def test_elasticity_of_size_in_flop_is_relative_to_pretraining():
    """In FLOP at the pre-training MFU a phase costs m_x = MFU_pretrain/MFU_x, so 1 + slope_pretrain - slope_x."""
    plan = felt("compute_flop", 4.6656e26)
    n = plan.decision.n_active
    shares = np.array([phase.share for phase in plan.phases.values()])
    slopes = np.array([slope(mfu, n) for mfu in (training_mfu, rl_mfu, decode_mfu)])
    paid = sum(plan.phases[name].flop for name in plan.phases)
    assert paid == pytest.approx(4.6656e26, rel=1e-9)
    want = plan.shadow_price.value * (shares @ (1 + slopes[0] - slopes))
    assert plan.elasticities["n_active"] == pytest.approx(want, rel=1e-6)


def test_optimum_that_feels_mfu_beats_its_neighbours():
    """A search in N with D and R from the elasticities, on costs that share no code with the package."""
    plan = felt()
    d = plan.decision

    def loss(n: float) -> float:
        """Best loss at one N: golden-section in the share of what serving leaves that goes to pre-training."""
        left = 3e8 - chip_hours(n, 0.0, 0.0, 1.0)[2]
        unit_d, unit_r = chip_hours(n, 1.0, 1.0, 1.0)[:2]

        def at(share: float) -> float:
            tokens, rl = share * left / unit_d, (1 - share) * left / unit_r
            return (482.01 * n**-0.3478 + 2085.43 * tokens**-0.3658) * (1 + rl / 1e9) ** -0.088

        low, high = 0.01, 0.99
        for _ in range(100):
            a, b = low + 0.382 * (high - low), low + 0.618 * (high - low)
            low, high = (low, b) if at(a) < at(b) else (a, high)
        return at((low + high) / 2)

    best = loss(d.n_active)
    assert plan.reducible_loss == pytest.approx(best, rel=1e-10)
    sizes = d.n_active * np.geomspace(0.1, 3, 60)
    affordable = [n for n in sizes if chip_hours(n, 0.0, 0.0, 1.0)[2] < 3e8]
    assert len(affordable) > 30
    assert all(loss(n) >= best * (1 - 1e-12) for n in affordable)


# --- against MFU frozen at that N ---


def test_frozen_mfu_moves_the_optimum():
    moved = feedback()
    assert moved.n_active == felt().decision.n_active
    assert abs(math.log(moved.n_active_frozen / moved.n_active)) > 0.05
    # A larger model decodes at a better MFU, so who feels it buys more of it.
    assert slope(decode_mfu, moved.n_active) > 0
    assert moved.n_active > moved.n_active_frozen


def test_frozen_optimum_is_that_of_constant_mfu_stated_by_hand():
    n = felt().decision.n_active
    values = {key: value for key, value in VALUES.items() if key not in ("pretraining", "rl", "inference")}
    by_hand = {
        "pretraining": {"mfu": training_mfu(n)},
        "rl": {"mfu": rl_mfu(n), "flop_per_param_token": KAPPA},
        "inference": {"mfu": decode_mfu(n)},
    }
    plan = allocator.solve(from_values(values | by_hand))
    assert plan.decision.n_active == pytest.approx(feedback().n_active_frozen, rel=1e-8)
    assert list(feedback().frozen.decision)[:3] == pytest.approx(
        [plan.decision.n_active, plan.decision.d_pretrain, plan.decision.d_rl], rel=1e-8
    )
    with pytest.raises(AllocatorError, match="size_feedback: needs a plan whose MFU depends on N"):
        size_feedback(plan)


def test_constant_mfu_stated_by_hand_keeps_the_certificate():
    """A ratio of constants is a constant: with the saturating factor and N free all minima in N are compared."""
    values = VALUES | {"pretraining": {"mfu": 0.4}, "rl": {"mfu": 0.12}, "inference": {"mfu": 0.13}}
    assert certificate_kind(build(from_values(values)).problem) == "one_dimensional"


def test_pretraining_mfu_of_n_costs_the_certificate_where_it_is_paid_for():
    """Constant overheads times an MFU that is any function of N: chip-hours need not be convex in log N."""
    machine = Machine(peak_flop_per_s=PEAK)
    phase = PhaseCost(6.0, 1.0, machine)
    costs = Costs(phase, phase, phase, phase, TOKENS, pretrain_mfu=Wave())
    law = Product(Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658), test_time=TestTime(0.088))
    fixed = {"d_rl": 0.0, "k": 1.0}
    in_hours = make_problem(law, costs, budget=3e8, currency="chip_hours", fixed=fixed)
    assert certificate_kind(in_hours) == "best_of_starts"
    in_flop = make_problem(law, costs, budget=1e26, fixed=fixed)
    assert certificate_kind(in_flop) == "geometric_program"


class Wave(eqx.Module):
    """An MFU by hand with humps, as a table of tile sizes would give."""

    height: float = 0.1

    def __call__(self, log_n):
        return 0.3 + self.height * jnp.sin(3 * log_n)


def test_curves_are_the_roofline_s():
    curves = feedback().curves
    assert list(curves.columns) == ["n_active", "phase", "mfu"]
    for phase, mfu in (("pre-training", training_mfu), ("RL", rl_mfu), ("decode", decode_mfu)):
        rows = curves[curves["phase"] == phase]
        assert len(rows) > 20
        assert rows["n_active"].min() < felt().decision.n_active < rows["n_active"].max()
        assert rows["mfu"].to_numpy() == pytest.approx([mfu(n) for n in rows["n_active"]], rel=1e-10)


# --- constant, by hand, roofline: interchangeable ---


class Power(eqx.Module):
    """An MFU by hand: value (N/1e11)^slope."""

    value: float
    slope: float

    def __call__(self, log_n):
        return self.value * jnp.exp(self.slope * (log_n - math.log(1e11)))


def problem(decode, *, overhead=None):
    """The lecture's costs in chip-hours with MFU 0.4 in training and some MFU of N, or overhead, in RL and decode."""
    machine = Machine(peak_flop_per_s=PEAK)
    ratio = RelativeOverhead(Constant(0.4), decode) if overhead is None else overhead
    costs = Costs(PhaseCost(6.0, 1.0, machine), PhaseCost(3.0, ratio, machine), PhaseCost(2.0, ratio, machine),
                  PhaseCost(2.0, 1.0, machine), TOKENS, pretrain_mfu=0.4)  # fmt: skip
    law = Product(Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658), SaturatingRl(0.088, 1e9),
                  TestTime(0.088))  # fmt: skip
    return make_problem(law, costs, budget=3e8, currency="chip_hours", fixed={"k": 1.0})


@functools.cache
def constant_optimum() -> tuple[float, ...]:
    """MFU 0.13 as an overhead of 0.4/0.13."""
    return tuple(optimise(problem(None, overhead=0.4 / 0.13)).decision)


def by_hand(log_n):
    return jnp.full_like(jnp.asarray(log_n, float), 0.13)


@pytest.mark.parametrize(
    "mfu",
    [Constant(0.13), Power(0.13, 0.0), jax.tree_util.Partial(by_hand), by_hand],
    ids=["constant", "module", "partial", "plain function"],
)
def test_constant_mfu_is_the_same_however_it_is_written(mfu):
    found = optimise(problem(mfu), starts=8)
    assert list(found.decision) == pytest.approx(constant_optimum(), rel=1e-7)


def test_mfu_by_hand_that_grows_with_n_makes_a_larger_model():
    """A power law of N keeps the identity with its slope as written."""
    found = optimise(problem(Power(0.13, 0.2)), starts=8)
    n, d, r, k = found.decision
    decode = 0.13 * (n / 1e11) ** 0.2
    paid = np.array([6 * n * d / 0.4, 3 * n * r / decode, 2 * n * k * TOKENS / decode]) / PEAK / 3600
    assert paid.sum() == pytest.approx(3e8, rel=1e-9)
    base = 482.01 * n**-0.3478 + 2085.43 * d**-0.3658
    e_n, e_d = 0.3478 * 482.01 * n**-0.3478 / base, 0.3658 * 2085.43 * d**-0.3658 / base
    multiplier = e_d / (paid[0] / 3e8)
    assert e_n == pytest.approx(multiplier * (paid / 3e8) @ np.array([1.0, 0.8, 0.8]), rel=1e-8)
    assert n > constant_optimum()[0]


def test_scenario_takes_a_constant_and_a_roofline_side_by_side():
    values = VALUES | {"pretraining": {"mfu": 0.4}, "rl": {"mfu": 0.1}}
    costs = build(from_values(values)).problem.costs
    assert depends_on_size(costs)
    n = 2e11
    rates = costs.rates(math.log(n), "chip_hours")
    assert float(rates.d) == pytest.approx(6 * n / (PEAK * 0.4) / 3600, rel=1e-12)
    assert float(rates.r) == pytest.approx(3 * n / (PEAK * 0.1) / 3600, rel=1e-12)
    assert float(rates.k) == pytest.approx(2 * n * TOKENS / (PEAK * decode_mfu(n)) / 3600, rel=1e-10)


def test_stated_overhead_beside_a_pretraining_roofline_stays_relative_to_it():
    values = VALUES | {"rl": {"overhead": 3.0}, "inference": {"overhead": 2.0}}
    costs = build(from_values(values)).problem.costs
    assert depends_on_size(costs)
    n = 2e11
    rates = costs.rates(math.log(n), "chip_hours")
    assert float(rates.r) == pytest.approx(3 * n * 3 / (PEAK * training_mfu(n)) / 3600, rel=1e-10)
    assert float(rates.k) == pytest.approx(2 * n * 2 * TOKENS / (PEAK * training_mfu(n)) / 3600, rel=1e-10)


# --- memory ---


def largest_n(chips: float, batch: float) -> float:
    """Root of 2 N + batch x cache(N) = 0.9 x memory."""
    low, high = 1e6, 1e15
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if 2 * middle + batch * cache_bytes(middle) < 0.9 * chips * HBM else (low, middle)
    return low


def test_fixed_n_that_does_not_fit_says_the_largest_batch():
    n, chips = 70e9, 8.0
    changes = {"decisions.n_active": n, "inference.roofline.chips": chips}
    fits = math.floor((0.9 * chips * HBM - 2 * n) / cache_bytes(n))
    assert 0 < fits < BATCH
    with pytest.raises(ScenarioError) as caught:
        allocator.solve(with_values(from_values(VALUES), changes))
    assert caught.value.lines == (
        f"inference.roofline.batch: got 256; 7e+10 parameters with 256 sequences of 8192 tokens exceed 8 chips: "
        f"the largest batch that fits is {fits}",
    )
    # That batch is taken, one more is not.
    for batch, lawful in ((fits, True), (fits + 1, False)):
        scenario = with_values(from_values(VALUES), changes | {"inference.roofline.batch": float(batch)})
        if lawful:
            assert build(scenario).memory_limit == pytest.approx(largest_n(chips, batch), rel=1e-9)
        else:
            with pytest.raises(ScenarioError, match=f"the largest batch that fits is {fits}$"):
                build(scenario)


def test_fixed_n_whose_weights_do_not_fit_says_so_for_each_phase():
    changes = {"decisions.n_active": 1e12, "inference.roofline.chips": 8.0, "rl.roofline.chips": 4.0}
    with pytest.raises(ScenarioError) as caught:
        allocator.solve(with_values(from_values(VALUES), changes))
    assert [line.split(":")[0] for line in caught.value.lines] == ["rl.roofline.batch", "inference.roofline.batch"]
    assert all(line.endswith("its weights alone do not fit") for line in caught.value.lines)


def test_caches_that_leave_no_room_for_any_model_are_told():
    changes = {"inference.roofline.batch": 1e12}
    with pytest.raises(ScenarioError, match="its caches fit beside no model at all"):
        allocator.solve(with_values(from_values(VALUES), changes))


def test_free_n_ends_at_what_memory_holds():
    chips = 8.0
    limit = largest_n(chips, BATCH)
    assert limit < felt().decision.n_active
    scenario = with_values(from_values(VALUES), {"inference.roofline.chips": chips})
    plan = allocator.solve(scenario)
    assert plan.decision.n_active == pytest.approx(limit, rel=1e-9)
    assert plan.decision_status["n_active"] == "at_max"
    (notice,) = [notice for notice in plan.warnings if notice.code == "memory_bound"]
    assert notice.path == "decisions.n_active"
    assert notice.value == pytest.approx(limit, rel=1e-9)
    assert f"{limit:.4g} parameters" in notice.message
    assert not [notice for notice in felt().warnings if notice.code == "memory_bound"]
    # Held there, frozen MFU is held by the same memory.
    assert size_feedback(plan).n_active_frozen <= limit * (1 + 1e-9)


def test_a_bound_below_what_memory_holds_is_not_blamed_on_memory():
    limit = largest_n(8.0, BATCH)
    changes = {"inference.roofline.chips": 8.0, "decisions.n_active": {"max": limit / 4}}
    plan = allocator.solve(with_values(from_values(VALUES), changes))
    assert plan.decision.n_active == pytest.approx(limit / 4, rel=1e-9)
    assert plan.decision_status["n_active"] == "at_max"
    assert not [notice for notice in plan.warnings if notice.code == "memory_bound"]


def test_a_minimum_above_what_memory_holds_is_told_as_such():
    limit = largest_n(8.0, BATCH)
    changes = {"inference.roofline.chips": 8.0, "decisions.n_active": {"min": limit * 4}}
    with pytest.raises(AllocatorError, match=r"(?i)memory|chips|fit"):
        allocator.solve(with_values(from_values(VALUES), changes))


def test_kappa_below_the_rollout_s_two_is_refused_with_a_roofline():
    with pytest.raises(ScenarioError, match=r"rl.flop_per_param_token: got 1.5; must be >= 2 with rl.roofline"):
        with_values(from_values(VALUES), {"rl.flop_per_param_token": 1.5})


def test_roofline_without_a_pretraining_mfu_is_refused():
    values = {key: value for key, value in VALUES.items() if key != "pretraining"} | {
        "objective": {"compute_flop": 1e26}
    }
    with pytest.raises(ScenarioError, match=r"inference\.roofline: needs pretraining\.mfu or pretraining\.roofline"):
        from_values(values)
