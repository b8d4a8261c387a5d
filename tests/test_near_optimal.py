"""Near-optimal sets against closed forms of pure powers, and against solving again with a decision fixed."""

import dataclasses
import io
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.optimize import brentq

import allocator
from allocator import near_optimal_charts, near_optimal_report
from allocator.equal_cost import equal_cost_regret
from allocator.errors import AllocatorError
from allocator.near_optimal import near_optimal, valley
from allocator.optimum.result import Plan
from allocator.problem import DECISIONS
from allocator.rounding import round_plan
from allocator.scenario.reading import load, with_values
from allocator.scenario.schema import Scenario

RHO, GAMMA, UNIT = 0.07, 0.11, 1e9
PURE = with_values(
    load("lecture-free"),
    {"law.rl": {"exponent": RHO, "unit_tokens": UNIT}, "law.test_time.exponent": GAMMA, "decisions.k": "free",
     "objective.compute_flop": 1e27},
)  # fmt: skip
A, B, ALPHA, BETA, FLOOR = 482.01, 2085.43, 0.3478, 0.3658, 1.8172  # Besiroglu 2024
C_D, C_R, C_K = 6.0, 9.0, 6 * 2.592e14  # the lecture's, FLOP per parameter and token, token and sample
LECTURE_FREE = load("lecture-free")


def solved(scenario: Scenario, **changes: Any) -> Plan:
    """A plan; changes are key paths with `__` for the dot."""
    return allocator.solve(with_values(scenario, {path.replace("__", "."): x for path, x in changes.items()}))


@pytest.fixture(scope="module")
def pure() -> Plan:
    return solved(PURE)


@pytest.fixture(scope="module")
def lecture() -> Plan:
    """N, D and R free, k fixed; the saturating RL factor."""
    return solved(LECTURE_FREE)


@pytest.fixture(scope="module")
def fixed_size() -> Plan:
    """The lecture's own: only D and R free."""
    return solved(LECTURE_FREE, decisions__n_active=1e11)


# --- the oracle: least cost for a loss with one decision given, from its optimality conditions ---


def loss_of(n: float, d: float, r: float, k: float) -> float:
    """Log of the reducible loss."""
    return math.log(A * n**-ALPHA + B * d**-BETA) - RHO * math.log(r / UNIT) - GAMMA * math.log(k)


def at_size(n: float, log_loss: float) -> float:
    """Log cost at N: the three phases' costs are as the elasticities of D, R and k."""

    def rest(log_d: float) -> tuple[float, float]:
        d = math.exp(log_d)
        e_d = BETA * B * d**-BETA / (A * n**-ALPHA + B * d**-BETA)
        return RHO / e_d * C_D * d / C_R, GAMMA / e_d * C_D * d / C_K

    def excess(log_d: float) -> float:
        return loss_of(n, math.exp(log_d), *rest(log_d)) - log_loss

    log_d: Any = brentq(excess, 15, 60, xtol=1e-13)
    r, k = rest(log_d)
    return math.log(n * (C_D * math.exp(log_d) + C_R * r + C_K * k))


def _others(n: float, d: float, cost: float, e_n: float) -> tuple[float, float]:
    return RHO / e_n * cost / (C_R * n), GAMMA / e_n * cost / (C_K * n)


def at_tokens(d: float, log_loss: float) -> float:
    """Log cost at D: shares of R and k are their elasticities over that of N; what is left is D's share."""

    def cost_at(log_n: float) -> tuple[float, float]:
        n = math.exp(log_n)
        e_n = ALPHA * A * n**-ALPHA / (A * n**-ALPHA + B * d**-BETA)
        left = 1 - (RHO + GAMMA) / e_n
        return (C_D * n * d / left if left > 0 else math.inf), e_n

    def excess(log_n: float) -> float:
        cost, e_n = cost_at(log_n)
        if cost == math.inf:
            return -1e3
        n = math.exp(log_n)
        return loss_of(n, d, *_others(n, d, cost, e_n)) - log_loss

    # Where e_n is too small there is no split: the loss rises from there to smaller N.
    sizes = np.linspace(15, 40, 2001)
    values = np.array([excess(x) for x in sizes])
    (turns,) = np.nonzero((values[:-1] > 0) & (values[1:] <= 0))
    assert len(turns) == 1
    log_n: Any = brentq(excess, sizes[turns[0]], sizes[turns[0] + 1], xtol=1e-13)
    return math.log(cost_at(log_n)[0])


ORACLES = {"n_active": at_size, "d_pretrain": at_tokens}


