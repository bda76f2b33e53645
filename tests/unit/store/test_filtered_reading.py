"""Reading a queue with a filter over properties: what is found, and how far one call goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder.config import StoreConfig
from inorder.filters.compiled import compile_filter
from inorder.store import reader as reading
from inorder.store.layout import ENTRY_BYTES
from inorder.store.reader import ReadResult, ReadStatus
from inorder.store.store import Store
from inorder.testing.clock import FakeClock
from inorder.wire.ids import pack_host
from inorder.wire.record import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    Record,
    decode,
    decode_all,
    encode,
    properties_at,
)
from tests.kit.disk import FakeFiles
from tests.kit.storing import append, write_and_publish

CONFIG = StoreConfig(segment_bytes=8192, queue_file_bytes=2000, index_slots=7, index_entries=500)
EVEN = "KEYS ENDSWITH '0' OR KEYS ENDSWITH '2' OR KEYS ENDSWITH '4'"


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store.open(Path("/data"), CONFIG, FakeFiles(), FakeClock())
    yield opened
    opened.abandon()


def fill(store: Store, count: int) -> None:
    for number in range(count):
        append(store, "T", 0, b"%04d" % number, keys=f"k{number % 6}")
    write_and_publish(store)


def get(store: Store, offset: int, sql: str = EVEN, **changed: int | None) -> ReadResult:
    limits = {"max_messages": 32, "max_bytes": 1 << 20, "scan_max": 800} | changed
    found = compile_filter(sql)
    return store.reader.get_filtered(store.queue("T", 0), offset, wanted=found, **limits)  # type: ignore[arg-type]


def numbers(result: ReadResult) -> list[int]:
    return [int(record.body) for view in result.views for record in decode_all(view)]


def test_the_matching_messages_are_found_over_files_and_segments(store: Store) -> None:
    """Neighbours are one view; the next offset lies after the last entry that was examined."""
    fill(store, 150)
    assert store.log.end_position > CONFIG.segment_bytes
    found, at = [], 0
    while at < 150:
        result = get(store, at)
        assert result.status is ReadStatus.FOUND
        assert (result.count, result.size) == (len(numbers(result)), sum(map(len, result.views)))
        found += numbers(result)
        at = result.next_offset
    assert found == [number for number in range(150) if number % 6 % 2 == 0]
    whole = get(store, 0, "KEYS CONTAINS 'k'", max_messages=10)
    assert (len(whole.views), whole.count, whole.next_offset) == (1, 10, 10)


def test_limits_of_messages_bytes_and_entries(store: Store) -> None:
    """The first match always fits; a call without a match says how far it came."""
    fill(store, 60)
    assert numbers(get(store, 1, max_messages=2)) == [2, 4]
    assert numbers(get(store, 1, max_bytes=1)) == [2]
    result = get(store, 0, "KEYS = 'none'", scan_max=7)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 7)
    result = get(store, 0, "KEYS = 'none'", end=20)
    assert (result.status, result.next_offset, result.max_offset) == (
        ReadStatus.NO_MATCHED_MESSAGE, 20, 20,
    )  # fmt: skip
    assert get(store, 60).status is ReadStatus.OFFSET_OVERFLOW_ONE
    assert get(store, 61).status is ReadStatus.OFFSET_OVERFLOW_BADLY


def test_a_call_ends_when_its_time_is_used_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the filter's estimate, so the same on every machine; at least one entry is examined."""
    fill(store, 60)
    found = compile_filter("KEYS = 'none'")
    monkeypatch.setattr(reading, "FILTER_NS_MAX", 5 * found.cost_ns(8))
    result = get(store, 0, "KEYS = 'none'")
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 5)
    assert result.filter_ns == 5 * found.cost_ns(8)
    monkeypatch.setattr(reading, "FILTER_NS_MAX", 1)
    assert get(store, 9, "KEYS = 'none'").next_offset == 10


def test_removed_and_damaged_messages(store: Store) -> None:
    """Entries whose records are gone are passed; one that leads elsewhere ends the call."""
    fill(store, 150)
    queue = store.queue("T", 0)
    assert queue.tail_offset == 0
    queue.tail[100 * ENTRY_BYTES + 7] ^= 1
    result = get(store, 96, "KEYS = 'none'")
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 100)
    assert get(store, 100).status is ReadStatus.QUEUE_DAMAGED
    store.log.segments.drop_first()
    result = get(store, 0, scan_max=4)
    assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 4)
    assert len(numbers(get(store, 0, max_messages=1))) == 1


def test_cold_messages_are_selected_apart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same messages, read by pread, with bounds of their own."""
    fill(store, 60)
    store.reader.hot_bytes = 0
    before = get(store, 1)
    assert before.unfiltered
    reader, wanted = store.reader, compile_filter(EVEN)
    limits = {"max_messages": 3, "max_bytes": 1 << 20}
    found = reader.select(before.entries, wanted=wanted, **limits)
    result = reader.selected(before, found)
    assert (result.status, numbers(result), result.next_offset) == (ReadStatus.FOUND, [2, 4, 6], 7)
    assert result.size == sum(map(len, result.views))
    none = compile_filter("KEYS = 'none'")
    monkeypatch.setattr(reading, "COLD_BYTES_MAX", 1)
    result = reader.selected(before, reader.select(before.entries, wanted=none, **limits))
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 2)
    monkeypatch.setattr(reading, "COLD_SCAN_MAX", 7)
    assert len(get(store, 1).entries) == 7 * ENTRY_BYTES
    gone = (1 << 40).to_bytes(8, "big") + before.entries[8:ENTRY_BYTES]
    result = reader.selected(before, reader.select(gone, wanted=none, **limits))
    assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 2)


@pytest.mark.parametrize("topic", ["T", "t" * 200])
@pytest.mark.parametrize("hosts", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
@pytest.mark.parametrize("properties", [b"", b"a\x011\x02"])
def test_properties_of_every_kind_of_record(topic: str, hosts: int, properties: bytes) -> None:
    """Found without decoding the record, for hosts of both kinds and both lengths of topics."""
    v6, v4 = pack_host("::1", 1), pack_host("127.0.0.1", 1)
    record = Record(
        topic, 0, 0, 0, b"body" * 9, properties, sys_flag=hosts,
        born_host=v6 if hosts & BORN_HOST_V6 else v4,
        store_host=v6 if hosts & STORE_HOST_V6 else v4,
        version=2 if len(topic) > 127 else 1,
    )  # fmt: skip
    data = b"before" + encode(record)
    assert decode(data, 6).properties == properties
    assert properties_at(memoryview(data), data, 6, len(data) - 6) == properties
    assert properties_at(memoryview(data), data, 6, 40) == b""
    garbage = b"\xff" * 200
    assert properties_at(memoryview(garbage), garbage, 0, 200) == b""
