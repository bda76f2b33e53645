"""Pulls: from a request to views of the log, and long polls that wait for a message.

A pull that finds nothing is held. It is served in the turn in which its queue grows: `wake` is
called once per tick with the queues that grew, whatever the number of messages. If the filter of a
held pull matches none of the new messages, the pull stays held and continues from the last offset
it read.

Messages are read as views of the mapped log; nothing here looks into a body. A reply of up to
`JOIN_BYTES_MAX` bytes is copied into one buffer, which is cheaper than several writes. A larger one
is written without a copy. The common reply with messages comes from a template (`Pulls._answer`);
`answer` builds all others. The compiled module reads the usual pull and makes its whole answer
(`Pulls._answer_plain`); it leaves any other one, and all rules, to Python.

Why: decisions 6 (ticks), 26 (what a pull carries) and 37 (what is compiled).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.accelerated import native
from inorder.broker.offsets.rules import CommitKind
from inorder.broker.pulls.checks import (
    EXPRESSION_KEPT_CHARS,
    CheckedPull,
    PullChecks,
    PullFields,
)
from inorder.errors import BrokerError, ServiceNotAvailable, StoreError, SystemError_
from inorder.logs import get_logger
from inorder.net.transport import JOIN_BYTES_MAX
from inorder.store.intact import count_intact
from inorder.store.layout import ENTRY_BYTES
from inorder.store.reader import ReadResult, ReadStatus
from inorder.wire.codes import VERSION, ResponseCode
from inorder.wire.extensions import MAP_VERSION, PARKED
from inorder.wire.fields import decode_fields
from inorder.wire.frame import encode_head
from inorder.wire.header import FLAG_RESPONSE, Command
from inorder.wire.requests.pulls import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullMessage
from inorder.wire.shapes import I32

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inorder.access.service import Admission
    from inorder.broker.broker import Broker
    from inorder.broker.pulls.rules import Wait
    from inorder.config import BrokerConfig
    from inorder.net.accepted import ServerConnection
    from inorder.store.consumequeue import QueueIndex
    from inorder.store.reader import Selected

log = get_logger(__name__)

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.QUEUE_DAMAGED: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
BULK_MESSAGES_MAX: Final = 16_384
BULK_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bounds of a pull that asks for much at once; it delays others by a few ms at most."""
_BULK_PLAIN_MAX: Final = 512
"""Of a pull for more messages than this no compiled answer is tried: it is likely too large."""
_WOKEN_AT_ONCE: Final = 64
"""How many held pulls of one queue are served at once when it grows."""
_WOKEN_FILTER_NS: Final = 2_000_000
"""How long the SQL filters of woken pulls may take at once; the other pulls wait a turn."""
_HELD_WITH_LONG_EXPRESSION_MAX: Final = 1000
"""A held pull keeps its expression. This many pulls may hold a long one, of at most 64 KiB."""
_HOLDABLE: Final = frozenset(
    (
        ReadStatus.OFFSET_OVERFLOW_ONE,
        ReadStatus.NO_MESSAGE_IN_QUEUE,
        ReadStatus.NO_MATCHED_LOGIC_QUEUE,
        ReadStatus.OFFSET_FOUND_NULL,
        ReadStatus.QUEUE_DAMAGED,
    )
)


def answer_code(result: ReadResult, offset: int) -> ResponseCode:
    """Return the response code for the result of a read at an offset."""
    code = _CODES.get(result.status)
    if code is not None:
        return code
    return ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED


def answer(
    result: ReadResult, checked: CheckedPull, offset: int, request_id: int, serializer: int
) -> Command:
    """Return the reply to a pull at an offset; the records follow its head."""
    return Command(
        code=answer_code(result, offset),
        request_id=request_id,
        flag=1,
        serializer=serializer,
        remark=result.status.name,
        fields={
            "suggestWhichBrokerId": "0",
            "groupSysFlag": str(checked.group_flag),
            "nextBeginOffset": str(result.next_offset),
            "maxOffset": str(result.max_offset),
            "minOffset": str(result.min_offset),
            "topicSysFlag": str(checked.topic_flag),
        },
    )


