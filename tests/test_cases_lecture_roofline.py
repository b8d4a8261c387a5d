"""The B, M and P rows of cases/lecture_claims.csv: batches, layouts, contexts and caches.

Claims that do not hold for real models or parts are tested too: the test says by how much.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import pytest
from case_rows import case_rows

from allocator import catalog
from allocator.roofline.accelerator import Accelerator, accelerator
from allocator.roofline.architecture import architecture
from allocator.roofline.collectives import all_to_all_s, crossing_share
from allocator.roofline.crossovers import (
    attention_equals_weights_context,
    balanced_cache_bytes,
    balanced_context,
    critical_batch,
    flop_per_byte,
)
from allocator.roofline.layout import Layout
from allocator.roofline.memory import free_bytes, weight_bytes_per_chip
from allocator.roofline.memory_tiers import MemoryTier, cost_usd, hbm, memory_tier, recompute_usd
from allocator.roofline.operation import Operation
from allocator.roofline.parallelism import stage_bytes_per_chip
from allocator.roofline.prefill import prefill_step
from allocator.roofline.price_steps import price_steps
from allocator.roofline.shape import Dimensions, Shape, shape
from allocator.roofline.step import StepTime, decode_step

ROWS = {name: row for name, row in case_rows("lecture_claims").items() if name[0] in "BMP"}

NOTHING_TO_COMPUTE = {
    "B02": "a form without a number: the compute term, tested with B01",
    "B03": "a form without a number: the memory term, tested with B01",
    "B21": "a remark on papers about sparse attention; no cache here grows as a square root of the context",
    "M11": "a statement of practice: little pipelining in inference",
    "M14": "hearsay about capital expenditure and phones; not modelled",
    "P08": "a statement about the history of contexts",
}

PLAIN = Dimensions(8.0, 0.0, 1024.0, 8.0, 0.0, 0.0, 64.0)
CHIP = Accelerator(3e14, 8e10, 1e12)  # 300 FLOP a byte: 300 multiply-adds per parameter in bf16
H100 = accelerator(catalog.find("hardware", "h100-sxm"), "bf16")
TIERS = {str(row.fields["tier"]) + row.name[-5:]: memory_tier(row) for row in catalog.table("memory_tiers")}
N = 1e11


def dense(n: float = N, kv_bytes: float = 1e-9) -> Shape:
    return Shape(n, n, 0.0, 1.0, kv_bytes, 0.0, 0.0, 0.0, 0.0, n, PLAIN)


def decode(model: Shape, batch: float, context: float = 1.0, chip: Accelerator = CHIP, **more) -> StepTime:
    return decode_step(model, Operation(chip, more.pop("chips", 1.0), batch, context, 2.0, 1.0, **more))


def figures(kind: str, name: str, *columns: str) -> list[float]:
    fields = catalog.find(kind, name).fields
    return [float(str(fields[column])) for column in columns]


def expected(row) -> list[float]:
    return [float(part) for part in row["expected"].split(";")]


def b01(row):
    for batch, binding in ((1.0, "memory"), (1e4, "compute")):
        step = decode(dense(), batch)
        assert float(step.memory_s) == pytest.approx(2 * N / 1e12, rel=1e-6)  # B03
        assert float(step.compute_s) == pytest.approx(2 * batch * N / 3e14, rel=1e-12)  # B02
        assert float(step.step_s) == max(float(step.memory_s), float(step.compute_s))
        assert step.binding() == binding


def b04(row):
    """Memory bound, caches of 1.8 times the weights: a fifteenth of the batch is 2.5 times as fast, 6 times as dear."""
    price, speed = 6.0, 2.5
    batch, context = 15.0, 1000.0
    model = dense(kv_bytes=1.8 * 2 * N / (batch * context))
    slow, fast = (float(decode(model, b, context).step_s) for b in (batch, batch / (price * speed)))
    assert slow / fast == pytest.approx(speed, rel=1e-9)
    assert (fast / 1) / (slow / batch) == pytest.approx(price, rel=1e-9)


def b05(row):
    """cost(1)/cost(B*) is B* itself: 300 dense, 2,400 at a sparsity of 8: a thousand within a factor of 3.4."""
    for sparsity, want in ((1.0, 300.0), (8.0, 2400.0)):
        assert float(critical_batch(2 * N * sparsity, N, 300.0)) == pytest.approx(want, rel=1e-12)
        assert 1 / 3.4 < want / float(row["expected"]) < 3.4
    costs = [float(decode(dense(), b).step_s) / b for b in (1.0, 300.0)]
    assert costs[0] / costs[1] == pytest.approx(300, rel=1e-6)


def b06(row):
    model = shape(catalog.find("models", "deepseek-v3"))
    assert [float(model.n_active), float(model.total_bytes(1.0))] == pytest.approx(expected(row), rel=0.05)


def b07(row):
    """2 USD per chip-hour: at the balance of B09, 2 x 1e11/3e14 s a token cost 0.37 USD per 1e6."""
    rent = float(row["expected"]) / 3600
    step = decode(dense(), 300.0)
    assert float(step.step_s) / 300 * rent * 1e6 == pytest.approx(1e6 * 2 * N / 3e14 * rent, rel=1e-6)
    assert 1e6 * 2 * N / 3e14 * rent == pytest.approx(0.370, rel=2e-3)


def b08(row):
    model = dense(kv_bytes=2000.0)
    for context in (1e3, 1e6):
        floor = max(2 * N / 3e14, context * 2000 / 1e12)
        assert float(decode(model, 1e9, context).step_s) / 1e9 == pytest.approx(floor, rel=1e-4)


def b09(row):
    """In multiply-adds per parameter of bf16: F/bw. H100 295, B200 292 (7.7 TB/s): 300; A100 153: half."""
    want = float(row["expected"])
    found = {name: float(flop_per_byte(accelerator(catalog.find("hardware", name), "bf16")))
             for name in ("h100-sxm", "b200-sxm", "a100-80gb-sxm")}  # fmt: skip
    assert found["h100-sxm"] == pytest.approx(want, rel=0.2)
    assert found["b200-sxm"] == pytest.approx(want, rel=0.2)
    assert found["a100-80gb-sxm"] / want == pytest.approx(0.51, abs=0.005)


def b10(row):
    for sparsity in (1.0, 4.0, 18.1):
        assert float(critical_batch(2 * N * sparsity, N, 300.0)) == pytest.approx(300 * sparsity, rel=1e-12)


def b11(row):
    """32 of 256 gives 2,400; DeepSeek-V3 has 8 of 256 and a shared one: 671/37 gives 5,440, 2.3 times as much."""
    assert float(critical_batch(2 * 256.0, 32.0, 300.0)) == float(row["expected"])
    model = catalog.find("models", "deepseek-v3").fields
    assert (model["n_experts"], model["n_experts_active"], model["n_shared_experts"]) == (256, 8, 1)
    real = float(critical_batch(2 * 671e9, 37e9, 300.0))
    assert real == pytest.approx(5440, rel=1e-3)
    assert real / float(row["expected"]) == pytest.approx(2.27, rel=2e-3)


def b12(row):
    """Two to three times B* takes 1/2 to 1/3 of the bandwidth; the measured 0.36 of compute and 0.65 of bandwidth would
    lower it to 0.55 B*."""
    for factor in (2.0, 3.0):
        r = flop_per_byte(CHIP, memory_efficiency=1 / factor)
        assert float(critical_batch(2 * 8 * N, N, r)) == pytest.approx(factor * 2400, rel=1e-12)
    measured = flop_per_byte(CHIP, compute_efficiency=0.36, memory_efficiency=0.65)
    assert float(critical_batch(2 * N, N, measured)) == pytest.approx(300 * 0.36 / 0.65, rel=1e-12)


def b13(row):
    batches = [float(critical_batch(2 * N, N, 300.0, kv_bytes_per_token=2000.0, context=c)) for c in (0, 1e4, 1e5, 3e5)]
    assert batches == sorted(batches)
    assert batches[2] == pytest.approx(2 * N / (2 * N / 300 - 1e5 * 2000), rel=1e-12)
    longest = float(balanced_context(N, 2000.0, 300.0))
    assert longest == pytest.approx(2 * N / (300 * 2000), rel=1e-12)
    at = critical_batch(2 * N, N, 300.0, kv_bytes_per_token=2000.0, context=longest * (1 + 1e-9))
    assert math.isinf(float(at))


def b14(row):
    assert float(row["expected"]) == 2 * 1e3 * 0.020
    full = Accelerator(3e14, 8e10, 4e12)  # a step that reads all of 80 GB takes 20 ms
    assert 2e3 * float(decode(dense(4e10), 1.0, chip=full).step_s) == pytest.approx(float(row["expected"]), rel=1e-6)


def b15(row):
    for name in ("h100-sxm", "h200-sxm", "b200-sxm", "tpu-v5e"):
        chip = replace(accelerator(catalog.find("hardware", name), "bf16"), usd_per_chip_hour=1.0)
        drain = 1e3 * float(hbm(chip).drain_s)
        assert 15 <= drain <= 30
        assert drain == pytest.approx(float(row["expected"]), rel=0.5)


def b16(row):
    tier = MemoryTier(288e9, 20e12, 1.0)
    assert 1e3 * float(tier.drain_s) == pytest.approx(float(row["expected"]), rel=0.05)
    assert 1e3 * float(tier.drain_s) == pytest.approx(float(row["recomputed"]), rel=1e-12)


def b17(row):
    assert float(row["expected"]) == 2000 * 64
    for step_s in (0.015, 0.0165, 0.020):
        assert 2000 / step_s == pytest.approx(float(row["expected"]), rel=0.22)


def b18(row):
    assert pytest.approx(float(row["expected"]), rel=1e-12) == 128e3 / 1.28e8
    assert 1 / 3 < 128e3 / 3e8 / float(row["expected"]) < 3


def b19(row):
    assert pytest.approx(float(row["expected"]), rel=0.15) == 1.3e9 / 0.37e9


def b20(row):
    kv = float(balanced_cache_bytes(N, 1e5, 300.0))
    step = decode(Shape(N, 1e-3, 0.0, 1.0, kv, 0.0, 0.0, 0.0, 0.0, N, PLAIN), 1e3, 2e5)
    assert float(step.compute_s / step.step_s) == pytest.approx(float(row["expected"]), rel=1e-9)


def m01(row):
    model = catalog.find("models", "deepseek-v3").fields
    assert float(str(model["n_experts"])) / 64 == float(row["expected"])
    shapes, op = shape(catalog.find("models", "deepseek-v3")), Operation(H100, 64.0, 1.0, 1.0, 1.0, 1.0)
    held = float(weight_bytes_per_chip(shapes, op, Layout(expert=64.0))) - float(shapes.n_shared)
    assert held == pytest.approx(4 * 58 * 3 * 7168 * 2048, rel=1e-12)


def m02(row):
    """About 8: H100 450/50 = 9; GB200 has 900/100 = 9 by the catalogue's 800 Gb/s, 18 by 400 Gb/s."""
    for name in ("h100-sxm", "gb200-nvl72"):
        up, out = figures("hardware", name, "scale_up_bytes_per_s", "scale_out_bytes_per_s")
        assert up / out == 9
        assert up / out == pytest.approx(float(row["expected"]), rel=0.15)


