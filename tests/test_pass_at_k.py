"""pass@k under beta-distributed difficulty (T^2, approach 2, arXiv 2604.01411) against mpmath and counting."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allocator.errors import LawError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.law import Point
from allocator.laws.pass_at_k import PassAtK, log_fail_at_k
from allocator.laws.rl import SaturatingRl

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
THETAS = (2.1, 6.0, 0.8, 2.0, -0.3)  # th0 to th4: no paper prints any
LAW = PassAtK(BESIROGLU, *THETAS)
WITH_RL = PassAtK(BESIROGLU, *THETAS, rl=SaturatingRl(0.2, 1e9))

means, spreads, samples = st.floats(1e-6, 0.999), st.floats(1e-2, 1e4), st.floats(1, 1e6)
log_fail = jax.jit(log_fail_at_k)
log_fail_slopes = jax.jit(jax.grad(log_fail_at_k, argnums=(0, 1, 2)))
log_reducible = jax.jit(lambda law, z: law.log_reducible(Point(*z)))


def exact_log_fail(mean: float, spread: float, k: float):
    mu, nu, k = mpmath.mpf(mean), mpmath.mpf(spread), mpmath.mpf(k)
    a, b = mu * nu, (1 - mu) * nu
    return mpmath.loggamma(b + k) - mpmath.loggamma(a + b + k) - mpmath.loggamma(b) + mpmath.loggamma(a + b)


def exact(n, d, r, k, *, rl: bool):
    """log of -log pass@k as the law's docstring has it."""
    th0, th1, th2, th3, th4 = (mpmath.mpf(x) for x in THETAS)
    e, a, b, alpha, beta = (mpmath.mpf(x) for x in (1.8172, 482.01, 2085.43, 0.3478, 0.3658))
    loss = e + a * n**-alpha + b * d**-beta
    mu = th2 / (1 + mpmath.exp(th1 * (loss - th0)))
    if rl:
        odds = mu / (1 - mu) * (1 + r / mpmath.mpf(1e9)) ** mpmath.mpf(0.2)
        mu = odds / (1 + odds)
    nu = mpmath.exp(th3 + th4 * loss)
    return mpmath.log(-mpmath.log(1 - mpmath.beta(mu * nu, (1 - mu) * nu + k) / mpmath.beta(mu * nu, (1 - mu) * nu)))


# --- the share that k samples all miss ---


@pytest.mark.parametrize(("k", "want"), [(1, 0.1), (10, 0.453455), (100, 0.797918), (1000, 0.934890)])
def test_worked_values_of_the_paper_s_formula(k: int, want: float):
    """Row T2-12 of law_cases.csv: mu = 0.1, nu = 5."""
    assert -math.expm1(float(log_fail(0.1, 5.0, float(k)))) == pytest.approx(want, rel=1e-5)


@given(means, spreads, samples)
@example(1e-6, 5.0, 1e6)
@example(1e-3, 1e4, 1.0)
@example(0.5, 1e-2, 1e6)
def test_log_fail_matches_mpmath(mean: float, spread: float, k: float):
    with mpmath.workdps(50):
        want = float(exact_log_fail(mean, spread, k))
    assert float(log_fail(mean, spread, k)) == pytest.approx(want, rel=1e-9)


@given(st.floats(0.01, 0.95), st.floats(0.1, 100), st.floats(1, 1e4))
def test_log_fail_matches_mpmath_at_everyday_values(mean: float, spread: float, k: float):
    with mpmath.workdps(50):
        want = float(exact_log_fail(mean, spread, k))
    assert float(log_fail(mean, spread, k)) == pytest.approx(want, rel=1e-9)


@given(means, spreads, samples)
@example(1e-6, 1e4, 1.0)
def test_log_fail_is_negative(mean: float, spread: float, k: float):
    """A share is below 1: above, -log pass@k would be NaN."""
    assert float(log_fail(mean, spread, k)) < 0


