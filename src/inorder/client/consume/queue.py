"""One queue while it is ours: what was pulled of it, its lock or lease, pulls, handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from inorder.client.consume.rules.commits import CommitSequence, Progress
from inorder.client.consume.rules.keyed import KeyedQueue
from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.parking import ParkedView
from inorder.client.consume.rules.queue import Limits, ProcessQueue
from inorder.client.consume.workers import Run
from inorder.model import ReceivedMessage, Subscription, TopicQueue
from inorder.ordering.fence import QueueFence
from inorder.ordering.finished import FinishedMap


class AssignedQueue:
    """A queue at work. It is made when the queue is added and gone when it is released."""

    def __init__(
        self,
        queue: TopicQueue,
        *,
        subscription: Subscription,
        lease: LeaseState,
        cache: ProcessQueue,
        limits: Limits,
        ordered: bool,
        keys: KeyedQueue | None = None,
        needs_lock: bool,
        on_drop: Callable[[AssignedQueue], None],
        on_idle: Callable[[AssignedQueue], None] | None = None,
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.lease = lease
        self.cache = cache
        self.limits = limits
        self.ordered = ordered
        self.keys = keys
        """With order="key": which of its messages may run."""
        self.needs_lock = needs_lock
        self.commits: CommitSequence | None = None
        """Its commits under a lease."""
        self.fencing: QueueFence | None = None
        self.finished: FinishedMap | None = None if keys is None else keys.finished
        """What was done above the committed offset, when it began or since."""
        self.parked = 0
        """The broker's number of the parked keys and redrives of the queue."""
        self.redrive = False
        self.view: ParkedView | None = None
        """What is known of its parked keys."""
        self.runs: set[Run] = set()
        """What is with handlers."""
        self.outlived = False
        """Handlers run although the lease has ended."""
        self.paused = False
        self.unconfirmed_since_ms: int | None = None
        """When the connection to the broker was lost; until a lock that was asked for later is
        confirmed, no handler starts and nothing is committed."""
        self.has_turn = False
        """It stands in line for a free handler; without order only."""
        self.busy = False
        """An ordered queue has one run at a time."""
        self.due_ms: int | None = None
        """When a key that was put off is looked at again."""
        self.began_ms: int | None = None
        """Since when an ordered queue is handled without a pause."""
        self.fixed: int | None = None
        """What to commit when the queue is released, instead of what was done."""
        self.pulling: asyncio.Task[None] | None = None
        self.timers: set[asyncio.TimerHandle] = set()
        self.idle = asyncio.Event()
        self.woken = asyncio.Event()
        self._on_drop = on_drop
        self._on_idle = on_idle
        self._known_end = 0 if self.finished is None else self.finished.end

    def __repr__(self) -> str:
        return f"AssignedQueue({self.lease!r}, {self.cache!r})"

    @property
    def keyed(self) -> bool:
        """Tell whether it is handled in the order of keys."""
        return self.keys is not None

    @property
    def leased(self) -> bool:
        """Tell whether it is ours by a lease, not by RocketMQ's lock."""
        return self.lease.epoch > 0

    def begin_with(self, finished: FinishedMap) -> None:
        """Leave out what was done above the offset at which the queue is begun."""
        self.finished = finished
        self._known_end = finished.end

    def not_done(self, messages: tuple[ReceivedMessage, ...]) -> tuple[ReceivedMessage, ...]:
        """Return the messages of a pull without those that a former owner has done."""
        if not messages or messages[0].offset >= self._known_end or self.finished is None:
            return messages
        finished = self.finished
        return tuple(message for message in messages if message.offset not in finished)

    def is_news(self, map_version: int | None) -> bool:
        """Tell whether messages are of a later version of the key map than the broker told us."""
        if map_version is None or self.fencing is None:
            return False
        chapters = self.fencing.chapters
        return map_version > (chapters[-1].version if chapters else 0)

    def progress(self, offset: int) -> Progress:
        """Return what to commit when everything below an offset is done."""
        if self.finished is None:
            return Progress(offset)
        if self.keys is not None:
            self.keys.done_below(offset)
        else:
            self.finished.add_range(self.finished.base, offset)
        return Progress(self.finished.base, self.finished.above_text())

    @property
    def live(self) -> bool:
        """Tell whether the queue was not given up."""
        return self.lease.dropped is None

    def mark_unconfirmed(self, now_ms: int) -> None:
        """Trust the lock no more until it is confirmed: its broker may have forgotten it."""
        if self.needs_lock:
            self.unconfirmed_since_ms = now_ms

    def confirm(self) -> bool:
        """End the doubt if the lock was asked for since; tell whether it ended."""
        if self.unconfirmed_since_ms is None or not self.lease.locked:
            return False
        if self.lease.lock_sent_ms < self.unconfirmed_since_ms:
            return False
        self.unconfirmed_since_ms = None
        return True

    def may_commit(self, now_ms: int) -> bool:
        """Tell whether what is done counts: the queue is ours for sure, or was when it was done."""
        if self.unconfirmed_since_ms is not None and not self.lease.epoch:
            return False
        return self.lease.may_commit(now_ms, needs_lock=self.needs_lock)

    def may_start(self, now_ms: int) -> bool:
        """Tell whether a handler may start; called from the thread of the handler."""
        if self.lease.dropped is not None or self.paused or self.unconfirmed_since_ms is not None:
            return False
        return not self.needs_lock or self.lease.lock_valid(now_ms)

    def enter(self, count: int = 1) -> None:
        """Count something that must end before the queue is released."""
        self.lease.enter(count)

    def leave(self, count: int = 1) -> None:
        """Count the end of it."""
        self.lease.leave(count)
        if not self.lease.running:
            self.idle.set()
            if self._on_idle is not None:
                self._on_idle(self)

    def drop(self, reason: RevokeReason) -> None:
        """Give the queue up: pull no more, start no handler; the release follows."""
        self.lease.drop(reason)
        self.dropped()

    def dropped(self) -> None:
        """Do what follows from a drop, whoever decided it; more than once is fine."""
        if self.pulling is not None:
            self.pulling.cancel()
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        self._on_drop(self)

    async def rest(self, delay_ms: int) -> None:
        """Wait, but no longer than until the broker has confirmed that the queue is ours."""
        self.woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await self.woken.wait()

    def later(self, delay_ms: int, action: Callable[[AssignedQueue], None]) -> None:
        """Do something after a while, unless the queue is given up before."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def due() -> None:
            assert timer is not None
            self.timers.discard(timer)
            action(self)

        timer = loop.call_later(delay_ms / 1000, due)
        self.timers.add(timer)


class QueueEvents(Protocol):
    """What the parts of a consumer tell its service about an assigned queue."""

    def arrived(self, assigned: AssignedQueue) -> None:
        """Handlers may start: messages arrived, the lease is confirmed, or a pause ended."""
        ...

    def passed(self, assigned: AssignedQueue, offset: int) -> None:
        """Nothing below the offset is left to handle: a pull found it filtered or finished."""
        ...

    def confirmed(self, assigned: AssignedQueue, sent_ms: int) -> None:
        """The broker accepted a request that was sent at `sent_ms` under the queue's epoch."""
        ...

    def lost(self, assigned: AssignedQueue) -> None:
        """The broker says that this consumer does not own the queue any more."""
        ...

    def parked_changed(self, assigned: AssignedQueue) -> None:
        """The broker's version of the queue's parked keys, or its wish for a redrive, changed."""
        ...

    def parked_loaded(self, assigned: AssignedQueue) -> None:
        """The parked keys of the queue are known, or a redrive of one of them ended."""
        ...
