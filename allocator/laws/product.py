"""RL and test time multiply what pre-training leaves."""

import equinox as eqx
from jaxtyping import Array, Float

from allocator.laws.law import Point, PretrainingLaw, RlAxis
from allocator.laws.rl import NO_RL, PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime


class Product(eqx.Module):
    r"""Product form.

    $$L - E = (L_0(N, D) - E)\, f(R)\, g(k)$$

    A missing factor is 1. No paper measures this joint form; it is the simplest with the literature's marginals.
    """

    pretraining: PretrainingLaw
    rl: SaturatingRl | PowerRl | None = None
    test_time: TestTime | None = None

    @property
    def floor(self) -> float:
        """Loss that no decision removes."""
        return self.pretraining.floor

    @property
    def rl_axis(self) -> RlAxis:
        """Coordinate of RL tokens."""
        return NO_RL if self.rl is None else self.rl

    def log_reducible(self, point: Point) -> Float[Array, ""]:
        """Natural log of L - E."""
        total = self.pretraining.log_reducible(point.log_n, point.log_d)
        if self.rl is not None:
            total = total + self.rl.log_factor(point.rl)
        if self.test_time is not None:
            total = total + self.test_time.log_factor(point.log_k)
        return total
