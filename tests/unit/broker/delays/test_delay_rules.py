"""When delayed messages are due, and how far each level is."""

from __future__ import annotations

import struct

import pytest

from inorder.broker.delays import rules as delays_module
from inorder.broker.delays.rules import (
    SKEW_MS_MAX,
    Delays,
    Due,
    delivered_properties,
    destination,
    is_delivery,
    mark,
    scheduled_properties,
    without,
)
from inorder.errors import RemoteProtocolError
from inorder.wire.properties import format_properties, parse
from inorder.wire.record import Record

NOW = 1_700_000_000_000


def make(*delays_ms: int) -> Delays:
    return Delays(delays_ms or (1000, 5000), now_ms=NOW)


def entries(*dues_ms: int, size: int = 100) -> bytes:
    return b"".join(struct.pack(">qiq", 100 * n, size, due) for n, due in enumerate(dues_ms))


def test_what_is_due_is_taken_and_the_next_time_is_known() -> None:
    """Up to the first entry that lies ahead; its own time is due."""
    found = make().scan(1, entries(NOW - 5, NOW, NOW + 1, NOW - 9), NOW)
    assert found.due == [Due(0, 0, 100), Due(1, 100, 100)]
    assert (found.next_offset, found.wake_ms) == (2, NOW + 1)


def test_when_all_is_due_the_next_time_is_not_known() -> None:
    """There may be more behind what was read."""
    assert make().scan(1, entries(NOW, NOW), NOW).wake_ms is None
    assert make().scan(1, b"", NOW) == ([], 0, None)


def test_an_entry_far_beyond_its_level_is_due_now() -> None:
    """The level was made shorter or the clock set back; a small step makes nothing early."""
    delays = make()
    assert delays.scan(1, entries(NOW + 1000 + SKEW_MS_MAX), NOW).due == []
    assert len(delays.scan(1, entries(NOW + 1001 + SKEW_MS_MAX), NOW).due) == 1
    assert len(delays.scan(2, entries(NOW + 1001 + SKEW_MS_MAX), NOW).due) == 0


def test_a_level_that_the_setting_has_no_more_is_still_delivered() -> None:
    """It counts as the highest."""
    delays = make(1000, 5000)
    assert delays.scan(9, entries(NOW + 4000), NOW).wake_ms == NOW + 4000
    assert len(delays.scan(9, entries(NOW + 60_000), NOW).due) == 1


def test_fillers_are_passed_over() -> None:
    """The log has no such message."""
    found = make().scan(1, entries(0, size=0) + entries(0, size=0x7FFFFFFF), NOW)
    assert (found.due, found.next_offset) == ([], 2)


def test_a_message_is_due_a_delay_after_it_was_stored() -> None:
    """Of the highest level if there is none so high."""
    delays = make()
    assert [delays.due_ms(level, NOW) - NOW for level in (1, 2, 3)] == [1000, 5000, 5000]
    assert [delays.clamp_level(level) for level in (1, 2, 3)] == [1, 2, 2]


def test_taken_is_not_settled_before_it_is_stored() -> None:
    """A failed write gives back what it had taken, and nothing that is stored."""
    delays = make()
    delays.take(1, 10)
    delays.settle(1, 4, NOW)
    assert (delays.next_offset(1), delays.settled_offset(1)) == (10, 4)
    delays.give_back(1, 7)
    assert delays.next_offset(1) == 7
    delays.give_back(1, 2)
    assert delays.next_offset(1) == 4
    delays.take(1, 8)
    delays.settle(1, 8, NOW)
    assert delays.settled() == {1: 8}


def test_what_was_not_taken_cannot_settle() -> None:
    """Nor does a level go back."""
    delays = make()
    with pytest.raises(AssertionError):
        delays.settle(1, 1, NOW)
    delays.take(1, 3)
    with pytest.raises(AssertionError):
        delays.take(1, 2)


def test_the_file_is_rocketmqs_and_keeps_a_position_of_ours() -> None:
    """Bare numbers as keys, data version, one field more."""
    delays = make()
    delays.take(3, 7)
    delays.settle(3, 7, NOW)
    text = delays.encode(position=4711)
    assert b'"offsetTable":{3:7\n\t}' in text
    again = make()
    again.decode(text)
    assert (again.settled(), again.next_offset(3), again.position) == ({3: 7}, 7, 4711)
    assert delays_module.POSITION.encode() not in delays.encode(pretty=False)


