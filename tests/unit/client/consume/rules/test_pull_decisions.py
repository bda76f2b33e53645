"""The pull loop: when a queue is pulled, what is said, and what each answer means."""

from __future__ import annotations

import pytest

from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.pulls import (
    FORGET,
    PLENTY_MS,
    FixOffset,
    PullFields,
    PullLater,
    PullNow,
    PullStatus,
    Suggested,
    after_failed_pull,
    after_pull,
    before_pull,
    for_handlers,
    pull_count,
    pull_fields,
    restore_topic,
    turn_in_ms,
    wanted,
)
from inorder.client.consume.rules.queue import FlowControl, Limits, QueueProgress
from inorder.model import Subscription, TopicQueue
from inorder.wire.requests.pulls import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    parse_subscription,
)
from tests.unit.client.consume.consuming import QUEUE, filled, locked, message, offsets

FOUND, NOTHING_NEW, NOTHING_MATCHED, OFFSET_MOVED = PullStatus


def ask(
    progress: QueueProgress,
    lease: LeaseState,
    *,
    now_ms: int = 0,
    ordered: bool = True,
    **said: bool,
) -> object:
    return before_pull(
        progress,
        lease,
        limits=Limits(messages_max=5),
        now_ms=now_ms,
        ordered=ordered,
        needs_lock=ordered,
        **said,
    )


# Before.


@pytest.mark.parametrize(
    ("cached", "limits", "ordered", "most", "count"),
    [
        (0, Limits(), True, 500, 500),
        (0, Limits(), True, 8, 8),
        (600, Limits(), True, 500, 400),
        (999, Limits(), True, 500, 32),
        (1000, Limits(), True, 8, 8),
        (0, Limits(span_max=100), True, 500, 500),
        (0, Limits(span_max=100), False, 500, 100),
        (60, Limits(span_max=100), False, 500, 41),
        (90, Limits(span_max=100), False, 500, 32),
    ],
)
def test_a_pull_asks_for_few_messages_above_the_limits(
    cached: int, limits: Limits, ordered: bool, most: int, count: int
) -> None:
    """At most 32 come on top of the cached ones, as with RocketMQ's pulls."""
    progress = filled(0, cached - 1)
    assert pull_count(progress, limits, ordered=ordered, most=most) == count


def test_a_pull_begins_where_the_last_one_ended() -> None:
    """Not where the handlers are."""
    assert ask(filled(3, 6), locked()) == PullNow(7)


def test_a_dropped_queue_is_pulled_no_more() -> None:
    """Whatever the reason; it does not count as an attempt."""
    lease = locked()
    lease.drop(RevokeReason.MOVED)
    assert ask(QueueProgress(0), lease, now_ms=99) == FORGET
    assert lease.pulled_at_ms == 0


@pytest.mark.parametrize(
    ("said", "delay_ms"),
    [({"running": False}, 1000), ({"paused": True}, 1000), ({}, 50)],
)
def test_a_queue_waits_for_its_reason(said: dict[str, bool], delay_ms: int) -> None:
    """1 s when stopped or paused, 50 ms when it is full; each is an attempt all the same."""
    lease = locked()
    found = ask(filled(0, 5), lease, now_ms=77, **said)
    assert isinstance(found, PullLater)
    assert found.ms == delay_ms
    assert lease.pulled_at_ms == 77


def test_flow_control_names_its_reason() -> None:
    """For the log."""
    assert ask(filled(0, 5), locked()) == PullLater(50, FlowControl.COUNT.value)


def test_an_ordered_queue_is_not_pulled_without_its_lock() -> None:
    """The lock expired: the queue is dropped, and begins again with a new lock and offset."""
    lease = locked()
    assert ask(QueueProgress(0), lease, now_ms=30_001) == FORGET
    assert lease.dropped is RevokeReason.LOCK_EXPIRED


def test_a_concurrent_queue_needs_no_lock() -> None:
    """Nor does it ever expire."""
    lease = LeaseState(QUEUE, now_ms=0)
    assert ask(QueueProgress(4), lease, now_ms=10**9, ordered=False) == PullNow(4)


# After.


def test_found_messages_wait_for_a_handler_and_the_next_pull_follows_at_once() -> None:
    """FOUND."""
    progress = QueueProgress(0)
    found = after_pull(progress, locked(), FOUND, [message(0), message(1)], 2)
    assert (found.pull, found.handle, found.passed) == (PullNow(2), True, False)


