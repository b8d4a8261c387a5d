"""Any law that a user can write in JAX, to be fitted."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import jax.numpy as jnp

from allocator.errors import FitError
from allocator.fitting.form import Column, Form, Parameter

_DECADES = 25.0  # natural-log room beyond the range that starts are drawn from


def user_form(
    function: Callable[..., object],
    parameters: Mapping[str, tuple[float, float]],
    *,
    inputs: Sequence[str] = ("n_active", "d_tokens"),
    name: str = "user",
    target: str = "loss",
    residuals: Literal["log", "linear"] = "log",
) -> Form:
    """A form from `function(parameters, columns)`, both dictionaries, which returns the loss of every run.

    `parameters` gives for each name the range in which starts are drawn, in the units of the table. A range above 0
    makes a parameter positive, estimated in logs; estimates may leave the range. Residuals are taken in logs, for which
    the target must be > 0, or `linear`. Raises `FitError` where a range is none.
    """
    if residuals not in ("log", "linear"):
        raise FitError("residuals", f"must be log or linear, got {residuals!r}")
    if isinstance(inputs, str) or not isinstance(parameters, Mapping):
        raise FitError("inputs" if isinstance(inputs, str) else "parameters", "must be several names")
    specs = []
    for key, ends in parameters.items():
        try:
            low, high = (float(end) for end in ends)
        except (TypeError, ValueError):
            raise FitError("parameter_range", f"{key}: needs a range (low, high), got {ends!r}") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise FitError("parameter_range", f"{key}: needs a finite range (low, high), got {tuple(ends)}")
        if low > 0:
            start = math.log(low), math.log(high)
            specs.append(Parameter(key, "", start, (start[0] - _DECADES, start[1] + _DECADES), log=True))
        else:
            room = 1e3 * (high - low)
            specs.append(Parameter(key, "", (low, high), (low - room, high + room)))
    if not specs:
        raise FitError("parameter_range", "parameters: a law needs at least one")

    def terms(shape, rows):
        values = {spec.name: jnp.exp(shape[i]) if spec.log else shape[i] for i, spec in enumerate(specs)}
        given = {column: rows[column] for column in inputs}
        try:
            loss = jnp.asarray(function(values, given))
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise FitError("user_law", f"{name}: {type(error).__name__}: {reason}") from error
        shape = given[inputs[0]].shape
        if loss.shape != shape:
            raise FitError("user_law", f"{name}: must return one {target} for each of the runs, of shape {shape}, got "
                           f"shape {loss.shape}")  # fmt: skip
        return (jnp.log(loss) if residuals == "log" else loss)[None, :]

    columns = tuple(Column(column, "", "plain", lowest=0.0) for column in inputs)
    observed = Column(target, "", "log" if residuals == "log" else "plain")
    return Form(name, "a user's law", "as the function says", columns, observed, (), tuple(specs), terms,
                positive=residuals == "log")  # fmt: skip
