"""Leases: one owner at a time, epochs that only grow, grace, resume after a start."""

from __future__ import annotations

import pytest

from inorder.broker.leases.rules import (
    COUNTER_BITS,
    NOBODY,
    PAST_MAX,
    ROCKETMQ_RESTART_MS,
    Decision,
    LeaseTable,
    Owner,
    PastLease,
    Terms,
    Verdict,
    deadline_after_start,
)
from inorder.model import GroupQueue

ANNE = Owner("anne", "i1")
BOB = Owner("bob", "i2")
STOCK = Owner("stock")
KEY = GroupQueue("billing", "orders", 0)
OTHER = GroupQueue("billing", "orders", 1)
TERMS = Terms(5000, 1000)


def take(
    table: LeaseTable, owner: Owner, now_ms: int, *, epoch: int = 0, key: GroupQueue = KEY,
    connection: int | None = 1, terms: Terms = TERMS,
) -> Decision:  # fmt: skip
    """Ask for a queue and do what was decided."""
    wanted = None if owner.is_rocketmq else terms
    decision = table.decide(key, owner, now_ms, epoch=epoch, terms=wanted)
    table.apply(decision, now_ms, connection=connection)
    return decision


def said(decision: Decision) -> tuple[Verdict, int]:
    return decision.verdict, decision.epoch


def test_one_owner_at_a_time() -> None:
    """A queue that is held is refused to others until it has expired."""
    table = LeaseTable()
    assert said(take(table, ANNE, 0)) == (Verdict.GRANT, 1)
    refused = take(table, BOB, 4999, connection=2)
    assert (refused.verdict, refused.holder, refused.until_ms) == (Verdict.REFUSE, ANNE, 5000)
    assert table.waiting(KEY) == {BOB: 2}
    assert take(table, BOB, 9000).verdict is Verdict.REFUSE, "late, and not looked at yet"
    assert table.expire(9000) == [KEY]
    assert said(take(table, BOB, 9000)) == (Verdict.GRANT, 2)
    assert table.waiting(KEY) == {}


def test_to_decide_changes_nothing() -> None:
    """What the disk does not take has not happened."""
    table = LeaseTable()
    take(table, ANNE, 0)
    for owner, epoch in ((ANNE, 0), (ANNE, 1), (BOB, 0), (BOB, 7)):
        table.decide(KEY, owner, 100, epoch=epoch, terms=TERMS)
    lease = table.get(KEY)
    assert lease is not None
    assert (lease.owner, lease.epoch, lease.expires_ms) == (ANNE, 1, 5000)
    assert table.waiting(KEY) == {}


def test_a_renewal_keeps_the_epoch() -> None:
    """The owner goes on under the epoch that it has; the journal knows that already."""
    table = LeaseTable()
    take(table, ANNE, 0)
    renewed = take(table, ANNE, 4000, epoch=1)
    assert (said(renewed), renewed.is_new, renewed.is_fresh) == ((Verdict.RENEW, 1), False, False)
    assert take(table, BOB, 8999).until_ms == 9000
    longer = take(table, ANNE, 9000, epoch=1, terms=Terms(9000, 1000))
    assert longer.is_new, "after a restart it would be waited for too short a time"


def test_who_takes_its_own_queue_anew_begins_anew() -> None:
    """It has forgotten its state, and commits of that state may be under way."""
    table = LeaseTable()
    take(table, ANNE, 0)
    again = take(table, ANNE, 10)
    assert (said(again), again.is_fresh) == ((Verdict.GRANT, 2), True)
    assert not table.is_current(KEY, 1)


def test_an_old_copy_of_a_request_is_superseded() -> None:
    """A request that was sent before the last one of the owner must not take the queue anew."""
    table = LeaseTable()
    assert not table.is_superseded(KEY, ANNE, epoch=0, number=3), "the queue is free"
    take(table, ANNE, 0)
    assert not table.is_superseded(KEY, ANNE, epoch=0, number=0), "no request has a number yet"
    table.note_request(KEY, ANNE, 5)
    table.note_request(KEY, ANNE, 4)
    table.note_request(KEY, BOB, 9)
    found = [table.is_superseded(KEY, ANNE, epoch=0, number=number) for number in (4, 5, 6)]
    assert found == [True, True, False]
    assert not table.is_superseded(KEY, ANNE, epoch=1, number=4), "the epoch says how old it is"
    assert not table.is_superseded(KEY, BOB, epoch=0, number=4)


def test_another_instance_of_the_same_client_is_a_new_owner() -> None:
    """A9: two processes with one client id do not share a lease."""
    table = LeaseTable()
    take(table, ANNE, 0)
    twin = Owner("anne", "i9")
    assert take(table, twin, 1).verdict is Verdict.REFUSE
    assert take(table, twin, 1, epoch=1).verdict is Verdict.REFUSE


