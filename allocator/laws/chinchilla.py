"""Pre-training loss as a sum of two power laws."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import require_positive


class Chinchilla(eqx.Module):
    r"""Loss after pre-training, in nats per token.

    $$L_0(N, D) = E + A N^{-\alpha} + B D^{-\beta}$$

    Source of the form: Hoffmann et al., arXiv 2203.15556, eq. 2; constants live in `fits/`.
    N counts active parameters, embeddings included; D counts tokens seen, repeats included.
    """

    e: float  # irreducible loss, nats/token
    a: float  # nats/token at N = 1
    b: float  # nats/token at D = 1
    alpha: float
    beta: float

    def __check_init__(self):
        require_positive(self, "a", "b", "alpha", "beta")
        require_positive(self, "e", zero=True)

    @property
    def floor(self) -> float:
        """Loss that no N and D remove, nats/token."""
        return self.e

    def log_reducible(self, log_n: Float[Array, ""], log_d: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of L0 - E; convex in its arguments, which is what certifies an optimum."""
        return jnp.logaddexp(jnp.log(self.a) - self.alpha * log_n, jnp.log(self.b) - self.beta * log_d)

    def log_optimal_tokens(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the tokens that make N compute-optimal when serving is free: both elasticities equal."""
        return (jnp.log(self.beta * self.b / (self.alpha * self.a)) + self.alpha * log_n) / self.beta

    def size_exponents(self) -> tuple[float, float]:
        """(alpha, beta): the log-slopes of L0 - E in N and in D where the other term is negligible."""
        return self.alpha, self.beta


def equal_cost_exponent(alpha: float, beta: float) -> float:
    """Exponent of RL and test time that makes three equal cost shares optimal: alpha beta / (alpha + 3 beta)."""
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        return math.nan
    return alpha * beta / (alpha + 3 * beta)
