"""What SQL92 filters say of messages: Java's type rules, and truth with three values."""

from __future__ import annotations

import math

import pytest

from inorder.filters import compiled
from inorder.filters.compiled import compile_filter, to_double, to_int, to_long
from inorder.wire.properties import format_properties


def matches(text: str, **properties: str) -> bool:
    return compile_filter(text).matches(format_properties(properties).encode())


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ("a > 5", "6", True), ("a > 5", "5", False), ("a >= 5", "5", True), ("a < 5", "-7", True),
        ("a > 5", "+6", True), ("a > 5", "006", True), ("a > 5", "\u0666", True),
        ("a > 5", "\U0001d7ce", False), ("a > 5", "6.5", False), ("a > 5", " 6", False),
        ("a > 5", "1_0", False), ("a > 5", "x", False), ("a > 5", "3000000000", False),
        ("a > 5", "-", False), ("a > 3000000000", "3000000001", True),
        ("a > 3000000000", "99999999999999999999", False), ("a > 5", "0" * 500 + "6", True),
        ("5 < a", "6", True), ("5 <= a", "4", False), ("5 = a", "5", True), ("5 > a", "4", True),
        ("a = 5", "5", True), ("a = 5", "05", True), ("a <> 5", "6", True), ("a <> 5", "x", False),
        ("a > 5.5", "6", True), ("a > 5.5", " 5.6 ", True), ("a > 5.5", "6d", True),
        ("a > 5.5", "0x1p3", True), ("a > 5.5", "-0x1P3f", False), ("a > 5.5", "NaN", True),
        ("a < 5.5", "NaN", False), ("a > 5.5", "Infinity", True), ("a < 5.5", "-Infinity", True),
        ("a > 5.5", "nan", False), ("a > 5.5", "inf", False), ("a > 5.5", "1_0", False),
        ("a > 5.5", "\u0666", False), ("a > 5.5", "1e400", True), ("a > 5.5", "0x1p9999", True),
        ("a > 5.5", "0x10", False), ("a < 0.0", "-0.0", True), ("a = 0.0", "-0.0", False),
        ("a = -0.0", "-0.0", True), ("a >= 0.0", "0", True), ("a > -5", "-4", True),
        ("a = 'x'", "x", True), ("a = 'x'", "X", False), ("a <> 'x'", "y", True),
        ("a = '5'", "05", False), ("'x' = a", "x", True), ("a = 'é'", "é", True),
        ("a = TRUE", "TrUe", True), ("a = TRUE", "yes", False), ("a = FALSE", "yes", True),
        ("a <> TRUE", "no", True), ("TRUE = a", "true", False), ("TRUE <> a", "false", False),
        ("a = (1 = 1)", "true", True), ("(1 = 1) = a", "true", False),
        ("a = 5 = TRUE", "5", True), ("a = 5 = FALSE", "6", True),
        ("a BETWEEN 3 AND 5", "3", True), ("a BETWEEN 3 AND 5", "6", False),
        ("a BETWEEN 3 AND 5.5", "4", True), ("a BETWEEN -5 AND -3", "-4", True),
        ("a NOT BETWEEN 3 AND 5", "6", True), ("a NOT BETWEEN 3 AND 5", "4", False),
        ("a IN ('x', 'y')", "y", True), ("a IN ('x', 'y')", "z", False),
        ("a NOT IN ('x', 'y')", "z", True), ("a NOT IN ('x')", "x", False),
        ("a CONTAINS '.'", "a.b", True), ("a CONTAINS '.'", "ab", False),
        ("a NOT CONTAINS 'b'", "ab", False), ("a NOT CONTAINS 'c'", "ab", True),
        ("a STARTSWITH 'ab'", "abc", True), ("a NOT STARTSWITH 'b'", "abc", True),
        ("a ENDSWITH 'bc'", "abc", True), ("a NOT ENDSWITH 'c'", "abc", False),
        ("a CONTAINS ''", "x", False), ("a NOT CONTAINS ''", "x", False),
        ("'abc' CONTAINS 'b'", "x", True), ("5 CONTAINS '5'", "x", False),
        ("(a = 'x') CONTAINS 'x'", "x", False), ("(a = 'x') NOT CONTAINS 'x'", "x", False),
        ("a", "true", False), ("NOT a", "true", True), ("NOT a = 1", "1", False),
        ("-a = 5", "5", False), ("-a IS NULL", "5", True), ("-'x' IS NULL", "5", True),
        ("- - 5 = a", "5", True), ("a > -(5 = 5)", "5", False),
        ("'5' = 5", "x", True), ("5 = '5'", "x", True), ("'x' = 5", "x", False),
        ("1 = 1.0", "x", True), ("1 = TRUE", "x", False), ("1.5 = 1", "x", False),
        ("3000000000 = 3000000000", "x", True), ("1 < 3000000000", "x", True),
        ("TRUE = TRUE", "x", True), ("TRUE", "x", True), ("FALSE", "x", False),
        ("NULL", "x", False), ("NULL IS NULL", "x", True), ("NULL OR TRUE", "x", True),
        ("a = '' OR a CONTAINS 'x'", "x", True),
    ],
)  # fmt: skip
def test_values_follow_java(text: str, value: str, found: bool) -> None:
    """Texts become int, long, double or truth values as Java reads them, or nothing matches."""
    assert matches(text, a=value) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = 1", False), ("a <> 1", False), ("NOT (a = 1)", False), ("a IS NULL", True),
        ("a IS NOT NULL", False), ("a > 1 OR b = 'x'", True), ("b = 'x' OR a > 1", True),
        ("a > 1 AND b = 'x'", False), ("NOT (a > 1 AND b = 'y')", True),
        ("(a > 1) IS NULL", True), ("(a > 1 AND b = 'x') IS NULL", True),
        ("(a > 1 OR b = 'y') IS NULL", True), ("a IN ('x')", False), ("a NOT IN ('x')", False),
        ("(a IN ('x')) IS NULL", True), ("a CONTAINS 'x'", False), ("a NOT CONTAINS 'x'", False),
        ("a BETWEEN 1 AND 2", False), ("a NOT BETWEEN 1 AND 2", False), ("a", False),
        ("NOT a", False), ("(NOT a) IS NULL", True), ("a = a", True), ("a = c", True),
        ("a <> c", False), ("a = b", False), ("b = a", False), ("b <> a", True),
        ("(a = b) IS NULL", True), ("(b = a) IS NULL", False), ("1 = a", False), ("1 <> a", True),
        ("(1 < a) IS NULL", True), ("a > c", False),
        ("b > 1 OR b = 'x'", False), ("b = 'x' OR b > 1", True), ("b = 'y' AND b > 1", False),
        ("NOT (b = 'y' AND b > 1)", True), ("(b > 1) IS NULL", False), ("a > 1 AND b > 1", False),
        ("NOT (a > 1 AND b > 1)", False), ("b > b", False), ("TRUE = b OR b = 'x'", False),
    ],
)  # fmt: skip
def test_truth_has_three_values(text: str, found: bool) -> None:
    """`a` and `c` are missing, `b` is x: only TRUE matches, and an error ends the evaluation."""
    assert matches(text, b="x") is found


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"a\x011\x02", True), (b"a\x011", True), (b"b\x012\x02a\x011\x02", True),
        (b"ba\x011\x02", False), (b"b\x01a\x011\x02", False), (b"a\x012\x02a\x011\x02", True),
        (b"a\x011\x02a\x012\x02", False), (b"a\x011\x02a\x01\x02", True), (b"a\x01\x02", False),
        (b"", False), (b"a", False), (b"\x02\x02a\x011\x02", True), (b"aa\x011\x02", False),
        (b"b\x01x\x02" * 600 + b"a\x011\x02", True), (b"a\x011\x02" + b"b\x01x\x02" * 600, True),
        (b"a\x011\x02" + b"b\x01x\x02" * 600 + b"a\x01\x02", True),
    ],
)  # fmt: skip
def test_properties_are_found_in_the_bytes(raw: bytes, found: bool) -> None:
    """The last of a repeated name counts, unless it is empty; long properties are parsed once."""
    assert compile_filter("a = 1").matches(raw) is found
    names = " OR ".join(f"p{number} = 'x'" for number in range(9))
    assert compile_filter(f"a = '1' OR {names}").matches(raw) is found


