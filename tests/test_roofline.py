"""The roofline against worked problems of "How to scale your model", claims of the lecture, and mpmath.

A row of cases/roofline_book_cases.csv is answered here or in test_cases_book.py.
"""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from case_rows import case_rows
from hypothesis import assume, given
from hypothesis import strategies as st

from allocator import catalog
from allocator.catalog import Record
from allocator.costs import Constant, Costs, Machine, PhaseCost, RolloutMfu
from allocator.errors import CatalogError, LawError, ScenarioError
from allocator.roofline.accelerator import Accelerator, accelerator
from allocator.roofline.flop import attention_flop_per_token
from allocator.roofline.memory import free_bytes, largest_batch, largest_size
from allocator.roofline.mfu import RooflineMfu
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_mfu, prefill_step
from allocator.roofline.shape import WEIGHT_BYTES, Dimensions, Shape, ShapeFamily, shape
from allocator.roofline.step import decode_mfu, decode_step
from allocator.roofline.training import training_mfu
from allocator.scenario.reading import from_values

BOOK, LECTURE = case_rows("roofline_book_cases"), case_rows("lecture_claims")
MODELS = {record.name: record for record in catalog.entries("models")}
CHIPS = {record.name: record for record in catalog.entries("hardware")}
H100 = accelerator(CHIPS["h100-sxm"], "bf16")
LLAMA, DEEPSEEK, GEMMA = (shape(MODELS[name]) for name in ("llama-3.1-70b", "deepseek-v3", "gemma-3-27b"))
SHAPES = {"dense": LLAMA, "experts, MLA": DEEPSEEK, "windows": GEMMA, "experts, windows": shape(MODELS["gpt-oss-120b"]),
          "linear states": shape(MODELS["minimax-m1"])}  # fmt: skip


PLAIN = Dimensions(
    layers=1.0, moe_layers=0.0, d_model=1.0, kv_heads=1.0, experts=0.0, destinations=0.0, query_heads=1.0
)


def dense(n: float, kv_elements: float = 1e-9, attention: float = 0.0) -> Shape:
    """A dense model by its figures; by default without cache and attention."""
    return Shape(n, n, 0.0, 1.0, kv_elements, 0.0, 0.0, attention, 0.0, n, PLAIN)


def operation(flop_per_s=9.89e14, bw=3.35e12, *, chips=1.0, batch=1.0, context=1.0, weight=2.0, kv=2.0, hbm=80e9,
              **more) -> Operation:  # fmt: skip
    return Operation(Accelerator(flop_per_s, hbm, bw), chips, batch, context, weight, kv, **more)


def decode(model: Shape, op: Operation) -> list[float]:
    """Step time, memory time, compute time."""
    step = decode_step(model, op)
    return [float(part) for part in (step.step_s, step.memory_s, step.compute_s)]


# --- rows of the book: what the row's own inputs give ---


def critical_batch(flop_per_s: float, bw: float, weight: float = 2.0) -> float:
    """Batch at which weights alone take as long to read as to compute with."""
    _, memory, compute = decode(dense(1e10), operation(flop_per_s, bw, weight=weight))
    return memory / compute


def llama_2_13b(batch: float, kv: float = 6.7e9) -> float:
    op = operation(1.97e14, 0.82e12, chips=8, batch=batch, context=8192, kv=2.0)
    return decode(dense(13e9, kv / 8192 / 2), op)[0]


def llama_70b_int8(chips: int) -> float:
    """32 sequences whose caches take 42 GB beside 70 GB of weights."""
    op = operation(1.97e14, 8.1e11, chips=chips, batch=32, context=8192, weight=1.0, kv=1.0)
    return decode(dense(70e9, 42e9 / 32 / 8192), op)[0]


def training_days(chips: float, flop_per_s: float, mfu: float) -> float:
    """6 N D = 6 x 70e9 x 15e12 through the plan's chip-hours."""
    model, op = dense(70e9), operation(flop_per_s, compute_efficiency=mfu)
    one = Constant(1.0)
    phase = PhaseCost(6.0, one, Machine(peak_flop_per_s=flop_per_s))
    costs = Costs(phase, phase, phase, phase, 0.0, pretrain_mfu=Constant(float(training_mfu(model, op))))
    return float(costs.rates(math.log(70e9), "chip_hours").d) * 15e12 / chips / 24


def cache(elements: float, tokens: float, size: float) -> float:
    return float(dense(1e9, elements).kv_bytes(jnp.asarray(float(tokens)), size))


def catalogue_cache(model: str) -> float:
    return float(shape(MODELS[model]).kv_bytes(jnp.asarray(1.0), 2.0))


