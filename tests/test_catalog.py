"""The shipped catalogue against published figures, and every way of asking it for what it cannot give."""

import csv
import hashlib
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from allocator import catalog
from allocator.catalog import (
    Record,
    columns,
    dense_peak_flop_per_s,
    entries,
    find,
    law_record,
    scenario_path,
    table,
    table_path,
)
from allocator.errors import CatalogError

TABLES = ("api_prices", "demand", "hardware", "memory_tiers", "models", "released_models")
MEASURED = {
    "gadre_runs": 104,
    "pythia_pass_at_k": 94,
    "rl_excursions_passk": 279,
    "rl_excursions_rl_steps": 22,
    "rl_qwen25_math_before_after": 112,
    "rl_qwen25_math_error": 2874,
    "serving_measurements": 2996,
    "training_measurements": 429,
}  # rows of the tables whose rows are measurements without names
BLANKS = ("serving_measurements", "training_measurements")  # measurements of which not all figures are known
LAW = """schema = "allocator.law/1"
name = "mine"
kind = "chinchilla"
unit = "nats/token"
[parameters]
E = 1.8
A = 400
B = 2000.0
alpha = 0.34
beta = 0.36
"""


def write(path: Path, text: str | bytes = LAW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parameters(name: str) -> dict[str, float]:
    return law_record(name).content["parameters"]


def measured(name: str, **where: str | float) -> list[dict[str, Any]]:
    """Rows of a table of measurements with these values; numbers as numbers."""
    about = columns(name)
    with table_path(name).open(encoding="utf-8", newline="") as file:
        rows = [
            {key: float(cell) if cell and about[key]["type"] == "number" else cell for key, cell in row.items()}
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def optimal_size(law: dict[str, float], flop: float) -> float:
    """N that minimises a Chinchilla law at C = 6 N D (Hoffmann et al., eq. 4)."""
    a, b = law["alpha"], law["beta"]
    return (a * law["A"] / (b * law["B"])) ** (1 / (a + b)) * (flop / 6) ** (b / (a + b))


# --- the tables hold together ---


def test_importing_the_catalogue_loads_nothing_heavy():
    code = "import sys, allocator.catalog as c; c.entries('hardware'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jax", "numpy", "pandas", "pydantic", "scipy"} & set(loaded)


@pytest.mark.parametrize("name", [*TABLES, *MEASURED])
def test_every_column_has_type_unit_and_description(root: Path, name: str):
    with (root / "data" / name / "table.csv").open(encoding="utf-8") as file:
        header = file.readline().rstrip("\n").split(",")
    described = columns(name)
    assert list(described) == header
    for column in header:
        assert described[column]["type"] in ("text", "number", "bool")
        assert described[column]["unit"]
        assert len(described[column]["description"]) > 10 or described[column]["unit"] in ("text", "name")


@pytest.mark.parametrize("name", [*TABLES, *MEASURED])
def test_every_table_says_who_compiled_it_and_under_what_licence(root: Path, name: str):
    about = tomllib.loads((root / "data" / name / "source.toml").read_text(encoding="utf-8"))
    assert all(about[key].strip() for key in ("title", "who", "licence", "compiled", "notes"))
    assert name in TABLES or (about["citation"].strip() and about["rows"].strip())


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_named_and_sourced_and_typed_by_its_column(name: str):
    kinds = {"text": str, "number": float, "bool": bool}
    described = columns(name)
    for record in table(name):
        assert record.name
        assert record.source
        assert list(record.fields) == [c for c in described if c not in ("slug", "aliases", "source")]
        for column, value in record.fields.items():
            assert value is None or type(value) is kinds[described[column]["type"]]
            assert value != ""
            assert not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("kind", [*catalog.KINDS, "api_prices", "demand", "memory_tiers", "released_models"])
def test_names_and_aliases_are_unique(kind: str):
    records = entries(kind) if kind in catalog.KINDS else table(kind)
    spellings = [{s.lower() for s in (record.name, *record.aliases)} for record in records]
    assert sum(map(len, spellings)) == len(set().union(*spellings))
    assert all(name.strip() == name != "" for names in spellings for name in names)


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_field_of_a_record_is_described(kind: str):
    described = columns(kind)
    for record in entries(kind):
        assert set(record.fields) <= set(described)
    assert all(about["unit"] and about["description"] for about in described.values())


def test_what_is_shipped():
    assert {kind: len(entries(kind)) for kind in ("hardware", "models")} == {"hardware": 28, "models": 26}
    assert (len(table("demand")), len(table("released_models"))) == (25, 43)
    assert (len(table("api_prices")), len(table("memory_tiers"))) == (536, 4)
    data = {record.name: record.fields["access"] for record in entries("data")}
    shipped = dict.fromkeys((*TABLES, *MEASURED), "shipped")
    assert {name: access for name, access in data.items() if access == "shipped"} == shipped
    assert data["chinchilla_epoch"] == "download"
    assert find("scenarios", "lecture").fields["title"]
    assert scenario_path("Lecture").name == "lecture.toml"
    assert scenario_path("lecture").is_file()


# --- hardware against vendors' figures ---


@pytest.mark.parametrize(
    ("name", "dtype", "published"),
    [
        ("a100-80gb-sxm", "bf16", 312e12),
        ("h100-sxm", "bf16", 989e12),
        ("h100-sxm", "fp8", 1979e12),
        ("h200-sxm", "bf16", 989e12),
        ("b200-sxm", "fp4", 9e15),  # vendor's 18 PFLOP/s counts sparsity
        ("mi355x", "fp4", 10.066e15),  # vendor's 20.1 PFLOP/s counts sparsity
        ("tpu-v5e", "int8", 393e12),
        ("gb200-nvl72-rack", "fp8", 360e15),  # vendor's 720 PFLOP/s counts sparsity
    ],
)
def test_dense_peaks_against_datasheets(name: str, dtype: str, published: float):
    assert dense_peak_flop_per_s(find("hardware", name), dtype) == pytest.approx(published, rel=1e-12)


def test_sparse_headline_of_h100_stays_in_the_notes():
    h100 = find("hardware", "h100-sxm")
    assert "sparse 1979 bf16" in str(h100.fields["notes"])
    assert 1979e12 / dense_peak_flop_per_s(h100, "bf16") == pytest.approx(2, rel=2e-3)
    for dtype in ("bf16", "fp8", "fp4", "int8"):
        assert "DENSE" in columns("hardware")[catalog.PEAKS[dtype]]["description"]


def test_h20_ridge_point_against_its_note():
    h20 = find("hardware", "h20-sxm")
    bandwidth = h20.fields["hbm_bytes_per_s"]
    assert isinstance(bandwidth, float)
    assert dense_peak_flop_per_s(h20, "bf16") / bandwidth == pytest.approx(37)


@pytest.mark.parametrize("chip", ["gb200-nvl72", "gb300-nvl72"])
def test_rack_is_72_chips(chip: str):
    one, rack = find("hardware", chip), find("hardware", f"{chip}-rack")
    assert (one.fields["level"], rack.fields["level"]) == ("chip", "rack")
    for dtype in ("bf16", "fp8", "fp4", "int8"):
        assert dense_peak_flop_per_s(rack, dtype) == pytest.approx(72 * dense_peak_flop_per_s(one, dtype))


def test_blank_cell_is_none():
    assert find("hardware", "h20-sxm").fields["tdp_w"] is None


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("a100-80gb-sxm", "fp8", "a100-80gb-sxm: no dense fp8 peak is on record; it has bf16, int8"),
        ("h100-sxm", "fp4", "h100-sxm: no dense fp4 peak is on record; it has bf16, fp8, int8"),
        ("h100-sxm", "fp16", "dtype: 'fp16' is not known, must be one of bf16, fp8, fp4, int8"),
    ],
)
def test_dense_peak_that_is_not_on_record(name: str, dtype: str, message: str):
    with pytest.raises(CatalogError) as error:
        dense_peak_flop_per_s(find("hardware", name), dtype)
    assert str(error.value) == message


