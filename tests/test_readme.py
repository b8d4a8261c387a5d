"""README shows what the product prints, and its Python example runs."""

import re
import subprocess
import sys
from pathlib import Path

import allocator


def test_printed_plan_is_the_current_one(root: Path):
    shown = re.search(r"<!-- plan:.*?-->\n```text\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.S)
    assert shown is not None
    command = [sys.executable, "-c", "import sys; from allocator.cli import main; main(sys.argv[1:])", "plan"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in shown[1].splitlines()]


def test_python_example_runs(root: Path, capsys):
    examples = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.S)
    for example in examples:
        exec(example, {"allocator": allocator})
    assert "98.0 x 20 tokens per parameter" in capsys.readouterr().out
