"""The snapshot of idempotent producers, and the replay of the log behind it.

The snapshot holds the table as of a log position. Every record carries its sequence number, so a
start loads the snapshot and replays the log behind it.

The snapshot must never be ahead of the log. Otherwise the broker would answer a resend as a
duplicate although the message is lost. So it is written after the log is durable up to the position
of the table. A start drops a snapshot that depends on more log than there is, or on another log.
The previous file is kept beside it; if neither fits, the whole log is replayed. A dropped file is
removed for good before the port opens.

Why: decisions 7 and 10.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.broker.durability import check_fits, fingerprint
from inorder.broker.producers.records import Encoder, Saved, decode
from inorder.broker.producers.service import has_sequences
from inorder.errors import BrokerError, MessageIllegal, RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.store.scan import marked_records
from inorder.store.snapshot import Snapshot
from inorder.wire.extensions import PRODUCER_ID
from inorder.wire.names import SCHEDULE_TOPIC
from inorder.wire.properties import get
from inorder.wire.requests.producers import read_numbered

if TYPE_CHECKING:
    from pathlib import Path

    from inorder.broker.broker import Broker
    from inorder.wire.record import ScannedRecord

log = get_logger(__name__)

NAME: Final = "inorderProducers.bin"
SAVE_INTERVAL_MS: Final = 30_000
SAVE_LOG_BYTES: Final = 64 * 1024 * 1024
RETRY_MS: Final = 10_000
STOP_LOG_BYTES: Final = 1024 * 1024
LONG_BYTES: Final = 1024 * 1024 * 1024
MARK: Final = f"{PRODUCER_ID}\x01".encode()


class ProducerSnapshot:
    """Saves and restores the broker's producers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.producers
        self._file = Snapshot(broker.files, broker.config.data_path / "config" / NAME)
        self._covered = 0
        self._saved_revision = 0
        self._saved_ms = broker.clock.monotonic_ms()
        self._retry_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._saving = asyncio.Lock()

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._file.path

    # -- start -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Restore the table from the file and from the log behind it.

        Raises:
            OSError: a dropped file could not be removed for good.
        """
        store, table = self._broker.store, self._table
        saved, dropped = self._find()
        start = store.log.min_position
        if saved is not None:
            saved.restore(table)
            start = max(start, saved.replay_from)
        restored = table.revision
        count = self._replay(start)
        table.restarted()
        if dropped and saved is None and store.log.min_position:
            table.memory += 1  # producers whose messages retention deleted are forgotten
        self._covered = start
        self._saved_revision = restored
        if dropped or store.log.end_position - start >= SAVE_LOG_BYTES:
            try:
                self._save_here()
            except OSError as error:  # the dropped file is removed; reads work on a full disk
                log.error("producers were not saved file=%s error=%s", self.path, error)
        if len(table):
            log.info("idempotent producers=%d replayed=%d from=%d", len(table), count, start)

    def _find(self) -> tuple[Saved | None, bool]:
        """Return the newest file that fits the log, and whether one was dropped."""
        dropped = False
        for path, content in self._file.contents():
            try:
                saved = decode(content)
                check_fits(self._broker.store.log, saved.depends_on, saved.log_crc)
            except RemoteProtocolError as error:
                log.warning("dropped file=%s: %s", path, error)
                self._file.remove(path)
                dropped = True
                continue
            return saved, dropped
        return None, dropped

    def _replay(self, start: int) -> int:
        """Record the sequence numbers in the log from a position on."""
        commit_log, count = self._broker.store.log, 0
        if commit_log.end_position - start > LONG_BYTES:
            log.info("scanning for sequence numbers bytes=%d", commit_log.end_position - start)
        for record in marked_records(commit_log.segments, start, commit_log.end_position, MARK):
            try:
                count += self._count(record)
            except MessageIllegal:
                continue  # not written by an idempotent producer: a send would be refused
            except BrokerError as error:
                log.error("a sequence number is skipped position=%d: %s", record.position, error)
        return count

    def _count(self, record: ScannedRecord) -> bool:
        found = read_numbered(record.properties.decode("utf-8", "replace"))
        topic, queue_id, value = record.topic, record.queue_id, record.queue_offset
        if topic == SCHEDULE_TOPIC:
            topic = (get(record.properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
            queue_text = get(record.properties, b"REAL_QID") or b""
            queue_id = int(queue_text) if queue_text.isdigit() else -1
            value = -2 - record.position
        if (
            found is None
            or queue_id < 0
            or not has_sequences(topic)
            or topic not in self._broker.topics
        ):
            return False
        producer_id, number, before = found
        self._table.replayed(producer_id, topic, queue_id, number, value, named=before is not None)
        return True

    # -- save ------------------------------------------------------------------------------------

    @property
    def keep_from(self) -> int | None:
        """Return the position from which the log is needed; None: nowhere."""
        return self._covered if self._table.revision != self._saved_revision else None

    def save_if_due(self) -> None:
        """Start a save if it is time."""
        if self._task is not None and not self._task.done():
            return
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms < self._retry_ms:
            return
        changed = self._table.revision != self._saved_revision
        grown = self._broker.store.log.end_position - self._covered
        if grown >= SAVE_LOG_BYTES or (changed and now_ms - self._saved_ms >= SAVE_INTERVAL_MS):
            self._task = asyncio.get_running_loop().create_task(self._save_soon(), name="producers")

    async def _save_soon(self) -> None:
        try:
            await self.save_now(copies=1)
        except (OSError, StoreError) as error:
            log.error("producers were not saved, the old file is kept error=%s", error)
            self._retry_ms = self._broker.clock.monotonic_ms() + RETRY_MS

    async def save_now(self, *, copies: int = 2) -> None:
        """Return when the present table is on disk; with two copies, no older file is left."""
        async with self._saving:
            broker, commit_log = self._broker, self._broker.store.log
            revision, covered = self._table.revision, commit_log.end_position
            encoder = Encoder(self._table, covered)
            while encoder.step():  # noqa: ASYNC110 - other work runs between two steps
                await asyncio.sleep(0)
            depends_on = commit_log.end_position
            content = encoder.finish(depends_on, fingerprint(commit_log, depends_on))
            await broker.housekeeping.flush_now()
            for _ in range(copies):
                await broker.offload.call(lambda: self._file.save(content))
            self._saved(covered, revision)

    def _saved(self, covered: int, revision: int) -> None:
        self._covered = covered
        self._saved_revision = revision
        self._saved_ms = self._broker.clock.monotonic_ms()

    def cancel(self) -> None:
        """Cancel a running save."""
        if self._task is not None:
            self._task.cancel()

    def save_at_stop(self) -> None:
        """Save so that the next start need not replay the log.

        Raises:
            StoreError: the log could not be made durable; the old file is kept.
        """
        changed = self._table.revision != self._saved_revision
        if changed or self._broker.store.log.end_position - self._covered >= STOP_LOG_BYTES:
            self._broker.store.sync()
            self._save_here()

    def _save_here(self) -> None:
        """Save without giving way to other work."""
        commit_log, revision = self._broker.store.log, self._table.revision
        position = commit_log.end_position
        encoder = Encoder(self._table, position)
        while encoder.step():
            pass
        self._file.save(encoder.finish(position, fingerprint(commit_log, position)))
        self._saved(position, revision)