def test_dense_peak_of_something_else():
    with pytest.raises(CatalogError, match="x: no dense bf16 peak is on record; it has none"):
        dense_peak_flop_per_s(Record("x", (), {}, ""), "bf16")


# --- models against papers ---


@pytest.mark.parametrize(
    ("name", "published"),  # arXiv 2505.09343, Table 1
    [("deepseek-v3", 70_272), ("qwen2.5-72b", 327_680), ("llama-3.1-405b", 516_096)],
)
def test_kv_bytes_against_the_deepseek_hardware_paper(name: str, published: int):
    assert find("models", name).fields["kv_bytes_per_token_bf16"] == published


def test_kv_bytes_follow_from_the_elements():
    for model in entries("models"):
        elements = model.fields["kv_elems_per_token_marginal"]
        assert isinstance(elements, float)
        assert model.fields["kv_bytes_per_token_bf16"] == 2 * elements
        assert model.fields["kv_bytes_per_token_fp8"] == elements


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-32b", "palm-540b"])
def test_parameters_follow_from_the_dimensions(name: str):
    f = find("models", name).fields
    d, heads, kv_heads, width = (f[key] for key in ("d_model", "n_heads", "n_kv_heads", "head_dim"))
    layer = 2 * d * width * (heads + kv_heads) + 3 * d * f["d_ff_dense"]  # attention, gated feed-forward part
    embeddings = (1 if f["tied_embeddings"] else 2) * f["vocab"] * d
    assert f["n_total_computed"] == embeddings + f["layers"] * layer


