"""Measurements against the roofline: nothing real beats the bound, and a check says what it could not use."""

import csv
import json
import math
import runpy
from pathlib import Path

import pandas as pd
import pytest
from case_rows import case_rows

from allocator import catalog, roofline_checks
from allocator.errors import CatalogError
from allocator.roofline.accelerator import accelerator
from allocator.roofline.calibration import SERVING
from allocator.roofline.flop import attention_flop_per_token
from allocator.roofline.memory import largest_batch
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.shape import shape
from allocator.roofline.step import decode_step
from allocator.roofline_checks import check
from allocator.rooflines import roofline

MEASURED = case_rows("roofline_measured_cases")
ROW = {"id": "a", "source_kind": "mine", "hardware": "H100 SXM", "n_chips": 8, "model": "llama-3.1-70b",
       "precision": "fp8", "mode": "agg", "concurrency": 64, "input_len": 1000, "output_len": 500, "tpot_ms": 20.0,
       "ttft_ms": 500.0}  # fmt: skip
BEATS = {  # rows that no such run can have been; docs/roofline.md says why
    "nvidia_qwen3_32b_nvfp4_nvidia_qwen3_32b_nvfp4_b200_sxm_trtllm_agg_15000x500_c416_tp2_0_epnone_2",
    "nvidia_qwen3_32b_nvfp4_nvidia_qwen3_32b_nvfp4_gb200_trtllm_agg_15000x500_c448_tp2_0_epnone_2",
    "nvidia_qwen3_32b_nvfp4_nvidia_qwen3_32b_nvfp4_gb200_trtllm_agg_15000x500_c448_tp2_0_epnone_3",
    "qwen3_32b_qwen3_32b_h100_sxm_vllm_disagg_4000x1000_c_tp_epnone_2",
    "2026_04_06_gpt_oss_120b_h100_sxm_vllm_fp4_agg_1024x1024_c512_tp2_ep1_1135",
}


def rows(**changed) -> pd.DataFrame:
    return pd.DataFrame([{**ROW, **changed}])


@pytest.fixture(scope="module")
def shipped() -> roofline_checks.Check:
    return check("serving_measurements")


# --- the shipped measurements ---


def test_rows_beating_the_bound_are_known(shipped):
    assert {row["id"] for row in shipped.beating} == BEATS
    assert all(len(row["beats"]) > 40 for row in shipped.beating)
    assert [warning["value"] for warning in shipped.warnings()] == [len(BEATS)]


def test_every_row_is_used_or_has_a_reason(shipped):
    assert len(shipped.rows) + len(shipped.unused) == 2996
    assert all(row["why"] for row in shipped.unused)
    assert len({row["id"] for row in (*shipped.rows, *shipped.unused)}) == 2996


def test_errors_and_bounds_have_not_drifted(shipped):
    """A drift check: near an earlier fit without layouts (bound/measured 0.12, 0.32, 0.58 at 10, 50, 90%),
    which assumed other dtypes of the cache."""
    (over_all,) = [row for row in shipped.summary() if row["by"] == "all"]
    assert over_all["median_abs_error"] == pytest.approx(0.20, abs=0.02)
    ideal = pd.Series([row["ideal_over_measured"] for row in shipped.rows])
    assert [ideal.quantile(q) for q in (0.1, 0.5, 0.9)] == pytest.approx([0.12, 0.32, 0.58], abs=0.06)


def test_bands_and_names_of_the_calibration_are_those_of_the_rows(shipped):
    for band, mode in ((SERVING.together, "agg"), (SERVING.apart, "disagg")):
        spread = shipped.measured_over_predicted(mode)
        assert (band.low, band.high) == pytest.approx((spread["p10"], spread["p90"]), abs=0.005)
        assert band.rows == sum(row["mode"] == mode for row in shipped.rows)
    assert SERVING.source.startswith(f"{len(shipped.rows):,} rows")
    assert {row["hardware"] for row in shipped.rows} == set(SERVING.chips)
    assert {row["model"] for row in shipped.rows} == set(SERVING.models)


