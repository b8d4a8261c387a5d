"""A roofline as text for a terminal, and as files: tables, charts and one page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from allocator import fit_pages, roofline_charts
from allocator.charts import pictures
from allocator.roofline.calibration import SERVING
from allocator.roofline.prefill import prefill_step
from allocator.roofline.step import StepTime, decode_step
from allocator.roofline_checks import Check
from allocator.rooflines import Roofline
from allocator.units import SECONDS_PER_HOUR, one_line, short_count, significant

BAR = 20
MOST = 12  # reasons and rows that a terminal shows; --out and --json have all
_PARTS = (
    ("weights", "weights", "memory"),
    ("cache", "KV cache", "memory"),
    ("linear", "matrix products", "compute"),
    ("attention", "attention", "compute"),
    ("network", "network", "network"),
    ("latency", "latency", "fixed"),
)


def terms(result: Roofline) -> pd.DataFrame:
    """A row a part of the decode step and of the prefill: milliseconds, share of the step, whether its term binds."""
    rows = []
    for phase, step in (("decode", result.decode), ("prefill", result.prefill)):
        whole = float(step.step_s)
        for field, words, term in _PARTS:
            seconds = float(getattr(step, f"{field}_s"))
            rows.append({"phase": phase, "part": words, "term": term, "ms": 1e3 * seconds,
                         "share_of_step": seconds / whole, "binds": term == step.binding()})  # fmt: skip
    return pd.DataFrame(rows)


def figures(result: Roofline) -> list[tuple[str, str, str]]:
    """What the roofline says, a line each: the figure, its value with the unit, and a remark."""
    op, band, memory = result.operation, result.band, result.memory
    step, price = result.step_time_s, op.chip.usd_per_chip_hour
    known = math.isfinite(price)
    at = f"at {price:.3g} USD per chip-hour" if known else "the chip's price is not on record"
    decode = result.decode
    rows = [
        ("time per token, bound", _ms(step), f"everything overlaps; {result.binding} binds"),
        ("  as in the scaling book", _ms(float(decode.total_s("book"))), "cache apart from the rest"),
        ("  nothing overlaps", _ms(float(decode.total_s("none"))), "the sum of all terms"),
        ("  expected", _ms(band["expected_s"]),
         f"{_ms(band['low_s'])} to {_ms(band['high_s'])} in 8 of 10 measured runs"),
        ("time to first token", _ms(float(result.prefill.step_s)),
         f"bound, {result.prompt:,.0f} tokens of prompt, no queue; {result.prefill.binding()} binds"),
        ("output tokens/s", f"{significant(op.batch / step)}",
         f"{significant(result.tokens_per_s_per_chip)} per chip, {significant(1 / step)} per user"),
        ("MFU of decode", f"{result.mfu:.3f}", f"2 N FLOP a token, of the dense {result.dtype} peak"),
        ("critical batch", significant(result.critical_batch) if math.isfinite(result.critical_batch) else "none",
         "above it arithmetic takes longer than memory" if math.isfinite(result.critical_batch)
         else "at this context memory takes longer at every batch"),
        ("largest batch that fits", f"{result.max_batch:,}", f"at {op.context:,.0f} tokens"),
        ("longest context that fits", short_count(result.max_context), f"tokens, at batch {op.batch:,.0f}"),
        ("USD per million output", f"{significant(result.usd_per_mtok)}" if known else "-", at),
        ("USD per million prompt", f"{significant(result.usd_per_mtok_prompt)}" if known else "-",
         "prefill at the bound" if known else at),
        ("memory per chip", f"{memory['usable_bytes'] / 1e9:.1f} GB",
         f"usable; weights {memory['weights_bytes'] / 1e9:.1f}, KV cache {memory['cache_bytes'] / 1e9:.1f}, "
         f"free {memory['free_bytes'] / 1e9:.1f}"),
    ]  # fmt: skip
    return rows


def print_roofline(result: Roofline, console: Console) -> None:
    """Print a roofline that a person reads at a glance."""
    console.print(Text(_title(result), style="bold"))
    console.print(Text(_about(result)))
    table = _table("decode step", "ms", "of the step", "", "")
    shown = terms(result)
    for row in shown.to_dict("records"):
        if row["phase"] != "decode":
            continue
        share = float(row["share_of_step"])
        bar = "█" * round(BAR * min(share, 1.0))
        table.add_row(row["part"], significant(row["ms"]), f"{100 * share:.1f} %", bar.ljust(BAR), _mark(row))
    console.print(Padding(table, (1, 0, 0, 2)))
    for name in ("memory", "compute", "network"):
        console.print(Padding(Text(_distance(name, result.decode)), (0, 0, 0, 2)))
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(no_wrap=True)
    lines.add_column(justify="right", no_wrap=True)
    lines.add_column()
    for name, value, remark in figures(result):
        lines.add_row(Text(name), value, Text(remark))
    console.print(Padding(lines, (1, 0, 0, 2)))
    if result.warnings:
        console.print(Text("\nWarnings", style="bold"))
        for warning in result.warnings:
            console.print(Padding(Text(f"{warning['code']}: {warning['path']}: {warning['message']}"), (0, 0, 0, 2)))


def print_check(checked: Check, console: Console) -> None:
    """Print how far the calibrated roofline is from measured rows."""
    console.print(Text(f"{len(checked.rows):,} measured rows against the roofline", style="bold"))
    if checked.rows:
        table = _table(*_ERROR_HEADS)
        for cells in _error_rows(checked):
            table.add_row(Text(cells[0]), *cells[1:])
        console.print(Padding(table, (1, 0, 0, 2)))
        spread = checked.measured_over_predicted()
        told = f"{spread['p10']:.2f} (10%), {spread['p50']:.2f} (median), {spread['p90']:.2f} (90%)"
        console.print(Padding(Text(f"Measured over predicted: {told}."), (1, 0, 0, 2)))
    if checked.beating:
        console.print(Text("\nFaster than the bound, so not what they say", style="bold"))
        for row in checked.beating[:MOST]:
            said = (f"{one_line(row['id'])}: {row['measured_tpot_ms']:.3g} ms against {row['ideal_tpot_ms']:.3g} ms: "
                    f"{row['beats']}")  # fmt: skip
            console.print(Padding(Text(said), (0, 0, 0, 2)))
        if len(checked.beating) > MOST:
            console.print(Padding(Text(f"and {len(checked.beating) - MOST} more: --json"), (0, 0, 0, 2)))
    if checked.unused:
        console.print(Text(f"\nNot used: {len(checked.unused):,} rows", style="bold"))
        for why, n in reasons(checked)[:MOST]:
            console.print(Padding(Text(f"{n:,}: {one_line(why)}"), (0, 0, 0, 2)))


def reasons(checked: Check) -> list[tuple[str, int]]:
    """Why rows are not used, the most frequent reason first."""
    counts: dict[str, int] = {}
    for row in checked.unused:
        counts[row["why"]] = counts.get(row["why"], 0) + 1
    return sorted(counts.items(), key=lambda pair: -pair[1])


def error_table(checked: Check) -> str:
    """The errors as a Markdown table, as docs/roofline.md shows it."""
    lines = [f"| {' | '.join(_ERROR_HEADS)} |", f"| {' | '.join(['---', *['---:'] * (len(_ERROR_HEADS) - 1)])} |"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in _error_rows(checked))])


def roof_points(result: Roofline) -> pd.DataFrame:
    """Intensity and FLOP/s per chip of decode at several batches, of prefill and of training."""
    op, peak, bandwidth = result.operation, result.operation.chip.peak_flop_per_s, result.operation.chip.hbm_bytes_per_s
    rows = []

    def add(phase: str, label: str, flop: float, seconds: float, moved: float) -> None:
        rows.append({"phase": phase, "label": label, "intensity": flop / moved, "flop_per_s": flop / seconds})

    most, least = max(result.max_batch, 1), float(result.layout.data(op.chips))  # a sequence a group, at least
    asked = {*(round(least * (most / least) ** (i / 3)) for i in range(4)), int(op.batch)}
    for batch in sorted(asked):
        step = decode_step(result.shape, eqx.tree_at(lambda o: o.batch, op, float(batch)), result.layout)
        flop, moved = float(step.compute_s) * peak, float(step.memory_s) * bandwidth
        chosen = " (asked)" if batch == op.batch else " (largest)" if batch == most else ""
        add("decode, bound", f"batch {batch:,}{chosen}", flop, float(step.step_s), moved)
        expected = float(SERVING.step_s(step, result.shape.dimensions.layers))
        add("decode, expected", "", flop, expected, moved)
    for length in sorted({min(128.0, result.prompt), result.prompt}):
        step = prefill_step(result.shape, eqx.tree_at(lambda o: (o.batch, o.context), op, (1.0, length)), result.layout)
        flop, moved = float(step.compute_s) * peak, float(step.memory_s) * bandwidth
        add("prefill of one prompt", f"{length:,.0f} tokens", flop, float(step.step_s), moved)
    # Three forward passes' FLOP; weights are read twice, gradients of 4 bytes a parameter written.
    once = float(result.prefill.weights_s) * bandwidth
    flop, moved = 3 * float(result.prefill.compute_s) * peak, once * (2 + 4 / op.bytes_per_weight)
    seconds = max(flop / peak, moved / bandwidth, 3 * float(result.prefill.network_s))
    add("training, one sequence a pass", f"{result.prompt:,.0f} tokens", flop, seconds, moved)
    return pd.DataFrame(rows)


def batch_curve(result: Roofline, points: int = 121) -> pd.DataFrame:
    """Time and cost per token against batch, beyond the largest that fits; USD, or chip-seconds without a price."""
    op = result.operation
    critical = result.critical_batch if math.isfinite(result.critical_batch) else 0.0
    last = max(64.0, 2.0 * result.max_batch, 2.0 * op.batch, min(3.0 * critical, 30.0 * result.max_batch))
    batch = np.unique(np.append(np.geomspace(1.0, last, points), [result.max_batch, op.batch]))

    @jax.jit
    def curve(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(batch: jax.Array) -> tuple[jax.Array, jax.Array]:
            step: StepTime = decode_step(result.shape, eqx.tree_at(lambda o: o.batch, op, batch), result.layout)
            return step.step_s, SERVING.step_s(step, result.shape.dimensions.layers)

        return jax.vmap(one)(at)

    bound, expected = (np.asarray(part) for part in curve(jnp.asarray(batch)))
    per = _cost_rate(result)[0] * op.chips * 1e6
    return pd.DataFrame({"batch": batch, "fits": batch <= result.max_batch, "tpot_ms": 1e3 * bound,
                         "expected_ms": 1e3 * expected, "cost": per * bound / batch,
                         "expected_cost": per * expected / batch})  # fmt: skip


def charts_of(result: Roofline, tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """The charts by name, in the order of the page."""
    chip, about = result.operation.chip, _subtitle(result)
    rate, unit = _cost_rate(result)
    single = eqx.tree_at(lambda o: o.batch, result.operation, 1.0)
    alone = float(decode_step(result.shape, single, result.layout).weights_s)
    last = tables["batches"].iloc[-1]
    floor = rate * result.operation.chips * 1e6 * _floor_s(result)
    marks = {"largest that fits:": float(result.max_batch), "critical:": result.critical_batch}
    drawn = {"roofline": roofline_charts.roof(tables["roof"], chip.peak_flop_per_s, chip.hbm_bytes_per_s, about)}
    if float(last["batch"]) > 1:
        floors = {"tpot_ms": 1e3 * alone, unit: floor}
        drawn["batches"] = roofline_charts.batches(tables["batches"], marks, floors, about)
    return drawn


def files(result: Roofline) -> dict[str, str | bytes]:
    """Tables as CSV, charts as SVG and PNG, and roofline.html, which needs no network."""
    tables = {"terms": terms(result), "roof": roof_points(result), "batches": batch_curve(result)}
    drawn = charts_of(result, tables)
    out: dict[str, str | bytes] = {"roofline.html": _page(result, tables["terms"], drawn)}
    out |= {f"{name}.csv": frame.to_csv(index=False) for name, frame in tables.items()}
    return out | pictures(drawn)


def check_files(checked: Check) -> dict[str, str | bytes]:
    """Rows and errors as CSV, and the chart of measured against predicted times."""
    out: dict[str, str | bytes] = {
        "check.csv": checked.to_frame().to_csv(index=False),
        "errors.csv": pd.DataFrame(checked.summary()).to_csv(index=False),
        "unused.csv": pd.DataFrame(list(checked.unused), columns=["id", "why"]).to_csv(index=False),
    }
    if checked.rows:
        about = f"{len(checked.rows):,} rows of {checked.source}; one set of constants for all"
        out |= pictures({"check": roofline_charts.measured(checked.to_frame(), about)})
    return out


def _floor_s(result: Roofline) -> float:
    """Seconds per token of a batch without end: whichever of arithmetic and the cache is longer."""
    op = eqx.tree_at(lambda o: o.batch, result.operation, 1e12)
    step = decode_step(result.shape, op, result.layout)
    return max(float(step.compute_s), float(step.cache_s), float(step.network_s)) / 1e12


def _cost_rate(result: Roofline) -> tuple[float, str]:
    price = result.operation.chip.usd_per_chip_hour
    return (price / SECONDS_PER_HOUR, "USD") if math.isfinite(price) else (1.0, "chip-seconds")


def _page(result: Roofline, shown: pd.DataFrame, drawn: Mapping[str, Any]) -> str:
    rows = [[row["phase"], row["part"], significant(row["ms"]), f"{100 * row['share_of_step']:.1f} %",
             "binds" if row["binds"] else ""] for row in shown.to_dict("records")]  # fmt: skip
    told = [[name.strip(), value, remark] for name, value, remark in figures(result)]
    warnings = "".join(f"<li>{escape(warning['message'])}</li>" for warning in result.warnings)
    sections = [
        ("Figures", fit_pages.html_table(["figure", "value", ""], told, "stack")),
        ("Terms", fit_pages.html_table(["phase", "part", "ms", "of the step", ""], rows, "stack")),
        ("Charts", fit_pages.figures(drawn)),
        ("Warnings", f"<ul>{warnings}</ul>" if warnings else ""),
        ("What the words mean", f"<p>{escape(_LEGEND)}</p><p>Expected times: {escape(SERVING.source)}.</p>"),
    ]
    head = f'<p class="verdict good">{escape(_verdict(result))}</p>\n<p>{escape(_about(result))}</p>'
    return fit_pages.document(_title(result), head, sections, drawn)


_LEGEND = (
    "Bound: reading memory, arithmetic and exchanging data all overlap, each at its full rate. Scaling book: the "
    "KV cache is read apart, the rest overlaps. Peaks are dense; one multiply-add is 2 FLOP; the look-up in the input "
    "embedding is 0 FLOP. Prices are the catalogue's, per chip-hour, at full use."
)
_ERROR_HEADS = ("rows of", "n", "median error", "90% of errors below", "bias", "bound / measured")


def _error_rows(checked: Check) -> Iterable[Sequence[str]]:
    for row in checked.summary():
        told = [row["median_abs_error"], row["p90_abs_error"]]
        yield (row["name"], f"{row['n']:,}", *(f"{value:.0%}" for value in told), f"{row['median_error']:+.0%}",
               f"{row['median_ideal_over_measured']:.2f}")  # fmt: skip


def _title(result: Roofline) -> str:
    op = result.operation
    cache = f", cache {result.kv_dtype}" if result.kv_dtype != result.dtype else ""
    return f"{result.model} on {op.chips:,.0f} x {result.hardware}, {result.dtype}{cache}"


def _subtitle(result: Roofline) -> str:
    return f"{_title(result)}; context {result.operation.context:,.0f}, {_layout(result)}"


def _layout(result: Roofline) -> str:
    layout = result.layout
    cuts = {"tensor": layout.tensor, "expert": layout.expert, "pipeline": layout.pipeline}
    told = [f"{name} {degree:g}" for name, degree in cuts.items() if degree > 1]
    groups = layout.data(result.operation.chips)
    told += [f"data {groups:g}"] if groups > 1 else []
    return f"cut by {', '.join(told)}" if told else "not cut"


def _about(result: Roofline) -> str:
    op = result.operation
    return f"batch {op.batch:,.0f}, context {op.context:,.0f}, prompt {result.prompt:,.0f}; {_layout(result)}"


def _verdict(result: Roofline) -> str:
    band = result.band
    return (f"{result.binding.capitalize()} binds decode: {_ms(result.step_time_s)} a token at the bound, "
            f"{_ms(band['expected_s'])} expected ({_ms(band['low_s'])} to {_ms(band['high_s'])}).")  # fmt: skip


def _mark(row: Mapping[str, Any]) -> str:
    return f"{row['term']}, binds" if row["binds"] else str(row["term"])


def _distance(name: str, step: StepTime) -> str:
    seconds, whole = float(getattr(step, f"{name}_s")), float(step.step_s)
    if step.binding() == name:
        return f"{name}: {_ms(seconds)}, binds"
    if seconds == 0:
        return f"{name}: 0"
    return f"{name}: {_ms(seconds)}, could take {significant(whole / seconds)} x as long before it binds"


def _ms(seconds: float) -> str:
    return f"{significant(1e3 * seconds)} ms"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or not name else "right", no_wrap=True)
    return table
