"""The product form against mpmath, and its limits."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import LawError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.law import Point
from allocator.laws.product import Product
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.test_time import TestTime

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
SATURATING = Product(BESIROGLU, SaturatingRl(0.088, 1e9), TestTime(0.09, 0.1))
POWER = Product(BESIROGLU, PowerRl(0.088, 1e9), TestTime(0.09))

points = st.tuples(st.floats(18, 32), st.floats(20, 40), st.floats(0, 20), st.floats(-3, 12))


def value(law: Product):
    return lambda z: law.log_reducible(Point(*z))


@jax.jit
def derivatives(law, z):
    """Gradient and Hessian in the solver's coordinates."""
    return jax.grad(value(law))(z), jax.hessian(value(law))(z)


def exact(law: Product, n, d, r, k):
    """L - E in mpmath, from decisions."""
    base, rl, test_time = law.pretraining, law.joint.rl, law.joint.test_time
    total = mpmath.mpf(base.a) * n ** -mpmath.mpf(base.alpha) + mpmath.mpf(base.b) * d ** -mpmath.mpf(base.beta)
    if isinstance(rl, SaturatingRl):
        total *= (1 + r / mpmath.mpf(rl.scale_tokens)) ** -mpmath.mpf(rl.exponent)
    if isinstance(rl, PowerRl):
        total *= (r / mpmath.mpf(rl.unit_tokens)) ** -mpmath.mpf(rl.exponent)
    if test_time is not None:
        s = mpmath.mpf(test_time.floor_share or 0)
        total *= s + (1 - s) * k ** -mpmath.mpf(test_time.exponent)
    return total


@pytest.mark.parametrize(
    "law",
    [
        SATURATING,
        POWER,
        Product(BESIROGLU),
        Product(BESIROGLU, rl=POWER.joint.rl),
        Product(BESIROGLU, test_time=POWER.joint.test_time),
    ],
    ids=["saturating", "power", "pre-training alone", "no test time", "no RL"],
)
def test_value_matches_mpmath(law: Product):
    decision = [mpmath.mpf(x) for x in (1e11, 2e14, 3e13, 7.0)]
    z = Point(jnp.log(1e11), jnp.log(2e14), law.rl_axis.coordinate(3e13), jnp.log(7.0))
    with mpmath.workdps(50):
        assert float(law.log_reducible(z)) == pytest.approx(float(mpmath.log(exact(law, *decision))), rel=1e-14)
    assert law.floor == 1.8172


@pytest.mark.parametrize("law", [SATURATING, POWER], ids=["saturating", "power"])
@pytest.mark.parametrize("z", [(25.3, 33.0, 10.0, 2.0), (22.0, 28.0, 0.1, 0.0)])
def test_gradient_and_hessian_match_mpmath(law: Product, z: tuple[float, ...]):
    gradient, hessian = (np.asarray(part) for part in derivatives(law, jnp.array(z)))
    with mpmath.workdps(50):

        def f(*z):
            scale = mpmath.mpf(1e9)
            r = scale * (mpmath.expm1(z[2]) if law is SATURATING else mpmath.exp(z[2]))
            return mpmath.log(exact(law, mpmath.exp(z[0]), mpmath.exp(z[1]), r, mpmath.exp(z[3])))

        unit = np.eye(4, dtype=int)
        slopes = [float(mpmath.diff(f, z, tuple(row))) for row in unit.tolist()]
        bends = [[float(mpmath.diff(f, z, tuple((p + q).tolist()))) for p in unit] for q in unit]
    assert gradient == pytest.approx(slopes, rel=1e-12)
    assert hessian == pytest.approx(np.array(bends), rel=1e-10, abs=1e-14)


@given(points)
def test_convex_and_falling_in_the_solver_s_coordinates(z: tuple[float, ...]):
    for law in (SATURATING, POWER):
        gradient, hessian = derivatives(law, jnp.array(z))
        assert (np.asarray(gradient) <= 0).all()
        assert np.linalg.eigvalsh(hessian).min() >= -1e-14


@given(st.floats(18, 32), st.floats(20, 40))
def test_without_rl_and_with_one_sample_pretraining_is_left(log_n: float, log_d: float):
    z = Point(log_n, log_d, SATURATING.rl_axis.coordinate(0.0), 0.0)
    assert float(SATURATING.log_reducible(z)) == pytest.approx(float(BESIROGLU.log_reducible(log_n, log_d)), abs=1e-13)


@given(points, points)
def test_effect_of_rl_and_samples_is_the_same_at_every_size(z: tuple[float, ...], other: tuple[float, ...]):
    law = SATURATING
    effects = [
        float(law.log_reducible(Point(n, d, z[2], z[3])) - law.log_reducible(Point(n, d, 0.0, 0.0)))
        for n, d in (z[:2], other[:2])
    ]
    assert effects[0] == pytest.approx(effects[1], abs=1e-12)


