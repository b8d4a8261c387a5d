"""Rows of cases/user_voices.csv on peaks, FLOP counts, KV caches and batches beyond memory: the row's published figure.

Each test is named after its row; what a row asks that no function here answers is in `NOT_HERE`, with the reason.
"""

import math
from dataclasses import replace

import jax.numpy as jnp
import pytest
from case_rows import case_rows

from allocator import catalog
from allocator.catalog import dense_peak_flop_per_s
from allocator.costs import Constant, Costs, PhaseCost
from allocator.errors import CatalogError, RooflineError
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.architecture import Architecture, architecture
from allocator.roofline.flop import (
    attention_flop,
    attention_flop_per_token,
    attention_share,
    check_dense_peak,
    forward_flop_per_token,
    head_flop,
    mfu,
    training_flop_per_token,
    utilisation,
)
from allocator.roofline.memory import free_bytes, largest_batch, largest_context
from allocator.roofline.operation import Operation
from allocator.roofline.shape import Dimensions, Shape, shape
from allocator.roofline.step import decode_step

ROWS = case_rows("user_voices")

MINE = [f"V{n}" for n in (23, *range(25, 55), *range(59, 72), 74, 76, 80, 84, 95, 96, 97)]
NOT_HERE: dict[str, str] = {}  # every row of these numbers has a test

CHIPS = {record.name: record for record in catalog.entries("hardware")}
MODELS = {record.name: record for record in catalog.entries("models")}
H100, H200, A100 = CHIPS["h100-sxm"], CHIPS["h200-sxm"], CHIPS["a100-80gb-sxm"]
PLAIN = Dimensions(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0)
GIB = 2.0**30
LLAMA_2_7B = Architecture(32.0, 4096.0, 32.0, 32.0, 128.0, 11008.0, 32000.0)
TINY_LLAMA = Architecture(22.0, 2048.0, 32.0, 4.0, 64.0, 5632.0, 32000.0)
LLAMA_2_70B = Architecture(80.0, 8192.0, 64.0, 8.0, 128.0, 28672.0, 32000.0)


def cache_bytes(model: Shape, tokens: float = 1.0, size: float = 2.0) -> float:
    return float(model.kv_bytes(jnp.asarray(tokens), size))


def serving(chip: Accelerator, **more) -> Operation:
    given = {"chips": 1.0, "batch": 1.0, "context": 1.0, "bytes_per_weight": 1.0, "bytes_per_kv_element": 1.0}
    return Operation(chip, **(given | more))


def model_of(weights: float, kv_bytes: float) -> Shape:
    return Shape(weights, weights, 0.0, 1.0, kv_bytes, 0.0, 0.0, 0.0, 0.0, weights, PLAIN)


# --- peaks and MFU ---


def test_v25_tokens_of_16_chips_against_the_peak_of_one():
    run = {"tokens": 16384000.0, "seconds": 48600.0, "flop_per_token": 6 * 7e10}
    assert utilisation(A100, "bf16", chips=16.0, **run).mfu == pytest.approx(0.0284, rel=2e-3)
    assert utilisation(A100, "bf16", chips=1.0, **run).mfu == pytest.approx(0.4551, rel=5e-3)  # what was printed


@pytest.mark.parametrize(
    ("chip", "flop_per_s", "sparse", "right"), [(H200, 420e12, 1979e12, 0.424), (H100, 400e12, 1979e12, 0.404)]
)
def test_v27_v28_share_of_the_dense_peak(chip, flop_per_s: float, sparse: float, right: float):
    run = {"tokens": 1.0, "seconds": 1.0, "chips": 1.0, "flop_per_token": flop_per_s}
    assert utilisation(chip, "bf16", **run).mfu == pytest.approx(right, rel=2e-3)
    with pytest.raises(RooflineError, match="looks like the sparse headline"):
        check_dense_peak(chip, "bf16", sparse)
    with pytest.raises(RooflineError, match="sparse headline"):
        check_dense_peak(chip, "bf16", 2000e12)  # V28's round figure


def test_v29_dense_and_sparse_of_h800():
    assert dense_peak_flop_per_s(CHIPS["h800-sxm"], "bf16") == pytest.approx(989e12, rel=1e-12)
    with pytest.raises(RooflineError, match="sparse headline"):
        check_dense_peak(CHIPS["h800-sxm"], "bf16", 1979e12)
    assert "sparse 1979 bf16" in str(H100.fields["notes"])


