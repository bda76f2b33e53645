"""Keys that change their queue: their state goes along, also while they wait."""

from __future__ import annotations

from random import Random

import pytest

from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.spark.ordered.records import (
    CannotMove,
    Past,
    Version,
    following,
    map_at,
    move,
    must_move,
    restored,
)
from inorder.spark.ordered.rules import Again, Done, Keys, Limits, OrderedMessage, Work
from inorder.spark.source.rules import SourceSpan, finished, unread, withheld


def maps_of(counts: list[int]) -> dict[int, KeyMap]:
    return {
        version: KeyMap.of(version, [("b", index) for index in range(count)])
        for version, count in enumerate(counts, 1)
    }


class Topic:
    """A query over a topic that is resized now and then, as files would hold it."""

    def __init__(self, random: Random, counts: list[int]) -> None:
        self.random, self.maps = random, maps_of(counts)
        self.files: dict[int, dict[int, Version]] = {}
        self.effects: dict[str, list[int]] = {}
        self.sent: dict[str, int] = {}
        self.offsets: dict[int, int] = {}
        self.blocked: set[str] = set()
        self.now_ms = 0

    def handle(self, message: OrderedMessage, state: bytes | None) -> Done | Again:
        if message.key in self.blocked:
            return Again(0, "blocked")
        assert message.key is not None
        before = 0 if state is None else int(state)
        number = int(message.body)
        assert number == before, f"{message.key}: {number} with the state {before}"
        self.effects.setdefault(message.key, []).append(number)
        return Done(b"%d" % (number + 1))

    def past(self, index: int, batch: int) -> Past | None:
        found = self.files.get(index, {})
        newest = max((one for one in found if one < batch), default=None)
        if newest is None:
            return None
        parts = [found[one] for one in found[newest].chain]
        keys = restored(parts)
        # As read from a file: nothing is shared with what others hold.
        keys.held = {key: type(line)(list(line.messages), line.due_ms, line.cause, line.left_in)
                     for key, line in keys.held.items()}  # fmt: skip
        return Past(found[newest], keys)

    def batch(self, number: int, version: int, names: list[str]) -> None:
        by_queue: dict[int, list[OrderedMessage]] = {}
        for name in names:
            index = self.maps[version].queue(name)[1]
            at = self.offsets.get(index, 0)
            body = b"%d" % self.sent.get(name, 0)
            by_queue.setdefault(index, []).append(OrderedMessage("t", "b", index, at, name, body))
            self.offsets[index] = at + 1
            self.sent[name] = self.sent.get(name, 0) + 1
        made = {}
        for index, messages in by_queue.items():
            own = self.past(index, number)
            keys = Keys() if own is None else own.keys
            pasts = {("b", one): past for one in self.files
                     if (past := self.past(one, number)) is not None}  # fmt: skip
            before, left = None if own is None else own.version, []
            if must_move(before, (past.version for past in pasts.values()), version):
                left = move(("b", index), keys, pasts, self.maps, version)
            work = Work(keys, self.handle, Limits(10**9, 0, 10**6), lambda: self.now_ms)
            work.try_due()
            work.take(messages)
            made[index] = following(
                before, keys, [], batch=number, first=messages[0].offset,
                last=messages[-1].offset, map_version=version, left=left,
            )  # fmt: skip
        for index, one in made.items():
            self.files.setdefault(index, {})[number] = one


@pytest.mark.parametrize("seed", range(40))
def test_states_follow_their_keys_through_any_resizes(seed: int) -> None:
    """Idle queues, keys that return, keys that wait while they move: each in order, each once."""
    random = Random(seed)
    counts = [random.randrange(1, 9) for _ in range(random.randrange(2, 6))]
    topic = Topic(random, counts)
    names = [f"key-{index}" for index in range(12)]
    number = 0
    for version in topic.maps:
        for _ in range(random.randrange(1, 4)):
            topic.blocked = {name for name in names if random.random() < 0.2}
            topic.batch(number, version, random.choices(names, k=random.randrange(1, 10)))
            number += 1
    topic.blocked = set()
    for _ in range(2):
        topic.batch(number, len(counts), names)  # every queue that has a key runs
        number += 1
    assert topic.effects == {name: list(range(count)) for name, count in topic.sent.items()}


def test_messages_behind_a_barrier_cannot_move() -> None:
    """It is said, not guessed."""
    keys = Keys(behind=[OrderedMessage("t", "b", 0, 1)])
    with pytest.raises(CannotMove, match="without a key"):
        move(("b", 0), keys, {}, maps_of([1, 2]), 2)


def test_which_map_placed_a_message() -> None:
    """The first version whose end lies behind it; else the present one."""
    over = [(1, 10), (2, 10), (3, 20)]
    assert [map_at(at, over, 4) for at in (0, 9, 10, 19, 20)] == [1, 1, 3, 3, 4]
    assert map_at(5, [], 0) == 0


def test_a_version_is_read_to_its_end_in_all_queues_before_the_next() -> None:
    """Queues of the next one wait, as far as they are known."""
    a, b, c = (TopicQueue("t", "b", index) for index in range(3))
    other = TopicQueue("u", "b", 0)
    spans = [SourceSpan("t", 2, {a: 15, b: 9, c: 5}), SourceSpan("t", 1, {a: 10, b: 5})]
    ends = {a: 30, b: 30, c: 30, other: 30}
    for start, expected in [
        ((0, 0, 0), (10, 5, 0)),
        ((10, 4, 0), (10, 5, 0)),
        ((10, 5, 0), (15, 9, 5)),
        ((15, 9, 4), (15, 9, 5)),
        ((15, 9, 5), (30, 30, 30)),
    ]:
        found = withheld({**dict(zip((a, b, c), start, strict=True)), other: 0}, ends, spans)
        assert tuple(found[queue] for queue in (a, b, c)) == expected
        assert found[other] == 30
    assert unread({a: 15, b: 9}, {a: 30, b: 30}, spans) == {c: 5}
    assert unread({a: 15, b: 9, c: 5}, {a: 30, b: 30}, spans) == {}
    assert finished({a: 15, b: 9, c: 4}, {b: 30}, spans) == {a: 15}, "c was not read to its end"
    found = withheld({a: 15, b: 9}, {a: 30, b: 30}, spans)
    assert found == {a: 15, b: 9}, "c has messages of span 2, and is not known yet"
