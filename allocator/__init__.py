"""Plan a language model's lifetime compute: parameters, pre-training tokens, RL tokens and test-time samples.

Names resolve on first use (PEP 562), so that importing the package loads neither JAX nor pandas.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load": "allocator.scenario.reading",
    "Scenario": "allocator.scenario.schema",
    "solve": "allocator.optimum.planning",
    "solve_batch": "allocator.optimum.batches",
    "Plans": "allocator.optimum.batches",
    "evaluate": "allocator.optimum.planning",
    "Plan": "allocator.optimum.result",
    "frontier": "allocator.frontiers",
    "Frontier": "allocator.frontiers",
    "sensitivity": "allocator.sensitivities",
    "uncertainty": "allocator.uncertainties",
    "robust": "allocator.robustness",
    "States": "allocator.states",
    "round_plan": "allocator.rounding",
    "plan_function": "allocator.optimum.implicit",
    "compare": "allocator.comparisons",
    "diff": "allocator.comparisons",
    "fetch": "allocator.downloads",
    "UserLaw": "allocator.laws.user",
    "fit": "allocator.fitting.estimation",
    "user_form": "allocator.fitting.user",
    "Fit": "allocator.fitting.result",
    "AllocatorError": "allocator.errors",
    "CatalogError": "allocator.errors",
    "FitError": "allocator.errors",
    "DataError": "allocator.errors",
    "InfeasibleError": "allocator.errors",
    "NoPlanError": "allocator.errors",
    "LawError": "allocator.errors",
    "ScenarioError": "allocator.errors",
    "SolveError": "allocator.errors",
}

_MODULES = ("charts",)  # reached as allocator.charts without an import of their own

__all__ = ["__version__", *_HOMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"allocator.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'allocator' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__():
    return sorted(__all__)
