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
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import msgspec

from inorder.errors import RemoteProtocolError, SystemError_

_P = ParamSpec("_P")
_R = TypeVar("_R")

_INT_CHARS_MAX: Final = 20


def request_body(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn what is wrong with a request's body into an answer with code 1."""

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
    if isinstance(value, str) and len(value) <= _INT_CHARS_MAX:
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


BODY_NAME_CHARS_MAX: Final = 1024
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
REQUEST_BRACKETS_MAX: Final = 65_536
"""Lists and objects of a request, counted before it is read: a list that is too long is found out
only when all of it is in memory. Brackets in texts count, too."""

Name = Annotated[str, msgspec.Meta(max_length=BODY_NAME_CHARS_MAX)]
QueueId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
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
