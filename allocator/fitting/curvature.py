"""How sharply the data determine the parameters, to first order."""

import jax
import jax.numpy as jnp
import numpy as np

from allocator.fitting.form import Form
from allocator.fitting.scaled import Scaled


def jacobian(form: Form, scaled: Scaled, theta: np.ndarray) -> np.ndarray:
    """Derivative of each prediction with respect to each estimated coordinate."""
    return np.asarray(jax.jacfwd(lambda point: form.predict(point, scaled.rows))(jnp.asarray(theta)))


def condition_number(form: Form, scaled: Scaled, theta: np.ndarray, given: np.ndarray) -> float:
    """Ratio of the largest to the smallest singular value of the Jacobian, each column scaled to length 1."""
    columns = jacobian(form, scaled, theta)[:, ~given]
    lengths = np.linalg.norm(columns, axis=0)
    if not lengths.size or (lengths == 0).any():
        return float("inf")
    singular = np.linalg.svd(columns / lengths, compute_uv=False)
    return float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")
