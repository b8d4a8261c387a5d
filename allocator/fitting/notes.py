"""What a user should know of a fit, by code."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Note:
    """One finding; `path` names the column or parameter, `value` the figure behind it."""

    code: str
    message: str
    path: str = ""
    value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        value = self.value if self.value is not None and math.isfinite(self.value) else None
        return {"code": self.code, "path": self.path, "value": value, "message": self.message}
