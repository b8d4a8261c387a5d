"""What a robust plan says: the commitment, what it leads to in each state, and what it is worth to know the state."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from allocator.optimum.result import Certificate, Notice, Objective, Plan, plain_values
from allocator.states import States
from allocator.units import one_line, short_count, significant

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "allocator.robust/1"
CRITERIA = ("expected", "cvar", "regret")


@dataclass(frozen=True)
class Commitment:
    """What is decided before the state of the world is known."""

    n_active: float
    d_pretrain: float
    d_rl: float


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A commitment on all states; arrays have one entry a state, NaN where nothing is served, a loss of inf where
    the budget does not pay for the least service.

    `regret` is budget / (least budget at which that state's own optimum has the plan's loss) - 1; `loss_gap` is the
    loss above that of the state's own optimum at the same budget; `spent` is the share of the budget that is used.
    """

    decision: Commitment
    k: Float[np.ndarray, " states"]
    loss: Float[np.ndarray, " states"]
    loss_gap: Float[np.ndarray, " states"]
    regret: Float[np.ndarray, " states"]
    spent: Float[np.ndarray, " states"]
    expected_loss: float
    cvar: float
    worst_loss: float
    worst_regret: float
    worst_loss_gap: float
    unserved: tuple[int, ...]  # states that the budget does not suffice for


@dataclass(frozen=True)
class Knowledge:
    """What it is worth to know something before N, D and R are committed."""

    expected_loss: float  # of plans made with it known
    loss: float  # by which that is below the robust plan's expected loss
    budget: float  # fraction of the budget that such plans could do without at the robust plan's expected loss


@dataclass(frozen=True, eq=False)
class RobustPlan:
    """One commitment for all states of the world, with what it leads to in each."""

    title: str
    objective: Objective
    law: Mapping[str, str | None]
    assumed: tuple[str, ...]
    criterion: str
    level: float
    status: str
    certificate: Certificate
    states: States
    outcome: Evaluated
    own: Mapping[str, Float[np.ndarray, " states"]]  # decisions and loss of the plan made with the state known
    mean_demand: Evaluated | None  # the plan that takes the mean for certain, on the same states
    mean_reason: str | None  # why there is none
    knowing_demand: Knowledge  # with the law still unknown
    knowing_state: Knowledge  # demand and law
    loss_unit: str
    warnings: tuple[Notice, ...]
    provenance: Mapping[str, Any]
    lifetime_tokens: Float[np.ndarray, " states"] = field(repr=False)

    @property
    def decision(self) -> Commitment:
        """N, D and R."""
        return self.outcome.decision

    @property
    def k(self) -> Float[np.ndarray, " states"]:
        """Samples per query in each state."""
        return self.outcome.k

    @property
    def loss(self) -> Float[np.ndarray, " states"]:
        """Loss in each state."""
        return self.outcome.loss

    @property
    def regret(self) -> Float[np.ndarray, " states"]:
        """Extra budget, as a fraction, that the plan needs in each state over that state's own optimum."""
        return self.outcome.regret

    @property
    def expected_loss(self) -> float:
        """Mean loss over the states that serve something."""
        return self.outcome.expected_loss

    @property
    def cvar(self) -> float:
        """Mean loss over the worst 1 - level of probability."""
        return self.outcome.cvar

    @property
    def worst_regret(self) -> float:
        """Largest extra budget of any state."""
        return self.outcome.worst_regret

    def rows(self) -> list[dict[str, Any]]:
        """A row a state: its numbers, what the plan does there, the state's own optimum, the mean-demand plan."""
        mean = self.mean_demand
        nothing = np.full(len(self.states), math.nan)
        columns = {**self.states.values, "probability": self.states.probability}
        mine = {name: getattr(self.outcome, name) for name in ("k", "loss", "loss_gap", "regret", "spent")}
        columns |= {"k": mine.pop("k"), "d_inference": self.k * self.lifetime_tokens, **mine}
        columns |= {f"own_{name}": numbers for name, numbers in self.own.items()}
        for name in ("k", "loss", "regret"):
            columns[f"mean_demand_{name}"] = nothing if mean is None else getattr(mean, name)
        return [{"state": i, **{name: float(x[i]) for name, x in columns.items()}} for i in range(len(self.states))]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values for JSON, every number finite or None."""
        return plain_values({
            "schema": SCHEMA,
            "title": self.title,
            "objective": self.objective,
            "law": self.law,
            "assumed": self.assumed,
            "criterion": self.criterion,
            "level": self.level,
            "status": self.status,
            "certificate": self.certificate,
            "decision": self.decision,
            **criteria(self.outcome),
            "loss_unit": self.loss_unit,
            "mean_demand": None if self.mean_demand is None
            else asdict(self.mean_demand.decision) | criteria(self.mean_demand),
            "mean_demand_reason": self.mean_reason,
            "knowing_demand": self.knowing_demand,
            "knowing_state": self.knowing_state,
            "rows": self.rows(),
            "warnings": self.warnings,
            "provenance": self.provenance,
        })  # fmt: skip

    def to_frame(self) -> "pd.DataFrame":
        """One row a state."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        d, mean = self.decision, self.mean_demand
        asked = {
            "expected": "least expected loss",
            "cvar": f"least mean loss of the worst {100 * (1 - self.level):g} %",
            "regret": "least worst regret",
        }[self.criterion]
        if mean is None:
            against = f"no plan at mean demand: {self.mean_reason}"
        elif mean.unserved:
            against = f"the plan made at mean demand cannot serve {len(mean.unserved)} of {len(self.states)} states"
        else:
            against = (
                f"the plan made at mean demand: expected loss {mean.expected_loss:.5f}, "
                f"worst regret {100 * mean.worst_regret:.3g} %"
            )
        return (
            f"{one_line(self.title)}: {self.status}, {asked} over {len(self.states)} states\n"
            f"  n_active {short_count(d.n_active)}, d_pretrain {short_count(d.d_pretrain)}, "
            f"d_rl {short_count(d.d_rl)}, k {significant(np.nanmin(self.k))} to {significant(np.nanmax(self.k))}\n"
            f"  expected loss {self.expected_loss:.5f}, worst {100 * (1 - self.level):g} % {self.cvar:.5f}, "
            f"worst regret {100 * self.worst_regret:.3g} %\n"
            f"  {against}\n"
            f"  knowing the demand would save {100 * self.knowing_demand.budget:.3g} % of the budget"
        )


