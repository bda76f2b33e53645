"""Readers for values of decoded JSON, and the bounds of inorder's own JSON bodies.

The readers have fastjson's leniency and name the value that they cannot take. A malformed body of a
request is answered with code 1 (SystemError_). A malformed body of a response is the peer's breach
of protocol (RemoteProtocolError) and closes the connection.

Bodies of inorder's own requests (`Body`) are compact JSON with a bound on every list, text and
number. How text from peers is shown: decision 46.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final, Generic, NamedTuple, ParamSpec, TypeVar

import msgspec

from inorder.errors import RemoteProtocolError, SystemError_

_P = ParamSpec("_P")
_R = TypeVar("_R")
V = TypeVar("V")

INT_CHARS_MAX: Final = 20
"""The longest text of a 64-bit number, with its sign."""
INT32_BITS: Final = 32


def request_body(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn a RemoteProtocolError of a request's body into a reply with code 1."""

    @wraps(function)
    def read(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except RemoteProtocolError as error:
            raise SystemError_(f"the body cannot be read: {error}") from None

    return read


def as_object(value: Any, what: str) -> dict[Any, Any]:
    """Take a JSON object; null is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what} is not an object")
    return value


def as_list(value: Any, what: str) -> list[Any]:
    """Take a JSON list; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{what} is not a list")
    return value


def as_text(value: Any, what: str) -> str:
    """Take a text; numbers and booleans become text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise RemoteProtocolError(f"{what} is not text")


def as_integer(value: Any, what: str, bits: int = 64) -> int:
    """Take a whole number, also as text."""
    if isinstance(value, str) and len(value) <= INT_CHARS_MAX:
        try:
            value = int(value)
        except ValueError:
            raise RemoteProtocolError(f"{what} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RemoteProtocolError(f"{what} is not a number")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise RemoteProtocolError(f"{what} is not a {bits}-bit number")
    return value


def text(fields: dict[Any, Any], key: str, default: str | None = None) -> str:
    """Return a text of an object; without a default it must be there."""
    value = fields.get(key)
    if value is None:
        if default is None:
            raise RemoteProtocolError(f"{key} is missing")
        return default
    return as_text(value, key)


def integer(fields: dict[Any, Any], key: str, default: int, bits: int = 64) -> int:
    """Return a whole number of an object."""
    value = fields.get(key)
    return default if value is None else as_integer(value, key, bits)


def boolean(fields: dict[Any, Any], key: str, default: bool) -> bool:
    """Return a truth value of an object: true, 1, "true" or "1"."""
    value = fields.get(key)
    if value is None:
        return default
    if isinstance(value, (bool, int)):
        return bool(value)
    return as_text(value, key).lower() in ("true", "1")


def objects(fields: dict[Any, Any], key: str) -> list[dict[Any, Any]]:
    """Return a list of objects of an object."""
    return [as_object(item, key) for item in as_list(fields.get(key), key)]


def texts(fields: dict[Any, Any], key: str) -> list[str]:
    """Return a list of texts of an object."""
    return [as_text(item, key) for item in as_list(fields.get(key), key)]


def text_map(fields: dict[Any, Any], key: str) -> dict[str, str]:
    """Return a map of texts of an object; nulls are left out."""
    return {
        as_text(name, key): as_text(value, key)
        for name, value in as_object(fields.get(key), key).items()
        if value is not None
    }


def rate(fields: dict[Any, Any], key: str) -> float:
    """Return a number with a fraction of an object; 0 if there is none."""
    value = fields.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


class Key(NamedTuple):
    """One key of a JSON object, the attribute that holds its value, and how it is read."""

    key: str
    attribute: str
    read: Callable[[dict[Any, Any]], Any]
    write: Callable[[Any], Any] | None = None
    """How the attribute becomes JSON; None: it is JSON."""


def text_key(key: str, attribute: str, default: str | None = None) -> Key:
    """Declare a text; without a default it must be there."""
    return Key(key, attribute, lambda fields: text(fields, key, default))


def optional_text_key(key: str, attribute: str) -> Key:
    """Declare a text that may be null; null and an empty text are None."""
    return Key(key, attribute, lambda fields: text(fields, key, "") or None)


def integer_key(key: str, attribute: str, default: int = 0, bits: int = 64) -> Key:
    """Declare a whole number."""
    return Key(key, attribute, lambda fields: integer(fields, key, default, bits))


def boolean_key(key: str, attribute: str, default: bool = False) -> Key:
    """Declare a truth value."""
    return Key(key, attribute, lambda fields: boolean(fields, key, default))


def rate_key(key: str, attribute: str) -> Key:
    """Declare a number with a fraction."""
    return Key(key, attribute, lambda fields: rate(fields, key))


class Shape(Generic[V]):
    """A JSON object and the class of its value. Each key is declared once, in the text's order.

    For bodies with few such objects. Tables of topics are read and written by hand, which is
    faster.
    """

    def __init__(self, cls: Callable[..., V], *keys: Key) -> None:
        self._cls = cls
        self._keys = keys

    def to_json(self, value: V) -> dict[str, Any]:
        """Return the object."""
        found = {}
        for key, attribute, _, write in self._keys:
            item = getattr(value, attribute)
            found[key] = item if write is None else write(item)
        return found

    def from_json(self, fields: dict[Any, Any]) -> V:
        """Read the object. Raises RemoteProtocolError."""
        return self._cls(**{one.attribute: one.read(fields) for one in self._keys})


BODY_NAME_CHARS_MAX: Final = 1024
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
REQUEST_BRACKETS_MAX: Final = 65_536
"""Lists and objects of a request, counted before it is read, because a decoder notices a list that
is too long only when all of it is in memory. Brackets in texts count, too."""

Name = Annotated[str, msgspec.Meta(max_length=BODY_NAME_CHARS_MAX)]
QueueId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

B = TypeVar("B", bound="Body")


class Body(msgspec.Struct, frozen=True):
    """A body that is an object."""

    def encode(self) -> bytes:
        """Return the JSON text."""
        return msgspec.json.encode(self)


def answer_body(cls: type[B], data: bytes | memoryview) -> B:
    """Read the body of an answer; malformed: RemoteProtocolError."""
    try:
        return msgspec.json.decode(data, type=cls)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a {cls.__name__}: {error}") from None


@request_body
def bounded_body(cls: type[B], data: Any) -> B:
    """Read the body of a request; malformed: SystemError_."""
    raw = bytes(data)
    if len(raw) > REQUEST_BYTES_MAX:
        raise RemoteProtocolError(f"{len(raw)} bytes; at most {REQUEST_BYTES_MAX}")
    if raw.count(b"[") + raw.count(b"{") > REQUEST_BRACKETS_MAX:
        raise RemoteProtocolError(f"more than {REQUEST_BRACKETS_MAX} lists and objects")
    return answer_body(cls, raw)
