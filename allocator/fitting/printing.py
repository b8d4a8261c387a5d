"""A fit as a table for people."""

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from allocator.units import short_count, significant

if TYPE_CHECKING:
    from allocator.fitting.choices import Choices
    from allocator.fitting.result import Fit


def summary(fit: "Fit") -> str:
    """What `print(fit)` shows."""
    console = Console(file=io.StringIO(), width=110, highlight=False, markup=False)
    print_fit(fit, console)
    return console.file.getvalue().rstrip()  # pyright: ignore[reportAttributeAccessIssue]


def print_fit(fit: "Fit", console: Console) -> None:
    """Estimates with intervals, the optimum they imply, how sure the search is, and what is doubtful."""
    console.print(fit.form.equation)
    console.print(f"{len(fit.runs)} runs, {fit.loss}: objective {fit.objective:.7g} ({fit.reduction})")
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("parameter", "value", "std. error", "95% interval", "unit"):
        table.add_column(heading, justify="left" if heading in ("parameter", "unit") else "right", no_wrap=True)
    for row in fit.to_frame().to_dict("records"):
        if row["given"]:
            cells = ["given", ""]
        elif len(fit.draws) > 1:
            cells = [significant(row["stderr"], 2), f"{significant(row['low_95'])} to {significant(row['high_95'])}"]
        else:
            cells = ["", ""]
        table.add_row(row["parameter"], significant(row["value"], 5), *cells, row["unit"])
    console.print(table)
    console.print()
    optimum = fit.optimum_dict()
    if optimum is not None:
        low, high = optimum["interval"]
        span = "" if low is None else f" (95%: {significant(low)} to {significant(high)})"
        console.print(
            f"At {fit.at_flop:.3g} FLOP: N* = {short_count(optimum['n_active'])}, D* = "
            f"{short_count(optimum['d_pretrain'])}, D*/N* = {significant(optimum['tokens_per_param'])}{span}"
        )
    found = fit.search
    console.print(
        f"{found.share_at_best:.0%} of {found.starts} starts came to this minimum; gradient {found.gradient:.0e}; "
        f"condition number {fit.condition_number:.0f}; {fit.resampling.draws} refits ({fit.resampling.method})"
    )
    if fit.notes:
        console.print("\nNotes")
    for note in fit.notes:
        console.print(f"  {note.code}: {note.message}", soft_wrap=False)


def choices_text(choices: "Choices") -> str:
    """A row a choice."""
    console = Console(file=io.StringIO(), width=130, highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    optimum = "n_active_optimal" in choices.rows[0]
    names = [name for name in choices.rows[0] if name not in ("rule", "loss", "runs", "objective", "n_active_optimal",
                                                              "tokens_per_param_optimal")]  # fmt: skip
    for heading in ("runs left out", "loss", "runs", *(("N*", "D*/N*") if optimum else ()), *names):
        table.add_column(heading, justify="left" if heading in ("runs left out", "loss") else "right")
    for row in choices.rows:
        best = (short_count(row["n_active_optimal"]), significant(row["tokens_per_param_optimal"])) if optimum else ()
        table.add_row(row["rule"], row["loss"], str(row["runs"]), *best, *(significant(row[name], 4) for name in names))
    console.print(table)
    if optimum:
        console.print(f"\nN* and D*/N* at {choices.at_flop:.3g} FLOP = 6 N D")
    return console.file.getvalue().rstrip()  # pyright: ignore[reportAttributeAccessIssue]
