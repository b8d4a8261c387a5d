"""The roofline by name against sums done by hand, and what it refuses."""

import json
import math

import equinox as eqx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator import catalog
from allocator.errors import CatalogError
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.calibration import SERVING
from allocator.roofline.step import decode_step
from allocator.rooflines import roofline

# Llama 3.1 70B: 80 layers of 8192, 64 heads of 128, 8 of them for keys and values, 28672, vocabulary 128256 twice.
LAYER = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
TABLE = 128256 * 8192
TOTAL, MULTIPLYING = 80 * LAYER + 2 * TABLE, 80 * LAYER + TABLE
H100 = {"flop": 989e12, "bytes": 3.35e12, "link": 450e9, "hbm": 80e9, "usd": 2.95}


@pytest.fixture(scope="module")
def llama():
    return roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=64, context=4096, prompt=2048)


def test_decode_of_llama_by_hand(llama):
    step, n = llama.decode, 8
    assert llama.layout.tensor == 8
    weights = 2 * TOTAL / n / H100["bytes"]
    cache = 64 * 4096 * (2 * 80 * 8 * 128 * 2) / n / H100["bytes"]
    network = 160 * 2 * 7 / 8 * (64 * 8192 * 2) / H100["link"]
    for got, want in (
        (step.weights_s, weights),
        (step.cache_s, cache),
        (step.linear_s, 64 * 2 * MULTIPLYING / n / H100["flop"]),
        (step.attention_s, 64 * 4096 * 4 * 128 * 64 * 80 / n / H100["flop"]),
        (step.network_s, network),
    ):
        assert float(got) == pytest.approx(want, rel=1e-5)  # the catalogue's count has the norms too
    assert llama.step_time_s == pytest.approx(weights + cache, rel=1e-5)
    assert llama.binding == "memory"
    assert llama.tokens_per_s_per_chip == pytest.approx(64 / (weights + cache) / 8, rel=1e-5)
    assert llama.usd_per_mtok == pytest.approx(2.95 / 3600 * 8 * (weights + cache) / 64 * 1e6, rel=1e-5)
    assert llama.mfu == pytest.approx(2 * MULTIPLYING * 64 / (8 * H100["flop"] * (weights + cache)), rel=1e-5)


def test_three_forms_of_overlap_by_hand(llama):
    step = llama.decode
    parts = [float(getattr(step, f"{name}_s")) for name in ("weights", "cache", "linear", "attention", "network")]
    weights, cache, linear, _, network = parts
    assert float(step.total_s("none")) == pytest.approx(sum(parts), rel=1e-12)
    assert float(step.total_s("book")) == pytest.approx(cache + max(weights, linear, network), rel=1e-12)


def test_prefill_of_llama_by_hand(llama):
    flop = 2048 * (2 * MULTIPLYING + 4 * 128 * 64 * 80 * 1024.5)
    assert llama.to_dict()["ttft_s"] == pytest.approx(flop / 8 / H100["flop"], rel=1e-5)
    want = 2.95 / 3600 * 8 * flop / 8 / H100["flop"] / 2048 * 1e6
    assert llama.usd_per_mtok_prompt == pytest.approx(want, rel=1e-5)


def test_capacity_of_llama_by_hand(llama):
    room = 8 * 0.9 * H100["hbm"] - 2 * TOTAL
    per_token = 2 * 80 * 8 * 128 * 2
    assert llama.max_batch == math.floor(room / (4096 * per_token))
    assert llama.max_context == math.floor(room / (64 * per_token))
    memory = llama.memory
    assert memory["weights_bytes"] == pytest.approx(2 * TOTAL / 8, rel=1e-5)
    assert memory["cache_bytes"] == 64 * 4096 * per_token / 8
    assert memory["free_bytes"] == pytest.approx(72e9 - memory["weights_bytes"] - memory["cache_bytes"], rel=1e-12)


