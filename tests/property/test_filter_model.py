"""SQL92 filters against a second evaluator: of trees, with truth tables, and Java's types as tags.

The model makes a random tree, writes it as text, and evaluates the tree itself; it neither reads
the text nor shares code with the filter. What Java makes of a text is a table here.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import SubscriptionParseFailed
from inorder.filters.compiled import compile_filter
from inorder.filters.syntax import parse
from inorder.wire.properties import format_properties

TEXTS: Final[dict[str, tuple[int | None, int | None, float | None]]] = {
    # text: what Integer.valueOf, Long.valueOf and Double.valueOf return; None: they throw
    "0": (0, 0, 0.0),
    "5": (5, 5, 5.0),
    "-5": (-5, -5, -5.0),
    "+7": (7, 7, 7.0),
    "007": (7, 7, 7.0),
    " 7": (None, None, 7.0),
    "5.5": (None, None, 5.5),
    "5d": (None, None, 5.0),
    "1e3": (None, None, 1000.0),
    "0x1p3": (None, None, 8.0),
    "-0.0": (None, None, -0.0),
    "NaN": (None, None, float("nan")),
    "-Infinity": (None, None, float("-inf")),
    "3000000000": (None, 3000000000, 3e9),
    "9223372036854775808": (None, None, 9.223372036854775808e18),
    "\u0667": (7, 7, None),
    "1_0": (None, None, None),
    "true": (None, None, None),
    "TRUE": (None, None, None),
    "x": (None, None, None),
    "abc": (None, None, None),
    "it's": (None, None, None),
}
NAMES: Final = ("a", "b", "C_1", "$d")
NUMBERS: Final = (
    ("I", 0, "0"), ("I", 5, "5"), ("I", 7, "7L"), ("L", 3000000000, "3000000000"),
    ("D", 5.5, "5.5"), ("D", 7.0, "7."), ("D", 1000.0, "1E3"), ("D", 0.0, "0.0"),
)  # fmt: skip
ORDERS: Final = (">", ">=", "<", "<=")
SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")

Tree = tuple[Any, ...]
Value = tuple[str, Any] | None
"""A tag of Java's type (S, I, L, D, B) and the value; None is null."""


class JavaError(Exception):
    """An exception of the evaluation: the message does not match."""


# -- random trees --------------------------------------------------------------------------------

prop = st.sampled_from(NAMES).map(lambda name: ("prop", name))
text = st.sampled_from(sorted(TEXTS)).map(lambda value: ("text", value))
number = st.sampled_from(NUMBERS).map(lambda one: ("number", *one))
signed = st.one_of(number, number.map(lambda one: ("minus", one)))
comparable = st.one_of(prop, signed, prop.map(lambda one: ("minus", one)))
searched = st.sampled_from(["", "x", "b", "5"])
fixed = st.sampled_from([("bool", True), ("bool", False)])


def _deeper(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    value = st.one_of(prop, text, signed, inner)
    return st.one_of(
        st.tuples(st.sampled_from(("and", "or")), st.lists(inner, min_size=2, max_size=4)),
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("isnull"), value, st.booleans()),
        st.tuples(st.sampled_from(("=", "<>")), st.one_of(prop, text, signed, inner), value),
        st.tuples(st.sampled_from(SEARCHES), value, searched, st.booleans()),
    )  # fmt: skip


leaves = st.one_of(
    fixed,
    prop,
    st.tuples(st.sampled_from(("=", "<>")), prop, st.one_of(prop, text, signed, fixed)),
    st.tuples(st.sampled_from(("=", "<>")), st.one_of(text, signed), prop),
    st.tuples(st.sampled_from(ORDERS), comparable, comparable),
    st.tuples(st.just("between"), comparable, comparable, comparable, st.booleans()),
    st.tuples(
        st.just("in"), prop, st.lists(st.sampled_from(sorted(TEXTS)), min_size=1, max_size=7),
        st.booleans(),
    ),
)  # fmt: skip
trees = st.recursive(leaves, _deeper, max_leaves=12)


