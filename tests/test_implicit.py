"""Derivatives of the optimum: closed forms, re-solving, bounds, and higher orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_batches import KEYS, PURE, columns
from test_optimum_against_closed_forms import draws

import allocator
from allocator.errors import AllocatorError
from allocator.optimum.implicit import figures_at, plan_function
from allocator.problem import DECISIONS
from allocator.scenario.assumptions import assumptions
from allocator.scenario.reading import from_values, load, with_values


def logs(told) -> jax.Array:
    """What is compared: logs of decisions, and of what is lost."""
    decision = told.figures.decision
    return jnp.stack([*(jnp.log(getattr(decision, name)) for name in DECISIONS), told.figures.log_reducible])


def closed_form(x: dict[str, jax.Array]) -> jax.Array:
    """Product of pure powers, all free: logs of N, D, R, k and L - E; shares of cost are elasticities over e_N."""
    a, b = x["law.pretraining.alpha"], x["law.pretraining.beta"]
    rho, gamma = x["law.rl.exponent"], x["law.test_time.exponent"]
    big_a, big_b, budget = x["law.pretraining.A"], x["law.pretraining.B"], x["objective.compute_flop"]
    rates = (6.0, x["rl.flop_per_param_token"] * x["rl.overhead"],
             2 * x["inference.overhead"] * x["deployment.lifetime_tokens"])  # fmt: skip
    w = (b + rho + gamma) / (a + b)
    shares = b * (1 - w) / (a * w), rho / (a * w), gamma / (a * w)
    n = ((1 - w) / w * big_a / big_b * (shares[0] * budget / rates[0]) ** b) ** (1 / (a + b))
    d, r, k = (share * budget / (rate * n) for share, rate in zip(shares, rates, strict=True))
    base = jnp.log(big_a * n**-a + big_b * d**-b)
    loss = base - rho * jnp.log(r / x["law.rl.unit_tokens"]) - gamma * jnp.log(k)
    return jnp.append(jnp.log(jnp.stack([n, d, r, k])), loss)


def test_derivatives_are_those_of_the_closed_form():
    """Every assumption of pure-power problems: elasticities to 1e-8, of every decision and of the loss."""
    rows = columns(list(draws(20, seed=8)))
    plans = allocator.solve_batch(from_values(PURE), rows)
    points = {path: jnp.asarray(numbers) for path, numbers in rows.items()}

    def slope(x, near):
        return jax.jacfwd(lambda x: logs(figures_at(plans.scenario, near, x)))(x)

    found = jax.jit(jax.vmap(slope))(points, jnp.asarray(plans.z))
    want = jax.vmap(jax.jacfwd(closed_form))(points)
    for path in KEYS:
        both = (np.asarray(slopes[path]) * rows[path][:, None] for slopes in (found, want))
        assert np.abs(np.subtract(*both)).max() < 1e-8


def random_scenarios(count: int):
    rng = np.random.default_rng(11)
    for i in range(count):
        changes = {
            "objective.compute_flop": 10 ** rng.uniform(26.5, 28),
            "law.rl.exponent": rng.uniform(0.02, 0.2),
            "law.rl.scale_tokens": 10 ** rng.uniform(8, 12),
            "deployment.tokens_per_second": 10 ** rng.uniform(5, 7.5),
            "rl.overhead": rng.uniform(1, 8),
            "inference.overhead": rng.uniform(1, 8),
        }
        if i % 2:
            changes |= {"decisions.n_active": 10 ** rng.uniform(10.2, 11.2)}
        yield with_values(load("lecture-free"), {path: float(value) for path, value in changes.items()})


@pytest.mark.parametrize("form", ["N free", "N fixed"])
def test_derivatives_are_those_of_solving_again(form: str):
    """200 random scenarios, ten assumptions each, against central differences: 1e-5."""
    chosen = [s for i, s in enumerate(random_scenarios(200)) if bool(i % 2) == (form == "N fixed")]
    paths = [path for path in assumptions(chosen[0]) if path not in ("deployment.derate", "law.test_time.exponent",
                                                                     "law.pretraining.E")]  # fmt: skip
    values = {path: np.array([assumptions(scenario)[path] for scenario in chosen]) for path in paths}
    plans = allocator.solve_batch(chosen[0], values)
    assert plans.solved.all()

    def slope(x, near):
        return jax.jacfwd(lambda x: logs(figures_at(plans.scenario, near, x)))(x)

    slopes = jax.jit(jax.vmap(slope))({path: jnp.asarray(x) for path, x in values.items()}, jnp.asarray(plans.z))
    step = 1e-4
    for path in paths:
        ends = []
        for sign in (1, -1):
            moved = allocator.solve_batch(chosen[0], values | {path: values[path] * np.exp(sign * step)})
            assert moved.solved.all()
            amounts = np.maximum(np.stack(moved.figures.decision), 1e-300)
            ends.append(np.vstack([np.log(amounts), moved.figures.log_reducible]))
        again = (ends[0] - ends[1]) / (2 * step)
        found = np.asarray(slopes[path]).T * values[path]
        # Where RL is not bought at all, its log has no slope.
        told = np.isfinite(found) & np.isfinite(again)
        assert np.isfinite(found[[0, 1, 3, 4]]).all()
        assert np.abs(found - again)[told].max() < 1e-5 * max(1.0, np.abs(again[told]).max())


def test_bounds_and_fixed_decisions_move_the_plan_with_them():
    scenario = load("lecture")
    function, at = plan_function(scenario)
    point = {path: jnp.asarray(value) for path, value in at.items()}
    slope = jax.jacobian(lambda x: logs(function(x)))(point)["decisions.n_active"] * at["decisions.n_active"]
    assert slope[0] == pytest.approx(1.0, abs=1e-12)
    bounded = with_values(load("lecture-free"), {"decisions.n_active.max": 5e10})
    function, at = plan_function(bounded, ["decisions.n_active.max", "objective.compute_flop"])
    point = {path: jnp.asarray(value) for path, value in at.items()}
    slopes = jax.jacobian(lambda x: logs(function(x)))(point)
    assert float(slopes["decisions.n_active.max"][0]) * 5e10 == pytest.approx(1.0, abs=1e-9)
    assert float(slopes["objective.compute_flop"][0]) == pytest.approx(0.0, abs=1e-30)


def test_shadow_price_is_the_slope_in_the_budget():
    function, at = plan_function(load("lecture-free"), ["objective.compute_flop"])
    budget = jnp.asarray(at["objective.compute_flop"])
    told = function({"objective.compute_flop": budget})
    slope = jax.grad(lambda c: function({"objective.compute_flop": c}).figures.log_reducible)(budget)
    assert float(-slope * budget) == pytest.approx(float(told.shadow_price), rel=1e-10)
    assert float(told.shadow_price) == pytest.approx(allocator.solve(load("lecture-free")).shadow_price.value, rel=1e-9)  # pyright: ignore


def test_second_derivatives_are_slopes_of_the_first():
    function, at = plan_function(load("lecture-free"), ["law.rl.exponent"])

    def log_n(exponent):
        return jnp.log(function({"law.rl.exponent": exponent}).figures.decision.n_active)

    x = at["law.rl.exponent"]
    second = float(jax.grad(jax.grad(log_n))(x))
    step = 1e-5
    around = [float(jax.grad(log_n)(x + sign * step)) for sign in (1, -1)]
    assert second == pytest.approx((around[0] - around[1]) / (2 * step), rel=1e-6)


def test_keys_by_short_name_and_keys_that_are_not_there():
    function, at = allocator.plan_function(load("lecture"), ["compute_flop"])
    assert list(at) == ["objective.compute_flop"]
    assert float(function(at).figures.loss) == pytest.approx(allocator.solve(load("lecture")).loss, rel=1e-12)
    with pytest.raises(AllocatorError, match=r"law\.overlap: the scenario has no such number, or it is 0; known: "):
        allocator.plan_function(load("lecture"), ["law.overlap"])


def test_what_cannot_be_followed_is_nan_and_no_number():
    function, _ = plan_function(load("lecture"), ["objective.compute_flop"])
    told = function({"objective.compute_flop": jnp.asarray(1e20)})  # does not pay for serving
    assert bool(jnp.isnan(told.figures.loss))
