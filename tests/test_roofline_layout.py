"""Layouts and collectives against published sums, and the calculus of the step time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator import catalog
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.collectives import all_reduce_s, all_to_all_s, crossing_share
from allocator.roofline.layout import Layout
from allocator.roofline.memory import cache_bytes_per_chip, weight_bytes_per_chip
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.shape import shape
from allocator.roofline.step import decode_step

LLAMA, DEEPSEEK = (shape(catalog.find("models", name)) for name in ("llama-3.1-70b", "deepseek-v3"))
SHAPES = {"dense": LLAMA, "experts": DEEPSEEK, "windows": shape(catalog.find("models", "gpt-oss-120b"))}


def chip(inside: float = 8.0, up: float = 450e9, out: float = 50e9) -> Accelerator:
    return Accelerator(989e12, 80e9, 3.35e12, inside, up, out)


def operation(batch=64.0, context=4096.0, chips=8.0, **more) -> Operation:
    return Operation(chip(**more), chips, batch, context, 2.0, 2.0)


def test_deepseek_s_exchange():
    """DeepSeek-V3 (arXiv 2505.09343, section 4.3): 32 tokens, 9 destinations, 7k wide, fp8 out, bf16 back: 121 us."""
    once = float(all_to_all_s(chip(inside=256.0, up=50e9), 32.0, jnp.asarray(32.0), 9.0, 7000.0, 3.0))
    assert once == pytest.approx(120.96e-6, rel=1e-12)
    assert 2 * 61 * once == pytest.approx(14.76e-3, rel=1e-3)
    fast = float(all_to_all_s(chip(inside=256.0, up=900e9), 32.0, jnp.asarray(32.0), 9.0, 7000.0, 3.0))
    assert 2 * 61 * fast == pytest.approx(0.82e-3, rel=1e-3)


def test_one_chip_exchanges_nothing():
    assert float(all_to_all_s(chip(), 1.0, jnp.asarray(32.0), 9.0, 7000.0, 3.0)) == 0
    lone = decode_step(LLAMA, operation(chips=1.0, batch=1.0), Layout())
    assert float(lone.network_s) == 0


@pytest.mark.parametrize(("chips", "share"), [(4, 0), (8, 0), (16, 0.5), (32, 0.75), (72, 1 - 1 / 9)])
def test_share_that_leaves_the_domain(chips: float, share: float):
    """1 - 1/domains of uniform traffic."""
    assert float(crossing_share(chips, 8.0)) == pytest.approx(share, abs=1e-15)


def test_traffic_that_leaves_goes_at_scale_out_speed():
    sent = 32 * 9 * 7000 * 3
    got = float(all_to_all_s(chip(), 16.0, jnp.asarray(32.0), 9.0, 7000.0, 3.0))
    assert got == pytest.approx(sent / 2 / 50e9, rel=1e-12)  # half leaves, and is the slower half


def test_all_reduce_inside_and_beyond_a_domain():
    """2 (n - 1)/n of the payload over each link; between two domains each chip's eighth goes there and back."""
    payload = jnp.asarray(1e6)
    assert float(all_reduce_s(chip(), 8.0, payload)) == pytest.approx(2 * 7 / 8 * 1e6 / 450e9, rel=1e-12)
    beyond = float(all_reduce_s(chip(), 16.0, payload)) - float(all_reduce_s(chip(inside=16.0), 16.0, payload))
    assert beyond == pytest.approx(1e6 / 8 * 2 * 0.5 / 50e9, rel=1e-9)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_pipeline_stages_cancel_in_the_cache(stages: int, expert: int, micro: int):
    """(N_total + B len bytes)/(E P) with B = P b: N_total/(E P) + b len bytes/E (the lecture, 01:03)."""
    op = Operation(chip(), float(stages * expert), float(stages * micro), 4096.0, 2.0, 2.0)
    layout = Layout(tensor=float(expert), pipeline=float(stages))
    weights, cache = float(weight_bytes_per_chip(LLAMA, op, layout)), float(cache_bytes_per_chip(LLAMA, op, layout))
    assert weights == pytest.approx(2 * float(LLAMA.n_shared) / (expert * stages), rel=1e-12)
    assert op.batch * cache == pytest.approx(micro * 4096 * 327680 / expert, rel=1e-12)


