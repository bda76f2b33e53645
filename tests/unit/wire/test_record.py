"""The record codec."""

from __future__ import annotations

import struct

import pytest

from inorder.errors import CorruptRecord, RecordTooLarge
from inorder.wire import record
from inorder.wire.ids import pack_host
from inorder.wire.record import BLANK, END, INVALID, Record

V4, V6 = pack_host("1.2.3.4", 5), pack_host("::1", 6)


def make(**changes: object) -> Record:
    """Return a record with a few fields set."""
    value = Record("TopicA", 1, 2, 0, b"body", b"TAGS\x01TagA\x02", 3, 0, 4, V4, 5, V4, 6, 7)
    for name, change in changes.items():
        setattr(value, name, change)
    return value


@pytest.mark.parametrize("born", [V4, V6], ids=["born4", "born6"])
@pytest.mark.parametrize("store", [V4, V6], ids=["store4", "store6"])
@pytest.mark.parametrize("topic", ["T", "x" * 127, "x" * 128, "%RETRY%" + "g" * 248, "中文"])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_round_trip(born: bytes, store: bytes, topic: str, body: bytes) -> None:
    """Hosts of both kinds, topics of both versions, bodies of any length."""
    value = make(born_host=born, store_host=store, topic=topic, body=body, sys_flag=0x8)
    data = record.encode(value)
    read = record.decode(data)
    assert read.sys_flag == 0x8 | (0x10 if born is V6 else 0) | (0x20 if store is V6 else 0)
    assert read.version == (2 if len(topic) > 127 else 1)
    assert (read.topic, read.body, read.properties) == (topic, body, value.properties)
    assert (read.born_host, read.store_host, read.stored_at_ms) == (born, store, 5)
    assert record.encode(read) == data
    assert (
        read.size
        == len(data)
        == record.record_size(
            len(topic.encode()),
            len(body),
            len(value.properties),
            born_v6=born is V6,
            store_v6=store is V6,
        )
    )
    (scanned,) = record.scan(data, 0, len(data), position_of_at=0)
    assert scanned == (0, len(data), topic, 1, 2, 2598919, 5, read.sys_flag, value.properties)
    assert record.check(data, 0, len(data)) == len(data)


def test_version_2_may_be_asked_for() -> None:
    """A record that came as version 2 stays one."""
    data = record.encode(make(version=2))
    assert record.decode(data).version == 2


GOOD = record.encode(make())


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_a_cut_record_is_corrupt(size: int) -> None:
    """No prefix of a record is a record."""
    with pytest.raises(CorruptRecord):
        record.decode(GOOD[:size])
    assert record.check(GOOD, 0, size) == (INVALID if size else END)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, struct.pack(">i", len(GOOD) + 1)),
        (0, struct.pack(">i", len(GOOD) - 1)),
        (0, struct.pack(">i", -1)),
        (0, struct.pack(">i", 0)),
        (4, b"\0\0\0\0"),
        (8, b"\0\0\0\1"),
        (36, struct.pack(">i", 0x10)),
        (36, struct.pack(">i", 0x30)),
        (84, struct.pack(">i", -1)),
        (84, struct.pack(">i", 5)),
        (84, struct.pack(">i", 1 << 30)),
        (88, b"B"),
        (92, b"\x07"),
        (92, b"\xff"),
        (99, b"\xff\xff"),
        (99, b"\x00\x00"),
    ],
)
def test_a_changed_record_is_corrupt(at: int, data: bytes) -> None:
    """Any length, magic or body byte that is wrong is noticed."""
    broken = GOOD[:at] + data + GOOD[at + len(data) :]
    with pytest.raises(CorruptRecord):
        record.decode(broken)
    assert record.check(broken, 0, len(broken)) == INVALID