def chips_for_cache() -> float:
    """Chips whose memory is just full: usable bytes are what free_bytes leaves plus what is used."""
    op = operation(chips=1e6, batch=240, context=32768, weight=1.0, kv=1.0, hbm=16e9, usable_memory=1.0)
    left = float(free_bytes(dense(70e9, 1.3e12 / 240 / 32768), op))
    return 1e6 - left / 16e9


ANSWERS = {
    "R1": lambda: critical_batch(1.97e14, 8.2e11),
    "R4": lambda: critical_batch(1.97e14, 8.2e11, 1.0),
    "R5": lambda: critical_batch(1e15, 3.35e12),
    "R6": lambda: decode(dense(0.5e12), operation())[2],
    "R10": lambda: decode(dense(200e9), operation(2.75e14, 1.23e12, chips=32))[1],
    "A1": lambda: float(LLAMA.n_active),
    "A2": lambda: float(Costs(*[PhaseCost(6.0, 1.0)] * 4, 0.0).rates(math.log(70e9)).d),
    "A5": lambda: training_days(8960, 4.59e14, 0.4),
    "A14": lambda: training_days(18823, 4.59e14, 0.5),
    "U9": lambda: training_days(4096, 990e12, 0.45),
    "I1": lambda: cache(2 * 40 * 128 * 40, 8192, 2.0),
    "I2_8": lambda: llama_2_13b(8),
    "I2_32": lambda: llama_2_13b(32),
    "I2_64": lambda: llama_2_13b(64),
    "I2_240": lambda: llama_2_13b(240),
    "I3_1": lambda: llama_2_13b(1, 1.34e9),
    "I3_64": lambda: llama_2_13b(64, 1.34e9),
    "S1": lambda: cache(float(LLAMA.kv_elements_per_token), 1, 1.0),
    "S2": lambda: cache(162e3, 32768, 1.0),
    "S3": chips_for_cache,
    "S5": lambda: llama_70b_int8(8),
    "S6": lambda: 32 / llama_70b_int8(8) / 8,
    "S7": lambda: llama_70b_int8(16),
    "S10": lambda: float(prefill_step(dense(70e9), operation(1.97e14, 8.1e11, chips=16, context=8192,
                                                             compute_efficiency=0.4)).step_s),
    "Z7": lambda: catalogue_cache("qwen2.5-72b"),
    "Z8": lambda: catalogue_cache("llama-3.1-405b"),
}  # fmt: skip
# The network, single matrix products, counts of parameters, fleets, states of training: see test_cases_book.py.
ELSEWHERE = {"A9", "A10", "A12", "A13", "A15", "I5", "I6", "I8", "S12", "S13", "S14", "S15", "U2", "U3", "U4", "U5",
             "U7", "U8", "U12", "Z1", "Z2", "Z4", "Z5"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BOOK if name not in ELSEWHERE])
def test_row_of_the_book(name: str):
    if name not in ANSWERS:
        pytest.fail(f"nothing answers {name}")
    row = BOOK[name]
    assert ANSWERS[name]() == pytest.approx(float(row["expected"]), rel=max(float(row["tol_rel"]), 1e-12))
    if name != "S2":  # recomputed there with the model's own cache, not the book's rounded one
        assert ANSWERS[name]() == pytest.approx(float(row["recomputed"]), rel=2e-3)


def test_no_answer_is_left_over():
    assert {*ANSWERS, *ELSEWHERE} == set(BOOK)
    assert not {*ANSWERS} & ELSEWHERE


def test_book_s_rounding_does_not_hide_the_model_s_own_dimensions():
    assert float(LLAMA.n_active) == pytest.approx(float(BOOK["A1"]["recomputed"]), rel=1e-6)
    own = float(LLAMA.kv_elements_per_token)
    assert cache(own, 1, 1.0) == float(BOOK["S1"]["recomputed"])
    assert cache(own, 32768, 1.0) == pytest.approx(float(BOOK["S2"]["recomputed"]), rel=1e-6)


def test_deepseek_s_cache_is_70272_bytes_a_token():
    """MLA in bf16, 61 (512 + 64) 2; arXiv 2505.09343, table 1."""
    assert float(DEEPSEEK.kv_bytes(jnp.asarray(1.0), 2.0)) == 61 * (512 + 64) * 2 == 70272


# --- claims of the lecture ---


def crossing(model: Shape, op: Operation) -> float:
    """Batch at which memory takes as long as compute, by bisection."""
    low, high = 1.0, 1e7
    for _ in range(80):
        middle = math.sqrt(low * high)
        trial = Operation(op.chip, op.chips, middle, op.context, op.bytes_per_weight, op.bytes_per_kv_element)
        _, memory, compute = decode(model, trial)
        low, high = (middle, high) if memory > compute else (low, middle)
    return low


