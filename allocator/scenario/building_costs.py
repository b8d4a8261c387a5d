"""The scenario's deployment, overheads, rooflines and hardware turned into cost functions."""

from math import nan
from typing import Any

import jax
import jax.numpy as jnp

from allocator import catalog
from allocator.costs import (
    PRETRAIN_FLOP_PER_PARAM_TOKEN,
    SERVE_FLOP_PER_PARAM_TOKEN,
    Constant,
    Costs,
    Machine,
    Mfu,
    PhaseCost,
    RelativeOverhead,
    RolloutMfu,
)
from allocator.errors import ScenarioError
from allocator.laws.checks import is_known
from allocator.roofline.accelerator import accelerator
from allocator.roofline.memory import largest_batch, largest_size
from allocator.roofline.mfu import RooflineMfu
from allocator.roofline.operation import Operation
from allocator.roofline.shape import WEIGHT_BYTES, ShapeFamily, shape
from allocator.scenario.machines import machine_figures
from allocator.scenario.schema import Roofline, Scenario
from allocator.units import SECONDS_PER_DAY

DEFAULT_OVERHEAD = 3.0  # the lecture's, 01:27; measured range 2 to 7


def build_costs(scenario: Scenario) -> Costs:
    """Cost functions of the scenario's phases."""
    rl, inference = scenario.rl, scenario.inference
    pretrain_mfu = _pretrain_mfu(scenario)
    rollout = _roofline(scenario, "rl", "decode")
    if rollout is not None and pretrain_mfu is not None:
        rollout = RolloutMfu(rollout, pretrain_mfu, rl.flop_per_param_token)
    decode = _roofline(scenario, "inference", "decode")
    # Prefill is compute bound like pre-training, so without a figure of its own it runs at the pre-training MFU.
    prefill = inference.prefill_mfu
    if prefill is None and inference.prefill_overhead is None:
        prefill = _roofline(scenario, "inference", "prefill")
    tokens = lifetime_tokens(scenario)
    return Costs(
        pretrain=PhaseCost(
            PRETRAIN_FLOP_PER_PARAM_TOKEN, scenario.pretraining.overhead, _machine(scenario, "pretraining")
        ),
        rl=PhaseCost(
            rl.flop_per_param_token,
            _overhead(pretrain_mfu, rl.overhead, rollout, rl.mfu, _stated_mfu(scenario, "rl")),
            _machine(scenario, "rl"),
        ),
        decode=PhaseCost(
            SERVE_FLOP_PER_PARAM_TOKEN,
            _overhead(pretrain_mfu, inference.overhead, decode, inference.mfu, _stated_mfu(scenario, "inference")),
            _machine(scenario, "inference"),
        ),
        prefill=PhaseCost(
            SERVE_FLOP_PER_PARAM_TOKEN,
            _overhead(pretrain_mfu, inference.prefill_overhead, prefill, default=1.0),
            _machine(scenario, "inference"),
        ),
        lifetime_tokens=tokens,
        prompt_tokens=scenario.deployment.prompt_tokens_per_output_token * tokens if scenario.deployment else 0.0,
        pretrain_mfu=pretrain_mfu,
    )


def demand_of(scenario: Scenario) -> tuple[str, float]:
    """The key of the scenario's demand, and the demand."""
    deployment = scenario.deployment
    for name in ("lifetime_tokens", "tokens_per_second"):
        value = getattr(deployment, name) if deployment is not None else None
        if value is not None:
            return f"deployment.{name}", value
    raise ScenarioError(["deployment: required, since this asks about a demand"])


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


def roofline_size_limit(scenario: Scenario) -> Any:
    """Largest N whose weights and caches fit the memory of every roofline, 0 if none does; None without one."""
    sizes = [_largest_size(_family(section), _operation(scenario, section, phase))
             for phase, section in _served(scenario)]  # fmt: skip
    if not sizes:
        return None
    least = sizes[0] if len(sizes) == 1 else jnp.minimum(*sizes)
    return float(least) if is_known(least) else least


