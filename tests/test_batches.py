"""Batches of plans: closed forms, the single path, any order, failures in their place, and bad values."""

import dataclasses
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from test_optimum_against_closed_forms import Numbers, draws, oracle

import allocator
from allocator import catalog
from allocator.errors import AllocatorError, ScenarioError
from allocator.optimum.newton import polish
from allocator.optimum.solving import verifies
from allocator.problem import DECISIONS, Decision, to_coordinates, to_decision
from allocator.scenario.building import build
from allocator.scenario.reading import from_values, load, with_values

PURE = {
    "objective": {"compute_flop": 1e24},
    "law": {"rl": {"exponent": 0.05, "unit_tokens": 1e9}, "test_time": {"exponent": 0.05}},
    "deployment": {"lifetime_tokens": 1e13},
    "rl": {"overhead": 3.0},
    "inference": {"overhead": 3.0},
}
KEYS = {
    "law.pretraining.A": "a",
    "law.pretraining.B": "b",
    "law.pretraining.alpha": "alpha",
    "law.pretraining.beta": "beta",
    "law.rl.exponent": "rho",
    "law.test_time.exponent": "gamma",
    "law.rl.unit_tokens": "rl_unit",
    "rl.flop_per_param_token": "kappa",
    "rl.overhead": "rl_overhead",
    "inference.overhead": "serve_overhead",
    "deployment.lifetime_tokens": "demand",
    "objective.compute_flop": "budget",
}


def columns(rows: list[Numbers]) -> dict[str, np.ndarray]:
    return {path: np.array([getattr(row, name) for row in rows]) for path, name in KEYS.items()}


def decisions(plans: allocator.Plans) -> np.ndarray:
    return np.stack([np.asarray(getattr(plans.figures.decision, name)) for name in DECISIONS])


def single(plan: allocator.Plan) -> np.ndarray:
    return np.array([getattr(plan.decision, name) for name in DECISIONS])


@pytest.mark.parametrize("k", [None, 1.0], ids=["k free", "k fixed"])
def test_every_number_varied_against_the_closed_forms(k: float | None):
    """2,000 random pure-power problems in one call: 1e-9 in log x, residuals below 1e-9, all certified."""
    rows = list(draws(2000, seed=3))
    scenario = from_values(PURE | ({"decisions": {"k": k}} if k else {}))
    plans = allocator.solve_batch(scenario, columns(rows))
    assert set(plans.status) == {"optimal"}
    assert set(plans.certificate) == {"geometric_program"}
    assert plans.kkt_residual.max() < 1e-9
    assert plans.constraint_residual.max() < 1e-9
    family = "product, k fixed" if k else "product, all free"
    want = np.array([oracle(family, row) for row in rows]).T
    error = np.abs(np.log(decisions(plans) / want)).max(axis=0)
    # Where a phase takes less than a millionth of the budget, rounding of the budget alone is 1e-10 of its tokens.
    usual = plans.shares.min(axis=1) > 1e-6
    assert usual.mean() > 0.9
    assert error[usual].max() < 1e-9
    assert error.max() < 1e-8


def test_frontier_of_two_hundred_points_is_two_hundred_single_plans():
    """The lecture with N free, in shuffled order: each point within 1e-7 of a plan of its own."""
    scenario = load("lecture-free")
    budgets = np.random.default_rng(0).permutation(np.geomspace(1e26, 1e28, 200))
    plans = allocator.solve_batch(scenario, compute_flop=budgets)
    assert plans.solved.all()
    for i in range(0, 200, 10):
        alone = allocator.solve(with_values(scenario, {"objective.compute_flop": float(budgets[i])}))
        assert np.abs(np.log(decisions(plans)[:, i] / single(alone))).max() < 1e-7
    again = allocator.solve_batch(scenario, compute_flop=np.sort(budgets))
    assert np.abs(np.log(decisions(again) / decisions(plans)[:, np.argsort(budgets)])).max() < 1e-9


def test_best_of_starts_is_the_single_path_s_best():
    """Random laws with overlap: the batch's best of 12 starts against the single path's best of 32."""
    scenario = with_values(load("lecture-free"), {"law.overlap": 1.0, "decisions.k": "free"})
    rng = np.random.default_rng(5)
    values = {
        "law.overlap": rng.uniform(0.2, 4, 12),
        "law.rl.exponent": rng.uniform(0.05, 0.33, 12),
        "law.test_time.exponent": rng.uniform(0.05, 0.33, 12),
        "law.rl.scale_tokens": 10 ** rng.uniform(8, 13, 12),
        "deployment.tokens_per_second": 10 ** rng.uniform(3, 9, 12),
        "objective.compute_flop": 10 ** rng.uniform(23, 28, 12),
    }
    plans = allocator.solve_batch(scenario, values)
    assert plans.solved.all()
    behind = 0
    for i in range(12):
        alone = allocator.solve(with_values(scenario, {path: float(numbers[i]) for path, numbers in values.items()}))
        behind += bool(plans.figures.loss[i] > alone.loss + 1e-9 * alone.reducible_loss)
    assert behind == 0


