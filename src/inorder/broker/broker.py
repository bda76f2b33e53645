"""The broker: builds its parts, starts and stops them, and has the few methods that they share.

    start    lock and recover the store, load the tables, listen, register with the name servers
    stop     accept no requests, unregister, finish the running requests and the tick, save the
             tables, close the store, in this order
    abandon  stop as a kill does: finish nothing and save nothing (for simulations)

A request goes from `router.py` to the handlers of a feature package, for example `leases/`. Each
feature's service and tables are attributes of `Broker`, so a service finds its neighbours here.
How the tables are saved: decision 7. How writes are acknowledged, a tick at a time: decision 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from inorder.broker.admin.rules import BrokerStats
from inorder.broker.assignments.service import Assignments
from inorder.broker.cluster import Registration, load_identity
from inorder.broker.damage.service import Mending, settle
from inorder.broker.damage.storage import Losses
from inorder.broker.delays.forwarding import Forwarding
from inorder.broker.delays.rules import Delays
from inorder.broker.delays.service import Delayed
from inorder.broker.delays.storage import DelaySnapshot
from inorder.broker.durability import LogSync, Safety, Saving
from inorder.broker.filters.service import FilterService
from inorder.broker.groups.rules import UNIT, UNIT_SUBSCRIBED, Departure, GroupTable, Members
from inorder.broker.groups.service import Notices
from inorder.broker.housekeeping import Housekeeping
from inorder.broker.leases.rules import LeaseTable
from inorder.broker.leases.service import LeaseExpiry, LeaseService
from inorder.broker.leases.storage import LeaseJournal
from inorder.broker.locks.rules import QueueLocks
from inorder.broker.locks.service import LockService
from inorder.broker.offload import Offload
from inorder.broker.offsets.rules import CommitTable, OffsetTable
from inorder.broker.offsets.service import OffsetService
from inorder.broker.offsets.storage import OffsetSnapshot
from inorder.broker.parking.service import Parking
from inorder.broker.pops.acks import Acks
from inorder.broker.pops.polls import Polls
from inorder.broker.pops.revival import Revival
from inorder.broker.pops.rules import PopTable, Room
from inorder.broker.pops.service import Ask, Pop, Pops
from inorder.broker.producers.rules import ProducerTable
from inorder.broker.producers.storage import ProducerSnapshot
from inorder.broker.pulls.rules import PullWaits
from inorder.broker.pulls.service import Pull, Pulls
from inorder.broker.replies.service import ReplyService
from inorder.broker.resizing.service import Resizing
from inorder.broker.router import SERVED, Router
from inorder.broker.sends.checks import require_writable
from inorder.broker.sends.service import Sends
from inorder.broker.statistics.rules import Deliveries
from inorder.broker.ticks import PendingReplies, Ticks
from inorder.broker.timers.rules import TimerTable
from inorder.broker.timers.service import Timers
from inorder.broker.timers.storage import TimerSnapshot
from inorder.broker.timers.wheel import refuse_unknown
from inorder.broker.topics.rules import TopicTable, not_here
from inorder.broker.topics.storage import TopicNotes, refuse_foreign
from inorder.broker.transactions import storage as transaction_storage
from inorder.broker.transactions.records import Noted
from inorder.broker.transactions.rules import Transactions
from inorder.broker.transactions.service import TransactionService
from inorder.broker.users.service import load_accounts, make_guard
from inorder.errors import BrokerNameTaken, StoreError, StoreFailed
from inorder.logs import get_logger
from inorder.net.accepted import ServerConnection
from inorder.net.server import Server, connections_below
from inorder.ordering.fence import Generations
from inorder.store.intact import count_intact
from inorder.store.layout import ENTRY_BYTES
from inorder.store.snapshot import Snapshot
from inorder.store.store import Store, queue_files_max
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from inorder.wire.ids import UniqueIds, pack_host
from inorder.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from inorder.access.service import Accounts, Guard
    from inorder.broker.pulls.checks import CheckedPull
    from inorder.clock import Clock
    from inorder.config import BrokerConfig
    from inorder.disk import Files
    from inorder.model import GroupConfig, TopicConfig
    from inorder.store.reader import ReadResult
    from inorder.wire.frame import RawFrame
    from inorder.wire.record import Record

log = get_logger(__name__)

FILES_KEPT: Final = 48
"""Descriptors kept free for files other than those of queues: the log, tables, syncs."""


class Broker:
    """One broker process."""

    store: Store
    sends: Sends
    pulls: Pulls
    ticks: Ticks
    router: Router
    registration: Registration
    offload: Offload
    log_sync: LogSync
    saving: Saving
    housekeeping: Housekeeping
    delayed: Delayed
    delays: Delays
    transaction_service: TransactionService
    timers: Timers
    leases: LeaseTable
    locks: QueueLocks
    waits: PullWaits[ServerConnection, Pull]
    assignments: Assignments
    pop_table: PopTable
    pop_polls: Polls[ServerConnection, Pop]
    ask_polls: Polls[ServerConnection, Ask]
    pops: Pops
    acks: Acks
    revival: Revival
    accounts: Accounts | None = None
    """The users and their rules; None: access is not controlled."""
    guard: Guard | None = None

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        files: Files,
        *,
        randomness: random.Random | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.files = files
        self.random = randomness or random.Random()  # picks queues, not secrets
        now_ms = clock.now_ms()
        self.topics = TopicTable(
            cluster=config.cluster,
            broker=config.name,
            now_ms=now_ms,
            default_queues=config.default_topic_queues,
            auto_create=config.auto_create_topics,
            topics_max=config.topics_max,
            trace_topic=config.trace_topic_name if config.trace_topic else "",
        )
        self.groups = GroupTable(now_ms=now_ms, groups_max=config.groups_max)
        self.offsets = OffsetTable(now_ms=now_ms)
        self.commits = CommitTable()
        self.generations = Generations()
        self.members: Members[ServerConnection] = Members()
        self._make_owners()
        self.producers: ProducerTable[ServerConnection] = ProducerTable(
            producers_max=config.producers_max
        )
        self.transactions = Transactions(pending_max=config.transactions_max)
        self._unnoted: list[Noted] = []
        self.stats = BrokerStats(monotonic_ms=clock.monotonic_ms(), now_ms=now_ms)
        self.deliveries = Deliveries()
        self.server = Server(self, config.net, clock, name=f"broker {config.name}")
        self.address = ""
        self.store_host = b""
        self.identity = ""
        self.started_ms = now_ms
        self.safety = Safety(config.data_path / "inorder")
        self.store_writable = False
        self._said_failed = False
        self._ready = False
        self._notices = Notices(self.members)
        folder = config.data_path / "config"
        self._topics_file = Snapshot(files, folder / "topics.json")
        self._groups_file = Snapshot(files, folder / "subscriptionGroup.json")
        self._topic_notes = TopicNotes(files, folder / "topics.json.new")
        self.losses = Losses(files, config.data_path / "inorder" / "losses.json", clock)
        self.mending = Mending(self)
        self.filters = FilterService(self)
        self.offset_snapshot = OffsetSnapshot(self)
        self.delay_snapshot = DelaySnapshot(self)
        self.timer_table = TimerTable(now_ms=now_ms)
        self.timer_snapshot = TimerSnapshot(self)
        self.producer_snapshot = ProducerSnapshot(self)
        self.lease_journal = LeaseJournal(self)
        self.lease_service = LeaseService(self)
        self.lock_service = LockService(self)
        self.offset_service = OffsetService(self)
        self.lease_expiry = LeaseExpiry(self)
        self.resizing = Resizing(self)
        self.forwarding = Forwarding(self)
        self.parking = Parking(self)
        self.replies = ReplyService(self)

    def _make_owners(self) -> None:
        """Make the tables of leases, locks and pops, which keep each other away; and who waits."""
        config = self.config
        self.waits = PullWaits(
            waits_max=config.waits_max, connection_waits_max=config.net.outstanding_max
        )
        self.assignments = Assignments(self)
        self.pop_table = PopTable(Room(config.pop_inflight_max, config.pop_check_points_max))
        self.leases = LeaseTable(is_popped=self.pop_table.in_flight)
        self.locks = QueueLocks(self.leases, lease_ms=config.lock_expiry_ms)

        def polls() -> Polls[ServerConnection, Any]:
            return Polls(
                total_max=config.pop_polling_total_max,
                key_max=config.pop_polling_max,
                keys_max=config.pop_polling_keys_max,
                connection_max=config.net.outstanding_max,
            )

        self.pop_polls, self.ask_polls = polls(), polls()

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Recover, listen, register; return the bound address."""
        config = self.config
        loop = asyncio.get_running_loop()
        self.server.keep_descriptors(
            connections_below(
                self.files.descriptors_max(),
                descriptors_kept(config, self.files),
                server=f"broker {config.name}",
            )
        )
        refuse_foreign(self.files, config.data_path)
        refuse_unknown(self.files, config.data_path)
        self.store = Store.open(
            config.data_path, config.store, self.files, self.clock,
            first=self.lease_journal.start.first_start,
        )  # fmt: skip
        self.store.companions.append(self.producers)
        try:
            self._load()
            host, port = await self.server.start(config.host, config.port)
        except BaseException:
            self.lease_journal.close()
            self.store.abandon()
            raise
        shown = config.advertised_host or _reachable(host)
        self.address = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
        self.store_host = pack_host(shown, port)
        self.unique_ids = UniqueIds(shown, os.getpid(), self.random.getrandbits(32))
        self.offload = Offload(loop)
        self.saving = Saving(self.clock, self.server.turns, self.offload)
        self.sends = Sends(self)
        self.pulls = Pulls(self)
        self.pops = Pops(self)
        self.acks = Acks(self)
        self.revival = Revival(self)
        self.ticks = Ticks(self, loop)
        self.router = Router(self)
        self.housekeeping = Housekeeping(self, loop)
        self.log_sync = LogSync(self.store, self.offload, self.housekeeping.sync_failed)
        self.delayed = Delayed(self, loop)
        self.transaction_service = TransactionService(self, loop, self._unnoted)
        self.timers = Timers(self, loop)
        self.registration = Registration(self)
        self.store_writable = self.store.unwritable_reason is None
        self._ready = True
        self.mending.start(loop)
        self.housekeeping.start()
        self.housekeeping.lock_deadline_changed()
        self.housekeeping.pop_deadline(self.pop_table.next_deadline_ms())
        self.delayed.start()
        self.timers.start()
        self.resizing.releasing.watch()
        self.forwarding.start()
        try:
            await self.registration.start()
        except BrokerNameTaken:
            await self.stop()
            raise
        log.info(
            "broker started name=%s address=%s data=%s", config.name, self.address, config.data
        )
        return host, port

    def _load(self) -> None:
        path = self.config.data_path / "inorder" / "identity.json"
        self.identity = load_identity(self.files, path, self.random)
        self._topics_file.load(self.topics.decode)
        noted = self._topic_notes.load(self.topics, self.clock.now_ms())
        if self._drop_attributes() or noted:
            self._topics_file.save(self.topics.encode())
        self._groups_file.load(self.groups.decode)
        self.filters.load()
        self.assignments.load()
        self.offset_snapshot.load()
        self._find_lost_topics()
        self.losses.load()
        self.resizing.read()
        replayed = self.lease_journal.load(self.offset_snapshot.file.loaded_checksum)
        settle(self)  # it may move the ends of queues, to which the offsets are cut below
        self.resizing.settle()
        self.topics.take_changes()
        cuts = self.offsets.clamp(self.store.end_offset)
        for cut in cuts:
            log.warning(
                "committed offset lay beyond the recovered log and was cut back topic=%s group=%s "
                "queue=%d was=%d now=%d",
                cut.topic,
                cut.group,
                cut.queue_id,
                cut.was,
                cut.now,
            )
        if self.lease_journal.cut() or cuts or replayed:
            # On disk before the broker serves: after a kill, an offset that still lies beyond the
            # log would skip new messages.
            self.offset_snapshot.save_here(copies=2 if cuts else 1)  # replaces the backup, too
        self.lease_journal.begin()
        self.losses.save()
        self.store.settle_tail()  # the consequences of a lost end of the log are on disk
        self.delays = Delays(self.store.delays_ms, now_ms=self.clock.now_ms())
        self.delay_snapshot.load()
        self.timer_snapshot.load()
        self.producer_snapshot.load()
        self._unnoted = transaction_storage.recover(self.store, self.offsets, self.transactions)
        self.parking.file.load()
        self.accounts = load_accounts(self)
        if self.accounts is not None:
            self.guard = make_guard(self, self.accounts, SERVED)

    def _drop_attributes(self) -> bool:
        """Drop attributes that older versions accepted but never applied; return if any was."""
        found = [config for config in self.topics if not_here(config.attributes)]
        for config in found:
            dropped = not_here(config.attributes)
            kept = {name: value for name, value in config.attributes.items() if name not in dropped}
            self.topics.put(replace(config, attributes=kept), self.clock.now_ms())
            log.warning(
                "dropped attributes that this broker does not apply topic=%s attributes=%s",
                config.name,
                [f"{name}={config.attributes[name]}" for name in dropped],
            )
        return bool(found)

    def _find_lost_topics(self) -> None:
        """Create the topics that hold messages but are missing in a `topics.json` that is older."""
        for name in self.store.queues.topics():
            if name not in self.topics and len(self.topics) < self.topics.topics_max:
                held = [q.queue_id for q in self.store.queues_of(name) if q.visible_offset]
                if held:
                    self.topics.create_internal(name, max(held) + 1, self.clock.now_ms())
                    log.warning("topic=%s holds messages and was not in topics.json", name)

    async def stop(self) -> None:
        """Stop cleanly: acknowledged messages are on disk, and the next start needs no recovery."""
        if not self._ready:
            return
        self._ready = False
        timeout = self.config.shutdown_timeout_ms / 1000
        self.server.stop_accepting()
        self.server.pause_reading()
        self.delayed.cancel()
        self.timers.cancel()
        self.revival.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.registration.stop()
                await self.router.drain()
                self.transaction_service.finish()
                await self.ticks.drain()
        self.router.cancel()
        self.acks.cancel()
        self.resizing.cancel()
        self.forwarding.cancel()
        self.offset_snapshot.cancel()
        self.delay_snapshot.cancel()
        self.timer_snapshot.cancel()
        self.producer_snapshot.cancel()
        self.parking.cancel()
        self.lease_journal.cancel()
        self.mending.cancel()
        self.lease_expiry.cancel()
        self._notices.cancel()
        await self.housekeeping.stop()
        await self.server.close(drain_ms=1000)
        self.saving.stop()
        await self.offload.drain()
        self.offload.close()
        try:
            complete = self._save_tables()
        finally:  # a table that cannot be saved must not leave the store open and locked
            self.lease_journal.close()
            self.store.close()
        if complete and not self.safety.broken:
            self.lease_journal.end()
        log.info("broker stopped name=%s", self.config.name)

    def _save_tables(self) -> bool:
        """Save all tables; a table that cannot be saved does not keep the others from it.

        Returns whether everything acknowledged is on disk, in the log and in the tables.
        """
        failure: OSError | None = None
        complete = True
        saves: tuple[tuple[Path, Callable[[], None]], ...] = (
            (self._topics_file.path, lambda: self._topics_file.save(self.topics.encode())),
            (self._groups_file.path, lambda: self._groups_file.save(self.groups.encode())),
            (self.filters.file.path, self.filters.save_at_stop),
            (self.assignments.file.path, self.assignments.save_at_stop),
            (self.offset_snapshot.path, self.offset_snapshot.save_at_stop),
            (self.delay_snapshot.path, self.delay_snapshot.save_here),
            (self.timer_snapshot.path, self.timer_snapshot.save_at_stop),
            (self.producer_snapshot.path, self.producer_snapshot.save_at_stop),
            (self.lease_journal.journal.folder, self.lease_journal.save_at_stop),
            (self.parking.file.path, self.parking.file.save_at_stop),
        )
        for path, save in saves:
            try:
                save()
            except StoreError as error:  # the log failed: the next start replays it
                log.error("not saved file=%s error=%s", path, error)
                complete = False
            except OSError as error:
                log.error("not saved file=%s error=%s", path, error)
                failure = error
        self._topic_notes.close(remove=failure is None)
        if failure is not None:
            raise failure
        return complete

    def abandon(self) -> None:
        """Stop as a kill does: finish nothing and save nothing."""
        self._ready = False
        self.log_sync.stop()
        self.saving.stop()
        self._topic_notes.close(remove=False)
        self._notices.cancel()
        self.housekeeping.cancel()
        self.delayed.cancel()
        self.transaction_service.cancel()
        self.timers.cancel()
        self.revival.cancel()
        self.acks.cancel()
        self.offset_snapshot.cancel()
        self.delay_snapshot.cancel()
        self.timer_snapshot.cancel()
        self.producer_snapshot.cancel()
        self.parking.cancel()
        self.lease_journal.cancel()
        self.mending.cancel()
        self.lease_journal.close()
        self.lease_expiry.cancel()
        self.resizing.cancel()
        self.forwarding.cancel()
        self.registration.abandon()
        self.router.cancel()
        self.server.stop_accepting()
        for connection in list(self.server.connections):
            connection.abort("the broker was killed")
        self.store.abandon()

    # -- connections -----------------------------------------------------------------------------

    def connection_made(self, connection: ServerConnection) -> None:
        """Do nothing: a connection has no state here before its first request."""

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        """Serve all frames of one read."""
        if self._ready:
            self.router.frames_received(connection, frames)
        else:
            connection.close("the broker is not serving")

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """Drop the client's waiting pulls and memberships, and shorten its locks and leases."""
        self.waits.drop_connection(connection)
        self.pop_polls.drop_connection(connection)
        self.ask_polls.drop_connection(connection)
        self.producers.connection_lost(connection)
        if self.guard is not None:
            self.guard.connection_lost(connection)
        if self._ready:
            self.lease_expiry.connection_lost(connection)
            self.apply_departure(self.members.close(connection, self.clock.monotonic_ms()))

    def apply_departure(self, departure: Departure[ServerConnection]) -> None:
        """Shorten or free the locks of departed clients, and notify their groups."""
        if not departure.departed and not departure.notices:
            return
        now_ms = self.clock.monotonic_ms()
        freed = set()
        for gone in departure.departed:
            if self.locks.client_lost(gone.group, gone.client_id, now_ms):
                freed.add(gone.group)
            if self.members.group(gone.group) is None:
                self.filters.group_left(gone.group)
        for notice in departure.notices:
            freed.discard(notice.group)
            self.notify_ids_changed(notice.group, notice.connections)
        for group in sorted(freed):
            self.notify_ids_changed(group)
        self.housekeeping.lock_deadline_changed()

    def notify_ids_changed(
        self, group: str, connections: Iterable[ServerConnection] | None = None
    ) -> None:
        """Send NOTIFY_CONSUMER_IDS_CHANGED to a group's members at the end of this loop turn."""
        self._notices.tell(group, connections)
        self._wake_pops(group)

    def notify_route_changed(self, topic: str) -> None:
        """Notify the members of all groups that subscribe to a topic: its queues changed."""
        self._notices.tell_route(topic)

    def notify_unlocked(self, group: str, *, by: str | None = None) -> None:
        """Notify the members of a group of a free queue; client `by` unlocked it."""
        self._notices.tell_unlocked(group, by=by)
        self._wake_pops(group)

    def _wake_pops(self, group: str) -> None:
        """Try the pops of a group that wait: a queue may be free."""
        if self._ready:
            self.pops.wake_group(group)

    # -- topics and groups -----------------------------------------------------------------------

    def create_topic_on_send(
        self, name: str, template: str, queues: int, *, unit_mode: bool = False
    ) -> TopicConfig | None:
        """Create the topic of a send from its template; a retry topic needs no template.

        Returns None if the topic may not be created.
        """
        now_ms = self.clock.now_ms()
        retry = name.startswith(RETRY_PREFIX)
        flag = (UNIT_SUBSCRIBED if retry else UNIT) if unit_mode else 0
        made = self.topics.create_on_send(name, template, queues, now_ms, sys_flag=flag)
        if made is None and retry:
            made = self.topics.create_internal(name, 1, now_ms, sys_flag=flag)
        if made is not None:
            self.save_topics()
            self.registration.topic_changed(made)
        return made

    def append(
        self,
        record: Record,
        queue_id: int,
        *,
        level: int,
        connection: ServerConnection,
        answer: Command,
        oneway: bool,
    ) -> None:
        """Store a message that the broker made, such as a retry, and reply when it is stored.

        A `level` above 0 delays the delivery.
        """
        require_writable(self)
        replies = PendingReplies(connection, self.clock.now_ms())
        record.stored_at_ms = replies.now_ms
        self.delayed.put(self.sends.target(record.topic, queue_id), record, level)
        if oneway:
            replies.add_oneway()
        else:
            replies.add(encode_frame(answer))
        self.ticks.take(replies)

    def ensure_topic(self, name: str, *, queues: int, sys_flag: int = 0) -> TopicConfig:
        """Return a topic that the broker itself needs; create it if it is missing."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics.create_internal(
                name, queues, self.clock.now_ms(), sys_flag=sys_flag
            )
            assert found is not None, "a topic that is missing can be created"
            self.save_topics()
            self.registration.topic_changed(found)
        return found

    def find_group(self, name: str) -> GroupConfig | None:
        """Return a group; create it if it is missing and the settings allow that."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups.find_or_create(
                name, auto_create=self.config.auto_create_groups, now_ms=self.clock.now_ms()
            )
            if found is not None:
                self.save_groups()
        return found

    def save_topics(self) -> None:
        """Save the topics after a change, and clear what sends and pulls cached of them."""
        self.sends.forget_targets()
        self.pulls.forget_checks()
        self._topic_notes.add(
            self.topics.take_changes(),
            covered=self.saving.covers(self._topics_file),
            durable=self.config.store.sync_flush,
        )
        self.saving.save(self._topics_file, self.topics)

    def save_groups(self) -> None:
        """Save the groups after a change."""
        self.pulls.forget_checks()
        self.saving.save(self._groups_file, self.groups)

    def save_again(self) -> None:
        """Save the tables again that could not be written."""
        self.saving.save_again()

    def count(self) -> None:
        """Copy the counters of sends and pulls into the statistics."""
        stats = self.stats
        packer = self.sends.packer
        stats.put_messages, stats.put_bytes = packer.messages, packer.bytes
        stats.get_messages, stats.get_bytes = self.pulls.messages, self.pulls.bytes
        stats.pulls_found, stats.pulls_missed = self.pulls.found, self.pulls.missed

    # -- called by ticks and pulls ---------------------------------------------------------------

    def wake(self, topic: str, queue_id: int) -> None:
        """Answer the waiting pulls of a queue that has messages for them now."""
        queue = self.store.find_queue(topic, queue_id)
        if queue is not None:
            self.pulls.wake([(queue, queue.visible_offset)])
            self.pops.wake_queue(topic, queue_id)

    def topic_gone(self, topic: str) -> None:
        """Answer the waiting pulls of a deleted topic: it does not exist."""
        for wait in self.waits.drop_topic(topic):
            self.pulls.finish(wait.request)
        self.pops.topic_gone(topic)

    def send_cold(
        self,
        connection: ServerConnection,
        head: bytes,
        result: ReadResult,
        checked: CheckedPull,
        offset: int,
    ) -> None:
        """Read messages that are not in memory in a thread, check them, then send the reply.

        The check compares the records with the entries of the queue. If a message is gone or
        damaged, the connection is closed: the client pulls again and gets the right answer.
        """
        ranges, reader, queue = result.ranges, self.store.reader, checked.queue

        def send(parts: list[bytes] | None) -> None:
            if parts is None:
                connection.close("the messages were removed while they were read")
                return
            # The records are in memory now, so the loop may read them.
            right = count_intact(self.store.log, queue, result.entries, offset, checked.wanted)
            if right < len(result.entries) // ENTRY_BYTES:
                self.mending.found(queue, offset + right)
                connection.close("an entry of the queue does not lead to its message")
            else:
                connection.write_parts([head, *parts])

        self.offload.run(
            lambda: reader.load(ranges),
            send,
            lambda error: connection.close(f"reading failed: {error}"),
        )

    @property
    def writable(self) -> bool:
        """Whether the broker accepts messages."""
        return self.store_writable and not self.safety.broken

    @property
    def unwritable_reason(self) -> str | None:
        """Why the broker accepts no messages; None if it does."""
        return self.store.unwritable_reason or self.safety.reason

    def write_failed(self, error: StoreError) -> None:
        """Close the fast path of sends after a failed write.

        After a full disk the general path still tries each send, unless retention has found the
        disk above its limit; the fast path opens again when the disk has space. A failed log is
        final: no path accepts a write. It is reported once.
        """
        self.store_writable = False
        if self.store.log.failed is not None:
            if self._said_failed:
                return
            self._said_failed = True
            log.critical(
                "the store failed and takes no more writes; reads go on. Free or replace the disk, "
                "then restart the broker: it recovers what is really on disk. data=%s error=%s",
                self.config.data,
                error,
            )
            return
        if isinstance(error, StoreFailed):
            log.error("the store is in trouble data=%s error=%s", self.config.data, error)
        self.housekeeping.disk_was_full()


def descriptors_kept(config: BrokerConfig, files: Files) -> int:
    """Return how many descriptors are kept for files, out of reach of connections."""
    return queue_files_max(config.store, files) + FILES_KEPT


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
