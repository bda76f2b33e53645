"""When a message wants to be delivered, and which timer is next."""

from __future__ import annotations

import struct
from unittest.mock import patch

import pytest

from inorder.broker.timers import rules
from inorder.broker.timers.records import File, decode, encode
from inorder.broker.timers.rules import TimerTable, wanted_ms
from inorder.errors import MessageIllegal, RemoteProtocolError
from inorder.wire.timers import code_of

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("found", "due"),
    [
        ({}, None),
        ({"TIMER_DELAY_SEC": "2"}, NOW + 2000),
        ({"TIMER_DELAY_MS": "2"}, NOW + 2),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW + 1),
        ({"TIMER_DELIVER_MS": str(NOW + 9), "TIMER_DELAY_MS": "5"}, NOW + 5),
        ({"TIMER_DELAY_MS": "5", "TIMER_DELAY_SEC": "+60"}, NOW + 60_000),
        ({"TIMER_DELIVER_MS": str(NOW)}, None),
        ({"TIMER_DELAY_SEC": "0"}, None),
        ({"TIMER_DELAY_SEC": "-9223372036854775"}, None),
        ({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"}, None),
    ],
)
def test_when_a_message_wants_to_be_delivered(found: dict[str, str], due: int | None) -> None:
    """RocketMQ's properties in RocketMQ's order; a time that has passed means at once."""
    assert wanted_ms(found, "t", NOW, 60) == due


@pytest.mark.parametrize(
    "found",
    [
        {"TIMER_DELAY_SEC": "61"},
        {"TIMER_DELIVER_MS": str(NOW + 60_001)},
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELAY_MS": "1.5"},
        {"TIMER_DELAY_MS": "9" * 19},
        {"TIMER_DELAY_MS": "9" * 40},
        {"TIMER_DELIVER_MS": str(NOW), "TIMER_DEL_UNIQKEY": "t+U"},
    ],
)
def test_what_is_refused(found: dict[str, str]) -> None:
    """Too far away, no number, a recall that comes too late."""
    with pytest.raises(MessageIllegal, match="not be bigger than the max delay 60000ms"):
        wanted_ms(found, "t", NOW, 60)


def read_all(table: TimerTable, codes: list[int]) -> None:
    """Read the chunks of a pass."""
    while (first := table.next_chunk()) is not None:
        entries = [struct.pack(">qiq", 0, 100, code) for code in codes[first : first + rules.CHUNK]]
        table.read_chunk(first, b"".join(entries))


def note_all(table: TimerTable, codes: list[int]) -> None:
    for offset, code in enumerate(codes):
        table.note(offset, code)


def test_none_is_taken_before_its_millisecond() -> None:
    """However often somebody looks."""
    table = TimerTable(now_ms=NOW)
    codes = [code_of(NOW + 50)]
    table.note(0, codes[0])
    table.begin_pass(NOW)
    read_all(table, codes)
    assert table.take(NOW, 9) == table.take(NOW + 49, 9) == []
    assert table.take(NOW + 50, 9) == [(codes[0], 0)]


def test_far_timers_are_in_no_memory_but_a_number_for_each_chunk() -> None:
    """Until their time comes near."""
    table = TimerTable(now_ms=NOW)
    codes = [code_of(NOW + 3_600_000 + number) for number in range(3 * rules.CHUNK)]
    note_all(table, codes)
    assert (len(table._window), len(table._chunks)) == (0, 3)
    assert table.wake_ms() == NOW + 3_600_000 - rules.LEAD_MS
    assert not table.begin_pass(NOW)
    assert table.begin_pass(NOW + 3_600_000 - rules.LEAD_MS)
    read_all(table, codes)
    assert table.take(NOW + 3_600_000 + 1, 100) == [(codes[0], 0), (codes[1], 1)]


def test_memory_is_bounded_however_many_are_due_at_once() -> None:
    """They come in order all the same."""
    with patch.object(rules, "WINDOW_MAX", 10), patch.object(rules, "CHUNK", 16):
        table = TimerTable(now_ms=NOW)
        codes = [code_of(NOW + 1)] * 100
        note_all(table, codes)
        came: list[int] = []
        while len(came) < 100:
            table.begin_pass(NOW + 5)
            read_all(table, codes)
            points = table.take(NOW + 5, 7)
            assert points
            assert len(table._window) <= 20
            table.settle(points)
            came += [offset for _, offset in points]
        assert came == list(range(100))
        assert not table.waiting


def test_a_timer_that_arrives_while_a_part_is_read_is_not_lost() -> None:
    """Its chunk may have been read already."""
    table = TimerTable(now_ms=NOW)
    codes = [code_of(NOW + 500)]
    table.note(0, codes[0])
    assert table.begin_pass(NOW)
    first = table.next_chunk()
    assert first == 0
    table.read_chunk(0, struct.pack(">qiq", 0, 100, codes[0]))
    table.note(1, code_of(NOW + 400))
    assert table.next_chunk() is None
    assert [offset for _, offset in table.take(NOW + 1000, 9)] == [1, 0]


def test_the_frontier_does_not_pass_the_present() -> None:
    """Or what arrives for the next minute would be late, and could not be recalled."""
    table = TimerTable(now_ms=NOW)
    codes = [code_of(NOW + 5)]
    table.note(0, codes[0])
    table.begin_pass(NOW)
    read_all(table, codes)
    table.settle(table.take(NOW + 5, 9))
    assert not table.is_over(NOW + 6)
    table.note(1, code_of(NOW + 6))
    assert table.late_count == 0


def test_a_snapshot_holds_what_a_restart_needs() -> None:
    """The frontier, late ones, those above it that are done, recalls, counts."""
    table = TimerTable(now_ms=NOW)
    codes = [code_of(NOW + ms) for ms in (10, 20, 30)]
    note_all(table, codes)
    table.begin_pass(NOW)
    read_all(table, codes)
    points = table.take(NOW + 20, 9)
    table.count("t", 3, NOW)
    table.settle(points[1:])
    table.recalled["t+U"] = NOW + 99
    saved = decode(encode(File(table.snapshot(), 5, 6, 7)))
    assert (saved.position, saved.depends_on, saved.log_crc) == (5, 6, 7)
    again = TimerTable(now_ms=NOW)
    again.restore(saved.saved)
    assert again.total == 3
    assert again.recalled == {"t+U": NOW + 99}
    assert again.begin_pass(NOW + 20)
    read_all(again, codes)
    assert [offset for _, offset in again.take(NOW + 99, 9)] == [0, 2], "1 was delivered"


def test_what_is_no_snapshot_is_refused() -> None:
    """So that the copy before it is tried."""
    for content in (b"", b"{}", b"[1]", b"\xff"):
        with pytest.raises(RemoteProtocolError):
            decode(content)


def test_a_time_that_had_passed_is_late_and_delivered_first() -> None:
    """The clock was set back; nothing else moves back with it."""
    table = TimerTable(now_ms=NOW)
    codes = [code_of(NOW + 50)]
    table.note(0, codes[0])
    table.begin_pass(NOW)
    read_all(table, codes)
    table.settle(table.take(NOW + 50, 9))
    frontier = table.frontier
    table.note(1, code_of(NOW + 20))
    assert table.is_over(NOW + 20)
    assert table.late_count == 1
    assert table.wake_ms() == NOW + 20
    assert [offset for _, offset in table.take(NOW + 20, 9)] == [1]
    assert table.frontier == frontier
