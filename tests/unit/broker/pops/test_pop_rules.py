"""What is popped, until when, and what an acknowledgement does."""

from __future__ import annotations

import random

import pytest

from inorder.broker.leases.rules import NOBODY, POPPED, Lease, LeaseTable, Owner, PastLease, Terms
from inorder.broker.leases.rules import Verdict as LeaseVerdict
from inorder.broker.pops.rules import (
    IDLE_MS,
    Batch,
    CheckPoint,
    PopTable,
    Room,
    Verdict,
    counts_of,
    judge,
)
from inorder.model import GroupQueue

KEY = GroupQueue("billing", "orders", 0)
OTHER = GroupQueue("billing", "orders", 1)
SECOND = 1000


def point(offsets: list[int], pop_ms: int = 7000, deadline_ms: int = 10_000) -> CheckPoint:
    return CheckPoint(pop_ms, 3000, deadline_ms, offsets[0], dict.fromkeys(offsets))


def take(
    table: PopTable, offsets: list[int], pop_ms: int = 7000, deadline_ms: int = 10_000,
    cursor: int | None = None,
) -> CheckPoint:  # fmt: skip
    made = point(offsets, pop_ms, deadline_ms)
    table.take(KEY, made, offsets[-1] + 1 if cursor is None else cursor, 0)
    return made


def batch(**changes: object) -> Batch:
    values: dict[str, object] = {
        "epoch": 5, "attempt": "a1", "pop_ms": 7000, "invisible_ms": 3000, "until_ms": 3000,
        "offsets": (4, 5, 6), **changes,
    }  # fmt: skip
    return Batch(**values)  # type: ignore[arg-type]


# -- without order ---------------------------------------------------------------------------------


def test_the_offset_is_the_lowest_message_in_flight() -> None:
    """Else it is where the next pop reads."""
    table = PopTable()
    take(table, [0, 1, 4])
    take(table, [5, 6], 7001)
    assert table.floor(KEY) == 0
    assert table.next_offset(KEY, 0) == 7
    table.finish(KEY, 7000, [1, 0])
    assert table.floor(KEY) == 4
    table.finish(KEY, 7001, [5, 6])
    assert table.floor(KEY) == 4
    table.finish(KEY, 7000, [4])
    assert (table.floor(KEY), table.in_flight(KEY), table.points) == (7, False, 0)


@pytest.mark.parametrize(
    ("pop_ms", "offsets", "known"),
    [
        (7000, [0], [0]),
        (7000, [2, 0, 2], [2, 0]),
        (6999, [0, 1, 2], []),
        (7000, [3], []),
        (7000, [], []),
    ],
)
def test_only_the_token_of_its_pop_finishes_a_message(
    pop_ms: int, offsets: list[int], known: list[int]
) -> None:
    """Another token, another queue and another offset finish nothing."""
    table = PopTable()
    take(table, [0, 1, 2])
    assert table.in_hand(KEY, pop_ms, offsets) == known
    assert table.in_hand(OTHER, pop_ms, offsets) == []
    table.finish(KEY, pop_ms, offsets)
    assert sorted(table.queues[KEY].points) == sorted({0, 1, 2} - set(known))


def test_tokens_grow_on_each_queue_whatever_the_wall_clock_says() -> None:
    """Also when the clock goes back, and after the queue was forgotten."""
    table = PopTable()
    assert table.pop_ms([KEY], 500) == 500
    take(table, [0], 500)
    assert table.pop_ms([KEY], 500) == 501
    assert table.pop_ms([KEY], 100) == 501
    assert table.pop_ms([OTHER], 100) == 100, "another queue has tokens of its own"
    assert table.pop_ms([OTHER, KEY], 100) == 501
    table.finish(KEY, 500, [0])
    table.forget_idle(IDLE_MS + 1)
    assert KEY not in table.queues
    assert table.pop_ms([KEY], 100) == 501
    table.put_batch(OTHER, batch(pop_ms=900))
    assert table.pop_ms([OTHER], 100) == 901
    table.end_batch(OTHER)
    assert table.pop_ms([OTHER], 100) == 901


