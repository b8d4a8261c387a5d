"""What is printed and drawn of a robust plan; the plan is made up, since solving is tested elsewhere."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from allocator.optimum.result import Certificate, Notice, Objective
from allocator.robust_charts import by_state, regrets
from allocator.robust_plans import Commitment, Evaluated, Knowledge, RobustPlan
from allocator.robust_report import charts_of, files, print_robust, robust_dict
from allocator.states import LIFETIME, States


def evaluated(gap: list[float], **changes) -> Evaluated:
    loss = np.array([1.9, 2.0, 2.2]) + gap
    told = {
        "decision": Commitment(1e10, 2e14, 3e13), "k": np.array([20.0, 8.0, 2.0]), "loss": loss,
        "loss_gap": np.array(gap), "regret": 10 * np.array(gap), "spent": np.ones(3), "expected_loss": loss.mean(),
        "cvar": loss.max(), "worst_loss": loss.max(), "worst_regret": 10 * max(gap), "worst_loss_gap": max(gap),
        "unserved": (),
    }  # fmt: skip
    return Evaluated(**(told | changes))


def plan(mean: Evaluated | None) -> RobustPlan:
    own = {name: np.full(3, 1e10) for name in ("n_active", "d_pretrain", "d_rl", "k", "loss")}
    return RobustPlan(
        title="A plan", objective=Objective("compute_flop", 1e26, "FLOP"),
        law={"pretraining": "besiroglu-2024", "form": "shared"}, assumed=(), criterion="regret", level=0.9,
        status="best_of_starts", certificate=Certificate("best_of_starts", 7, 1e-15, 0.0),
        states=States({LIFETIME: [1e13, 1e14, 1e15]}), outcome=evaluated([0.01, 0.001, 0.012]),
        own=own | {"loss": np.array([1.9, 2.0, 2.2]), "k": np.array([10.0, 8.0, 5.0])}, mean_demand=mean,
        mean_reason=None if mean else "it is beyond the bounds", knowing_demand=Knowledge(2.03, 0.008, 0.02),
        knowing_state=Knowledge(2.03, 0.008, 0.02), loss_unit="nats/token",
        warnings=(Notice("k_below_one", "decisions.k", 1.0, "states in which answers are short"),),
        provenance={"scenario": {}}, lifetime_tokens=np.array([1e13, 1e14, 1e15]),
    )  # fmt: skip


FAILING = evaluated([0.02, 0.0, math.inf], worst_regret=math.inf, unserved=(2,), k=np.array([20.0, 8.0, math.nan]))


@pytest.mark.parametrize("mean", [evaluated([0.02, 0.0, 0.03]), FAILING, None], ids=["served", "failing", "none"])
def test_printed_drawn_and_written(mean: Evaluated | None):
    made = plan(mean)
    out = io.StringIO()
    print_robust(made, Console(file=out, width=160))
    text = out.getvalue()
    for words in ("least worst regret over 3 states", "best of 7 starts", "10.0B", "12.0 %", "2.00 to 20.0",
                  "0.0080 of loss, or 2.0 % of the budget", "k_below_one: decisions.k: 1 states"):  # fmt: skip
        assert words in text
    assert ("cannot serve 1 of 3" in text) == (mean is FAILING)
    assert ("not possible: it is beyond the bounds" in text) == (mean is None)
    told = json.loads(json.dumps(robust_dict(made), allow_nan=False))
    assert [row["state"] for row in told["rows"]] == [0, 1, 2]
    written = files(made)
    assert set(written) == {"states.csv", "criteria.csv", "charts.html", "by_state.svg", "by_state.png",
                            "regrets.svg", "regrets.png"}  # fmt: skip
    assert str(written["criteria.csv"]).count("\n") == (3 if mean else 2)
    assert ("cannot serve" in str(written["regrets.svg"])) == (mean is FAILING)


def test_curves_of_regret_are_the_table_s():
    made = plan(evaluated([0.02, 0.0, 0.03]))
    chart = regrets(made.to_frame()).to_dict()
    (rows,) = chart["datasets"].values()
    robust = [(row["regret"], row["share"]) for row in rows if row["plan"] == "robust plan"]
    assert [x for x, _ in robust[1:4]] == pytest.approx([1, 10, 12])
    assert [y for _, y in robust[1:4]] == pytest.approx([1 / 3, 2 / 3, 1])
    assert robust[-1] == (pytest.approx(31.5), 1)


def test_states_that_share_one_demand_are_told_apart_by_their_own_loss():
    made = plan(None)
    drawn = charts_of(made, made.to_frame())["by_state"].to_dict()
    assert "lifetime demand" in json.dumps(drawn)
    frame = made.to_frame()
    other = by_state(frame, "own_loss", "loss of the state's own optimum").to_dict()
    points = [row for rows in other["datasets"].values() for row in rows if row["plan"] == "robust plan"]
    assert len(points) == 9