def test_computed_parameters_are_near_the_quoted_ones():
    for model in entries("models"):
        f = model.fields
        assert f["n_total_computed"] == pytest.approx(f["n_total_quoted"], rel=0.02)
        assert f["n_active_noembed_computed"] <= f["n_active_computed"] <= f["n_total_computed"]


def test_released_models_ratios():
    for model in table("released_models"):
        f = model.fields
        if f["d_pretrain"] is not None:
            assert f["tokens_per_param"] == pytest.approx(f["d_pretrain"] / f["n_active"], rel=1e-4)
            assert f["multiple_of_20"] == pytest.approx(f["tokens_per_param"] / 20, rel=1e-3)


def test_demand_per_month_is_the_demand_per_day():
    for row in table("demand"):
        assert row.fields["tokens_per_month"] == pytest.approx(row.fields["tokens_per_day"] * 365 / 12, rel=5e-4)


def price(name: str) -> dict[str, Any]:
    return {row.name: dict(row.fields) for row in table("api_prices")}[name]


def test_prices_against_vendors_lists():
    """Claude Opus 4.5: 5, 25, cache 0.50 to read, 6.25 to write for 5 minutes, 10 for an hour; the lecture at 02:00."""
    opus = price("claude-opus-4-5-standard-base-2026-11-20")
    prices = [opus[key] for key in opus if key.endswith("_usd_per_mtok")]
    assert prices == [5.0, 25.0, 0.5, 6.25, 10.0]
    assert (opus["cache_write_long_ttl_s"], opus["max_input_tokens"], opus["off_peak"]) == (3600.0, 200000.0, False)
    gemini = "gemini-gemini-3.1-pro-preview-standard-{}-2026-11-20"  # 2 and 12 up to 200k tokens, 4 and 18 beyond
    assert [price(gemini.format("base"))[f"{key}_usd_per_mtok"] for key in ("input", "output")] == [2.0, 12.0]
    above = price(gemini.format("above-200k"))
    assert [above[key] for key in ("context_above_tokens", "input_usd_per_mtok", "output_usd_per_mtok")] == [2e5, 4, 18]


def test_snapshots_of_prices():
    dates = [row.fields["snapshot_date"] for row in table("api_prices")]
    assert {date: dates.count(date) for date in dates} == {"2025-09-21": 61, "2026-03-31": 139, "2026-11-20": 336}
    wrong = [row.name for row in table("api_prices") if "looks wrong" in str(row.fields["notes"])]
    assert len(wrong) == 4  # kept as the file has them, and said so


def test_memory_tiers_against_arithmetic_and_vendors():
    tiers = {row.name: row.fields for row in table("memory_tiers")}
    assert tiers["ddr5-12-channel"]["bytes_per_s"] == 12 * 8 * 6.4e9
    assert tiers["ddr5-12-channel"]["capacity_bytes"] == 12 * 128e9
    assert (tiers["flash-6550-61tb"]["capacity_bytes"], tiers["flash-6550-61tb"]["bytes_per_s"]) == (61.44e12, 12e9)
    per_byte = {"ddr": 12e-9, "flash": 350e-12, "disk": 15e-12}  # USD, as `status` says
    for fields in tiers.values():
        capacity = fields["capacity_bytes"]
        assert isinstance(capacity, float)
        assert fields["price_usd"] == pytest.approx(per_byte[str(fields["tier"])] * capacity)
        assert "assumed" in str(fields["status"])


# --- measurements against their sources ---


@pytest.mark.parametrize("name", MEASURED)
def test_measurements_are_whole_and_finite(name: str):
    rows, units = measured(name), {key: about["unit"] for key, about in columns(name).items()}
    assert len(rows) == MEASURED[name]
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    shares = [key for key in units if key.startswith(("error", "pass_", "solved")) and not key.endswith("_beta")]
    for row in rows:
        assert name in BLANKS or "" not in row.values()
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        assert all(0 <= row[key] <= 1 and units[key] == "1" for key in shares)
        assert all(row[key] in unit.split(" | ") for key, unit in units.items() if " | " in unit)


