"""The test-time factor against mpmath, and its limits."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import LawError
from allocator.laws.test_time import TestTime

exponents = st.floats(0.001, 2)
shares = st.floats(0, 0.999)
log_samples = st.floats(-10, 40)


def exact(exponent: float, share: float, log_k: float):
    s = mpmath.mpf(share)
    return mpmath.log(s + (1 - s) * mpmath.exp(-mpmath.mpf(exponent) * mpmath.mpf(log_k)))


@given(exponents, shares, log_samples)
def test_factor_matches_mpmath(exponent: float, share: float, log_k: float):
    with mpmath.workdps(60):
        want = float(exact(exponent, share, log_k))
    assert float(TestTime(exponent, share).log_factor(log_k)) == pytest.approx(want, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.2, 0.9])
@pytest.mark.parametrize("log_k", [-2.0, 0.0, 3.0, 20.0])
def test_slope_and_bend_match_mpmath(share: float, log_k: float):
    law = TestTime(0.3, share)
    with mpmath.workdps(50):
        slope, bend = (float(mpmath.diff(lambda x: exact(0.3, share, x), log_k, n)) for n in (1, 2))
    assert float(jax.grad(law.log_factor)(log_k)) == pytest.approx(slope, rel=1e-12)
    assert float(jax.hessian(law.log_factor)(log_k)) == pytest.approx(bend, rel=1e-10, abs=1e-20)


@given(exponents, shares)
def test_one_sample_changes_nothing(exponent: float, share: float):
    assert float(TestTime(exponent, share).log_factor(0.0)) == pytest.approx(0, abs=1e-14)


def test_many_samples_leave_the_floor_share():
    assert float(jnp.exp(TestTime(0.5, 0.2).log_factor(200.0))) == pytest.approx(0.2, rel=1e-12)
    assert float(jnp.exp(TestTime(0.5).log_factor(math.log(16.0)))) == pytest.approx(0.25, rel=1e-14)


@given(exponents, shares, log_samples, st.floats(0.01, 5))
def test_falling_and_convex_in_log_k(exponent: float, share: float, log_k: float, step: float):
    law = TestTime(exponent, share)
    low, middle, high = (float(law.log_factor(log_k + i * step)) for i in range(3))
    assert low >= middle >= high
    assert middle <= (low + high) / 2 + 1e-12


def test_small_floor_share_tends_to_the_pure_power():
    want = float(TestTime(0.3).log_factor(5.0))
    assert float(TestTime(0.3, 1e-15).log_factor(5.0)) == pytest.approx(want, rel=1e-13)


def test_jit_vmap_and_grad_pass_through_the_law():
    laws = [TestTime(0.1, 0.1), TestTime(0.3, 0.25)]
    both = jax.tree.map(lambda *leaves: jnp.array(leaves), *laws)
    batch = jax.jit(jax.vmap(lambda law, x: law.log_factor(x), in_axes=(0, None)))(both, 2.0)
    assert np.asarray(batch) == pytest.approx([float(law.log_factor(2.0)) for law in laws], rel=1e-15)
    slopes = jax.grad(lambda law: law.log_factor(2.0))(laws[1])
    with mpmath.workdps(50):
        for name, want in (
            ("exponent", mpmath.diff(lambda g: exact(g, 0.25, 2.0), 0.3)),
            ("floor_share", mpmath.diff(lambda s: exact(0.3, s, 2.0), 0.25)),
        ):
            assert float(getattr(slopes, name)) == pytest.approx(float(want), rel=1e-12)


@pytest.mark.parametrize("share", [None, 0.0])
def test_no_floor_share_is_the_pure_power_with_its_derivatives(share: float | None):
    law = TestTime(0.3, share)
    assert float(law.log_factor(2.0)) == pytest.approx(-0.6, rel=1e-15)
    assert float(jax.grad(law.log_factor)(2.0)) == pytest.approx(-0.3, rel=1e-15)
    assert float(jax.hessian(law.log_factor)(2.0)) == pytest.approx(0, abs=1e-15)
    assert float(jax.grad(lambda law: law.log_factor(2.0))(law).exponent) == pytest.approx(-2.0, rel=1e-14)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"exponent": 0.0}, "TestTime.exponent: must be > 0 and finite, got 0.0"),
        ({"exponent": -0.1}, "TestTime.exponent: must be > 0 and finite, got -0.1"),
        ({"exponent": math.inf}, "TestTime.exponent: must be > 0 and finite, got inf"),
        ({"floor_share": -0.1}, "TestTime.floor_share: must be >= 0 and finite, got -0.1"),
        ({"floor_share": math.nan}, "TestTime.floor_share: must be >= 0 and finite, got nan"),
        ({"floor_share": 1.0}, "TestTime.floor_share: must be < 1, got 1.0"),
        ({"scale": 0.0}, "TestTime.scale: must be > 0 and finite, got 0.0"),
    ],
)
def test_parameter_out_of_range_is_refused_by_name(values: dict, message: str):
    with pytest.raises(LawError) as caught:
        TestTime(**{"exponent": 0.1} | values)
    assert str(caught.value) == message
