"""The page on fitting says what the code does."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from allocator.fitting.forms import FORMS


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "docs" / "fitting.md").read_text(encoding="utf-8")


def test_every_form_has_its_row(text):
    rows = {}
    for form in FORMS.values():
        columns = ", ".join(f"`{column.name}`" for column in (*form.inputs, form.target))
        rows[form.name] = f"| `{form.name}` | {columns} | {form.equation} |"
    assert {name: row for name, row in rows.items() if row not in text} == {}


def test_every_code_is_explained(text, root):
    source = "".join(path.read_text(encoding="utf-8") for path in (root / "allocator" / "fitting").glob("*.py"))
    codes = set(re.findall(r'Note\(\s*"([a-z_]+)"', source)) | {"two_sizes_only", "few_levels"}
    told = set(re.findall(r"`([a-z_]+)`", text))
    assert codes - told - {"draws_failed"} == set()


def test_examples_run(text, tmp_path, monkeypatch):
    n, ratio = (values.ravel() for values in np.meshgrid(np.geomspace(5e7, 5e9, 5), np.geomspace(5, 300, 5)))
    noise = np.random.default_rng(0).normal(size=len(n)) * 3e-3
    loss = (1.8 + 480 * n**-0.35 + 2000 * (n * ratio) ** -0.37) * np.exp(noise)
    pd.DataFrame({"n_active": n, "d_tokens": n * ratio, "loss": loss}).to_csv(tmp_path / "runs.csv", index=False)
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/fitting.md", "exec"), {})
