"""What a fit was made from and with."""

import hashlib
from importlib.metadata import version
from typing import Any

from allocator.fitting.runs import Runs


def provenance(runs: Runs) -> dict[str, Any]:
    """Versions, and a hash of the numbers that were fitted (not of the file they came in)."""
    digest = hashlib.sha256()
    for name in sorted(runs.columns):
        values = runs.columns[name]
        digest.update(name.encode())
        digest.update(values.astype("<f8").tobytes() if values.dtype.kind == "f" else "\n".join(values).encode())
    versions = {name: version(name) for name in ("allocator", "jax", "scipy", "numpy")}
    return {**versions, "runs_sha256": digest.hexdigest()}
