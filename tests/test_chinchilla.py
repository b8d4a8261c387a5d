"""The two-power law against published numbers and mpmath; no value here came from this code."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import LawError
from allocator.laws.chinchilla import Chinchilla, equal_cost_exponent

BESIROGLU = Chinchilla(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)  # arXiv 2404.10102v2, eq. 3
HOFFMANN = Chinchilla(  # arXiv 2203.15556, comment after eq. 10 in the TeX source
    e=math.exp(0.5267228), a=math.exp(6.0073404), b=math.exp(6.0179186), alpha=0.33917084, beta=0.2849083
)
GOOD = {"e": 1.8, "a": 400.0, "b": 2000.0, "alpha": 0.35, "beta": 0.37}

laws = st.builds(
    Chinchilla,
    e=st.floats(0, 3),
    a=st.floats(1, 1e4),
    b=st.floats(1, 1e4),
    alpha=st.floats(0.02, 1),
    beta=st.floats(0.02, 1),
)
log_sizes = st.floats(math.log(1e3), math.log(1e15))
log_tokens = st.floats(math.log(1e3), math.log(1e18))


def reducible(law: Chinchilla, log_n, log_d):
    """L0 - E in 50 digits."""
    n, d = mpmath.exp(log_n), mpmath.exp(log_d)
    return mpmath.mpf(law.a) * n ** -mpmath.mpf(law.alpha) + mpmath.mpf(law.b) * d ** -mpmath.mpf(law.beta)


@jax.jit
def derivatives(law, z):
    """Gradient and Hessian of log(L0 - E) in logs."""

    def f(z):
        return law.log_reducible(z[0], z[1])

    return jax.grad(f)(z), jax.hessian(f)(z)


# --- published numbers ---


def test_loss_at_gopher_budget_matches_besiroglu():
    loss = BESIROGLU.floor + jnp.exp(BESIROGLU.log_reducible(jnp.log(7.225e10), jnp.log(1.329e12)))  # at 5.76e23 FLOP
    assert float(loss) == pytest.approx(1.9744, abs=5e-5)


@pytest.mark.parametrize(
    ("law", "n", "d"),
    [(BESIROGLU, 7.225e10, 1.329e12), (HOFFMANN, 4.036e10, 2.379e12)],  # closed form at 5.76e23 FLOP
    ids=["besiroglu", "hoffmann"],
)
def test_optimal_tokens_at_gopher_budget_match_the_closed_form(law: Chinchilla, n: float, d: float):
    assert float(jnp.exp(law.log_optimal_tokens(jnp.log(n)))) == pytest.approx(d, rel=2e-3)


def test_equal_cost_exponents_match_the_model_s():
    assert equal_cost_exponent(0.3478, 0.3658) == pytest.approx(0.08803296429559924, rel=1e-14)
    assert equal_cost_exponent(0.33917084, 0.2849083) == pytest.approx(0.08093888284916068, rel=1e-14)
    assert math.isnan(equal_cost_exponent(math.nan, 0.3))


# --- against mpmath ---


@given(laws, log_sizes, log_tokens)
def test_value_matches_mpmath(law: Chinchilla, log_n: float, log_d: float):
    with mpmath.workdps(50):
        want = float(mpmath.log(reducible(law, log_n, log_d)))
    assert float(law.log_reducible(log_n, log_d)) == pytest.approx(want, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("point", [(23.0, 30.0), (25.3, 33.0), (28.0, 20.0)])
def test_gradient_and_hessian_match_mpmath(point: tuple[float, float]):
    gradient, hessian = (np.asarray(part) for part in derivatives(BESIROGLU, jnp.array(point)))
    with mpmath.workdps(50):

        def f(x, y):
            return mpmath.log(reducible(BESIROGLU, x, y))

        slopes = [float(mpmath.diff(f, point, order)) for order in ((1, 0), (0, 1))]
        bends = [float(mpmath.diff(f, point, order)) for order in ((2, 0), (1, 1), (0, 2))]
    assert gradient == pytest.approx(slopes, rel=1e-12)
    assert hessian[np.triu_indices(2)] == pytest.approx(bends, rel=1e-11)


# --- properties ---


@given(laws, st.tuples(log_sizes, log_tokens))
def test_convex_and_falling_in_logs(law: Chinchilla, point: tuple[float, float]):
    gradient, hessian = derivatives(law, jnp.array(point))
    assert (np.asarray(gradient) <= 0).all()
    assert np.linalg.eigvalsh(hessian).min() >= -1e-14


@given(laws, log_sizes)
def test_optimal_tokens_make_both_elasticities_equal(law: Chinchilla, log_n: float):
    log_d = float(law.log_optimal_tokens(log_n))
    with mpmath.workdps(50):  # in N D fixed, the loss is least where alpha A N^-alpha = beta B D^-beta
        size = mpmath.mpf(law.alpha) * law.a * mpmath.exp(-mpmath.mpf(law.alpha) * log_n)
        data = mpmath.mpf(law.beta) * law.b * mpmath.exp(-mpmath.mpf(law.beta) * log_d)
        assert float(size / data) == pytest.approx(1, rel=1e-12)


def test_size_exponents_are_the_slopes_where_the_other_term_is_negligible():
    many = 1e3
    slopes = [float(derivatives(BESIROGLU, jnp.array(z))[0][i]) for i, z in enumerate(([25.0, many], [many, 25.0]))]
    assert [-slope for slope in slopes] == pytest.approx([0.3478, 0.3658], rel=1e-12)
    assert BESIROGLU.size_exponents() == (0.3478, 0.3658)


# --- a pytree like any other ---


def test_jit_vmap_and_grad_pass_through_the_law():
    log_n, log_d = jnp.array([24.0, 25.0]), jnp.array([31.0, 33.0])
    both = jax.tree.map(lambda x, y: jnp.array([x, y]), BESIROGLU, HOFFMANN)
    batch = eqx.filter_jit(jax.vmap(lambda law, n, d: law.log_reducible(n, d)))(both, log_n, log_d)
    alone = [float(law.log_reducible(n, d)) for law, n, d in zip((BESIROGLU, HOFFMANN), log_n, log_d, strict=True)]
    assert np.asarray(batch) == pytest.approx(alone, rel=1e-15)

    slopes = jax.jit(jax.grad(lambda law: law.log_reducible(24.0, 31.0)))(BESIROGLU)
    with mpmath.workdps(50):  # d log(u + v)/dA = u/A/(u + v), and -log N u/(u + v) for alpha
        u = mpmath.mpf(482.01) * mpmath.exp(-24 * mpmath.mpf(0.3478))
        weight = u / reducible(BESIROGLU, 24.0, 31.0)
        assert float(slopes.a) == pytest.approx(float(weight / mpmath.mpf(482.01)), rel=1e-12)
        assert float(slopes.alpha) == pytest.approx(float(-24 * weight), rel=1e-12)
    assert slopes.e == 0


# --- refused ---


@pytest.mark.parametrize("name", ["e", "a", "b", "alpha", "beta"])
@pytest.mark.parametrize("value", [-0.3, math.nan, math.inf, -math.inf])
def test_parameter_out_of_range_is_refused_by_name(name: str, value: float):
    rule = ">= 0" if name == "e" else "> 0"
    with pytest.raises(LawError, match=f"^Chinchilla.{name}: must be {rule} and finite, got {value}$"):
        Chinchilla(**GOOD | {name: value})


@pytest.mark.parametrize("name", ["a", "b", "alpha", "beta"])
def test_zero_is_refused_but_for_the_floor(name: str):
    with pytest.raises(LawError, match=f"Chinchilla.{name}: must be > 0"):
        Chinchilla(**GOOD | {name: 0.0})
    assert Chinchilla(**GOOD | {"e": 0.0}).floor == 0


def test_replaced_parameter_is_checked_too():
    with pytest.raises(LawError, match=r"Chinchilla\.beta"):
        dataclasses.replace(BESIROGLU, beta=-1.0)


@pytest.mark.parametrize(
    "kind", [np.float64, np.float32, np.asarray, jnp.asarray], ids=["float64", "float32", "numpy", "jax"]
)
def test_number_of_another_type_is_checked_like_a_float(kind):
    with pytest.raises(LawError, match=r"Chinchilla\.beta"):
        Chinchilla(**GOOD | {"beta": kind(-0.3)})
