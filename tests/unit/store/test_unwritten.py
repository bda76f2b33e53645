"""Reading what a tick holds before it is written."""

from __future__ import annotations

from pathlib import Path

from inorder.config import StoreConfig
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, write_and_publish

CONFIG = StoreConfig(segment_bytes=1024, queue_file_bytes=100)


def test_a_record_is_read_back_before_it_is_written() -> None:
    """Also behind the end of a segment, and all of it if only its place is known."""
    store = Store.open(Path("/data"), CONFIG, FakeFiles(), FakeClock())
    for number in range(12):
        append(store, "T", 0, b"%02d" % number * 40)
    queue = store.queue("T", 0)
    places = [queue.given_entry(number) for number in range(12)]
    assert [queue.entry(number) for number in range(12)] == [None] * 12
    pending = [store.log.bytes_at(place[0], place[1]) for place in places if place is not None]
    write_and_publish(store)
    assert [store.log.bytes_at(place[0]) for place in places if place is not None] == pending
    assert [record[0:4] for record in pending] == [len(r).to_bytes(4, "big") for r in pending]
    assert store.log.bytes_at(store.log.end_position + 4096) == b""
    store.close()
