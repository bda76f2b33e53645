"""The grammar of SQL92 filters: what is taken, what is refused, and which place is marked."""

from __future__ import annotations

import pytest

from inorder.errors import SubscriptionParseFailed
from inorder.filters.compiled import compile_filter
from inorder.filters.syntax import (
    CHARS_MAX,
    DEPTH_MAX,
    TERMS_MAX,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Kind,
    Negative,
    Not,
    Or,
    Property,
    Search,
    Truth,
    parse,
)

A, B, C = Property("a"), Property("b"), Property("c")


def number(value: int) -> Constant:
    return Constant(value, Kind.INT)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1", Compare("=", A, number(1))),
        ("a<>1", Not(Compare("=", A, number(1)))),
        ("a >= -5", Compare(">=", A, Negative(number(5)))),
        ("a > +5", Compare(">", A, number(5))),
        ("a = 'it''s'", Compare("=", A, Constant("it's", Kind.STRING))),
        ("a = ''", Compare("=", A, Constant("", Kind.STRING))),
        ("a = 5L", Compare("=", A, number(5))),
        ("a = 2147483648", Compare("=", A, Constant(2147483648, Kind.LONG))),
        ("a = 9223372036854775807", Compare("=", A, Constant(2**63 - 1, Kind.LONG))),
        ("a = 1.5", Compare("=", A, Constant(1.5, Kind.DOUBLE))),
        ("a = .5e1", Compare("=", A, Constant(5.0, Kind.DOUBLE))),
        ("a = 5.", Compare("=", A, Constant(5.0, Kind.DOUBLE))),
        ("a = 5E2", Compare("=", A, Constant(500.0, Kind.DOUBLE))),
        ("a = 05.5", Compare("=", A, Constant(5.5, Kind.DOUBLE))),
        ("a > 0.0", Compare(">", A, Constant(0.0, Kind.DOUBLE))),
        ("a = TRUE", Compare("=", A, Constant(True, Kind.BOOLEAN))),
        ("a = False", Compare("=", A, Constant(False, Kind.BOOLEAN))),
        ("a = b", Compare("=", A, B)),
        ("a is null", IsNull(A)),
        ("a IS NOT NULL", Not(IsNull(A))),
        ("a IN ('x')", In("a", ("x",), False)),
        ("a not in ('x' , 'y')", In("a", ("x", "y"), True)),
        ("a CONTAINS 'x'", Search("CONTAINS", A, "x", False)),
        ("a NOT STARTSWITH 'x'", Search("STARTSWITH", A, "x", True)),
        ("'x' endswith 'x'", Search("ENDSWITH", Constant("x", Kind.STRING), "x", False)),
        (
            "a BETWEEN 1 AND 3",
            And((Compare(">=", A, number(1)), Compare("<=", A, number(3)))),
        ),
        (
            "a NOT BETWEEN 1 AND 3",
            Or((Compare("<", A, number(1)), Compare(">", A, number(3)))),
        ),
        (
            "a NOT BETWEEN 3 AND 1",
            Or((Compare("<", A, number(3)), Compare(">", A, number(1)))),
        ),
        ("a", Truth("a")),
        ("NOT a", Not(Truth("a"))),
        ("TRUE", Constant(True, Kind.BOOLEAN)),
        ("NULL", Constant(None, Kind.NULL)),
        ("a AND b OR c", Or((And((Truth("a"), Truth("b"))), Truth("c")))),
        ("a OR b AND c", Or((Truth("a"), And((Truth("b"), Truth("c")))))),
        ("(a OR b) AND c", And((Or((Truth("a"), Truth("b"))), Truth("c")))),
        ("NOT a = 1", Compare("=", Not(Truth("a")), number(1))),
        ("NOT (a = 1)", Not(Compare("=", A, number(1)))),
        ("a = 1 = TRUE", Compare("=", Compare("=", A, number(1)), Constant(True, Kind.BOOLEAN))),
        ("(a > 1) IS NULL", IsNull(Compare(">", A, number(1)))),
        ("1 = TRUE", Compare("=", number(1), Constant(True, Kind.BOOLEAN))),
        ("$a_1 = 1", Compare("=", Property("$a_1"), number(1))),
        ("Not_ = 1", Compare("=", Property("Not_"), number(1))),
        ("a = --5", Compare("=", A, Negative(Negative(number(5))))),
        ("a /* one ** / two */ = -- three\n 1", Compare("=", A, number(1))),
        ("a = 1 -- it's the end", Compare("=", A, number(1))),
        ("\t a\r\n=\f1 ", Compare("=", A, number(1))),
    ],
)
def test_the_grammar_is_rocketmqs(text: str, tree: object) -> None:
    """Precedence, keywords in any case, literals, comments."""
    assert parse(text).tree == tree


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 0, "the end of the expression"),
        ("   ", 3, "the end of the expression"),
        ("a = ", 4, "the end of the expression"),
        ("a > (", 5, "not the end"),
        ("(a = 1", 6, ") is expected"),
        ("a = 1)", 5, "does not belong here"),
        ("a == 1", 3, "equal is written ="),
        ("a != 1", 2, "unequal is written <>"),
        ("a = 1 b = 2", 6, "AND, OR or a comparison is missing"),
        ("a = 05", 5, "does not belong here"),
        ("a = 5x", 5, "does not belong here"),
        ("a LIKE 'x%'", 2, "there is no LIKE"),
        ('a = "x"', 4, "single quotes"),
        ("a = 'x", 4, "has no end"),
        ("a = 'it''s", 8, "has no end"),
        ("a + 1 = 2", 2, "does not belong here"),
        ("a * 2 = 2", 2, "arithmetic"),
        ("a = 1 /* b", 6, "no end"),
        ("a.b = 1", 1, "unexpected ."),
        ("a = é", 4, "unexpected é"),
        ("a AND", 5, "the end"),
        ("AND a", 0, "not AND"),
        ("a NOT 5", 2, "does not belong here"),
        ("a IS 5", 5, "NULL or NOT NULL"),
        ("a IS NOT 5", 9, "NULL is expected"),
        ("a IN ()", 6, "a text in single quotes"),
        ("a IN (5)", 6, "a text in single quotes"),
        ("a IN ('x' 'y')", 10, ", or )"),
        ("a IN 'x'", 5, "( and a list"),
        ("'a' IN ('x')", 0, "only a property"),
        ("a CONTAINS 5", 11, "a text in single quotes"),
        ("a BETWEEN 1", 11, "AND and the upper bound"),
        ("a BETWEEN 3 AND 1", 10, "the lower bound is above"),
        ("a BETWEEN 'x' AND 'y'", 10, "only numbers and properties"),
        ("a > 'x'", 4, "only numbers and properties are compared by >"),
        ("'x' < a", 0, "only numbers and properties are compared by <"),
        ("a > TRUE", 4, "only numbers and properties"),
        ("a > NULL", 4, "only numbers and properties"),
        ("a < b < c", 0, "only numbers and properties"),
        ("a = NULL", 4, "IS NULL"),
        ("NULL <> a", 0, "IS NULL"),
        ("TRUE = 1", 7, "TRUE and FALSE"),
        ("5", 0, "a comparison is expected"),
        ("'x' AND a", 0, "a comparison is expected"),
        ("a AND -b", 6, "a comparison is expected"),
        ("NOT 5 = a", 4, "a comparison is expected"),
        ("a = 9223372036854775808", 4, "64 bits"),
        ("a = 1e999", 4, "64 bits"),
        ("a = 1e-999", 4, "64 bits"),
    ],
)
def test_an_error_marks_its_place(text: str, column: int, words: str) -> None:
    """The remark has the line of the text, and below it a ^ at the place."""
    with pytest.raises(SubscriptionParseFailed) as caught:
        parse(text)
    first, line, mark = caught.value.remark.split("\n")
    assert first.startswith("the SQL filter is not valid: ")
    assert words in first
    assert line == f"  {text}".replace("\t", " ")
    assert mark == " " * (2 + column) + "^"


