"""A fit as files: one page that needs no network, tables as CSV, charts as SVG and PNG."""

import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from allocator import catalog, charts, fit_charts, fit_tables
from allocator.errors import AllocatorError
from allocator.fitting import recipes
from allocator.fitting.profiles import Profile, profiles
from allocator.fitting.provenance import provenance
from allocator.fitting.recipes import Recipe
from allocator.fitting.records import data_name
from allocator.fitting.result import Fit
from allocator.pages import document, figures, html_list, html_table
from allocator.units import short_count, significant

MOST_ROWS = 10  # of influence on the page; the CSV has all
GRAVE = ("weakly_identified", "parameter_at_bound", "starts_disagree", "not_stationary", "one_ratio_only",
         "two_sizes_only", "few_levels", "draws_failed", "implausible_unit")  # fmt: skip
ADVICE = {
    "diverged_dropped": "Check that these runs failed and are not merely unfinished.",
    "incomplete_dropped": "Fill in the missing cells, or leave them out knowingly.",
    "saturated_dropped": "Measure these points with more samples or on other problems.",
    "duplicated_runs": "Remove copies, or name a cluster column if they are repeats of one run.",
    "implausible_unit": "Multiply the column into base units (parameters, tokens, FLOP) and fit again.",
    "two_sizes_only": "Add runs of at least one more model size.",
    "few_levels": "Add runs at further values of this column.",
    "one_ratio_only": "Add runs at other tokens per parameter, a factor of 3 or more apart.",
    "parameter_at_bound": "Add runs that determine this parameter, or give its value (--fix).",
    "starts_disagree": "Raise --starts; if it stays, compare the minima before you use the law.",
    "not_stationary": "Raise --starts, or try another loss; do not use these values as they are.",
    "weakly_identified": "Plan with the draws, not with the estimates alone; add runs over a wider range, or fix an "
    "exponent (--fix).",
    "residual_trend": "Look at the residuals below; do not extrapolate along this column.",
    "draws_failed": "Treat the intervals as too narrow; add runs or fix a parameter.",
    "influential_run": "Check that run; fit with and without it (--choices compares losses and outlier rules).",
    "few_clusters": "Resample single runs, or collect more clusters: intervals from few do not hold.",
    "extrapolates": "Ask at a budget nearer to the runs (--at-flop), or say that the form is trusted.",
    "extrapolates_poorly": "Do not extrapolate far beyond the runs; the held-out error below is what to expect.",
}
_HELD_OUT = {"largest_n_active": "the largest models", "largest_tokens_per_param": "the most tokens per parameter"}
_LEVERS = {"n_active": "N", "tokens_per_param": "D/N"}


def page_files(fit: Fit, called: str, recipe: Recipe) -> dict[str, str | bytes]:
    """fit.html and what it shows, each table as CSV and each chart as SVG and PNG; the same for the same fit."""
    made = _profiles(fit)
    tables = tables_of(fit, made)
    drawn = charts_of(fit, tables, _about(fit, recipe))
    files: dict[str, str | bytes] = {"fit.html": page(fit, called, recipe, tables, drawn)}
    files |= {f"{name}.csv": frame.to_csv(index=False) for name, frame in tables.items()}
    return files | charts.pictures(drawn)


def tables_of(fit: Fit, made: Sequence[Profile]) -> dict[str, pd.DataFrame]:
    """The tables by name; those that a chart draws bear its name."""
    tables = {
        "parameters": fit_tables.parameters(fit, made),
        "runs": fit_tables.runs(fit),
        "influence": fit_tables.influence(fit),
        "holdouts": fit_tables.holdouts(fit),
    }
    if (lever := fit_tables.against_lever(fit)) is not None:
        tables |= {"data_and_law_points": lever.points, "data_and_law_lines": lever.lines}
    if made:
        tables["profiles"] = fit_tables.profile(made, fit)
    histograms = fit_tables.histograms(fit)
    return tables if histograms.empty else tables | {"bootstrap": histograms}


