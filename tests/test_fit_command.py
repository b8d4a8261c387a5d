"""`allocator fit`: what it prints, what it writes, and that it can be repeated."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from allocator import catalog, load
from allocator.cli import main
from allocator.fitting import recipes
from allocator.fitting.estimation import fit

SHIPPED = catalog.recipe_names()


def runs(seed: int = 0) -> pd.DataFrame:
    n, ratio = (x.ravel() for x in np.meshgrid(np.geomspace(5e7, 5e9, 5), np.geomspace(5, 320, 6)))
    loss = 1.8172 + 482.01 * n**-0.3478 + 2085.43 * (n * ratio) ** -0.3658
    noise = np.random.default_rng(seed).normal(size=len(n)) * 3e-3
    return pd.DataFrame({"n_params": n, "d_tokens": n * ratio, "loss": loss * np.exp(noise)})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    runs().to_csv(tmp_path / "runs.csv", index=False)
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


QUICK = ("--starts", "16", "--bootstrap", "50")


def numbers(value: Any):
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def test_json_has_what_scripts_rely_on(here, capsys):
    assert call("fit", "--data", "runs.csv", "--law", "chinchilla", *QUICK, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "allocator.fit/1"
    assert set(told["parameters"]) == set(told["stderr"]) == {"E", "A", "B", "alpha", "beta"}
    assert {"at_flop", "n_active", "tokens_per_param", "interval"} <= told["optimum"].keys()
    low, high = told["optimum"]["interval"]
    assert low < told["optimum"]["tokens_per_param"] < high
    assert {"rows", "warnings", "provenance", "objective", "diagnostics"} <= told.keys()
    assert all(math.isfinite(number) for number in numbers(told))
    assert all(note["code"] and note["message"] for note in told["diagnostics"])


def test_law_goes_to_the_fits_folder_and_a_scenario_plans_with_it(here, capsys):
    assert call("fit", "--data", "runs.csv", *QUICK) == 0
    assert "wrote law.toml, draws.csv, recipe.toml to fits/runs" in capsys.readouterr().out
    record = catalog.law_record("runs")
    assert record.path == Path("fits/runs/law.toml")
    assert record.content["parameters"]["alpha"] == pytest.approx(0.3478, abs=0.05)
    assert load("lecture", overrides=["law.pretraining=runs"]).law.pretraining == "runs"
    with (here / "fits/runs/draws.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["E", "A", "B", "alpha", "beta"]
    assert len(rows) == 51


def test_recipe_makes_the_same_files_again_byte_for_byte(here):
    assert call("fit", "--data", "runs.csv", "--loss", "least-squares", *QUICK, "--fix", "E=1.8", "--seed", "3") == 0
    folder = here / "fits/runs"
    before = {name: (folder / name).read_bytes() for name in ("law.toml", "draws.csv", "recipe.toml")}
    assert call("fit", "runs") == 0
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_out_writes_a_page_beside_the_law(here):
    assert call("fit", "--data", "runs.csv", *QUICK, "--name", "mine", "--out", "made") == 0
    assert {"law.toml", "draws.csv", "recipe.toml", "fit.html", "fit.json"} <= set(
        path.name for path in (here / "made/mine").iterdir()
    )
    assert not (here / "fits").exists()


def test_columns_and_filters(here, capsys):
    frame = runs().rename(columns={"n_params": "Size"}).assign(corpus="a")
    pd.concat([frame, frame.assign(corpus="b", loss=9.0)]).to_csv("both.csv", index=False)
    assert call("fit", "--data", "both.csv", "--column", "n_active=Size", "--where", "corpus=a", *QUICK, "--json") == 0
    assert json.loads(capsys.readouterr().out)["n"] == len(frame)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "data: nothing to fit: give the name of a fit, or --data FILE.csv"),
        (("nothing",), "recipe: no recipe 'nothing'"),
        (("chinchilla-epoch", "--data", "runs.csv"), "data: give the name of a fit or --data FILE.csv, not both"),
        (("--data", "absent.csv"), "data: absent.csv: no such file"),
        (("--data", "runs.csv", "--column", "n_active"), "columns: 'n_active' must be NAME=VALUE"),
        (
            ("--data", "runs.csv", "--column", "n_active=Size"),
            "missing_column: columns.n_active: no column 'Size'; found",
        ),
        (("--data", "runs.csv", "--fix", "E=much"), "fixed: E: 'much' is not a number"),
        (("--data", "runs.csv", "--fix", "gamma=1"), "fixed: 'gamma' is no parameter of chinchilla"),
        (("--data", "runs.csv", "--where", "corpus=a"), "missing_column: where[0].column: no column 'corpus'"),
        (("--data", "runs.csv", "--where", "loss=9"), "too_few_runs: where[0]: no row has loss as asked"),
        (("--data", "runs.csv", "--law", "chinchila"), "law: 'chinchila' cannot be fitted; did you mean chinchilla?"),
        (("--data", "runs.csv", "--loss", "hubert"), "loss: 'hubert' is not known"),
        (("--data", "runs.csv", "--name", "../out"), "name: '../out' cannot name a folder"),
        (("--data", "runs.csv", "--bootstrap", "-1"), "bootstrap"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(here, capsys, arguments, said):
    assert call("fit", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
    assert not (here / "fits").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("law = 3\n[data]\npath = 'runs.csv'", "law: Input should be a valid string"),
        ("[data]\npath = 'runs.csv'\nset = 'chinchilla_epoch'", "give exactly one of set, table, path; got set, path"),
        ("[data]", "give exactly one of set, table, path; got none"),
        ("nonsense = 1\n[data]\npath = 'runs.csv'", "nonsense: Extra inputs are not permitted"),
        ("[data", "is not TOML in UTF-8"),
    ],
)
def test_recipe_of_the_wrong_form(here, capsys, text, said):
    (here / "recipe.toml").write_text(text, encoding="utf-8")
    assert call("fit", "./recipe.toml") == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_choices_show_how_far_the_answer_is_the_analyst_s(here, capsys):
    assert call("fit", "--data", "runs.csv", *QUICK, "--choices", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["loss"] for row in rows} == {"huber", "huber:0.01", "asymmetric", "least-squares"}
    assert {row["rule"] for row in rows} >= {"recipe", "all runs", "without the 1 of lowest D/N"}


def test_as_a_real_process(here, user_environment):
    """In an environment without JAX's strict settings, as a user has it."""
    command = [sys.executable, "-c", "from allocator.cli import main; main()", "fit", "--data", "runs.csv", *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, env=user_environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "D*/N* =" in done.stdout
    assert (here / "fits/runs/law.toml").is_file()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_law_is_what_its_recipe_gives(name, request):
    path = recipes.find(name)
    recipe = recipes.read(path)
    if recipe.data.set is not None:
        request.getfixturevalue("mirror")
    held = catalog.law_record(name).content
    again = recipes.carry_out(recipe.model_copy(update={"bootstrap": 0, "starts": 32}), path.parent)
    given = {key: value for key, value in again.parameters.items() if key in held["parameters"]}
    assert given == pytest.approx(held["parameters"], rel=1e-6)
    assert again.objective == pytest.approx(held["fit"]["objective"], rel=1e-9)
    assert len(again.runs) == held["fit"]["runs"]


def test_every_shipped_fit_has_its_draws():
    for name in SHIPPED:
        record = catalog.law_record(name)
        with record.path.with_name("draws.csv").open(encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert set(record.content["parameters"]) <= set(rows[0])
        assert len(rows) - 1 == min(record.content["fit"]["draws"], 4000)


def test_fit_from_python_is_saved_as_a_law(here):
    """The same numbers as the command's law file, and a scenario finds it by its folder."""
    done = fit(pd.read_csv("runs.csv"), starts=16, bootstrap=50)
    done.save("fits/mine")
    held = catalog.law_record("mine").content
    assert held["parameters"] == pytest.approx(done.parameters, rel=1e-9)
    assert held["title"].endswith("fitted to a data frame")
    assert call("fit", "--data", "runs.csv", *QUICK) == 0
    assert catalog.law_record("runs").content["parameters"] == held["parameters"]
    assert (here / "fits/runs/draws.csv").read_bytes() == (here / "fits/mine/draws.csv").read_bytes()
