"""Saving a consumer's offsets: by numbered commits under leases, else in RocketMQ's way.

Under a lease a queue that has gone idle is committed at once, and a queue whose handlers run is
committed every second, with all queues of a broker in one request. So a kill repeats little, and a
busy consumer sends few requests. `rules/commits.py` decides what is committed and when.

`OffsetStore` is where offsets without a lease are kept: at the brokers (`RemoteOffsets`), or in a
file of a broadcasting consumer (`LocalOffsets`). What is committed, and when: decision 18.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from inorder.client.api import BrokerApi
from inorder.client.consume.leases import Leases, commit_parts
from inorder.client.consume.queue import AssignedQueue, QueueEvents
from inorder.client.consume.rules import commits as rules
from inorder.client.consume.rules.assignment import by_broker
from inorder.client.consume.rules.commits import (
    BACKUP_SUFFIX,
    NO_OFFSET,
    NOT_READ,
    NumberedCommit,
    Progress,
    format_offsets,
    merge_offsets,
    path_parts,
    read_offsets,
)
from inorder.client.session import Session
from inorder.disk import Files
from inorder.errors import InorderError, LeasesFull, NotFound
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.tasks import Tasks
from inorder.wire.requests.offsets import ResetOffset

log = get_logger(__name__)

PART_COUNT_MAX: Final = 1024
PART_CHARS_MAX: Final = 1024 * 1024


class OffsetStore(Protocol):
    """Where the offsets of a group are kept."""

    def check(self) -> None:
        """Raise ConfigError if the store can never be read."""
        ...

    async def read(self, queue: TopicQueue) -> int:
        """Return an offset, NO_OFFSET or NOT_READ."""
        ...

    async def save(self, offsets: Mapping[TopicQueue, int]) -> dict[TopicQueue, int]:
        """Save offsets; return those that were accepted."""
        ...

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set an offset, also a lower one; return whether it is set."""
        ...


class RemoteOffsets:
    """Offsets at the broker of each queue."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    def check(self) -> None:
        """Do nothing: brokers are asked later."""

    async def read(self, queue: TopicQueue) -> int:
        """Return an offset, NO_OFFSET or NOT_READ."""
        try:
            api = await self._session.reader_of(queue)
            return await api.query_offset(self._group, queue)
        except NotFound:
            return NO_OFFSET
        except InorderError as error:
            log.info("offset not read group=%s queue=%s error=%s", self._group, queue, error)
            return NOT_READ

    async def save(self, offsets: Mapping[TopicQueue, int]) -> dict[TopicQueue, int]:
        """Save offsets, one request after the other; return those that were accepted.

        The group's offset is never lowered: a consumer that has lost the queue without knowing may
        be behind its next owner. An inorder broker compares; Apache RocketMQ stores any number, so
        there the client reads the stored offset first.
        """
        taken = {}
        for queue, offset in offsets.items():
            try:
                api = await self._session.reader_of(queue)
                if await self._is_behind(api, queue, offset):
                    log.info("group=%s is beyond offset %d of %s", self._group, offset, queue)
                else:
                    await api.update_offset(
                        self._group, queue, offset, only_up=api.compares_offsets
                    )
            except InorderError as error:
                log.info("offset not saved group=%s queue=%s error=%s", self._group, queue, error)
            else:
                taken[queue] = offset
        return taken

    async def _is_behind(self, api: BrokerApi, queue: TopicQueue, offset: int) -> bool:
        """Return whether a broker that does not compare has a higher offset."""
        if api.compares_offsets:
            return False
        try:
            stored = await api.query_offset(self._group, queue, set_zero_if_not_found=False)
        except NotFound:
            return False
        return stored > offset

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set an offset, also a lower one; return whether it is set.

        RocketMQ stores any number. An inorder broker refuses a lower commit of a locked queue:
        there a reset sets the offset.
        """
        try:
            api = await self._session.reader_of(queue)
            await api.update_offset(self._group, queue, offset)
            if await api.query_offset(self._group, queue) != offset:
                reset = ResetOffset(queue.topic, self._group, -1, True, queue.index, offset)
                await api.reset_offset(reset)
        except InorderError as error:
            log.info("offset not moved group=%s queue=%s error=%s", self._group, queue, error)
            return False
        return True


