"""Damaged queues: stopped, compared with the log, and repaired while the broker runs.

A queue is damaged if one of its entries does not lead to its record. The first use of the queue, a
pull, or a delivery of a delayed message or a timer may find that. Then:

1. The queue stops: pulls wait, and nothing after the entry is handed out.
2. Its owners lose it by a new epoch, so that they begin anew with correct entries.
3. A thread reads the log once for all damaged queues. Sends continue after the part that is
   compared.
4. The queue continues. Messages that the log no longer has are reported, never skipped silently.

`settle` does the same work at a start, where `rules.py` decides the ends. Why: decision 45.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.broker.damage.rules import beyond, evidence
from inorder.errors import StoreError
from inorder.logs import get_logger
from inorder.store.mending import NOT_IN_LOG, Loss

if TYPE_CHECKING:
    import asyncio

    from inorder.broker.broker import Broker
    from inorder.store.consumequeue import QueueIndex
    from inorder.store.mending import Mended

log = get_logger(__name__)

GATHER_MS: Final = 50
"""How long to wait for more damaged queues after the first one, so that the log is read once."""
RETRY_MS: Final = 5000


class Mending:
    """Stops, repairs and restarts damaged queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[QueueIndex, None] = {}
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self.mended = 0
        """How many queues were repaired since the start."""

    def __repr__(self) -> str:
        return f"Mending({len(self._waiting)} wait, {self.mended} done)"

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle damaged queues from now on, including those that were found before."""
        self._loop = loop
        queues = self._broker.store.queues
        queues.on_damage = lambda queue: self.found(queue, queue.min_offset)
        for queue in list(queues.loaded()):
            if queue.damaged:
                self.found(queue, queue.min_offset)

    def cancel(self) -> None:
        """Start no more repairs."""
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
        """Take the queue from its owners; False if that could not be recorded."""
        broker = self._broker
        keys = broker.leases.keys()
        for key in [key for key in keys if key[1:] == (queue.topic, queue.queue_id)]:
            try:
                broker.lease_service.force_release(key)
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
            if queue in self._waiting:  # otherwise the topic was deleted meanwhile
                self._restart(queue, mended)
        for queue in list(self._waiting):
            if store.find_queue(queue.topic, queue.queue_id) is not queue:
                del self._waiting[queue]
        broker.losses.save()
        for mended in done:
            broker.wake(mended.topic, mended.queue_id)
        broker.delayed.check_all()
        broker.timers.check_all()
        if self._waiting:
            self._timer = self._loop.call_later(GATHER_MS / 1000, self._mend)

    def _restart(self, queue: QueueIndex, mended: Mended) -> None:
        self._broker.store.queues.take_over(mended)
        self._waiting.pop(queue)
        self.mended += 1
        log.warning(
            "a damaged queue goes on topic=%s queue=%d corrected=%d lost=%d",
            mended.topic, mended.queue_id, mended.changed,
            sum(high - low for low, high in mended.lost),
        )  # fmt: skip
        for low, high in mended.lost:
            self._broker.losses.report(Loss(mended.topic, mended.queue_id, low, high, NOT_IN_LOG))

    def _failed(self, error: BaseException) -> None:
        self._running = False
        log.error("damaged queues were not mended, it is tried again error=%s", error)
        if self._loop is not None:
            self._timer = self._loop.call_later(RETRY_MS / 1000, self._mend)


def settle(broker: Broker) -> None:
    """Set the ends of damaged queues by the evidence; begin new generations where it is uncertain.

    Both are on disk when `LeaseJournal.begin` has returned.
    """
    recovery, start = broker.store.recovery, broker.lease_journal.start
    uncertain = list(recovery.uncertain)
    if not start.may_have_lost and broker.lease_journal.commits_are_valid:
        uncertain += _extend(broker)
    for loss in recovery.losses:
        broker.losses.report(loss)
    if start.may_have_lost or not uncertain:
        return
    generation = start.next_generation()
    for topic, queue_id, end in uncertain:
        log.warning(
            "the end of a damaged queue is uncertain: new generation topic=%s "
            "queue=%d from=%d generation=%d", topic, queue_id, end, generation,
        )  # fmt: skip
        broker.generations.begin_at(topic, queue_id, end, generation)


def _extend(broker: Broker) -> list[tuple[str, int, int]]:
    commits = broker.commits
    keys = commits.keys()
    known = ((key, last) for key in keys if (last := commits.get(key)) is not None)
    found = beyond(evidence(known, broker.resizing.topics.items()), broker.store.end_offset)
    extended = []
    for (topic, queue_id), end in found.items():
        if topic not in broker.topics:
            continue
        before = broker.store.extend(topic, queue_id, end)
        broker.losses.report(
            Loss(topic, queue_id, before, end, "neither the queue nor the log has them")
        )
        extended.append((topic, queue_id, end))
    return extended
