"""Crossovers against the step's own terms, published figures and central differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slopes import assert_slopes

from allocator import catalog
from allocator.roofline.accelerator import Accelerator, accelerator
from allocator.roofline.crossovers import (
    attention_equals_weights_context,
    balanced_cache_bytes,
    balanced_context,
    critical_batch,
    flop_per_byte,
)
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.price_steps import price_steps
from allocator.roofline.shape import Dimensions, Shape, shape
from allocator.roofline.step import decode_step

MODELS = {record.name: record for record in catalog.entries("models")}
CHIPS = {record.name: record for record in catalog.entries("hardware")}
PLAIN = Dimensions(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0)


def dense(n: float, kv: float, attention: float) -> Shape:
    return Shape(n, n, 0.0, 1.0, kv, 0.0, 0.0, attention, 0.0, n, PLAIN)


@pytest.mark.parametrize(("chip", "dtype", "bytes_"), [("h100-sxm", "fp8", 1693), ("h100-sxm", "bf16", 3387)])
def test_cache_bytes_at_200k_of_100b(chip: str, dtype: str, bytes_: float):
    """2 N bw/(F c) in the catalogue's figures, and the note of P02 (lecture_claims.csv): fp8 1,693, bf16 3,387."""
    r = flop_per_byte(accelerator(CHIPS[chip], dtype))
    assert float(balanced_cache_bytes(1e11, 2e5, r)) == pytest.approx(bytes_, rel=5e-4)


def test_cache_bytes_of_b200_in_fp4():
    """The note of P02: 889, at 8.0 TB/s."""
    assert float(balanced_cache_bytes(1e11, 2e5, 9e15 / 8e12)) == pytest.approx(889, rel=1e-3)


def test_efficiencies_move_the_ratio():
    chip = Accelerator(6e14, 8e10, 1e12)
    assert float(flop_per_byte(chip)) == 600
    assert float(flop_per_byte(chip, compute_efficiency=0.5, memory_efficiency=0.6)) == pytest.approx(500, rel=1e-14)


@given(st.floats(1e9, 1e12), st.floats(1e2, 1e6), st.floats(0, 1e6), st.floats(10, 1e5), st.floats(100, 2000))
def test_reading_equals_arithmetic_where_they_cross(n, kv, attention, context, r):
    """Against decode_step, which knows nothing of crossovers."""
    chip = Accelerator(r * 1e12, 1e30, 1e12)

    def terms(batch, context):
        op = Operation(chip, 1.0, batch, context, 2.0, 2.0)
        step = decode_step(dense(n, kv / 2, attention), op)
        return float(step.memory_s), float(step.compute_s)

    extra = {"attention_flop": attention}
    batch = float(critical_batch(2 * n, n, r, kv_bytes_per_token=kv, context=context, **extra))
    if math.isfinite(batch):
        memory, compute = terms(batch, context)
        assert memory == pytest.approx(compute, rel=1e-9)
        back = float(balanced_context(n, kv, r, weight_bytes=2 * n, batch=batch, **extra))
        if math.isfinite(back) and kv > 1.01 * attention / r and batch > 1.01 * r:
            assert back == pytest.approx(context, rel=1e-4)
    else:
        memory, compute = terms(1e12, context)
        assert memory >= compute * (1 - 1e-6)
    same = float(balanced_cache_bytes(n, context, r, weight_bytes=2 * n, batch=4 * r, **extra))
    assert float(critical_batch(2 * n, n, r, kv_bytes_per_token=same, context=context, **extra)) == pytest.approx(
        4 * r, rel=1e-6
    )


def test_limits():
    n, r, kv = 1e11, 600.0, 1667.0
    assert float(critical_batch(2 * n, n, r)) == pytest.approx(600, rel=1e-12)  # bf16: r x 2/2
    assert float(balanced_context(n, kv, r)) == pytest.approx(2e5, rel=1e-3)
    assert float(balanced_context(n, kv, r, weight_bytes=2 * n, batch=100.0)) == 0  # weights bind already
    assert float(balanced_context(n, kv, r, attention_flop=2 * kv * r)) == math.inf
    assert float(critical_batch(2 * n, n, r, kv_bytes_per_token=kv, context=2.1e5)) == math.inf
    assert float(balanced_cache_bytes(n, 2e5, r, ratio=1.5)) == pytest.approx(2500, rel=1e-12)


