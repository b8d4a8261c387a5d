"""How far from its bound real serving runs: constants fitted to measurements, and the error that they leave."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.roofline.step import StepTime


class Calibration(eqx.Module):
    r"""Measured time per output token against the terms of a step.

    $$TPOT = t_0 \cdot \text{layers} + \max(t_{mem}/e_m,\ t_{comp}/e_c,\ t_{net}) + t_{prefill}/e_c$$

    `low` and `high` are the 10% and 90% quantiles of measured over predicted time on the rows it was fitted to.
    """

    layer_latency_s: float
    memory_efficiency: float
    compute_efficiency: float
    low: float
    high: float
    source: str = eqx.field(static=True)

    def step_s(self, step: StepTime, layers: Float[Array, ""] | float, prefill_s=0.0) -> Float[Array, ""]:
        """Expected time of a decode step; `prefill_s` is the ideal compute time of prompts that share the step."""
        busy = jnp.maximum(step.memory_s / self.memory_efficiency, step.compute_s / self.compute_efficiency)
        fixed = self.layer_latency_s * layers + step.latency_s
        return fixed + jnp.maximum(busy, step.network_s) + prefill_s / self.compute_efficiency


# Three constants for all chips and models; `allocator roofline check serving_measurements` gives the errors.
SERVING = Calibration(
    layer_latency_s=1.0e-4,
    memory_efficiency=0.65,
    compute_efficiency=0.36,
    low=0.67,
    high=1.63,
    source="1,936 rows of measured serving (AIConfigurator silicon sample): six models on H100, H200, B200 and GB200, "
    "median error 23%",
)
