"""Measured serving against the roofline: time per output token, row by row."""

import math
import os
from collections.abc import Sequence
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
from allocator.roofline.accelerator import Accelerator, accelerator
from allocator.roofline.calibration import SERVING, Calibration
from allocator.roofline.memory import cache_bytes_per_chip, weight_bytes_per_chip
from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_step
from allocator.roofline.shape import WEIGHT_BYTES, Shape, shape
from allocator.roofline.step import StepTime, decode_step

if TYPE_CHECKING:
    import pandas as pd

TEXTS = ("id", "source_kind", "hardware", "model", "precision", "mode")
NUMBERS = ("n_chips", "concurrency", "input_len", "output_len", "tpot_ms")
OPTIONAL = ("n_decode_chips", "ttft_ms")
SMALLEST_KV = 1.0  # bytes; the cache's dtype is not on record, and serving engines go down to 8 bits
USABLE_MEMORY = 0.9  # of HBM
WIDER = {"fp4": "fp8"}  # 4-bit weights on a chip without 4-bit arithmetic are multiplied at the next wider type
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
        """Errors over all, by family of measurements and by model."""
        groups = [("all", "all", list(self.rows))]
        for kind in ("family", "model"):
            names = sorted({row[kind] for row in self.rows})
            groups += [(kind, name, [row for row in self.rows if row[kind] == name]) for name in names]
        return [{"by": kind, "name": name} | _errors(rows) for kind, name, rows in groups]

    def measured_over_predicted(self) -> dict[str, float]:
        """Quantiles of measured over predicted time over all rows: the band of the calibration."""
        ratios = [row["measured_tpot_ms"] / row["predicted_tpot_ms"] for row in self.rows]
        return {f"p{100 * q:.0f}": _quantile(ratios, q) for q in (0.1, 0.5, 0.9)}

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
            "measured_over_predicted": self.measured_over_predicted(), "rows": list(self.rows),
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


def check(table: "str | Path | pd.DataFrame", *, calibration: Calibration = SERVING) -> Check:
    r"""Predict and bound each measured time per output token.

    `table` is a data frame, a CSV file or a shipped table's name, with columns as in `serving_measurements`.

    $$TPOT = t_0 \cdot \text{layers} + \max(t_{mem}/e_m,\ t_{comp}/e_c) + t_{prefill}/e_c$$

    at the context input + output/2 and the batch that the concurrency asks for and memory allows; the prefill share is
    that of batch/output prompts a step, and 0 where other chips prefill. The bound has no fixed time, full efficiency,
    no prefill, an 8-bit cache, no reading of the input embedding, and only those sequences that are decoded while
    others wait for their first token.
    Raises `CatalogError` where a column is missing or a cell is no positive number.
    """
    require_float64()
    frame, source = _read(table)
    usable, unused = _sort_out(frame)
    if not usable:
        return Check((), tuple(unused), source)
    records = [row for row, *_ in usable]
    shapes, chips = [drawn for _, drawn, _, _ in usable], [chip for *_, chip, _ in usable]
    weight = jnp.asarray([WEIGHT_BYTES[row["precision"]] for row in records])
    kv = jnp.maximum(weight, SMALLEST_KV)
    own = {name: jnp.asarray([row[name] for row in records], float) for name in (*NUMBERS, "ttft_ms", "chips")}
    stacked, chip = _stack(shapes), _stack(chips)
    busy = own["output_len"] * own["tpot_ms"]
    decoding = busy / (jnp.nan_to_num(own["ttft_ms"]) + busy)  # of a sequence's life
    aggregated = jnp.asarray([row["mode"] == "agg" for row in records], float)
    out = _times(stacked, chip, own, weight, kv, decoding, aggregated, calibration)
    told = {name: np.asarray(value) for name, value in out.items()}
    rows = []
    for i, (row, _, _, names) in enumerate(usable):
        predicted, bound = 1e3 * float(told["predicted"][i]), 1e3 * float(told["bound"][i])
        measured = row["tpot_ms"]
        rows.append({
            "id": row["id"], "family": row["source_kind"], "hardware": names[0], "model": names[1],
            "precision": row["precision"], "mode": row["mode"], "chips": row["chips"],
            "concurrency": row["concurrency"], "batch": float(told["batch"][i]),
            "context": row["input_len"] + row["output_len"] / 2,
            "predicted_tpot_ms": predicted, "measured_tpot_ms": measured, "error": predicted / measured - 1,
            "ideal_tpot_ms": bound, "ideal_over_measured": bound / measured,
            "beats": _why(row, float(told["fits"][i])) if measured < bound else "",
        })  # fmt: skip
    return Check(tuple(rows), tuple(unused), source)


