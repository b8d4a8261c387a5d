"""How far from its bound real serving runs: constants fitted to measurements, and the spread that they leave."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.roofline.step import StepTime


class Band(eqx.Module):
    """The 10% and 90% quantiles of measured over predicted time, of so many rows."""

    low: float
    high: float
    rows: int = eqx.field(static=True)


class Calibration(eqx.Module):
    r"""Measured time per output token against the terms of a step.

    $$TPOT = t_0 \cdot \text{layers} + \max(t_{mem}/e_m,\ t_{comp}/e_c,\ t_{net}) + t_{prefill}/e_c$$

    `chips` and `models` are those of the rows it was fitted to, by their catalogue names.
    """

    layer_latency_s: float
    memory_efficiency: float
    compute_efficiency: float
    together: Band  # prompts are read on the chips that decode
    apart: Band  # on others
    chips: tuple[str, ...] = eqx.field(static=True)
    models: tuple[str, ...] = eqx.field(static=True)
    source: str = eqx.field(static=True)

    def step_s(
        self, step: StepTime, layers: Float[Array, ""] | float, prefill_s: Float[Array, ""] | float = 0.0
    ) -> Float[Array, ""]:
        """Expected time of a step; `prefill_s` is the ideal compute time of prompts that share it."""
        busy = jnp.maximum(step.memory_s / self.memory_efficiency, step.compute_s / self.compute_efficiency)
        fixed = self.layer_latency_s * layers + step.latency_s
        return fixed + jnp.maximum(busy, step.network_s) + prefill_s / self.compute_efficiency


# Three constants for all chips and models, fitted by scripts/fit_serving.py; `allocator roofline check
# serving_measurements` gives the errors.
SERVING = Calibration(
    layer_latency_s=0.9e-4,
    memory_efficiency=0.67,
    compute_efficiency=0.43,
    together=Band(0.715, 1.46, 1728),
    apart=Band(0.98, 1.96, 186),
    chips=("b200-sxm", "gb200-nvl72", "h100-sxm", "h200-sxm"),
    models=("deepseek-v3", "gpt-oss-120b", "llama-3.1-70b", "minimax-m2", "qwen3-235b-a22b", "qwen3-32b"),
    source="1,914 rows of measured serving (AIConfigurator silicon sample): six models on H100, H200, B200 and GB200",
)
