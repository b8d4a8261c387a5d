"""The six forms from a scenario: keys that each takes, needs or refuses, where k >= 1, and plans against plain floats.

Losses are written out anew from model.md, section 2; optimality is checked by moving along the budget.
"""

import functools
import math
from typing import Any

import numpy as np
import pytest
from scipy.special import betaln

import allocator
from allocator.errors import ScenarioError
from allocator.optimum.result import Plan
from allocator.scenario.forms import FORMS
from allocator.scenario.reading import from_values, load, with_values

TOKENS, BUDGET, R0 = 1e10, 1e24, 1e9
RL, TIME = {"exponent": 0.08, "scale_tokens": R0}, {"exponent": 0.09}
THETAS = {"th0": 2.1, "th1": 6.0, "th2": 0.8, "th3": 2.0, "th4": -0.3}
PASS_AT_K = {"form": "pass-at-k", "sampling": THETAS | {"rl_logit_exponent": 0.2}, "rl": {"scale_tokens": R0}}
LAWS: dict[str, dict[str, Any]] = {
    "product": {"form": "product", "rl": RL, "test_time": TIME},
    "additive": {"form": "additive", "rl": RL | {"scale": 0.3}, "test_time": TIME | {"scale": 0.2}},
    "shared": {"form": "shared", "rl": RL, "test_time": TIME, "sampling": {"scale": 0.5}},
    "coverage": {"form": "coverage", "pretraining": "gadre-2024-redpajama", "link": "gadre-redpajama-17", "rl": RL,
                 "test_time": TIME, "sampling": {"guess": 0.1, "slope": 0.6}},
    "pass-at-k": PASS_AT_K,
    "t2-loss": {"form": "t2-loss", "test_time": {"exponent": 0.3, "scale": 0.5}},
}  # fmt: skip


