"""Pictures of README and docs show today's numbers, and none is missing."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in numbers(value[key])]
    return [x for item in value for x in numbers(item)] if isinstance(value, list) else [float(value)]


def test_pictures_show_today_s_numbers(root: Path):
    spec = importlib.util.spec_from_file_location("pictures", root / "scripts/pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = json.loads((root / "docs/images/pictures.json").read_text(encoding="utf-8"))
    assert numbers(kept) == pytest.approx(numbers(module.shown()), rel=1e-5)


def test_every_picture_that_a_page_shows_is_there(root: Path):
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    named = {(page, name) for page in pages
             for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))}  # fmt: skip
    assert named
    for page, name in named:
        assert (page.parent / name).is_file(), f"{page.name} shows {name}"