def test_expected_is_the_calibration_by_hand(llama):
    step = llama.decode
    memory, compute = float(step.memory_s), float(step.compute_s)
    assert llama.expected_step_s == pytest.approx(80 * 0.09e-3 + max(memory / 0.67, compute / 0.43), rel=1e-12)
    band = llama.band
    assert band["low_s"] == pytest.approx(max(SERVING.apart.low * band["expected_s"], llama.step_time_s))
    assert band["low_s"] < band["expected_s"] < band["high_s"]


@pytest.mark.parametrize(
    ("hardware", "model", "chips", "context", "more"),
    [("h200-sxm", "qwen3-235b-a22b", 8, 512, {"dtype": "fp8"}),
     ("h200-sxm", "qwen3-235b-a22b", 16, 300, {"dtype": "fp8"}),
     ("h100-sxm", "mixtral-8x7b", 8, 512, {}), ("h100-sxm", "mixtral-8x7b", 8, 512, {"tensor": 1, "expert": 8}),
     ("h200-sxm", "deepseek-v3", 8, 1024, {"dtype": "fp8", "tensor": 1, "expert": 8}),
     ("tpu-v5e", "gpt-oss-120b", 64, 400, {"tensor": 8, "expert": 64}),
     ("h100-sxm", "llama-3.1-70b", 8, 512, {"pipeline": 2})],
)  # fmt: skip
def test_at_the_critical_batch_of_a_layout_both_terms_are_equal(hardware, model, chips, context, more):
    """Against the step itself, whose layout copies caches and gives each group its own sequences."""
    at = roofline(hardware, model, chips=chips, context=context, **more)
    assert 1 < at.critical_batch < 1e7

    def terms(factor: float) -> tuple[float, float]:
        op = eqx.tree_at(lambda o: o.batch, at.operation, factor * at.critical_batch)
        step = decode_step(at.shape, op, at.layout)
        return float(step.memory_s), float(step.compute_s)

    memory, compute = terms(1.0)
    assert memory == pytest.approx(compute, rel=1e-6)
    assert terms(1.5)[0] < terms(1.5)[1]  # above it arithmetic takes longer


def test_critical_batch_of_deepseek_is_none_where_its_cache_is_copied():
    """8 H200 in fp8, 4,096 tokens, tensor 4: a chip reads 35,136 x 4,096 bytes a sequence and multiplies for a quarter.

    bw/F x flop = 4.8e12/1979e12 x (2 x 36.6e9 of which dense parts a quarter and experts an eighth ...) stays below it.
    """
    at = roofline("h200-sxm", "deepseek-v3", chips=8, batch=64, dtype="fp8", tensor=4, expert=8)
    assert at.critical_batch == math.inf
    op = eqx.tree_at(lambda o: o.batch, at.operation, 1e9)
    step = decode_step(at.shape, op, at.layout)
    assert float(step.memory_s) > float(step.compute_s)


def test_critical_batch_where_the_cache_is_short():
    """B* = W/[(2N + a c) bw/F - kv c], by hand at 512 tokens; none at 4,096, beyond 2 N bw/(F kv) = 1,436."""
    at = roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=1, context=512)
    ratio = H100["bytes"] / H100["flop"]
    slope = (2 * MULTIPLYING + 4 * 128 * 64 * 80 * 512) * ratio - 512 * 327680
    assert at.critical_batch == pytest.approx(2 * TOTAL / slope, rel=1e-4)
    assert roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=1).critical_batch == math.inf