def optimum() -> tuple[dict[str, float], float]:
    """Closed form of model.md, section 4: decisions and w, the data term's complement."""
    w = (BETA + RHO + GAMMA) / (ALPHA + BETA)
    s = BETA * (1 - w) / (ALPHA * w), RHO / (ALPHA * w), GAMMA / (ALPHA * w)
    budget = 1e27
    n = ((1 - w) / w * A / B * (s[0] * budget / C_D) ** BETA) ** (1 / (ALPHA + BETA))
    rest = (s[i] * budget / (c * n) for i, c in enumerate((C_D, C_R, C_K)))
    return dict(zip(DECISIONS, (n, *rest), strict=True)), w


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("within", [0.001, 0.01, 0.2])
def test_ends_against_the_closed_form(pure: Plan, name: str, within: float):
    """Where the oracle's least cost is (1 + within) times the budget: 1e-7 in the decision."""
    best, _ = optimum()
    log_loss = loss_of(*best.values())
    level = math.log(1e27) + math.log1p(within)
    found = near_optimal(pure, within=within)[name]

    def excess(x: float) -> float:
        return ORACLES[name](math.exp(x), log_loss) - level

    middle = math.log(best[name])
    low: Any = brentq(excess, middle - 2, middle, xtol=1e-12)
    high: Any = brentq(excess, middle, middle + 2, xtol=1e-12)
    assert [found.least, found.greatest] == pytest.approx([math.exp(low), math.exp(high)], rel=1e-7)
    assert found.best == pytest.approx(best[name], rel=1e-9)
    assert found.held_by == ("tolerance", "tolerance")
    assert found.connected
    assert found.certificate == "convex"


def test_half_widths_to_second_order(pure: Plan):
    """+- sqrt(2 log(1 + tol) v_i), v the inverse of the Hessian of log cost along the loss, both in closed form.

    Log cost is a log-sum-exp with Hessian J' (diag s - s s') J, log loss one with w (1 - w) (a, -b)(a, -b)'.
    """
    _, w = optimum()
    e = np.array([ALPHA * w, BETA * (1 - w), RHO, GAMMA])
    s = e[1:] / e[0]
    j = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]], float)
    slope = np.array([ALPHA, -BETA, 0, 0])
    hessian = j.T @ (np.diag(s) - np.outer(s, s)) @ j + w * (1 - w) / e[0] * np.outer(slope, slope)
    matrix = np.block([[hessian, -e[:, None]], [-e[None, :], np.zeros((1, 1))]])
    variance = np.diag(np.linalg.inv(matrix))[:4]
    within = 1e-6
    for i, name in enumerate(DECISIONS):
        found = near_optimal(pure, within=within)[name]
        half = (math.log(found.greatest) - math.log(found.least)) / 2
        assert half == pytest.approx(math.sqrt(2 * math.log1p(within) * variance[i]), rel=1e-5)


# --- against `solve` with the decision fixed ---


@pytest.mark.parametrize("which", ["pure", "lecture", "fixed_size"])
def test_ends_have_the_regret_when_solved_again(which: str, request: pytest.FixtureRequest):
    plan = request.getfixturevalue(which)
    assert plan.scenario is not None
    found = near_optimal(plan)
    assert {i.name for i in found.intervals} | set(found.fixed) == set(DECISIONS)
    for interval in found.intervals:
        for end, at in ((interval.least, interval.at_least), (interval.greatest, interval.at_greatest)):
            changes = {"objective": {"target_loss": plan.loss, "currency": "compute_flop"},
                       f"decisions.{interval.name}": end}  # fmt: skip
            again = allocator.solve(with_values(plan.scenario, changes))
            assert again.total is not None
            assert again.decision is not None
            assert again.total.flop / plan.objective.value - 1 == pytest.approx(0.01, abs=1e-8)
            for name in DECISIONS:
                assert getattr(at, name) == pytest.approx(getattr(again.decision, name), rel=1e-6)
        assert interval.regret == pytest.approx((0.01, 0.01), abs=1e-9)
        assert interval.least < interval.best < interval.greatest
        assert interval.ratio == pytest.approx(interval.greatest / interval.least, rel=1e-12)


def test_just_outside_costs_more_and_just_inside_less(lecture: Plan):
    assert lecture.scenario is not None
    interval = near_optimal(lecture)["d_rl"]
    for value, outside in ((interval.greatest * 1.001, True), (interval.greatest / 1.001, False)):
        changes = {"objective": {"target_loss": lecture.loss}, "decisions.d_rl": value}
        again = allocator.solve(with_values(lecture.scenario, changes))
        assert again.total is not None
        assert (again.total.flop > 1.01 * lecture.objective.value) == outside


