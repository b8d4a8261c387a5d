"""A table of runs, checked: every fault is one line that names the column, the row and the rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from allocator.errors import FitError
from allocator.fitting.form import Column
from allocator.fitting.notes import Note

if TYPE_CHECKING:
    import pandas as pd

SPELLINGS = {
    "n_active": ("n_params", "N", "params", "parameters"),
    "d_tokens": ("d_pretrain", "D", "tokens", "training_tokens"),
    "d_rl": ("rl_tokens",),
    "pass_at_k": ("pass@k",),
}
FAILED = ("diverged", "failed", "crashed", "nan", "oom")
FLOP_PER_PARAM_TOKEN = 6.0  # forward and backward; D = C / (6 N) where a table gives compute


@dataclass(frozen=True)
class Runs:
    """Columns of equal length, finite and in range, in an order that does not depend on the table's."""

    columns: Mapping[str, np.ndarray]
    row: np.ndarray  # of each run in the table as given, from 0
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.row)


def read(
    frame: "pd.DataFrame",
    needed: Sequence[Column],
    *,
    columns: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
) -> Runs:
    """Check a table against the columns that a law needs, its target last; `columns` maps our names to the table's.

    Runs that diverged (no finite target, or a status that says so) are left out with a note. `extra` names columns to
    carry along where they exist, as text (a cluster, say).
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise FitError("frame", f"must be a pandas DataFrame, got {type(frame).__name__}")
    if not isinstance(columns, Mapping | None):
        raise FitError("columns", f"must map our names to the table's, got {columns!r}")
    chosen = dict(columns or {})
    known = {column.name for column in needed} | {"status", "n_active", "d_tokens", "compute_flop", "pass_at_k", "loss"}
    if strange := [name for name in chosen if name not in known]:
        raise FitError("columns", f"{strange[0]!r} is no column of this law; it has {', '.join(sorted(known))}")
    for ours, theirs in chosen.items():
        if theirs not in frame.columns:
            raise FitError("missing_column", f"columns.{ours}: no column {theirs!r}; found {_found(frame)}")
    if frame.columns.duplicated().any():
        twice = sorted(set(frame.columns[frame.columns.duplicated()]))
        raise FitError("duplicated_column", f"{', '.join(map(str, twice))}: more than one column has this name")
    names = {ours: chosen.get(ours) or spelling(frame, ours) for ours in [column.name for column in needed]}
    derivable = {"d_tokens": ("compute_flop", "n_active"), "loss": ("pass_at_k",)}
    read_from = {}
    for ours, theirs in names.items():
        if theirs is not None:
            read_from[ours] = theirs
            continue
        sources = [chosen.get(name) or spelling(frame, name) for name in derivable.get(ours, ())]
        if not sources or None in sources:
            also = f" (or {' and '.join(derivable[ours])})" if ours in derivable else ""
            raise FitError("missing_column", f"{ours}{also}: no such column; found {_found(frame)}")
        read_from |= dict(zip(derivable[ours], sources, strict=True))
    values = {ours: numbers(frame, theirs) for ours, theirs in read_from.items()}
    kept, notes = _lawful(frame, values, needed, read_from, chosen)
    values = {name: column[kept] for name, column in values.items()}
    if "d_tokens" not in values and "compute_flop" in values:
        values["d_tokens"] = values["compute_flop"] / (FLOP_PER_PARAM_TOKEN * values["n_active"])
    if "loss" in names and "loss" not in values:
        values["loss"] = -np.log(values["pass_at_k"])
    for name in extra:
        if name not in frame.columns:
            raise FitError("missing_column", f"{name}: no such column; found {_found(frame)}")
        blank = np.flatnonzero(frame[name].isna().to_numpy() & kept)
        if len(blank):
            raise FitError(
                "missing_value", f"{name}: row {_row(frame, int(blank[0]))} is blank; each run needs its cluster"
            )
        if name not in values:
            numeric = frame[name].dtype.kind in "iuf"
            values[name] = frame[name].astype(float if numeric else str).to_numpy()[kept]
    # The order of the sums must not be the table's: runs are sorted by what they hold.
    order = np.lexsort([values[name] for name in reversed(list(values))])
    rows = _rownumbers(frame)[kept][order] - 1
    runs = Runs({name: column[order] for name, column in values.items()}, rows, tuple(notes))
    return Runs(runs.columns, runs.row, runs.notes + tuple(_suspicions(runs, needed)))


def spelling(frame: "pd.DataFrame", name: str) -> str | None:
    """What a column of ours is called in a table; None where nothing fits."""
    found = [spelling for spelling in (name, *SPELLINGS.get(name, ())) if spelling in frame.columns]
    if len(found) > 1 and found[0] != name:
        raise FitError("missing_column", f"{name}: {' and '.join(found)} could both be it; say which")
    return found[0] if found else None


def _found(frame: "pd.DataFrame") -> str:
    names = [str(name) for name in frame.columns]
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") or "no columns"


def _rownumbers(frame: "pd.DataFrame") -> np.ndarray:
    """Rows counted from 1; a filtered table keeps its file's numbers, which are in its index."""
    numbered = frame.index.is_unique and frame.index.dtype.kind == "i"
    return (frame.index.to_numpy() if numbered else np.arange(len(frame))) + 1


def _row(frame: "pd.DataFrame", position: int) -> int:
    return int(_rownumbers(frame)[position])


