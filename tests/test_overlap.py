"""Overlap of RL and test time, h = (u^om + v^om - 1)^(-1/om), against mpmath (model.md, section 2)."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.laws.overlap import log_joint_factor

OVERLAPS = [
    *(1e-300, 1e-200, 1e-100, 1e-30, 1e-16, 1e-12, 1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.3, 1 / 3, 0.5),
    *(0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0, 1e3),
]
EXTENTS = [0.0, 1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]  # x = -log f and y = -log g
INSIDE = st.floats(1e-6, 50)
STRENGTH = st.one_of(st.floats(-300, 3).map(lambda e: 10.0**e), st.floats(0.01, 20))


def function(z):
    """log h of (x, y, om)."""
    return log_joint_factor(-z[0], -z[1], z[2])


@jax.jit
def derivatives(z):
    return function(z), jax.grad(function)(z), jax.hessian(function)(z)


batch = jax.jit(jax.vmap(derivatives))


def exact(x: float, y: float, overlap: float):
    """Value, gradient and Hessian in (x, y, om); `om` cubed divides, so a tiny one takes three times its digits."""
    with mpmath.workdps(60 + int(max(0.0, -3 * np.log10(overlap)))):
        x, y, om = mpmath.mpf(x), mpmath.mpf(y), mpmath.mpf(overlap)
        p, q = mpmath.exp(om * x), mpmath.exp(om * y)
        total, first, second = p + q - 1, x * p + y * q, x**2 * p + y**2 * q
        log = mpmath.log(total)
        gradient = [-p / total, -q / total, log / om**2 - first / (total * om)]
        xx, xy, yy = -om * p * (q - 1) / total**2, om * p * q / total**2, -om * q * (p - 1) / total**2
        xo, yo = -p * (x * (q - 1) - y * q) / total**2, -q * (y * (p - 1) - x * p) / total**2
        oo = 2 * first / (total * om**2) - 2 * log / om**3 - (second * total - first**2) / (total**2 * om)
        hessian = [[xx, xy, xo], [xy, yy, yo], [xo, yo, oo]]
        return float(-log / om), [*map(float, gradient)], [[*map(float, row)] for row in hessian]


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_value_gradient_and_hessian_match_mpmath(overlap: float):
    points = [(x, y, overlap) for x in EXTENTS for y in EXTENTS]  # ties x = y among them
    values, gradients, hessians = (np.asarray(part) for part in batch(jnp.array(points)))
    wanted = [exact(*point) for point in points]
    assert values == pytest.approx(np.array([value for value, _, _ in wanted]), rel=2e-14)
    slopes, bends = (np.array([row[i] for row in wanted]) for i in (1, 2))
    # Slopes in x and y lie between -1 and 0, so 1e-14 is relative to the largest; that in om is at most x y.
    assert gradients[:, :2] == pytest.approx(slopes[:, :2], rel=1e-12, abs=1e-14)
    assert gradients[:, 2] == pytest.approx(slopes[:, 2], rel=1e-12, abs=1e-13)
    # Bends in x and y are at most om in size, and those with om at most max(x, y).
    assert hessians[:, :2, :2] == pytest.approx(bends[:, :2, :2], rel=1e-11, abs=1e-13 * max(overlap, 0.5))
    assert hessians[:, 2, :2] == pytest.approx(bends[:, 2, :2], rel=1e-11, abs=5e-13)
    assert hessians[:, 2, 2] == pytest.approx(bends[:, 2, 2], rel=1e-10, abs=1e-12)
    assert hessians == pytest.approx(np.swapaxes(hessians, 1, 2), rel=1e-10, abs=1e-12)


@given(INSIDE, INSIDE, STRENGTH)
def test_value_and_gradient_match_mpmath_anywhere(x: float, y: float, overlap: float):
    value, gradient, _ = derivatives(jnp.array([x, y, overlap]))
    want, slopes, _ = exact(x, y, overlap)
    assert float(value) == pytest.approx(want, rel=2e-14)
    assert np.asarray(gradient) == pytest.approx(slopes, rel=1e-11, abs=1e-13)


@given(INSIDE, STRENGTH)
def test_at_a_tie_both_bends_are_alike_and_right(x: float, overlap: float):
    _, gradient, hessian = (np.asarray(part) for part in derivatives(jnp.array([x, x, overlap])))
    _, slopes, bends = exact(x, x, overlap)
    assert gradient[0] == pytest.approx(gradient[1], rel=1e-12)
    assert gradient == pytest.approx(slopes, rel=1e-11, abs=1e-13)
    assert hessian[:2, :2] == pytest.approx(np.array(bends)[:2, :2], rel=1e-9, abs=1e-14 * max(overlap, 1e-3))
    assert hessian[0, 0] == pytest.approx(hessian[1, 1], rel=1e-9, abs=1e-14 * max(overlap, 1e-3))


@given(st.floats(0, 50), st.floats(0, 50))
def test_without_overlap_it_is_the_product(x: float, y: float):
    """Series at om = 0: -(x + y) + om x y - om^2 x y (x + y) / 2."""
    value, gradient, hessian = (np.asarray(part) for part in derivatives(jnp.array([x, y, 0.0])))
    assert value == pytest.approx(-(x + y), rel=1e-15)
    assert gradient == pytest.approx([-1.0, -1.0, x * y], rel=1e-13)
    bends = np.array([[0.0, 0.0, y], [0.0, 0.0, x], [y, x, -x * y * (x + y)]])
    assert hessian == pytest.approx(bends, rel=1e-12)


@given(st.floats(0, 50), st.floats(0, 50), st.floats(1e3, 1e9))
def test_large_overlap_leaves_the_better_of_the_two(x: float, y: float, overlap: float):
    value = float(derivatives(jnp.array([x, y, overlap]))[0])
    rounding = 1e-14 * max(x, y) + 1e-300
    assert -max(x, y) - np.log(2) / overlap - rounding <= value <= -max(x, y) + rounding


@pytest.mark.parametrize(("x", "y"), [(2.0, 3.0), (3.0, 2.0), (50.0, 0.0), (0.0, 1e-3)])
def test_large_overlap_has_the_slopes_of_the_better_one(x: float, y: float):
    _, gradient, hessian = (np.asarray(part) for part in derivatives(jnp.array([x, y, 1e9])))
    assert gradient == pytest.approx([-float(x > y), -float(y > x), 0.0], abs=1e-14)
    assert hessian == pytest.approx(np.zeros((3, 3)), abs=1e-6)  # om x 1e-16


def test_at_a_tie_of_large_overlap_each_lever_has_half_the_slope():
    _, gradient, hessian = (np.asarray(part) for part in derivatives(jnp.array([2.0, 2.0, 1e6])))
    assert gradient[:2] == pytest.approx([-0.5, -0.5], rel=1e-12)
    assert hessian[:2, :2] == pytest.approx(np.array([[-1, 1], [1, -1]]) * 1e6 / 4, rel=1e-12)


@given(INSIDE, INSIDE, STRENGTH)
def test_symmetric_between_product_and_better_one(x: float, y: float, overlap: float):
    value = float(derivatives(jnp.array([x, y, overlap]))[0])
    rounding = 4e-14 * (x + y)
    assert value == pytest.approx(float(derivatives(jnp.array([y, x, overlap]))[0]), abs=rounding)
    assert -(x + y) - rounding <= value <= -max(x, y) + rounding


@given(INSIDE, INSIDE, STRENGTH, st.floats(1.01, 2.0))
def test_more_of_either_lever_helps_and_more_overlap_hurts(x: float, y: float, overlap: float, factor: float):
    value, gradient, _ = derivatives(jnp.array([x, y, overlap]))
    rounding = 4e-14 * (x + y) * factor
    assert float(derivatives(jnp.array([x * factor, y, overlap]))[0]) <= float(value) + rounding
    assert float(derivatives(jnp.array([x, y * factor, overlap]))[0]) <= float(value) + rounding
    assert float(derivatives(jnp.array([x, y, overlap * factor]))[0]) >= float(value) - rounding
    slopes = np.asarray(gradient)
    assert (slopes[:2] <= 1e-14).all()
    assert slopes[2] >= -1e-13
    # At the optimum slopes are elasticities: together never more than the product's, never less than one lever's.
    assert 1 - 1e-13 <= -slopes[:2].sum() <= 2 + 1e-13


@given(st.floats(0, 50), STRENGTH)
def test_one_lever_alone_has_nothing_to_overlap_with(x: float, overlap: float):
    for point in ([x, 0.0, overlap], [0.0, x, overlap]):
        assert float(derivatives(jnp.array(point))[0]) == pytest.approx(-x, rel=1e-14)


def test_nothing_is_nan_at_the_corners():
    corners = [(x, y, overlap) for x in (0.0, 50.0) for y in (0.0, 50.0) for overlap in (0.0, 1e-300, 1.0, 1e3)]
    assert all(np.isfinite(part).all() for part in batch(jnp.array(corners)))
