"""A roofline, and a check of measured rows, as files: tables, charts and one page."""

from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from allocator import pages, roofline_charts, roofline_curves
from allocator.charts import pictures
from allocator.roofline.calibration import SERVING
from allocator.roofline_checks import Check, counted
from allocator.roofline_report import WORDS, about, figures, subtitle, title, verdict
from allocator.rooflines import Roofline
from allocator.units import significant


def charts_of(result: Roofline, tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """The charts by name, in the order of the page."""
    chip, told = result.operation.chip, subtitle(result)
    marks = {"largest that fits": float(result.max_batch), "critical": result.critical_batch}
    drawn = {"roofline": roofline_charts.roof(tables["roof"], chip.peak_flop_per_s, chip.hbm_bytes_per_s, told)}
    if float(tables["batches"].iloc[-1]["batch"]) > 1:
        drawn["batches"] = roofline_charts.batches(tables["batches"], marks, roofline_curves.floors(result), told)
    return drawn


def files(result: Roofline) -> dict[str, str | bytes]:
    """Tables as CSV, charts as SVG and PNG, and roofline.html, which needs no network."""
    tables = {"terms": result.to_frame(), "roof": roofline_curves.roof_points(result),
              "batches": roofline_curves.batch_curve(result)}  # fmt: skip
    drawn = charts_of(result, tables)
    out: dict[str, str | bytes] = {"roofline.html": _page(result, drawn)}
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
        told = f"{counted(len(checked.rows), 'row')} of {checked.source}; one set of constants for all"
        out |= pictures({"check": roofline_charts.measured(checked.to_frame(), told)})
    return out


def _page(result: Roofline, drawn: Mapping[str, Any]) -> str:
    rows = [
        [row["phase"], WORDS[row["part"]], significant(1e3 * row["seconds"]), f"{100 * row['share_of_step']:.1f} %",
         "binds" if row["binds"] else ""]
        for row in result.rows()
    ]  # fmt: skip
    told = [[name.strip(), value, remark] for name, value, remark in figures(result)]
    warnings = "".join(f"<li>{escape(warning['message'])}</li>" for warning in result.warnings)
    sections = [
        ("Figures", pages.html_table(["figure", "value", ""], told, "stack")),
        ("Terms", pages.html_table(["phase", "part", "ms", "of the step", ""], rows, "stack")),
        ("Charts", pages.figures(drawn)),
        ("Warnings", f"<ul>{warnings}</ul>" if warnings else ""),
        ("What the words mean", f"<p>{escape(_LEGEND)}</p><p>Expected times: {escape(SERVING.source)}.</p>"),
    ]
    head = f'<p class="verdict good">{escape(verdict(result))}</p>\n<p>{escape(about(result))}</p>'
    return pages.document(title(result), head, sections, drawn)


_LEGEND = (
    "Bound: reading memory, arithmetic and exchanging data all overlap, each at its full rate. Scaling book: "
    "attention and its cache stand apart, the rest overlaps. Peaks are dense; one multiply-add is 2 FLOP; the look-up "
    "in the input embedding is 0 FLOP. Prices are per chip-hour, at full use."
)
