"""The snapshot of idempotent producers, and the replay of the log after it.

The snapshot holds the table as of a log position. Every record carries its sequence number, so a
start loads the snapshot and replays the log after it.

The snapshot must never be ahead of the log. Otherwise the broker would answer a resend as a
duplicate although the message is lost. So it is written after the log is durable up to the position
of the table. A start drops a snapshot that depends on more log than there is, or on another log.
The previous file is kept beside it; if neither fits, the whole log is replayed. A dropped file is
removed for good before the port opens.

Why: decisions 7 and 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from inorder.broker.durability import DurableTable, check_fits, fingerprint
from inorder.broker.producers.records import Encoder, Saved, decode
from inorder.broker.producers.service import has_sequences
from inorder.errors import BrokerError, MessageIllegal, RemoteProtocolError, StoreError
from inorder.logs import get_logger
from inorder.store.scan import marked_records
from inorder.wire.extensions import PRODUCER_ID
from inorder.wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from inorder.wire.properties import get
from inorder.wire.requests.producers import read_numbered

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.wire.record import ScannedRecord

log = get_logger(__name__)

NAME: Final = "inorderProducers.bin"
SAVE_LOG_BYTES: Final = 64 * 1024 * 1024
STOP_LOG_BYTES: Final = 1024 * 1024
LONG_BYTES: Final = 1024 * 1024 * 1024
MARK: Final = f"{PRODUCER_ID}\x01".encode()


class ProducerSnapshot(DurableTable):
    """Saves and restores the broker's producers."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, NAME, "producers were not saved")
        self._table = broker.producers

    @property
    def revision(self) -> int:
        """Return the revision of the table."""
        return self._table.revision

    @property
    def settled_position(self) -> int:
        """Return the end of the log: sequence numbers count from the moment they are appended."""
        return self._broker.store.log.end_position

    def encode(self, covered: int) -> Iterator[bytes]:
        """Encode some producers at a time."""
        commit_log, encoder = self._broker.store.log, Encoder(self._table, covered)
        while encoder.step():
            yield b""
        depends_on = commit_log.end_position
        yield encoder.finish(depends_on, fingerprint(commit_log, depends_on))

    # -- start -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Restore the table from the file and from the log after it.

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
        if dropped or self._has_grown(SAVE_LOG_BYTES):
            try:
                self.save_here()
            except (OSError, StoreError) as error:  # dropped files are gone; a full disk is read
                log.error("producers were not saved file=%s error=%s", self.path, error)
        if len(table):
            log.info("idempotent producers=%d replayed=%d from=%d", len(table), count, start)

    def _find(self) -> tuple[Saved | None, bool]:
        """Return the newest file that fits the log, and whether one was dropped."""
        dropped = False
        for path, content in self.file.contents():
            try:
                saved = decode(content)
                check_fits(self._broker.store.log, saved.depends_on, saved.log_crc)
            except RemoteProtocolError as error:
                log.warning("dropped file=%s: %s", path, error)
                self.file.remove(path)
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
        if topic in (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC):
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

    def _has_grown(self, log_bytes: int) -> bool:
        """Return whether a start would have to scan so much of the log."""
        return self._broker.store.log.end_position - self._covered >= log_bytes

    def save_if_due(self) -> None:
        """Start a save if it is time, or if a start would have to scan much of the log."""
        ready = self._broker.clock.monotonic_ms() >= self._retry_ms
        if ready and self._has_grown(SAVE_LOG_BYTES):
            self._begin()
        else:
            super().save_if_due()

    async def save_now(self, *, copies: int = 2) -> None:
        """Return when the present table is on disk; with two copies, no older file is left.

        Raises:
            OSError, StoreError: an older file may be left.
        """
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        await self._end_of(self._start(copies))

    def save_at_stop(self) -> None:
        """Save so that the next start need not replay the log.

        Raises:
            OSError, StoreError: the old file is kept.
        """
        if self.changed or self._has_grown(STOP_LOG_BYTES):
            self.save_here()
