"""The page on robust plans says what the code does."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocator.robust_plans import CRITERIA


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "docs" / "robust.md").read_text(encoding="utf-8")


def test_every_criterion_has_its_row(text):
    assert [name for name in CRITERIA if f"| `{name}` |" not in text] == []


def test_examples_run(text):
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/robust.md", "exec"), names)
    plan, told = names["plan"], names["told"]
    assert plan.regret[0] == pytest.approx(plan.regret[-1], rel=1e-9)  # the two ends of the demand are equally bad
    assert len(names["both"]) == 15
    assert names["cautious"].criterion == "cvar"
    assert told.pooled.decision.n_active > told.committed.decision.n_active
    assert np.isnan(told.committed.loss[1])
