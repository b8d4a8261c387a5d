"""How sharply the data determine the parameters, to first order."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from allocator.fitting.form import Form
from allocator.fitting.scaled import Scaled


def jacobian(form: Form, scaled: Scaled, theta: np.ndarray) -> np.ndarray:
    """Derivative of each prediction with respect to each estimated coordinate."""
    return np.asarray(_jacobian(form, jnp.asarray(theta), scaled))


@partial(jax.jit, static_argnums=0)
def _jacobian(form, theta, scaled):
    return jax.jacfwd(form.predict)(theta, scaled.rows)


def condition_number(form: Form, scaled: Scaled, theta: np.ndarray, given: np.ndarray) -> float:
    """Ratio of the largest to the smallest singular value of the Jacobian, each column scaled to length 1."""
    if form.log_likelihood is not None:
        return float("nan")  # its mean says little about its parameters
    columns = jacobian(form, scaled, theta)[:, ~given]
    lengths = np.linalg.norm(columns, axis=0)
    if not lengths.size or (lengths == 0).any():
        return float("inf")
    singular = np.linalg.svd(columns / lengths, compute_uv=False)
    return float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")
