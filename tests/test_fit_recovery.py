"""Every form finds the law that made its runs; the runs come from NumPy formulas that share no code with the forms."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import betabinom
from simulated import LAWS, TARGETS, TRUTHS, Columns, counts, design, table

import allocator
from allocator.fitting import batches, diagnostics
from allocator.fitting.batches import descend_all
from allocator.fitting.estimation import fit
from allocator.fitting.forms import FORMS
from allocator.fitting.losses import parse
from allocator.fitting.result import Fit
from allocator.fitting.runs import read
from allocator.fitting.scaled import physical, scale
from allocator.fitting.search import starting_points

STARTS = 16
NOISE = 0.002
JOINT = ("product", "additive", "shared")
SLOW = ("shared-overlap", "coverage-overlap")  # to compile


def spread(law: str, columns: Columns, noise: float) -> dict[str, float]:
    """Standard errors of least squares on logs at the truth, by central differences of the formula."""
    truth = TRUTHS[law]
    slopes = []
    for name, value in truth.items():
        step = 1e-5 * abs(value)
        up, down = (np.log(LAWS[law](truth | {name: value + sign * step}, columns)) for sign in (1, -1))
        slopes.append((up - down) / (2 * step) * value)
    covariance = noise**2 * np.linalg.inv(np.array(slopes) @ np.array(slopes).T)
    return {name: abs(truth[name]) * error for name, error in zip(truth, np.sqrt(np.diag(covariance)), strict=True)}


@pytest.fixture(autouse=True)
def no_more_work_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches as long as the starts; refits without a run have tests of their own."""
    monkeypatch.setattr(batches, "CHUNK", STARTS)
    monkeypatch.setattr(diagnostics, "influence", lambda fit: [])
    monkeypatch.setattr(diagnostics, "holdouts", lambda fit: [])


def fitted(law: str, noise: float, form: str | None = None, loss: str = "huber") -> Fit:
    return fit(table(law, noise), form or law, loss, starts=STARTS, bootstrap=0)


def check(law: str) -> None:
    """Exact runs give the law to rounding, noisy ones within what their noise allows."""
    exact = fitted(law, 0.0)
    assert exact.parameters == pytest.approx(TRUTHS[law], rel=1e-6)
    assert exact.table()["predicted"].to_numpy() == pytest.approx(LAWS[law](TRUTHS[law], design(law)), rel=1e-9)
    assert not {note.code for note in exact.notes} & {"starts_disagree", "not_stationary", "parameter_at_bound"}

    noisy = fitted(law, NOISE)
    errors = spread(law, design(law), NOISE)
    # Huber's loss at half the noise's size is less efficient than least squares, by less than a third.
    off = {name: (noisy.parameters[name] - TRUTHS[law][name]) / errors[name] for name in errors}
    assert {name: z for name, z in off.items() if abs(z) > 4} == {}
    missed = np.log(noisy.table()["predicted"].to_numpy() / LAWS[law](TRUTHS[law], design(law)))
    assert np.sqrt(np.mean(missed**2)) < 2 * NOISE * np.sqrt(len(off) / len(missed))


def test_every_form_has_a_truth():
    assert {*TRUTHS, "beta-binomial"} == {*FORMS}
    assert {law: FORMS[law].target.name for law in TRUTHS} == {law: TARGETS.get(law, "loss") for law in TRUTHS}


@pytest.mark.parametrize("law", [law for law in TRUTHS if law not in (*JOINT, *SLOW)])
def test_law_is_recovered(law: str):
    check(law)


@pytest.mark.parametrize("law", SLOW)
def test_law_is_recovered_by_descent_alone(law: str):
    """Without the polish and the findings, each of which is compiled for its form."""
    form = FORMS[law]
    scaled = scale(form, read(table(law), [*form.inputs, form.target]))
    found = descend_all(form, parse("huber"), scaled, starting_points(form, scaled, STARTS, 0))
    best = found.theta[np.nanargmin(found.objective)]
    recovered = dict(zip(form.names, np.asarray(physical(form, best, scaled)), strict=True))
    assert recovered == pytest.approx(TRUTHS[law], rel=1e-6)


def test_joint_forms_are_recovered_and_told_apart():
    """Each fits its own runs to the noise and those of the others worse."""
    for law in JOINT:
        check(law)
    for law in JOINT:
        squares = {form: float(np.sum(fitted(law, NOISE, form, "least-squares").residual ** 2)) for form in JOINT}
        best = squares.pop(law)
        assert best < 1.3 * NOISE**2 * len(table(law))
        assert all(other > 1.5 * best for other in squares.values()), (law, best, squares)