def test_a_table_of_measurements_has_no_records():
    with pytest.raises(
        CatalogError,
        match=r"^data: a row of gadre_runs is a training run, .*; read catalog.table_path\(.gadre_runs.\)$",
    ):
        table("gadre_runs")


def test_table_path():
    assert table_path("Gadre-Runs") == table_path("gadre_runs")
    assert table_path("hardware").name == "table.csv"
    with pytest.raises(CatalogError, match=r"is not shipped; fetch it: allocator data pull chinchilla_epoch$"):
        table_path("chinchilla-epoch")
    with pytest.raises(CatalogError, match=r"did you mean gadre_runs"):
        table_path("gadre")


def test_gadre_run_against_its_record():
    """exp_data/models/rpj-open_lm_7b-1.0.json of mlfoundations/scaling."""
    (run,) = measured("gadre_runs", run="rpj-open_lm_7b-1.0")
    assert (run["n_active"], run["n_active_no_embed"], run["d_tokens"]) == (6889410560, 6682841088, 137788211200)
    assert (run["loss_openlm"], run["loss_c4_val"]) == (1.9000686158736546, 2.424993099368689)
    assert (run["loss_paloma_ptb"], run["loss_de_en_100"]) == (2.745319864966653, 2.555162908996863)


def test_gadre_runs_against_the_paper():
    """104 models between 11M and 6.9B parameters on three corpora (arXiv 2403.08540, abstract and section 3)."""
    runs = measured("gadre_runs")
    assert len({run["run"] for run in runs}) == 104
    assert {run["corpus"] for run in runs} == {"c4_original", "rpj", "rw_original"}
    sizes = [run["n_active"] for run in runs]
    assert [float(f"{size:.1e}") for size in (min(sizes), max(sizes))] == [1.1e7, 6.9e9]
    assert all(run["d_tokens"] == run["tokens_per_param"] * run["n_active"] for run in runs)
    assert {run["tokens_per_param"] for run in runs} == {5, 10, 20, 40, 80, 160, 320, 640}


@pytest.mark.parametrize("corpus", ["c4_original", "rpj"])
def test_gadre_law_against_the_runs(corpus: str):
    """Fitted to 5 small runs a corpus, it is within 5% of all runs at 20 tokens per parameter or more."""
    law = parameters({"c4_original": "gadre-2024-c4", "rpj": "gadre-2024-redpajama"}[corpus])
    for run in measured("gadre_runs", corpus=corpus):
        flop, m = 6 * run["n_active"] * run["d_tokens"], run["tokens_per_param"]
        if m >= 20:
            loss = law["E"] + (law["p"] * m ** law["h"] + law["q"] * m ** -law["h"]) * flop ** -law["h"]
            assert loss == pytest.approx(run["loss_c4_val"], rel=0.05)


def test_qwen_sizes_and_curves_that_come_twice():
    """Compute and samples are two axes of the same points, and a step takes 512 samples."""
    for model_type in ("base", "instruct"):
        for n in (0.5e9, 1.5e9, 3e9, 7e9, 14e9, 32e9, 72e9):
            flop, samples = (
                measured("rl_qwen25_math_error", model_type=model_type, n_active=n, x_kind=kind) for kind in ("C", "E")
            )
            errors = [sorted(row["error_rate"] for row in curve) for curve in (flop, samples)]
            assert errors[0] == pytest.approx(errors[1], abs=2e-5)
            steps = [row["x_value"] / 512 for row in samples]
            assert steps == pytest.approx([round(step) for step in steps], rel=1e-5)


def test_qwen_before_rl_against_the_start_of_the_base_curves():
    for n in (0.5e9, 1.5e9, 3e9):
        (before,) = measured("rl_qwen25_math_before_after", benchmark="holdout", stage="before_rl", n_active=n)
        start = min(
            measured("rl_qwen25_math_error", model_type="base", n_active=n, x_kind="E"), key=lambda r: r["x_value"]
        )
        assert start["x_value"] == pytest.approx(512, rel=1e-5)
        assert start["error_rate"] == pytest.approx(before["error_rate"], abs=6e-3)


