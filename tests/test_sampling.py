"""pass@k from counts, against exact fractions, enumeration and SciPy."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import betabinom
from simulated import counts

from allocator import catalog
from allocator.downloads import fetch
from allocator.errors import FitError
from allocator.fitting.estimation import fit
from allocator.fitting.sampling import pass_table, unbiased_pass_at_k


def exact(n: int, c: int, k: int) -> Fraction:
    """1 - C(n - c, k) / C(n, k) as a fraction."""
    return 1 - Fraction(math.comb(n - c, k), math.comb(n, k))


def one(n: int, c: int, k: int) -> float:
    return float(unbiased_pass_at_k(np.array([float(n)]), np.array([float(c)]), k)[0])


# --- exact ---


@given(st.data())
def test_against_exact_fractions(data):
    n = data.draw(st.integers(1, 300))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert one(n, c, k) == pytest.approx(float(exact(n, c, k)), rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("c", [0, 1, 2, 10, 500, 1001, 2000, 5000, 8999, 9000, 9001, 10_000])
def test_ten_thousand_samples_and_k_of_a_thousand(c: int):
    """V89: without a Monte Carlo estimate, and stable; failure probabilities down to 1e-400 included."""
    assert one(10_000, c, 1000) == pytest.approx(float(exact(10_000, c, 1000)), rel=1e-10)


@pytest.mark.parametrize(("c", "k"), [(1, 1), (1, 9999), (3, 2), (2500, 2), (5000, 5000), (1500, 1500)])
def test_ten_thousand_samples_and_any_k(c: int, k: int):
    assert one(10_000, c, k) == pytest.approx(float(exact(10_000, c, k)), rel=1e-10)


def test_against_enumeration():
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                drawn = list(combinations([1] * c + [0] * (n - c), k))
                assert one(n, c, k) == pytest.approx(sum(map(any, drawn)) / len(drawn), rel=1e-14)


def test_many_problems_at_once_are_each_their_own():
    n, c = np.array([[5, 80], [4000, 30]]), np.array([[2, 1], [3999, 0]])
    found = unbiased_pass_at_k(n, c, 4)
    assert found.shape == (2, 2)
    for index in np.ndindex(2, 2):
        assert found[index] == pytest.approx(float(exact(int(n[index]), int(c[index]), 4)), rel=1e-12)


def test_estimate_is_unbiased():
    """Its mean over binomial counts is 1 - (1 - p)^k exactly."""
    n, k, p = 12, 5, Fraction(3, 10)
    mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * exact(n, c, k) for c in range(n + 1))
    assert mean == 1 - (1 - p) ** k
    chances = [float(math.comb(n, c) * p**c * (1 - p) ** (n - c)) for c in range(n + 1)]
    found = unbiased_pass_at_k(np.full(n + 1, 12), np.arange(n + 1), k)
    assert np.dot(chances, found) == pytest.approx(float(mean), rel=1e-14)


@given(st.integers(2, 200), st.data())
def test_more_samples_or_more_correct_ones_never_hurt(n: int, data):
    c, k = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n - 1))
    assert one(n, c, k) <= one(n, c, k + 1) + 1e-15
    assert one(n, c, k) <= one(n, c + 1, k) + 1e-15
    assert one(n, 0, k) == 0
    assert one(n, n, k) == 1


# --- refused ---


@pytest.mark.parametrize(
    ("n", "c", "k", "code", "pattern"),
    [
        (1, 1, 10, "k_above_n", "k = 10 needs at least 10 samples of each problem, got 1"),
        (4, 5, 1, "n_correct", "must be <= n_samples, got 5 of 4"),
        (4, 1, 0, "k", "whole number >= 1, got 0"),
        (4, 1, 1.5, "k", "whole number >= 1, got 1.5"),
        (4, 1, True, "k", "whole number >= 1, got True"),
        (4, 1, float("nan"), "k", "whole number >= 1, got nan"),
        (4, 1, float("inf"), "k", "whole number >= 1, got inf"),
        (4.5, 1, 1, "n_samples", "whole numbers >= 0"),
        (4, -1, 1, "n_correct", "whole numbers >= 0"),
        (float("nan"), 1, 1, "n_samples", "whole numbers >= 0"),
    ],
)
def test_counts_that_are_none(n, c, k, code: str, pattern: str):
    with pytest.raises(FitError, match=pattern) as caught:
        unbiased_pass_at_k(np.array([n]), np.array([c]), k)
    assert caught.value.code == code


# --- tables ---


def test_table_of_pass_at_k():
    frame = pd.DataFrame({"model": ["a", "a", "b"], "n_samples": [10, 10, 20], "n_correct": [0, 3, 20]})
    made = pass_table(frame, ["model"], [1, 4])
    assert list(made.columns) == ["model", "k", "pass_at_k", "problems"]
    expected = {("a", 1): 0.15, ("b", 1): 1.0, ("a", 4): float(exact(10, 3, 4)) / 2, ("b", 4): 1.0}
    assert {(row.model, row.k): row.pass_at_k for row in made.itertuples()} == pytest.approx(expected, rel=1e-14)
    assert made["problems"].tolist() == [2, 1, 2, 1]
    with pytest.raises(FitError, match=r"^missing_column: n_correct: no such column; found model, n_samples$"):
        pass_table(frame.drop(columns="n_correct"), ["model"], [1])


# --- beta-distributed problems ---


def negative(logs, n, c):
    return -betabinom.logpmf(c, n, *np.exp(logs)).sum()


@pytest.mark.parametrize(("a", "b"), [(0.3, 4.0), (2.0, 5.0)])
def test_beta_of_simulated_counts_is_within_its_error(a: float, b: float):
    frame = counts(a, b, 60, 60, seed=5)
    done = fit(frame, "beta-binomial", starts=8, bootstrap=0)
    ours = np.log(list(done.parameters.values()))
    n, c = frame["n_samples"].to_numpy(), frame["n_correct"].to_numpy()
    step, hessian = 1e-3, np.empty((2, 2))
    for i, j in np.ndindex(2, 2):
        e, f = np.eye(2)[i] * step, np.eye(2)[j] * step
        hessian[i, j] = (negative(ours + e + f, n, c) - negative(ours + e - f, n, c) - negative(ours - e + f, n, c)
                         + negative(ours - e - f, n, c)) / (4 * step**2)  # fmt: skip
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)))
    assert (np.abs(ours - np.log([a, b])) < 3.5 * errors).all()


@pytest.mark.parametrize(
    ("benchmark", "n_active", "model"), [("gsm8k", 1.2e10, "Pythia_12B_300B"), ("math", 1e9, "Pythia_1B_300B")]
)
def test_shipped_table_of_pythia_is_that_of_the_raw_counts(benchmark: str, n_active: float, model: str, mirror):
    table = pd.read_csv(catalog.table_path("pythia_pass_at_k"))
    table = table[(table["benchmark"] == benchmark) & (table["n_active"] == n_active)]
    row = table[table["d_tokens"] == 3e11].iloc[0]
    raw = pd.read_parquet(fetch("monkeys_pythia")[f"{benchmark}_pass_at_k.parquet"])
    raw = raw[raw["Model Nickname"] == model].drop_duplicates("prompt_idx")
    n, c = raw["Num. Samples"].to_numpy(float), raw["Num. Samples Correct"].to_numpy(float)
    for k in (1, 8, 64, 100):
        expected = float(np.mean([exact(int(ni), int(ci), k) for ni, ci in zip(n, c, strict=True)]))
        assert row[f"pass_at_{k}"] == pytest.approx(expected, rel=1e-4)
    best = minimize(negative, np.log([row["beta_a"], row["beta_b"]]), args=(n, c), method="Nelder-Mead",
                    options={"xatol": 1e-8, "fatol": 1e-9})  # fmt: skip
    assert [row["beta_a"], row["beta_b"]] == pytest.approx(np.exp(best.x), rel=1e-3)


def test_beta_of_real_counts_is_the_maximum_of_the_likelihood(mirror):
    raw = pd.read_parquet(fetch("monkeys_pythia")["gsm8k_pass_at_k.parquet"])
    raw = raw[raw["Model Nickname"] == "Pythia_12B_300B"].drop_duplicates("prompt_idx").iloc[:60]
    n, c = raw["Num. Samples"].to_numpy(float), raw["Num. Samples Correct"].to_numpy(float)
    done = fit(pd.DataFrame({"n_samples": n, "n_correct": c}), "beta-binomial", starts=8, bootstrap=0)
    best = minimize(negative, np.log(done.values) + 0.1, args=(n, c), method="Nelder-Mead",
                    options={"xatol": 1e-9, "fatol": 1e-10})  # fmt: skip
    assert list(done.parameters.values()) == pytest.approx(np.exp(best.x), rel=1e-5)