def test_chip_hours_give_the_same_intervals(pure: Plan):
    """One chip and MFU for all: a FLOP is so many chip-hours."""
    hardware = {
        "hardware": {"chip": "h100-sxm", "mfu": 0.4},
        "objective": {"chip_hours": 1e27 / (989.4e12 * 0.4 * 3600)},
    }
    counted = allocator.solve(with_values(PURE, hardware))
    peak = 1e27 / counted.total.flop if counted.total else math.nan  # the catalogue's own digits of the peak
    hardware["objective"]["chip_hours"] *= peak
    again = near_optimal(allocator.solve(with_values(PURE, hardware)))
    assert again.currency == "chip_hours"
    for mine, other in zip(near_optimal(pure).intervals, again.intervals, strict=True):
        assert [other.least, other.greatest] == pytest.approx([mine.least, mine.greatest], rel=1e-7)


def test_a_target_asks_the_same_question(lecture: Plan):
    assert lecture.scenario is not None
    target = allocator.solve(with_values(lecture.scenario, {"objective": {"target_loss": lecture.loss}}))
    for mine, other in zip(near_optimal(lecture).intervals, near_optimal(target).intervals, strict=True):
        assert [other.least, other.greatest] == pytest.approx([mine.least, mine.greatest], rel=1e-7)


# --- shape of the set ---


@pytest.mark.parametrize(("which", "more"), [("pure", [1e-6, 1e-3, 0.01, 0.1, 1.0]), ("fixed_size", [0.01, 0.3])])
def test_nothing_extra_is_the_plan_and_more_is_wider(which: str, more: list[float], request: pytest.FixtureRequest):
    plan = request.getfixturevalue(which)
    found = [near_optimal(plan, within=within) for within in (0.0, 1e-12, *more)]
    for interval in (*found[0].intervals, *found[1].intervals):
        assert interval.least == pytest.approx(interval.best, rel=1e-9)
        assert interval.greatest == pytest.approx(interval.best, rel=1e-9)
        assert interval.regret == (0.0, 0.0)
    for narrow, wide in pairwise(found[1:]):
        for a, b in zip(narrow.intervals, wide.intervals, strict=True):
            assert b.least < a.least <= a.best == b.best <= a.greatest < b.greatest


def test_fixed_decisions_have_no_interval(fixed_size: Plan):
    found = near_optimal(fixed_size)
    assert [i.name for i in found.intervals] == ["d_pretrain", "d_rl"]
    assert found.fixed == {"n_active": 1e11, "k": 1.0}
    with pytest.raises(AllocatorError, match="n_active: no interval; the free decisions are d_pretrain, d_rl"):
        found["n_active"]


def test_a_bound_is_said_to_be_one():
    """RL may not exceed 1e12 tokens, which the plan takes; D is then set by the loss, which less does not reach."""
    found = near_optimal(solved(LECTURE_FREE, decisions__n_active=1e11, decisions__d_rl={"max": 1e12}))
    assert found["d_rl"].greatest == pytest.approx(1e12, rel=1e-12)
    assert found["d_rl"].held_by == ("tolerance", "bound")
    assert found["d_rl"].regret[1] == pytest.approx(0, abs=1e-9)
    assert found["d_pretrain"].held_by == ("loss", "tolerance")
    assert found["d_pretrain"].least == pytest.approx(found["d_pretrain"].best, rel=1e-8)


def test_no_rl_is_within_the_tolerance_where_rl_hardly_matters():
    plan = solved(LECTURE_FREE, law__rl__exponent=1e-5)
    interval = near_optimal(plan)["d_rl"]
    assert interval.least == 0.0
    assert interval.ratio == math.inf
    assert interval.held_by[0] == "bound"
    assert near_optimal(plan).to_dict()["rows"][-1]["ratio"] is None


def test_a_second_basin_is_found_and_the_gap_told():
    """model.md, section 4: two minima in N. Without RL the loss costs a third more, on the way there more than that."""
    changes = {"law__rl": {"exponent": 0.2808, "scale_tokens": 3.866e13}, "law__test_time__exponent": 0.0383,
               "decisions__k": "free", "objective__compute_flop": 9.439e25,
               "deployment": {"lifetime_tokens": 1e10}}  # fmt: skip
    plan = solved(LECTURE_FREE, **changes)
    assert plan.scenario is not None
    found = near_optimal(plan, within=0.34)

    def regret(size: float) -> float:
        values = {"objective": {"target_loss": plan.loss}, "decisions.n_active": size}
        total = allocator.solve(with_values(plan.scenario, values)).total  # pyright: ignore[reportArgumentType]
        assert total is not None
        return total.flop / plan.objective.value - 1

    sizes = found["n_active"]
    assert regret(sizes.greatest) == pytest.approx(0.34, abs=1e-8)
    assert regret(2.5e11) > 0.34
    assert regret(sizes.greatest * 0.98) < 0.34
    assert sizes.best < 1e10 < 2.5e11 < sizes.greatest
    assert not sizes.connected
    assert not found["d_rl"].connected
    assert found["d_rl"].least == 0.0
    assert near_optimal(plan, within=0.01)["n_active"].connected


