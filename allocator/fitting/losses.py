"""How a residual counts in a fit."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.errors import FitError

HUBER_DELTA = 1e-3  # of Hoffmann et al., arXiv 2203.15556, section 3.3
OVERESTIMATE_PENALTY = 10.0  # what OLMo's ladder and the package `chinchilla` use


@dataclass(frozen=True)
class Loss:
    """Huber's loss of residual = observed - predicted, times `overestimate` where the prediction is too high.

    rho(r) = r^2 / 2 up to delta, then delta (|r| - delta / 2); delta = inf is least squares.
    """

    name: str
    delta: float
    overestimate: float = 1.0

    def __str__(self) -> str:
        return self.name


def parse(text: str) -> Loss:
    """Read `huber`, `huber:DELTA`, `asymmetric`, `asymmetric:PENALTY` or `least-squares`."""
    name, _, number = text.partition(":")
    known = {"huber": HUBER_DELTA, "asymmetric": OVERESTIMATE_PENALTY, "least-squares": None}
    default = known.get(name, "unknown")
    if default == "unknown" or (default is None and number):
        raise FitError("loss", f"{text!r} is not known; must be huber[:DELTA], asymmetric[:PENALTY] or least-squares")
    try:
        value = float(number) if number else default
    except ValueError:
        value = -1.0
    if isinstance(value, float) and not 1e-9 <= value <= 1e6:
        raise FitError("loss", f"the number in {text!r} must be from 1e-9 to 1e6")
    match name:
        case "huber":
            return Loss(text, float(value or 0))
        case "asymmetric":
            return Loss(text, HUBER_DELTA, float(value or 0))
        case _:
            return Loss(text, float("inf"))


def rho(
    residual: Float[Array, "..."], delta: Float[Array, ""], overestimate: Float[Array, ""] | float
) -> Float[Array, "..."]:
    """Contribution of each residual to the objective."""
    inner = jnp.clip(residual, -delta, delta)  # no branch to overflow where delta is infinite
    return jnp.where(residual < 0, overestimate, 1.0) * inner * (residual - 0.5 * inner)
