"""The numbers behind a plan, by key path, and the problem as a function of them that JAX can trace."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array
from pydantic import BaseModel

from allocator import catalog
from allocator.errors import AllocatorError, ScenarioError
from allocator.laws.law import Law
from allocator.problem import DECISIONS
from allocator.scenario.building import Built, build, objective_of
from allocator.scenario.building_costs import DEFAULT_OVERHEAD
from allocator.scenario.machines import machine_figures
from allocator.scenario.reading import with_values
from allocator.scenario.rules import PHASES
from allocator.scenario.schema import Scenario

LAW = "law.pretraining."  # prefix of a parameter of the pre-training law, such as law.pretraining.alpha


def law_parameters(scenario: Scenario) -> dict[str, float]:
    """Parameters of the scenario's pre-training law under their key paths."""
    record = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
    names = {"E", "A", "B", "alpha", "beta"} if record.content["kind"] == "t2-loss" else record.content["parameters"]
    return {f"{LAW}{name}": float(record.content["parameters"][name]) for name in sorted(names)}


def assumptions(scenario: Scenario, *, law: bool = True) -> dict[str, float]:
    """Every number that a plan of the scenario rests on: stated ones, defaults in force, and those of its law's file.

    Numbers that are 0 are left out: they say that something is not there. Without `law`, so are those of [law], which
    a user's law replaces.
    """
    found = {path: value for path, value in _numbers(scenario.stated()) if law or not path.startswith("law.")}
    found |= _figures_in_force(scenario)
    for name, used in (("rl", scenario.law.rl is not None or not law), ("inference", scenario.deployment is not None)):
        section, hardware = getattr(scenario, name), scenario.hardware
        own = getattr(hardware, name) if hardware else None
        if not used:
            found = {path: value for path, value in found.items() if not path.startswith(f"{name}.")}
        elif all(x is None for x in (section.overhead, section.mfu, section.roofline, own and own.mfu)):
            found[f"{name}.overhead"] = DEFAULT_OVERHEAD
    found |= law_parameters(scenario) if law else {}
    return {path: value for path, value in found.items() if value != 0}


def _figures_in_force(scenario: Scenario) -> dict[str, float]:
    """Figures of the one chip that all phases run on, where the objective counts in a currency that needs them."""
    needed = {"chip_hours": 1, "usd": 2, "energy_joule": 2}.get(objective_of(scenario)[2], 0)
    hardware = scenario.hardware
    sections = [getattr(scenario, phase).roofline for phase in PHASES]
    if not needed or hardware is None or any(getattr(hardware, phase) for phase in PHASES) or any(sections):
        return {}
    figures = machine_figures(hardware.stated(), "")
    names = ("peak_flop_per_s", "usd_per_chip_hour" if objective_of(scenario)[2] == "usd" else "power_w")[:needed]
    return {f"hardware.{name}": value for name in names if (value := figures[name]) is not None}


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, float):
            yield f"{prefix}{key}", value


def template(scenario: Scenario, values: Mapping[str, float]) -> Scenario:
    """The scenario with keys set to numbers, checked as a file's are; parameters of the law's file are left alone."""
    _check_parameters(scenario, [path for path in values if path.startswith(LAW)])
    own = {path: float(value) for path, value in values.items() if not path.startswith(LAW)}
    try:
        return with_values(scenario, own) if own else scenario
    except (TypeError, AttributeError):
        raise ScenarioError([f"{', '.join(own)}: not keys of a scenario"]) from None


def _check_parameters(scenario: Scenario, paths: list[str]) -> None:
    if not paths:
        return
    known = law_parameters(scenario)
    unknown = [path for path in paths if path not in known]
    if unknown:
        raise ScenarioError([f"{path}: not a parameter of {scenario.law.pretraining}; known: {', '.join(known)}"
                             for path in unknown])  # fmt: skip


def problem_at(scenario: Scenario, values: Mapping[str, Array | float], law: Law | None = None) -> Built:
    """The scenario's problem with some of its numbers replaced; pure, and traceable in the values.

    The scenario must have the keys already (see `template`). Nothing checks traced values against their ranges; a
    size that the rooflines' chips do not hold makes the limit NaN.
    """
    parameters = {path.removeprefix(LAW): value for path, value in values.items() if path.startswith(LAW)}
    replaced = scenario
    for path, value in values.items():
        if not path.startswith(LAW):
            replaced = _replace(replaced, path.split("."), value)
    built = build(replaced, law, parameters=parameters)
    n_active = built.fixed.get("n_active")
    if built.memory_limit is None or n_active is None:
        return built
    limit = jnp.where(n_active > built.memory_limit * (1 + 1e-9), jnp.nan, built.problem.log_limit)
    return replace(built, problem=eqx.tree_at(lambda problem: problem.log_limit, built.problem, limit))


def _replace(section: Any, path: list[str], value: Any) -> Any:
    """A copy of a frozen section with one number replaced, unchecked."""
    key, *rest = path
    below = getattr(section, key)
    return section.model_copy(update={key: _replace(below, rest, value) if rest else value})


def find_path(scenario: Scenario, name: str) -> str:
    """The key path that a short name such as `compute_flop` stands for; a path stands for itself."""
    if "." in name.strip("."):
        return name
    candidates = [path for path in _schema_paths() if path.rpartition(".")[2] == name]
    candidates += [path for path in law_parameters(scenario) if path.rpartition(".")[2] == name]
    stated = [path for path in candidates if path in assumptions(scenario)]
    chosen = stated if len(stated) == 1 else candidates
    if len(chosen) == 1:
        return chosen[0]
    told = f"could be {', '.join(chosen)}; give the whole path" if chosen else "not a key of a scenario"
    raise AllocatorError(f"{name}: {told}")


def _schema_paths() -> list[str]:
    """Key paths of all numbers that a scenario file can hold."""
    paths = [f"decisions.{name}" for name in DECISIONS]

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, field in model.model_fields.items():
            options = [field.annotation, *getattr(field.annotation, "__args__", ())]
            below = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
            if below is not None:
                walk(below, f"{prefix}{name}.")
            elif prefix != "decisions." and any(o is float or "float" in str(o) for o in options):
                paths.append(f"{prefix}{name}")

    walk(Scenario, "")
    return paths
