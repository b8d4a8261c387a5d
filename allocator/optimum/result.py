"""The plan: what to buy, what it costs, how sure that is, and where it came from."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from allocator.laws.law import Law
from allocator.problem import Decision, Problem
from allocator.scenario.schema import Scenario
from allocator.units import one_line, short_count, significant, tidy

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "allocator.plan/1"


@dataclass(frozen=True)
class Objective:
    """What is asked for: least loss under a budget, or least cost at a target loss."""

    kind: str
    value: float
    unit: str


@dataclass(frozen=True)
class Certificate:
    """Why the point is the optimum, and how exactly it was hit (relative residuals, recomputed after the solver)."""

    kind: str
    starts: int
    kkt_residual: float
    constraint_residual: float


@dataclass(frozen=True)
class PlannedDecision:
    """Active parameters, tokens and samples per query; d_inference = k x tokens served at k = 1."""

    n_active: float
    d_pretrain: float
    d_rl: float
    k: float
    d_inference: float

    @classmethod
    def of(cls, decision: Decision[float], lifetime_tokens: float) -> "PlannedDecision":
        """A decision with the tokens that serving it generates."""
        n, d, r, k = (tidy(value) for value in decision)
        return cls(n, d, r, k, k * lifetime_tokens)


@dataclass(frozen=True)
class Phase:
    """One phase's cost; `flop` is model FLOP x overhead, at the pre-training MFU; NaN where hardware is not given."""

    model_flop: float
    flop: float
    share: float
    mfu: float
    overhead: float
    chip_hours: float
    usd: float
    energy_joule: float


@dataclass(frozen=True)
class Total:
    """Lifetime totals over the three phases."""

    flop: float
    chip_hours: float
    usd: float
    energy_joule: float


@dataclass(frozen=True)
class ShadowPrice:
    """What a little more of the limit is worth: relative change of the optimum per relative change of the limit."""

    value: float
    of: str
    unit: str


@dataclass(frozen=True)
class Overtraining:
    """Pre-training tokens against the rules for them."""

    tokens_per_param: float
    vs_20: float  # D / (20 N)
    vs_chinchilla: float  # D / D_c(N), the tokens that make N compute-optimal when serving is free


@dataclass(frozen=True)
class Notice:
    """A warning with a code, the key it concerns, the value that set it off, and what it means."""

    code: str
    path: str
    value: float | str | None
    message: str


@dataclass(frozen=True)
class Baseline:
    """A rule of thumb on the same scenario; `regret` is the extra budget it needs for the same loss.

    `cost` is in the unit of the objective's budget (or of its `currency`): FLOP, chip-hours, USD or joules.
    """

    name: str
    decision: PlannedDecision | None
    loss: float
    cost: float
    regret: float
    reason: str | None = None


@dataclass(frozen=True)
class Plan:
    """The answer to a scenario. A failed one has status, reason and nearest, and no figures."""

    title: str
    objective: Objective
    law: Mapping[str, str | None]
    assumed: tuple[str, ...]
    status: str
    provenance: Mapping[str, Any]
    certificate: Certificate | None = None
    decision: PlannedDecision | None = None
    decision_status: Mapping[str, str] | None = None
    loss: float = math.nan
    loss_unit: str = "nats/token"
    reducible_loss: float = math.nan
    phases: Mapping[str, Phase] | None = None
    total: Total | None = None
    elasticities: Mapping[str, float] | None = None
    shadow_price: ShadowPrice | None = None
    overtraining: Overtraining | None = None
    warnings: tuple[Notice, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    reason: str | None = None
    nearest: Mapping[str, Any] | None = None
    # What was asked and solved, for further questions; not part of the JSON.
    scenario: Scenario | None = field(default=None, repr=False, compare=False)
    problem: Problem | None = field(default=None, repr=False, compare=False)
    user_law: Law | None = field(default=None, repr=False, compare=False)  # where it replaced the scenario's

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values for JSON, every number finite or None."""
        values = {"schema": SCHEMA} | {
            key: getattr(self, key)
            for key in (
                "title", "objective", "law", "assumed", "status", "certificate", "decision", "decision_status", "loss",
                "reducible_loss", "phases", "total", "elasticities", "shadow_price", "overtraining", "warnings",
                "baselines", "provenance",
            )
        }  # fmt: skip
        if self.decision is None:
            values |= {"reason": self.reason, "nearest": self.nearest}
        return plain_values(values)

    def to_frame(self) -> "pd.DataFrame":
        """One row a phase, with units in the column names."""
        import pandas as pd

        rows = [{"phase": name, **asdict(phase)} for name, phase in (self.phases or {}).items()]
        return pd.DataFrame(rows, columns=["phase", *Phase.__dataclass_fields__])

    def __str__(self) -> str:
        if self.decision is None or self.phases is None or self.overtraining is None:
            return f"{one_line(self.title)}: {self.status}: {self.reason}"
        d = self.decision
        shares = "/".join(f"{100 * phase.share:.1f}" for phase in self.phases.values())
        return (
            f"{one_line(self.title)}: {self.status} ({self.law['pretraining']}, {self.law['form']})\n"
            f"  n_active {short_count(d.n_active)}, d_pretrain {short_count(d.d_pretrain)}, "
            f"d_rl {short_count(d.d_rl)}, k {significant(d.k)}\n"
            f"  shares of cost {shares} % (pre-training/RL/inference), loss {self.loss:.4f}, "
            f"{significant(self.overtraining.vs_20)} x 20 tokens per parameter"
        )


def plain_values(value: Any) -> Any:
    """Nested values for JSON: records as tables, NumPy's numbers as Python's own, those that are not finite as None."""
    if hasattr(value, "__dataclass_fields__"):
        return {key: plain_values(getattr(value, key)) for key in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_values(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
