"""The RL and the test-time factor of a law, together."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.errors import LawError
from allocator.laws.checks import require_positive
from allocator.laws.law import Point, RlAxis
from allocator.laws.overlap import log_joint_factor
from allocator.laws.rl import NO_RL, PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime


class JointFactor(eqx.Module):
    """h(R, k): the product f(R) g(k), or their overlap; a missing factor is 1.

    `overlap` is None for a plain product, else om > 0 of `log_joint_factor`, which holds for f <= 1 and g <= 1 only:
    it needs the RL factor that is finite at R = 0, and k >= 1.
    """

    rl: SaturatingRl | PowerRl | None = None
    test_time: TestTime | None = None
    overlap: float | None = None

    def __check_init__(self):
        require_positive(self, "overlap")
        if self.overlap is not None and isinstance(self.rl, PowerRl):
            raise LawError("JointFactor.overlap: needs the RL factor (1 + R/scale_tokens)^-exponent, not a pure power")

    @property
    def rl_axis(self) -> RlAxis:
        """Coordinate of RL tokens."""
        return NO_RL if self.rl is None else self.rl

    def log_factor(self, point: Point) -> Float[Array, ""]:
        """Natural log of h."""
        log_f = jnp.zeros(()) if self.rl is None else self.rl.log_factor(point.rl)
        log_g = jnp.zeros(()) if self.test_time is None else self.test_time.log_factor(point.log_k)
        if self.overlap is None or self.rl is None or self.test_time is None:
            return log_f + log_g
        return log_joint_factor(log_f, log_g, self.overlap)