def sparse(n_active: float, n_total: float, experts: float = 256.0) -> Shape:
    """All of the parameters in experts."""
    share = n_active / n_total
    return Shape(n_active, 1e-3, n_total, share, 1e-9, 0.0, 0.0, 0.0, 0.0, n_active, PLAIN)


@pytest.mark.parametrize("sparsity", [1.0, 4.0, 8.0, 18.1])
def test_b10_batch_must_exceed_300_times_sparsity(sparsity: float):
    """B* = F b N_total/(2 bw N_active): at B* all experts are read."""
    op = operation(300e12, 1e12)  # 300 FLOP a byte, bf16
    assert crossing(sparse(1e10, sparsity * 1e10), op) == pytest.approx(300 * sparsity, rel=1e-6)


def test_b10_deepseek_at_300():
    """Row B10 of cases/lecture_claims.csv: 671/37 at a ratio of 300 gives 5,440."""
    assert crossing(sparse(37e9, 671e9), operation(300e12, 1e12)) == pytest.approx(5440, rel=1e-3)


@pytest.mark.parametrize(("chip", "want"), [("h100-sxm", 295), ("a100-80gb-sxm", 153), ("b200-sxm", 292)])
def test_critical_batch_of_shipped_chips(chip: str, want: float):
    """F/bw of the data sheets: H100 989e12/3.35e12, A100 312e12/2.039e12, B200 2.25e15/7.7e12."""
    built = accelerator(CHIPS[chip], "bf16")
    assert round(critical_batch(built.peak_flop_per_s, built.hbm_bytes_per_s)) == want


def test_b13_cache_raises_the_critical_batch():
    """B* = W/(n bw)/[2 N/(nF) - context kv/(n bw)], infinite from context* = 2 N bw/(F kv) on."""
    n, kv, f, bw = 1e11, 2048.0, 9.89e14, 3.35e12
    last = crossing(dense(n), operation(f, bw))
    longest = 2 * n * bw / (f * kv)
    for context in (1e3, 1e4, 1e5):
        found = crossing(dense(n, kv / 2), operation(f, bw, context=context))
        assert found == pytest.approx(2 * n / bw / (2 * n / f - context * kv / bw), rel=1e-6)
        assert found > last
        last = found
    assert crossing(dense(n, kv / 2), operation(f, bw, context=longest * 1.01)) > 1e6


def test_b15_hbm_drains_in_about_20_ms():
    """19.5 to 43 ms on every shipping part; the row's own four in its digits."""
    drains = {}
    for name, record in CHIPS.items():
        if record.fields["level"] == "chip" and str(record.fields["status"]).startswith("verified"):
            dtype = "bf16" if record.fields["bf16_dense_flop_per_s"] else "fp8"
            chip = accelerator(record, dtype)
            drains[name] = 1e3 * chip.hbm_bytes / chip.hbm_bytes_per_s
    assert len(drains) > 12
    assert 19.5 <= min(drains.values()) < max(drains.values()) <= 43
    text = LECTURE["B15"]["recomputed"]
    assert f"H100 {drains['h100-sxm']:.1f}; H200 {drains['h200-sxm']:.1f}" in text
    assert f"v5e {drains['tpu-v5e']:.1f}" in text
    assert drains["b200-sxm"] == pytest.approx(24.0, rel=0.05)  # the row takes 8.0 TB/s


def test_b16_rubin_drains_in_15_ms():
    row = LECTURE["B16"]
    chip = Accelerator(1e16, 288e9, 20e12)
    assert 1e3 * chip.hbm_bytes / chip.hbm_bytes_per_s == pytest.approx(float(row["expected"]), rel=0.05)


def test_b20_twice_the_balanced_context_halves_mfu():
    """Cache alone balances compute at 100k tokens; at 200k MFU is half."""
    n, f, bw = 1e11, 9.89e14, 3.35e12
    kv = 2 * n * bw / (f * 1e5)
    model = Shape(n, 1e-3, 0.0, 1.0, kv / 2, 0.0, 0.0, 0.0, 0.0, n, PLAIN)  # weights negligible
    mfu = [float(decode_mfu(model, operation(f, bw, batch=1e3, context=c))) for c in (5e4, 1e5, 2e5)]
    assert mfu == pytest.approx([1.0, 1.0, float(LECTURE["B20"]["expected"])], rel=1e-9)


def test_b05_without_batching_a_token_costs_hundreds_of_times_more():
    """cost(1)/cost(B*) = B*, without cache."""
    steps = [decode(dense(1e11), operation(300e12, 1e12, batch=b))[0] / b for b in (1.0, 300.0)]
    assert steps[0] / steps[1] == pytest.approx(300, rel=1e-9)


