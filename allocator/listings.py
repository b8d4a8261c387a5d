"""The catalogue as tables: what there is of each kind, and one entry whole, with units and sources."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allocator import __version__, catalog


@dataclass(frozen=True)
class Column:
    """A column of the printed table: the field, its heading, and what the value is divided by."""

    field: str
    heading: str
    scale: float = 1.0


# What a terminal has room for; --json and --out give every column in base units.
_PRINTED = {
    "hardware": (
        Column("bf16_dense_flop_per_s", "bf16 dense\nTFLOP/s", 1e12),
        Column("fp8_dense_flop_per_s", "fp8 dense\nTFLOP/s", 1e12),
        Column("fp4_dense_flop_per_s", "fp4 dense\nTFLOP/s", 1e12),
        Column("hbm_bytes", "HBM\nGB", 1e9),
        Column("hbm_bytes_per_s", "HBM\nTB/s", 1e12),
        Column("tdp_w", "TDP\nW"),
        Column("usd_per_chip_hour", "price\nUSD/chip-h"),
    ),
    "models": (
        Column("n_active_computed", "active\nB", 1e9),
        Column("n_total_computed", "total\nB", 1e9),
        Column("layers", "layers"),
        Column("d_model", "d_model"),
        Column("kv_bytes_per_token_bf16", "KV cache, bf16\nkB/token", 1e3),
        Column("d_pretrain", "pre-training\nT tokens", 1e12),
    ),
    "laws": (Column("kind", "kind"), Column("title", "title"), Column("status", "status")),
    "data": (Column("access", "access"), Column("title", "title"), Column("licence", "licence")),
    "scenarios": (Column("title", "title"),),
    "": (Column("kind", "kind"), Column("entries", "entries")),
    "entry": (Column("figure", "figure"), Column("value", "value"), Column("unit", "unit"),
              Column("description", "description")),
}  # fmt: skip
_NAME = Column("name", "name")


@dataclass(frozen=True)
class Listing:
    """Rows of the catalogue, with the unit of each column."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    units: Mapping[str, str]
    printed: Sequence[Column]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "schema": "allocator.catalog/1",
            "kind": self.name,
            "units": dict(self.units),
            "rows": [dict(row) for row in self.rows],
            "warnings": [],
            "provenance": {"allocator": __version__},
        }

    def to_csv(self) -> str:
        """All columns as CSV."""
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


def kinds() -> Listing:
    """How many entries there are of each kind."""
    rows = [{"kind": kind, "entries": len(catalog.entries(kind))} for kind in catalog.KINDS]
    return Listing("catalog", rows, {}, _PRINTED[""])


def entries(kind: str) -> Listing:
    """All entries of a kind."""
    units = {name: column["unit"] for name, column in catalog.columns(kind).items()}
    rows = [_row(record) for record in catalog.entries(kind)]
    return Listing(kind, rows, units, (_NAME, *_PRINTED[kind]))


def entry(kind: str, name: str) -> Listing:
    """One entry, a row a figure, with unit, description and the entry's source."""
    record, columns = catalog.find(kind, name), catalog.columns(kind)
    rows = [
        {
            "figure": key,
            "value": value,
            "unit": columns.get(key, {}).get("unit", ""),
            "description": columns.get(key, {}).get("description", ""),
        }
        for key, value in _row(record).items()
        if value not in (None, "")
    ]
    if kind == "data":
        rows += _columns(record)
    return Listing(record.name, rows, {}, _PRINTED["entry"])


def print_listing(listing: Listing, console: Any) -> None:
    """Print the columns that a terminal has room for."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    whole = listing.printed is _PRINTED["entry"]
    for i, column in enumerate(listing.printed):
        numbers = not whole and any(isinstance(row.get(column.field), int | float) for row in listing.rows)
        # Names are what one copies, so they are never cut; long texts wrap.
        table.add_column(Text(column.heading), justify="right" if numbers else "left", no_wrap=i == 0 or numbers)
    for row in listing.rows:
        table.add_row(*(Text(_cell(row.get(column.field), column.scale)) for column in listing.printed))
    console.print(table)


def _columns(record: catalog.Record) -> list[dict[str, Any]]:
    """A row for each column of a data set's files; its value is the file that has the column."""
    if record.fields["access"] == "shipped":
        files = {catalog.table_path(record.name).name: catalog.columns(record.name)}
    else:
        files = {file: about["columns"] for file, about in catalog.registry()[record.name]["files"].items()}
    return [
        {"figure": f"columns.{name}", "value": file, "unit": about["unit"], "description": about["description"]}
        for file, columns in files.items()
        for name, about in columns.items()
    ]


def _row(record: catalog.Record) -> dict[str, Any]:
    fields = {key: value for key, value in record.fields.items() if key != "name"}
    label = record.fields.get("name")
    return {
        "name": record.name,
        **({"label": label} if label is not None and label != record.name else {}),
        **fields,
        "source": record.source,
        "aliases": "; ".join(record.aliases),
    }


def _cell(value: Any, scale: float) -> str:
    if isinstance(value, float):
        return f"{value / scale:.{4 if scale > 1 and value < 1e4 * scale else 10}g}"
    return "" if value is None else str(value)
