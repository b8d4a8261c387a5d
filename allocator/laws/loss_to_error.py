"""Downstream error as a function of pre-training loss."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.laws.checks import require_number, require_positive
from allocator.laws.law import PretrainingLaw


class LossToError(eqx.Module):
    r"""Top-1 error from loss.

    $$\epsilon(L_0) = \epsilon_\infty - \kappa e^{-\gamma L_0}$$

    Source: Gadre et al., arXiv 2403.08540, eq. 5; constants live in `fits/`.
    """

    epsilon: float  # error at large loss
    kappa: float
    gamma: float  # token/nat

    def __check_init__(self):
        require_positive(self, "kappa", "gamma")
        require_positive(self, "epsilon", at_most=1.0)

    def error(self, loss: Float[Array, ""]) -> Float[Array, ""]:
        """Error rate at a loss in nats/token."""
        return self.epsilon - self.kappa * jnp.exp(-self.gamma * loss)


class ErrorLaw(eqx.Module):
    """A pre-training law in nats/token seen through a link: a pre-training law in error rate."""

    law: PretrainingLaw
    link: LossToError

    def __check_init__(self):
        require_number("ErrorLaw.floor", self.floor, zero=True, at_most=1.0)

    @property
    def floor(self) -> Float[Array, ""]:
        """Error that no N and D remove."""
        return self.link.error(jnp.asarray(self.law.floor, float))

    def log_reducible(self, log_n: Float[Array, ""], log_d: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of the error above its floor, kappa e^(-gamma E) (1 - e^(-gamma (L0 - E)))."""
        link = self.link
        above = jnp.exp(self.law.log_reducible(log_n, log_d))
        return jnp.log(link.kappa) - link.gamma * self.law.floor + jnp.log(-jnp.expm1(-link.gamma * above))

    def log_optimal_tokens(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """The link is monotone, so Chinchilla's tokens are those of the law in nats."""
        return self.law.log_optimal_tokens(log_n)

    def size_exponents(self) -> tuple[float, float]:
        """Where the loss is near its floor the link is linear, so the exponents are those of the law in nats."""
        return self.law.size_exponents()
