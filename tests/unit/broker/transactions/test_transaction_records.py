"""Halves, records of ended halves, and what a start makes of them."""

from __future__ import annotations

import pytest

from inorder.broker.transactions.records import (
    Ended,
    Found,
    Noted,
    committed,
    end_in,
    ended_body,
    ended_offsets,
    ended_parts,
    ended_properties,
    ends_in,
    found_in,
    given_up,
    half_of,
    half_properties,
    home_of,
    is_half,
    living,
    put_back,
    resumed,
)
from inorder.broker.transactions.rules import End, Half
from inorder.wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from inorder.wire.properties import join, parse
from inorder.wire.record import Record

MESSAGE = {
    "UNIQ_KEY": "U1", "TRAN_MSG": "true", "PGROUP": "shop", "__SHARDINGKEY": "k",
    "INORDER_PID": "p", "INORDER_SEQ": "7",
}  # fmt: skip


def record(offset: int = 3, position: int = 300, **more: str) -> Record:
    properties = half_properties(dict(MESSAGE), "Orders", 2) + join(more)
    return Record(
        HALF_TOPIC, 0, offset, position, b"paid", properties.encode(), born_at_ms=5, stored_at_ms=6
    )


@pytest.mark.parametrize(
    ("mark", "level", "redeliveries", "wanted"),
    [
        ("true", 0, 0, True), ("TRUE", 0, None, True), ("true", 3, 0, True),
        ("true", 0, 2, True), ("true", 3, 2, False), ("false", 0, 0, False), ("", 0, 0, False),
    ],
)  # fmt: skip
def test_what_is_a_half(mark: str, level: int, redeliveries: int | None, wanted: bool) -> None:
    """A retry copy of an old client keeps the mark and is none."""
    found = {"TRAN_MSG": mark} if mark else {}
    assert is_half(found, level, redeliveries) is wanted


