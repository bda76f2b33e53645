"""The story of a key: steps from records, traces, notes and offsets, in one line of time."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.broker.parking import records as parking
from inorder.checker import HandledResult
from inorder.client.rules.traces import TraceView
from inorder.console.story import (
    Copy,
    Evidence,
    Kind,
    ParkEvent,
    Progress,
    Source,
    Version,
    account,
    judge,
    tell,
    version_of,
)
from inorder.model import ReceivedMessage, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.parking import QueuePlace

KEY = "order-42"
OLD, NEW = (KeyMap.of(number, [("a", index) for index in range(count)]) for number, count in
            ((1, 2), (2, 16)))  # fmt: skip
Q1, Q2 = (TopicQueue("orders", *one.queue(KEY)) for one in (OLD, NEW))


def message(
    id_: str, stored_ms: int, offset: int, queue: TopicQueue = Q1, born_ms: int | None = None
) -> ReceivedMessage:
    return ReceivedMessage(
        "orders", queue, offset, b"{}", {"__SHARDINGKEY": KEY, "TAGS": "paid"}, id_,
        stored_ms - 1 if born_ms is None else born_ms, stored_ms,
    )  # fmt: skip


def call(id_: str, at_ms: int, *, ok: bool | None, spent: int = 5, group: str = "billing",
         number: str = "") -> list[TraceView]:  # fmt: skip
    call_id = number or f"{id_}-{at_ms}"
    found = [TraceView("SubBefore", at_ms, group, attempt=1, call_id=call_id)]
    if ok is not None:
        found.append(TraceView("SubAfter", at_ms + spent, group, ok, spent, call_id=call_id))
    return found


def sent(at_ms: int, *, ok: bool = True) -> TraceView:
    return TraceView("Pub", at_ms, "shop", ok, 3)


def kinds(evidence: Evidence) -> list[str]:
    return [str(one.kind) for one in tell(evidence)]


def test_keys_of_the_maps_differ() -> None:
    """The maps of these tests move the key, else a test of a move would show nothing."""
    assert Q1 != Q2


def test_a_send_that_nobody_traced_is_derived_from_its_record() -> None:
    """The producer's clock stands for the send, and the step says so."""
    steps = tell(Evidence("orders", KEY, [message("A", 100, 0, born_ms=90)]))
    assert [(one.kind, one.at_ms, one.derived, one.source) for one in steps] == [
        (Kind.SENT, 90, True, Source.RECORD),
        (Kind.STORED, 100, False, Source.RECORD),
    ]


def test_a_traced_send_is_no_longer_derived() -> None:
    """A failed attempt and the one that was answered are two steps."""
    traces = {"A": [sent(80, ok=False), sent(95)]}
    steps = tell(Evidence("orders", KEY, [message("A", 100, 0)], traces=traces))
    assert [one.kind for one in steps] == [Kind.SEND_FAILED, Kind.SENT, Kind.STORED]
    assert not any(one.derived for one in steps)


def test_only_a_failed_send_was_traced() -> None:
    """The message is stored nevertheless: its send is derived from the record."""
    traces = {"A": [sent(80, ok=False)]}
    steps = tell(Evidence("orders", KEY, [message("A", 100, 0, born_ms=79)], traces=traces))
    assert [(str(one.kind), one.derived) for one in steps] == [
        ("sent", True), ("send failed", False), ("stored", False),
    ]  # fmt: skip


def test_attempts_are_counted_by_group() -> None:
    """The second call of a group is a retry; another group begins with its first."""
    views = [
        *call("A", 110, ok=False),
        *call("A", 120, ok=True),
        *call("A", 117, ok=True, group="mail"),
    ]
    steps = tell(Evidence("orders", KEY, [message("A", 100, 0)], traces={"A": views}))
    assert [(str(one.kind), one.group, one.attempt) for one in steps[2:]] == [
        ("delivered", "billing", 1),
        ("failed", "billing", 1),
        ("delivered", "mail", 1),
        ("retried", "billing", 2),
        ("handled", "mail", 1),
        ("handled", "billing", 2),
    ]


def test_a_call_without_an_end_stays_open() -> None:
    """A handler that never came back has begun, and that is all that is known."""
    steps = tell(
        Evidence("orders", KEY, [message("A", 100, 0)], traces={"A": call("A", 110, ok=None)})
    )
    assert [one.kind for one in steps] == [Kind.SENT, Kind.STORED, Kind.DELIVERED]