def test_a_stale_epoch_renews_nothing() -> None:
    """After a new owner the old epoch is refused, whoever has the queue by then."""
    table = LeaseTable()
    take(table, ANNE, 0)
    table.expire(5000)
    take(table, BOB, 5000)
    assert take(table, ANNE, 5001, epoch=1).holder == BOB
    assert table.release(KEY) == {ANNE: 1}
    assert take(table, ANNE, 5002, epoch=1).verdict is Verdict.REFUSE
    assert said(take(table, ANNE, 5003)) == (Verdict.GRANT, 3)


def test_who_comes_back_before_anybody_else_goes_on() -> None:
    """Its lease ran out, nobody had the queue: the same epoch, and the journal is told."""
    table = LeaseTable()
    take(table, ANNE, 0)
    table.expire(60_000)
    assert take(table, BOB, 60_001, epoch=1).verdict is Verdict.REFUSE
    back = take(table, ANNE, 60_002, epoch=1)
    assert (said(back), back.is_new, back.is_fresh) == ((Verdict.RESUME, 1), True, False)


def test_nobody_goes_on_after_a_release_or_a_reset() -> None:
    """What was given back is not taken up again, nor is what an operator has set elsewhere."""
    table = LeaseTable()
    take(table, ANNE, 0)
    table.release(KEY)
    assert take(table, ANNE, 1, epoch=1).verdict is Verdict.REFUSE
    take(table, ANNE, 2)
    table.expire(60_000)
    table.forget_past(KEY)
    assert take(table, ANNE, 60_001, epoch=2).verdict is Verdict.REFUSE


def test_a_reset_makes_what_is_under_way_stale() -> None:
    """A11: the owner learns of the new epoch with its next renewal, and begins anew."""
    table = LeaseTable()
    take(table, ANNE, 0)
    table.raise_epoch(KEY, table.take_epoch())
    assert not table.is_current(KEY, 1)
    lease = table.get(KEY)
    assert lease is not None
    for _ in range(2):  # also if the first answer is lost
        told = take(table, ANNE, 1, epoch=1)
        assert (said(told), told.is_fresh, lease.was_reset) == ((Verdict.RESET, 2), True, True)
    assert take(table, ANNE, 1, epoch=2).verdict is Verdict.RENEW
    assert not lease.was_reset


def test_a_closed_connection_leaves_the_grace() -> None:
    """The lease ends after the grace that the client stated, unless it renews."""
    table = LeaseTable()
    take(table, ANNE, 0)
    assert table.connection_lost(1, 100)
    assert not table.connection_lost(1, 100)
    assert table.expire(1099) == []
    take(table, ANNE, 1099, epoch=1, connection=2)
    assert table.expire(6098) == []
    table.connection_lost(2, 6098)
    assert table.expire(6099) == [KEY]


def test_a_late_close_of_an_old_connection_changes_nothing() -> None:
    """A10: only the connection that renewed last shortens a lease."""
    table = LeaseTable()
    take(table, ANNE, 0, connection=1)
    take(table, ANNE, 1000, epoch=1, connection=2)
    assert not table.connection_lost(1, 1100)
    assert table.expire(5999) == []


def test_a_pull_renews_too() -> None:
    """And its connection is the one that counts then."""
    table = LeaseTable()
    take(table, ANNE, 0, connection=1)
    table.renew(KEY, 4000, 2)
    table.connection_lost(1, 4001)
    assert table.expire(8999) == []
    assert table.expire(9000) == [KEY]


def test_a_connection_that_we_do_not_read_keeps_its_leases() -> None:
    """A10: renewals may wait in a connection whose reading we paused ourselves."""
    table = LeaseTable()
    take(table, ANNE, 0, connection=7)
    assert table.expire(6000, unread={7}) == []
    assert table.next_deadline_ms() == 6010
    assert table.expire(6010) == [KEY]


def test_an_operator_takes_a_queue_away() -> None:
    """At once from its owner; for others when the owner has ceased to start handlers."""
    table = LeaseTable()
    take(table, ANNE, 0)
    take(table, ANNE, 2000, epoch=1)
    assert table.force_release(KEY, table.take_epoch(), 2500) == 3000
    assert take(table, ANNE, 2501, epoch=1).holder == NOBODY
    assert take(table, BOB, 2999).verdict is Verdict.REFUSE
    assert table.expire(3000) == [KEY]
    assert table.past(KEY) is None
    assert said(take(table, BOB, 3000)) == (Verdict.GRANT, 3)


def restored(before: LeaseTable, now_ms: int, *, same_boot: bool = True) -> LeaseTable:
    after = LeaseTable(start_number=4)
    leases = [(key, before.get(key)) for key in before.keys()]  # noqa: SIM118 - no mapping
    known = [(k, PastLease(one.owner, one.epoch, one.terms, False)) for k, one in leases if one]
    after.restore(known, now_ms, same_boot=same_boot)
    return after


