"""The order checker on what was sent and stored: each kind of finding, beside a good twin."""

from __future__ import annotations

from inorder.checker import Kind, Report, Rules, Sent, SentResult, Stored, check, queue_name
from inorder.model import TopicQueue


def sent(id_: str, sequence: int, result: str = "ok", **more: object) -> Sent:
    more.setdefault("key", "k")
    return Sent("p", sequence=sequence, id=id_, result=SentResult(result), **more)


def stored(offset: int, id_: str, sequence: int | None = None, **more: object) -> Stored:
    more.setdefault("key", "k")
    return Stored(more.pop("queue", "q"), offset, id_, sequence=sequence, **more)


def kinds(report: Report) -> dict[Kind, int]:
    return dict(report.by_kind)


GOOD = [sent("a", 1), sent("b", 2), stored(0, "a", 1), stored(1, "b", 2)]


def test_a_correct_history_has_no_findings():
    """Everything acknowledged, stored once and in order, is fine."""
    report = check(GOOD)
    assert report.ok
    assert report.counts["acknowledged"] == 2
    assert str(report).startswith("in order")


def test_order_of_events_in_the_history_does_not_matter():
    """A history may be given in any order."""
    assert check(reversed(GOOD)).ok


def test_acknowledged_but_not_stored_is_lost():
    """An acknowledged id that no queue holds is lost."""
    report = check(GOOD[:3])
    assert kinds(report) == {Kind.LOST: 1}
    assert report.findings[0].detail["id"] == "b"


def test_unknown_but_not_stored_is_fine():
    """A send that timed out need not be there."""
    assert check([sent("a", 1), sent("b", 2, "unknown"), stored(0, "a")]).ok


def test_stored_twice_is_doubled():
    """Two offsets with one id are a double."""
    assert kinds(check([*GOOD, stored(2, "b", 2)])) == {Kind.DOUBLED: 1}


def test_copies_are_counted_when_the_rules_allow_them():
    """At least once: copies are noted, and order is judged on the first of each."""
    report = check([*GOOD, stored(2, "a", 1)], rules=Rules(stored_once=False))
    assert report.ok
    assert report.counts["stored_copies"] == 1


def test_the_same_record_read_twice_is_no_double():
    """Reading a queue twice is not storing twice."""
    assert check([*GOOD, GOOD[3]]).ok


def test_swapped_in_the_queue_is_inverted():
    """Sequence 2 before sequence 1 of one key is an inversion."""
    report = check([sent("a", 1), sent("b", 2), stored(0, "b", 2), stored(1, "a", 1)])
    assert kinds(report) == {Kind.INVERTED: 1}
    assert report.findings[0].key == "k"


def test_sequences_come_from_the_sends_if_the_record_has_none():
    """Order and key are judged by the sender's numbers when the record carries none."""
    events = [sent("a", 1), sent("b", 2), stored(0, "b", key=None), stored(1, "a", key=None)]
    assert kinds(check(events)) == {Kind.INVERTED: 1}


def test_swap_of_different_keys_is_fine():
    """Different keys may overtake each other."""
    assert check([sent("a", 1), sent("b", 2, key="l"), stored(0, "b", key="l"), stored(1, "a")]).ok


def test_swap_of_different_producers_is_fine():
    """Two producers that share a key have no order between them."""
    other = Sent("p2", "k", 2, "b")
    assert check([sent("a", 1), other, stored(0, "b"), stored(1, "a")]).ok


def test_keyless_messages_have_no_order():
    """Without a key only loss and doubles are judged."""
    assert check(
        [
            sent("a", 1, key=None),
            sent("b", 2, key=None),
            stored(0, "b", key=None),
            stored(1, "a", key=None),
        ]
    ).ok


def test_a_late_unknown_message_is_noted():
    """The producer moved on after a time-out; the late arrival is counted, not blamed."""
    report = check([sent("a", 1, "unknown"), sent("b", 2), stored(0, "b"), stored(1, "a")])
    assert report.ok
    assert report.counts["late_unknown"] == 1


def test_an_acknowledgement_outranks_an_unknown_outcome():
    """A retried send that is acknowledged in the end must be there."""
    report = check([sent("a", 1, "unknown"), sent("a", 1), sent("b", 2), stored(0, "b")])
    assert kinds(report) == {Kind.LOST: 1}


def test_never_sent_is_a_phantom():
    """An id that no producer knows came from nowhere."""
    assert kinds(check([*GOOD, stored(2, "x", 3)])) == {Kind.PHANTOM: 1}


