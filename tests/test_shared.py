"""Shared form: N and D set what can be reached, RL and samples remove one sampling loss; against mpmath."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.costs import Costs, PhaseCost
from allocator.errors import LawError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.joint import JointFactor
from allocator.laws.law import Point
from allocator.laws.rl import PowerRl, SaturatingRl
from allocator.laws.shared import Shared
from allocator.laws.test_time import TestTime
from allocator.optimum.solving import optimise
from allocator.problem import make_problem

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
RL, POWER, TIME = SaturatingRl(0.088, 1e9), PowerRl(0.088, 1e9), TestTime(0.09)
G = 0.5

points = st.tuples(st.floats(18, 32), st.floats(20, 40), st.floats(0, 20), st.floats(0, 12))
log_reducible = jax.jit(lambda law, z: law.log_reducible(Point(*z)))
slopes_of = jax.jit(jax.grad(log_reducible, argnums=1))


def shared(overlap: float | None = None, *, rl=RL, test_time=TIME, scale: float = G) -> Shared:
    return Shared(BESIROGLU, JointFactor(rl, test_time, overlap), scale)


def exact(z, *, overlap: float = 0.0, floor_share: float = 0.0):
    """log(base + G h) from the solver's coordinates, with h as model.md writes it."""
    n, d, r, log_k = (mpmath.mpf(x) for x in z)
    a, b, alpha, beta = (mpmath.mpf(x) for x in (482.01, 2085.43, 0.3478, 0.3658))
    base = a * mpmath.exp(-alpha * n) + b * mpmath.exp(-beta * d)
    u = mpmath.exp(mpmath.mpf(0.088) * r)  # (1 + R/R0)^rho, r = log(1 + R/R0)
    s = mpmath.mpf(floor_share)
    v = 1 / (s + (1 - s) * mpmath.exp(-mpmath.mpf(0.09) * log_k))
    om = mpmath.mpf(overlap)
    h = (u**om + v**om - 1) ** (-1 / om) if overlap else 1 / (u * v)
    return mpmath.log(base + mpmath.mpf(G) * h)


@given(points)
def test_value_matches_mpmath(z: tuple[float, ...]):
    with mpmath.workdps(50):
        want = float(exact(z))
    assert float(log_reducible(shared(), np.array(z))) == pytest.approx(want, rel=1e-13, abs=1e-13)
    assert shared().floor == 1.8172


@pytest.mark.parametrize("overlap", [1e-6, 0.3, 2.0, 40.0])
@given(points)
def test_value_with_overlap_matches_mpmath(overlap: float, z: tuple[float, ...]):
    with mpmath.workdps(50):
        want = float(exact(z, overlap=overlap))
    assert float(log_reducible(shared(overlap), np.array(z))) == pytest.approx(want, rel=1e-13, abs=1e-13)


@given(points)
def test_value_with_a_floor_share_matches_mpmath(z: tuple[float, ...]):
    with mpmath.workdps(50):
        want = float(exact(z, floor_share=0.2))
    law = shared(test_time=TestTime(0.09, 0.2))
    assert float(log_reducible(law, np.array(z))) == pytest.approx(want, rel=1e-13, abs=1e-13)


@given(st.floats(18, 32), st.floats(20, 40))
def test_without_rl_and_with_one_sample_the_sampling_loss_is_whole(log_n: float, log_d: float):
    z = np.array([log_n, log_d, 0.0, 0.0])
    want = math.log(math.exp(float(BESIROGLU.log_reducible(log_n, log_d))) + G)
    for law in (shared(), shared(2.0)):
        assert float(log_reducible(law, z)) == pytest.approx(want, rel=1e-13)


@given(points)
def test_only_the_sampling_loss_depends_on_rl_and_samples(z: tuple[float, ...]):
    """base + G h: the parts add, so what RL and samples remove is the same at every size."""
    law = shared(1.5)
    here, elsewhere = np.array(z), np.array([22.0, 24.0, *z[2:]])
    start = np.array([0.0, 0.0])
    removed = [
        math.exp(float(log_reducible(law, np.array([*p[:2], *start])))) - math.exp(float(log_reducible(law, p)))
        for p in (here, elsewhere)
    ]
    assert removed[0] == pytest.approx(removed[1], abs=1e-13)


def test_endless_rl_leaves_what_pretraining_leaves():
    z = np.array([25.0, 30.0, 1e4, 0.0])
    assert float(log_reducible(shared(), z)) == pytest.approx(float(BESIROGLU.log_reducible(25.0, 30.0)), rel=1e-14)


@given(points)
def test_elasticities_split_between_size_and_sampling(z: tuple[float, ...]):
    """e_R = rho w and e_k = gamma w with w = G h / (L - E), and e_N, e_D are Chinchilla's times 1 - w."""
    e = -np.asarray(slopes_of(shared(), np.array(z)))
    base = jax.grad(lambda x: BESIROGLU.log_reducible(*x))(jnp.array(z[:2]))
    w = e[2] / 0.088
    assert e[3] == pytest.approx(0.09 * w, rel=1e-11)
    assert e[:2] == pytest.approx(-np.asarray(base) * (1 - w), rel=1e-9, abs=1e-14)


def test_missing_levers_have_no_effect():
    z = np.array([25.0, 30.0, 3.0, 2.0])
    alone = shared(rl=None)
    assert float(log_reducible(alone, z)) == pytest.approx(
        math.log(math.exp(float(BESIROGLU.log_reducible(25.0, 30.0))) + G * math.exp(-0.18)), rel=1e-13
    )
    # Nothing to overlap with either.
    assert float(log_reducible(shared(2.0, rl=None), z)) == float(log_reducible(alone, z))
    assert alone.rl_axis.coordinate(0.0) == 0


def test_pure_powers_match_the_closed_form_optimum():
    """model.md, section 4: an interior optimum of the shared form always exists; here by elasticities at equal cost.

    With rho = gamma the lever's shares are equal, and e_N = e_D + e_R + e_k at any optimum with all four free.
    """
    costs = Costs(PhaseCost(6.0, 1.0), PhaseCost(3.0, 3.0), PhaseCost(2.0, 3.0), PhaseCost(2.0, 1.0), 1e11)
    law = shared(rl=PowerRl(0.1, 1e9), test_time=TestTime(0.1))
    solution = optimise(make_problem(law, costs, budget=1e24))
    n, d, r, k = solution.decision
    paid = np.array([6 * n * d, 9 * n * r, 6 * n * k * 1e11])
    assert paid.sum() == pytest.approx(1e24, rel=1e-10)
    size, data = 0.3478 * 482.01 * n**-0.3478, 0.3658 * 2085.43 * d**-0.3658
    lever = 0.1 * G * (r / 1e9) ** -0.1 * k**-0.1
    assert size == pytest.approx(data + 2 * lever, rel=1e-9)
    assert paid / paid.sum() == pytest.approx(np.array([data, lever, lever]) / size, rel=1e-9)
    assert solution.certificate == "geometric_program"


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_scale_out_of_range_is_refused_by_name(scale: float):
    with pytest.raises(LawError, match=rf"^Shared.scale: must be > 0 and finite, got {scale}$"):
        shared(scale=scale)


def test_overlap_refuses_the_pure_power():
    with pytest.raises(LawError, match="overlap: needs the RL factor"):
        shared(1.0, rl=POWER)
