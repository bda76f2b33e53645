"""Keys that are parked and redriven: the rules of `process_in_order`, message by message."""

from __future__ import annotations

from inorder.client.consume.rules.outcomes import Retry
from inorder.spark.ordered.records import following, restored
from inorder.spark.ordered.rules import (
    Again,
    Done,
    Keys,
    Limits,
    OrderedMessage,
    ParkedKeys,
    ParkedList,
    Work,
    adapted,
)

HOME = ("b", 0)


class Story:
    """A queue whose messages are words like `a1`: key a, first message. `-1` has no key."""

    def __init__(self, *, failing: dict[str, int] | None = None, attempts: int = 0,
                 parked: str = "", room: str = "", first: int = 0) -> None:  # fmt: skip
        self.failing = failing or {}
        self.waits: set[str] = set()
        self.now_ms = 0
        self.handled: list[str] = []
        self.offset = first
        self.room = room
        self.keys = Keys()
        self.limits = Limits(attempts, 1000, 100, parks=True)
        self.begin(parked)

    def begin(self, parked: str = "") -> None:
        """Begin another batch."""
        asides = ParkedKeys(HOME, parked.split(), first=self.offset, room=lambda: self.room)
        self.work = Work(self.keys, self._handle, self.limits, lambda: self.now_ms, asides)
        self.work.try_due()

    def _handle(self, message: OrderedMessage, state: bytes | None) -> Done | Again:
        name = message.body.decode()
        if name in self.waits:
            return Again(None, "wait", failed=False)
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            return Again(None, f"{name} failed")
        self.handled.append(name)
        return Done((state or b"") + name[1:].encode(), [(name,)])

    def message(self, name: str, offset: int, queue: int = 0) -> OrderedMessage:
        return OrderedMessage("t", "b", queue, offset, None if name[0] == "-" else name[0],
                              name.encode())  # fmt: skip

    def take(self, text: str) -> None:
        for name in text.split():
            self.work.take([self.message(name, self.offset)])
            self.offset += 1

    def redrive(self, names: str, *, whole: bool = True, most: int = 100) -> None:
        """Handle the list of key a again, its messages being the offsets from 0 on."""
        messages = [self.message(name, at) for at, name in enumerate(names.split())]
        left = iter([True] * most)
        self.work.redrive(
            "a", [ParkedList(HOME, None, messages, whole)], 9, lambda: next(left, False)
        )

    @property
    def aside(self) -> list[tuple[int, str, bool]]:
        return [(one.offset, one.key, one.error is not None) for one in self.work.parked.items]

    def later(self) -> None:
        self.now_ms += 1000
        self.work.try_due()


def test_a_key_that_fails_is_parked_with_its_later_messages() -> None:
    """Other keys go on; the state stays as it was before the message."""
    story = Story(failing={"a2": 9})
    story.take("a1 a2 b1 a3 b2 a4")
    assert story.handled == ["a1", "b1", "b2"]
    assert story.aside == [(1, "a", True), (3, "a", False), (5, "a", False)]
    first = story.work.parked.items[0]
    assert (first.tries, first.error, first.message) == (1, "a2 failed", None)
    assert story.keys.states == {"a": b"1", "b": b"12"}
    assert story.keys.waiting == 0
    assert story.work.letters == []


def test_tries_come_first_and_the_line_follows() -> None:
    """After its attempts the key is parked, with those that waited behind it, in order."""
    story = Story(failing={"a1": 9}, attempts=2)
    story.take("a1 a2 b1")
    story.later()
    assert story.aside == []
    story.later()
    assert story.aside == [(0, "a", True), (1, "a", False)]
    assert story.work.parked.items[0].tries == 3
    story.take("a3")
    assert story.aside[-1] == (3, "a", False)
    assert story.handled == ["b1"]


def test_a_line_of_an_earlier_batch_brings_its_messages_along() -> None:
    """They lie below what the group has committed, and their broker may not have them any more."""
    story = Story(failing={"a1": 9}, attempts=1)
    story.take("a1 a2")
    story.begin()
    story.take("b1 a3")
    story.later()
    assert story.aside == [(0, "a", True), (1, "a", False), (3, "a", False)]
    kept = [one.message for one in story.work.parked.items]
    assert [one and one.body for one in kept] == [b"a1", b"a2", None]


def test_parked_keys_stay_parked_in_later_batches() -> None:
    """Their messages are not handled, whatever they are."""
    story = Story(parked="a c")
    story.take("a5 b1 c1 a6")
    assert story.handled == ["b1"]
    assert story.aside == [(0, "a", False), (2, "c", False), (3, "a", False)]


def test_retry_is_no_try() -> None:
    """It holds the key for ever and leaves the number of its attempt, as with a consumer."""
    seen: list[int] = []

    def handler(message: OrderedMessage, state: object) -> object:
        seen.append(message.attempt)
        if len(seen) < 4:
            raise Retry
        raise ValueError("no")

    work = Work(Keys(), adapted(handler, ["n"]), Limits(1, 0, 100, parks=True), lambda: 0,
                ParkedKeys(HOME))  # fmt: skip
    work.take([OrderedMessage("t", "b", 0, 0, "a")])
    for _ in range(4):
        work.try_due()
    assert seen == [1, 1, 1, 1, 2]
    assert [one.error for one in work.parked.items] == ["ValueError: no"]


