"""Where the spread of a plan comes from, and which measurements would pay."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from allocator.errors import AllocatorError
from allocator.laws.law import Law
from allocator.optimum.batches import solve_batch
from allocator.problem import Decision
from allocator.regrets import regrets_of
from allocator.scenario.assumptions import assumptions
from allocator.scenario.schema import Scenario
from allocator.sensitivities import OUTCOMES
from allocator.uncertainties import Source, figures_of, values_of

if TYPE_CHECKING:
    import pandas as pd

SAMPLES = 256  # of Sobol's sequence; a power of two
WORLDS = 256
MOST_WITHOUT_PLAN = 0.2  # of draws; beyond it a variance says nothing


@dataclass(frozen=True)
class VarianceShare:
    """Share of the variance of log outcome that a source explains alone, and with all its interactions."""

    source: str
    first_order: float
    total: float


@dataclass(frozen=True)
class VarianceShares:
    """Sobol's indices of one outcome."""

    outcome: str
    rows: tuple[VarianceShare, ...]
    evaluations: int
    without_plan: int  # evaluations without one, which stand at the median

    def to_frame(self) -> "pd.DataFrame":
        """One row a source."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.rows])


@dataclass(frozen=True)
class Measurement:
    """What knowing some sources before the plan is made would leave of the expected regret."""

    sources: tuple[str, ...]
    expected_regret: float
    saved: float  # of the budget, in expectation
    standard_error: float  # of `saved`


@dataclass(frozen=True)
class Information:
    """Expected regret of the plan made now, and what each measurement or pair of them would save."""

    expected_regret: float
    rows: tuple[Measurement, ...]  # most saved first
    worlds: int
    without_plan: int

    def to_frame(self) -> "pd.DataFrame":
        """One row a measurement or pair."""
        import pandas as pd

        return pd.DataFrame([vars(row) | {"sources": " + ".join(row.sources)} for row in self.rows])

    def best_pair(self) -> Measurement | None:
        """The two measurements that save most."""
        return next((row for row in self.rows if len(row.sources) == 2), None)


def variance_shares(
    scenario: Scenario,
    sources: list[Source],
    *,
    outcome: str = "tokens_per_param",
    samples: int = SAMPLES,
    law: Law | None = None,
    seed: int = 0,
) -> VarianceShares:
    """Sobol's indices (scipy.stats.sobol_indices) of the log of an outcome; evaluations without a plan are counted."""
    if outcome not in (*OUTCOMES, "vs_20", "vs_chinchilla"):
        raise AllocatorError(f"outcome: {outcome!r} is not one of {', '.join(OUTCOMES)}, vs_20, vs_chinchilla")
    if not sources:
        raise AllocatorError("sources: none is given, so nothing varies")
    if samples < 2 or samples & (samples - 1):
        raise AllocatorError(f"samples: got {samples}; must be a power of two")
    missing = 0
    evaluations = 0

    def log_outcome(probability: np.ndarray) -> np.ndarray:
        nonlocal missing, evaluations
        flat = np.clip(probability.reshape(len(sources), -1), 1e-9, 1 - 1e-9)
        plans = solve_batch(scenario, values_of(sources, flat), law=law, seed=seed)
        with np.errstate(divide="ignore"):
            told = np.log(figures_of(plans)[outcome])
        known = plans.solved
        if np.isinf(told[known]).any():
            raise AllocatorError(
                f"{outcome}: is 0 in {np.mean(np.isinf(told[known])):.0%} of the plans, whose log has no variance"
            )
        missing, evaluations = missing + int((~known).sum()), evaluations + len(told)
        if known.mean() < 1 - MOST_WITHOUT_PLAN:
            raise AllocatorError(
                f"{outcome}: {np.mean(~known):.0%} of the draws have no plan: a variance would say nothing"
            )
        return np.where(known, told, np.median(told[known])).reshape(probability.shape[1:])

    if len(sources) == 1:
        return VarianceShares(outcome, (VarianceShare(sources[0].name, 1.0, 1.0),), 0, 0)
    dists = [stats.uniform()] * len(sources)
    found = stats.sobol_indices(func=log_outcome, n=samples, dists=dists, rng=np.random.default_rng(seed))
    rows = [VarianceShare(source.name, float(first), float(total)) for source, first, total
            in zip(sources, found.first_order, found.total_order, strict=True)]  # fmt: skip
    rows.sort(key=lambda row: -row.total if math.isfinite(row.total) else math.inf)
    return VarianceShares(outcome, tuple(rows), evaluations, missing)


def value_of_information(
    scenario: Scenario, sources: list[Source], *, worlds: int = WORLDS, law: Law | None = None, seed: int = 0
) -> Information:
    """Expected regret of planning now, and what knowing each source, or two, before planning would save of it.

    In each drawn world a plan is made from what is known there, the rest taken at the middle of its distribution and
    the law as it was estimated; its regret is the extra budget that it needs, in that world, over the best plan for
    the loss that it reaches.
    """
    random = np.random.default_rng(seed)
    truth = np.clip(random.random((len(sources), worlds)), 1e-9, 1 - 1e-9)
    middle = _middle(scenario, sources)
    known_sets: list[tuple[int, ...]] = [()]
    known_sets += [subset for size in (1, 2) for subset in combinations(range(len(sources)), size)]
    drawn = values_of(sources, truth)
    believed = {path: [] for path in drawn}
    for subset in known_sets:
        known = {path for i in subset for path in sources[i].values(truth[i, :1])}
        for path, numbers in drawn.items():
            believed[path].append(numbers if path in known else np.full(worlds, middle[path]))
    beliefs = solve_batch(
        scenario, {path: np.concatenate(parts) for path, parts in believed.items()}, law=law, seed=seed
    )
    world = solve_batch(scenario, drawn, law=law, seed=seed)
    decisions = np.stack([np.asarray(x) for x in beliefs.figures.decision]).reshape(4, len(known_sets), worlds)
    regrets = np.stack([regrets_of(world, Decision(*decisions[:, i])) for i in range(len(known_sets))])
    told = np.isfinite(regrets).all(axis=0)
    if told.sum() < 2:
        raise AllocatorError("value of information: hardly any drawn world has a plan")
    regrets = np.maximum(regrets[:, told], 0.0)
    now = float(regrets[0].mean())
    rows = []
    for subset, own in zip(known_sets[1:], regrets[1:], strict=True):
        saved = regrets[0] - own
        names = tuple(sources[i].name for i in subset)
        error = float(saved.std(ddof=1) / math.sqrt(len(saved)))
        rows.append(Measurement(names, float(own.mean()), float(saved.mean()), error))
    rows.sort(key=lambda row: -row.saved)
    return Information(now, tuple(rows), worlds, int((~told).sum()))


def _middle(scenario: Scenario, sources: list[Source]) -> Mapping[str, float]:
    """What is believed without a measurement: medians, and the law's own parameters."""
    known = assumptions(scenario)
    half = values_of(sources, np.full((len(sources), 1), 0.5))
    lawful = {path for source in sources if source.draws is not None for path in source.draws}
    return {path: known[path] if path in lawful else float(numbers[0]) for path, numbers in half.items()}