def test_v32_104_percent_against_the_wrong_chip():
    reached = 1.04 * 312e12
    with pytest.raises(RooflineError, match=r"mfu: got 1\.04 from .*must be <= 1: check the peak"):
        utilisation(A100, "bf16", tokens=reached, seconds=1.0, chips=1.0, flop_per_token=1.0)
    right = utilisation(H100, "bf16", tokens=reached, seconds=1.0, chips=1.0, flop_per_token=1.0)
    assert right.mfu == pytest.approx(0.328, rel=2e-3)


def test_v33_peak_is_asked_for_by_dtype():
    """No peak without one, none of TF32; 494.5e12 of it for bf16 is told as half of the dense peak."""
    with pytest.raises(CatalogError, match=r"^dtype: 'tf32' is not known, must be one of bf16, fp8, fp4, int8$"):
        dense_peak_flop_per_s(H100, "tf32")
    with pytest.raises(RooflineError, match=r"0.5 times the dense bf16 peak"):
        check_dense_peak(H100, "bf16", 494.5e12)
    one = [float(mfu(1.0, 1.0, 1.0, peak, 2e14)) for peak in (494.5e12, 989e12)]
    assert one[0] / one[1] == pytest.approx(2, rel=1e-12)


def test_v35_mfu_says_its_dtype():
    run = {"tokens": 5e14, "seconds": 1.0, "chips": 1.0, "flop_per_token": 1.0}
    found = {dtype: utilisation(H100, dtype, **run) for dtype in ("bf16", "fp8")}
    assert [found[dtype].dtype for dtype in found] == ["bf16", "fp8"]
    assert found["fp8"].mfu / found["bf16"].mfu == pytest.approx(0.5, rel=1e-3)


def test_v43_more_than_the_peak_is_refused_with_what_went_in():
    with pytest.raises(RooflineError) as caught:
        mfu(4.2e6, 100.0, 8.0, 989e12, 6 * 70e9)
    text = str(caught.value)
    assert all(
        part in text for part in ("tokens = 4200000", "seconds = 100", "chips = 8", "peak_flop_per_s = 9.89e+14")
    )
    assert float(mfu(4.2e6, 1000.0, 8.0, 989e12, 6 * 70e9)) == pytest.approx(6 * 7e10 * 4.2e3 / 8 / 989e12, rel=1e-12)


def test_v52_gflop_per_s_taken_for_tflop_per_s():
    """30,949.01 GFLOP/s are 30.95 TFLOP/s; as TFLOP/s they are a hundred A100s."""
    assert float(mfu(1.0, 1.0, 1.0, 312e12, 30949.01e9)) == pytest.approx(30.949 / 312, rel=1e-4)
    with pytest.raises(RooflineError, match=r"mfu: got 99\.2"):
        mfu(1.0, 1.0, 1.0, 312e12, 30949.01e12)


# --- counting FLOP ---


def test_v23_head():
    assert float(head_flop(50e3, 768.0)) == pytest.approx(7.7e7, rel=3e-3)


def test_v38_an_untied_embedding_makes_6_v_h():
    """Counting it adds 6 V h, so leaving it out lowers the MFU."""
    vocab, width = LLAMA_2_7B.vocab, LLAMA_2_7B.d_model
    assert float(6 * LLAMA_2_7B.n_active - 6 * LLAMA_2_7B.n_compute) == 6 * vocab * width
    assert float(replace(LLAMA_2_7B, tied=True).n_compute) == float(LLAMA_2_7B.n_compute)


def test_v39_tiny_llama():
    right = float(training_flop_per_token(TINY_LLAMA.shape(), 2048.0))
    wrong = right + 6 * TINY_LLAMA.vocab * TINY_LLAMA.d_model
    assert right / wrong == pytest.approx(33.2 / 35, rel=0.01)
    assert float(TINY_LLAMA.n_total) == pytest.approx(1.1e9, rel=1e-3)  # its name