@eqx.filter_jit
def _times(shapes: Shape, chips: Accelerator, own, weight, kv, decoding, aggregated, calibration: Calibration):
    def one(shape, chip, own, weight, kv, decoding, aggregated):
        context = own["input_len"] + own["output_len"] / 2

        def operation(batch, length, cache):
            blank = Operation(chip, 1.0, 1.0, 1.0, 1.0, 1.0, usable_memory=USABLE_MEMORY)
            values = (own["chips"], batch, length, weight, cache)
            fields = ("chips", "batch", "context", "bytes_per_weight", "bytes_per_kv_element")
            return eqx.tree_at(lambda op: tuple(getattr(op, name) for name in fields), blank, values)

        def fitting(cache):
            op = operation(1.0, context, cache)
            room = chip.hbm_bytes * USABLE_MEMORY - weight_bytes_per_chip(shape, op)
            return jnp.maximum(jnp.floor(room / cache_bytes_per_chip(shape, op)), 1.0)

        fits = fitting(kv)
        batch = jnp.minimum(own["concurrency"], fits)
        prompts = batch / own["output_len"]
        prefill: StepTime = prefill_step(shape, operation(prompts, own["input_len"], kv))
        step = decode_step(shape, operation(batch, context, kv))
        predicted = calibration.step_s(step, shape.dimensions.layers, prefill.compute_s * aggregated)
        fits_least = fitting(SMALLEST_KV)
        least = jnp.maximum(jnp.minimum(own["concurrency"] * decoding, fits_least), 1.0)
        # A look-up reads a few rows of the input embedding, not all of it.
        light = eqx.tree_at(lambda s: s.n_shared, shape, shape.n_shared - (shape.n_active - shape.n_compute))
        bound = decode_step(light, operation(least, context, SMALLEST_KV)).step_s
        return {"predicted": predicted, "bound": bound, "batch": batch, "fits": fits_least}

    return jax.vmap(one)(shapes, chips, own, weight, kv, decoding, aggregated)


def _sort_out(frame: "pd.DataFrame") -> tuple[list[tuple[Any, ...]], list[dict[str, str]]]:
    """Rows that can be predicted, each with its shape, chip and their names; and the others, each with the reason."""
    usable, unused = [], []
    known: dict[tuple[str, str, str], tuple[Shape, Accelerator, tuple[str, str]] | str] = {}
    for row in _rows(frame):
        kind = (row["hardware"], row["model"], row["precision"])
        if (why := _lacks(row)) is None:
            if kind not in known:
                known[kind] = _drawn(*kind)
            found = known[kind]
            if isinstance(found, str):
                why = found
            else:
                usable.append((row, *found))
        if why is not None:
            unused.append({"id": row["id"], "why": why})
    return usable, unused


def _rows(frame: "pd.DataFrame"):
    """Rows as plain values; raises at the first cell that is no positive number."""
    columns = [name for name in (*TEXTS, *NUMBERS, *OPTIONAL) if name in frame.columns]
    for number, cells in enumerate(zip(*(frame[name].tolist() for name in columns), strict=True), 1):
        row: dict[str, Any] = dict.fromkeys(OPTIONAL, math.nan)
        for name, cell in zip(columns, cells, strict=True):
            text = "" if cell is None or cell != cell else str(cell).strip()
            row[name] = text if name in TEXTS else _number(text, f"row {number} ({row.get('id', '')}): {name}")
        row["id"] = row["id"] or f"row {number}"
        row["precision"], row["mode"] = row["precision"].lower(), row["mode"].lower()
        row["chips"] = row["n_decode_chips"] if row["mode"].startswith("disagg") else row["n_chips"]
        row["mode"] = "disagg" if row["mode"].startswith("disagg") else row["mode"]
        yield row


def _number(text: str, where: str) -> float:
    if not text:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise CatalogError(f"{where}: got {text!r}; must be a number > 0, or blank where it is not known")
    return value


def _lacks(row: dict[str, Any]) -> str | None:
    if row["mode"].startswith("prefill"):
        return "prefill alone has no time per output token"
    for name, words in _LACKING.items():
        value = row["chips"] if name == "n_chips" else row[name]
        if math.isnan(value):
            part = "number of decode chips" if name == "n_chips" and row["mode"] == "disagg" else words
            return f"{part} not stated"
    if not row["precision"]:
        return "precision not stated"
    return None


def _drawn(hardware: str, model: str, precision: str) -> tuple[Shape, Accelerator, tuple[str, str]] | str:
    try:
        chip, record = _find("hardware", hardware), _find("models", model)
        if precision not in WEIGHT_BYTES:
            return f"precision {precision!r} is none of {', '.join(WEIGHT_BYTES)}"
        try:
            built = accelerator(chip, precision)
        except CatalogError:
            if precision not in WIDER:
                raise
            built = accelerator(chip, WIDER[precision])
        return shape(record), built, (chip.name, record.name)
    except CatalogError as error:
        return str(error)


def _find(kind: str, name: str) -> Record:
    """By name or alias, or by the name in words."""
    for record in catalog.entries(kind):
        if str(record.fields.get("name", "")).lower() == name.lower():
            return record
    return catalog.find(kind, name)


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
            frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        except (ValueError, OSError, pd.errors.ParserError) as error:  # UnicodeDecodeError is a ValueError
            first = str(getattr(error, "strerror", None) or error).strip().splitlines()[0]
            raise CatalogError(f"{source}: is not a CSV table in UTF-8: {first}") from None
    missing = [name for name in (*TEXTS, *NUMBERS) if name not in frame.columns]
    if missing:
        raise CatalogError(f"{source}: column{'' if len(missing) == 1 else 's'} {', '.join(missing)} missing; "
                           "see: allocator catalog data serving_measurements")  # fmt: skip
    try:
        list(_rows(frame))
    except CatalogError as error:
        raise CatalogError(f"{source}: {error}") from None
    return frame, source


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
    filled = [
        eqx.tree_at(lambda m: m.attention_flop_prompt, one, one.attention_flop, is_leaf=lambda leaf: leaf is None)
        if isinstance(one, Shape) and one.attention_flop_prompt is None
        else one
        for one in {id(one): one for one in modules}.values()
    ]
    where = {key: i for i, key in enumerate(dict.fromkeys(id(one) for one in modules))}
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
