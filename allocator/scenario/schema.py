"""The scenario file's keys as frozen types: what a planner may write, with ranges."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, PrivateAttr, Tag

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Exponent = Annotated[float, Field(gt=0, le=10)]  # published ones are below 1; beyond 10 numbers overflow
Amount = Annotated[float, Field(ge=0, le=1e60)]  # the search range ends there
Tokens = Annotated[float, Field(gt=0, le=1e60)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class _Section(BaseModel):
    # Strict takes an int for a float, but no text, bool, NaN or infinity for a number.
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    def stated(self) -> dict[str, Any]:
        """Nested values other than None, as they are: where pydantic would check, tracers pass."""
        given = ((key, value) for key, value in self if value is not None)
        return {key: value.stated() if isinstance(value, _Section) else value for key, value in given}


class Objective(_Section):
    """Least loss under one budget, or least cost at a target loss."""

    compute_flop: Positive | None = None
    chip_hours: Positive | None = None
    usd: Positive | None = None
    energy_joule: Positive | None = None
    target_loss: Positive | None = None
    currency: Literal["compute_flop", "chip_hours", "usd", "energy_joule"] | None = None


class RlLaw(_Section):
    """RL factor: (1 + R/scale_tokens)^-exponent, or (R/unit_tokens)^-exponent."""

    exponent: Exponent | None = None
    scale_tokens: Tokens | None = None
    unit_tokens: Tokens | None = None
    scale: Positive | None = None
    source: str | None = None


class TestTimeLaw(_Section):
    """Test-time factor: floor_share + (1 - floor_share) k^-exponent."""

    exponent: Exponent
    floor_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    scale: Positive | None = None
    unit: str = "samples per query"
    source: str | None = None


class Sampling(_Section):
    """Parameters of sampling: `scale` of the shared form, `guess` and `slope` of coverage, the rest of pass-at-k."""

    scale: Positive | None = None
    guess: NonNegative | None = None
    slope: NonNegative | None = None
    th0: float | None = None
    th1: Positive | None = None
    th2: Annotated[float, Field(gt=0, lt=1)] | None = None
    th3: float | None = None
    th4: float | None = None
    rl_logit_exponent: Positive | None = None
    source: str | None = None


class LawSection(_Section):
    """Which law, and how RL and test time join it."""

    pretraining: str = "besiroglu-2024"
    form: Literal["product", "additive", "shared", "coverage", "pass-at-k", "t2-loss"] = "product"
    rl: RlLaw | None = None
    test_time: TestTimeLaw | None = None
    overlap: NonNegative = 0.0
    sampling: Sampling | None = None
    link: str | None = None


class Deployment(_Section):
    """Output tokens served over the lifetime at k = 1, and the prompts that come with them."""

    tokens_per_second: Positive | None = None
    lifetime_days: Positive | None = None
    lifetime_tokens: Positive | None = None
    derate: Fraction = 1.0
    prompt_tokens_per_output_token: NonNegative = 0.0


class Efficiency(_Section):
    """Shares of the ideal roofline that a phase reaches, in compute and in memory bandwidth."""

    compute: Fraction = 1.0
    memory: Fraction = 1.0


class Roofline(_Section):
    """MFU from a roofline: a model's shape, drawn larger or smaller with N, on chips at a batch and a context."""

    model: str
    context: Positive  # tokens that a decoded token sees; length of a prompt or a training sequence
    chip: str | None = None  # by default the phase's
    chips: Positive = 1.0
    batch: Positive = 1.0  # sequences in a step
    dtype: Literal["bf16", "fp8", "fp4", "int8"] = "bf16"
    efficiency: Annotated[
        Annotated[Fraction, Tag("number")] | Annotated[Efficiency, Tag("table")],
        Discriminator(lambda value: "table" if isinstance(value, dict | Efficiency) else "number"),
    ] = 1.0

    def efficiencies(self) -> tuple[float, float]:
        """(compute, memory)."""
        if isinstance(self.efficiency, Efficiency):
            return self.efficiency.compute, self.efficiency.memory
        return self.efficiency, self.efficiency


class Pretraining(_Section):
    """Paid over useful FLOP, MFU, and unique tokens where data is repeated."""

    overhead: Positive = 1.0
    mfu: Fraction | None = None
    roofline: Roofline | None = None
    unique_tokens: Positive | None = None


class Rl(_Section):
    """FLOP per parameter and RL token, and the overhead relative to pre-training (or the MFU it comes from)."""

    flop_per_param_token: Positive = 3.0
    overhead: Positive | None = None
    mfu: Fraction | None = None
    roofline: Roofline | None = None


class Inference(_Section):
    """Overhead of decode relative to pre-training (or its MFU); prompts have their own."""

    overhead: Positive | None = None
    mfu: Fraction | None = None
    roofline: Roofline | None = None
    prefill_overhead: Positive | None = None
    prefill_mfu: Fraction | None = None


class Chip(_Section):
    """A chip by name or by figures; a figure given here wins over the catalogue's."""

    chip: str | None = None
    dtype: Literal["bf16", "fp8", "fp4", "int8"] | None = None
    mfu: Fraction | None = None
    peak_flop_per_s: Positive | None = None
    usd_per_chip_hour: Positive | None = None
    power_w: Positive | None = None


class Hardware(Chip):
    """The chip of all phases, and of single phases where they differ."""

    pretraining: Chip | None = None
    rl: Chip | None = None
    inference: Chip | None = None


class Bounds(_Section):
    """Range of a decision; an end left out is open."""

    min: Amount | None = None
    max: Amount | None = None


def _decision_tag(value: Any) -> str:
    if isinstance(value, dict | Bounds):
        return "bounds"
    return "free" if isinstance(value, str) else "number"


# A discriminator, so that a wrong value is reported once and not once for each alternative.
Choice = Annotated[
    Annotated[Amount, Tag("number")] | Annotated[Bounds, Tag("bounds")] | Annotated[Literal["free"], Tag("free")],
    Discriminator(_decision_tag),
]


class Decisions(_Section):
    """A number fixes a decision, { min, max } bounds it, "free" or nothing frees it."""

    n_active: Choice = "free"
    d_pretrain: Choice = "free"
    d_rl: Choice = "free"
    k: Choice | None = None  # None: free, or 1 where the law has no test-time term


class Scenario(_Section):
    """A planning question: a budget or a target, a law, a deployment, overheads, hardware and decisions."""

    title: str = "Untitled"
    objective: Objective
    law: LawSection = LawSection()
    deployment: Deployment | None = None
    pretraining: Pretraining = Pretraining()
    rl: Rl = Rl()
    inference: Inference = Inference()
    hardware: Hardware | None = None
    decisions: Decisions = Decisions()

    _folder: Path = PrivateAttr(default_factory=Path)

    @property
    def folder(self) -> Path:
        """Where the scenario's file lies; relative names of laws are looked up from here."""
        return self._folder

    def to_values(self) -> dict[str, Any]:
        """The scenario as plain nested values, without what was left unsaid."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    def with_defaults(self) -> dict[str, Any]:
        """Plain values with defaults filled in, except where to say a number would be to claim a source for it."""
        values = self.model_dump(mode="json", exclude_none=True)
        unsaid = self.to_values()
        values["law"] = {"pretraining": self.law.pretraining, "form": self.law.form} | unsaid.get("law", {})
        if "flop_per_param_token" not in unsaid.get("rl", {}):
            del values["rl"]["flop_per_param_token"]
        return values