def m03(row):
    assert float(crossing_share(144.0, 72.0)) == float(row["expected"])
    assert float(crossing_share(72.0, 72.0)) == 0


def m04(row):
    """Hopper 8, Blackwell 72 as printed; Rubin Ultra 144 packages of 4 dies: 576, of which a quarter is packages."""
    hopper, blackwell, rubin = expected(row)
    assert figures("hardware", "h100-sxm", "scale_up_chips") == [hopper]
    assert figures("hardware", "gb200-nvl72", "scale_up_chips") == [blackwell]
    (packages,) = figures("hardware", "rubin-ultra-nvl576-per-package-4-dies", "scale_up_chips")
    assert packages == 144
    assert 4 * packages > rubin > packages


def m05(row):
    (node,) = figures("hardware", "h100-sxm", "hbm_bytes")
    assert 8 * node / 1e9 == float(row["expected"])
    (rack,) = figures("hardware", "gb200-nvl72", "hbm_bytes")
    assert 10e12 <= 72 * rack <= 20e12
    chip = Accelerator(1e16, rack, 8e12)
    assert float(free_bytes(dense(5e12), Operation(chip, 72.0, 1.0, 1.0, 1.0, 1.0))) > 0


def m06(row):
    """A stage's all-to-alls inside against one hop outside: n_act x layers x 2 x (1/8); 8 experts, a layer: 2.0."""
    chip = Accelerator(1e15, 8e10, 3e12, scale_up_chips=72.0, scale_up_bytes_per_s=8e11, scale_out_bytes_per_s=1e11)
    tokens, width = 100.0, 7168.0
    for experts, layers, want in ((8.0, 1.0, 2.0), (8.0, 4.0, 8.0), (4.0, 1.0, 1.0)):
        inside = layers * all_to_all_s(chip, 64.0, jnp.asarray(tokens), experts, width, 2 * 2.0)
        outside = tokens * width * 2.0 / 1e11
        assert float(inside) / outside == pytest.approx(want, rel=1e-12)


