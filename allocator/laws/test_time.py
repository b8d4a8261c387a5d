"""Test-time compute as a factor on reducible loss."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.errors import LawError
from allocator.laws.checks import require_positive


class TestTime(eqx.Module):
    r"""Power law in samples (or token-multiples) per query.

    $$g(k) = s + (1 - s) k^{-\gamma}$$

    s is the share of the reducible loss that no verifier recovers. No paper publishes gamma for this form.
    """

    __test__ = False  # not a pytest class, whatever its name suggests

    exponent: float  # gamma
    floor_share: float | None = None  # s; None is 0
    scale: float | None = None  # loss removed by infinite k in the additive form, in the law's unit

    def __check_init__(self):
        require_positive(self, "exponent", "scale")
        require_positive(self, "floor_share", zero=True)
        if isinstance(self.floor_share, (int, float)) and self.floor_share >= 1:
            raise LawError(f"TestTime.floor_share: must be < 1, got {self.floor_share}")

    def log_factor(self, log_k: Float[Array, ""]) -> Float[Array, ""]:
        """Natural log of g."""
        power = -self.exponent * log_k
        if self.floor_share is None:
            return power
        return jnp.logaddexp(jnp.log(self.floor_share), jnp.log1p(-self.floor_share) + power)