def test_weights_of_four_bits_on_a_chip_without_four_bit_arithmetic():
    """Read at half a byte, multiplied at the fp8 peak, with a cache of 8 bits."""
    at, wide = (roofline("h100-sxm", "llama-3.1-70b", chips=4, batch=8, dtype="fp8", weight_dtype=weight, tensor=4)
                for weight in ("fp4", None))  # fmt: skip
    assert float(at.decode.weights_s) == pytest.approx(TOTAL / 2 / 4 / H100["bytes"], rel=1e-5)
    assert float(at.decode.weights_s) == pytest.approx(float(wide.decode.weights_s) / 2, rel=1e-12)
    assert float(at.decode.compute_s) == float(wide.decode.compute_s)
    assert (at.to_dict()["weight_dtype"], at.kv_dtype) == ("fp4", "fp8")
    assert roofline("b200-sxm", "llama-3.1-8b", dtype="fp4").kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("hardware", "model", "codes"),
    [("h100-sxm", "llama-3.1-70b", set()), ("mi300x", "llama-3.1-70b", {"outside_calibration"}),
     ("tpu-v5p", "llama-3.1-70b", {"outside_calibration"}), ("h100-sxm", "llama-3.1-8b", {"outside_calibration"}),
     ("h20-sxm", "llama-3.1-70b", {"outside_calibration", "unverified_chip"})],
)  # fmt: skip
def test_what_was_not_measured_and_not_verified_is_told(hardware, model, codes):
    """mi300x is verified, with a remark after the word."""
    at = roofline(hardware, model, chips=8, context=512)
    assert {warning["code"] for warning in at.warnings} == codes


def test_copies_that_the_number_of_chips_forces_are_told():
    """72 = 8 x 9 and 256 = 8 x 32: 8 ways at most; 64 chips hold 4 experts of a layer each."""
    at = roofline("gb200-nvl72", "deepseek-v3", chips=72, batch=72, dtype="fp8")
    (told,) = [warning for warning in at.warnings if warning["code"] == "weights_copied"]
    assert told["value"] == 9
    assert "64 chips cut them 64 ways" in told["message"]
    for chips in (64, 32):
        at = roofline("gb200-nvl72", "deepseek-v3", chips=chips, batch=chips, dtype="fp8")
        assert "weights_copied" not in {warning["code"] for warning in at.warnings}


def test_an_own_chip_model_and_price(llama):
    """The catalogue's figures as objects give the catalogue's answer."""
    chip = Accelerator(H100["flop"], H100["hbm"], H100["bytes"], 8.0, H100["link"], 50e9, usd_per_chip_hour=1.0)
    own = roofline(chip, llama.shape, chips=8, batch=64, context=4096, prompt=2048, usd_per_chip_hour=2 * H100["usd"])
    assert (own.hardware, own.model) == ("own", "own")
    assert own.step_time_s == pytest.approx(llama.step_time_s, rel=1e-12)
    assert own.usd_per_mtok == pytest.approx(2 * llama.usd_per_mtok, rel=1e-12)
    assert own.expected_usd_per_mtok == pytest.approx(2 * H100["usd"] / 3600 * 8 * own.expected_step_s / 64 * 1e6)
    assert [warning["code"] for warning in own.warnings] == ["outside_calibration"]
    json.dumps(own.to_dict(), allow_nan=False)


def test_kimi_on_8_b200_is_capped_by_memory():
    """96 sequences were once predicted where 17 to 29 fit; here 8-bit, each chip a group with its own caches."""
    routed = 60 * 384 * 3 * 7168 * 2048
    total = catalog.find("models", "kimi-k2").fields["n_total_computed"]
    assert isinstance(total, float)
    room = 0.9 * 180e9 - (total - routed) - routed / 8
    each = math.floor(room / (131072 * 61 * (512 + 64)))
    assert 8 * each == 40
    with pytest.raises(
        CatalogError, match=r"^roofline\.batch: got 96; at 131072 tokens the largest batch that fits is 40"
    ):
        roofline("b200-sxm", "kimi-k2", chips=8, batch=96, context=131072, dtype="fp8", tensor=1, expert=8)
    fits = roofline("b200-sxm", "kimi-k2", chips=8, batch=40, context=131072, dtype="fp8", tensor=1, expert=8)
    assert fits.max_batch == 40
    assert fits.memory["free_bytes"] >= 0