def test_jit_vmap_and_grad_pass_through_the_law():
    z = np.array([[25.3, 33.0, 10.0, 2.0], [22.0, 28.0, 0.1, 0.0]])
    batch = jax.jit(jax.vmap(lambda law, z: law.log_reducible(Point(*z)), in_axes=(None, 0)))(SATURATING, z)
    assert np.asarray(batch) == pytest.approx([float(value(SATURATING)(row)) for row in z], rel=1e-15)
    slopes = jax.jit(jax.grad(lambda law, z: law.log_reducible(Point(*z))))(POWER, z[0])
    assert float(slopes.joint.rl.exponent) == pytest.approx(-10.0, rel=1e-14)
    assert float(slopes.joint.test_time.exponent) == pytest.approx(-2.0, rel=1e-14)


# --- overlap: h = (u^om + v^om - 1)^(-1/om), u = 1/f, v = 1/g (model.md, section 2) ---

OVERLAPS = [1e-9, 1e-3, 0.3, 1.0, 2.5, 40.0, 1e4]
EXTENTS = st.floats(0, 12)  # x = -log f and y = -log g


def overlapping(overlap: float | None) -> Product:
    """Exponents of 1, so that the RL coordinate is x and log k is y."""
    return Product(BESIROGLU, SaturatingRl(1.0, 1e9), TestTime(1.0), overlap)


def log_h(overlap: float | None, x: float, y: float) -> float:
    start = float(BESIROGLU.log_reducible(25.0, 30.0))
    return float(overlapping(overlap).log_reducible(Point(25.0, 30.0, x, y))) - start


def exact_log_h(overlap: float, x: float, y: float):
    om = mpmath.mpf(overlap)
    return -mpmath.log(mpmath.exp(om * x) + mpmath.exp(om * y) - 1) / om


@pytest.mark.parametrize("overlap", OVERLAPS)
@given(x=EXTENTS, y=EXTENTS)
def test_overlap_matches_mpmath(overlap: float, x: float, y: float):
    with mpmath.workdps(60):
        want = float(exact_log_h(overlap, x, y))
    assert log_h(overlap, x, y) == pytest.approx(want, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize(("x", "y"), [(0.0, 0.0), (0.0, 2.0), (1.0, 1.0), (0.3, 4.0), (6.0, 0.01)])
def test_slopes_and_bends_of_overlap_match_mpmath(overlap: float, x: float, y: float):
    gradient, hessian = (np.asarray(part) for part in derivatives(overlapping(overlap), jnp.array([25.0, 30.0, x, y])))
    with mpmath.workdps(60):
        om = mpmath.mpf(overlap)
        p, q = mpmath.exp(om * x), mpmath.exp(om * y)
        total = p + q - 1
        slopes = [float(-part / total) for part in (p, q)]
        bends = [float(-om * p * (q - 1) / total**2), float(om * p * q / total**2), float(-om * q * (p - 1) / total**2)]
    assert gradient[2:] == pytest.approx(slopes, rel=1e-9, abs=1e-12)
    assert hessian[2:, 2:][np.triu_indices(2)] == pytest.approx(bends, rel=1e-7, abs=1e-10)


@given(EXTENTS, EXTENTS)
def test_overlap_runs_from_the_product_to_the_better_of_the_two(x: float, y: float):
    product = log_h(None, x, y)
    assert product == pytest.approx(-(x + y), abs=1e-12)
    assert log_h(1e-12, x, y) == pytest.approx(product, abs=1e-9)
    assert log_h(1e6, x, y) == pytest.approx(-max(x, y), abs=2e-6)  # log 2 / om off at x = y
    effects = [log_h(overlap, x, y) for overlap in (None, 0.1, 1.0, 10.0)]
    assert all(np.diff(effects) >= -1e-13)


@given(EXTENTS)
def test_one_lever_alone_has_nothing_to_overlap_with(x: float):
    for overlap in OVERLAPS:
        assert log_h(overlap, x, 0.0) == pytest.approx(-x, abs=1e-13)
        assert log_h(overlap, 0.0, x) == pytest.approx(-x, abs=1e-13)


def test_overlap_refuses_the_pure_power_and_values_out_of_range():
    with pytest.raises(LawError, match="overlap: needs the RL factor"):
        Product(BESIROGLU, PowerRl(0.1, 1e9), TestTime(0.1), 1.0)
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(LawError, match=rf"overlap: must be > 0 and finite, got {value}$"):
            overlapping(value)
