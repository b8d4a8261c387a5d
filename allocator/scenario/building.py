"""A scenario turned into the problem that the optimiser solves, with what the plan must tell about its parts."""

from dataclasses import dataclass
from math import nan
from typing import Any

from allocator import catalog
from allocator.costs import (
    PRETRAIN_FLOP_PER_PARAM_TOKEN,
    SERVE_FLOP_PER_PARAM_TOKEN,
    Constant,
    Costs,
    Machine,
    PhaseCost,
)
from allocator.errors import InfeasibleError
from allocator.laws.law import Law, PretrainingLaw
from allocator.problem import DECISIONS, Problem, make_problem
from allocator.scenario.building_laws import build_law, build_pretraining
from allocator.scenario.forms import least_k, uses_k
from allocator.scenario.machines import machine_figures
from allocator.scenario.schema import Bounds, Hardware, Scenario
from allocator.units import SECONDS_PER_DAY

_ASSUMED_TERMS = ("exponent", "scale_tokens", "unit_tokens", "floor_share", "scale")
DEFAULT_OVERHEAD = 3.0  # the lecture's, 01:27; measured range 2 to 7


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


def build(scenario: Scenario, law: Law | None = None, *, limit: bool = True) -> Built:
    """Build the problem; `law` replaces the scenario's own [law] section.

    Without `limit` a target that the law cannot reach is let pass: given decisions can be scored all the same.
    """
    record, pretraining = None, None
    if law is None:
        record = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
        pretraining = build_pretraining(scenario, record)
        law = build_law(scenario, pretraining)
    costs = build_costs(scenario)
    kind, value, currency = objective_of(scenario)
    if limit and kind == "target_loss" and value <= law.floor:
        raise InfeasibleError(
            f"objective.target_loss: {value:g} must be > {law.floor:g}, the law's floor, which no budget goes below",
            {"path": "objective.target_loss", "value": float(law.floor)},
        )
    fixed, bounds = _decisions(scenario, has_own_law=record is None)
    problem = make_problem(
        law,
        costs,
        budget=None if kind == "target_loss" and limit else value,
        target_loss=value if kind == "target_loss" and limit else None,
        currency=currency,
        fixed=fixed,
        bounds=bounds,
    )
    return Built(problem, record, pretraining, _assumed(scenario, record is None), fixed, kind, value, currency)


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


def build_costs(scenario: Scenario) -> Costs:
    """Cost functions of the scenario's phases."""
    hardware = scenario.hardware
    phases = {name: getattr(hardware, name) if hardware else None for name in ("pretraining", "rl", "inference")}
    pretrain_mfu = _first(
        scenario.pretraining.mfu, phases["pretraining"] and phases["pretraining"].mfu, hardware and hardware.mfu
    )

    def overhead(given: float | None, *mfus: float | None) -> Constant:
        mfu = _first(*mfus)
        if mfu is not None and pretrain_mfu is not None:
            return Constant(pretrain_mfu / mfu)
        return Constant(DEFAULT_OVERHEAD if given is None else given)

    rl, inference = scenario.rl, scenario.inference
    decode = overhead(inference.overhead, inference.mfu, phases["inference"] and phases["inference"].mfu)
    serving = _machine(hardware, "inference")
    # Prefill is compute bound like pre-training, so without a figure of its own it runs at the pre-training MFU.
    prefill = overhead(inference.prefill_overhead or 1.0, inference.prefill_mfu)
    tokens = lifetime_tokens(scenario)
    prompts = scenario.deployment.prompt_tokens_per_output_token * tokens if scenario.deployment else 0.0
    return Costs(
        pretrain=PhaseCost(
            PRETRAIN_FLOP_PER_PARAM_TOKEN,
            Constant(scenario.pretraining.overhead),
            _machine(hardware, "pretraining"),
        ),
        rl=PhaseCost(
            rl.flop_per_param_token,
            overhead(rl.overhead, rl.mfu, phases["rl"] and phases["rl"].mfu),
            _machine(hardware, "rl"),
        ),
        decode=PhaseCost(SERVE_FLOP_PER_PARAM_TOKEN, decode, serving),
        prefill=PhaseCost(SERVE_FLOP_PER_PARAM_TOKEN, prefill, serving),
        lifetime_tokens=tokens,
        prompt_tokens=prompts,
        pretrain_mfu=pretrain_mfu,
    )


