"""Worth of repeated tokens against the paper's equation in mpmath, its published values and its shape."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import allocator
from allocator.errors import LawError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.repetition import R_STAR, Repeated, log_effective_tokens

C4 = Chinchilla(  # huggingface/datablations README
    e=math.exp(0.6254804), a=math.exp(6.255414), b=math.exp(7.3049974), alpha=0.3526596, beta=0.3526596
)
U = 1e12

epochs = st.floats(1e-6, 1e6)
r_stars = st.floats(0.5, 100)


def worth(epoch_count: float, r_star: float = R_STAR) -> float:
    """D' / U."""
    return float(jnp.exp(log_effective_tokens(jnp.log(epoch_count * U), jnp.log(U), r_star) - jnp.log(U)))


def slope(epoch_count: float, r_star: float = R_STAR) -> float:
    """dlog D' / dlog D."""
    return float(jax.grad(log_effective_tokens)(jnp.log(epoch_count * U), jnp.log(U), r_star))


def test_constant_is_the_repository_s():
    assert R_STAR == 15.387756  # huggingface/datablations README


@pytest.mark.parametrize(("count", "share"), [(2, 0.9841), (4, 0.93142), (16, 0.6614), (40, 0.37919)])
def test_worth_per_seen_token_matches_muennighoff(count: int, share: float):
    assert worth(count) / count == pytest.approx(share, rel=1e-4)  # arXiv 2305.16264, eq. 5


def test_endless_repetition_is_worth_r_star_and_one_epochs():
    assert worth(1e8) == pytest.approx(16.387756, rel=1e-12)


@given(epochs, r_stars)
def test_worth_matches_mpmath(count: float, r_star: float):
    with mpmath.workdps(50):
        r = mpmath.mpf(r_star)
        want = 1 + r * (1 - mpmath.exp(-(mpmath.mpf(count) - 1) / r)) if count > 1 else mpmath.mpf(count)
    assert worth(count, r_star) == pytest.approx(float(want), rel=1e-13)


@given(epochs, r_stars)
def test_slope_matches_mpmath(count: float, r_star: float):
    with mpmath.workdps(50):
        r, e = mpmath.mpf(r_star), mpmath.mpf(count)
        tail = mpmath.exp(-(e - 1) / r)
        want = e * tail / (1 + r * (1 - tail)) if count > 1 else mpmath.mpf(1)
    # JAX takes the derivative of expm1 as expm1 + 1, hence an absolute error of some 1e-16 epochs.
    assert slope(count, r_star) == pytest.approx(float(want), rel=1e-9, abs=1e-12)


def test_fresh_tokens_count_in_full_and_the_first_repeat_almost_does():
    assert worth(0.3) == pytest.approx(0.3, rel=1e-14)
    assert worth(1.0) == pytest.approx(1.0, rel=1e-14)
    for side in (1 - 1e-9, 1.0, 1 + 1e-9):  # value and slope pass through D = U without a jump
        assert worth(side) == pytest.approx(side, rel=1e-12)
        assert slope(side) == pytest.approx(1.0, rel=1e-7)


@given(st.floats(-80, 80), st.floats(0.01, 5), r_stars)
def test_worth_rises_and_is_concave_in_logs(log_epochs: float, step: float, r_star: float):
    x = jnp.array([log_epochs, log_epochs + step, log_epochs + 2 * step])
    low, middle, high = np.asarray(log_effective_tokens(x, 0.0, r_star))
    assert low <= middle <= high
    assert middle >= (low + high) / 2 - 1e-12


@pytest.mark.parametrize("log_epochs", [-300.0, -1.0, 0.0, 1.0, 10.0, 300.0])
def test_derivatives_are_finite_everywhere(log_epochs: float):
    for derivative in (jax.grad, jax.hessian):
        found = derivative(log_effective_tokens)(jnp.asarray(log_epochs), jnp.asarray(0.0), jnp.asarray(R_STAR))
        assert np.isfinite(float(found))
        assert np.isfinite(float(derivative(log_effective_tokens, argnums=2)(log_epochs, 0.0, R_STAR)))