# --- laws of one's own ---

SKALING = {"E": 1.5, "A": 55.0, "a": 0.25, "B": 120.0, "b": 0.27, "power": 1.3}


def skaling(p, c):
    """The coupled form of arXiv 2608.07222."""
    return p["E"] + (p["A"] * c["n_active"] ** -p["a"] + p["B"] * c["d_tokens"] ** -p["b"]) ** p["power"]


def test_users_law_is_recovered():
    ranges = {"E": (0.5, 3), "A": (5, 500), "a": (0.1, 0.5), "B": (10, 1000), "b": (0.1, 0.5), "power": (0.7, 2)}
    form = allocator.user_form(skaling, ranges, name="skaling")
    columns = design("chinchilla")
    done = fit(pd.DataFrame(columns | {"loss": skaling(SKALING, columns)}), form, starts=STARTS, bootstrap=0)
    assert done.parameters == pytest.approx(SKALING, rel=1e-5)
    # N* at the reference budget against a fine scan of the formula itself.
    size = np.geomspace(1e9, 1e13, 400_001)
    best = size[np.argmin(skaling(SKALING, {"n_active": size, "d_tokens": done.at_flop / 6 / size}))]
    assert done.optimum is not None
    assert done.optimum[0] == pytest.approx(best, rel=1e-3)


def test_users_law_with_a_signed_parameter_and_linear_residuals():
    form = allocator.user_form(lambda p, c: p["level"] + p["slope"] * jnp.log(c["steps"]),
                               {"level": (-5, 5), "slope": (-1, 1)}, inputs=["steps"], target="reward",
                               residuals="linear")  # fmt: skip
    steps = np.geomspace(1, 1e4, 20)
    reward = -1.5 + 0.25 * np.log(steps) + 0.05 * np.random.default_rng(0).standard_normal(20)
    done = fit(pd.DataFrame({"steps": steps, "reward": reward}), form, "least-squares", starts=STARTS, bootstrap=0)
    slope, level = np.polyfit(np.log(steps), reward, 1)
    assert done.parameters == pytest.approx({"level": level, "slope": slope}, rel=1e-7)


# --- counts ---


def test_beta_binomial_is_the_maximum_of_the_likelihood():
    frame = counts(0.4, 3.0, problems=60, samples=100)
    done = fit(frame, "beta-binomial", starts=STARTS, bootstrap=0)

    def negative(logs):
        return -betabinom.logpmf(frame["n_correct"], frame["n_samples"], *np.exp(logs)).sum()

    best = minimize(negative, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-10})
    assert list(done.parameters.values()) == pytest.approx(np.exp(best.x), rel=1e-5)
    assert done.objective == pytest.approx(best.fun, rel=1e-10)


# --- another optimiser on the same objective ---


def huber(residual: np.ndarray, delta: float = 1e-3) -> float:
    size = np.abs(residual)
    return float(np.sum(np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))))


@pytest.mark.parametrize("law", ["chinchilla", "loss-to-error"])
def test_scipy_finds_the_same_minimum(law: str):
    """L-BFGS-B and Nelder-Mead in turns on the NumPy objective, in logs of the parameters."""
    frame = table(law, 0.01, seed=3)
    inputs = {name: frame[name].to_numpy() for name in design(law)}
    observed = frame[TARGETS.get(law, "loss")].to_numpy()
    names = list(TRUTHS[law])

    def objective(logs):
        predicted = LAWS[law](dict(zip(names, np.exp(logs), strict=True)), inputs)
        if law == "chinchilla":
            return 1e6 * huber(np.log(observed) - np.log(predicted))
        return 1e6 * float(np.sum((observed - predicted) ** 2) / 2)

    at = np.log(list(TRUTHS[law].values()))
    for _ in range(6):
        at = minimize(objective, at, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12}).x
        at = minimize(objective, at, method="Nelder-Mead",
                      options={"xatol": 1e-10, "fatol": 1e-12, "maxfev": 20_000, "adaptive": True}).x  # fmt: skip
    loss = "huber" if law == "chinchilla" else "least-squares"
    done = fit(frame, law, loss, starts=STARTS, bootstrap=0)
    ours = objective(np.log([done.parameters[name] for name in names]))
    assert done.objective * 1e6 == pytest.approx(ours, rel=1e-9)
    assert ours <= objective(at) * (1 + 1e-9)
    assert done.parameters == pytest.approx(dict(zip(names, np.exp(at), strict=True)), rel=1e-3)
