"""`allocator roofline` and `roofline check` as a user meets them, and their page of documents."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allocator.cli import main
from allocator.roofline_checks import check
from allocator.roofline_report import error_table

LLAMA = ("roofline", "--hardware", "h100-sxm", "--model", "llama-3.1-70b", "--chips", "8", "--batch", "64")


@pytest.fixture
def cli(capsys):
    def run(*arguments: str):
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        return stop.value.code, *capsys.readouterr()

    return run


def strict(text: str):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"JSON with {name}"))


def test_text_says_what_binds_and_what_it_costs(cli):
    code, out, err = cli(*LLAMA)
    assert (code, err) == (0, "")
    for words in ("llama-3.1-70b on 8 x h100-sxm, bf16", "cut by tensor 8", "memory, binds", "KV cache", "expected",
                  "time to first token", "largest batch that fits", "USD per million output",
                  "MFU of decode"):  # fmt: skip
        assert words in out
    assert max(map(len, out.splitlines())) <= 120


def test_help_is_whole(cli):
    for arguments in (("roofline", "--help"), ("roofline", "check", "--help")):
        code, out, _ = cli(*arguments)
        assert code == 0
        assert "..." not in out.replace("[ARGS]...", "")


def test_piped_text_has_no_trailing_blanks_and_no_empty_latency(cli):
    for arguments in (LLAMA, (*LLAMA, "--hardware", "h20-sxm"), ("roofline", "check", "serving_measurements")):
        _, out, _ = cli(*arguments)
        assert not [line for line in out.splitlines() if line != line.rstrip()]
        assert "latency" not in out


def test_expected_cost_time_and_price_are_said(cli):
    _, out, _ = cli(*LLAMA, "--usd-per-chip-hour", "2", "--output", "1000")
    assert out.count("  expected  ") == 4  # time per token and to the first, USD per output and per prompt
    assert "8 of 10 rows it was fitted to; prompts on the same chips" in out
    assert "at 2 USD per chip-hour" in out
    assert re.search(r"MFU of decode +0\.(0\d\d|\d\d) ", out)


@pytest.mark.parametrize("more", [(), ("--hardware", "gb200-nvl72"), ("--context", "131072", "--batch", "1")])
def test_json_has_every_key_of_the_interface(cli, more):
    code, out, _ = cli(*LLAMA, *more, "--json")
    assert code == 0
    found = strict(out)
    assert {"schema", "rows", "warnings", "provenance", "step_time_s", "t_mem_s", "t_comp_s", "t_net_s", "binding",
            "mfu", "tokens_per_s_per_chip", "max_batch", "usd_per_mtok", "band"} <= set(found)  # fmt: skip
    assert found["schema"] == "allocator.roofline/1"
    assert found["step_time_s"] == max(found["t_mem_s"], found["t_comp_s"], found["t_net_s"]) + found["latency_s"]


def test_files(cli, tmp_path: Path):
    code, _, _ = cli(*LLAMA, "--out", str(tmp_path / "r"))
    assert code == 0
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert names == {"roofline.html", "roofline.json", "roofline.svg", "roofline.png", "batches.svg", "batches.png",
                     "batches.csv", "roof.csv", "terms.csv"}  # fmt: skip
    page = (tmp_path / "r" / "roofline.html").read_text(encoding="utf-8")
    assert "Memory binds decode" in page
    assert not re.search(r'(src|href)="http', page)
    assert page.count("window.vegaEmbed") >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("roofline",), "give --hardware and --model"),
        ((*LLAMA, "--batch", "1000"), "the largest batch that fits is 324"),
        ((*LLAMA, "--model", "llama"), "did you mean llama-3.1"),
        ((*LLAMA, "--chips", "0"), "roofline.chips: got 0"),
        (
            ("roofline", "--hardware", "h100-sxm", "--model", "llama-3.1-70b"),
            "roofline.chips: got 1; at least 2 are needed in bf16",
        ),
        ((*LLAMA, "check", "serving_measurements"), "--hardware, --model, --chips, --batch: must come after check"),
        (("roofline", "--json", "check", "serving_measurements"), "--json: must come after check"),
        (("roofline", "check", "none.csv"), "none.csv: no such file"),
        (("roofline", "check", "serving"), "did you mean serving_measurements"),
    ],
)
def test_wrong_input_is_one_line(cli, arguments, said: str):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_check_of_the_shipped_table(cli, tmp_path: Path):
    code, out, err = cli("roofline", "check", "serving_measurements", "--out", str(tmp_path / "c"))
    assert (code, err) == (0, "")
    assert "1,914 measured rows" in out
    assert "Not used: 1,082 rows" in out
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {"check.csv", "errors.csv", "unused.csv", "check.json", "check.svg", "check.png"}
    found = strict((tmp_path / "c" / "check.json").read_text(encoding="utf-8"))
    assert {"id", "family", "predicted_tpot_ms", "measured_tpot_ms", "error"} <= set(found["rows"][0])
    assert {"n", "median_abs_error", "p90_abs_error"} <= set(found["summary"][0])
    assert set(found["unused"][0]) == {"id", "why"}


def test_a_process_of_its_own():
    script = Path(sys.executable).with_name("allocator")
    done = subprocess.run([script, *LLAMA, "--json"], capture_output=True, text=True, check=True)
    assert strict(done.stdout)["binding"] == "memory"
    assert done.stderr == ""


def test_the_page_s_table_is_current(root: Path):
    text = (root / "docs" / "roofline.md").read_text(encoding="utf-8")
    shown = text.split("<!-- errors: python scripts/roofline_errors.py -->\n")[1].split("<!-- /errors -->")[0]
    assert shown.strip() == error_table(check("serving_measurements"))


def test_the_page_s_examples_say_what_they_give(root: Path):
    """The figures of the comments, in their digits; they hold where the blocks run one after another."""
    text = (root / "docs" / "roofline.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    said = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/roofline.md", "exec"), names)
        for expression, figure in re.findall(r"^(\S.*?)  # ([\d.,]+)", block, re.MULTILINE):
            _, given, value = expression.partition(" = ")
            said[expression] = (float(eval(value if given else expression, names)), figure)
    units = {"at.step_time_s": 1e3, "flop = ": 1e-9}
    for expression, (value, figure) in said.items():
        scale = next((unit for start, unit in units.items() if expression.startswith(start)), 1.0)
        digits = len(figure.partition(".")[2])
        assert value * scale == pytest.approx(float(figure.replace(",", "")), abs=0.51 * 10**-digits), expression
    assert len(said) >= 10


def test_the_page_s_own_runs_are_read(root: Path, tmp_path: Path):
    text = (root / "docs" / "roofline.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"```csv\n(.*?)```", text, re.DOTALL)
    (tmp_path / "runs.csv").write_text(table, encoding="utf-8")
    done = check(tmp_path / "runs.csv")
    assert len(done.rows) == 3
    assert not done.unused
    assert not done.beating