def test_a_message_that_cannot_be_parked_blocks() -> None:
    """A message without a key, one that a resize brought, and any when there is no room."""
    story = Story(failing={"-1": 2})
    story.take("-1 b1")
    assert (story.aside, story.handled) == ([], [])
    assert "without a key" in story.keys.held[None].cause
    story.later()
    story.later()
    assert story.handled == ["-1", "b1"]

    story = Story(failing={"a1": 2})
    story.work.take([story.message("a1", 7, queue=3)])
    assert "resized" in story.keys.held["a"].cause

    story = Story(failing={"a1": 2}, parked="c", room="10 keys are parked")
    story.take("a1 c1 b1 c2 a2")
    assert (story.aside, story.handled) == ([], ["b1"])
    assert story.keys.held["a"].cause == "a1 failed; 10 keys are parked"
    assert [one.body for one in story.keys.held["c"].messages] == [b"c1", b"c2"]
    story.room = ""
    story.now_ms += 1000
    story.begin("c")
    assert story.aside == [(0, "a", True), (4, "a", False), (1, "c", False), (3, "c", False)]
    assert story.keys.waiting == 0


def test_a_redriven_key_goes_live_in_the_batch() -> None:
    """Its list comes first, with its state; what follows in the batch is handled as ever."""
    story = Story(parked="a", first=20)
    story.keys.states["a"] = b"0"
    story.redrive("a1 a2")
    story.take("b1 a3")
    assert story.handled == ["a1", "a2", "b1", "a3"]
    assert story.keys.states["a"] == b"0123"
    (redone,) = story.work.parked.redone.values()
    assert (redone.live, redone.error, redone.end) == (True, None, 9)
    assert [(one.done, one.closed) for one in redone.lists] == [([0, 1], True)]
    assert story.aside == []


def test_a_redrive_that_fails_leaves_the_key_parked() -> None:
    """What was done is done, the rest stays, later messages join it."""
    story = Story(parked="a", failing={"a2": 1}, first=20)
    story.redrive("a1 a2 a3")
    story.take("a4")
    assert story.handled == ["a1"]
    (redone,) = story.work.parked.redone.values()
    assert (redone.live, redone.error) == (False, "a2 failed")
    assert redone.lists[0].done == [0]
    assert story.aside == [(20, "a", False)]


def test_a_redrive_may_take_several_batches() -> None:
    """After Retry, when its time is over, and when there is more than one batch reads."""
    for story, more in (
        (Story(parked="a", first=20), {"most": 1}),
        (Story(parked="a", first=20), {"whole": False}),
        (waiting := Story(parked="a", first=20), {}),
    ):
        waiting.waits = {"a2"}
        story.redrive("a1" if "whole" in more else "a1 a2", **more)  # type: ignore[arg-type]
        story.take("a3")
        (redone,) = story.work.parked.redone.values()
        assert (redone.live, redone.error, redone.lists[0].done) == (False, None, [0])
        assert story.aside == [(20, "a", False)]


def test_a_key_may_fail_again_in_the_batch_in_which_it_went_live() -> None:
    """Then it was never live for the broker: the redrive is over, with the new error."""
    story = Story(parked="a", failing={"a3": 1}, first=20)
    story.redrive("a1 a2")
    story.take("a3 a4")
    (redone,) = story.work.parked.redone.values()
    assert (redone.live, redone.error) == (False, "a3 failed")
    assert story.aside == [(20, "a", True), (21, "a", False)]


def test_an_empty_list_lets_its_key_go() -> None:
    """An operator dropped it: nothing is handled, the key is live."""
    story = Story(parked="a", first=20)
    story.redrive("")
    story.take("a1")
    assert story.handled == ["a1"]


def test_older_lists_come_first() -> None:
    """Those of queues that the key lived in before resizes; an unfinished one ends the redrive."""
    story = Story(parked="a", failing={"a3": 1}, first=20)
    lists = [
        ParkedList(("b", 5), HOME, [story.message("a1", 3, queue=5)]),
        ParkedList(HOME, None, [story.message("a2", 4), story.message("a3", 5)]),
    ]
    story.work.redrive("a", lists, 5, lambda: True)
    (redone,) = story.work.parked.redone.values()
    assert [(one.home, one.successor, one.done, one.closed) for one in redone.lists] == [
        (("b", 5), HOME, [3], True), (HOME, None, [4], False),
    ]  # fmt: skip
    assert [one.queue for one in story.work.origins] == [5, 0]


def test_what_was_decided_is_kept() -> None:
    """A version holds what is parked and redone, as it is read again."""
    story = Story(failing={"b1": 9}, parked="a", first=20)
    story.redrive("a1")
    story.take("b1 b2")
    version = following(None, story.keys, [], story.work.parked, batch=1, first=20, last=21)
    assert [one.offset for one in version.asides] == [20, 21]
    assert [one.key for one in version.redone] == ["a"]
    assert restored([version]).held == {}