def values(law: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Cost 6 N D + 9 N R + 6 N k T."""
    return {
        "objective": {"compute_flop": BUDGET},
        "law": law,
        "deployment": {"lifetime_tokens": TOKENS},
        "rl": {"flop_per_param_token": 3.0, "overhead": 3.0},
        "inference": {"overhead": 3.0},
    } | more


def lines(law: dict[str, Any], **more: Any) -> tuple[str, ...]:
    """What is wrong with a scenario, a line a fault."""
    with pytest.raises(ScenarioError) as caught:
        from_values(values(law, **more))
    return caught.value.lines


def without(law: dict[str, Any], path: str) -> dict[str, Any]:
    *sections, key = path.split(".")
    copy = {name: dict(value) if isinstance(value, dict) else value for name, value in law.items()}
    table = copy[sections[0]] if sections else copy
    del table[key]
    return copy


# --- plans ---


@functools.cache
def planned(form: str, tokens: float = TOKENS) -> Plan:
    return allocator.solve(with_values(from_values(values(LAWS[form])), {"deployment.lifetime_tokens": tokens}))


def base(n: float, d: float) -> float:
    return 482.01 * n**-0.3478 + 2085.43 * d**-0.3658  # Besiroglu, arXiv 2404.10102v2, eq. 3


def loss_of(form: str, n: float, d: float, r: float, k: float) -> float:
    """L of each form as model.md writes it."""
    f, g = (1 + r / R0) ** -0.08, k**-0.09
    if form == "product":
        return 1.8172 + base(n, d) * f * g
    if form == "additive":
        return 1.8172 + base(n, d) + 0.3 * f + 0.2 * g
    if form == "shared":
        return 1.8172 + base(n, d) + 0.5 * f * g
    if form == "t2-loss":
        return 1.8172 + base(n, d) + 0.5 * k**-0.3
    if form == "coverage":
        m = d / n
        nats = 1.837 + (212.2 * m**0.1364 + 366.7 * m**-0.1364) * (6 * n * d) ** -0.1364
        reached = 0.8570 - 2.2065 * math.exp(-0.7146 * nats)
        return 1 - (1 - reached) * (1 - (0.1 + 0.6 * reached) * f * g)
    nats = 1.8172 + base(n, d)
    mu = 0.8 / (1 + math.exp(6 * (nats - 2.1)))
    odds = mu / (1 - mu) * (1 + r / R0) ** 0.2
    mu, nu = odds / (1 + odds), math.exp(2.0 - 0.3 * nats)
    a, b = mu * nu, (1 - mu) * nu
    return -math.log1p(-math.exp(betaln(a, b + k) - betaln(a, b)))


def cost(n: float, d: float, r: float, k: float, tokens: float = TOKENS) -> float:
    return 6 * n * d + 9 * n * r + 6 * n * k * tokens


@pytest.mark.parametrize("form", LAWS)
def test_plan_of_each_form_has_the_loss_of_its_law_and_no_better_neighbour(form: str):
    plan = planned(form)
    d = plan.decision
    point = d.n_active, d.d_pretrain, d.d_rl, d.k
    assert plan.law["form"] == form
    assert plan.loss == pytest.approx(loss_of(form, *point), rel=1e-10)
    assert cost(*point) == pytest.approx(BUDGET, rel=1e-9)
    assert d.d_inference == pytest.approx(d.k * TOKENS, rel=1e-12)
    assert plan.total.flop == pytest.approx(BUDGET, rel=1e-9)
    # Moves of N, R and k, with D from the budget.
    rng = np.random.default_rng(7)
    for step in (0.3, 0.03, 1e-3):
        for shift in rng.normal(0, step, (100, 3)):
            n, r, k = (
                point[0] * math.exp(shift[0]),
                (point[2] + R0) * math.exp(shift[1]) - R0,
                point[3] * math.exp(shift[2]),
            )
            r = 0.0 if form == "t2-loss" or r < 0 else r
            k = max(k, 1.0) if form != "product" else k
            tokens = (BUDGET / n - 9 * r - 6 * k * TOKENS) / 6
            if tokens > 0:
                assert loss_of(form, n, tokens, r, k) >= plan.loss * (1 - 1e-13)


@pytest.mark.parametrize("form", LAWS)
def test_elasticities_are_the_slopes_of_the_law_above_its_floor(form: str):
    plan = planned(form)
    d = plan.decision
    point = [d.n_active, d.d_pretrain, d.d_rl, d.k]
    floor = plan.loss - plan.reducible_loss
    for i, name in enumerate(("n_active", "d_pretrain", "d_rl", "k")):
        if point[i] == 0:
            continue
        ends = []
        for step in (1e-4, -1e-4):
            moved = list(point)
            moved[i] *= math.exp(step)
            ends.append(math.log(loss_of(form, *moved) - floor))
        want = -(ends[0] - ends[1]) / 2e-4
        assert plan.elasticities[name] == pytest.approx(want, rel=1e-5, abs=1e-8)


def test_floors_are_those_of_the_forms():
    floors = {form: planned(form).loss - planned(form).reducible_loss for form in LAWS}
    error = 0.8570 - 2.2065 * math.exp(-0.7146 * 1.837)
    want = {"coverage": error, "pass-at-k": 0.0}
    assert floors == pytest.approx({form: want.get(form, 1.8172) for form in LAWS}, rel=1e-9, abs=1e-12)


def test_convex_forms_are_certified_and_the_others_say_how_many_starts():
    """model.md, section 5."""
    kinds = {form: planned(form).certificate.kind for form in LAWS}
    one, many = "one_dimensional", "best_of_starts"
    assert kinds == {"product": one, "additive": one, "shared": one, "coverage": many, "pass-at-k": many,
                     "t2-loss": "geometric_program"}  # fmt: skip
    for form, kind in kinds.items():
        assert planned(form).status == ("best_of_starts" if kind == many else "optimal")
        assert kind != many or planned(form).certificate.starts > 10


def test_t2_loss_is_at_its_identity():
    """alpha A N^-alpha = beta B D^-beta + gamma G k^-gamma."""
    d = planned("t2-loss").decision
    left = 0.3478 * 482.01 * d.n_active**-0.3478
    assert left == pytest.approx(0.3658 * 2085.43 * d.d_pretrain**-0.3658 + 0.3 * 0.5 * d.k**-0.3, rel=1e-8)
    assert d.d_rl == 0


def test_coverage_is_an_error_rate():
    plan = planned("coverage")
    assert 0 < plan.loss < 1


# --- k >= 1 ---


DEAR = {
    "deployment": {"lifetime_tokens": 1.65e14},
    "decisions": {"n_active": 1e9},
}  # one sample takes 99 % of the budget


@pytest.mark.parametrize("form", ["coverage", "pass-at-k", "t2-loss"])
def test_one_sample_is_an_active_bound_where_samples_are_dear(form: str):
    """The last percent of the budget is better spent on tokens: e_D/s_D > e_k/s_k."""
    plan = allocator.solve(from_values(values(LAWS[form], **DEAR)))
    assert plan.decision.k == 1.0
    assert plan.decision_status["k"] == "at_min"
    (notice,) = [n for n in plan.warnings if n.code == "bound_active" and n.path == "decisions.k"]
    assert notice.value == 1.0
    assert not [n for n in plan.warnings if n.code == "k_below_one"]
    e, share = plan.elasticities, {name: phase.share for name, phase in plan.phases.items()}
    assert share["inference"] == pytest.approx(0.99, rel=1e-9)
    assert e["d_pretrain"] / share["pretrain"] > e["k"] / share["inference"]


def test_product_alone_may_go_below_one_and_warns():
    plan = planned("product", 1e14)
    assert plan.decision.k < 1
    assert plan.decision_status["k"] == "free"
    assert [n.path for n in plan.warnings if n.code == "k_below_one"] == ["decisions.k"]


@pytest.mark.parametrize("extra", [{"overlap": 1.0}, {"test_time": TIME | {"floor_share": 0.1}}])
def test_overlap_and_floor_share_impose_one_sample(extra: dict[str, Any]):
    plan = allocator.solve(
        from_values(values(LAWS["product"] | extra, deployment={"lifetime_tokens": 1e14}, decisions={"n_active": 1e9}))
    )
    assert plan.decision.k == 1.0
    assert plan.decision_status["k"] == "at_min"


IMPOSED = {
    **{form: LAWS[form] for form in ("coverage", "pass-at-k", "t2-loss")},
    "overlap": LAWS["product"] | {"overlap": 0.5},
    "shared overlap": LAWS["shared"] | {"overlap": 0.5},
    "floor share": LAWS["product"] | {"test_time": TIME | {"floor_share": 0.1}},
}


@pytest.mark.parametrize("law", IMPOSED.values(), ids=IMPOSED)
@pytest.mark.parametrize("k", [0.5, {"max": 0.5}, {"min": 0.1, "max": 0.9}])
def test_k_bounded_below_one_is_refused_where_it_has_no_meaning(law: dict[str, Any], k: Any):
    top = k["max"] if isinstance(k, dict) else k
    assert lines(law, decisions={"k": k}) == (
        f"decisions.k: got {top}; must be >= 1, below which form, overlap or floor_share have no meaning",
    )


@pytest.mark.parametrize("law", IMPOSED.values(), ids=IMPOSED)
def test_k_given_to_evaluate_is_held_to_the_same_rule(law: dict[str, Any]):
    """Below one sample the law is a number without meaning, however it is asked for."""
    scenario = from_values(values(law))
    point = {"n_active": 1e9, "d_pretrain": 1e11, "d_rl": 0.0}
    assert math.isfinite(allocator.evaluate(scenario, **point, k=1.0).loss)
    with pytest.raises(ScenarioError, match=r"k: got 0\.5; must be >= 1"):
        allocator.evaluate(scenario, **point, k=0.5)


@pytest.mark.parametrize(
    "law", [LAWS["product"], LAWS["additive"], LAWS["shared"]], ids=["product", "additive", "shared"]
)
def test_k_below_one_is_lawful_elsewhere(law: dict[str, Any]):
    assert from_values(values(law, decisions={"k": 0.5})).decisions.k == 0.5


def test_a_minimum_below_one_is_raised_to_one():
    """{ min = 0.1 } names no point below 1 that must be taken."""
    dear = DEAR | {"decisions": {"n_active": 1e9, "k": {"min": 0.1}}}
    plan = allocator.solve(from_values(values(LAWS["t2-loss"], **dear)))
    assert plan.decision.k == 1.0
    assert plan.decision_status["k"] == "at_min"


# --- overlap ---


def test_overlap_out_of_range_is_refused():
    for overlap in (-0.1, -1, math.inf, math.nan):
        (line,) = lines(LAWS["product"] | {"overlap": overlap})
        assert line.startswith("law.overlap: ")
    for overlap in ("a", True):
        (line,) = lines(LAWS["product"] | {"overlap": overlap})
        assert line.startswith("law.overlap: ")


@pytest.mark.parametrize("form", ["product", "shared", "coverage"])
def test_overlap_needs_the_factor_that_is_one_without_rl(form: str):
    law = LAWS[form] | {"overlap": 1.5, "rl": {"exponent": 0.08, "unit_tokens": 1e9}}
    assert lines(law) == ("law.overlap: got 1.5; needs law.rl.scale_tokens, since a pure power exceeds 1 at little RL",)


def test_overlap_of_zero_is_the_product_with_either_factor():
    """om = 0 means independent, so it asks nothing of the RL factor, nor of k."""
    law = LAWS["product"] | {"overlap": 0.0, "rl": {"exponent": 0.08, "unit_tokens": 1e9}}
    scenario = from_values(values(law, decisions={"k": 0.5}))
    assert scenario.law.overlap == 0


@pytest.mark.parametrize("missing", ["rl", "test_time"])
def test_overlap_with_only_one_lever_is_refused(missing: str):
    """Nothing to overlap with: the key would be dropped in silence."""
    law = without(LAWS["product"] | {"overlap": 1.0}, missing)
    assert any(line.startswith("law.overlap: ") for line in lines(law, decisions={"k": 1.0}))


@pytest.mark.parametrize("form", ["additive", "pass-at-k", "t2-loss"])
def test_forms_without_overlap_refuse_the_key(form: str):
    (line,) = lines(LAWS[form] | {"overlap": 1.0})
    assert line == (f"law.overlap: form '{form}' does not use it; it belongs to 'product' and 'shared' and 'coverage'")


# --- keys ---


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_a_scenario_here_that_is_lawful(form: str):
    assert from_values(values(LAWS[form])).law.form == form


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("additive", "rl.scale"), ("additive", "test_time.scale"), ("additive", "rl.exponent"),
        ("shared", "sampling.scale"), ("shared", "rl.exponent"),
        ("coverage", "sampling.guess"), ("coverage", "sampling.slope"),
        *(("pass-at-k", f"sampling.th{i}") for i in range(5)),
        ("t2-loss", "test_time.scale"), ("product", "rl.exponent"),
    ],
)  # fmt: skip
def test_key_that_a_form_needs_is_asked_for(form: str, key: str):
    assert lines(without(LAWS[form], key)) == (f"law.{key}: form '{form}' needs it",)


@pytest.mark.parametrize(
    ("form", "table"),
    [("shared", "sampling"), ("coverage", "sampling"), ("pass-at-k", "sampling"), ("t2-loss", "test_time")],
)
def test_table_that_a_form_needs_is_asked_for_key_by_key(form: str, table: str):
    found = lines(without(LAWS[form], table), decisions={"k": 1.0})
    needed = {f"law.{key}: form '{form}' needs it" for key in FORMS[form].needs if key.startswith(table)}
    assert needed
    assert needed <= set(found)


EXTRA = {  # every key that some form uses, with a lawful value
    "overlap": 0.5, "link": "gadre-redpajama-17",
    "rl.exponent": 0.1, "rl.scale": 0.3, "test_time.exponent": 0.1, "test_time.scale": 0.2,
    "test_time.floor_share": 0.1, "sampling.scale": 0.5, "sampling.guess": 0.1, "sampling.slope": 0.1,
    "sampling.rl_logit_exponent": 0.2, "sampling.th0": 2.0, "sampling.th4": 0.1,
}  # fmt: skip
UNUSED = [(form, key) for form in FORMS for key in EXTRA if key not in FORMS[form].takes]


@pytest.mark.parametrize(("form", "key"), UNUSED)
def test_key_that_a_form_does_not_use_is_refused_with_those_that_do(form: str, key: str):
    law = {name: dict(value) if isinstance(value, dict) else value for name, value in LAWS[form].items()}
    *sections, last = key.split(".")
    table = law.setdefault(sections[0], {}) if sections else law
    table[last] = EXTRA[key]
    users = " and ".join(f"'{other}'" for other in FORMS if key in FORMS[other].takes)
    assert f"law.{key}: form '{form}' does not use it; it belongs to {users}" in lines(law)


def test_table_of_forms_is_model_md_s():
    """Which form takes what, read from interface.md by eye."""
    takers = {key: {form for form in FORMS if key in FORMS[form].takes} for key in EXTRA}
    assert takers["overlap"] == {"product", "shared", "coverage"}
    assert takers["link"] == {"coverage"}
    assert takers["rl.scale"] == {"additive"}
    assert takers["test_time.scale"] == {"additive", "t2-loss"}
    assert takers["sampling.scale"] == {"shared"}
    assert takers["sampling.guess"] == takers["sampling.slope"] == {"coverage"}
    assert takers["sampling.th0"] == takers["sampling.rl_logit_exponent"] == {"pass-at-k"}
    assert {form for form in FORMS if FORMS[form].k_at_least_one} == {"coverage", "pass-at-k", "t2-loss"}


def test_all_faults_of_a_law_are_told_at_once():
    law = {"form": "shared", "rl": {"exponent": 0.1, "scale_tokens": 1e9, "scale": 0.3}, "overlap": -1.0}
    assert {line.split(":")[0] for line in lines(law, decisions={"k": 1.0})} == {
        "law.rl.scale", "law.overlap", "law.sampling.scale",
    }  # fmt: skip


def test_rl_of_pass_at_k_comes_with_its_exponent_or_not_at_all():
    message = "law.sampling.rl_logit_exponent: goes with law.rl.scale_tokens in form 'pass-at-k'; give both or neither"
    assert lines(without(PASS_AT_K, "rl")) == (message,)
    assert lines(without(PASS_AT_K, "sampling.rl_logit_exponent")) == (message,)
    alone = without(without(PASS_AT_K, "rl"), "sampling.rl_logit_exponent")
    assert from_values(values(alone)).law.rl is None


@pytest.mark.parametrize("law", ["besiroglu-2024", "hoffmann-2022", "gadre-2024-c4"])
def test_coverage_refuses_nats_and_says_what_would_do(law: str):
    (line,) = lines(without(LAWS["coverage"], "link") | {"pretraining": law})
    assert line.startswith("law.link: form 'coverage' needs an error rate, and ")
    assert f"{law} is in nats/token" in line
    assert 'add link = "gadre-redpajama-17" or use a law in error rate' in line


def test_coverage_refuses_the_default_law_too():
    (line,) = lines(without(without(LAWS["coverage"], "link"), "pretraining"))
    assert "besiroglu-2024 is in nats/token" in line


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"link": "besiroglu-2024"}, "law.link: 'besiroglu-2024' is of kind chinchilla; must be loss-to-error"),
        ({"link": "gadre"}, "law.link: laws: 'gadre' is not known"),
        ({"pretraining": "gadre-redpajama-17"}, "law.pretraining: 'gadre-redpajama-17' is of kind loss-to-error"),
        ({"form": "coverages"}, "law.form: "),
        ({"sampling": {"guess": -0.1, "slope": 0.5}}, "law.sampling.guess: "),
        ({"sampling": {"guess": 0.7, "slope": 0.6}}, "law.sampling"),
        ({"sampling": {"guess": 0.0, "slope": 0.0}}, "law.sampling"),
    ],
)
def test_other_faults_of_coverage_are_told_by_their_key(changes: dict[str, Any], start: str):
    found = lines(LAWS["coverage"] | changes)
    assert any(line.startswith(start) for line in found), found


def test_link_whose_floor_would_be_negative_is_told_as_a_scenario_s_fault(tmp_path):
    """E = 0 under Gadre's link is an error below 0."""
    folder = tmp_path / "fits" / "own"
    folder.mkdir(parents=True)
    (folder / "law.toml").write_text(
        'schema = "allocator.law/1"\nname = "own"\nkind = "chinchilla"\nunit = "nats/token"\n'
        "[parameters]\nE = 0.1\nA = 400.0\nB = 2000.0\nalpha = 0.34\nbeta = 0.36\n"
    )
    with pytest.raises(allocator.AllocatorError, match="floor"):
        allocator.solve(from_values(values(LAWS["coverage"] | {"pretraining": "own"}), folder=tmp_path))


@pytest.mark.parametrize(
    ("key", "value"),
    [("th1", 0.0), ("th1", -1.0), ("th2", 0.0), ("th2", 1.0), ("th0", math.nan), ("rl_logit_exponent", 0.0)],
)
def test_thetas_out_of_range_are_told_by_their_key(key: str, value: float):
    law = PASS_AT_K | {"sampling": PASS_AT_K["sampling"] | {key: value}}
    (line,) = lines(law)
    assert line.startswith(f"law.sampling.{key}: ")


def test_numbers_of_sampling_and_overlap_are_marked_as_assumed():
    plan = planned("coverage")
    assert {"law.sampling.guess", "law.sampling.slope", "law.rl.exponent", "law.test_time.exponent"} <= set(
        plan.assumed
    )
    assert {f"law.sampling.{name}" for name in (*THETAS, "rl_logit_exponent")} <= set(planned("pass-at-k").assumed)


def test_setting_a_form_from_the_command_line_reads_its_tables():
    scenario = load(
        "lecture",
        overrides=("law.form=shared", "law.sampling.scale=0.5", "law.overlap=1.5", "decisions.k={ min = 1.0 }"),
    )
    assert (scenario.law.form, scenario.law.overlap, scenario.law.sampling.scale) == ("shared", 1.5, 0.5)