# --- the valley ---


@pytest.fixture(scope="module")
def small_valley(lecture: Plan):
    return valley(lecture, points=5)


def test_the_valleys_lowest_point_is_the_plan(lecture: Plan, small_valley):
    row, column = np.unravel_index(np.nanargmin(small_valley.regret), small_valley.regret.shape)
    assert (row, column) == (2, 2)
    assert small_valley.regret[row, column] == pytest.approx(0, abs=1e-12)
    assert lecture.decision is not None
    at = [small_valley.x_values[column], small_valley.y_values[row]]
    assert at == pytest.approx([lecture.decision.n_active, lecture.decision.d_pretrain], rel=1e-9)
    assert (np.diff(small_valley.x_values) > 0).all()
    assert small_valley.to_frame().shape == (25, 5)


def test_points_of_the_valley_when_solved_again(lecture: Plan, small_valley):
    assert lecture.scenario is not None
    frame = small_valley.to_frame()
    for i in (6, 8, 16):
        row = frame.iloc[i]
        changes = {"objective": {"target_loss": lecture.loss}, "decisions.n_active": float(row["n_active"]),
                   "decisions.d_pretrain": float(row["d_pretrain"])}  # fmt: skip
        again = allocator.solve(with_values(lecture.scenario, changes))
        assert again.total is not None
        assert row["regret"] == pytest.approx(again.total.flop / lecture.objective.value - 1, abs=1e-8)


def test_the_contour_goes_as_far_as_the_intervals(lecture: Plan, small_valley):
    """Its extreme points are those of the intervals, up to the 64 rays' spacing; and no further."""
    found = near_optimal(lecture)
    assert set(small_valley.contour_held_by) == {"tolerance"}
    for column, name in enumerate(("n_active", "d_pretrain")):
        points = small_valley.contour[:, column]
        width = math.log(found[name].greatest / found[name].least)
        assert 0 <= math.log(points.min() / found[name].least) < 0.01 * width
        assert 0 <= math.log(found[name].greatest / points.max()) < 0.01 * width


def test_the_order_of_two_decisions_does_not_matter(lecture: Plan, small_valley):
    turned = valley(lecture, "d_pretrain", "n_active", points=5)
    # The rays of the contour, which set how far the grid goes, are not the same.
    assert turned.x_values == pytest.approx(small_valley.y_values, rel=0.02)
    assert turned.regret[2, 2] == pytest.approx(0, abs=1e-12)


# --- wrong input ---


@pytest.mark.parametrize("within", [-0.01, math.nan, math.inf, "1%", None, True])
def test_a_wrong_tolerance_is_refused(pure: Plan, within: Any):
    with pytest.raises(
        AllocatorError, match=re.escape(f"within: got {within!r}; must be a finite number >= 0")
    ) as error:
        near_optimal(pure, within=within)
    assert "\n" not in str(error.value)


def test_a_plan_without_optimum_is_refused(pure: Plan):
    failed = allocator.solve(with_values(PURE, {"law.test_time.exponent": 0.5}), throw=False)
    assert failed.decision is not None or failed.status == "no_interior_optimum"
    given = allocator.evaluate(PURE, n_active=1e11, d_pretrain=1e13, d_rl=1e12, k=1.0)
    for plan in (failed, given):
        for ask in (near_optimal, valley):
            with pytest.raises(AllocatorError, match=f"plan: its status is {plan.status}; {ask.__name__} needs"):
                ask(plan)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"x": "n"}, "x: got 'n'; must be a free decision, of which there are n_active"),
     ({"y": "k"}, "y: got 'k'; must be a free decision"), ({"y": "n_active"}, "y: got 'n_active'; must be another"),
     ({"points": 4}, "points: got 4; must be an odd whole number >= 3"), ({"points": 2.5}, "points: got 2.5"),
     ({"within": 0.0}, "within: got 0.0"), ({"reach": 0}, "reach: got 0; must be")],
)  # fmt: skip
def test_a_wrong_valley_is_refused(lecture: Plan, arguments: dict[str, Any], told: str):
    with pytest.raises(AllocatorError, match=re.escape(told)) as error:
        valley(lecture, **arguments)
    assert "\n" not in str(error.value)