def test_of_a_long_or_broken_text_only_the_place_is_shown() -> None:
    """The line with the place, 60 characters to each side, and nothing that a terminal obeys."""
    text = "a = 1 AND\n" + "b = 1 AND " * 20 + "\x1b[2J" + " AND c = 1" * 20
    with pytest.raises(SubscriptionParseFailed) as caught:
        parse(text)
    first, line, mark = caught.value.remark.split("\n")
    assert "\x1b" not in caught.value.remark
    assert first.endswith("no word of the language begins so")
    assert len(line) <= 2 + 2 * 61
    assert line.startswith("  …")
    assert line.endswith("…")
    assert line[mark.index("^") + 1 :].startswith("[2J")


def test_an_expression_has_bounds() -> None:
    """Length, depth and number of comparisons: each is refused above its limit, taken at it."""
    at_limit = " AND ".join(["a = 1"] * TERMS_MAX)
    assert parse(at_limit).terms == TERMS_MAX
    deep = "(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX
    chain = "a = b" + " = b" * DEPTH_MAX
    texts = "a IN (" + ",".join(["'x'"] * 2000) + ")"
    for taken in (at_limit, deep, chain, texts, "a = '" + "x" * (CHARS_MAX - 6) + "'"):
        assert compile_filter(taken).matches(b"a\x011\x02") in (True, False)
    for refused, words in (
        (at_limit + " AND a", "more than 256 comparisons"),
        ("TRUE" + " OR TRUE" * TERMS_MAX, "more than 256 comparisons"),
        (f"({deep})", "nested deeper than 32"),
        ("NOT " * 33 + "a", "nested deeper than 32"),
        ("a = " + "- " * 33 + "5", "nested deeper than 32"),
        (chain + " = b", "more than 32 comparisons of comparisons"),
        ("a" + " IS NULL" * 100, "more than 32 comparisons of comparisons"),
        ("(" * 8000, "nested deeper than 32"),
        ("a" * (CHARS_MAX + 1), f"has {CHARS_MAX + 1} characters"),
    ):
        with pytest.raises(SubscriptionParseFailed, match=words):
            parse(refused)
