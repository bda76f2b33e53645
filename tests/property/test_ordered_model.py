"""Ordered consumers, a broker with locks, and time: nobody overtakes, nothing is skipped.

The consumers are made of the pure decisions alone: lease state, progress, `before_batch`,
`after_batch`, `release_steps`, renewals. The broker is ten lines: one lock that lives for 60 s, one
offset, a log. A schedule is a row of small steps of anybody, from a seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inorder.client.consume.rules.assignment import Release, apply_renewal, release_steps, to_renew
from inorder.client.consume.rules.commits import Progress
from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.outcomes import (
    ATTEMPTS_MAX,
    Outcome,
    Run,
    Stop,
    after_batch,
    before_batch,
)
from inorder.client.consume.rules.pulls import PullNow, PullStatus, after_pull, before_pull
from inorder.client.consume.rules.queue import Limits, QueueProgress
from inorder.model import ReceivedMessage, TopicQueue

QUEUE = TopicQueue("orders", "broker-a", 0)
MESSAGES = 120
LOCK_MS = 60_000


@dataclass
class Broker:
    """One lock, one offset, one log."""

    now_ms: int = 0
    owner: str = ""
    locked_at_ms: int = 0
    offset: int = 0
    first: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    succeeded: Counter[int] = field(default_factory=Counter)

    def lock(self, who: str) -> bool:
        if self.owner in ("", who) or self.now_ms - self.locked_at_ms > LOCK_MS:
            self.owner, self.locked_at_ms = who, self.now_ms
            return True
        return False

    def unlock(self, who: str) -> None:
        if self.owner == who:
            self.owner = ""

    def commit(self, offset: int) -> None:
        assert self.succeeded.keys() >= set(range(self.offset, offset)), "passes what is not done"
        assert offset >= self.offset, "moves back"
        self.offset = offset


class Consumer:
    """One process: at most one lease state of the queue, at most one handler in it."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.lease: LeaseState | None = None
        self.progress = QueueProgress(0)
        self.batch: list[ReceivedMessage] = []
        self.releasing: list[Release] = []

    def begin(self) -> None:
        if self.lease is None and self.broker.lock(self.name):
            now_ms = self.broker.now_ms
            self.lease = LeaseState(QUEUE, now_ms=now_ms, lock_sent_ms=now_ms)
            self.progress = QueueProgress(self.broker.offset, stored=Progress(self.broker.offset))

    def renew(self) -> None:
        if self.lease is not None and to_renew({QUEUE: self.lease}):
            granted = {QUEUE} if self.broker.lock(self.name) else set()
            now_ms = self.broker.now_ms
            apply_renewal({QUEUE: self.lease}, [QUEUE], granted, sent_ms=now_ms, now_ms=now_ms)

    def pull(self) -> None:
        if self.lease is None:
            return
        asked = before_pull(
            self.progress,
            self.lease,
            limits=Limits(messages_max=4),
            now_ms=self.broker.now_ms,
            ordered=True,
            needs_lock=True,
        )
        if isinstance(asked, PullNow):
            end = min(asked.offset + 3, MESSAGES)
            found = [
                ReceivedMessage("orders", QUEUE, offset, b"", {}, "", 0, 0)
                for offset in range(asked.offset, end)
            ]
            after_pull(self.progress, self.lease, PullStatus.FOUND, found, max(end, asked.offset))

    def handle(self, size: int) -> None:
        if self.lease is None or self.batch:
            return
        now_ms = self.broker.now_ms
        before = before_batch(self.lease, now_ms=now_ms, began_ms=now_ms, needs_lock=True)
        if isinstance(before, Run):
            self.batch = self.progress.take(size, now_ms)
        if self.batch:
            assert self.broker.owner == self.name, "handles without the lock"
            self.lease.enter()
            for message in self.batch:
                if message.offset not in self.broker.seen:
                    self.broker.seen.add(message.offset)
                    self.broker.first.append(message.offset)

    def end(self, outcome: Outcome) -> None:
        if not self.batch or self.lease is None:
            return
        batch, self.batch = self.batch, []
        self.lease.leave()
        if outcome is not Outcome.SUSPEND:
            self.broker.succeeded.update(message.offset for message in batch)
        steps = after_batch(
            self.progress,
            self.lease,
            batch,
            outcome,
            now_ms=self.broker.now_ms,
            needs_lock=True,
            redeliveries_max=ATTEMPTS_MAX,
        )
        assert (self.lease.dropped is None) == (not any(isinstance(s, Stop) for s in steps))

    def save(self) -> None:
        if self.lease is None or self.progress.is_saved:
            return
        if self.lease.may_commit(self.broker.now_ms, needs_lock=True):
            self.broker.commit(self.progress.offset)
            self.progress.saved = Progress(self.progress.offset)

    def drop(self) -> None:
        if self.lease is not None:
            self.lease.drop(RevokeReason.MOVED)

    def release(self) -> None:
        """Do one step of the release; others may do something before the next one."""
        if self.lease is None or self.lease.dropped is None:
            return
        if not self.releasing:
            self.releasing = list(release_steps(self.lease, commit=not self.progress.is_saved))
        match self.releasing.pop(0):
            case Release.COMMIT:
                self.save()
            case Release.UNLOCK:
                self.broker.unlock(self.name)
            case Release.FORGET:
                self.lease.released()
                self.lease = None


