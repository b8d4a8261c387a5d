"""Rows of the handed cases, by id."""

import csv
from pathlib import Path


def case_rows(name: str) -> dict[str, dict[str, str]]:
    """The rows of cases/NAME.csv by their `id`, in the file's order."""
    with (Path(__file__).parent / "cases" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}
