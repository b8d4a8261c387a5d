"""MFU of a phase as a function of N, which the optimum feels."""

import equinox as eqx
from jaxtyping import Array, Float

from allocator.roofline.operation import Operation
from allocator.roofline.prefill import prefill_mfu
from allocator.roofline.shape import ShapeFamily
from allocator.roofline.step import decode_mfu
from allocator.roofline.training import training_mfu

_REGIMES = {"decode": decode_mfu, "prefill": prefill_mfu, "training": training_mfu}


class RooflineMfu(eqx.Module):
    """MFU of one regime on given chips, as the family's size varies."""

    family: ShapeFamily
    operation: Operation
    regime: str = eqx.field(static=True)  # decode, prefill or training

    def __call__(self, log_n: Float[Array, ""]) -> Float[Array, ""]:
        """MFU at N = exp(log_n)."""
        return _REGIMES[self.regime](self.family.at(log_n), self.operation)
