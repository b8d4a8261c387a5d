"""How sure a plan is: draws of the law and of assumed numbers carried through the optimum, and what explains them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from allocator.distributions import Distribution, assumed_ranges
from allocator.errors import AllocatorError
from allocator.law_draws import law_draws
from allocator.laws.law import Law
from allocator.optimum.batches import Plans, solve_batch
from allocator.optimum.planning import solve
from allocator.optimum.result import Notice, Plan
from allocator.scenario.assumptions import find_path, template
from allocator.scenario.rules import EITHER_OR
from allocator.scenario.schema import Scenario
from allocator.sensitivities import outcome_of, outcomes_of

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 2000
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
OVERTRAINING = (10.0, 50.0, 100.0)  # x 20 tokens per parameter; the lecture's spoken result is the last
FIGURES = ("n_active", "d_pretrain", "d_rl", "k", "loss", "cost", "tokens_per_param", "vs_20", "vs_chinchilla")
LAW_SOURCE = "law's draws"


@dataclass(frozen=True)
class Source:
    """One independent source of uncertainty: a number's distribution, or the law's draws, which move together."""

    name: str
    distribution: Distribution | None
    draws: Mapping[str, Float[np.ndarray, " draws"]] | None = None

    def values(self, probability: Float[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """Values by key path at probabilities in (0, 1)."""
        if self.draws is None:
            assert self.distribution is not None
            return {self.name: self.distribution.quantile(probability)}
        count = len(next(iter(self.draws.values())))
        rows = np.minimum((np.asarray(probability) * count).astype(int), count - 1)
        return {path: numbers[rows] for path, numbers in self.draws.items()}


@dataclass(frozen=True)
class Spread:
    """Plans over draws of some sources; nothing is dropped: a draw without a plan counts under its status."""

    sources: tuple[str, ...]
    plans: Plans
    figures: Mapping[str, Float[np.ndarray, " draws"]]

    def interval(self, figure: str) -> tuple[float, ...]:
        """Quantiles at 5, 25, 50, 75 and 95% over the draws that have a plan."""
        if figure not in self.figures:
            raise AllocatorError(f"figure: {figure!r} is not one of {', '.join(self.figures)}")
        known = self.figures[figure][self.plans.solved]
        return tuple(np.quantile(known, LEVELS).tolist()) if len(known) else (math.nan,) * len(LEVELS)

    def status_counts(self) -> dict[str, int]:
        """Draws by status."""
        names, counts = np.unique(self.plans.status.astype(str), return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True))

    def probability_above(self, limit: float) -> tuple[float, float]:
        """Probability that D/(20 N) exceeds a limit: least and most, since draws without a plan could be either."""
        above = float(np.sum(self.figures["vs_20"][self.plans.solved] > limit))
        unknown, count = float(np.sum(~self.plans.solved)), len(self.plans)
        return above / count, (above + unknown) / count


@dataclass(frozen=True)
class Uncertainty:
    """Intervals with the law's draws only and with assumed ranges too, and what the spread comes from."""

    plan: Plan
    law_only: Spread | None  # None where the law has no draws
    whole: Spread
    ranges: Mapping[str, Distribution]
    warnings: tuple[Notice, ...]
    seed: int

    def to_frame(self) -> "pd.DataFrame":
        """One row a figure and kind of interval: the plan's own value and quantiles."""
        import pandas as pd

        own = outcomes_of_plan(self.plan)
        rows = []
        for kind, spread in self.spreads().items():
            for figure in FIGURES:
                quantiles = {f"q{round(100 * level):02d}": value
                             for level, value in zip(LEVELS, spread.interval(figure), strict=True)}  # fmt: skip
                rows.append({"figure": figure, "sources": kind, "plan": own[figure], **quantiles})
        return pd.DataFrame(rows)

    def spreads(self) -> dict[str, Spread]:
        """Both kinds of draws by name."""
        if self.law_only is None:
            return {"assumed ranges": self.whole}
        law = {"law": self.law_only}
        return law if self.whole is self.law_only else law | {"law and assumed ranges": self.whole}

    def __str__(self) -> str:
        lines = []
        for kind, spread in self.spreads().items():
            low, _, mid, _, high = spread.interval("vs_20")
            lines.append(
                f"over-training {mid:.3g} x 20 N, 90% {low:.3g} to {high:.3g} ({kind}, {len(spread.plans)} draws)"
            )
        return "\n".join(lines)


