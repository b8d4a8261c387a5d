"""Each finding appears where its cause was put into the runs, and none on runs that lie well."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from simulated import TRUTHS, grid, table

from allocator.fitting.estimation import fit
from allocator.fitting.result import Fit

NOISE = 0.002
# 30 runs in every table, so that nothing is compiled twice.
LEVERS = grid(sizes=(5e7, 2e8, 6e8, 2e9, 7e9), ratios=(3.0, 10.0, 30.0, 100.0, 300.0, 900.0))
RUNS = table(noise=NOISE, seed=1, columns=LEVERS)


def done(frame: pd.DataFrame, **options) -> Fit:
    return fit(frame, **{"starts": 32, "bootstrap": 60, **options})


def codes(made: Fit) -> dict[str, tuple[str, float | None]]:
    return {note.code: (note.path, note.value) for note in made.notes}


@cache
def clean() -> Fit:
    return done(RUNS)


def test_clean_runs_raise_no_doubt():
    assert clean().notes == ()
    assert clean().search.share_at_best > 0.9
    assert clean().search.gradient < 1e-8


def test_runs_exactly_on_a_law_raise_no_doubt():
    exact = done(table(columns=LEVERS), bootstrap=0)
    assert exact.notes == ()
    assert exact.search.share_at_best > 0.9
    assert exact.r_squared == pytest.approx(1, abs=1e-12)


def test_one_run_that_decides_the_answer_is_named():
    frame = RUNS.copy()
    frame.loc[17, "loss"] *= 1.10
    found = codes(done(frame, loss="least-squares", bootstrap=0))
    assert "influential_run" in found
    made = done(frame, loss="least-squares", bootstrap=0)
    assert next(row for row in made.influence if row["left_out"] == "run")["row"] == 18
    assert "leaving out row 18 alone moves N* by" in next(n.message for n in made.notes if n.code == "influential_run")


def test_influence_is_what_a_fit_without_the_run_gives():
    first = clean().influence
    assert [abs(row["change"]) for row in first] == sorted((abs(row["change"]) for row in first), reverse=True)
    assert {row["left_out"] for row in first} == {"run", "size"}
    assert sum(row["left_out"] == "size" for row in first) == 5
    worst = next(row for row in first if row["left_out"] == "run")
    again = done(RUNS.drop(index=worst["row"] - 1), bootstrap=0)
    assert again.optimum is not None
    assert clean().optimum is not None
    assert again.optimum[0] / clean().optimum[0] - 1 == pytest.approx(worst["change"], abs=1e-5)


def test_residuals_that_trend_with_a_lever_are_named():
    ratio = LEVERS["d_tokens"] / LEVERS["n_active"]
    frame = RUNS.assign(loss=RUNS["loss"] * np.exp(0.03 * np.sin(2.2 * np.log(ratio))))
    tilted = frame.assign(loss=frame["loss"] * (ratio / 50) ** 0.02)
    fixed = {name: TRUTHS["chinchilla"][name] for name in ("E", "A", "B", "alpha")}
    found = [note for note in done(tilted, fixed=fixed, bootstrap=0).notes if note.code == "residual_trend"]
    assert found
    assert all(note.value is not None and abs(note.value) > 0.3 for note in found)
    assert "rise" in found[0].message or "fall" in found[0].message


def test_law_that_breaks_at_the_edge_extrapolates_poorly():
    bent = np.where(LEVERS["n_active"] > 5e9, 1.06, 1.0)
    held = {row["held_out"]: row for row in done(RUNS.assign(loss=RUNS["loss"] * bent), bootstrap=0).holdouts}
    found = codes(done(RUNS.assign(loss=RUNS["loss"] * bent), bootstrap=0))
    assert found["extrapolates_poorly"][0] == "largest_n_active"
    row = held["largest_n_active"]
    assert (row["runs"], row["from"]) == (6, 7e9)
    assert row["error_held_out"] == pytest.approx(np.log(1.06), rel=0.2)
    assert row["bias_held_out"] > 0
    assert row["error_kept"] == pytest.approx(NOISE, rel=0.4)
    assert "extrapolates_poorly" not in codes(clean())


@pytest.mark.parametrize("bootstrap", [0, 60])
def test_runs_that_leave_the_law_open(bootstrap: int):
    """One ratio only: A N^-alpha and B D^-beta are one power."""
    sizes = np.geomspace(2e7, 2e10, 30)
    made = done(table(noise=NOISE, columns={"n_active": sizes, "d_tokens": 20 * sizes}), bootstrap=bootstrap)
    found = codes(made)
    assert found["one_ratio_only"][0] == "d_tokens"
    assert found["one_ratio_only"][1] == pytest.approx(20)
    assert found.keys() & {"weakly_identified", "parameter_at_bound"}


def test_parameter_at_its_bound_is_named():
    """Losses that do not fall with N at all: A or alpha runs to the end of its range."""
    flat = RUNS.assign(loss=1.8 + 2085 * LEVERS["d_tokens"] ** -0.366)
    found = [note.path for note in done(flat, bootstrap=0).notes if note.code == "parameter_at_bound"]
    assert set(found) & {"A", "alpha"}


def test_two_sizes_and_few_levels():
    few = table(noise=NOISE, columns=grid(sizes=(2e8, 2e9), ratios=np.geomspace(3, 900, 15)))
    assert codes(done(few, bootstrap=0))["two_sizes_only"] == ("n_active", 2)
    two = pd.DataFrame(
        {"k": np.resize([1.0, 8.0], 12), "loss": np.resize([2.0, 1.0], 12) * np.linspace(0.99, 1.01, 12)}
    )
    assert codes(fit(two, "pass-at-k-power", starts=4, bootstrap=0))["few_levels"] == ("k", 2)


def test_starts_that_disagree_are_counted():
    """A law with many valleys: most starts end in another one."""
    import jax.numpy as jnp

    from allocator import user_form

    steps = np.linspace(0, 10, 30)
    form = user_form(lambda p, c: 3 + jnp.sin(p["pace"] * c["steps"]), {"pace": (-40.0, 40.0)}, inputs=["steps"],
                     residuals="linear")  # fmt: skip
    frame = pd.DataFrame({"steps": steps, "loss": 3 + np.sin(7.3 * steps)})
    made = fit(frame, form, "least-squares", starts=256, bootstrap=0)
    assert made.parameters["pace"] == pytest.approx(7.3, rel=1e-6)
    assert codes(made)["starts_disagree"][1] == made.search.share_at_best < 0.5


def test_condition_number_is_that_of_the_scaled_jacobian():
    """By central differences of the formula in the estimated coordinates (logs of coefficients, exponents)."""
    p = clean().parameters
    n, d = np.log(LEVERS["n_active"]), np.log(LEVERS["d_tokens"])
    first, second = p["A"] * np.exp(-p["alpha"] * n), p["B"] * np.exp(-p["beta"] * d)
    loss = p["E"] + first + second
    # Coefficients are estimated at the geometric mean of N and D, hence the centred logs beside the exponents.
    columns = np.column_stack([np.full(30, p["E"]), first, second, -first * (n - n.mean()),
                               -second * (d - d.mean())]) / loss[:, None]  # fmt: skip
    singular = np.linalg.svd(columns / np.linalg.norm(columns, axis=0), compute_uv=False)
    assert clean().condition_number == pytest.approx(singular[0] / singular[-1], rel=1e-6)
