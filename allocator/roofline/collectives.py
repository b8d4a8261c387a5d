"""What chips exchange in a step, over links inside and outside the scale-up domain."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from allocator.roofline.accelerator import Accelerator


def crossing_share(chips: Float[Array, ""] | float, domain: Float[Array, ""] | float) -> Float[Array, ""]:
    """Share of uniform all-to-all traffic that leaves the scale-up domain: 1 - 1/domains."""
    return 1 - 1 / jnp.maximum(jnp.asarray(chips, float) / domain, 1.0)


def all_to_all_s(
    chip: Accelerator,
    chips: Float[Array, ""] | float,
    tokens: Float[Array, ""],
    destinations: Float[Array, ""] | float,
    width: Float[Array, ""] | float,
    bytes_per_element: float,
) -> Float[Array, ""]:
    r"""Time to send each chip's tokens to their experts and back, once.

    $$t = T m d (b_d + b_c) / bw$$

    with m destinations a token; the share 1 - 1/domains goes at scale-out speed, beside what stays inside. A single
    chip sends nothing.
    """
    sent = tokens * destinations * width * bytes_per_element
    return _over_links(chip, chips, sent) * jnp.where(jnp.asarray(chips, float) > 1, 1.0, 0.0)


def all_reduce_s(
    chip: Accelerator, chips: Float[Array, ""] | float, payload_bytes: Float[Array, ""]
) -> Float[Array, ""]:
    """Time of one all-reduce of a payload that every chip holds: 2 (n - 1)/n of it passes each chip's link."""
    n = jnp.asarray(chips, float)
    inside = chip.scale_up_chips
    within = payload_bytes * 2 * (n - 1) / n
    # Beyond a domain: reduce inside, exchange a domain's share between domains, spread inside again.
    domains = jnp.maximum(n / inside, 1.0)
    between = payload_bytes / jnp.minimum(inside, n) * 2 * (domains - 1) / domains
    beyond = domains > 1
    return within / chip.scale_up_bytes_per_s + jnp.where(beyond, between / _out(chip, beyond), 0.0)


def _over_links(chip: Accelerator, chips, sent):
    share = crossing_share(chips, chip.scale_up_chips)
    crosses = share > 0
    inside = sent * (1 - share) / chip.scale_up_bytes_per_s
    return jnp.maximum(inside, jnp.where(crosses, sent * share / _out(chip, crosses), 0.0))


def _out(chip: Accelerator, used):
    """Scale-out bandwidth, harmless where nothing crosses."""
    return jnp.where(used, chip.scale_out_bytes_per_s, 1.0)
