"""Draws and intervals against closed forms: linear least squares, normal theory, Fisher's information, simulations."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2, f, norm
from simulated import TRUTHS, grid, table

from allocator.fitting.estimation import fit
from allocator.fitting.intervals import interval
from allocator.fitting.profiles import profiles, to_frame
from allocator.fitting.resampling import pair_weights, wild_targets
from allocator.fitting.result import Fit
from allocator.fitting.simulations import Design, coverage

TRUTH = TRUTHS["chinchilla"]
EXPONENTS = {"alpha": TRUTH["alpha"], "beta": TRUTH["beta"]}
NOISE = 0.02  # nats
DRAWS = 1500


def runs(repeats: int = 1) -> pd.DataFrame:
    """Runs with normal errors of one size in nats: with exponents given, E, A and B are ordinary least squares."""
    frame = pd.concat([table()] * repeats, ignore_index=True)
    return frame.assign(loss=frame["loss"] + NOISE * np.random.default_rng(11).standard_normal(len(frame)))


def design_matrix(frame: pd.DataFrame) -> np.ndarray:
    n, d = frame["n_active"].to_numpy(), frame["d_tokens"].to_numpy()
    return np.column_stack([np.ones(len(frame)), n ** -TRUTH["alpha"], d ** -TRUTH["beta"]])


def linear(draws: int = DRAWS, repeats: int = 1, **options) -> Fit:
    return fit(runs(repeats), "chinchilla", "least-squares", residuals="linear", fixed=EXPONENTS, starts=8,
               bootstrap=draws, **options)  # fmt: skip


@cache
def by(resample: str) -> Fit:
    return linear(resample=resample)


# --- against linear least squares ---


def test_estimate_is_that_of_linear_least_squares():
    frame = runs()
    best, squares, *_ = np.linalg.lstsq(design_matrix(frame), frame["loss"], rcond=None)
    done = by("pairs")
    assert done.values[:3] == pytest.approx(best, rel=1e-6)
    # The objective is in units of the geometric mean loss, as residuals that have a unit must be.
    assert done.objective == pytest.approx(squares[0] / 2 / np.exp(np.mean(np.log(frame["loss"]))) ** 2, rel=1e-8)


@pytest.mark.parametrize(("resample", "repeats", "tolerance"), [("pairs", 5, 0.1), ("wild", 1, 0.06)])
def test_spread_of_draws_is_the_sandwich_covariance(resample: str, repeats: int, tolerance: float):
    """White's (X'X)^-1 X' diag(r^2) X (X'X)^-1: of wild draws at any size, of pairs where runs are many."""
    frame, done = runs(repeats), linear(resample=resample, repeats=repeats)
    x = design_matrix(frame)
    bread = np.linalg.inv(x.T @ x)
    residual = (frame["loss"] - x @ np.linalg.lstsq(x, frame["loss"], rcond=None)[0]).to_numpy()
    covariance = bread @ x.T @ np.diag(residual**2) @ x @ bread
    found = np.cov(done.draws[:, :3], rowvar=False)
    assert np.sqrt(np.diag(found)) == pytest.approx(np.sqrt(np.diag(covariance)), rel=tolerance)
    correlation = found[1, 2] / np.sqrt(found[1, 1] * found[2, 2])
    assert correlation == pytest.approx(covariance[1, 2] / np.sqrt(covariance[1, 1] * covariance[2, 2]), abs=0.15)
    assert list(done.stderr.values())[:3] == pytest.approx(np.std(done.draws[:, :3], axis=0), rel=0.1)
    assert done.draws[:, :3].mean(axis=0) == pytest.approx(done.values[:3], rel=0.02)


def test_given_parameters_have_no_spread():
    done = by("pairs")
    assert done.draws[:, 3:] == pytest.approx(np.tile(list(EXPONENTS.values()), (DRAWS, 1)), rel=1e-12)
    assert done.stderr["alpha"] == done.stderr["beta"] == 0
    assert done.to_dict()["given"] == ["alpha", "beta"]


def test_each_pairs_draw_is_a_weighted_least_squares():
    frame, done = runs(), by("pairs")
    x, y = design_matrix(frame), frame["loss"].to_numpy()
    weights = pair_weights(np.arange(len(frame)), DRAWS, seed=0)
    order = done.runs.row  # weights are of the runs in the order that the fit holds them in
    for draw in range(0, DRAWS, 150):
        root = np.sqrt(weights[draw])[:, None]
        best = np.linalg.lstsq(root * x[order], root[:, 0] * y[order], rcond=None)[0]
        assert done.draws[draw, :3] == pytest.approx(best, rel=1e-5)


def test_clusters_are_drawn_together():
    """Every run five times, as clusters of copies: the spread of the 25, not the 1/sqrt(5) of 125 independent runs."""
    frame = runs().assign(family=[f"seed {i}" for i in range(25)])
    copies = pd.concat([frame] * 5, ignore_index=True)
    options = {"loss": "least-squares", "residuals": "linear", "fixed": EXPONENTS, "starts": 8, "bootstrap": 400}
    alone = by("pairs").stderr["A"]
    assert fit(copies, cluster="family", **options).stderr["A"] == pytest.approx(alone, rel=0.12)
    assert fit(copies, **options).stderr["A"] == pytest.approx(alone / np.sqrt(5), rel=0.12)


# --- resampling itself ---


def test_pair_weights_are_counts_of_clusters():
    clusters = np.array(["a", "b", "b", "c", "c", "c"])
    weights = pair_weights(clusters, 4000, seed=1)
    assert (weights[:, 1] == weights[:, 2]).all()
    assert (weights[:, [0, 1, 3]].sum(axis=1) == 3).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(6), abs=0.05)
    assert weights[:, 0].var() == pytest.approx(2 / 3, abs=0.06)  # of a multinomial share: n p (1 - p)


@pytest.mark.parametrize("groups", [5, 40])
def test_wild_factors_have_mean_0_and_variance_1(groups: int):
    residual = np.linspace(1, 2, groups)
    drawn = wild_targets(np.full(groups, 3.0), residual, np.arange(groups), 20_000, seed=2)
    factors = (drawn - 3.0) / residual
    assert factors.mean(axis=0) == pytest.approx(np.zeros(groups), abs=0.04)
    assert (factors**2).mean(axis=0) == pytest.approx(np.ones(groups), abs=0.03)
    assert len(np.unique(factors.round(9))) == (6 if groups == 5 else 2)


# --- intervals ---


@given(st.integers(0, 10**6), st.sampled_from([0.5, 0.9, 0.95]))
def test_monotone_maps_map_the_ends(seed: int, level: float):
    draws = np.random.default_rng(seed).gamma(3.0, size=1001)
    order = np.sort(draws)
    estimate = float(order[450:452].mean())
    for forth in (np.log, np.sqrt, lambda x: x**3):
        ends = interval(forth(draws), float(forth(estimate)), level)
        for end, mapped in zip(interval(draws, estimate, level), ends, strict=True):  # between the same two draws
            low = forth(order[max(np.searchsorted(order, end * (1 - 1e-9)) - 1, 0)])
            high = forth(order[min(np.searchsorted(order, end * (1 + 1e-9)), 1000)])
            assert low - 1e-9 <= mapped <= high + 1e-9


def test_unbiased_normal_draws_give_the_normal_interval():
    draws = norm.ppf((np.arange(20_000) + 0.5) / 20_000, loc=3.0, scale=0.7)
    assert interval(draws, 3.0, 0.9) == pytest.approx(norm.interval(0.9, loc=3.0, scale=0.7), abs=1e-3)
    # Efron's correction: an estimate z0 deviations off its draws' median shifts both percentiles by 2 z0.
    shifted = interval(draws, 3.0 + 0.7 * 0.2, 0.9)
    assert shifted == pytest.approx(3.0 + 0.7 * (0.4 + norm.ppf([0.05, 0.95])), abs=1e-3)


def test_interval_needs_two_finite_draws():
    assert np.isnan(interval(np.array([]), 1.0)).all()
    assert np.isnan(interval(np.array([1.0, np.nan]), 1.0)).all()
    assert interval(np.array([1.0, np.nan, 1.0]), 1.0) == (1.0, 1.0)


def test_refits_of_which_none_settled_leave_no_error():
    lost = linear(130)
    lost = replace(lost, draws=np.full_like(lost.draws, np.nan))
    assert np.isnan(list(lost.stderr.values())[:3]).all()
    assert np.isnan(lost.interval("A")).all()


def test_draws_are_as_many_as_asked_for():
    none = linear(0)
    assert none.draws.shape == (0, 5)
    assert np.isnan(list(none.stderr.values())[:3]).all()
    assert none.to_dict()["stderr"]["A"] is None
    assert none.to_dict()["optimum"]["interval"] == [None, None]
    assert linear(130).draws.shape == (130, 5)
    assert np.isfinite(by("wild").draws).all()


# --- profiles ---


def test_profile_of_least_squares_is_that_of_normal_errors():
    """n log(S / S_min) is n log(1 + z^2) for a linear parameter, z its distance in units of RSS^1/2 (X'X)^-1/2."""
    frame, done = runs(), by("pairs")
    x = design_matrix(frame)
    best, squares, *_ = np.linalg.lstsq(x, frame["loss"], rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(x.T @ x)) * squares[0])
    made = profiles(done, points=201)
    assert [p.parameter for p in made] == ["E", "A", "B"]
    for profile, value, error in zip(made, best, errors, strict=True):
        half = error * np.sqrt(np.expm1(chi2.ppf(0.95, 1) / len(frame)))
        assert profile.interval(0.95) == pytest.approx((value - half, value + half), rel=2e-3)
        assert profile.deviance.min() == pytest.approx(0, abs=1e-6)
        # Fisher's F with n - p degrees of freedom, which chi-squared replaces, is near at 25 runs.
        assert half == pytest.approx(error * np.sqrt(f.ppf(0.95, 1, len(frame) - 3) / (len(frame) - 3)), rel=0.1)
        inside = (profile.values > value - half) & (profile.values < value + half)
        z = (profile.values[inside] - value) / error
        assert profile.deviance[inside] == pytest.approx(len(frame) * np.log1p(z**2), abs=1e-4)
    assert list(to_frame(made).columns) == ["parameter", "value", "deviance"]


# --- coverage ---


@pytest.mark.parametrize("loss", ["huber"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(loss: str):
    """40 simulated tables: a 90% interval that truly covers 80 to 98% falls within these ends nearly always."""
    levers = grid()
    plan = Design(n_active=np.unique(levers["n_active"]), tokens_per_param=(3.0, 10.0, 30.0, 100.0, 300.0))
    found = coverage(plan, list(TRUTH.values()), loss=loss, noise=0.003, simulations=40, draws=100, level=0.9, seed=4)
    low, high = binom.ppf(0.01, 40, 0.80), binom.ppf(0.99, 40, 0.98)
    assert low <= found.covered * 40 <= high
    assert found.failed == 0
    assert abs(found.bias) < 3 * found.spread / np.sqrt(40) + 0.3 * found.spread
