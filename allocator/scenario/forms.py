"""Which keys of [law] each form takes, which it needs, and where k < 1 has no meaning."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Form:
    """Keys below [law], beside pretraining and form: those that a form takes, and those that it needs."""

    takes: frozenset[str]
    needs: frozenset[str] = frozenset()  # always
    needs_with: frozenset[str] = frozenset()  # where their table is given
    k_at_least_one: bool = False
    uses_k: bool = False  # whatever law.test_time says


_RL = {"rl.exponent", "rl.scale_tokens", "rl.unit_tokens", "rl.source"}
_TEST_TIME = {"test_time.exponent", "test_time.floor_share", "test_time.unit", "test_time.source"}
_BOTH = frozenset(_RL | _TEST_TIME)
_EXPONENTS = frozenset({"rl.exponent", "test_time.exponent"})
_THETAS = frozenset(f"sampling.th{i}" for i in range(5))

FORMS: Mapping[str, Form] = {
    "product": Form(_BOTH | {"overlap"}, needs_with=_EXPONENTS),
    "additive": Form(_BOTH | {"rl.scale", "test_time.scale"}, needs_with=_EXPONENTS | {"rl.scale", "test_time.scale"}),
    "shared": Form(
        _BOTH | {"overlap", "sampling.scale", "sampling.source"},
        needs=frozenset({"sampling.scale"}),
        needs_with=_EXPONENTS,
    ),
    "coverage": Form(
        _BOTH | {"overlap", "sampling.guess", "sampling.slope", "sampling.source", "link"},
        needs=frozenset({"sampling.guess", "sampling.slope"}),
        needs_with=_EXPONENTS,
        k_at_least_one=True,
    ),
    "pass-at-k": Form(
        frozenset({"rl.scale_tokens", "rl.source", "sampling.rl_logit_exponent", "sampling.source"}) | _THETAS,
        needs=_THETAS,
        k_at_least_one=True,
        uses_k=True,
    ),
    "t2-loss": Form(
        frozenset(_TEST_TIME | {"test_time.scale"}),
        needs=frozenset({"test_time.exponent", "test_time.scale"}),
        k_at_least_one=True,
    ),
}


def form_faults(law: Mapping[str, Any]) -> Iterator[str]:
    """Keys of [law] that its form does not use, and keys that it misses."""
    name = law.get("form", "product")
    form = FORMS.get(name) if isinstance(name, str) else None
    if form is None:
        return  # an unknown form is told by its own key
    given = set(_leaves(law)) - {"pretraining", "form"}
    known = frozenset().union(*(f.takes for f in FORMS.values()))
    for key in sorted(given & known - form.takes):
        users = " and ".join(repr(other) for other, f in FORMS.items() if key in f.takes)
        yield f"law.{key}: form {name!r} does not use it; it belongs to {users}"
    for key in sorted(form.needs - given):
        yield f"law.{key}: form {name!r} needs it"
    for key in sorted(form.needs_with - given):
        if isinstance(law.get(key.split(".")[0]), Mapping):
            yield f"law.{key}: form {name!r} needs it"


def least_k(law: Mapping[str, Any]) -> float | None:
    """1 where the law has no meaning below one sample, else None."""
    form = FORMS.get(law.get("form", "product"))
    test_time = law.get("test_time") or {}
    floor = test_time.get("floor_share") or 0 if isinstance(test_time, Mapping) else 0
    overlap = law.get("overlap") or 0
    below = any(isinstance(x, int | float) and x > 0 for x in (floor, overlap))
    return 1.0 if below or (form is not None and form.k_at_least_one) else None


def uses_k(law: Mapping[str, Any]) -> bool:
    """Whether the loss depends on k."""
    form = FORMS.get(law.get("form", "product"))
    return bool(law.get("test_time")) or (form is not None and form.uses_k)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