def test_a_half_says_where_it_goes_and_nothing_that_only_a_broker_may_say() -> None:
    """A forged mark of another half, or count of questions, does not count."""
    forged = {**MESSAGE, "INORDER_HALF": "1", "TRANSACTION_CHECK_TIMES": "14", "REAL_QID": "9"}
    found = parse(half_properties(forged, "Orders", 2))
    assert (found["REAL_TOPIC"], found["REAL_QID"], found["__transactionId__"]) == (
        "Orders", "2", "U1",
    )  # fmt: skip
    assert not found.keys() & {"INORDER_HALF", "TRANSACTION_CHECK_TIMES"}
    assert home_of(record().properties) == ("Orders", 2)
    assert home_of(b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02") is None
    assert home_of(b"REAL_QID\x011\x02") is None


def test_every_copy_names_the_first_half_and_no_send() -> None:
    """The committed message has RocketMQ's flags and position as well."""
    half = half_of(record())
    assert (half.origin, half.offset, half.checks, half.immunity_s) == (300, 3, 0, None)
    copy = put_back(record(), half, 1, 9)
    copy.queue_offset, copy.position = 8, 800
    newer = half_of(copy)
    assert (newer.origin, newer.offset, newer.checks, newer.stored_at_ms) == (300, 8, 1, 9)
    again = parse(put_back(copy, newer, 2, 10).properties)
    assert (again["INORDER_HALF"], again["TRANSACTION_CHECK_TIMES"]) == ("300", "2")
    done = committed(record(), half, 777, 9)
    assert (done.sys_flag & 0xC, done.prepared_position) == (8, 777)
    for one in (copy, done, given_up(record(), half, 9)):
        found = parse(one.properties)
        assert found["INORDER_HALF"] == "300"
        assert not found.keys() & {"INORDER_PID", "INORDER_SEQ"}
    back = parse(resumed(given_up(copy, newer, 9), 300, 11).properties)
    assert (back["INORDER_HALF"], back["TRANSACTION_CHECK_TIMES"]) == ("300", "0")


def test_bodies_of_ended_halves_are_read_as_they_are_written() -> None:
    """RocketMQ's form; in parts of about the size that the setting says."""
    assert ended_body([0, 12, 15]) == b"0,12,15,"
    assert ended_offsets(b"0,12,15,") == [0, 12, 15]
    assert ended_offsets(b"7,x,,-1,8") == [7, 8]
    noted = [Noted(n, (End.COMMITTED, End.ROLLED_BACK, None)[n % 3]) for n in range(99, -1, -1)]
    parts = ended_parts(noted, 50)
    assert [one.offset for part in parts for one in part] == list(range(100))
    assert max(len(ended_body(one.offset for one in part)) for part in parts) < 60
    found = []
    for part in parts:
        properties = ended_properties("U", part, 7)
        assert parse(properties)["INORDER_ENDED"] == "7"
        body = ended_body(one.offset for one in part)
        found += ends_in(Record(OP_HALF_TOPIC, 0, 0, 0, body, properties))
    assert found == [(one.offset, one.how) for one in reversed(noted) if one.how is not None]
    assert ends_in(Record(OP_HALF_TOPIC, 0, 0, 0, b"1,2,", b"INORDER_ENDS\x01c\x02")) == []
    assert ended_properties("U", [], None).find(b"INORDER_ENDED") < 0


@pytest.mark.parametrize(
    ("topic", "flags", "properties", "prepared", "wanted"),
    [
        ("Orders", 8, b"INORDER_HALF\x01300\x02", 0, Ended(900, 300, 0, End.COMMITTED)),
        ("Orders", 8, b"", 300, Ended(900, None, 300, End.COMMITTED)),  # RocketMQ's
        ("Orders", 8, b"", 0, None),
        ("Orders", 0, b"INORDER_HALF\x01300\x02", 0, None),  # a forged property
        ("Orders", 4, b"INORDER_HALF\x01300\x02", 0, None),
        (CHECK_MAX_TIME_TOPIC, 0, b"INORDER_HALF\x01300\x02", 0, Ended(900, 300, 0, End.GIVEN_UP)),
        (CHECK_MAX_TIME_TOPIC, 0, b"", 0, None),
        (HALF_TOPIC, 8, b"INORDER_HALF\x01300\x02", 0, None),
        (OP_HALF_TOPIC, 8, b"INORDER_HALF\x01300\x02", 0, None),
    ],
)
def test_which_records_tell_of_an_end(
    topic: str, flags: int, properties: bytes, prepared: int, wanted: Ended | None
) -> None:
    """By flags that no send can have, or in a topic that none can name."""
    assert end_in(topic, flags, properties, 900, prepared) == wanted


def found(
    offset: int, origin: int | None = None, *, checks: int = 0, unique: bytes = b"",
    put_back_from: int | None = None,
) -> Found:  # fmt: skip
    position = offset * 100
    half = Half(
        position if origin is None else origin, offset, position, born_at_ms=1, stored_at_ms=1,
        checks=checks,
    )  # fmt: skip
    return Found(half, unique or b"U%d" % offset, b"shop", put_back_from, origin is not None)


def commit(position: int, origin: int | None, half_position: int = 0) -> Ended:
    return Ended(position, origin, half_position, End.COMMITTED)


@pytest.mark.parametrize(
    ("halves", "ended", "ends", "alive", "to_note"),
    [
        ([found(1), found(2)], set(), [], [1, 2], []),
        # Put back, and the record of the older copy is lost.
        ([found(1), found(5, 100, checks=1)], set(), [], [5], [1]),
        # Committed by the older copy or by the newer: both are gone.
        ([found(1), found(5, 100)], set(), [commit(900, 100)], [], [1, 5]),
        ([found(5, 100)], set(), [commit(900, 100)], [], [5]),
        # Of a RocketMQ broker: by the position in the head.
        ([found(1), found(2)], set(), [commit(900, None, 200)], [1], [2]),
        # It put back without our mark: the copy is known by what it shares with the first.
        ([found(1, unique=b"X"), found(5, unique=b"X", checks=1)], set(), [], [5], [1]),
        (
            [found(1, unique=b"X"), found(5, unique=b"X", checks=1)], set(),
            [commit(900, None, 100)], [], [1, 5],
        ),
        # Two sends of one message are two halves.
        ([found(1, unique=b"X"), found(5, unique=b"X")], set(), [], [1, 5], []),
        # RocketMQ put back an immune half, and noted the end under the first offset.
        ([found(5, put_back_from=1)], {1}, [], [], [5]),
        # Given up, and resumed after that.
        ([found(9, 100)], set(), [Ended(500, 100, 0, End.GIVEN_UP)], [9], []),
        ([found(1)], set(), [Ended(500, 100, 0, End.GIVEN_UP)], [], [1]),
    ],
)  # fmt: skip
def test_what_lives_after_a_crash(
    halves: list[Found], ended: set[int], ends: list[Ended], alive: list[int], to_note: list[int]
) -> None:
    """The newest copy of a transaction whose end is nowhere; the other offsets are noted."""
    pending, noted, known = living(halves, ended, ends)
    assert [one.offset for one in pending] == alive
    assert sorted(one.offset for one in noted) == to_note
    assert not known.keys() & {one.origin for one in pending}


def test_the_half_in_a_record_carries_what_tells_copies() -> None:
    """Its key, its group, and RocketMQ's note of the first offset."""
    one = found_in(record(TRAN_PREPARED_QUEUE_OFFSET="1"))
    assert (one.unique, one.group, one.put_back_from, one.marked) == (b"U1", b"shop", 1, False)
    assert found_in(record(INORDER_HALF="10")).marked