@pytest.mark.parametrize(("mean", "spread"), [(0.1, 5.0), (0.7, 2.0), (0.02, 40.0), (0.5, 2.0)])
@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_integer_samples_match_a_product_of_fractions(mean: float, spread: float, k: int):
    """B(a, b + k)/B(a, b) = prod (b + i)/(a + b + i), i < k, in exact arithmetic."""
    a, b = Fraction(mean) * Fraction(spread), (1 - Fraction(mean)) * Fraction(spread)
    share = math.prod((b + i) / (a + b + i) for i in range(k))
    assert float(log_fail(mean, spread, float(k))) == pytest.approx(math.log(share), rel=1e-12)


@given(st.floats(1e-3, 0.999), st.floats(1e-2, 1e3))
def test_one_sample_passes_with_the_mean(mean: float, spread: float):
    assert -math.expm1(float(log_fail(mean, spread, 1.0))) == pytest.approx(mean, rel=1e-8)


@given(st.floats(0.01, 0.95), st.floats(0.1, 100), st.floats(1, 1e4))
def test_naive_estimate_is_too_high(mean: float, spread: float, k: float):
    """Row T2-14: 1 - (1 - mu)^k is at least pass@k, by Jensen."""
    naive = k * math.log1p(-mean)
    got = float(log_fail(mean, spread, k))
    assert got >= naive - 1e-9 * abs(naive)
    if k >= 2:
        assert got > naive


def test_endless_concentration_leaves_the_naive_estimate():
    """nu -> infinity: every problem has the same pass@1."""
    assert float(log_fail(0.1, 1e7, 20.0)) == pytest.approx(20 * math.log(0.9), rel=1e-5)


@pytest.mark.parametrize("k", [1e2, 1e4])
def test_many_samples_fall_as_a_power(k: float):
    """Row LM-01: the share missed goes as k^-a, a = mu nu."""
    assert float(log_fail_slopes(0.1, 5.0, k)[2]) * k == pytest.approx(-0.5, rel=5 / k)


@pytest.mark.parametrize("point", [(0.1, 5.0, 1.0), (0.1, 5.0, 300.0), (0.9, 0.3, 7.0), (0.01, 50.0, 1e4)])
def test_slopes_of_log_fail_match_mpmath(point: tuple[float, float, float]):
    with mpmath.workdps(50):
        want = [float(mpmath.diff(exact_log_fail, point, tuple(row))) for row in np.eye(3, dtype=int).tolist()]
    assert [float(slope) for slope in log_fail_slopes(*point)] == pytest.approx(want, rel=1e-9)


# --- the law ---


@pytest.mark.parametrize("decision", [(1e9, 2e10, 0.0, 1.0), (1e11, 2e14, 3e13, 7.0), (3e10, 3e12, 1e10, 1e3)])
@pytest.mark.parametrize("law", [LAW, WITH_RL], ids=["no RL", "RL"])
def test_loss_matches_mpmath(law: PassAtK, decision: tuple[float, ...]):
    n, d, r, k = decision
    z = jnp.array([jnp.log(n), jnp.log(d), law.rl_axis.coordinate(r), jnp.log(k)])
    with mpmath.workdps(50):
        want = float(exact(*(mpmath.mpf(x) for x in decision), rl=law is WITH_RL))
    assert float(log_reducible(law, z)) == pytest.approx(want, rel=1e-10)
    assert law.floor == 0.0


@given(st.floats(18, 30), st.floats(20, 34), st.floats(0, 15), st.floats(0, 9))
def test_pass_at_k_is_a_share_and_every_lever_raises_it(log_n: float, log_d: float, rl: float, log_k: float):
    z = np.array([log_n, log_d, rl, log_k])
    start = float(log_reducible(WITH_RL, z))
    assert 0 < math.exp(-math.exp(start)) <= 1
    if log_n > 21 and log_d > 23:  # below, pass@1 is so small that nothing is left to compare
        for lever in np.eye(4):
            assert float(log_reducible(WITH_RL, z + 0.1 * lever)) <= start + 1e-9 * abs(start)


