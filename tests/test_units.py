"""How quantities are written."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, short_count, significant

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
anything = st.floats(allow_nan=False, allow_infinity=False)
ordinary = st.floats(1e-3, 1e17, exclude_max=True)


def read_back(text: str) -> float:
    number, prefix = re.fullmatch(r"(-?[\d.,]+(?:e[+-]?\d+)?)([kMBT]?)", text).groups()
    return float(number.replace(",", "")) * PREFIXES[prefix]


def test_an_hour_and_a_day():
    assert (SECONDS_PER_HOUR, SECONDS_PER_DAY) == (3600, 86400)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e11, "100B"), (1.96e14, "196T"), (2.592e14, "259T"), (0, "0"), (1, "1.00"), (999.4, "999"), (999.6, "1.00k"),
        (1.0e3, "1.00k"), (1.2345e6, "1.23M"), (7e10, "70.0B"), (1e-3, "0.00100"), (1e15, "1,000T"), (1e17, "1e+17"),
        (-1e11, "-100B"), (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_counts_as_people_say_them(value: float, text: str):
    assert short_count(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.0, 3, "1.00"), (98.0, 3, "98.0"), (108.3, 3, "108"), (1959.7, 3, "1,960"), (0.0, 3, "0"), (0.04, 2, "0.040"),
        (54841.0, 3, "54,841"), (1e-4, 3, "1.00e-04"), (2.5e6, 3, "2.50e+06"), (math.nan, 3, "-"), (-math.inf, 3, "-"),
        (100, 3, "100"), (1000, 3, "1,000"), (0.001, 3, "0.00100"), (-0.5, 3, "-0.500"), (9.996, 3, "10.0"),
    ],
)  # fmt: skip
def test_significant_digits(value: float, digits: int, text: str):
    assert significant(value, digits) == text


@given(anything)
def test_any_number_has_a_short_text(value: float):
    for text in (short_count(value), significant(value)):
        assert 0 < len(text) <= 12
        assert "nan" not in text
        assert "inf" not in text


@given(ordinary)
def test_a_count_reads_back_to_three_digits(value: float):
    assert read_back(short_count(value)) == pytest.approx(value, rel=5.1e-3)


@given(ordinary)
def test_a_count_below_a_thousand_trillion_has_at_most_three_digits_before_the_prefix(value: float):
    if value < 0.9995e15:
        assert read_back(short_count(value).rstrip("kMBT")) < 1000


@given(st.floats(-1e300, 1e300).filter(lambda x: abs(x) > 1e-300), st.integers(2, 6))
def test_significant_reads_back(value: float, digits: int):
    assert float(significant(value, digits).replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@given(anything)
def test_the_sign_is_a_sign(value: float):
    if value:
        assert short_count(-value) == short_count(value).removeprefix("-") or short_count(-value)[0] == "-"
        assert significant(abs(value)) == significant(-abs(value)).removeprefix("-")


@given(st.floats(1, 1e17), st.floats(1, 1e17))
def test_larger_counts_never_read_smaller(a: float, b: float):
    low, high = sorted((a, b))
    assert read_back(short_count(low)) <= read_back(short_count(high)) * (1 + 1e-12)
