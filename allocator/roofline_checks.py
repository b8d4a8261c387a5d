"""Measured serving against the roofline: time per output token, row by row."""

import csv
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from allocator import catalog
from allocator.catalog import Record
from allocator.errors import CatalogError
from allocator.outputs import finite
from allocator.precision import require_float64
from allocator.roofline import degrees
from allocator.roofline.accelerator import Accelerator, accelerator, multiplied_in
from allocator.roofline.calibration import SERVING, Calibration
from allocator.roofline.layout import Layout
from allocator.roofline.memory import fitting_batch
from allocator.roofline.operation import USABLE_MEMORY, Operation
from allocator.roofline.serving import LEAST_KV_BYTES, expected_step_s
from allocator.roofline.shape import WEIGHT_BYTES, Shape, shape
from allocator.roofline.step import decode_step

if TYPE_CHECKING:
    import pandas as pd

TEXTS = ("hardware", "model", "precision", "mode")
NUMBERS = ("n_chips", "concurrency", "input_len", "output_len", "tpot_ms")
OPTIONAL_TEXTS = ("id", "source_kind")
OPTIONAL = ("n_decode_chips", "ttft_ms")
MODES = ("agg", "disagg", "prefill")  # the last two by how the cell begins
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LACKING = {"n_chips": "chips", "concurrency": "concurrency", "input_len": "input length",
            "output_len": "output length", "tpot_ms": "time per output token"}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Measured rows with what the calibrated roofline predicts for them and what it bounds them by.

    `error` is predicted over measured less 1. A row that beats its bound is not what it says it is, and `beats` says
    what is odd about it.
    """

    rows: tuple[dict[str, Any], ...]
    unused: tuple[dict[str, str], ...]
    source: str

    def summary(self) -> list[dict[str, Any]]:
        """Errors over all, by family of measurements, by mode and by model."""
        groups = [("all", "all", list(self.rows))]
        for kind in ("family", "mode", "model"):
            names = sorted({row[kind] for row in self.rows})
            groups += [(kind, name, [row for row in self.rows if row[kind] == name]) for name in names]
        return [{"by": kind, "name": name} | _errors(rows) for kind, name, rows in groups]

    def measured_over_predicted(self, mode: str | None = None) -> dict[str, float]:
        """Quantiles of measured over predicted time, over all rows or those of a mode, agg or disagg: its band."""
        ratios = [
            row["measured_tpot_ms"] / row["predicted_tpot_ms"] for row in self.rows if mode in (None, row["mode"])
        ]
        return {f"p{100 * q:.0f}": _quantile(ratios, q) for q in (0.1, 0.5, 0.9)}

    @property
    def modes(self) -> list[str]:
        """Modes of the rows."""
        return sorted({row["mode"] for row in self.rows})

    @property
    def beating(self) -> list[dict[str, Any]]:
        """Rows measured faster than their bound."""
        return [row for row in self.rows if row["beats"]]

    def to_frame(self) -> "pd.DataFrame":
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=None if self.rows else ["id"])

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it: every number finite or null."""
        values = {
            "schema": "allocator.roofline-check/1", "source": self.source, "summary": self.summary(),
            "measured_over_predicted": self.measured_over_predicted(),
            "measured_over_predicted_by_mode": {mode: self.measured_over_predicted(mode) for mode in self.modes},
            "rows": list(self.rows),
            "unused": list(self.unused), "warnings": self.warnings(),
            "provenance": {name: version(name) for name in ("allocator", "jax")},
        }  # fmt: skip
        return finite(values)

    def warnings(self) -> list[dict[str, Any]]:
        """What to know before the errors are read."""
        if not self.beating:
            return []
        n, verb = len(self.beating), "row beats" if len(self.beating) == 1 else "rows beat"
        return [{"code": "beats_bound", "path": "rows", "value": n,
                 "message": f"{n} {verb} the bound that nothing can beat: chips, concurrency or lengths are not what "
                            "is written; see `beats`"}]  # fmt: skip


