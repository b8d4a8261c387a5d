"""The catalogue as tables: every entry, every column with a unit, and text that survives the way to a file."""

import csv
import io
import math

import pandas as pd
import pytest
from rich.console import Console

from allocator import catalog, listings
from allocator.catalog import KINDS
from allocator.errors import CatalogError
from allocator.listings import Column, Listing, entries, entry, kinds, print_listing

every_kind = pytest.mark.parametrize("kind", KINDS)


def text_of(listing: Listing, *, width: int = 120, markup: bool = False) -> str:
    stream = io.StringIO()
    print_listing(listing, Console(file=stream, width=width, highlight=False, markup=markup))
    return stream.getvalue()


def read_back(listing: Listing) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(listing.to_csv())))


def test_kinds_are_counted():
    assert {row["kind"]: row["entries"] for row in kinds().rows} == {k: len(catalog.entries(k)) for k in KINDS}


@every_kind
def test_every_entry_is_a_row_in_order(kind: str):
    listing = entries(kind)
    assert [row["name"] for row in listing.rows] == [record.name for record in catalog.entries(kind)]


@every_kind
def test_every_column_of_a_listing_has_a_unit(kind: str):
    listing = entries(kind)
    without = {key for row in listing.rows for key in row} - set(listing.units) - {"label"}
    assert without == set()


@every_kind
def test_csv_gives_everything_back(kind: str):
    listing = entries(kind)
    for row, found in zip(listing.rows, read_back(listing), strict=True):
        assert all(found[key] == "" for key in found.keys() - row.keys())
        for key, value in row.items():
            back = found[key]
            if value is None:
                assert back == ""
            elif isinstance(value, float):
                assert float(back) == value
            else:
                assert back == str(value)


@every_kind
def test_pandas_reads_the_csv(kind: str):
    frame = pd.read_csv(io.StringIO(entries(kind).to_csv()))
    assert len(frame) == len(catalog.entries(kind))
    assert not frame.columns.str.startswith("Unnamed").any()


@every_kind
def test_the_printed_table_has_every_name_whole(kind: str):
    text = text_of(entries(kind))
    names = {line.split()[0] for line in text.splitlines() if line.split()}
    assert {record.name for record in catalog.entries(kind)} <= names
    assert max(map(len, text.splitlines())) <= 120


def test_printed_numbers_are_scaled_to_the_unit_in_their_heading():
    text = text_of(entries("hardware"))
    (h100,) = [line for line in text.splitlines() if line.startswith("h100-sxm ")]
    # 989 TFLOP/s bf16, 1979 fp8, 80 GB, 3.35 TB/s, 700 W
    assert h100.split()[1:6] == ["989", "1979", "80", "3.35", "700"]
    assert {"TFLOP/s", "GB", "TB/s", "W", "USD/chip-h"} <= set(text.split())


def test_models_are_counted_in_billions():
    (llama,) = [line for line in text_of(entries("models")).splitlines() if line.startswith("llama-3.1-70b ")]
    assert llama.split()[1:5] == ["70.55", "70.55", "80", "8192"]


def test_unknown_is_blank_and_not_zero():
    (a100,) = [line for line in text_of(entries("hardware")).splitlines() if line.startswith("a100-80gb-sxm ")]
    assert a100.split()[1:3] == ["312", "80"]  # no fp8, no fp4


@every_kind
def test_one_entry_tells_every_figure_that_is_known(kind: str):
    record = catalog.entries(kind)[0]
    listing = entry(kind, record.name)
    figures = {row["figure"]: row for row in listing.rows}
    known = {key for key, value in record.fields.items() if value not in (None, "")} - {"name"}
    assert known <= set(figures)
    assert figures["name"]["value"] == record.name
    assert all(row["value"] not in (None, "") for row in listing.rows)
    if record.source:
        assert figures["source"]["value"] == record.source


@every_kind
def test_every_number_of_an_entry_has_a_unit(kind: str):
    for record in catalog.entries(kind):
        for row in entry(kind, record.name).rows:
            if isinstance(row["value"], float):
                assert row["unit"], (record.name, row["figure"])
                assert math.isfinite(row["value"])


def test_a_data_set_tells_its_columns_with_units_its_licence_and_what_to_cite():
    for record in catalog.entries("data"):
        rows = entry("data", record.name).rows
        found = {row["figure"] for row in rows}
        assert {"licence", "source", "notes"} <= found
        told = [
            (row["figure"], row["unit"], row["description"]) for row in rows if row["figure"].startswith("columns.")
        ]
        if record.fields["access"] == "shipped":
            described = catalog.columns(record.name)
            assert told == [(f"columns.{name}", c["unit"], c["description"]) for name, c in described.items()]
        else:
            files = catalog.registry()[record.name]["files"]
            assert len(told) == sum(len(file["columns"]) for file in files.values())
            assert {row["value"] for row in rows if row["figure"].startswith("columns.")} == set(files)


def test_zero_and_false_are_figures():
    """`value not in (None, "")`: 0.0 and False are known, not missing."""
    records = [r for r in catalog.entries("models") if False in r.fields.values() or 0.0 in r.fields.values()]
    assert records
    figures = {row["figure"] for row in entry("models", records[0].name).rows}
    assert {key for key, value in records[0].fields.items() if value is False or value == 0.0} <= figures


def test_an_entry_by_alias_is_named_properly():
    assert entry("laws", "EPOCH").name == "besiroglu-2024"


def test_an_unknown_entry_is_refused():
    with pytest.raises(CatalogError, match="did you mean besiroglu-2024"):
        entry("laws", "besirogl")


@every_kind
def test_the_dictionary_is_the_contracts(kind: str):
    values = entries(kind).to_dict()
    assert values["schema"] == "allocator.catalog/1"
    assert {"rows", "warnings", "provenance"} <= set(values)
    assert values["rows"] == [dict(row) for row in entries(kind).rows]


ODD = ["[red]x[/red]", "<b>", 'a,"b"', "two\nlines", "=1+1", "é☃"]


@pytest.mark.parametrize("markup", [True, False])
def test_cells_are_text_and_no_markup(markup: bool):
    listing = Listing("odd", [{"name": text} for text in ODD], {}, (Column("name", "[b]name[/b]"),))
    text = text_of(listing, markup=markup)
    assert "[red]x[/red]" in text
    assert "<b>" in text
    assert "[b]name[/b]" in text


def test_odd_cells_survive_csv():
    listing = Listing("odd", [{"name": text} for text in ODD], {}, ())
    assert [row["name"] for row in read_back(listing)] == ODD


def test_a_number_is_written_in_full_where_it_is_not_scaled():
    assert listings.entry("laws", "besiroglu-2024").to_csv().count("482.01") == 1
