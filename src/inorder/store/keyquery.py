"""Answering a key query: the index knows hashes only, so hits are checked by their records."""

from __future__ import annotations

from dataclasses import dataclass, field

from inorder.store.commitlog import CommitLog
from inorder.store.keyindex import KeyIndex
from inorder.store.keywords import keys_of
from inorder.store.recordview import record_at


@dataclass(frozen=True, slots=True)
class KeyHits:
    """Positions of the messages found, newest first, and how far the index goes."""

    positions: list[int] = field(default_factory=list)
    last_update_ms: int = 0
    last_update_position: int = 0


def query(
    log: CommitLog,
    keys: KeyIndex,
    topic: str,
    key: str,
    *,
    count_max: int,
    begin_ms: int,
    end_ms: int,
) -> KeyHits:
    """Return the messages of a topic that have a key and were stored in [begin, end]."""
    wanted = key.encode()
    positions = []
    for position in keys.find(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms):
        record = record_at(log, position)
        if record is not None and record.topic == topic and wanted in keys_of(record.properties):
            positions.append(position)
    last_ms, last_position = keys.last_update
    return KeyHits(positions, last_ms, last_position)
