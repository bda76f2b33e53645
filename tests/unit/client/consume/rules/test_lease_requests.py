"""Leases in the client: how long one is trusted, what an answer means, when it ends (A10, O25)."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules import leases, outcomes
from inorder.client.consume.rules.assignment import to_renew
from inorder.client.consume.rules.leases import Acquired, Grant, LeaseState, RevokeReason, Terms
from inorder.client.consume.rules.pulls import PullNow, before_pull
from inorder.client.consume.rules.queue import Limits, QueueProgress
from inorder.model import TopicQueue
from inorder.wire.requests.leases import (
    QUEUES_MAX,
    LeaseAnswer,
    LeaseGrant,
    LeaseRefusal,
    QueueWish,
)

Q0, Q1 = (TopicQueue("orders", "broker-a", index) for index in range(2))
TERMS = Terms(5000, 1000)


def leased(queue: TopicQueue = Q0, *, sent_ms: int = 0, epoch: int = 7) -> LeaseState:
    return LeaseState(queue, now_ms=sent_ms, lock_sent_ms=sent_ms, epoch=epoch, terms=TERMS)


def granted(epoch: int = 7, queue: int = 0) -> LeaseAnswer:
    return LeaseAnswer([LeaseGrant("orders", queue, epoch)], [])


def refused(queue: int = 0, waits_ms: int = 0) -> LeaseAnswer:
    return LeaseAnswer([], [LeaseRefusal("orders", queue, "other", waits_ms)])


@pytest.mark.parametrize(
    ("lease_ms", "grace_ms", "trusted_ms", "renew_ms"),
    [
        (5000, 1000, 1000, 333),
        (5000, 5000, 5000, 1666),
        (500, 100, 100, 33),
        (120_000, 60_000, 60_000, 20_000),
    ],
)
def test_a_lease_is_renewed_three_times_while_it_is_trusted(
    lease_ms: int, grace_ms: int, trusted_ms: int, renew_ms: int
) -> None:
    """A10: min(lease, grace), for the broker may have seen our connection close."""
    terms = Terms(lease_ms, grace_ms)
    assert (terms.trusted_ms, terms.renew_ms) == (trusted_ms, renew_ms)


@pytest.mark.parametrize(("age_ms", "valid"), [(0, True), (999, True), (1000, False)])
def test_a10_a_handler_starts_within_the_grace_of_the_last_request(
    age_ms: int, valid: bool
) -> None:
    """Counted from its sending; times are cut to milliseconds, so 999 is the last that is sure."""
    lease = leased(sent_ms=400)
    assert lease.is_trusted(400 + age_ms) is valid
    before = outcomes.before_batch(lease, now_ms=400 + age_ms, began_ms=400, needs_lock=True)
    assert before == (outcomes.RUN if valid else outcomes.HOLD)


def test_an_unconfirmed_lease_is_not_dropped() -> None:
    """It waits: the epoch tells whether another consumer had the queue. Pulls go on."""
    lease = leased()
    assert not lease.check_trust(60_000)
    assert lease.dropped is None
    step = before_pull(
        QueueProgress(0), lease, limits=Limits(), now_ms=60_000, ordered=True, needs_lock=True
    )
    assert step == PullNow(0)


def test_the_same_epoch_confirms_the_lease_however_late() -> None:
    """Nobody else had the queue: what is here is still what comes next."""
    owned = {Q0: leased()}
    renewed = leases.apply_renewal(
        owned, "broker-a", [QueueWish("orders", 0, 7)], granted(), sent_ms=60_000, now_ms=60_010
    )
    assert renewed.revived == (Q0,)
    assert renewed.lost == ()
    assert owned[Q0].is_trusted(60_010)
    assert owned[Q0].dropped is None


def test_an_answer_counts_from_when_its_request_was_sent() -> None:
    """A10: an answer that took 2 s to come says nothing about now."""
    lease = leased()
    assert not leases.confirm(lease, 1500, 3500)
    assert not lease.is_trusted(3500)
    assert lease.lock_sent_ms == 1500


@pytest.mark.parametrize("answer", [refused(), granted(epoch=8), LeaseAnswer([], [])])
def test_o25_another_epoch_or_a_refusal_ends_the_ownership(answer: LeaseAnswer) -> None:
    """Another consumer had the queue, or it was reset: others may have handled the cache."""
    owned = {Q0: leased()}
    renewed = leases.apply_renewal(
        owned, "broker-a", [QueueWish("orders", 0, 7)], answer, sent_ms=100, now_ms=110
    )
    assert renewed.lost == (Q0,)
    assert owned[Q0].dropped is RevokeReason.LOCK_LOST
    assert not owned[Q0].may_commit(110, needs_lock=True)


def test_a11_a_queue_whose_offset_was_set_is_kept_while_its_handlers_run() -> None:
    """It is begun anew, by nobody else before they ended; then it is given back. One that is
    another's is not kept."""
    owned = {Q0: leased(), Q1: leased(Q1, epoch=8)}
    for lease in owned.values():
        lease.enter()
    (wishes,) = leases.renewal_wishes(owned, "broker-a")
    leases.apply_renewal(owned, "broker-a", wishes, granted(epoch=9), sent_ms=100, now_ms=110)
    assert [owned[queue].dropped for queue in (Q0, Q1)] == [RevokeReason.LOCK_LOST] * 2
    assert [owned[queue].reserved_epoch for queue in (Q0, Q1)] == [9, 0]
    (wishes,) = leases.renewal_wishes(owned, "broker-a")
    assert wishes == [QueueWish("orders", 0, 9), QueueWish("orders", 1, 8)]
    renewed = leases.apply_renewal(
        owned, "broker-a", wishes, granted(epoch=9), sent_ms=4000, now_ms=4010
    )
    assert renewed == leases.Renewed((), (), ())
    assert leases.outlived(owned, 5001) == (Q1,)
    assert not owned[Q0].may_commit(4010, needs_lock=True)
    owned[Q0].leave()
    assert list(leases.renewal_wishes(owned, "broker-a")) == [[QueueWish("orders", 1, 8)]]


