"""What the journal holds of POP, folded and read back; and the copies of messages."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from inorder.broker.leases import records as lease_records
from inorder.broker.pops.records import (
    PopDone,
    PopForgotten,
    PopRecord,
    PopReset,
    as_popped,
    batch_record,
    no_batch,
    popped,
    replay,
    revived,
    summary,
)
from inorder.broker.pops.rules import Batch, CheckPoint, PopTable
from inorder.model import GroupQueue
from inorder.wire.properties import PROPERTIES_BYTES_MAX, parse
from inorder.wire.record import Record, decode, encode

KEY = GroupQueue("billing", "orders", 0)
OTHER = GroupQueue("billing", "orders", 1)
END = 4096


def point(offsets: list[int], pop_ms: int = 7000, deadline_ms: int = 10_000) -> CheckPoint:
    return CheckPoint(pop_ms, 3000, deadline_ms, offsets[0], dict.fromkeys(offsets))


def batch(**changes: object) -> Batch:
    values: dict[str, object] = {
        "epoch": 5, "attempt": "a1", "pop_ms": 7000, "invisible_ms": 3000, "until_ms": 9000,
        "offsets": (4, 5, 6), "acked": 2, "visible": ((6, 9500),), "counts": ((4, 1),),
        "acks": 1, **changes,
    }  # fmt: skip
    return Batch(**values)  # type: ignore[arg-type]


def read(records: Iterable[PopRecord], *, now_ms: int = 8000, same_boot: bool = True) -> PopTable:
    """Write records, read them back, and apply them."""
    table = PopTable()
    again = [lease_records.decode(lease_records.encode(one)) for one in records]
    replay(again, table, now_ms=now_ms, same_boot=same_boot)
    return table


def state(table: PopTable) -> dict[GroupQueue, object]:
    found: dict[GroupQueue, object] = {
        key: (
            queue.cursor, queue.floor(), queue.last_pop_ms,
            sorted((o, p.pop_ms, p.deadline_ms, p.start) for o, p in queue.points.items()),
        )
        for key, queue in table.queues.items()
    }  # fmt: skip
    return found


def test_pops_and_acknowledgements_are_read_back() -> None:
    """The offset, the next pop, tokens and deadlines are as before."""
    records: list[PopRecord] = [
        popped(KEY, point([0, 1, 4]), 5, END),
        popped(KEY, point([5], 7001, 11_000), 6, END),
        PopDone(*KEY, 7000, [0, 1]),
        PopDone(*KEY, 7001, [4]),
    ]
    table = read(records)
    assert (table.floor(KEY), table.next_offset(KEY, 0), table.messages) == (4, 6, 2)
    assert table.pop_ms([KEY], 0) == 7002
    assert [table.point(KEY, one).deadline_ms for one in (4, 5)] == [10_000, 11_000]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("same_boot", "now_ms", "deadline_ms"),
    [(True, 8000, 10_000), (True, 10_500, 10_000), (True, 100, 3100), (False, 8000, 11_000)],
)
def test_deadlines_hold_within_a_boot(same_boot: bool, now_ms: int, deadline_ms: int) -> None:
    """After another boot, and if the clock says nonsense, the time begins anew at most."""
    records: list[PopRecord] = [
        popped(KEY, point([0]), 1, END),
        batch_record(OTHER, batch(until_ms=10_000), END),
    ]
    table = read(records, now_ms=now_ms, same_boot=same_boot)
    found = table.point(KEY, 0)
    assert found is not None
    assert (found.deadline_ms, table.batches[OTHER].until_ms) == (deadline_ms, deadline_ms)
    assert bool(table.batches[OTHER].visible) == same_boot


def test_a_batch_is_read_back_whole() -> None:
    """The last record counts; one without offsets ends it, and its token stays the highest."""
    table = read([batch_record(OTHER, batch(pop_ms=1), END), batch_record(OTHER, batch(), END)])
    assert table.batches[OTHER] == batch()
    table = read([batch_record(OTHER, batch(), END), no_batch(OTHER, batch(), END)])
    assert OTHER not in table.batches
    assert table.pop_ms([OTHER], 0) == 7001


def test_resets_and_deletions_are_read_back() -> None:
    """What was in flight is forgotten; a batch is marked."""
    pops: list[PopRecord] = [popped(KEY, point([0]), 1, END), batch_record(OTHER, batch(), END)]
    table = read([*pops, PopReset(*KEY), PopReset(*OTHER)])
    assert not table.in_flight(KEY)
    assert table.batches[OTHER].was_reset
    for gone in (PopForgotten("billing", ""), PopForgotten("", "orders")):
        table = read([*pops, gone])
        assert (table.queues, table.batches, table.points) == ({}, {}, 0)
    assert len(read([*pops, PopForgotten("other", "")]).queues) == 1


def test_a_folded_journal_says_the_same() -> None:
    """Whatever happened before, also if the old records are read before the new ones."""
    draw = random.Random(54)
    for _ in range(40):
        table, records, cursor, pop_ms = PopTable(), list[PopRecord](), 0, 7000
        for _ in range(60):
            pop_ms += 1
            flying = list(table.queues[KEY].points) if KEY in table.queues else []
            act = draw.random()
            if act < 0.5 or not flying:
                offsets = list(range(cursor, cursor + draw.randint(1, 3)))
                cursor = offsets[-1] + 1
                made = point(offsets, pop_ms, 9000 + pop_ms)
                records.append(popped(KEY, made, cursor, END))
                table.take(KEY, made, cursor, 8000)
            elif act < 0.9:
                offset = draw.choice(flying)
                token = table.queues[KEY].points[offset].pop_ms
                records.append(PopDone(*KEY, token, [offset]))
                table.finish(KEY, token, [offset])
            else:
                made = point([draw.choice(flying)], pop_ms, 9000 + pop_ms)
                records.append(popped(KEY, made, cursor, END))
                table.take(KEY, made, cursor, 8000)
        folded = list(summary(table, END))
        wanted = state(table)
        assert state(read(records, now_ms=20_000)) == wanted
        assert state(read(folded, now_ms=20_000)) == wanted
        assert state(read([*records, *folded], now_ms=20_000)) == wanted
        assert read([*records, *folded]).points == table.points


def message(properties: bytes = b"TAGS\x01a\x02", **changes: object) -> Record:
    values: dict[str, object] = {
        "topic": "orders", "queue_id": 3, "queue_offset": 9, "position": 77, "body": b"paid",
        "properties": properties, "flag": 5, "sys_flag": 1, "born_at_ms": 1, "stored_at_ms": 2,
        **changes,
    }  # fmt: skip
    return Record(**values)  # type: ignore[arg-type]


def test_a_copy_for_the_retry_topic_is_rocketmq_s() -> None:
    """One redelivery more, the time of the first pop, the broker as its host of birth."""
    host = bytes(8)
    copy = revived(message(), group="billing", pop_ms=7000, store_host=host)
    assert (copy.topic, copy.queue_id, copy.redeliveries) == ("%RETRY%billing_orders", 0, 1)
    assert (copy.body, copy.flag, copy.sys_flag, copy.born_at_ms) == (b"paid", 5, 1, 1)
    assert (copy.born_host, copy.store_host) == (host, host)
    assert parse(copy.properties) == {"TAGS": "a", "1ST_POP_TIME": "7000"}
    again = revived(copy, group="billing", pop_ms=8000, store_host=host)
    assert (again.topic, again.redeliveries) == (copy.topic, 2)
    assert parse(again.properties)["1ST_POP_TIME"] == "7000"


def test_a_copy_has_no_marks_of_its_sender() -> None:
    """Or a start would take it for the sender's message, and a client for its receipt."""
    own = b"INORDER_PID\x01p\x02POP_CK\x01garbage\x02"
    copy = revived(message(own), group="g", pop_ms=1, store_host=bytes(8))
    assert "POP_CK" not in parse(copy.properties)


def test_properties_without_room_stay_as_they_are() -> None:
    """The message is worth more than its notes."""
    full = b"k\x01" + b"v" * (PROPERTIES_BYTES_MAX - 3) + b"\x02"
    copy = revived(message(full), group="g", pop_ms=1, store_host=bytes(8))
    assert copy.properties == full
    raw = encode(message(full, topic="%RETRY%g_orders"))
    assert as_popped(decode(raw), topic="orders", receipt="0 1 2 3 1 b 0 9") == raw


def test_a_retried_message_is_handed_out_under_its_topic() -> None:
    """With its receipt, at its place."""
    raw = encode(message(topic="%RETRY%g_orders", redeliveries=1))
    found = decode(as_popped(decode(raw), topic="orders", receipt="0 1 2 3 1 b 0 9"))
    assert (found.topic, found.redeliveries) == ("orders", 1)
    assert (found.queue_id, found.queue_offset, found.position) == (3, 9, 77)
    assert parse(found.properties) == {"TAGS": "a", "POP_CK": "0 1 2 3 1 b 0 9"}
