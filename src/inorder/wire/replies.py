"""Typed requests and their replies: a request class names the reader of its reply in `REPLY`.

    class GetMaxOffset(msgspec.Struct, frozen=True):
        CODE: ClassVar = RequestCode.GET_MAX_OFFSET
        REPLY = fields_as(OffsetReply)

`command_of` makes the command of a request, and `reply_of` reads the answer to it. So every client
in this package, async or blocking, has one typed `ask(request)`, and only the request class knows
whether its reply is in the header fields or in the body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from inorder.errors import broker_error
from inorder.wire.codes import ResponseCode
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.header import Command

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Reply(Generic[R_co]):
    """The reader of a request's reply."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[Command], R_co]) -> None:
        self.read = read


class Request(Protocol[R_co]):
    """A request that has a code, header fields, and a reply of a type."""

    @property
    def CODE(self) -> int: ...
    @property
    def REPLY(self) -> Reply[R_co]: ...


def fields_as(cls: type[R]) -> Reply[R]:
    """Return the reader of a reply that is in the header fields."""
    return Reply(lambda answer: decode_fields(cls, answer.fields))


def body_as(decode: Callable[[bytes | memoryview], R]) -> Reply[R]:
    """Return the reader of a reply that is in the body."""
    return Reply(lambda answer: decode(answer.body))


EMPTY: Final[Reply[None]] = Reply(lambda _: None)
"""The reply of a request that is only acknowledged."""


def command_of(request: Request[object], body: bytes | memoryview = b"") -> Command:
    """Return the command of a request."""
    return Command.request(request.CODE, encode_fields(request), body)


def reply_of(request: Request[R], answer: Command) -> R:
    """Return the reply in an answer. Raises the BrokerError of any code but SUCCESS."""
    return request.REPLY.read(succeeded(answer))


def succeeded(answer: Command) -> Command:
    """Return an answer with the code SUCCESS. Raises the BrokerError of any other code."""
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark, answer.fields)
    return answer
