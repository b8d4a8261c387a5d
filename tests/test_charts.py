"""Charts: valid Vega-Lite with units in their titles, the right number of marks, and files that need no network."""

import re
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from allocator import charts

KEY = "objective.compute_flop"
BUDGETS = [1e25, 1e26, 1e27, 1e28]


def along() -> pd.DataFrame:
    """A sweep along the budget, made up; the first row is a failure, as sweep_frame writes one."""
    rows: list[dict[str, Any]] = []
    for i, budget in enumerate(BUDGETS):
        rows.append(
            {KEY: budget, "status": "optimal", "reason": None, "n_active": 1e10 * 2**i, "d_pretrain": 1e13 * 2**i,
             "d_rl": 2e13 * 2**i, "k": 1.0 + i, "d_inference": 3e13 * 2**i, "share_pretrain": 0.2,
             "share_rl": 0.3 + 0.1 * i, "share_inference": 0.5 - 0.1 * i, "loss": 1.9 - 0.02 * i,
             "reducible_loss": 0.1, "flop": budget, "tokens_per_param": 1e3, "vs_20": 50.0 * (i + 1),
             "vs_chinchilla": 40.0}
        )  # fmt: skip
    numbers = [name for name in rows[0] if name not in (KEY, "status", "reason")]
    failed = {KEY: 1e24, "status": "infeasible", "reason": "too little"} | dict.fromkeys(numbers, float("nan"))
    return pd.DataFrame([failed, *rows])


def by_law() -> pd.DataFrame:
    return along().drop(columns=[KEY]).assign(variant=["failed", "besiroglu (product)", "hoffmann", "gadre", "a.b[c]"])


def curves() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"n_active": n, "phase": phase, "mfu": 0.3}
            for phase in ("pre-training", "RL", "decode")
            for n in (1e10, 1e11)
        ]
    )


DRAWN = {
    "shares": lambda: charts.shares(by_law()),
    "loss_by_budget": lambda: charts.loss_by_budget(along(), KEY),
    "shares_by_budget": lambda: charts.shares_by_budget(along(), KEY),
    "decisions_by_budget": lambda: charts.decisions_by_budget(along(), KEY),
    "overtraining_by_law": lambda: charts.overtraining_by_law(by_law()),
    "mfu_by_size": lambda: charts.mfu_by_size(curves(), 5e10, 3e10),
}


def titles(node: Any) -> list[str]:
    """Titles of axes and charts, wherever they stand."""
    found = []
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("title", "subtitle", "text") and isinstance(value, str):
                found.append(value)
            found += titles(value)
    elif isinstance(node, list):
        found = [title for part in node for title in titles(part)]
    return found


def svg(chart: Any) -> str:
    return str(charts.files({"chart": chart})["chart.svg"])


def marks(text: str, kind: str) -> list[str]:
    """Elements of a kind of mark in a picture, by the role that Vega writes on each."""
    return re.findall(rf'<path[^>]*aria-roledescription="{kind}"[^>]*>', text)


@pytest.mark.parametrize("name", DRAWN)
def test_chart_is_valid_vega_lite(name: str):
    spec = DRAWN[name]().to_dict()  # altair checks it against the schema
    assert spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    alt.Chart.from_dict(spec)  # and reads it back


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shares", ["Share of lifetime FLOP by phase", "share of paid FLOP"]),
        ("loss_by_budget", ["Loss of the best plan", "budget (FLOP)", "loss (nats/token)"]),
        ("shares_by_budget", ["The best split along the budget", "budget (FLOP)", "share of paid FLOP"]),
        ("decisions_by_budget",
         ["What to buy along the budget", "Samples per query", "budget (FLOP)", "parameters, tokens"]),
        ("overtraining_by_law", ["pre-training tokens / (20 x active parameters)"]),
        ("mfu_by_size", ["MFU that the optimum feels", "active parameters", "MFU",
                         "optimum with MFU(N): solid; with MFU frozen at that N: dashed"]),
    ],
)  # fmt: skip
def test_titles_say_what_is_drawn_in_which_unit(name: str, words: list[str]):
    assert set(words) <= set(titles(DRAWN[name]().to_dict()))


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("compute_flop", "budget (FLOP)"), ("chip_hours", "budget (chip-hours)"), ("usd", "budget (USD)"),
        ("energy_joule", "budget (J)"), ("target_loss", "target loss (nats/token)"),
    ],
)  # fmt: skip
def test_axis_of_the_budget_names_its_currency(kind: str, title: str):
    key = f"objective.{kind}"
    chart = charts.shares_by_budget(along().rename(columns={KEY: key}), key)
    assert chart.to_dict()["encoding"]["x"]["title"] == title


