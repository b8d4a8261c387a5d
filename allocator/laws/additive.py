"""RL and test time each remove a loss of their own."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.errors import LawError
from allocator.laws.law import Point, PretrainingLaw, RlAxis
from allocator.laws.rl import NO_RL, PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime


class Additive(eqx.Module):
    r"""Additive form.

    $$L - E = (L_0(N, D) - E) + G_R f(R) + G_k g(k)$$

    A missing term is 0. With test time only this is approach 1 of T^2 (arXiv 2604.01411).
    """

    pretraining: PretrainingLaw
    rl: SaturatingRl | PowerRl | None = None
    test_time: TestTime | None = None

    def __check_init__(self):
        for name, term in (("rl", self.rl), ("test_time", self.test_time)):
            if term is not None and term.scale is None:
                raise LawError(f"Additive.{name}.scale: required, the loss that this term starts from")

    @property
    def floor(self) -> Float[Array, ""] | float:
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
            total = jnp.logaddexp(total, jnp.log(_scale(self.rl)) + self.rl.log_factor(point.rl))
        if self.test_time is not None:
            total = jnp.logaddexp(total, jnp.log(_scale(self.test_time)) + self.test_time.log_factor(point.log_k))
        return total


def _scale(term: SaturatingRl | PowerRl | TestTime):
    """The loss that a term starts from; construction made sure that there is one."""
    assert term.scale is not None
    return term.scale
