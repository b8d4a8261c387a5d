"""Laws built from the catalogue's plain records."""

from collections.abc import Mapping
from typing import Any

from allocator.errors import CatalogError
from allocator.laws.checks import is_known
from allocator.laws.chinchilla import Chinchilla
from allocator.laws.gadre import Gadre
from allocator.laws.law import PretrainingLaw
from allocator.laws.loss_to_error import LossToError

# kind of a law file -> (class, {parameter in the file: field of the class})
_KINDS = {
    "chinchilla": (Chinchilla, {"E": "e", "A": "a", "B": "b", "alpha": "alpha", "beta": "beta"}),
    "t2-loss": (Chinchilla, {"E": "e", "A": "a", "B": "b", "alpha": "alpha", "beta": "beta"}),
    "gadre": (Gadre, {"E": "e", "p": "p", "q": "q", "h": "h"}),
}


def pretraining_law(name: str, kind: str, parameters: Mapping[str, Any]) -> PretrainingLaw:
    """Build L0(N, D) from a law file's kind and parameters; raise `CatalogError` where the file says something else."""
    if kind not in _KINDS:
        raise CatalogError(f"law {name}: kind {kind!r} is not a pre-training loss; known kinds: {', '.join(_KINDS)}")
    law, fields = _KINDS[kind]
    if kind == "t2-loss":  # its term in k belongs to test time
        parameters = {key: value for key, value in parameters.items() if key in fields}
    if set(parameters) != set(fields):
        raise CatalogError(f"law {name}: parameters {sorted(parameters)} must be exactly {sorted(fields)}")
    return law(**{fields[key]: float(value) if is_known(value) else value for key, value in parameters.items()})


def loss_to_error(parameters: Mapping[str, float]) -> LossToError:
    """Build a link from a law file's parameters, whose names are the class's."""
    return LossToError(**{key: float(value) for key, value in parameters.items()})
