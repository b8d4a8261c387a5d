"""A fitted law."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from allocator.errors import FitError
from allocator.fitting.form import Form
from allocator.fitting.intervals import interval
from allocator.fitting.losses import Loss
from allocator.fitting.notes import Note
from allocator.fitting.reference import pretraining_law
from allocator.fitting.runs import Runs
from allocator.fitting.scaled import Scaled
from allocator.fitting.search import Search
from allocator.laws.law import PretrainingLaw
from allocator.outputs import finite

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Resampling:
    """How the draws were made."""

    method: str  # pairs | wild
    cluster: str | None  # column whose values are drawn together
    draws: int
    seed: int


@dataclass(frozen=True)
class Fit:
    """Parameters of a law with their uncertainty, in the units of the table.

    `draws` has a bootstrap refit a row, in the order of `form.names`; `optimum` and `optimum_draws` hold (N*, D*) at
    the reference budget, None where the law implies none.
    """

    form: Form
    loss: Loss
    runs: Runs
    scaled: Scaled
    search: Search
    pinned: np.ndarray  # values that were given rather than estimated; NaN elsewhere
    values: np.ndarray
    draws: np.ndarray
    resampling: Resampling
    at_flop: float
    optimum: np.ndarray | None
    optimum_draws: np.ndarray | None
    reduction: str = "sum"
    notes: tuple[Note, ...] = ()
    influence: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    holdouts: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def parameters(self) -> dict[str, float]:
        """Estimates by name."""
        return dict(zip(self.form.names, map(float, self.values), strict=True))

    @cached_property
    def stderr(self) -> dict[str, float]:
        """Half the width of the central 68.27% of the bootstrap draws; NaN without draws, 0 for a given parameter.

        Where draws are normal this is their standard deviation; unlike it, it does not answer to a few refits that ran
        off along a ridge.
        """
        spread = np.full(len(self.values), np.nan)
        known = np.isfinite(self.draws).any(axis=0)  # no refit may have settled
        if len(self.draws) > 1 and known.any():
            low, high = np.nanquantile(self.draws[:, known], [0.158655, 0.841345], axis=0)
            spread[known] = (high - low) / 2
        spread = np.where(np.isfinite(self.pinned), 0.0, spread)
        return dict(zip(self.form.names, map(float, spread), strict=True))

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of a parameter, or of `n_active`, `d_pretrain` or `tokens_per_param` at the budget."""
        if name in self.form.names:
            i = self.form.names.index(name)
            return interval(self.draws[:, i], float(self.values[i]), level)
        if self.optimum is None or self.optimum_draws is None:
            raise FitError("no_optimum", f"{name}: a {self.form.name} law implies no compute-optimal model")
        (n, d), (best_n, best_d) = self.optimum_draws.T, self.optimum
        with np.errstate(all="ignore"):  # a runaway refit may be beyond any number
            ratio, best_ratio = d / n, best_d / best_n
        quantities = {"n_active": (n, best_n), "d_pretrain": (d, best_d), "tokens_per_param": (ratio, best_ratio)}
        if name not in quantities:
            raise FitError("parameter", f"{name!r} is not known; must be one of "
                           f"{', '.join((*self.form.names, *quantities))}")  # fmt: skip
        return interval(*quantities[name], level)

    @property
    def objective(self) -> float:
        """Sum (or mean, as asked for) of the loss over the runs."""
        return self.search.objective / (len(self.runs) if self.reduction == "mean" else 1)

    @cached_property
    def predicted(self) -> np.ndarray:
        """Prediction for each run, in the unit of the target."""
        scaled = np.asarray(self.form.predict(self.search.theta, self.scaled.rows))
        offset, unit = float(self.scaled.offset), float(self.scaled.unit)
        return np.exp(scaled + offset) if self.form.positive else scaled * unit

    @cached_property
    def residual(self) -> np.ndarray:
        """Observed less predicted: of logs, or in the target's unit where the form's residuals are linear."""
        observed = self.runs.columns[self.form.target.name]
        return np.log(observed) - np.log(self.predicted) if self.form.logs else observed - self.predicted

    @cached_property
    def r_squared(self) -> float:
        """Share of the variance explained, in the scale of the residuals; NaN where all targets are equal."""
        observed = self.runs.columns[self.form.target.name]
        observed = np.log(observed) if self.form.logs else observed
        spread = float(np.sum((observed - observed.mean()) ** 2))
        return 1 - float(np.sum(self.residual**2)) / spread if spread > 0 else float("nan")

    def law(self) -> PretrainingLaw:
        """The pre-training law L0(N, D), to plan with; raises `FitError` where this form holds none."""
        law = pretraining_law(self.form, jnp.asarray(self.values))
        if law is None:
            raise FitError("no_law", f"a {self.form.name} fit holds no pre-training loss L0(N, D)")
        return law

    def save(self, folder: str | Path) -> None:
        """Write law.toml and draws.csv to a folder named after the law, which a scenario then names by its path.

        Raises `FitError` where no law file can hold the form, `OutputError` where the folder cannot be written.
        """
        from allocator.fitting.records import files
        from allocator.outputs import write_folder

        write_folder(Path(folder), files(self, Path(folder).absolute().name))

    def to_frame(self) -> "pd.DataFrame":
        """A row a parameter: value, stderr, 95% interval, unit."""
        import pandas as pd

        rows = []
        for parameter, value, given in zip(self.form.parameters, self.values, self.pinned, strict=True):
            low, high = self.interval(parameter.name)
            rows.append({"parameter": parameter.name, "value": float(value), "stderr": self.stderr[parameter.name],
                         "low_95": low, "high_95": high, "unit": parameter.unit,
                         "given": bool(np.isfinite(given))})  # fmt: skip
        return pd.DataFrame(rows)

    def table(self) -> "pd.DataFrame":
        """The runs with prediction and residual; `row` counts from 1 in the table as given."""
        import pandas as pd

        columns = {name: self.runs.columns[name] for name in self.runs.columns}
        frame = pd.DataFrame({"row": self.runs.row + 1, **columns, "predicted": self.predicted,
                              "residual": self.residual})  # fmt: skip
        return frame.sort_values("row", ignore_index=True)

    def optimum_dict(self, level: float = 0.95) -> dict[str, Any] | None:
        """N*, D* and D*/N* at the reference budget with intervals; None where the law implies none."""
        if self.optimum is None:
            return None
        n, d = map(float, self.optimum)
        return {
            "at_flop": self.at_flop,
            "n_active": n,
            "d_pretrain": d,
            "tokens_per_param": d / n if n else float("nan"),
            "level": level,
            "interval": finite(self.interval("tokens_per_param", level)),
            "n_active_interval": finite(self.interval("n_active", level)),
        }

    def to_dict(self) -> dict[str, Any]:
        """The fit as `--json` prints it: every number finite or null."""
        from allocator.fitting.provenance import provenance

        values = {
            "schema": "allocator.fit/1",
            "law": self.form.name,
            "equation": self.form.equation,
            "loss": str(self.loss),
            "n": len(self.runs),
            "parameters": self.parameters,
            "units": {parameter.name: parameter.unit for parameter in self.form.parameters},
            "given": [name for name, value in zip(self.form.names, self.pinned, strict=True) if np.isfinite(value)],
            "stderr": self.stderr,
            "objective": self.objective,
            "reduction": self.reduction,
            "r_squared": self.r_squared,
            "optimum": self.optimum_dict(),
            "search": {
                "starts": self.search.starts,
                "share_at_best": self.search.share_at_best,
                "gradient": self.search.gradient,
                "condition_number": self.condition_number,
            },
            "resampling": {"method": self.resampling.method, "cluster": self.resampling.cluster,
                           "draws": self.resampling.draws, "seed": self.resampling.seed},
            "rows": self.to_frame().to_dict("records"),
            "influence": [dict(row) for row in self.influence],
            "holdouts": [dict(row) for row in self.holdouts],
            "diagnostics": [note.to_dict() for note in self.notes],
            "warnings": [note.to_dict() for note in self.notes],
            "provenance": provenance(self.runs),
        }  # fmt: skip
        return finite(values)

    @cached_property
    def condition_number(self) -> float:
        """Of the estimates' correlation: how far the data leave some combination of parameters open."""
        from allocator.fitting.curvature import condition_number

        return condition_number(self.form, self.scaled, self.search.theta, np.isfinite(self.pinned))

    def __str__(self) -> str:
        from allocator.fitting.printing import summary

        return summary(self)