def test_b08_cost_per_token_has_a_floor():
    """t/B tends to max(2 N/F, context kv/bw)."""
    n, f, bw, kv = 1e11, 9.89e14, 3.35e12, 2048.0
    for context in (1e3, 1e6):
        got = decode(dense(n, kv / 2), operation(f, bw, batch=1e9, context=context))[0] / 1e9
        assert got == pytest.approx(max(2 * n / f, context * kv / bw), rel=1e-4)


def test_attention_equals_the_weights_at_54k_in_decode_and_108k_in_prefill_and_training():
    """2 N/(4 d_head n_q L) for Llama-3-70B; against P07, which says millions."""
    at = 2 * float(LLAMA.n_compute) / (4 * 128 * 64 * 80)
    assert at == pytest.approx(54e3, rel=0.02)
    decoded = [decode(LLAMA, operation(context=c))[2] for c in (1e-9, at)]
    assert decoded[1] / decoded[0] == pytest.approx(2, rel=1e-9)
    for run in (lambda c: float(prefill_step(LLAMA, operation(context=c)).compute_s) / c,
                lambda c: 1 / float(training_mfu(LLAMA, operation(context=c)))):  # fmt: skip
        alone = run(1.0) / (1 + 1 / at)  # one token sees itself, the 1/at of what takes as long as the weights
        assert run(2 * at - 1) / alone == pytest.approx(2, rel=1e-9)


# --- shapes ---


@pytest.mark.parametrize("name", MODELS)
def test_shared_weights_and_visited_experts_make_the_active_parameters(name: str):
    model = shape(MODELS[name])
    assert model.n_shared + model.n_routed * model.routed_share == pytest.approx(float(model.n_active), rel=1e-9)
    one = float(model.weight_bytes(jnp.asarray(1.0), 1.0))
    assert one == pytest.approx(float(model.n_active), rel=1e-9)
    assert float(model.total_bytes(1.0)) == pytest.approx(MODELS[name].fields["n_total_computed"], rel=1e-12)


@given(st.floats(1, 1e6), st.floats(1e-3, 1))
def test_experts_touched_match_mpmath(tokens: float, share: float):
    """f(B) = 1 - (1 - k/E)^B under uniform routing."""
    model = Shape(1e9, 2e9, 3e10, share, 1.0, 0.0, 0.0, 0.0, 0.0, 1e9, PLAIN)
    with mpmath.workdps(50):
        touched = 1 - (1 - mpmath.mpf(share)) ** mpmath.mpf(tokens)
        want = float(mpmath.mpf(1.5) * (mpmath.mpf(2e9) + mpmath.mpf(3e10) * touched))
    assert float(model.weight_bytes(jnp.asarray(tokens), 1.5)) == pytest.approx(want, rel=1e-12)


def test_a_large_batch_reads_all_experts():
    assert float(DEEPSEEK.weight_bytes(jnp.asarray(1e5), 1.0)) == pytest.approx(671.03e9, rel=1e-4)
    # 64 tokens under 8 of 256: 1 - (31/32)^64 of 653.9e9 routed parameters (58 layers x 256 x 3 x 7168 x 2048).
    want = 671025397760 - 58 * 256 * 3 * 7168 * 2048 * (31 / 32) ** 64
    assert float(DEEPSEEK.weight_bytes(jnp.asarray(64.0), 1.0)) == pytest.approx(want, rel=1e-12)


def test_windows_fill_up_and_then_hold():
    """Llama 4 Maverick: 98,304 elements a token below its chunk of 8,192, 24,576 beyond (the table's kv_formula)."""
    model = shape(MODELS["llama-4-maverick"])

    def slope(context: float) -> float:
        return float(model.kv_bytes(jnp.asarray(context + 1), 1.0) - model.kv_bytes(jnp.asarray(context), 1.0))

    assert slope(100.0) == slope(8000.0) == 98304
    assert slope(8192.0) == slope(1e5) == 24576
    assert float(model.kv_bytes(jnp.asarray(8192.0), 1.0)) == 98304 * 8192


def test_linear_states_are_held_from_the_first_token_on():
    model = shape(MODELS["minimax-m1"])
    for size in (1.0, 2.0):  # the states are fp32 whatever the cache is
        assert float(model.kv_bytes(jnp.asarray(1.0), size)) == 20480 * size + 4 * 73400320


def test_attention_flop_of_windows_stops_growing():
    """Gemma 3 27B: 4 x 128 x 32 per token and layer, 10 full layers and 52 with windows of 1,024."""
    per_layer = 4 * 128 * 32
    for context, want in ((500.0, 62 * 500), (1e5, 10 * 1e5 + 52 * 1024)):
        assert float(GEMMA.attention_flop_per_token(jnp.asarray(context))) == pytest.approx(per_layer * want, rel=1e-12)