def test_a_pull_interval_is_kept_after_messages_only() -> None:
    """FOUND with something to handle; an empty answer does not wait."""
    found = after_pull(QueueProgress(0), locked(), FOUND, [message(0)], 1, interval_ms=250)
    assert found.pull == PullLater(250, "the pull interval")
    found = after_pull(QueueProgress(0), locked(), FOUND, [], 1, interval_ms=250)
    assert found.pull == PullNow(1)


@pytest.mark.parametrize(
    ("waiting", "taken", "plenty", "found", "pull"),
    [
        (9, 0, 10, 1, PullNow(10)),
        (10, 0, 10, 1, PullLater(3, "plenty waits here")),
        (10, 0, None, 1, PullNow(11)),
        (10, 1, 10, 1, PullNow(11)),  # what is with handlers does not wait
        (10, 0, 10, 0, PullNow(10)),  # nothing came: the broker holds the next one
    ],
)
def test_a_queue_of_which_plenty_waits_is_pulled_at_its_turn(
    waiting: int, taken: int, plenty: int | None, found: int, pull: PullNow | PullLater
) -> None:
    """Handlers have enough to do, and are not kept from it."""
    progress = QueueProgress(0)
    progress.put([message(n) for n in range(waiting)], waiting)
    progress.take(taken, 0)
    new = [message(waiting + n) for n in range(found)]
    answer = after_pull(
        progress, locked(), FOUND, new, waiting + found, now_ms=3 * QUEUE.index + 2, plenty=plenty
    )
    assert answer.pull == pull


def test_a_pull_interval_goes_before_a_turn() -> None:
    """What the user asked for counts."""
    found = after_pull(
        QueueProgress(0), locked(), FOUND, [message(0)], 1, interval_ms=250, plenty=0
    )
    assert found.pull == PullLater(250, "the pull interval")


@pytest.mark.parametrize("now_ms", [0, 1, 999, 10**9 + 7])
def test_queues_have_turns_of_their_own(now_ms: int) -> None:
    """Of every five each in another millisecond of five; never at once, never later."""
    turns = [turn_in_ms(index, now_ms) for index in range(PLENTY_MS)]
    assert sorted(turns) == list(range(1, PLENTY_MS + 1))
    assert turn_in_ms(3, now_ms + turns[3]) == PLENTY_MS


@pytest.mark.parametrize("status", [FOUND, NOTHING_NEW, NOTHING_MATCHED])
def test_an_empty_queue_may_commit_what_held_nothing_for_it(status: PullStatus) -> None:
    """All was filtered: the offset follows, else the lag would never end."""
    progress = QueueProgress(3)
    found = after_pull(progress, locked(), status, [], 9)
    assert (found.pull, found.handle, found.passed) == (PullNow(9), False, True)
    assert progress.done_below == 9


@pytest.mark.parametrize("status", [FOUND, NOTHING_NEW, NOTHING_MATCHED])
def test_a_queue_with_unfinished_messages_commits_nothing_by_a_pull(status: PullStatus) -> None:
    """Waiting or taken, they hold the offset."""
    progress = filled(0, 2)
    assert not after_pull(progress, locked(), status, [], 9).passed
    progress.take(3, 0)
    assert not after_pull(progress, locked(), status, [], 12).passed
    assert (progress.lowest, progress.done_below) == (0, 0)


def test_an_illegal_offset_drops_the_queue_and_is_corrected() -> None:
    """The messages here are void, and no handler that still runs may commit over the correction."""
    progress, lease = filled(0, 2), locked()
    batch = progress.take(1, 0)
    lease.enter()
    found = after_pull(progress, lease, OFFSET_MOVED, [], 500)
    assert (found.pull, found.handle, found.passed) == (FixOffset(500), False, False)
    assert lease.dropped is RevokeReason.OFFSET_ILLEGAL
    assert not lease.may_commit(0, needs_lock=True)
    assert offsets(batch) == [0]
    assert ask(progress, lease) == FORGET


def test_an_answer_that_comes_after_the_drop_is_thrown_away() -> None:
    """Its messages belong to the next owner."""
    progress, lease = QueueProgress(0), locked()
    lease.drop(RevokeReason.MOVED)
    found = after_pull(progress, lease, FOUND, [message(0)], 1)
    assert (found.pull, found.handle, progress.count) == (FORGET, False, 0)


def test_a_broker_cannot_lead_a_queue_back() -> None:
    """Only an illegal offset is corrected downwards, and only in a queue that begins again."""
    progress = filled(5, 6)
    after_pull(progress, locked(), NOTHING_NEW, [], 2)
    assert progress.pulled_to == 7


