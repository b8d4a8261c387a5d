"""Plans as frames with units in the column names, and as text that a person reads at a glance."""

import io
import math

import pandas as pd
import pytest
from rich.console import Console

import allocator
from allocator.baselines import with_baselines
from allocator.exports import frames
from allocator.optimum.result import Plan
from allocator.report import print_plan, verdict, warning_lines
from allocator.scenario.reading import load, with_values

H100 = {"hardware": {"chip": "h100-sxm", "mfu": 0.4, "usd_per_chip_hour": 2.5}}
PHASE_COLUMNS = ["phase", "model_flop", "flop", "share", "mfu", "overhead", "chip_hours", "usd", "energy_joule"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return with_baselines(allocator.solve(load("lecture")))


@pytest.fixture(scope="module")
def priced() -> Plan:
    return with_baselines(allocator.solve(with_values(load("lecture"), H100)))


@pytest.fixture(scope="module")
def training() -> Plan:
    return with_baselines(allocator.solve(load("gopher-budget")))


def failed(**changes) -> Plan:
    return allocator.solve(with_values(load("lecture"), changes), throw=False)


def text_of(plan: Plan, *, width: int = 120, **options) -> str:
    stream = io.StringIO()
    print_plan(plan, Console(file=stream, width=width, highlight=False, markup=False, **options))
    return stream.getvalue()


def titled(title: str) -> Plan:
    decisions = {"n_active": 1e11, "d_pretrain": 1e14, "d_rl": 1e14, "k": 1.0}
    return allocator.evaluate(with_values(load("lecture"), {"title": title}), **decisions)


def row(text: str, start: str) -> str:
    (found,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return found


# --- frames ---


def test_phases_as_a_frame(plan: Plan):
    frame = plan.to_frame()
    assert list(frame.columns) == PHASE_COLUMNS
    assert list(frame["phase"]) == ["pretrain", "rl", "inference"]
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["flop"].sum() == pytest.approx(4.6656e26)
    assert frame["usd"].isna().all()  # unknown, and not 0
    assert set(frame.drop(columns="phase").dtypes.astype(str)) == {"float64"}


def test_a_failed_plan_has_a_frame_of_no_rows():
    frame = failed(**{"objective.compute_flop": 1.0}).to_frame()
    assert list(frame.columns) == PHASE_COLUMNS
    assert len(frame) == 0


def test_the_frames_of_a_plan(plan: Plan):
    found = frames(plan)
    assert set(found) == {"decisions", "phases", "baselines", "warnings"}
    decisions = found["decisions"].set_index("decision")
    assert decisions.loc["n_active", "value"] == 1e11
    assert decisions.loc["k", "status"] == "fixed"
    assert decisions.loc["d_inference", "status"] == "follows"
    assert math.isnan(decisions.loc["d_inference", "elasticity"])
    baselines = found["baselines"].set_index("baseline")
    assert list(baselines.index) == ["equal_cost", "chinchilla", "lecture"]
    assert baselines.loc["chinchilla", "d_rl"] == 0.0
    warnings = found["warnings"].set_index("code")
    assert list(warnings.columns) == ["path", "value", "message", "assumed"]
    assert warnings.loc["assumed_parameter", "assumed"].all()
    assert not warnings.loc["extrapolates_rl", "assumed"]


def test_frames_of_a_plan_without_baselines_keep_their_columns():
    """A table of no rows still has a header, so that it can be read back."""
    for frame in frames(allocator.solve(load("lecture"))).values():
        assert len(frame.columns) > 0
        pd.read_csv(io.StringIO(frame.to_csv(index=False)))


def test_a_baseline_that_is_none_has_a_row_with_its_reason(training: Plan):
    lecture = frames(training)["baselines"].set_index("baseline").loc["lecture"]
    assert math.isnan(lecture["regret"])
    assert "served" in lecture["reason"]


# --- text ---


def test_the_title_comes_first(plan: Plan):
    assert text_of(plan).splitlines()[0] == "Lecture: a frontier model served for two months"


def test_the_verdict_names_law_loss_cost_and_over_training(plan: Plan):
    assert verdict(plan) == (
        "Optimal under besiroglu-2024, product form: loss 1.8458 for 4.666e+26 FLOP.\n"
        "1,960 tokens per parameter: 98.0 x Chinchilla's 20, 108 x what besiroglu-2024 calls compute-optimal for this "
        "size."
    )


def test_the_verdict_on_given_decisions_claims_no_optimum():
    assert verdict(titled("x")).startswith("Given decisions under besiroglu-2024")


def test_the_verdict_under_a_users_law_names_no_file():
    law = allocator.UserLaw(lambda n, d, r, k: 2 + 400 * n**-0.3 + 2000 * d**-0.3 + r**-0.1 + k**-0.1, floor=2.0)
    decisions = {"n_active": 1e11, "d_pretrain": 1e14, "d_rl": 1e14, "k": 1.0}
    words = verdict(allocator.evaluate(load("lecture"), **decisions, law=law))
    assert "a user's law" in words
    assert "nan" not in words
    assert "None" not in words


def test_decisions_with_amount_and_standing(plan: Plan):
    text = text_of(plan)
    assert row(text, "active parameters").split()[2:4] == ["100B", "given"]
    assert row(text, "pre-training tokens").split()[2:4] == ["196T", "chosen"]
    assert row(text, "RL tokens").split()[2:4] == ["215T", "chosen"]
    assert "1.00" in row(text, "samples per query")
    assert "259T" in row(text, "tokens served")


def test_phases_with_units_and_shares(plan: Plan):
    text = text_of(plan)
    assert {"FLOP", "overhead", "share"} <= set(row(text, "cost of").replace("=", " ").split())
    assert "25.2 %" in row(text, "pre-training  ")
    assert "41.5 %" in row(text, "RL   ")
    assert "33.3 %" in row(text, "inference")
    assert "4.666e+26" in row(text, "total")
    assert "USD" not in text  # nobody gave a price
    assert "chip-hours" not in text


def test_prices_bring_their_columns(priced: Plan):
    text = text_of(priced)
    assert {"MFU", "chip-hours", "USD"} <= set(row(text, "cost of").split())
    assert "0.400" in row(text, "pre-training  ")
    # 4.6656e26 / (989e12 x .4 x 3600) = 327.6M chip-hours at 2.5 USD
    assert {"328M", "819M"} <= set(row(text, "total").split())


def test_baselines_with_the_extra_budget(plan: Plan):
    text = text_of(plan)
    assert row(text, "chinchilla").rstrip().endswith("%")
    assert "259T" in row(text, "lecture  ")
    assert "not possible: nothing is served" in text_of(with_baselines(allocator.solve(load("gopher-budget"))))


def test_a_rule_without_regret_needs_no_extra_budget(training: Plan):
    assert row(text_of(training), "equal_cost").rstrip().endswith("0 %")


def test_bounds_are_told():
    text = text_of(allocator.solve(with_values(load("lecture"), {"decisions.d_pretrain": {"max": 1e14}})))
    assert "at its max" in row(text, "pre-training tokens")


def test_each_warning_is_a_line_and_equal_ones_are_told_once(plan: Plan):
    lines = warning_lines(plan)
    assert len(lines) == len({(w.code, w.message) for w in plan.warnings}) < len(plan.warnings)
    (assumed,) = [line for line in lines if line.startswith("assumed_parameter")]
    assert "law.rl.exponent, law.rl.scale_tokens, law.test_time.exponent" in assumed
    text = " ".join(text_of(plan).split())
    assert all(" ".join(line.split()) in text for line in lines)


def test_a_failed_plan_is_told_in_a_line():
    text = text_of(failed(**{"objective.compute_flop": 1.0}))
    assert "infeasible: objective.compute_flop: 1 does not pay" in " ".join(text.split())


def test_no_line_is_wider_than_the_console(plan: Plan, priced: Plan):
    for found in (plan, priced):
        assert max(map(len, text_of(found).splitlines())) <= 120


def test_a_narrow_console_loses_no_line(plan: Plan):
    text = text_of(plan, width=60)
    assert "RL tokens" in text
    assert "chinchilla" in text


# --- no injection ---


@pytest.mark.parametrize(
    "title", ["[red]x[/red]", "[/]", "<b>bold</b>", "[link=https://example.org]x[/link]", ":smile:", "${HOME} `id` %s"]
)
@pytest.mark.parametrize("markup", [True, False])
def test_a_title_is_text(title: str, markup: bool):
    stream = io.StringIO()
    print_plan(titled(title), Console(file=stream, width=120, markup=markup, force_terminal=False))
    assert stream.getvalue().splitlines()[0] == title


def test_a_title_cannot_steer_the_terminal():
    text = text_of(titled("a\x1b[31mred\x1b[2J\x07\x08b"), force_terminal=True, color_system=None)
    assert "\x1b[31m" not in text
    assert "\x1b[2J" not in text
    assert "\x07" not in text


def test_a_long_title_wraps():
    assert max(map(len, text_of(titled("word " * 100)).splitlines())) <= 120


# --- plans as strings ---


def test_a_plan_prints_as_a_short_table(plan: Plan):
    text = str(plan)
    assert len(text.splitlines()) <= 4
    assert "100B" in text
    assert "25.2/41.5/33.3" in text
    assert "98.0" in text


def test_a_failed_plan_prints_its_reason():
    assert "infeasible" in str(failed(**{"objective.compute_flop": 1.0}))


def test_a_plan_is_frozen(plan: Plan):
    with pytest.raises(AttributeError):
        plan.loss = 0.0  # pyright: ignore[reportAttributeAccessIssue]