def test_a_sequence_stays_in_its_group():
    """One sequence in eight groups takes as long as eight of them; a prompt is not divided."""
    few, many = (roofline("h200-sxm", "llama-3.1-8b", chips=8, batch=batch, tensor=1) for batch in (1, 8))
    assert few.step_time_s == many.step_time_s
    assert few.memory == many.memory
    one = roofline("h200-sxm", "llama-3.1-8b", chips=1, batch=1)
    assert few.to_dict()["ttft_s"] == pytest.approx(one.to_dict()["ttft_s"], rel=1e-12)
    assert few.usd_per_mtok_prompt == pytest.approx(one.usd_per_mtok_prompt, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "kimi-k2"]),
    st.sampled_from(["h100-sxm", "h200-sxm", "b200-sxm"]), st.sampled_from([1, 2, 8, 16]),
    st.sampled_from(["bf16", "fp8"]), st.integers(1, 4000), st.integers(1, 131072), st.sampled_from([1, 2]),
)  # fmt: skip
def test_what_is_returned_fits_in_memory(model, chip, chips, dtype, batch, context, pipeline):
    try:
        found = roofline(chip, model, chips=chips, batch=batch, context=context, dtype=dtype, pipeline=pipeline)
    except CatalogError as error:
        fitting = str(error).partition("largest batch that fits is ")[2].partition(",")[0]
        assert not fitting or int(fitting) < batch
        return
    memory = found.memory
    assert memory["weights_bytes"] + memory["cache_bytes"] <= memory["usable_bytes"] * (1 + 1e-9)
    assert batch <= found.max_batch
    assert context <= found.max_context
    assert found.step_time_s <= float(found.decode.total_s("book")) <= float(found.decode.total_s("none"))
    numbers = json.dumps(found.to_dict(), allow_nan=False)
    assert "NaN" not in numbers


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hardware": "a100-80gb-sxm", "dtype": "fp8"}, "no dense fp8 peak is on record; it has bf16, int8"),
        ({"dtype": "fp64"}, "roofline.dtype: 'fp64' must be one of bf16, fp8, int8, fp4"),
        ({"dtype": "fp4"}, "for fp4 weights that are multiplied in fp8: dtype fp8, weight_dtype fp4"),
        ({"dtype": "fp8", "weight_dtype": "bf16"}, "roofline.weight_dtype: got bf16; must not be wider than"),
        ({"usd_per_chip_hour": 0}, "roofline.usd_per_chip_hour: got 0; must be a number > 0"),
        ({"prompt": 131000, "output": 500}, "roofline.output: got 500 after a prompt of 131000; llama-3.1-70b takes"),
        ({"kv_dtype": "fp3"}, "roofline.kv_dtype: 'fp3' must be one of bf16, fp8, int8, fp4"),
        ({"hardware": "gb200-nvl72-rack"}, "is a rack; a roofline wants the chip"),
        ({"hardware": "h100"}, "hardware: 'h100' is not known; did you mean h100-sxm"),
        ({"batch": 0}, "roofline.batch: got 0; must be a whole number >= 1"),
        ({"batch": math.nan}, "roofline.batch: got nan; must be a whole number >= 1"),
        ({"chips": 1.5}, "roofline.chips: got 1.5; must be a whole number >= 1"),
        ({"prompt": 0}, "roofline.prompt: got 0; must be a whole number >= 1"),
        ({"tensor": 3}, "roofline.tensor: got 3; must divide the 8 chips of a stage"),
        ({"chips": 128, "tensor": 128}, "roofline.tensor: got 128; must divide the model's 64 query heads"),
        ({"expert": 2}, "roofline.expert: got 2; must be 1"),
        ({"pipeline": 3}, "roofline.pipeline: got 3; must divide the 8 chips"),
        ({"pipeline": 0}, "roofline.pipeline: got 0; must be a whole number >= 1"),
        ({"context": 131073}, "roofline.context: got 131073; llama-3.1-70b takes at most 131072 tokens"),
        ({"prompt": 131073, "context": 4096}, "roofline.prompt: got 131073; llama-3.1-70b takes at most 131072 tokens"),
        ({"chips": 1}, "roofline.chips: got 1; at least 2 are needed in bf16: weights alone take 141.1 of 72.0"),
        ({"tensor": 1}, "roofline.tensor: got 1; weights alone take 141.1 of 72.0 usable GB a chip; with degrees not"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(changed, said: str):
    with pytest.raises(CatalogError) as caught:
        roofline(**({"hardware": "h100-sxm", "model": "llama-3.1-70b", "chips": 8} | changed))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
