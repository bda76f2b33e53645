"""Damaged queues while the broker runs: stopped, compared with the log, and let go on.

An entry was found that does not lead to its record: when the queue was first used, by a pull, or by
the delivery of a delayed message. The queue stops: pulls wait, nothing behind the entry is handed
out. Owners lose it, by a new epoch: they begin anew when it goes on, with what is right then. The
log is read in a thread, once for all queues that are damaged; sends go on meanwhile, behind what is
compared. What the log has no more is reported, and never skipped silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.errors import StoreError
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.store.mending import Loss

if TYPE_CHECKING:
    import asyncio

    from inorder.broker.broker import Broker
    from inorder.store.consumequeue import QueueIndex
    from inorder.store.mending import Mended

log = get_logger(__name__)

GATHER_MS: Final = 50
"""So long after the first one others are waited for, so that the log is read once."""
RETRY_MS: Final = 5000


class Mending:
    """Stops, mends and restarts queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[QueueIndex, None] = {}
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self.mended = 0
        """Queues that were corrected since the start."""

    def __repr__(self) -> str:
        return f"Mending({len(self._waiting)} wait, {self.mended} done)"

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take care of queues that are found damaged from now on, and of those found before."""
        self._loop = loop
        queues = self._broker.store.queues
        queues.on_damage = lambda queue: self.found(queue, queue.min_offset)
        for queue in list(queues.loaded()):
            if queue.damaged:
                self.found(queue, queue.min_offset)

    def cancel(self) -> None:
        """Begin no more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def found(self, queue: QueueIndex, offset: int) -> None:
        """Stop a queue whose entry at an offset does not lead to its record."""
        if queue in self._waiting or self._loop is None:
            return
        queue.damaged = True
        log.error(
            "an entry does not lead to its message: the queue stops and is compared with the log "
            "topic=%s queue=%d offset=%d", queue.topic, queue.queue_id, offset,
        )  # fmt: skip
        self._waiting[queue] = None
        if not self._running and self._timer is None:
            self._timer = self._loop.call_later(GATHER_MS / 1000, self._mend)

    def _mend(self) -> None:
        self._timer = None
        broker, loop = self._broker, self._loop
        if loop is None:
            return
        queues = [queue for queue in self._waiting if self._revoke(queue)]
        if queues:
            self._running = True
            broker.offload.run(broker.store.plan_mending(queues), self._mended, self._failed)
        else:
            self._timer = loop.call_later(RETRY_MS / 1000, self._mend)

    def _revoke(self, queue: QueueIndex) -> bool:
        """Take the queue from its owners; False if that could not be written down."""
        broker = self._broker
        place = TopicQueue(queue.topic, broker.config.name, queue.queue_id)
        keys = broker.leases.keys()
        for key in [key for key in keys if key.queue == place]:
            try:
                broker.ownership.take_away(key.group, queue.topic, queue.queue_id)
            except StoreError as error:
                log.error("a damaged queue waits: its owner cannot be changed error=%s", error)
                return False
        return True

    def _mended(self, done: list[Mended]) -> None:
        self._running = False
        if self._loop is None:
            return
        broker, store = self._broker, self._broker.store
        for mended in done:
            queue = store.find_queue(mended.topic, mended.queue_id)
            if queue in self._waiting:  # else the topic was deleted meanwhile
                self._go_on(queue, mended)
        for queue in list(self._waiting):
            if store.find_queue(queue.topic, queue.queue_id) is not queue:
                del self._waiting[queue]
        broker.losses.save()
        for mended in done:
            broker.wake(mended.topic, mended.queue_id)
        broker.delayed.look_again()
        if self._waiting:
            self._timer = self._loop.call_later(GATHER_MS / 1000, self._mend)

    def _go_on(self, queue: QueueIndex, mended: Mended) -> None:
        self._broker.store.queues.take_over(mended)
        self._waiting.pop(queue)
        self.mended += 1
        log.warning(
            "a damaged queue goes on topic=%s queue=%d corrected=%d lost=%d",
            mended.topic, mended.queue_id, mended.changed,
            sum(high - low for low, high in mended.lost),
        )  # fmt: skip
        for low, high in mended.lost:
            self._broker.losses.report(
                Loss(mended.topic, mended.queue_id, low, high, "its records are not in the log")
            )

    def _failed(self, error: BaseException) -> None:
        self._running = False
        log.error("damaged queues were not mended, it is tried again error=%s", error)
        if self._loop is not None:
            self._timer = self._loop.call_later(RETRY_MS / 1000, self._mend)