def test_attention_flop_of_mla_is_that_of_the_absorbed_form():
    """a = 2 n_q (2 d_c + d_rope) L."""
    assert float(DEEPSEEK.attention_flop) == 2 * 128 * (2 * 512 + 64) * 61


def test_a_prompt_spells_out_a_latent_cache():
    """DeepSeek's own count of training, causal attention included: 250 GFLOP a token at 4,096 (arXiv 2505.09343)."""
    spelt = float(attention_flop_per_token(DEEPSEEK, 4096.0))
    assert spelt == 2 * 128 * (192 + 128) * 61 * 2048.5
    assert 6 * float(DEEPSEEK.n_compute) + 3 * spelt == pytest.approx(250e9, rel=5e-3)
    assert float(attention_flop_per_token(LLAMA, 9.0)) == 4 * 128 * 64 * 80 * 5


@pytest.mark.parametrize("name", SHAPES)
@given(st.floats(math.log(1e6), math.log(1e15)), st.floats(1.1, 1e3))
def test_family_grows_by_its_exponents(name: str, log_n: float, factor: float):
    """Weights as N, caches as N^(1/3), attention as N^(2/3); sparsity and windows stay."""
    family = ShapeFamily(SHAPES[name])
    small, large = family.at(log_n), family.at(log_n + math.log(factor))
    exponents = {"n_active": 1, "n_shared": 1, "n_routed": 1, "routed_share": 0, "kv_elements_per_token": 1 / 3,
                 "kv_elements_window": 1 / 3, "window": 0, "attention_flop": 2 / 3,
                 "attention_flop_window": 2 / 3, "n_compute": 1, "attention_flop_prompt": 2 / 3}  # fmt: skip
    assert {*exponents, "dimensions"} == set(Shape.__dataclass_fields__)
    for field, exponent in exponents.items():
        if getattr(small, field) is None:  # no other attention in a prompt than in decode
            assert getattr(large, field) is None
            continue
        before, after = float(getattr(small, field)), float(getattr(large, field))
        assert after == pytest.approx(before * factor**exponent, rel=1e-11)
    assert float(small.n_active) == pytest.approx(math.exp(log_n), rel=1e-13)


@pytest.mark.parametrize("name", SHAPES)
def test_family_holds_the_reference(name: str):
    reference = SHAPES[name]
    same = ShapeFamily(reference).at(jnp.log(reference.n_active))
    assert jax.tree.leaves(same) == pytest.approx(jax.tree.leaves(reference), rel=1e-13)


# --- MFU ---

REGIMES = {"decode": decode_mfu, "prefill": prefill_mfu, "training": training_mfu}
amounts = st.floats(0, 6).map(lambda e: 10.0**e)


def mfu_of(regime: str, model: Shape, op: Operation) -> float:
    return float(REGIMES[regime](model, op))


@pytest.mark.parametrize("name", SHAPES)
@given(st.floats(math.log(1e6), math.log(1e15)), amounts, amounts, amounts, st.floats(0.01, 1), st.floats(0.01, 1))
def test_mfu_never_exceeds_its_compute_efficiency(name, log_n, batch, context, chips, compute, memory):
    model = ShapeFamily(SHAPES[name]).at(log_n)
    op = Operation(H100, chips, batch, context, 2.0, 2.0, compute, memory)
    values = {regime: mfu_of(regime, model, op) for regime in REGIMES}
    assert all(0 < value <= compute * (1 + 1e-14) for value in values.values())
    mixed = RolloutMfu(Constant(values["decode"]), Constant(values["training"]), 3.0)
    assert 0 < float(mixed(log_n)) <= compute * (1 + 1e-14)


def test_mfu_by_hand():
    """Llama-3.1-70B, 8 H100 in bf16: 64 sequences of 4,096 tokens in decode, 4 prompts of 2,048 in prefill."""
    total, a = 70552387584, 4 * 128 * 64 * 80
    n = total - 128256 * 8192  # the input embedding is a look-up
    memory = (2 * total + 64 * 327680 * 4096) / (8 * 3.35e12)
    compute = 64 * (2 * n + a * 4096) / (8 * 9.89e14)
    assert decode(LLAMA, operation(chips=8, batch=64, context=4096)) == pytest.approx(
        [max(memory, compute), memory, compute], rel=1e-12
    )
    assert memory > compute
    op = operation(chips=8, batch=64, context=4096)
    assert mfu_of("decode", LLAMA, op) == pytest.approx(2 * n * 64 / (8 * 9.89e14 * memory), rel=1e-12)
    op = operation(chips=8, batch=4, context=2048, compute_efficiency=0.5)
    assert mfu_of("prefill", LLAMA, op) == pytest.approx(0.5 * 2 * n / (2 * n + a * 1024.5), rel=1e-12)
    assert mfu_of("training", LLAMA, op) == pytest.approx(0.5 * 6 * n / (6 * n + 3 * a * 1024.5), rel=1e-12)