@pytest.mark.parametrize(("overlap", "rl", "test_time", "scale_tokens", "speed", "budget"), [
    (0.525, 0.27, 0.154, 1.21e10, 8.97e3, 8.14e23), (1.1, 0.184, 0.124, 1.85e11, 1.51e6, 1.34e27),
])  # fmt: skip
def test_newton_leaves_a_bound_from_which_the_way_is_not_convex(overlap, rl, test_time, scale_tokens, speed, budget):
    """Without RL the multiplier says to leave, and Newton's own direction to stay."""
    changes = {"law.overlap": overlap, "law.rl.exponent": rl, "law.test_time.exponent": test_time}
    changes |= {"law.rl.scale_tokens": scale_tokens, "deployment.tokens_per_second": speed, "decisions.k": "free"}
    scenario = with_values(load("lecture-free"), changes | {"objective.compute_flop": budget})
    best = single(allocator.solve(scenario))
    assert best[2] > 0
    problem = build(scenario).problem
    point = polish(problem, to_coordinates(problem, Decision(*best)._replace(d_rl=0.0)))
    assert verifies(point)
    assert to_decision(problem, point.z) == pytest.approx(best, rel=1e-9)


def test_zero_of_a_term_leaves_it_out():
    """overlap = 0 is the plain product, where k may be below 1; the other rows have k >= 1."""
    scenario = with_values(load("lecture-free"), {"decisions.k": "free"})
    plans = allocator.solve_batch(scenario, {"law.overlap": [0.5, 0.0, 1.0, 0.0]})
    assert plans.solved.all()
    for i, overlap in enumerate([0.5, 0.0, 1.0, 0.0]):
        alone = allocator.solve(with_values(scenario, {"law.overlap": overlap}))
        assert np.log(decisions(plans)[:, i] / single(alone)) == pytest.approx(np.zeros(4), abs=1e-7)
    assert plans.figures.decision.k[1] < 1 <= plans.figures.decision.k[0]


def test_equal_ends_of_a_range_fix_a_decision_in_their_rows_only():
    scenario = with_values(load("lecture-free"), {"decisions.n_active.min": 1e11})
    plans = allocator.solve_batch(scenario, {"decisions.n_active.max": [1e11, 1e11, 3e11]})
    assert plans.certificate.tolist() == ["convex_fixed_n", "convex_fixed_n", "best_of_starts"]
    assert plans.figures.decision.n_active[:2].tolist() == [1e11, 1e11]
    alone = allocator.solve(with_values(scenario, {"decisions.n_active.max": 3e11}))
    assert plans.figures.decision.n_active[2] == pytest.approx(alone.decision.n_active, rel=1e-9)
    both = {"decisions.n_active.min": [1e11, 2e11], "decisions.n_active.max": [1e11, 2e11]}
    assert allocator.solve_batch(load("lecture-free"), both).figures.decision.n_active.tolist() == [1e11, 2e11]


def test_failures_keep_their_place_and_reason():
    plans = allocator.solve_batch(load("lecture"), compute_flop=[1e20, 4.6656e26, 1e25])
    assert list(plans.status) == ["infeasible", "optimal", "infeasible"]
    assert "does not pay" in plans.reason[0]
    assert np.isnan(plans.figures.loss[[0, 2]]).all()
    assert math.isfinite(plans.figures.loss[1])
    assert plans[0].decision is None
    assert plans[0].status == "infeasible"
    away = allocator.solve_batch(load("lecture-free"), {"law.rl.exponent": [0.1, 0.5]})
    assert list(away.status) == ["best_of_starts", "no_interior_optimum"]
    assert "law.rl.exponent" in away.reason[1]


def test_a_row_is_a_whole_plan():
    plans = allocator.solve_batch(load("lecture"), compute_flop=[2e26, 4.6656e26])
    alone = allocator.solve(load("lecture"))
    row = plans[1]
    assert row.to_dict()["decision"] == pytest.approx(alone.to_dict()["decision"], rel=1e-12)
    assert [notice.code for notice in row.warnings] == [notice.code for notice in alone.warnings]
    assert row.decision is not None
    assert row.decision.n_active == 1e11
    frame = plans.to_frame()
    assert frame["vs_20"][1] == pytest.approx(98.0, abs=0.05)
    assert frame[["share_pretrain", "share_rl", "share_inference"]].iloc[1].to_numpy() == pytest.approx(
        [0.252, 0.415, 0.333], abs=5e-4
    )
    assert len(list(plans)) == 2


def test_law_parameters_of_the_file_can_vary():
    """Hoffmann's parameters under Besiroglu's name give Hoffmann's plan."""
    hoffmann = allocator.solve(with_values(load("lecture"), {"law.pretraining": "hoffmann-2022"}))
    known = {"E": 1.69337368, "A": 406.401018, "B": 410.722827, "alpha": 0.33917084, "beta": 0.2849083}
    record = catalog.law_record("hoffmann-2022").content["parameters"]
    plans = allocator.solve_batch(load("lecture"), {f"law.pretraining.{name}": [record[name]] for name in known})
    assert decisions(plans)[:, 0] == pytest.approx(single(hoffmann), rel=1e-9)
    assert plans[0].loss == pytest.approx(hoffmann.loss, rel=1e-12)


