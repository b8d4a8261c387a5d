"""What an assumption may be: ranges with a middle, log-normal and uniform distributions, as quantile functions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from allocator.errors import AllocatorError
from allocator.scenario.assumptions import assumptions
from allocator.scenario.schema import Scenario

LARGEST_SIGMA = 20.0  # of a log: beyond it draws leave what numbers hold


@dataclass(frozen=True)
class Distribution:
    """A quantity > 0: `quantile` takes probabilities in (0, 1) to values in the quantity's own unit."""

    kind: str  # range, lognormal, uniform or loguniform
    numbers: tuple[float, ...]  # low, mid, high | median, sigma of the log | low, high
    source: str = "stated"

    def __post_init__(self):
        wanted = {"range": 3, "lognormal": 2, "uniform": 2, "loguniform": 2}
        if self.kind not in wanted:
            raise AllocatorError(f"distribution: {self.kind!r} is not one of {', '.join(wanted)}")
        if len(self.numbers) != wanted[self.kind]:
            raise AllocatorError(f"{self}: {self.kind} takes {wanted[self.kind]} numbers, got {len(self.numbers)}")
        if not all(math.isfinite(number) for number in self.numbers):
            raise AllocatorError(f"{self}: its numbers must be finite")
        if self.kind == "lognormal":
            if self.numbers[0] <= 0 or not 0 <= self.numbers[1] <= LARGEST_SIGMA:
                raise AllocatorError(f"{self}: the median must be > 0 and sigma >= 0 and <= {LARGEST_SIGMA:g}")
        elif self.numbers[0] <= 0:
            raise AllocatorError(f"{self}: its low end must be > 0")
        elif list(self.numbers) != sorted(self.numbers):
            raise AllocatorError(f"{self}: its numbers must rise")

    def quantile(self, probability: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Values at probabilities; a range is triangular in logs, so that it never leaves its ends."""
        u = np.asarray(probability, float)
        if self.kind == "uniform":
            low, high = self.numbers
            return low + u * (high - low)
        if self.kind == "lognormal":
            median, sigma = self.numbers
            return median * np.exp(sigma * ndtri(u))
        low, *mid, high = np.log(self.numbers)
        if not mid or low == high:
            return np.exp(low + u * (high - low))
        share = (mid[0] - low) / (high - low)
        rising = low + np.sqrt(u * share) * (high - low)
        falling = high - np.sqrt((1 - u) * (1 - share)) * (high - low)
        return np.exp(np.where(u < share, rising, falling))

    def ends(self) -> tuple[float, float]:
        """The ends of a range, or the 5% and 95% quantiles of what has none."""
        if self.kind == "lognormal":
            low, high = self.quantile(np.array([0.05, 0.95])).tolist()
            return low, high
        return self.numbers[0], self.numbers[-1]

    def __str__(self) -> str:
        numbers = ",".join(f"{number:g}" for number in self.numbers)
        return numbers if self.kind == "range" else f"{self.kind}:{numbers}"


def parse(text: str) -> Distribution:
    """A distribution from `LOW,MID,HIGH`, `lognormal:MEDIAN,SIGMA`, `uniform:LOW,HIGH` or `loguniform:LOW,HIGH`."""
    kind, colon, rest = text.partition(":")
    kind, numbers = (kind.strip(), rest) if colon else ("range", text)
    try:
        return Distribution(kind, tuple(float(part) for part in numbers.split(",")))
    except ValueError:
        raise AllocatorError(f"{text}: must read LOW,MID,HIGH or KIND:NUMBER,NUMBER") from None


def parse_all(texts: list[str]) -> dict[str, Distribution]:
    """Distributions by key path from texts `KEY=DISTRIBUTION`."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise AllocatorError(f"{text}: must read KEY=LOW,MID,HIGH or KEY=KIND:NUMBER,NUMBER")
        try:
            found[key.strip()] = parse(value.strip())
        except AllocatorError as error:
            raise AllocatorError(f"{key.strip()}: {error}") from None
        if len(found) < len(texts[: texts.index(text) + 1]):
            raise AllocatorError(f"{key.strip()}: has two ranges")
    return found


# No paper gives these numbers: ranges in which published slopes and measurements of single systems lie.
_RL_SLOPES = "assumed: RL slopes k(N) of arXiv 2509.25300 at 7B to 72B are .047 to .116"
_MEASURED = "assumed: measured MFUs of RL and decode are a half to a seventh of pre-training's"
ASSUMED: Mapping[str, tuple[tuple[float, float, float], str]] = {
    "law.rl.exponent": ((0.04, 0.088, 0.135), _RL_SLOPES),
    "law.rl.scale_tokens": ((1e8, 1e9, 1e11), "assumed"),
    "law.test_time.exponent": ((0.03, 0.088, 0.2), "assumed"),
    "rl.overhead": ((2.0, 3.0, 7.0), _MEASURED),
    "inference.overhead": ((2.0, 3.0, 7.0), _MEASURED),
}
DEMAND_SIGMA = 0.7  # of the log of demand: within a factor of two in two cases of three; assumed
_DEMAND = "assumed: off by more than a factor of two in one case of three"


def assumed_ranges(scenario: Scenario) -> dict[str, Distribution]:
    """Ranges of the numbers that no source gives and that the scenario's plan rests on, its demand among them."""
    known = assumptions(scenario)
    terms = {"law.rl": scenario.law.rl, "law.test_time": scenario.law.test_time}
    ranges = {}
    for path, (numbers, source) in ASSUMED.items():
        term = terms.get(path.rpartition(".")[0])
        sourced = term is not None and term.source is not None
        fixed_k = path == "law.test_time.exponent" and scenario.decisions.k is not None and _fixed(scenario)
        if path in known and not sourced and not fixed_k:
            ranges[path] = Distribution("range", numbers, source)
    for path in ("deployment.tokens_per_second", "deployment.lifetime_tokens"):
        if path in known:
            ranges[path] = Distribution("lognormal", (known[path], DEMAND_SIGMA), _DEMAND)
    return ranges


def _fixed(scenario: Scenario) -> bool:
    return isinstance(scenario.decisions.k, float)
