"""FLOP per token against counting pairs one by one, published parameter counts, and what mfu refuses."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slopes import assert_slopes

from allocator import catalog
from allocator.errors import CatalogError, LawError, RooflineError
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.architecture import Architecture, architecture
from allocator.roofline.flop import (
    attention_flop,
    attention_flop_per_token,
    attention_share,
    causal_pairs,
    check_dense_peak,
    forward_flop_per_token,
    head_flop,
    mfu,
    training_flop_per_token,
    utilisation,
)
from allocator.roofline.leverage import ExpertLeverage
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.shape import shape
from allocator.roofline.training import training_mfu

MODELS = {record.name: record for record in catalog.entries("models")}
H100 = catalog.find("hardware", "h100-sxm")


def fields_of(module) -> list[str]:
    return [field.name for field in dataclasses.fields(module)]


# Projections of positions, linear layers, indexers and compressed caches are not made of these dimensions.
REFUSED = ("chinchilla-70b", "minimax-m1", "minimax-m3", "deepseek-v3.2", "glm-5", "qwen3.5-397b-a17b",
           "deepseek-v4-pro", "deepseek-v4-flash")  # fmt: skip
COUNTED = [name for name in MODELS if name not in REFUSED]


@given(st.integers(1, 60), st.integers(0, 60), st.one_of(st.none(), st.integers(1, 80)))
def test_pairs_of_a_causal_mask_one_by_one(queries: int, more: int, window: int | None):
    keys = queries + more
    mask = [[key <= keys - queries + query and (window is None or key > keys - queries + query - window)
             for key in range(keys)] for query in range(queries)]  # fmt: skip
    found = causal_pairs(queries, keys) if window is None else causal_pairs(queries, keys, window)
    assert float(found) == sum(map(sum, mask))


def test_attention_without_a_mask():
    assert float(attention_flop(4, 10, 8, 16, causal=False)) == 2 * 40 * 24
    assert float(attention_flop(4, 4, 8, 8, heads=3.0)) == 2 * 10 * 16 * 3


@pytest.mark.parametrize("name", COUNTED)
def test_architecture_makes_the_catalogue_s_counts(name: str):
    """The table's counts were worked out from the dimensions by other code; biases of Qwen2.5 are within 2e-5."""
    built, fields, known = architecture(MODELS[name]), MODELS[name].fields, shape(MODELS[name])
    for own, column in ((built.n_total, "n_total_computed"), (built.n_active, "n_active_computed"),
                        (built.n_compute, "n_active_noembed_computed")):  # fmt: skip
        assert float(own) == pytest.approx(fields[column], rel=2e-5)
    drawn = built.shape()
    for own, want in ((drawn, known), (drawn.dimensions, known.dimensions)):
        for field in fields_of(own):
            value = getattr(want, field)
            if isinstance(value, float):
                assert float(getattr(own, field)) == pytest.approx(value, rel=2e-5)
    if known.attention_flop_prompt is None:
        assert float(drawn.attention_flop_prompt) == float(drawn.attention_flop)


@pytest.mark.parametrize(
    ("name", "published"),
    [("deepseek-v3", 37e9), ("qwen3-235b-a22b", 22e9), ("qwen3-30b-a3b", 3.3e9), ("mixtral-8x7b", 12.9e9),
     ("kimi-k2", 32e9), ("llama-4-maverick", 17e9), ("llama-3.1-405b", 405e9), ("palm-540b", 540e9)],
)  # fmt: skip
def test_active_parameters_against_the_developers_figures(name: str, published: float):
    assert float(architecture(MODELS[name]).n_active) == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("name", REFUSED)
def test_model_with_parts_that_are_not_modelled_is_refused(name: str):
    with pytest.raises(CatalogError, match=f"^{re.escape(name)}: its dimensions do not make its parameters and cache"):
        architecture(MODELS[name])


def test_plain_blocks_have_12_l_d_squared():
    model = Architecture(24.0, 1024.0, 16.0, 16.0, 64.0, 4096.0, 0.0, matrices=2.0)
    assert float(model.n_total) == 12 * 24 * 1024**2
    assert float(forward_flop_per_token(model.shape(), 1e-9)) == pytest.approx(24 * 24 * 1024**2, rel=1e-3)