def test_v41_windows_and_kv_heads():
    model = replace(LLAMA_2_70B, window=4096.0)
    windowed = replace(model, window_layers=80.0).shape()
    flops = [float(attention_flop_per_token(m, 65536.0)) for m in (windowed, model.shape())]
    assert flops[0] < flops[1] / 8
    full = float(attention_flop(65536.0, 65536.0, 128.0, 128.0, heads=64.0)) * 80 / 65536
    assert flops[1] == pytest.approx(full, rel=1e-12)
    # 8 of 64 heads for keys and values: 2 d (64 + 8) 128 parameters of attention, not 2 d (64 + 64) 128.
    assert float(LLAMA_2_70B.attention_parameters) == 2 * 8192 * 128 * 72


def test_v45_active_not_total():
    model = architecture(MODELS["deepseek-v3"])
    assert float(model.n_active) == pytest.approx(37e9, rel=0.02)
    assert float(model.n_total) == pytest.approx(671e9, rel=1e-3)
    assert float(model.n_total / model.n_active) == pytest.approx(18, rel=0.02)
    assert float(forward_flop_per_token(shape(MODELS["deepseek-v3"]), 1.0)) < 2 * 38e9


def gemma_4_26b(shared: float) -> float:
    """Active parameters from maxtext's gemma4-26b.yml: 25 layers of windows, 5 full ones whose keys are the values."""
    common = {"experts": 128.0, "experts_active": 8.0, "experts_shared": shared / 704, "d_expert": 704.0, "d_ff": 0.0}
    local = Architecture(25.0, 2816.0, 16.0, 8.0, 256.0, vocab=262144.0, tied=True, moe_layers=25.0, **common)
    whole = Architecture(5.0, 2816.0, 16.0, 1.0, 512.0, vocab=0.0, tied=True, moe_layers=5.0, **common)
    return float(local.n_active + whole.n_active)  # 2 KV heads kept once are 1 kept twice


def test_v47_published_active_count_of_gemma_4_26b():
    """3.82B; a shared expert of 704 where it has 2,112 loses the 9% of the report."""
    assert gemma_4_26b(2112.0) == pytest.approx(3.82e9, rel=2e-3)
    assert gemma_4_26b(704.0) / gemma_4_26b(2112.0) == pytest.approx(0.91, abs=0.005)


def test_v48_share_of_attention():
    """About 10% at 8k holds (7% to 13%); 90% at 128k does not for these: 55% and 70%. What is 10% at 8k is 64%."""
    shares = {name: [float(attention_share(shape(MODELS[name]), t)) for t in (8192.0, 131072.0)]
              for name in ("llama-3.1-8b", "llama-3.1-70b")}  # fmt: skip
    assert shares["llama-3.1-8b"] == pytest.approx([0.126, 0.696], abs=0.005)
    assert shares["llama-3.1-70b"] == pytest.approx([0.072, 0.553], abs=0.005)
    tenth = 0.1 / 0.9 * 16
    assert tenth / (1 + tenth) == pytest.approx(0.64, abs=0.001)


def test_v49_twice_the_sequence_is_more_than_twice_the_flop():
    model = LLAMA_2_7B.shape()
    flops = [float(forward_flop_per_token(model, t)) * t for t in (8192.0, 16384.0)]
    assert flops[1] / flops[0] > 2


@pytest.mark.parametrize("ratio", [1.02, 21.7])
def test_v50_with_and_without_attention(ratio: float):
    """1 + s/(6 h) for plain blocks without a mask: from 1.02 to 21.7 over the report's models."""
    width = 768.0
    tokens = 6 * width * (ratio - 1)
    block = Architecture(12.0, width, 12.0, 12.0, 64.0, 4 * width, 0.0, matrices=2.0)
    scores = 12 * float(attention_flop(tokens, tokens, 64.0, 64.0, heads=12.0, causal=False)) / tokens
    assert 1 + scores / (2 * float(block.n_compute)) == pytest.approx(ratio, rel=1e-12)


def test_v51_causal_attention_that_is_not_square():
    """4 queries of 8, 10 keys of 8 with values of 16: 1,632 exact; 1,536 by the other convention; 1,920 unmasked."""
    assert float(attention_flop(4.0, 10.0, 8.0, 16.0)) == 1632
    assert float(attention_flop(4.0, 10.0, 8.0, 16.0, causal=False)) == 1920
    pairs = 4 * (10 - 4) + 4**2 / 2
    assert 2 * pairs * (8 + 16) == 1536


def test_v54_a_multiply_add_is_2_flop():
    assert float(forward_flop_per_token(model_of(1e9, 1.0), 1.0)) == 2e9