def test_rl_excursions_figures_agree_where_they_overlap():
    """Two figures of the paper show the checkpoint at 14B tokens, before RL."""
    for k in (1, 32):
        for stage, pipeline in (("base", "rl_only"), ("sft", "sft_then_rl")):
            (steps,) = measured("rl_excursions_rl_steps", k=k, stage=stage, pipeline=pipeline)
            points = measured("rl_excursions_passk", figure="gsm_passatk_comparison", k=k, stage=stage)
            near = min(points, key=lambda row: abs(row["d_tokens"] - 14e9))
            assert near["d_tokens"] == pytest.approx(14e9, rel=1e-3)
            assert steps["pass_at_k"] == pytest.approx(
                near["pass_at_k"], abs=0.01
            )  # each evaluation drew its own samples
    assert {row["rl_steps"] for row in measured("rl_excursions_rl_steps", stage="rl")} == {200, 400, 600, 800, 1000}


def test_pythia_beta_columns_against_the_closed_form():
    """pass@k of a beta law: 1 - B(a, b + k) / B(a, b); at k = 1 that is a / (a + b)."""
    for row in measured("pythia_pass_at_k"):
        a, b = row["beta_a"], row["beta_b"]
        if a > 1e3:  # the one row whose fit ran off, as the notes say
            assert (row["benchmark"], row["n_active"], row["d_tokens"]) == ("gsm8k", 1e9, 64e6)
            continue
        assert row["pass_at_1_beta"] == pytest.approx(a / (a + b), abs=1e-9)
        for k in (10, 100, 1000, 10000):
            log_fail = math.lgamma(b + k) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + k)
            assert row[f"pass_at_{k}_beta"] == pytest.approx(-math.expm1(log_fail), abs=1e-8)


@pytest.mark.mirror
@pytest.mark.parametrize("benchmark", ["gsm8k", "math"])
def test_pythia_pass_at_k_against_the_counts(benchmark: str, mirror: Path):
    """The unbiased estimate 1 - C(n - c, k) / C(n, k), averaged over the problems."""
    from pyarrow import parquet

    path = mirror / "monkeys_pythia" / f"{benchmark}_pass_at_k.parquet"
    names = ["Model Nickname", "prompt_idx", "Num. Samples", "Num. Samples Correct"]
    problems = set(zip(*parquet.read_table(path, columns=names).to_pydict().values(), strict=True))
    (row,) = measured("pythia_pass_at_k", benchmark=benchmark, n_active=12e9, d_tokens=300e9)
    counts = [(int(n), int(c)) for model, _, n, c in problems if model == "Pythia_12B_300B"]
    assert (len(counts), min(n for n, _ in counts)) == (row["problems"], row["samples_min"])
    assert row["solved_share"] == sum(c > 0 for _, c in counts) / len(counts)
    assert row["pass_at_1_mean"] == pytest.approx(sum(c / n for n, c in counts) / len(counts), rel=1e-12)
    for k in (1, 8, 64, 100):
        missed = [math.comb(n - c, k) / math.comb(n, k) for n, c in counts]
        assert row[f"pass_at_{k}"] == pytest.approx(1 - sum(missed) / len(missed), rel=1e-6)


# --- laws against papers ---


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [("hoffmann-2022", 40.4, 2e-3), ("hoffmann-2022-rounded", 32, 2e-2)],
)
def test_hoffmann_size_at_gopher_budget(name: str, billions: float, tolerance: float):
    assert optimal_size(parameters(name), 5.76e23) == pytest.approx(billions * 1e9, rel=tolerance)


def test_besiroglu_tokens_per_parameter_at_gopher_budget():
    size = optimal_size(parameters("besiroglu-2024"), 5.76e23)
    assert 5.76e23 / (6 * size**2) == pytest.approx(18.39, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "logs"),
    [
        ("hoffmann-2022", {"E": 0.5267228, "A": 6.0073404, "B": 6.0179186}),
        ("muennighoff-2023", {"E": 0.6254804, "A": 6.255414, "B": 7.3049974}),
    ],
)
def test_laws_published_in_logarithms(name: str, logs: dict[str, float]):
    for key, log in logs.items():
        assert math.log(parameters(name)[key]) == pytest.approx(log, abs=1e-14)


def test_rounded_constants_warn():
    rounded = [law.name for law in entries("laws") if law.fields["rounded"]]
    assert rounded == ["hoffmann-2022-rounded"]
    assert "use hoffmann-2022" in str(find("laws", "hoffmann-2022-rounded").fields["caution"])