@given(st.floats(0, 15))
def test_rl_shifts_the_logit_of_one_sample(rl: float):
    """logit(pass@1) rises by rl_logit_exponent log(1 + R/R0), whatever the pre-training."""

    def logit(coordinate: float) -> float:
        log_pass = -math.exp(float(log_reducible(WITH_RL, jnp.array([25.0, 30.0, coordinate, 0.0]))))
        return log_pass - math.log(-math.expm1(log_pass))

    assert logit(rl) - logit(0.0) == pytest.approx(0.2 * rl, abs=1e-9)


@pytest.mark.parametrize("decision", [(1e7, 2e8, 0.0, 100.0), (1e7, 2e8, 1e9, 1e4), (1e5, 2e6, 0.0, 10.0)])
def test_loss_of_a_model_too_small_to_pass_matches_mpmath(decision: tuple[float, ...]):
    """pass@1 from 1e-9 down to 1e-40: -log pass@k is an ordinary number there."""
    n, d, r, k = decision
    z = jnp.array([jnp.log(n), jnp.log(d), WITH_RL.rl_axis.coordinate(r), jnp.log(k)])
    with mpmath.workdps(150):
        want = float(exact(*(mpmath.mpf(x) for x in decision), rl=True))
    assert float(log_reducible(WITH_RL, z)) == pytest.approx(want, rel=1e-9)


def test_without_rl_both_laws_agree():
    z = jnp.array([25.0, 30.0, 0.0, 2.0])
    assert float(log_reducible(LAW, z)) == pytest.approx(float(log_reducible(WITH_RL, z)), rel=1e-13)


def test_half_its_limit_at_the_middle_loss():
    """th0 is the loss at which pass@1 is th2/2."""
    n = (482.01 / (2.1 - 1.8172 - 0.1)) ** (1 / 0.3478)
    d = (2085.43 / 0.1) ** (1 / 0.3658)
    z = jnp.array([math.log(n), math.log(d), 0.0, 0.0])
    assert math.exp(-math.exp(float(log_reducible(LAW, z)))) == pytest.approx(0.4, rel=1e-9)


@pytest.mark.parametrize("log_k", [10.0, 20.0, 40.0, 80.0])
def test_certain_success_is_told_apart_to_the_end(log_k: float):
    """-log pass@k is the share missed once that is below rounding, and its log does not underflow."""
    law = PassAtK(BESIROGLU, 2.1, 6.0, 0.9, 3.0, 0.0)  # a = mu nu near 18, so the share missed is k^-18
    z = jnp.array([30.0, 38.0, 0.0, log_k])
    gradient = np.asarray(jax.grad(log_reducible, argnums=1)(law, z))
    assert np.isfinite(float(log_reducible(law, z)))
    assert np.isfinite(gradient).all()
    loss = 1.8172 + 482.01 * math.exp(-0.3478 * 30) + 2085.43 * math.exp(-0.3658 * 38)
    power = 0.9 / (1 + math.exp(6 * (loss - 2.1))) * math.exp(3.0)
    assert gradient[3] == pytest.approx(-power, rel=1e-6 + 50 * math.exp(-log_k))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"th1": 0.0}, "PassAtK.th1: must be > 0 and finite, got 0.0"),
        ({"th1": -1.0}, "PassAtK.th1: must be > 0 and finite, got -1.0"),
        ({"th2": 0.0}, "PassAtK.th2: must be > 0 and finite, got 0.0"),
        ({"th2": 1.0}, "PassAtK.th2: pass@1 must stay < 1, got 1.0"),
        ({"th2": 1}, "PassAtK.th2: pass@1 must stay < 1, got 1"),
        ({"th0": math.nan}, "PassAtK.th0: "),
        ({"th3": math.inf}, "PassAtK.th3: "),
        ({"th4": math.nan}, "PassAtK.th4: "),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(changes: dict, message: str):
    values = dict(zip(("th0", "th1", "th2", "th3", "th4"), THETAS, strict=True)) | changes
    with pytest.raises(LawError) as caught:
        PassAtK(BESIROGLU, **values)
    assert str(caught.value).startswith(message)
