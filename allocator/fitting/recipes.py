"""A fit as a file: which runs, which law, which loss, which seed."""

import hashlib
import os
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from allocator import catalog
from allocator.downloads import fetch
from allocator.errors import FitError
from allocator.fitting.estimation import DRAWS, STARTS, fit
from allocator.fitting.reference import GOPHER_FLOP
from allocator.fitting.result import Fit
from allocator.fitting.runs import numbers, spelling
from allocator.laws.presets import pretraining_law

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "allocator.recipe/1"


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Data(_Section):
    """Where the runs are: a file of a downloadable set, a shipped table, or a CSV beside the recipe."""

    set: str | None = None
    file: str | None = None
    table: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "Data":
        given = [name for name in ("set", "table", "path") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of set, table, path; got {', '.join(given) or 'none'}")
        return self


class Where(_Section):
    """Keep the rows of which this holds."""

    column: str
    equals: str | float | None = None
    at_least: float | None = None
    at_most: float | None = None
    reason: str | None = None


class Drop(_Section):
    """Runs to leave out, and why."""

    lowest_tokens_per_param: Annotated[int, Field(ge=0)] = 0
    reason: str | None = None


class Recipe(_Section):
    """Everything that decides a fit; the same recipe on the same data gives the same law."""

    schema_: Annotated[Literal["allocator.recipe/1"], Field(alias="schema")] = SCHEMA
    title: str = ""
    caution: str | None = None
    law: str = "chinchilla"
    loss: str = "huber"
    residuals: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    starts: int = STARTS
    reduction: str = "sum"
    at_flop: float = GOPHER_FLOP
    data: Data
    columns: dict[str, str] = {}
    where: list[Where] = []
    drop: Drop = Drop()
    # Columns that hold pass@k for one k each, by k: made long.
    pass_at_k: dict[str, str] = {}
    # A law whose loss at (N, D) stands for the pre-training loss that the table does not have.
    pretraining_loss: str | None = None
    fixed: dict[str, float] = {}
    bootstrap: Annotated[int, Field(ge=0)] = DRAWS
    resample: str = "pairs"
    cluster: str | None = None


def read(path: Path) -> Recipe:
    """Read a recipe; every fault is one line."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FitError("recipe", f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FitError("recipe", f"{path}: is not TOML in UTF-8: {error}") from None
    return make(content, str(path))


def make(content: Mapping[str, Any], label: str) -> Recipe:
    """A checked recipe from plain values."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise FitError("recipe", f"{label}: {'; '.join(lines)}") from None


def find(name: str) -> Path:
    """The recipe of ./fits/NAME or of a shipped fit, or a path."""
    if "/" in name or name.endswith(".toml"):
        return Path(name)
    for path in (Path("fits", name, "recipe.toml"), catalog.recipe_path(name)):
        if os.path.isfile(path):
            return path
    if os.path.isfile(name):
        raise FitError("recipe", f"{name} is a file; to fit its runs: --data {name}")
    known = ", ".join(catalog.recipe_names())
    raise FitError("recipe", f"no recipe {name!r} in ./fits or among the shipped ones ({known})")


def carry_out(recipe: Recipe, folder: Path | None = None) -> Fit:
    """Fetch the data, prepare the runs and fit the law; `folder` is where a path of the recipe starts from."""
    return fit(runs_of(recipe, folder), recipe.law, recipe.loss, columns=recipe.columns, **options(recipe))


def options(recipe: Recipe) -> dict[str, Any]:
    """The keyword arguments of `fit` that a recipe states, but for columns."""
    names = "residuals", "fixed", "starts", "bootstrap", "resample", "cluster", "reduction", "at_flop", "seed"
    return {name: getattr(recipe, name) for name in names}


def runs_of(recipe: Recipe, folder: Path | None = None) -> "pd.DataFrame":
    """The table of runs that a recipe fits, filtered and with the derived columns."""
    frame = _read_table(_source(recipe, folder))
    for i, rule in enumerate(recipe.where):
        frame = frame.loc[_holds(frame, rule, f"where[{i}]")]
    if recipe.pass_at_k:
        frame = _long(frame, recipe.pass_at_k)
    if recipe.pretraining_loss is not None:
        frame = frame.assign(pretraining_loss=_loss_of_law(frame, recipe))
    if recipe.drop.lowest_tokens_per_param:
        frame = _without_lowest(frame, recipe)
    return frame


def _read_table(path: Path) -> "pd.DataFrame":
    """A CSV or parquet file; whatever is wrong with it is one line."""
    import pandas as pd

    if not os.path.exists(path):
        raise FitError("data", f"{path}: no such file")
    if not os.path.isfile(path):
        raise FitError("data", f"{path}: is no file that can be read twice")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        heading = pd.read_csv(path, header=None, nrows=1, dtype=str, index_col=False).iloc[0].dropna()
        if twice := heading[heading.duplicated()].tolist():
            raise FitError("duplicated_column", f"{path}: more than one column is called {twice[0]!r}")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the heading
            return pd.read_csv(path, index_col=False)
    except FitError:
        raise
    except Exception as error:  # of any compression, encoding or engine
        raise FitError("data", f"{path}: cannot be read as a table: {' '.join(str(error).split())[:200]}") from None


def data_sha256(recipe: Recipe, folder: Path | None = None) -> str:
    """Hash of the file that the runs come from."""
    return hashlib.sha256(_source(recipe, folder).read_bytes()).hexdigest()


def _source(recipe: Recipe, folder: Path | None) -> Path:
    data = recipe.data
    if data.table is not None:
        return catalog.table_path(data.table)
    if data.set is not None:
        files = fetch(data.set, only=None if data.file is None else [data.file])
        if len(files) != 1:
            raise FitError("data", f"data.file: {data.set} has several files, name one of {', '.join(files)}")
        return next(iter(files.values()))
    return (folder or Path()) / str(data.path)


def _holds(frame: "pd.DataFrame", rule: Where, label: str) -> "pd.Series":
    import pandas as pd

    if rule.column not in frame.columns:
        raise FitError("missing_column", f"{label}.column: no column {rule.column!r}; found {', '.join(frame.columns)}")
    column = frame[rule.column]
    held = pd.Series(True, index=frame.index)
    if rule.equals is not None:
        held &= column == rule.equals
    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), float)
    for bound, compare in ((rule.at_least, np.greater_equal), (rule.at_most, np.less_equal)):
        if bound is not None:
            held &= compare(numbers, bound)
    if not held.any():
        raise FitError("too_few_runs", f"{label}: no row has {rule.column} as asked")
    return held