def check_size(scenario: Scenario, n_active: float | None) -> None:
    """Raise `ScenarioError` where `n_active`, the least that a scenario allows, does not fit the rooflines' chips.

    Says the largest batch that does.
    """
    lines = []
    for phase, section in _served(scenario):
        family, operation = _family(section), _operation(scenario, section, phase)
        largest_n = float(_largest_size(family, operation))
        if n_active is not None and n_active > largest_n * (1 + 1e-9):
            fits = largest_batch(family.at(jnp.log(n_active)), operation)
            largest = f"the largest batch that fits is {fits}" if fits else "its weights alone do not fit"
            lines.append(
                f"{phase}.roofline.batch: got {section.batch:g}; {n_active:.4g} parameters with {section.batch:g} "
                f"sequences of {section.context:g} tokens exceed {section.chips:g} chips: {largest}"
            )
        elif largest_n == 0:
            lines.append(f"{phase}.roofline.batch: got {section.batch:g}; its caches fit beside no model at all")
    if lines:
        raise ScenarioError(lines)


def _served(scenario: Scenario) -> list[tuple[str, Roofline]]:
    """Phases that hold caches and have a roofline."""
    sections = ((phase, getattr(scenario, phase).roofline) for phase in ("rl", "inference"))
    return [(phase, section) for phase, section in sections if section is not None]


_largest_size = jax.jit(largest_size)


def serving_roofline(scenario: Scenario) -> tuple[ShapeFamily, Operation] | None:
    """The family of shapes and the operation of the inference roofline; None without one."""
    section = scenario.inference.roofline
    return None if section is None else (_family(section), _operation(scenario, section, "inference"))


def _overhead(pretrain: Any, stated: float | None, *mfus: Any, default: float = DEFAULT_OVERHEAD) -> Any:
    """A stated overhead, or one from the first MFU that is given, a number or a function of N."""
    mfu: Any = _first(*mfus)
    if mfu is not None and pretrain is not None:
        # Two numbers make a number, which keeps the certificates of constant overheads.
        numbers = isinstance(pretrain, Constant) and not _depends_on_size(mfu)
        return pretrain.value / mfu if numbers else RelativeOverhead(pretrain, mfu)
    return default if stated is None else stated


def _depends_on_size(mfu: object) -> bool:
    return callable(mfu)


def _pretrain_mfu(scenario: Scenario) -> Mfu | None:
    by_roofline = _roofline(scenario, "pretraining", "training")
    hardware = scenario.hardware
    stated = _first(scenario.pretraining.mfu, _stated_mfu(scenario, "pretraining"), hardware and hardware.mfu)
    return by_roofline if by_roofline is not None else None if stated is None else Constant(stated)


def _stated_mfu(scenario: Scenario, phase: str) -> float | None:
    own = getattr(scenario.hardware, phase) if scenario.hardware else None
    return own.mfu if own else None


def _roofline(scenario: Scenario, phase: str, regime: str) -> Any:
    section = getattr(scenario, phase).roofline
    if section is None:
        return None
    return RooflineMfu(_family(section), _operation(scenario, section, phase), regime)


def _family(section: Roofline) -> ShapeFamily:
    return ShapeFamily(shape(catalog.find("models", section.model)))


def _operation(scenario: Scenario, section: Roofline, phase: str) -> Operation:
    hardware = scenario.hardware
    own = getattr(hardware, phase) if hardware else None
    chip = _first(section.chip, own and own.chip, hardware and hardware.chip)
    compute, memory = section.efficiencies()
    size = WEIGHT_BYTES[section.dtype]
    return Operation(
        accelerator(catalog.find("hardware", str(chip)), section.dtype),
        chips=section.chips,
        batch=section.batch,
        context=section.context,
        bytes_per_weight=size,
        bytes_per_kv_element=size,
        compute_efficiency=compute,
        memory_efficiency=memory,
    )


def _machine(scenario: Scenario, phase: str) -> Machine:
    hardware = scenario.hardware.stated() if scenario.hardware else {}
    section = getattr(scenario, phase).roofline
    if section is not None:  # what a roofline runs on is what is paid for
        own = {**hardware.get(phase, {}), "dtype": section.dtype}
        if section.chip is not None and section.chip != hardware.get("chip"):
            own["chip"] = section.chip
        hardware = {**hardware, phase: own}
    figures = machine_figures(hardware, phase)
    return Machine(**{name: nan if figure is None else figure for name, figure in figures.items()})


def _first(*values: Any) -> Any:
    """First value that is given; 0 counts as given."""
    return next((value for value in values if value is not None), None)