@pytest.mark.parametrize("skew_ms", [-5000, 0, 5000])
def test_clocks_that_differ_do_not_reorder_a_message(skew_ms: int) -> None:
    """Sent, stored, delivered, handled: whatever the clocks of producer and consumer say."""
    traces = {"A": [sent(100 + skew_ms), *call("A", 110 - skew_ms, ok=True)]}
    evidence = Evidence("orders", KEY, [message("A", 100, 0)], traces=traces)
    assert kinds(evidence) == ["sent", "stored", "delivered", "handled"]


def versions() -> list[Version]:
    return [Version(1, OLD, {Q1: 2}), Version(2, NEW)]


def test_messages_belong_to_the_version_that_ended_after_them() -> None:
    """The ends of a version say which messages were stored under it."""
    assert version_of(message("A", 1, 1), versions()) == 1
    assert version_of(message("B", 2, 2), versions()) == 2
    assert version_of(message("C", 3, 0, Q2), versions()) == 2
    assert version_of(message("C", 3, 0, Q2), ()) == 0


def test_a_resize_lies_between_the_messages_of_two_versions() -> None:
    """Its time is not kept: the step is derived and names both queues."""
    found = [message("A", 100, 0), message("B", 200, 1), message("C", 300, 0, Q2, born_ms=290)]
    steps = tell(Evidence("orders", KEY, found, versions()))
    assert [str(one.kind) for one in steps] == [
        "sent", "stored", "sent", "stored", "moved", "sent", "stored",
    ]  # fmt: skip
    moved = steps[4]
    assert moved.derived
    assert moved.at_ms is None
    assert moved.text == (
        f"resized 2 → 16 queues: the key moves a/{Q1.index} → a/{Q2.index} at version 2"
    )
    assert [one.version for one in steps if one.kind is Kind.STORED] == [1, 1, 2]


def test_a_resize_after_the_last_message_stands_behind_all_that_is_known() -> None:
    """Nothing was sent under the new version: the move follows what was handled before."""
    evidence = Evidence(
        "orders", KEY, [message("A", 100, 0)], versions(), {"A": call("A", 900, ok=True)},
        progress=[Progress("billing", Q1, 1)],
    )  # fmt: skip
    assert kinds(evidence) == ["sent", "stored", "delivered", "handled", "moved", "committed"]


def test_a_resize_that_keeps_the_key_says_so() -> None:
    """A key that stays in its queue has a step too, without a move."""
    same = [Version(1, OLD, {Q1: 1}), Version(2, KeyMap.of(2, OLD.queues))]
    steps = tell(Evidence("orders", KEY, [message("A", 100, 0)], same))
    assert steps[-1].text == f"resized 2 → 2 queues: the key stays in a/{Q1.index} at version 2"


def note(at_ms: int, event: parking.Event, group: str = "billing") -> ParkEvent:
    return ParkEvent(group, "a", at_ms, event)


def parked(offset: int, at_ms: int, error: str = "") -> ParkEvent:
    event = parking.Parked("orders", Q1.index, offset, KEY, 2, error, at_ms, 100)
    return note(at_ms, event)


PLACE: dict[str, Any] = {"topic": "orders", "queue": Q1.index, "key": KEY}


def test_parking_as_it_goes() -> None:
    """Parked with its error, joined, redriven message by message, and live again."""
    events = [
        parked(0, 120, "ValueError: no such customer"),
        parked(1, 121),
        note(200, parking.Redriving(**PLACE, rate=5)),
        note(210, parking.Redriven(**PLACE, done=[0])),
        note(220, parking.Redriven(**PLACE, done=[1])),
        note(230, parking.Unparked(**PLACE)),
    ]
    evidence = Evidence("orders", KEY, [message("A", 100, 0), message("B", 101, 1)], parked=events)
    steps = tell(evidence)[4:]
    assert [(str(one.kind), one.text) for one in steps] == [
        ("parked", "after 2 attempts: ValueError: no such customer"),
        ("joined", "set aside unhandled behind its parked key"),
        ("redrive ordered", "an operator wants the key handled again, at most 5/s"),
        ("redriven", "handled in the redrive: offsets 0"),
        ("redriven", "handled in the redrive: offsets 1"),
        ("live again", "the list is empty: the key is handled as it comes"),
    ]
    assert all(one.source is Source.PARK for one in steps)


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        (parking.Cancelled(**PLACE), Kind.CANCELLED, "took the redrive back"),
        (parking.Redriven(**PLACE, done=[], error="KeyError"), Kind.FAILED, "KeyError"),
        (parking.Redriven(**PLACE, older=QueuePlace("b", 3)), Kind.REDRIVEN, "b/3"),
        (
            parking.Dropped(**PLACE, offsets=[4], reason="test data", by="ann"),
            Kind.DROPPED,
            "by ann (test data): offsets 4",
        ),
        (parking.Moved(**PLACE, to=QueuePlace("b", 7), version=2), Kind.MOVED, "b/7"),
        (parking.Moved(**PLACE, to=None), Kind.MOVED, "back in this queue"),
        (
            parking.Installed(**PLACE, older=QueuePlace("b", 1), at_ms=1, version=2),
            Kind.MOVED,
            "b/1 comes first",
        ),
        (parking.Forgotten("orders", Q1.index), Kind.FORGOTTEN, "offset was reset"),
    ],
)
def test_every_note_is_a_step(event: parking.Event, kind: Kind, words: str) -> None:
    """Whatever a broker notes of a parked key is told in words."""
    (step,) = tell(Evidence("orders", KEY, parked=[note(5, event)]))
    assert step.kind is kind
    assert words in step.text


