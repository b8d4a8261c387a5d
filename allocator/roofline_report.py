"""A roofline, and a check of measured rows, as text for a terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from allocator.roofline.step import StepTime
from allocator.roofline_checks import Check, counted
from allocator.rooflines import OWN, Roofline
from allocator.tables import plain_table
from allocator.units import one_line, short_count, significant

BAR = 20
MOST = 12  # reasons and rows that a terminal shows; --out and --json have all
WORDS = {"weights": "weights", "cache": "KV cache", "linear": "matrix products", "attention": "attention",
         "network": "network", "latency": "latency"}  # fmt: skip


def figures(result: Roofline) -> list[tuple[str, str, str]]:
    """What the roofline says, a line each: the figure, its value with the unit, and a remark."""
    op, band, memory = result.operation, result.band, result.memory
    step, price = result.step_time_s, op.chip.usd_per_chip_hour
    known = math.isfinite(price)
    at = f"at {price:.3g} USD per chip-hour" if known else "the chip's price is not on record: --usd-per-chip-hour"
    decode = result.decode
    rows = [
        ("time per token, bound", _ms(step), f"everything overlaps; {result.binding} binds"),
        ("  as in the scaling book", _ms(float(decode.total_s("book"))), "attention apart from the rest"),
        ("  nothing overlaps", _ms(float(decode.total_s("none"))), "the sum of all terms"),
        ("  expected", _ms(band["expected_s"]), _spread(result)),
        ("time to first token, bound", _ms(float(result.prefill.step_s)),
         f"{result.prompt:,.0f} tokens of prompt, no queue; {result.prefill.binding()} binds"),
        ("  expected", _ms(result.expected_ttft_s), "by the constants of decode; not fitted to prefills"),
        ("output tokens/s", f"{significant(op.batch / step)}",
         f"{significant(result.tokens_per_s_per_chip)} per chip, {significant(1 / step)} per user"),
        ("MFU of decode", significant(result.mfu, 2), f"2 N FLOP a token, of the dense {result.dtype} peak"),
        ("critical batch", _critical(result), _of_critical(result)),
        ("largest batch that fits", f"{result.max_batch:,}", f"at {op.context:,.0f} tokens, in this layout"),
        ("longest context that fits", short_count(result.max_context), _of_context(result)),
    ]  # fmt: skip
    if known:
        share = ", with the prompts" if result.output is not None else ""
        rows += [
            ("USD per million output", significant(result.usd_per_mtok), f"bound, {at}"),
            ("  expected", significant(result.expected_usd_per_mtok), f"in full use{share}"),
            ("USD per million prompt", significant(result.usd_per_mtok_prompt), "prefill at the bound"),
            ("  expected", significant(result.expected_usd_per_mtok_prompt), ""),
        ]
    else:
        rows.append(("USD per million tokens", "-", at))
    rows.append(("memory per chip", f"{memory['usable_bytes'] / 1e9:.1f} GB",
                 f"usable; weights {memory['weights_bytes'] / 1e9:.1f}, KV cache {memory['cache_bytes'] / 1e9:.1f}, "
                 f"free {memory['free_bytes'] / 1e9:.1f}"))  # fmt: skip
    return rows


def _spread(result: Roofline) -> str:
    band = result.band
    where = "prompts on other chips" if result.output is None else "prompts on the same chips"
    foreign = any(warning["code"] == "outside_calibration" for warning in result.warnings)
    rows = "8 of 10 rows it was fitted to, of others" if foreign else "8 of 10 rows it was fitted to"
    return f"{_ms(band['low_s'])} to {_ms(band['high_s'])}: {rows}; {where}"


def _critical(result: Roofline) -> str:
    critical = result.critical_batch
    return "none" if math.isinf(critical) else f"{critical:,.0f}"


def _of_critical(result: Roofline) -> str:
    if math.isinf(result.critical_batch):
        return "at this context and layout memory takes longer at every batch"
    return ("arithmetic takes longer than memory at every batch" if result.critical_batch <= 1 else
            "above it arithmetic takes longer than memory")  # fmt: skip


def print_roofline(result: Roofline, console: Console) -> None:
    """Print a roofline that a person reads at a glance."""
    console.print(Text(title(result), style="bold"))
    console.print(Text(about(result)))
    table = plain_table("decode step", "ms", "of the step", "", "")
    for column in table.columns[3:]:
        column.justify = "left"
    for row in result.rows():
        if row["phase"] != "decode" or (row["part"] == "latency" and not row["seconds"]):
            continue
        share = float(row["share_of_step"])
        bar = "█" * round(BAR * min(share, 1.0))
        table.add_row(WORDS[row["part"]], significant(1e3 * row["seconds"]), f"{100 * share:.1f} %", bar.ljust(BAR),
                      _mark(row))  # fmt: skip
    _print(console, table, (1, 0, 0, 2))
    for name in ("memory", "compute", "network"):
        _print(console, Text(_distance(name, result.decode)), (0, 0, 0, 2))
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(no_wrap=True)
    lines.add_column(justify="right", no_wrap=True)
    lines.add_column()
    for name, value, remark in figures(result):
        lines.add_row(Text(name), value, Text(remark))
    _print(console, lines, (1, 0, 0, 2))
    if result.warnings:
        console.print(Text("\nWarnings", style="bold"))
        for warning in result.warnings:
            _print(console, Text(f"{warning['code']}: {warning['path']}: {warning['message']}"), (0, 0, 0, 2))


def print_check(checked: Check, console: Console) -> None:
    """Print how far the calibrated roofline is from measured rows."""
    console.print(Text(f"{counted(len(checked.rows), 'measured row')} against the roofline", style="bold"))
    if checked.rows:
        table = plain_table(*_ERROR_HEADS)
        for cells in _error_rows(checked):
            table.add_row(Text(cells[0]), *cells[1:])
        _print(console, table, (1, 0, 0, 2))
        _print(console, Text("\nMeasured over predicted"), (0, 0, 0, 2))
        for mode in checked.modes:
            spread = checked.measured_over_predicted(mode)
            told = f"{spread['p10']:.2f} (10%), {spread['p50']:.2f} (median), {spread['p90']:.2f} (90%)"
            _print(console, Text(f"{mode}: {told}"), (0, 0, 0, 2))
    if checked.beating:
        console.print(Text("\nFaster than the bound, so not what they say", style="bold"))
        for row in checked.beating[:MOST]:
            said = (f"{one_line(row['id'])}: {row['measured_tpot_ms']:.3g} ms against {row['ideal_tpot_ms']:.3g} ms: "
                    f"{row['beats']}")  # fmt: skip
            _print(console, Text(said), (0, 0, 0, 2))
        if len(checked.beating) > MOST:
            _print(console, Text(f"and {len(checked.beating) - MOST} more: --json"), (0, 0, 0, 2))
    if checked.unused:
        console.print(Text(f"\nNot used: {counted(len(checked.unused), 'row')}", style="bold"))
        for why, n in reasons(checked)[:MOST]:
            _print(console, Text(f"{n:,}: {one_line(why)}"), (0, 0, 0, 2))


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


_ERROR_HEADS = ("rows of", "n", "median error", "90% of errors below", "bias", "bound / measured")


def _error_rows(checked: Check) -> Iterable[Sequence[str]]:
    for row in checked.summary():
        told = [row["median_abs_error"], row["p90_abs_error"]]
        bias = round(row["median_error"], 2) + 0.0  # no -0%
        yield (row["name"], f"{row['n']:,}", *(f"{value:.0%}" for value in told), f"{bias:+.0%}",
               f"{row['median_ideal_over_measured']:.2f}")  # fmt: skip


def title(result: Roofline) -> str:
    """Model, chips and dtypes."""
    op = result.operation
    told = [f"{name} {value}" for name, value in (("weights", result.weight_dtype), ("cache", result.kv_dtype))
            if value != result.dtype]  # fmt: skip
    model, hardware = ("own model" if result.model == OWN else result.model,
                       "own chip" if result.hardware == OWN else result.hardware)  # fmt: skip
    return ", ".join([f"{model} on {op.chips:,.0f} x {hardware}, {result.dtype}", *told])


def subtitle(result: Roofline) -> str:
    """The title with what a chart needs: context and layout."""
    return f"{title(result)}; context {result.operation.context:,.0f}, {_layout(result)}"


def _layout(result: Roofline) -> str:
    layout = result.layout
    cuts = {"tensor": layout.tensor, "expert": layout.expert, "pipeline": layout.pipeline}
    told = [f"{name} {degree:g}" for name, degree in cuts.items() if degree > 1]
    groups = layout.data(result.operation.chips)
    told += [f"data {groups:g}"] if groups > 1 else []
    return f"cut by {', '.join(told)}" if told else "not cut"


def about(result: Roofline) -> str:
    """Batch, lengths and layout."""
    op = result.operation
    output = "" if result.output is None else f", output {result.output:,.0f}"
    cast = ""
    if result.weight_dtype != result.dtype:
        cast = f"; weights are read in {result.weight_dtype} and multiplied in {result.dtype}"
    return (f"batch {op.batch:,.0f}, context {op.context:,.0f}, prompt {result.prompt:,.0f}{output}; "
            f"{_layout(result)}{cast}")  # fmt: skip


def verdict(result: Roofline) -> str:
    """The answer in a sentence."""
    band = result.band
    return (f"{result.binding.capitalize()} binds decode: {_ms(result.step_time_s)} a token at the bound, "
            f"{_ms(band['expected_s'])} expected ({_ms(band['low_s'])} to {_ms(band['high_s'])}).")  # fmt: skip


def _print(console: Console, shown: Table | Text, padding: tuple[int, int, int, int]) -> None:
    """Print what is indented; where it is piped, without the blanks that fill its last column."""
    if console.is_terminal:
        console.print(Padding(shown, padding))
        return
    with console.capture() as caught:
        console.print(Padding(shown, padding))
    console.print(Text("\n".join(line.rstrip() for line in caught.get().rstrip("\n").split("\n"))), soft_wrap=True)


def _mark(row: Mapping[str, Any]) -> str:
    return f"{row['term']}, binds" if row["binds"] else str(row["term"])


def _distance(name: str, step: StepTime) -> str:
    seconds, whole = float(getattr(step, f"{name}_s")), float(step.step_s)
    if step.binding() == name:
        return f"{name}: {_ms(seconds)}, binds"
    if seconds == 0:
        return f"{name}: 0"
    return f"{name}: {_ms(seconds)}, could take {significant(whole / seconds)} x as long before it binds"


def _of_context(result: Roofline) -> str:
    if result.max_context_limit == "model":
        return "tokens, the model's own limit; memory has room for more"
    return f"tokens, at batch {result.operation.batch:,.0f}"


def _ms(seconds: float) -> str:
    return f"{significant(1e3 * seconds)} ms"