def test_an_answer_about_an_earlier_epoch_is_no_news() -> None:
    """The queue was given up and taken again while the renewal was under way."""
    owned = {Q0: leased(epoch=9)}
    wish = [QueueWish("orders", 0, 7)]
    renewed = leases.apply_renewal(owned, "broker-a", wish, refused(), sent_ms=0, now_ms=1)
    assert renewed == leases.Renewed((), (), ())
    assert owned[Q0].dropped is None


def test_a_queue_on_its_way_back_to_the_broker_is_not_lost_by_a_refusal() -> None:
    """The release itself is answered; a renewal behind it is refused, of course."""
    owned = {Q0: leased()}
    owned[Q0].drop(RevokeReason.MOVED)
    wish = [QueueWish("orders", 0, 7)]
    leases.apply_renewal(owned, "broker-a", wish, refused(), sent_ms=0, now_ms=1)
    assert owned[Q0].dropped is RevokeReason.MOVED


def test_o12_under_a_lease_the_broker_decides_what_counts() -> None:
    """A result is sent under an unconfirmed or dropped lease too, but not under a lost one."""
    lease = leased()
    assert lease.may_commit(60_000, needs_lock=True)
    lease.drop(RevokeReason.MOVED)
    assert lease.may_commit(60_000, needs_lock=True)
    lease.lose()
    assert not lease.may_commit(60_000, needs_lock=True)


def test_o8_a_lease_is_renewed_while_a_handler_of_a_dropped_queue_runs() -> None:
    """And left out once it waits for its release; RocketMQ's renewal knows nothing of it."""
    owned = {Q0: leased(), Q1: leased(Q1, epoch=8)}
    owned[Q0].enter()
    owned[Q0].drop(RevokeReason.MOVED)
    assert list(leases.renewal_wishes(owned, "broker-a")) == [
        [QueueWish("orders", 0, 7), QueueWish("orders", 1, 8)]
    ]
    owned[Q0].leave()
    assert list(leases.renewal_wishes(owned, "broker-a")) == [[QueueWish("orders", 1, 8)]]
    assert to_renew(owned) == {}


def test_a_member_without_queues_sends_a_sign_of_life() -> None:
    """An empty renewal, so that one that is frozen is told from one that has nothing to do."""
    assert list(leases.renewal_wishes({}, "broker-a")) == [[]]


def test_many_queues_are_asked_for_in_parts() -> None:
    """No request is larger than a broker reads."""
    queues = [TopicQueue("orders", "broker-a", index) for index in range(QUEUES_MAX + 1)]
    assert [len(part) for part in leases.take_wishes(queues, 1)] == [QUEUES_MAX, 1]


@pytest.mark.parametrize(("waits_ms", "again_ms"), [(0, 20), (10, 20), (800, 802), (5000, 5002)])
def test_a_refused_queue_is_asked_for_when_its_lease_ends(waits_ms: int, again_ms: int) -> None:
    """P6: not by a slow timer; and a broker that says 0 is not asked in a loop."""
    assert leases.ask_again_ms(waits_ms) == again_ms
    assert leases.acquired("broker-a", refused(waits_ms=waits_ms), 0).again_ms == again_ms


def test_a_grant_says_where_to_begin() -> None:
    """Offset and map come with it: no request in between."""
    answer = LeaseAnswer([LeaseGrant("orders", 0, 9, True, 100, "100:2c", parked=3)], [])
    grant = leases.acquired("broker-a", answer, 5).grants[Q0]
    assert (grant.sent_ms, grant.epoch, grant.parked) == (5, 9, 3)
    assert (grant.stored.offset, grant.stored.finished) == (100, "100:2c")


def test_the_answers_of_brokers_are_put_together() -> None:
    """The sooner one says when to ask again."""
    first, second = Acquired({Q0: Grant(1)}, 500), Acquired({Q1: Grant(2)}, 20)
    assert first.and_also(second) == Acquired({Q0: Grant(1), Q1: Grant(2)}, 20)
    assert first.and_also(Acquired({})).again_ms == 500


@pytest.mark.parametrize(("now_ms", "over"), [(4999, ()), (5000, (Q0,))])
def test_o7_a_handler_outlives_its_lease(now_ms: int, over: tuple[TopicQueue, ...]) -> None:
    """5 s after the last confirmed request another consumer may run: the handler is cancelled."""
    owned = {Q0: leased(), Q1: leased(Q1)}
    owned[Q0].enter()
    assert leases.outlived(owned, now_ms) == over


def test_the_end_of_a_lease_is_not_slept_through() -> None:
    """The next look comes with the next renewal, or when a lease under a handler ends."""
    owned = {Q0: leased()}
    assert leases.next_check_ms(owned, now_ms=4900, renew_ms=333) == 333
    owned[Q0].enter()
    assert leases.next_check_ms(owned, now_ms=4900, renew_ms=333) == 100
    assert leases.next_check_ms(owned, now_ms=5200, renew_ms=333) == 333


def test_a_lease_has_an_epoch_and_terms() -> None:
    """Our own mistake is caught."""
    with pytest.raises(AssertionError):
        LeaseState(Q0, now_ms=0, lock_sent_ms=0, epoch=3)