def test_v95_parameters_flop_and_cache_come_from_one_place():
    """An expansion of the feed-forward part moves all of them; a factor 2 on 2/3 of a block."""
    wide = replace(LLAMA_2_7B, d_ff=2 * LLAMA_2_7B.d_ff)
    more = 32 * 3 * 4096 * 11008
    assert float(wide.n_total - LLAMA_2_7B.n_total) == more
    assert float(wide.shape().n_compute) - float(LLAMA_2_7B.shape().n_compute) == more
    flops = [float(forward_flop_per_token(m.shape(), 128.0)) for m in (wide, LLAMA_2_7B)]
    assert flops[0] - flops[1] == pytest.approx(2 * more, rel=1e-12)
    assert float(wide.shape().total_bytes(2.0)) == 2 * float(wide.n_total)


def test_v96_every_second_layer_has_two_of_eight_experts():
    """(interval - 1 + topk)/interval = 1.5 of the dense feed-forward part, where the script had 1.0."""
    dense = replace(LLAMA_2_7B, vocab=0.0)
    mixed = replace(dense, moe_layers=16.0, experts=8.0, experts_active=2.0, d_expert=11008.0)
    router, part = 16 * 8 * 4096, 32 * 3 * 4096 * 11008
    attention = float(dense.n_compute) - part
    assert (float(mixed.n_compute) - attention - router) / part == pytest.approx(1.5, rel=1e-12)


def test_v97_parameters_of_llama_2_70b():
    """68.98B; 55.29B from a width of 32,768 with two matrices and tied embeddings."""
    assert float(LLAMA_2_70B.n_total) == pytest.approx(68.98e9, rel=5e-3)
    assert float(replace(LLAMA_2_70B, d_ff=32768.0, matrices=2.0, tied=True).n_total) == pytest.approx(
        55.29e9, rel=1e-3
    )


# --- KV cache ---


def test_v59_latent_cache():
    """61 x (512 + 64) x 2; the first fix's 2 L d_c would be 1.78 times as much."""
    assert cache_bytes(shape(MODELS["deepseek-v3"])) == 70272
    assert cache_bytes(architecture(MODELS["deepseek-v3"]).shape()) == 70272
    assert pytest.approx(1.78, rel=2e-3) == 2 * 61 * 512 * 2 / 70272


def test_v62_llama_2_7b():
    assert cache_bytes(LLAMA_2_7B.shape()) == 524288


def test_v63_v64_llama_3_8b():
    """131,072 B a token; from the hidden width, 2 x 32 x 4096 x 2, 4 times as much."""
    model = architecture(MODELS["llama-3.1-8b"])
    assert cache_bytes(model.shape()) == 131072
    assert 2 * model.layers * model.d_model * 2 / cache_bytes(model.shape()) == 4
    assert float(model.kv_elements) == 8 * (128 + 128)  # heads x (key + value)


def test_v65_36_layers_of_8_kv_heads():
    model = Architecture(36.0, 4096.0, 32.0, 8.0, 128.0, 12288.0, 151936.0).shape()
    assert cache_bytes(model, 32768.0) == 4.5 * GIB
    assert cache_bytes(model, 262144.0) == 36 * GIB


def test_v74_traffic_of_attention_is_linear_in_the_sequence():
    chip, model = Accelerator(1e15, 80e9, 3e12), shape(MODELS["llama-3.1-8b"])
    reads = [float(decode_step(model, serving(chip, context=t)).cache_s) for t in (1e4, 2e4, 4e4)]
    assert reads[1] / reads[0] == pytest.approx(2, rel=1e-12)
    assert reads[2] / reads[0] == pytest.approx(4, rel=1e-12)


# --- batches and contexts beyond memory ---


def test_v66_capacity_is_stated_with_dtype_and_share_of_memory():
    """108 KiB a token: half the bytes of an element hold twice the sequences; the usable share is an argument."""
    chip = Accelerator(1e15, 80 * GIB, 3e12)
    model = model_of(40 * GIB, 108 * 1024 / 2)  # elements of 2 bytes
    pool = (80 * 0.9 - 40) * GIB
    for size in (2.0, 1.0):
        op = serving(chip, context=4096.0, bytes_per_kv_element=size, usable_memory=0.9)
        assert largest_batch(model, op) == math.floor(pool / (108 * 1024 / 2 * size * 4096))
    assert largest_batch(model, serving(chip, context=4096.0, usable_memory=0.5)) == 0


