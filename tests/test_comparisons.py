"""Laws side by side: rows are single plans, and regrets hold against a bisection that shares no code."""

import functools
import math

import numpy as np
import pytest

import allocator
from allocator import comparisons
from allocator.comparisons import Comparison, compare, diff, variants
from allocator.errors import AllocatorError
from allocator.scenario.reading import from_values, load, with_values
from allocator.sweeps import plan_row

EXPONENT = 0.08803296429559924  # the lecture's: alpha beta / (alpha + 3 beta), model.md, section 4
LAWS = {"besiroglu-2024", "hoffmann-2022", "gadre-2024-c4", "gadre-2024-redpajama", "gadre-2024-refinedweb",
        "muennighoff-2023", "sardana-2024", "chinchilla-epoch", "gadre-c4", "gadre-redpajama",
        "gadre-refinedweb"}  # fmt: skip


@functools.cache
def lecture() -> Comparison:
    return compare(allocator.solve(load("lecture")))


def name(law: str) -> str:
    return f"{law} (product)"


# --- rows ---


def test_every_pretraining_law_has_a_row_but_those_with_a_caution():
    compared = lecture()
    assert next(iter(compared.plans)) == name("besiroglu-2024")  # the scenario's own first
    assert set(compared.plans) == {name(law) for law in LAWS}
    frame = compared.to_frame()
    assert frame["variant"].tolist() == list(compared.plans)
    assert frame["status"].tolist() == ["optimal"] * len(LAWS)


@pytest.mark.parametrize("law", ["besiroglu-2024", "hoffmann-2022", "gadre-2024-c4"])
def test_row_equals_the_single_solve(law: str):
    single = allocator.solve(with_values(load("lecture"), {"law.pretraining": law}))
    row = lecture().to_frame().set_index("variant").loc[name(law)]
    want = plan_row(single)
    numbers = [key for key in want if key not in ("status", "reason")]
    assert row[numbers].tolist() == pytest.approx([want[key] for key in numbers], rel=1e-9)
    assert lecture().plans[name(law)].law == {"pretraining": law, "form": "product"}


def test_over_training_is_model_md_s():
    """98x under Besiroglu; other laws get the exponents that suit Besiroglu, so their rows of the table differ."""
    frame = lecture().to_frame().set_index("variant")
    assert frame.loc[name("besiroglu-2024"), "vs_20"] == pytest.approx(98.0, abs=0.05)
    shares = frame[["share_pretrain", "share_rl", "share_inference"]]
    assert shares.sum(axis=1).tolist() == pytest.approx([1.0] * len(frame), rel=1e-12)
    # N and k are fixed and so is what serving costs: a third under every law.
    assert frame["share_inference"].tolist() == pytest.approx([1 / 3] * len(frame), rel=1e-9)


def test_comparison_carries_the_plan_with_its_rules_of_thumb():
    assert [baseline.name for baseline in lecture().plan.baselines] == ["equal_cost", "chinchilla", "lecture"]
    assert lecture().plan.decision == lecture().plans[name("besiroglu-2024")].decision


# --- regret ---


def reducible(law: str, d: float, r: float) -> float:
    """L - E at the lecture's N = 1e11 and k = 1."""
    n = 1e11
    base = {
        "besiroglu-2024": 482.01 * n**-0.3478 + 2085.43 * d**-0.3658,
        "gadre-2024-c4": (141.3 * (d / n) ** 0.1212 + 189.5 * (d / n) ** -0.1212) * (6 * n * d) ** -0.1212,
    }[law]
    return base * (1 + r / 1e9) ** -EXPONENT


def least_loss(law: str, budget: float) -> float:
    """Best split of what serving leaves between D at 6 N and R at 9 N, by golden section."""
    left = budget - 6 * 1e11 * 2.592e14
    low, high = 0.0, 1.0
    ratio = (math.sqrt(5) - 1) / 2

    def at(share: float) -> float:
        return reducible(law, share * left / 6e11, (1 - share) * left / 9e11)

    for _ in range(120):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if at(a) < at(b) else (a, high)
    return at((low + high) / 2)


@pytest.mark.parametrize(("mine", "truth"), [("besiroglu-2024", "gadre-2024-c4"), ("gadre-2024-c4", "besiroglu-2024")])
def test_regret_matches_a_bisection_in_the_budget(mine: str, truth: str):
    """C/C* - 1 with C* the least budget whose optimum reaches the plan's loss under the other law."""
    decision = lecture().plans[name(mine)].decision
    reached = reducible(truth, decision.d_pretrain, decision.d_rl)
    low, high = 6 * 1e11 * 2.592e14 * 1.0001, 4.6656e26 * 1.001
    assert least_loss(truth, low) > reached >= least_loss(truth, high)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if least_loss(truth, middle) > reached else (low, middle)
    want = 4.6656e26 / high - 1
    assert want > 1e-6
    assert lecture().regret[name(mine)][name(truth)] == pytest.approx(want, rel=1e-5, abs=1e-12)