def test_after_a_start_the_journalled_owner_resumes() -> None:
    """A9: under its epoch; others wait for the whole lease it states; epochs still grow."""
    before = LeaseTable(start_number=3)
    take(before, ANNE, 0, terms=Terms(9000, 1000))
    take(before, STOCK, 0, key=OTHER)
    after = restored(before, 100)
    old = (3 << COUNTER_BITS) + 1
    assert take(after, BOB, 5099).until_ms == 9100
    assert said(take(after, ANNE, 5099, epoch=old)) == (Verdict.RENEW, old)
    assert take(after, BOB, 100, key=OTHER).until_ms == 100 + ROCKETMQ_RESTART_MS
    assert after.expire(100 + ROCKETMQ_RESTART_MS) == [KEY, OTHER]
    assert take(after, BOB, 50_000, key=OTHER).epoch == (4 << COUNTER_BITS) + 1


def test_after_a_power_cut_nobody_resumes() -> None:
    """A9: the journal may have lost a later grant. What it knows is waited for."""
    before = LeaseTable(start_number=3)
    take(before, ANNE, 0)
    after = restored(before, 100, same_boot=False)
    refused = take(after, ANNE, 101, epoch=(3 << COUNTER_BITS) + 1)
    assert (refused.verdict, refused.holder) == (Verdict.REFUSE, NOBODY)
    assert not after.is_current(KEY, (3 << COUNTER_BITS) + 1), "nor does a pull go on"
    assert after.expire(5100) == [KEY]
    assert take(after, ANNE, 5101, epoch=(3 << COUNTER_BITS) + 1).verdict is Verdict.REFUSE
    assert take(after, ANNE, 5101).epoch == (4 << COUNTER_BITS) + 2


def test_nothing_is_granted_while_the_past_is_unknown() -> None:
    """After a start that cannot know the leases new owners wait for the longest there was."""
    table = LeaseTable()
    table.closed_until_ms = 1000
    assert take(table, ANNE, 999).until_ms == 1000
    assert take(table, ANNE, 1000).verdict is Verdict.GRANT


def test_the_table_is_bounded() -> None:
    """At the limit a new lease is refused; what is held can be renewed."""
    table = LeaseTable(leases_max=1)
    take(table, ANNE, 0)
    assert take(table, ANNE, 0, key=OTHER).verdict is Verdict.FULL
    assert take(table, ANNE, 0, epoch=1).verdict is Verdict.RENEW
    assert len(table) == 1


def test_what_is_remembered_of_the_past_is_bounded() -> None:
    """The oldest is forgotten: who comes back for it begins anew."""
    table = LeaseTable()
    for index in range(PAST_MAX + 1):
        key = GroupQueue("billing", "orders", index)
        table._remember(key, PastLease(ANNE, index, TERMS, released=False))
    assert table.past(KEY) is None
    assert table.past(OTHER) is not None


def test_a_group_or_topic_that_is_gone_leaves_nothing() -> None:
    """Neither leases nor claims nor who waits."""
    table = LeaseTable()
    take(table, ANNE, 0)
    take(table, BOB, 0)
    take(table, ANNE, 0, key=OTHER)
    assert table.forget(topic="elsewhere") == []
    assert table.forget(group="billing") == [KEY, OTHER]
    assert (len(table), table.past(KEY), table.waiting(KEY)) == (0, None, {})


def test_a_renewed_lease_is_not_due() -> None:
    """Its old deadline is put off without looking at the others."""
    table = LeaseTable()
    assert not table.is_due(99_000)
    take(table, ANNE, 0)
    take(table, ANNE, 3000, epoch=1)
    assert not table.is_due(5000)
    assert table.next_deadline_ms() == 8000
    assert table.is_due(8000)
    assert table.expire(8000) == [KEY]
    assert not table.is_due(8000)


@pytest.mark.parametrize(
    ("stated_ms", "same_boot", "until_ms"),
    [
        (0, True, 15_000),
        (12_000, True, 12_000),
        (9_000, True, 9_000),
        (16_000, True, 15_000),
        (12_000, False, 15_000),
        (0, False, 15_000),
    ],
)
def test_a15_what_is_left_of_a_lease_after_a_start(
    stated_ms: int, same_boot: bool, until_ms: int
) -> None:
    """At 10 s, of a lease of 5 s: what an earlier start of this boot has stated, and never more."""
    found = deadline_after_start(stated_ms, 5000, 10_000, same_boot=same_boot)
    assert found == until_ms


def test_a15_the_first_renewal_after_a_start_is_written_down() -> None:
    """Later ones are not; what comes without one is to be told apart by the next start."""
    before = LeaseTable(start_number=3)
    take(before, ANNE, 0)
    epoch = before.get(KEY).epoch  # type: ignore[union-attr]
    after = restored(before, 100)
    lease = after.get(KEY)
    assert lease is not None
    assert lease.deadline_ms == lease.expires_ms == 100 + TERMS.lease_ms
    assert take(after, BOB, 200).verdict is Verdict.REFUSE
    assert lease.deadline_ms, "that was no renewal"
    assert take(after, ANNE, 300, epoch=epoch).is_new
    assert lease.deadline_ms == 0
    assert not take(after, ANNE, 400, epoch=epoch).is_new
