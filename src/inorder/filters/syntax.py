"""The text of an SQL92 filter becomes a tree, or an error that marks its place.

    or       = and { OR and }                      and = equality { AND equality }
    equality = comparison { (= | <>) comparison | IS [NOT] NULL }
    comparison = unary { (> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary
                       | [NOT] IN ( 'text' {, 'text'} )
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'text' }
    unary    = (+ | - | NOT) unary | 'text' | number | TRUE | FALSE | NULL | property | ( or )

NOT binds tightly, as in RocketMQ: `NOT a = 1` compares `NOT a` with 1. The checks here are those
that RocketMQ makes when it compiles an expression, with two differences: RocketMQ ignores text
after a complete expression, which is refused here, and it refuses the number 0.0, which is taken
here. An expression has bounds, so that neither its text nor its tree can stall a broker.

Why: decision 49.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, NoReturn

from inorder.errors import SubscriptionParseFailed

CHARS_MAX: Final = 8 * 1024
DEPTH_MAX: Final = 32
"""Parentheses and signs within each other, and comparisons of comparisons in a row."""
TERMS_MAX: Final = 256
"""Comparisons and tests of one expression; an IN with its list is one."""

_SHOWN_CHARS: Final = 60
"""How much of the line is shown before and after the place of an error."""
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


class Kind(Enum):
    """The type of a value, in Java's words; a property is a string."""

    STRING = "a text"
    INT = "a number"
    LONG = "a long number"
    DOUBLE = "a number with a fraction"
    BOOLEAN = "a truth value"
    NULL = "NULL"

    @property
    def is_number(self) -> bool:
        """Return whether values of this kind are numbers."""
        return self in (Kind.INT, Kind.LONG, Kind.DOUBLE)


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: str | int | float | bool | None
    kind: Kind


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property of the message; NULL if it has none."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """A value with a minus sign; NULL if the value is no number."""

    value: Node


@dataclass(frozen=True, slots=True)
class Truth:
    """A property where a truth value is needed: FALSE, or NULL if the message has none."""

    name: str


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a truth value; NULL stays NULL."""

    value: Node