def charts_of(fit: Fit, tables: Mapping[str, pd.DataFrame], about: str) -> dict[str, Any]:
    """The charts by name, in the order of the page."""
    drawn: dict[str, Any] = {}
    runs = tables["runs"]
    if (lever := fit_tables.against_lever(fit)) is not None:
        drawn["data_and_law"] = fit_charts.data_and_law(
            lever.points, lever.lines, about, x_title=lever.x_title, y_title=lever.y_title,
            series_title=lever.series_title, log_x=lever.log_x, log_y=lever.log_y, remark=lever.remark,
        )  # fmt: skip
    else:
        drawn["predicted_and_observed"] = fit_charts.predicted_and_observed(
            runs, about, title=fit_tables.target_title(fit), log=fit.form.positive
        )
    drawn["residuals"] = fit_charts.residuals(
        runs, fit_tables.residual_panels(fit), about, title=fit_tables.residual_title(fit)
    )
    if "profiles" in tables and len(tables["profiles"]):
        drawn["profiles"] = fit_charts.profiles(tables["profiles"], about)
    if "bootstrap" in tables:
        drawn["bootstrap"] = fit_charts.bootstrap(tables["bootstrap"], about)
    if len(tables["influence"]):
        drawn["influence"] = fit_charts.influence(tables["influence"], about, of=fit_tables.watched(fit))
    return drawn


def verdict(fit: Fit) -> str:
    """In one sentence, what the fit is good for."""
    grave = sorted({note.code for note in fit.notes if note.code in GRAVE})
    optimum, found = fit.optimum_dict(), ""
    if optimum is not None and np.isfinite(optimum["tokens_per_param"]):
        found = (f"at {fit.at_flop:.3g} FLOP it puts N* at {short_count(optimum['n_active'])} and D*/N* at "
                 f"{significant(optimum['tokens_per_param'])}")  # fmt: skip
        if None not in optimum["interval"]:
            found += f" (95%: {_span(*optimum['interval'])})"
    if grave:
        words = ", ".join(code.replace("_", " ") for code in grave)
        return f"Do not plan with the estimates alone ({words})" + (f": {found}." if found else ".")
    doubts = "with the reservations below" if fit.notes else "with no finding against it"
    return f"The runs determine the law {doubts}" + (f"; {found}." if found else ".")


def page(fit: Fit, called: str, recipe: Recipe, tables: Mapping[str, pd.DataFrame], drawn: Mapping[str, Any]) -> str:
    """The page as one HTML text."""
    title = recipe.title or f"{called}: {fit.form.title}"
    grave = any(note.code in GRAVE for note in fit.notes)
    caution = f'<p class="caution">Caution: {escape(recipe.caution)}</p>' if recipe.caution else ""
    sections = [
        ("What was fitted", _fitted(fit, recipe)),
        ("Parameters", _parameters(fit, tables["parameters"])),
        ("Compute-optimal model", _optimum(fit)),
        ("Findings and what to do", _findings(fit)),
        ("Charts", figures(drawn)),
        ("Runs of most influence", _influence(fit, tables["influence"])),
        ("Hold-outs", _holdouts(tables["holdouts"], fit)),
        ("Search", _search(fit)),
        ("Do it again", _again(called, recipe, fit)),
    ]
    told = f'<p class="verdict {"bad" if grave else "good"}">{escape(verdict(fit))}</p>\n{caution}'
    return document(title, told, sections, drawn)


def _profiles(fit: Fit) -> list[Profile]:
    return profiles(fit) if len(fit.draws) > 1 and np.isnan(fit.pinned).any() else []


def _about(fit: Fit, recipe: Recipe) -> str:
    return f"{fit.form.name} law fitted to {data_name(recipe)}, {_counted(len(fit.runs), 'run')}"


