"""Who is handled and who waits: the rules of `process_in_order`, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.client.consume.rules.outcomes import ATTEMPTS_MAX, Retry
from inorder.spark.ordered.records import (
    CHAIN_MAX,
    Version,
    following,
    newest_below,
    producer_name,
    removable,
    restored,
)
from inorder.spark.ordered.rules import (
    Again,
    BadResult,
    Done,
    Hole,
    Keys,
    Limits,
    OrderedMessage,
    OutOfOrder,
    TooManyWait,
    Work,
    adapted,
    check_run,
    sequence,
)


class Story:
    """A queue whose messages are words like `a1`: key a, first message. `-1` has no key."""

    def __init__(self, *, failing: dict[str, int] | None = None, attempts: int = ATTEMPTS_MAX,
                 waiting_max: int = 100) -> None:  # fmt: skip
        self.failing = failing or {}
        self.now_ms = 0
        self.handled: list[str] = []
        self.offset = 0
        limits = Limits(attempts, 1000, waiting_max)
        self.work = Work(Keys(), self._handle, limits, lambda: self.now_ms)

    def _handle(self, message: OrderedMessage, state: bytes | None) -> Done | Again:
        name = message.body.decode()
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            return Again(None, f"{name} failed")
        self.handled.append(name)
        return Done((state or b"") + name[1:].encode(), [(name,)])

    def take(self, text: str) -> None:
        for name in text.split():
            key = None if name[0] == "-" else name[0]
            self.work.take([OrderedMessage("t", "b", 0, self.offset, key, name.encode())])
            self.offset += 1

    def later(self, ms: int = 1000) -> None:
        self.now_ms += ms
        self.work.try_due()


def test_without_failures_everything_is_handled_as_it_comes() -> None:
    """In order, with the state of each key, a row each."""
    story = Story()
    story.take("a1 b1 a2 b2 a3")
    assert story.handled == ["a1", "b1", "a2", "b2", "a3"]
    assert story.work.keys.states == {"a": b"123", "b": b"12"}
    assert story.work.rows == [("a1",), ("b1",), ("a2",), ("b2",), ("a3",)]
    assert story.work.keys.next_offset == 5


def test_a_key_that_waits_holds_only_itself() -> None:
    """Its later messages join it; when it is due they follow in order."""
    story = Story(failing={"a1": 2})
    story.take("a1 b1 a2 b2")
    assert story.handled == ["b1", "b2"]
    story.later(999)
    assert story.handled == ["b1", "b2"]
    story.later(1)
    story.take("a3")
    story.later()
    assert story.handled == ["b1", "b2", "a1", "a2", "a3"]
    assert story.work.keys.states["a"] == b"123"
    assert story.work.keys.held == {}


def test_a_second_message_of_a_line_may_wait_in_turn() -> None:
    """What follows it stays behind it."""
    story = Story(failing={"a1": 1, "a2": 1})
    story.take("a1 a2 a3")
    story.later()
    assert story.handled == ["a1"]
    story.later()
    assert story.handled == ["a1", "a2", "a3"]


def test_after_its_attempts_a_message_is_a_dead_letter_and_its_key_goes_on() -> None:
    """As with a consumer: the first try is not counted."""
    story = Story(failing={"a1": 9}, attempts=2)
    story.take("a1 a2 b1")
    story.later()
    story.later()
    assert story.handled == ["b1", "a2"]
    (letter,) = story.work.letters
    assert (letter.message.body, letter.message.attempt, letter.cause) == (b"a1", 3, "a1 failed")


def test_no_attempts_is_a_dead_letter_at_once() -> None:
    """DeadLetter(attempts=0)."""
    story = Story(failing={"a1": 1}, attempts=0)
    story.take("a1 a2")
    assert story.handled == ["a2"]
    assert len(story.work.letters) == 1


def test_a_message_without_a_key_is_a_barrier() -> None:
    """It waits for every key that waits, and what comes behind it waits for it."""
    story = Story(failing={"a1": 1, "-2": 1})
    story.take("a1 b1 -1 b2 -2 a2 c1")
    assert story.handled == ["b1"]
    story.later()
    assert story.handled == ["b1", "a1", "-1", "b2"]
    story.later()
    assert story.handled == ["b1", "a1", "-1", "b2", "-2", "a2", "c1"]
    assert story.work.keys.waiting == 0


def test_too_many_that_wait_stop_the_batch() -> None:
    """With the reason of the first."""
    story = Story(failing={"a1": 1}, waiting_max=3)
    with pytest.raises(TooManyWait, match="a1 failed"):
        story.take("a1 a2 a3 a4")


def test_a_failed_attempt_leaves_the_state_alone() -> None:
    """Also if the handler changed its copy before it failed."""
    seen: list[Any] = []

    def handler(message: OrderedMessage, state: Any) -> Any:
        state = state or {"n": 0}
        state["n"] += 1
        seen.append(state["n"])
        if message.attempt == 1 and message.offset == 1:
            raise Retry(after=0)
        return state, []

    work = Work(Keys(), adapted(handler, ["n"]), Limits(9), lambda: 0)
    work.take([OrderedMessage("t", "b", 0, at, "k") for at in range(2)])
    work.try_due()
    assert seen == [1, 2, 2]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (7, "returns"),
        (({}, [{"m": 1}]), "no column 'm'"),
        (({}, [1]), "is no row"),
        (({}, [(1, 2)]), "is no row"),
        ((object(), []), "cannot be kept"),
    ],
)
def test_a_wrong_result_stops_the_query(result: Any, says: str) -> None:
    """It is a mistake in the code, not a bad message."""
    with pytest.raises(BadResult, match=says):
        adapted(lambda message, state: result, ["n"])(OrderedMessage("t", "b", 0, 0), None)


@pytest.mark.parametrize(
    ("expected", "offsets", "missing"),
    [(None, [5, 6, 7], 0), (5, [5, 6], 0), (0, [], 0), (5, [7, 8], 2), (5, [5, 9], 3)],
)
def test_offsets_follow_each_other(expected: int | None, offsets: list[int], missing: int) -> None:
    """Holes are counted if they are meant, and refused if not."""
    assert check_run("q", expected, offsets, holes_allowed=True) == missing
    if missing:
        with pytest.raises(Hole, match="holes=True"):
            check_run("q", expected, offsets, holes_allowed=False)


@pytest.mark.parametrize("offsets", [[4, 5], [5, 5], [5, 7, 6], [6, 5]])
def test_offsets_that_go_back_are_refused(offsets: list[int]) -> None:
    """Whether or not holes are meant."""
    with pytest.raises(OutOfOrder):
        check_run("q", 5, offsets, holes_allowed=True)


def test_numbers_ascend_with_batch_and_row() -> None:
    """And have an end."""
    assert sequence(0, 1) < sequence(1, 0) < sequence(1, 1)
    with pytest.raises(ValueError, match="no number"):
        sequence(1, 1 << 32)


def test_versions_build_on_each_other() -> None:
    """Whatever is whole or part: what is read is what was there."""
    story = Story(failing={"z1": 10**6})
    story.take("z1 " + " ".join(f"{chr(97 + at % 20)}1" for at in range(200)))
    version: Version | None = None
    kept: dict[int, Version] = {}
    for batch in range(100):
        story.work.keys.changed.clear()
        story.take(f"{chr(97 + batch % 5)}{batch % 10}")
        if batch % 7 == 0:
            story.work.keys.states.pop("t", None)
            story.work.keys.changed.add("t")
        if batch % 7 == 3:
            story.take("t5")
        version = following(version, story.work.keys, [], batch=batch, first=0, last=story.offset)
        kept[batch] = version
        found = restored([kept[one] for one in version.chain])
        assert found.states == story.work.keys.states
        assert found.held == story.work.keys.held
        assert found.next_offset == story.work.keys.next_offset
        assert len(version.chain) <= CHAIN_MAX
    assert {len(one.chain) for one in kept.values()} > {1, 2, 3}


def test_which_versions_are_needed() -> None:
    """The newest below a batch, however long ago; older chains are removed."""
    assert newest_below([3, 5, 9], 9) == 5
    assert newest_below([9], 9) is None
    assert removable([1, 2, 3, 4, 9], [[4], [2, 3]], 4) == [1]


def test_names_of_producers_fit() -> None:
    """A long topic is named by its digest."""
    assert producer_name("spark", "q" * 36, "t:b:1", "d" * 32) == "spark:" + "q" * 36 + ":t:b:1"
    assert producer_name("spark", "q" * 36, "t" * 127, "d" * 32).endswith("d" * 32)
