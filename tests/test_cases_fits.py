"""Published and independent refits: every row of reference_fits.csv that is meant as a test."""

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from case_rows import case_rows

from allocator import catalog
from allocator.downloads import fetch
from allocator.fitting.estimation import fit
from allocator.fitting.result import Fit
from allocator.fitting.scaled import physical
from allocator.fitting.user import user_form

CASES = Path(__file__).parent / "cases"
EPOCH = {"n_active": "Model Size", "compute_flop": "Training FLOP"}
SARDANA = {"n_active": "Parameters", "d_tokens": "Tokens", "loss": "Smoothed Loss"}
GADRE = {"loss": "loss_c4_val"}


def _rows(use: str) -> dict[tuple[str, str], list[dict[str, str]]]:
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    with (CASES / "reference_fits.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["use"] == use:
                groups.setdefault((row["dataset"], row["law"]), []).append(row)
    return groups


TESTS = _rows("test")
SURFACE = "L=E+A/N^alpha+B/D^beta (Huber 1e-3 on log, LSE)"


@cache
def _epoch(runs: int) -> pd.DataFrame:
    frame = pd.read_csv(fetch("chinchilla_epoch")["svg_extracted_data.csv"])
    order = np.argsort(frame["Training FLOP"] / frame["Model Size"] ** 2, kind="stable")
    return frame.iloc[np.sort(order[len(frame) - runs :])]


@cache
def _gadre(corpus: str, least_ratio: float = 0.0) -> pd.DataFrame:
    frame = pd.read_csv(catalog.table_path("gadre_runs"))
    return frame[(frame["corpus"] == corpus) & (frame["tokens_per_param"] >= least_ratio)]


@cache
def _surface(name: str) -> Fit:
    """The Chinchilla form on the runs that a row's data set names."""
    if name.startswith("chinchilla_epoch"):
        return fit(_epoch(245 if "all 245" in name else 240), columns=EPOCH, starts=64, bootstrap=0)
    if name.startswith("sardana"):
        frame = pd.read_csv(fetch("sardana_beyond_chinchilla")["trainingresults.csv"])
        top = name.split("_")[1].split(" ")[0].removeprefix("le")
        if top != "all":
            frame = frame[frame["Tokens/Params"] <= float(top)]
        return fit(frame, columns=SARDANA, starts=128, bootstrap=0)
    corpus = "c4_original" if "c4_original" in name else "rpj"
    return fit(_gadre(corpus, 20.0 if "M_ge_20" in name else 0.0), columns=GADRE, starts=64, bootstrap=0)


def _close(value: float, row: dict[str, str]) -> bool:
    expected = float(row["value"])
    if row["stderr"]:
        return abs(value - expected) <= 3 * float(row["stderr"])
    return value == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("dataset", [name for name, law in TESTS if law == SURFACE])
def test_loss_surface_against_the_reference_refit(dataset, mirror):
    done = _surface(dataset)
    rows = {row["param"]: row for row in TESTS[dataset, SURFACE]}
    assert len(done.runs) == int("".join(filter(str.isdigit, dataset.rpartition("(")[2].split("pts")[0].split(",")[0])))
    values = done.parameters | {"objective_sum": done.objective}
    if done.optimum is not None:
        n, d = done.optimum
        values |= {"tokens_per_param_at_5.76e23": d / n}
    values["a_opt=beta/(alpha+beta)"] = values["beta"] / (values["alpha"] + values["beta"])
    assert {name: values[name] for name, row in rows.items() if not _close(values[name], row)} == {}
    # A and B lie on a ridge: what counts is that both laws predict the same losses.
    reference = np.array([float(rows[name]["value"]) for name in done.form.names])
    E, A, B, alpha, beta = reference
    n, d = done.runs.columns["n_active"], done.runs.columns["d_tokens"]
    assert done.predicted == pytest.approx(E + A * n**-alpha + B * d**-beta, rel=1e-3)


def test_objective_on_240_runs_is_at_the_known_minimum(mirror):
    done = _surface("chinchilla_epoch (240 pts)")
    assert done.objective <= 1.0183e-3
    expected = {"E": 1.8172, "A": 477.8, "B": 2143.0, "alpha": 0.3473, "beta": 0.3672}
    assert done.parameters == pytest.approx(expected, rel=2e-4)
    assert done.optimum is not None
    assert done.optimum[1] / done.optimum[0] == pytest.approx(17.9, abs=0.05)


def test_five_runs_move_beta_to_what_the_reference_says(mirror):
    assert _surface("chinchilla_epoch (all 245 pts)").parameters["beta"] == pytest.approx(0.453, abs=5e-4)


def test_counter_example_does_not_come_out(mirror):
    """Where the mean of a tiny loss stops an optimiser early, another law comes out; here it must not."""
    ((_, rows),) = _rows("counter-example").items()
    wrong = {row["param"]: float(row["value"]) for row in rows if row["param"] != "obj"}
    done = fit(_epoch(240), columns=EPOCH, starts=64, bootstrap=0, reduction="mean")
    for name in ("A", "B", "beta"):
        assert abs(done.parameters[name] / wrong[name] - 1) > 0.1
    right = _surface("chinchilla_epoch (240 pts)")
    assert done.parameters == pytest.approx(right.parameters, rel=1e-6)
    assert done.objective == pytest.approx(right.objective / 240, rel=1e-12)


KN = "log L=-k(N) log X+E(N), k=Kmax/(1+N0/N), X=RL "


@cache
def _rl(models: str, x_kind: str) -> Fit:
    frame = pd.read_csv(catalog.table_path("rl_qwen25_math_error"))
    frame = frame[(frame["model_type"] == models) & (frame["x_kind"] == x_kind)]
    return fit(frame, "rl-power", "least-squares", columns={"rl_amount": "x_value"}, starts=32, bootstrap=0)


RL_TESTS = [key for key in TESTS if key[1].startswith(KN)]


@pytest.mark.parametrize(
    ("dataset", "law"),
    RL_TESTS,
    ids=[f"{d.split(' ')[1]}-{x.split(' ')[-1]}-{'inter' if 'only' in d else 'all'}" for d, x in RL_TESTS],
)
def test_exponent_of_rl_by_size_against_the_reference_refit(dataset, law):
    models, x_kind = dataset.split(" ")[1], "C" if law.endswith("FLOP") else "E"
    whole = _rl(models, x_kind)
    if "slopes of" in dataset:  # fitted to the slopes of each size alone, without the largest
        values = _slopes(whole)
    else:
        assert len(whole.runs) == int(dataset.split("n=")[1].split(",")[0])
        values = {"Kmax": whole.parameters["Kmax"], "N0 (B params)": whole.parameters["N0"] / 1e9}
        values["R2 (log)"] = whole.r_squared
    assert {r["param"]: values[r["param"]] for r in TESTS[dataset, law] if not _close(values[r["param"]], r)} == {}


def _slopes(whole: Fit) -> dict[str, float]:
    columns = whole.runs.columns
    rows = []
    for size in np.unique(columns["n_active"]):
        own = columns["n_active"] == size
        table = pd.DataFrame({"k": columns["rl_amount"][own], "loss": columns["error_rate"][own]})
        # One power law a size; k stands for any positive amount.
        table["k"] /= table["k"].min()
        rows.append((size, fit(table, "pass-at-k-power", "least-squares", starts=8, bootstrap=0).parameters["b"]))
    small = pd.DataFrame(rows[:-1], columns=["n_active", "slope"])
    form = user_form(lambda p, c: p["Kmax"] / (1 + p["N0"] / c["n_active"]), {"Kmax": (0.01, 1.0), "N0": (1e9, 1e11)},
                     inputs=["n_active"], target="slope", residuals="linear")  # fmt: skip
    done = fit(small, form, "least-squares", starts=64, bootstrap=0)
    return {"Kmax": done.parameters["Kmax"], "N0 (B params)": done.parameters["N0"] / 1e9}


CURVES = [key for key in TESTS if key[0].startswith("rl_excursions") and key[1].startswith("pass=")]


@pytest.mark.parametrize(("dataset", "law"), CURVES, ids=[" ".join(d.split(" ")[2:4]) for d, _ in CURVES])
def test_pass_rate_against_pretraining_tokens(dataset, law):
    _, _, stage, at_k = dataset.split(" ")[:4]
    frame = pd.read_csv(catalog.table_path("rl_excursions_passk"))
    chosen = (frame["figure"] == "gsm_passatk_comparison") & (frame["stage"] == stage)
    frame = frame[chosen & (frame["k"] == int(at_k.removeprefix("pass@")))]
    columns = {"rl_amount": "d_tokens", "pass_rate": "pass_at_k"}
    done = fit(frame, "rl-sigmoid", "least-squares", columns=columns, fixed={"R0": 0.0}, starts=64, bootstrap=0)
    values = done.parameters | {"mid_B": done.parameters["mid"] / 1e9}
    assert {r["param"]: values[r["param"]] for r in TESTS[dataset, law] if not _close(values[r["param"]], r)} == {}
    if "A at its bound" in TESTS[dataset, law][0]["source"]:
        assert [note.path for note in done.notes if note.code == "parameter_at_bound"] == ["A"]


def test_pass_rate_against_rl_steps():
    ((key, rows),) = [item for item in TESTS.items() if item[0][1].startswith("R=R0+")]
    frame = pd.read_csv(catalog.table_path("rl_excursions_rl_steps"))
    frame = frame[(frame["pipeline"] == "rl_only") & (frame["k"] == 1) & (frame["stage"] == "rl")]
    assert f"({len(frame)} pts)" in key[0]
    columns = {"rl_amount": "rl_steps", "pass_rate": "pass_at_k"}
    done = fit(frame, "rl-sigmoid", "least-squares", columns=columns, fixed={"R0": 0.03792}, starts=64, bootstrap=0)
    values = done.parameters | {"step_mid": done.parameters["mid"]}
    assert {row["param"]: values[row["param"]] for row in rows if not _close(values[row["param"]], row)} == {}


LINKS = [key for key in TESTS if key[1].startswith("err = eps")]


@pytest.mark.parametrize(("dataset", "law"), LINKS, ids=[d for d, _ in LINKS])
def test_error_against_loss(dataset, law):
    _, corpus, target = dataset.split(" ")
    error = {"err_avg46": "error_46_tasks", "err_avg_subset17": "error_17_tasks"}[target]
    columns = {"loss": "loss_c4_val", "error_rate": error}
    done = fit(_gadre(corpus), "loss-to-error", "least-squares", columns=columns, starts=32, bootstrap=0)
    values = {"eps": done.parameters["epsilon"], "k": done.parameters["kappa"], "gamma": done.parameters["gamma"]}
    assert {r["param"]: values[r["param"]] for r in TESTS[dataset, law] if not _close(values[r["param"]], r)} == {}


def test_every_test_row_is_checked():
    checked = {key for key in TESTS if key[1] == SURFACE} | {*RL_TESTS} | {*CURVES} | {*LINKS}
    left = [key for key in TESTS if key not in checked]
    assert [law[:5] for _, law in left] == ["R=R0+"]


def test_physical_of_the_pinned_parameter_is_what_was_given(mirror):
    done = fit(_epoch(240), columns=EPOCH, starts=16, bootstrap=0, fixed={"beta": 0.35, "A": 400.0})
    assert done.parameters["beta"] == pytest.approx(0.35, rel=1e-14)
    assert done.parameters["A"] == pytest.approx(400.0, rel=1e-12)
    assert np.asarray(physical(done.form, done.search.theta, done.scaled)) == pytest.approx(done.values)


def _law_rows() -> list[dict[str, str]]:
    return [row for row in case_rows("law_cases").values() if row["issue"] == "fits"]


def test_law_cases_marked_fits_are_all_here():
    assert [row["id"] for row in _law_rows()] == ["BE-04", "SA-17", "GA-C4", "GA-RedPajama"]


def test_be_04_besiroglu_on_240_runs(mirror):
    values = _surface("chinchilla_epoch (240 pts)").parameters
    assert values["E"] == pytest.approx(1.8172, rel=0.005)
    assert values["alpha"] == pytest.approx(0.3478, rel=0.005)
    assert values["beta"] == pytest.approx(0.3658, rel=0.01)
    assert values["A"] == pytest.approx(482.01, rel=0.05)
    assert values["B"] == pytest.approx(2085.43, rel=0.05)


def test_sa_17_sardana_up_to_100_tokens_per_parameter(mirror):
    values = _surface("sardana_le100 (n=34)").parameters
    assert values["alpha"] == pytest.approx(0.08, abs=0.01)
    assert values["beta"] == pytest.approx(0.13, abs=0.01)
    assert values["E"] == pytest.approx(0.17, abs=0.05)


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        ("c4_original", {"E": 1.508, "p": 141.3, "q": 189.5, "h": 0.1212}),
        ("rpj", {"E": 1.837, "p": 212.2, "q": 366.7, "h": 0.1364}),
    ],
)
def test_gadre_on_the_five_small_runs_of_the_paper(corpus, expected):
    """GA-C4 and GA-RedPajama: the paper's configuration."""
    frame = _gadre(corpus)
    frame = frame[_of_the_papers_fit(frame)]
    done = fit(frame, "gadre", "least-squares", residuals="linear", columns=GADRE, starts=64, bootstrap=0)
    assert len(done.runs) == 5
    assert done.parameters == pytest.approx(expected, rel=0.01)


def _of_the_papers_fit(frame: pd.DataFrame) -> pd.Series:
    """Table 2 of arXiv 2403.08540: four sizes at 20 tokens per parameter, and the smallest at 320."""
    sizes = np.sort(frame["n_active"].unique())
    small = frame["n_active"].isin(sizes[:4]) & (frame["tokens_per_param"] == 20)
    return small | ((frame["n_active"] == sizes[0]) & (frame["tokens_per_param"] == 320))
