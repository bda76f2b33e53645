"""The records of a %PARK% topic: parked messages in queue 0, notes in queue 1.

A parked message is a copy of the broker's own record. Body, flags, birth time, tags and UNIQ_KEY
stay; added properties say where the message came from and why it is parked. A note is a small JSON
text. Both are events; `rules.py` applies them to the table. Why: decision 21.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from inorder.errors import MessageIllegal, RemoteProtocolError
from inorder.wire import extensions
from inorder.wire.names import PARK_PREFIX
from inorder.wire.properties import PROPERTIES_BYTES_MAX, SHARDING_KEY, join, parse
from inorder.wire.record import Record
from inorder.wire.requests.parking import QueuePlace

MESSAGES: Final = 0
NOTES: Final = 1
QUEUES: Final = 2
_OURS: Final = (
    extensions.PARK_TOPIC, extensions.PARK_QUEUE, extensions.PARK_OFFSET,
    extensions.PARK_KEY, extensions.PARK_TRIES,
    extensions.PARK_ERROR, extensions.PARK_FENCE, extensions.PARK_TIME, extensions.PARK_UNTIL,
)  # fmt: skip
_BROKER_SUFFIX_BYTES: Final = 256
_SHARDING_KEY_CHARS_MAX: Final = 4096


class Parked(NamedTuple):
    """A message that is parked; `size` is the size of its record."""

    topic: str
    queue: int
    offset: int
    key: str
    tries: int
    error: str
    """How its last attempt failed; empty: it joined a parked key."""
    at_ms: int
    size: int
    sharding_key: str = ""
    until: int = 0
    """For a Spark job: parked until the group's offset is here; 0: until the group passes it."""


class Redriving(msgspec.Struct, frozen=True, tag="redriving"):
    """An operator wants a key redriven."""

    topic: str
    queue: int
    key: str
    rate: int


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """An operator cancels a redrive."""

    topic: str
    queue: int
    key: str


class Redriven(msgspec.Struct, frozen=True, tag="redriven"):
    """Messages were handled in a redrive; `error` tells how the next one failed."""

    topic: str
    queue: int
    key: str
    done: list[int] = []
    error: str | None = None
    older: QueuePlace | None = None


class Unparked(msgspec.Struct, frozen=True, tag="unparked"):
    """A key is live again or, where it has moved away, its old list is closed."""

    topic: str
    queue: int
    key: str


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """An operator dropped messages, with a reason."""

    topic: str
    queue: int
    key: str
    offsets: list[int]
    reason: str
    by: str = ""
    whole: bool = True


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A key lives in another queue from now on; None: in this queue again."""

    topic: str
    queue: int
    key: str
    to: QueuePlace | None
    version: int = 0
    """The key map version that moved it."""


class Installed(msgspec.Struct, frozen=True, tag="installed"):
    """A parked key came from another queue, whose list must be redriven first."""

    topic: str
    queue: int
    key: str
    older: QueuePlace
    at_ms: int
    error: str = ""
    tries: int = 0
    sharding_key: str = ""
    version: int = 0
    """The key map version that brought it."""


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """The group's offset was reset: messages that are no longer parked may be handled again."""

    topic: str
    queue: int


Note = Redriving | Cancelled | Redriven | Unparked | Dropped | Moved | Installed | Forgotten
Event = Parked | Note

_decode_note: Final = msgspec.json.Decoder(Note).decode


def park_topic(group: str) -> str:
    """Return the topic that holds a group's parked messages and notes."""
    return PARK_PREFIX + group


def parked_record(
    record: Record, event: Parked, *, fence: int | None, store_host: bytes, now_ms: int
) -> Record:
    """Return the copy of a record to store for a parked message.

    Raises:
        MessageIllegal: the message's properties leave no room for the added ones.
    """
    found = parse(record.properties)
    for name in (*extensions.SEND_PROPERTIES, *_OURS):
        found.pop(name, None)
    found[extensions.PARK_TOPIC] = event.topic
    found[extensions.PARK_QUEUE] = str(event.queue)
    found[extensions.PARK_OFFSET] = str(event.offset)
    found[extensions.PARK_KEY] = escape(event.key)
    found[extensions.PARK_TRIES] = str(event.tries)
    found[extensions.PARK_TIME] = str(event.at_ms)
    if fence is not None:
        found[extensions.PARK_FENCE] = str(fence)
    if event.error:
        found[extensions.PARK_ERROR] = escape(event.error)
    if event.until:
        found[extensions.PARK_UNTIL] = str(event.until)
    properties = join(found).encode()
    if len(properties) > PROPERTIES_BYTES_MAX - _BROKER_SUFFIX_BYTES:
        raise MessageIllegal(
            f"the properties of topic={event.topic} queue={event.queue} offset={event.offset} "
            "leave no room to park it"
        )
    return replace(
        record,
        properties=properties,
        store_host=store_host,
        stored_at_ms=now_ms,
        redeliveries=max(record.redeliveries, event.tries),
        prepared_position=0,
        version=1,
    )


def note_record(note: Note, *, store_host: bytes, now_ms: int) -> Record:
    """Return the record to store for a note."""
    return Record(
        topic="",
        queue_id=NOTES,
        queue_offset=0,
        position=0,
        body=msgspec.json.encode(note),
        # With properties at its end, a torn record cannot pass for a whole one.
        properties=join({extensions.PARK_TOPIC: note.topic}).encode(),
        born_at_ms=now_ms,
        born_host=store_host,
        stored_at_ms=now_ms,
        store_host=store_host,
    )


def read_event(record: Record) -> Event:
    """Decode the event in a record of a %PARK% topic.

    Raises:
        RemoteProtocolError: the record holds no event.
    """
    if record.queue_id == NOTES:
        try:
            note: Note = _decode_note(record.body)
            return note
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not a note: {error}") from None
    return parked_event(record.properties, record.size, record.stored_at_ms)


def read_note(body: bytes) -> Note | None:
    """Decode the body of a note; None: it is none."""
    try:
        note: Note = _decode_note(body)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return note


def parked_event(properties: bytes, size: int, stored_at_ms: int = 0) -> Parked:
    """Return the origin of a parked message from its properties. Raises RemoteProtocolError."""
    found = parse(properties)
    try:
        return Parked(
            found[extensions.PARK_TOPIC],
            int(found[extensions.PARK_QUEUE]),
            int(found[extensions.PARK_OFFSET]),
            unescape(found[extensions.PARK_KEY]),
            int(found[extensions.PARK_TRIES]),
            unescape(found.get(extensions.PARK_ERROR, "")),
            int(found.get(extensions.PARK_TIME, stored_at_ms)),
            size,
            found.get(SHARDING_KEY, "")[:_SHARDING_KEY_CHARS_MAX],
            int(found.get(extensions.PARK_UNTIL, 0)),
        )
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"not a parked message: {error!r}") from None


def escape(text: str) -> str:
    """Return a text that a property can hold."""
    return text.replace("%", "%25").replace("\x01", "%01").replace("\x02", "%02")


def unescape(text: str) -> str:
    """Reverse `escape`."""
    return text.replace("%02", "\x02").replace("%01", "\x01").replace("%25", "%")
