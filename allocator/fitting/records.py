"""A fit as the files of its folder in fits/."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from allocator import catalog
from allocator.errors import FitError
from allocator.fitting.form import Form
from allocator.fitting.provenance import provenance
from allocator.fitting.recipes import Recipe, data_sha256
from allocator.fitting.result import Fit
from allocator.law_files import LAW_PARAMETERS, LAW_SCHEMA

DIGITS, DRAW_DIGITS, MOST_DRAWS = 10, 6, 4000
_UNITS = {"rate": "error rate (0 to 1)", "surprise": "nats (-log pass@k)", "loss": "nats/token"}
_RANGES = {"n_active": "n_active", "d_tokens": "d_pretrain", "d_rl": "d_rl", "k": "k", "rl_amount": "rl_amount",
           "pretraining_loss": "loss"}  # fmt: skip


def files(fit: Fit, name: str, recipe: Recipe | None = None, folder: Path | None = None) -> dict[str, str | bytes]:
    """law.toml and draws.csv, byte for byte the same for the same fit; `folder` is where the recipe's path starts.

    Without a recipe the runs came as a data frame, of which only its numbers are known.
    """
    return {"law.toml": tomli_w.dumps(law_file(fit, name, recipe, folder)), "draws.csv": draws_csv(fit)}


def law_file(fit: Fit, name: str, recipe: Recipe | None = None, folder: Path | None = None) -> dict[str, Any]:
    """The content of law.toml; raises `FitError` where no law file can hold the form."""
    form = fit.form
    if form.kind is None:
        raise FitError("no_law_file", f"a {form.name} fit has no law file; use --json or --out for its numbers")
    held = LAW_PARAMETERS[form.kind]
    values = {key: _rounded(value) for key, value in fit.parameters.items()}
    parameters = {key: value for key, value in values.items() if key in held or form.kind == "rl-power"}
    data = data_name(recipe) if recipe else "a data frame"
    content: dict[str, Any] = {
        "schema": LAW_SCHEMA,
        "name": name,
        "title": (recipe.title if recipe else "") or f"{form.title}, fitted to {data}",
        "kind": form.kind,
        "unit": _UNITS[_quantity(form)],
        "source": f"fitted by allocator to {data}; {_citation(recipe) if recipe else ''}".rstrip("; "),
        "status": "our own fit",
        "aliases": [],
        "equation": form.equation,
    }
    if recipe and recipe.caution:
        content["caution"] = recipe.caution
    if recipe and recipe.pretraining_loss:
        content["pretraining"] = recipe.pretraining_loss
    content["parameters"] = parameters
    content["units"] = {p.name: p.unit for p in form.parameters if p.name in parameters}
    errors = {key: _rounded(value) for key, value in fit.stderr.items() if np.isfinite(value)}
    content["stderr"] = {key: value for key, value in errors.items() if key in parameters}
    if form.name == "data-constrained":
        content["repetition"] = {"r_star": values["r_star"]}
        content["units"]["r_star"] = "epoch"
    if extra := {key: value for key, value in values.items() if key not in parameters and key != "r_star"}:
        content["lifetime"] = {"form": form.name, **extra}
    content["fit_range"] = {"source": f"the {len(fit.runs)} runs of the fit; ends to 3 digits", **_ranges(fit)}
    content["fit"] = _about(fit) | ({"data_sha256": data_sha256(recipe, folder)} if recipe else {})
    if len(fit.draws) > 1:
        content["covariance"] = _covariance(fit)
    if fit.notes:
        content["diagnostics"] = [{key: value for key, value in note.to_dict().items() if value not in (None, "")}
                                  for note in fit.notes]  # fmt: skip
    return json.loads(json.dumps(content))


def draws_csv(fit: Fit) -> str:
    """The bootstrap draws, a parameter a column."""
    out = io.StringIO()
    out.write(",".join(fit.form.names) + "\n")
    for row in fit.draws[:MOST_DRAWS]:
        out.write(",".join(f"{value:.{DRAW_DIGITS}g}" for value in row) + "\n")
    return out.getvalue()


def _quantity(form: Form) -> str:
    """What the law gives: an error rate, -log pass@k, or a loss per token."""
    if form.target.name == "error_rate":
        return "rate"
    return "surprise" if form.kind in ("pass-at-k", "t2-loss") else "loss"


def _about(fit: Fit) -> dict[str, Any]:
    about: dict[str, Any] = {
        "runs": len(fit.runs),
        "loss": str(fit.loss),
        "residuals": "log" if fit.form.logs else "linear",
        "objective": _rounded(fit.objective),
        "starts": fit.search.starts,
        "share_at_best": _rounded(fit.search.share_at_best),
        "bootstrap": fit.resampling.method,
        "draws": fit.resampling.draws,
        "seed": fit.resampling.seed,
    }
    optimum = fit.optimum_dict()
    if optimum is not None:
        about |= {f"optimum_{key}": _rounded(optimum[key]) for key in ("at_flop", "n_active", "tokens_per_param")}
        if None not in optimum["interval"]:
            about["optimum_tokens_per_param_95"] = [_rounded(end) for end in optimum["interval"]]
    given = [name for name, value in zip(fit.form.names, fit.pinned, strict=True) if np.isfinite(value)]
    if given:
        about["given"] = given
    return about | provenance(fit.runs)


def _covariance(fit: Fit) -> dict[str, Any]:
    """Covariance of the draws, in logs for coefficients and scales, which are far from normal otherwise."""
    names, columns = [], []
    for i, (parameter, given) in enumerate(zip(fit.form.parameters, fit.pinned, strict=True)):
        if np.isfinite(given):
            continue
        logged = fit.form.is_logged(parameter)
        names.append(f"log {parameter.name}" if logged else parameter.name)
        columns.append(np.log(fit.draws[:, i]) if logged else fit.draws[:, i])
    table = np.column_stack(columns)
    matrix = np.atleast_2d(np.cov(table[np.isfinite(table).all(axis=1)], rowvar=False))
    return {"of": names, "matrix": [[_rounded(value) for value in row] for row in matrix]}


def _ranges(fit: Fit) -> dict[str, float]:
    ends = {}
    columns = dict(fit.runs.columns)
    for column, name in _RANGES.items():
        if column in columns:
            ends[f"{name}_min"], ends[f"{name}_max"] = columns[column].min(), columns[column].max()
    if {"n_active", "d_tokens"} <= columns.keys():
        ratio = columns["d_tokens"] / columns["n_active"]
        ends["tokens_per_param_min"], ends["tokens_per_param_max"] = ratio.min(), ratio.max()
    return {name: float(f"{value:.3g}") for name, value in ends.items()}


def data_name(recipe: Recipe) -> str:
    """What the runs are called: the set and its file, the table, or the name of the user's file."""
    data = recipe.data
    if data.set and data.file:
        return f"{data.set} ({data.file})"
    return str(data.set or data.table or Path(str(data.path)).name)


def _citation(recipe: Recipe) -> str:
    name = recipe.data.set or recipe.data.table
    return catalog.find("data", name).source if name else ""


def _rounded(value: float) -> float:
    return float(f"{float(value):.{DIGITS}g}")