def m07(row):
    """P stages of 8 chips with P micro-batches: the step is as long, each chip holds 1/P of the weights."""
    model = dense(kv_bytes=1000.0)
    steps, held = [], []
    for stages in (1.0, 2.0, 4.0):
        op = Operation(CHIP, 8 * stages, 64 * stages, 1e4, 2.0, 1.0)
        layout = Layout(tensor=8.0, pipeline=stages)
        steps.append(float(decode_step(model, op, layout).step_s))
        held.append(float(weight_bytes_per_chip(model, op, layout)))
    assert steps == pytest.approx([steps[0]] * 3, rel=1e-12)
    assert steps[1] - steps[0] == pytest.approx(float(row["expected"]), abs=1e-15)
    assert held == pytest.approx([held[0], held[0] / 2, held[0] / 4], rel=1e-12)


def m08(row):
    assert float(dense(1e12).total_bytes(1.0)) / 1e12 == float(row["expected"])


def m09(row):
    """P cancels in the cache: from 1 to 4 stages of 64 only the weights' share falls."""
    weights, cache, micro = 1e12, 2e8, 2400.0
    one, four = (float(stage_bytes_per_chip(weights, cache, micro, 64.0, p)) for p in (1.0, 4.0))
    assert four == pytest.approx(weights / 256 + micro * cache / 64, rel=1e-14)
    assert one - four == pytest.approx(weights / 64 * 3 / 4, rel=1e-12)