@dataclass(frozen=True, eq=False)
class Derating:
    """A model that may not ship, planned in two ways; they differ in who owns the budget that is not spent.

    `committed` has the whole budget to itself in either case, so what serving does not cost is lost to it: whether it
    ships then makes no difference to the best decision. `pooled` shares a budget that has to hold on average over many
    such models: its expected cost is the cost at the demand times the probability, which is the lecture's derating, and
    where it ships it costs `over_budget` more than its share.
    """

    probability: float
    committed: RobustPlan
    pooled: Plan
    over_budget: float

    def __str__(self) -> str:
        a, b = self.committed.decision, self.pooled.decision
        assert b is not None
        return (
            f"ships with probability {self.probability:g}\n"
            f"  budget of its own: n_active {short_count(a.n_active)}, d_pretrain {short_count(a.d_pretrain)}, "
            f"d_rl {short_count(a.d_rl)}\n"
            f"  budget on average: n_active {short_count(b.n_active)}, d_pretrain {short_count(b.d_pretrain)}, "
            f"d_rl {short_count(b.d_rl)}; {100 * self.over_budget:.3g} % over it where it ships"
        )


def criteria(told: Evaluated) -> dict[str, Any]:
    """The figures of a commitment that are one number each."""
    names = ("expected_loss", "cvar", "worst_loss", "worst_regret", "worst_loss_gap", "unserved")
    return {name: getattr(told, name) for name in names}


def tail_mean(loss: Float[np.ndarray, " states"], probability: Float[np.ndarray, " states"], level: float) -> float:
    """Mean of the largest losses that hold 1 - `level` of the probability (CVaR); the largest one at level 1."""
    order = np.argsort(-loss, kind="stable")
    loss, probability = loss[order], probability[order]
    if level >= 1:
        return float(loss[probability > 0][0])
    before = np.concatenate([[0.0], np.cumsum(probability)[:-1]])
    taken = np.clip(1 - level - before, 0.0, probability)
    some = taken > 0  # an infinite loss beyond the tail is none of its business
    return float(taken[some] @ loss[some] / taken.sum())
