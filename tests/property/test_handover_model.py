"""Owners of a queue that come and go, clean or killed, at random: what was committed is not handled
again, what was not is not forgotten, and each key stays in order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.rules.commits import CommitSequence, Progress
from inorder.client.consume.rules.keyed import KeyedQueue, Work
from inorder.client.consume.rules.leases import LeaseState, Terms
from inorder.client.consume.rules.queue import Limits, ProcessQueue
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.ordering.finished import FinishedMap

QUEUE = TopicQueue("orders", "broker-a", 0)
KEYS = ["a", "b", "c", None]


class Owner:
    """One ownership of the queue, from the grant to the release."""

    def __init__(self, stored: Progress, epoch: int, *, keyed: bool) -> None:
        offset = max(0, stored.offset)
        finished = FinishedMap.decode(stored.finished) if stored.finished else FinishedMap(offset)
        keys = KeyedQueue(offset, key_of=lambda m: m.key, finished=finished) if keyed else None
        self.assigned = AssignedQueue(
            QUEUE,
            subscription=Subscription("orders"),
            lease=LeaseState(QUEUE, now_ms=0, lock_sent_ms=0, epoch=epoch, terms=Terms(5000, 1000)),
            cache=ProcessQueue(offset),
            limits=Limits(),
            ordered=True,
            keys=keys,
            needs_lock=True,
            on_drop=lambda _: None,
        )
        if keys is None and finished.span:
            self.assigned.begin_with(finished)
        self.commits = CommitSequence(stored)
        self.noted = offset
        self.running: list[Work | list[ReceivedMessage]] = []

    def pull(self, log: list[str | None], count: int) -> None:
        """Take the next messages in."""
        cache = self.assigned.cache
        end = min(cache.pulled_to + count, len(log))
        found = tuple(message(at, log[at]) for at in range(cache.pulled_to, end))
        cache.put(self.assigned.not_done(found), end)
        if not cache.count:
            self.noted = cache.pulled_to

    def start(self, batch: int) -> list[ReceivedMessage]:
        """Hand messages to a handler."""
        cache, keys = self.assigned.cache, self.assigned.keys
        if keys is None:
            taken = [] if self.running else cache.take(batch, 0)
            if taken:
                self.running.append(taken)
            return taken
        taken = cache.take_below(keys.room_to, 0)
        if taken:
            keys.put(taken, taken[-1].offset + 1)
        work = keys.take(0, batch=batch)
        if work is None:
            return []
        self.running.append(work)
        return list(work.messages)

    def end(self, index: int) -> list[ReceivedMessage]:
        """A handler is done."""
        work = self.running.pop(index)
        messages = list(work.messages) if isinstance(work, Work) else work
        if isinstance(work, Work):
            assert self.assigned.keys is not None
            self.assigned.keys.done(work)
        offset = self.assigned.cache.remove(messages, 0)
        assert offset is not None
        self.noted = offset
        return messages

    def progress(self) -> Progress:
        """Return what a commit says now."""
        return self.assigned.progress(self.noted)


def message(offset: int, key: str | None) -> ReceivedMessage:
    properties = {} if key is None else {"__SHARDINGKEY": key}
    return ReceivedMessage("orders", QUEUE, offset, b"x", properties, str(offset), 0, 0)


STEPS = ["pull", "start", "start", "end", "end", "commit", "kill", "hand over"]


@settings(deadline=None)  # it plays a story of several consumers
@given(st.lists(st.sampled_from(KEYS), min_size=1, max_size=25), st.data())
def test_owners_come_and_go(log, data) -> None:  # type: ignore[no-untyped-def]
    """P3, P4, P5 of the client's half, with both orders of handling in turns."""
    stored, epoch = Progress(-1), 1
    owner = Owner(stored, epoch, keyed=True)
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
            numbered = owner.commits.next(owner.progress())
            if numbered is not None:
                stored = numbered.progress
                owner.commits.taken(numbered)
            said = FinishedMap.decode(stored.finished or f"{max(0, stored.offset)}:0")
            now = {at for at in range(len(log)) if at in said}
            assert now <= done, "a commit passes what is not done"
            assert now >= committed, "a commit forgets what was committed"
            committed = now
            if step == "hand over":
                assert committed == done, "a clean hand-over leaves nothing to repeat"
        if step in ("kill", "hand over"):
            done = set(committed)
            epoch += 1
            owner = Owner(stored, epoch, keyed=data.draw(st.booleans()))
