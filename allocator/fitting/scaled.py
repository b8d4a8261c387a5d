"""Runs in units of their own, so that a fit does not depend on the units of the table."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from allocator.fitting.form import Column, Form, Rows
from allocator.fitting.runs import Runs


class Scaled(NamedTuple):
    """Everything numeric that a fit needs; a pytree."""

    rows: Rows
    target: Float[Array, " rows"]  # its log less `offset` for a positive form, else divided by `unit`
    unit_rows: Rows  # the point at which coefficient j is read, in row j
    columns: Mapping[str, tuple[Float[Array, ""], Float[Array, ""]]]  # centre and spread by input
    shape_scales: Float[Array, " shape"]  # physical value of a shape parameter = estimate x scale
    offset: Float[Array, ""]
    unit: Float[Array, ""]


def scale(form: Form, runs: Runs) -> Scaled:
    """Scale each column by what its own values say."""
    columns = {column.name: _centre_and_spread(column, runs.columns[column.like or column.name])
               for column in form.inputs}  # fmt: skip
    count = max(len(form.linear), 1)
    unit = {column.name: np.full(count, form.unit_point if column.scaling in ("log", "plain") else 0.0)
            for column in form.inputs}  # fmt: skip
    if form.sizes:
        unit["n_active"] = np.array(form.sizes)
    spreads = {column.name: np.exp(columns[column.name][0]) if column.scaling == "log" else columns[column.name][1]
               for column in form.inputs}  # fmt: skip
    shape_scales = [
        spreads[parameter.scale_of] ** parameter.power if parameter.scale_of else 1.0 for parameter in form.shape
    ]
    target = runs.columns[form.target.name]
    # Where no coefficient can take up the target's unit, it stays as it is.
    offset = float(np.mean(np.log(target))) if form.positive and form.homogeneous else 0.0
    has_unit = form.linear and not form.positive and form.target.highest is None  # a rate has none
    target_unit = float(np.median(np.abs(target))) if has_unit else 1.0
    scaled = np.log(target) - offset if form.positive else target / target_unit
    return Scaled(
        scale_rows(form, columns, runs.columns),
        jnp.asarray(scaled),
        scale_rows(form, columns, unit),
        {name: (jnp.asarray(centre), jnp.asarray(spread)) for name, (centre, spread) in columns.items()},
        jnp.asarray(shape_scales, float).reshape(len(form.shape)),
        jnp.asarray(offset),
        jnp.asarray(target_unit),
    )


def scale_rows(
    form: Form, columns: Mapping[str, tuple[ArrayLike, ArrayLike]], values: Mapping[str, np.ndarray]
) -> dict[str, Array]:
    """Inputs of a form as its terms take them, from values in the units of the table."""
    rows = {}
    for column in form.inputs:
        centre, spread = columns[column.name]
        given = np.asarray(values[column.name], float)
        rows[column.name] = jnp.asarray(
            (np.log(given) - centre if column.scaling == "log" else given - centre) / spread
        )
    if form.sizes:  # the coefficient that belongs to a row
        rows["level"] = jnp.asarray(np.searchsorted(form.sizes, values["n_active"]).astype(float))
    return rows


@partial(jax.jit, static_argnums=0)
def physical(form: Form, theta: Float[Array, " parameters"], scaled: Scaled) -> Float[Array, " parameters"]:
    """Parameters in the units of the table, from estimates."""
    m = len(form.linear)
    shape = [
        (jnp.exp(value) if parameter.log else value) * scaled.shape_scales[i]
        for i, (parameter, value) in enumerate(zip(form.shape, theta[m:], strict=True))
    ]
    if m == 0:
        return jnp.stack(shape)
    read = _at_unit(form, theta[m:], scaled)
    if form.positive:
        logs = theta[:m] + read + scaled.offset
        decades = jnp.array([parameter.decades for parameter in form.linear])
        coefficients = jnp.where(decades, logs / jnp.log(10.0), jnp.exp(logs))
    else:
        coefficients = theta[:m] * jnp.abs(read) * scaled.unit
    return jnp.concatenate([coefficients, jnp.stack(shape)]) if shape else coefficients


@partial(jax.jit, static_argnums=0)
def pin(
    form: Form,
    theta: Float[Array, " parameters"],
    scaled: Scaled,
    values: Float[Array, " parameters"],
) -> Float[Array, " parameters"]:
    """Replace the estimates whose physical value is given; NaN in `values` leaves a parameter free."""
    m = len(form.linear)
    known = jnp.isfinite(values)
    given = jnp.where(known, values, 1.0)
    shape = given[m:] / scaled.shape_scales
    if form.shape:
        logs = jnp.array([parameter.log for parameter in form.shape])
        shape = jnp.where(logs, jnp.log(jnp.where(logs, shape, 1.0)), shape)
    shape = jnp.where(known[m:], shape, theta[m:])
    if m == 0:
        return shape
    read = _at_unit(form, shape, scaled)
    if form.positive:
        decades = jnp.array([parameter.decades for parameter in form.linear])
        logs = jnp.where(decades, given[:m] * jnp.log(10.0), jnp.log(jnp.where(decades, 1.0, given[:m])))
        linear = logs - read - scaled.offset
    else:
        linear = given[:m] / (jnp.abs(read) * scaled.unit)
    return jnp.concatenate([jnp.where(known[:m], linear, theta[:m]), shape])


def _at_unit(form: Form, shape: Float[Array, " shape"], scaled: Scaled) -> Float[Array, " terms"]:
    """Each term (its log, for a positive form) at the point where its coefficient is told."""
    if not form.read_at_unit:
        return jnp.ones(len(form.linear))
    return jnp.diagonal(form.terms(shape, scaled.unit_rows))


def _centre_and_spread(column: Column, values: np.ndarray) -> tuple[float, float]:
    match column.scaling:
        case "log":
            return float(np.mean(np.log(values))) if column.centred else 0.0, 1.0
        case "ratio":
            return 0.0, float(np.mean(values)) or 1.0
        case "shifted":
            return float(np.mean(values)), float(np.std(values)) or 1.0
        case _:
            return 0.0, 1.0
