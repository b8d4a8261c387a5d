"""The roofline by name against sums done by hand, and what it refuses."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator import catalog
from allocator.errors import CatalogError
from allocator.roofline.calibration import SERVING
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
    flop = 2048 * (2 * MULTIPLYING + 4 * 128 * 64 * 80 * 1024)
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
    assert llama.expected_step_s == pytest.approx(80e-4 * 1.0 + max(memory / 0.65, compute / 0.36), rel=1e-12)
    band = llama.band
    assert band["low_s"] == pytest.approx(max(SERVING.low * band["expected_s"], llama.step_time_s))
    assert band["low_s"] < band["expected_s"] < band["high_s"]


def test_critical_batch_where_the_cache_is_short():
    """B* = W/[(2N + a c) bw/F - kv c], by hand at 512 tokens; none at 4,096, beyond 2 N bw/(F kv) = 1,436."""
    at = roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=1, context=512)
    ratio = H100["bytes"] / H100["flop"]
    slope = (2 * MULTIPLYING + 4 * 128 * 64 * 80 * 512) * ratio - 512 * 327680
    assert at.critical_batch == pytest.approx(2 * TOTAL / slope, rel=1e-4)
    assert roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=1).critical_batch == math.inf


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
        ({"dtype": "fp64"}, "dtype: 'fp64' is not known, must be one of bf16, fp8, fp4, int8"),
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
        ({"prompt": 131073}, "roofline.prompt: got 131073; llama-3.1-70b takes at most 131072 tokens"),
        ({"chips": 1}, "roofline.batch: got 1; weights alone take 141.1 of 72.0 usable GB a chip"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(changed, said: str):
    with pytest.raises(CatalogError) as caught:
        roofline(**({"hardware": "h100-sxm", "model": "llama-3.1-70b", "chips": 8} | changed))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
