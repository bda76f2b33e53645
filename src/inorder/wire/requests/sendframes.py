"""Frames of sends made from bytes, and a typed decoder for their replies: the client's side.

The header of a queue's sends is a template with holes for the values that change from message to
message. Texts of callers go through the JSON encoder before they enter the template.
`wire/requests/sends.py` says what the letters mean. Why the client has a codec of its own: decision
11.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from msgspec.json import encode

from inorder.errors import LocalProtocolError
from inorder.wire.codes import VERSION, RequestCode
from inorder.wire.extensions import (
    MAP_DIGEST,
    MAP_VERSION,
    PREDECESSOR,
    PRODUCER_ID,
    QUEUE_CHOSEN,
    SEQUENCE,
)
from inorder.wire.frame import FRAME_BYTES_MAX
from inorder.wire.header import FLAG_ONEWAY, HEADER_BYTES_MAX

_PREFIX: Final = struct.Struct(">II").pack
_PREFIX_BYTES: Final = 8
CHOSEN: Final = f',"{QUEUE_CHOSEN}":"1"'.encode()
"""The fields of a keyed send whose queue the caller chose."""


class SendFields(msgspec.Struct, gc=False):
    """The fields that answers to a send may have."""

    queueId: int = -1
    queueOffset: int = -1
    offsets: str = ""
    expected: int = -1
    highest: int = -1
    version: int = 0
    map: str = ""
    stored: str = ""
    index: int = -1
    msgId: str = ""
    recallHandle: str = ""


class SendAnswer(msgspec.Struct):
    """The header of an answer to a send."""

    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    extFields: SendFields | None = None


_decode: Final = msgspec.json.Decoder(SendAnswer, strict=False).decode


def decode_answer(header: bytes) -> SendAnswer | None:
    """Return the answer if the header can be one to a send; None for others."""
    # hot: 0.8 us.
    try:
        return _decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def json_text(text: str) -> bytes:
    """Return a text as it stands between the quotes of JSON."""
    try:
        return encode(text)[1:-1]
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a text of the message is no UTF-8: {error}") from None


def by_map(version: int, digest: str) -> bytes:
    """Return the fields of a send whose queue a key map chose."""
    return f',"{MAP_VERSION}":"{version}","{MAP_DIGEST}":"{digest}"'.encode()


def number_head(producer_id: str) -> bytes:
    """Return the properties that number a message, up to its number."""
    return f"{PRODUCER_ID}\x01{producer_id}\x02{SEQUENCE}\x01".encode()


def number_mark(producer_id: str, *, named: bool) -> bytes:
    r"""Return the properties that number a message, with a hole for the number.

    Raw, as in the items of a batch; of a named producer with a second hole for the predecessor.
    """
    head = number_head(producer_id).replace(b"%", b"%%")
    return head + (f"%d\x02{PREDECESSOR}\x01".encode() if named else b"") + b"%d\x02"


class SendTemplate:
    """The header of sends to one queue."""

    __slots__ = ("_batch", "_numbers", "_single", "item_head", "item_mark")

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        template_topic: str,
        template_queues: int,
        queue_id: int,
        broker: str,
    ) -> None:
        texts = [encode(text) for text in (group, topic, template_topic, broker)]
        group_, topic_, template_, broker_ = (text.replace(b"%", b"%%") for text in texts)
        single, batch = (
            b'{"code":%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","e":"%d",'
            % (code, group_, topic_, template_, template_queues, queue_id)
            + b'"f":"%d","g":"%d","h":"%d","i":"%b%b","k":"false","m":"'
            + flag
            + b'","n":'
            + broker_
            + b'%b},"flag":%d,"language":"PYTHON","opaque":%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
            for code, flag in (
                (RequestCode.SEND_MESSAGE_V2, b"false"),
                (RequestCode.SEND_BATCH_MESSAGE, b"true"),
            )
        )
        self._single, self._batch = single, batch
        self._numbers = b""
        self.item_mark = b""
        self.item_head = b""

    def set_producer(self, producer_id: str, *, named: bool) -> None:
        """Number messages from now on, as this producer."""
        self.item_mark = number_mark(producer_id, named=named)
        self.item_head = number_head(producer_id)
        self._numbers = json_text(self.item_mark.decode())

    def frame(
        self,
        request_id: int,
        properties: bytes,
        body: bytes,
        *,
        numbers: tuple[int, ...] = (),
        sys_flag: int = 0,
        flag: int = 0,
        born_at_ms: int = 0,
        batch: bool = False,
        oneway: bool = False,
        placed: bytes = b"",
    ) -> bytes:
        """Return the frame of a request; `properties` are JSON already.

        `numbers` of a single message: its own, and of a named producer its predecessor's. `placed`
        says how its queue was chosen: `by_map`, `CHOSEN`, or nothing.
        """
        # hot: 1.2 us.
        head = self.head(
            request_id, properties, len(body), numbers, sys_flag, flag, born_at_ms, batch, oneway,
            placed,
        )  # fmt: skip
        return head + body

    def head(  # noqa: PLR0917 - one call per message: positions are the cheapest way
        self,
        request_id: int,
        properties: bytes,
        body_bytes: int,
        numbers: tuple[int, ...] = (),
        sys_flag: int = 0,
        flag: int = 0,
        born_at_ms: int = 0,
        batch: bool = False,
        oneway: bool = False,
        placed: bytes = b"",
    ) -> bytes:
        """Return the frame without its body, for bodies that are large."""
        mark = self._numbers % numbers if numbers else b""
        header = (self._batch if batch else self._single) % (
            sys_flag, born_at_ms, flag, properties, mark, placed, FLAG_ONEWAY if oneway else 0,
            request_id,
        )  # fmt: skip
        size = len(header)
        total = size + body_bytes
        if size > HEADER_BYTES_MAX or total + _PREFIX_BYTES > FRAME_BYTES_MAX:
            raise LocalProtocolError(
                f"a frame of {total + _PREFIX_BYTES} bytes is above the limit of {FRAME_BYTES_MAX}"
            )
        return _PREFIX(total + 4, size) + header
