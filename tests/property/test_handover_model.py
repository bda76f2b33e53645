"""Owners of a queue that come and go, clean or killed, at random: what was committed is not handled
again, what was not is not forgotten, and each key stays in order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.client.consume.rules.commits import Progress
from inorder.client.consume.rules.keyed import KeyOrder, Work
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import ReceivedMessage, TopicQueue
from inorder.ordering.finished import FinishedMap

QUEUE = TopicQueue("orders", "broker-a", 0)
KEYS = ["a", "b", "c", None]


class Owner:
    """One ownership of the queue, from the grant to the release."""

    def __init__(self, stored: Progress, *, keyed: bool) -> None:
        self.progress = QueueProgress(
            max(0, stored.offset),
            stored=stored,
            finished=FinishedMap.decode(stored.finished) if stored.finished else None,
            keys=KeyOrder(lambda m: m.key) if keyed else None,
        )
        self.running: list[Work | list[ReceivedMessage]] = []

    def pull(self, log: list[str | None], count: int) -> None:
        """Take the next messages in."""
        at = self.progress.pulled_to
        end = min(at + count, len(log))
        found = tuple(message(offset, log[offset]) for offset in range(at, end))
        self.progress.put(self.progress.without_finished(found), end)

    def start(self, batch: int) -> list[ReceivedMessage]:
        """Hand messages to a handler."""
        if self.progress.keys is not None:
            work = self.progress.take_work(0, batch=batch)
            if work is None:
                return []
            self.running.append(work)
            return list(work.messages)
        taken = [] if self.running else self.progress.take(batch, 0)
        if taken:
            self.running.append(taken)
        return taken

    def end(self, index: int) -> list[ReceivedMessage]:
        """A handler is done."""
        work = self.running.pop(index)
        if isinstance(work, Work):
            self.progress.done(work, 0)
            return list(work.messages)
        self.progress.commit()
        return work


def message(offset: int, key: str | None) -> ReceivedMessage:
    properties = {} if key is None else {"__SHARDINGKEY": key}
    return ReceivedMessage("orders", QUEUE, offset, b"x", properties, str(offset), 0, 0)


STEPS = ["pull", "start", "start", "end", "end", "commit", "kill", "hand over"]


@settings(deadline=None)  # it plays a story of several consumers
@given(st.lists(st.sampled_from(KEYS), min_size=1, max_size=25), st.data())
def test_owners_come_and_go(log, data) -> None:  # type: ignore[no-untyped-def]
    """P3, P4, P5 of the client's half, with both orders of handling in turns."""
    stored = Progress(-1)
    owner = Owner(stored, keyed=True)
    done: set[int] = set()
    committed: set[int] = set()
    for _ in range(300):
        if len(committed) == len(log):
            break
        step = data.draw(st.sampled_from(STEPS))
        if step == "pull":
            owner.pull(log, data.draw(st.integers(1, 10)))
        elif step == "start":
            for found in owner.start(data.draw(st.integers(1, 3))):
                assert found.offset not in committed, "it was done and committed"
        elif step == "end" and owner.running:
            for found in owner.end(data.draw(st.integers(0, len(owner.running) - 1))):
                earlier = {at for at in range(found.offset) if log[at] == log[found.offset]}
                assert earlier <= done, "an earlier one of its key is not done"
                done.add(found.offset)
        elif step in ("commit", "hand over"):
            if step == "hand over":
                while owner.running:
                    done |= {found.offset for found in owner.end(0)}
            numbered = owner.progress.next_commit()
            if numbered is not None:
                stored = numbered.progress
                owner.progress.committed(numbered)
            said = FinishedMap.decode(stored.finished or f"{max(0, stored.offset)}:0")
            now = {at for at in range(len(log)) if at in said}
            assert now <= done, "a commit passes what is not done"
            assert now >= committed, "a commit forgets what was committed"
            committed = now
            if step == "hand over":
                assert committed == done, "a clean hand-over leaves nothing to repeat"
        if step in ("kill", "hand over"):
            done = set(committed)
            owner = Owner(stored, keyed=data.draw(st.booleans()))