def test_a_changed_message_is_in_flight_once_under_its_new_token() -> None:
    """The old token ends nothing any more, and the old deadline brings nothing."""
    table = PopTable()
    take(table, [0, 1], 7000, 10_000)
    take(table, [0], 7500, 20_000, cursor=2)
    assert table.in_hand(KEY, 7000, [0, 1]) == [1]
    assert table.in_hand(KEY, 7500, [0]) == [0]
    assert (table.points, table.floor(KEY)) == (2, 0)
    ((_, due),) = table.due(10_000, 100)
    assert list(due.left) == [1]
    table.finish(KEY, 7000, [1])
    assert table.due(19_999, 100) == []
    ((_, due),) = table.due(20_000, 100)
    assert list(due.left) == [0]
    take(table, [0], 7600, 30_000, cursor=2)
    assert table.points == 1, "the check point before it holds nothing any more"


def test_what_is_due_comes_in_the_order_of_its_deadlines_and_once() -> None:
    """A check point that could not be stored comes again when it was put off to."""
    table = PopTable()
    late, early = take(table, [0], 1, 900), take(table, [1, 2], 2, 800)
    assert table.next_deadline_ms() == 800
    assert table.due(799, 100) == []
    assert [one for _, one in table.due(1000, 100)] == [early, late]
    assert table.due(9000, 100) == []
    table.put_off(KEY, early, 1500)
    assert table.due(1499, 100) == []
    assert [one for _, one in table.due(1500, 100)] == [early]
    table.finish(KEY, 2, [1, 2])
    table.put_off(KEY, early, 1600)
    assert table.due(9000, 100) == [], "it was acknowledged meanwhile"


def test_a_turn_takes_so_many_messages_and_leaves_the_rest() -> None:
    """The bound is on messages; a check point is never divided."""
    table = PopTable()
    for number in range(5):
        take(table, [2 * number, 2 * number + 1], number, 100 + number)
    assert [len(table.due(1000, 3)) for _ in range(3)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("in_flight", "queue_max", "points_max", "room"),
    [(0, 4, 9, 4), (3, 4, 9, 1), (4, 4, 9, 0), (6, 4, 9, -2), (1, 4, 1, 0)],
)
def test_messages_in_flight_are_bounded(
    in_flight: int, queue_max: int, points_max: int, room: int
) -> None:
    """By messages on a queue, and by check points of all groups."""
    table = PopTable(Room(queue_max, points_max))
    if in_flight:
        take(table, list(range(in_flight)))
    assert table.has_room(KEY) <= max(room, 0) or room > 0
    assert table.has_room(KEY) == room


def test_a_reset_forgets_what_is_in_flight() -> None:
    """A late acknowledgement ends nothing; a batch keeps its queue, marked."""
    table = PopTable()
    before = take(table, [0, 1, 2])
    table.put_batch(KEY, batch())
    table.reset(KEY)
    assert table.in_hand(KEY, 7000, [0]) == []
    assert (table.points, table.in_flight(KEY), table.next_offset(KEY, 50)) == (0, False, 50)
    assert not before.left
    assert table.due(99_999, 9) == []
    assert table.batches[KEY].was_reset
    assert table.pop_ms([KEY], 0) == 7001, "tokens go on"


@pytest.mark.parametrize(
    ("group", "topic", "gone"),
    [("billing", "", True), ("", "orders", True), ("other", "", False), ("", "other", False)],
)
def test_a_deleted_group_or_topic_is_forgotten(group: str, topic: str, gone: bool) -> None:
    """Both what is in flight and batches."""
    table = PopTable()
    take(table, [0])
    table.put_batch(KEY, batch())
    table.forget(group=group, topic=topic)
    assert (KEY not in table.queues, KEY not in table.batches) == (gone, gone)
    assert table.points == (not gone)


def test_what_lies_beyond_the_log_is_forgotten() -> None:
    """New messages will be stored there; they must be found."""
    table = PopTable()
    take(table, [3, 4, 5])
    table.put_batch(OTHER, batch())
    assert list(table.clamp(lambda *_: 4)) == [KEY, OTHER]
    assert (sorted(table.queues[KEY].points), table.next_offset(KEY, 0)) == ([3], 4)
    assert OTHER not in table.batches
    assert list(table.clamp(lambda *_: 4)) == []


