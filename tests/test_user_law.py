"""A user's own loss against the presets that it repeats."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import allocator
from allocator.errors import AllocatorError, LawError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.law import Point
from allocator.laws.product import Product
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
RHO = 0.08803296429559924  # alpha beta / (alpha + 3 beta): model.md section 4


def lecture_loss(n_active, d_pretrain, d_rl, k):
    base = 482.01 * n_active**-0.3478 + 2085.43 * d_pretrain**-0.3658
    return 1.8172 + base * (1 + d_rl / 1e9) ** -RHO * k**-RHO


class PowerLoss(eqx.Module):
    """Pure powers whose exponent of RL stays traceable."""

    rho: float

    def __call__(self, n_active, d_pretrain, d_rl, k):
        base = 482.01 * n_active**-0.3478 + 2085.43 * d_pretrain**-0.3658
        return 1.8172 + base * (d_rl / 1e9) ** -self.rho * k**-RHO


PAIRS = {
    "saturating": (
        allocator.UserLaw(lecture_loss, floor=1.8172, rl_scale_tokens=1e9),
        Product(BESIROGLU, SaturatingRl(RHO, 1e9), TestTime(RHO)),
    ),
    "power": (
        allocator.UserLaw(PowerLoss(RHO), floor=1.8172),
        Product(BESIROGLU, PowerRl(RHO, 1e9), TestTime(RHO)),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("decision", [(1e11, 2e14, 2.15e14, 1.0), (1e9, 1e12, 1e8, 0.3)])
def test_value_and_slopes_equal_the_preset_s(pair: str, decision: tuple[float, ...]):
    found = []
    for law in PAIRS[pair]:

        def f(log_n, log_d, log_r, log_k, law=law):
            return law.log_reducible(Point(log_n, log_d, law.rl_axis.coordinate(jnp.exp(log_r)), log_k))

        z = [math.log(x) for x in decision]
        found.append([float(f(*z)), *(float(s) for s in jax.grad(f, argnums=(0, 1, 2, 3))(*z))])
    # The reducible loss is what is left of the loss after the floor, to the digits of a float.
    assert found[0] == pytest.approx(found[1], rel=1e-10)


def test_plan_equals_the_preset_s():
    scenario = allocator.load("lecture")
    plan, own = allocator.solve(scenario), allocator.solve(scenario, law=PAIRS["saturating"][0])
    assert own.status == "best_of_starts"  # nothing is known of a user's function
    assert own.certificate.kind == "best_of_starts"
    for name in ("n_active", "d_pretrain", "d_rl", "k"):
        assert getattr(own.decision, name) == pytest.approx(getattr(plan.decision, name), rel=1e-7)
    assert own.loss == pytest.approx(plan.loss, rel=1e-12)
    assert own.law == {"pretraining": None, "form": "user"}


def test_evaluation_equals_the_formula():
    plan = allocator.evaluate(
        allocator.load("lecture"), n_active=1e11, d_pretrain=2e14, d_rl=0.0, k=1.0, law=PAIRS["saturating"][0]
    )
    assert plan.loss == pytest.approx(lecture_loss(1e11, 2e14, 0.0, 1.0), rel=1e-14)
    assert plan.overtraining.vs_20 == pytest.approx(100, rel=1e-14)
    assert math.isnan(plan.overtraining.vs_chinchilla)


def test_rl_scale_declares_that_no_rl_is_lawful():
    assert PAIRS["saturating"][0].rl_axis.allows_zero
    assert not PAIRS["power"][0].rl_axis.allows_zero


def test_floor_of_zero_always_works():
    """Same optimum with log(L) as with log(L - E)."""
    scenario = allocator.load("lecture")
    plan = allocator.solve(scenario)
    own = allocator.solve(scenario, law=allocator.UserLaw(lecture_loss, rl_scale_tokens=1e9))
    assert own.decision.d_pretrain == pytest.approx(plan.decision.d_pretrain, rel=1e-6)
    assert own.loss == pytest.approx(plan.loss, rel=1e-10)


def test_jit_vmap_and_grad_pass_through_a_module():
    z = Point(jnp.log(1e11), jnp.log(2e14), jnp.log(1e14), 0.5)
    laws = jax.tree.map(lambda *x: jnp.array(x), *(allocator.UserLaw(PowerLoss(r), floor=1.8) for r in (0.05, 0.1)))
    batch = jax.jit(jax.vmap(lambda law: law.log_reducible(z)))(laws)
    alone = [float(allocator.UserLaw(PowerLoss(r), floor=1.8).log_reducible(z)) for r in (0.05, 0.1)]
    assert np.asarray(batch) == pytest.approx(alone, rel=1e-14)
    slope = jax.jit(jax.grad(lambda law: law.log_reducible(z)))(PAIRS["power"][0])
    assert float(slope.function.rho) == pytest.approx(-math.log(1e14 / 1e9), rel=1e-9)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_floor_out_of_range_is_refused_by_name(value: float):
    with pytest.raises(LawError, match=rf"floor: must be >= 0 and finite, got {value}$"):
        allocator.UserLaw(lecture_loss, floor=value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_rl_scale_out_of_range_is_refused_by_name(value: float):
    with pytest.raises(LawError, match=rf"scale_tokens: must be > 0 and finite, got {value}$"):
        allocator.UserLaw(lecture_loss, rl_scale_tokens=value)


def test_loss_below_its_own_floor_is_an_error_with_a_reason():
    law = allocator.UserLaw(lecture_loss, floor=5.0, rl_scale_tokens=1e9)
    with pytest.raises(AllocatorError, match="no finite loss"):
        allocator.solve(allocator.load("lecture", overrides=["decisions.d_pretrain={min=1e12}"]), law=law)
