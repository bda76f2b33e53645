"""What the bodies of our own requests share: compact JSON, every list, text and number bounded.

A request that breaks a bound is answered with code 1, an answer that does closes the connection.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from inorder.errors import RemoteProtocolError
from inorder.wire import shapes

Name = Annotated[str, msgspec.Meta(max_length=1024)]
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
    return answer_body(cls, data)
