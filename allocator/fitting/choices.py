"""The same data under several losses and outlier rules: how far the answer is the analyst's choice."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.errors import FitError
from allocator.fitting.estimation import fit
from allocator.fitting.provenance import provenance
from allocator.fitting.recipes import Drop, Recipe, options, runs_of
from allocator.fitting.result import Fit

if TYPE_CHECKING:
    import pandas as pd

LOSSES = ("huber", "huber:0.01", "asymmetric", "least-squares")
OUTLIER = 5.0  # residual, in robust standard deviations of the first fit, beyond which a run counts as an outlier
SHARE = 0.02  # of the runs of lowest D/N


@dataclass(frozen=True)
class Choices:
    """A fit for each choice; the first is the recipe's own."""

    rows: tuple[dict[str, Any], ...]
    at_flop: float
    made_from: dict[str, Any]

    def to_frame(self) -> "pd.DataFrame":
        """A row a choice: loss, runs left out, parameters, N* and D*/N* at the reference budget."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def to_csv(self) -> str:
        """The rows as CSV."""
        return self.to_frame().to_csv(index=False)

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"schema": "allocator.fit-choices/1", "at_flop": self.at_flop, "rows": list(self.rows), "warnings": [],
                "provenance": self.made_from}  # fmt: skip

    def __str__(self) -> str:
        from allocator.fitting.printing import choices_text

        return choices_text(self)


def compare(recipe: Recipe, folder: Path | None = None) -> Choices:
    """Fit the recipe's data under each loss, with all runs, without the recipe's, and without outliers."""
    whole = runs_of(recipe.model_copy(update={"drop": Drop()}), folder)
    own = runs_of(recipe, folder)
    settings: dict[str, Any] = options(recipe) | {"bootstrap": 0}

    def fitted(frame: "pd.DataFrame", loss: str) -> Fit:
        return fit(frame, recipe.law, loss, columns=recipe.columns, **settings)

    first = fitted(own, recipe.loss)
    if first.form.log_likelihood is not None:
        raise FitError("loss", f"{recipe.law} is fitted by its likelihood: there are no losses to choose from")
    tables = {"all runs": whole}
    if recipe.drop.lowest_tokens_per_param:
        tables[f"without the {recipe.drop.lowest_tokens_per_param} of lowest D/N (recipe)"] = own
    elif {"n_active", "d_tokens"} <= set(first.runs.columns):
        count = max(1, round(SHARE * len(whole)))
        drop = recipe.model_copy(update={"drop": Drop(lowest_tokens_per_param=count)})
        tables[f"without the {count} of lowest D/N"] = runs_of(drop, folder)
    everything = fitted(whole, recipe.loss)
    spread = 1.4826 * np.median(np.abs(everything.residual - np.median(everything.residual)))
    outlying = everything.runs.row[np.abs(everything.residual) > OUTLIER * spread]
    if len(outlying):
        kept = whole.drop(index=outlying)
        tables[f"without {len(outlying)} residuals beyond {OUTLIER:g} robust deviations"] = kept
    rows = [_row(first, "recipe", recipe.loss)]
    for name, table in tables.items():
        rows += [_row(fitted(table, loss), name, loss) for loss in LOSSES]
    return Choices(tuple(rows), recipe.at_flop, provenance(first.runs))


def _row(fit: Fit, rule: str, loss: str) -> dict[str, Any]:
    row: dict[str, Any] = {"rule": rule, "loss": loss, "runs": len(fit.runs), "objective": fit.objective}
    if fit.optimum is not None:
        n, d = map(float, fit.optimum)
        row |= {"n_active_optimal": n, "tokens_per_param_optimal": d / n}
    return row | fit.parameters
