"""Pulling: from a request to views of the log, and the pulls that wait for a message.

A pull that finds nothing is held and served in the turn in which its queue grows: `wake` is called
once per tick with the queues that grew, whatever the number of messages. A held pull whose filter
matches none of the new messages stays held and goes on from where it looked last. Answers are views
of the mapped log; nothing is copied here, and no body is ever looked into.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from inorder.broker.sendrules import FAQ
from inorder.errors import (
    BrokerError,
    GroupNotFound,
    InvalidParameter,
    NoPermission,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
    SystemError_,
    TopicNotFound,
)
from inorder.model import PERM_READ, Subscription
from inorder.net.output import JOIN_BYTES_MAX
from inorder.store.reader import ReadResult, ReadStatus
from inorder.wire.codes import VERSION, ResponseCode
from inorder.wire.command import Command
from inorder.wire.fields import decode_fields
from inorder.wire.frame import encode_head
from inorder.wire.requests.pull import PullMessage
from inorder.wire.subscription import parse_subscription

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inorder.broker.broker import Broker
    from inorder.config import BrokerConfig
    from inorder.net.server import ServerConnection
    from inorder.store.queueindex import QueueIndex

log = logging.getLogger(__name__)

COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

_RESPONSE: Final = 1
_EXPRESSIONS_MAX: Final = 4096
_GATES_MAX: Final = 20_000
_EXPRESSION_KEPT_CHARS: Final = 256
_EXPRESSION_CHARS_MAX: Final = 64 * 1024

_I32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


class _PullFields(
    msgspec.Struct,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "offset": "queueOffset",
        "max_messages": "maxMsgNums",
        "sys_flag": "sysFlag",
        "commit_offset": "commitOffset",
        "suspend_timeout_ms": "suspendTimeoutMillis",
        "sub_version": "subVersion",
        "expression_type": "expressionType",
    },
):
    group: str
    topic: str
    queue_id: _I32
    offset: _I64
    max_messages: _I32
    sys_flag: _I32
    commit_offset: _I64
    suspend_timeout_ms: _I64
    sub_version: _I64
    subscription: str | None = None
    expression_type: str | None = None


class _PullHeader(msgspec.Struct):
    opaque: _I32
    extFields: _PullFields  # RocketMQ's name
    flag: int = 0


class Gate:
    """What a pull that may be served needs: its queue, its filter, the flags of the answer."""

    __slots__ = ("group_flag", "queue", "topic_flag", "wanted")

    def __init__(
        self, queue: QueueIndex, wanted: frozenset[int] | None, group_flag: int, topic_flag: int
    ) -> None:
        self.queue = queue
        self.wanted = wanted
        self.group_flag = group_flag
        self.topic_flag = topic_flag


class Pull:
    """One pull request; also what is kept of it while it is held."""

    __slots__ = (
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
        fields: _PullFields,
        request_id: int,
        serializer: int,
        *,
        oneway: bool,
    ) -> None:
        self.connection = connection
        self.fields = fields
        self.request_id = request_id
        self.serializer = serializer
        self.oneway = oneway
        self.scan_offset = fields.offset


class Pulls:
    """Serve pulls, hold those that find nothing, wake them when their queue grows."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._decode = msgspec.json.Decoder(_PullHeader, strict=False).decode
        self._expressions: dict[tuple[str, str], frozenset[int] | None] = {}
        self._gates: dict[tuple[str, str, int, str | None, str | None], Gate] = {}
        self.configure(broker.config)
        self._found = (
            b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","groupSysFlag":"%d",'
            b'"nextBeginOffset":"%d","maxOffset":"%d","minOffset":"%d","topicSysFlag":"%d"},'
            b'"flag":1,"language":"PYTHON","opaque":%d,"remark":"FOUND",'
            b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
        )
        self.messages = 0
        self.bytes = 0
        self.found = 0
        self.missed = 0

    def configure(self, config: BrokerConfig) -> None:
        """Take over the limits of a pull answer."""
        self._bytes_max = config.transfer_bytes_max
        self._count_max = config.transfer_count_max
        self._scan_max = config.filter_scan_max

    # -- ways in ---------------------------------------------------------------------------------

    def pull_raw(self, connection: ServerConnection, header: bytes) -> bool:
        """Serve code 11 from its raw JSON header; False if it needs the general way."""
        try:
            request = self._decode(header)
        except msgspec.MsgspecError:
            return False
        if request.flag & _RESPONSE:
            return False
        pull = Pull(connection, request.extFields, request.opaque, 0, oneway=bool(request.flag & 2))
        self._start(pull)
        return True

    def pull_command(self, connection: ServerConnection, command: Command) -> None:
        """Serve a pull in any form."""
        header = decode_fields(PullMessage, command.fields)
        fields = _PullFields(
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
        )
        pull = Pull(
            connection, fields, command.request_id, command.serializer, oneway=command.is_oneway
        )
        self._start(pull)

    def _start(self, pull: Pull) -> None:
        try:
            self._serve(pull)
        except BrokerError as error:
            self._refuse(pull, error)
        except Exception as error:  # the root of a request: nothing may escape unanswered
            log.exception("pull failed peer=%s", pull.connection.peer)
            self._refuse(pull, SystemError_(f"{type(error).__name__}: {error}"))

    # -- serving ---------------------------------------------------------------------------------

    def _serve(self, pull: Pull) -> None:
        fields = pull.fields
        gate = self._gate(pull)
        if fields.sys_flag & COMMIT_OFFSET:
            self._broker.commit_offset(
                fields.group, fields.topic, fields.queue_id, fields.commit_offset
            )
        result = self._read(gate, pull, fields.offset)
        if (
            fields.sys_flag & SUSPEND
            and result.status in _HOLDABLE
            and self._code(result, fields.offset) == ResponseCode.PULL_NOT_FOUND
            and self._hold(pull)
        ):
            return
        self._answer(pull, result, gate)

    def _read(self, gate: Gate, pull: Pull, offset: int) -> ReadResult:
        fields, queue = pull.fields, gate.queue
        reset = self._broker.offsets.take_reset(fields.group, fields.topic, fields.queue_id)
        if reset is not None:
            return ReadResult(
                ReadStatus.OFFSET_RESET, reset, queue.min_offset, queue.visible_offset
            )
        return self._store.reader.get(
            queue,
            offset,
            max_messages=max(1, min(fields.max_messages, self._count_max)),
            max_bytes=self._bytes_max,
            scan_max=max(self._scan_max, fields.max_messages),
            wanted=gate.wanted,
        )

    def _gate(self, pull: Pull) -> Gate:
        """Return what the checks gave, remembered where only topics, groups and settings decide."""
        fields = pull.fields
        if not fields.sys_flag & SUBSCRIPTION:
            return self._check(pull)
        key = (
            fields.group, fields.topic, fields.queue_id, fields.subscription,
            fields.expression_type,
        )  # fmt: skip
        gate = self._gates.get(key)
        if gate is None:
            gate = self._check(pull)
            if len(fields.subscription or "") <= _EXPRESSION_KEPT_CHARS:
                if len(self._gates) >= _GATES_MAX:
                    self._gates.clear()
                self._gates[key] = gate
        return gate

    def forget_gates(self) -> None:
        """Check every pull again: a topic, a group or a setting changed."""
        self._gates.clear()

    def _check(self, pull: Pull) -> Gate:
        """Apply RocketMQ's checks in its order."""
        broker, fields = self._broker, pull.fields
        if not broker.config.perm & PERM_READ:
            raise _forbidden(1, f"the broker[{broker.address}] pulling message is forbidden")
        group = broker.find_group(fields.group)
        if group is None:
            raise GroupNotFound(f"subscription group [{fields.group}] does not exist, {FAQ}")
        if not group.consume_enable:
            raise _forbidden(2, f"subscription group no permission, {fields.group}")
        topic = broker.topics.get(fields.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{fields.topic}] not exist, apply first please! \n{FAQ}")
        if not topic.readable:
            raise _forbidden(3, f"the topic[{fields.topic}] pulling message is forbidden")
        if not 0 <= fields.queue_id < topic.read_queues:
            raise InvalidParameter(
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] "
                f"consumer:[/{pull.connection.peer}]"
            )
        if fields.sys_flag & SUBSCRIPTION:
            wanted = self._wanted_of(fields)
        else:
            wanted = _wanted(self._subscription(pull))
        queue = self._store.queue(fields.topic, fields.queue_id)
        return Gate(queue, wanted, group.sys_flag, topic.sys_flag)

    def _subscription(self, pull: Pull) -> Subscription:
        broker, fields = self._broker, pull.fields
        info = broker.members.group(fields.group)
        if info is None:
            raise SubscriptionNotFound(f"the consumer's group info not exist\n{FAQ}")
        group = broker.groups.get(fields.group)
        if group is not None and not group.consume_broadcast_enable and info.broadcasting:
            raise _forbidden(
                4, f"the consumer group[{fields.group}] can not consume by broadcast way"
            )
        if broker.groups.is_forbidden(fields.group, fields.topic):
            raise _forbidden(
                5, f"the consumer group[{fields.group}] is forbidden for topic[{fields.topic}]"
            )
        found = info.subscriptions.get(fields.topic)
        if found is None:
            raise SubscriptionNotFound(f"the consumer's subscription not exist\n{FAQ}")
        if found.version < fields.sub_version:
            raise SubscriptionNotLatest("the consumer's subscription not latest")
        if found.expression_type != "TAG":
            raise _not_by(found.expression_type)
        return found

    def _wanted_of(self, fields: _PullFields) -> frozenset[int] | None:
        expression, kind = fields.subscription or "", fields.expression_type or "TAG"
        key = (kind, expression)
        if key in self._expressions:
            return self._expressions[key]
        if kind != "TAG":
            raise _not_by(kind)
        if len(expression) > _EXPRESSION_CHARS_MAX:
            raise SubscriptionParseFailed("parse the consumer's subscription failed: too long")
        try:
            wanted = _wanted(parse_subscription(fields.topic, expression))
        except BrokerError:
            raise SubscriptionParseFailed("parse the consumer's subscription failed") from None
        if len(self._expressions) >= _EXPRESSIONS_MAX:
            self._expressions.clear()
        self._expressions[key] = wanted
        return wanted

    # -- answers ---------------------------------------------------------------------------------

    @staticmethod
    def _code(result: ReadResult, offset: int) -> ResponseCode:
        code = _CODES.get(result.status)
        if code is not None:
            return code
        return ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED

    def _answer(self, pull: Pull, result: ReadResult, gate: Gate) -> None:
        if pull.oneway or pull.connection.closed:
            return
        found = result.status is ReadStatus.FOUND
        if found:
            self.found += 1
            self.messages += result.count
            self.bytes += result.size
            self._broker.offsets.commit_pull(
                pull.fields.group, pull.fields.topic, pull.fields.queue_id, result.next_offset
            )
        else:
            self.missed += 1
        if found and not pull.serializer:
            header = self._found % (
                gate.group_flag,
                result.next_offset,
                result.max_offset,
                result.min_offset,
                gate.topic_flag,
                pull.request_id,
            )
            size = len(header)
            head = (size + 4 + result.size).to_bytes(4, "big") + size.to_bytes(4, "big") + header
        else:
            reply = Command(
                code=self._code(result, pull.fields.offset),
                request_id=pull.request_id,
                flag=1,
                serializer=pull.serializer,
                remark=result.status.name,
                fields={
                    "suggestWhichBrokerId": "0",
                    "groupSysFlag": str(gate.group_flag),
                    "nextBeginOffset": str(result.next_offset),
                    "maxOffset": str(result.max_offset),
                    "minOffset": str(result.min_offset),
                    "topicSysFlag": str(gate.topic_flag),
                },
            )
            head = encode_head(reply, result.size if found else 0)
        if not found:
            pull.connection.write(head)
        elif result.cold:
            self._broker.send_cold(pull.connection, head, result)
        elif result.size > JOIN_BYTES_MAX:
            pull.connection.write_parts([head, *result.views])
        else:
            data = b"".join((head, *result.views))
            assert len(data) == len(head) + result.size, "the views are the records of the entries"
            pull.connection.write(data)

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
        deadline = self._broker.clock.monotonic_ms() + min(wait_ms, 600_000)
        return self._broker.keeping.hold((pull.fields.topic, pull.fields.queue_id), pull, deadline)

    def wake(self, touched: Iterable[tuple[QueueIndex, int]]) -> None:
        """Serve the pulls held for queues that grew in this tick."""
        waits = self._broker.waits
        if not len(waits):
            return
        for queue, _ in touched:
            key = (queue.topic, queue.queue_id)
            if key in waits:
                for wait in waits.take_ready(key):
                    self._rerun(wait.request, queue, wait.deadline_ms)

    def _rerun(self, pull: Pull, queue: QueueIndex, deadline_ms: int) -> None:
        if pull.connection.closed:
            return
        try:
            gate = self._gate(pull)
            result = self._read(gate, pull, pull.scan_offset)
        except BrokerError as error:
            self._refuse(pull, error)
            return
        if result.status in _HOLDABLE or (
            result.status is ReadStatus.NO_MATCHED_MESSAGE
            and result.next_offset >= result.max_offset
        ):
            pull.scan_offset = result.next_offset
            if self._broker.keeping.hold((queue.topic, queue.queue_id), pull, deadline_ms):
                return
        self._answer(pull, result, gate)

    def finish(self, pull: Pull) -> None:
        """Answer a held pull now, whatever there is: its time is over or its topic is gone."""
        if pull.connection.closed:
            return
        try:
            gate = self._gate(pull)
            # From where it looked last: what lies before does not match.
            result = self._read(gate, pull, pull.scan_offset)
        except BrokerError as error:
            self._refuse(pull, error)
            return
        if result.status is ReadStatus.OFFSET_OVERFLOW_ONE and (
            result.next_offset > pull.fields.offset
        ):
            result.status = ReadStatus.NO_MATCHED_MESSAGE
        self._answer(pull, result, gate)


_HOLDABLE: Final = frozenset(
    (
        ReadStatus.OFFSET_OVERFLOW_ONE,
        ReadStatus.NO_MESSAGE_IN_QUEUE,
        ReadStatus.NO_MATCHED_LOGIC_QUEUE,
        ReadStatus.OFFSET_FOUND_NULL,
    )
)


class _Forbidden(NoPermission):
    """A refusal that tells the client which permission is missing."""

    fields: dict[str, str]


def _forbidden(kind: int, remark: str) -> _Forbidden:
    error = _Forbidden(remark)
    error.fields = {"forbiddenType": str(kind)}
    return error


def _not_by(kind: str) -> BrokerError:
    return SystemError_(f"The broker does not support consumer to filter message by {kind}")


def _wanted(subscription: Subscription) -> frozenset[int] | None:
    return None if subscription.matches_all else subscription.tag_hashes