def _long(frame: "pd.DataFrame", by_k: Mapping[str, str]) -> "pd.DataFrame":
    """One row for each k."""
    import pandas as pd

    for k in by_k:
        if not k.isdigit() or int(k) < 1:
            raise FitError("pass_at_k", f"{k!r} must be a whole number of samples")
    absent = [name for name in by_k.values() if name not in frame.columns]
    if absent:
        raise FitError("missing_column", f"pass_at_k: no column {', '.join(absent)}; found {', '.join(frame.columns)}")
    rest = frame.drop(columns=[name for name in frame.columns if name in ("k", "pass_at_k")])
    return pd.concat([rest.assign(k=float(k), pass_at_k=frame[name]) for k, name in by_k.items()], ignore_index=True)


def _loss_of_law(frame: "pd.DataFrame", recipe: Recipe) -> np.ndarray:
    record = catalog.law_record(str(recipe.pretraining_loss))
    law = pretraining_law(record.name, record.content["kind"], record.content["parameters"])
    found = [recipe.columns.get(name) or spelling(frame, name) for name in ("n_active", "d_tokens")]
    names = [name for name in found if name is not None]
    if len(names) < 2 or not set(names) <= set(frame.columns):
        raise FitError("missing_column", "pretraining_loss: needs columns n_active and d_tokens; found "
                       f"{', '.join(frame.columns)}")  # fmt: skip
    log_n, log_d = (np.log(numbers(frame, name)) for name in names)
    return float(law.floor) + np.exp(np.asarray(law.log_reducible(log_n, log_d)))  # pyright: ignore


def _without_lowest(frame: "pd.DataFrame", recipe: Recipe) -> "pd.DataFrame":
    """All but the runs of fewest tokens per parameter; among equal ones the earlier rows go."""

    def column(ours: str) -> np.ndarray | None:
        name = recipe.columns.get(ours) or spelling(frame, ours)
        return None if name is None or name not in frame.columns else numbers(frame, name)

    n, tokens, flop = (column(name) for name in ("n_active", "d_tokens", "compute_flop"))
    if n is None or (tokens is None and flop is None):
        raise FitError("missing_column", "drop.lowest_tokens_per_param: needs n_active, and d_tokens or compute_flop; "
                       f"found {', '.join(frame.columns)}")  # fmt: skip
    tokens = tokens if tokens is not None else np.asarray(flop) / n
    order = np.argsort(tokens / n, kind="stable")
    return frame.iloc[np.sort(order[recipe.drop.lowest_tokens_per_param :])]