def written(tree: Tree) -> str:
    """Write a tree as an expression, with parentheses around every part."""
    kind = tree[0]
    if kind == "prop":
        return str(tree[1])
    if kind == "text":
        return _quoted(tree[1])
    if kind == "number":
        return str(tree[3])
    if kind == "bool":
        return "true" if tree[1] else "FALSE"
    if kind == "minus":
        return f"- {written(tree[1])}"
    if kind in ("and", "or"):
        return "(" + f" {kind.upper()} ".join(written(part) for part in tree[1]) + ")"
    if kind == "not":
        return f"(NOT {written(tree[1])})"
    if kind == "isnull":
        return f"({written(tree[1])} IS {'not ' if tree[2] else ''}NULL)"
    if kind == "between":
        negated = "NOT " if tree[4] else ""
        one, low, high = map(written, tree[1:4])
        return f"({one} {negated}BETWEEN {low} AND {high})"
    if kind == "in":
        texts = ", ".join(map(_quoted, tree[2]))
        return f"({tree[1][1]} {'NOT ' if tree[3] else ''}in({texts}))"
    if kind in SEARCHES:
        return f"({written(tree[1])} {'NOT ' if tree[3] else ''}{kind} {_quoted(tree[2])})"
    return f"({written(tree[1])} {kind}{written(tree[2])})"


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# -- the second evaluator ------------------------------------------------------------------------

AND: Final = {
    (one, other): False if False in (one, other) else None if None in (one, other) else True
    for one in (True, False, None)
    for other in (True, False, None)
}
OR: Final = {
    (one, other): True if True in (one, other) else None if None in (one, other) else False
    for one in (True, False, None)
    for other in (True, False, None)
}


def truth(tree: Tree, message: dict[str, str]) -> bool | None:
    """Return the truth value of a tree; of a property FALSE, or null if the message has none."""
    if tree[0] == "prop":
        return None if tree[1] not in message else False
    found = value_of(tree, message)
    return None if found is None else bool(found[1])


def value_of(tree: Tree, message: dict[str, str]) -> Value:
    """Evaluate a tree as RocketMQ does."""
    kind = tree[0]
    if kind == "prop":
        return ("S", message[tree[1]]) if tree[1] in message else None
    if kind == "text":
        return "S", tree[1]
    if kind == "number":
        return tree[1], tree[2]
    if kind == "bool":
        return "B", tree[1]
    if kind == "minus":
        found = value_of(tree[1], message)
        return (found[0], -found[1]) if found and found[0] in "ILD" else None
    result = _truth_of(tree, message)
    return None if result is None else ("B", result)


def _truth_of(tree: Tree, message: dict[str, str]) -> bool | None:
    kind = tree[0]
    if kind in ("and", "or"):
        return _chain(kind, tree[1], message)
    if kind == "not":
        return {True: False, False: True, None: None}[truth(tree[1], message)]
    if kind == "isnull":
        return (value_of(tree[1], message) is None) is not tree[2]
    if kind == "between":
        _, one, low, high, negated = tree
        if negated:
            return _chain("or", [("<", one, low), (">", one, high)], message)
        return _chain("and", [(">=", one, low), ("<=", one, high)], message)
    if kind == "in":
        name = tree[1][1]
        return None if name not in message else (message[name] in tree[2]) is not tree[3]
    if kind in SEARCHES:
        return _search(tree, message)
    if kind == "<>":
        return {True: False, False: True, None: None}[_equal(tree, message)]
    return _equal(tree, message) if kind == "=" else _ordered(tree, message)


def _chain(kind: str, parts: list[Tree], message: dict[str, str]) -> bool | None:
    table, decides = (AND, False) if kind == "and" else (OR, True)
    result = truth(parts[0], message)
    for part in parts[1:]:
        if result is decides:
            return result
        result = table[result, truth(part, message)]
    return result


def _search(tree: Tree, message: dict[str, str]) -> bool:
    how, of, wanted, negated = tree
    if not wanted:
        return False
    found = value_of(of, message)
    if found is None or found[0] != "S":
        return False
    at = found[1].find(wanted)
    last = found[1].rfind(wanted)
    holds = {
        "CONTAINS": at >= 0,
        "STARTSWITH": at == 0,
        "ENDSWITH": last >= 0 and last + len(wanted) == len(found[1]),
    }[how]
    return holds is not negated


def _equal(tree: Tree, message: dict[str, str]) -> bool | None:
    left, right = value_of(tree[1], message), value_of(tree[2], message)
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return _compared(left, right) == 0


