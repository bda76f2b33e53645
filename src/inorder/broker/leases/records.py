"""The records of the lease journal, and how a start replays them.

A record states what holds from now on; the last record about a queue counts. Records are short
msgpack arrays, the kind first, so the order of the fields is the format on disk. Records of
progress carry the end of the log at the time of writing: they may speak of messages up to there.
Why a journal: decision 15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from inorder.broker.leases.rules import COUNTER_BITS, Owner, PastLease, Terms
from inorder.broker.offsets.rules import CommitTable, Committed, OffsetTable
from inorder.broker.pops.records import PopBatch, Popped, PopRecord, PopState
from inorder.errors import BrokerError, RemoteProtocolError
from inorder.model import GroupQueue


class _Record(msgspec.Struct, frozen=True, array_like=True):
    pass


class Granted(_Record, frozen=True, tag="g"):
    """A queue has an owner."""

    group: str
    topic: str
    broker: str
    index: int
    client_id: str
    instance: str
    epoch: int
    lease_ms: int
    grace_ms: int
    revoked: bool = False
    deadline_ms: int = 0
    """When the lease ends at the latest, by the clock of this boot; 0: unknown."""


class Freed(_Record, frozen=True, tag="f"):
    """A queue has no owner, and its last owner cannot resume."""

    group: str
    topic: str
    broker: str
    index: int


class Progress(_Record, frozen=True, tag="p"):
    """An offset that was committed without an epoch."""

    group: str
    topic: str
    queue_id: int
    offset: int
    depends_on: int


class Commit(_Record, frozen=True, tag="c"):
    """An offset that was committed under an epoch, or set by a reset."""

    group: str
    topic: str
    queue_id: int
    offset: int
    depends_on: int
    epoch: int
    number: int
    finished: str


class Forgotten(_Record, frozen=True, tag="x"):
    """A group or a topic was deleted; an empty name stands for all."""

    group: str
    topic: str


class Ordered(_Record, frozen=True, tag="o"):
    """A group consumes a topic in order; every grant implies the same."""

    group: str
    topic: str


class Saved(_Record, frozen=True, tag="s"):
    """The offsets file is about to be saved with this checksum; it holds all earlier progress."""

    checksum: int


Record: TypeAlias = Granted | Freed | Progress | Commit | Forgotten | Ordered | Saved | PopRecord

_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Record] = msgspec.msgpack.Decoder(Record).decode


def encode(record: Record) -> bytes:
    """Encode a record."""
    return _encode(record)


def decode(payload: bytes) -> Record:
    """Decode a record; RemoteProtocolError if the payload is none."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RemoteProtocolError(f"not a record of owners: {error}") from None


def granted(
    key: GroupQueue, broker: str, owner: Owner, epoch: int, terms: Terms, *,
    revoked: bool = False, deadline_ms: int = 0,
) -> Granted:  # fmt: skip
    """Return the record of a lease at the broker of this name."""
    group, topic, queue_id = key
    return Granted(group, topic, broker, queue_id, *owner, epoch, *terms, revoked, deadline_ms)


def freed(key: GroupQueue, broker: str) -> Freed:
    """Return the record of a free queue at the broker of this name."""
    return Freed(key.group, key.topic, broker, key.queue_id)


def depends_on(records: Iterable[Record]) -> int:
    """Return the log position up to which the records speak."""
    return max(
        (
            record.depends_on
            for record in records
            if isinstance(record, Progress | Commit | Popped | PopState | PopBatch)
        ),
        default=0,
    )


def last_start(records: Iterable[Record]) -> int:
    """Return the highest start number among the epochs."""
    epochs = (record.epoch for record in records if isinstance(record, Granted | Commit))
    return max(epochs, default=0) >> COUNTER_BITS


def replay(
    records: Iterable[Record], offsets: OffsetTable, commits: CommitTable, *, now_ms: int
) -> dict[GroupQueue, PastLease]:
    """Apply the records to the tables; return the last lease of each queue."""
    leases: dict[GroupQueue, PastLease] = {}
    for record in records:
        if isinstance(record, Granted | Freed):
            key = GroupQueue(record.group, record.topic, record.index)
            if isinstance(record, Granted):
                owner = Owner(record.client_id, record.instance)
                terms = Terms(record.lease_ms, record.grace_ms)
                leases[key] = PastLease(
                    owner, record.epoch, terms, False, record.revoked, record.deadline_ms
                )
            elif key in leases:
                leases[key] = leases[key]._replace(released=True)
        elif isinstance(record, Forgotten):
            _forget(record, offsets, commits, leases)
        elif isinstance(record, Progress | Commit):
            group, topic, queue_id = record.group, record.topic, record.queue_id
            with contextlib.suppress(BrokerError):  # beyond a limit that was lowered since
                offsets.put(group, topic, queue_id, record.offset, now_ms)
            if isinstance(record, Commit):
                commits.put(
                    GroupQueue(group, topic, queue_id),
                    Committed(record.epoch, record.number, record.offset, record.finished),
                )
    return leases


def ordered(records: Iterable[Record]) -> dict[tuple[str, str], bool]:
    """Return the pairs of group and topic that are consumed in order.

    The value is True for a record that says so. False: it follows from a grant, or from a commit
    with a number; the commit of a reset has none.
    """
    found: dict[tuple[str, str], bool] = {}
    for record in records:
        if isinstance(record, Ordered):
            found[record.group, record.topic] = True
        elif isinstance(record, Granted) or (isinstance(record, Commit) and record.number > 0):
            found.setdefault((record.group, record.topic), False)
        elif isinstance(record, Forgotten):
            for group, topic in list(found):
                if record.group in ("", group) and record.topic in ("", topic):
                    del found[group, topic]
    return found


def wrote(records: Iterable[Record], checksum: int | None) -> bool:
    """Return whether this broker saved the offsets file with a checksum; None: no file."""
    return checksum is None or any(
        isinstance(record, Saved) and record.checksum == checksum for record in records
    )


def _forget(
    record: Forgotten,
    offsets: OffsetTable,
    commits: CommitTable,
    leases: dict[GroupQueue, PastLease],
) -> None:
    if record.topic:
        offsets.remove_topic(record.topic)
    else:
        offsets.remove_group(record.group)
    commits.remove(group=record.group, topic=record.topic)
    for key in list(leases):
        if record.group in ("", key.group) and record.topic in ("", key.topic):
            del leases[key]