def m10(row):
    """With fewer sequences than stages' worth, a chip's cache per micro-batch is that of B/P sequences."""
    stages = float(row["expected"])
    op = Operation(CHIP, 8 * stages, 64 * stages, 1e4, 2.0, 1.0)
    piped = decode_step(dense(kv_bytes=1000.0), op, Layout(tensor=8.0, pipeline=stages))
    alone = decode_step(dense(kv_bytes=1000.0), replace(op, chips=8.0, batch=64.0), Layout(tensor=8.0))
    assert float(piped.cache_s) == pytest.approx(float(alone.cache_s), rel=1e-12)


def m12(row):
    """20 ms and 4 hops of 2.5 ms are 30 ms; 4 stages have 3 hops between them, 27.5 ms: 8% less than printed."""
    model = dense(8e10)  # 160 GB on 8 chips of 1 TB/s: 20 ms
    op = Operation(CHIP, 32.0, 4.0, 1.0, 2.0, 1.0)
    step = decode_step(model, op, Layout(tensor=8.0, pipeline=4.0, hop_s=2.5e-3))
    assert 1e3 * float(step.step_s - step.latency_s) == pytest.approx(20, rel=1e-6)
    assert 1e3 * float(step.step_s) == pytest.approx(27.5, rel=1e-6)
    assert 1e3 * float(step.step_s) + 2.5 == pytest.approx(float(row["expected"]), rel=1e-6)


def m13(row):
    """72/8 is 9, said 8."""
    few, many = (float(decode(dense(), 1.0, chips=c).weights_s) for c in (8.0, 72.0))
    assert few / many == pytest.approx(float(row["recomputed"]), rel=1e-12)
    assert few / many == pytest.approx(float(row["expected"]), rel=0.13)


