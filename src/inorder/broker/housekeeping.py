"""Periodic work of the broker: deadlines, flushes, saves, retention, disk checks.

    hold, lock_deadline_changed    alarms for held pulls and for leases and locks
    indexing_needed                queue entries and key index, written soon after their messages
    flush_now                      make the log durable, with queues and index
    _clean, _check_disk            delete old files; refuse and accept writes

Timers that have nothing to do are not set, so an idle broker wakes about once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from inorder.broker.durability import SharedSync
from inorder.broker.pulls.rules import Wait
from inorder.broker.pulls.service import Pull
from inorder.broker.statistics.rules import SAMPLE_MS
from inorder.errors import NoDescriptors, StoreError, StoreFailed
from inorder.logs import get_logger
from inorder.store.queues import Cut

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.durability import Done, Failed
    from inorder.broker.pulls.rules import Key

log = get_logger(__name__)

MEMBERS_SCAN_MS: Final = 10_000
FILTERS_SAVE_MS: Final = 10_000
FLUSH_ALL_MS: Final = 10_000
INDEX_STEP_MS: Final = 2
NEW_FILES_STEP_MS: Final = 8
FLUSH_CHECK_MS: Final = 250
DISK_FULL_RETRY_MS: Final = 1000
SAY_MS: Final = 60_000


class _Alarm:
    """A timer that is set to the earliest requested time."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, on_deadline: Callable[[], int | None]
    ) -> None:
        self._clock = broker.clock
        self._loop = loop
        self._on_deadline = on_deadline
        self._at_ms: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ms: int | None) -> None:
        """Call back at `at_ms` (monotonic), unless an earlier call is set."""
        if at_ms is None or (self._at_ms is not None and self._at_ms <= at_ms):
            return
        self.cancel()
        self._at_ms = at_ms
        delay_ms = max(1, at_ms - self._clock.monotonic_ms())
        self._handle = self._loop.call_later(delay_ms / 1000, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._at_ms = self._handle = None

    def _fire(self) -> None:
        self._at_ms = self._handle = None
        self.set(self._on_deadline())


class Housekeeping:
    """The broker's timers."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waits = _Alarm(broker, loop, self._expire_waits)
        self._locks = _Alarm(broker, loop, self._expire_locks)
        self._polls = _Alarm(broker, loop, broker.pops.expire)
        self._popped = _Alarm(broker, loop, broker.revival.on_deadline)
        self._flushing: SharedSync[None] = SharedSync(self._begin_flush)
        self._indexing = False
        self._queues_due_ms = 0
        self._flushed_all_to = -1
        self._say_descriptors_ms = 0
        self._say_refused_ms = 0
        self.refusing = False
        """Whether the last write failed and was undone."""
        self.stopped = False

    def start(self) -> None:
        """Start the periodic tasks."""
        config = self._broker.config
        store = config.store
        self._every("stats", 1000, self._sample)
        self._every("deliveries", SAMPLE_MS, self._sample_deliveries)
        self._every("members", MEMBERS_SCAN_MS, self._expire_members)
        self._every("offsets", config.offset_save_interval_ms, self._save_offsets)
        self._every("filters", FILTERS_SAVE_MS, self._broker.filters.save_soon)
        self._every("delays", store.delay_save_interval_ms, self._broker.delay_snapshot.save_soon)
        transactions = self._broker.transaction_service
        self._every("questions", config.transaction_check_interval_ms, transactions.begin_round)
        self._every("ended", config.transaction_note_interval_ms, transactions.note_ended)
        self._every("timers", store.delay_save_interval_ms, self._broker.timer_snapshot.save_soon)
        self._every("clean", store.clean_interval_ms, self._clean)
        self._every("flush all", FLUSH_ALL_MS, self._flush_all)
        if store.sync_flush:
            self._every("flush timeout", FLUSH_CHECK_MS, self._expire_syncs)
        else:
            self._every("flush", store.flush_interval_ms, self._flush)

    def cancel(self) -> None:
        """Stop all timers at once."""
        self.stopped = True
        self._flushing.stop()
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        for alarm in (self._waits, self._locks, self._polls, self._popped):
            alarm.cancel()

    async def stop(self) -> None:
        """Stop all timers and answer the waiting pulls: last, so that they see the final state."""
        self.cancel()
        self._broker.server.flush()
        await asyncio.sleep(0)
        pulls = self._broker.pulls
        for pull in [wait.request for wait in self._broker.waits.take_all()] + pulls.take_waking():
            pulls.finish(pull)
        self._broker.pops.finish_all()

    def _every(self, name: str, interval_ms: int, function: Callable[[], None]) -> None:
        def fire() -> None:
            try:
                function()
            except Exception:  # a timer's root: one failure must not end the others
                log.exception("a periodic task failed name=%s", name)
            if not self.stopped:
                self._timers[name] = self._loop.call_later(interval_ms / 1000, fire)

        self._timers[name] = self._loop.call_later(interval_ms / 1000, fire)

    # -- held pulls and locks --------------------------------------------------------------------

    def hold(self, key: Key, pull: Pull, deadline_ms: int) -> bool:
        """Hold a pull until its deadline; False if too many wait."""
        held = self._broker.waits.hold(key, Wait(pull.connection, pull), deadline_ms)
        if held:
            self._waits.set(deadline_ms)
        return held

    def _expire_waits(self) -> int | None:
        waits = self._broker.waits
        for wait in waits.expire(self._broker.clock.monotonic_ms()):
            self._broker.pulls.finish(wait.request)
        return waits.next_deadline_ms()

    def lock_deadline_changed(self) -> None:
        """Set the alarm to the earliest deadline of a lease or lock."""
        self._locks.set(self._broker.lease_expiry.next_deadline_ms())

    def _expire_locks(self) -> int | None:
        return self._broker.lease_expiry.on_deadline()

    def poll_deadline(self, at_ms: int) -> None:
        """Answer a pop that waits at a time, at the latest."""
        self._polls.set(at_ms)

    def pop_deadline(self, at_ms: int | None) -> None:
        """Look at a time, at the latest, for popped messages that nobody acknowledged."""
        if not self.stopped:
            self._popped.set(at_ms)

    def _sample_deliveries(self) -> None:
        self._broker.deliveries.sample(self._broker.clock.monotonic_ms())

    def _expire_members(self) -> None:
        broker = self._broker
        departure = broker.members.expire(
            broker.clock.monotonic_ms(), broker.config.channel_expiry_ms
        )
        broker.apply_departure(departure)
        broker.pop_table.forget_idle(broker.clock.monotonic_ms())
        for connection in departure.connections:
            connection.close("no heartbeat for too long")

    def _sample(self) -> None:
        broker = self._broker
        broker.count()
        broker.stats.sample(broker.clock.monotonic_ms(), broker.clock.now_ms())
        broker.producer_snapshot.save_if_due()
        broker.lease_journal.maintain()
        broker.parking.file.save_if_due()
        broker.resizing.repair_file()
        broker.delayed.check_clock()
        broker.timers.check_clock()

    # -- the store -------------------------------------------------------------------------------

    def indexing_needed(self) -> None:
        """Write queue entries and the key index soon."""
        if not self._indexing and not self.stopped:
            self._indexing = True
            now_ms = self._broker.clock.monotonic_ms()
            self._queues_due_ms = now_ms + self._broker.config.store.queue_write_interval_ms
            self._index_in(self._broker.config.store.queue_write_interval_ms)

    def _index_in(self, delay_ms: int) -> None:
        self._timers["index"] = self._loop.call_later(delay_ms / 1000, self._index)

    def _index(self) -> None:
        """Take one step: queues when they are due, keys in small portions until done."""
        broker = self._broker
        store = broker.store
        due = broker.clock.monotonic_ms() >= self._queues_due_ms
        more = store.housekeep(broker.clock.now_ms(), keys_only=not due)
        if broker.store_writable and not store.writable:
            self._indexing = False
            self._check_disk()
        elif store.queues.cut_short is not Cut.NOT:
            # Many queues, new files or a slow disk: continue soon, not at once.
            at_file = store.queues.cut_short is Cut.AT_NEW_FILE
            delay_ms = NEW_FILES_STEP_MS if at_file else INDEX_STEP_MS
            if due:
                self._queues_due_ms = broker.clock.monotonic_ms() + delay_ms
            self._index_in(delay_ms)
        elif more and store.keys.settled_count:
            if due:
                self._queues_due_ms += broker.config.store.queue_write_interval_ms
            self._index_in(INDEX_STEP_MS)
        else:
            self._indexing = False
            if more:
                self.indexing_needed()

    def _flush(self) -> None:
        self._broker.lease_journal.sync_soon()
        log = self._broker.store.log
        if log.durable_position < log.end_position and log.failed is None:
            self._broker.log_sync.start()

    def _flush_all(self) -> None:
        """Make queues and index durable too, so that a recovery has little to read."""
        store = self._broker.store
        if store.log.end_position == self._flushed_all_to:
            store.release_memory()
        elif store.log.failed is None:
            self._flushing.start()

    def _begin_flush(self, done: Done[None], failed: Failed) -> None:
        store, offload = self._broker.store, self._broker.offload
        self._flushed_all_to = store.log.end_position
        plan = store.plan_flush()

        def log_failed(error: BaseException) -> None:
            self._flushed_all_to = -1  # retry even if no message follows
            failed(error)

        def files_failed(error: BaseException) -> None:
            failure = error if isinstance(error, StoreError) else StoreFailed(str(error))
            self.sync_failed(failure)
            log_failed(failure)

        def log_synced(durable: int) -> None:
            offload.run(lambda: plan.finish(durable), done, files_failed)

        self._broker.log_sync.start(log_synced, log_failed)

    async def flush_now(self) -> None:
        """Return when everything written so far is durable and recorded, with queues and index.

        One flush runs at a time: an older flush that ends later would overwrite newer checkpoints.
        """
        await self._flushing.synced()

    def sync_failed(self, error: StoreError) -> None:
        """Stop taking writes, unless the sync only lacked a descriptor and is retried."""
        if isinstance(error, NoDescriptors):
            self.no_descriptors(error)
        else:
            self._broker.write_failed(error)

    def no_descriptors(self, error: NoDescriptors) -> None:
        """Log once a minute that files cannot be opened; each operation is retried."""
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms >= self._say_descriptors_ms:
            self._say_descriptors_ms = now_ms + SAY_MS
            log.error(
                "no file descriptor is left, it is tried again: close connections, or raise the "
                "limit (ulimit -n %d) connections=%d error=%s",
                self._broker.files.descriptors_max(),
                sum(1 for _ in self._broker.server.connections),
                error,
            )

    def _expire_syncs(self) -> None:
        self._broker.ticks.expire(self._broker.clock.monotonic_ms())

    def _clean(self) -> None:
        self._clean_once(asked=False)

    def clean_now(self) -> int:
        """Run retention because an operator asks for it; return how many log files it deleted."""
        return self._clean_once(asked=True)

    def _clean_once(self, *, asked: bool) -> int:
        broker = self._broker
        hour = datetime.fromtimestamp(broker.clock.now_ms() / 1000).astimezone().hour
        needed = (
            broker.producer_snapshot.keep_from, broker.parking.keep_from,
            broker.timer_snapshot.keep_from, broker.timers.keep_from,
            broker.transaction_service.keep_from,
        )  # fmt: skip
        broker.store.keep_from = min((one for one in needed if one is not None), default=None)
        broker.parking.reappend_expiring()
        report = broker.store.clean(
            broker.clock.now_ms(),
            hour,
            broker.files.usage(broker.config.data_path),
            asked=asked,
        )
        if report.segments:
            log.info(
                "removed files commit_log=%d consume_queues=%d index=%d",
                report.segments, report.queue_files, report.index_files,
            )  # fmt: skip
        self._check_disk()
        return report.segments

    def disk_was_full(self) -> None:
        """Check soon whether there is room again."""
        if "disk" not in self._timers and not self.stopped:
            self._timers["disk"] = self._loop.call_later(
                DISK_FULL_RETRY_MS / 1000, self._check_disk_again
            )

    def _check_disk_again(self) -> None:
        self._timers.pop("disk", None)
        self._check_disk()

    def _check_disk(self) -> None:
        broker = self._broker
        store = broker.store
        if store.log.failed is None and not broker.store_writable:
            store.housekeep(broker.clock.now_ms())
        writable, reason = store.writable, store.unwritable_reason
        if writable != broker.store_writable:
            broker.store_writable = writable
            if not writable:
                self._say_refused(reason)
            elif not self.refusing:  # otherwise the next successful write logs it
                self._say_taken()
        if not writable and store.log.failed is None:
            self.disk_was_full()

    def write_refused(self, error: StoreError) -> None:
        """Log a failed write that was undone; at most once a minute."""
        self.refusing = True
        self._say_refused(str(error))

    def write_taken(self) -> None:
        """Log the first write that succeeds after refused ones."""
        self.refusing = False
        self._say_taken()

    def _say_refused(self, reason: str | None) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms >= self._say_refused_ms:
            self._say_refused_ms = now_ms + SAY_MS
            log.error("writes are refused data=%s: %s", self._broker.config.data, reason)

    def _say_taken(self) -> None:
        self._say_refused_ms = 0
        log.warning("the store takes writes again data=%s", self._broker.config.data)

    # -- tables ----------------------------------------------------------------------------------

    def _save_offsets(self) -> None:
        self._broker.save_again()
        self._broker.offset_snapshot.save_soon()
