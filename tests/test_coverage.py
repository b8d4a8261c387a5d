"""Coverage form, in error rate: against mpmath, and inside (0, 1) over the whole domain with Gadre's link."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allocator.errors import LawError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.coverage import Coverage
from allocator.laws.gadre import Gadre
from allocator.laws.joint import JointFactor
from allocator.laws.law import Point, PretrainingLaw
from allocator.laws.loss_to_error import ErrorLaw, LossToError
from allocator.laws.rl import SaturatingRl
from allocator.laws.test_time import TestTime

IN_ERROR = Chinchilla(e=0.05, a=20.0, b=60.0, alpha=0.25, beta=0.25)  # made up: a law fitted in error rate
BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
GADRE = {  # mlfoundations/scaling @ a003c491, run anew
    "c4": Gadre(e=1.508, p=141.3, q=189.5, h=0.1212),
    "red-pajama": Gadre(e=1.837, p=212.2, q=366.7, h=0.1364),
    "refined-web": Gadre(e=1.734, p=157.1, q=246.2, h=0.1272),
}
LINK = LossToError(epsilon=0.8570, kappa=2.2065, gamma=0.7146)  # likewise, 17 tasks
RL, TIME = SaturatingRl(0.088, 1e9), TestTime(0.09)
GUESS, SLOPE = 0.2, 0.6

points = st.tuples(st.floats(20, 32), st.floats(22, 40), st.floats(0, 20), st.floats(0, 12))
log_reducible = jax.jit(lambda law, z: law.log_reducible(Point(*z)))


def coverage(law: PretrainingLaw = IN_ERROR, overlap: float | None = None, guess=GUESS, slope=SLOPE) -> Coverage:
    return Coverage(law, JointFactor(RL, TIME, overlap), guess, slope)


def error_of(law: Coverage, z) -> float:
    return float(law.floor) + math.exp(float(log_reducible(law, np.array(z, float))))


def exact_h(r, log_k, overlap: float):
    u, v = mpmath.exp(mpmath.mpf(0.088) * r), mpmath.exp(mpmath.mpf(0.09) * log_k)
    om = mpmath.mpf(overlap)
    return (u**om + v**om - 1) ** (-1 / om) if overlap else 1 / (u * v)


def exact_error(z, overlap: float = 0.0):
    """1 - (1 - E - base)(1 - (S0 + c (E + base)) h), as model.md writes it."""
    n, d, r, log_k = (mpmath.mpf(x) for x in z)
    e, a, b, alpha, beta = (mpmath.mpf(x) for x in (0.05, 20.0, 60.0, 0.25, 0.25))
    reached = e + a * mpmath.exp(-alpha * n) + b * mpmath.exp(-beta * d)
    sampling = mpmath.mpf(GUESS) + mpmath.mpf(SLOPE) * reached
    return 1 - (1 - reached) * (1 - sampling * exact_h(r, log_k, overlap))


@pytest.mark.parametrize("overlap", [None, 0.3, 2.0, 40.0])
@given(points)
def test_value_matches_mpmath(overlap: float | None, z: tuple[float, ...]):
    law = coverage(overlap=overlap)
    with mpmath.workdps(50):
        error = exact_error(z, overlap or 0.0)
        want = float(mpmath.log(error - mpmath.mpf(0.05)))
    assert float(log_reducible(law, np.array(z))) == pytest.approx(want, rel=1e-12, abs=1e-13)
    assert error_of(law, z) == pytest.approx(float(error), rel=1e-13)


@pytest.mark.parametrize("law", GADRE.values(), ids=GADRE)
@given(st.floats(0, 135), st.floats(0, 135), st.floats(0, 135), st.floats(0, 135), st.sampled_from([None, 2.0]))
@example(0.0, 0.0, 0.0, 0.0, None)
@example(135.0, 135.0, 135.0, 135.0, 2.0)
def test_error_is_inside_zero_and_one_over_the_whole_domain(law: Gadre, n, d, r, k, overlap):
    """From one parameter and one token to 1e58 of each, with the link to error."""
    linked = coverage(ErrorLaw(law, LINK), overlap)
    assert 0 < error_of(linked, (n, d, r, k)) < 1


@given(st.floats(0, 135), st.floats(0, 135), st.floats(0, 135), st.floats(0, 135))
def test_besiroglu_through_the_link_is_inside_too(n: float, d: float, r: float, k: float):
    assert 0 < error_of(coverage(ErrorLaw(BESIROGLU, LINK)), (n, d, r, k)) < 1


@given(st.floats(0, 135), st.floats(0, 135), st.floats(0, 135), st.floats(0, 135))
def test_gradients_are_finite_over_the_whole_domain_of_the_link(n: float, d: float, r: float, k: float):
    gradient = slopes_of(coverage(ErrorLaw(BESIROGLU, LINK), 2.0), np.array([n, d, r, k]))
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[2:] <= 0).all()


slopes_of = jax.jit(jax.grad(log_reducible, argnums=1))


@given(points)
def test_pretraining_bounds_what_samples_can_reach(z: tuple[float, ...]):
    """error >= E + base: no samples answer what pre-training cannot; and with one sample and no RL it is 1 - (1 - q)(1
    - S)."""
    reached = 0.05 + math.exp(float(IN_ERROR.log_reducible(z[0], z[1])))
    law = coverage()
    assert error_of(law, z) >= reached * (1 - 1e-14)
    assert error_of(law, (z[0], z[1], 1e5, 1e5)) == pytest.approx(reached, rel=1e-12)
    start = 1 - (1 - reached) * (1 - GUESS - SLOPE * reached)
    assert error_of(law, (z[0], z[1], 0.0, 0.0)) == pytest.approx(start, rel=1e-13)


def test_perfect_pretraining_leaves_the_sampling_error():
    """base = 0: error - E = (1 - E)(S0 + c E) h."""
    z = (1e4, 1e4, 2.0, 3.0)
    h = math.exp(-0.088 * 2 - 0.09 * 3)
    want = math.log(0.95 * (GUESS + SLOPE * 0.05) * h)
    assert float(log_reducible(coverage(), np.array(z))) == pytest.approx(want, rel=1e-13)


def test_no_sampling_loss_leaves_pretraining_alone():
    """S0 = 0 and a small c: error - E = base (1 + O(c))."""
    law = coverage(guess=0.0, slope=1e-12)
    z = np.array([25.0, 30.0, 0.0, 0.0])
    assert float(log_reducible(law, z)) == pytest.approx(float(IN_ERROR.log_reducible(25.0, 30.0)), abs=1e-10)


def test_law_in_nats_would_exceed_one():
    """Why nats are refused in a scenario: Besiroglu's E alone is 1.8172, model.md's "error" 1.85."""
    law = coverage(BESIROGLU)
    z = np.array([25.0, 30.0, 0.0, 0.0])
    assert not 0 < float(law.floor) + math.exp(float(log_reducible(law, z))) < 1


@pytest.mark.parametrize(
    ("guess", "slope", "message"),
    [
        (-0.1, 0.5, "Coverage.guess: must be >= 0 and finite, got -0.1"),
        (0.1, -0.5, "Coverage.slope: must be >= 0 and finite, got -0.5"),
        (math.nan, 0.5, "Coverage.guess: must be >= 0 and finite, got nan"),
        (0.0, 0.0, "Coverage.guess and slope: one of them must be > 0"),
        (0, 0, "Coverage.guess and slope: one of them must be > 0"),
        (0.7, 0.6, "Coverage: guess + slope must be <= 1, got 1.3"),
        (1, 1, "Coverage: guess + slope must be <= 1, got 2"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(guess: float, slope: float, message: str):
    with pytest.raises(LawError) as caught:
        coverage(guess=guess, slope=slope)
    assert str(caught.value) == message


def test_gradient_passes_through_the_pytree():
    """d log(error - E)/dS0 = (1 - E - base) h / (error - E)."""
    law, z = coverage(), np.array([25.0, 30.0, 2.0, 1.0])
    slopes = jax.jit(jax.grad(lambda law, z: law.log_reducible(Point(*z))))(law, z)
    base = math.exp(float(IN_ERROR.log_reducible(25.0, 30.0)))
    h = math.exp(-0.088 * 2 - 0.09)
    above = math.exp(float(log_reducible(law, z)))
    assert float(slopes.guess) == pytest.approx((0.95 - base) * h / above, rel=1e-12)
    assert float(slopes.slope) == pytest.approx((0.95 - base) * (0.05 + base) * h / above, rel=1e-12)
    batch = jax.jit(jax.vmap(lambda z: law.log_reducible(Point(*z))))(jnp.stack([z, z]))
    assert np.asarray(batch) == pytest.approx(float(log_reducible(law, z)), rel=1e-15)
