"""A roofline as curves: FLOP/s against intensity, time and cost against batch."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from allocator.roofline.serving import expected_step_s
from allocator.roofline.step import StepTime, decode_step
from allocator.rooflines import Roofline
from allocator.units import SECONDS_PER_HOUR


def roof_points(result: Roofline) -> pd.DataFrame:
    """Intensity and FLOP/s per chip of decode at several batches and of the prefill; labels name asked and largest."""
    op, peak, bandwidth = result.operation, result.operation.chip.peak_flop_per_s, result.operation.chip.hbm_bytes_per_s
    rows = []

    def add(phase: str, label: str, step: StepTime, seconds: float) -> None:
        flop, moved = float(step.compute_s) * peak, float(step.memory_s) * bandwidth
        rows.append({"phase": phase, "label": label, "intensity": flop / moved, "flop_per_s": flop / seconds})

    most, least = max(result.max_batch, 1), float(result.layout.data(op.chips))  # a sequence a group, at least
    spread = [round(least * (most / least) ** (i / 3)) for i in range(4)]
    apart = [batch for batch in spread if batch == most or not 1 / 3 < batch / op.batch < 3]  # from the labelled one
    for batch in sorted({*apart, int(op.batch)}):
        step, expected = _step(result, jnp.asarray(float(batch)))
        remarks = [word for word, at in (("asked", op.batch), ("largest", most)) if batch == at]
        label = f"batch {batch:,} ({', '.join(remarks)})" if remarks else ""
        add("decode, bound", label, step, float(step.step_s))
        add("decode, expected", "", step, float(expected))
    add(f"prefill of {result.prompt:,.0f} tokens, bound", "", result.prefill, float(result.prefill.step_s))
    return pd.DataFrame(rows)


def batch_curve(result: Roofline, points: int = 121) -> pd.DataFrame:
    """Time and cost per token against batch, beyond the largest that fits; USD, or chip-seconds without a price."""
    op = result.operation
    critical = result.critical_batch if math.isfinite(result.critical_batch) else 0.0
    last = max(64.0, 2.0 * result.max_batch, 2.0 * op.batch, min(3.0 * critical, 30.0 * result.max_batch))
    batch = np.unique(np.append(np.geomspace(1.0, last, points), [result.max_batch, op.batch]))

    @jax.jit
    def curve(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(batch: jax.Array) -> tuple[jax.Array, jax.Array]:
            step, expected = _step(result, batch)
            return step.step_s, expected

        return jax.vmap(one)(at)

    bound, expected = (np.asarray(part) for part in curve(jnp.asarray(batch)))
    per = cost_rate(result)[0] * op.chips * 1e6
    return pd.DataFrame({"batch": batch, "fits": batch <= result.max_batch, "tpot_ms": 1e3 * bound,
                         "expected_ms": 1e3 * expected, "cost": per * bound / batch,
                         "expected_cost": per * expected / batch})  # fmt: skip


def floors(result: Roofline) -> dict[str, float]:
    """What no batch goes below: the time of reading one sequence's weights, and the cost of a batch without end."""
    op = result.operation
    alone = decode_step(result.shape, eqx.tree_at(lambda o: o.batch, op, 1.0), result.layout)
    endless = decode_step(result.shape, eqx.tree_at(lambda o: o.batch, op, 1e12), result.layout)
    longest = max(float(endless.compute_s), float(endless.cache_s), float(endless.network_s)) / 1e12
    rate, unit = cost_rate(result)
    return {"tpot_ms": 1e3 * float(alone.weights_s), unit: rate * op.chips * 1e6 * longest}


def cost_rate(result: Roofline) -> tuple[float, str]:
    """Cost of a chip and second, and its unit."""
    price = result.operation.chip.usd_per_chip_hour
    return (price / SECONDS_PER_HOUR, "USD") if math.isfinite(price) else (1.0, "chip-seconds")


def _step(result: Roofline, batch: jax.Array) -> tuple[StepTime, jax.Array]:
    """Terms and expected time of a decode step at a batch."""
    op = eqx.tree_at(lambda o: o.batch, result.operation, batch)
    prompts = 0.0 if result.output is None else batch / result.output
    expected = expected_step_s(result.shape, op, result.layout, prompt=result.prompt, prompts_per_step=prompts)
    return decode_step(result.shape, op, result.layout), expected
