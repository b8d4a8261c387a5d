"""Any loss that a user can write in JAX."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.laws.checks import require_number
from allocator.laws.law import Point, RlAxis
from allocator.laws.rl import PowerRl, SaturatingRl


class UserLaw(eqx.Module):
    """Loss `function(n_active, d_pretrain, d_rl, k)`, twice differentiable in JAX, in any unit.

    `floor` is a loss that the function never reaches: the solver works on log(loss - floor), where power laws are
    straight; 0 always works for a positive loss. `rl_scale_tokens` declares that the function is finite at
    d_rl = 0 and says on what scale it changes; without it, d_rl > 0 is assumed.
    An `equinox.Module` as function keeps its numbers traceable.
    """

    function: Callable[..., Array]
    lower_loss: float
    axis: SaturatingRl | PowerRl

    def __init__(self, function: Callable[..., Array], *, floor: float = 0.0, rl_scale_tokens: float | None = None):
        # A plain function is static; a module is a pytree whose numbers stay traceable.
        self.function = function if isinstance(function, eqx.Module) else Partial(function)  # pyright: ignore
        require_number("UserLaw.floor", floor, zero=True)
        self.lower_loss = floor
        if rl_scale_tokens is None:
            self.axis = PowerRl(exponent=1.0, unit_tokens=1.0)
        else:
            self.axis = SaturatingRl(exponent=1.0, scale_tokens=rl_scale_tokens)

    @property
    def floor(self) -> float:
        """Loss that no decision removes."""
        return self.lower_loss

    @property
    def rl_axis(self) -> RlAxis:
        """Coordinate of RL tokens."""
        return self.axis

    def log_reducible(self, point: Point) -> Float[Array, ""]:
        """Natural log of loss - floor."""
        loss = self.function(
            jnp.exp(point.log_n), jnp.exp(point.log_d), self.axis.tokens(point.rl), jnp.exp(point.log_k)
        )
        return jnp.log(loss - self.lower_loss)
