"""RL and test time remove one sampling loss that they share."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.laws.checks import require_positive
from allocator.laws.joint import JointFactor
from allocator.laws.law import Point, PretrainingLaw, RlAxis


class Shared(eqx.Module):
    r"""Shared form: N and D set what can be reached, RL and samples reach it.

    $$L - E = (L_0(N, D) - E) + G\, h(R, k)$$

    G is the sampling loss of one sample without RL, in the law's unit. No paper gives it.
    """

    pretraining: PretrainingLaw
    joint: JointFactor
    scale: float  # G

    def __check_init__(self):
        require_positive(self, "scale")

    @property
    def floor(self) -> Float[Array, ""] | float:
        """Loss that no decision removes."""
        return self.pretraining.floor

    @property
    def rl_axis(self) -> RlAxis:
        """Coordinate of RL tokens."""
        return self.joint.rl_axis

    def log_reducible(self, point: Point) -> Float[Array, ""]:
        """Natural log of L - E."""
        sampling = jnp.log(self.scale) + self.joint.log_factor(point)
        return jnp.logaddexp(self.pretraining.log_reducible(point.log_n, point.log_d), sampling)