def p01(row):
    """Output costs 50% more beyond 200k; input costs 100% more, which is not said."""
    ratio, context = expected(row)
    steps = [step for step in price_steps() if step.model == "gemini/gemini-3.1-pro-preview"]
    assert len(steps) == 2
    for step in steps:
        assert (step.context, step.output_ratio) == (context, ratio)
        assert step.input_ratio == 2


def p02(row):
    assert float(balanced_cache_bytes(1e11, 2e5, 600.0)) == pytest.approx(float(row["expected"]), rel=1e-3)
    fp8 = flop_per_byte(accelerator(catalog.find("hardware", "h100-sxm"), "fp8"))
    assert float(balanced_cache_bytes(1e11, 2e5, fp8)) == pytest.approx(1693, rel=1e-3)
    assert float(balanced_cache_bytes(1e11, 2e5, flop_per_byte(H100))) == pytest.approx(3387, rel=1e-3)


def p03(row):
    shared = replace(architecture(catalog.find("models", "llama-3.1-8b")), layers=1.0)
    assert float(shared.shape().kv_bytes(jnp.asarray(1.0), 1.0)) == float(row["expected"])


def p04(row):
    """A step whose memory takes 5 times its arithmetic costs 5 times a prefill; Claude lists 5, Gemini 3.1 lists 6."""
    context, batch = 1e5, 1e3
    kv = float(balanced_cache_bytes(N, context, 300.0, ratio=5.0, weight_bytes=2 * N, batch=batch))
    step = decode(dense(kv_bytes=kv), batch, context)
    assert float(step.memory_s / step.compute_s) == pytest.approx(5, rel=1e-9)
    prompt = prefill_step(dense(), Operation(CHIP, 1.0, 1.0, 1e5, 2.0, 1.0))
    assert float(step.step_s) / batch / (float(prompt.step_s) / 1e5) == pytest.approx(5, rel=1e-6)
    lists = [row.fields for row in catalog.table("api_prices")]
    claude = [f["output_usd_per_mtok"] / f["input_usd_per_mtok"] for f in lists if f["provider"] == "anthropic"
              and f["context_above_tokens"] is None]  # fmt: skip
    assert claude == pytest.approx([5.0] * len(claude))  # the host's 5
    gemini = [f["output_usd_per_mtok"] / f["input_usd_per_mtok"] for f in lists
              if f["model"] == "gemini/gemini-3.1-pro-preview" and f["context_above_tokens"] is None]  # fmt: skip
    assert gemini == pytest.approx([6.0] * len(gemini))  # above the 3 to 5 of the row


def p05(row):
    """Prompts so short that reading weights binds: their time per token falls as 1/length; long ones do not."""
    times = [float(prefill_step(dense(), Operation(CHIP, 1.0, 1.0, t, 2.0, 1.0)).step_s) / t for t in (10.0, 20.0)]
    assert times[0] / times[1] == pytest.approx(2, rel=1e-12)
    times = [float(prefill_step(dense(), Operation(CHIP, 1.0, 1.0, t, 2.0, 1.0)).step_s) / t for t in (1e3, 1e4)]
    assert times == pytest.approx([2 * N / 3e14] * 2, rel=1e-12)


def p06(row):
    """A tenth to read at Claude and Gemini in November 2026; to write 1.25 times for 5 minutes."""
    for f in (row.fields for row in catalog.table("api_prices")):
        standard = f["service_tier"] == "standard" and f["snapshot_date"] == "2026-11-20"
        if standard and f["model"] in ("claude-opus-4-5", "gemini/gemini-3.1-pro-preview"):
            assert f["input_usd_per_mtok"] / f["cache_read_usd_per_mtok"] == pytest.approx(float(row["expected"]))


