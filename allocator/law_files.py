"""The form of a law file: what it must hold, and what its numbers may be."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

LAW_SCHEMA = "allocator.law/1"
LAW_PARAMETERS = {
    "chinchilla": ("E", "A", "B", "alpha", "beta"),
    "gadre": ("E", "p", "q", "h"),
    "loss-to-error": ("epsilon", "kappa", "gamma"),
    "rl-power": ("Kmax", "N0"),  # and a level E_<size> for each size
    "pass-at-k": ("th0", "th1", "th2", "th3", "th4"),
    "t2-loss": ("E", "A", "B", "G", "alpha", "beta", "gamma"),
}
_ANY_SIGN = ("th0", "th3", "th4")
_MAY_BE_LARGE = ("A", "B", "p", "q", "E", "epsilon", "kappa", "G", "N0", "th1")  # no exponent is above 10


def law_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the form of a law file; only the first fault is sure, since later checks build on it."""
    if not content:
        yield "is empty"
    for key, choices in (("schema", [LAW_SCHEMA]), ("kind", [*LAW_PARAMETERS]), ("name", []), ("unit", [])):
        if key not in content:
            yield f"{key}: is missing"
        elif choices and content[key] not in choices:
            yield f"{key}: must be {' or '.join(choices)}, got {content[key]!r}"
        elif not isinstance(content[key], str):
            yield f"{key}: must be a text, got {content[key]!r}"
    for key in ("parameters", "stderr", "repetition", "fit_range"):
        numbers = content.get(key, {})
        if not isinstance(numbers, dict):
            yield f"{key}: must be a table, got {numbers!r}"
        for name, value in numbers.items():
            # The comparison is false for nan, and exact for an integer that no float holds; a bool is no number here.
            finite = type(value) in (int, float) and abs(value) <= sys.float_info.max
            if not finite and (key, name) != ("fit_range", "source"):
                yield f"{key}.{name}: must be a finite number, got {value!r}"
    kind, given = content["kind"], content.get("parameters", {})
    levels = [name for name in given if kind == "rl-power" and name.startswith("E_")]
    expected = (*LAW_PARAMETERS[kind], *levels)
    if set(given) != set(expected):
        yield f"parameters: a {kind} law has {', '.join(expected)}, got {', '.join(given) or 'none'}"
    for name in given:  # sizes and exponents; only an irreducible loss may be 0
        if name in _ANY_SIGN or name in levels:
            continue
        low_enough = name in _MAY_BE_LARGE or given[name] <= 10
        if given[name] < 0 or (given[name] == 0 and name != "E") or not low_enough:
            rule = f"must be {'>=' if name == 'E' else '>'} 0{'' if low_enough else ' and <= 10'}"
            yield f"parameters.{name}: {rule}, got {given[name]!r}"
