"""Repeated data: tokens seen several times count for less than fresh ones."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import require_positive
from allocator.laws.law import PretrainingLaw

# Muennighoff et al., arXiv 2305.16264, value in the authors' repository (huggingface/datablations, README).
R_STAR = 15.387756


def log_effective_tokens(
    log_d: Float[Array, ""], log_unique: Float[Array, ""], r_star: Float[Array, ""]
) -> Float[Array, ""]:
    r"""Log of the fresh tokens that D seen tokens are worth when only U are unique.

    $$D' = U + U R^* (1 - e^{-(D/U - 1)/R^*})\quad(D > U),\qquad D' = D\quad(D \le U)$$

    Source: Muennighoff et al., arXiv 2305.16264, eq. 5 (the data half; the size half is not used).
    """
    log_epochs = log_d - log_unique
    repeated = log_epochs > 0
    # The unused branch of `where` must stay finite, or its gradient would turn into NaN.
    epochs = jnp.exp(jnp.where(repeated, log_epochs, 0.0))
    log_worth = jnp.log1p(-r_star * jnp.expm1(-(epochs - 1) / r_star))
    return log_unique + jnp.where(repeated, log_worth, log_epochs)


class Repeated(eqx.Module):
    """A pre-training law over seen tokens when `unique_tokens` is all there is."""

    law: PretrainingLaw
    unique_tokens: float
    r_star: float = R_STAR

    def __check_init__(self):
        require_positive(self, "unique_tokens", "r_star")

    @property
    def floor(self) -> Float[Array, ""] | float:
        """Loss that no N and D remove, nats/token."""
        return self.law.floor

    def log_reducible(self, log_n: Float[Array, ""], log_d: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of L0(N, D') - E."""
        log_unique = jnp.log(jnp.asarray(self.unique_tokens, float))
        return self.law.log_reducible(log_n, log_effective_tokens(log_d, log_unique, jnp.asarray(self.r_star, float)))

    def log_optimal_tokens(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """Chinchilla's tokens for N on fresh data: over-training is measured against a data-rich world."""
        return self.law.log_optimal_tokens(log_n)

    def size_exponents(self) -> tuple[float, float]:
        """(alpha, beta) of the law on fresh data."""
        return self.law.size_exponents()
