"""The file of parked keys: the table as it was at a position of the log.

`replay_from`: every event before it is counted. `depends_on`: the log was durable up to there
before the file was written, and nothing from behind is counted. `log_crc` is that of the bytes
before `depends_on`, by which another log, or one that lost its end, is told from this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Final

import msgspec

from inorder.broker.state.parkedkeys import ParkedKey, ParkedMessage, ParkedQueue, Place
from inorder.broker.state.parking import ParkingTable
from inorder.errors import RemoteProtocolError
from inorder.wire.requests.parking import QueuePlace

FORMAT: Final = 1


class SavedKey(msgspec.Struct, frozen=True):
    """A parked key; `messages` are (offset, position, size)."""

    key: str
    since_ms: int
    first_error: str
    tries: int
    sharding_key: str
    messages: list[tuple[int, int, int]]
    end: int
    last_error: str = ""
    redrive: int = 0
    rate: int = 0
    older: list[QueuePlace] = []
    moved_to: QueuePlace | None = None
    older_versions: list[int] = []
    moved_by: int = 0


class SavedQueue(msgspec.Struct, frozen=True):
    """What is parked of a queue; `origins` are those that are in no list any more."""

    group: str
    topic: str
    queue: int
    version: int
    keys: list[SavedKey]
    origins: list[int]
    late: list[tuple[int, int]] = []
    """Origins of a job, and the group's offset up to which they are known."""
    replay_until: int = 0


class Saved(msgspec.Struct, frozen=True):
    """A whole file."""

    format: int
    replay_from: int
    depends_on: int
    log_crc: int
    queues: list[SavedQueue]

    def restore(self, table: ParkingTable) -> None:
        """Fill an empty table."""
        for saved in self.queues:
            queue = ParkedQueue(
                saved.version, origins=set(saved.origins), late=dict(saved.late),
                replay_until=saved.replay_until,
            )  # fmt: skip
            for one in saved.keys:
                messages = [ParkedMessage(*message) for message in one.messages]
                queue.origins.update(message.origin for message in messages)
                queue.keys[one.key] = ParkedKey(
                    one.key, one.since_ms, one.first_error, one.tries, one.sharding_key, messages,
                    one.end, one.last_error, one.redrive, one.rate,
                    dict(zip(one.older, chain(one.older_versions, repeat(0)), strict=False)),
                    one.moved_to, one.moved_by,
                )  # fmt: skip
            table.restore(Place(saved.group, saved.topic, saved.queue), queue)


def encode(queues: Iterable[bytes], *, replay_from: int, depends_on: int, log_crc: int) -> bytes:
    """Return the file of queues that were encoded, perhaps one after the other between other work.

    What came meanwhile may be in some of them: their version says so, and it is not applied again.
    """
    head = msgspec.json.encode(Saved(FORMAT, replay_from, depends_on, log_crc, []))
    assert head.endswith(b"[]}"), "the queues come last"
    return b"".join((head[:-2], b",".join(queues), b"]}"))


def encode_queue(place: Place, queue: ParkedQueue) -> bytes:
    """Return what the file holds of one queue."""
    return msgspec.json.encode(_saved(place, queue))


def _saved(place: Place, queue: ParkedQueue) -> SavedQueue:
    parked = {message.origin for one in queue.keys.values() for message in one.messages}
    keys = [
        SavedKey(
            one.key, one.since_ms, one.first_error, one.tries, one.sharding_key,
            [(message.origin, message.position, message.size) for message in one.messages],
            one.end, one.last_error, one.redrive, one.rate, list(one.older), one.moved_to,
            list(one.older.values()), one.moved_by,
        )
        for one in queue.keys.values()
    ]  # fmt: skip
    gone, late = sorted(queue.origins - parked), sorted(queue.late.items())
    return SavedQueue(*place, queue.version, keys, gone, late, queue.replay_until)


def decode(content: bytes) -> Saved:
    """Read a file. Raises RemoteProtocolError if it is none."""
    try:
        saved = msgspec.json.decode(content, type=Saved)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a file of parked keys: {error}") from None
    if saved.format != FORMAT or not 0 <= saved.replay_from <= saved.depends_on:
        raise RemoteProtocolError("the file of parked keys makes no sense")
    return saved