def test_random_pops_and_acks_against_a_model() -> None:
    """The floor and the counts are those of a plain set of offsets."""
    draw = random.Random(54)
    for _ in range(30):
        table, model, cursor, pop_ms = PopTable(), dict[int, int](), 0, 0
        for _ in range(120):
            act = draw.random()
            if act < 0.4:
                offsets = list(range(cursor, cursor + draw.randint(1, 4)))
                cursor, pop_ms = offsets[-1] + 1, pop_ms + 1
                take(table, offsets, pop_ms)
                model.update(dict.fromkeys(offsets, pop_ms))
            elif model and act < 0.8:
                some = draw.sample(sorted(model), draw.randint(1, len(model)))
                for offset in some:
                    table.finish(KEY, model.pop(offset), [offset])
            elif model:
                offset, pop_ms = draw.choice(sorted(model)), pop_ms + 1
                take(table, [offset], pop_ms, cursor=cursor)
                model[offset] = pop_ms
            if KEY in table.queues:
                assert table.floor(KEY) == min(model, default=cursor)
            assert table.messages == len(model)
            assert table.points == len(set(model.values()))


# -- in order --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acked", "unfinished", "following"),
    [
        ([], [4, 5, 6], 4),
        ([4], [5, 6], 5),
        ([5], [4, 6], 4),
        ([5, 6], [4], 4),
        ([6, 5, 4], [], 7),
    ],
)
def test_a_batch_commits_the_first_message_without_acknowledgement(
    acked: list[int], unfinished: list[int], following: int
) -> None:
    """Acknowledgements in its middle move nothing."""
    found = batch()
    for offset in acked:
        found = found.with_ack(offset)
    assert (found.unfinished, found.next_offset, found.acks) == (unfinished, following, len(acked))
    assert (found.blocked_until_ms is None) == (not unfinished)


def test_a_queue_is_blocked_until_the_last_message_is_visible() -> None:
    """A changed time counts instead of the batch's; an acknowledged message blocks nothing."""
    found = batch().with_time(5, 9000)
    assert found.blocked_until_ms == 9000
    assert found.with_time(5, 100).blocked_until_ms == 3000
    assert found.with_ack(5).blocked_until_ms == 3000
    early = found.with_time(5, 100).with_ack(4).with_ack(6)
    assert early.blocked_until_ms == 100


def lease(owner: Owner = POPPED, epoch: int = 5) -> Lease:
    return Lease(owner, epoch, Terms(3000, 3000), 0, 0, 3000)


def past(owner: Owner = POPPED, epoch: int = 5, *, released: bool = False) -> PastLease:
    return PastLease(owner, epoch, Terms(3000, 3000), released)


RESET = batch(was_reset=True)
STOCK = Owner("stock")


