"""The tick: one write for all appends of a turn of the loop, and the replies that wait for it.

    data_received …   records go into the log's buffer, replies into one `PendingReplies` per
                      connection
    end of the turn   ONE write of the log (`Ticks.end`), then by the flush mode
                        async: shown to consumers, replied, waiting pulls served, in this turn
                        sync:  the same when the fdatasync that covers the write has returned

Nothing is acknowledged or shown before that. If the write fails, the store undoes the whole
tick and every request of it is refused. If a sync fails, or a failed write cannot be undone,
the failure is final: the requests learn that their outcome is unknown, and the broker accepts
no further write.

Why: decision 6.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from inorder.clock import stopwatch_s
from inorder.errors import DiskFull, NoDescriptors, StoreError, WriteInDoubt
from inorder.logs import get_logger
from inorder.wire.codes import ResponseCode
from inorder.wire.frame import FrameDecoder, encode_frame
from inorder.wire.header import FLAG_RESPONSE, Command, decode_command

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from inorder.broker.broker import Broker
    from inorder.net.accepted import ServerConnection
    from inorder.store.store import WrittenTick

log = get_logger(__name__)

SYNC_RETRY_MS: Final = 200


class PendingReplies:
    """The replies to the sends of one connection in one tick."""

    __slots__ = ("connection", "count", "frames", "now_ms")

    def __init__(self, connection: ServerConnection, now_ms: int) -> None:
        self.connection = connection
        self.now_ms = now_ms
        self.frames: list[bytes] = []
        """Whole frames, one after another; a piece may hold several."""
        self.count = 0

    def add(self, frame: bytes, count: int = 1) -> None:
        """Add the reply to a request that stored `count` messages."""
        self.frames.append(frame)
        self.count += count

    def add_oneway(self, count: int = 1) -> None:
        """Count messages whose sender expects no reply."""
        self.count += count

    def write(self) -> None:
        """Write all replies as one piece: a call per frame costs more than a copy."""
        if self.frames:
            self.connection.write(b"".join(self.frames))

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """Reply to every request with an error instead."""
        for given in self._commands():
            reply = Command(
                code=code,
                request_id=given.request_id,
                flag=FLAG_RESPONSE,
                fields=fields,
                remark=remark,
                serializer=given.serializer,
            )
            self.connection.write(encode_frame(reply))

    def write_late(self) -> bool:
        """Reply FLUSH_DISK_TIMEOUT with the same fields: written, not yet known to be on disk."""
        for reply in self._commands():
            reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
            self.connection.write(encode_frame(reply))
        return True

    def _commands(self) -> Iterator[Command]:
        """Read the replies; there are none for a closed connection."""
        for piece in self.frames if not self.connection.closed else ():
            for frame in FrameDecoder().receive_data(piece):
                yield decode_command(frame)


class PartlyStored(PendingReplies):
    """The reply to a batch whose first messages were stored earlier: no plain refusal fits it."""

    __slots__ = ()

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """Reply that the outcome is mixed: only PRODUCER_STATE tells where the batch stopped."""
        super().refuse(
            ResponseCode.SYSTEM_ERROR,
            f"the outcome is unknown: the first messages of the batch are stored, the last are "
            f"not; {remark}",
            fields,
        )


class Pending(Protocol):
    """Something that put records into a tick and must learn their outcome."""

    @property
    def count(self) -> int:
        """The number of its records."""
        ...

    def write(self) -> None:
        """The records are stored, safe by the flush mode."""
        ...

    def refuse(self, code: int, remark: str, fields: dict[str, str]) -> None:
        """The records are not stored, or their outcome is unknown."""
        ...

    def write_late(self) -> bool:
        """The records are written, but their sync takes too long.

        Return True if the waiter needs no further outcome.
        """
        ...


@dataclass(slots=True)
class _Waiting:
    """A written tick that waits for its sync."""

    written: WrittenTick
    pending: list[Pending]
    deadline_ms: int
    answered: bool = False


class Ticks:
    """Collects the appends of a turn, writes them once, and replies as the flush mode allows."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._open: list[Pending] = []
        self._scheduled = False
        self._waiting: deque[_Waiting] = deque()
        self._syncing = False
        self._drained: asyncio.Future[None] | None = None
        self._sync_flush = broker.config.store.sync_flush
        self._refusal_fields = {
            "TRACE_ON": "true" if broker.config.trace_on else "false",
            "MSG_REGION": broker.config.region,
        }
        self.ticks = 0

    @property
    def unsettled_bytes(self) -> int:
        """Return how many bytes are written but not yet durable, in sync mode."""
        if not self._waiting:
            return 0
        store = self._broker.store
        return store.log.end_position - store.log.durable_position

    def take(self, pending: Pending) -> None:
        """Add records that are in the log's buffer; the write follows at the end of the turn."""
        if not pending.count:
            return
        self._open.append(pending)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end)

    def reply_again(self, connection: ServerConnection, frame: bytes, position: int) -> None:
        """Reply for messages that were stored earlier, once the last of their records is safe."""
        log = self._broker.store.log
        one = PendingReplies(connection, 0)
        one.add(frame, 0)
        if position >= log.end_position:  # in the open tick: shares its outcome
            self._open.append(one)
        elif not self._sync_flush or position < log.durable_position:
            one.write()
        else:
            self._reply_when_durable(one, position)

    def _reply_when_durable(self, one: PendingReplies, position: int) -> None:
        for waiting in self._waiting:
            if position < waiting.written.end_position:
                if waiting.answered:
                    one.write_late()
                else:
                    waiting.pending.append(one)
                return
        one.refuse(
            ResponseCode.SYSTEM_ERROR,
            "the outcome is unknown, the disk failed while the message was made durable",
            {},
        )

    def end(self) -> None:
        """Write the records of the turn, then reply or wait for the sync."""
        self._scheduled = False
        pending, self._open = self._open, []
        if not pending:
            return
        self.ticks += 1
        store, watch = self._broker.store, self._broker.monitoring
        began_s, began_at = (0.0, 0) if watch is None else (stopwatch_s(), store.log.end_position)
        try:
            written = store.write_tick()
        except StoreError as error:
            self._refuse(pending, error)
            self._tell_drained()
            return
        assert written is not None, "pending replies imply records"
        if watch is not None:
            watch.wrote(pending, written.end_position - began_at, stopwatch_s() - began_s)
        if self._broker.housekeeping.refusing:
            self._broker.housekeeping.write_taken()
        if not self._sync_flush:
            self._settle(written, pending)
            self._tell_drained()
            return
        timeout_ms = self._broker.config.store.sync_flush_timeout_ms
        deadline = self._broker.clock.monotonic_ms() + timeout_ms
        self._waiting.append(_Waiting(written, pending, deadline))
        self._start_sync()

    def _settle(self, written: WrittenTick, pending: list[Pending]) -> None:
        broker = self._broker
        broker.store.publish(written)
        for one in pending:
            one.write()
        if broker.monitoring is not None:
            broker.monitoring.answered(pending)
        broker.pulls.wake(written.queues)
        broker.pops.wake(written.queues)
        broker.housekeeping.indexing_needed()
        broker.server.flush()

    def _refuse(self, pending: list[Pending], error: StoreError) -> None:
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        if isinstance(error, WriteInDoubt):
            code = ResponseCode.SYSTEM_ERROR
            remark = f"the outcome is unknown: {error}"
        elif isinstance(error, NoDescriptors):
            remark = f"the broker has no file descriptor left, nothing was stored: {error}"
        elif isinstance(error, DiskFull):
            remark = f"the broker's disk is full, nothing was stored: {error}"
        else:
            remark = f"the store takes no writes: {error}"
        if self._broker.store.log.failed is None:
            self._broker.housekeeping.write_refused(error)
        self._broker.stats.put_failed += sum(one.count for one in pending)
        for one in pending:
            one.refuse(code, remark, self._refusal_fields)
        self._broker.write_failed(error)

    # -- sync flush ------------------------------------------------------------------------------

    def _start_sync(self) -> None:
        if self._syncing or not self._waiting:
            return
        self._syncing = True
        self._broker.log_sync.start(self._synced, self._sync_failed)

    def _synced(self, durable_position: int) -> None:
        self._syncing = False
        waiting = self._waiting
        while waiting and waiting[0].written.end_position <= durable_position:
            done = waiting.popleft()
            self._settle(done.written, done.pending)
        self._start_sync()
        self._tell_drained()

    def _sync_failed(self, error: BaseException) -> None:
        if isinstance(error, NoDescriptors):  # no sync took place: all wait for the next one
            self._loop.call_later(SYNC_RETRY_MS / 1000, self._sync_again)
            return
        self._syncing = False
        remark = f"the outcome is unknown, the disk failed while it was made durable: {error}"
        while self._waiting:
            lost = self._waiting.popleft()
            for one in lost.pending:
                one.refuse(ResponseCode.SYSTEM_ERROR, remark, {})
        self._tell_drained()

    def _sync_again(self) -> None:
        self._syncing = False
        if not self._broker.housekeeping.stopped:
            self._start_sync()

    def expire(self, now_ms: int) -> None:
        """Reply 10 (FLUSH_DISK_TIMEOUT) for ticks whose sync takes too long."""
        for late in self._waiting:
            if late.deadline_ms > now_ms:
                break
            if not late.answered:
                late.answered = True
                late.pending = [one for one in late.pending if not one.write_late()]

    async def drain(self) -> None:
        """Return when nothing waits to be written or synced."""
        if self._open or self._waiting:
            self._drained = self._loop.create_future()
            await self._drained

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._open and not self._waiting:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None
