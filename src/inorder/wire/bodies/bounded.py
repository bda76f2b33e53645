"""What the bodies of our own requests share: compact JSON, every list, text and number bounded.

A request that breaks a bound is answered with code 1, an answer that does closes the connection.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.wire import shapes

NAME_CHARS_MAX: Final = 1024
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
REQUEST_BRACKETS_MAX: Final = 65_536
"""Lists and objects of a request, counted before it is read: a list that is too long is found out
only when all of it is in memory. Brackets in texts count, too."""

Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
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


@shapes.request_body
def request_body(cls: type[B], data: Any) -> B:
    """Read the body of a request; malformed: SystemError_."""
    raw = bytes(data)
    if len(raw) > REQUEST_BYTES_MAX:
        raise RemoteProtocolError(f"{len(raw)} bytes; at most {REQUEST_BYTES_MAX}")
    if raw.count(b"[") + raw.count(b"{") > REQUEST_BRACKETS_MAX:
        raise RemoteProtocolError(f"more than {REQUEST_BRACKETS_MAX} lists and objects")
    return answer_body(cls, raw)
