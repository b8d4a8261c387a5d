r"""Where to keep a KV cache between two uses: hold it in a tier of memory, or compute it again.

$$\text{cost}_i(t) = \frac{kv}{C_i}\, p_i\, t + \frac{kv}{bw_i}\, w, \qquad
  \text{recompute} = \frac{(2N + a)\, T}{F e_c}\, w$$

a in FLOP of attention per token of the prompt, kv in bytes, C_i in bytes and p_i in USD/s of the tier, t the hold
time in s, w in USD/s of what waits while the cache comes back: the chip, or the tier alone if the chip has other work.
Lecture, 01:57 to 02:02.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from allocator import precision  # noqa: F401  (float64 before the first array)
from allocator.catalog import Record
from allocator.errors import CatalogError
from allocator.laws.checks import is_known, require_positive
from allocator.roofline.accelerator import Accelerator
from allocator.units import SECONDS_PER_DAY, SECONDS_PER_HOUR


class MemoryTier(eqx.Module):
    """Memory that holds a cache: what it takes, how fast it gives it back, what it costs."""

    capacity_bytes: float
    bytes_per_s: float
    usd_per_s: float
    in_place: bool = eqx.field(static=True, default=False)  # where the chip reads it anyway: nothing to fetch

    def __check_init__(self):
        require_positive(self, "capacity_bytes", "bytes_per_s", "usd_per_s")

    @property
    def drain_s(self) -> Float[Array, ""]:
        """Time to read all of it, C/bw, in s."""
        return jnp.asarray(self.capacity_bytes, float) / self.bytes_per_s

    def hold_usd_per_s(self, cache_bytes: Float[Array, ""] | float) -> Float[Array, ""]:
        """Rent of the cache's share of the tier, USD/s."""
        return jnp.asarray(cache_bytes, float) / self.capacity_bytes * self.usd_per_s

    def fetch_usd(self, cache_bytes: Float[Array, ""] | float, waiting_usd_per_s) -> Float[Array, ""]:
        """Cost of what waits while the cache is read, USD; nothing where it is in place."""
        moved = 0.0 if self.in_place else jnp.asarray(cache_bytes, float)
        return jnp.asarray(moved / self.bytes_per_s * waiting_usd_per_s)


def memory_tier(record: Record) -> MemoryTier:
    """Build from a record of the table memory_tiers; its price is spread over its years of service."""
    fields = {name: record.fields[name] for name in ("capacity_bytes", "bytes_per_s", "price_usd", "years")}
    for name, value in fields.items():
        if not isinstance(value, float):
            raise CatalogError(f"{record.name}: {name} is not known")
    capacity, rate, price, years = fields.values()
    return MemoryTier(capacity, rate, price / (years * 365.25 * SECONDS_PER_DAY))  # pyright: ignore


def hbm(chip: Accelerator) -> MemoryTier:
    """A chip's own memory: to fill it is to keep the chip, so it costs the chip's rent."""
    return MemoryTier(chip.hbm_bytes, chip.hbm_bytes_per_s, chip_usd_per_s(chip), in_place=True)


def chip_usd_per_s(chip: Accelerator) -> float:
    """Rent of a chip, USD/s; raise `CatalogError` where its price is unknown."""
    if is_known(chip.usd_per_chip_hour) and not np.isfinite(np.asarray(chip.usd_per_chip_hour, float)).all():
        raise CatalogError("usd_per_chip_hour: the price of this chip is unknown, and so is what its time costs")
    return chip.usd_per_chip_hour / SECONDS_PER_HOUR


def cost_usd(tier: MemoryTier, cache_bytes, hold_s, waiting_usd_per_s) -> Float[Array, ""]:
    """Cost of holding a cache for a time and fetching it once, USD."""
    return tier.hold_usd_per_s(cache_bytes) * hold_s + tier.fetch_usd(cache_bytes, waiting_usd_per_s)


def recompute_usd(
    n_compute: Float[Array, ""] | float, tokens: Float[Array, ""] | float, chip: Accelerator, *,
    efficiency: Float[Array, ""] | float = 1.0, attention_flop_per_token: Float[Array, ""] | float = 0.0,
) -> Float[Array, ""]:  # fmt: skip
    """Cost of prefilling the tokens again, USD; attention as `flop.attention_flop_per_token` counts it."""
    flop = (2 * n_compute + attention_flop_per_token) * jnp.asarray(tokens, float)
    return flop / (chip.peak_flop_per_s * efficiency) * chip_usd_per_s(chip)


def costs_usd(
    tiers: Sequence[MemoryTier], cache_bytes, hold_s, waiting_usd_per_s, recompute: Float[Array, ""] | float
) -> Float[Array, " choices"]:
    """Cost of each tier, and last of computing again, USD."""
    held = [cost_usd(tier, cache_bytes, hold_s, waiting_usd_per_s) for tier in tiers]
    return jnp.stack([*held, jnp.asarray(recompute, float)])


def cheapest(tiers: Sequence[MemoryTier], cache_bytes, hold_s, waiting_usd_per_s, recompute) -> Array:
    """Index of the cheapest choice; the number of tiers stands for computing again."""
    return jnp.argmin(costs_usd(tiers, cache_bytes, hold_s, waiting_usd_per_s, recompute))


def break_even_s(fast: MemoryTier, slow: MemoryTier, waiting_usd_per_s) -> Float[Array, ""]:
    """Hold time from which the slower tier is cheaper, s; it does not depend on the cache. <= 0: always; inf: never."""
    one = 1.0
    dearer = slow.fetch_usd(one, waiting_usd_per_s) - fast.fetch_usd(one, waiting_usd_per_s)
    saved = fast.hold_usd_per_s(one) - slow.hold_usd_per_s(one)
    return jnp.where(saved > 0, dearer / jnp.where(saved > 0, saved, 1.0), jnp.inf)


def recompute_break_even_s(tier: MemoryTier, cache_bytes, waiting_usd_per_s, recompute) -> Float[Array, ""]:
    """Hold time from which computing again is cheaper than the tier, s; <= 0: always."""
    return (recompute - tier.fetch_usd(cache_bytes, waiting_usd_per_s)) / tier.hold_usd_per_s(cache_bytes)


# What a price list says, where prices are costs: a base price is that of computing, so a cache price is a share of it.


def implied_hold_usd_per_s(input_usd, write_over_input, ttl_s) -> Float[Array, ""]:
    """Hold cost in USD/s of a token whose write costs so many base prices and lasts so long."""
    return jnp.asarray((write_over_input - 1) * input_usd / ttl_s, float)


def implied_hold_between(input_usd, write_short, ttl_short_s, write_long, ttl_long_s) -> Float[Array, ""]:
    """The same from two write prices, which share whatever a write costs beside time."""
    return jnp.asarray((write_long - write_short) * input_usd / (ttl_long_s - ttl_short_s), float)


def implied_held_bytes(hold_usd_per_s, tier: MemoryTier) -> Float[Array, ""]:
    """Cache bytes per token whose rent in the tier is the hold cost."""
    return jnp.asarray(hold_usd_per_s * tier.capacity_bytes / tier.usd_per_s, float)


def implied_fetched_bytes(
    read_over_input, n_compute, flop_per_s, tier: MemoryTier, *, efficiency=1.0
) -> Float[Array, ""]:
    r"""Cache bytes per token whose fetch costs the read price: $kv = \rho\, 2N\, bw/(F e_c)$, free of USD."""
    return jnp.asarray(read_over_input * 2 * n_compute * tier.bytes_per_s / (flop_per_s * efficiency), float)
