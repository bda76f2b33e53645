"""One assigned queue, from its grant to its release: progress, lease, pull loop and handlers.

`AssignedQueue` ties the pure parts together and says whether a handler may start and whether its
result may be committed. `QueueEvents` is what the parts of a consumer tell its service about a
queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.parking import ParkedView
from inorder.client.consume.rules.queue import Limits, QueueProgress
from inorder.client.consume.workers import Run
from inorder.model import Subscription, TopicQueue
from inorder.ordering.fence import QueueFence

QueueAction = Callable[["AssignedQueue"], None]


class AssignedQueue:
    """A queue that this consumer owns. A queue that is released and granted again is a new one."""

    def __init__(
        self,
        queue: TopicQueue,
        *,
        subscription: Subscription,
        lease: LeaseState,
        progress: QueueProgress,
        limits: Limits,
        ordered: bool,
        needs_lock: bool,
        on_drop: Callable[[AssignedQueue], None],
        on_idle: Callable[[AssignedQueue], None] | None = None,
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.lease = lease
        self.progress = progress
        self.limits = limits
        self.ordered = ordered
        self.needs_lock = needs_lock
        self.fencing: QueueFence | None = None
        self.parked = 0
        """The broker's version of the queue's parked keys and redrives."""
        self.redrive = False
        self.view: ParkedView | None = None
        """This consumer's copy of the parked keys."""
        self.runs: set[Run] = set()
        """The runs that are at handlers."""
        self.outlived = False
        """Handlers run longer than the lease."""
        self.paused = False
        self.unconfirmed_since_ms: int | None = None
        """When the connection to the broker was lost. Until the broker confirms the lock in answer
        to a later request, no handler starts and nothing is committed."""
        self.has_turn = False
        """The queue is in line for a free worker; without order only."""
        self.begun_to = 0
        """The end of the messages that handlers have had; without order only."""
        self.cancelled = False
        """The program has cancelled a handler of this queue; without order only."""
        self.busy = False
        """The one run of an ordered queue is under way, or the queue is suspended."""
        self.due_ms: int | None = None
        """When the next delayed key is ready again."""
        self.began_ms: int | None = None
        """Since when an ordered queue runs without a pause."""
        self.pulling: asyncio.Task[None] | None = None
        self.timers: dict[object, tuple[asyncio.TimerHandle, QueueAction | None]] = {}
        """What is due later, and what is done instead if the queue is given up before."""
        self.idle = asyncio.Event()
        self.woken = asyncio.Event()
        self._on_drop = on_drop
        self._on_idle = on_idle

    def __repr__(self) -> str:
        return f"AssignedQueue({self.lease!r}, {self.progress!r})"

    @property
    def keyed(self) -> bool:
        """Return whether the queue is handled with order="key"."""
        return self.progress.keys is not None

    @property
    def leased(self) -> bool:
        """Return whether this consumer owns the queue by a lease, not by RocketMQ's lock."""
        return self.lease.epoch > 0

    def is_news(self, map_version: int | None) -> bool:
        """Return whether a pull names a later key map version than the last renewal did."""
        if map_version is None or self.fencing is None:
            return False
        spans = self.fencing.spans
        return map_version > (spans[-1].version if spans else 0)

    @property
    def live(self) -> bool:
        """Return whether the queue was not given up."""
        return self.lease.dropped is None

    def mark_unconfirmed(self, now_ms: int) -> None:
        """Distrust the lock until the broker confirms it: the broker may have forgotten it."""
        if self.needs_lock:
            self.unconfirmed_since_ms = now_ms

    def confirm(self) -> bool:
        """Trust the lock again if it was granted to a later request; return whether it was."""
        if self.unconfirmed_since_ms is None or not self.lease.locked:
            return False
        if self.lease.lock_sent_ms < self.unconfirmed_since_ms:
            return False
        self.unconfirmed_since_ms = None
        return True

    def may_commit(self, now_ms: int) -> bool:
        """Return whether results may be committed.

        They may while this consumer owns the queue, and under a lease the broker decides.
        """
        if self.unconfirmed_since_ms is not None and not self.lease.epoch:
            return False
        return self.lease.may_commit(now_ms, needs_lock=self.needs_lock)

    def may_start(self, now_ms: int) -> bool:
        """Return whether a handler may start; called in the thread of the handler."""
        if self.lease.dropped is not None or self.paused or self.unconfirmed_since_ms is not None:
            return False
        return not self.needs_lock or self.lease.is_trusted(now_ms)

    def enter(self, count: int = 1) -> None:
        """Count handlers or requests that must end before the queue is released."""
        self.lease.enter(count)

    def hold(self, count: int = 1) -> None:
        """Count requests or handlers in the same way, also while the queue is being given up."""
        self.lease.hold(count)

    def leave(self, count: int = 1) -> None:
        """Count the end of handlers or requests."""
        self.lease.leave(count)
        if not self.lease.running:
            self.idle.set()
            if self._on_idle is not None:
                self._on_idle(self)

    def drop(self, reason: RevokeReason) -> None:
        """Give the queue up: end its pull loop, start no handler, and release it."""
        self.lease.drop(reason)
        self.dropped()

    def dropped(self) -> None:
        """End the pull loop and start the release of a dropped queue. May be called again."""
        if self.pulling is not None:
            self.pulling.cancel()
        timers, self.timers = self.timers, {}
        for timer, given_up in timers.values():
            timer.cancel()
            if given_up is not None:
                given_up(self)
        self._on_drop(self)

    async def pause(self, delay_ms: int) -> None:
        """Wait for `delay_ms`, or until the broker confirms the lease."""
        self.woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await self.woken.wait()

    def later(
        self, delay_ms: int, action: QueueAction, *, given_up: QueueAction | None = None
    ) -> None:
        """Call `action` after `delay_ms`, or `given_up` if the queue is given up before."""
        name = object()

        def due() -> None:
            if self.timers.pop(name, None) is not None:
                action(self)

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, due)
        self.timers[name] = (timer, given_up)


class QueueEvents(Protocol):
    """What the parts of a consumer tell its service about an assigned queue."""

    def arrived(self, assigned: AssignedQueue) -> None:
        """Handlers may start: messages arrived, the lease is confirmed, or a pause has ended."""
        ...

    def passed(self, assigned: AssignedQueue) -> None:
        """A pull left no unfinished message: every message that it passed is finished."""
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
        """The parked keys of the queue are loaded, or a redrive of one of them has ended."""
        ...
