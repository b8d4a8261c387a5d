"""Frontiers: theory's shapes, nothing beaten is kept, limits through the roofline and prices, demand and laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import allocator
from allocator import catalog
from allocator.errors import AllocatorError
from allocator.frontiers import frontier, overtraining_by_demand, released_models, undominated
from allocator.scenario.reading import load, with_values

SERVED = {
    "hardware.chip": "h100-sxm",
    "pretraining.mfu": 0.4,
    "inference.roofline.model": "llama-3.1-70b",
    "inference.roofline.chips": 64.0,
    "inference.roofline.batch": 64.0,
    "inference.roofline.context": 4096.0,
}


def test_loss_against_budget_falls_and_is_convex_in_logs():
    """A law whose problem is a geometric program: log of the reducible loss is convex in the log of the budget."""
    scenario = with_values(load("lecture-free"), {"law.rl.unit_tokens": 1e9})
    found = frontier(scenario, compute_flop=np.geomspace(1e25, 1e29, 60))
    assert found.kept.all()
    assert set(found.plans.certificate) == {"geometric_program"}
    logs = np.asarray(found.plans.figures.log_reducible)
    assert (np.diff(logs) < 0).all()
    assert (np.diff(logs, 2) > -1e-12).all()


def test_points_come_in_any_order():
    budgets = np.geomspace(2e26, 1e28, 12)
    there, back = (frontier(load("lecture"), compute_flop=x).to_frame() for x in (budgets, budgets[::-1]))
    assert there["loss"].to_numpy() == pytest.approx(back["loss"].to_numpy()[::-1], rel=1e-10)


def test_training_against_serving_at_one_quality():
    """Each point reaches the plan's loss; weight 1 is the plan itself; cheaper serving costs more training."""
    scenario = load("lecture-free")
    plan = allocator.solve(scenario)
    found = frontier(scenario, {"training-serving": np.geomspace(1e-2, 1e2, 21)})
    assert found.kept.all()
    assert np.asarray(found.plans.figures.loss) == pytest.approx(plan.loss, rel=1e-9)
    told = found.plans.shares[:, 2]  # of what is paid, not of what was weighed
    assert told == pytest.approx(found.y / (found.x + found.y), rel=1e-9)
    assert (np.diff(found.x) > 0).all()
    assert (np.diff(found.y) < 0).all()
    slope = np.diff(found.y) / np.diff(found.x)
    assert (np.diff(slope) > 0).all()  # convex, as sums of weighted costs can only find such points
    assert plan.total is not None
    assert plan.phases is not None
    assert found.x[10] == pytest.approx(plan.phases["pretrain"].flop + plan.phases["rl"].flop, rel=1e-6)
    assert found.y[10] == pytest.approx(plan.phases["inference"].flop, rel=1e-6)


def test_no_point_of_the_tradeoff_can_be_beaten_by_a_plan_with_a_size_of_its_own():
    """With N fixed serving cost is fixed too: the cheapest training for that loss is what the frontier says."""
    scenario = load("lecture-free")
    found = frontier(scenario, {"training-serving": [0.2, 5.0]})
    for i in range(2):
        n = float(found.plans.figures.decision.n_active[i])
        changes = {"objective.target_loss": float(found.plans.figures.loss[i]), "decisions.n_active": n}
        alone = allocator.solve(with_values(scenario, changes))
        assert alone.phases is not None
        assert alone.phases["pretrain"].flop + alone.phases["rl"].flop == pytest.approx(found.x[i], rel=1e-7)


def by_hand(budget: float, cap: dict[str, float]) -> float:
    """Log of the least reducible loss of `lecture-free` with two limits on cost, by SciPy alone."""
    law = catalog.law_record("besiroglu-2024").content["parameters"]
    a, b, alpha, beta = (law[name] for name in ("A", "B", "alpha", "beta"))
    rho, unit, demand = 0.08803296429559924, 1e9, 5e7 * 60 * 86400

    def loss(z):
        return np.log(a * np.exp(-alpha * z[0]) + b * np.exp(-beta * z[1])) - rho * np.log1p(np.exp(z[2]) / unit)

    def costs(z):
        n, d, r = np.exp(z)
        return {"training_cost": 6 * n * d + 3 * 3 * n * r, "serving_cost": 3 * 2 * n * demand}

    limits = [{"type": "ineq", "fun": lambda z: np.log(budget / sum(costs(z).values()))}]
    limits += [{"type": "ineq", "fun": lambda z, k=k, v=v: np.log(v / costs(z)[k])} for k, v in cap.items()]
    tried = [
        minimize(loss, np.log([n, d, r]), constraints=limits, method="SLSQP",
                 bounds=[(10, 40)] * 3, options={"ftol": 1e-14, "maxiter": 1000})
        for n in (1e9, 1e10, 1e11) for d in (1e12, 1e14) for r in (1e12, 1e14)
    ]  # fmt: skip
    return min(found.fun for found in tried if found.success)


