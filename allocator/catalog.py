"""Hardware, models, laws, data sets and scenarios by name, as plain records whose meaning is for others to judge."""

import csv
import difflib
import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from allocator.errors import CatalogError
from allocator.law_files import law_faults

KINDS = ("hardware", "models", "laws", "data", "scenarios")
PEAKS = {dtype: f"{dtype}_dense_flop_per_s" for dtype in ("bf16", "fp8", "fp4")} | {"int8": "int8_dense_op_per_s"}

Value = str | float | bool | None  # None: unknown, or it does not apply


@dataclass(frozen=True)
class Record:
    """One entry of the catalogue; `columns` gives the unit of each field."""

    name: str
    aliases: tuple[str, ...]
    fields: Mapping[str, Value]
    source: str


@dataclass(frozen=True)
class LawRecord:
    """A law file that passed the checks of form; `sha256` is that of its bytes."""

    name: str
    path: Path
    sha256: str
    content: dict[str, Any]


def entries(kind: str) -> tuple[Record, ...]:
    """All records of one kind: hardware and models in their table's order, the others by name."""
    if kind not in KINDS:
        raise CatalogError(f"catalog: {kind!r} is not a kind, must be one of {', '.join(KINDS)}")
    readers = {"laws": _laws, "data": _data_sets, "scenarios": _scenarios}
    return tuple(readers[kind]()) if kind in readers else table(kind)


def find(kind: str, name: str) -> Record:
    """The record that bears a name or alias, in whatever case."""
    owners = {spelling.lower(): record for record in entries(kind) for spelling in (record.name, *record.aliases)}
    wanted = name.lower()
    if wanted in owners:
        return owners[wanted]
    # What begins as the user began counts before what merely looks alike.
    near = [key for key in owners if wanted and key.startswith(wanted)] or difflib.get_close_matches(wanted, owners)
    names = list(dict.fromkeys(owners[key].name for key in near))[:3]
    hint = f"did you mean {' or '.join(names)}?" if names else f"see: allocator catalog {kind}"
    raise CatalogError(f"{kind}: {name!r} is not known; {hint}")