def _fitted(fit: Fit, recipe: Recipe) -> str:
    pairs = [("Law", f"{fit.form.name}: {fit.form.title}"), ("Equation", fit.form.equation),
             ("Runs", str(len(fit.runs))), ("Data", data_name(recipe))]  # fmt: skip
    name = recipe.data.set or recipe.data.table
    if name is not None:
        try:
            record = catalog.find("data", name)
        except AllocatorError:
            record = None
        if record is not None:
            fields = record.fields
            pairs += [("What it is", str(fields["title"])), ("Who", str(fields["who"])), ("Citation", record.source),
                      ("Licence", str(fields["licence"]))]  # fmt: skip
    pairs += [("Columns", ", ".join(f"{ours} from {theirs!r}" for ours, theirs in recipe.columns.items()))]
    for rule in recipe.where:
        pairs.append(("Kept", _rule(rule) + _because(rule.reason)))
    if recipe.drop.lowest_tokens_per_param:
        count = recipe.drop.lowest_tokens_per_param
        pairs.append(("Left out", f"the {_counted(count, 'run')} of fewest tokens per parameter"
                      + _because(recipe.drop.reason)))  # fmt: skip
    if recipe.pass_at_k:
        pairs.append(("Made long", ", ".join(f"k = {k} from {name!r}" for k, name in recipe.pass_at_k.items())))
    if recipe.pretraining_loss:
        pairs.append(("Pre-training loss", f"that of the law {recipe.pretraining_loss} at each run's N and D"))
    if recipe.fixed:
        pairs.append(("Given", ", ".join(f"{name} = {value:g}" for name, value in recipe.fixed.items())))
    return html_list(pairs)


def _rule(rule: recipes.Where) -> str:
    parts = []
    if rule.equals is not None:
        parts.append(f"= {rule.equals}")
    if rule.at_least is not None:
        parts.append(f">= {rule.at_least:g}")
    if rule.at_most is not None:
        parts.append(f"<= {rule.at_most:g}")
    return f"rows with {rule.column} {' and '.join(parts)}"


def _because(reason: str | None) -> str:
    return f", because: {' '.join(reason.split())}" if reason else ""


def _parameters(fit: Fit, frame: pd.DataFrame) -> str:
    drawn = len(fit.draws) > 1
    heads = ["parameter", "value", *(("std. error", "95% bootstrap", "95% profile") if drawn else ()), "unit"]
    rows = []
    for row in frame.to_dict("records"):
        cells = [row["parameter"], significant(row["value"], 5)]
        if drawn and row["given"]:
            cells += ["given", "", ""]
        elif drawn:
            cells += [significant(row["stderr"], 2), _span(row["low_95"], row["high_95"]),
                      _span(row["profile_low_95"], row["profile_high_95"], unknown="open")]  # fmt: skip
        rows.append([*cells, row["unit"]])
    text = html_table(heads, rows, "stack")
    if not drawn:
        return text + "<p>No bootstrap refits were asked for, so there are no intervals (--bootstrap).</p>"
    open_ended = frame.loc[~frame["given"], ["profile_low_95", "profile_high_95"]].isna().any(axis=None)
    remark = " open: the profile stays below its limit as far as it was followed, so the runs bound the parameter on " \
             "that side only by the form of the law." if open_ended else ""  # fmt: skip
    return text + f'<p class="remark">Standard errors are half the width of the central 68% of the refits.{remark}</p>'


def _optimum(fit: Fit) -> str:
    told = fit.optimum_dict()
    if told is None:
        return ""
    if not (np.isfinite(told["n_active"]) and np.isfinite(told["d_pretrain"])):
        return f"<p>At {fit.at_flop:.3g} FLOP = 6 N D the estimates imply no finite optimum.</p>"
    spans = [told["n_active_interval"], None, told["interval"]]
    rows = []
    for label, value, span, unit in zip(
        ("N*", "D*", "D*/N*"),
        (short_count(told["n_active"]), short_count(told["d_pretrain"]), significant(told["tokens_per_param"])),
        spans, ("parameters", "tokens", "tokens per parameter"), strict=True,
    ):  # fmt: skip
        ends = fit.interval("d_pretrain") if span is None else span
        said = _span(*ends, counts=label != "D*/N*") if None not in ends else ""
        rows.append([label, value, *([said] if len(fit.draws) > 1 else []), unit])
    heads = ["", f"at {fit.at_flop:.3g} FLOP", *(["95% bootstrap"] if len(fit.draws) > 1 else []), "unit"]
    return html_table(heads, rows, "stack") + '<p class="remark">Least loss where 6 N D is this budget.</p>'


