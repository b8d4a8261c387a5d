"""What the fitter has to know of a law."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)

Rows = Mapping[str, Array]  # scaled columns by name, one entry a run


@dataclass(frozen=True)
class Column:
    """A column of a table of runs, and how it enters a law.

    log: positive, as its log relative to the geometric mean. ratio: >= 0, relative to the mean. shifted: any number, as
    its distance from the mean in standard deviations. plain: as it is.
    """

    name: str
    unit: str
    scaling: Literal["log", "ratio", "shifted", "plain"] = "log"
    lowest: float | None = None  # smallest lawful value
    highest: float | None = None
    like: str | None = None  # the column whose centre it shares
    centred: bool = True  # False: `log` is the log itself


@dataclass(frozen=True)
class Parameter:
    """A parameter and the coordinate that it is estimated in.

    `log` estimates its logarithm. `scale_of` names the column in whose unit it counts (`power` 1) or one over it (-1).
    `start` is the box that starts are drawn from and `bounds` the one that estimates stay in, both in the estimated
    coordinate and, for a parameter with a unit, relative to the scale of the data.
    """

    name: str
    unit: str
    start: tuple[float, float]
    bounds: tuple[float, float]
    log: bool = False
    scale_of: str | None = None
    power: int = 1
    decades: bool = False  # told to the user as log10
    essential: bool = False  # an exponent or the like: where it is vague, the law is open


@dataclass(frozen=True)
class Form:
    """A law as a sum of terms whose coefficients are linear parameters.

    `positive`: log prediction = log sum_j exp(c_j + terms_j(shape, rows)), residuals in logs, each coefficient
    exp(c_j) > 0. Otherwise prediction = sum_j c_j terms_j(shape, rows), residuals in the target's unit. Without linear
    parameters the one term is the prediction (its log, if `positive`). `terms` gives a row for each coefficient.
    `combine(logs of the terms with their coefficients, shape, rows)` takes the place of the sum.
    """

    name: str
    title: str
    equation: str
    inputs: tuple[Column, ...]
    target: Column
    linear: tuple[Parameter, ...]
    shape: tuple[Parameter, ...]
    terms: Callable[[Float[Array, " shape"], Rows], Float[Array, "terms rows"]]
    positive: bool = True
    residuals: Literal["log", "linear"] = "log"  # a form that is not positive has linear ones
    read_at_unit: bool = True  # coefficients are told at 1 unit of every input; otherwise as they are
    unit_point: float = 1.0  # that 1 unit, of inputs in logs, where the form counts in other quantities (C = 6 N D)
    combine: Callable[[Float[Array, "terms rows"], Float[Array, " shape"], Rows], Float[Array, " rows"]] | None = None
    # Log-likelihood of each row, of discrete data; the fit then maximises it and the terms only say what is expected.
    log_likelihood: Callable[[Float[Array, " shape"], Rows], Float[Array, " rows"]] | None = None
    sizes: tuple[float, ...] = ()  # of models that have a coefficient each
    kind: str | None = None  # of the law file that can hold it
    pretraining: Literal["chinchilla", "gadre"] | None = None  # the law L0(N, D) that its parameters hold

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, in the order of the estimated vector."""
        return self.linear + self.shape

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of the estimated vector."""
        return tuple(parameter.name for parameter in self.parameters)

    def is_logged(self, parameter: Parameter) -> bool:
        """Whether a parameter is estimated in logs, and so is > 0."""
        coefficient = self.positive and parameter in self.linear and not parameter.decades
        return parameter.log or coefficient

    @property
    def homogeneous(self) -> bool:
        """Whether the coefficients can take up any unit of the target."""
        return bool(self.linear) and self.combine is None

    @property
    def logs(self) -> bool:
        """Whether residuals are taken in logs."""
        return self.positive and self.residuals == "log"

    def residual(
        self, theta: Float[Array, " parameters"], rows: Rows, target: Float[Array, " rows"]
    ) -> Float[Array, " rows"]:
        """Observed less predicted: of logs, or else in the unit of the scaled target."""
        predicted = self.predict(theta, rows)
        if self.positive and self.residuals == "linear":
            return jnp.exp(target) - jnp.exp(predicted)
        return target - predicted

    @partial(jax.jit, static_argnums=0)
    def predict(self, theta: Float[Array, " parameters"], rows: Rows) -> Float[Array, " rows"]:
        """Prediction in the scale of the residuals, relative to the target's own scale."""
        m = len(self.linear)
        terms = self.terms(theta[m:], rows)
        if m == 0:
            return terms[0]
        if not self.positive:
            return theta[:m] @ terms
        logs = theta[:m, None] + terms
        return logsumexp(logs, axis=0) if self.combine is None else self.combine(logs, theta[m:], rows)