def test_attention_of_a_sequence_by_hand():
    """Llama-3.1-8B at 8,192: 4 x 128 x 32 x 32 FLOP a pair, 4,096.5 keys a token on average."""
    llama = shape(MODELS["llama-3.1-8b"])
    want = 4 * 128 * 32 * 32 * 4096.5
    assert float(attention_flop_per_token(llama, 8192.0)) == pytest.approx(want, rel=1e-13)
    linear = 2 * (8029995008 - 128256 * 4096)
    assert float(forward_flop_per_token(llama, 8192.0)) == pytest.approx(linear + want, rel=1e-13)
    assert float(training_flop_per_token(llama, 8192.0)) == pytest.approx(3 * (linear + want), rel=1e-13)
    assert float(attention_share(llama, 8192.0)) == pytest.approx(want / (linear + want), rel=1e-13)


def test_windows_of_gemma_by_hand():
    """10 full layers and 52 of 1,024: 4 x 128 x 32 a pair and layer; (1024 x 1025/2 + 7168 x 1024)/8192 keys."""
    pair = 4 * 128 * 32
    want = pair * (10 * 4096.5 + 52 * (1024 * 1025 / 2 + 7168 * 1024) / 8192)
    assert float(attention_flop_per_token(shape(MODELS["gemma-3-27b"]), 8192.0)) == pytest.approx(want, rel=1e-13)


def test_latent_attention_is_expanded_in_training():
    """DeepSeek-V3: 2 x 128 x (192 + 128) a pair and layer in training, 2 x 128 x (2 x 512 + 64) absorbed: 3.4 times."""
    model = architecture(MODELS["deepseek-v3"])
    absorbed, expanded = (float(model.attention_flop_per_pair(absorbed=which)) for which in (True, False))
    assert (absorbed, expanded) == (2 * 128 * 1088, 2 * 128 * 320)
    share = float(attention_share(model.shape(), 4096.0))
    assert share == pytest.approx(61 * 81920 * 2048.5 / (61 * 81920 * 2048.5 + 2 * float(model.n_compute)), rel=1e-12)


def test_head_is_not_the_look_up():
    tied = Architecture(1.0, 64.0, 1.0, 1.0, 64.0, 256.0, 1000.0, tied=True)
    untied = Architecture(1.0, 64.0, 1.0, 1.0, 64.0, 256.0, 1000.0)
    assert float(untied.n_total - tied.n_total) == 64000
    assert float(untied.n_compute) == float(tied.n_compute)
    assert float(head_flop(1000.0, 64.0)) == 128000


# --- mfu ---


def test_mfu_by_hand_and_its_refusal():
    assert float(mfu(1e6, 10.0, 2.0, 1e15, 1e10)) == pytest.approx(0.5, rel=1e-14)
    assert float(mfu(2e6, 10.0, 2.0, 1e15, 1e10)) == 1
    with pytest.raises(RooflineError) as caught:
        mfu(3e6, 10.0, 2.0, 1e15, 1e10)
    for part in ("mfu: got 1.50", "tokens = 3000000,", "seconds = 10,", "chips = 2,", "peak_flop_per_s = 1e+15"):
        assert part in str(caught.value)
    with pytest.raises(RooflineError, match=r"got 1\.50 from tokens = \[1000000, 3000000\]"):
        mfu(jnp.asarray([1e6, 3e6]), 10.0, 2.0, 1e15, 1e10)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_mfu_refuses_what_is_not_positive(place: int, value: float):
    given = [1e6, 10.0, 2.0, 1e15, 1e10]
    given[place] = value
    name = ("tokens", "seconds", "chips", "peak_flop_per_s", "flop_per_token")[place]
    with pytest.raises(LawError, match=f"mfu.{name}: must be > 0"):
        mfu(*given)


def test_utilisation_names_its_dtype_and_peak():
    """The speed of 0.4 of bf16 is 0.2 of fp8."""
    run = {"tokens": 989e12 * 0.4, "seconds": 1.0, "chips": 1.0, "flop_per_token": 1.0}
    bf16, fp8 = (utilisation(H100, dtype, **run) for dtype in ("bf16", "fp8"))
    assert (bf16.dtype, bf16.peak_flop_per_s, fp8.dtype, fp8.peak_flop_per_s) == ("bf16", 989e12, "fp8", 1979e12)
    assert (bf16.mfu, fp8.mfu) == pytest.approx((0.4, 0.4 * 989 / 1979), rel=1e-12)


def test_peak_that_is_not_the_dense_one_is_told():
    check_dense_peak(H100, "bf16", 989.5e12)
    looks = r"it looks like the sparse headline or the peak of fp8 or the peak of int8$"
    with pytest.raises(RooflineError, match=r"2 times the dense bf16 peak of h100-sxm, 9.89e\+14; " + looks):
        check_dense_peak(H100, "bf16", 1979e12)
    with pytest.raises(RooflineError, match=r"0.315 times the dense bf16 peak of h100-sxm, 9.89e\+14$"):
        check_dense_peak(H100, "bf16", 312e12)
    with pytest.raises(CatalogError, match="no dense fp4 peak"):
        check_dense_peak(H100, "fp4", 1e15)


