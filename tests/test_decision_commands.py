"""Commands beyond one plan: JSON by contract, files, exit codes, and one clear line for each bad input."""

from pathlib import Path

import pytest
from test_cli import cli, refused  # noqa: F401  (a fixture)

SMALL = {
    "frontier": ["lecture", "--points", "3"],
    "sweep": ["lecture", "--vary", "rl.overhead", "--values", "2,3"],
    "demand": ["--points", "2", "--law", "besiroglu-2024"],
    "sensitivity": ["lecture"],
    "uncertainty": ["lecture", "--draws", "16", "--no-sources"],
    "near-optimal": ["lecture"],
    "round": ["lecture-free", "--shape", "llama-3.1-70b"],
    "robust": ["lecture-free", "--points", "2", "--sigma", "0.2"],
}


@pytest.mark.parametrize("command", SMALL)
def test_json_follows_the_contract(cli, command: str):  # noqa: F811
    """Strict JSON with schema, rows, warnings and provenance; the reader of `cli` fails on NaN and Infinity."""
    answer = cli(command, *SMALL[command], "--json")
    assert answer.code == 0, answer.err
    values = answer.json
    assert values["schema"].replace("_", "-") in (f"allocator.{command}/1",)
    assert values["rows"]
    assert isinstance(values["warnings"], list)
    assert "allocator" in values["provenance"]


def test_tables_and_files(cli, tmp_path: Path):  # noqa: F811
    answer = cli("frontier", "lecture", "--points", "3", "--out", tmp_path / "made")
    assert answer.code == 0
    assert "loss (nats/token)" in answer.out
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert {"frontier.csv", "frontier.svg", "frontier.png", "charts.html", "frontier.json"} <= names
    told = cli("sensitivity", "lecture")
    assert "1% more MFU of decode is worth" in told.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["uncertainty", "--draws", "50", "--range", "law.rl.exponent=0.05,0.1,17"],
            "law.rl.exponent: got 17.0; must be <= 10",
        ),
        (["robust", "--points", "3", "--state", "deployment.tokens_per_second=1e7,1e8"], "--points: excludes --state"),
        (["round", "lecture"], "decisions.k: fixed at 1, so nothing is left to round"),
        (["frontier", "--vary", "."], ".: not a key of a scenario"),
        (["frontier", "--vary", "rl.overhed"], "rl.overhed"),
        (["frontier", "--from", "-1", "--to", "1e27"], "--from: got -1; must be > 0"),
        (["frontier", "--vary", "tpot_s"], "--from and --to"),
        (["frontier", "--vary", "tpot_s", "--from", "1e-3", "--to", "1"], "decisions.n_active is fixed"),
        (["frontier", "nowhere"], "nowhere"),
        (["sweep", "--vary", "usd_per_mtok", "--values", "1,2"], "is for allocator frontier"),
        (["sweep", "--vary", "rl.overhead", "--values", "1,x"], "--values 1,x: must be numbers"),
        (["sensitivity", "--outcome", "speed"], "outcome: 'speed'"),
        (["sensitivity", "--range", "rl.overhead=3,2,1"], "rl.overhead: 3,2,1: its numbers must rise"),
        (["uncertainty", "--draws", "1"], "draws: got 1"),
        (["uncertainty", "--range", "rl.overhead"], "must read KEY="),
        (["uncertainty", "lecture", "--no-assumed"], "has no draws"),
        (["near-optimal", "--within", "-0.1"], "within"),
        (["near-optimal", "--valley", "n_active"], "--valley"),
        (["round", "--shape", "nothing"], "nothing"),
        (["robust", "--criterion", "best"], "criterion"),
        (["robust", "--probability", "1"], "--probability: goes with --state"),
        (["robust", "--state", "x"], "must read KEY=A,B"),
        (["report"], "--out"),
    ],
)
def test_bad_input_is_one_clear_line(cli, arguments: list[str], line: str):  # noqa: F811
    lines = refused(cli(*arguments))
    assert len(lines) == 1
    assert line in lines[0]


def test_page_refuses_a_place_it_cannot_write_before_it_works(cli, tmp_path: Path):  # noqa: F811
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert "is a file; must be a folder" in refused(cli("report", "--out", taken))[0]
    assert taken.read_text() == "mine"


def test_no_plan_is_exit_one(cli):  # noqa: F811
    assert "does not pay" in refused(cli("sensitivity", sets=["objective.compute_flop=1e20"]), code=1)[0]
    answer = cli("frontier", "lecture", "--from", "1e19", "--to", "1e20", "--points", "2", "--json")
    assert {row["status"] for row in answer.json["rows"]} == {"infeasible"}