def test_rollout_mfu_adds_the_times_of_both_parts():
    """kappa/(2/decode + (kappa - 2)/train): 2 of 3 FLOP at 0.1, the third at 0.4."""
    assert float(RolloutMfu(Constant(0.1), Constant(0.4), 3.0)(0.0)) == pytest.approx(3 / (20 + 2.5), rel=1e-14)
    assert float(RolloutMfu(Constant(0.1), Constant(0.4), 2.0)(0.0)) == pytest.approx(0.1, rel=1e-14)


@pytest.mark.parametrize("regime", ["decode", "prefill"])
def test_efficiencies_stretch_their_own_time(regime: str):
    step = {"decode": decode_step, "prefill": prefill_step}[regime]
    plain = step(LLAMA, operation(batch=8, context=100))
    slow = step(LLAMA, operation(batch=8, context=100, compute_efficiency=0.5, memory_efficiency=0.25))
    assert float(slow.compute_s) == pytest.approx(2 * float(plain.compute_s), rel=1e-14)
    assert float(slow.memory_s) == pytest.approx(4 * float(plain.memory_s), rel=1e-14)
    assert float(slow.step_s) == max(float(slow.compute_s), float(slow.memory_s))


def mfu_at(regime: str, model: Shape):
    """log MFU of (log N, log batch, log context)."""

    def log_mfu(z):
        op = Operation(H100, 8.0, jnp.exp(z[1]), jnp.exp(z[2]), 2.0, 2.0)
        return jnp.log(REGIMES[regime](ShapeFamily(model).at(z[0]), op))

    return jax.jit(jax.value_and_grad(log_mfu))


def balance(regime: str, model: Shape, z: np.ndarray) -> float:
    """log(memory time / compute time): 0 at the kink."""
    if regime == "training":
        return 1.0
    step = {"decode": decode_step, "prefill": prefill_step}[regime]
    times = step(ShapeFamily(model).at(z[0]), Operation(H100, 8.0, math.exp(z[1]), math.exp(z[2]), 2.0, 2.0))
    return math.log(float(times.memory_s) / float(times.compute_s))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", ["dense", "experts, windows"])
def test_gradients_match_differences_away_from_kinks_and_are_finite_at_them(regime: str, name: str):
    model, rng, step, checked = SHAPES[name], np.random.default_rng(5), 1e-5, 0
    f = mfu_at(regime, model)
    window = math.log(float(model.window)) if model.window else math.inf
    for z in rng.uniform([math.log(1e8), 0.0, 0.0], [math.log(1e13), math.log(1e4), math.log(1e6)], (60, 3)):
        _, gradient = f(z)
        assert np.isfinite(gradient).all()
        seen = z[2] - (0.0 if regime == "decode" else math.log(2))  # causal: half of the context on average
        if abs(balance(regime, model, z)) < 0.01 or min(abs(seen - window), abs(z[2] - window)) < 0.01:
            continue
        differences = [(float(f(z + step * e)[0]) - float(f(z - step * e)[0])) / (2 * step) for e in np.eye(3)]
        assert np.asarray(gradient) == pytest.approx(differences, rel=1e-6, abs=1e-8)
        checked += 1
    assert checked > 40
    # On the kinks: memory and compute alike (by bisection in batch), the window just full.
    kinks = [np.array([math.log(1e11), math.log(30.0), window])] if model.window else []
    if regime == "decode":
        low, high = (np.array([math.log(1e11), log_batch, math.log(100.0)]) for log_batch in (0.0, math.log(1e6)))
        assert balance(regime, model, low) > 0 > balance(regime, model, high)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if balance(regime, model, middle) > 0 else (low, middle)
        kinks += [low, high]
    for z in kinks:
        assert np.isfinite(f(z)[1]).all()


def slope(mfu: RooflineMfu, log_n: float) -> float:
    """dlog MFU/dlog N."""
    return float(jax.grad(lambda x: jnp.log(mfu(x)))(log_n))


@pytest.mark.parametrize("regime", REGIMES)
def test_mfu_of_a_family_has_the_slope_that_the_optimum_uses(regime: str):
    op = Operation(H100, 64.0, 32.0, 8192.0, 2.0, 2.0, 0.4, 0.65)
    mfu = RooflineMfu(ShapeFamily(LLAMA), op, regime)
    for log_n in (23.0, 25.0, 28.0):
        assert float(mfu(log_n)) == pytest.approx(mfu_of(regime, ShapeFamily(LLAMA).at(log_n), op), rel=1e-14)
        step = 1e-5
        want = (math.log(float(mfu(log_n + step))) - math.log(float(mfu(log_n - step)))) / (2 * step)
        assert slope(mfu, log_n) == pytest.approx(want, rel=1e-6, abs=1e-9)


