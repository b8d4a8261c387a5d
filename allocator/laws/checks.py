"""Range checks of parameters, skipped for tracers (a law inside `jit` or `vmap` has no values yet)."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from allocator.errors import LawError


def require_positive(owner: Any, *names: str, zero: bool = False, at_most: float = np.inf) -> None:
    """Raise `LawError` unless each named field is > 0 (or >= 0 with `zero`), finite and at most `at_most`."""
    for name in names:
        require_number(f"{type(owner).__name__}.{name}", getattr(owner, name), zero=zero, at_most=at_most)


def require_finite(owner: Any, *names: str) -> None:
    """Raise `LawError` unless each named field is a finite number of either sign."""
    for name in names:
        value = getattr(owner, name)
        if is_known(value) and not np.isfinite(np.asarray(value, float)).all():
            raise LawError(f"{type(owner).__name__}.{name}: must be finite, got {value}")


def is_known(value: Any) -> bool:
    """Whether a parameter has a value to be checked: no tracer, and no missing one."""
    return isinstance(value, int | float | np.number | np.ndarray | jax.Array) and not isinstance(value, Tracer)


def require_number(label: str, value: Any, *, zero: bool = False, at_most: float = np.inf) -> None:
    """Raise `LawError` unless a number (or each of an array) is in range; None and tracers pass."""
    if not is_known(value):
        return
    numbers = np.asarray(value, float)
    lawful = np.isfinite(numbers) & ((numbers >= 0) if zero else (numbers > 0)) & (numbers <= at_most)
    if not lawful.all():
        rule = f"{'>=' if zero else '>'} 0 and {'finite' if np.isinf(at_most) else f'<= {at_most:g}'}"
        first = float(numbers[~lawful].flat[0])
        raise LawError(f"{label}: must be {rule}, got {first}")