def test_constants_are_the_optimum_of_their_fit(root: Path):
    """By scripts/fit_serving.py, in the digits that are in use: 0.01 ms, 0.01, 0.01."""
    fit = runpy.run_path(str(root / "scripts" / "fit_serving.py"))["Serving"]().fit()
    found = (fit.layer_latency_s, fit.memory_efficiency, fit.compute_efficiency)
    used = (SERVING.layer_latency_s, SERVING.memory_efficiency, SERVING.compute_efficiency)
    assert [round(value, digits) for value, digits in zip(found, (5, 2, 2), strict=True)] == pytest.approx(
        used, rel=1e-9
    )


@pytest.mark.parametrize("mode", ["agg", "disagg"])
@pytest.mark.parametrize(
    ("hardware", "model", "precision", "chips", "batch"),
    [("h100-sxm", "llama-3.1-70b", "fp8", 8, 64), ("h200-sxm", "deepseek-v3", "fp8", 16, 128),
     ("b200-sxm", "gpt-oss-120b", "fp4", 4, 256), ("h100-sxm", "gpt-oss-120b", "fp4", 2, 32),
     ("gb200-nvl72", "qwen3-235b-a22b", "fp8", 72, 720)],
)  # fmt: skip
def test_what_is_expected_is_what_a_check_predicts(hardware, model, precision, chips, batch, mode):
    """The same deployment asked of `roofline` and of `check`."""
    lengths = {"input_len": 3000, "output_len": 500}
    (row,) = check(rows(hardware=hardware, model=model, precision=precision, n_chips=chips, n_decode_chips=chips,
                        concurrency=batch, mode=mode, **lengths)).rows  # fmt: skip
    hopper = precision == "fp4" and hardware.startswith("h")
    asked = {"dtype": "fp8", "weight_dtype": "fp4"} if hopper else {"dtype": precision}
    output = 500 if mode == "agg" else None
    at = roofline(hardware, model, chips=chips, batch=batch, prompt=3000, output=output, context=3250, **asked)
    assert row["batch"] == batch
    assert row["predicted_tpot_ms"] == pytest.approx(1e3 * at.expected_step_s, rel=1e-12)
    assert (row["tensor"], row["expert"]) == (at.layout.tensor, at.layout.expert)
    spread = SERVING.together if mode == "agg" else SERVING.apart
    assert at.band["high_s"] == pytest.approx(spread.high * at.expected_step_s, rel=1e-12)


def test_training_stays_below_the_peak_of_its_precision():
    with catalog.table_path("training_measurements").open(encoding="utf-8", newline="") as table:
        runs = list(csv.DictReader(table))
    known = [float(run["mfu_native_peak"]) for run in runs if run["mfu_native_peak"]]
    assert len(known) > 400
    assert 0 < min(known) < max(known) <= 1
    bf16 = [float(run["mfu_bf16_peak"]) for run in runs if run["mfu_bf16_peak"] and run["precision"].lower() == "bf16"]
    assert max(bf16) <= 1
    assert all(float(run["hfu"]) <= 1 for run in runs if run["hfu"])


# --- the handed cases ---

CHIPS = {"TPU v4": "tpu-v4", "H100": "h100-sxm", "H800": "h800-sxm", "H200": "h200-sxm", "B200": "b200-sxm",
         "GB200": "gb200-nvl72"}  # fmt: skip
MODELS = {"PaLM": "palm-540b", "Llama 3.3 70B": "llama-3.1-70b", "Llama 3.x 70B": "llama-3.1-70b",
          "Llama 3.x 405B": "llama-3.1-405b", "Llama 3 405B": "llama-3.1-405b", "Llama 3.x 8B": "llama-3.1-8b",
          "DeepSeek-V3": "deepseek-v3"}  # fmt: skip
INCOMPLETE = {
    "D4": "no batch", "D6": "no batch", "D17": "a price", "TR6": "a rule of thumb", "P2": "no chip", "P3": "no chip",
}  # fmt: skip
DTYPE = {"K3_128_2048": "fp4", "D5": "fp4", "D13": "fp4"}  # of the fastest arithmetic in the run


def named(names: dict[str, str], text: str) -> str:
    return next(name for start, name in names.items() if text.startswith(start))


def operation(row: dict[str, str], batch: float, context: float) -> Operation:
    dtype = DTYPE.get(row["id"], "fp8" if row["kind"] in ("throughput", "train") or row["id"][0] in "DT" else "bf16")
    dtype = "bf16" if row["id"] == "TR1" else dtype
    chip = accelerator(catalog.find("hardware", named(CHIPS, row["hardware"])), dtype)
    weight = {"fp4": 0.5, "fp8": 1.0, "bf16": 2.0}[dtype] if row["id"] != "E4" else 1.0  # int8 weights, bf16 sums
    return Operation(chip, float(row["n_chips"]), batch, context, weight, min(weight, 1.0), usable_memory=1.0)


