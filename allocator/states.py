"""States of the world: what demand and law may turn out to be, and how likely each is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from allocator.errors import ScenarioError
from allocator.law_draws import law_draws
from allocator.scenario.schema import Scenario

LIFETIME = "deployment.lifetime_tokens"
DEMAND = (LIFETIME, "deployment.tokens_per_second", "deployment.derate")  # 0 is lawful here: nothing is served
RULES = ("gauss-hermite", "equal-probability")
SUM = 1e-9  # by which probabilities may miss 1


@dataclass(frozen=True, eq=False)
class States:
    """Numbers of a scenario by key path, one entry a state, and the states' probabilities (None: all alike).

    Keys are those of `solve_batch`: "deployment.lifetime_tokens", "law.rl.exponent", "law.pretraining.alpha", ...
    """

    values: Mapping[str, Any]
    probability: Any = None

    def __post_init__(self):
        if not isinstance(self.values, Mapping) or not self.values:
            raise ScenarioError(["states.values: must name at least one key, e.g. deployment.lifetime_tokens"])
        values = {str(path): _numbers(f"states.values[{path!r}]", value) for path, value in self.values.items()}
        counts = {len(numbers) for numbers in values.values()}
        if len(counts) > 1:
            told = ", ".join(f"{path} has {len(numbers)}" for path, numbers in values.items())
            raise ScenarioError([f"states.values: keys must have as many entries as each other: {told}"])
        count = counts.pop()
        if self.probability is None:
            probability = np.full(count, 1 / count)
        else:
            probability = _numbers("states.probability", self.probability)
            if len(probability) != count:
                raise ScenarioError([f"states.probability: has {len(probability)} entries; must have {count}, "
                                     "one a state"])  # fmt: skip
            if (probability < 0).any():
                i = int(np.argmin(probability))
                raise ScenarioError([f"states.probability[{i}]: got {probability[i]:g}; must be >= 0"])
            if abs(probability.sum() - 1) > SUM:
                raise ScenarioError([f"states.probability: sums to {probability.sum():.12g}; must sum to 1"])
            probability = probability / probability.sum()
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "probability", probability)

    def __len__(self) -> int:
        return len(self.probability)

    def row(self, i: int) -> dict[str, float]:
        """The numbers of one state."""
        return {path: float(numbers[i]) for path, numbers in self.values.items()}

    def mean(self) -> dict[str, float]:
        """Means by key, with which a plan is made that takes the mean for certain.

        Arithmetic means; coefficients of a pre-training law (A, B, p, q), which go with its exponents, in logs.
        """
        return {path: _mean(path, numbers, self.probability) for path, numbers in self.values.items()}


def lognormal_demand(
    median: float, sigma: float, *, points: int = 7, rule: str = "equal-probability", key: str = LIFETIME
) -> States:
    """States of a demand whose log is normal around log `median` with standard deviation `sigma`.

    `rule` "equal-probability" takes the medians of `points` bands of equal probability; "gauss-hermite" takes the nodes
    and weights that integrate smooth functions best, which reach far into the tails with little probability.
    """
    for name, number in (("median", median), ("sigma", sigma)):
        lawful = isinstance(number, int | float | np.number) and not isinstance(number, bool) and math.isfinite(number)
        if not lawful or number < 0 or (number == 0 and name == "median"):
            raise ScenarioError([f"{name}: got {number!r}; must be {'> 0' if name == 'median' else '>= 0'} and finite"])
    if isinstance(points, bool) or not isinstance(points, int | np.integer) or not 1 <= points <= 200:
        raise ScenarioError([f"points: got {points!r}; must be an integer from 1 to 200"])
    if rule not in RULES:
        raise ScenarioError([f"rule: got {rule!r}; must be one of {', '.join(RULES)}"])
    if key not in DEMAND:
        raise ScenarioError([f"key: got {key!r}; must be one of {', '.join(DEMAND)}"])
    if rule == "gauss-hermite":
        nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    else:
        from scipy.special import ndtri

        nodes, weights = ndtri((np.arange(points) + 0.5) / points), np.ones(points)
    return States({key: median * np.exp(sigma * nodes)}, weights / weights.sum())


def law_states(scenario: Scenario, *, draws: int = 32, seed: int = 0) -> States:
    """States of the parameters of a scenario's pre-training law: some of its bootstrap's draws, all equally likely."""
    known = law_draws(scenario)
    if known is None:
        raise ScenarioError([f"law.pretraining: {scenario.law.pretraining} has no draws.csv, so nothing says how "
                             "uncertain it is; a fit of ours has one"])  # fmt: skip
    count = len(next(iter(known.values())))
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or not 1 <= draws <= count:
        raise ScenarioError([f"draws: got {draws!r}; must be an integer from 1 to {count}, which is all there are"])
    chosen = np.sort(np.random.default_rng(seed).choice(count, draws, replace=False))
    return States({path: numbers[chosen] for path, numbers in known.items()})


def crossed(a: States, b: States) -> States:
    """Every state of `a` with every state of `b`, taken to be independent."""
    both = sorted(set(a.values) & set(b.values))
    if both:
        raise ScenarioError([f"{', '.join(both)}: given by both sides; states can be crossed only in different keys"])
    values: dict[str, Float[np.ndarray, " states"]] = {path: np.repeat(x, len(b)) for path, x in a.values.items()}
    values |= {path: np.tile(x, len(a)) for path, x in b.values.items()}
    return States(values, np.outer(a.probability, b.probability).ravel())


def _mean(path: str, numbers: np.ndarray, probability: np.ndarray) -> float:
    if np.ptp(numbers) == 0:  # no rounding where there is nothing to average
        return float(numbers[0])
    if path in ("law.pretraining.A", "law.pretraining.B", "law.pretraining.p", "law.pretraining.q"):
        return float(np.exp(probability @ np.log(numbers)))
    return float(probability @ numbers)


def _numbers(label: str, value: Any) -> Float[np.ndarray, " states"]:
    try:
        numbers = np.array(value, float)  # a copy, which nobody else can change
    except (TypeError, ValueError):
        raise ScenarioError([f"{label}: must be numbers, got {value!r}"]) from None
    if numbers.ndim != 1 or not len(numbers):
        raise ScenarioError([f"{label}: must be a list of at least one number, got an array of shape {numbers.shape}"])
    if not np.isfinite(numbers).all():
        i = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ScenarioError([f"{label}: entry {i} is {numbers[i]}; must be a finite number"])
    numbers.setflags(write=False)
    return numbers