def test_regret_is_zero_at_home_and_nowhere_negative():
    frame = lecture().regret_frame()
    assert list(frame.index) == list(frame.columns) == list(lecture().plans)
    assert frame.index.name == "plan_of"
    matrix = frame.to_numpy()
    assert (np.diag(matrix) == 0).all()
    assert np.isfinite(matrix).all()  # the lecture's decisions mean something under every law
    assert matrix.min() >= -1e-9
    assert matrix.max() > 1e-3
    for a in lecture().plans:
        for b in lecture().plans:
            assert frame.loc[a, b] == lecture().regret[a][b]


def test_two_laws_of_equal_constants_have_no_regret_between_them(tmp_path):
    """A copy of Besiroglu's file under another name."""
    folder = tmp_path / "fits" / "copy"
    folder.mkdir(parents=True)
    text = (comparisons.catalog.law_record("besiroglu-2024").path).read_text(encoding="utf-8")
    (folder / "law.toml").write_text(text.replace('name = "besiroglu-2024"', 'name = "copy"'), encoding="utf-8")
    values = load("lecture").to_values()
    values["law"]["pretraining"] = "copy"
    scenario = from_values(values, folder=tmp_path)
    own = allocator.solve(scenario)
    regret = comparisons._regret(own, lecture().plans[name("besiroglu-2024")])
    assert regret == pytest.approx(0, abs=1e-9)


# --- overlap ---


def only_besiroglu(monkeypatch):
    entries = comparisons.catalog.entries

    def fewer(kind):
        return tuple(record for record in entries(kind) if kind != "laws" or record.name == "besiroglu-2024")

    monkeypatch.setattr(comparisons.catalog, "entries", fewer)


def test_regret_is_undefined_where_the_other_law_has_no_meaning(monkeypatch):
    """All free at 1e26 the product plan has k = 0.173 (model.md's table), and overlap needs k >= 1."""
    only_besiroglu(monkeypatch)
    monkeypatch.setattr(comparisons, "OVERLAPS", (2.0,))
    changes = {"decisions.n_active": "free", "decisions.k": "free", "objective.compute_flop": 1e26}
    compared = compare(allocator.solve(with_values(load("lecture"), changes)))
    own, overlapped = name("besiroglu-2024"), "besiroglu-2024 (product, overlap 2)"
    assert list(compared.plans) == [own, overlapped]
    assert compared.plans[own].decision.k == pytest.approx(0.173, abs=5e-4)
    assert compared.plans[overlapped].decision.k == pytest.approx(1.0, abs=1e-12)
    assert math.isnan(compared.regret[own][overlapped])
    assert compared.regret[overlapped][own] > 0
    assert compared.regret[own][own] == compared.regret[overlapped][overlapped] == 0
    assert np.isnan(compared.regret_frame().loc[own, overlapped])


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["decisions.k={ min = 1.0 }"], ["product, overlap 0.5", "product, overlap 1", "product, overlap 2"]),
        (["decisions.k={ min = 1.0 }", "law.overlap=1.0"], ["product", "product, overlap 0.5", "product, overlap 2"]),
        (["decisions.k={ min = 1.0 }", "law.overlap=0.7"],
         ["product", "product, overlap 0.5", "product, overlap 1", "product, overlap 2"]),
        (["law.form=shared", "law.sampling.scale=0.5", "decisions.k=4.0"],
         ["shared, overlap 0.5", "shared, overlap 1", "shared, overlap 2"]),
        ([], []),  # k = 1: nothing to overlap with
        (["law.rl.unit_tokens=1e9", "decisions.k={ min = 1.0 }"], []),  # overlap needs the saturating factor
        (["law.form=additive", "law.rl.scale=0.3", "law.test_time.scale=0.2", "decisions.k={ min = 1.0 }"], []),
    ],
)  # fmt: skip
def test_overlaps_are_varied_where_they_make_sense(monkeypatch, overrides: list[str], names: list[str]):
    only_besiroglu(monkeypatch)
    found = dict(variants(load("lecture", overrides=overrides), 1e27))
    assert list(found) == [f"besiroglu-2024 ({what})" for what in names]
    assert all(scenario.law.pretraining == "besiroglu-2024" for scenario in found.values())


def test_laws_are_varied_within_the_form_and_keep_its_overlap():
    scenario = load("lecture", overrides=["law.overlap=1.0", "decisions.k={ min = 1.0 }"])
    found = dict(variants(scenario, 1e27))
    assert {f"{law} (product, overlap 1)" for law in LAWS - {"besiroglu-2024"}} <= set(found)
    assert found["hoffmann-2022 (product, overlap 1)"].law.overlap == 1.0