def numbers(frame: "pd.DataFrame", name: str) -> np.ndarray:
    """A column as floats; blank cells are NaN, any other text is refused."""
    import pandas as pd

    column = frame[name]
    if pd.api.types.is_bool_dtype(column):
        raise FitError("not_a_number", f"{name}: holds true and false, must be numbers")
    if pd.api.types.is_datetime64_any_dtype(column):
        raise FitError("not_a_number", f"{name}: holds dates, must be numbers")
    if column.dtype.kind == "O":
        column = column.map(_cell)
    elif column.dtype.kind in "mc":
        column = column.astype(str)
    numbers = np.asarray(pd.to_numeric(column, errors="coerce").astype(float), float)  # pyright: ignore
    blank = column.isna() | column.astype(str).str.strip().str.lower().isin(["", "nan", "none", "null", "na", "n/a"])
    wrong = np.isnan(numbers) & ~blank.to_numpy()
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise FitError(
            "not_a_number", f"{name}: row {_row(frame, row)} holds {str(column.iloc[row])!r}, must be a number"
        )
    return numbers


def _cell(cell: object) -> object:
    """A number, nothing or text; what is none of these, and a whole number that no float holds, becomes text."""
    import pandas as pd

    if cell is None or cell is pd.NA or cell is pd.NaT:
        return None
    if not isinstance(cell, Real) or isinstance(cell, bool | np.bool_):
        return str(cell)
    try:
        return float(cell)
    except OverflowError:
        return "a number too large"


def _lawful(frame, values, needed, read_from, chosen) -> tuple[np.ndarray, list[Note]]:
    """Which rows can be used, and notes on those that cannot; a value out of range is refused."""
    notes: list[Note] = []
    kept = np.ones(len(frame), bool)
    status = chosen.get("status") or ("status" if "status" in frame.columns else None)
    target = needed[-1].name if needed[-1].name in values else "pass_at_k"  # which a loss may come from
    failed = np.zeros(len(frame), bool)
    if status is not None:
        failed |= frame[status].astype(str).str.strip().str.lower().isin(FAILED).to_numpy()
    failed |= ~np.isfinite(values[target])
    if failed.any():
        kept &= ~failed
        notes.append(Note("diverged_dropped", f"{int(failed.sum())} of {len(frame)} runs have no finite {target} or a "
                          f"status that says they failed: left out", value=int(failed.sum())))  # fmt: skip
    for name, column in values.items():
        absent = kept & ~np.isfinite(column)
        if absent.any():
            kept &= ~absent
            notes.append(Note("incomplete_dropped", f"{int(absent.sum())} runs have no finite {read_from[name]}: left "
                              f"out (first: row {_row(frame, int(np.flatnonzero(absent)[0]))})", path=name,
                              value=int(absent.sum())))  # fmt: skip
    rules = {column.name: column for column in needed}
    for name, column in values.items():
        rule = rules.get(name, Column(name, "", lowest=0.0 if name == "pass_at_k" else None))
        low = rule.lowest if rule.lowest is not None else (None if rule.scaling in ("shifted", "plain") else 0.0)
        strict = rule.lowest is None and rule.scaling == "log"
        bad = np.zeros(len(frame), bool)
        words = []
        if low is not None:
            bad |= kept & ((column <= low) if strict else (column < low))
            words.append(f"{'>' if strict else '>='} {low:g}")
        high = 1.0 if name == "pass_at_k" else rule.highest
        if high is not None:
            bad |= kept & (column > high)
            words.append(f"<= {high:g}")
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise FitError("out_of_range", f"{read_from[name]}: row {_row(frame, row)} holds {column[row]:g}, must be "
                           f"{' and '.join(words)}")  # fmt: skip
    if "pass_at_k" in values:
        ends = kept & ((values["pass_at_k"] <= 0) | (values["pass_at_k"] >= 1))
        if ends.any():
            kept &= ~ends
            notes.append(Note("saturated_dropped", f"{int(ends.sum())} rows have pass@k of exactly 0 or 1, whose -log "
                              "is no measurement: left out", value=int(ends.sum())))  # fmt: skip
    if not kept.any():
        raise FitError("too_few_runs", "no run is left to fit")
    return kept, notes


def _suspicions(runs: Runs, needed: Sequence[Column]) -> list[Note]:
    """What can be used but looks like a slip of the table."""
    notes = []
    names = [column.name for column in needed if column.name in runs.columns]
    table = np.column_stack([runs.columns[name] for name in names])
    copies = len(table) - len(np.unique(table, axis=0))
    if copies:
        notes.append(Note("duplicated_runs", f"{copies} runs repeat another one exactly: intervals come out too narrow "
                          "if these are copies", value=copies))  # fmt: skip
    for name, least, unit in (("n_active", 1e5, "parameters"), ("d_tokens", 1e7, "tokens")):
        if name not in runs.columns or (top := float(runs.columns[name].max())) >= least:
            continue
        factor = 1e9 if top <= 2000 else 1e6
        hint = "; epochs have to be turned into tokens" if name == "d_tokens" and top <= 1000 else ""
        notes.append(Note("implausible_unit", f"{name}: the largest value is {top:g} {unit}; if the table counts in "
                          f"billions, multiply by 1e9, if in millions, by 1e6{hint}", path=name,
                          value=factor))  # fmt: skip
    if "n_active" in runs.columns and "d_tokens" in runs.columns:
        ratio = float(np.median(runs.columns["d_tokens"] / runs.columns["n_active"]))
        if ratio < 1e-3 and not any(note.path in ("n_active", "d_tokens") for note in notes):
            notes.append(Note("implausible_unit", f"d_tokens: the median run has {ratio:.2g} tokens per parameter; are "
                              "these epochs, steps or billions?", path="d_tokens", value=ratio))  # fmt: skip
    return notes