@pytest.mark.parametrize(("flow_control", "delay_ms"), [(True, 20), (False, 1000)])
def test_a_failed_pull_is_repeated(flow_control: bool, delay_ms: int) -> None:
    """20 ms if the broker asked for a pause, 1 s after any other error."""
    assert after_failed_pull(flow_control=flow_control).ms == delay_ms


# What a pull says.


@pytest.mark.parametrize(
    ("done_to", "clustering", "to_master", "commits"),
    [
        (12, True, True, True),
        (0, True, True, False),
        (None, True, True, False),
        (12, False, True, False),
        (12, True, False, False),
    ],
)
def test_the_offset_travels_with_pulls(
    done_to: int | None, clustering: bool, to_master: bool, commits: bool
) -> None:
    """Above 0, of a cluster, to a master."""
    found = pull_fields(
        Subscription("orders", version=7),
        done_to=done_to,
        clustering=clustering,
        to_master=to_master,
    )
    flag = PULL_SUSPEND | (PULL_COMMIT_OFFSET if commits else 0)
    assert found == PullFields(flag, 12 if commits else 0, 7, None)


def test_the_subscription_is_known_by_its_version() -> None:
    """Its text goes along on request only, and never a class filter."""
    tags = parse_subscription("orders", "a || b", version=9)
    found = pull_fields(tags, done_to=None, clustering=True, post_subscription=True)
    assert found == PullFields(PULL_SUSPEND | PULL_SUBSCRIPTION, 0, 9, "a || b")
    by_class = Subscription("orders", "X", class_filter_mode=True)
    found = pull_fields(by_class, done_to=None, clustering=True, post_subscription=True)
    assert found == PullFields(PULL_SUSPEND | PULL_CLASS_FILTER, 0, 0, None)


@pytest.mark.parametrize(
    ("expression", "tag", "kept"),
    [
        ("*", None, True),
        ("*", "a", True),
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
        ("a || b", "b", True),
        ("Aa", "BB", False),  # equal hashes
    ],
)
def test_tags_are_compared_after_the_brokers_hashes(
    expression: str, tag: str | None, kept: bool
) -> None:
    """A tag with the hash of a wanted one is not wanted."""
    assert wanted(message(0, tag=tag), parse_subscription("orders", expression)) is kept


def test_a_class_filter_is_the_brokers_business() -> None:
    """The client compares no tags then."""
    assert wanted(message(0, tag="b"), Subscription("orders", "X", ("a",), class_filter_mode=True))


@pytest.mark.parametrize(
    ("topic", "origin", "shown"),
    [
        ("%RETRY%billing", "orders", "orders"),
        ("%RETRY%billing", None, "%RETRY%billing"),
        ("%RETRY%other", "orders", "%RETRY%other"),
        ("orders", "elsewhere", "orders"),
    ],
)
def test_a_retried_message_has_its_topic_back(topic: str, origin: str | None, shown: str) -> None:
    """Only those of the group's own retry topic, by their RETRY_TOPIC."""
    properties = {} if origin is None else {"RETRY_TOPIC": origin}
    assert restore_topic(message(0, topic=topic, **properties), "billing").topic == shown


@pytest.mark.parametrize(
    ("topic", "expression", "shown"),
    [
        ("orders", "*", [("orders", "a"), ("orders", "b")]),
        ("orders", "b", [("orders", "b")]),
        ("%RETRY%billing", "*", [("elsewhere", "a"), ("elsewhere", "b")]),
        ("%RETRY%billing", "a", [("elsewhere", "a")]),
    ],
)
def test_handlers_get_what_they_asked_for_under_its_own_topic(
    topic: str, expression: str, shown: list[tuple[str, str]]
) -> None:
    """The messages of a pull: unwanted tags are gone, retried ones have their topic back."""
    pulled = tuple(
        message(n, topic=topic, tag=tag, RETRY_TOPIC="elsewhere") for n, tag in enumerate("ab")
    )
    found = for_handlers(
        pulled, parse_subscription("orders", expression), topic=topic, group="billing"
    )
    assert [(one.topic, one.tag) for one in found] == shown


def test_a_queue_is_read_where_the_broker_suggests() -> None:
    """The last suggestion counts; without one it is the master."""
    suggested = Suggested()
    other = TopicQueue("orders", "broker-a", 1)
    assert suggested.of(QUEUE) == 0
    suggested.note(QUEUE, 1)
    suggested.note(QUEUE, 2)
    assert (suggested.of(QUEUE), suggested.of(other)) == (2, 0)
    suggested.forget(QUEUE)
    assert suggested.of(QUEUE) == 0
