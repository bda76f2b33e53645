"""Order by key: who may be handed out when."""

from __future__ import annotations

from inorder.client.consume.rules.commits import Progress
from inorder.client.consume.rules.keyed import Keyless, KeyOrder, Work
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import ReceivedMessage, TopicQueue
from inorder.ordering.finished import FinishedMap

QUEUE = TopicQueue("orders", "broker-a", 0)


def message(offset: int, key: str | None) -> ReceivedMessage:
    properties = {} if key is None else {"__SHARDINGKEY": key}
    return ReceivedMessage("orders", QUEUE, offset, b"body", properties, f"id{offset}", 0, 0)


def keyed(
    keys: list[str | None],
    *,
    keyless: Keyless = "barrier",
    base: int = 0,
    finished: FinishedMap | None = None,
) -> QueueProgress:
    order = KeyOrder(lambda found: found.key, keyless=keyless)
    queue = QueueProgress(base, keys=order, finished=finished)
    queue.put([message(base + at, key) for at, key in enumerate(keys)], base + len(keys))
    return queue


def take_all(queue: QueueProgress, now_ms: int = 0, *, batch: int = 1) -> list[Work]:
    taken = []
    while (work := queue.take_work(now_ms, batch=batch)) is not None:
        taken.append(work)
    return taken


def offsets(taken: list[Work]) -> list[list[int]]:
    return [[found.offset for found in work.messages] for work in taken]


def test_heads_of_different_keys_run_together() -> None:
    """Each key gives its first message; the second waits for it."""
    queue = keyed(["a", "b", "a", "c", "b"])
    first = take_all(queue)
    assert offsets(first) == [[0], [1], [3]]
    queue.done(first[0], 0)
    assert offsets(take_all(queue)) == [[2]]


def test_a_batch_is_of_one_key() -> None:
    """A batch holds consecutive messages of a key, never of two."""
    queue = keyed(["a", "b", "a", "a", "b"])
    assert offsets(take_all(queue, batch=2)) == [[0, 2], [1, 4]]


def test_the_base_waits_for_the_slowest_key() -> None:
    """What may be committed never passes a message that is not done."""
    queue = keyed(["a", "b", "c"])
    first = take_all(queue)
    queue.done(first[2], 0)
    queue.done(first[1], 0)
    assert queue.progress() == Progress(0, "0:6")
    queue.done(first[0], 0)
    assert (queue.progress(), queue.count) == (Progress(3), 0)


def test_a_delayed_key_holds_itself_only() -> None:
    """A postponed message comes again when it is due, before the later ones of its key."""
    queue = keyed(["a", "a", "b"])
    first = take_all(queue)
    queue.again(first[0], at_ms=500)
    queue.done(first[1], 0)
    assert queue.keys is not None
    assert queue.keys.next_due_ms() == 500
    assert take_all(queue, 499) == []
    assert offsets(take_all(queue, 500)) == [[0]]


def test_part_of_a_batch_may_be_done() -> None:
    """The rest of a batch comes again, in order."""
    queue = keyed(["a", "a", "a"])
    (work,) = take_all(queue, batch=3)
    queue.done(work, 0, 1)
    assert queue.progress() == Progress(1)
    assert offsets(take_all(queue, batch=3)) == [[1, 2]]


def test_a_message_without_a_key_is_a_barrier() -> None:
    """It runs alone: after all before it, before all behind it."""
    queue = keyed(["a", "b", None, "a", None, None, "c"])
    order = []
    while queue.count:
        taken = take_all(queue)
        order.append([found.offset for work in taken for found in work.messages])
        for work in taken:
            queue.done(work, 0)
    assert order == [[0, 1], [2], [3], [4], [5], [6]]


def test_messages_that_come_while_a_barrier_runs_wait() -> None:
    """A later pull does not slip past a barrier."""
    queue = keyed([None])
    (barrier,) = take_all(queue)
    queue.put([message(1, "a")], 2)
    assert take_all(queue) == []
    queue.done(barrier, 0)
    assert offsets(take_all(queue)) == [[1]]


def test_keyless_messages_may_run_alone_each() -> None:
    """With keyless="concurrent" a message without a key waits for nobody."""
    queue = keyed(["a", None, "a", None], keyless="concurrent")
    assert offsets(take_all(queue)) == [[0], [1], [3]]


def test_what_the_map_has_is_not_handed_out_again() -> None:
    """After a hand-over what is done above the commit is left out."""
    done = FinishedMap(10)
    done.add(11)
    queue = keyed(["a", "a", "a"], base=10, finished=done)
    first = take_all(queue, batch=5)
    assert offsets(first) == [[10, 12]]
    queue.done(first[0], 0)
    assert queue.progress() == Progress(13)


def test_offsets_that_never_come_count_as_done() -> None:
    """What the tag filter or retention left out does not hold the commit back."""
    queue = keyed([])
    queue.put([message(4, "a")], 9)
    first = take_all(queue)
    assert queue.progress() == Progress(4)
    for work in first:
        queue.done(work, 0)
    assert queue.progress() == Progress(9)


def test_a_pull_that_overlaps_puts_nothing_in_twice() -> None:
    """What is here already is left out."""
    queue = keyed(["a", "b"])
    assert queue.put([message(1, "b"), message(2, "c")], 3)
    assert queue.count == 3
    assert offsets(take_all(queue)) == [[0], [1], [2]]