def over_bound(row: dict[str, str]) -> float:
    """Measured rate over the bound's, or the bound's time over the measured."""
    drawn = shape(catalog.find("models", named(MODELS, row["model"])))
    measured, unit, chips = float(row["measured"]), row["unit"], float(row["n_chips"])
    if row["kind"] == "train":
        if unit == "tokens/day":
            op = operation(row, 1.0, float(row["context"]))
            attention = float(attention_flop_per_token(drawn, op.context))
            flop = 6 * float(drawn.n_compute) + 3 * attention
            return measured / 86400 * flop / chips / op.chip.peak_flop_per_s
        return measured * 1e12 / operation(row, 1.0, 1.0).chip.peak_flop_per_s
    if row["kind"] == "throughput":  # of the largest batch that memory holds
        prompt, answer = (float(part) for part in row["context"].split("/"))
        op = operation(row, 1.0, prompt + answer / 2)
        batch = float(largest_batch(drawn, op))
        return measured * float(decode_step(drawn, operation(row, batch, op.context)).step_s) / batch
    if row["kind"] == "decode":
        context = {"138 in + <=900 out": 138.0, "~2048": 2048.0, "2048+64": 2048.0}.get(row["context"])
        per_chip = unit == "tok/s/GPU"
        batch = float(row["batch"]) * (chips if per_chip else 1.0)
        step = float(decode_step(drawn, operation(row, batch, context or float(row["context"]))).step_s)
        return measured * step / (batch / chips) if per_chip else 1e3 * step / measured
    context = float(row["context"])
    tokens_per_chip = {"16384 tok/GPU": 16384.0, "": 16384.0}.get(row["batch"])
    batch = tokens_per_chip * chips / context if tokens_per_chip else float(row["batch"])
    seconds = float(prefill_step(drawn, operation(row, batch, context)).step_s)
    if unit == "s":
        return seconds / measured
    return measured * seconds / (batch * context) * {"tok/s/node": chips / 8, "tok/s/GPU": chips}[unit]


@pytest.mark.parametrize("name", [name for name in MEASURED if name not in INCOMPLETE])
def test_nothing_measured_beats_the_bound(name: str):
    assert 0.02 < over_bound(MEASURED[name]) <= 1


def test_left_out_cases_are_cases():
    assert set(INCOMPLETE) < set(MEASURED)


def test_llama_on_4_h100_against_the_row_s_own_prediction():
    """V2 to V32: the rows predict 10.6 to 11.0 ms from weights of 70.55e9 x 2 bytes and caches."""
    drawn = shape(catalog.find("models", "llama-3.1-70b"))
    chip = accelerator(catalog.find("hardware", "h100-sxm"), "bf16")
    for name in ("V2", "V8", "V32"):
        row = MEASURED[name]
        op = Operation(chip, 4.0, float(row["batch"]), 138 + 450.0, 2.0, 2.0)
        assert 1e3 * float(decode_step(drawn, op).step_s) == pytest.approx(float(row["pred_max"]), rel=0.02)


# --- one row by hand ---


def test_prediction_and_bound_by_hand():
    """Llama 3.1 70B in fp8 on 8 H100: 64 sequences at 1,250 tokens, of which a share waits for the first token."""
    (row,) = check(rows()).rows
    total, multiplying, kv, heads = 70552387584, 69501714432, 163840, 4 * 128 * 64 * 80
    peak, bandwidth = 8 * 1979e12, 8 * 3.35e12
    memory = (total + 64 * 1250 * kv) / bandwidth
    compute = 64 * (2 * multiplying + heads * 1250) / peak
    network = 2 * 80 * 2 * 7 / 8 * (64 * 8192 * 2) / 450e9  # cut by tensor 8
    prefill = 64 * 1000 / 500 * (2 * multiplying + heads * 500.5) / peak
    predicted = 80 * 0.09e-3 + max(memory / 0.67, compute / 0.43, network) + prefill / 0.43
    assert row["tensor"] == 8
    assert row["predicted_tpot_ms"] == pytest.approx(1e3 * predicted, rel=1e-9)
    assert row["error"] == pytest.approx(1e3 * predicted / 20 - 1, rel=1e-9)
    decoding = 64 * 10 / (10 + 0.5)
    bound = (multiplying + decoding * 1250 * kv) / bandwidth
    assert row["ideal_tpot_ms"] == pytest.approx(1e3 * bound, rel=1e-9)
    (apart,) = check(rows(mode="disagg", n_decode_chips=8)).rows
    assert apart["predicted_tpot_ms"] == pytest.approx(1e3 * (predicted - prefill / 0.43), rel=1e-9)


