"""A filter as a function of a message's properties: compiled once, asked for every message.

The tree becomes closures, one for a comparison. Values keep their bytes: a property is a text until
it is compared with something else. The type rules are RocketMQ's, which are those of Java:

    property, whole number    the text must be an int (or a long, if the number is one)
    property, fraction        the text must be a double
    property, TRUE or FALSE   the text counts as true if it is `true` in any case
    text < text               both must be doubles
    TRUE = property           never matches, if the message has the property
    a text that is none of that, where it is reached: the message does not match

Truth has three values. A comparison with a missing property is NULL, and only TRUE matches. As in
RocketMQ two missing properties are equal, and a missing property on the right of `=` gives FALSE.

Filters come from clients and properties from producers, so a filter has a bounded cost for any
message (`Filter.cost_ns`). Why: decision 49.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from inorder.filters.syntax import (
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Kind,
    Negative,
    Node,
    Not,
    Or,
    Property,
    Search,
    Truth,
    parse,
)
from inorder.wire.properties import get

Values = Sequence[bytes | None]
"""The properties that a filter names, in the filter's order."""
Evaluate = Callable[[Values], Any]

_NAMES_SEARCHED_MAX: Final = 8
_BYTES_SEARCHED_MAX: Final = 2048
"""More names or longer properties: all properties are parsed once instead."""
NUMBER_CHARS_MAX: Final = 1024
"""A longer text is no number; a conversion takes time with its length."""

_INT: Final = (-(2**31), 2**31 - 1)
_LONG: Final = (-(2**63), 2**63 - 1)
_WHOLE: Final = re.compile(r"[+-]?\d+\Z")
_DOUBLE: Final = re.compile(
    rb"""[+-]?(?: NaN | Infinity
       | (?: [0-9]+\.?[0-9]* | \.[0-9]+ ) (?:[eE][+-]?[0-9]+)? [fFdD]?
       | (?P<hex> 0[xX] (?: [0-9a-fA-F]+\.?[0-9a-fA-F]* | \.[0-9a-fA-F]+ ) [pP][+-]?[0-9]+ ) [fFdD]?
       )\Z""",
    re.VERBOSE,
)
_SPACE: Final = bytes(range(33))
"""What Java trims from a number."""

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_SWAPPED: Final = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


class Filter:
    """A compiled expression."""

    __slots__ = ("_base_ns", "_evaluate", "_kib_ns", "_marks", "_names", "_searched", "text")

    def __init__(self, text: str, terms: int, names: Sequence[str], evaluate: Evaluate) -> None:
        self.text = text
        self._base_ns = 1500 + 400 * terms
        self._kib_ns = 1000 * (len(names) + 2 * terms)
        self._evaluate = evaluate
        self._names = tuple(name.encode() for name in names)
        self._marks = tuple((b"\x02%b\x01" % name, len(name) + 2) for name in self._names)
        self._searched = len(names) <= _NAMES_SEARCHED_MAX

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    def cost_ns(self, size: int) -> int:
        """Return about how long `matches` takes for properties of a size, at worst."""
        return self._base_ns + (size * self._kib_ns >> 10)

    # hot: 1.1 us for two terms and five properties (bench/hotpath.py)
    def matches(self, raw: bytes) -> bool:
        """Return whether the encoded properties of a message make the expression TRUE."""
        if self._searched and len(raw) <= _BYTES_SEARCHED_MAX:
            text = b"\x02" + raw
            values: list[bytes | None] = []
            for mark, size in self._marks:
                begin = text.rfind(mark)
                if begin < 0:
                    values.append(None)
                    continue
                begin += size
                end = text.find(b"\x02", begin)
                value = text[begin:] if end < 0 else text[begin:end]
                values.append(value or get(raw, mark[1:-1]))
        else:
            values = _parsed(raw, self._names)
        try:
            return self._evaluate(values) is True
        except ValueError:
            return False