@pytest.mark.parametrize("name", ["training_cost", "serving_cost"])
def test_a_cap_on_one_cost_beside_the_budget(name: str):
    """Against SciPy with both limits; a cap above the plan's own cost changes nothing, and is beaten."""
    scenario = load("lecture-free")
    plan = allocator.solve(scenario)
    assert plan.phases is not None
    inference = plan.phases["inference"].flop
    own = inference if name == "serving_cost" else plan.phases["pretrain"].flop + plan.phases["rl"].flop
    caps = own * np.array([0.03, 0.3, 0.8, 2.0])
    found = frontier(scenario, {name: caps})
    assert found.kept.tolist() == [True, True, True, True]
    assert found.x[:3] == pytest.approx(caps[:3], rel=1e-8)
    assert found.x[3] == pytest.approx(own, rel=1e-8)
    assert np.asarray(found.plans.figures.loss)[3] == pytest.approx(plan.loss, rel=1e-12)
    budget = scenario.objective.compute_flop
    assert (np.asarray(found.plans.figures.flop).sum(axis=1) <= budget * (1 + 1e-8)).all()
    for cap, log_reducible in zip(caps, found.plans.figures.log_reducible, strict=True):
        assert log_reducible == pytest.approx(by_hand(budget, {name: cap}), abs=1e-7)
    told = found.plans[1]  # at the scenario's own demand, and not as the optimum that it is not
    assert told.status == "evaluated"
    assert told.loss == pytest.approx(found.y[1], rel=1e-12)
    assert told.total.flop == pytest.approx(np.asarray(found.plans.figures.flop)[1].sum(), rel=1e-9)


def test_a_cap_at_a_target_and_one_that_nothing_meets():
    scenario = load("lecture-free")
    plan = allocator.solve(scenario)
    target = with_values(scenario, {"objective.target_loss": plan.loss})
    half = plan.phases["inference"].flop / 2
    capped = frontier(target, serving_cost=[half])
    assert capped.y_name == "cost_compute_flop"
    assert capped.x == pytest.approx(half, rel=1e-8)
    # The same plan with its size given, which is all that serving costs.
    size = float(capped.plans.figures.decision.n_active[0])
    alone = allocator.solve(with_values(target, {"decisions.n_active": size}))
    assert capped.y[0] == pytest.approx(alone.total.flop, rel=1e-8)
    none = frontier(load("lecture"), serving_cost=[1e24, 1e30])  # N and k are fixed
    assert none.plans.status.tolist() == ["infeasible", "optimal"]
    assert none.plans.reason[0] == "serving_cost: no plan costs so little"
    assert none.scenario == load("lecture")
    poor = frontier(with_values(load("lecture"), {"objective.compute_flop": 1e26}), training_cost=[1e25])
    assert "does not pay for what" in poor.plans.reason[0]


def test_speed_through_the_roofline():
    """A limit on seconds per token is a limit on N; past the plan's own speed it buys nothing and is beaten."""
    scenario = with_values(load("lecture-free"), SERVED)
    free = allocator.solve(scenario)
    found = frontier(scenario, tpot_s=np.geomspace(1e-3, 3e-2, 13))
    assert 1 < found.kept.sum() < 13
    tight = found.kept & (np.abs(found.x / found.asked - 1) < 1e-6)
    assert tight.sum() >= 1
    assert np.nanmin(np.asarray(found.plans.figures.loss)) == pytest.approx(free.loss, rel=1e-9)
    with pytest.raises(AllocatorError, match=r"inference\.roofline: required"):
        frontier(load("lecture-free"), tpot_s=[1e-3])
    with pytest.raises(AllocatorError, match=r"fixed at 1e\+11"):
        frontier(with_values(scenario, {"decisions.n_active": 1e11}), tpot_s=[1e-3])


