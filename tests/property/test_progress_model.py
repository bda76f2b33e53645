"""The progress of a queue against sets of offsets: what a commit says, with any order of handling.

The queue has messages that the tags filter out, messages that an earlier owner has finished or
parked, and commits whose answers come late or never.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.client.consume.rules.commits import NumberedCommit, Progress
from inorder.client.consume.rules.keyed import KeyOrder, Work
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import ReceivedMessage, TopicQueue
from inorder.ordering.finished import FinishedMap

QUEUE = TopicQueue("orders", "broker-a", 0)
BASE = 7
STEPS = {"pull": 6, "take": 8, "done": 8, "again": 2, "commit": 4, "answer": 2, "parked": 1}


class Owner:
    """One owner of the queue, and what it has done by its own account."""

    def __init__(self, order: str, random: Random) -> None:
        self.order = order
        self.random = random
        earlier = FinishedMap(BASE)
        for _ in range(random.randint(0, 5)):
            earlier.add(BASE + random.randint(1, 30))
        self.known = {at for at in range(BASE, BASE + 99) if at in earlier}
        self.queue = QueueProgress(
            BASE,
            stored=Progress(BASE, earlier.above_text()),
            finished=earlier,
            keys=KeyOrder(lambda m: m.key) if order == "key" else None,
        )
        self.unfinished: set[int] = set()
        self.ordered: set[int] = set()  # with order="key": those that may become a work
        self.done: set[int] = set()
        self.running: list[Work | list[ReceivedMessage]] = []
        self.sent: list[NumberedCommit] = []
        self.numbers = 0
        self.accepted = 0

    def parked(self) -> None:
        """Learn what is parked: by an earlier owner, or by a request without an answer."""
        start = BASE + self.random.randint(0, 40)
        end = start + self.random.randint(1, 3)
        self.queue.done_elsewhere([(start, end)])
        self.known |= set(range(start, end))

    def pull(self) -> None:
        found, at = [], self.queue.pulled_to
        for _ in range(self.random.randint(0, 5)):
            at += self.random.choice([0, 0, 1, 3])
            found.append(message(at, self.random.choice("abc")))
            at += 1
        new = self.queue.without_finished(tuple(found))
        assert {one.offset for one in found} - {one.offset for one in new} <= self.known
        self.queue.put(new, at + self.random.choice([0, 0, 2]))
        self.unfinished |= {one.offset for one in found} - self.known

    def take(self) -> None:
        if self.order == "key":
            self.unfinished -= self.known - self.ordered
            self.ordered |= self.unfinished
            work = self.queue.take_work(0, batch=self.random.randint(1, 3))
            taken: list[ReceivedMessage] = [] if work is None else list(work.messages)
            self.running += [] if work is None else [work]
        elif self.order == "queue" and self.running:
            return
        else:
            taken = self.queue.take(self.random.randint(1, 3), 0)
            self.running += [taken] if taken else []
        assert {one.offset for one in taken} <= self.unfinished, "it is done already"

    def finish(self) -> None:
        work = self.running.pop(self.random.randrange(len(self.running)))
        messages = work.messages if isinstance(work, Work) else work
        if isinstance(work, Work):
            count = self.random.randint(1, len(messages))
            self.queue.done(work, 0, count)
            messages = messages[:count]
        elif self.order == "queue":
            self.queue.commit()
        else:
            self.queue.remove(messages, 0)
        self.done |= {one.offset for one in messages}
        self.unfinished -= self.done

    def again(self) -> None:
        work = self.running.pop(self.random.randrange(len(self.running)))
        if isinstance(work, Work):
            self.queue.again(work, 0)
        else:
            self.queue.make_again(work)

    def commit(self) -> None:
        commit = self.queue.next_commit()
        said = self.queue.progress()
        if commit is None:
            assert self.accepted
            assert said == self.queue.saved, "the broker does not know it"
            return
        self.numbers += 1
        assert (commit.number, commit.progress) == (self.numbers, said)
        self.sent.append(commit)

    def answer(self) -> None:
        commit = self.sent.pop(self.random.randrange(len(self.sent)))
        self.queue.committed(commit)
        if commit.number > self.accepted:
            self.accepted = commit.number
            assert self.queue.saved == commit.progress

    def check(self, before: int) -> None:
        queue, said = self.queue, self.queue.progress()
        committed = FinishedMap.decode(said.finished or f"{said.offset}:0")
        assert committed.base == said.offset
        open_ = self.unfinished - self.known
        assert not any(at in committed for at in open_), "it passes an unfinished message"
        assert all(at in committed for at in self.known), "it forgets an earlier owner"
        if self.order == "key":
            assert all(at in committed for at in self.done), "it forgets what is done"
        assert before <= queue.done_below <= queue.lowest <= queue.pulled_to
        assert not any(at < queue.done_below for at in open_)


def message(offset: int, key: str) -> ReceivedMessage:
    return ReceivedMessage("orders", QUEUE, offset, b"x", {"__SHARDINGKEY": key}, "", 0, 0)


@pytest.mark.parametrize("order", ["key", "queue", None])
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_commit_passes_no_unfinished_message_and_forgets_nothing(
    order: str | None, seed: int
) -> None:
    """P4 of the client's half. The offset only grows."""
    random = Random(seed)
    owner = Owner(order or "", random)
    for _ in range(80):
        before = owner.queue.done_below
        step = random.choices(list(STEPS), list(STEPS.values()))[0]
        match step:
            case "pull":
                owner.pull()
            case "take":
                owner.take()
            case "done" if owner.running:
                owner.finish()
            case "again" if owner.running:
                owner.again()
            case "commit":
                owner.commit()
            case "answer" if owner.sent:
                owner.answer()
            case "parked" if order == "key":
                owner.parked()
        owner.check(before)
