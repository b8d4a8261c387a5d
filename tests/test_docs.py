"""The pages in docs/ say what the code does: their commands and examples run, and what they show is today's.

On each page, in its order and in one temporary folder: indented lines and `sh` blocks that begin with `allocator` are
run in this process, `python` blocks too, in one namespace. A `text` block is what the command or example before it
prints; a line of three dots leaves lines out. `<!-- file: NAME -->` makes the block after it a file. An expression
followed by `# 98.0` has that value, to the digits shown.
"""

import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import typer

import allocator
from allocator import distributions
from allocator.cli import app, main
from allocator.console import FAST

RUN = ("quick-start", "model", "decisions-under-uncertainty", "extending")
PAGES = (*RUN, "glossary", "limits")
ELSEWHERE = ("report",)  # commands that take long and have their own tests: here only their options are parsed
SET_UP = ("make", "python3", "pip", "source")  # what a reader does before there is an environment
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


class Block(NamedTuple):
    """A piece of a page that is run or compared."""

    kind: str  # sh, python, text, or a file's name
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """Fenced blocks, files and indented commands of a page."""
    lines = iter(enumerate(page.splitlines(), 1))
    name = None
    for number, line in lines:
        if fence := re.fullmatch(r"```(\w*)", line):
            inside = []
            for _, text in lines:
                if text == "```":
                    break
                inside.append(text)
            yield Block(f"file {name}" if name else fence[1], "\n".join(inside) + "\n", number)
            name = None
        elif marked := re.fullmatch(r"<!-- file: (\S+) -->", line):
            name = marked[1]
        elif line.startswith("    ") and line.split()[0] in ("allocator", *SET_UP):
            yield Block("sh", line.strip(), number)


def run_command(line: str) -> str:
    """What a command prints; it may send that to a file."""
    words = shlex.split(line, comments=True)
    assert words[0] == "allocator", line
    target = None
    if ">" in words:
        target = Path(words[words.index(">") + 1])
        words = words[: words.index(">")]
    if words[1] in ELSEWHERE:
        command: Any = typer.main.get_command(app)
        command.commands[words[1]].make_context(words[1], words[2:])
        return ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main(words[1:])
    expected = re.search(r"# exit code (\d)", line)
    assert stop.value.code == int(expected[1] if expected else 0), line
    if target is not None:
        target.write_text(out.getvalue(), encoding="utf-8")
        return ""
    return out.getvalue()


def run_python(text: str, namespace: dict[str, Any], where: str) -> str:
    """What an example prints; values that its comments show are checked."""
    out = io.StringIO()
    lines = text.splitlines()
    with contextlib.redirect_stdout(out):
        for statement in ast.parse(text, where).body:
            assert statement.end_lineno is not None
            shown = re.search(r"  # ([-+\d'\"(\[{].*|True|False|None)$", lines[statement.end_lineno - 1])
            if isinstance(statement, ast.Expr) and shown:
                value = eval(compile(ast.Expression(statement.value), where, "eval"), namespace)
                assert as_shown(value, shown[1]), f"{where}: {ast.unparse(statement)} is {value!r}, not {shown[1]}"
            else:
                exec(compile(ast.Module([statement], []), where, "exec"), namespace)
    return out.getvalue()


def as_shown(value: Any, shown: str) -> bool:
    """Whether a value is what a comment shows: a literal, or numbers to their digits."""
    if shown[0] in "'\"[{TFN":
        return value == ast.literal_eval(shown)
    texts = NUMBER.findall(re.split(r"[;:]| \(", shown)[0])
    values = np.ravel(np.asarray(value, float)).tolist()
    return len(values) == len(texts) and all(to_digits(x, text) for x, text in zip(values, texts, strict=True))


def to_digits(value: float, text: str) -> bool:
    """Whether a number rounds to what is printed."""
    mantissa, _, exponent = text.replace(",", "").partition("e")
    places = len(mantissa.partition(".")[2])
    return abs(value / 10.0 ** int(exponent or 0) - float(mantissa)) <= 0.5 * 10.0**-places * (1 + 1e-6)


def compare(shown: str, printed: str, where: str) -> None:
    """Every line shown is a line printed, in order; a line of dots stands for any number of lines."""
    left = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    skip = False
    for line in (" ".join(line.split()) for line in shown.splitlines() if line.strip()):
        if line == "...":
            skip = True
            continue
        assert left, f"{where}: nothing is printed where the page shows: {line}"
        if skip:
            assert line in left, f"{where}: not printed: {line}\nbut:\n{printed}"
            left = left[left.index(line) :]
        assert left[0] == line, f"{where}: printed: {left[0]}\nshown: {line}\nall of it:\n{printed}"
        left, skip = left[1:], False
    assert skip or not left, f"{where}: not shown: {left[0]}"


@pytest.fixture(scope="module", autouse=True)
def quick_compiling() -> Iterator[None]:
    """As in a command, what JAX compiles is to be ready soon; other tests keep what they had."""
    before = jax.config.read(FAST)
    jax.config.update(FAST, True)
    yield
    jax.config.update(FAST, before)


def page_text(root: Path, name: str) -> str:
    return (root / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RUN)
def test_page_runs_and_shows_what_is_printed(name: str, root: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    printed = ""
    for kind, text, line in blocks(page_text(root, name)):
        where = f"docs/{name}.md:{line}"
        if kind == "sh":
            commands = [command for command in text.splitlines() if command and command.split()[0] not in SET_UP]
            printed = "".join([printed for command in commands for printed in [run_command(command)]][-1:])
        elif kind == "python":
            printed = run_python(text, namespace, where)
        elif kind == "text":
            compare(text, printed, where)
        else:
            assert kind.startswith("file "), f"{where}: a block that nothing runs: {kind or 'no language'}"
            (tmp_path / kind.removeprefix("file ")).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str, root: Path):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page_text(root, name)):
        if not target.startswith("https://"):
            assert (root / "docs" / target).exists(), target


def warning_codes(root: Path) -> set[str]:
    """Codes of warnings that a plan or an answer may carry, from the code that makes them."""
    found: set[str] = set()
    for path in (root / "allocator").rglob("*.py"):
        if path.parent.name != "fitting":
            found |= set(re.findall(r'\bNotice\(\s*f?"([a-z_]+)', path.read_text(encoding="utf-8")))
    return found


def test_every_warning_is_explained(root: Path):
    told = set(re.findall(r"`([a-z_]+)`", page_text(root, "quick-start")))
    missing = warning_codes(root) - told - {"extrapolates_"}
    assert missing == set()


def test_assumed_ranges_are_the_code_s(root: Path):
    rows = [
        f"| `{path}` | {low:g} | {mid:g} | {high:g} | {source} |"
        for path, ((low, mid, high), source) in distributions.ASSUMED.items()
    ]
    page = page_text(root, "decisions-under-uncertainty")
    assert [row for row in rows if row not in page] == []
    assert f"standard deviation {distributions.DEMAND_SIGMA:g}" in page


def test_public_names_are_told(root: Path):
    """Each public verb is on a page or in the README."""
    told = "".join(path.read_text(encoding="utf-8") for path in [root / "README.md", *(root / "docs").glob("*.md")])
    verbs = [name for name in allocator.__all__ if name[0].islower() and name[0] != "_"]
    assert [name for name in verbs if not re.search(rf"\b{name}\b", told)] == []
