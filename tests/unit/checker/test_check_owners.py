"""The broker's word on owners, and effects that passed a fence: what the checker finds wrong."""

from __future__ import annotations

from inorder.checker import (
    Applied,
    Committed,
    Event,
    Granted,
    Handled,
    HandledResult,
    Handling,
    Kind,
    Report,
    Rules,
    Sent,
    Stored,
    check,
    read_history,
    write_history,
)

QUEUE = "orders/a/0"


def story(*more: Event) -> list[Event]:
    """Return two messages that were sent and stored."""
    sent: list[Event] = [Sent("p", "k", n, f"m{n}", queue=QUEUE, offset=n) for n in (0, 1)]
    return [*sent, *(Stored(QUEUE, n, f"m{n}", "k") for n in (0, 1)), *more]


def run(client: str, offset: int, start: int, end: int, epoch: int) -> Handled:
    """Return a run of a handler."""
    done = HandledResult.DONE
    return Handled(client, QUEUE, offset, f"m{offset}", "k", start, end, done, epoch, offset)


def judge(*more: Event) -> Report:
    """Judge a story in which an effect may repeat."""
    return check(story(*more), rules=Rules(handled_once=False))


A, B = Granted("a", QUEUE, 1, 0), Granted("b", QUEUE, 2, 100)


def test_a_handler_that_starts_after_anothers_grant_is_found():
    """By the broker's word b owns the queue from 100 on; a starts at 131."""
    report = judge(
        A, B, run("b", 0, 110, 120, 2), run("b", 1, 120, 130, 2), run("a", 1, 131, 132, 1)
    )
    assert report.by_kind == {Kind.OVERLAP: 1}


def test_a_handler_that_outlives_its_lease_is_counted():
    """It was begun before: its overlap cannot be prevented, and is said."""
    report = judge(
        A, B, run("a", 0, 90, 115, 1), run("b", 0, 110, 112, 2), run("b", 1, 113, 114, 2)
    )
    assert report.ok, str(report)
    assert report.counts["outlived"] == 1
    assert report.counts["late_effects"] == 1


def test_without_grants_the_same_is_an_overlap():
    """A history that does not say who owned what is judged by the handlers alone."""
    report = judge(run("a", 0, 90, 115, 1), run("b", 0, 110, 112, 2), run("b", 1, 113, 114, 2))
    assert Kind.OVERLAP in report.by_kind


def test_a_commit_under_a_stale_epoch_is_found():
    """What counts after the next grant must be the next owner's."""
    runs = (run("a", 0, 10, 20, 1), run("b", 1, 110, 120, 2))
    fine = judge(A, B, *runs, Committed("a", QUEUE, 1, 99, epoch=1))
    assert fine.ok, str(fine)
    report = judge(A, B, *runs, Committed("a", QUEUE, 1, 101, epoch=1))
    assert report.by_kind == {Kind.STALE_COMMIT: 1}


def test_epochs_that_do_not_grow_are_found():
    """A later owner has a higher epoch, or its commits cannot be told from the former's."""
    runs = (run("a", 0, 10, 20, 1), run("b", 1, 110, 120, 1))
    report = judge(A, Granted("b", QUEUE, 1, 100), *runs)
    assert report.by_kind == {Kind.OVERLAP: 1}


def test_effects_pass_the_fence_once_and_in_order():
    """Doubles, inversions and losses in the store are found, each by its kind."""
    runs = (run("a", 0, 10, 20, 1), run("a", 1, 30, 40, 1))
    both = (Applied("m0", "k", 0, 1), Applied("m1", "k", 1, 2))
    assert judge(A, *runs, *both).ok
    assert judge(A, *runs, both[0]).by_kind == {Kind.LOST: 1}
    turned = judge(A, *runs, Applied("m1", "k", 1, 1), Applied("m0", "k", 0, 2))
    assert turned.by_kind == {Kind.INVERTED: 1}
    doubled = judge(A, *runs, *both, Applied("m1", "k", 7, 3))
    assert doubled.by_kind == {Kind.DOUBLED: 1}


def test_a_fence_orders_a_key_over_queues():
    """After a resize a key lies in another queue: its fence says which message is the later one."""
    other = "orders/a/1"
    done = HandledResult.DONE
    events: list[Event] = [
        Sent("p", "k", 0, "m0", queue=QUEUE, offset=0),
        Sent("p", "k", 1, "m1", queue=other, offset=0),
        Stored(QUEUE, 0, "m0", "k"), Stored(other, 0, "m1", "k"),
        Handled("a", other, 0, "m1", "k", 10, 20, done, 1, 1 << 52),
        Handled("a", QUEUE, 0, "m0", "k", 30, 40, done, 1, 0),
    ]  # fmt: skip
    rules = Rules(handling=Handling.KEY, one_queue_per_key=False, handled_once=False)
    report = check(events, rules=rules)
    assert set(report.by_kind) == {Kind.INVERTED}


def test_the_new_events_can_be_written_and_read():
    """Histories of other programs may hold them."""
    events = [A, Applied("m0", "k", 3, 1), Committed("a", QUEUE, 1, 99, epoch=1)]
    assert list(read_history(write_history(events))) == events
