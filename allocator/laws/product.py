"""RL and test time multiply what pre-training leaves."""

import equinox as eqx
from jaxtyping import Array, Float

from allocator.laws.joint import JointFactor
from allocator.laws.law import Point, PretrainingLaw, RlAxis
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime


class Product(eqx.Module):
    r"""Product form.

    $$L - E = (L_0(N, D) - E)\, h(R, k)$$

    with h = f g, or their overlap. No paper measures this joint form; it is the simplest with the literature's
    marginals.
    """

    pretraining: PretrainingLaw
    joint: JointFactor

    def __init__(
        self,
        pretraining: PretrainingLaw,
        rl: SaturatingRl | PowerRl | None = None,
        test_time: TestTime | None = None,
        overlap: float | None = None,
    ):
        self.pretraining = pretraining
        self.joint = JointFactor(rl, test_time, overlap)

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
        return self.pretraining.log_reducible(point.log_n, point.log_d) + self.joint.log_factor(point)
