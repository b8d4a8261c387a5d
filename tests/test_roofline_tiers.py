"""Memory tiers against hand-worked costs, identities and central differences."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from slopes import assert_slopes

from allocator import catalog
from allocator.catalog import Record
from allocator.errors import CatalogError, LawError
from allocator.roofline.accelerator import Accelerator
from allocator.roofline.memory_tiers import (
    MemoryTier,
    break_even_s,
    cheapest,
    chip_usd_per_s,
    cost_usd,
    costs_usd,
    hbm,
    implied_fetched_bytes,
    implied_held_bytes,
    implied_hold_between,
    implied_hold_usd_per_s,
    memory_tier,
    recompute_break_even_s,
    recompute_usd,
)

CHIP = Accelerator(1e15, 80e9, 4e12, usd_per_chip_hour=3.6)  # 0.001 USD/s
TIERS = {row.name: memory_tier(row) for row in catalog.table("memory_tiers")}
sizes = st.floats(1e-3, 1e3)


def test_costs_by_hand():
    """100 GB of 1 TB at 1e-5 USD/s for 1000 s: 1e-3; 100 GB at 50 GB/s while 0.001 USD/s wait: 2e-3."""
    tier = MemoryTier(1e12, 5e10, 1e-5)
    assert chip_usd_per_s(CHIP) == pytest.approx(1e-3, rel=1e-14)
    assert float(cost_usd(tier, 1e11, 1000.0, 1e-3)) == pytest.approx(1e-3 + 2e-3, rel=1e-13)
    assert float(tier.drain_s) == 20
    own = hbm(CHIP)
    assert float(own.drain_s) == pytest.approx(0.02, rel=1e-14)
    assert float(cost_usd(own, 8e9, 10.0, 1e-3)) == pytest.approx(0.1 * 10 * 1e-3, rel=1e-13)  # nothing to fetch


def test_recomputing_by_hand():
    """2 x 1e11 x 1e4 FLOP at 1e15 x 0.5/s are 4 s of 0.001 USD/s; attention of 5e9 a token adds 5e9 x 1e4 FLOP."""
    assert float(recompute_usd(1e11, 1e4, CHIP, efficiency=0.5)) == pytest.approx(4e-3, rel=1e-13)
    more = float(recompute_usd(1e11, 1e4, CHIP, efficiency=0.5, attention_flop_per_token=5e9))
    assert more == pytest.approx(4e-3 * (1 + 5e13 / 2e15), rel=1e-13)


@given(sizes, sizes, sizes, sizes, sizes, sizes)
def test_at_the_break_even_both_cost_the_same(c1, c2, b1, b2, p1, p2):
    assume(abs(p1 / c1 - p2 / c2) > 1e-6 * p1 / c1)
    fast, slow = MemoryTier(c1, b1, p1), MemoryTier(c2, b2, p2)
    t = float(break_even_s(fast, slow, 1.0))
    if math.isinf(t):
        assert p1 / c1 <= p2 / c2
        return
    want = (1 / b2 - 1 / b1) / (p1 / c1 - p2 / c2)
    assert t == pytest.approx(want, rel=1e-6, abs=1e-9)
    if t > 0 and abs(p1 / c1 - p2 / c2) > 1e-3 * p1 / c1:
        for kv in (1.0, 7.0):
            costs = [float(cost_usd(tier, kv, t, 1.0)) for tier in (fast, slow)]
            assert costs[0] == pytest.approx(costs[1], rel=1e-9)


def test_break_even_is_the_drain_time_where_only_the_tier_waits():
    """P12: holding for C/bw costs as much as fetching: kv/C p t = kv/bw p."""
    for tier in TIERS.values():
        t = float(tier.drain_s)
        held, fetched = float(tier.hold_usd_per_s(1e9)) * t, float(tier.fetch_usd(1e9, tier.usd_per_s))
        assert held == pytest.approx(fetched, rel=1e-12)


def test_cheapest_tier_by_hold_time():
    """Own round figures: kv 1 GB; hold costs 1e-5, 1e-7, 1e-9 USD/s; fetches 0, 1e-5, 1e-3; again 5e-3."""
    tiers = (
        MemoryTier(1e11, 1e12, 1e-3, in_place=True),
        MemoryTier(1e12, 1e11, 1e-4),
        MemoryTier(1e14, 1e9, 1e-4),
    )
    kv, waiting, again = 1e9, 1e-3, 5e-3
    # HBM to 1e-5/(1e-5 - 1e-7) = 1.0101 s, DDR to (1e-3 - 1e-5)/(1e-7 - 1e-9) = 1e4 s, disk to 4e-3/1e-9 = 4e6 s
    edges = [1e-5 / 9.9e-6, 9.9e-4 / 9.9e-8, 4e6]
    assert float(break_even_s(tiers[0], tiers[1], waiting)) == pytest.approx(edges[0], rel=1e-12)
    assert float(break_even_s(tiers[1], tiers[2], waiting)) == pytest.approx(edges[1], rel=1e-12)
    assert float(recompute_break_even_s(tiers[2], kv, waiting, again)) == pytest.approx(edges[2], rel=1e-12)
    holds = jnp.asarray([edges[0] * 0.99, edges[0] * 1.01, edges[1] * 0.99, edges[1] * 1.01, edges[2] * 0.99, 4.1e6])
    found = jax.jit(jax.vmap(lambda t: cheapest(tiers, kv, t, waiting, again)))(holds)
    assert found.tolist() == [0, 1, 1, 2, 2, 3]
    assert costs_usd(tiers, kv, 0.0, waiting, again).tolist() == pytest.approx([0, 1e-5, 1e-3, 5e-3], rel=1e-12)


def test_price_list_of_1_25_and_2_for_5_minutes_and_an_hour_at_a_tenth_to_read():
    """5 USD per 1e6 tokens: (0.25, 1) x 5e-6 over 300 and 3600 s; between them 0.75 x 5e-6 over 3300 s."""
    price = 5e-6
    assert float(implied_hold_usd_per_s(price, 1.25, 300.0)) == pytest.approx(4.1667e-9, rel=1e-4)
    assert float(implied_hold_usd_per_s(price, 2.0, 3600.0)) == pytest.approx(1.3889e-9, rel=1e-4)
    between = float(implied_hold_between(price, 1.25, 300.0, 2.0, 3600.0))
    assert between == pytest.approx(1.13636e-9, rel=1e-5)
    tier = MemoryTier(1e12, 5e10, 1e-5)
    held = float(implied_held_bytes(between, tier))
    assert float(tier.hold_usd_per_s(held)) == pytest.approx(between, rel=1e-12)
    # 0.1 x 2 x 1e11 FLOP take 2e-5 s at 1e15 FLOP/s, in which 50 GB/s bring 1 MB.
    assert float(implied_fetched_bytes(0.1, 1e11, 1e15, tier)) == pytest.approx(1e6, rel=1e-12)


def test_gradients_match_central_differences():
    def total(x):
        c, b, p, kv, t, w, n, tokens, e = jnp.exp(x)
        tier = MemoryTier(c, b, p)
        chip = replace(CHIP, peak_flop_per_s=1e3 * c)
        again = recompute_usd(n, tokens, chip, efficiency=e, attention_flop_per_token=b)
        return (cost_usd(tier, kv, t, w) + again + jnp.log(break_even_s(tier, MemoryTier(2 * c, b / 2, p), w))
                + implied_fetched_bytes(w, n, c, tier) + recompute_break_even_s(tier, kv, w, again))  # fmt: skip

    x = jnp.log(jnp.arange(2.0, 11.0))
    assert_slopes(total, x, rel=1e-6, abs=1e-7)
    least = jax.grad(lambda t: costs_usd(tuple(TIERS.values()), 1e9, t, 1e-3, 1.0).min())(1e3)
    assert np.isfinite(float(least))
    assert float(least) > 0
    flat = jax.grad(lambda p: break_even_s(MemoryTier(1.0, 1.0, p), MemoryTier(1.0, 0.5, 1.0), 1.0))(0.5)
    assert float(flat) == 0  # never: the fast tier is the cheaper one at any hold time


@pytest.mark.parametrize("name", ["capacity_bytes", "bytes_per_s", "usd_per_s"])
def test_what_is_not_positive_is_refused(name: str):
    with pytest.raises(LawError, match=f"MemoryTier.{name}: must be > 0"):
        MemoryTier(**{"capacity_bytes": 1.0, "bytes_per_s": 1.0, "usd_per_s": 1.0, name: 0.0})


def test_tier_without_a_price_is_told():
    record = catalog.table("memory_tiers")[0]
    with pytest.raises(CatalogError, match=f"^{record.name}: price_usd is not known$"):
        memory_tier(Record(record.name, (), {**record.fields, "price_usd": None}, record.source))
    unpriced = Accelerator(1e15, 80e9, 4e12)  # no rent on record
    for priced in (lambda: hbm(unpriced), lambda: recompute_usd(1e11, 1e4, unpriced)):
        with pytest.raises(CatalogError, match=r"^usd_per_chip_hour: the price of this chip is unknown"):
            priced()