def lifetime_tokens(scenario: Scenario) -> float:
    """Output tokens served over the lifetime at k = 1, derated; 0 without a deployment."""
    deployment = scenario.deployment
    if deployment is None:
        return 0.0
    if deployment.lifetime_tokens is not None:
        return deployment.derate * deployment.lifetime_tokens
    assert deployment.tokens_per_second is not None
    assert deployment.lifetime_days is not None
    return deployment.derate * deployment.tokens_per_second * SECONDS_PER_DAY * deployment.lifetime_days


def _first(*values: Any) -> Any:
    """First value that is given; 0 counts as given."""
    return next((value for value in values if value is not None), None)


def _machine(hardware: Hardware | None, phase: str) -> Machine:
    if hardware is None:
        return Machine()
    figures = machine_figures(hardware.model_dump(exclude_none=True), phase)
    return Machine(**{name: nan if figure is None else float(figure) for name, figure in figures.items()})


def fixed_decisions(scenario: Scenario) -> dict[str, float]:
    """Decisions that the scenario sets, and those that its law or deployment leaves no choice about."""
    return _decisions(scenario, has_own_law=False)[0]


def _decisions(scenario: Scenario, *, has_own_law: bool) -> tuple[dict[str, float], dict[str, Any]]:
    fixed: dict[str, float] = {}
    bounds: dict[str, tuple[float | None, float | None]] = {}
    for name in DECISIONS:
        choice = getattr(scenario.decisions, name)
        if isinstance(choice, Bounds):
            if choice.min is not None and choice.min == choice.max:
                fixed[name] = choice.min
            else:
                bounds[name] = (choice.min, choice.max)
        elif isinstance(choice, float):
            fixed[name] = choice
    law = scenario.law
    if not has_own_law and law.rl is None:
        fixed["d_rl"] = 0.0
    section = law.model_dump()
    no_choice = scenario.deployment is None or (not has_own_law and not uses_k(section))
    if scenario.decisions.k is None and no_choice:
        fixed["k"] = 1.0
    least = None if has_own_law else least_k(section)
    if least is not None and "k" not in fixed:
        low, high = bounds.get("k", (None, None))
        bounds["k"] = (max(low or least, least), high)
    return fixed, bounds


def _assumed(scenario: Scenario, user_law: bool) -> tuple[str, ...]:
    """Numbers that no paper gives: a stated source, or a figure of the user's own, clears them."""
    paths = []
    law = scenario.law
    if not user_law:
        for name in ("rl", "test_time"):
            terms = getattr(law, name)
            if terms is not None and terms.source is None:
                paths += [f"law.{name}.{key}" for key in _ASSUMED_TERMS if key in terms.model_fields_set]
        paths += ["law.overlap"] if law.overlap else []
        paths += [f"law.sampling.{key}" for key in sorted(law.sampling.model_fields_set)] if law.sampling else []
    hardware = scenario.hardware
    if (user_law or law.rl is not None) and "flop_per_param_token" not in scenario.rl.model_fields_set:
        paths.append("rl.flop_per_param_token")
    for name, used in (("rl", user_law or law.rl is not None), ("inference", scenario.deployment is not None)):
        section = getattr(scenario, name)
        phase = getattr(hardware, name) if hardware else None
        if used and _first(section.overhead, section.mfu, phase and phase.mfu) is None:
            paths.append(f"{name}.overhead")
    return tuple(paths)
