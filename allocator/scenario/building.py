"""A scenario turned into the problem that the optimiser solves, with what the plan must tell about its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from allocator import catalog
from allocator.errors import InfeasibleError
from allocator.laws.checks import is_known
from allocator.laws.law import Law, PretrainingLaw
from allocator.problem import DECISIONS, Problem, make_problem
from allocator.scenario.building_costs import build_costs, check_size, roofline_size_limit
from allocator.scenario.building_laws import build_law, build_pretraining
from allocator.scenario.forms import least_k, uses_k
from allocator.scenario.schema import Bounds, Scenario

_ASSUMED_TERMS = ("exponent", "scale_tokens", "unit_tokens", "floor_share", "scale")


@dataclass(frozen=True)
class Built:
    """A problem and the facts about it that a plan reports."""

    problem: Problem
    law_record: catalog.LawRecord | None  # None for a user's law
    pretraining: PretrainingLaw | None
    assumed: tuple[str, ...]  # key paths of numbers that no source gives
    fixed: dict[str, float]  # decisions that the scenario sets
    objective_kind: str
    objective_value: float
    currency: str
    memory_limit: float | None  # largest N that the rooflines' chips hold


def build(
    scenario: Scenario, law: Law | None = None, *, limit: bool = True, parameters: Mapping[str, Any] | None = None
) -> Built:
    """Build the problem; `law` replaces the scenario's own [law] section.

    `parameters` go before those of the pre-training law's file. Without `limit` a target that the law cannot reach is
    let pass: given decisions can be scored all the same. The scenario's numbers and the parameters may be tracers;
    what hangs on their values is then not checked, and is the caller's to look at.
    """
    record, pretraining = None, None
    if law is None:
        record = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
        pretraining = build_pretraining(scenario, record, parameters)
        law = build_law(scenario, pretraining)
    costs = build_costs(scenario)
    kind, value, currency = objective_of(scenario)
    if limit and kind == "target_loss" and is_known(value) and is_known(law.floor) and value <= law.floor:
        raise InfeasibleError(
            f"objective.target_loss: {value:g} must be > {law.floor:g}, the law's floor, which no budget goes below",
            {"path": "objective.target_loss", "value": float(law.floor)},
        )
    fixed, bounds = _decisions(scenario, has_own_law=record is None)
    memory_limit = roofline_size_limit(scenario) if limit else None
    if memory_limit is not None:
        least_n = fixed.get("n_active", bounds.get("n_active", (None, None))[0])
        if is_known(memory_limit) and (least_n is None or is_known(least_n)):
            check_size(scenario, least_n)
        if "n_active" not in fixed:
            low, high = bounds.get("n_active", (None, None))
            bounds["n_active"] = (low, memory_limit if high is None else _least(high, memory_limit))
    target = kind == "target_loss" and limit
    problem = make_problem(
        law,
        costs,
        budget=None if target else value,
        target_loss=value if target else None,
        currency=currency,
        fixed=fixed,
        bounds=bounds,
    )
    assumed = _assumed(scenario, record is None)
    return Built(problem, record, pretraining, assumed, fixed, kind, value, currency, memory_limit)


def objective_of(scenario: Scenario) -> tuple[str, float, str]:
    """(kind, value, currency in which cost is counted)."""
    objective = scenario.objective
    if objective.target_loss is not None:
        return "target_loss", objective.target_loss, objective.currency or "compute_flop"
    for kind in ("compute_flop", "chip_hours", "usd", "energy_joule"):
        value = getattr(objective, kind)
        if value is not None:
            return kind, value, kind
    raise AssertionError("a scenario has an objective")


def fixed_decisions(scenario: Scenario) -> dict[str, float]:
    """Decisions that the scenario sets, and those that its law or deployment leaves no choice about."""
    return _decisions(scenario, has_own_law=False)[0]


def _decisions(scenario: Scenario, *, has_own_law: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    fixed: dict[str, Any] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    for name in DECISIONS:
        choice = getattr(scenario.decisions, name)
        if isinstance(choice, Bounds):
            ends = choice.min, choice.max
            if all(end is not None and is_known(end) for end in ends) and choice.min == choice.max:
                fixed[name] = choice.min
            else:
                bounds[name] = ends
        elif choice is not None and not isinstance(choice, str):
            fixed[name] = choice
    law = scenario.law
    if not has_own_law and law.rl is None:
        fixed["d_rl"] = 0.0
    # What matters is whether a term is there: a traced one is.
    section = jax.tree.map(lambda value: value if is_known(value) or isinstance(value, str) else 1.0, law.stated())
    no_choice = scenario.deployment is None or (not has_own_law and not uses_k(section))
    if scenario.decisions.k is None and no_choice:
        fixed["k"] = 1.0
    least = None if has_own_law else least_k(section)
    if least is not None and "k" not in fixed:
        low, high = bounds.get("k", (None, None))
        bounds["k"] = (least if low is None else _largest(low, least), high)
    return fixed, bounds


def _least(a: Any, b: Any) -> Any:
    return min(a, b) if is_known(a) and is_known(b) else jnp.minimum(a, b)


def _largest(a: Any, b: Any) -> Any:
    return max(a, b) if is_known(a) and is_known(b) else jnp.maximum(a, b)


def _assumed(scenario: Scenario, user_law: bool) -> tuple[str, ...]:
    """Numbers that no paper gives: a stated source, or a figure of the user's own, clears them."""
    paths = []
    law = scenario.law
    if not user_law:
        for name in ("rl", "test_time"):
            terms = getattr(law, name)
            if terms is not None and terms.source is None:
                paths += [f"law.{name}.{key}" for key in _ASSUMED_TERMS if key in terms.model_fields_set]
        paths += [] if is_known(law.overlap) and law.overlap == 0 else ["law.overlap"]
        if law.sampling is not None and law.sampling.source is None:
            paths += [f"law.sampling.{key}" for key in sorted(law.sampling.model_fields_set)]
    hardware = scenario.hardware
    if (user_law or law.rl is not None) and "flop_per_param_token" not in scenario.rl.model_fields_set:
        paths.append("rl.flop_per_param_token")
    for name, used in (("rl", user_law or law.rl is not None), ("inference", scenario.deployment is not None)):
        section = getattr(scenario, name)
        phase = getattr(hardware, name) if hardware else None
        if used and all(x is None for x in (section.overhead, section.mfu, section.roofline, phase and phase.mfu)):
            paths.append(f"{name}.overhead")
    return tuple(paths)