def test_retries_and_dead_letters() -> None:
    """Copies in the retry topic and the dead letter topic are steps of the key."""
    again = message("A", 150, 0, TopicQueue("%RETRY%billing", "a", 0))
    dead = message("A", 160, 0, TopicQueue("%DLQ%billing", "a", 0))
    copies = [Copy("billing", True, dead), Copy("billing", False, again)]
    evidence = Evidence("orders", KEY, [message("A", 100, 0)], copies=copies)
    assert kinds(evidence) == ["sent", "stored", "returned", "dead letter"]


@pytest.mark.parametrize(
    ("committed", "text"),
    [
        (0, None),
        (1, "the group's offset is 1 by now: 1 of 2 messages of the key here lie below it"),
        (9, "the group's offset is 9 by now: all 2 messages of the key here lie below it"),
    ],
)
def test_a_commit_is_known_by_the_present_offset(committed: int, text: str | None) -> None:
    """It stands at the end, without a time, and only if it passes a message of the key."""
    evidence = Evidence(
        "orders", KEY, [message("A", 100, 0), message("B", 101, 1)],
        progress=[Progress("billing", Q1, committed), Progress("billing", Q2, 50)],
    )  # fmt: skip
    found = [one for one in tell(evidence) if one.kind is Kind.COMMITTED]
    assert [one.text for one in found] == ([] if text is None else [text])
    assert all(one.derived and one.at_ms is None for one in found)


def test_the_story_of_one_group() -> None:
    """What another group did is left out; sends and stored messages stay."""
    traces = {"A": [sent(99), *call("A", 110, ok=True), *call("A", 111, ok=True, group="mail")]}
    evidence = Evidence(
        "orders", KEY, [message("A", 100, 0)], traces=traces,
        parked=[note(5, parking.Unparked(**PLACE), "mail")],
        progress=[Progress("mail", Q1, 1), Progress("billing", Q1, 1)],
    )  # fmt: skip
    assert evidence.groups == ["billing", "mail"]
    own = evidence.for_group("billing")
    assert own.groups == ["billing"]
    assert kinds(own) == ["sent", "stored", "delivered", "handled", "committed"]


def test_the_checker_finds_order_kept_over_a_resize_and_a_redrive() -> None:
    """Failed, then handled later in order: the account of the order checker is clean."""
    found = [message("A", 100, 0), message("B", 101, 1), message("C", 300, 0, Q2)]
    traces = {
        "A": [*call("A", 110, ok=False), *call("A", 400, ok=True)],
        "B": call("B", 410, ok=True),
        "C": call("C", 420, ok=True),
    }
    evidence = Evidence(
        "orders", KEY, found, versions(), traces, progress=[Progress("billing", Q1, 2)]
    )
    verdict = judge(evidence, "billing")
    assert verdict.in_order is True
    assert (verdict.stored, verdict.handled, verdict.below_offset) == (3, 3, 2)
    results = [one.result for one in account(evidence) if hasattr(one, "result")]
    assert results.count(HandledResult.FAILED) == 1


def test_the_checker_finds_what_was_out_of_order() -> None:
    """A newer message that is handled before an older one of its key is named."""
    traces = {"A": call("A", 300, ok=True), "B": call("B", 200, ok=True)}
    found = [message("A", 100, 0), message("B", 101, 1)]
    verdict = judge(Evidence("orders", KEY, found, traces=traces), "billing")
    assert verdict.in_order is False
    assert verdict.report is not None
    assert "inverted" in verdict.report.by_kind


def test_without_traces_there_is_no_verdict() -> None:
    """The checker says nothing where nobody told when handlers ran."""
    evidence = Evidence("orders", KEY, [message("A", 100, 0)],
                        progress=[Progress("billing", Q1, 1)])  # fmt: skip
    verdict = judge(evidence, "billing")
    assert verdict.in_order is None
    assert verdict.below_offset == 1