def table(name: str) -> tuple[Record, ...]:
    """The rows of a shipped table of named records: hardware, models, api_prices, memory_tiers, and so on."""
    if name not in _tables():
        records = (known for known in _tables() if "rows" not in _about(known))
        raise CatalogError(f"data: {name!r} is no shipped table, must be one of {', '.join(records)}")
    about = _about(name)
    if "rows" in about:  # measurements, which have no names
        raise CatalogError(
            f"data: a row of {name} is {about['rows']}, no named record; read catalog.table_path({name!r})"
        )
    parse = {"text": str, "number": float, "bool": "1".__eq__}
    parsers = {column: parse[kind["type"]] for column, kind in about["columns"].items()}
    with _resource(f"data/{name}/table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    records = []
    for row in rows:
        slug, source, aliases = row.pop("slug"), row.pop("source"), row.pop("aliases", "")
        fields = {column: parsers[column](cell) if cell else None for column, cell in row.items()}
        records.append(Record(slug, tuple(alias.strip() for alias in aliases.split(";") if alias), fields, source))
    return tuple(records)


def table_path(name: str) -> Path:
    """The CSV file of a shipped table, whether its rows are named records or measurements."""
    record = find("data", name)
    if record.fields["access"] != "shipped":
        raise CatalogError(f"data: {record.name} is not shipped; fetch it: allocator data pull {record.name}")
    return _resource(f"data/{record.name}/table.csv")


def columns(kind: str) -> Mapping[str, Mapping[str, str]]:
    """Unit and description of each column of a shipped table, or of each field of the other kinds' records."""
    others = _toml(_resource("data/columns.toml"))
    if kind in others:
        return others[kind]
    if kind not in _tables():
        raise CatalogError(f"columns: {kind!r} is not known, must be one of {', '.join([*others, *_tables()])}")
    return _about(kind)["columns"]


def registry() -> Mapping[str, Mapping[str, Any]]:
    """Data sets that can be downloaded, by name: files with url, size and hash, licence, citation, columns."""
    return _toml(_resource("data/registry.toml"))["sets"]


def scenario_path(name: str) -> Path:
    """The file of a shipped scenario."""
    return _resource(f"data/scenarios/{find('scenarios', name).name}.toml")


def scenario_template() -> str:
    """The scenario that users start from, every key explained."""
    return _resource("data/scenario-template.toml").read_text(encoding="utf-8")


def dense_peak_flop_per_s(record: Record, dtype: str) -> float:
    """Dense peak of a hardware record in bf16, fp8, fp4 or int8; of the whole rack where the record is a rack."""
    if dtype not in PEAKS:
        raise CatalogError(f"dtype: {dtype!r} is not known, must be one of {', '.join(PEAKS)}")
    known = {name: peak for name, column in PEAKS.items() if isinstance(peak := record.fields.get(column), float)}
    if dtype not in known:
        raise CatalogError(f"{record.name}: no dense {dtype} peak is on record; it has {', '.join(known) or 'none'}")
    return known[dtype]


def law_record(name: str, *, folder: Path | None = None) -> LawRecord:
    """A law by name (`folder`/fits, ./fits, shipped) or, for a text with `/` or `.toml`, by path from `folder`."""
    base = Path() if folder is None else folder
    if "/" in name or name.endswith(".toml"):
        return _read_law(base / name)
    for root in (base, Path()):
        path = root / "fits" / name / "law.toml"
        if name.strip(".") and os.path.isfile(path):  # "" and ".." would leave fits/
            return _read_law(path)
    return _read_law(_resource(f"fits/{find('laws', name).name}/law.toml"))


def recipe_path(name: str) -> Path:
    """Where the recipe of a shipped fit is or would be."""
    return _resource("fits") / name / "recipe.toml"


def recipe_names() -> list[str]:
    """Shipped fits that can be made again."""
    return sorted(path.parent.name for path in _resource("fits").glob("*/recipe.toml"))


def _read_law(path: Path) -> LawRecord:
    if os.path.isfile(path / "law.toml"):  # the folder that a fit was written to
        path = path / "law.toml"
    # os.path, since Path's own tests raise where a name is too long.
    if not os.path.isfile(path):
        raise CatalogError(f"{path}: {'is a folder, must be a law file' if os.path.isdir(path) else 'no such file'}")
    try:
        raw = path.read_bytes()
        content = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # a fault of the syntax says its line
        raise CatalogError(f"{path}: is not TOML in UTF-8: {error}") from None
    for fault in law_faults(content):
        raise CatalogError(f"{path}: {fault}")
    return LawRecord(content["name"], path, hashlib.sha256(raw).hexdigest(), content)


def _laws() -> Iterator[Record]:
    for path in sorted(_resource("fits").glob("*/law.toml")):
        law = _read_law(path).content
        fields = {key: law.get(key) for key in ("title", "kind", "unit", "equation", "status", "rounded", "caution")}
        # The levels of an RL fit, one a model size, are the file's own matter.
        shown = {key: value for key, value in law["parameters"].items() if not key.startswith("E_")}
        fields |= {f"parameters.{key}": float(value) for key, value in shown.items()}
        yield Record(path.parent.name, tuple(law.get("aliases", ())), fields, law.get("source", ""))


def _data_sets() -> Iterator[Record]:
    sets = {name: _about(name) for name in _tables()} | dict(registry())
    for name, about in sorted(sets.items()):
        fields = {key: about[key].strip() for key in ("title", "who", "licence", "notes")}
        size = float(sum(file["bytes"] for file in about.get("files", {}).values()))
        fields |= {"access": "download" if size else "shipped", "bytes": size or None}
        yield Record(name, tuple(about.get("aliases", ())), fields, about.get("citation", about["who"]))


def _scenarios() -> Iterator[Record]:
    for path in sorted(_resource("data/scenarios").glob("*.toml"), key=lambda path: path.stem):
        yield Record(path.stem, (), {"title": _toml(path).get("title")}, "")


def _tables() -> list[str]:
    return sorted(path.parent.name for path in _resource("data").glob("*/table.csv"))


def _about(table: str) -> dict[str, Any]:
    """Source, licence and columns of a shipped table; it has `rows` where a row is a measurement, no named record."""
    return _toml(_resource(f"data/{table}/source.toml"))


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _resource(path: str) -> Path:
    return Path(str(files("allocator._resources")), path)  # a real path, since wheels are installed unpacked