def test_axis_of_another_key_is_named_by_it():
    key = "deployment.lifetime_days"
    chart = charts.shares_by_budget(along().rename(columns={KEY: key}), key)
    assert chart.to_dict()["encoding"]["x"]["title"] == key


# --- marks ---


def test_shares_have_a_bar_for_each_phase_of_each_plan_that_there_is():
    bars = marks(svg(charts.shares(by_law())), "bar")
    assert len(bars) == 3 * 4  # the failed one has none
    assert all(f"phase: {phase}" in "".join(bars) for phase in ("pre-training", "RL", "inference"))


def test_loss_has_a_point_for_each_budget_that_has_a_plan():
    picture = svg(charts.loss_by_budget(along(), KEY))
    points = marks(picture, "point") or marks(picture, "circle")
    assert len(points) == 4
    places = {re.search(r'transform="translate\(([-\d.]+),([-\d.]+)\)"', point).groups() for point in points}
    assert len({x for x, _ in places}) == len({y for _, y in places}) == 4
    assert "NaN" not in picture


def test_split_along_the_budget_has_an_area_for_each_phase():
    picture = svg(charts.shares_by_budget(along(), KEY))
    areas = re.findall(r'<path aria-label="[^"]*phase: ([\w-]+)[^"]*"[^>]*aria-roledescription="area mark"', picture)
    assert areas == ["pre-training", "RL", "inference"]
    assert "NaN" not in picture


def test_decisions_have_a_point_for_each_amount_above_zero():
    frame = along()
    frame.loc[1, "d_rl"] = 0.0  # no RL at the smallest budget: nothing to draw on a log axis
    picture = svg(charts.decisions_by_budget(frame, KEY))
    points = marks(picture, "point") + marks(picture, "circle")
    assert len(points) == 4 * 4 - 1 + 4  # amounts, and samples beside them
    assert "NaN" not in picture


def test_over_training_has_a_dot_and_a_number_for_each_law():
    picture = svg(charts.overtraining_by_law(by_law()))
    dots = marks(picture, "circle") + marks(picture, "point")
    assert len(dots) == 4
    for number in ("50", "100", "150", "200"):
        assert f">{number}</text>" in picture
    assert picture.count("stroke-dasharray") >= 1  # the lecture's 100x


def test_labels_with_dots_and_brackets_are_written_as_they_are():
    for chart in (charts.shares(by_law()), charts.overtraining_by_law(by_law())):
        assert ">a.b[c]</text>" in svg(chart)


@pytest.mark.parametrize("draw", [charts.shares, charts.overtraining_by_law])
def test_rows_may_be_labelled_by_a_key_with_dots(draw):
    """A sweep over law.pretraining is labelled by that column."""
    frame = by_law().rename(columns={"variant": "law.pretraining"})
    picture = svg(draw(frame, "law.pretraining"))
    for name in ("besiroglu (product)", "hoffmann", "gadre"):
        assert f">{name}</text>" in picture


def rules(picture: str) -> list[str]:
    groups = re.findall(r'<g class="mark-rule role-mark[^>]*>(.*?)</g>', picture, re.DOTALL)
    return re.findall(r"<line[^>]*>", "".join(groups))