def test_law_over_seen_tokens_is_the_law_at_their_worth():
    law = Repeated(C4, U)
    seen, fresh = jnp.log(4 * U), jnp.log(4 * 0.93142 * U)  # arXiv 2305.16264, eq. 5 at 4 epochs
    assert float(law.log_reducible(24.0, seen)) == pytest.approx(float(C4.log_reducible(24.0, fresh)), rel=1e-5)
    assert float(law.log_reducible(24.0, 20.0)) == pytest.approx(float(C4.log_reducible(24.0, 20.0)), rel=1e-14)
    assert law.floor == C4.floor
    assert law.size_exponents() == C4.size_exponents()
    assert float(law.log_optimal_tokens(24.0)) == float(C4.log_optimal_tokens(24.0))


@given(st.floats(15, 35), st.floats(20, 40), st.floats(-3, 3), st.floats(-3, 3))
def test_law_stays_convex_in_logs(log_n: float, log_d: float, step_n: float, step_d: float):
    law = Repeated(C4, U)
    ends = [law.log_reducible(log_n + s * step_n, log_d + s * step_d) for s in (-1, 1)]
    assert float(law.log_reducible(log_n, log_d)) <= float(ends[0] + ends[1]) / 2 + 1e-12


def test_jit_vmap_and_grad_pass_through_the_law():
    law = Repeated(C4, U)
    log_d = jnp.log(jnp.array([0.5, 2.0, 50.0]) * U)
    batch = jax.jit(jax.vmap(lambda law, d: law.log_reducible(24.0, d), in_axes=(None, 0)))(law, log_d)
    assert np.asarray(batch) == pytest.approx([float(law.log_reducible(24.0, d)) for d in log_d], rel=1e-15)
    slopes = jax.grad(lambda law: law.log_reducible(24.0, jnp.log(8 * U)))(law)
    step = 1e-4 * U
    ends = [float(Repeated(C4, U + s * step).log_reducible(24.0, jnp.log(8 * U))) for s in (-1, 1)]
    assert float(slopes.unique_tokens) == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-6)
    assert float(slopes.unique_tokens) < 0


@pytest.mark.parametrize("name", ["unique_tokens", "r_star"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_parameter_out_of_range_is_refused_by_name(name: str, value: float):
    with pytest.raises(LawError, match=f"^Repeated.{name}: must be > 0 and finite, got {value}$"):
        Repeated(**{"law": C4, "unique_tokens": U, name: value})


def test_plan_repeats_data_where_it_is_short_and_not_where_it_is_ample():
    ample = allocator.solve(allocator.load("lecture", overrides=["pretraining.unique_tokens=1e17"]))
    plain = allocator.solve(allocator.load("lecture"))
    assert ample.decision.d_pretrain == pytest.approx(plain.decision.d_pretrain, rel=1e-9)
    short = allocator.solve(allocator.load("lecture", overrides=["pretraining.unique_tokens=2e13"]))
    assert short.decision.d_pretrain < plain.decision.d_pretrain
    assert short.loss > plain.loss
    # The gain of a seen token is less by dlog D'/dlog D, from which the shares of pre-training and RL follow.
    e_d, e_r = short.elasticities["d_pretrain"], short.elasticities["d_rl"]
    shares = [short.phases[name].share for name in ("pretrain", "rl")]
    assert e_d / e_r == pytest.approx(shares[0] / shares[1], rel=1e-8)
    count = short.decision.d_pretrain / 2e13
    with mpmath.workdps(30):
        law = mpmath.mpf("2085.43") * (2e13 * worth(count)) ** mpmath.mpf("-0.3658")
        base = mpmath.mpf("482.01") * mpmath.mpf(1e11) ** mpmath.mpf("-0.3478") + law
    assert e_d == pytest.approx(float(0.3658 * law / base) * slope(count), rel=1e-10)
