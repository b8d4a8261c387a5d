"""README shows what the product prints, its commands are commands, and its Python example runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import allocator
from allocator.cli import app
from allocator.scenario.reading import with_values


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return group.commands


def test_printed_plan_is_the_current_one(text: str):
    shown = re.search(r"<!-- plan:.*?-->\n```text\n(.*?)```", text, re.S)
    assert shown is not None
    command = [sys.executable, "-c", "import sys; from allocator.cli import main; main(sys.argv[1:])", "plan"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in shown[1].splitlines()]


def test_commands_and_their_options_are_known(text: str, commands: dict[str, Any]):
    lines = re.findall(r"^    (?:\.venv/bin/)?allocator (.*)", text, re.M)
    assert len(lines) >= 8
    for line in lines:
        name, *rest = shlex.split(line, comments=True)
        command = commands[name]
        if rest and rest[0] in getattr(command, "commands", {}):
            name, command, rest = rest[0], command.commands[rest[0]], rest[1:]
        command.make_context(name, [part for part in rest if part != ">"])


def test_table_of_questions_names_every_command(text: str, commands: dict[str, Any]):
    rows = re.findall(r"^\| .*\? \| (`.*`) \|$", text, re.M)
    named = {part.split()[0] for row in rows for part in re.findall(r"`([^`]+)`", row)}
    elsewhere = {"plan", "report", "scenario", "catalog", "data"}
    assert named | elsewhere == set(commands)


def test_links_lead_somewhere(text: str, root: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("https://"):
            assert (root / target).exists(), target


def test_python_example_runs(text: str, capsys):
    for example in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(example, {"allocator": allocator})
    assert "98.0 x 20 tokens per parameter" in capsys.readouterr().out


def test_laws_disagree_as_told(text: str):
    told = re.search(r"trains (\d+)x past\s.*?\sand (\d+)x\sunder another", text, re.S)
    assert told is not None
    scenario = allocator.load("lecture-free")
    for law, shown in zip(("besiroglu-2024", "hoffmann-2022"), told.groups(), strict=True):
        plan = allocator.solve(with_values(scenario, {"law.pretraining": law}))
        assert plan.overtraining is not None
        assert round(plan.overtraining.vs_20) == int(shown)


def test_citation_is_of_this_version(root: Path):
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    keys = dict(re.findall(r"^([a-z-]+): *(.*)$", citation, re.M))
    assert {"cff-version", "message", "title", "authors", "abstract", "license"} <= set(keys)
    assert keys["version"] == allocator.__version__
