"""Gadre's law against the paper's code, mpmath and a minimiser."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import allocator
from allocator.errors import LawError
from allocator.laws.gadre import Gadre

# mlfoundations/scaling @ a003c491, run anew: law_cases.csv, rows GA-C4 and GA-RedPajama
C4 = Gadre(e=1.508, p=141.3, q=189.5, h=0.1212)
RED_PAJAMA = Gadre(e=1.837, p=212.2, q=366.7, h=0.1364)

laws = st.builds(Gadre, e=st.floats(0, 3), p=st.floats(1, 1e3), q=st.floats(1, 1e3), h=st.floats(0.02, 0.5))
log_sizes = st.floats(math.log(1e3), math.log(1e15))
log_tokens = st.floats(math.log(1e3), math.log(1e18))


@jax.jit
def derivatives(law, z):
    """Gradient and Hessian of log(L0 - E) in logs."""

    def f(z):
        return law.log_reducible(z[0], z[1])

    return jax.grad(f)(z), jax.hessian(f)(z)


def exact(law: Gadre, log_n, log_d):
    """log(L0 - E) as the paper writes it, with M = D/N and C = 6 N D, in mpmath."""
    n, d = mpmath.exp(log_n), mpmath.exp(log_d)
    m, c, h = d / n, 6 * n * d, mpmath.mpf(law.h)
    return mpmath.log((mpmath.mpf(law.p) * m**h + mpmath.mpf(law.q) * m**-h) * c**-h)


def test_headline_prediction_matches_the_paper_s_code():
    """Row GA-10 of law_cases.csv: N = 1.44e9 at 640 tokens a parameter."""
    n = 1.44e9
    loss = RED_PAJAMA.floor + math.exp(RED_PAJAMA.log_reducible(jnp.log(n), jnp.log(640 * n)))
    assert loss == pytest.approx(2.5198, rel=1e-3)


@given(laws, log_sizes, log_tokens)
def test_value_matches_mpmath(law: Gadre, log_n: float, log_d: float):
    with mpmath.workdps(50):
        want = float(exact(law, log_n, log_d))
    assert float(law.log_reducible(log_n, log_d)) == pytest.approx(want, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("law", [C4, RED_PAJAMA], ids=["c4", "red-pajama"])
@pytest.mark.parametrize("point", [(20.0, 24.0), (25.0, 25.0), (23.0, 32.0)])
def test_gradient_and_hessian_match_mpmath(law: Gadre, point: tuple[float, float]):
    gradient, hessian = (np.asarray(part) for part in derivatives(law, jnp.array(point)))
    with mpmath.workdps(50):

        def slope(*order):
            return float(mpmath.diff(lambda n, d: exact(law, n, d), point, order))

        assert gradient == pytest.approx([slope(1, 0), slope(0, 1)], rel=1e-12)
        assert hessian[np.triu_indices(2)] == pytest.approx([slope(2, 0), slope(1, 1), slope(0, 2)], rel=1e-10)


@given(laws, st.tuples(log_sizes, log_tokens))
def test_convex_and_falling_in_logs(law: Gadre, point: tuple[float, float]):
    gradient, hessian = derivatives(law, jnp.array(point))
    assert (np.asarray(gradient) <= 0).all()
    assert np.linalg.eigvalsh(hessian).min() >= -1e-14


@pytest.mark.parametrize("law", [C4, RED_PAJAMA], ids=["c4", "red-pajama"])
@pytest.mark.parametrize("flop", [1e18, 1e24])
def test_optimal_tokens_match_a_minimiser(law: Gadre, flop: float):
    """Least loss at C = 6 N D over N: the paper's own formula in floats, golden section."""

    def loss(log_n):
        m = flop / 6 / math.exp(2 * log_n)
        return (law.p * m**law.h + law.q * m**-law.h) * flop**-law.h

    log_n = minimize_scalar(loss, bracket=(15.0, 25.0), tol=1e-10).x
    log_d = math.log(flop / 6) - log_n
    assert float(law.log_optimal_tokens(log_n)) == pytest.approx(log_d, abs=1e-5)


@given(laws, log_sizes)
def test_tokens_per_parameter_are_the_same_at_every_size(law: Gadre, log_n: float):
    ratio = float(law.log_optimal_tokens(log_n)) - log_n
    assert ratio == pytest.approx(math.log(law.q / law.p) / (2 * law.h), rel=1e-9, abs=1e-12)


def test_both_size_exponents_are_twice_h():
    far = 1e4
    slopes = [float(jax.grad(C4.log_reducible, i)(*z)) for i, z in enumerate(((25.0, far), (far, 25.0)))]
    assert [-s for s in slopes] == pytest.approx(C4.size_exponents(), rel=1e-12)


def test_plan_with_training_alone_buys_the_optimal_tokens():
    scenario = allocator.load(
        "gopher-budget", overrides=["law.pretraining=gadre-2024-c4", "objective.compute_flop=1e21"]
    )
    plan = allocator.solve(scenario)
    assert plan.status == "optimal"
    assert plan.overtraining.tokens_per_param == pytest.approx((189.5 / 141.3) ** (1 / (2 * 0.1212)), rel=1e-9)
    assert plan.overtraining.vs_chinchilla == pytest.approx(1, rel=1e-9)


def test_jit_vmap_and_grad_pass_through_the_law():
    both = jax.tree.map(lambda x, y: jnp.array([x, y]), C4, RED_PAJAMA)
    batch = jax.jit(jax.vmap(lambda law: law.log_reducible(20.0, 24.0)))(both)
    assert np.asarray(batch) == pytest.approx([float(law.log_reducible(20.0, 24.0)) for law in (C4, RED_PAJAMA)])
    slopes = jax.grad(lambda law: law.log_reducible(20.0, 24.0))(C4)
    step = 1e-6
    ends = [float(Gadre(1.508, 141.3, 189.5, 0.1212 + s * step).log_reducible(20.0, 24.0)) for s in (-1, 1)]
    assert float(slopes.h) == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-8)


@pytest.mark.parametrize("name", ["e", "p", "q", "h"])
@pytest.mark.parametrize("value", [-0.3, math.nan, math.inf])
def test_parameter_out_of_range_is_refused_by_name(name: str, value: float):
    rule = ">= 0" if name == "e" else "> 0"
    with pytest.raises(LawError, match=f"^Gadre.{name}: must be {rule} and finite, got {value}$"):
        Gadre(**{"e": 1.5, "p": 141.0, "q": 190.0, "h": 0.12} | {name: value})
