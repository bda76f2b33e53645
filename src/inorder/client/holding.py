"""One queue while it is ours: what was pulled of it, its lock, its pull loop, its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inorder.client.state.processqueue import Limits, ProcessQueue
from inorder.client.state.tenure import DropReason, Tenure
from inorder.model import Subscription, TopicQueue


class Holding:
    """A queue at work. It is made when the queue is added and gone when it is released."""

    def __init__(
        self,
        queue: TopicQueue,
        *,
        subscription: Subscription,
        tenure: Tenure,
        cache: ProcessQueue,
        limits: Limits,
        ordered: bool,
        keyed: bool = False,
        needs_lock: bool,
        on_drop: Callable[[Holding], None],
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.tenure = tenure
        self.cache = cache
        self.limits = limits
        self.ordered = ordered
        self.keyed = keyed
        self.needs_lock = needs_lock
        self.paused = False
        self.doubt_ms: int | None = None
        """When the connection to the broker was lost; until a lock that was asked for later is
        confirmed, no handler starts and nothing is committed."""
        self.has_turn = False
        """It stands in line for a free handler; without order only."""
        self.busy = False
        """An ordered queue has one run at a time."""
        self.began_ms: int | None = None
        """Since when an ordered queue is handled without a pause."""
        self.fixed: int | None = None
        """What to commit when the queue is released, instead of what was done."""
        self.pulling: asyncio.Task[None] | None = None
        self.timers: set[asyncio.TimerHandle] = set()
        self.idle = asyncio.Event()
        self._on_drop = on_drop

    def __repr__(self) -> str:
        return f"Holding({self.tenure!r}, {self.cache!r})"

    @property
    def live(self) -> bool:
        """Tell whether the queue was not given up."""
        return self.tenure.dropped is None

    def doubt(self, now_ms: int) -> None:
        """Trust the lock no more until it is confirmed: its broker may have forgotten it."""
        if self.needs_lock:
            self.doubt_ms = now_ms

    def confirm(self) -> bool:
        """End the doubt if the lock was asked for since; tell whether it ended."""
        if self.doubt_ms is None or not self.tenure.locked:
            return False
        if self.tenure.lock_sent_ms < self.doubt_ms:
            return False
        self.doubt_ms = None
        return True

    def may_commit(self, now_ms: int) -> bool:
        """Tell whether what is done counts: the queue is ours for sure, or was when it was done."""
        if self.doubt_ms is not None:
            return False
        return self.tenure.may_commit(now_ms, needs_lock=self.needs_lock)

    def may_start(self, now_ms: int) -> bool:
        """Tell whether a handler may start; called from the thread of the handler."""
        if self.tenure.dropped is not None or self.paused or self.doubt_ms is not None:
            return False
        return not self.needs_lock or self.tenure.lock_valid(now_ms)

    def enter(self) -> None:
        """Count something that must end before the queue is released."""
        self.tenure.enter()

    def leave(self) -> None:
        """Count the end of it."""
        self.tenure.leave()
        if not self.tenure.running:
            self.idle.set()

    def drop(self, reason: DropReason) -> None:
        """Give the queue up: pull no more, start no handler; the release follows."""
        self.tenure.drop(reason)
        self.dropped()

    def dropped(self) -> None:
        """Do what follows from a drop, whoever decided it; more than once is fine."""
        if self.pulling is not None:
            self.pulling.cancel()
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        self._on_drop(self)

    def later(self, delay_ms: int, action: Callable[[Holding], None]) -> None:
        """Do something after a while, unless the queue is given up before."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def due() -> None:
            assert timer is not None
            self.timers.discard(timer)
            action(self)

        timer = loop.call_later(delay_ms / 1000, due)
        self.timers.add(timer)