def test_slopes_of_decode_mfu_in_its_limits():
    """Weights alone: MFU = B F-free of N, slope 0; cache alone: 2 N B/(F kv) with kv as N^(1/3), slope 2/3."""
    weights = RooflineMfu(ShapeFamily(dense(7e10)), operation(batch=1.0), "decode")
    assert slope(weights, math.log(7e10)) == pytest.approx(0, abs=1e-9)
    heavy = Shape(7e10, 1.0, 0.0, 1.0, 1e6, 0.0, 0.0, 0.0, 0.0, 7e10, PLAIN)
    cached = RooflineMfu(ShapeFamily(heavy), operation(batch=1e3, context=1e6), "decode")
    assert slope(cached, math.log(7e10)) == pytest.approx(2 / 3, rel=1e-6)


def test_jit_vmap_and_grad_pass_through_the_roofline():
    mfu = RooflineMfu(ShapeFamily(DEEPSEEK), Operation(H100, 64.0, 256.0, 4096.0, 1.0, 1.0), "decode")
    sizes = jnp.log(jnp.array([1e9, 1e10, 1e11]))
    batch = jax.jit(jax.vmap(lambda mfu, x: mfu(x), in_axes=(None, 0)))(mfu, sizes)
    assert np.asarray(batch) == pytest.approx([float(mfu(x)) for x in sizes], rel=1e-14)
    slopes = jax.jit(jax.grad(lambda mfu: mfu(sizes[1])))(mfu)
    assert float(slopes.operation.chip.hbm_bytes_per_s) > 0  # memory bound: more bandwidth, more MFU
    assert float(slopes.operation.context) < 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


# --- what fits ---


@given(st.floats(math.log(1e8), math.log(1e13)), st.integers(1, 10000), st.floats(1, 1e6), st.sampled_from([*SHAPES]))
def test_largest_batch_fits_and_one_more_does_not(log_n: float, chips: int, context: float, name: str):
    model = ShapeFamily(SHAPES[name]).at(log_n)
    room = chips * 80e9 * 0.9 - 2 * float(model.n_shared + model.n_routed)
    each = float(model.kv_bytes(jnp.asarray(context), 2.0))
    largest = largest_batch(model, operation(chips=float(chips), context=context))
    assert largest >= 0
    if room < each * (1 - 1e-9):
        assert largest == 0
        return
    assert largest * each <= room * (1 + 1e-11)
    assert (largest + 1) * each > room * (1 - 1e-11)
    if largest > 0:
        full = operation(chips=float(chips), context=context, batch=float(largest))
        assert float(free_bytes(model, full)) >= -1e-11 * chips * 80e9
        assert (
            float(free_bytes(model, operation(chips=float(chips), context=context, batch=largest * (1 + 1e-6) + 1))) < 0
        )


def test_largest_batch_is_exact_at_the_boundary():
    """100 sequences of 0.5 GB beside 22 GB of weights fill 72 GB to the last byte."""
    model = dense(11e9, 250.0)
    assert largest_batch(model, operation(context=1e6)) == 100
    assert largest_batch(dense(11e9 + 1, 250.0), operation(context=1e6)) == 99
    assert largest_batch(dense(36e9, 250.0), operation(context=1e6)) == 0
    assert largest_batch(dense(37e9, 250.0), operation(context=1e6)) == 0


@given(st.integers(1, 10000), amounts, st.floats(1, 1e5), st.sampled_from([*SHAPES]))
def test_largest_size_fills_the_memory(chips: int, batch: float, context: float, name: str):
    family, op = ShapeFamily(SHAPES[name]), operation(chips=float(chips), batch=batch, context=context)
    largest = largest_size(family, op)
    if largest == 0:
        assert float(free_bytes(family.at(math.log(1e3)), op)) < 0
        return
    assume(largest < 0.9e18)
    usable = chips * 80e9 * 0.9
    assert abs(float(free_bytes(family.at(math.log(largest)), op))) < 1e-9 * usable
    assert float(free_bytes(family.at(math.log(largest * (1 + 1e-9))), op)) < 0
    assert float(free_bytes(family.at(math.log(largest * (1 - 1e-9))), op)) > 0


