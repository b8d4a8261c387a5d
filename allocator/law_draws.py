"""Parameters of a law as its bootstrap gave them, for carrying the fit's uncertainty to a plan."""

import csv
import os
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from allocator import catalog
from allocator.errors import CatalogError
from allocator.scenario.assumptions import LAW, law_parameters
from allocator.scenario.schema import Scenario


def law_draws(scenario: Scenario) -> Mapping[str, Float[np.ndarray, " draws"]] | None:
    """Draws of the scenario's pre-training law by key path, as `solve_batch` takes them; None where it has none."""
    record = catalog.law_record(scenario.law.pretraining, folder=scenario.folder)
    path = record.path.parent / "draws.csv"
    if not os.path.isfile(path):
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = law_parameters(scenario)
    try:
        draws = {name: np.array([float(row[name.removeprefix(LAW)]) for row in rows]) for name in wanted}
    except (KeyError, TypeError, ValueError):
        names = ", ".join(name.removeprefix(LAW) for name in wanted)
        raise CatalogError(f"{path}: must have numbers in the columns {names}") from None
    if not rows or not all(np.isfinite(numbers).all() for numbers in draws.values()):
        raise CatalogError(f"{path}: must have rows of finite numbers")
    return draws