def test_the_checksum_may_be_left_out() -> None:
    """Clients need not verify it."""
    broken = GOOD.replace(b"body", b"BODY")
    assert record.decode(broken, check_crc=False).body == b"BODY"
    assert record.check(broken, 0, len(broken), check_crc=False) == len(broken)


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": bytes(32768)},
        {"topic": "x" * 32768},
        {"queue_id": 1 << 31},
        {"position": 1 << 63},
        {"flag": -(1 << 31) - 1},
        {"body": bytes(record.RECORD_BYTES_MAX)},
    ],
    ids=["properties", "topic", "queue id", "position", "flag", "body"],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object]) -> None:
    """A number or length that the format cannot hold never reaches the disk."""
    with pytest.raises(RecordTooLarge):
        record.encode(make(**changes))


def log(count: int) -> bytes:
    """Return that many records, one behind the other, from position 1000 on."""
    data = b""
    for index in range(count):
        value = make(queue_offset=index, position=1000 + len(data), topic=f"T{index % 3}")
        data += record.encode(value)
    return data


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", END),
        (record.blank(100) + bytes(92), BLANK),
        (record.blank(8), BLANK),
        (record.blank(9), INVALID),
        (record.blank(-1), INVALID),
        (bytes(100), INVALID),
        (bytes(3), INVALID),
        (GOOD, INVALID),
        (GOOD[:-1], INVALID),
    ],
    ids=[
        "end",
        "blank",
        "short blank",
        "blank too long",
        "negative blank",
        "zeros",
        "few zeros",
        "record of elsewhere",
        "torn",
    ],
)
def test_scan_says_why_it_stopped(tail: bytes, reason: int) -> None:
    """The records before the stop are all there; then the reason and the place."""
    data = log(5)
    walk = record.scan(data + tail, 0, len(data + tail), position_of_at=1000)
    assert [item.queue_offset for item in walk] == [0, 1, 2, 3, 4]
    assert (walk.reason, walk.stopped_at) == (reason, len(data))


def test_scan_may_begin_and_end_anywhere() -> None:
    """Indexes of the buffer and positions of the log are apart."""
    data = log(5)
    sizes = [item.size for item in record.scan(data, 0, len(data), position_of_at=1000)]
    at, end = sizes[0], sum(sizes[:3])
    walk = record.scan(memoryview(data), at, end, position_of_at=1000 + at)
    assert [item.queue_offset for item in walk] == [1, 2]
    assert (walk.reason, walk.stopped_at) == (END, end)


def test_scan_of_broken_hosts_and_lengths() -> None:
    """A record whose parts do not fit stops the walk."""
    flagged = GOOD[:36] + struct.pack(">i", 0x30) + GOOD[40:]
    walk = record.scan(flagged, 0, len(flagged), position_of_at=0)
    assert list(walk) == []
    assert walk.reason == INVALID


def test_decode_all_takes_whole_records_only() -> None:
    """A pull answer is records and nothing else."""
    data = log(3)
    assert [item.queue_offset for item in record.decode_all(data)] == [0, 1, 2]
    assert record.decode_all(b"") == []
    with pytest.raises(CorruptRecord):
        record.decode_all(data + b"\0")


def test_decode_at_an_index() -> None:
    """A negative index is no place."""
    data = log(2)
    first = record.decode(data)
    assert record.decode(data, first.size).queue_offset == 1
    with pytest.raises(CorruptRecord):
        record.decode(data, -first.size)


def test_body_crc_has_31_bits() -> None:
    """RocketMQ drops the sign."""
    assert record.body_crc(b"Hello RocketMQ") == 1774740973
    assert record.body_crc(b"a") == 0xE8B7BE43 & 0x7FFFFFFF


def test_scan_stops_at_properties_that_were_torn() -> None:
    """The checksum covers the body alone; zeros at the end of the properties give a tear away."""
    whole = log(1)
    for torn_bytes in (1, 5):
        torn = whole[:-torn_bytes] + bytes(torn_bytes)
        walk = record.scan(torn, 0, len(torn), position_of_at=1000)
        assert list(walk) == []
        assert walk.reason == INVALID
