"""Downstream error as a function of pre-training loss."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.errors import LawError
from allocator.laws.checks import require_positive
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
        require_positive(self, "epsilon", "kappa", "gamma")
        if isinstance(self.epsilon, float) and self.epsilon > 1:
            raise LawError(f"LossToError.epsilon: an error rate must be <= 1, got {self.epsilon}")

    def error(self, loss: Float[Array, ""]) -> Float[Array, ""]:
        """Error rate at a loss in nats/token."""
        return self.epsilon - self.kappa * jnp.exp(-self.gamma * loss)


class ErrorLaw(eqx.Module):
    """A pre-training law in nats/token seen through a link: a pre-training law in error rate."""

    law: PretrainingLaw
    link: LossToError

    def __check_init__(self):
        floor = self.floor
        if isinstance(floor, float) and not 0 <= floor < 1:
            raise LawError(f"ErrorLaw: the error at the law's floor must be in [0, 1), got {floor:.4g}")

    @property
    def floor(self) -> float:
        """Error that no N and D remove."""
        return self.link.epsilon - self.link.kappa * math.exp(-self.link.gamma * self.law.floor)

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