@dataclass(frozen=True, slots=True)
class And:
    """All are TRUE. The first that is FALSE decides; those after it are not evaluated."""

    values: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One is TRUE. The first that is TRUE decides; those after it are not evaluated."""

    values: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """Two values, compared by `=`, `>`, `>=`, `<` or `<=`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a value is NULL."""

    value: Node


@dataclass(frozen=True, slots=True)
class In:
    """Whether a property is one of some texts."""

    name: str
    texts: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Search:
    """Whether a text CONTAINS, STARTSWITH or ENDSWITH another one."""

    how: str
    value: Node
    text: str
    negated: bool


Node = Constant | Property | Negative | Truth | Not | And | Or | Compare | IsNull | In | Search
_BOOLEAN: Final = (Truth, Not, And, Or, Compare, IsNull, In, Search)


def is_boolean(node: Node) -> bool:
    """Return whether a node gives a truth value. NULL stands for an unknown one."""
    if isinstance(node, Constant):
        return node.kind in (Kind.BOOLEAN, Kind.NULL)
    return isinstance(node, _BOOLEAN)


class Parsed(NamedTuple):
    """The tree of an expression, and the number of its comparisons and tests."""

    tree: Node
    terms: int


def parse(text: str) -> Parsed:
    """Return the tree of an expression.

    Raises:
        SubscriptionParseFailed: the text is no expression, or too long or deep; the error has a
            line of the text with a mark below the place.
    """
    if len(text) > CHARS_MAX:
        raise SubscriptionParseFailed(
            f"the SQL filter has {len(text)} characters; at most {CHARS_MAX} are taken"
        )
    parser = _Parser(text)
    tree = parser.expression()
    return Parsed(tree, parser.terms)


# -- words ---------------------------------------------------------------------------------------

_KEYWORDS: Final = frozenset(
    (
        "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS",
        "STARTSWITH", "ENDSWITH",
    )
)  # fmt: skip
_SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_ORDERS: Final = (">", ">=", "<", "<=")
# No alternative begins like another one that could match, so nothing here is tried twice.
_WORD: Final = re.compile(
    r"""
      (?P<blank>  [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/ )
    | (?P<name>   [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<double> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)?
                | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole>  (?:0|[1-9][0-9]*[lL]?) )
    | (?P<text>   '[^']*(?:''[^']*)*' )
    | (?P<sign>   <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_END: Final = "the end"
_HINTS: Final = {
    '"': "a text stands in single quotes",
    "!": "unequal is written <>",
    "'": "the text that begins here has no end",
    "/": "there is no arithmetic; a comment that begins here has no end",
    "*": "there is no arithmetic",
    "%": "there is no arithmetic",
}
_NAME_HINTS: Final = {
    "LIKE": "there is no LIKE; use CONTAINS, STARTSWITH or ENDSWITH",
    "XOR": "there is no XOR",
}


class _Word(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def shown(self) -> str:
        if self.kind == _END:
            return "the end of the expression"
        return self.text if len(self.text) <= 20 else self.text[:20] + "…"


def _fail(text: str, at: int, problem: str) -> NoReturn:
    """Raise the error, with the line of the text and a mark below the place."""
    begin = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    end = min((i for i in (text.find("\n", at), text.find("\r", at)) if i >= 0), default=len(text))
    first = max(begin, at - _SHOWN_CHARS)
    last = min(end, at + _SHOWN_CHARS)
    before = ("…" if first > begin else "") + _printable(text[first:at])
    after = _printable(text[at:last]) + ("…" if last < end else "")
    raise SubscriptionParseFailed(
        f"the SQL filter is not valid: {problem}\n  {before}{after}\n  {' ' * len(before)}^"
    )


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


# -- the tree ------------------------------------------------------------------------------------


class _Parser:
    """Reads one expression from left to right, one word ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._links = 0
        self.terms = 0
        self._after: _Word | None = None
        self._word = self._read()
        """The next word. No more is read: a comment at the end of the text is no word."""

    def expression(self) -> Node:
        tree = self._truth_at(self._word.at, self._or())
        word = self._word
        if word.kind != _END and not self._text.startswith("--", word.at):
            hint = _NAME_HINTS.get(word.text.upper())
            if hint is None:
                hint = "AND, OR or a comparison is missing before it"
            self._fail(word, f"{word.shown} does not belong here: {hint}")
        return tree

    def _ahead(self) -> _Word:
        """Return the word after the next one."""
        if self._after is None:
            self._after = self._read()
        return self._after

    def _read(self) -> _Word:
        text, at = self._text, self._at
        while at < len(text):
            found = _WORD.match(text, at)
            if found is None:
                hint = _HINTS.get(text[at], "no word of the language begins so")
                _fail(text, at, f"unexpected {_printable(text[at])}: {hint}")
            self._at = found.end()
            kind, word = str(found.lastgroup), found.group()
            if kind == "name":
                upper = word.upper()
                return _Word(upper if upper in _KEYWORDS else kind, word, at)
            if kind != "blank":
                return _Word(word if kind == "sign" else kind, word, at)
            at = self._at
        return _Word(_END, "", len(text))

    def _take(self) -> _Word:
        word = self._word
        self._word, self._after = self._after or self._read(), None
        return word

    def _takes(self, kind: str) -> bool:
        """Take a word if it comes next."""
        if self._word.kind != kind:
            return False
        self._take()
        return True

    def _expect(self, kind: str, what: str) -> _Word:
        word = self._word
        if word.kind != kind:
            self._fail(word, f"{what} is expected, not {word.shown}")
        return self._take()

    def _fail(self, word: _Word, problem: str) -> NoReturn:
        _fail(self._text, word.at, problem)

    def _term(self, at: int) -> None:
        self.terms += 1
        if self.terms > TERMS_MAX:
            _fail(self._text, at, f"this is more than {TERMS_MAX} comparisons")

    def _truth_at(self, at: int, node: Node) -> Node:
        """Return a node where a truth value is needed."""
        if is_boolean(node):
            if isinstance(node, Constant):
                self._term(at)
            return node
        if isinstance(node, Property):
            self._term(at)
            return Truth(node.name)
        return _fail(self._text, at, "a comparison is expected here, not a value")

    def _or(self) -> Node:
        return self._chain("OR", self._and, Or)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, And)

    def _chain(self, word: str, part: Callable[[], Node], make: type[And | Or]) -> Node:
        at = self._word.at
        node = part()
        if self._word.kind != word:
            return node
        parts = [self._truth_at(at, node)]
        while self._takes(word):
            at = self._word.at
            parts.append(self._truth_at(at, part()))
        return make(tuple(parts))

    def _link(self, word: _Word, node: Node) -> None:
        """Count a comparison; few may follow each other in a row, as in `a = b = c`."""
        self._term(word.at)
        if is_boolean(node):
            self._links += 1
            if self._links > DEPTH_MAX:
                self._fail(word, f"these are more than {DEPTH_MAX} comparisons of comparisons")

    def _equality(self) -> Node:
        at = self._word.at
        node = self._comparison()
        while True:
            word = self._word
            if word.kind in ("=", "<>"):
                self._take()
                self._link(word, node)
                right_at = self._word.at
                right = self._comparison()
                self._check_equal(at, node, right_at, right)
                node = Compare("=", node, right)
                node = Not(node) if word.kind == "<>" else node
            elif word.kind == "IS":
                self._take()
                self._link(word, node)
                negated = self._takes("NOT")
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                node = Not(IsNull(node)) if negated else IsNull(node)
            else:
                return node

    def _comparison(self) -> Node:
        at = self._word.at
        node = self._unary()
        while True:
            word = self._word
            if word.kind in _ORDERS:
                self._take()
                self._link(word, node)
                node = self._order(word.kind, at, node, self._word.at, self._unary())
                continue
            ahead = self._ahead().kind if word.kind == "NOT" else word.kind
            if ahead not in ("BETWEEN", "IN", *_SEARCHES):
                return node
            negated = self._takes("NOT")
            self._take()
            self._link(word, node)
            if ahead == "BETWEEN":
                node = self._between(at, node, negated=negated)
            elif ahead == "IN":
                node = self._in(at, node, negated=negated)
            else:
                node = Search(ahead, node, self._quoted(), negated)

    def _order(self, operator: str, at: int, left: Node, right_at: int, right: Node) -> Compare:
        for place, node in ((at, left), (right_at, right)):
            if is_boolean(node) or (isinstance(node, Constant) and not node.kind.is_number):
                _fail(
                    self._text, place,
                    f"only numbers and properties are compared by {operator}",
                )  # fmt: skip
        return Compare(operator, left, right)

    def _check_equal(self, at: int, left: Node, right_at: int, right: Node) -> None:
        for place, node in ((at, left), (right_at, right)):
            if isinstance(node, Constant) and node.kind is Kind.NULL:
                _fail(self._text, place, "NULL is equal to nothing; write IS NULL or IS NOT NULL")
        if (
            isinstance(left, Constant)
            and isinstance(right, Constant)
            and left.kind is Kind.BOOLEAN
            and right.kind is not Kind.BOOLEAN
        ):
            _fail(self._text, right_at, "TRUE and FALSE are not compared with another value")

    def _between(self, at: int, node: Node, *, negated: bool) -> Node:
        low_at = self._word.at
        low = self._unary()
        self._expect("AND", "AND and the upper bound")
        high_at = self._word.at
        high = self._unary()
        first, second = ("<", ">") if negated else (">=", "<=")
        above = self._order(first, at, node, low_at, low)
        below = self._order(second, at, node, high_at, high)
        if negated:
            return Or((above, below))
        if (
            isinstance(low, Constant)
            and isinstance(high, Constant)
            and isinstance(low.value, int | float)
            and isinstance(high.value, int | float)
            and high.value < low.value
        ):
            _fail(self._text, low_at, "the lower bound is above the upper one")
        return And((above, below))

    def _in(self, at: int, node: Node, *, negated: bool) -> Node:
        if not isinstance(node, Property):
            _fail(self._text, at, "only a property may be tested by IN")
        self._expect("(", "( and a list of texts")
        texts = [self._quoted()]
        while self._takes(","):
            texts.append(self._quoted())
        self._expect(")", ", or )")
        return In(node.name, tuple(texts), negated)

    def _quoted(self) -> str:
        return _unquoted(self._expect("text", "a text in single quotes").text)

    def _unary(self) -> Node:
        word = self._word
        if word.kind not in ("+", "-", "NOT", "("):
            return self._primary()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(word, f"this is nested deeper than {DEPTH_MAX}")
        self._take()
        node: Node
        if word.kind == "+":
            node = self._unary()
        elif word.kind == "-":
            node = Negative(self._unary())
        elif word.kind == "NOT":
            at = self._word.at
            node = Not(self._truth_at(at, self._unary()))
        else:
            node = self._or()
            self._expect(")", ")")
        self._depth -= 1
        return node

    def _primary(self) -> Node:
        word = self._word
        kind = word.kind
        node: Node
        if kind == "text":
            node = Constant(_unquoted(word.text), Kind.STRING)
        elif kind == "whole":
            node = self._whole(word)
        elif kind == "double":
            node = self._double(word)
        elif kind in ("TRUE", "FALSE"):
            node = Constant(kind == "TRUE", Kind.BOOLEAN)
        elif kind == "NULL":
            node = Constant(None, Kind.NULL)
        elif kind == "name":
            node = Property(word.text)
        else:
            hint = "; equal is written =" if kind == "=" else ""
            self._fail(word, f"a value or a property is expected, not {word.shown}{hint}")
        self._take()
        return node

    def _double(self, word: _Word) -> Constant:
        value = float(word.text)
        digits = word.text.lower().partition("e")[0]
        if math.isinf(value) or (not value and digits.strip("0.")):
            self._fail(word, "this number has no place in 64 bits")
        return Constant(value, Kind.DOUBLE)

    def _whole(self, word: _Word) -> Constant:
        digits = word.text.rstrip("lL")
        if len(digits) > len(str(_LONG_MAX)) or int(digits) > _LONG_MAX:
            self._fail(word, "this number has no place in 64 bits")
        value = int(digits)
        return Constant(value, Kind.INT if value <= _INT_MAX else Kind.LONG)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
