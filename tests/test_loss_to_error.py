"""Links from loss to error (Gadre et al., arXiv 2403.08540, eq. 5) against mpmath and the paper's own fit."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator import catalog
from allocator.errors import CatalogError, LawError
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.gadre import Gadre
from allocator.laws.law import PretrainingLaw
from allocator.laws.loss_to_error import ErrorLaw, LossToError
from allocator.laws.presets import loss_to_error, pretraining_law

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
RED_PAJAMA = Gadre(e=1.837, p=212.2, q=366.7, h=0.1364)  # mlfoundations/scaling @ a003c491, run anew
LINK = LossToError(epsilon=0.8570, kappa=2.2065, gamma=0.7146)  # likewise, 17 tasks
LAWS = {"besiroglu": BESIROGLU, "red-pajama": RED_PAJAMA}

log_sizes, log_tokens = st.floats(math.log(1e6), math.log(1e15)), st.floats(math.log(1e6), math.log(1e18))
log_reducible = jax.jit(lambda law, z: law.log_reducible(z[0], z[1]))


def loss(law: PretrainingLaw, log_n, log_d):
    """L0 as the papers write it."""
    n, d = mpmath.exp(log_n), mpmath.exp(log_d)
    if isinstance(law, Chinchilla):
        e, a, b, alpha, beta = (mpmath.mpf(x) for x in (law.e, law.a, law.b, law.alpha, law.beta))
        return e + a * n**-alpha + b * d**-beta
    e, p, q, h = (mpmath.mpf(x) for x in (law.e, law.p, law.q, law.h))
    return e + (p * (d / n) ** h + q * (d / n) ** -h) * (6 * n * d) ** -h


def error(value):
    return mpmath.mpf(LINK.epsilon) - mpmath.mpf(LINK.kappa) * mpmath.exp(-mpmath.mpf(LINK.gamma) * value)


def test_link_is_the_shipped_one():
    record = catalog.law_record("gadre-redpajama-17")
    assert loss_to_error(record.content["parameters"]) == LINK
    assert record.content["kind"] == "loss-to-error"
    with pytest.raises(CatalogError, match="is not a pre-training loss"):
        pretraining_law(record.name, record.content["kind"], record.content["parameters"])


@given(st.floats(0, 20))
def test_error_matches_mpmath(value: float):
    with mpmath.workdps(50):
        want = float(error(mpmath.mpf(value)))
    assert float(LINK.error(jnp.asarray(value))) == pytest.approx(want, rel=1e-14, abs=1e-15)


@given(st.floats(1.8, 20), st.floats(1e-3, 5))
def test_more_loss_is_more_error_up_to_epsilon(value: float, more: float):
    low, high = (float(LINK.error(jnp.asarray(x))) for x in (value, value + more))
    assert 0 < low < high < LINK.epsilon


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@given(log_sizes, log_tokens)
def test_reducible_error_matches_mpmath(law: PretrainingLaw, log_n: float, log_d: float):
    """The error above its floor, which a difference of two errors would lose near the floor."""
    with mpmath.workdps(60):
        want = float(mpmath.log(error(loss(law, log_n, log_d)) - error(mpmath.mpf(law.floor))))
    got = float(log_reducible(ErrorLaw(law, LINK), jnp.array([log_n, log_d])))
    assert got == pytest.approx(want, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_floor_is_the_error_at_the_floor_of_the_loss(law: PretrainingLaw):
    with mpmath.workdps(50):
        assert float(ErrorLaw(law, LINK).floor) == pytest.approx(float(error(mpmath.mpf(law.floor))), rel=1e-14)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@given(st.floats(0, 120), st.floats(0, 120))
def test_error_stays_between_zero_and_epsilon_over_the_whole_domain(law: PretrainingLaw, log_n: float, log_d: float):
    """From one parameter and one token on, where the loss is in the thousands."""
    linked = ErrorLaw(law, LINK)
    total = float(linked.floor) + math.exp(float(log_reducible(linked, jnp.array([log_n, log_d]))))
    assert 0 < total <= LINK.epsilon * (1 + 1e-15)


@given(log_sizes)
def test_compute_optimal_tokens_are_those_of_the_loss(log_n: float):
    for law in LAWS.values():
        assert float(ErrorLaw(law, LINK).log_optimal_tokens(log_n)) == float(law.log_optimal_tokens(log_n))


def test_exponents_are_met_near_the_floor():
    """There the link is linear: slopes of log error are those of log loss."""
    linked = ErrorLaw(BESIROGLU, LINK)
    for i, other in ((0, (45.0, 300.0)), (1, (300.0, 45.0))):
        slopes = np.asarray(jax.grad(log_reducible, argnums=1)(linked, jnp.array(other)))
        assert -slopes[i] == pytest.approx(linked.size_exponents()[i], rel=1e-3)


def test_small_exponent_of_the_link_is_the_loss_itself():
    """gamma -> 0: error - floor = kappa gamma (L0 - E)."""
    link = LossToError(epsilon=0.9, kappa=0.5, gamma=1e-9)
    got = float(log_reducible(ErrorLaw(BESIROGLU, link), jnp.array([25.0, 30.0])))
    want = math.log(0.5e-9) + float(BESIROGLU.log_reducible(25.0, 30.0))
    assert got == pytest.approx(want, abs=1e-8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 1.1}, "LossToError.epsilon: must be > 0 and <= 1, got 1.1"),
        ({"epsilon": 0.0}, "LossToError.epsilon: must be > 0 and <= 1, got 0.0"),
        ({"kappa": 0.0}, "LossToError.kappa: must be > 0 and finite, got 0.0"),
        ({"gamma": -1.0}, "LossToError.gamma: must be > 0 and finite, got -1.0"),
        ({"gamma": math.nan}, "LossToError.gamma: must be > 0 and finite, got nan"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(changes: dict, message: str):
    with pytest.raises(LawError) as caught:
        LossToError(**({"epsilon": 0.857, "kappa": 2.2065, "gamma": 0.7146} | changes))
    assert str(caught.value) == message


def test_link_that_would_make_the_floor_negative_is_refused():
    """epsilon - kappa exp(-gamma E) < 0: such a link was fitted to another loss."""
    with pytest.raises(LawError, match=r"ErrorLaw.floor: must be >= 0"):
        ErrorLaw(Chinchilla(e=0.5, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658), LINK)
