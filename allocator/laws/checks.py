"""Range checks of law parameters, skipped for tracers (a law inside `jit` or `vmap` has no values yet)."""

import math
from typing import Any

from allocator.errors import LawError


def require_positive(owner: Any, *names: str, zero: bool = False) -> None:
    """Raise `LawError` unless each named field is a finite number > 0 (or >= 0 with `zero`)."""
    for name in names:
        value = getattr(owner, name)
        if value is None or not isinstance(value, (int, float)):
            continue
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise LawError(f"{type(owner).__name__}.{name}: must be {'>=' if zero else '>'} 0 and finite, got {value}")