def test_chips_need_hardware(lecture: Plan):
    with pytest.raises(AllocatorError, match=r"days: got 90 for pretrain; needs \[hardware\] with a chip"):
        round_plan(lecture, days=90)


def test_two_free_decisions_make_no_valley(fixed_size: Plan):
    with pytest.raises(AllocatorError, match="a third decision must be free"):
        valley(fixed_size, "d_pretrain", "d_rl")


# --- equal cost ---


def test_equal_cost_against_the_divergence_of_shares():
    """Pure powers, all free: extra budget exp(KL(best shares || thirds)) - 1, at every budget and law."""
    found = equal_cost_regret(PURE, budgets=[1e25, 1e28], laws=["besiroglu-2024"])
    w = (BETA + RHO + GAMMA) / (ALPHA + BETA)
    shares = [BETA * (1 - w) / (ALPHA * w), RHO / (ALPHA * w), GAMMA / (ALPHA * w)]
    want = math.expm1(sum(s * math.log(3 * s) for s in shares))
    for row in found.rows():
        assert row["regret"] == pytest.approx(want, rel=1e-6)
        assert [row[f"share_{p}"] for p in ("pretrain", "rl", "inference")] == pytest.approx(shares, rel=1e-9)
    assert found.to_frame().shape[0] == 2


def test_equal_cost_keeps_failures_with_their_reason():
    found = equal_cost_regret(LECTURE_FREE, budgets=[1e-3, 1e27], laws={"own": LECTURE_FREE})
    assert len(found.table) == 2
    by_budget = {row["budget"]: row for row in found.table}
    assert by_budget[1e27]["reason"] is None
    assert 0 < by_budget[1e27]["regret"] < 0.1
    assert math.isnan(by_budget[1e-3]["regret"]) == (by_budget[1e-3]["reason"] is not None)


@pytest.mark.parametrize("budgets", [[], [0.0], [math.nan], ["much"], [[1e26]]])
def test_equal_cost_refuses_wrong_budgets(budgets: Any):
    with pytest.raises(AllocatorError, match=r"^budgets: got"):
        equal_cost_regret(PURE, budgets=budgets)


# --- printing, files, charts ---


def test_printing_and_files(lecture: Plan, small_valley):
    near = near_optimal(lecture)
    equal = equal_cost_regret(LECTURE_FREE, budgets=[1e26, 1e27], laws=["besiroglu-2024"])
    console = Console(file=io.StringIO(), width=140)
    near_optimal_report.print_near_optimal(near, console)
    near_optimal_report.print_equal_cost(equal, console)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    for words in ("active parameters", "122B", "156B", "given", "best_of_starts", "besiroglu-2024"):
        assert words in text
    made = near_optimal_report.files(
        near=near, valley=small_valley, rules=near_optimal_report.rules_of(lecture), equal=equal
    )
    assert {"near_optimal.csv", "near_optimal_ends.csv", "valley.csv", "valley_contour.csv", "rules.csv",
            "equal_cost.csv", "charts.html", "valley.png", "near_optimal.svg"} <= set(made)  # fmt: skip
    assert "chinchilla" in str(made["valley.svg"])
    assert "122B" in str(made["near_optimal.svg"])
    assert str(near).splitlines()[1].startswith("  n_active 122B to 156B (best 137B)")
    assert "25 points" in str(small_valley)
    assert "besiroglu-2024" in str(equal)


def test_charts_without_data_say_so(lecture: Plan, small_valley):
    frame = near_optimal(lecture).to_frame()
    empty = near_optimal_charts.intervals(frame.head(0), 0.01)
    assert "no decision is free" in empty.to_json()
    points = small_valley.to_frame().assign(regret=math.nan)
    rules = near_optimal_report.rules_of(lecture)
    blank = near_optimal_charts.valley(points, small_valley.contour_frame(), rules, "n_active", "d_pretrain", 0.01)
    assert "no point of the valley" in blank.to_json()


def test_results_are_frozen_and_plain(lecture: Plan, small_valley):
    near = near_optimal(lecture)
    with pytest.raises(dataclasses.FrozenInstanceError):
        near.within = 0.1  # pyright: ignore[reportAttributeAccessIssue]
    assert near.to_dict()["schema"] == "allocator.near-optimal/1"
    assert len(near.to_frame()) == 3
    assert len(near.ends_frame()) == 6
    assert small_valley.to_dict()["rows"][0]["n_active"] == pytest.approx(small_valley.x_values[0])


def test_the_pages_example_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (root / "docs" / "regret.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/regret.md", "exec"), {})