def test_price_of_serving():
    """USD per million tokens: 2 N m FLOP a token, at the price of a FLOP; checked by hand."""
    changes = {"hardware.peak_flop_per_s": 1e15, "hardware.usd_per_chip_hour": 3.6, "pretraining.mfu": 0.5}
    found = frontier(with_values(load("lecture-free"), changes), usd_per_mtok=[0.3, 0.6])
    n = np.asarray(found.plans.figures.decision.n_active)
    usd = 2 * n * 3.0 / (1e15 * 0.5) / 3600 * 3.6 * 1e6  # decode at a third of the MFU
    assert found.x == pytest.approx(usd, rel=1e-9)
    assert (found.x <= found.asked * (1 + 1e-9)).all()
    with pytest.raises(AllocatorError, match="needs a chip with a price"):
        frontier(load("lecture-free"), usd_per_mtok=[1.0])


def test_ends_that_cannot_be_paid_for_are_kept_and_marked():
    found = frontier(load("lecture"), compute_flop=np.geomspace(1e26, 1e28, 9))
    frame = found.to_frame()
    assert not found.kept[0]
    assert frame["status"][0] == "infeasible"
    assert "does not pay" in frame["reason"][0]
    assert found.kept[2:].all()


def test_a_frontier_draws_itself_by_name():
    """As scripts do: allocator.frontier, then allocator.charts.frontier."""
    found = allocator.frontier(load("lecture"), compute_flop=[3e26, 4e26, 5e26])
    drawn = allocator.charts.frontier(found).to_dict()
    assert drawn["mark"]["type"] == "line"
    assert len(next(iter(drawn["datasets"].values()))) == 3


def test_more_demand_is_more_loss():
    found = frontier(load("lecture-free"), tokens_per_second=np.geomspace(1e6, 1e8, 9))
    assert found.kept.all()
    assert (np.diff(found.y) > 0).all()


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=30))
def test_kept_points_are_those_that_nothing_beats(points: list[tuple[float, float]]):
    x, y = (np.array(column) for column in zip(*points, strict=True))
    kept = undominated(x, y)
    assert kept.any()
    for i in range(len(x)):
        beaten = ((x <= x[i]) & (y < y[i] - 1e-9)) | ((x < x[i] - 1e-9) & (y <= y[i]))
        if kept[i]:
            assert not beaten.any()
        elif not beaten.any():  # a point as good as a kept one
            assert (kept & (x <= x[i] + 1e-9) & (y <= y[i] + 1e-9)).any()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "vary exactly one quantity, got none"),
        ({"compute_flop": [1e26], "tokens_per_second": [1e7]}, "exactly one"),
        ({"compute_flop": []}, "at least one number"),
        ({"compute_flop": [np.nan]}, "is nan"),
        ({"training-serving": [-1.0]}, "weights must be > 0"),
        ({"serving_cost": [1e26, -1.0]}, "serving_cost: limits must be > 0"),
        ({"usd_per_mtok": [0.0]}, "must be > 0"),
    ],
)
def test_bad_grids(values: dict, line: str):
    with pytest.raises(AllocatorError, match=line):
        frontier(load("lecture-free"), values)


def test_over_training_rises_with_demand_under_each_law():
    found = overtraining_by_demand(load("lecture-free"), np.geomspace(1e13, 1e15, 5))
    assert list(found.plans) == ["besiroglu-2024", "hoffmann-2022", "chinchilla-epoch"]
    for plans in found.plans.values():
        assert (np.diff(plans.tokens_per_param) > 0).all()
    # The reference optimum with N free: 47.9 x 20 at 2.592e14 tokens under Besiroglu's law.
    row = overtraining_by_demand(load("lecture-free"), [2.592e14], laws=["besiroglu-2024"])
    assert row.plans["besiroglu-2024"].tokens_per_param[0] / 20 == pytest.approx(47.9, abs=0.05)
    assert len(released_models()) > 10


def test_a_loss_has_the_unit_of_its_law():
    scenario = with_values(load("lecture-free"), {"decisions.n_active": 1e11})
    assert frontier(scenario, compute_flop=[4e26, 5e26]).loss_unit == "nats/token"
    own = allocator.UserLaw(lambda n, d, r, k: n**-0.3 + d**-0.3 + 0 * r * k, floor=0.0)
    assert frontier(with_values(scenario, {"decisions.d_rl": 1e12}), law=own,
                    compute_flop=[6e26, 7e26]).loss_unit == "the unit of the user's law"  # fmt: skip