# What a consumer does, and how often: mostly work, some trouble.
WORK = {"begin": 2, "pull": 2, "handle": 4, "end": 3, "fail": 1, "save": 1, "release": 4, "drop": 1}
ROUNDS = 500


def step_of(consumer: Consumer, random: Random) -> None:
    match random.choices(list(WORK), list(WORK.values()))[0]:
        case "handle":
            consumer.handle(random.randint(1, 3))
        case "end":
            consumer.end(Outcome.SUCCESS)
        case "fail":
            consumer.end(Outcome.SUSPEND)
        case step:
            getattr(consumer, step)()


def finish(broker: Broker, consumers: list[Consumer]) -> None:
    """Let everybody go in peace, then one of them do the rest."""
    for consumer in consumers:
        consumer.end(Outcome.SUCCESS)
        consumer.drop()
        for _ in Release:
            consumer.release()
        assert consumer.lease is None
    broker.now_ms += LOCK_MS + 1
    last = consumers[0]
    last.begin()
    for _ in range(2 * MESSAGES):
        last.pull()
        last.handle(3)
        last.end(Outcome.SUCCESS)
        last.save()
    assert broker.offset == MESSAGES
    assert broker.first == sorted(broker.first) == list(range(MESSAGES))


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 2**32))
@example(6857554)  # a member thaws and renews a lock that another one had and gave back
def test_order_survives_any_schedule(seed: int) -> None:
    """Members freeze; locks expire under handlers, are lost and come back. First deliveries are in
    order, handlers start under the lock, the offset passes nothing unfinished nor moves back."""
    random, broker = Random(seed), Broker()
    consumers = [Consumer(name, broker) for name in "abc"]
    frozen: Consumer | None = None
    for _ in range(ROUNDS):
        broker.now_ms += random.choice([1, 1, 1, 1000, 1000, 5000, 11_000])
        if random.random() < 0.05:
            frozen = random.choice([*consumers, None])
        for consumer in consumers:
            if consumer is not frozen and random.random() < 0.4:
                consumer.renew()
            if consumer is not frozen:
                step_of(consumer, random)
    finish(broker, consumers)


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_clean_hand_over_handles_nothing_twice(seed: int) -> None:
    """With locks renewed in time, and however often the queue moves, each message succeeds once."""
    random, broker = Random(seed), Broker()
    consumers = [Consumer(name, broker) for name in "abc"]
    for _ in range(ROUNDS):
        leaving = any(one.lease and one.lease.dropped for one in consumers)
        broker.now_ms += 1 if leaving else random.choice([1, 1000, 19_999])
        for consumer in consumers:
            consumer.renew()
            step_of(consumer, random)
    for consumer in consumers:
        consumer.renew()
    finish(broker, consumers)
    assert broker.succeeded == dict.fromkeys(range(MESSAGES), 1)