def test_records_alone_are_no_phantoms():
    """Without any send in the history, nothing can be a phantom, but nothing is proven either."""
    report = check([stored(0, "a", 1), stored(1, "b", 2)])
    assert not report.findings
    assert report.vacuous
    assert not report.ok


def test_refused_but_stored_is_an_aborted_read():
    """A send that was refused must not be there."""
    events = [*GOOD, sent("c", 3, "failed"), stored(2, "c", 3)]
    assert kinds(check(events)) == {Kind.ABORTED_READ: 1}
    assert check(events[:-1]).ok


def test_other_key_sequence_or_body_is_corrupt():
    """Key, sequence and digest are compared with what was sent."""
    events = [sent("a", 1, digest="d1")]
    assert check([*events, stored(0, "a", 1, digest="d1")]).ok
    assert kinds(check([*events, stored(0, "a", 1, digest="d2")])) == {Kind.CORRUPT: 1}
    assert kinds(check([*events, stored(0, "a", 2)])) == {Kind.CORRUPT: 1}
    assert kinds(check([*events, stored(0, "a", 1, key="other")])) == {Kind.CORRUPT: 1}


def test_one_id_for_two_messages_is_corrupt():
    """An id names one message."""
    assert kinds(check([sent("a", 1), sent("a", 2), stored(0, "a")])) == {Kind.CORRUPT: 1}


def test_a_hole_in_the_offsets_is_a_gap():
    """Offsets of a queue are dense; where the queue begins does not matter."""
    assert kinds(check([sent("a", 1), sent("b", 2), stored(7, "a"), stored(9, "b")])) == {
        Kind.GAP: 1
    }
    assert check([sent("a", 1), sent("b", 2), stored(7, "a"), stored(8, "b")]).ok


def test_holes_are_fine_in_a_filtered_view():
    """A reader that filters sees holes."""
    events = [sent("a", 1), sent("b", 2), stored(7, "a"), stored(9, "b")]
    assert check(events, rules=Rules(dense=False)).ok


def test_an_offset_that_named_two_messages_is_a_conflict():
    """(queue, offset) names one message in the life of the store."""
    events = [*GOOD, sent("c", 3, "unknown"), stored(1, "c", 3)]
    assert kinds(check(events)) == {Kind.OFFSET_CONFLICT: 1}


def test_stored_elsewhere_than_acknowledged_is_a_conflict():
    """The place in the acknowledgement is the place in the queue."""
    good = [sent("a", 1, queue="q", offset=0), stored(0, "a")]
    assert check(good).ok
    assert kinds(check([good[0], stored(1, "a")])) == {Kind.OFFSET_CONFLICT: 1}


def test_an_acknowledged_offset_reused_for_another_is_lost_and_a_conflict():
    """After a bad recovery another message takes the place of an acknowledged one."""
    events = [
        sent("a", 1, queue="q", offset=0),
        sent("b", 2, queue="q", offset=0),
        stored(0, "b", 2),
    ]
    assert kinds(check(events)) == {Kind.LOST: 1, Kind.OFFSET_CONFLICT: 1}


def test_a_key_in_two_queues_is_split():
    """One key, one queue; unless the topic was resized."""
    events = [sent("a", 1), sent("b", 2), stored(0, "a"), stored(0, "b", queue="q2")]
    assert kinds(check(events)) == {Kind.SPLIT_KEY: 1}
    assert check(events, rules=Rules(one_queue_per_key=False)).ok


def test_too_few_acknowledgements_prove_nothing():
    """A history below the wanted number of acknowledgements is vacuous."""
    report = check(GOOD, rules=Rules(acknowledged_min=3))
    assert report.vacuous
    assert not report.ok
    assert str(report).startswith("vacuous")


def test_findings_are_cut_but_all_are_counted():
    """The list is bounded, the counts are exact."""
    events = [sent("a", 1), stored(0, "a"), *(stored(n, f"x{n}") for n in range(1, 50))]
    report = check(events, rules=Rules(findings_max=5))
    assert len(report.findings) == 5
    assert report.by_kind[Kind.PHANTOM] == 49
    assert "49 phantom" in str(report)


def test_the_text_of_a_report_is_short():
    """It names the first findings and counts the rest."""
    events = [sent("a", 1), stored(0, "a"), *(stored(n, f"x{n}") for n in range(1, 50))]
    lines = str(check(events)).splitlines()
    assert len(lines) == 22
    assert lines[-1].strip() == "and 29 more"


def test_queue_name_names_topic_broker_and_index():
    """The name of a queue is unique across brokers."""
    assert queue_name(TopicQueue("t", "broker-a", 3)) == "t/broker-a/3"