def test_v68_longest_context_that_fits():
    """24 GiB needed for a context, 9.97 GiB available: 9.97/24 of it fits."""
    context = 131072.0
    model = model_of(10 * GIB, 24 * GIB / context)
    op = serving(Accelerator(1e15, 19.97 * GIB, 3e12), context=context, usable_memory=1.0)
    assert float(free_bytes(model, op)) == pytest.approx((9.97 - 24) * GIB, rel=1e-9)
    assert largest_context(model, op) == math.floor(context * 9.97 / 24)


def test_v70_weights_cache_and_reserve_stay_within_memory():
    chip, model = Accelerator(1e15, 80e9, 3e12), shape(MODELS["llama-3.1-8b"])
    for share in (0.5, 0.9, 1.0):
        op = serving(chip, context=8192.0, bytes_per_weight=2.0, bytes_per_kv_element=2.0, usable_memory=share)
        batch = largest_batch(model, op)
        held = 2 * 8029995008 + batch * 131072 * 8192
        assert held <= share * 80e9 < held + 131072 * 8192


def test_v71_kimi_on_8_b200():
    """152 GiB of weights a chip, 0.92 of 179 GiB usable: of 96 sequences that took 179.9 GiB, at most 43 fit.

    The report has 17 to 29: it also subtracts activations, whose size the row does not give.
    """
    each = (179.9 - 152) * GIB / 96
    model = model_of(8 * 152 * GIB, 8 * each)
    op = serving(Accelerator(1e15, 179 * GIB, 8e12), chips=8.0, batch=96.0, usable_memory=0.92)
    assert float(free_bytes(model, op)) < 0
    largest = largest_batch(model, op)
    assert largest == math.floor((179 * 0.92 - 152) / (27.9 / 96)) == 43
    assert 29 <= largest < 96
    assert pytest.approx(4.6, rel=2e-3) == 883.7 / 192.4


def test_v80_experts_that_are_read():
    """91.3% of 936 GB/s is 854; one token reads active weights, so no bandwidth above the peak comes out."""
    assert pytest.approx(854, rel=1e-3) == 0.9124 * 936
    chip, model = Accelerator(1e15, 24e9, 936e9), shape(MODELS["qwen3-30b-a3b"])
    for batch in (1.0, 8.0, 64.0, 4096.0):
        read = float(model.weight_bytes(jnp.asarray(batch), 0.5))
        step = decode_step(model, serving(chip, batch=batch, bytes_per_weight=0.5, memory_efficiency=0.9124))
        assert read / (float(step.weights_s) * 936e9) == pytest.approx(0.9124, rel=1e-12)
        assert read <= float(model.total_bytes(0.5))
    one = float(model.weight_bytes(jnp.asarray(1.0), 0.5))
    assert one == pytest.approx(0.5 * 3352821760, rel=1e-9)
    assert float(model.total_bytes(0.5)) / one > 4.18  # resident weights over the time of active ones: beyond the peak


# --- idle chips ---


@pytest.mark.parametrize("duty", [1.0, 0.5, 0.2])
def test_v76_v84_idle_chips_are_paid_for_by_an_overhead(duty: float):
    """Demand over peak is no efficiency of a step: it divides, as an overhead of 1/duty; both figures can be had."""
    costs = {name: Costs(*[PhaseCost(6.0, 1.0)] * 2, *[PhaseCost(2.0, Constant(extra))] * 2, 1e12)
             for name, extra in (("used", 1.0), ("allocated", 1 / duty))}  # fmt: skip
    used, allocated = (float(costs[name].rates(jnp.log(1e10)).k) for name in costs)
    assert allocated == pytest.approx(used / duty, rel=1e-12)
    assert 1 - used / allocated == pytest.approx(1 - duty, abs=1e-12)  # the idle share


def test_every_row_of_these_numbers_is_accounted_for():
    tested = {part.upper() for name in globals() if name.startswith("test_v") for part in name.split("_")
              if part[0] == "v" and part[1:].isdigit()}  # fmt: skip
    assert {row for row in MINE if row in ROWS} == tested | {*NOT_HERE}
