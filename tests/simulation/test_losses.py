"""What a power cut may take is not held against the broker; everything else still is."""

from __future__ import annotations

import pytest

from inorder.checker import (
    Committed,
    Event,
    Handled,
    HandledResult,
    Sent,
    Stored,
    check,
)
from tests.simulation.simlosses import Cut, may_miss, without_lost

HERE, THERE = "orders/broker-a/0", "orders/broker-b/0"


def sent(number: int, offset: int | None = None) -> Sent:
    place = number if offset is None else offset
    return Sent("p", "k", number, f"m{number}", queue=HERE, offset=place)


def stored(number: int, offset: int | None = None) -> Stored:
    return Stored(HERE, number if offset is None else offset, f"m{number}", "k")


def handled(number: int, at_s: int, offset: int | None = None) -> Handled:
    place = number if offset is None else offset
    at_ns = at_s * 10**9
    return Handled("c", HERE, place, f"m{number}", "k", at_ns, at_ns, HandledResult.DONE)


def committed(offset: int, at_s: int, *, reset: bool = False) -> Committed:
    return Committed("c", HERE, offset, at_s * 10**9, reset)


def judged(events: list[Event], acked: dict[str, float], *cuts: Cut) -> list[str]:
    return [str(one) for one in check(without_lost(events, acked, list(cuts))).findings]


def test_what_was_not_synced_and_acknowledged_before_is_excused():
    """It is not stored, nobody promised it; what is stored is judged."""
    events: list[Event] = [sent(0), sent(1), stored(0), handled(0, 1), handled(1, 2)]
    cut = Cut("broker-a", 5.0, frozenset({"m1"}), {HERE: 1})
    assert judged(events, {"m0": 0.5, "m1": 1.5}, cut) == []
    assert judged(events[:-1], {"m0": 0.5, "m1": 1.5}) != [], "without a cut it is a loss"


@pytest.mark.parametrize(
    ("acked_s", "unsynced"),
    [(1.5, frozenset[str]()), (5.5, frozenset({"m1"}))],
    ids=["it was synced", "acknowledged after the cut"],
)
def test_every_other_loss_is_found(acked_s: float, unsynced: frozenset[str]):
    """A message that was on disk, or that the broker confirmed when it was back, must be there."""
    cut = Cut("broker-a", 5.0, unsynced, {HERE: 1})
    events: list[Event] = [sent(0), sent(1), stored(0), handled(0, 1)]
    assert not may_miss("m1", acked_s, [cut])
    assert any("m1" in text for text in judged(events, {"m0": 0.5, "m1": acked_s}, cut))


@pytest.mark.parametrize("end", [2, 3])
def test_a_commit_before_a_cut_is_judged_up_to_the_end_that_was_left(end: int):
    """It passed m1, which was not done: found. Behind the end other messages lie by now."""
    cut = Cut("broker-a", 5.0, frozenset({"m2"} if end == 2 else ()), {HERE: end})
    events: list[Event] = [
        sent(0), sent(1), sent(2), stored(0), stored(1), stored(2 if end == 3 else 3, 2),
        handled(0, 1), handled(2, 2), committed(3, 3), committed(0, 5, reset=True),
        handled(1, 7),
    ]  # fmt: skip
    if end == 2:
        events += [sent(3, 2), handled(3, 8, 2)]
    acked = {"m0": 0.5, "m1": 0.6, "m2": 0.7, "m3": 6.0}
    found = judged(events, acked, cut)
    assert any("offset 1 was not done" in text for text in found)
    assert not any("offset 2 was not done" in text for text in found)


def test_a_commit_beyond_what_was_left_says_nothing_of_the_new_messages():
    """Offset 2 was done, lost, and given out again: it is done when that one is."""
    cut = Cut("broker-a", 5.0, frozenset({"m2"}), {HERE: 2})
    events: list[Event] = [
        *(sent(number) for number in range(3)), stored(0), stored(1), stored(3, 2), sent(3, 2),
        *(handled(number, 1) for number in range(3)), committed(3, 3), committed(2, 5, reset=True),
        handled(3, 7, 2), committed(3, 8),
    ]  # fmt: skip
    assert judged(events, dict.fromkeys(("m0", "m1", "m2"), 0.5) | {"m3": 6.0}, cut) == []


def test_a_cut_of_one_broker_excuses_nothing_of_another():
    """Its queues end where they end."""
    cut = Cut("broker-a", 5.0, frozenset({"m1"}), {HERE: 1})
    assert (cut.end(HERE), cut.end("orders/broker-a/7"), cut.end(THERE)) == (1, 0, None)
    commit = Committed("c", THERE, 9, 10**9)
    assert without_lost([commit], {}, [cut]) == [commit]