def test_a_file_of_rocketmq_is_taken_over() -> None:
    """It has no position: then nothing of ours has to be looked for in the log."""
    delays = make()
    delays.decode(
        b'{\n\t"dataVersion":{\n\t\t"counter":27,\n\t\t"stateVersion":0,\n\t\t'
        b'"timestamp":1794717068703\n\t},\n\t"offsetTable":{1:4,2:2,14:0,17:0,18:0\n\t}\n}'
    )
    assert delays.settled() == {1: 4, 2: 2, 14: 0, 17: 0, 18: 0}
    assert delays.position is None
    assert delays.data_version.counter == 27
    old = make()
    old.decode(b'{"offsetTable":{1:4}}')  # before 5.0 it had no version
    assert old.settled() == {1: 4}


@pytest.mark.parametrize("data", [b"[]", b'{"offsetTable":{"a":1}}', b'{"offsetTable":[]}', b"{"])
def test_what_is_not_that_file_is_refused(data: bytes) -> None:
    """So that the copy before it is tried."""
    with pytest.raises(RemoteProtocolError):
        make().decode(data)


def test_a_start_passes_over_what_is_delivered_and_never_goes_back() -> None:
    """Beyond the end of the queue it is brought back to it."""
    delays = make()
    assert delays.advance(1, 5)
    assert not delays.advance(1, 4)
    assert not delays.cut(1, 5)
    assert delays.cut(1, 3)
    assert delays.settled() == {1: 3}
    assert delays.revision == 2


def test_a_scheduled_message_knows_where_it_goes() -> None:
    """RocketMQ's properties; a timer beside a level does not count."""
    found = {"TAGS": "A", "DELAY": "99", "TIMER_DELAY_SEC": "7", "REAL_TOPIC": "old"}
    scheduled_properties(found, "orders", 3, 18)
    assert found == {"TAGS": "A", "DELAY": "18", "REAL_TOPIC": "orders", "REAL_QID": "3"}
    assert destination(format_properties(found).encode()) == ("orders", 3)


@pytest.mark.parametrize(
    "properties",
    [b"", b"REAL_TOPIC\x01t\x02", b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02",
     b"REAL_TOPIC\x01t\x02REAL_QID\x01x\x02", b"REAL_TOPIC\x01t\x02REAL_QID\x0199999999999\x02"],
)  # fmt: skip
def test_a_message_without_a_place_has_none(properties: bytes) -> None:
    """It cannot be delivered."""
    assert destination(properties) is None


def test_a_delivered_message_keeps_its_properties_and_gets_the_mark() -> None:
    """Also without a last separator; numbers of its producer and an older mark go."""
    raw = b"TAGS\x01A\x02INORDER_PID\x01p\x02INORDER_SEQ\x014\x02INORDER_SCHED\x011:1\x02DELAY\x013"
    found = delivered_properties(raw, 3, 17)
    assert parse(found) == {"TAGS": "A", "DELAY": "3", "INORDER_SCHED": "3:17"}
    assert mark(found) == (3, 17)
    assert mark(b"TAGS\x01A\x02") is None
    assert delivered_properties(b"", 1, 0) == b"INORDER_SCHED\x011:0\x02"


@pytest.mark.parametrize("value", [b"", b"3", b"a:1", b"1:b", b"-1:2", b"1:" + b"9" * 40])
def test_a_mark_that_is_none_is_ignored(value: bytes) -> None:
    """Anybody may send such a property."""
    assert mark(b"INORDER_SCHED\x01" + value + b"\x02") is None


def record(topic: str, queue_id: int, **more: object) -> Record:
    properties = {"UNIQ_KEY": "U1", "REAL_TOPIC": "orders", "REAL_QID": "2"}
    fields: dict[str, object] = {
        "properties": format_properties(properties).encode(), "born_at_ms": 5, "body_crc": 7,
        "redeliveries": 1, **more,
    }  # fmt: skip
    return Record(topic, queue_id, 0, 0, b"body", **fields)  # type: ignore[arg-type]


def test_only_the_very_message_counts_as_its_delivery() -> None:
    """A client that claims a mark cannot have another one's message passed over."""
    scheduled = record("SCHEDULE_TOPIC_XXXX", 0)
    assert is_delivery(record("orders", 2), scheduled)
    assert is_delivery(record("orders", 1), scheduled), "a resize may have moved it"
    for other in (
        record("elsewhere", 2),
        record("orders", 2, born_at_ms=6),
        record("orders", 2, body_crc=8),
        record("orders", 2, redeliveries=0),
        record("orders", 2, properties=b"UNIQ_KEY\x01U2\x02"),
    ):
        assert not is_delivery(other, scheduled)


def test_properties_can_be_left_out() -> None:
    """Names are compared whole; entries without a value stay as they are."""
    raw = b"A\x011\x02AB\x012\x02B\x013"
    assert without(raw, [b"A"]) == b"AB\x012\x02B\x013\x02"
