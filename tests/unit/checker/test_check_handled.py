"""The order checker on what was handled and committed: each kind, beside a good twin."""

from __future__ import annotations

from inorder.checker import (
    Committed,
    Handled,
    HandledResult,
    Handling,
    Kind,
    Report,
    Rules,
    Sent,
    SentResult,
    Stored,
    check,
)

SENDS = [Sent("p", "k", n, f"m{n}") for n in range(3)]
BY_KEY = Rules(handling=Handling.KEY)


def run(
    offset: int,
    start: int,
    end: int | None,
    *,
    client: str = "c1",
    result: str | None = "done",
    key: str | None = "k",
    id_: str | None = None,
) -> Handled:
    return Handled(
        client,
        "q",
        offset,
        id_ or f"m{offset}",
        key,
        start,
        end,
        None if result is None else HandledResult(result),
    )


def kinds(report: Report) -> dict[Kind, int]:
    return dict(report.by_kind)


GOOD = [*SENDS, run(0, 0, 1), run(1, 1, 2), run(2, 2, 3)]


def test_handled_once_in_order_is_fine():
    """One client, one after the other."""
    assert check(GOOD).ok


def test_acknowledged_but_never_handled_is_lost():
    """What was acknowledged must be handled."""
    report = check(GOOD[:-1])
    assert kinds(report) == {Kind.LOST: 1}
    assert "never handled" in report.findings[0].message


def test_stored_but_never_handled_is_lost():
    """Also a message of unknown outcome, once it is stored, must be handled."""
    events = [
        *GOOD,
        Sent("p", "k", 3, "m3", SentResult.UNKNOWN),
        *(Stored("q", n, f"m{n}", "k", n) for n in range(4)),
    ]
    assert kinds(check(events)) == {Kind.LOST: 1}
    assert check(events, rules=Rules(complete_handled=False)).ok


def test_handled_but_never_done_is_lost():
    """An attempt that failed is not the end."""
    report = check([*GOOD[:-1], run(2, 2, 3, result="failed")])
    assert kinds(report) == {Kind.LOST: 1}
    assert "never succeeded" in report.findings[0].message


def test_dead_lettered_is_not_lost():
    """Set aside visibly is an end."""
    assert check([*GOOD[:-1], run(2, 2, 3, result="dead")]).ok


def test_a_retry_after_a_failure_is_fine():
    """The same message again, before the next one."""
    assert check(
        [*SENDS, run(0, 0, 1, result="failed"), run(0, 2, 3), run(1, 4, 5), run(2, 6, 7)]
    ).ok


def test_two_effects_of_one_message_are_doubled():
    """A redelivery after success is a double, unless the rules allow it."""
    events = [*GOOD, run(2, 5, 6)]
    assert kinds(check(events)) == {Kind.DOUBLED: 1}
    report = check(events, rules=Rules(handled_once=False))
    assert report.ok
    assert report.counts["repeated_effects"] == 1


def test_first_deliveries_out_of_order_are_inverted():
    """Offset 1 must not start before offset 0, nor take effect before it."""
    report = check([*SENDS, run(1, 0, 1), run(0, 1, 2), run(2, 2, 3)])
    assert kinds(report) == {Kind.INVERTED: 2}
    assert {f.detail["where"] for f in report.findings} == {"first deliveries", "effects"}


def test_an_effect_before_the_retry_of_its_predecessor_is_inverted():
    """A failed message holds its successors until it is done."""
    events = [*SENDS, run(0, 0, 1, result="failed"), run(1, 1, 2), run(0, 2, 3), run(2, 3, 4)]
    report = check(events)
    assert kinds(report) == {Kind.INVERTED: 1}
    assert report.findings[0].detail["where"] == "effects"


def test_a_rewind_is_no_inversion():
    """Redelivery from the committed offset repeats old messages."""
    events = [*GOOD, run(0, 10, 11), run(1, 11, 12), run(2, 12, 13)]
    assert check(events, rules=Rules(handled_once=False)).ok


def test_keys_may_overtake_each_other_when_order_is_by_key():
    """By key, only the messages of one key wait for each other."""
    sends = [Sent("p", "a", 0, "m0"), Sent("p", "b", 0, "m1"), Sent("p", "a", 1, "m2")]
    runs = [run(1, 0, 1, key="b"), run(0, 0, 2, key="a"), run(2, 2, 3, key="a")]
    assert check([*sends, *runs], rules=BY_KEY).ok
    assert Kind.INVERTED in check([*sends, *runs]).by_kind


def test_one_key_out_of_order_is_inverted_by_key_too():
    """Within a key the order of offsets holds."""
    report = check([*SENDS, run(1, 0, 1), run(0, 1, 2), run(2, 2, 3)], rules=BY_KEY)
    assert kinds(report) == {Kind.INVERTED: 2}


def test_concurrent_handling_has_no_order():
    """Without order only loss and doubles are judged."""
    events = [*SENDS, run(1, 0, 5), run(0, 1, 2, client="c2"), run(2, 2, 3)]
    assert check(events, rules=Rules(handling=Handling.CONCURRENT)).ok


