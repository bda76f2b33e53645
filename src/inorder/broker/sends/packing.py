"""Packs messages as stored records, straight into the log's buffer.

The broker has one writer, so packing a record also assigns its position and queue offset and notes
its keys. The broker packs both host addresses itself, so it sets the flag bits that tell their
form, whatever the client claims.

    put          one message of a client
    put_record   a record that the broker builds: deliveries, dead letters, parked messages
    put_batch    a batch, message by message
    put_plain    a plain batch, by the compiled module; the same bytes
    took_run     single messages that the compiled module has packed; the same bytes

Why a compiled twin: decision 37.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from inorder.broker.sends.rules import illegal_size, tag_of
from inorder.store.keyindex import NotedRows, prefix_hash
from inorder.wire.ids import HOST_V4_BYTES, java_hash
from inorder.wire.properties import PROPERTIES_BYTES_MAX
from inorder.wire.record import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX_V1,
    Record,
    body_crc,
    crc32,
    encode,
)

if TYPE_CHECKING:
    from inorder.broker.producers.rules import ProducerQueueState
    from inorder.native import Batch
    from inorder.net.accepted import ServerConnection
    from inorder.store.consumequeue import QueueIndex
    from inorder.store.store import Store

_TAGS_MAX: Final = 65_536
_STRUCTS_MAX: Final = 16_384
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
_POSITION: Final = struct.Struct(">q")
_POSITION_AT: Final = 28


class Target:
    """A queue that accepts messages, with everything that a record needs of its topic."""

    __slots__ = (
        "magic", "map_digest", "map_version", "producers", "queue", "queue_id", "topic",
        "topic_bytes", "topic_part",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue: QueueIndex,
        producers: dict[str, ProducerQueueState[ServerConnection]] | None = None,
        map_version: str = "",
        map_digest: str = "",
    ) -> None:
        self.topic = topic
        self.producers = producers
        self.map_version = map_version
        self.map_digest = map_digest
        self.topic_bytes = topic.encode()
        length = len(self.topic_bytes)
        short = length <= TOPIC_BYTES_MAX_V1
        self.magic = MAGIC_V1 if short else MAGIC_V2
        self.topic_part = length.to_bytes(1 if short else 2, "big") + self.topic_bytes
        self.queue_id = queue_id
        self.queue = queue


class Packer:
    """Puts records into the log's buffer and counts them."""

    def __init__(self, store: Store, store_host: bytes, suffix: bytes, body_max: int) -> None:
        """`suffix` holds the properties that the broker adds to every single message."""
        self._log = store.log
        self._note_keys = store.note_keys
        self._note_rows = store.keys.note_rows
        self._store_host = store_host
        self._store_v6 = 0 if len(store_host) == HOST_V4_BYTES else STORE_HOST_V6
        self._suffix = suffix
        self._body_max = body_max
        self._tag_hashes: dict[bytes, int] = {b"": 0}
        self._structs: dict[tuple[int, int, int, int], struct.Struct] = {}
        self._heads: dict[int, struct.Struct] = {}
        self.messages = 0
        self.bytes = 0

    def put(
        self,
        target: Target,
        born_host: bytes,
        properties: bytes,
        body: bytes,
        flag: int,
        sys_flag: int,
        born_at_ms: int,
        redeliveries: int,
        now_ms: int,
        tag_code: int | None = None,
    ) -> int:
        """Pack one message; return its position.

        `tag_code` replaces the tag's hash in the queue entry: the due time of a delayed message.
        """
        if properties and properties[-1] != 2:
            properties += b"\x02"
        tag_hash = self._tag_hash(properties) if tag_code is None else tag_code
        properties += self._suffix
        body_size, topic, size_properties = len(body), target.topic_bytes, len(properties)
        if size_properties > PROPERTIES_BYTES_MAX:
            raise illegal_size(self._body_max)
        key = (len(born_host), body_size, len(topic), size_properties)
        packer = self._structs.get(key) or self._packer(key)
        sys_flag = sys_flag & ~_HOST_BITS | self._store_v6
        if key[0] != HOST_V4_BYTES:
            sys_flag |= BORN_HOST_V6
        size = packer.size
        log, queue = self._log, target.queue
        at = log.reserve(size)
        position = log.pending_base + at
        packer.pack_into(
            log.pending,
            at,
            size,
            MAGIC_V1 if key[2] <= TOPIC_BYTES_MAX_V1 else MAGIC_V2,
            body_crc(body),
            target.queue_id,
            flag,
            queue.next_offset,
            position,
            sys_flag,
            born_at_ms,
            born_host,
            now_ms,
            self._store_host,
            redeliveries,
            0,
            body_size,
            body,
            key[2],
            topic,
            size_properties,
            properties,
        )
        queue.append(position, size, tag_hash)
        self._note_keys(target.topic, properties, position, now_ms)
        self.messages += 1
        self.bytes += size
        return position

    def put_record(self, target: Target, record: Record, tag_code: int | None = None) -> int:
        """Pack a record that the broker built; everything but its place is set."""
        # hot: 4 µs
        queue = target.queue
        record.topic, record.queue_id = target.topic, target.queue_id
        record.queue_offset = queue.next_offset
        data = encode(record)
        at = self._log.reserve(len(data))
        position = self._log.pending_base + at
        self._log.pending[at : at + len(data)] = data
        _POSITION.pack_into(self._log.pending, at + _POSITION_AT, position)
        properties = record.properties
        queue.append(
            position, len(data), self._tag_hash(properties) if tag_code is None else tag_code
        )
        self._note_keys(target.topic, properties, position, record.stored_at_ms)
        self.messages += 1
        self.bytes += len(data)
        return position

    # hot: 1.7 µs a message
    def put_batch(
        self,
        target: Target,
        born_host: bytes,
        body: bytes,
        items: list[tuple[int, int, int, int]],
        sys_flag: int,
        born_at_ms: int,
        redeliveries: int,
        now_ms: int,
    ) -> list[int]:
        """Pack a batch with consecutive offsets in one piece of one segment, all or nothing.

        Returns the positions of the records. An item of a batch holds its body and properties with
        their lengths exactly as a record does, so both are copied; only the head and the topic are
        added.
        """
        head = self._heads.get(len(born_host)) or self._head(len(born_host))
        sys_flag = sys_flag & ~_HOST_BITS | self._store_v6
        if len(born_host) != HOST_V4_BYTES:
            sys_flag |= BORN_HOST_V6
        topic_part, queue, queue_id = target.topic_part, target.queue, target.queue_id
        magic, pack, store_host, crc = target.magic, head.pack, self._store_host, body_crc
        fixed = head.size + len(topic_part)
        total = sum([body_size + tail for _, _, body_size, tail in items])
        total += (fixed + 6) * len(items)
        at = self._log.reserve(total)
        start = position = self._log.pending_base + at
        offset = queue.next_offset
        parts: list[bytes] = []
        entries: list[int] = []
        notes, tag_hash, topic = self._note_keys, self._tag_hash, target.topic
        for flag, body_at, body_size, tail in items:
            body_end = body_at + body_size
            end = body_end + 2 + tail
            size = fixed + 6 + body_size + tail
            properties = body[body_end + 2 : end]
            parts += (
                pack(
                    size, magic, crc(body[body_at:body_end]), queue_id, flag, offset, position,
                    sys_flag, born_at_ms, born_host, now_ms, store_host, redeliveries, 0,
                ),
                body[body_at - 4 : body_end],
                topic_part,
                body[body_end:end],
            )  # fmt: skip
            entries += (position, size, tag_hash(properties))
            notes(topic, properties, position, now_ms)
            position += size
            offset += 1
        assert position - start == total, "the room was computed from the same lengths"
        self._log.pending[at : at + total] = b"".join(parts)
        queue.append_many(entries, total)
        self.messages += len(items)
        self.bytes += total
        return entries[::3]

    # hot: 0.12 µs a message
    def put_plain(
        self,
        target: Target,
        born_host: bytes,
        batch: Batch,
        sys_flag: int,
        born_at_ms: int,
        redeliveries: int,
        now_ms: int,
    ) -> None:
        """Pack a batch as `put_batch` does, by the compiled module."""
        head = self._heads.get(len(born_host)) or self._head(len(born_host))
        sys_flag = sys_flag & ~_HOST_BITS | self._store_v6
        if len(born_host) != HOST_V4_BYTES:
            sys_flag |= BORN_HOST_V6
        shared = head.pack(
            0, target.magic, 0, target.queue_id, 0, 0, 0, sys_flag, born_at_ms, born_host, now_ms,
            self._store_host, redeliveries, 0,
        )  # fmt: skip
        total = batch.size_of(len(shared) + len(target.topic_part))
        log, queue = self._log, target.queue
        at = log.reserve(total)
        position = log.pending_base + at
        queue.append_packed(
            batch.pack(
                log.pending, at, shared, target.topic_part, position, queue.next_offset, crc32
            ),
            total,
        )
        hashes, positions = batch.key_rows(prefix_hash(target.topic))
        self._note_rows(NotedRows(hashes, position, now_ms, positions, batch.count))
        self.messages += batch.count
        self.bytes += total

    # hot: once a read
    def took_run(
        self,
        used: int,
        last_at: int,
        count: int,
        total: int,
        position: int,
        now_ms: int,
        hashes: bytes,
        positions: bytes,
    ) -> None:
        """Count single messages that lie in the log's buffer already, and note their keys."""
        self._log.took(used, last_at)
        self._note_rows(NotedRows(hashes, position, now_ms, positions, count))
        self.messages += count
        self.bytes += total

    def _head(self, born_size: int) -> struct.Struct:
        """Return the struct of a record's fields before its body."""
        head = self._heads[born_size] = struct.Struct(
            f">iiiiiqqiq{born_size}sq{len(self._store_host)}siq"
        )
        return head

    def _tag_hash(self, properties: bytes) -> int:
        start = properties.rfind(b"TAGS\x01")
        if start < 0:
            return 0
        if start and properties[start - 1] != 2:
            tag = tag_of(properties)
        else:
            end = properties.find(b"\x02", start)
            tag = properties[start + 5 : end] if end >= 0 else properties[start + 5 :]
        known = self._tag_hashes.get(tag)
        if known is None:
            if len(self._tag_hashes) >= _TAGS_MAX:
                self._tag_hashes.clear()
            known = self._tag_hashes[tag] = java_hash(tag.decode("utf-8", "replace"))
        return known

    def _packer(self, key: tuple[int, int, int, int]) -> struct.Struct:
        born, body, topic, properties = key
        if len(self._structs) >= _STRUCTS_MAX:
            self._structs.clear()
        topic_length = "B" if topic <= TOPIC_BYTES_MAX_V1 else "h"
        packer = self._structs[key] = struct.Struct(
            f">iiiiiqqiq{born}sq{len(self._store_host)}siqi{body}s{topic_length}{topic}sh{properties}s"
        )
        return packer
