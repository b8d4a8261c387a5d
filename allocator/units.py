"""Unit conversions and the formatting of quantities; base units inside (FLOP, token, byte, second, USD)."""

import math

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0

_PREFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def short_count(value: float) -> str:
    """Write a count of parameters or tokens as people say it: 1e11 -> '100B', 1.96e14 -> '196T'."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    rounded = abs(float(f"{value:.2e}"))  # so that 999.6 is 1.00k and not 1000
    if not 1e-3 <= rounded < 1e17:
        return f"{value:.3g}"
    for scale, suffix in _PREFIXES:
        if rounded >= scale:
            return f"{significant(value / scale)}{suffix}"
    return significant(value)


def significant(value: float, digits: int = 3) -> str:
    """Write a number to so many significant digits, without an exponent between 1e-3 and 1e6."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    rounded = abs(float(f"{value:.{digits - 1}e}"))  # so that 9.996 is 10.0 and not 10.00
    if not 1e-3 <= rounded < 1e6:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - math.floor(math.log10(rounded)), 0)
    return f"{value:,.{decimals}f}"


def tidy(value: float) -> float:
    """Round to 14 digits: a number that went through log and exp comes back as it was stated."""
    return float(f"{value:.13e}")


def one_line(text: str) -> str:
    """Text from a file for a terminal: control characters, which could move the cursor, become spaces."""
    return "".join(char if char.isprintable() else " " for char in text)