class LocalOffsets:
    """Offsets of a broadcasting consumer, in RocketMQ's JSON file and its backup."""

    def __init__(self, files: Files, directory: Path, client_id: str, group: str) -> None:
        self._files = files
        self._path = directory.joinpath(*path_parts(client_id, group))
        self._backup = self._path.with_name(self._path.name + BACKUP_SUFFIX)

    def check(self) -> None:
        """Raise ConfigError if the files are damaged."""
        self._load()

    async def read(self, queue: TopicQueue) -> int:
        """Return an offset or NO_OFFSET. Raises ConfigError if the files are damaged."""
        return self._load().get(queue, NO_OFFSET)

    async def save(self, offsets: Mapping[TopicQueue, int]) -> dict[TopicQueue, int]:
        """Replace the file, and keep the version before as the backup."""
        known = self._load()
        text = format_offsets(merge_offsets(known, offsets))
        self._files.makedirs(self._path.parent)
        new = self._path.with_name(self._path.name + ".tmp")
        self._files.remove(new)
        with contextlib.closing(self._files.open(new, create=True, size=0)) as file:
            file.pwrite(text, 0)
            file.fdatasync()
        if self._files.exists(self._path):
            self._files.rename(self._path, self._backup)
        self._files.rename(new, self._path)
        return dict(offsets)

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set an offset, also a lower one."""
        return bool(await self.save({queue: offset}))

    def _load(self) -> dict[TopicQueue, int]:
        offsets, from_backup = read_offsets(self._read(self._path), self._read(self._backup))
        if from_backup:
            log.warning("offsets are read from the backup file=%s", self._backup)
        return offsets

    def _read(self, path: Path) -> bytes | None:
        if not self._files.exists(path):
            return None
        with contextlib.closing(self._files.open(path)) as file:
            return file.pread(file.size(), 0)


class Committer:
    """Saves the offsets of one consumer's queues."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        assigned_queues: Mapping[TopicQueue, AssignedQueue],
        store: OffsetStore,
        leases: Leases,
        tasks: Tasks,
        events: QueueEvents,
    ) -> None:
        self._session = session
        self._group = group
        self._assigned_queues = assigned_queues
        self._store = store
        self._leases = leases
        self._tasks = tasks
        self._events = events
        self._saving = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._last_ms = 0
        self._stopped = False

    async def all(self) -> None:
        """Save the unsaved offsets of all queues that may commit."""
        await self.of(list(self._assigned_queues))

    async def leased(self) -> None:
        """Save the unsaved offsets of the queues with leases."""
        await self.of([queue for queue, one in self._assigned_queues.items() if one.leased])

    async def of(self, queues: Iterable[TopicQueue]) -> None:
        """Save the offsets of these queues and wait for the answers."""
        now_ms = self._session.clock.monotonic_ms()
        mine = [
            assigned
            for queue in queues
            if (assigned := self._assigned_queues.get(queue)) is not None
            and assigned.may_commit(now_ms)
        ]
        classic = [one for one in mine if not one.leased]
        leased = {one.queue: one for one in mine if one.leased}
        await asyncio.gather(
            *(self._commit([leased[queue] for queue in at]) for at in by_broker(leased).values()),
            *((self._save(classic),) if classic else ()),
        )

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set the offset of a queue without a lease, also to a lower one."""
        async with self._saving:
            return await self._store.move(queue, offset)

    def idle(self, assigned: AssignedQueue) -> None:
        """Commit a leased queue soon, now that its last handler has ended."""
        if self._timer is None and assigned.leased and not self._stopped:
            now_ms = self._session.clock.monotonic_ms()
            delay_ms = rules.idle_commit_in_ms(now_ms, self._last_ms)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ms / 1000, self._start_idle)

    def stop(self) -> None:
        """Start no further commit of idle queues."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _start_idle(self) -> None:
        self._timer = None
        idle = [
            queue
            for queue, one in self._assigned_queues.items()
            if one.leased and one.live and not one.lease.running
        ]
        if idle:
            self._tasks.start(self.of(idle), name="commit of idle queues")

    async def _save(self, assigned_queues: list[AssignedQueue]) -> None:
        """Save offsets in RocketMQ's way; one call at a time, so that no save overtakes another."""
        async with self._saving:
            unsaved = {
                one.queue: one
                for one in assigned_queues
                if not one.progress.is_saved and self._assigned_queues.get(one.queue) is one
            }
            if unsaved:
                offsets = {queue: one.progress.offset for queue, one in unsaved.items()}
                for queue, offset in (await self._store.save(offsets)).items():
                    unsaved[queue].progress.saved = Progress(offset)

    async def _commit(self, assigned_queues: list[AssignedQueue]) -> None:
        """Commit queues of one broker under their leases."""
        commits = []
        for assigned in assigned_queues:
            numbered = assigned.progress.next_commit()
            if numbered is not None:
                commits.append((assigned.queue, assigned.lease.epoch, numbered))
        if not commits:
            return
        self._last_ms = self._session.clock.monotonic_ms()
        by_queue = {assigned.queue: assigned for assigned in assigned_queues}
        for part in commit_parts(commits, count_max=PART_COUNT_MAX, chars_max=PART_CHARS_MAX):
            try:
                sent_ms, taken, lost = await self._send(part)
            except InorderError as error:
                log.info("not committed group=%s error=%s", self._group, error)
                return
            for queue, _, numbered in part:
                assigned = by_queue[queue]
                if queue in taken:
                    assigned.progress.committed(numbered)
                    self._events.confirmed(assigned, sent_ms)
                elif queue in lost:
                    self._events.lost(assigned)

    async def _send(
        self, part: list[tuple[TopicQueue, int, NumberedCommit]]
    ) -> tuple[int, set[TopicQueue], set[TopicQueue]]:
        """Send commits. A broker without room for finished maps gets the commits without a map.

        For the other queues the commit before stays in force.
        """
        try:
            return await self._leases.commit(part)
        except LeasesFull as error:
            log.warning("group=%s: maps of finished messages are not taken: %s", self._group, error)
            plain = [one for one in part if not one[2].progress.finished]
            if not plain or len(plain) == len(part):
                raise
            return await self._leases.commit(plain)
