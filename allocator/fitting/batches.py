"""Many descents in one go, on all cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from allocator.fitting.descent import Minimum, Problem, descend
from allocator.fitting.form import Form
from allocator.fitting.losses import Loss
from allocator.fitting.scaled import Scaled

CHUNK = 128  # descents under one vmap: all wait for the slowest, and the working set has to stay in the cache


def descend_all(
    form: Form,
    loss: Loss,
    scaled: Scaled,
    starts: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    targets: np.ndarray | None = None,
    pinned: np.ndarray | None = None,
) -> Minimum:
    """Descend from each start; `weights`, `targets` and `pinned` have a row a start, or one row for all.

    The result does not depend on how the work is cut up: each descent sees its own numbers only.
    """
    count, rows = len(starts), len(scaled.target)
    given = {
        "weights": np.ones((1, rows)) if weights is None else np.atleast_2d(weights),
        "targets": np.asarray(scaled.target)[None] if targets is None else np.atleast_2d(targets),
        "pinned": np.full((1, starts.shape[1]), np.nan) if pinned is None else np.atleast_2d(pinned),
    }

    def run(first: int) -> Minimum:
        index = np.minimum(np.arange(first, first + CHUNK), count - 1)  # always full chunks: one compilation a form
        parts = [jnp.asarray(part[index if len(part) > 1 else np.zeros(CHUNK, int)]) for part in given.values()]
        losses = jnp.asarray(loss.delta, float), jnp.asarray(loss.overestimate, float)
        return jax.block_until_ready(_batch(form, scaled, losses, jnp.asarray(starts[index]), *parts))

    firsts = list(range(0, count, CHUNK))
    done = [run(firsts[0])]  # compiles before the threads start
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done += list(pool.map(run, firsts[1:]))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *done)


@partial(jax.jit, static_argnums=0)
def _batch(form, scaled, loss, starts, weights, targets, pinned):
    def one(start, weight, target, pin):
        return descend(form, Problem(scaled._replace(target=target), weight, pin, *loss), start)

    return jax.vmap(one)(starts, weights, targets, pinned)


def mapped(form: Form, function: Callable, thetas: np.ndarray, scaled: Scaled) -> np.ndarray:
    """Apply function(form, theta, scaled) to each row."""
    return np.asarray(_mapped(form, function, jnp.asarray(thetas), scaled))


@partial(jax.jit, static_argnums=(0, 1))
def _mapped(form, function, thetas, scaled):
    return jax.vmap(lambda theta: function(form, theta, scaled))(thetas)
