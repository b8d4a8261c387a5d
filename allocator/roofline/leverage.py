"""Efficiency leverage of experts: the FLOP of a dense model over those of an MoE model of the same loss."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import require_positive


class ExpertLeverage(eqx.Module):
    r"""Tian et al. (2025), arXiv 2507.17702, eq. 13 and table 2; A is the active share, G the granularity, C in FLOP.

    $$EL = \hat A^{\,a + d \log_{10} C + \gamma \log_2^2 G + \beta \log_2 G},\quad
      \hat A^{-1} = \frac{1}{A + (1/A_0 - 1/A_1)^{-1}} + \frac{1}{A_1}$$

    The bases of the logarithms are not printed; these give the paper's "exceeding 7x" and its optimal G of 8 to 12.
    """

    a: float = 1.23
    d: float = -7.61e-2
    gamma: float = 1.67e-2
    beta: float = -0.117
    a_start: float = 1.63e-2
    a_max: float = 5.28e16

    def __check_init__(self):
        require_positive(self, "gamma", "a_start", "a_max")

    def __call__(self, active_share, granularity, flop) -> Float[Array, ""]:
        """Leverage, dimensionless."""
        saturated = 1 / (1 / (active_share + 1 / (1 / self.a_start - 1 / self.a_max)) + 1 / self.a_max)
        g = jnp.log2(granularity)
        return saturated ** (self.a + self.d * jnp.log10(flop) + self.gamma * g**2 + self.beta * g)

    def best_granularity(self) -> Float[Array, ""]:
        """Granularity of the largest leverage (the base is < 1), 2^(-beta/(2 gamma))."""
        return jnp.exp2(-self.beta / (2 * jnp.asarray(self.gamma)))
