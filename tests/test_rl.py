"""The two RL factors against mpmath, and their limits."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import LawError
from allocator.laws.rl import NO_RL, PowerRl, SaturatingRl

SATURATING = SaturatingRl(exponent=0.088, scale_tokens=1e9)  # the model's assumed middle values
POWER = PowerRl(exponent=0.088, unit_tokens=1e9)

exponents = st.floats(0.001, 1)
scales = st.floats(1, 1e16)
tokens = st.floats(1e-3, 1e18)


def factor(law: SaturatingRl | PowerRl, amount: float) -> float:
    return float(jnp.exp(law.log_factor(law.coordinate(amount))))


@given(exponents, scales, tokens | st.just(0.0))
def test_saturating_factor_matches_mpmath(exponent: float, scale: float, amount: float):
    with mpmath.workdps(50):
        want = float(-mpmath.mpf(exponent) * mpmath.log1p(mpmath.mpf(amount) / mpmath.mpf(scale)))
    law = SaturatingRl(exponent, scale)
    assert float(law.log_factor(law.coordinate(amount))) == pytest.approx(want, rel=1e-14, abs=1e-300)


@given(exponents, scales, tokens)
def test_power_factor_matches_mpmath(exponent: float, scale: float, amount: float):
    with mpmath.workdps(50):
        want = float(-mpmath.mpf(exponent) * mpmath.log(mpmath.mpf(amount) / mpmath.mpf(scale)))
    law = PowerRl(exponent, scale)
    assert float(law.log_factor(law.coordinate(amount))) == pytest.approx(want, rel=1e-13, abs=1e-14)


@given(scales, tokens)
def test_tokens_survive_the_way_to_the_coordinate_and_back(scale: float, amount: float):
    for law in (SaturatingRl(0.1, scale), PowerRl(0.1, scale)):
        assert float(law.tokens(law.coordinate(amount))) == pytest.approx(amount, rel=1e-13)


@given(exponents, scales)
def test_no_rl_changes_nothing(exponent: float, scale: float):
    law = SaturatingRl(exponent, scale)
    assert float(law.coordinate(0.0)) == 0
    assert float(law.tokens(0.0)) == 0
    assert factor(law, 0.0) == 1


def test_saturating_factor_at_its_scale_and_far_beyond():
    assert factor(SATURATING, 1e9) == pytest.approx(2**-0.088, rel=1e-14)
    assert factor(SATURATING, 1e16) / factor(POWER, 1e16) == pytest.approx(1, rel=1e-8)
    far = [math.log(factor(SATURATING, amount)) for amount in (1e15, 1e16)]
    assert (far[1] - far[0]) / math.log(10) == pytest.approx(-0.088, rel=1e-6)


def test_power_factor_at_its_unit_and_double():
    assert factor(POWER, 1e9) == 1
    assert factor(POWER, 2e9) == pytest.approx(2**-0.088, rel=1e-14)


@given(scales, tokens, st.floats(1.001, 100))
def test_more_rl_is_never_worse(scale: float, amount: float, times: float):
    for law in (SaturatingRl(0.1, scale), PowerRl(0.1, scale)):
        assert factor(law, amount * times) <= factor(law, amount)


def test_slope_at_zero_is_that_of_the_formula():
    slope = jax.grad(lambda amount: jnp.exp(SATURATING.log_factor(SATURATING.coordinate(amount))))(0.0)
    assert float(slope) == pytest.approx(-0.088 / 1e9, rel=1e-14)


@pytest.mark.parametrize("law", [SATURATING, POWER], ids=["saturating", "power"])
def test_tokens_have_the_derivative_of_the_inverse(law):
    forward = jax.grad(law.coordinate)(3e10)
    back = jax.grad(law.tokens)(law.coordinate(3e10))
    assert float(forward * back) == pytest.approx(1, rel=1e-14)


def test_only_the_finite_factor_allows_zero():
    assert SATURATING.allows_zero
    assert not POWER.allows_zero


def test_axis_of_a_law_without_rl_has_no_effect():
    assert NO_RL.allows_zero
    assert float(NO_RL.log_factor(NO_RL.coordinate(1e12))) == 0


@pytest.mark.parametrize("kind", [SaturatingRl, PowerRl])
def test_jit_vmap_and_grad_pass_through_the_law(kind):
    laws = [kind(0.05, 1e8), kind(0.2, 1e11)]
    both = jax.tree.map(lambda *leaves: jnp.array(leaves), *laws)

    def value(law, amount):
        return law.log_factor(law.coordinate(amount))

    batch = jax.jit(jax.vmap(value))(both, jnp.array([1e10, 1e12]))
    assert np.asarray(batch) == pytest.approx([float(value(*pair)) for pair in zip(laws, (1e10, 1e12), strict=True)])
    slopes = jax.grad(value)(laws[0], 1e10)
    assert float(slopes.exponent) == pytest.approx(float(value(laws[0], 1e10)) / 0.05, rel=1e-14)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (SaturatingRl, {"exponent": -0.1}, "SaturatingRl.exponent: must be >= 0 and finite, got -0.1"),
        (SaturatingRl, {"exponent": math.nan}, "SaturatingRl.exponent: must be >= 0 and finite, got nan"),
        (SaturatingRl, {"scale_tokens": 0.0}, "SaturatingRl.scale_tokens: must be > 0 and finite, got 0.0"),
        (SaturatingRl, {"scale_tokens": math.inf}, "SaturatingRl.scale_tokens: must be > 0 and finite, got inf"),
        (SaturatingRl, {"scale": -1.0}, "SaturatingRl.scale: must be > 0 and finite, got -1.0"),
        (PowerRl, {"exponent": 0.0}, "PowerRl.exponent: must be > 0 and finite, got 0.0"),
        (PowerRl, {"unit_tokens": -1e9}, "PowerRl.unit_tokens: must be > 0 and finite, got -1000000000.0"),
        (PowerRl, {"scale": math.nan}, "PowerRl.scale: must be > 0 and finite, got nan"),
    ],
)
def test_parameter_out_of_range_is_refused_by_name(kind, values: dict, message: str):
    good = {"exponent": 0.1, "scale_tokens" if kind is SaturatingRl else "unit_tokens": 1e9}
    with pytest.raises(LawError) as caught:
        kind(**good | values)
    assert str(caught.value) == message