def _parsed(raw: bytes, names: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of names after reading all properties; of a repeated one the last."""
    found: dict[bytes, bytes] = dict.fromkeys(names, b"")
    for entry in raw.split(b"\x02"):
        name, _, value = entry.partition(b"\x01")
        if value and name in found:
            found[name] = value
    return [found[name] or None for name in names]


def compile_filter(text: str) -> Filter:
    """Return the filter of an SQL92 expression.

    Raises:
        SubscriptionParseFailed: the text is no expression; the error marks the place.
    """
    parsed = parse(text)
    compiler = _Compiler()
    evaluate = compiler.build(parsed.tree)
    return Filter(text, parsed.terms, list(compiler.names), evaluate)


# -- texts as numbers ----------------------------------------------------------------------------


class _Unusual(float):
    """NaN or -0.0, in Java's order of doubles: -0.0 lies below 0.0, and NaN above all numbers."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return _rank(self) == _rank(other)

    def __lt__(self, other: float) -> bool:
        return _rank(self) < _rank(other)

    def __le__(self, other: float) -> bool:
        return _rank(self) <= _rank(other)

    def __gt__(self, other: float) -> bool:
        return _rank(self) > _rank(other)

    def __ge__(self, other: float) -> bool:
        return _rank(self) >= _rank(other)

    def __hash__(self) -> int:
        return hash(_rank(self))


def _rank(value: Any) -> tuple[int, float, float]:
    if math.isnan(value):
        return 1, 0.0, 0.0
    number = float(value)
    return 0, number, math.copysign(1.0, number) if not number else 0.0


def _java_double(value: float) -> float:
    """Return a double that compares as in Java."""
    if math.isnan(value) or (not value and math.copysign(1.0, value) < 0):
        return _Unusual(value)
    return value


def to_double(text: bytes) -> float:
    """Return the double that Java reads from a text; ValueError if it is none."""
    if text.isdigit() and len(text) < NUMBER_CHARS_MAX:
        return float(text)
    text = text.strip(_SPACE)
    found = _DOUBLE.match(text) if len(text) <= NUMBER_CHARS_MAX else None
    if found is None:
        raise ValueError
    text = text.rstrip(b"fFdD") if found["hex"] is None and text[-1:] in b"fFdD" else text
    if found["hex"] is not None:
        try:
            number = float.fromhex(found["hex"].decode())
        except OverflowError:
            number = math.inf
        return _java_double(-number if text[:1] == b"-" else number)
    return _java_double(float(text))


def to_int(text: bytes) -> int:
    """Return the int that Java reads from a text; ValueError if it is none."""
    return int(text) if len(text) < 10 and text.isdigit() else _whole(text, *_INT)


def to_long(text: bytes) -> int:
    """Return the long that Java reads from a text; ValueError if it is none."""
    return int(text) if len(text) < 19 and text.isdigit() else _whole(text, *_LONG)


def _whole(text: bytes, low: int, high: int) -> int:
    if len(text) > NUMBER_CHARS_MAX:
        raise ValueError
    digits = text.decode("utf-8", "replace")
    if _WHOLE.match(digits) is None or max(digits) > "\uffff":
        raise ValueError
    value = int(digits)
    if not low <= value <= high:
        raise ValueError
    return value


_FROM_TEXT: Final[dict[Kind, Callable[[bytes], Any]]] = {
    Kind.INT: to_int,
    Kind.LONG: to_long,
    Kind.DOUBLE: to_double,
    Kind.BOOLEAN: lambda text: text.lower() == b"true",
}


# -- the closures --------------------------------------------------------------------------------


class _Compiler:
    """Makes the closures, and collects the names of properties."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}

    def build(self, node: Node) -> Evaluate:
        """Return the function of a node: its value, as bytes, a number, a truth value or None."""
        match node:
            case Constant():
                value = _literal(node)
                return lambda _: value
            case Property():
                at = self._index(node.name)
                return lambda values: values[at]
            case Truth():
                at = self._index(node.name)
                return lambda values: None if values[at] is None else False
            case Negative():
                return self._negative(node)
            case Not():
                return _not(self.build(node.value))
            case And():
                return _and(tuple(map(self.build, node.values)))
            case Or():
                return _or(tuple(map(self.build, node.values)))
            case Compare():
                return self._compare(node)
            case IsNull():
                inner = self.build(node.value)
                return lambda values: inner(values) is None
            case In():
                return self._in(node)
            case Search():
                return self._search(node)

    def _index(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _negative(self, node: Negative) -> Evaluate:
        inner, kind = self.build(node.value), kind_of(node)
        if kind is not Kind.NULL:
            value = inner(())
            negated = _java_double(-value) if kind is Kind.DOUBLE else -value
            return lambda _: negated

        def nothing(values: Values) -> None:
            inner(values)  # it may find that a text is no number

        return nothing

    def _compare(self, node: Compare) -> Evaluate:
        left, right, sign = node.left, node.right, node.operator
        if isinstance(left, Property) and _is_fixed(right):
            return self._with_fixed(left, sign, right, missing=None)
        if isinstance(right, Property) and _is_fixed(left) and kind_of(left) is not Kind.BOOLEAN:
            missing = False if sign == "=" else None
            return self._with_fixed(right, _SWAPPED[sign], left, missing=missing)
        return _compare_values(
            sign, self.build(left), kind_of(left), self.build(right), kind_of(right)
        )

    def _with_fixed(
        self, name: Property, sign: str, fixed: Node, *, missing: bool | None
    ) -> Evaluate:
        """Compare a property with a number, a text or a truth value: the usual comparison."""
        at, kind = self._index(name.name), kind_of(fixed)
        value = self.build(fixed)(())
        test = _OPERATORS[sign]
        convert = _FROM_TEXT.get(kind)
        if convert is None:

            def is_text(values: Values) -> bool | None:
                found = values[at]
                return missing if found is None else found == value

            return is_text
        if kind is Kind.INT:

            def compare_int(values: Values) -> bool | None:
                found = values[at]
                if found is None:
                    return missing
                if len(found) < 10 and found.isdigit():
                    return test(int(found), value)
                return test(_whole(found, *_INT), value)

            return compare_int

        def compare(values: Values) -> bool | None:
            found = values[at]
            return missing if found is None else test(convert(found), value)

        return compare

    def _in(self, node: In) -> Evaluate:
        at, negated = self._index(node.name), node.negated
        texts = frozenset(map(_encoded, node.texts))

        def is_in(values: Values) -> bool | None:
            found = values[at]
            return None if found is None else (found in texts) is not negated

        return is_in

    def _search(self, node: Search) -> Evaluate:
        inner, text, negated = self.build(node.value), _encoded(node.text), node.negated
        if not text:
            return lambda _: False
        test: Callable[[bytes], Any]
        if node.how == "STARTSWITH":
            test = operator.methodcaller("startswith", text)
        elif node.how == "ENDSWITH":
            test = operator.methodcaller("endswith", text)
        else:
            # Python's own search may take the product of both lengths. A pattern without choices
            # takes their sum.
            test = re.compile(re.escape(text)).search

        def search(values: Values) -> bool:
            found = inner(values)
            return isinstance(found, bytes) and bool(test(found)) is not negated

        return search


def _literal(node: Constant) -> Any:
    return _encoded(node.value) if isinstance(node.value, str) else node.value


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def kind_of(node: Node) -> Kind:
    """Return the type that the values of a node have, if they are not NULL."""
    if isinstance(node, Property):
        return Kind.STRING
    if isinstance(node, Constant):
        return node.kind
    if isinstance(node, Negative):
        kind = kind_of(node.value)
        return kind if kind.is_number else Kind.NULL
    return Kind.BOOLEAN


def _is_fixed(node: Node) -> bool:
    """Return whether a node is a constant other than NULL, perhaps with minus signs."""
    while isinstance(node, Negative):
        node = node.value
        if isinstance(node, Constant) and not node.kind.is_number:
            return False
    return isinstance(node, Constant) and node.kind is not Kind.NULL


def _not(inner: Evaluate) -> Evaluate:
    def opposite(values: Values) -> bool | None:
        found = inner(values)
        return None if found is None else not found

    return opposite


def _and(parts: tuple[Evaluate, ...]) -> Evaluate:
    def every(values: Values) -> bool | None:
        result: bool | None = True
        for part in parts:
            found = part(values)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return every


def _or(parts: tuple[Evaluate, ...]) -> Evaluate:
    def some(values: Values) -> bool | None:
        result: bool | None = False
        for part in parts:
            found = part(values)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return some


def _compare_values(
    sign: str, left: Evaluate, left_kind: Kind, right: Evaluate, right_kind: Kind
) -> Evaluate:
    """Compare values of any two kinds."""
    test, compare = _OPERATORS[sign], _comparison(sign, left_kind, right_kind)

    def equal(values: Values) -> bool | None:
        one, other = left(values), right(values)
        if one is None:
            return True if other is None else None
        return False if other is None else test(compare(one, other), 0)

    def ordered(values: Values) -> bool | None:
        one = left(values)
        if one is None:
            return None
        other = right(values)
        return None if other is None else test(compare(one, other), 0)

    return equal if sign == "=" else ordered


def _comparison(sign: str, left: Kind, right: Kind) -> Callable[[Any, Any], int]:
    """Return a function that tells whether a value is below (-1), equal (0) or above (1)."""
    if left is right and not (left is Kind.STRING and sign != "="):
        return _sign_of
    if left is right:
        return lambda one, other: _sign_of(to_double(one), to_double(other))
    if left is Kind.STRING and right in _FROM_TEXT:
        convert = _FROM_TEXT[right]
        return lambda one, other: _sign_of(convert(one), other)
    if right is Kind.STRING and left in _FROM_TEXT:
        if left is Kind.BOOLEAN:
            return _never
        convert = _FROM_TEXT[left]
        return lambda one, other: _sign_of(one, convert(other))
    if left.is_number and right.is_number:
        if Kind.DOUBLE in (left, right):
            return lambda one, other: _sign_of(_as_double(one), _as_double(other))
        return _sign_of
    return lambda _one, _other: -1


def _as_double(value: Any) -> Any:
    return value if isinstance(value, float) else float(value)  # NaN and -0.0 stay as they are


def _sign_of(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


def _never(_one: object, _other: object) -> int:
    """RocketMQ fails to compare a truth value with a text, so the message does not match."""
    raise ValueError