def test_batch_is_capped_by_memory():
    """72 GB a chip less 70.55 GB of weights on one: 8 sequences of 1,250 x 163,840 bytes at most."""
    (row,) = check(rows(n_chips=1)).rows
    assert row["batch"] == math.floor((72e9 - 70552387584) / (1250 * 163840)) < row["concurrency"]


# --- what cannot be used, and what is wrong ---


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"n_chips": None}, "chips not stated"),
        ({"mode": "disagg"}, "number of decode chips not stated"),
        ({"tpot_ms": math.nan}, "time per output token not stated"),
        ({"output_len": ""}, "output length not stated"),
        ({"input_len": ""}, "input length not stated"),
        ({"concurrency": None}, "concurrency not stated"),
        ({"precision": None}, "precision not stated"),
        ({"precision": "nvfp4 moe"}, "precision 'nvfp4 moe' is none of bf16, fp8, int8, fp4"),
        ({"hardware": "Abacus"}, "hardware: 'Abacus' is not known"),
        ({"model": "MPT-7b"}, "models: 'MPT-7b' is not known"),
        ({"hardware": "a100-80gb-sxm"}, "no dense fp8 peak is on record"),
        ({"mode": "prefill only"}, "prefill alone has no time per output token"),
        ({"mode": "aggregated"}, "mode: got 'aggregated'; must be agg"),
        ({"mode": "colocated"}, "mode: got 'colocated'; must be agg"),
        ({"mode": "decode only"}, "mode: got 'decode only'; must be agg"),
        ({"mode": ""}, "mode: got ''; must be agg"),
        ({"mode": None}, "mode: got ''; must be agg"),
    ],
)
def test_unused_rows_say_why(changed, why: str):
    done = check(rows(**changed))
    assert not done.rows
    assert [row["id"] for row in done.unused] == ["a"]
    assert why in done.unused[0]["why"]
    json.dumps(done.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tpot_ms": -1}, "row 1 (a): tpot_ms: got '-1'; must be a number > 0, or blank where it is not known"),
        ({"n_chips": 0}, "row 1 (a): n_chips: got '0'"),
        ({"concurrency": "many"}, "row 1 (a): concurrency: got 'many'"),
        ({"ttft_ms": math.inf}, "row 1 (a): ttft_ms: got 'inf'"),
    ],
)
def test_wrong_cells_are_named(changed, said: str):
    with pytest.raises(CatalogError) as caught:
        check(rows(**changed))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_columns_are_named():
    with pytest.raises(
        CatalogError, match=r"^data frame: columns concurrency, tpot_ms missing; see: allocator catalog"
    ):
        check(rows().drop(columns=["concurrency", "tpot_ms"]))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), (b"", "is not a CSV table"), (b"\xff\xfe\x00a,b\n", "is not a CSV table"),
     (b'id,"x\n1,2\n', "is not a CSV table"), (b"id,x\n1,2,3,4\n", "missing")],
)  # fmt: skip
def test_files_that_are_no_table(tmp_path: Path, content: bytes | None, said: str):
    path = tmp_path / "runs.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CatalogError) as caught:
        check(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_table(tmp_path: Path):
    with pytest.raises(CatalogError, match="is a folder"):
        check(tmp_path)


def test_a_file_and_a_frame_give_the_same(tmp_path: Path):
    rows().to_csv(tmp_path / "runs.csv", index=False)
    assert check(tmp_path / "runs.csv").rows == check(rows()).rows


def test_names_of_runs_may_be_missing():
    done = check(rows().drop(columns=["id", "source_kind"]))
    assert [(row["id"], row["family"]) for row in done.rows] == [("row 1", "not stated")]
    with pytest.raises(CatalogError, match=r"^data frame: row 1: tpot_ms: got '-1'"):
        check(rows(tpot_ms=-1).drop(columns=["id", "source_kind"]))