def test_mfu_has_a_line_for_each_phase():
    picture = svg(charts.mfu_by_size(curves(), 5e10, 3e10))
    lines = re.findall(r'<path aria-label="[^"]*phase: ([\w-]+)[^"]*"[^>]*aria-roledescription="line mark"', picture)
    assert lines == ["pre-training", "RL", "decode"]
    dashed = {line for line in rules(picture) if "stroke-dasharray" in line}
    assert len(dashed) == 1
    assert len({*rules(picture)} - dashed) == 1


@pytest.mark.parametrize("name", ["mfu_by_size", "overtraining_by_law"])
def test_a_rule_is_drawn_once_and_not_once_a_row(name: str):
    found = rules(svg(DRAWN[name]()))
    assert len(found) == len({*found}) > 0


@pytest.mark.parametrize("name", ["shares", "loss_by_budget", "shares_by_budget", "decisions_by_budget"])
def test_chart_of_nothing_but_failures_is_still_a_chart(name: str):
    frame = along().iloc[:1]
    draw = {"shares": lambda: charts.shares(frame.assign(variant="failed")),
            "loss_by_budget": lambda: charts.loss_by_budget(frame, KEY),
            "shares_by_budget": lambda: charts.shares_by_budget(frame, KEY),
            "decisions_by_budget": lambda: charts.decisions_by_budget(frame, KEY)}[name]  # fmt: skip
    assert svg(draw()).startswith("<svg")


def test_frames_are_left_as_they_were():
    frame, laws = along(), by_law()
    charts.decisions_by_budget(frame, KEY)
    charts.shares_by_budget(frame, KEY)
    charts.shares(laws)
    charts.overtraining_by_law(laws)
    pd.testing.assert_frame_equal(frame, along())
    pd.testing.assert_frame_equal(laws, by_law())


def test_no_global_setting_of_altair_is_touched():
    assert alt.theme.active == "default"
    assert alt.data_transformers.active == "default"


# --- files ---


@pytest.fixture(scope="module")
def written() -> dict[str, str | bytes]:
    return charts.files({name: draw() for name, draw in DRAWN.items()})


def test_each_chart_is_an_svg_and_a_png(written: dict[str, str | bytes]):
    assert set(written) == {*(f"{name}.{kind}" for name in DRAWN for kind in ("svg", "png")), "charts.html"}
    for name in DRAWN:
        picture, pixels = written[f"{name}.svg"], written[f"{name}.png"]
        assert isinstance(picture, str)
        assert picture.startswith("<svg")
        assert "NaN" not in picture
        assert "undefined" not in picture
        assert isinstance(pixels, bytes)
        assert pixels.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = (int.from_bytes(pixels[at : at + 4], "big") for at in (16, 20))
        assert width > 400
        assert height > 100


def test_page_is_whole_and_asks_nothing_of_the_network(written: dict[str, str | bytes]):
    page = written["charts.html"]
    assert isinstance(page, str)
    assert not re.findall(r"<script[^>]+src\s*=", page)
    assert not re.findall(r"<link[^>]+href\s*=\s*[\"']?http", page)
    assert not re.findall(r"@import|url\(\s*[\"']?http", page)
    assert page.count("<script") >= 1
    for title in ("Share of lifetime FLOP by phase", "Loss of the best plan", "MFU that the optimum feels"):
        assert title in page


def test_no_charts_are_no_files():
    assert charts.files({}) == {}


def test_pictures_are_the_same_each_time():
    first, second = (svg(charts.shares(by_law())) for _ in range(2))
    assert first == second


def test_numbers_of_the_frame_are_those_drawn():
    """The long table behind the bars: a share a phase, in the phases' order."""
    data = charts.shares(by_law()).to_dict()
    (rows,) = data["datasets"].values()
    mine = [row for row in rows if row["variant"] == "hoffmann"]
    assert {row["phase"]: row["share"] for row in mine} == pytest.approx(
        {"pre-training": 0.2, "RL": 0.4, "inference": 0.4}
    )
    assert [row["order"] for row in sorted(mine, key=lambda row: row["order"])] == [0, 1, 2]
    assert np.isfinite([row["share"] for row in rows]).all()