def test_two_clients_on_one_queue_overlap():
    """The second may start when the first has ended, not before."""
    good = [*SENDS, run(0, 0, 10), run(1, 10, 20, client="c2"), run(2, 20, 30, client="c2")]
    assert check(good).ok
    bad = [*SENDS, run(0, 0, 10), run(1, 9, 20, client="c2"), run(2, 20, 30, client="c2")]
    assert kinds(check(bad)) == {Kind.OVERLAP: 1}


def test_two_handlers_of_one_client_on_one_queue_overlap():
    """In queue order a client runs one handler per queue."""
    assert kinds(check([*SENDS, run(0, 0, 10), run(1, 5, 20), run(2, 20, 30)])) == {Kind.OVERLAP: 1}


def test_a_batch_is_one_run():
    """Messages that share client, start and end were handled together."""
    assert check([*SENDS, run(0, 0, 10), run(1, 0, 10), run(2, 10, 30)]).ok


def test_two_handlers_on_one_key_overlap():
    """By key: different keys run side by side, the same key does not."""
    sends = [Sent("p", "a", 0, "m0"), Sent("p", "b", 0, "m1"), Sent("p", "a", 1, "m2")]
    good = [run(0, 0, 9, key="a"), run(1, 1, 8, key="b"), run(2, 9, 10, key="a")]
    bad = [run(0, 0, 9, key="a"), run(1, 1, 8, key="b"), run(2, 8, 10, key="a")]
    assert check([*sends, *good], rules=BY_KEY).ok
    assert kinds(check([*sends, *bad], rules=BY_KEY)) == {Kind.OVERLAP: 1}


def test_a_handler_that_never_came_back_is_an_instant():
    """A killed handler has no end and overlaps nothing."""
    events = [
        *SENDS,
        run(0, 0, None, result=None),
        run(0, 1, 2, client="c2"),
        run(1, 3, 4, client="c2"),
        run(2, 4, 5, client="c2"),
    ]
    assert check(events).ok


def test_an_effect_of_a_former_owner_is_a_zombie():
    """c1 froze inside offset 0; c2 went on to offset 1; then c1 finished."""
    events = [
        *SENDS,
        run(0, 0, 100),
        run(0, 50, 60, client="c2"),
        run(1, 60, 70, client="c2"),
        run(2, 101, 102, client="c2"),
    ]
    report = check(events, rules=Rules(handled_once=False))
    assert report.by_kind[Kind.ZOMBIE_EFFECT] == 1
    fenced = [*SENDS, run(0, 0, 100, result="failed"), *events[4:]]
    assert Kind.ZOMBIE_EFFECT not in check(fenced, rules=Rules(handled_once=False)).by_kind


def test_a_commit_beyond_what_is_done_is_a_skip():
    """A committed offset never passes a message that is not done."""
    assert check([*GOOD, Committed("c1", "q", 2, at_ns=2), Committed("c1", "q", 3, at_ns=3)]).ok
    report = check([*GOOD, Committed("c1", "q", 3, at_ns=2)])
    assert kinds(report) == {Kind.COMMIT_SKIP: 1}
    assert report.findings[0].detail["offset"] == 2


def test_a_commit_past_a_stored_message_nobody_got_is_a_skip():
    """What lies in the queue counts, handled or not."""
    events = [
        *SENDS,
        *(Stored("q", n, f"m{n}", "k", n) for n in range(3)),
        run(0, 0, 1),
        run(2, 2, 3),
        Committed("c1", "q", 3, at_ns=9),
    ]
    assert kinds(check(events)) == {Kind.COMMIT_SKIP: 1, Kind.LOST: 1}


def test_a_commit_that_falls_is_a_regression():
    """Offsets fall only by an explicit reset."""
    back = [Committed("c1", "q", 3, at_ns=3), Committed("c2", "q", 1, at_ns=4)]
    assert kinds(check([*GOOD, *back])) == {Kind.COMMIT_REGRESSION: 1}
    reset = [back[0], Committed("admin", "q", 1, at_ns=4, reset=True)]
    assert check([*GOOD, *reset]).ok


def test_after_a_reset_what_was_done_before_is_no_skip():
    """A reset goes back, and commits go on from there."""
    events = [
        *GOOD,
        Committed("admin", "q", 1, at_ns=4, reset=True),
        Committed("c1", "q", 3, at_ns=5),
    ]
    assert check(events).ok


def test_handled_offsets_with_a_hole_are_a_gap_without_records():
    """If only handlers were watched, a hole in the offsets is something nobody got."""
    report = check([SENDS[0], SENDS[2], run(0, 0, 1), run(2, 1, 2)])
    assert kinds(report) == {Kind.GAP: 1}


def test_one_offset_handled_as_two_messages_is_a_conflict():
    """(queue, offset) names one message, also for handlers."""
    events = [*GOOD, Sent("p", "k", 9, "x", SentResult.UNKNOWN), run(2, 5, 6, id_="x")]
    assert Kind.OFFSET_CONFLICT in check(events).by_kind


def test_handled_but_never_sent_is_a_phantom():
    """A handler got something that nobody sent."""
    assert kinds(check([*GOOD, run(3, 3, 4)])) == {Kind.PHANTOM: 1}
