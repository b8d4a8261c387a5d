"""The busiest chip of a layout, and what limits it, by sums done by hand from the models' dimensions."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator import catalog
from allocator.errors import CatalogError
from allocator.optimum.planning import solve
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.layout import Layout
from allocator.roofline.loads import expert_sequences, fullest, group_sequences, held_sequences
from allocator.roofline.memory import cache_bytes_per_chip, free_bytes, weight_bytes_per_chip
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.shape import approximated, shape
from allocator.roofline.step import StepTime, decode_step
from allocator.rooflines import roofline
from allocator.scenario.reading import from_values

H100, H200 = {"flop": 989e12, "bytes": 3.35e12}, {"flop": 989e12, "bytes": 4.8e12, "hbm": 141e9}
# Qwen3 30B-A3B: 48 layers of 2048, 32 heads of 128, 4 of them for keys and values, 8 of 128 experts 768 wide.
QWEN_EXPERT, QWEN_ROUTED = 3 * 2048 * 768, 48 * 128 * 3 * 2048 * 768
QWEN_REST = 48 * (2 * 2048 * 128 * (32 + 4) + 2048 * 128) + 2 * 151936 * 2048
# Mixtral 8x7B: 32 layers of 4096, 32 heads of 128, 8 for keys and values, 2 of 8 experts 14336 wide, vocabulary 32000.
MIXTRAL = 32 * (2 * 4096 * 128 * (32 + 8) + 8 * 4096 + 2 * 3 * 4096 * 14336) + 2 * 32000 * 4096
LLAMA_8B = 32 * (2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 14336) + 2 * 128256 * 4096


def made(name: str):
    return shape(catalog.find("models", name))


def operation(batch=1.0, context=4096.0, chips=8.0, **more) -> Operation:
    return Operation(Accelerator(989e12, 141e9, 4.8e12, 8.0, 450e9, 50e9), chips, batch, context, 2.0, 2.0, **more)


# --- experts ---


def test_eight_chips_that_share_nothing_are_eight_times_one():
    """A token each: 2 bytes of 3.35e9 active parameters and 49,152 x 4,096 elements of cache, at 4.8 TB/s."""
    want = 2 * (QWEN_REST + 48 * 8 * QWEN_EXPERT + 49152 * 4096) / H200["bytes"]
    for chips in (1, 8):
        one = roofline("h200-sxm", "qwen3-30b-a3b", chips=chips, batch=chips, context=4096, tensor=1, expert=1)
        assert one.step_time_s == pytest.approx(want, rel=1e-4)  # 1.481 ms
        prompt = 4096 * 2 * (QWEN_REST - 151936 * 2048 + 48 * 8 * QWEN_EXPERT) / H200["flop"]
        assert float(one.prefill.linear_s) == pytest.approx(prompt, rel=1e-4)


@pytest.mark.parametrize(("expert", "tokens"), [(1, 1), (2, 2), (4, 4), (8, 8)])
def test_experts_are_visited_by_the_tokens_of_their_own_chips(expert: int, tokens: int):
    """1 - (1 - 8/128)^tokens of them, spread over `expert` chips; each of which computes for 8 experts a token."""
    step = decode_step(made("qwen3-30b-a3b"), operation(8.0), Layout(expert=float(expert)))
    read = QWEN_REST + QWEN_ROUTED * (1 - (1 - 8 / 128) ** tokens) / expert
    assert float(step.weights_s) == pytest.approx(2 * read / H200["bytes"], rel=1e-4)
    multiplied = QWEN_REST - 151936 * 2048 + 48 * 8 * QWEN_EXPERT
    assert float(step.linear_s) == pytest.approx(2 * multiplied / H200["flop"], rel=1e-4)


def test_sets_of_experts_within_a_group_divide_its_tokens():
    """Two chips cut heads and hold all experts each: of 8 tokens, 4 go to either."""
    step = decode_step(made("qwen3-30b-a3b"), operation(8.0, chips=2.0), Layout(tensor=2.0))
    read = QWEN_REST / 2 + QWEN_ROUTED * (1 - (1 - 8 / 128) ** 4)
    assert float(step.weights_s) == pytest.approx(2 * read / H200["bytes"], rel=1e-4)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_a_lone_token_reads_its_weights_however_many_stages(stages: int):
    """Mixtral's 12.88e9 active parameters in 5.37 ms; a prompt of 4,096 tokens multiplies them in 105.6 ms."""
    at = roofline("h200-sxm", "mixtral-8x7b", chips=stages, batch=1, context=4096, tensor=1, expert=1, pipeline=stages)
    assert float(at.decode.weights_s) == pytest.approx(2 * MIXTRAL / H200["bytes"], rel=1e-4)
    assert 1e3 * float(at.decode.weights_s) == pytest.approx(5.37, abs=0.005)
    flop = 2 * (MIXTRAL - 32000 * 4096)
    assert float(at.decode.linear_s) == pytest.approx(flop / H200["flop"], rel=1e-4)
    eight = roofline("h200-sxm", "mixtral-8x7b", chips=8, batch=8, context=4096, tensor=1, expert=1, pipeline=stages)
    for prefill in (at.prefill, eight.prefill):
        assert float(prefill.linear_s) == pytest.approx(4096 * flop / H200["flop"], rel=1e-4)
    assert 1e3 * float(at.prefill.linear_s) == pytest.approx(105.6, abs=0.05)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("batch", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("layout", [None, Layout(pipeline=4.0), Layout(tensor=2.0, pipeline=2.0)])
def test_slopes_are_finite_below_a_token_a_stage(name: str, batch: float, layout: Layout | None):
    def time(share, batch):
        model = eqx.tree_at(lambda s: s.routed_share, made(name), share)
        op = eqx.tree_at(lambda o: o.batch, operation(), batch)
        return decode_step(model, op, layout).total_s("none") + prefill_step(model, op, layout).total_s("none")

    slopes = jax.grad(time, argnums=(0, 1))(jnp.asarray(made(name).routed_share), jnp.asarray(batch))
    assert np.isfinite(slopes).all()


# --- stages ---


def test_prompts_in_all_stages_are_paid_for_together():
    """Llama 3.1 70B on 8 H100: 4 chips a stage take twice as long for a prompt, and have two at once."""
    one, two = (roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=8, context=4096, tensor=8 // p, pipeline=p)
                for p in (1, 2))  # fmt: skip
    assert one.usd_per_mtok_prompt == pytest.approx(0.1196, rel=1e-3)
    assert two.usd_per_mtok_prompt == pytest.approx(one.usd_per_mtok_prompt, rel=1e-6)
    assert float(two.prefill.step_s) == pytest.approx(2 * float(one.prefill.step_s), rel=1e-6)


def test_the_fullest_stage_counts():
    """32 layers in 5 stages: 7 in the fullest, which reads all 5 micro-batches' worth; one sequence waits for none."""
    model, layout = made("llama-3.1-8b"), Layout(pipeline=5.0)
    many, one = operation(10.0, chips=5.0), operation(1.0, chips=5.0)
    assert float(weight_bytes_per_chip(model, many, layout)) == pytest.approx(2 * LLAMA_8B * 7 / 32, rel=1e-4)
    assert 10 * float(cache_bytes_per_chip(model, many, layout)) == pytest.approx(10 * 4096 * 131072 * 7 / 32, rel=1e-9)
    step = decode_step(model, many, layout)
    assert float(step.weights_s) == pytest.approx(5 * 7 / 32 * 2 * LLAMA_8B / H200["bytes"], rel=1e-4)
    assert float(step.cache_s) == pytest.approx(5 * 7 / 32 * 2 * 4096 * 131072 / H200["bytes"], rel=1e-9)
    assert float(decode_step(model, one, layout).weights_s) == pytest.approx(2 * LLAMA_8B / H200["bytes"], rel=1e-4)
    prompts = prefill_step(model, operation(5.0, chips=5.0), layout)
    alone = prefill_step(model, operation(1.0, chips=5.0), layout)
    assert float(prompts.linear_s) == pytest.approx(35 / 32 * float(alone.linear_s), rel=1e-12)


# --- groups and heads ---


def test_the_fullest_group_counts():
    """9 sequences in 8 groups: one has 2, in time as in memory."""
    at = roofline("h100-sxm", "llama-3.1-8b", chips=8, batch=9, context=4096, tensor=1)
    assert at.step_time_s == pytest.approx((2 * LLAMA_8B + 2 * 4096 * 131072) / H100["bytes"], rel=1e-4)
    assert at.memory["cache_bytes"] == 2 * 4096 * 131072
    assert at.tokens_per_s_per_chip == pytest.approx(9 / 8 / at.step_time_s, rel=1e-12)
    full = float(free_bytes(made("llama-3.1-8b"), operation(9.0), Layout()))
    assert full == pytest.approx(8 * (0.9 * 141e9 - 2 * LLAMA_8B - 2 * 4096 * 131072), rel=1e-4)


@given(st.integers(1, 300), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]),
       st.sampled_from([1, 2, 3]))  # fmt: skip