def test_weights_and_cache_by_hand():
    """Llama-3.1-70B on 4 H100 in bf16, 72 GB usable each: 288 - 141.1 GB, at 1.342 GB for 4,096 tokens: 109."""
    room = 4 * 72e9 - 2 * 70552387584
    assert largest_batch(LLAMA, operation(chips=4, context=4096)) == math.floor(room / (327680 * 4096)) == 109


# --- what is refused ---


def test_dtype_that_the_chip_lacks_is_told_with_those_it_has():
    with pytest.raises(CatalogError, match=r"^a100-80gb-sxm: no dense fp8 peak is on record; it has bf16, int8$"):
        accelerator(CHIPS["a100-80gb-sxm"], "fp8")
    with pytest.raises(CatalogError, match=r"^dtype: 'fp16' is not known, must be one of bf16, fp8, fp4, int8$"):
        accelerator(CHIPS["h100-sxm"], "fp16")


def test_rack_is_refused():
    with pytest.raises(CatalogError, match=r"^gb200-nvl72-rack: is a rack; a roofline wants the chip"):
        accelerator(CHIPS["gb200-nvl72-rack"], "fp8")


def test_chip_without_memory_figures_is_refused():
    with pytest.raises(CatalogError, match=r"^rubin-ultra-nvl576-per-package-4-dies: hbm_bytes_per_s is not known$"):
        accelerator(CHIPS["rubin-ultra-nvl576-per-package-4-dies"], "fp8")


@pytest.mark.parametrize("field", ["layers", "d_model", "n_total_computed", "n_active_computed", "n_full_attn_layers",
                                   "kv_elems_per_token_marginal", "head_dim", "n_heads"])  # fmt: skip
def test_model_without_dimensions_is_told_by_the_one_it_lacks(field: str):
    record = MODELS["llama-3.1-70b"]
    bare = Record("mpt-7b", (), {**record.fields, field: None}, record.source)
    with pytest.raises(CatalogError, match=rf"^mpt-7b: {field} is not known, so its roofline cannot be drawn$"):
        shape(bare)


@pytest.mark.parametrize("name", ["compute_efficiency", "memory_efficiency", "usable_memory"])
@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, math.nan])
def test_efficiency_outside_zero_to_one_is_refused_by_name(name: str, value: float):
    with pytest.raises((CatalogError, LawError), match=name):
        operation(**{name: value})


@pytest.mark.parametrize("name", ["chips", "batch", "context"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_operation_out_of_range_is_refused_by_name(name: str, value: float):
    with pytest.raises(LawError, match=f"Operation.{name}: must be > 0 and finite, got {value}"):
        operation(**{name: value})


def scenario(**roofline):
    values = {"objective": {"compute_flop": 1e24}, "pretraining": {"mfu": 0.4},
              "deployment": {"lifetime_tokens": 1e13},
              "inference": {"roofline": {"model": "llama-3.1-70b", "chip": "h100-sxm", "context": 4096} | roofline},
              }  # fmt: skip
    return from_values(values)


@pytest.mark.parametrize(
    ("roofline", "line"),
    [
        ({"chip": "a100-80gb-sxm", "dtype": "fp8"},
         "inference.roofline.chip: a100-80gb-sxm: no dense fp8 peak is on record; it has bf16, int8"),
        ({"chip": "gb200-nvl72-rack"},
         "inference.roofline.chip: gb200-nvl72-rack is a rack; name the chip, and the number in chips"),
        ({"chip": "h1000"}, "inference.roofline.chip: hardware: 'h1000' is not known"),
        ({"model": "llama-9"}, "inference.roofline.model: models: 'llama-9' is not known"),
        ({"context": 200000},
         "inference.roofline.context: got 200000; must be <= 131072, the longest that llama-3.1-70b takes"),
        ({"context": 0}, "inference.roofline.context: "),
        ({"batch": 0}, "inference.roofline.batch: "),
        ({"chips": -1}, "inference.roofline.chips: "),
        ({"efficiency": 1.5}, "inference.roofline.efficiency: "),
        ({"efficiency": {"compute": 0}}, "inference.roofline.efficiency.compute: "),
        ({"dtype": "fp16"}, "inference.roofline.dtype: "),
        ({"layers": 3}, "inference.roofline.layers: "),
        ({"chip": "rubin-ultra-nvl576-per-package-4-dies", "dtype": "fp8"},
         "inference.roofline.chip: rubin-ultra-nvl576-per-package-4-dies: "),
    ],
)  # fmt: skip
def test_scenario_tells_what_its_roofline_cannot_be(roofline: dict, line: str):
    with pytest.raises(ScenarioError) as caught:
        scenario(**roofline)
    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith(line)


def test_weight_bytes_name_the_scenario_s_dtypes():
    assert WEIGHT_BYTES == {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
    assert set(WEIGHT_BYTES) == set(catalog.PEAKS)
