"""A store without a broker: append messages as the fast path does, and read them back."""

from __future__ import annotations

from inorder.errors import StoreError
from inorder.store.consumequeue import QueueIndex
from inorder.store.reader import ReadStatus
from inorder.store.store import Store, WrittenTick
from inorder.wire.ids import java_hash
from inorder.wire.properties import format_properties
from inorder.wire.record import Record, decode_all, encode

Contents = dict[tuple[str, int], list[tuple[int, bytes]]]
"""For every queue the (offset, body) of its messages."""


def append(
    store: Store,
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    now_ms: int = 1,
    tag: str | None = None,
    keys: str | None = None,
    unique: str | None = None,
) -> int:
    """Append one message to the tick; return its queue offset."""
    named = {"TAGS": tag, "KEYS": keys, "UNIQ_KEY": unique}
    properties = format_properties({name: value for name, value in named.items() if value})
    queue = store.queue(topic, queue_id)
    record = Record(
        topic, queue_id, queue.next_offset, 0, body, properties.encode(), stored_at_ms=now_ms,
        born_at_ms=now_ms,
    )  # fmt: skip
    size = len(encode(record))
    at = store.log.reserve(size)
    record.position = store.log.pending_base + at
    store.log.pending[at : at + size] = encode(record)
    offset = queue.append(record.position, size, java_hash(tag) if tag else 0)
    store.note_keys(topic, record.properties, record.position, now_ms)
    return offset


def write_and_publish(store: Store) -> WrittenTick | None:
    """End the tick as async flush does."""
    tick = store.write_tick()
    if tick is not None:
        store.publish(tick)
    return tick


def write_synced(store: Store) -> WrittenTick | None:
    """End the tick as sync flush does."""
    tick = store.write_tick()
    if tick is not None:
        if store.sync() < tick.end_position:
            raise StoreError("a sync did not reach what was written before it")
        store.publish(tick)
    return tick


def read_queue(store: Store, queue: QueueIndex) -> list[Record]:
    """Read all messages of a queue by the reader, checking that they are what the queue says."""
    found: list[Record] = []
    offset = queue.min_offset
    while True:
        result = store.reader.get(
            queue, offset, max_messages=32, max_bytes=1 << 20, scan_max=800, wanted=None
        )
        if result.status in (ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.OFFSET_OVERFLOW_ONE):
            return found
        if result.next_offset <= offset:
            raise StoreError(f"reading {queue!r} does not go on at {offset}: {result!r}")
        records = [record for view in result.views for record in decode_all(view)]
        if len(records) != result.count:
            raise StoreError(f"{result!r} holds {len(records)} records")
        for record in records:
            if (record.topic, record.queue_id) != (queue.topic, queue.queue_id):
                raise StoreError(f"{queue!r} gave a record of {record.topic}/{record.queue_id}")
        found += records
        offset = result.next_offset


def contents(store: Store) -> Contents:
    """Read everything that is visible."""
    return {
        (queue.topic, queue.queue_id): [
            (record.queue_offset, record.body) for record in read_queue(store, queue)
        ]
        for topic in sorted(store.queues.topics())
        for queue in store.queues_of(topic)
        if queue.visible_offset > queue.min_offset
    }
