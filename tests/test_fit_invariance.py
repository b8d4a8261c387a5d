"""What must not matter to a fit: units, the order of rows, sum or mean, chunks of work, which starts were drawn."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from simulated import table

from allocator.fitting import batches
from allocator.fitting.estimation import fit
from allocator.fitting.result import Fit

NOISE = 0.003
COUNT = {"starts": 16, "bootstrap": 24}


@cache
def plain(law: str) -> Fit:
    return fit(table(law, NOISE), law, **COUNT)


def rescaled(law: str, **units: float) -> Fit:
    """The same runs in other units: each column times a number; the budget moves along."""
    frame = table(law, NOISE)
    for column, factor in units.items():
        frame[column] = frame[column] * factor
    budget = units.get("n_active", 1.0) * units.get("d_tokens", 1.0)
    return fit(frame, law, at_flop=5.76e23 * budget, **COUNT)


def agree(done: Fit, expected: dict[str, float]) -> None:
    assert done.parameters == pytest.approx(expected, rel=1e-6)


# --- units: N in millions, tokens in billions, loss in bits ---

N_UNIT, D_UNIT, LOSS_UNIT = 1e-6, 1e-9, 1 / np.log(2)


def test_units_of_the_chinchilla_form():
    """A N^-alpha with N = u N' is A u^-alpha N'^-alpha."""
    p = plain("chinchilla").parameters
    done = rescaled("chinchilla", n_active=N_UNIT, d_tokens=D_UNIT, loss=LOSS_UNIT)
    agree(done, p | {"E": p["E"] * LOSS_UNIT, "A": p["A"] * LOSS_UNIT * N_UNIT ** p["alpha"],
                     "B": p["B"] * LOSS_UNIT * D_UNIT ** p["beta"]})  # fmt: skip
    assert done.optimum == pytest.approx(plain("chinchilla").optimum * [N_UNIT, D_UNIT], rel=1e-6)
    assert done.objective == pytest.approx(plain("chinchilla").objective, rel=1e-9)
    draws = plain("chinchilla").draws
    scales = np.column_stack([np.full(len(draws), LOSS_UNIT), LOSS_UNIT * N_UNIT ** draws[:, 3],
                              LOSS_UNIT * D_UNIT ** draws[:, 4], np.ones((len(draws), 2))])  # fmt: skip
    assert done.draws == pytest.approx(draws * scales, rel=1e-5)


def test_units_of_the_gadre_form():
    """p M^h C^-h is p (6 N^2)^-h, and q goes with D."""
    p = plain("gadre").parameters
    done = rescaled("gadre", n_active=N_UNIT, d_tokens=D_UNIT, loss=LOSS_UNIT)
    agree(done, p | {"E": p["E"] * LOSS_UNIT, "p": p["p"] * LOSS_UNIT * N_UNIT ** (2 * p["h"]),
                     "q": p["q"] * LOSS_UNIT * D_UNIT ** (2 * p["h"])})  # fmt: skip
    assert done.optimum == pytest.approx(plain("gadre").optimum * [N_UNIT, D_UNIT], rel=1e-6)


def test_units_of_rl_forms():
    p = plain("rl-saturating").parameters
    agree(rescaled("rl-saturating", d_rl=1e-9, loss=LOSS_UNIT),
          p | {"E": p["E"] * LOSS_UNIT, "S": p["S"] * LOSS_UNIT, "R0": p["R0"] * 1e-9})  # fmt: skip
    p = plain("rl-sigmoid").parameters
    agree(rescaled("rl-sigmoid", rl_amount=1e4), p | {"mid": p["mid"] * 1e4})


def test_units_of_the_link_from_loss_to_error():
    p = plain("loss-to-error").parameters
    agree(rescaled("loss-to-error", loss=LOSS_UNIT), p | {"gamma": p["gamma"] / LOSS_UNIT})


def test_units_of_surprise():
    p = plain("pass-at-k-power").parameters
    agree(rescaled("pass-at-k-power", loss=LOSS_UNIT), p | {"a": p["a"] * LOSS_UNIT})


# --- order of rows ---


@pytest.mark.parametrize("law", ["chinchilla", "rl-sigmoid", "loss-to-error"])
@pytest.mark.parametrize("resample", ["pairs", "wild"])
def test_order_of_rows_changes_no_bit(law: str, resample: str):
    frame = table(law, NOISE)
    options = {**COUNT, "resample": resample}
    first = fit(frame, law, **options)
    for seed in (1, 2):
        shuffled = frame.sample(frac=1, random_state=seed, ignore_index=True)
        other = fit(shuffled, law, **options)
        assert np.array_equal(other.values, first.values)
        assert np.array_equal(other.draws, first.draws)
        assert [n.code for n in other.notes] == [n.code for n in first.notes]
        # Each run keeps its own number in the table that was given.
        assert np.array_equal(shuffled.loc[other.runs.row].to_numpy(), frame.loc[first.runs.row].to_numpy())


def test_order_of_rows_with_clusters():
    frame = table("chinchilla", NOISE).assign(family=[f"family {i % 7}" for i in range(25)])
    first = fit(frame, cluster="family", **COUNT)
    other = fit(frame.iloc[::-1].reset_index(drop=True), cluster="family", **COUNT)
    assert np.array_equal(other.draws, first.draws)


# --- sum or mean, seeds, chunks, other columns ---


@pytest.mark.parametrize("law", ["chinchilla", "gadre", "rl-saturating"])
def test_mean_and_sum_of_the_loss_give_the_same_law(law: str):
    mean = fit(table(law, NOISE), law, reduction="mean", **COUNT)
    agree(mean, plain(law).parameters)
    assert np.array_equal(mean.draws, plain(law).draws)
    assert mean.objective * len(mean.runs) == pytest.approx(plain(law).objective, rel=1e-12)


@pytest.mark.parametrize("law", ["chinchilla", "gadre"])
def test_seeds(law: str):
    again, other = fit(table(law, NOISE), law, **COUNT), fit(table(law, NOISE), law, seed=7, **COUNT)
    assert np.array_equal(again.draws, plain(law).draws)
    assert np.array_equal(again.values, plain(law).values)
    assert not np.array_equal(other.draws, plain(law).draws)
    agree(other, plain(law).parameters)


def test_how_the_work_is_cut_up_changes_no_draw(monkeypatch: pytest.MonkeyPatch):
    frame = table("chinchilla", NOISE)
    many = fit(frame, starts=16, bootstrap=150)
    monkeypatch.setattr(batches, "CHUNK", 48)
    small = fit(frame, starts=16, bootstrap=150)
    # Chunks of another length are added up in another order inside, which is rounding.
    assert small.values == pytest.approx(many.values, rel=1e-6)
    assert small.draws == pytest.approx(many.draws, rel=1e-4)


def test_columns_that_the_law_does_not_use_do_not_matter():
    frame = table("chinchilla", NOISE).assign(note="text", learning_rate=np.nan)
    done = fit(frame[["note", "loss", "d_tokens", "learning_rate", "n_active"]], **COUNT)
    assert np.array_equal(done.draws, plain("chinchilla").draws)


def test_other_spellings_compute_and_mapped_columns_are_the_same_table():
    frame = table("chinchilla", NOISE)
    renamed = frame.rename(columns={"n_active": "n_params", "d_tokens": "D", "loss": "CE"})
    assert np.array_equal(fit(renamed, columns={"loss": "CE"}, **COUNT).draws, plain("chinchilla").draws)
    flop = pd.DataFrame({"N": frame["n_active"], "compute_flop": 6 * frame["n_active"] * frame["d_tokens"],
                         "loss": frame["loss"]})  # fmt: skip
    agree(fit(flop, **COUNT), plain("chinchilla").parameters)


def test_users_table_is_left_as_it_was():
    frame = table("chinchilla", NOISE)
    copy = frame.copy(deep=True)
    fit(frame, **COUNT)
    pd.testing.assert_frame_equal(frame, copy)
