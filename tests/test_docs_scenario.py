"""The scenario file's reference names every key and every form, with the defaults and needs that the code has."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from allocator.scenario.forms import FORMS
from allocator.scenario.rules import EITHER_OR
from allocator.scenario.schema import Scenario


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Sections that a key may hold, whatever unions and annotations they are wrapped in."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)


def _is_section_only(annotation: Any) -> bool:
    parts = [part for part in get_args(annotation) if part is not type(None)] or [annotation]
    return all(isinstance(part, type) and issubclass(part, BaseModel) for part in parts)


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        if not _is_section_only(field.annotation):
            yield path, field
        for section in _sections(field.annotation):
            yield from _keys(section, f"{path}.")


KEYS = dict(_keys(Scenario))


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "docs/scenario.md").read_text(encoding="utf-8")


def _rows(text: str, first: str) -> list[list[str]]:
    """Cells of the tables whose first column is headed so."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        inside = bool(cells) and (inside or cells[0] == first)
        if inside and cells[0] != first and set(cells[0]) != {"-"}:
            rows.append(cells)
    return rows


def _named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_walk_reaches_every_depth():
    assert {"title", "law.rl.scale", "decisions.k", "decisions.k.max", "hardware.rl.chip"} <= set(KEYS)
    assert {"rl.roofline.efficiency", "inference.roofline.efficiency.memory"} <= set(KEYS)
    assert not {"law", "law.rl", "rl.roofline", "hardware.rl", "objective"} & set(KEYS)


def test_every_key_has_a_row_and_every_row_a_key(text: str):
    named = [path for row in _rows(text, "key") for path in _named(row[0])]
    assert len(named) == len(set(named))
    assert set(named) == set(KEYS)


def test_rows_tell_the_defaults(text: str):
    for row in _rows(text, "key"):
        assert len(row) == 5, row
        for path in _named(row[0]):
            field = KEYS[path]
            if field.is_required():
                assert row[3] == "required", path
            elif field.default is None:
                assert row[3] == "-", path
            else:
                assert tomllib.loads(f"x = {_named(row[3])[0]}")["x"] == field.default, path


def test_rows_tell_the_ranges(text: str):
    """Bounds of plain numbers, which pydantic keeps beside the field or inside its union with None."""
    signs = {"gt": "> {:g}", "ge": ">= {:g}", "lt": "< {:g}", "le": "<= {:g}"}

    def bounds(part: Any) -> Iterator[str]:
        for about in [*getattr(part, "metadata", ()), *getattr(part, "__metadata__", ())]:
            yield from (sign.format(getattr(about, end)) for end, sign in signs.items() if hasattr(about, end))
            yield from bounds(about)
        for inner in get_args(getattr(part, "annotation", part)):
            yield from bounds(inner)

    checked = 0
    for row in _rows(text, "key"):
        for path in _named(row[0]):
            for bound in () if path.startswith("decisions.") or path.endswith(".efficiency") else bounds(KEYS[path]):
                assert bound in row[2].replace("1e60", "1e+60"), path
                checked += 1
    assert checked > 50


def test_every_form_has_a_row_with_its_keys(text: str):
    rows = {_named(row[0])[0]: row for row in _rows(text, "form")}
    assert set(rows) == set(FORMS)
    for name, form in FORMS.items():
        _, _, takes, needs, needs_with, least = rows[name]
        assert set(_named(takes)) == form.takes, name
        assert set(_named(needs)) == form.needs, name
        assert set(_named(needs_with)) == form.needs_with, name
        assert (least == "yes") == form.k_at_least_one, name


def test_every_either_or_group_has_a_row(text: str):
    told = [{frozenset(_named(part)) for part in row[1].split(";")} for row in _rows(text, "group")]
    assert told == [{frozenset(option) for option in group} for group in EITHER_OR]