@pytest.mark.parametrize(
    ("name", "n", "d", "c4_loss"),  # runs outside the fit, mlfoundations/scaling @ a003c491
    [
        ("gadre-2024-redpajama", 1439795200, 921468928000, 2.502053562117363),
        ("gadre-2024-redpajama", 6889410560, 137788211200, 2.424993099368689),
        ("gadre-2024-refinedweb", 1439795200, 460734464000, 2.531392897965929),
        ("gadre-2024-c4", 1439795200, 28795904000, 2.6568587118096136),
    ],
)
def test_gadre_predicts_runs_outside_its_fit(name: str, n: float, d: float, c4_loss: float):
    law, m, c = parameters(name), d / n, 6 * n * d
    predicted = law["E"] + (law["p"] * m ** law["h"] + law["q"] * m ** -law["h"]) * c ** -law["h"]
    assert predicted == pytest.approx(c4_loss, rel=0.01)


def test_loss_to_error_predicts_the_largest_redpajama_run():
    law = parameters("gadre-redpajama-17")
    error = law["epsilon"] - law["kappa"] * math.exp(-law["gamma"] * 2.424993099368689)
    assert error == pytest.approx(0.47163718062288623, rel=0.015)


def test_every_shipped_law_is_complete(root: Path):
    for folder in (root / "fits").iterdir():
        if not (folder / "law.toml").is_file():
            continue
        record = law_record(folder.name)
        assert record.name == folder.name
        assert record.sha256 == hashlib.sha256((folder / "law.toml").read_bytes()).hexdigest()
        for key in ("title", "unit", "source", "status", "equation"):
            assert record.content[key].strip()
        assert set(record.content["parameters"]) <= set(record.content["units"])
        assert set(record.content.get("stderr", {})) <= set(record.content["parameters"])
        limits = record.content.get("fit_range", {})
        assert not limits or limits["source"]
        for low in (key for key in limits if key.endswith("_min")):
            assert limits[low] < limits[f"{low[:-4]}_max"]


def test_besiroglu_stderr_and_muennighoff_repetition():
    assert law_record("besiroglu-2024").content["stderr"] == {
        "E": 0.03, "A": 124.58, "B": 1293.23, "alpha": 0.02, "beta": 0.02,
    }  # fmt: skip
    assert law_record("muennighoff-2023").content["repetition"] == {"r_star": 15.387756}


# --- downloads ---


def test_registry_pins_every_file():
    sets = catalog.registry()
    assert set(sets) >= {"chinchilla_epoch", "monkeys_pythia", "sardana_beyond_chinchilla"}
    for about in sets.values():
        assert about["licence"]
        assert about["citation"]
        prefix = f"https://raw.githubusercontent.com/{about['repository']}/{about['commit']}/"
        assert len(about["commit"]) == 40
        for name, file in about["files"].items():
            assert file["url"].startswith(prefix)
            assert file["url"].endswith(f"/{name}")
            assert len(bytes.fromhex(file["sha256"])) == 32
            assert file["columns"]
            assert all(column["unit"] and column["description"] for column in file["columns"].values())


@pytest.mark.mirror
def test_registry_against_the_mirror(mirror: Path):
    for set_name, about in catalog.registry().items():
        for name, file in about["files"].items():
            raw = (mirror / set_name / name).read_bytes()
            assert (len(raw), hashlib.sha256(raw).hexdigest()) == (file["bytes"], file["sha256"])
            if name.endswith(".csv"):
                header, *rows = raw.decode().splitlines()
                assert (header.split(","), len(rows)) == (list(file["columns"]), file["rows"])


@pytest.mark.mirror
def test_besiroglu_range_against_the_runs(mirror: Path):
    lines = (mirror / "chinchilla_epoch" / "svg_extracted_data.csv").read_text().splitlines()[1:]
    sizes = [(float(row[3]), float(row[4]) / (6 * float(row[3]))) for row in (line.split(",") for line in lines)]
    kept = sorted(sizes, key=lambda run: run[1] / run[0])[5:]
    assert len(kept) == 240
    limits = law_record("besiroglu-2024").content["fit_range"]
    for key, values in {
        "n_active": [n for n, _ in kept],
        "d_pretrain": [d for _, d in kept],
        "tokens_per_param": [d / n for n, d in kept],
    }.items():
        assert [limits[f"{key}_min"], limits[f"{key}_max"]] == [float(f"{f(values):.2e}") for f in (min, max)]


# --- names ---