def _ordered(tree: Tree, message: dict[str, str]) -> bool | None:
    left = value_of(tree[1], message)
    right = None if left is None else value_of(tree[2], message)
    if left is None or right is None:
        return None
    if left[0] == right[0] == "S":
        left, right = ("D", _read(left[1], 2)), ("D", _read(right[1], 2))
    sign = _compared(left, right)
    return {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[tree[0]]


def _compared(left: tuple[str, Any], right: tuple[str, Any]) -> int:
    (one, left_value), (other, right_value) = left, right
    if one == other == "S":
        return 0 if left_value == right_value else 1
    if one != other:
        if "S" in (one, other):
            if one == "B":
                raise JavaError  # a Boolean is no String
            if one == "S":
                left_value, one = _as(other, left_value), other
            else:
                right_value, other = _as(one, right_value), one
        elif "B" in (one, other):
            return -1
    if "D" in (one, other):
        left_value, right_value = _bits(float(left_value)), _bits(float(right_value))
    return (left_value > right_value) - (left_value < right_value)


def _as(kind: str, value: str) -> Any:
    return value.casefold() == "true" if kind == "B" else _read(value, "ILD".index(kind))


def _read(value: str, column: int) -> Any:
    found = TEXTS[value][column]
    if found is None:
        raise JavaError
    return found


def _bits(value: float) -> int:
    """Return a number that grows as Double.compare orders doubles."""
    if value != value:  # noqa: PLR0124 - NaN, and Java has one of them
        return 1 << 63
    (bits,) = struct.unpack(">q", struct.pack(">d", value))
    return bits if bits >= 0 else -(bits & (2**63 - 1)) - 1


def refused(tree: Tree) -> bool:
    """Return whether RocketMQ refuses the tree when it compiles it."""
    kind = tree[0]
    if kind == "minus" or kind in SEARCHES or kind in ("not", "isnull"):
        return refused(tree[1])
    if kind in ("and", "or"):
        return any(map(refused, tree[1]))
    if kind in ("=", "<>"):
        if tree[1][0] == "bool" and tree[2][0] in ("text", "number"):
            return True
        return refused(tree[1]) or refused(tree[2])
    if kind == "between" and not tree[4]:
        low, high = tree[2], tree[3]
        return low[0] == high[0] == "number" and high[2] < low[2]
    return False


@given(
    trees,
    st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(TEXTS))), min_size=1),
)
def test_filters_agree_with_the_second_evaluator(
    tree: Tree, messages: list[dict[str, str]]
) -> None:
    """Every random expression gives the same answer for every random message."""
    expression = written(tree)
    if refused(tree):
        with pytest.raises(SubscriptionParseFailed):
            parse(expression)
        return
    found = compile_filter(expression)
    for message in messages:
        try:
            expected = truth(tree, message) is True
        except JavaError:
            expected = False
        raw = format_properties(message).encode()
        assert found.matches(raw) is expected, (expression, message)
        assert found.matches(raw + b"filler\x01x\x02" * 300) is expected


WORDS: Final = (
    "a", "b", "5", "5.5", "0", "1L", "'x'", "''", "'", '"', "(", ")", ",", "=", "<>", "<", ">=",
    "-", "+", "/*", "*/", "--", "\n", "NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN",
    "CONTAINS", "ENDSWITH", ".", "%", "é", "\x00", "\ud800",
)  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=60), st.sampled_from(["", " "]))
def test_any_text_is_compiled_or_refused_with_a_place(words: list[str], between: str) -> None:
    """No text raises anything else, and what is compiled answers every message."""
    expression = between.join(words)
    try:
        found = compile_filter(expression)
    except SubscriptionParseFailed as error:
        refusal = error.remark
    else:
        for raw in (b"", b"a\x015\x02b\x01x\x02", b"\xff\x01\xff\x02a\x01\xff\x02"):
            assert found.matches(raw) in (True, False)
        return
    assert refusal.endswith("^")


@given(
    st.sampled_from(["(", "NOT ", "- ", "a = ", "a AND ", "a OR ", "a IN ('", "/*", "'", "a > b "]),
    st.integers(1, 20_000),
)
def test_repetition_neither_hangs_nor_exhausts_the_stack(part: str, count: int) -> None:
    """Whatever is repeated, the text is refused at a bound, or compiled and asked."""
    try:
        found = compile_filter(part * count + "a")
    except SubscriptionParseFailed:
        return
    assert found.matches(b"a\x011\x02") in (True, False)


@pytest.mark.parametrize("how", SEARCHES)
def test_a_search_takes_time_with_the_length_of_both_texts(how: str) -> None:
    """Not with their product: texts that nearly match everywhere are found in 32 KiB at once."""
    wanted = "a" * 3000 + "b" + "a" * 3000
    found = compile_filter(f"p {how} '{wanted}'")
    assert not found.matches(b"p\x01" + b"a" * 32_000 + b"\x02")