def test_more_queries_than_keys_are_told():
    """Each query sees itself at least, so there is a key for each."""
    for call in (lambda: causal_pairs(10, 4), lambda: attention_flop(10.0, 4.0, 1.0, 1.0)):
        with pytest.raises(RooflineError, match=r"^causal_pairs: got 10 queries on 4 keys; must be <= the keys$"):
            call()
    assert float(causal_pairs(4, 4)) == 10
    assert float(attention_flop(10.0, 4.0, 1.0, 1.0, causal=False)) == 2 * 40 * 2


# --- gradients ---


def test_gradients_match_central_differences():
    """Away from where the window just covers the sequence."""

    def total(x):
        layers, d, heads, width, ff, vocab, experts, tokens, share = jnp.exp(x)
        moe = {"moe_layers": layers / 2, "experts": experts, "experts_active": experts * share, "d_expert": ff / 5}
        windows = {"window": 7.0, "window_layers": layers / 4}
        model = Architecture(layers, d, heads, heads / 3, width, ff, vocab, **moe, **windows)
        drawn = model.shape()
        flop = training_flop_per_token(drawn, tokens)
        terms = (flop, attention_flop(tokens / 2, tokens, width, d), mfu(tokens, 1.0, 1.0, 1e30, flop),
                 head_flop(vocab, d), model.n_total)  # fmt: skip
        return attention_share(drawn, tokens) + sum(jnp.log(term) for term in terms)

    x = jnp.log(jnp.asarray([4.0, 64.0, 6.0, 16.0, 100.0, 50.0, 8.0, 20.0, 0.3]))
    assert_slopes(total, x, rel=1e-6, abs=1e-9)
    plain = jax.grad(lambda t: attention_flop(1.0, t, 1.0, 1.0))(10.0)
    assert float(plain) == 4  # 2 (1 + 1) a key
    latent = jax.grad(lambda d: Architecture(2.0, d, 2.0, 2.0, 8.0, 16.0, 10.0).shape().n_compute)(32.0)
    assert np.isfinite(float(latent))


def test_vmap_over_sequences():
    model = shape(MODELS["gpt-oss-120b"])
    lengths = jnp.asarray([64.0, 128.0, 4096.0])
    shares = jax.jit(jax.vmap(lambda t: attention_share(model, t)))(lengths)
    assert shares.tolist() == pytest.approx([float(attention_share(model, t)) for t in lengths], rel=1e-14)


# --- leverage of experts (rows LI-01 and LI-02 of law_cases.csv) ---


def test_leverage_of_experts():
    law = ExpertLeverage()
    assert float(law(0.031, 12.0, 1e22)) == pytest.approx(7.245, rel=0.01)
    assert float(law(0.031, 12.0, 1e22)) > 7  # the paper's "exceeding 7x"
    assert float(law.best_granularity()) == pytest.approx(11.34, rel=0.01)
    assert float(jax.grad(lambda g: law(0.031, g, 1e22))(law.best_granularity())) == pytest.approx(0, abs=1e-9)
    h = 1e-6
    for place, at in enumerate((0.031, 10.0, 1e22)):
        values = [0.031, 10.0, 1e22]

        def along(x, values=values, place=place):
            return law(*[jnp.exp(x) if i == place else v for i, v in enumerate(values)])

        want = (float(along(math.log(at) + h)) - float(along(math.log(at) - h))) / (2 * h)
        assert float(jax.grad(along)(math.log(at))) == pytest.approx(want, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", ["gemma-3-27b", "gpt-oss-120b", "llama-4-maverick"])
@pytest.mark.parametrize("length", [64, 1500, 20000])
def test_prefill_and_training_count_the_pairs_that_windows_leave(name: str, length: int):
    """Each token sees itself and those before it, in windows the last w of them, summed one by one."""
    model, op = shape(MODELS[name]), Operation(Accelerator(1e15, 8e10, 1e12), 1.0, 1.0, float(length), 2.0, 2.0)
    seen = np.arange(1, length + 1)
    window = float(model.window)
    pairs = [seen.sum(), np.minimum(seen, window).sum()]
    flop = float(model.full_attention_flop_prompt) * pairs[0] + float(model.attention_flop_window) * pairs[1]
    assert float(prefill_step(model, op).attention_s) * 1e15 == pytest.approx(flop, rel=1e-12)
    linear = 6 * float(model.n_compute)
    assert float(training_mfu(model, op)) == pytest.approx(linear / (linear + 3 * flop / length), rel=1e-12)