class _PullHeader(msgspec.Struct):
    opaque: I32
    extFields: PullFields  # RocketMQ's name
    flag: int = 0


class Pull:
    """One pull request, also while it is held."""

    __slots__ = (
        "admission",
        "connection",
        "fields",
        "oneway",
        "request_id",
        "scan_offset",
        "serializer",
    )

    def __init__(
        self,
        connection: ServerConnection,
        fields: PullFields,
        request_id: int,
        serializer: int,
        *,
        oneway: bool,
        admission: Admission | None = None,
    ) -> None:
        self.admission = admission
        self.connection = connection
        self.fields = fields
        self.request_id = request_id
        self.serializer = serializer
        self.oneway = oneway
        self.scan_offset = fields.offset


class Pulls:
    """Serves pulls, holds those that find nothing, and wakes them when their queue grows."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._decode = msgspec.json.Decoder(_PullHeader, strict=False).decode
        self._checks = PullChecks(broker)
        self.forget_checks = self._checks.forget
        self.configure(broker.config)
        texts = (
            b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","groupSysFlag":"',
            b'","nextBeginOffset":"',
            b'","maxOffset":"',
            b'","minOffset":"',
            b'","topicSysFlag":"',
            b'"},"flag":1,"language":"PYTHON","opaque":',
            b',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION,
        )
        self._found = b"%d".join(texts)
        self._plain = None if native is None else native.PullAnswers(texts, JOIN_BYTES_MAX).found
        self._delivered = broker.deliveries.count
        self._waking: deque[tuple[QueueIndex, Wait[ServerConnection, Pull]]] = deque()
        self.messages = 0
        self.bytes = 0
        self.found = 0
        self.missed = 0

    def configure(self, config: BrokerConfig) -> None:
        """Set the limits of a pull reply."""
        self._bytes_max = config.transfer_bytes_max
        self._count_max = config.transfer_count_max
        self._scan_max = max(config.filter_scan_max, config.transfer_count_max)

    # -- entries ---------------------------------------------------------------------------------

    def pull_raw(
        self, connection: ServerConnection, header: bytes, admission: Admission | None = None
    ) -> bool:
        """Serve code 11 from its raw JSON header; False: it needs the general path."""
        try:
            request = self._decode(header)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return False
        if request.flag & FLAG_RESPONSE:
            return False
        pull = Pull(
            connection, request.extFields, request.opaque, 0, oneway=bool(request.flag & 2),
            admission=admission,
        )  # fmt: skip
        self._start(pull)
        return True

    def pull_command(
        self, connection: ServerConnection, command: Command, admission: Admission | None = None
    ) -> None:
        """Serve a pull in any form."""
        header = decode_fields(PullMessage, command.fields)
        fields = PullFields(
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
            max_messages=header.max_messages,
            sys_flag=header.sys_flag,
            commit_offset=header.commit_offset,
            suspend_timeout_ms=header.suspend_timeout_ms,
            sub_version=header.sub_version,
            subscription=header.subscription,
            expression_type=header.expression_type,
            bulk=header.bulk or 0,
            epoch=header.epoch or 0,
            only_up=header.only_up or False,
        )
        pull = Pull(
            connection, fields, command.request_id, command.serializer, oneway=command.is_oneway,
            admission=admission,
        )  # fmt: skip
        self._start(pull)

    def _start(self, pull: Pull) -> None:
        try:
            self._serve(pull)
        except Exception as error:
            self._failed(pull, error)

    def _failed(self, pull: Pull, error: Exception) -> None:
        """Reply with an error. This is the last resort for every pull, also for a held one."""
        if isinstance(error, StoreError):  # the renewal of its lease is not durable
            error = ServiceNotAvailable(str(error))
        elif not isinstance(error, BrokerError):
            log.error("pull failed peer=%s", pull.connection.peer, exc_info=error)
            error = SystemError_(f"{type(error).__name__}: {error}")
        self._refuse(pull, error)

    # -- serving ---------------------------------------------------------------------------------

    def _serve(self, pull: Pull) -> None:
        fields = pull.fields
        checked = self._checks.of(pull.fields, pull.connection.peer)
        if fields.epoch:
            self._broker.lease_service.check_pull(fields, pull.connection)
        if fields.sys_flag & PULL_COMMIT_OFFSET:
            self._broker.offset_service.commit(
                fields.group, fields.topic, fields.queue_id, fields.commit_offset, pull.connection,
                kind=CommitKind.ONLY_UP if fields.only_up else CommitKind.ORDINARY,
            )  # fmt: skip
        if self._answer_plain(pull, checked, fields.offset):
            return
        result = self._read(checked, pull, fields.offset)
        if (
            fields.sys_flag & PULL_SUSPEND
            and result.status in _HOLDABLE
            and answer_code(result, fields.offset) == ResponseCode.PULL_NOT_FOUND
            and self._hold(pull)
        ):
            return
        self._answer(pull, result, checked)

    def _read(self, checked: CheckedPull, pull: Pull, offset: int) -> ReadResult:
        fields, queue = pull.fields, checked.queue
        reset = self._broker.offsets.take_reset(fields.group, fields.topic, fields.queue_id)
        if reset is not None and reset != offset:  # otherwise the consumer is there already
            return ReadResult(
                ReadStatus.OFFSET_RESET, reset, queue.min_offset, queue.visible_offset
            )
        count_max, bytes_max, scan_max = self._limits(fields)
        end = self._held_at(fields) if checked.resized else None
        if end is not None and offset >= end:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, queue.min_offset, offset)
        if checked.filter is not None:
            result = self._store.reader.get_filtered(
                queue,
                offset,
                max_messages=count_max,
                max_bytes=bytes_max,
                scan_max=scan_max,
                wanted=checked.filter,
                end=end,
            )
            self._broker.filters.spent_ns += result.filter_ns
        else:
            result = self._store.reader.get(
                queue,
                offset,
                max_messages=count_max,
                max_bytes=bytes_max,
                scan_max=scan_max,
                wanted=checked.wanted,
                end=end,
            )
        if result.status is ReadStatus.QUEUE_DAMAGED:
            self._broker.mending.found(queue, offset)
        return result

    def _limits(self, fields: PullFields) -> tuple[int, int, int]:
        """Return how many messages, bytes and entries a pull may take."""
        if fields.bulk > 0:
            count_max, bytes_max = BULK_MESSAGES_MAX, min(fields.bulk, BULK_BYTES_MAX)
            scan_max = count_max
        else:
            count_max, bytes_max, scan_max = self._count_max, self._bytes_max, self._scan_max
        return max(1, min(fields.max_messages, count_max)), bytes_max, scan_max

    def _held_at(self, fields: PullFields) -> int | None:
        """Return where the group is held, because it has yet to finish a map version elsewhere."""
        return self._broker.resizing.held_at(
            fields.topic, fields.group, fields.queue_id, leased=fields.epoch > 0
        )

    # -- answers ---------------------------------------------------------------------------------

    def _answer(self, pull: Pull, result: ReadResult, checked: CheckedPull) -> None:
        if pull.oneway or pull.connection.closed:
            return
        if result.unfiltered:
            self._filter_apart(pull, result, checked)
            return
        found = result.status is ReadStatus.FOUND
        if found:
            self._count(pull.fields, result.next_offset, result.count, result.size)
        else:
            self.missed += 1
        parked = self._parked(pull.fields) if pull.fields.epoch else 0
        versioned = checked.resized and pull.fields.epoch > 0
        if found and not pull.serializer and not parked and not versioned:
            header = self._found % (
                checked.group_flag,
                result.next_offset,
                result.max_offset,
                result.min_offset,
                checked.topic_flag,
                pull.request_id,
            )
            size = len(header)
            head = (size + 4 + result.size).to_bytes(4, "big") + size.to_bytes(4, "big") + header
        else:
            reply = answer(result, checked, pull.fields.offset, pull.request_id, pull.serializer)
            if parked:
                reply.fields[PARKED] = str(parked)
            if versioned:
                version = self._broker.resizing.versions(pull.fields.topic).version
                reply.fields[MAP_VERSION] = str(version)
            head = encode_head(reply, result.size if found else 0)
        if not found:
            pull.connection.write(head)
        elif result.cold:
            self._broker.send_cold(pull.connection, head, result, checked, pull.fields.offset)
        elif result.size > JOIN_BYTES_MAX:
            pull.connection.write_parts([head, *result.views])
        else:
            data = b"".join((head, *result.views))
            assert len(data) == len(head) + result.size, "the views are the records of the entries"
            pull.connection.write(data)

    def _count(self, fields: PullFields, next_offset: int, count: int, size: int) -> None:
        """Count the messages of an answer, and note how far the group has pulled."""
        self.found += 1
        self.messages += count
        self.bytes += size
        self._delivered(fields.topic, fields.group, count, size)
        self._broker.offsets.commit_pull(fields.group, fields.topic, fields.queue_id, next_offset)

    # hot: 4 µs for 32 records, contiguous or not
    def _answer_plain(self, pull: Pull, checked: CheckedPull, offset: int) -> bool:
        """Answer a pull by the compiled module; False: it is not plain, nothing was done."""
        fields, connection = pull.fields, pull.connection
        if (
            self._plain is None
            or pull.serializer
            or pull.oneway
            or checked.filter is not None
            or checked.resized
            or connection.closed
            or self._broker.offsets.has_resets
            or (fields.epoch and self._parked(fields))
        ):
            return False
        queue, wanted = checked.queue, checked.wanted
        if fields.bulk > 0 and queue.visible_offset - offset > _BULK_PLAIN_MAX:
            return False
        count_max, bytes_max, scan_max = self._limits(fields)
        reader = self._store.reader
        entries = reader.entries(queue, offset, count_max if wanted is None else scan_max)
        if entries is None:
            return False
        data, segment = entries
        made = self._plain(
            data, segment.view(), segment.position, self._store.log.end_position,
            checked.topic_bytes, queue.queue_id, offset, count_max, bytes_max, wanted,
            queue.min_offset, queue.visible_offset, checked.group_flag, checked.topic_flag,
            pull.request_id,
        )  # fmt: skip
        if made is None:
            return False
        frame, next_offset, count, size = made
        self._count(fields, next_offset, count, size)
        connection.write(frame)
        return True

    def _filter_apart(self, pull: Pull, result: ReadResult, checked: CheckedPull) -> None:
        """Filter messages that are not in memory in a thread, check them, then reply."""
        reader, wanted, queue = self._store.reader, checked.filter, checked.queue
        count_max, bytes_max, _ = self._limits(pull.fields)
        connection = pull.connection
        assert wanted is not None, "a filter is asked"

        def answer_selected(found: Selected) -> None:
            # The records are in memory now, so the loop may read them.
            entries = result.entries[: found.examined * ENTRY_BYTES]
            right = count_intact(self._store.log, queue, entries, result.next_offset)
            if right < found.examined:
                self._broker.mending.found(queue, result.next_offset + right)
                connection.close("an entry of the queue does not lead to its message")
            else:
                self._answer(pull, reader.selected(result, found), checked)

        self._broker.offload.run(
            lambda: reader.select(
                result.entries, max_messages=count_max, max_bytes=bytes_max, wanted=wanted
            ),
            answer_selected,
            lambda error: connection.close(f"reading failed: {error}"),
        )

    def _parked(self, fields: PullFields) -> int:
        """Return the version of the queue's parked keys, which its owner must know."""
        table = self._broker.parking.table
        if not table.places:
            return 0
        return table.version(fields.group, fields.topic, fields.queue_id)

    @staticmethod
    def _refuse(pull: Pull, error: BrokerError) -> None:
        if pull.oneway or pull.connection.closed:
            return
        reply = Command(
            code=error.code,
            request_id=pull.request_id,
            flag=1,
            serializer=pull.serializer,
            remark=error.remark,
            fields=getattr(error, "fields", None) or {},
        )
        pull.connection.write(encode_head(reply, 0))

    # -- waiting ---------------------------------------------------------------------------------

    def _hold(self, pull: Pull) -> bool:
        config = self._broker.config
        wait_ms = pull.fields.suspend_timeout_ms if config.long_polling else config.short_polling_ms
        if wait_ms <= 0:
            return False
        if (
            len(pull.fields.subscription or "") > EXPRESSION_KEPT_CHARS
            and len(self._broker.waits) >= _HELD_WITH_LONG_EXPRESSION_MAX
        ):
            return False
        deadline = self._broker.clock.monotonic_ms() + min(wait_ms, 600_000)
        return self._broker.housekeeping.hold(
            (pull.fields.topic, pull.fields.queue_id), pull, deadline
        )

    def wake(self, touched: Iterable[tuple[QueueIndex, int]]) -> None:
        """Serve the pulls held for queues that grew in this tick."""
        waits = self._broker.waits
        if not len(waits):
            return
        filters = self._broker.filters
        until_ns = filters.spent_ns + _WOKEN_FILTER_NS
        for queue, _ in touched:
            key = (queue.topic, queue.queue_id)
            if key in waits:
                ready = waits.take_ready(key)
                done = 0
                while done < min(_WOKEN_AT_ONCE, len(ready)) and filters.spent_ns <= until_ns:
                    self._rerun(ready[done].request, queue, ready[done].deadline_ms)
                    done += 1
                if len(ready) > done:
                    self._wake_later(queue, ready[done:])

    def _wake_later(self, queue: QueueIndex, ready: list[Wait[ServerConnection, Pull]]) -> None:
        """Serve the rest in small portions: thousands of pulls on a queue must not delay others."""
        if not self._waking:
            self._broker.server.turns.later(self._wake_some)
        self._waking.extend((queue, wait) for wait in ready)

    def _wake_some(self) -> None:
        waking, filters = self._waking, self._broker.filters
        until_ns = filters.spent_ns + _WOKEN_FILTER_NS
        for _ in range(min(_WOKEN_AT_ONCE, len(waking))):
            queue, wait = waking.popleft()
            self._rerun(wait.request, queue, wait.deadline_ms)
            if filters.spent_ns > until_ns:
                break
        if waking:
            self._broker.server.turns.later(self._wake_some)

    def take_waking(self) -> list[Pull]:
        """Take the pulls that were woken but not served yet, because the broker stops."""
        taken = [wait.request for _, wait in self._waking]
        self._waking.clear()
        return taken

    def _rerun(self, pull: Pull, queue: QueueIndex, deadline_ms: int) -> None:
        if pull.connection.closed:
            return
        try:
            self._check_still(pull)
            checked = self._checks.of(pull.fields, pull.connection.peer)
            if pull.fields.epoch:
                self._broker.lease_service.check_held(pull.fields)
            if pull.connection.congested:  # it has enough to read and will pull again
                result = ReadResult(
                    ReadStatus.NO_MATCHED_MESSAGE,
                    pull.scan_offset,
                    queue.min_offset,
                    queue.visible_offset,
                )
                self._answer(pull, result, checked)
                return
            if self._answer_plain(pull, checked, pull.scan_offset):
                return
            result = self._read(checked, pull, pull.scan_offset)
        except Exception as error:
            self._failed(pull, error)
            return
        if result.status in _HOLDABLE or (
            result.status is ReadStatus.NO_MATCHED_MESSAGE
            and result.next_offset >= result.max_offset
        ):
            pull.scan_offset = result.next_offset
            if self._broker.housekeeping.hold((queue.topic, queue.queue_id), pull, deadline_ms):
                return
        self._answer(pull, result, checked)

    def _check_still(self, pull: Pull) -> None:
        """Refuse a held pull whose user has lost the right to it."""
        guard = self._broker.guard
        if guard is not None and pull.admission is not None:
            refusal = guard.still(pull.admission)
            if refusal is not None:
                raise refusal

    def finish(self, pull: Pull) -> None:
        """Answer a held pull with what there is: its time is over or its topic is deleted."""
        if pull.connection.closed:
            return
        try:
            self._check_still(pull)
            checked = self._checks.of(pull.fields, pull.connection.peer)
            if pull.fields.epoch:
                self._broker.lease_service.check_held(pull.fields)
            # From the last offset read: earlier messages do not match.
            result = self._read(checked, pull, pull.scan_offset)
        except Exception as error:
            self._failed(pull, error)
            return
        if result.status is ReadStatus.OFFSET_OVERFLOW_ONE and (
            result.next_offset > pull.fields.offset
        ):
            result.status = ReadStatus.NO_MATCHED_MESSAGE
        self._answer(pull, result, checked)
