"""What a user should know of a fit, by code."""

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
        return {"code": self.code, "path": self.path, "value": self.value, "message": self.message}
