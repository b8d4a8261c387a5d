"""Pre-training decides what can be answered, RL and samples how often it is."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.errors import LawError
from allocator.laws.checks import is_known, require_positive
from allocator.laws.joint import JointFactor
from allocator.laws.law import Point, PretrainingLaw, RlAxis


class Coverage(eqx.Module):
    r"""Coverage form, in error rate.

    $$\text{error} = 1 - (1 - E - b)(1 - (S_0 + c\,(E + b))\, h(R, k)),\quad b = \text{base}(N, D)$$

    The pre-training law must be in error rate, 0 <= E + b < 1: one fitted so, or one in nats through `ErrorLaw`.
    S0 + c (E + b) is the share of reachable answers that one sample without RL misses. No paper gives S0 and c.
    """

    pretraining: PretrainingLaw
    joint: JointFactor
    guess: float  # S0
    slope: float  # c

    def __check_init__(self):
        require_positive(self, "guess", "slope", zero=True)
        if is_known(self.guess) and is_known(self.slope):
            if self.guess + self.slope == 0:
                raise LawError("Coverage.guess and slope: one of them must be > 0")
            if self.guess + self.slope > 1:
                raise LawError(f"Coverage: guess + slope must be <= 1, got {self.guess + self.slope:g}")

    @property
    def floor(self) -> Float[Array, ""] | float:
        """Error that no decision removes."""
        return self.pretraining.floor

    @property
    def rl_axis(self) -> RlAxis:
        """Coordinate of RL tokens."""
        return self.joint.rl_axis

    def log_reducible(self, point: Point) -> Float[Array, ""]:
        """Natural log of error - E = b + (1 - E - b) (S0 + c (E + b)) h, a sum of positive terms."""
        log_base = self.pretraining.log_reducible(point.log_n, point.log_d)
        reached = self.floor + jnp.exp(log_base)
        missed = jnp.log1p(-reached) + jnp.log(self.guess + self.slope * reached)
        return jnp.logaddexp(log_base, missed + self.joint.log_factor(point))