def test_heads_beyond_the_model_s_hold_copies():
    """8 KV heads on 16 chips: each holds one head's cache; a latent cache is not cut at all."""
    wide = Operation(chip(), 16.0, 1.0, 1000.0, 2.0, 2.0)
    assert float(cache_bytes_per_chip(LLAMA, wide, Layout(tensor=16.0))) == 1000 * 327680 / 8
    assert float(cache_bytes_per_chip(DEEPSEEK, wide, Layout(tensor=16.0))) == 1000 * 70272


def test_experts_are_read_where_they_lie():
    """DeepSeek, 64 tokens on 8 chips, each a group: all of the rest, an eighth of the experts touched."""
    routed = 58 * 256 * 3 * 7168 * 2048
    rest = 671025397760 - routed
    step = decode_step(DEEPSEEK, operation(), Layout(expert=8.0))
    want = 2 * (rest + routed * (1 - (31 / 32) ** 64) / 8) / 3.35e12
    assert float(step.weights_s) == pytest.approx(want, rel=1e-12)


def test_the_busiest_group_has_a_sequence():
    few, even, odd = (decode_step(LLAMA, operation(batch=b), Layout()) for b in (1.0, 8.0, 16.0))
    assert float(few.cache_s) == float(even.cache_s) == float(odd.cache_s) / 2
    assert float(few.linear_s) == pytest.approx(2 * float(LLAMA.n_compute) / 989e12, rel=1e-12)


LAYOUTS = {"tensor": Layout(tensor=8.0), "expert": Layout(tensor=2.0, expert=8.0), "stages": Layout(2.0, 1.0, 2.0)}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("phase", [decode_step, prefill_step])
@pytest.mark.parametrize("batch", [96.5, 97.5])
def test_gradients_equal_differences(name: str, layout: str, phase, batch: float):
    """Away from kinks, which whole numbers of sequences are, of the logs in batch and context."""

    def time(x):
        op = eqx.tree_at(lambda o: (o.batch, o.context), operation(), (jnp.exp(x[0]), jnp.exp(x[1])))
        return jnp.log(phase(SHAPES[name], op, LAYOUTS[layout]).step_s)

    at, step = jnp.log(jnp.asarray([batch, 3511.0])), 1e-5
    slope = np.asarray(jax.grad(time)(at))
    for i in range(2):
        unit = jnp.zeros(2).at[i].set(step)
        assert slope[i] == pytest.approx(float(time(at + unit) - time(at - unit)) / (2 * step), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_finite_at_kinks(layout: str):
    """A full window, one sequence a group, a whole domain, memory as slow as compute."""

    def time(values):
        op = eqx.tree_at(lambda o: (o.batch, o.context, o.chips), operation(), tuple(values))
        return decode_step(SHAPES["windows"], op, LAYOUTS[layout]).step_s

    for values in ([8.0, 128.0, 8.0], [1.0, 1.0, 8.0], [4.0, 128.0, 16.0]):
        assert np.isfinite(np.asarray(jax.grad(time)(jnp.asarray(values)))).all()

    def balanced(peak):
        op = eqx.tree_at(lambda o: o.chip.peak_flop_per_s, operation(), peak)
        return decode_step(LLAMA, op).step_s

    step = decode_step(LLAMA, operation())
    even = 989e12 * float(step.compute_s / step.memory_s)
    assert np.isfinite(float(jax.grad(balanced)(even)))


def test_one_call_for_many_configurations():
    batches, degrees = jnp.asarray([1.0, 8.0, 64.0, 512.0]), jnp.asarray([1.0, 2.0, 4.0, 8.0])

    def one(batch, tensor):
        op = eqx.tree_at(lambda o: o.batch, operation(), batch)
        return decode_step(LLAMA, op, Layout(tensor=tensor)).step_s

    together = jax.jit(jax.vmap(one))(batches, degrees)
    single = [float(one(float(b), float(t))) for b, t in zip(batches, degrees, strict=True)]
    np.testing.assert_allclose(together, single, rtol=1e-13)
