"""The commands as a user meets them: exit codes, stdout, stderr, JSON, files, and what may go wrong around them."""

import csv
import gc
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pandas as pd
import pytest
import typer

import allocator
from allocator.cli import app, main
from allocator.console import FAST

CONSOLE_SCRIPT = Path(sys.executable).with_name("allocator")
KINDS = {"hardware": 28, "models": 26, "laws": 18, "data": 17, "scenarios": 4}
GIVEN = ["--n-active", "1e11", "--d-pretrain", "1e14", "--d-rl", "1e14", "--k", "1"]


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one strict JSON object on stdout."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"JSON with {name}"))


@pytest.fixture
def cli(capsys) -> Callable[..., Answer]:
    """A command run in this process."""

    def run(*arguments: str, sets: tuple[str, ...] | list[str] = ()) -> Answer:
        given = [*map(str, arguments), *(part for override in sets for part in ("--set", override))]
        with pytest.raises(SystemExit) as stop:
            main(given)
        return Answer(stop.value.code, *capsys.readouterr())

    return run


def process(*arguments: str, **options) -> Answer:
    """A command run by the console script in a process of its own."""
    done = subprocess.run(
        [CONSOLE_SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=120, **options
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def refused(answer: Answer, code: int = 2) -> list[str]:
    """Error lines of a command that printed no answer."""
    assert answer.code == code, answer
    assert answer.out == ""
    lines = answer.err.splitlines()
    assert lines
    assert all(re.fullmatch(r"error: \S.*", line) for line in lines), lines
    return [line.removeprefix("error: ") for line in lines]


def numbers(value: Any, path: str = "") -> dict[str, float]:
    """Every number of a JSON value by its path."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in numbers(item, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in numbers(item, f"{path}.{i}").items()}
    return {path: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}


def tree(folder: Path) -> set[str]:
    """Everything under a folder, hidden files included."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# --- plan: the contract's numbers ---


def test_the_lectures_plan(cli):
    """The first row of "Must show"."""
    plan = cli("plan", "--json").json
    assert plan["decision"]["n_active"] == 1e11
    assert plan["decision"]["d_pretrain"] == pytest.approx(1.960e14, rel=5e-4)
    assert plan["decision"]["d_rl"] == pytest.approx(2.150e14, rel=5e-4)
    assert plan["decision"]["k"] == 1
    assert plan["decision"]["d_inference"] == 2.592e14
    shares = [plan["phases"][name]["share"] for name in ("pretrain", "rl", "inference")]
    assert shares == pytest.approx([0.252, 0.415, 0.333], abs=5e-4)
    assert plan["overtraining"]["vs_20"] == pytest.approx(98.0, abs=0.05)
    assert plan["overtraining"]["vs_chinchilla"] == pytest.approx(108.3, abs=0.05)
    assert plan["status"] == "optimal"
    assert plan["certificate"]["kind"] == "convex_fixed_n"


def test_the_lectures_plan_under_hoffmann(cli):
    sets = ["law.pretraining=hoffmann-2022", "law.rl.exponent=0.08093888284916068"]
    plan = cli("plan", "--json", sets=sets).json
    assert plan["decision"]["d_pretrain"] == pytest.approx(2.650e14, rel=5e-4)
    assert plan["overtraining"]["vs_20"] == pytest.approx(132.5, abs=0.05)


FREE = ["decisions.n_active=free", "decisions.k=free", "objective.compute_flop=1e26"]
HOFFMANN = ["law.pretraining=hoffmann-2022", "law.rl.exponent=0.08093888284916068",
            "law.test_time.exponent=0.08093888284916068"]  # fmt: skip


@pytest.mark.parametrize(
    ("sets", "tolerance", "size"),
    [
        (FREE, 1e-4, 1.241e11),
        ([*FREE, "law.rl.unit_tokens=1e9"], 1e-9, 1.241e11),
        ([*FREE, *HOFFMANN], 1e-4, 4.426e10),
        ([*FREE, *HOFFMANN, "law.rl.unit_tokens=1e9"], 1e-9, 4.426e10),
    ],
    ids=["besiroglu", "besiroglu, pure power", "hoffmann", "hoffmann, pure power"],
)
def test_equal_elasticities_give_equal_thirds(sets: list[str], tolerance: float, size: float, cli):
    plan = cli("plan", "--json", sets=sets).json
    shares = [phase["share"] for phase in plan["phases"].values()]
    assert shares == pytest.approx([1 / 3] * 3, abs=tolerance)
    assert plan["decision"]["n_active"] == pytest.approx(size, rel=5e-4)


# --- plan: structure ---

KEYS = {
    "": ["schema", "title", "objective", "law", "assumed", "status", "certificate", "decision", "decision_status",
         "loss", "reducible_loss", "phases", "total", "elasticities", "shadow_price", "overtraining", "warnings",
         "baselines", "provenance"],
    "objective": ["kind", "value", "unit"],
    "law": ["pretraining", "form"],
    "certificate": ["kind", "starts", "kkt_residual", "constraint_residual"],
    "decision": ["n_active", "d_pretrain", "d_rl", "k", "d_inference"],
    "decision_status": ["n_active", "d_pretrain", "d_rl", "k"],
    "phases": ["pretrain", "rl", "inference"],
    "total": ["flop", "chip_hours", "usd", "energy_joule"],
    "elasticities": ["n_active", "d_pretrain", "d_rl", "k"],
    "shadow_price": ["value", "of", "unit"],
    "overtraining": ["tokens_per_param", "vs_20", "vs_chinchilla"],
    "provenance": ["allocator", "jax", "scipy", "law_sha256", "scenario"],
}  # fmt: skip
PHASE_KEYS = {"model_flop", "flop", "share", "mfu", "overhead", "chip_hours", "usd"}


def test_the_keys_of_a_plan(cli):
    plan = cli("plan", "--json").json
    for path, keys in KEYS.items():
        assert list(plan[path] if path else plan) == keys, path
    assert all(set(phase) >= PHASE_KEYS for phase in plan["phases"].values())
    assert all(set(warning) == {"code", "path", "value", "message"} for warning in plan["warnings"])
    assert [baseline["name"] for baseline in plan["baselines"]] == ["equal_cost", "chinchilla", "lecture"]
    assert all({"decision", "loss", "regret", "reason"} <= set(baseline) for baseline in plan["baselines"])


def test_the_values_of_a_plan_hang_together(cli):
    plan = cli("plan", "--json").json
    assert plan["schema"] == "allocator.plan/1"
    assert plan["objective"] == {"kind": "compute_flop", "value": 4.6656e26, "unit": "FLOP"}
    assert plan["law"] == {"pretraining": "besiroglu-2024", "form": "product"}
    assert plan["assumed"] == ["law.rl.exponent", "law.rl.scale_tokens", "law.test_time.exponent"]
    assert plan["decision_status"] == {"n_active": "fixed", "d_pretrain": "free", "d_rl": "free", "k": "fixed"}
    assert plan["certificate"]["kkt_residual"] < 1e-8
    assert plan["certificate"]["constraint_residual"] < 1e-9
    assert plan["loss"] - plan["reducible_loss"] == pytest.approx(1.8172, rel=1e-12)
    assert sum(phase["share"] for phase in plan["phases"].values()) == pytest.approx(1, rel=1e-12)
    assert plan["total"]["flop"] == pytest.approx(4.6656e26, rel=1e-9)
    assert plan["total"]["usd"] is None
    # Shares of the free phases are elasticity shares; the price is that of the phases' common marginal.
    e, shares = plan["elasticities"], {name: phase["share"] for name, phase in plan["phases"].items()}
    assert e["d_pretrain"] / e["d_rl"] == pytest.approx(shares["pretrain"] / shares["rl"], rel=1e-6)
    assert plan["shadow_price"]["value"] == pytest.approx(e["d_pretrain"] / shares["pretrain"], rel=1e-6)
    assert plan["shadow_price"]["of"] == "objective.compute_flop"
    assert plan["provenance"]["allocator"] == allocator.__version__
    assert re.fullmatch("[0-9a-f]{64}", plan["provenance"]["law_sha256"])
    assert plan["provenance"]["scenario"]["objective"] == {"compute_flop": 4.6656e26}


def test_stated_numbers_come_back_as_stated(cli):
    """What a scenario fixes is reported to the last digit, in the plan and in baselines at the same size."""
    plan = cli("plan", "--json").json
    assert plan["phases"]["rl"]["overhead"] == 3
    assert {b["name"]: b["decision"]["n_active"] for b in plan["baselines"]}["equal_cost"] == 1e11
    scored = cli("evaluate", "lecture", *GIVEN, "--json").json
    assert scored["decision"] == {
        "n_active": 1e11, "d_pretrain": 1e14, "d_rl": 1e14, "k": 1.0, "d_inference": 2.592e14,
    }  # fmt: skip


ODD = {
    "no deployment": ("gopher-budget", []),
    "a target": ("serve-two-trillion", []),
    "usd": ("lecture", ["hardware={ chip = 'h100-sxm', mfu = 0.4 }", "objective.usd=1e9"]),
    "no price": ("lecture", ["hardware={ chip = 'h100-sxm', mfu = 0.4, rl = { chip = 'gb200-nvl72' } }"]),
    "no RL": ("lecture", ["decisions.d_rl=0"]),
    "hardly any RL": ("lecture", ["law.rl.exponent=1e-12"]),
    "tiny k": ("lecture", ["decisions.k=1e-300"]),
    "tiny budget": ("gopher-budget", ["objective.compute_flop=1e-30"]),
    "huge budget": ("lecture-free", ["objective.compute_flop=1e60"]),
    "a nanoday": ("lecture", ["deployment.lifetime_days=1e-9"]),
    "endless traffic": ("lecture-free", ["deployment.lifetime_tokens=1e30"]),
    "steep RL": ("lecture", ["law.rl.exponent=5"]),
    "far too steep RL": ("lecture", ["law.rl.exponent=10"]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "sets"), ODD.values(), ids=ODD)
def test_every_number_is_finite_or_null(name: str, sets: list[str], cli):
    answer = cli("plan", name, "--json", sets=sets)
    assert answer.code in (0, 1)
    assert all(math.isfinite(number) for number in numbers(answer.json).values())
    assert "Traceback" not in answer.err
    assert "Warning" not in answer.err


EXTREME = {
    "budget 1e300": ("lecture", ["objective.compute_flop=1e300"]),
    "budget 1.7e308": ("lecture-free", ["objective.compute_flop=1.7e308"]),
    "scale 1e300": ("lecture-free", ["law.rl.scale_tokens=1e300"]),
    "overhead 1e300": ("lecture", ["rl.overhead=1e300"]),
    "size 1e300": ("lecture", ["decisions.n_active=1e300"]),
    "size 1e-300": ("lecture", ["decisions.n_active=1e-300"]),
    "k 1e300": ("lecture", ["decisions.k=1e300"]),
    "exponent 1e300": ("lecture", ["law.rl.exponent=1e300"]),
    "target 1e300": ("lecture-free", ["objective.target_loss=1e300"]),
}


@pytest.mark.parametrize(("name", "sets"), EXTREME.values(), ids=EXTREME)
def test_an_absurd_number_ends_in_a_line(name: str, sets: list[str], cli):
    answer = cli("plan", name, sets=sets)
    assert answer.code in (0, 1, 2)
    if answer.code:
        refused(answer, answer.code)


@pytest.mark.parametrize("flag", ["--n-active", "--d-pretrain", "--d-rl", "--k"])
@pytest.mark.parametrize("value", ["1e300", "1e-300"])
def test_absurd_decisions_end_in_an_answer_or_a_line(flag: str, value: str, cli):
    given = list(GIVEN)
    given[given.index(flag) + 1] = value
    for mode in ([], ["--json"]):
        answer = cli("evaluate", "lecture", *given, *mode)
        assert "Traceback" not in answer.err
        if answer.code:
            refused(answer, answer.code)


def test_decisions_that_cost_nothing_end_in_an_answer_or_a_line(cli):
    none = ["--n-active", "1e-300", "--d-pretrain", "1e-300", "--d-rl", "0", "--k", "1e-300"]
    assert "Traceback" not in cli("evaluate", "lecture", *none).err


# --- exit 1: the input is fine, but there is no plan ---

NO_PLAN = {
    "cannot serve": (["objective.compute_flop=1e26"], "infeasible", "1.5552e+26"),
    "cannot pay a minimum": (["decisions.d_rl={ min = 1e15 }"], "infeasible", "costs"),
    "at the floor": (["objective.target_loss=1.8172"], "infeasible", "1.8172"),
    "below the floor": (["objective.target_loss=1.5"], "infeasible", "1.8172"),
    "too steep": (["decisions.n_active=free", "law.rl.exponent=0.35"], "no_interior_optimum", "law.rl.exponent"),
    "both too steep": (
        ["decisions={}", "law.rl.exponent=0.2", "law.test_time.exponent=0.2"], "no_interior_optimum",
        "law.test_time.exponent",
    ),
    "out of reach": (
        ["objective.target_loss=1.85", "decisions.d_pretrain={ max = 1e12 }", "decisions.d_rl={ max = 1e12 }"],
        "infeasible", "best",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sets", "status", "words"), NO_PLAN.values(), ids=NO_PLAN)
def test_no_plan_is_exit_1_with_the_same_object(sets: list[str], status: str, words: str, cli):
    answer = cli("plan", "--json", sets=sets)
    assert answer.code == 1
    plan = answer.json
    assert set(plan) == {*KEYS[""], "reason", "nearest"}
    assert plan["status"] == status
    assert plan["decision"] is None
    assert plan["loss"] is None
    assert words in plan["reason"]
    assert answer.err == f"error: {plan['reason']}\n"
    assert refused(cli("plan", sets=sets), 1) == [plan["reason"]]


def test_a_budget_that_cannot_serve_says_what_serving_costs(cli):
    """2 N m T = 2 x 1e11 x 3 x 2.592e14."""
    plan = cli("plan", "--json", sets=["objective.compute_flop=1e26"]).json
    assert plan["nearest"]["path"] == "objective.compute_flop"
    assert plan["nearest"]["value"] == pytest.approx(2 * 1e11 * 3 * 2.592e14, rel=1e-9)


def test_a_target_below_the_floor_names_the_floor(cli):
    plan = cli("plan", "--json", sets=["objective.target_loss=1.5"]).json
    assert plan["nearest"] == {"path": "objective.target_loss", "value": 1.8172}


def test_too_steep_exponents_say_what_would_do(cli):
    """Besiroglu: alpha = 0.3478."""
    plan = cli("plan", "--json", sets=["decisions.n_active=free", "law.rl.exponent=0.35"]).json
    assert "0.3478" in plan["reason"]
    assert plan["nearest"] is not None


SLACK = {
    "everything capped": ("gopher-budget", ["decisions={ n_active = { max = 1e9 }, d_pretrain = { max = 1e10 } }"]),
    "tokens capped": ("gopher-budget", ["decisions={ n_active = 1e9, d_pretrain = { max = 1e10 } }"]),
    "tokens of both kinds": ("lecture", ["decisions.d_pretrain={ max = 1e12 }", "decisions.d_rl={ max = 1e12 }"]),
    "a target already met": ("lecture", ["objective.target_loss=1.92", "decisions.d_pretrain={ min = 1e14 }"]),
}


@pytest.mark.parametrize(("name", "sets"), SLACK.values(), ids=SLACK)
def test_a_limit_that_does_not_bind_is_no_failure(name: str, sets: list[str], cli):
    """Where bounds bind before budget or target do, the optimum is the corner, with the warning limit_slack."""
    answer = cli("plan", name, "--json", sets=sets)
    assert answer.code == 0, answer.err
    assert "limit_slack" in {warning["code"] for warning in answer.json["warnings"]}


# --- exit 2: wrong input ---

WRONG = {
    "an option": (["plan", "--foo"], "--foo"),
    "a command": (["plann"], "plan"),
    "a flag's typo": (["--hel"], "--hel"),
    "too many": (["plan", "lecture", "another"], "another"),
    "no value": (["plan", "--set"], "--set"),
    "half an override": (["plan", "--set", "objective"], "key.path=value"),
    "an unknown scenario": (["plan", "lectur"], "lecture"),
    "a missing file": (["plan", "none.toml"], "none.toml"),
    "a folder": (["plan", "./"], "folder"),
    "a seed": (["plan", "--seed", "x"], "--seed"),
    "a kind": (["catalog", "chips"], "hardware"),
    "an entry": (["catalog", "hardware", "h1oo-sxm"], "h100-sxm"),
    "an entry of no kind": (["catalog", "hardware", ""], "not known"),
    "a number": (["evaluate", "lecture", "--n-active", "many"], "--n-active"),
    "nothing to check": (["scenario", "check"], "SCENARIO"),
    "no subcommand": (["scenario"], "command"),
    "nothing left free": (["plan", "--set", "decisions.d_pretrain=1e14", "--set", "decisions.d_rl=0"], "free"),
    "a bad value": (["plan", "--set", "rl.overhead=nan"], "rl.overhead"),
    "the floor under a bad key": (["plan", "--set", "objective.target_loss=1", "--set", "a.b=1"], "a: unknown key"),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_exit_2_and_nothing_on_stdout(arguments: list[str], words: str, cli):
    assert any(words in line for line in refused(cli(*arguments)))


@pytest.mark.parametrize("arguments", [["plan", "no\nsuch\nname"], ["plan", "--set", "title=1\n2\n=x", "--set", "x"]])
def test_newlines_in_the_input_stay_in_one_line(arguments: list[str], cli):
    assert len(refused(cli(*arguments))) == 1


def test_a_negative_seed_is_refused(cli):
    """It matters only where further starts are drawn, as here, but is wrong everywhere."""
    answer = cli("plan", "--seed", "-1", sets=["law.rl.exponent=1e300"])
    assert any("seed" in line for line in refused(answer))


def test_a_wrong_number_is_shown(cli):
    assert any("many" in line for line in refused(cli("evaluate", "lecture", "--n-active", "many")))


# --- evaluate ---


def test_evaluate_by_hand(cli):
    """L = E + (A N^-a + B D^-b) (1 + R/R0)^-rho at N = 1e11, D = R = 1e14."""
    answer = cli("evaluate", "lecture", *GIVEN, "--json")
    assert answer.code == 0
    scored = answer.json
    base = 482.01 * 1e11**-0.3478 + 2085.43 * 1e14**-0.3658
    assert scored["reducible_loss"] == pytest.approx(base * (1 + 1e5) ** -0.08803296429559924, rel=1e-12)
    assert scored["total"]["flop"] == pytest.approx(6e25 + 9e25 + 1.5552e26, rel=1e-12)
    assert scored["schema"] == "allocator.evaluate/1"
    assert scored["status"] == "evaluated"
    assert scored["certificate"] is None
    assert set(KEYS[""]) <= set(scored)


def test_evaluate_takes_from_the_scenario_what_it_fixes(cli):
    rest = ["--d-pretrain", "1e14", "--d-rl", "1e14", "--json"]
    assert (
        cli("evaluate", "lecture", *rest).json["decision"]
        == cli("evaluate", "lecture", *GIVEN, "--json").json["decision"]
    )


def test_evaluate_agrees_with_plan(cli):
    plan = cli("plan", "--json").json
    d = plan["decision"]
    scored = cli("evaluate", "lecture", "--d-pretrain", repr(d["d_pretrain"]), "--d-rl", repr(d["d_rl"]), "--json").json
    assert scored["loss"] == pytest.approx(plan["loss"], rel=1e-13)
    assert scored["total"]["flop"] == pytest.approx(plan["total"]["flop"], rel=1e-12)
    assert "over_budget" not in {warning["code"] for warning in scored["warnings"]}


def test_evaluate_names_every_decision_that_is_missing(cli):
    lines = refused(cli("evaluate", "lecture"))
    assert [line.split(":")[0] for line in lines] == ["decisions.d_pretrain", "decisions.d_rl"]
    assert "--d-pretrain" in lines[0]


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e400"])
def test_evaluate_refuses_what_is_no_amount(value: str, cli):
    line = refused(cli("evaluate", "lecture", *GIVEN, "--n-active", value))
    assert len(line) == 1
    assert line[0].startswith("n_active: got ")


def test_evaluate_takes_no_rl(cli):
    assert cli("evaluate", "lecture", *GIVEN, "--d-rl", "0", "--json").json["decision"]["d_rl"] == 0


def test_evaluate_says_what_goes_over(cli):
    codes = {w["code"]: w for w in cli("evaluate", "lecture", *GIVEN, "--d-rl", "1e15", "--json").json["warnings"]}
    # 6e25 + 9e26 + 1.5552e26 over 4.6656e26
    assert codes["over_budget"]["value"] == pytest.approx((6e25 + 9e26 + 1.5552e26) / 4.6656e26 - 1, rel=1e-9)


def test_evaluate_under_a_target_below_the_floor_still_answers_in_json(cli):
    """Given decisions have a loss and a cost whatever the target; at least exit 1 prints its object."""
    answer = cli("evaluate", "lecture", *GIVEN, "--json", sets=["objective.target_loss=1.7"])
    assert answer.code in (0, 1)
    assert answer.json["schema"] == "allocator.evaluate/1"


# --- catalog ---


def test_the_kinds(cli):
    rows = {row["kind"]: row["entries"] for row in cli("catalog", "--json").json["rows"]}
    assert rows == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_as_table_and_json(kind: str, cli):
    table = cli("catalog", kind)
    assert (table.code, table.err) == (0, "")
    listing = cli("catalog", kind, "--json").json
    assert {"schema", "rows", "warnings", "provenance"} <= set(listing)
    assert listing["schema"] == "allocator.catalog/1"
    assert len(listing["rows"]) == KINDS[kind]
    for row in listing["rows"]:
        assert re.search(rf"^{re.escape(row['name'])}\b", table.out, re.MULTILINE)
        assert all(not isinstance(value, dict | list) for value in row.values())  # flat
    assert all(math.isfinite(number) for number in numbers(listing).values())


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_as_files(kind: str, cli, tmp_path: Path):
    listing = cli("catalog", kind, "--json", "--out", tmp_path / "o").json
    assert tree(tmp_path / "o") == {f"{kind}.csv", f"{kind}.json"}
    frame = pd.read_csv(tmp_path / "o" / f"{kind}.csv")
    assert list(frame["name"]) == [row["name"] for row in listing["rows"]]
    assert json.loads((tmp_path / "o" / f"{kind}.json").read_text()) == listing


@pytest.mark.parametrize(
    ("kind", "name", "figure", "value", "unit"),
    [
        ("hardware", "h100-sxm", "bf16_dense_flop_per_s", 989e12, "FLOP/s"),
        ("hardware", "H100-SXM", "tdp_w", 700, "W"),
        ("models", "llama-3.1-70b", "layers", 80, None),
        ("laws", "besiroglu", "parameters.alpha", 0.3478, "1"),
        ("data", "chinchilla_epoch", "licence", "none", "text"),
        ("scenarios", "lecture", "title", "Lecture: a frontier model served for two months", "text"),
    ],
)
def test_one_entry_whole(kind: str, name: str, figure: str, value: Any, unit: str | None, cli):
    rows = {row["figure"]: row for row in cli("catalog", kind, name, "--json").json["rows"]}
    assert rows[figure]["value"] == value
    assert unit is None or rows[figure]["unit"] == unit
    assert figure in cli("catalog", kind, name).out


def test_an_entry_brings_its_source(cli):
    assert "2404.10102" in cli("catalog", "laws", "besiroglu-2024").out


# --- scenario ---


def test_scenario_new_prints_or_writes_the_template(cli, tmp_path: Path):
    text = cli("scenario", "new").out
    assert tomllib.loads(text)["title"] == "My deployment"
    path = tmp_path / "mine/plan.toml"
    answer = cli("scenario", "new", path)
    assert answer.code == 0
    assert f"allocator plan {path}" in answer.out
    assert path.read_text() == text
    assert cli("scenario", "check", path).code == 0


def test_scenario_new_writes_over_nothing(cli, tmp_path: Path):
    (tmp_path / "mine.toml").write_text("precious")
    assert "exists already" in refused(cli("scenario", "new", tmp_path / "mine.toml"))[0]
    assert (tmp_path / "mine.toml").read_text() == "precious"


def test_scenario_new_does_not_make_a_file_called_dash(cli, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli("scenario", "new", "-")
    assert tree(tmp_path) == set()


def test_scenario_check(cli):
    answer = cli("scenario", "check", "lecture")
    assert (answer.code, answer.err) == (0, "")
    assert len(answer.out.splitlines()) == 1
    assert "ok" in answer.out
    assert cli("scenario", "check", "lecture", "--json").json["valid"] is True
    assert refused(cli("scenario", "check", "lecture", "--json", sets=["a=1"]))


def test_scenario_check_keeps_a_title_in_its_line(cli):
    assert len(cli("scenario", "check", "lecture", sets=['title="a\\nb"']).out.splitlines()) == 1


def test_scenario_show(cli):
    shown = tomllib.loads(cli("scenario", "show", "lecture", sets=["rl.overhead=5"]).out)
    assert shown["rl"] == {"flop_per_param_token": 3.0, "overhead": 5}
    assert shown["deployment"]["prompt_tokens_per_output_token"] == 0.0  # a default filled in
    as_json = cli("scenario", "show", "lecture", "--json", sets=["rl.overhead=5"]).json
    assert as_json == {"schema": "allocator.scenario/1", "scenario": shown}


# --- --out ---

TABLES = {"decisions.csv", "phases.csv", "baselines.csv", "warnings.csv"}


@pytest.mark.parametrize("arguments", [["plan"], ["evaluate", "lecture", *GIVEN]], ids=["plan", "evaluate"])
def test_tables_parse_back(arguments: list[str], cli, tmp_path: Path):
    answer = cli(*arguments, "--json", "--out", tmp_path / "o")
    values = answer.json
    assert {*TABLES, "plan.json"} <= tree(tmp_path / "o")
    assert json.loads((tmp_path / "o/plan.json").read_text()) == values
    frames = {name: pd.read_csv(tmp_path / "o" / name) for name in TABLES}
    decisions = frames["decisions.csv"].set_index("decision")
    assert decisions["value"].to_dict() == values["decision"]
    phases = frames["phases.csv"].set_index("phase")
    assert phases.loc["rl", "flop"] == values["phases"]["rl"]["flop"]
    assert list(frames["baselines.csv"]["baseline"]) == [b["name"] for b in values["baselines"]]
    assert list(frames["warnings.csv"]["code"]) == [w["code"] for w in values["warnings"]]


def test_a_table_on_screen_says_where_the_files_are(cli, tmp_path: Path):
    answer = cli("plan", "--out", tmp_path / "o")
    assert answer.code == 0
    assert str(tmp_path / "o") in answer.out + answer.err


def test_no_plan_writes_no_files(cli, tmp_path: Path):
    assert cli("plan", "--out", tmp_path / "o", sets=["objective.compute_flop=1"]).code == 1
    assert tree(tmp_path) == set()


def test_wrong_input_writes_no_files(cli, tmp_path: Path):
    assert cli("plan", "--out", tmp_path / "o", sets=["objective.compute_flop=-1"]).code == 2
    assert tree(tmp_path) == set()


@pytest.mark.parametrize("arguments", [["plan"], ["evaluate", "lecture", *GIVEN], ["catalog", "laws"]])
def test_a_file_in_the_way_is_left_alone(arguments: list[str], cli, tmp_path: Path):
    (tmp_path / "o").write_text("precious")
    line = refused(cli(*arguments, "--out", tmp_path / "o"))
    assert "is a file" in line[0]
    assert (tmp_path / "o").read_text() == "precious"
    assert tree(tmp_path) == {"o"}


def test_a_full_disk_leaves_nothing_behind(cli, smallfs: Path):
    (smallfs / "filler").write_bytes(b"x" * 50_000)
    before = tree(smallfs)
    assert "No space left" in refused(cli("catalog", "models", "--out", smallfs / "o"))[0]
    assert tree(smallfs) == before


def test_a_full_disk_leaves_no_half_scenario(cli, smallfs: Path):
    with pytest.raises(OSError, match="No space left"):
        (smallfs / "filler").write_bytes(b"x" * 200_000)
    before = tree(smallfs)
    assert "No space left" in refused(cli("scenario", "new", smallfs / "mine.toml"))[0]
    assert tree(smallfs) == before


def test_names_of_files_and_warnings_survive_csv(cli, tmp_path: Path):
    cli("plan", "--out", tmp_path, sets=['title="a,b;\\"c\\"\\n[red]"'])
    with (tmp_path / "warnings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(None not in row for row in rows)
    assert json.loads((tmp_path / "plan.json").read_text())["title"] == 'a,b;"c"\n[red]'


# --- help and start-up ---


def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command and group, as typed."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *path, name)


@pytest.mark.parametrize("command", [*commands(typer.main.get_command(app))], ids=" ".join)
def test_help_of_every_command(command: tuple[str, ...], cli):
    answer = cli(*command, "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(" ".join(["Usage: allocator", *command]))


def test_the_contracts_first_commands_are_there():
    found = set(commands(typer.main.get_command(app)))
    scenario = {("scenario", name) for name in ("new", "check", "show")}
    assert {("plan",), ("evaluate",), ("catalog",), ("data", "pull"), *scenario} <= found


def test_no_command_shows_the_help(cli):
    assert cli().out == cli("--help").out


def test_the_version(cli):
    assert cli("--version").out == f"{allocator.__version__}\n"


def test_a_command_called_from_python_leaves_its_settings_alone(cli):
    """A plan compiles for speed of compiling and collects no garbage; whoever called it goes on as before."""
    assert not jax.config.read(FAST)
    for arguments, code in (("plan",), 0), (("plan", "nowhere"), 2):
        assert cli(*arguments).code == code
        assert gc.isenabled()
        assert not jax.config.read(FAST)


@pytest.mark.parametrize("code", ["import allocator", "from allocator.cli import main; main(['--help'])"])
def test_starting_loads_nothing_heavy(code: str):
    script = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    heavy = {"jax", "jaxlib", "numpy", "scipy", "pandas", "altair", "pydantic", "equinox", "vl_convert", "tomli_w",
             "pooch", "requests"}  # fmt: skip
    assert not heavy & set(loaded)


def test_public_names_resolve_and_no_others():
    assert set(allocator.__all__) <= set(dir(allocator))
    assert all(getattr(allocator, name) is not None for name in allocator.__all__)
    with pytest.raises(AttributeError, match="no attribute 'solv'"):
        allocator.solv  # noqa: B018


# --- as a process ---


def test_the_plan_as_a_process(user_environment, tmp_path: Path):
    answer = process("plan", cwd=tmp_path, env=user_environment)
    assert (answer.code, answer.err) == (0, "")
    assert "98.0 x Chinchilla's 20" in answer.out


def test_wrong_input_as_a_process(tmp_path: Path):
    answer = process("plan", "--set", "rl.overhead=0", "--set", "a=1", cwd=tmp_path)
    assert len(refused(answer)) == 2


def test_no_plan_as_a_process(tmp_path: Path):
    answer = process("plan", "--json", "--set", "objective.compute_flop=1e26", cwd=tmp_path)
    assert answer.code == 1
    assert answer.json["status"] == "infeasible"
    assert len(answer.err.splitlines()) == 1


def pipe(command: str, **options) -> subprocess.CompletedProcess:
    """A shell line in which $A is the console script; its exit code is that of the pipe's first command."""
    options["env"] = {**os.environ, **options.get("env", {}), "A": str(CONSOLE_SCRIPT)}
    line = f"{command}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120, **{**options})


PRINTING = ["catalog hardware --json", "catalog models", "--help", "scenario show"]


@pytest.mark.parametrize("command", PRINTING)
def test_a_reader_that_leaves_early_hears_nothing(command: str):
    done = pipe(f'"$A" {command} | head -1')
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("command", PRINTING)
def test_a_reader_that_has_gone_is_no_lack_of_a_plan(command: str):
    """Exit 1 would say that no plan exists: what was asked for was done, as far as anybody wanted to read it."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([CONSOLE_SCRIPT, *command.split()], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
@pytest.mark.parametrize("command", ["catalog hardware", "catalog hardware --json", "scenario show", "--version"])
def test_a_full_disk_behind_stdout_is_one_line(command: str):
    done = pipe(f'"$A" {command} > /dev/full')
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*No space left.*\n", done.stderr)


@pytest.mark.parametrize("command", ["scenario check - <&-", "catalog >&-", "catalog nope 2>&-"])
def test_closed_streams_bring_no_traceback(command: str):
    done = pipe(f'"$A" {command}')
    assert "Traceback" not in done.stderr + done.stdout


def test_a_terminal_without_unicode_gets_a_table():
    done = pipe('"$A" plan', env={"PYTHONIOENCODING": "ascii"})
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_an_interrupt_brings_no_traceback(tmp_path: Path):
    os.mkfifo(fifo := tmp_path / "slow.toml")  # its reader waits, so that the interrupt meets the command at work
    # A shell's background jobs ignore the signal, and so would their children.
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    child = subprocess.Popen(
        [sys.executable, "-c", start, CONSOLE_SCRIPT, "plan", fifo],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    writer = None
    while writer is None and time.monotonic() < end:
        try:
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.02)
    assert writer is not None
    child.send_signal(signal.SIGINT)
    os.close(writer)  # a signal that comes just before the read would else wait for it to end
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    assert err in ("", "error: interrupted\n")


def test_standard_input_as_a_process(tmp_path: Path):
    answer = process("scenario", "show", "-", "--json", cwd=tmp_path, input="[objective]\ncompute_flop = 1e23\n")
    assert answer.code == 0
    assert answer.json["scenario"]["objective"] == {"compute_flop": 1e23}


def test_binary_standard_input_as_a_process(tmp_path: Path):
    done = subprocess.run(
        [CONSOLE_SCRIPT, "scenario", "check", "-"], input=bytes(range(256)), capture_output=True, check=False
    )
    assert done.returncode == 2
    assert len(io.BytesIO(done.stderr).readlines()) == 1