@pytest.mark.parametrize(
    ("kind", "spelling", "name"),
    [
        ("hardware", "h100-sxm", "h100-sxm"),
        ("hardware", "H100-SXM", "h100-sxm"),
        ("hardware", "gb200", "gb200-nvl72"),
        ("models", "deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("models", "llama 3.3 70b", "llama-3.1-70b"),
        ("laws", "besiroglu", "besiroglu-2024"),
        ("laws", "EPOCH", "besiroglu-2024"),
        ("laws", "hoffmann-tex", "hoffmann-2022"),
        ("data", "chinchilla-epoch", "chinchilla_epoch"),
    ],
)
def test_find_by_name_or_alias_in_any_case(kind: str, spelling: str, name: str):
    assert find(kind, spelling).name == name


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("hardware", "h100", "hardware: 'h100' is not known; did you mean h100-sxm?"),
        ("hardware", "b2000-sxm", "hardware: 'b2000-sxm' is not known; did you mean b200-sxm or "),
        ("hardware", "abacus", "hardware: 'abacus' is not known; see: allocator catalog hardware"),
        ("hardware", "", "hardware: '' is not known; see: allocator catalog hardware"),
        ("hardware", "h100\nsxm", r"hardware: 'h100\nsxm' is not known; did you mean h100-sxm or "),
        # an alias that is near leads to the name
        ("models", "kimi k2.", "models: 'kimi k2.' is not known; did you mean kimi-k2?"),
        ("laws", "besirolgu", "laws: 'besirolgu' is not known; did you mean besiroglu-2024?"),
        ("data", "chinchilla", "data: 'chinchilla' is not known; did you mean chinchilla_epoch?"),
        ("gpus", "h100", "catalog: 'gpus' is not a kind, must be one of hardware, models, laws, data, scenarios"),
    ],
)
def test_unknown_name_gets_a_suggestion(kind: str, name: str, message: str):
    with pytest.raises(CatalogError) as error:
        find(kind, name)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_unknown_scenario_gets_a_suggestion():
    with pytest.raises(CatalogError, match=r"^scenarios: 'lectrue' is not known; did you mean lecture\b"):
        scenario_path("lectrue")


def test_unknown_table_and_columns():
    with pytest.raises(CatalogError, match=r"^data: 'laws' is no shipped table, must be one of api_prices, demand, "):
        table("laws")
    with pytest.raises(CatalogError, match=r"^columns: 'chips' is not known, must be one of laws, data, scenarios, "):
        columns("chips")


# --- law files ---


def test_law_by_path_is_relative_to_folder_then_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path / "a" / "mine.toml")
    monkeypatch.chdir(tmp_path)
    for record in (law_record("mine.toml", folder=tmp_path / "a"), law_record("a/mine.toml"), law_record(str(file))):
        assert record.name == "mine"
        assert record.path.resolve() == file.resolve()
        assert record.sha256 == hashlib.sha256(LAW.encode()).hexdigest()
        assert record.content == tomllib.loads(LAW)


