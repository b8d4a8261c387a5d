"""Gradients against central differences."""

import jax
import jax.numpy as jnp
import pytest


def assert_slopes(function, x: jnp.ndarray, *, rel: float = 1e-6, abs: float = 1e-8, h: float = 1e-5) -> None:
    """The compiled gradient of a scalar function is that of its differences, in every coordinate."""
    slope = jax.jit(jax.grad(function))(x)
    for i in range(len(x)):
        want = (float(function(x.at[i].add(h))) - float(function(x.at[i].add(-h)))) / (2 * h)
        assert float(slope[i]) == pytest.approx(want, rel=rel, abs=abs)
