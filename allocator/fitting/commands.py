"""What `allocator fit` is asked for, as a recipe."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from allocator.errors import FitError
from allocator.fitting import recipes, records
from allocator.fitting.recipes import Recipe
from allocator.fitting.result import Fit


def recipe_of(
    name: str | None,
    data: Path | None,
    save_as: str | None,
    *,
    lists: Mapping[str, Sequence[str] | None],
    values: Mapping[str, Any],
    drop_lowest: int | None,
) -> tuple[Recipe, Path, str]:
    """The recipe of a command line, the folder its paths start from, and the name of the law.

    `lists` holds the texts A=B of options that may repeat; what is given on the command line goes before the recipe's.
    """
    if (name is None) == (data is None):
        raise FitError("data", "give the name of a fit or --data FILE.csv, not both" if name else
                       "nothing to fit: give the name of a fit, or --data FILE.csv")  # fmt: skip
    if name is not None:
        path = recipes.find(name)
        recipe, folder, called = recipes.read(path), path.parent, path.resolve().parent.name
    else:
        assert data is not None
        recipe = recipes.make({"data": {"path": data.name}}, str(data))
        folder, called = data.parent, data.stem
    called = save_as or called
    if not called.strip(".") or "/" in called or "\\" in called or not called.isprintable() or len(called) > 100:
        raise FitError("name", f"{called!r} cannot name a folder")
    changes = {key: value for key, value in values.items() if value is not None}
    pairs = {key: _pairs(key, texts or ()) for key, texts in lists.items()}
    changes["columns"] = recipe.columns | pairs["columns"]
    changes["fixed"] = recipe.fixed | {key: _number(key, text) for key, text in pairs["fixed"].items()}
    changes["where"] = [*recipe.model_dump()["where"], *({"column": c, "equals": _value(v)} for c, v in
                                                         pairs["where"].items())]  # fmt: skip
    if drop_lowest is not None:
        changes["drop"] = {"lowest_tokens_per_param": drop_lowest}
    stated = recipe.model_dump(by_alias=True, exclude_unset=True)
    made = recipes.make(stated | changes, "command line")
    if name is not None and made != recipe:
        if save_as is None:
            raise FitError("name", f"the options change the recipe of {called}: name the result with --name")
        # The recipe's words are about its own runs.
        made = made.model_copy(update={"title": "", "caution": None})
    return made, folder, called


def files_of(fit: Fit, called: str, recipe: Recipe, source: Path, target: Path) -> dict[str, str | bytes]:
    """The files of the fit's folder `target`: law and draws where a law file can hold them.

    A fit that no recipe file of that name describes gets its recipe as well; the path of a file of one's own, which
    starts from `source` now, is told from there.
    """
    files: dict[str, str | bytes] = {}
    if fit.form.kind is None and os.path.exists(target / "law.toml"):
        raise FitError("name", f"{target} holds the law of another fit, and a {fit.form.name} fit has no law file; "
                       "name it with --name")  # fmt: skip
    if fit.form.kind is not None:
        files |= records.files(fit, called, recipe, source)
    if recipe.data.path is not None or source.resolve().name != called:
        stated = recipe.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True)
        if recipe.data.path is not None:
            stated["data"] = {"path": os.path.relpath(source / recipe.data.path, target)}
        files["recipe.toml"] = tomli_w.dumps({"schema": recipes.SCHEMA, **stated})
    return files


def _pairs(key: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        left, equals, right = text.partition("=")
        if not equals or not left.strip() or not right.strip():
            raise FitError(key, f"{text!r} must be NAME=VALUE")
        if left.strip() in pairs:
            raise FitError(key, f"{left.strip()!r} is given twice")
        pairs[left.strip()] = right.strip()
    return pairs


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FitError("fixed", f"{key}: {text!r} is not a number") from None


def _value(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