def test_target_loss_and_hardware_currencies():
    scenario = with_values(
        load("lecture-free"),
        {
            "objective.target_loss": 1.85,
            "objective.currency": "usd",
            "hardware.chip": "h100-sxm",
            "pretraining.mfu": 0.4,
        },
    )
    prices = [1.0, 3.0, 10.0]
    plans = allocator.solve_batch(scenario, {"hardware.usd_per_chip_hour": prices})
    # A price scales all costs alike: the same decisions at proportional cost.
    assert decisions(plans)[:, 0] == pytest.approx(decisions(plans)[:, 2], rel=1e-9)
    assert np.exp(plans.figures.log_cost) / prices == pytest.approx(np.exp(plans.figures.log_cost[0]) * np.ones(3))
    impossible = allocator.solve_batch(scenario, target_loss=[1.5, 1.85])
    assert list(impossible.status) == ["infeasible", "best_of_starts"]


class Bump(eqx.Module):
    """A user's law that is NaN above some size."""

    limit: float

    def __call__(self, n, d, r, k):
        good = 1.7 + 480 * n**-0.35 + 2000 * d**-0.37 * (1 + r / 1e9) ** -0.05
        return jnp.where(n < self.limit, good, jnp.nan)


def test_user_law_that_breaks_leaves_the_others_alone():
    values = {"objective": {"compute_flop": 1e24}, "deployment": {"lifetime_tokens": 1e13}, "decisions": {"k": 1.0}}
    scenario = from_values(values)
    law = allocator.UserLaw(Bump(1e60), floor=1.7, rl_scale_tokens=1e9)
    budgets = np.geomspace(1e22, 1e26, 5)
    plans = allocator.solve_batch(scenario, compute_flop=budgets, law=law)
    assert plans.solved.all()
    assert np.isnan(plans.chinchilla_tokens).all()
    alone = allocator.solve(with_values(scenario, {"objective.compute_flop": 1e24}), law=law)
    assert np.log(decisions(plans)[:, 2] / single(alone)) == pytest.approx(np.zeros(4), abs=1e-7)
    fixed = with_values(scenario, {"decisions.n_active": 1e10})
    broken = allocator.UserLaw(Bump(2e10), floor=1.7, rl_scale_tokens=1e9)
    some = allocator.solve_batch(fixed, {"decisions.n_active": [1e10, 3e10, 5e9]}, law=broken)
    assert list(some.status) == ["best_of_starts", "infeasible", "best_of_starts"]
    assert "NaN at n_active = 3e+10" in some.reason[1]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "name at least one key"),
        ({"objective.compute_flop": []}, "at least one number"),
        ({"objective.compute_flop": [1e26, math.nan]}, "value 2 of 2 is nan"),
        ({"objective.compute_flop": [1e26, math.inf]}, "value 2 of 2 is inf"),
        ({"objective.compute_flop": [[1e26], [1e27]]}, "shape (2, 1)"),
        ({"objective.compute_flop": ["a"]}, "must be numbers"),
        ({"objective.compute_flop": [1e26, 1e27], "rl.overhead": [1, 2, 3]}, "as many values"),
        ({"objective.compute_flop": [1e26, -1.0]}, "objective.compute_flop: got -1.0; must be > 0"),
        ({"deployment.derate": [0.5, 1.5]}, "deployment.derate: got 1.5; must be <= 1"),
        ({"rl.overhed": [1.0]}, "rl.overhed: unknown key; did you mean overhead?"),
        ({"law.pretraining.gamma": [1.0]}, "not a parameter of besiroglu-2024; known:"),
        ({"law.pretraining.alpha": [0.3, 0.0]}, "law.pretraining.alpha: got 0; must be > 0"),
        ({"overhead": [1.0]}, "give the whole path"),
        ({"nonsense": [1.0]}, "not a key"),
        ({"title": [1.0]}, "title"),
        ({"objective.currency": [1.0]}, "objective.currency"),
    ],
)
def test_bad_values_are_one_clear_line(values: dict, line: str):
    with pytest.raises(AllocatorError) as caught:
        allocator.solve_batch(load("lecture"), values)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_users_law_takes_no_keys_of_the_law_section():
    law = allocator.UserLaw(lambda n, d, r, k: 1.7 + n**-0.3 + d**-0.3 + r**-0.01 + k**-0.01)
    with pytest.raises(ScenarioError, match="replaces"):
        allocator.solve_batch(load("lecture"), {"law.rl.exponent": [0.1]}, law=law)


def test_scalars_go_with_arrays_and_the_scenario_is_left_alone():
    scenario = load("lecture")
    before = scenario.model_dump()
    plans = allocator.solve_batch(scenario, {"rl.overhead": 2.0, "objective.compute_flop": [3e26, 4e26]})
    assert list(plans.values["rl.overhead"]) == [2.0, 2.0]
    assert scenario.model_dump() == before
    assert dataclasses.is_dataclass(plans)