def test_numbers_of_texts() -> None:
    """The readers of numbers, at the ends of their ranges."""
    assert (to_int(b"2147483647"), to_int(b"-2147483648")) == (2**31 - 1, -(2**31))
    assert (to_long(b"9223372036854775807"), to_long(b"-5")) == (2**63 - 1, -5)
    assert math.copysign(1.0, to_double(b"-0")) == -1.0
    assert to_double(b"1" * 400) == math.inf
    for read, text in (
        (to_int, b"2147483648"), (to_int, b"-2147483649"), (to_int, b""), (to_int, b"\xff"),
        (to_long, b"9223372036854775808"), (to_double, b""), (to_double, b"e5"),
        (to_double, b"1" * (compiled.NUMBER_CHARS_MAX + 1)),
        (to_int, b"0" * (compiled.NUMBER_CHARS_MAX + 1)),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read(text)


def test_the_estimate_of_time_grows_with_terms_and_properties() -> None:
    """A pull ends by this estimate, so it depends on no clock."""
    short, long = compile_filter("a = 1"), compile_filter(" OR ".join(["a CONTAINS 'x'"] * 50))
    assert 1000 < short.cost_ns(100) < 4000
    assert short.cost_ns(100) < short.cost_ns(20_000)
    assert short.cost_ns(100) < long.cost_ns(100) < long.cost_ns(20_000)
