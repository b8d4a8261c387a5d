"""Tables and options that no law can be fitted to: one line that names the column, the row and the rule, or a note."""

import json
import re
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from simulated import counts, design, grid, table

import allocator
from allocator.errors import FitError
from allocator.fitting import batches, recipes
from allocator.fitting.estimation import fit
from allocator.fitting.result import Fit

QUICK = {"starts": 4, "bootstrap": 0}
RUNS = table(noise=0.002)
# With one run more, so that as many are left: a table of another length is another compilation.
LONGER = pd.concat([RUNS, RUNS.iloc[[0]] * 1.01], ignore_index=True)


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    """As long as a table: few starts and refits would wait for many copies of themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "CHUNK", 32)
        yield


def refused(code: str, pattern: str, frame: pd.DataFrame = RUNS, law="chinchilla", **options) -> None:
    with pytest.raises(FitError) as caught:
        fit(frame, law, **{**QUICK, **options})
    message = str(caught.value)
    assert caught.value.code == code, message
    assert "\n" not in message
    assert re.search(pattern, message), message


def changed(column: str, value, row: int = 3, frame: pd.DataFrame = RUNS) -> pd.DataFrame:
    cells = frame[column].astype(object).tolist()
    cells[row] = value
    return frame.assign(**{column: cells})


def noted(frame: pd.DataFrame, law="chinchilla", **options) -> tuple[Fit, dict[str, str]]:
    done = fit(frame, law, **{**QUICK, **options})
    assert np.isfinite(done.values).all()
    return done, {note.code: note.message for note in done.notes}


# --- columns ---


def test_missing_column_says_which_and_what_was_found():
    refused("missing_column", r"d_tokens \(or compute_flop and n_active\): no such column; found n_active, loss",
            RUNS.drop(columns="d_tokens"))  # fmt: skip
    refused("missing_column", "loss .*found n_active, d_tokens$", RUNS.drop(columns="loss"))
    refused("missing_column", r"columns\.loss: no column 'CE'; found n_active", columns={"loss": "CE"})
    refused("missing_column", "family: no such column; found n_active", cluster="family")
    refused("missing_column", "found no columns", pd.DataFrame())


def test_two_spellings_of_one_column_are_refused():
    frame = RUNS.rename(columns={"n_active": "params"}).assign(N=1e9)
    refused("missing_column", "n_active: N and params could both be it; say which", frame)


def test_duplicated_column_names_are_refused():
    refused("duplicated_column", "loss: more than one column", pd.concat([RUNS, RUNS[["loss"]]], axis=1))


def test_empty_table_is_refused():
    refused("too_few_runs", "no run is left", RUNS.iloc[:0])


# --- cells ---


@pytest.mark.parametrize("column", ["n_active", "d_tokens", "loss"])
@pytest.mark.parametrize("value", [0.0, -1.5])
def test_zero_and_negative_numbers_are_refused(column: str, value: float):
    refused("out_of_range", rf"{column}: row 4 holds {value:g}, must be > 0$", changed(column, value))


@pytest.mark.parametrize("text", ["seven", "1,5", "12B", "1e9 tokens"])
def test_text_in_a_number_column_is_refused(text: str):
    refused("not_a_number", f"d_tokens: row 4 holds '{text}', must be a number", changed("d_tokens", text))


def test_true_false_and_dates_are_no_numbers():
    refused("not_a_number", "loss: holds true and false", RUNS.assign(loss=True))
    refused("not_a_number", "loss: .*(true|True)", changed("loss", True))
    days = pd.date_range("2026-01-01", periods=len(RUNS))
    refused("not_a_number", "loss: holds dates", RUNS.assign(loss=days))
    refused("not_a_number", "loss: holds dates", RUNS.assign(loss=days.tz_localize("UTC")))
    refused("not_a_number", "loss", RUNS.assign(loss=pd.to_timedelta(np.arange(len(RUNS)), unit="h")))
    refused("not_a_number", "loss: row 1 holds", RUNS.assign(loss=2.0 + 1j))


def test_numbers_written_as_text_are_numbers():
    assert fit(RUNS.astype(str), **QUICK).parameters == fit(RUNS, **QUICK).parameters


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "", "n/a"])
def test_runs_without_a_loss_are_left_out_with_a_note(value):
    done, notes = noted(changed("loss", value, frame=LONGER))
    assert len(done.runs) == len(RUNS)
    assert notes["diverged_dropped"].startswith("1 of 26 runs have no finite loss")
    assert 3 not in done.runs.row


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), " "])
def test_runs_without_a_lever_are_left_out_with_a_note(value):
    done, notes = noted(changed("d_tokens", value, frame=LONGER))
    assert len(done.runs) == len(RUNS)
    assert re.match(r"1 runs have no finite d_tokens: left out \(first: row 4\)", notes["incomplete_dropped"])


def test_runs_marked_as_diverged_are_left_out_with_a_note():
    status = ["ok"] * len(RUNS) + ["Diverged "]
    done, notes = noted(LONGER.assign(status=status))
    assert 25 not in done.runs.row
    assert "1 of 26" in notes["diverged_dropped"]
    assert noted(LONGER.assign(how=status), columns={"status": "how"})[1].keys() == notes.keys()


def test_all_runs_diverged():
    refused("too_few_runs", "no run is left", RUNS.assign(loss=np.nan))


# --- units ---


def test_parameters_in_billions_and_tokens_in_billions_are_suspected():
    frame = RUNS.assign(n_active=RUNS["n_active"] / 1e9, d_tokens=RUNS["d_tokens"] / 1e9)
    done = fit(frame, **QUICK)
    factors = {note.path: note.value for note in done.notes if note.code == "implausible_unit"}
    assert factors["n_active"] == 1e9
    assert "d_tokens" in factors


def test_epochs_in_place_of_tokens_are_suspected():
    epochs = np.resize([1.0, 2.0, 4.0, 8.0, 16.0], len(RUNS))
    frame = RUNS.assign(d_tokens=np.random.default_rng(0).permutation(epochs))
    assert "epochs have to be turned into tokens" in noted(frame)[1]["implausible_unit"]


# --- too little ---


def test_fewer_runs_than_parameters():
    refused("too_few_runs", r"4 runs for 5 parameters \(E, A, B, alpha, beta\)", RUNS.iloc[[0, 6, 12, 18]])


def test_one_size_one_token_count_one_k():
    one = RUNS.assign(n_active=1e9)
    refused("one_size_only", "n_active: all 25 runs have 1e\\+09.*fix A and alpha", one)
    refused("one_token_count_only", "d_tokens: all 25 runs have 1e\\+10.*fix B and beta", RUNS.assign(d_tokens=1e10))
    refused("one_k_only", "k: all 48 runs have 8", table("t2-loss").assign(k=8.0), "t2-loss")
    assert noted(one, fixed={"A": 482.0, "alpha": 0.348})[0].parameters["alpha"] == 0.348


def test_two_sizes_and_one_ratio_are_noted():
    assert "two_sizes_only" in noted(table(columns=grid(sizes=(1e8, 1e9), ratios=np.geomspace(3, 300, 13))).iloc[1:])[1]
    assert "one_ratio_only" in noted(table(columns=grid(sizes=np.geomspace(1e7, 1e10, 25), ratios=(20.0,))))[1]


def test_duplicated_runs_are_noted():
    frame = pd.concat([RUNS.iloc[2:], RUNS.iloc[[2, 2]]], ignore_index=True)
    assert noted(frame)[1]["duplicated_runs"].startswith("2 runs repeat")


def test_constant_losses_teach_nothing():
    refused("constant_target", "loss: every run has 2.5", RUNS.assign(loss=2.5))


# --- pass@k and counts ---


def test_pass_at_k_of_0_and_1_are_left_out_with_a_note():
    k = 2.0 ** np.arange(10)
    rate = np.exp(-2.5 * k**-0.35)
    rate[0], rate[9] = 0.0, 1.0
    done, notes = noted(pd.DataFrame({"k": k, "pass_at_k": rate}), "pass-at-k-power")
    assert notes["saturated_dropped"].startswith("2 rows have pass@k of exactly 0 or 1")
    assert done.parameters == pytest.approx({"a": 2.5, "b": 0.35}, rel=1e-6)
    refused("out_of_range", "pass_at_k: row 2 holds 1.2, must be >= 0 and <= 1",
            pd.DataFrame({"k": k, "pass_at_k": 1.2}).assign(pass_at_k=[0.5, 1.2] * 5), "pass-at-k-power")  # fmt: skip


def test_more_correct_samples_than_samples():
    frame = counts(0.4, 3.0, 30, 20)
    refused("out_of_range", "n_correct: must be <= n_samples", changed("n_correct", 21, frame=frame), "beta-binomial")
    refused("out_of_range", "n_correct: row 4 holds -1", changed("n_correct", -1, frame=frame), "beta-binomial")
    refused("out_of_range", "n_correct.*whole", changed("n_correct", 1.5, frame=frame), "beta-binomial")


# --- options ---


@pytest.mark.parametrize(
    ("code", "pattern", "options"),
    [
        ("law", "'chinchila' cannot be fitted; did you mean chinchilla", {"law": "chinchila"}),
        ("law", "must be one of chinchilla, gadre", {"law": "zzz"}),
        ("loss", "'l1' is not known; must be huber", {"loss": "l1"}),
        ("loss", "the number in 'huber:0' must be from 1e-9 to 1e6", {"loss": "huber:0"}),
        ("loss", "the number in 'huber:-1' must be from 1e-9 to 1e6", {"loss": "huber:-1"}),
        ("loss", "the number in 'huber:nan' must be from 1e-9 to 1e6", {"loss": "huber:nan"}),
        ("loss", "the number in 'asymmetric:inf' must be from 1e-9 to 1e6", {"loss": "asymmetric:inf"}),
        ("loss", "the number in 'huber:x' must be from 1e-9 to 1e6", {"loss": "huber:x"}),
        ("loss", "is not known", {"loss": "least-squares:2"}),
        ("fixed", "'gamma' is no parameter of chinchilla; it has E, A, B, alpha, beta", {"fixed": {"gamma": 1.0}}),
        ("fixed", "A: must be a finite number > 0, got -1", {"fixed": {"A": -1.0}}),
        ("fixed", "alpha: .*> 0 and <= 10, got -0.3", {"fixed": {"alpha": -0.3}}),
        ("fixed", "E: must be a finite number > 0, got inf", {"fixed": {"E": float("inf")}}),
        ("starts", "whole number from 1 to 200,000, got 0", {"starts": 0}),
        ("starts", "got 1.5", {"starts": 1.5}),
        ("starts", "got True", {"starts": True}),
        ("bootstrap", "whole number from 0 to 200,000, got -1", {"bootstrap": -1}),
        ("bootstrap", "got '10'", {"bootstrap": "10"}),
        ("resample", "must be pairs or wild, got 'jackknife'", {"resample": "jackknife"}),
        ("resample", "asymmetric fit .*take pairs", {"resample": "wild", "loss": "asymmetric"}),
        ("reduction", "must be sum or mean, got 'median'", {"reduction": "median"}),
        ("residuals", "must be log or linear, got 'logit'", {"residuals": "logit"}),
        ("at_flop", "must be a number >= 1", {"at_flop": 0.0}),
        ("at_flop", "must be a number >= 1", {"at_flop": float("nan")}),
        ("seed", "whole number >= 0, got -1", {"seed": -1}),
        ("seed", "whole number >= 0, got 0.5", {"seed": 0.5}),
    ],
)
def test_wrong_option_is_refused(code: str, pattern: str, options: dict):
    refused(code, pattern, **options)


def test_log_residuals_where_a_law_may_predict_0():
    refused("residuals", "its residuals are linear", table("rl-sigmoid"), "rl-sigmoid", residuals="log")


# --- laws of one's own ---

RANGES = {"E": (0.5, 3.0), "A": (5.0, 5000.0)}


@pytest.mark.parametrize(
    ("code", "pattern", "function"),
    [
        ("no_minimum", "no start led to a finite user law", lambda p, c: p["E"] * jnp.nan * c["n_active"]),
        ("user_law", r"one loss for each of the runs, of shape \(25,\), got shape \(\)", lambda p, c: p["E"]),
        ("user_law", r"got shape \(25, 2\)", lambda p, c: p["E"] * jnp.ones((len(c["n_active"]), 2))),
        ("user_law", "KeyError: 'alpha'", lambda p, c: p["alpha"] * c["n_active"]),
        ("user_law", "ZeroDivisionError", lambda p, c: c["n_active"] / 0 + 1 // 0),
        ("user_law", "TypeError", lambda p: p["E"]),
    ],
    ids=["nan", "scalar", "two columns", "unknown parameter", "raises", "one argument"],
)
def test_users_law_that_cannot_be_used(code: str, pattern: str, function):
    refused(code, pattern, RUNS, allocator.user_form(function, RANGES))


def test_users_law_that_is_nan_somewhere_is_fitted_where_it_is_not():
    def law(p, c):
        return p["E"] + jnp.sqrt(p["A"] - 100.0) / c["n_active"] ** 0.3

    columns = design("chinchilla")
    frame = pd.DataFrame(columns | {"loss": law({"E": 2.0, "A": 2600.0}, columns)})
    done = fit(frame, allocator.user_form(law, RANGES), starts=32, bootstrap=0)
    assert done.parameters == pytest.approx({"E": 2.0, "A": 2600.0}, rel=1e-6)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_parameter_range_that_is_none(ends):
    with pytest.raises(FitError, match=r"^parameter_range: E: needs a finite range"):
        allocator.user_form(lambda p, c: p["E"], {"E": ends})
    with pytest.raises(FitError, match="at least one"):
        allocator.user_form(lambda p, c: 1.0, {})


# --- anything at all ---

cells = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(1e-300, 1e300),
    st.sampled_from([None, "", "x", "1e9", True, 0, -1, 10**400, pd.Timestamp("2026-01-01"), 1 + 2j, [1.0], 5e-324]),
)
frames = st.lists(st.tuples(cells, cells, cells), min_size=25, max_size=25)
plain = st.lists(st.tuples(*[st.floats(1e-3, 1e12)] * 3), min_size=25, max_size=25)


def never_worse_than_a_refusal(rows, law: str) -> None:
    frame = pd.DataFrame(rows, columns=["n_active", "d_tokens", "loss"], dtype=object)
    try:
        done = fit(frame, law, **QUICK)
    except FitError as error:
        lines = str(error).splitlines()
        if len(lines) != 1:
            pytest.fail(f"{lines}")
        return
    assert np.isfinite(done.values).all()
    assert json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert str(done)


TRIED = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking a table takes minutes and says little


@settings(max_examples=60, phases=TRIED)
@given(rows=frames)
def test_garbage_is_refused_in_one_line(rows):
    never_worse_than_a_refusal(rows, "chinchilla")


@settings(max_examples=12, phases=TRIED)
@given(rows=plain)
@example(rows=[(10.0**i, 10.0 ** (i * 7 % 25), 10.0 ** (i * 11 % 25 - 12)) for i in range(25)])
@example(rows=[(1e9 * (1 + i), 1e10 * (1 + i * 7 % 25), 1e-300) for i in range(25)])
@example(rows=[(1e9 * (1 + i), 1e10 * (1 + i * 7 % 25), 1e300) for i in range(25)])
def test_numbers_of_any_size_give_finite_parameters_or_a_refusal(rows):
    never_worse_than_a_refusal(rows, "chinchilla")


# --- clusters, repeats, files ---


def test_one_cluster_is_refused_and_few_are_noted():
    refused("one_cluster", "o: only one group of runs", RUNS.assign(o=1), cluster="o", bootstrap=10)
    frame = RUNS.assign(o=np.arange(len(RUNS)) % 3)
    done = fit(frame, starts=4, bootstrap=10, cluster="o")
    assert "few_clusters" in [note.code for note in done.notes]


def test_run_without_a_cluster_is_refused():
    labels = np.array(["a", "b"] * len(RUNS), object)[: len(RUNS)]
    labels[4] = None
    refused("missing_value", "o: row 5 is blank", RUNS.assign(o=labels), cluster="o", bootstrap=10)


def test_worth_of_repeats_needs_repeats():
    frame = RUNS.assign(unique_tokens=2 * RUNS["d_tokens"])
    refused("no_repeats", "no run repeats its data", frame, "data-constrained")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("n_active,d_tokens,loss,loss\n1e8,2e9,3,4\n", "duplicated_column", "more than one column is called 'loss'"),
        ("n_active,d_tokens,loss\n1e8,2e9,3,4\n1e8,3e9,3,5\n", "data", "cannot be read as a table"),
        ("", "data", "cannot be read as a table"),
    ],
)
def test_file_that_is_no_table(tmp_path, text, code, said):
    (tmp_path / "runs.csv").write_text(text, encoding="utf-8")
    with pytest.raises(FitError, match=said) as error:
        recipes.carry_out(recipes.make({"data": {"path": "runs.csv"}}, "test"), tmp_path)
    assert error.value.code == code


def test_compressed_file_that_is_none(tmp_path):
    (tmp_path / "runs.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(FitError, match="cannot be read as a table"):
        recipes.carry_out(recipes.make({"data": {"path": "runs.csv.gz"}}, "test"), tmp_path)