def test_target_becomes_a_budget_under_other_laws():
    """One law's loss means nothing under another: the others get what the scenario's own plan costs."""
    found = dict(variants(load("serve-two-trillion"), 4.823e23))
    assert found
    for scenario in found.values():
        assert scenario.objective.target_loss is None
        assert scenario.objective.compute_flop == 4.823e23


# --- what cannot be compared ---


def test_evaluated_and_failed_plans_are_refused():
    scenario = load("lecture")
    scored = allocator.evaluate(scenario, n_active=1e11, d_pretrain=1e14, d_rl=0.0, k=1.0)
    failed = allocator.solve(with_values(scenario, {"objective.compute_flop": 1e20}), throw=False)
    for plan in (scored, failed):
        with pytest.raises(AllocatorError, match=f"compare: .*{plan.status}"):
            compare(plan)


# --- diff ---


def test_diff_has_a_row_a_figure_and_a_row_a_key_that_differs():
    own, other = (lecture().plans[name(law)] for law in ("besiroglu-2024", "gadre-2024-c4"))
    rows = {row["figure"]: row for row in diff(own, other)}
    assert set(next(iter(rows.values()))) == {"figure", "a", "b", "b_over_a"}
    for figure in ("d_pretrain", "d_rl", "loss", "share_rl", "vs_20"):
        a, b = plan_row(own)[figure], plan_row(other)[figure]
        assert (rows[figure]["a"], rows[figure]["b"]) == (a, b)
        assert rows[figure]["b_over_a"] == pytest.approx(b / a, rel=1e-15)
    assert rows["n_active"]["b_over_a"] == pytest.approx(1, rel=1e-12)
    changed = {figure: (row["a"], row["b"]) for figure, row in rows.items() if figure.startswith("scenario.")}
    assert changed == {"scenario.law.pretraining": ("besiroglu-2024", "gadre-2024-c4")}


def test_diff_of_a_plan_with_itself_is_all_ones():
    plan = lecture().plan
    rows = diff(plan, plan)
    assert not [row for row in rows if row["figure"].startswith("scenario.")]
    assert all(row["b_over_a"] == 1 for row in rows if row["a"])


def test_diff_tells_a_key_that_only_one_has():
    scenario = load("lecture")
    other = with_values(scenario, {"law.rl.unit_tokens": 1e9, "deployment.derate": 0.5})
    point = {"n_active": 1e11, "d_pretrain": 1e14, "d_rl": 1e14, "k": 1.0}
    rows = {row["figure"]: row for row in diff(*(allocator.evaluate(s, **point) for s in (scenario, other)))}
    assert (rows["scenario.law.rl.scale_tokens"]["a"], rows["scenario.law.rl.scale_tokens"]["b"]) == (1e9, None)
    assert (rows["scenario.law.rl.unit_tokens"]["a"], rows["scenario.law.rl.unit_tokens"]["b"]) == (None, 1e9)
    assert (rows["scenario.deployment.derate"]["a"], rows["scenario.deployment.derate"]["b"]) == (1.0, 0.5)
    assert rows["d_inference"]["b_over_a"] == pytest.approx(0.5, rel=1e-12)


def test_diff_with_a_failed_plan_has_nothing_to_divide():
    failed = allocator.solve(with_values(load("lecture"), {"objective.compute_flop": 1e20}), throw=False)
    rows = {row["figure"]: row for row in diff(lecture().plan, failed)}
    assert math.isnan(rows["loss"]["b"])
    assert math.isnan(rows["loss"]["b_over_a"])
    assert rows["scenario.objective.compute_flop"]["b"] == 1e20


def test_diff_of_zero_rl_has_no_ratio():
    scenario, point = load("lecture"), {"n_active": 1e11, "d_pretrain": 1e14, "k": 1.0}
    a, b = (allocator.evaluate(scenario, **point, d_rl=r) for r in (0.0, 1e14))
    (row,) = [row for row in diff(a, b) if row["figure"] == "d_rl"]
    assert (row["a"], row["b"]) == (0.0, 1e14)
    assert math.isnan(row["b_over_a"])


def test_another_form_is_set_beside_the_scenario_and_judged_by_it():
    """A shared-form scenario has numbers of its own (a sampling loss), so it comes as a file."""
    shared = allocator.load(
        "lecture",
        overrides=["law.form=shared", "law.sampling.scale=0.05", "law.rl.exponent=0.4", "law.test_time.exponent=0.4"],
    )
    compared = compare(allocator.solve(load("lecture")), also={"shared": shared})
    assert compared.plans["shared"].decision == allocator.solve(shared).decision
    row = compared.regret["shared"]
    assert row["shared"] == 0
    assert all(value > -1e-9 for name, value in row.items() if name != "shared")
