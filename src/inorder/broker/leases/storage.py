"""Leases and offsets over restarts: the lease journal, and the files that it is folded into.

    owners.NNNNNN       every grant, release and commit, written before its reply, so a kill loses
                        none. Under sync flush commits and releases are also on disk before it.
    consumerOffset.json RocketMQ's offsets file, saved every few seconds
    chapters.json       key map versions and log generations for fences (`ordering/fence`)
    start.json          the broker's starts (`StartFile`)

A start replays the journal over the offsets file, unless this broker did not save that file: then
another broker has worked in the directory, and its file is right. A power cut may have taken the
end of the log. The start cuts records back to that end, because new messages will be stored there.
The cut, the chapters and the start are on disk before the port opens; otherwise a later kill would
bring the old records back. The offsets file is saved, and journal files are deleted, only after the
sync of the log has passed every message that they refer to. Offsets of RocketMQ clients reach the
journal within a second, or before a reply.

A failed sync stops the broker's writes (`broker/durability`). The journal heals with a new file
that holds the whole state, offsets too. The new file counts when it is on disk and the older files
are gone.

`start.json` is on disk before the port opens:

    start           grows with every start: the high half of epochs
    boot_id         of the machine; while it is the same, written data is there
    clean           the last stop was clean, so the log is complete
    generation      of the log; grows when its end was lost, or may have been
    longest_ms      the longest lease that was granted. A start that lost the leases waits that
                    long; the value is on disk before a longer lease is granted
    waits           a start that lost the leases has not waited that long yet
    waits_until_ms  when it will have, by the clock of this boot; a kill does not restart the wait

Why a journal: decision 15.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.durability import SharedSync
from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import ROCKETMQ_RESTART_MS, deadline_after_start
from inorder.broker.offsets.rules import OffsetTable
from inorder.broker.pops import records as pop_records
from inorder.broker.pops import storage as pop_storage
from inorder.errors import DiskFull, RemoteProtocolError, StoreError, StoreFailed
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.store.journal import Journal, pack
from inorder.store.mending import Loss
from inorder.store.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from inorder.broker.broker import Broker
    from inorder.broker.durability import Done, Failed, Safety
    from inorder.broker.leases.records import Record
    from inorder.disk import File, Files
    from inorder.store.store import Store

log = get_logger(__name__)


class Start(msgspec.Struct, frozen=True):
    """The content of `start.json`."""

    start: int = 0
    boot_id: str = ""
    clean: bool = True
    generation: int = 0
    longest_ms: int = 0
    waits: bool = False
    waits_until_ms: int = 0


class StartFile:
    """Loads and saves `start.json`."""

    def __init__(self, files: Files, path: Path, safety: Safety | None = None) -> None:
        self._file = Snapshot(files, path, safety)
        self._boot_id = files.boot_id
        self.now = Start()
        self._unsaved = False
        self.same_boot = False
        """The machine was not rebooted since the last start of the broker."""
        self.may_have_lost = False
        """The ends of the log and of the journals may be missing."""

    def first_start(self) -> None:
        """Write the file into a directory that inorder opens for the first time.

        The file is there before any other file of inorder. Otherwise a first start that is killed
        would leave a directory that looks as if this file was lost, and no start would accept it.
        """
        if not self._file.exists():
            self._file.save(msgspec.json.encode(Start(boot_id=self._boot_id(), clean=True)))

    def load(self, *, start: int = 0, generation: int = 0, ours: bool = False) -> None:
        """Read what was known before this start.

        `start` and `generation` are the highest that other files know: higher ones than in this
        file show that it is an older copy, or missing. Of a directory that is `ours` it must not
        be missing, unless the others know.

        Raises:
            StoreError: it is missing, and nothing tells which epochs were given out.
        """
        known = self._file.load(self._decode)
        path = self._file.path
        if ours and not known and not start:
            raise StoreError(
                f"{path} is missing, and no journal of owners tells which epochs were given out: "
                f"restore it from a copy, or write a higher number than any before into it, as "
                f"with `echo '{{\"start\":'$(date +%s)'}}' > {path}`"
            )
        doubtful = (ours and not known) or self._file.took_backup or start > self.now.start
        if doubtful:
            log.error(
                "%s is missing, damaged or an older copy: this start counts on from the highest "
                "epoch and generation in the other files, and takes the last stop for a crash of "
                "the machine", path,
            )  # fmt: skip
            self.now = msgspec.structs.replace(
                self.now, start=max(self.now.start, start), boot_id="", clean=False
            )
            known = True
        self.now = msgspec.structs.replace(
            self.now, generation=max(self.now.generation, generation)
        )
        boot_id = self._boot_id()
        before = self.now
        self.same_boot = known and bool(boot_id) and before.boot_id == boot_id
        self.may_have_lost = known and not before.clean and not self.same_boot
        self.now = Start(
            before.start + 1,
            boot_id,
            clean=False,
            generation=before.generation + self.may_have_lost,
            longest_ms=before.longest_ms,
            waits=before.waits or self.may_have_lost,
            waits_until_ms=before.waits_until_ms if self.same_boot else 0,
        )

    def _decode(self, data: bytes) -> None:
        try:
            self.now = msgspec.json.decode(data, type=Start)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not a start: {error}") from None

    def begin(self, longest_ms: int) -> None:
        """Count this start; `longest_ms` is that of the leases that are known.

        Raises:
            OSError: it is not on disk, so the broker must not start.
        """
        if self.now.waits:
            longest_ms = max(longest_ms, self.now.longest_ms)
        self._save(msgspec.structs.replace(self.now, longest_ms=longest_ms))

    def lost_tail(self) -> None:
        """Take note that the end of the log is missing, whatever the last stop was like."""
        if not self.may_have_lost:
            self.may_have_lost = True
            self.next_generation()

    def wait(self, now_ms: int) -> int:
        """Return when every lease that this start does not know has expired; `begin` saves it."""
        until_ms = deadline_after_start(
            self.now.waits_until_ms, self.now.longest_ms, now_ms, same_boot=self.same_boot
        )
        self.now = msgspec.structs.replace(self.now, waits_until_ms=until_ms)
        return until_ms

    def leases_unknown(self) -> None:
        """Note that the journal lacks grants, so no queue is granted until they have expired."""
        self.now = msgspec.structs.replace(self.now, waits=True)

    def waited(self) -> None:
        """Note that every lease that this start does not know has expired."""
        self._save(msgspec.structs.replace(self.now, waits=False, waits_until_ms=0))

    def raise_longest(self, ms: int) -> None:
        """Save the length of a lease that is longer than any before it; call it before the grant.

        Raises:
            OSError: the length is not on disk, so the lease must not be granted.
        """
        if ms > self.now.longest_ms:
            self._save(msgspec.structs.replace(self.now, longest_ms=ms))

    def next_generation(self) -> int:
        """Return a new generation; `save_unsaved` puts it on disk."""
        self.now = msgspec.structs.replace(self.now, generation=self.now.generation + 1)
        self._unsaved = True
        return self.now.generation

    def save_unsaved(self) -> None:
        """Put on disk what is not; OSError if that fails."""
        if self._unsaved or self._file.in_doubt:
            self._save(self.now)

    def end(self) -> None:
        """Note a clean stop: the log, and what is kept of leases and commits, is on disk."""
        self._save(msgspec.structs.replace(self.now, clean=True))

    def _save(self, content: Start) -> None:
        self._file.save(msgspec.json.encode(content))
        self.now = content
        self._unsaved = False


FOLDER: Final = "inorder"
NAME: Final = "owners"
FOLD_BYTES_MIN: Final = 4 * 1024 * 1024
"""A journal of this size is folded, unless twice what it was folded to last time is more."""
FOLD_AT_ONCE: Final = 500
RETRY_MS: Final = 30_000
HEAL_RETRY_MS: Final = 3_000
LOG_EVERY_MS: Final = 60_000
UNWRITTEN_MAX: Final = 10_000
"""Records that the disk has yet to take; if there are more the journal is written anew."""
SAVED_MAX: Final = 8
"""Checksums of the file of offsets that are remembered: it, its older copy, and what a power cut
may have brought back."""


class LeaseJournal:
    """Saves and restores leases, commits and chapters."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        folder = broker.config.data_path / FOLDER
        self.journal = Journal(broker.files, folder, NAME)
        self.start = StartFile(broker.files, folder / "start.json", broker.safety)
        self._chapters_file = Snapshot(broker.files, folder / "chapters.json", broker.safety)
        self._chapters_saved = 0
        self._fold_above = FOLD_BYTES_MIN
        self._unwritten: list[Record] = []
        self._saved: deque[int] = deque(maxlen=SAVED_MAX)
        self._retry_ms = 0
        self._heal_ms = 0
        self._logged, self._log_again_ms = "", 0
        self._folding: asyncio.Task[None] | None = None
        self._healing: asyncio.Task[None] | None = None
        self._synced_bytes = 0
        self._sync: SharedSync[None] = SharedSync(self._begin_sync)
        self.commits_are_valid = True
        """What the journal says of progress holds: nobody else has worked here since."""

    def __repr__(self) -> str:
        return f"LeaseJournal({self.journal!r}, start={self.start.now.start})"

    # -- start -----------------------------------------------------------------------------------

    def load(self, checksum: int | None = None) -> bool:
        """Restore the tables; tell whether offsets have to be saved before the port opens.

        `checksum` is that of the file of offsets, None if there is none.

        Raises:
            OSError: what had to be cut off could not be, for good.
        """
        broker = self._broker
        records = list(self._read())
        self._chapters_file.load(broker.generations.decode)
        self._chapters_saved = broker.generations.revision
        self.start.load(
            start=lease_records.last_start(records),
            generation=broker.generations.highest,
            ours=broker.store.was_ours,
        )
        end, recovery = broker.store.log.end_position, broker.store.recovery
        known_end = max(lease_records.depends_on(records), recovery.noted_position)
        if known_end > end or recovery.was_short:
            self.start.lost_tail()
        if known_end > end and self.start.same_boot:  # no power cut: what was written was there
            broker.losses.report(Loss("", -1, end, known_end, "the end of commitlog is missing"))
        self._look_for_losses(known=bool(records), checksum=checksum)
        ours = not records or lease_records.wrote(records, checksum)
        # After a power cut the file may be right, and the journal's word of it gone.
        if not ours and broker.store.undisturbed and not self.start.may_have_lost:
            self._restore_offsets(records)
            ours = True
        self.commits_are_valid = ours
        if not ours:
            log.warning("another broker has saved the offsets since; what it saved counts")
        leases = lease_records.replay(
            records,
            broker.offsets if ours else OffsetTable(now_ms=0),
            broker.commits,
            now_ms=broker.clock.now_ms(),
        )
        for (group, topic), outright in lease_records.ordered(records).items():
            if outright or (topic in broker.topics and group in broker.groups):
                broker.leases.mark_ordered(group, topic)
        if ours:
            pop_storage.restore(broker, records)
        self._saved.extend(one.checksum for one in records if isinstance(one, lease_records.Saved))
        if checksum is not None:
            self._saved.append(checksum)
        now_ms = broker.clock.monotonic_ms()
        broker.leases.begin(self.start.now.start)
        broker.leases.restore(leases.items(), now_ms, same_boot=self.start.same_boot)
        if self.start.now.waits:
            broker.leases.closed_until_ms = self.start.wait(now_ms)
        return bool(records)

    def _restore_offsets(self, records: list[Record]) -> None:
        """Take the last file of offsets that we saved: the present one was changed by nobody."""
        file = self._broker.offset_snapshot.file
        found = "none that was saved is left"
        for path, content in file.contents():
            if lease_records.wrote(records, zlib.crc32(content)):
                self._broker.offsets.decode(content)
                found = f"{path.name} was taken"
                break
        self._broker.losses.report_file(
            f"{file.path} is damaged: it is not what was saved, and no other broker has been here. "
            f"{found[0].upper()}{found[1:]}, and what the journal has since; groups of clients "
            "without leases may handle messages again. To set offsets use `inorder offset reset`"
        )

    def _look_for_losses(self, *, known: bool, checksum: int | None) -> None:
        """Say what is lost if the journal is missing, empty or damaged."""
        start = self.start
        before = start.now.start > 1
        missing = before and not known and (checksum is not None or start.now.longest_ms > 0)
        damaged = before and self.journal.cut_bytes > 0 and not start.may_have_lost
        if not missing and not damaged:
            return
        start.leases_unknown()
        what = "missing or empty" if missing else f"damaged ({self.journal.cut_bytes} bytes)"
        self._broker.losses.report_file(
            f"{self.journal.folder / NAME}.* is {what}: who owns which queue, what is finished "
            "above committed offsets, and commits since consumerOffset.json was saved are not "
            "known. Groups go on from that file and may handle messages again; queues are given "
            f"out after {start.now.longest_ms} ms"
        )

    def _read(self) -> Iterator[Record]:
        for payload in self.journal.open():
            try:
                yield lease_records.decode(payload)
            except RemoteProtocolError as error:
                log.error("a record is not understood and left out journal=%s: %s",
                          self.journal.name, error)  # fmt: skip

    def cut(self) -> bool:
        """Cut off what lies beyond the recovered log; tell whether there was any."""
        broker = self._broker
        found = False
        pop_storage.cut(broker)
        for key in broker.commits.clamp(partial(end_of, broker.store)):
            log.warning("finished messages beyond the recovered log are forgotten queue=%s", key)
            found = True
        if self.start.may_have_lost:
            log.warning("the end of the log may be lost: generation=%d", self.start.now.generation)
            broker.generations.lost_tail(
                [
                    (topic, queue.queue_id, queue.visible_offset)
                    for topic in broker.store.queues.topics()
                    for queue in broker.store.queues_of(topic)
                ],
                self.start.now.generation,
            )
        return found

    def begin(self) -> None:
        """Put on disk what this start decided; the offsets are saved already.

        Raises:
            OSError: it is not, so the broker must not start.
        """
        self.save_chapters()
        if self.journal.size or self.journal.has_older:
            self.journal.switch(self.journal.prepare())
            self._write(self._summary())
            self.journal.plan_sync()()
            self.journal.plan_drop()()
            self.journal.dropped()
        leases = self._broker.leases
        known = (leases.get(key) for key in leases.keys())  # noqa: SIM118 - no mapping
        longest_ms = max(
            (
                ROCKETMQ_RESTART_MS if lease.owner.is_rocketmq else lease.lease_ms
                for lease in known
                if lease is not None
            ),
            default=0,
        )
        self.start.begin(longest_ms)

    # -- writing ---------------------------------------------------------------------------------

    def write(self, records: Iterable[Record]) -> None:
        """Write records; they survive a kill when this returns.

        Raises:
            DiskFull, StoreFailed: the records do not count.
        """
        self._broker.safety.require()
        try:
            self._write(records)
        except OSError as error:
            raise DiskFull(f"{self.journal.name} cannot be written: {error}") from error

    def _write(self, records: Iterable[Record]) -> None:
        payloads = [lease_records.encode(record) for record in (*self._unwritten, *records)]
        if payloads:
            self.journal.append(payloads)
            self._unwritten.clear()

    def will_save(self, offsets: bytes) -> None:
        """Note the checksum of the offsets file that is about to be saved.

        Raises:
            DiskFull, StoreFailed: it is not; do not save it.
        """
        checksum = zlib.crc32(offsets)
        if checksum not in self._saved:
            self.write((lease_records.Saved(checksum),))
            self._saved.append(checksum)

    def write_later(self, records: Iterable[Record]) -> None:
        """Write records that count even if the disk is full: now, or before any other record.

        They state that a queue is free, or that a topic was deleted.
        """
        found = list(records)
        try:
            self.write(found)
        except StoreError as error:
            if not self._broker.safety.broken:
                self._log_error(error)
            self._unwritten += found
            if len(self._unwritten) > UNWRITTEN_MAX:
                self._broke(f"{len(self._unwritten)} records wait to be written: {error}")

    def flush(self) -> None:
        """Write the offsets that RocketMQ clients committed since the last flush.

        Raises:
            DiskFull, StoreFailed: nothing is written; the next flush tries again.
        """
        offsets = self._broker.offsets
        changed = offsets.take_changed()
        if not changed:
            return
        end = self._broker.store.log.end_position
        try:
            self.write(lease_records.Progress(*one, end) for one in changed)
        except StoreError:
            offsets.put_back_changed(changed)
            raise

    async def settled(self) -> None:
        """Return when all records are safe by the flush mode; one sync serves all callers.

        Raises:
            StoreFailed: the sync failed, and nothing more is written.
        """
        if self._broker.config.store.sync_flush:
            await self._synced()

    async def _synced(self) -> None:
        self._broker.safety.require()  # a sync after a failed one proves nothing
        await self._sync.synced()

    def sync_soon(self) -> None:
        """Start a sync of new records; a timer calls this under async flush.

        So a power cut takes no more of the journal than of the log.
        """
        broken = self._broker.safety.broken
        if not broken and not self._sync.running and self.journal.size != self._synced_bytes:
            self._synced_bytes = self.journal.size
            self._sync.start()

    def _begin_sync(self, done: Done[None], failed: Failed) -> None:
        def synced(_: None) -> None:
            if self.journal.failed is None:
                self.journal.synced()
                done(None)
            else:  # it failed elsewhere meanwhile
                refused(OSError(self.journal.failed))

        def refused(error: BaseException) -> None:
            self._broke(error)
            failed(StoreFailed(f"{NAME} cannot be put on disk: {error}"))

        if self.journal.failed is None:
            self._broker.offload.run(self.journal.plan_sync(), synced, refused)
        else:
            refused(OSError(self.journal.failed))

    # -- healing ---------------------------------------------------------------------------------

    def _broke(self, error: object) -> None:
        self.journal.failed = str(error)
        self._broker.safety.broke(NAME, error)

    def _heal_soon(self) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms >= self._heal_ms and (self._healing is None or self._healing.done()):
            self._heal_ms = now_ms + HEAL_RETRY_MS
            self._healing = asyncio.get_running_loop().create_task(self._heal(), name="heal owners")

    async def _heal(self) -> None:
        """Write the whole state to a new file, sync it, drop the older files.

        Meanwhile nothing else is appended; records of changes wait in `_unwritten`.
        """
        journal, offload = self.journal, self._broker.offload
        file = None
        try:
            file = await offload.call(journal.prepare)
            size = 0
            for data in self._portions():
                file.pwrite(data, size)
                size += len(data)
                await asyncio.sleep(0)
            await offload.call(file.fdatasync)
            while self._sync.running or self._is_folding():
                await self._sync.idle()  # both end, because nothing is written any more
                if self._folding is not None:
                    await asyncio.wait([self._folding])
            self._switch_to(file, size)
            file = None
            await offload.call(journal.plan_drop())
        except OSError as error:
            self._log_error(error)
        else:
            self._healed()
        finally:
            if file is not None:
                journal.discard(file)

    def _heal_here(self) -> None:
        """Heal at stop, when nothing else runs. Raises OSError."""
        journal = self.journal
        file = journal.prepare()
        try:
            data = b"".join(self._portions())
            file.pwrite(data, 0)
            file.fdatasync()
            self._switch_to(file, len(data))
        except OSError:
            journal.discard(file)
            raise
        journal.plan_drop()()
        self._healed()

    def _portions(self) -> Iterator[bytes]:
        self._unwritten.clear()  # the state already reflects these records
        records = self._all_that_stands()
        while portion := list(islice(records, FOLD_AT_ONCE)):
            yield b"".join(pack(lease_records.encode(record)) for record in portion)

    def _all_that_stands(self) -> Iterator[Record]:
        yield from self._summary()
        end = self._broker.store.log.end_position
        for one in self._broker.offsets.entries():
            if self._broker.commits.get(GroupQueue(*one[:3])) is None:
                yield lease_records.Progress(*one, end)

    def _switch_to(self, file: File, size: int) -> None:
        self.journal.switch(file, size)
        self.journal.synced()  # the older files will be dropped, so nobody syncs them
        self._synced_bytes = size

    def _healed(self) -> None:
        self.journal.dropped()
        self.journal.failed = None
        self._fold_above = max(FOLD_BYTES_MIN, 2 * self.journal.size)
        self._broker.safety.mended(NAME)

    def _log_error(self, error: object) -> None:
        """Log why records are not written; the same reason once a minute."""
        now_ms = self._broker.clock.monotonic_ms()
        if str(error) != self._logged or now_ms >= self._log_again_ms:
            self._logged, self._log_again_ms = str(error), now_ms + LOG_EVERY_MS
            log.error("leases and offsets are not written yet, the broker tries again error=%s",
                      error)  # fmt: skip

    def retire(self, topic: str) -> None:
        """Start a generation for a deleted topic, so that fences grow if it is created again."""
        self._broker.generations.retire(topic, self.start.next_generation())
        try:
            self._save_unsaved()
        except OSError as error:  # the topic may have been deleted to make room
            log.error("a log generation is not saved yet topic=%s error=%s", topic, error)

    def _save_unsaved(self) -> None:
        self.start.save_unsaved()
        self.save_chapters()

    def save_chapters(self) -> None:
        """Save `chapters.json` if it changed."""
        chapters = self._broker.generations
        if chapters.revision != self._chapters_saved or self._chapters_file.in_doubt:
            self._chapters_file.save(chapters.encode())
            self._chapters_saved = chapters.revision

    # -- folding ---------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Write waiting records; fold the journal if it has grown."""
        if self.journal.failed is not None:
            self._heal_soon()
        try:
            self._save_unsaved()
        except OSError as error:
            self._log_error(error)
        try:
            self.write(())
            self.flush()
        except StoreFailed:
            pass  # logged when the journal broke
        except StoreError as error:
            self._log_error(error)
        now_ms = self._broker.clock.monotonic_ms()
        if self.journal.size > self._fold_above and now_ms >= self._retry_ms:
            self.fold_soon()

    def _is_folding(self) -> bool:
        return self._folding is not None and not self._folding.done()

    def fold_soon(self) -> None:
        """Start a fold, unless one runs."""
        if not self._is_folding():
            self._folding = asyncio.get_running_loop().create_task(self._fold(), name="fold owners")

    async def fold(self) -> None:
        """Return when the journal holds the present state and nothing older."""
        self.fold_soon()
        assert self._folding is not None, "it has just begun"
        await asyncio.shield(self._folding)

    async def _fold(self) -> None:
        broker, journal = self._broker, self.journal
        try:
            broker.safety.require()
            file = await broker.offload.call(journal.prepare)
            await self._sync.idle()
            try:
                self.flush()
                journal.switch(file)
            except (OSError, StoreError):
                journal.discard(file)
                raise
            await broker.offset_snapshot.saved()  # for offsets that only the older files hold
            summary = self._summary()
            while portion := list(islice(summary, FOLD_AT_ONCE)):
                self.write(portion)
                await asyncio.sleep(0)
            await self._synced()
            await broker.offload.call(journal.plan_drop())
            journal.dropped()
            self._fold_above = max(FOLD_BYTES_MIN, 2 * journal.size)
        except (OSError, StoreError) as error:
            log.error("the lease journal was not folded, its old files are kept error=%s", error)
            self._retry_ms = broker.clock.monotonic_ms() + RETRY_MS

    def _summary(self) -> Iterator[Record]:
        """Yield the records of the present state."""
        for checksum in list(self._saved):
            yield lease_records.Saved(checksum)
        leases, commits = self._broker.leases, self._broker.commits
        for pair in leases.ordered():
            yield lease_records.Ordered(*pair)
        end = self._broker.store.log.end_position
        for group in leases.groups():
            for key in leases.held(group):
                lease = leases.get(key)
                if lease is not None:
                    yield lease_records.granted(
                        key, self._broker.config.name, lease.owner, lease.epoch, lease.terms,
                        revoked=lease.is_revoked, deadline_ms=lease.deadline_ms,
                    )  # fmt: skip
        for place in commits.keys():  # noqa: SIM118 - no mapping
            last = commits.get(place)
            offset = self._broker.offsets.query(*place)
            if last is not None and offset >= 0:
                finished = last.finished if offset == last.offset else ""
                yield lease_records.Commit(*place, offset, end, last.epoch, last.number, finished)
        yield from pop_records.summary(self._broker.pop_table, end)

    # -- stop ------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop a running fold or heal."""
        for task in (self._folding, self._healing):
            if task is not None:
                task.cancel()

    def save_at_stop(self) -> None:
        """Put the journal on disk when nothing else runs.

        Raises:
            OSError, StoreError: the next start takes this stop for a crash.
        """
        self._save_unsaved()
        if self.journal.failed is not None:
            self._heal_here()
            return
        self.flush()
        self.journal.plan_sync()()

    def end(self) -> None:
        """Note a clean stop: everything is on disk, the log too."""
        try:
            self.start.end()
        except OSError as error:
            log.error("the next start takes this stop for a crash error=%s", error)

    def close(self) -> None:
        """Close the file."""
        self.journal.close()


def end_of(store: Store, topic: str, queue_id: int) -> int:
    """Return the offset after the last message of a queue that consumers may see."""
    queue = store.find_queue(topic, queue_id)
    return 0 if queue is None else queue.visible_offset
