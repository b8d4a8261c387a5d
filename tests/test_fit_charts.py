"""Charts of fits: the marks that the tables promise, titles with units, labels that do not touch."""

import re
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from fit_examples import fitted, unfitted

from allocator import charts, fit_charts, fit_tables
from allocator.fit_pages import charts_of, tables_of
from allocator.fitting.forms import FORMS
from allocator.fitting.profiles import profiles

ABOUT = "chinchilla law fitted to a table, 20 runs"


@pytest.fixture(scope="module")
def done():
    return fitted()


@pytest.fixture(scope="module")
def tables(done) -> dict[str, pd.DataFrame]:
    return tables_of(done, profiles(done))


@pytest.fixture(scope="module")
def drawn(done, tables) -> dict[str, Any]:
    return charts_of(done, tables, ABOUT)


@pytest.fixture(scope="module")
def pictures(drawn) -> dict[str, str]:
    return {name: str(charts.pictures({name: chart})[f"{name}.svg"]) for name, chart in drawn.items()}


def marks(picture: str, kind: str) -> list[str]:
    return re.findall(rf'<path[^>]*aria-roledescription="{kind}"[^>]*>', picture)


def test_the_charts_of_a_whole_fit(drawn, pictures):
    assert list(drawn) == ["data_and_law", "residuals", "profiles", "bootstrap", "influence"]
    for picture in pictures.values():
        assert "NaN" not in picture
        assert "undefined" not in picture
        assert ABOUT in picture


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data_and_law", ["pre-training tokens, D", "loss (nats/token)", "active parameters, N"]),
        ("residuals", ["predicted loss (nats/token)", "tokens per parameter, D/N",
                       "residual, log(observed / predicted)"]),
        ("profiles", ["E (nats/token)", "alpha", "deviance"]),
        ("bootstrap", ["N* at 5.76e+23 FLOP (parameters)", "refits"]),
        ("influence", ["change of N*"]),
    ],
)  # fmt: skip
def test_axes_say_what_and_in_which_unit(pictures, name: str, words: list[str]):
    for word in words:
        assert f">{word}</t" in pictures[name]  # </text> or </tspan>


def test_each_run_is_a_point_and_each_size_a_line(pictures, tables):
    assert len(marks(pictures["data_and_law"], "circle")) == len(tables["runs"]) == 20
    assert len(marks(pictures["data_and_law"], "line mark")) == tables["data_and_law_lines"]["series"].nunique() == 4


def test_lines_pass_through_what_the_fit_predicts(done):
    at = {name: done.runs.columns[name] for name in ("n_active", "d_tokens")}
    np.testing.assert_allclose(fit_tables.predict(done, at), done.predicted, rtol=1e-12)


@pytest.mark.parametrize("name", FORMS)
def test_the_law_elsewhere_agrees_with_the_law_at_the_runs(name: str):
    fit = unfitted(name)
    at = {column.name: fit.runs.columns[column.name] for column in fit.form.inputs}
    np.testing.assert_allclose(fit_tables.predict(fit, at), fit.predicted, rtol=1e-9)


def test_residuals_are_drawn_once_a_panel_and_the_largest_are_labelled(pictures, tables):
    assert len(marks(pictures["residuals"], "circle")) == 3 * len(tables["runs"])
    worst = tables["runs"].loc[tables["runs"]["residual"].abs().idxmax(), "row"]
    assert f">{worst}</text>" in pictures["residuals"]


def test_labels_of_equal_points_do_not_cover_one_another():
    frame = pd.DataFrame(
        {"row": [101, 102, 103, 104], "predicted": [2.0, 2.0, 2.0, 3.0], "residual": [0.1, 0.1, 0.1, -0.1]}
    )
    picture = str(
        charts.pictures({"r": fit_charts.residuals(frame, {"predicted": "predicted"}, ABOUT, title="r")})["r.svg"]
    )
    shown = [row for row in frame["row"] if f">{row}</text>" in picture]
    assert 101 in shown
    assert 104 in shown
    assert 103 not in shown


def test_profiles_have_a_panel_a_parameter_with_limit_and_estimate(pictures, tables):
    assert len(marks(pictures["profiles"], "line mark")) == tables["profiles"]["parameter"].nunique() == 5
    assert "3.84" in pictures["profiles"]
    best = tables["profiles"].groupby("parameter")["deviance"].min()
    assert (best.abs() < 1e-6).all()


def test_histograms_count_every_refit(done, tables, pictures):
    for _, part in tables["bootstrap"].groupby("quantity"):
        assert part["count"].sum() + part["beyond"].iloc[0] == len(done.draws)
        assert part["low"].iloc[0] <= part["estimate"].iloc[0] <= part["high"].iloc[-1]
    assert pictures["bootstrap"].count('aria-roledescription="rect mark"') >= len(tables["bootstrap"])


def test_influence_has_the_ten_largest(pictures, tables):
    assert len(marks(pictures["influence"], "bar")) == 10
    for label in tables["influence"]["label"].head(10):
        assert f">{label}</text>" in pictures["influence"]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_valid_charts(name: str):
    fit = unfitted(name)
    made = charts_of(fit, tables_of(fit, []), ABOUT)
    assert ("data_and_law" in made) != ("predicted_and_observed" in made)
    assert {"residuals", "bootstrap", "influence"} <= set(made)
    for chart in made.values():
        chart.to_dict()  # altair checks it against the schema


@pytest.mark.parametrize("name", ["rl-power", "rl-sigmoid", "pass-at-k", "beta-binomial", "product"])
def test_forms_without_a_plain_plane_are_drawn_against_their_lever(name: str):
    fit = unfitted(name)
    chart = next(iter(charts_of(fit, tables_of(fit, []), ABOUT).values()))
    picture = str(charts.pictures({"c": chart})["c.svg"])
    assert "NaN" not in picture
    assert len(marks(picture, "circle")) >= 12 - (name == "beta-binomial") * 2
    assert marks(picture, "line mark")


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(2.0, 3.9, True), (1e8, 1.7e10, True), (1e-30, 1e30, True), (-5.0, 7.0, False), (1.0, 1.001, False)],
)
def test_ticks_are_few_and_within_the_axis(low: float, high: float, log: bool):
    ticks = fit_charts._ticks(low, high, log)
    assert 1 <= len(ticks) <= 8
    assert all(low <= tick <= high for tick in ticks)


def test_no_global_setting_of_altair_is_touched(drawn):
    assert alt.theme.active == "default"
    assert alt.data_transformers.active == "default"
