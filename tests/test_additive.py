"""The additive form against mpmath, and its limits (approach 1 of T^2 among them)."""

import re

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import LawError
from allocator.laws.additive import Additive
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.law import Point
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
SATURATING = Additive(BESIROGLU, SaturatingRl(0.088, 1e9, 0.4), TestTime(0.09, 0.1, 0.3))
POWER = Additive(BESIROGLU, PowerRl(0.088, 1e9, 0.4), TestTime(0.09, None, 0.3))

points = st.tuples(st.floats(18, 32), st.floats(20, 40), st.floats(0, 20), st.floats(-3, 12))


def value(law: Additive):
    return lambda z: law.log_reducible(Point(*z))


@jax.jit
def derivatives(law, z):
    """Gradient and Hessian in the solver's coordinates."""
    return jax.grad(value(law))(z), jax.hessian(value(law))(z)


def exact(law: Additive, *z):
    """log(L - E) in mpmath, from the solver's coordinates, in which both RL factors are exp(-rho r)."""
    n, d, r, k = (mpmath.mpf(x) for x in z)
    base = law.pretraining
    total = mpmath.mpf(base.a) * mpmath.exp(-mpmath.mpf(base.alpha) * n)
    total += mpmath.mpf(base.b) * mpmath.exp(-mpmath.mpf(base.beta) * d)
    if law.rl is not None:
        total += mpmath.mpf(law.rl.scale) * mpmath.exp(-mpmath.mpf(law.rl.exponent) * r)
    if law.test_time is not None:
        s = mpmath.mpf(law.test_time.floor_share or 0)
        total += law.test_time.scale * (s + (1 - s) * mpmath.exp(-mpmath.mpf(law.test_time.exponent) * k))
    return mpmath.log(total)


@pytest.mark.parametrize(
    "law",
    [
        SATURATING,
        POWER,
        Additive(BESIROGLU),
        Additive(BESIROGLU, rl=POWER.rl),
        Additive(BESIROGLU, test_time=POWER.test_time),
    ],
    ids=["saturating", "power", "pre-training alone", "no test time", "no RL"],
)
def test_value_matches_mpmath(law: Additive):
    z = (25.3, 33.0, 10.0, 2.0)
    with mpmath.workdps(50):
        assert float(law.log_reducible(Point(*z))) == pytest.approx(float(exact(law, *z)), rel=1e-13)
    assert law.floor == 1.8172


@pytest.mark.parametrize("law", [SATURATING, POWER], ids=["saturating", "power"])
@pytest.mark.parametrize("z", [(25.3, 33.0, 10.0, 2.0), (22.0, 28.0, 0.1, 0.0)])
def test_gradient_and_hessian_match_mpmath(law: Additive, z: tuple[float, ...]):
    gradient, hessian = (np.asarray(part) for part in derivatives(law, jnp.array(z)))
    with mpmath.workdps(50):
        unit = np.eye(4, dtype=int)
        slopes = [float(mpmath.diff(lambda *z: exact(law, *z), z, tuple(row))) for row in unit.tolist()]
        bends = [
            [float(mpmath.diff(lambda *z: exact(law, *z), z, tuple((p + q).tolist()))) for p in unit] for q in unit
        ]
    assert gradient == pytest.approx(slopes, rel=1e-12)
    assert hessian == pytest.approx(np.array(bends), rel=1e-10, abs=1e-14)


@given(points)
def test_convex_and_falling_in_the_solver_s_coordinates(z: tuple[float, ...]):
    for law in (SATURATING, POWER):
        gradient, hessian = derivatives(law, jnp.array(z))
        assert (np.asarray(gradient) <= 0).all()
        assert np.linalg.eigvalsh(hessian).min() >= -1e-14


@given(st.floats(18, 32), st.floats(20, 40))
def test_one_sample_raises_chinchilla_s_floor_by_the_scale(log_n: float, log_d: float):
    """E' = E + G: arXiv 2604.01411, section 3.1."""
    law = Additive(BESIROGLU, test_time=TestTime(0.09, None, 0.3))
    reducible = float(jnp.exp(law.log_reducible(Point(log_n, log_d, 0.0, 0.0))))
    assert reducible == pytest.approx(0.3 + float(jnp.exp(BESIROGLU.log_reducible(log_n, log_d))), rel=1e-13)


@given(points)
def test_each_term_starts_from_its_scale(z: tuple[float, ...]):
    base = float(jnp.exp(BESIROGLU.log_reducible(*z[:2])))
    start = float(jnp.exp(SATURATING.log_reducible(Point(z[0], z[1], SATURATING.rl_axis.coordinate(0.0), 0.0))))
    assert start == pytest.approx(base + 0.4 + 0.3, rel=1e-13)


def test_endless_samples_leave_the_floor_share():
    law = Additive(BESIROGLU, test_time=TestTime(0.5, 0.1, 0.3))
    assert float(jnp.exp(law.log_reducible(Point(500.0, 500.0, 0.0, 500.0)))) == pytest.approx(0.03, rel=1e-12)


def test_jit_vmap_and_grad_pass_through_the_law():
    z = np.array([[25.3, 33.0, 10.0, 2.0], [22.0, 28.0, 0.1, 0.0]])
    batch = jax.jit(jax.vmap(lambda law, z: law.log_reducible(Point(*z)), in_axes=(None, 0)))(SATURATING, z)
    assert np.asarray(batch) == pytest.approx([float(value(SATURATING)(row)) for row in z], rel=1e-15)
    slopes = jax.jit(jax.grad(lambda law, z: law.log_reducible(Point(*z))))(POWER, z[0])
    share = np.exp(-0.088 * 10.0) / np.exp(float(value(POWER)(z[0])))  # d log(... + G f)/dG
    assert float(slopes.rl.scale) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        ({"rl": SaturatingRl(0.1, 1e9)}, "Additive.rl.scale"),
        ({"rl": PowerRl(0.1, 1e9)}, "Additive.rl.scale"),
        ({"test_time": TestTime(0.1)}, "Additive.test_time.scale"),
    ],
)
def test_term_without_a_scale_is_refused_by_name(terms: dict, name: str):
    with pytest.raises(LawError, match=f"^{re.escape(name)}: required"):
        Additive(BESIROGLU, **terms)