def counted(n: int, noun: str) -> str:
    """So many of a noun."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def check(table: "str | Path | pd.DataFrame", *, calibration: Calibration = SERVING) -> Check:
    """Predict and bound each measured time per output token.

    `table` is a data frame, a CSV file or a shipped table's name, with columns as in `serving_measurements`; `id` and
    `source_kind` may be missing.

    The prediction is `serving.expected_step_s` at the context input + output/2 and the batch that the concurrency asks
    for and memory allows, with batch/output prompts a step where the same chips read them. How a row's model was cut is
    not on record: the layout is the one that `allocator roofline` chooses. The bound has no layout and no network, no
    fixed time, full efficiency, no prefill, an 8-bit cache, no reading of the input embedding, and only those sequences
    that are decoded while others wait for their first token.
    Raises `CatalogError` where a column is missing or a cell is no positive number.
    """
    require_float64()
    frame, source = _read(table)
    usable, unused = _sort_out(frame)
    if not usable:
        return Check((), tuple(unused), source)
    records = [row for row, *_ in usable]
    told = {name: np.asarray(value) for name, value in _times(*_arrays(usable), calibration).items()}
    rows = []
    for i, (row, drawn, chip, names) in enumerate(usable):
        if not told["held"][i]:
            unused.append({"id": row["id"], "why": _too_large(row, drawn, chip)})
            continue
        predicted, bound = 1e3 * float(told["predicted"][i]), 1e3 * float(told["bound"][i])
        measured = row["tpot_ms"]
        rows.append({
            "id": row["id"], "family": row["source_kind"], "hardware": names[0], "model": names[1],
            "precision": row["precision"], "mode": row["mode"], "chips": row["chips"],
            "concurrency": row["concurrency"], "batch": float(told["batch"][i]),
            "context": row["input_len"] + row["output_len"] / 2,
            "tensor": float(told["tensor"][i]), "expert": float(told["expert"][i]),
            "predicted_tpot_ms": predicted, "measured_tpot_ms": measured, "error": predicted / measured - 1,
            "ideal_tpot_ms": bound, "ideal_over_measured": bound / measured,
            "beats": _why(records[i], float(told["fits"][i])) if measured < bound else "",
        })  # fmt: skip
    return Check(tuple(rows), tuple(unused), source)


def predictor(table: "str | Path | pd.DataFrame") -> tuple[list[dict[str, Any]], Callable[[Calibration], np.ndarray]]:
    """Rows that can be predicted, and their predicted seconds per output token as a function of the constants.

    The function compiles once, however often its constants change: it is what a fit wants.
    """
    rows = list(check(table).rows)
    kept = {row["id"] for row in rows}
    usable = [row for row in _sort_out(_read(table)[0])[0] if row[0]["id"] in kept]
    arrays = _arrays(usable)

    def predicted(calibration: Calibration) -> np.ndarray:
        traced = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), calibration)
        return np.asarray(_times(*arrays, traced)["predicted"])

    return rows, predicted


def _arrays(usable: Sequence[tuple[Any, ...]]) -> tuple[Shape, Accelerator, Layout, dict[str, jax.Array]]:
    """Shapes, chips, layouts to choose from, and figures of the rows, a row an element."""
    records = [row for row, *_ in usable]
    chips = [chip for _, _, chip, _ in usable]
    weight = jnp.asarray([WEIGHT_BYTES[row["precision"]] for row in records])
    own = {name: jnp.asarray([row[name] for row in records], float) for name in (*NUMBERS, "ttft_ms", "chips")}
    busy = own["output_len"] * own["tpot_ms"]
    own["decoding"] = busy / (jnp.nan_to_num(own["ttft_ms"]) + busy)  # of a sequence's life
    own["aggregated"] = jnp.asarray([row["mode"] == "agg" for row in records], float)
    own["weight"], own["kv"] = weight, jnp.maximum(weight, LEAST_KV_BYTES)
    known: dict[tuple[Any, ...], list[Layout]] = {}
    for row, drawn, chip, names in usable:
        if (key := (*names, row["chips"])) not in known:
            known[key] = degrees.layouts(drawn, chip, row["chips"])
    longest = max(map(len, known.values()))
    stacked = {key: degrees.stack(choices, longest) for key, choices in known.items()}
    choices = [stacked[(*names, row["chips"])] for row, _, _, names in usable]
    return _stack([drawn for _, drawn, _, _ in usable]), _stack(chips), _stack(choices), own


@eqx.filter_jit
def _times(shapes: Shape, chips: Accelerator, layouts: Layout, own, calibration: Calibration):
    return jax.vmap(lambda shape, chip, layout, row: _row(shape, chip, layout, row, calibration))(
        shapes, chips, layouts, own
    )


def _row(shape: Shape, chip: Accelerator, choices: Layout, own, calibration: Calibration):
    context = own["input_len"] + own["output_len"] / 2

    def operation(batch, cache):
        blank = Operation(chip, 1.0, 1.0, 1.0, 1.0, 1.0)
        values = (own["chips"], batch, context, own["weight"], cache)
        fields = ("chips", "batch", "context", "bytes_per_weight", "bytes_per_kv_element")
        return eqx.tree_at(lambda op: tuple(getattr(op, name) for name in fields), blank, values)

    layout, held = degrees.best(shape, operation(own["concurrency"], own["kv"]), choices)
    batch = jnp.maximum(held, 1.0)
    prompts = own["aggregated"] * batch / own["output_len"]
    predicted = expected_step_s(shape, operation(batch, own["kv"]), layout, prompt=own["input_len"],
                                prompts_per_step=prompts, calibration=calibration)  # fmt: skip
    fits = jnp.maximum(fitting_batch(shape, operation(1.0, LEAST_KV_BYTES)), 1.0)
    least = jnp.maximum(jnp.minimum(own["concurrency"] * own["decoding"], fits), 1.0)
    # A look-up reads a few rows of the input embedding, not all of it.
    light = eqx.tree_at(lambda s: s.n_shared, shape, shape.n_shared - (shape.n_active - shape.n_compute))
    bound = decode_step(light, operation(least, LEAST_KV_BYTES)).step_s
    return {"predicted": predicted, "bound": bound, "batch": batch, "held": held, "fits": fits, "tensor": layout.tensor,
            "expert": layout.expert}  # fmt: skip


def _sort_out(frame: "pd.DataFrame") -> tuple[list[tuple[Any, ...]], list[dict[str, str]]]:
    """Rows that can be predicted, each with its shape, chip and their names; and the others, each with the reason."""
    usable, unused = [], []
    known: dict[tuple[str, str, str], tuple[Shape, Accelerator, tuple[str, str]] | str] = {}
    longest: dict[str, float] = {}
    for row in _rows(frame):
        kind = (row["hardware"], row["model"], row["precision"])
        if (why := _lacks(row)) is None:
            if kind not in known:
                known[kind] = _drawn(*kind)
            found = known[kind]
            if isinstance(found, str):
                why = found
            else:
                name = found[-1][1]
                if name not in longest:
                    longest[name] = _number_or(catalog.find("models", name).fields.get("max_context_tokens"), math.inf)
                length = row["input_len"] + row["output_len"]
                if length > longest[name]:
                    why = f"input and output: got {length:,.0f} tokens; {name} takes at most {longest[name]:,.0f}"
                else:
                    usable.append((row, *found))
        if why is not None:
            unused.append({"id": row["id"], "why": why})
    return usable, unused


def _number_or(value: Any, default: float) -> float:
    return value if isinstance(value, float) else default


def _rows(frame: "pd.DataFrame"):
    """Rows as plain values; raises at the first cell that is no positive number."""
    import pandas as pd

    texts = (*OPTIONAL_TEXTS, *TEXTS)
    columns = [name for name in (*texts, *NUMBERS, *OPTIONAL) if name in frame.columns]
    for number, cells in enumerate(zip(*(frame[name].tolist() for name in columns), strict=True), 1):
        row: dict[str, Any] = {**dict.fromkeys(OPTIONAL_TEXTS, ""), **dict.fromkeys(OPTIONAL, math.nan)}
        for name, cell in zip(columns, cells, strict=True):
            text = "" if pd.isna(cell) is True else str(cell).strip()
            row[name] = text if name in texts else _number(text, f"row {number}{_named(row)}: {name}")
        row["id"], row["source_kind"] = row["id"] or f"row {number}", row["source_kind"] or "not stated"
        row["precision"], row["mode"] = row["precision"].lower(), row["mode"].lower()
        begins = (mode for mode in MODES[1:] if row["mode"].startswith(mode))
        row["mode"] = next(begins, row["mode"])
        row["chips"] = row["n_decode_chips"] if row["mode"] == "disagg" else row["n_chips"]
        yield row


def _named(row: dict[str, Any]) -> str:
    return f" ({row['id']})" if row["id"] else ""


def _number(text: str, where: str) -> float:
    if not text:
        return math.nan
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not (math.isfinite(value) and value > 0):
        raise CatalogError(f"{where}: got {text!r}; must be a number > 0, or blank where it is not known")
    return value


def _lacks(row: dict[str, Any]) -> str | None:
    if row["mode"] == "prefill":
        return "prefill alone has no time per output token"
    if row["mode"] not in MODES:
        return (
            f"mode: got {row['mode']!r}; must be agg (one set of chips reads prompts and decodes) or begin with disagg"
        )
    for name, words in _LACKING.items():
        value = row["chips"] if name == "n_chips" else row[name]
        if math.isnan(value):
            part = "number of decode chips" if name == "n_chips" and row["mode"] == "disagg" else words
            return f"{part} not stated"
    if not row["precision"]:
        return "precision not stated"
    for name, words in (("chips", "chips"), ("concurrency", "concurrency")):
        if row[name] != int(row[name]):
            return f"{words}: got {row[name]:g}; must be a whole number"
    return None


def _drawn(hardware: str, model: str, precision: str) -> tuple[Shape, Accelerator, tuple[str, str]] | str:
    try:
        chip, record = _find("hardware", hardware), _find("models", model)
        if precision not in WEIGHT_BYTES:
            return f"precision {precision!r} is none of {', '.join(WEIGHT_BYTES)}"
        built = accelerator(chip, multiplied_in(chip, precision))
        return shape(record), built, (chip.name, record.name)
    except CatalogError as error:
        return str(error)


def _find(kind: str, name: str) -> Record:
    """By name or alias, or by the name in words."""
    for record in catalog.entries(kind):
        if str(record.fields.get("name", "")).lower() == name.lower():
            return record
    return catalog.find(kind, name)


def _too_large(row: dict[str, Any], drawn: Shape, chip: Accelerator) -> str:
    """What to say where not one sequence fits however the chips are cut."""
    size, usable = WEIGHT_BYTES[row["precision"]], row["chips"] * chip.hbm_bytes * USABLE_MEMORY
    weights = float(drawn.total_bytes(size))
    what = "weights" if weights > usable else "weights and one sequence's cache"
    return (f"memory of {counted(int(row['chips']), 'chip')} does not hold the {what} in any layout: "
            f"{weights / 1e9:,.0f} GB of weights in {row['precision']}, {usable / 1e9:,.0f} GB usable")  # fmt: skip


def _why(row: dict[str, Any], fits: float) -> str:
    if row["concurrency"] > fits:
        return (f"memory of {row['chips']:g} chips holds {fits:,.0f} of the {row['concurrency']:g} sequences at once: "
                "chips, concurrency or lengths are of something else")  # fmt: skip
    return ("the weights and cache that this many sequences take cannot be read in that time: fewer were decoded at "
            "once, or on more chips, than is written")  # fmt: skip


def _read(table: "str | Path | pd.DataFrame") -> tuple["pd.DataFrame", str]:
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        frame, source = table, "data frame"
    else:
        path, source = _path(str(table)), str(table)
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                lines = [cells for cells in csv.reader(file, strict=True) if cells]
            if not lines:
                raise ValueError("it is empty")
        except (ValueError, OSError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
            first = str(getattr(error, "strerror", None) or error).strip().splitlines()[0]
            raise CatalogError(f"{source}: is not a CSV table in UTF-8: {first}") from None
        header, *lines = lines
        _columns(source, header)
        for number, cells in enumerate(lines, 1):
            if len(cells) != len(header):
                raise CatalogError(f"{source}: row {number}: got {len(cells)} cells; must be {len(header)}, as many as "
                                   "there are column names")  # fmt: skip
        return _checked(pd.DataFrame(lines, columns=header, dtype=object), source), source
    _columns(source, list(frame.columns))
    return _checked(frame, source), source


def _columns(source: str, names: Sequence[Any]) -> None:
    """Raise where a column is missing or two have one name."""
    missing = [name for name in (*TEXTS, *NUMBERS) if name not in names]
    if missing:
        raise CatalogError(f"{source}: column{'' if len(missing) == 1 else 's'} {', '.join(missing)} missing; "
                           "see: allocator catalog data serving_measurements")  # fmt: skip
    twice = [name for name in dict.fromkeys(names) if name != "" and list(names).count(name) > 1]
    if twice:
        raise CatalogError(f"{source}: {', '.join(map(str, twice))}: more than one column has this name")


def _checked(frame: "pd.DataFrame", source: str) -> "pd.DataFrame":
    """The frame, if all of its cells can be read."""
    try:
        list(_rows(frame))
    except CatalogError as error:
        raise CatalogError(f"{source}: {error}") from None
    return frame


def _path(name: str) -> Path:
    if os.path.isfile(name):
        return Path(name)
    if os.path.isdir(name):
        raise CatalogError(f"{name}: is a folder, must be a CSV file")
    if "/" in name or name.endswith(".csv"):
        raise CatalogError(f"{name}: no such file")
    return catalog.table_path(name)


def _stack(modules: Sequence[Any]) -> Any:
    """Many modules as one whose numbers are arrays; None (no other attention in prompts) becomes what it stands for."""
    where = {key: i for i, key in enumerate(dict.fromkeys(id(one) for one in modules))}
    filled = [
        eqx.tree_at(lambda m: m.attention_flop_prompt, one, one.attention_flop, is_leaf=lambda leaf: leaf is None)
        if isinstance(one, Shape) and one.attention_flop_prompt is None
        else one
        for one in {id(one): one for one in modules}.values()
    ]
    take = np.asarray([where[id(one)] for one in modules])
    return jax.tree.map(lambda *leaves: jnp.asarray(leaves, float)[take], *filled)


def _errors(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sizes = [abs(row["error"]) for row in rows]
    return {
        "n": len(rows),
        "median_abs_error": _quantile(sizes, 0.5),
        "p90_abs_error": _quantile(sizes, 0.9),
        "median_error": _quantile([row["error"] for row in rows], 0.5),
        "median_ideal_over_measured": _quantile([row["ideal_over_measured"] for row in rows], 0.5),
    }


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else math.nan
