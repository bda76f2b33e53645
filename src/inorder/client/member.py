"""A consumer as a member of its group: the queues that it holds, from their lock to their release.

    rebalance ── add ──> Holding: pull loop, handlers ── drop ──> release: wait, commit, unlock

Every queue has one Holding at a time, and whoever is to give it up only says why: the release is
the same for all. It waits for the handlers that run, commits, then unlocks, each answered before
the next, and is never forced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from inorder.client.counting import Counts
from inorder.client.holding import Holding
from inorder.client.locking import Locks
from inorder.client.offsetstores import OffsetStore
from inorder.client.session import Session
from inorder.client.state import startoffset
from inorder.client.state.offsets import OffsetTable
from inorder.client.state.processqueue import Limits, ProcessQueue
from inorder.client.state.rebalance import Release, release_steps
from inorder.client.state.tenure import (
    LOCK_RENEW_FIRST_MS,
    LOCK_RENEW_MS,
    DropReason,
    Tenure,
)
from inorder.errors import InorderError
from inorder.model import Subscription, TopicQueue
from inorder.tasks.backoff import Backoff
from inorder.tasks.groups import Tasks

log = logging.getLogger(__name__)

COMMIT_TRIES: Final = 5
"""How often the last commit of a queue without a lock is tried."""
STOP_COMMIT_MS: Final = 5000
"""How long a consumer that stops waits for a broker that is away."""


class Member:
    """The queues of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        store: OffsetStore,
        consume_from: startoffset.ConsumeFrom,
        clustering: bool,
        counts: Counts,
    ) -> None:
        self.session = session
        self.group = group
        self.clustering = clustering
        self.counts = counts
        self.offsets = OffsetTable()
        self.holdings: dict[TopicQueue, Holding] = {}
        self.locks = Locks(session, group)
        self.tasks = Tasks(f"consumer {group}")
        self.stopping = False
        self.left: dict[TopicQueue, int] = {}
        """Where the queues were when the consumer stopped."""
        self.changed = asyncio.Event()
        """Something asks for a round of the rebalance."""
        self.pull: Callable[[Holding], Awaitable[None]]
        self.handle: Callable[[Holding], None]
        self.keyed: frozenset[str] = frozenset()
        """Topics that are handled in the order of keys."""
        config = session.config.consumer
        self._limits = Limits(
            config.cached_messages_max,
            config.cached_bytes_max,
            config.cached_span_max,
            topic_messages_max=config.topic_messages_max,
            topic_bytes_max=config.topic_bytes_max,
        )
        self._store = store
        self._consume_from = consume_from
        self._saving = asyncio.Lock()
        self._releasing: dict[TopicQueue, asyncio.Task[None]] = {}
        self._paused: set[TopicQueue] = set()
        self._all_paused = False

    # Queues come.

    @property
    def tenures(self) -> Mapping[TopicQueue, Tenure]:
        """Return whose each queue is; those on their way out are among them."""
        return {queue: holding.tenure for queue, holding in self.holdings.items()}

    async def add(
        self,
        queue: TopicQueue,
        subscription: Subscription,
        *,
        ordered: bool,
        late: bool,
        lock_sent_ms: int | None,
    ) -> bool:
        """Begin with a queue at the offset of the group; tell whether that was possible."""
        stored = await self._store.read(queue)
        begin = startoffset.begin(stored, queue.topic, self._consume_from, late=late)
        offset = await self._locate(queue, begin)
        if offset is None or self.stopping:
            if lock_sent_ms is not None:
                await self.locks.release(queue)
            return False
        now_ms = self.session.clock.monotonic_ms()
        holding = Holding(
            queue,
            subscription=subscription,
            tenure=Tenure(queue, now_ms=now_ms, lock_sent_ms=lock_sent_ms),
            cache=ProcessQueue(offset),
            limits=self._limits,
            ordered=ordered,
            keyed=queue.topic in self.keyed,
            needs_lock=lock_sent_ms is not None,
            on_drop=self._start_release,
        )
        holding.paused = self._all_paused or queue in self._paused
        self.offsets.begin(queue, offset, stored=stored >= 0)
        self.holdings[queue] = holding
        self._share_limits(queue.topic)
        holding.pulling = self.tasks.start(self._pull(holding), name=f"pull {queue}")
        log.info("queue=%s of group=%s is ours from offset %d on", queue, self.group, offset)
        return True

    def _share_limits(self, topic: str) -> None:
        """Divide the limits of a topic among the queues of it that are here."""
        sharing = [one for queue, one in self.holdings.items() if queue.topic == topic]
        limits = self._limits.shared(len(sharing))
        for holding in sharing:
            holding.limits = limits

    async def _pull(self, holding: Holding) -> None:
        await self.pull(holding)

    async def _locate(self, queue: TopicQueue, begin: startoffset.Begin) -> int | None:
        try:
            match begin:
                case startoffset.AskEnd():
                    api = await self.session.reader_of(queue)
                    begin = startoffset.answered(await api.max_offset(queue))
                case startoffset.AskTime(at_ms):
                    api = await self.session.reader_of(queue)
                    begin = startoffset.answered(await api.search_offset(queue, at_ms))
                case _:
                    pass
        except InorderError as error:
            begin = startoffset.NotNow(str(error))
        if isinstance(begin, startoffset.BeginAt):
            return begin.offset
        log.info("queue=%s is not begun: %s", queue, begin)
        return None

    # Queues go.

    def _start_release(self, holding: Holding) -> None:
        if holding.queue not in self._releasing:
            task = self.tasks.start(self._release(holding), name=f"release {holding.queue}")
            self._releasing[holding.queue] = task

    async def _release(self, holding: Holding) -> None:
        queue, tenure = holding.queue, holding.tenure
        assert tenure.dropped is not None
        log.info("queue=%s of group=%s is given up: %s", queue, self.group, tenure.dropped.value)
        if holding.fixed is not None:
            self.offsets.freeze(queue, holding.fixed)
        while (steps := self._steps(holding)) == (Release.WAIT,):
            holding.idle.clear()
            await holding.idle.wait()
        try:
            committed = await self._last_commit(holding, steps)
            if Release.UNLOCK in steps and committed:
                await self.locks.release(queue)
        finally:
            if self.stopping:
                self.left[queue] = self.offsets.get(queue)
            tenure.released()
            del self.holdings[queue]
            del self._releasing[queue]
            self._share_limits(queue.topic)
            self.offsets.forget(queue)
            self.changed.set()

    def _steps(self, holding: Holding) -> tuple[Release, ...]:
        return release_steps(holding.tenure, commit=self.offsets.is_unsaved(holding.queue))

    async def _last_commit(self, holding: Holding, steps: tuple[Release, ...]) -> bool:
        """Commit what is done, or where to go on; tell whether the lock may be given back.

        While the lock is ours nobody else begins, so a broker that is away is waited for.
        """
        if Release.COMMIT not in steps and holding.fixed is None:
            return True
        backoff = Backoff(self.session.config.retry_first_ms, self.session.config.retry_max_ms)
        began_ms = self.session.clock.monotonic_ms()
        while True:
            if await self._last_save(holding):
                return True
            now_ms = self.session.clock.monotonic_ms()
            if holding.needs_lock and not holding.tenure.lock_valid(now_ms):
                break
            if not holding.needs_lock and backoff.attempts >= COMMIT_TRIES:
                break
            if self.stopping and now_ms - began_ms > STOP_COMMIT_MS:
                break
            await asyncio.sleep(backoff.next_ms() / 1000)
        log.warning(
            "queue=%s was given up without its last commit (offset %d): what it did since the "
            "commit before is done again", holding.queue, self.offsets.get(holding.queue),
        )  # fmt: skip
        return False

    async def _last_save(self, holding: Holding) -> bool:
        if holding.fixed is None:
            await self.commit([holding.queue])
            return not self.offsets.is_unsaved(holding.queue)
        async with self._saving:
            return await self._store.move(holding.queue, holding.fixed)

    async def release_all(self, timeout_ms: int) -> bool:
        """Give everything up and wait for it; tell whether all handlers ended in time."""
        self.stopping = True
        for holding in list(self.holdings.values()):
            holding.drop(DropReason.STOPPED)
        if self._releasing:
            await asyncio.wait(list(self._releasing.values()), timeout=timeout_ms / 1000)
        running = [str(holding.queue) for holding in self.holdings.values()]
        if running:
            log.warning(
                "group=%s stops, but its handlers did not end in %d ms: %s; what they do is not "
                "committed, and the next owner waits until the locks have run out",
                self.group, timeout_ms, ", ".join(running),
            )  # fmt: skip
        return not running

    async def move(self, queue: TopicQueue, offset: int) -> None:
        """Let a queue go on elsewhere, once its handlers ended."""
        holding = self.holdings[queue]
        holding.fixed = offset
        holding.drop(DropReason.RESET)
        releasing = self._releasing.get(queue)
        if releasing is not None:
            await asyncio.shield(releasing)

    # How far we are.

    def note(self, queue: TopicQueue, offset: int, only_up: bool = True) -> None:
        """Note that everything below an offset is done."""
        self.offsets.note(queue, offset, only_up=only_up)

    def done_to(self, holding: Holding) -> int | None:
        """Return what a pull may commit on its way."""
        now_ms = self.session.clock.monotonic_ms()
        if not holding.may_commit(now_ms):
            return None
        return self.offsets.unsaved([holding.queue]).get(holding.queue)

    async def commit_all(self) -> None:
        """Save what is not saved yet, of all queues that are ours for sure."""
        await self.commit(list(self.holdings))

    async def commit(self, queues: Iterable[TopicQueue]) -> None:
        """Save offsets and wait for the answers; one caller at a time, so that none overtakes."""
        async with self._saving:
            now_ms = self.session.clock.monotonic_ms()
            mine = [
                queue
                for queue in queues
                if (holding := self.holdings.get(queue)) is not None and holding.may_commit(now_ms)
            ]
            unsaved = self.offsets.unsaved(mine)
            if unsaved:
                for queue, offset in (await self._store.save(unsaved)).items():
                    self.offsets.saved(queue, offset)

    # Locks.

    async def keep_locks(self) -> None:
        """Renew the locks for as long as this is a member."""
        delay_ms = LOCK_RENEW_FIRST_MS
        while True:
            await asyncio.sleep(delay_ms / 1000)
            answered = await self.renew()
            delay_ms = LOCK_RENEW_MS if answered else LOCK_RENEW_FIRST_MS

    async def renew(self) -> bool:
        """Renew the locks once; give up what was lost. Tell whether every broker answered."""
        lost, answered = await self.locks.renew(self.tenures)
        for queue in lost:
            holding = self.holdings.get(queue)
            if holding is not None:
                log.warning("lock lost group=%s queue=%s", self.group, queue)
                holding.dropped()
        for holding in list(self.holdings.values()):
            if holding.confirm() and holding.live:
                self.handle(holding)
        return answered

    def doubt(self, address: str) -> None:
        """Trust no lock of the broker at an address until it is confirmed over a new connection.

        A broker that was restarted has forgotten them, and may give them to others at once (O13);
        it may also have forgotten our last commits, so they are sent again.
        """
        now_ms = self.session.clock.monotonic_ms()
        for queue, holding in self.holdings.items():
            if self.session.master_address(queue) in (None, address):
                holding.doubt(now_ms)
                self.offsets.saved(queue, startoffset.NOT_STORED)

    def holds_locks(self) -> bool:
        """Tell whether some queue is locked."""
        return any(tenure.locked for tenure in self.tenures.values())

    # Pausing.

    def pause(self, queues: Iterable[TopicQueue]) -> None:
        """Pull nothing and start no handler of these queues; of none: of all, now and later."""
        chosen = tuple(queues)
        self._paused.update(chosen)
        self._all_paused = self._all_paused or not chosen
        for holding in self.holdings.values():
            holding.paused = self._all_paused or holding.queue in self._paused

    def resume(self, queues: Iterable[TopicQueue]) -> None:
        """End a pause; of none: every pause."""
        chosen = tuple(queues)
        if chosen:
            if self._all_paused:
                self._paused.update(self.holdings)
                self._all_paused = False
            self._paused.difference_update(chosen)
        else:
            self._paused.clear()
            self._all_paused = False
        for holding in self.holdings.values():
            holding.paused = self._all_paused or holding.queue in self._paused
            if holding.live and not holding.paused:
                self.handle(holding)

    def paused(self) -> tuple[TopicQueue, ...]:
        """Return which of our queues are paused."""
        return tuple(sorted(q for q, holding in self.holdings.items() if holding.paused))
