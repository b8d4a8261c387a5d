"""Limits of parallelism, memory and time of training against the book's figures, hand-worked sums and identities."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slopes import assert_slopes

from allocator import catalog
from allocator.roofline.accelerator import accelerator
from allocator.roofline.flop import attention_flop_per_token
from allocator.roofline.layout import Layout
from allocator.roofline.memory import cache_bytes_per_chip, weight_bytes_per_chip
from allocator.roofline.operation import Operation
from allocator.roofline.parallelism import (
    TrainingState,
    best_data_degree,
    data_parallel_limit,
    fewest_chips,
    gather_s,
    generation_tensor_limit,
    mixed_critical_tokens,
    pipeline_bubble,
    prefill_over_decode_servers,
    stage_bytes_per_chip,
    tensor_parallel_limit,
    training_bytes_per_chip,
    training_seconds,
    training_utilisation,
)
from allocator.roofline.shape import shape

LLAMA = shape(catalog.find("models", "llama-3.1-70b"))
H100 = accelerator(catalog.find("hardware", "h100-sxm"), "bf16")


def test_data_parallel_limit_of_shipped_chips():
    """Book, chapter on GPUs: H100 990e12/400e9 = 2,475 across nodes; from the catalogue in a node 989/450: 2,198."""
    assert float(data_parallel_limit(990e12, 400e9)) == 2475
    assert float(data_parallel_limit(H100.peak_flop_per_s, H100.scale_up_bytes_per_s)) == pytest.approx(2198, rel=1e-3)
    assert float(data_parallel_limit(990e12, 400e9, experts=128.0, experts_active=4.0)) == 79200


@given(st.floats(1, 100), st.floats(1, 1000))
def test_bubble_is_idle_time_over_time(stages: float, micro: float):
    """M micro-batches leave P stages after M + P - 1 ticks; each stage works M of them."""
    assert float(pipeline_bubble(stages, micro)) == pytest.approx(1 - micro / (micro + stages - 1), abs=1e-12)


def test_bubble_by_hand():
    assert float(pipeline_bubble(4.0, 8.0)) == pytest.approx(3 / 11, rel=1e-14)
    assert float(pipeline_bubble(1.0, 8.0)) == 0


def test_best_degree_makes_both_exchanges_equal():
    """With X ways of data, weights move 4 D F/(Y W M_X) and activations 4 B D/(X W M_Y): X = sqrt(M_X B N/(M_Y F))."""
    tokens, chips, width, mx, my = 4.19e6, 8960.0, 28672.0, 2.0, 1.0
    x = float(best_data_degree(tokens, chips, width, data_axes=mx, tensor_axes=my))
    y = chips / x
    assert width / (y * mx) == pytest.approx(tokens / (x * my), rel=1e-12)
    # There, exchange hides behind 4 B D F/(N C) from the critical batch on.
    alpha = 2550.0
    least = float(mixed_critical_tokens(width, alpha, 1.0, data_axes=mx, tensor_axes=my))
    x = float(best_data_degree(least * chips, chips, width, data_axes=mx, tensor_axes=my))
    exchange = 4 * width / (chips / x * mx) + 4 * least * chips / (x * my)
    arithmetic = 4 * least * width / alpha
    assert exchange == pytest.approx(arithmetic, rel=1e-12)


def test_state_by_hand():
    """8 x 1e9 parameters: 16, 16 and 96 GB; 8 ways: 2, 2, 12 GB; 32 layers of 4,096 x 2 B x 8,192 tokens: 2.147 GB."""
    state, more = TrainingState(), {"layers": 32.0, "d_model": 4096.0, "tokens": 8192.0}
    assert state.bytes_per_parameter == 16
    for sharded, want in ((0, (16, 16, 96)), (1, (16, 16, 12)), (2, (16, 2, 12)), (3, (2, 2, 12))):
        held = training_bytes_per_chip(state, 8e9, data=8.0, sharded=sharded, **more)
        assert [float(x) / 1e9 for x in held[:3]] == pytest.approx(want, rel=1e-14)
        assert float(held.activations) == 32 * 4096 * 2 * 8192
        assert float(held.total) == pytest.approx(sum(want) * 1e9 + 2147483648, rel=1e-14)
    cut = training_bytes_per_chip(state, 8e9, tensor=4.0, pipeline=2.0, **more)
    assert [float(x) / 1e9 for x in cut[:3]] == pytest.approx([2, 2, 12], rel=1e-14)
    assert float(cut.activations) == 2147483648 / 4  # P cancels


def test_fewest_chips():
    """U8: 700 GB of Llama-3-70B with Adam in 80 GB chips: 8.75, so 9."""
    assert float(fewest_chips(10 * 70e9, 80e9)) == 9
    assert float(fewest_chips(800e9, 80e9)) == 10
    assert float(fewest_chips(800e9, 80e9, usable_memory=0.9)) == 12
    assert float(fewest_chips(800e9 + 1, 80e9)) == 11


@pytest.mark.parametrize(("stages", "chips"), [(1.0, 64.0), (4.0, 64.0), (16.0, 64.0)])
def test_stage_identity_against_the_layouts_own_count(stages: float, chips: float):
    """M09: with E chips of a stage sharing everything; 8 KV heads let the cache be cut 8 ways by tensor."""
    tensor, micro = 8.0, 5.0
    per_stage = 8.0
    op = Operation(H100, per_stage * stages, micro * stages, chips * 100, 2.0, 2.0)
    layout = Layout(tensor=tensor, pipeline=stages)
    weights, cache = weight_bytes_per_chip(LLAMA, op, layout), cache_bytes_per_chip(LLAMA, op, layout)
    whole = float(LLAMA.kv_bytes(jnp.asarray(op.context), 2.0))
    want = stage_bytes_per_chip(2 * 70552387584, whole, micro, per_stage, stages)
    assert float(weights + op.batch * cache) == pytest.approx(float(want), rel=1e-12)


def test_training_time_with_and_without_attention():
    """6 x 70e9 x 15e12 FLOP on 4,096 x 990e12 x 0.45: 40 days (U9)."""
    plain = float(training_seconds(70e9, 15e12, 4096.0, 990e12, 0.45))
    assert plain / 86400 == pytest.approx(39.96, rel=1e-3)
    a = float(attention_flop_per_token(LLAMA, 8192.0))
    more = float(training_seconds(LLAMA.n_compute, 15e12, 4096.0, 990e12, 0.45, attention_flop_per_token=a))
    less = float(training_seconds(LLAMA.n_compute, 15e12, 4096.0, 990e12, 0.45))
    assert more / less == pytest.approx(1 + a / (2 * float(LLAMA.n_compute)), rel=1e-12)


def test_three_ways_to_count_one_speed():
    """1,000 tokens/s of 1e10 parameters on 1e15 FLOP/s: 0.06; with a quarter of attention 0.075; all again 0.1."""
    found = training_utilisation(1e3, 1e10, 1e15, attention_flop_per_token=5e9, recomputed=1.0)
    assert [float(x) for x in found] == pytest.approx([0.06, 0.075, 0.1], rel=1e-12)
    assert float(training_utilisation(1e3, 1e10, 1e15).hfu) == pytest.approx(0.06, rel=1e-12)
    # The time and the MFU agree on what they count.
    seconds = training_seconds(1e10, 1e12, 8.0, 1e15, found.mfu_with_attention, attention_flop_per_token=5e9)
    assert float(seconds) == pytest.approx(1e12 / 8e3, rel=1e-12)


def test_gradients_match_central_differences():
    def total(x):
        f, w, d, b, n, m = jnp.exp(x)
        held = training_bytes_per_chip(TrainingState(f, w, d), n, layers=b, d_model=d, tokens=m, data=b, tensor=w,
                                       pipeline=f)  # fmt: skip
        terms = (data_parallel_limit(f, w, experts=d, experts_active=b), tensor_parallel_limit(d, f, w),
                 generation_tensor_limit(d, b, w), mixed_critical_tokens(d, f, w, data_axes=b, tensor_axes=m),
                 best_data_degree(b, n, d, data_axes=f, tensor_axes=m), 1 + pipeline_bubble(f, m), gather_s(b, w),
                 held.total, stage_bytes_per_chip(w, d, b, f, m),
                 training_seconds(n, d, m, f, b, attention_flop_per_token=w), prefill_over_decode_servers(b, w, d, m),
                 *training_utilisation(m, n, f, attention_flop_per_token=d, recomputed=b))  # fmt: skip
        return sum(jnp.log(term) for term in terms)

    x = jnp.log(jnp.arange(2.0, 8.0))
    assert_slopes(total, x, rel=1e-6, abs=1e-8)


def test_vmap_over_layouts():
    degrees = jnp.asarray([1.0, 2.0, 8.0])
    held = jax.vmap(lambda t: training_bytes_per_chip(TrainingState(), 8e9, layers=32.0, d_model=4096.0, tokens=1.0,
                                                      tensor=t).weights)(degrees)  # fmt: skip
    assert held.tolist() == pytest.approx([16e9, 8e9, 2e9], rel=1e-14)
    assert replace(TrainingState(), optimiser_bytes=8.0).bytes_per_parameter == 12
    assert math.isfinite(float(pipeline_bubble(1.0, 1.0)))
