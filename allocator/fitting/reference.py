"""The compute-optimal model that a fit implies at a reference budget C = 6 N D."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator.fitting.form import Form
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.gadre import Gadre
from allocator.laws.law import PretrainingLaw

GOPHER_FLOP = 5.76e23  # of Hoffmann et al., arXiv 2203.15556: the budget at which fits of one data set are compared


def pretraining_law(form: Form, values: Float[Array, " parameters"]) -> PretrainingLaw | None:
    """L0(N, D) on fresh data from fitted values, where the form has one."""
    if form.pretraining is None:
        return None
    by_name = dict(zip(form.names, values, strict=True))
    if form.pretraining == "gadre":
        return Gadre(*(by_name[name] for name in ("E", "p", "q", "h")))
    return Chinchilla(*(by_name[name] for name in ("E", "A", "B", "alpha", "beta")))


def has_optimum(form: Form) -> bool:
    """Whether the form implies a compute-optimal model."""
    inputs = [column.name for column in form.inputs]
    return form.pretraining is not None or _is_free(form, inputs)


def _is_free(form: Form, inputs: list[str]) -> bool:
    return inputs == ["n_active", "d_tokens"] and all(column.scaling == "plain" for column in form.inputs)


def log_optimum(form: Form, values: Float[Array, " parameters"], at_flop: float) -> Float[Array, "2"]:
    """Logs of N* and D* where 6 N D = `at_flop` and the loss is least."""
    log_product = math.log(at_flop / 6)
    law = pretraining_law(form, values)
    if law is None:
        log_n = _search(form, values, log_product)
    else:
        # Both laws' optimal tokens are a power of N: log D = first + slope log N.
        first = law.log_optimal_tokens(jnp.zeros(()))
        slope = law.log_optimal_tokens(jnp.ones(())) - first
        log_n = (log_product - first) / (1 + slope)
    return jnp.stack([log_n, log_product - log_n])


def log_optima(form: Form, values: np.ndarray, at_flop: float) -> np.ndarray:
    """Logs of (N*, D*) for each row of fitted values."""
    return np.asarray(_log_optima(form, jnp.asarray(values), at_flop))


@partial(jax.jit, static_argnums=(0, 2))
def _log_optima(form, values, at_flop):
    return jax.vmap(lambda row: log_optimum(form, row, at_flop))(values)


def _search(form: Form, values, log_product: float, steps: int = 90):
    """Golden section over log N, for a user's law."""
    theta = jnp.stack([jnp.log(value) if p.log else value for p, value in zip(form.shape, values, strict=True)])
    ratio = (math.sqrt(5) - 1) / 2

    def loss(log_n):
        rows = {"n_active": jnp.exp(log_n)[None], "d_tokens": jnp.exp(log_product - log_n)[None]}
        return form.predict(theta, rows)[0]

    def narrow(_, ends):
        low, high = ends
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        lower = loss(left) < loss(right)
        return jnp.where(lower, low, left), jnp.where(lower, right, high)

    low, high = jax.lax.fori_loop(0, steps, narrow, (jnp.asarray(0.0), jnp.asarray(log_product)))
    return (low + high) / 2
