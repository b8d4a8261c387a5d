"""Pre-training loss that separates over-training from compute."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import require_positive


class Gadre(eqx.Module):
    r"""Loss after pre-training, in nats per token.

    $$L_0 = E + (p M^h + q M^{-h})\, C^{-h},\quad M = D/N,\quad C = 6 N D$$

    Source: Gadre et al., arXiv 2403.08540; constants live in `fits/`.
    """

    e: float  # irreducible loss, nats/token
    p: float
    q: float
    h: float

    def __check_init__(self):
        require_positive(self, "p", "q", "h")
        require_positive(self, "e", zero=True)

    @property
    def floor(self) -> float:
        """Loss that no N and D remove, nats/token."""
        return self.e

    def log_reducible(self, log_n: Float[Array, ""], log_d: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of L0 - E; it equals p 6^-h N^-2h + q 6^-h D^-2h, hence convex in its arguments."""
        log_six = math.log(6.0)
        return jnp.logaddexp(
            jnp.log(self.p) - self.h * (2 * log_n + log_six), jnp.log(self.q) - self.h * (2 * log_d + log_six)
        )

    def log_optimal_tokens(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the tokens that make N compute-optimal: M = (q/p)^(1/2h) at every size."""
        return log_n + jnp.log(self.q / self.p) / (2 * self.h)

    def size_exponents(self) -> tuple[float, float]:
        """Both log-slopes are 2 h."""
        return 2 * self.h, 2 * self.h