def test_law_by_name_is_looked_for_beside_the_scenario_then_here_then_among_the_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here, beside = tmp_path / "here", tmp_path / "beside"
    here.mkdir()
    monkeypatch.chdir(here)
    assert law_record("besiroglu-2024", folder=beside).content["parameters"]["E"] == 1.8172
    write(here / "fits" / "besiroglu-2024" / "law.toml", LAW.replace("1.8", "1.7"))
    assert law_record("besiroglu-2024", folder=beside).content["parameters"]["E"] == 1.7
    write(beside / "fits" / "besiroglu-2024" / "law.toml", LAW.replace("1.8", "1.6"))
    assert law_record("besiroglu-2024", folder=beside).content["parameters"]["E"] == 1.6
    assert law_record("besiroglu-2024").content["parameters"]["E"] == 1.7
    # an alias is one of the shipped law, so it still leads there
    assert law_record("besiroglu", folder=beside).content["parameters"]["E"] == 1.8172


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 5000, "nul\0", "unheard-of"])
def test_law_name_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    write(tmp_path / "law.toml")
    write(tmp_path / "fits" / "law.toml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CatalogError, match=r"^laws: .* is not known; "):
        law_record(name, folder=tmp_path)


@pytest.mark.parametrize("name", ["absent.toml", "a/b", "a" * 5000 + ".toml", "nul\0.toml"])
def test_law_path_that_is_none(tmp_path: Path, name: str):
    with pytest.raises(CatalogError, match=r"(?s): no such file$"):
        law_record(name, folder=tmp_path)


def test_law_path_to_a_folder(tmp_path: Path):
    """The folder that a fit was written to stands for its law; any other is none."""
    write(tmp_path / "made" / "mine" / "law.toml")
    assert law_record("made/mine", folder=tmp_path).path == tmp_path / "made" / "mine" / "law.toml"
    with pytest.raises(CatalogError, match=r"/made: is a folder, must be a law file$"):
        law_record("./made", folder=tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_law_file_without_permission(tmp_path: Path):
    write(tmp_path / "mine.toml").chmod(0)
    with pytest.raises(CatalogError, match=r"mine\.toml: cannot be read: Permission denied$"):
        law_record("mine.toml", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "is empty"),
        (b" \n# nothing\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0", "is not TOML in UTF-8: 'utf-8' codec can't decode byte 0x89 in position 0: "),
        ("E = \x00", "is not TOML in UTF-8: "),
        ("name =", "is not TOML in UTF-8: Invalid value (at "),
        ("a = 1\nb = \n", "is not TOML in UTF-8: Invalid value (at line 2, column "),
        ("a = " + 100_000 * "[", "is not TOML in UTF-8: "),
        (LAW.replace("400", 5000 * "9"), "is not TOML in UTF-8: "),
        ('title = "a scenario"', "schema: is missing"),
        (LAW.replace("law/1", "law/2"), "schema: must be allocator.law/1, got 'allocator.law/2'"),
        (LAW.replace('"allocator.law/1"', "1"), "schema: must be allocator.law/1, got 1"),
        (LAW.replace('name = "mine"', ""), "name: is missing"),
        (LAW.replace('"mine"', "1.5"), "name: must be a text, got 1.5"),
        (LAW.replace('kind = "chinchilla"', ""), "kind: is missing"),
        (
            LAW.replace("chinchilla", "power"),
            "kind: must be chinchilla or gadre or loss-to-error or rl-power or pass-at-k or t2-loss, got 'power'",
        ),
        (
            LAW.replace('"chinchilla"', "[]"),
            "kind: must be chinchilla or gadre or loss-to-error or rl-power or pass-at-k or t2-loss, got []",
        ),
        (LAW.replace('unit = "nats/token"', ""), "unit: is missing"),
        (LAW.split("[")[0], "parameters: a chinchilla law has E, A, B, alpha, beta, got none"),
        (LAW.replace("[parameters]", "[parameter]"), "parameters: a chinchilla law has E, A, B, alpha, beta, got none"),
        (LAW.replace("beta = 0.36", ""), "parameters: a chinchilla law has E, A, B, alpha, beta, got E, A, B, alpha"),
        (LAW + "h = 0.1", "parameters: a chinchilla law has E, A, B, alpha, beta, got E, A, B, alpha, beta, h"),
        (LAW.split("[")[0] + "parameters = 3", "parameters: must be a table, got 3"),
        (LAW.replace("400", "nan"), "parameters.A: must be a finite number, got nan"),
        (LAW.replace("400", "-inf"), "parameters.A: must be a finite number, got -inf"),
        (LAW.replace("400", "1e400"), "parameters.A: must be a finite number, got inf"),
        (LAW.replace("400", "9" * 400), f"parameters.A: must be a finite number, got {'9' * 400}"),
        (LAW.replace("400", '"400"'), "parameters.A: must be a finite number, got '400'"),
        (LAW.replace("400", "true"), "parameters.A: must be a finite number, got True"),
        (LAW + "[stderr]\nE = nan", "stderr.E: must be a finite number, got nan"),
        (LAW + '[repetition]\nr_star = "15"', "repetition.r_star: must be a finite number, got '15'"),
        (
            LAW + '[fit_range]\nsource = "x"\nn_active_min = []',
            "fit_range.n_active_min: must be a finite number, got []",
        ),
    ],
)
def test_law_file_of_the_wrong_form(tmp_path: Path, text: str | bytes, fault: str):
    file = write(tmp_path / "mine.toml", text)
    with pytest.raises(CatalogError) as error:
        law_record("mine.toml", folder=tmp_path)
    assert str(error.value).startswith(f"{file}: {fault}")
    assert "\n" not in str(error.value)


def test_law_file_with_more_than_the_catalogue_knows(tmp_path: Path):
    more = LAW.replace("unit =", "n = 240\nunit =") + '[versions]\njax = "0.10"\n[fit_range]\nsource = "x"\n'
    write(tmp_path / "mine.toml", more.replace("\n", "\r\n"))
    assert law_record("mine.toml", folder=tmp_path).content["n"] == 240