def _findings(fit: Fit) -> str:
    if not fit.notes:
        return "<p>Nothing was found that speaks against the fit.</p>"
    items = []
    for note in fit.notes:
        words = re.sub(r"--[a-z-]+", r"<code>\g<0></code>", escape(ADVICE.get(note.code, "")))
        advice = f'<br><span class="do">{words}</span>' if words else ""
        kind = ' class="bad"' if note.code in GRAVE else ""
        items.append(f"<li{kind}><code>{escape(note.code)}</code> {escape(note.message)}.{advice}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _influence(fit: Fit, frame: pd.DataFrame) -> str:
    if frame.empty:
        return ""
    of = fit_tables.watched(fit)
    rows = [[row["label"], f"{row['change']:+.1%}"] for row in frame.head(MOST_ROWS).to_dict("records")]
    remark = "Rows are the file's, counted from 1 below its header; influence.csv has all."
    return html_table(["refit", f"change of {of}"], rows) + f'<p class="remark">{remark}</p>'


def _holdouts(frame: pd.DataFrame, fit: Fit) -> str:
    if frame.empty:
        return ""
    form = "{:.2%}" if fit.form.logs else "{:.3g}"
    rows = []
    for row in frame.to_dict("records"):
        lever = str(row["held_out"]).removeprefix("largest_")
        what = f"{_HELD_OUT.get(row['held_out'], row['held_out'])} ({_LEVERS.get(lever, lever)} from " \
               f"{fit_tables.number(row['from'], lever)})"  # fmt: skip
        signed = "{:+.2%}" if fit.form.logs else "{:+.3g}"
        rows.append([what, str(row["runs"]), form.format(row["error_held_out"]), signed.format(row["bias_held_out"]),
                     form.format(row["error_kept"])])  # fmt: skip
    of = "of logs, " if fit.form.logs else ""
    remark = (
        f"A refit without these runs is asked for them; errors are root mean squares {of}of observed less predicted."
    )
    return html_table(["held out", "runs", "error there", "bias there", "error on the rest"], rows, "stack") + (
        f'<p class="remark">{remark}</p>'
    )


def _search(fit: Fit) -> str:
    found, how = fit.search, fit.resampling
    refits = f"{how.draws} ({how.method}{f', drawn together by {how.cluster}' if how.cluster else ''})"
    condition = fit.condition_number
    return html_list([
        ("Loss", f"{fit.loss}; {fit.reduction} over the runs {fit.objective:.6g}"),
        ("Starts", f"{found.starts}, of which {found.share_at_best:.0%} came to this minimum"),
        ("Gradient", f"{found.gradient:.0e} of its terms"),
        ("Condition number", f"{condition:.3g}" if np.isfinite(condition) else ""),
        ("Bootstrap refits", refits),
        ("Seed", str(how.seed)),
    ])  # fmt: skip


def _again(called: str, recipe: Recipe, fit: Fit) -> str:
    about = provenance(fit.runs)
    stated = recipe.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True)
    text = tomli_w.dumps({"schema": recipes.SCHEMA, **stated})
    if _is_shipped(called, recipe):
        steps = f"<pre>allocator fit {escape(shlex.quote(called))} --out pages</pre>"
    else:
        command = f"allocator fit ./recipe.toml --name {shlex.quote(called)} --out pages"
        where = " (its data.path counts from the folder of the file)" if recipe.data.path else ""
        steps = f"<p>Save the recipe below as recipe.toml{where}, then:</p><pre>{escape(command)}</pre>"
    versions = ", ".join(f"{name} {version}" for name, version in about.items() if name != "runs_sha256")
    return (
        f"{steps}<details open><summary>Recipe</summary><pre>{escape(text)}</pre></details>"
        f'<p class="remark">Made with {escape(versions)}. SHA-256 of the numbers fitted: '
        f"<code>{escape(str(about['runs_sha256']))}</code>.</p>"
    )


def _is_shipped(called: str, recipe: Recipe) -> bool:
    if called not in catalog.recipe_names():
        return False
    return recipes.read(catalog.recipe_path(called)) == recipe


def _span(low: float, high: float, *, unknown: str = "", counts: bool = False) -> str:
    write = short_count if counts else significant
    ends = [write(end) if np.isfinite(end) else unknown for end in (low, high)]
    if not all(ends) or ends == [unknown, unknown]:
        return unknown
    return f"{ends[0]} to {ends[1]}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
