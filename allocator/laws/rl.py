"""Reinforcement learning as a factor on reducible loss.

No paper publishes this law together with a pre-training law: exponents and scales are assumed or fitted by the user.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import require_positive


class SaturatingRl(eqx.Module):
    r"""RL factor that is finite without RL.

    $$f(R) = (1 + R/R_0)^{-\rho}$$

    Coordinate: r = log(1 + R/R0) >= 0, in which log f is linear and R = 0 is an ordinary bound.
    """

    exponent: float  # rho, asymptotic slope
    scale_tokens: float  # R0, tokens
    scale: float | None = None  # loss removed by infinite RL in the additive form, in the law's unit

    def __check_init__(self):
        require_positive(self, "exponent", zero=True)
        require_positive(self, "scale_tokens", "scale")

    @property
    def allows_zero(self) -> bool:
        """R = 0 is lawful."""
        return True

    def log_factor(self, rl: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of f."""
        return -self.exponent * rl

    def tokens(self, rl: Float[Array, ""]) -> Float[Array, ""]:
        """RL tokens at coordinate r."""
        return self.scale_tokens * jnp.expm1(rl)

    def coordinate(self, tokens: Float[Array, ""]) -> Float[Array, ""]:
        """Coordinate of RL tokens >= 0."""
        return jnp.log1p(tokens / self.scale_tokens)


class PowerRl(eqx.Module):
    r"""Pure power of RL tokens.

    $$f(R) = (R/R_1)^{-\rho}$$

    Coordinate: r = log(R/R1). Infinite at R = 0, so some RL is always bought.
    """

    exponent: float  # rho
    unit_tokens: float  # R1, tokens at which f = 1
    scale: float | None = None  # loss at R1 in the additive form, in the law's unit

    def __check_init__(self):
        require_positive(self, "exponent", "unit_tokens", "scale")

    @property
    def allows_zero(self) -> bool:
        """R = 0 has infinite loss."""
        return False

    def log_factor(self, rl: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of f."""
        return -self.exponent * rl

    def tokens(self, rl: Float[Array, ""]) -> Float[Array, ""]:
        """RL tokens at coordinate r."""
        return self.unit_tokens * jnp.exp(rl)

    def coordinate(self, tokens: Float[Array, ""]) -> Float[Array, ""]:
        """Coordinate of RL tokens > 0."""
        return jnp.log(tokens / self.unit_tokens)


# The axis of a law without RL: R = 0 is the only decision, so its scale is immaterial.
NO_RL = SaturatingRl(exponent=0.0, scale_tokens=1.0)