def test_attention_equals_weights():
    """54k for Llama-3-70B, the recomputed P07: (2 x 70.55e9 - 2 x 1.05e9)/(4 x 128 x 64 x 80)."""
    llama = shape(MODELS["llama-3.1-70b"])
    want = 2 * (70552387584 - 128256 * 8192) / (4 * 128 * 64 * 80)
    assert float(attention_equals_weights_context(llama)) == pytest.approx(want, rel=1e-12)
    assert want == pytest.approx(54e3, rel=0.02)
    assert float(attention_equals_weights_context(llama, causal=True)) == pytest.approx(2 * want - 1, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_at_that_context_the_step_s_terms_are_equal(name: str):
    """Windows (Gemma, gpt-oss, Llama 4) included."""
    model = shape(MODELS[name])
    context = float(attention_equals_weights_context(model))
    step = decode_step(model, Operation(Accelerator(1e15, 8e10, 1e12), 1.0, 1.0, context, 1.0, 1.0))
    assert float(step.attention_s) == pytest.approx(float(step.linear_s), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_in_a_sequence_of_that_length_so_are_the_terms_of_a_prefill(name: str):
    """Its pairs of query and key counted exactly, windows included."""
    model = shape(MODELS[name])
    length = float(attention_equals_weights_context(model, causal=True))
    step = prefill_step(model, Operation(Accelerator(1e15, 8e10, 1e12), 1.0, 1.0, length, 1.0, 1.0))
    assert float(step.attention_s) == pytest.approx(float(step.linear_s), rel=1e-12)


def test_windows_alone_never_equal_the_weights():
    model = Shape(1e9, 1e9, 0.0, 1.0, 1.0, 1.0, 100.0, 0.0, 1e3, 1e9, PLAIN)
    assert float(attention_equals_weights_context(model)) == math.inf


# --- price lists ---


def test_gemini_s_price_step():
    """P01: output +50% beyond 200k; input doubles, which the lecture does not say."""
    steps = {(step.model, step.date): step for step in price_steps()}
    for model in ("gemini/gemini-2.5-pro", "gemini/gemini-3.1-pro-preview"):
        step = steps[model, "2026-11-20"]
        assert (step.context, step.input_ratio, step.output_ratio) == (2e5, 2.0, 1.5)
    assert steps["gemini/gemini-3.1-pro-preview", "2026-11-20"].output_over_input == 6.0
    # Step and level together: output costs ratio x arithmetic at the step, where price is cost and 100B compute.
    assert float(balanced_cache_bytes(1e11, 2e5, 600.0, ratio=1.5)) == pytest.approx(2500, rel=1e-12)


def test_steps_are_rises_of_listed_models():
    steps = price_steps()
    assert len(steps) > 20
    for step in steps:
        assert step.context in {1e5, 1.28e5, 2e5, 2.72e5, 5.12e5}
        assert min(step.input_ratio, step.output_ratio) >= 1


def test_gradients_match_central_differences():
    def total(x):
        n, kv, c, r, w, a, b = jnp.exp(x)
        keep = {"attention_flop": 1e-3 * a}
        weights = {"weight_bytes": 1e-3 * w, "batch": 10 * b}
        return (balanced_context(n, kv, r, **weights, **keep) + balanced_cache_bytes(n, c, r, **weights, **keep)
                + critical_batch(w, 100 * n, r, kv_bytes_per_token=kv, context=c, **keep)
                + attention_equals_weights_context(dense(n, kv, a)))  # fmt: skip

    x = jnp.log(jnp.asarray([50.0, 2.0, 3.0, 5.0, 7.0, 11.0, 13.0]))
    assert_slopes(total, x, rel=1e-6, abs=1e-9)
    beyond = jax.grad(lambda c: jnp.minimum(critical_batch(1.0, 1.0, 1.0, kv_bytes_per_token=1.0, context=c), 5.0))(9.0)
    assert np.isfinite(float(beyond))


def test_vmap_over_contexts():
    contexts = jnp.asarray([1e3, 1e4, 1e5])
    found = jax.vmap(lambda c: critical_batch(2e11, 1e11, 600.0, kv_bytes_per_token=1000.0, context=c))(contexts)
    want = [2e11 / (2e11 / 600 - c * 1000) for c in (1e3, 1e4, 1e5)]
    assert found.tolist() == pytest.approx(want, rel=1e-12)
