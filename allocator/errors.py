"""Errors that users meet: one root, one line each, naming the key, the value and the rule."""

from collections.abc import Mapping, Sequence
from typing import Any


class AllocatorError(Exception):
    """Root of every error this package raises on purpose."""


class CatalogError(AllocatorError):
    """A name, file or table entry that the catalogue cannot give."""


class DataError(AllocatorError):
    """A third-party data set that cannot be had, or is not what it should be."""


class LawError(AllocatorError):
    """A law's parameter outside its domain."""


class FitError(AllocatorError):
    """Runs that no law can be fitted to, or a wrong way of fitting; `code` is for programs."""

    def __init__(self, code: str, message: str):
        self.code = code
        super().__init__(f"{code}: {message}")


class OutputError(AllocatorError):
    """A file or folder that cannot be written."""


class PrecisionError(AllocatorError):
    """JAX was switched back to 32 bits."""


class RooflineError(AllocatorError):
    """Figures of a run that no chip can reach: a peak, count or unit is wrong."""


class ScenarioError(AllocatorError):
    """Everything that is wrong with a scenario, one line a fault, reported together."""

    def __init__(self, lines: Sequence[str]):
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class NoPlanError(AllocatorError):
    """The input is fine, yet there is no plan to give; `status` is a plan's status, `nearest` says what would do."""

    status = "not_converged"

    def __init__(self, reason: str, nearest: Mapping[str, Any] | None = None):
        self.reason = reason
        self.nearest = nearest
        super().__init__(reason)


class InfeasibleError(NoPlanError):
    """No decision satisfies the budget, the target and the bounds together."""

    status = "infeasible"


class SolveError(NoPlanError):
    """No optimum lies inside the bounds, or none was found."""

    def __init__(self, reason: str, nearest: Mapping[str, Any] | None = None, *, status: str = "not_converged"):
        super().__init__(reason, nearest)
        self.status = status