@pytest.mark.parametrize(
    ("found", "now", "before", "asked", "verdict"),
    [
        (batch(), lease(), None, (4, 7000, False), Verdict.TAKEN),
        (batch(), lease(), None, (6, 7000, False), Verdict.TAKEN),
        (batch(), lease(), None, (9, 7000, False), Verdict.UNKNOWN),
        (batch(), lease(), None, (3, 7000, False), Verdict.UNKNOWN),
        (batch().with_ack(5), lease(), None, (5, 7000, False), Verdict.DONE),
        (batch().with_ack(5), lease(STOCK), None, (5, 7000, False), Verdict.DONE),
        (batch(), lease(), None, (4, 6999, False), Verdict.STALE),
        (batch(), lease(), None, (3, 6999, False), Verdict.STALE),
        (batch(), lease(epoch=6), None, (4, 7000, False), Verdict.STALE),
        (batch(), lease(STOCK), None, (4, 7000, False), Verdict.STALE),
        (batch(), lease(NOBODY, 6), None, (4, 7000, False), Verdict.STALE),
        (batch(), None, past(), (4, 7000, False), Verdict.TAKEN),
        (batch(), None, past(), (4, 7000, True), Verdict.STALE),
        (batch(), None, past(epoch=6), (4, 7000, False), Verdict.STALE),
        (batch(), None, past(STOCK), (4, 7000, False), Verdict.STALE),
        (batch(), None, past(released=True), (4, 7000, False), Verdict.STALE),
        (batch(), None, None, (4, 7000, False), Verdict.STALE),
        (None, None, None, (4, 7000, False), Verdict.STALE),
        (None, lease(), None, (4, 7000, False), Verdict.STALE),
        (None, None, None, (3, 7000, False), Verdict.DONE),
        (None, None, None, (3, 6999, False), Verdict.STALE),
        (RESET, lease(epoch=6), None, (4, 7000, False), Verdict.BLOCKS),
        (RESET, lease(STOCK), None, (4, 7000, False), Verdict.STALE),
        (RESET, None, past(), (4, 7000, False), Verdict.STALE),
        (RESET, None, None, (3, 7000, False), Verdict.UNKNOWN),
    ],
)
def test_who_may_acknowledge_in_order(
    found: Batch | None, now: Lease | None, before: PastLease | None,
    asked: tuple[int, int, bool], verdict: Verdict,
) -> None:  # fmt: skip
    """The batch that has the queue, or had it last; never an older one. The offset is 4."""
    offset, pop_ms, in_flight = asked
    said = judge(
        found, now, before, pop_ms=pop_ms, offset=offset, committed=4, ended_ms=7000,
        in_flight=in_flight,
    )  # fmt: skip
    assert said is verdict


@pytest.mark.parametrize(
    ("before", "attempt", "counts"),
    [
        (None, "a2", ()),
        (batch(), "a2", ((5, 1), (6, 1))),
        (batch(counts=((6, 2),)), "a2", ((5, 1), (6, 3))),
        (batch(counts=((6, 2),)), "a1", ((6, 2),)),
        (batch(attempt=""), "", ((5, 1), (6, 1))),
        (batch(was_reset=True), "a2", ()),
    ],
)
def test_messages_are_counted_that_were_handed_out_before(
    before: Batch | None, attempt: str, counts: tuple[tuple[int, int], ...]
) -> None:
    """The same attempt is no further one; after a reset all begins anew."""
    assert counts_of(before, attempt, [5, 6, 7]) == counts


# -- pops and leases -------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [Owner("anne", "i1"), STOCK])
def test_a_queue_is_popped_or_leased_never_both(owner: Owner) -> None:
    """A pop in order is an owner like others; messages in flight keep all owners away."""
    table = PopTable()
    leases = LeaseTable(is_popped=table.in_flight)

    def ask(who: Owner) -> LeaseVerdict:
        decision = leases.decide(KEY, who, 0, terms=Terms(3000, 3000))
        leases.apply(decision, 0)
        return decision.verdict

    assert ask(POPPED) is LeaseVerdict.GRANT
    assert ask(owner) is LeaseVerdict.REFUSE
    leases.release(KEY)
    assert ask(owner) is LeaseVerdict.GRANT
    assert ask(POPPED) is LeaseVerdict.REFUSE
    leases.release(KEY)
    take(table, [0])
    refused = leases.decide(KEY, owner, 0)
    assert (refused.verdict, refused.holder) == (LeaseVerdict.REFUSE, POPPED)
    table.finish(KEY, 7000, [0])
    assert ask(owner) is LeaseVerdict.GRANT


def test_an_expired_owner_does_not_resume_beside_messages_in_flight() -> None:
    """They were popped after its lease had ended."""
    table = PopTable()
    leases = LeaseTable(is_popped=table.in_flight)
    anne = Owner("anne", "i1")
    granted = leases.decide(KEY, anne, 0, terms=Terms(100, 100))
    leases.apply(granted, 0)
    assert leases.expire(200) == [KEY]
    take(table, [0])
    again = leases.decide(KEY, anne, 200, epoch=granted.epoch)
    assert again.verdict is LeaseVerdict.REFUSE