def test_loads_are_those_of_sequences_dealt_out(batch: int, tensor: int, groups: int, sets: int, stages: int):
    """Deal sequences to sets of experts, then to micro-batches, then to the groups on a set, and count the fullest."""
    met, own = Counter(), Counter()
    for i in range(batch):
        place = (i % sets, i // sets % stages)
        met[place] += 1
        own[(*place, i // (sets * stages) % groups)] += 1
    op = operation(float(batch), chips=float(tensor * groups * sets * stages))
    layout = Layout(float(tensor), float(tensor * groups), float(stages))
    assert float(group_sequences(op, layout)) == max(own.values())
    assert float(expert_sequences(op, layout)) == max(met.values())
    assert float(held_sequences(op, layout)) == math.ceil(batch / (groups * sets))


def test_fullest_is_exact_at_whole_numbers_and_linear_between():
    items = np.arange(0.0, 40.0)
    for parts in (1.0, 3.0, 8.0):
        assert np.asarray(fullest(jnp.asarray(items), parts)).tolist() == [math.ceil(n / parts) for n in items]
    assert float(fullest(8.25, 8.0)) == 1.25
    assert float(fullest(9.5, 8.0)) == 2
    assert float(fullest(97.25, 1.0)) == 97.25
    assert [float(jax.grad(fullest)(n, 8.0)) for n in (8.25, 9.5)] == [1, 0]


def test_heads_are_not_divided():
    """MiniMax-M2's 8 KV heads on 6 chips: two on the fullest, 2/8 of 126,976 elements a token and not a sixth."""
    at = roofline("h200-sxm", "minimax-m2", chips=6, batch=18, context=16384, tensor=6, expert=2, dtype="fp8")
    assert at.memory["cache_bytes"] == 18 * 16384 * 126976 / 4
    assert float(at.decode.cache_s) == pytest.approx(18 * 16384 * 126976 / 4 / H200["bytes"], rel=1e-12)


# --- states of linear layers ---


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8", "fp4"])
def test_linear_states_are_fp32_whatever_the_cache_is(kv_dtype: str):
    """Qwen3.5 397B: 45 layers x 64 heads x 128 x 128 elements of 4 bytes, read and written in each step."""
    size = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}[kv_dtype]
    state, grown = 45 * 64 * 128 * 128 * 4, 2 * 15 * 2 * 256 * 4096 * size
    model, op = made("qwen3.5-397b-a17b"), eqx.tree_at(lambda o: o.bytes_per_kv_element, operation(), size)
    assert float(model.kv_bytes(jnp.asarray(4096.0), size)) == grown + state
    for n in (1.0, 16.0):
        step = decode_step(model, eqx.tree_at(lambda o: o.batch, op, n))
        assert float(step.cache_s) == pytest.approx(n * (grown + 2 * state) / 8 / H200["bytes"], rel=1e-12)
    # Heads of states are cut as far as heads go, the two KV heads are not.
    cut = decode_step(model, op, Layout(tensor=8.0, expert=8.0))
    assert float(cut.cache_s) == pytest.approx((grown / 2 + 2 * state / 8) / H200["bytes"], rel=1e-12)


def test_linear_states_in_the_largest_batch():
    fields = catalog.find("models", "qwen3.5-397b-a17b").fields
    routed = 60 * 512 * 3 * 4096 * 1024
    assert isinstance(fields["n_total_computed"], float)
    room = 0.9 * H200["hbm"] - (fields["n_total_computed"] - routed) / 2 - routed / 8
    each = (15360 * 4096 + 4 * 47185920) / 2
    at = roofline("h200-sxm", "qwen3.5-397b-a17b", chips=8, context=4096, tensor=2, expert=8, dtype="fp8")
    assert at.max_batch == 4 * math.floor(room / each) == 2340


# --- overlap ---


def test_the_book_s_step_is_never_below_the_bound():
    """Attention that computes longer than its cache is read, as DeepSeek's does in 8 bits with a 4-bit cache."""
    at = roofline("h200-sxm", "deepseek-v3", chips=16, batch=464, context=131072, tensor=1, expert=16, dtype="fp8",
                  kv_dtype="fp4").decode  # fmt: skip
    attention = 29 * 131072 * 2 * 128 * (2 * 512 + 64) * 61 / 1979e12
    assert float(at.attention_s) == pytest.approx(attention, rel=1e-9)
    assert float(at.attention_s) > float(at.cache_s)
    assert float(at.total_s("book")) == pytest.approx(attention + max(float(at.weights_s), float(at.linear_s),
                                                                      float(at.network_s)), rel=1e-9)  # fmt: skip


def test_forms_of_overlap_are_in_order():
    rng = np.random.default_rng(3)
    for parts in rng.lognormal(0.0, 3.0, (200, 6)):
        step = StepTime(*[jnp.asarray(part) for part in parts])
        full, book, none = (float(step.total_s(form)) for form in ("full", "book", "none"))
        assert full <= book * (1 + 1e-12)
        assert book <= none * (1 + 1e-12)


# --- attention that is not modelled ---


def test_compressed_caches_are_attended_to_as_they_are_held():
    """DeepSeek-V4: an entry for 128 tokens in 31 layers and for 4 in 30, windows of 128 in all 61."""
    for name, heads, entries, layers in (("deepseek-v4-pro", 128, 31 / 128 + 30 / 4, 61),
                                         ("deepseek-v4-flash", 64, 20 / 128 + 21 / 4, 43)):  # fmt: skip
        model = made(name)
        assert float(model.attention_flop) == pytest.approx(4 * 512 * heads * entries, rel=1e-12)
        got = float(model.attention_flop_per_token(jnp.asarray(1e5)))
        assert got == pytest.approx(4 * 512 * heads * (entries * 1e5 + layers * 128), rel=1e-12)


SELECTING = {"deepseek-v3.2", "glm-5", "minimax-m3", "deepseek-v4-pro", "deepseek-v4-flash"}


def test_models_whose_selection_is_not_modelled_are_told():
    assert {record.name for record in catalog.entries("models") if approximated(record)} == SELECTING
    for name in ("deepseek-v3.2", "deepseek-v4-flash"):
        at = roofline("h200-sxm", name, chips=16, batch=16, context=4096, dtype="fp8")
        (told,) = [warning for warning in at.warnings if warning["code"] == "attention_approximated"]
        assert told["path"] == "model"
        assert told in at.to_dict()["warnings"]
    plain = roofline("h200-sxm", "deepseek-v3", chips=16, batch=16, context=4096, dtype="fp8")
    assert "attention_approximated" not in {warning["code"] for warning in plain.warnings}


# --- limits ---


def test_longest_context_is_the_model_s_where_memory_has_room():
    roomy = roofline("h200-sxm", "llama-3.1-8b", chips=8, context=1000)
    assert (roomy.max_context, roomy.max_context_limit) == (131072, "model")
    full = roofline("h100-sxm", "llama-3.1-70b", chips=8, batch=64, context=4096)
    assert full.max_context_limit == "memory"
    assert full.to_dict()["max_context_limit"] == "memory"


def test_a_prompt_is_part_of_the_context():
    with pytest.raises(CatalogError, match=r"^roofline\.prompt: got 131072; must be <= the context of 128 tokens"):
        roofline("h200-sxm", "llama-3.1-8b", chips=8, context=128, prompt=131072)


def test_the_largest_batch_is_that_of_the_roomiest_layout():
    """Llama 3.1 70B on 6 H200, weights in 8 bits, 1,000 tokens of bf16 cache: two chips a group hold more than one."""
    with pytest.raises(CatalogError) as caught:
        roofline("h200-sxm", "llama-3.1-70b", chips=6, batch=5000, context=1000, dtype="fp8", kv_dtype="bf16")
    room = 0.9 * H200["hbm"] - 70552387584 / 2
    most = 3 * math.floor(room / (1000 * 327680 / 2))
    assert most == 1677
    assert f"the largest batch that fits is {most:,}" in str(caught.value)
    fits = roofline("h200-sxm", "llama-3.1-70b", chips=6, batch=1027, context=1000, dtype="fp8", kv_dtype="bf16")
    assert fits.memory["free_bytes"] >= 0


@pytest.mark.parametrize("name", ["tensor", "expert", "pipeline"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1.5])
def test_degrees_that_are_no_number_are_told(name: str, value: float):
    stated: dict[str, Any] = {name: value}
    with pytest.raises(CatalogError, match=rf"^roofline\.{name}: got {value:g}; must be a whole number >= 1$"):
        roofline("h200-sxm", "mixtral-8x7b", chips=8, **stated)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3"])
def test_a_billion_chips_take_no_longer(model: str):
    at = roofline("h200-sxm", model, chips=1e9, batch=1, context=1000)
    assert at.layout.expert == (256 if model == "deepseek-v3" else 1)


def test_documents_list_the_models_that_are_not_modelled():
    page = (Path(__file__).parent.parent / "docs" / "roofline.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"- Attention to selected tokens: (.*?)\n- ", page, re.DOTALL)
    assert {*re.findall(r"`([a-z0-9.-]+)`", said)} == SELECTING


def test_a_scenario_s_roofline_tells_what_is_not_modelled():
    values = {"objective": {"compute_flop": 1e24}, "pretraining": {"mfu": 0.4}, "deployment": {"lifetime_tokens": 1e13},
              "inference": {"roofline": {"model": "deepseek-v3.2", "chip": "h200-sxm", "context": 4096,
                                         "dtype": "fp8", "chips": 64}}}  # fmt: skip
    told = [warning for warning in solve(from_values(values)).warnings if warning.code == "attention_approximated"]
    assert [warning.path for warning in told] == ["inference.roofline.model"]
    assert "deepseek-v3.2" in told[0].message
