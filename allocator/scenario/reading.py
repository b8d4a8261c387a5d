"""Scenario files from disk, by name or from standard input, with overrides and every fault reported at once."""

import difflib
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from allocator import catalog
from allocator.errors import ScenarioError
from allocator.scenario.fits import expand
from allocator.scenario.rules import EITHER_OR, faults
from allocator.scenario.schema import Bounds, Scenario


def load(source: str | Path, *, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario: a shipped name, a path, or `-` for standard input; `overrides` are texts `a.b=value`.

    Raises `ScenarioError` with one line a fault, or `CatalogError` for a name that is not shipped.
    """
    text, folder, origin = _read(str(source))
    try:
        values = tomllib.loads(text)
    except ValueError as error:  # also numbers of thousands of digits
        raise ScenarioError([f"{origin}: not TOML: {error}"]) from None
    except RecursionError:
        raise ScenarioError([f"{origin}: not TOML: nested too deeply"]) from None
    if not values:
        raise ScenarioError([f"{origin}: empty; `allocator scenario new` writes one to start from"])
    for override in overrides:
        apply_override(values, override)
    return from_values(values, folder=folder)


def from_values(values: Mapping[str, Any], *, folder: Path = Path()) -> Scenario:
    """Check nested values and build a scenario; raise `ScenarioError` naming every fault."""
    lines, scenario = [], None
    values = expand(values, folder)
    try:
        scenario = Scenario.model_validate(values)
    except ValidationError as error:
        lines += [_line(fault) for fault in error.errors(include_url=False)]
    # A path that is already blamed for its type or range is not blamed twice.
    blamed = {line.split(":")[0] for line in lines}
    lines += [line for line in faults(values, folder) if line.split(":")[0] not in blamed]
    if lines or scenario is None:
        raise ScenarioError(lines)
    scenario._folder = folder
    return scenario


def with_values(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """A checked copy with some keys changed, e.g. `{"objective.compute_flop": 1e27}`."""
    values = scenario.to_values()
    for path, value in changes.items():
        set_value(values, path, value)
    return from_values(values, folder=scenario.folder)


def apply_override(values: dict[str, Any], override: str) -> None:
    """Apply `a.b=value`; the value is read as TOML where it is TOML, else as text."""
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not all(part for part in path.split(".")):
        raise ScenarioError([f"--set {override}: must read key.path=value"])
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # what is no TOML is text; so is a number too long to be one
        parsed = {"value": text.strip()}
    if set(parsed) != {"value"}:
        raise ScenarioError([f"--set {path}: must be one value, got {_clip(text)}"])
    value = parsed["value"]
    set_value(values, path, value)


def set_value(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a nested key; the other alternatives of its either-or group go."""
    for group in EITHER_OR if path != "objective.currency" else ():  # a currency alone replaces no budget
        # A key inside a table of the group, such as rl.roofline.batch, stands for the table.
        mine = [option for option in group if any(path == key or path.startswith(f"{key}.") for key in option)]
        if mine:
            for other in (key for option in group if option not in mine for key in option):
                _remove(values, other)
    *sections, key = path.split(".")
    node = values
    for section in sections:
        if not isinstance(node.get(section), dict):
            node[section] = {}
        node = node[section]
    node[key] = value


def _remove(values: dict[str, Any], path: str) -> None:
    *sections, key = path.split(".")
    node: Any = values
    for section in sections:
        node = node.get(section, {}) if isinstance(node, dict) else {}
    if isinstance(node, dict):
        node.pop(key, None)


def _read(source: str) -> tuple[str, Path, str]:
    """(text, folder for relative names, what to call it in a message)."""
    if source == "-":
        return _decode(_standard_input(), "standard input"), Path(), "standard input"
    # os.path, since Path's own tests raise where a name is too long.
    if "/" not in source and not source.endswith(".toml") and not os.path.isfile(source):
        path = catalog.scenario_path(source)
        return path.read_text(encoding="utf-8"), Path(), str(source)
    if os.path.isdir(source):
        raise ScenarioError([f"{source}: is a folder; a scenario is a TOML file"])
    try:
        return _decode(Path(source).read_bytes(), source), Path(source).parent, source
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise ScenarioError([f"{_clip(source)}: cannot be read: {getattr(error, 'strerror', error)}"]) from None


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise ScenarioError(["standard input: is closed"])
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise ScenarioError([f"standard input: cannot be read: {error.strerror}"]) from None


def _decode(raw: bytes, origin: str) -> str:
    try:
        return raw.decode("utf-8-sig")  # editors of Windows put a mark before the text
    except UnicodeDecodeError:
        raise ScenarioError([f"{origin}: not text in UTF-8; a scenario is a TOML file"]) from None


def _clip(value: Any) -> str:
    """A value as it was written, cut where it would fill the screen."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _line(fault: Any) -> str:
    """One line with key path, value and rule for a fault that pydantic found."""
    # Tags of unions are no keys of the file.
    parts = [str(p) for p in fault["loc"] if p not in ("number", "bounds", "table")]
    if parts[:1] == ["decisions"] and parts[-1:] == ["free"]:
        parts.pop()
    path, value, kind, context = ".".join(parts), fault["input"], fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{path}: unknown key{_suggestion(parts)}"
    if kind == "missing":
        return f"{path}: required"
    rules = {
        "greater_than": "must be > {gt}",
        "greater_than_equal": "must be >= {ge}",
        "less_than": "must be < {lt}",
        "less_than_equal": "must be <= {le}",
        "finite_number": "must be a finite number",
        "float_type": "must be a number",
        "string_type": "must be text",
        "model_type": "must be a table",
        "literal_error": "must be {expected}",
    }
    rule = rules[kind].format(**context) if kind in rules else fault["msg"]
    if parts[:1] == ["decisions"] and kind in ("literal_error", "float_type"):
        rule = 'must be a number, { min, max } or "free"'
    return f"{path}: got {_clip(repr(value))}; {rule}"


def _suggestion(parts: Sequence[str]) -> str:
    model: Any = Bounds if parts[0] == "decisions" and len(parts) == 3 else Scenario
    for part in parts[:-1] if model is Scenario else ():
        field = model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
        if field is None:
            return ""
        options = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
    if model is None:
        return ""
    near = difflib.get_close_matches(parts[-1], model.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(model.model_fields)}"
