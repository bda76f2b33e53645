"""The progress of a queue against a list that does everything the slow way."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.client.consume.rules.queue import FlowControl, Limits, QueueProgress
from inorder.model import ReceivedMessage, TopicQueue

QUEUE = TopicQueue("orders", "broker-a", 0)


def message(offset: int, size: int = 1, redeliveries: int = 0) -> ReceivedMessage:
    return ReceivedMessage(
        "orders", QUEUE, offset, bytes(size), {}, f"id-{offset}", 0, 0, redeliveries
    )


class Model:
    """Offsets of messages, each with its size and state."""

    def __init__(self) -> None:
        self.unfinished: dict[int, int] = {}
        self.taken: set[int] = set()
        self.pulled_to = 0
        self.done_below = 0
        self.done: set[int] = set()

    @property
    def lowest(self) -> int:
        return min(self.unfinished, default=self.pulled_to)

    def finish(self, offsets: set[int]) -> None:
        self.done |= offsets
        self.taken -= offsets
        for offset in offsets:
            del self.unfinished[offset]


STEPS = {
    "put": 4, "repeat": 1, "take": 6, "commit": 1, "rollback": 1, "again": 2, "remove": 4,
}  # fmt: skip


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_it_does_what_a_plain_list_does(seed: int) -> None:
    """Counts, sizes, order of taking and what may be committed agree after every step."""
    random, queue, model = Random(seed), QueueProgress(0), Model()
    for _ in range(100):
        step = random.choices(list(STEPS), list(STEPS.values()))[0]
        some = {offset for offset in model.unfinished if random.random() < 0.4}
        picked = [message(offset, model.unfinished[offset]) for offset in some]
        random.shuffle(picked)
        match step:
            case "put":
                put(queue, model, random)
            case "repeat":  # the same pull answered twice
                below = [message(offset) for offset in range(model.pulled_to)]
                assert queue.put(below, model.pulled_to) is False
                if not model.unfinished:
                    model.done_below = model.pulled_to
            case "take":
                limit = random.randint(0, 4)
                expected = sorted(set(model.unfinished) - model.taken)[:limit]
                assert [one.offset for one in queue.take(limit, 0)] == expected
                model.taken |= set(expected)
            case "commit":
                queue.commit()
                model.done_below = max(model.taken, default=model.done_below - 1) + 1
                model.finish(set(model.taken))
            case "rollback":
                queue.rollback()
                model.taken.clear()
            case "again":
                queue.make_again(picked)
                model.taken -= some
            case _:
                queue.remove(picked, 0)
                if model.unfinished:
                    model.finish(some & model.taken)
                    model.done_below = model.lowest
        check(queue, model)


def put(queue: QueueProgress, model: Model, random: Random) -> None:
    found, offset = [], model.pulled_to
    for _ in range(random.randint(0, 5)):
        offset += random.choice([0, 0, 1, 3])
        found.append(message(offset, random.randint(0, 9)))
        offset += 1
    offset += random.choice([0, 0, 2])
    assert queue.put(found, offset) is bool(found)
    model.unfinished |= {one.offset: len(one.body) for one in found}
    model.pulled_to = offset
    if not model.unfinished:
        model.done_below = offset


def check(queue: QueueProgress, model: Model) -> None:
    assert queue.count == len(model.unfinished)
    assert queue.taken == len(model.taken)
    assert queue.waiting == len(model.unfinished) - len(model.taken)
    assert queue.size_bytes == sum(model.unfinished.values())
    assert queue.pulled_to == model.pulled_to
    assert queue.lowest == model.lowest
    assert queue.done_below == model.done_below
    span = max(model.unfinished) - min(model.unfinished) if model.unfinished else 0
    assert queue.span == span
    full = queue.flow_control(Limits(messages_max=3, span_max=4), ordered=False)
    assert (full is FlowControl.COUNT) == (len(model.unfinished) > 3)
    if len(model.unfinished) <= 3:
        assert (full is FlowControl.SPAN) == (span > 4)