def p07(row):
    """'Millions': 54k for Llama-3-70B, 19 times less; 4.3k (DeepSeek-V3) to 324k (Gemma 3) over the catalogue; in a
    prompt twice as far."""
    llama = shape(catalog.find("models", "llama-3.1-70b"))
    at = float(attention_equals_weights_context(llama))
    assert at == pytest.approx(2 * 70.55e9 / (4 * 64 * 128 * 80), rel=0.02)  # the row's own: 54k
    assert float(row["expected"]) / at == pytest.approx(18.9, rel=0.01)
    assert float(attention_equals_weights_context(llama, causal=True)) == pytest.approx(2 * at - 1, rel=1e-12)
    everywhere = [float(attention_equals_weights_context(shape(r))) for r in catalog.entries("models")]
    assert [min(everywhere), max(everywhere)] == pytest.approx([4311, 324358], rel=1e-3)
    # It would hold with the single layer that P03 counts.
    one = replace(llama, attention_flop=float(llama.attention_flop) / 80)
    assert float(attention_equals_weights_context(one)) > 4e6


def p09(row):
    """The three costs of a token's 2,048 B for an hour, worked out by hand, at 1.8 USD an hour a chip, 0.0005 USD/s."""
    chip = Accelerator(1e15, 80e9, 4e12, usd_per_chip_hour=1.8)
    assert float(recompute_usd(1e11, 1.0, chip)) == pytest.approx(2e-4 * 5e-4, rel=1e-12)
    assert float(cost_usd(hbm(chip), 2048.0, 3600.0, 5e-4)) == pytest.approx(2048 / 80e9 * 5e-4 * 3600, rel=1e-12)
    ddr = MemoryTier(1e12, 5e10, 1e-4)
    want = 2048 / 1e12 * 1e-4 * 3600 + 2048 / 5e10 * 5e-4
    assert float(cost_usd(ddr, 2048.0, 3600.0, 5e-4)) == pytest.approx(want, rel=1e-12)


def p10(row):
    opus = {r.name: r.fields for r in catalog.table("api_prices")}["claude-opus-4-5-standard-base-2026-11-20"]
    assert (opus["input_usd_per_mtok"], opus["cache_write_usd_per_mtok"]) == (5, 6.25)
    assert opus["cache_write_usd_per_mtok"] / opus["input_usd_per_mtok"] == float(row["expected"])


def p11(row):
    """HBM 20 ms and DDR 1 to 10 s hold; flash takes 4.6 to 85 times the minute said, a disk 23 times the hour."""
    hbm_s, _, flash_s, disk_s = (float(part.split("-")[0]) for part in row["expected"].split(";"))
    assert float(hbm(replace(H100, usd_per_chip_hour=1.0)).drain_s) == pytest.approx(hbm_s, rel=0.25)
    drains = {name: float(memory_tier(r).drain_s) for r in catalog.table("memory_tiers") for name in (r.name,)}
    assert 1 <= drains["ddr5-12-channel"] <= 10
    assert drains["flash-9650-7tb"] / flash_s == pytest.approx(4.57, rel=0.01)
    assert drains["flash-6550-61tb"] / flash_s == pytest.approx(85.3, rel=0.01)
    assert drains["disk-24tb"] / disk_s == pytest.approx(23.4, rel=0.01)


def p12(row):
    """With the drain times as said, equal rents of full tiers, and fetches that only the tier pays for: each tier's two
    costs are equal at its drain time, so 5 minutes lie between flash's and disk's, an hour is disk's."""
    drains = {"hbm": 0.02, "ddr": 5.0, "flash": 60.0, "disk": 3600.0}
    tiers = {name: MemoryTier(1e12, 1e12 / drain, 1e-4) for name, drain in drains.items()}
    for hold, nearest in ((300.0, "flash"), (3600.0, "disk")):

        def imbalance(name, hold=hold):
            tier = tiers[name]
            return abs(math.log(float(tier.hold_usd_per_s(1.0)) * hold / float(tier.fetch_usd(1.0, tier.usd_per_s))))

        assert min(tiers, key=imbalance) == nearest
        assert nearest in row["expected"]


CHECKS: dict[str, Callable] = {
    name.upper(): check for name, check in list(globals().items()) if name.upper() in ROWS and callable(check)
}


@pytest.mark.parametrize("name", CHECKS)
def test_claim_of_the_lecture(name: str):
    CHECKS[name](ROWS[name])


def test_every_claim_is_checked_or_has_nothing_to_compute():
    assert len(ROWS) == 21 + 14 + 12
    assert set(ROWS) == {*CHECKS, *NOTHING_TO_COMPUTE}
    assert not {*CHECKS} & {*NOTHING_TO_COMPUTE}