def sources_of(
    scenario: Scenario,
    ranges: Mapping[str, Distribution] | None = None,
    *,
    assumed: bool = True,
    law: Law | None = None,
) -> list[Source]:
    """Independent sources of a scenario's uncertainty: its law's draws, then one a number with a range."""
    draws = law_draws(scenario) if law is None else None
    known: dict[str, Distribution] = {}
    if assumed and law is None:
        known |= assumed_ranges(scenario)
    given = {find_path(scenario, name): distribution for name, distribution in (ranges or {}).items()}
    # A given range replaces its number's alternatives, as a stated key does.
    for group in EITHER_OR:
        if any(path in option for option in group for path in given):
            known = {path: d for path, d in known.items() if not any(path in option for option in group)}
    known |= given
    # Its ends are lawful before anything is drawn from it; those of a log-normal are drawn themselves.
    for path, distribution in given.items():
        for end in distribution.ends() if distribution.kind != "lognormal" else ():
            template(scenario, {path: end})
    found = [Source(LAW_SOURCE, None, _sorted(draws))] if draws is not None else []
    return found + [Source(path, distribution) for path, distribution in known.items()]


def _sorted(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws in the order of a parameter, so that a probability means something smooth."""
    moving = (numbers for path, numbers in draws.items() if np.ptp(numbers) > 0 and path[-1] != "E")
    order = np.argsort(next(moving, next(iter(draws.values()))))
    return {path: numbers[order] for path, numbers in draws.items()}


def uncertainty(
    scenario: Scenario,
    *,
    ranges: Mapping[str, Distribution] | None = None,
    assumed: bool = True,
    draws: int = DRAWS,
    law: Law | None = None,
    seed: int = 0,
) -> Uncertainty:
    """Carry the law's draws, and ranges of assumed numbers, to the plan; every draw is solved anew.

    `ranges` by key path go before the assumed ones of `allocator.distributions`, which `assumed=False` leaves out.
    Raises `AllocatorError` where nothing is uncertain, and where the scenario itself has no plan.
    """
    if draws < 2 or draws > 1_000_000:
        raise AllocatorError(f"draws: got {draws}; must be from 2 to 1,000,000")
    plan = solve(scenario, law=law, seed=seed)
    sources = sources_of(scenario, ranges, assumed=assumed, law=law)
    if not sources:
        raise AllocatorError(
            f"uncertainty: {scenario.law.pretraining} has no draws and no number has a range; name a fit with draws "
            "(allocator catalog laws) or give a range"
        )
    warnings = []
    law_sources = [source for source in sources if source.draws is not None]
    if not law_sources and law is None:
        text = "no draws of this law are on record, so its parameters are held as if certain; chinchilla-epoch has some"
        warnings.append(Notice("law_without_draws", "law.pretraining", scenario.law.pretraining, text))
    random = np.random.default_rng(seed)
    probability = random.random((len(sources), draws))
    names = [source.name for source in sources]
    rows = [names.index(source.name) for source in law_sources]
    law_only = _spread(scenario, law_sources, probability[rows], law, seed) if law_sources else None
    whole = law_only if law_only is not None and len(sources) == len(law_sources) else None
    whole = whole or _spread(scenario, sources, probability, law, seed)
    known = {source.name: source.distribution for source in sources if source.distribution is not None}
    return Uncertainty(plan, law_only, whole, known, tuple(warnings), seed)


def values_of(sources: list[Source], probability: Float[np.ndarray, "sources draws"]) -> dict[str, np.ndarray]:
    """Values by key path of all sources at probabilities, a row a source."""
    found: dict[str, np.ndarray] = {}
    for source, row in zip(sources, probability, strict=True):
        found |= source.values(row)
    return found


def _spread(scenario: Scenario, sources: list[Source], probability: np.ndarray, law: Law | None, seed: int) -> Spread:
    plans = solve_batch(scenario, values_of(sources, probability), law=law, seed=seed)
    return Spread(tuple(source.name for source in sources), plans, figures_of(plans))


def figures_of(plans: Plans) -> dict[str, np.ndarray]:
    """The figures whose spread is told."""
    found = outcomes_of(plans)
    found["vs_20"] = plans.tokens_per_param / 20
    found["vs_chinchilla"] = np.asarray(plans.figures.decision.d_pretrain) / plans.chinchilla_tokens
    return found


def outcomes_of_plan(plan: Plan) -> dict[str, float]:
    """The same figures of one plan."""
    assert plan.overtraining is not None
    own: dict[str, Any] = {name: outcome_of(plan, name) for name in FIGURES if not name.startswith("vs_")}
    return own | {"vs_20": plan.overtraining.vs_20, "vs_chinchilla": plan.overtraining.vs_chinchilla}
