"""From a frame to the handler of its request, and from an exception to a reply.

    (where access is controlled every frame is decoded, and `access/service.py` judges it first)
    frame -- plain SENDs of one message -----------> sends/service, compiled, all of a read at once
          -- SEND, PULL in their usual JSON form --> sends/service, pulls/service (no decoding)
          -- any other form of SEND and PULL ------> the same services, as a Command
          -- everything else ----------------------> HANDLERS: (request type, handler)

`HANDLERS` is the table of contents of the control plane. The router decodes the header into the
request type and calls the handler with a `Call`. The handler returns the reply, a coroutine that
returns it later, or None if the reply is sent elsewhere. A code that is not in the table is
answered with REQUEST_CODE_NOT_SUPPORTED (decision 3).

`Router.fail` is the one place that turns an exception into a response code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from inorder.access.codes import SESSION_CODES
from inorder.access.service import Refused
from inorder.broker.admin import handlers as admin_handlers
from inorder.broker.assignments import handlers as assignment_handlers
from inorder.broker.cleaning import handlers as cleaning_handlers
from inorder.broker.groups import handlers as group_handlers
from inorder.broker.groups import relay
from inorder.broker.leases import handlers as lease_handlers
from inorder.broker.locks import handlers as lock_handlers
from inorder.broker.offsets import handlers as offset_handlers
from inorder.broker.parking import handlers as parking_handlers
from inorder.broker.pops import handlers as pop_handlers
from inorder.broker.producers import handlers as producer_handlers
from inorder.broker.replies import handlers as reply_handlers
from inorder.broker.resizing import handlers as resizing_handlers
from inorder.broker.retries import handlers as retry_handlers
from inorder.broker.sends.service import SEND_CODES
from inorder.broker.statistics import handlers as statistics_handlers
from inorder.broker.ticks import PendingReplies
from inorder.broker.timers import handlers as timer_handlers
from inorder.broker.topics import handlers as topic_handlers
from inorder.broker.transactions import handlers as transaction_handlers
from inorder.broker.users import handlers as user_handlers
from inorder.errors import (
    BrokerError,
    InorderError,
    LocalProtocolError,
    RemoteProtocolError,
    StoreBusy,
    StoredInPart,
    StoreError,
    not_supported,
)
from inorder.logs import get_logger
from inorder.net.fairness import SHARE_MS
from inorder.net.peerlog import Refusals
from inorder.wire.codes import LanguageCode, RequestCode, ResponseCode
from inorder.wire.extensions import BOUND, COUNTER, NOTHING_STORED, SESSION, STORED
from inorder.wire.fields import decode_fields
from inorder.wire.header import JSON, Command, decode_command, encode_header
from inorder.wire.requests import (
    connections,
    groups,
    leases,
    offsets,
    parking,
    pops,
    producers,
    pulls,
    resizing,
    statistics,
    timers,
    topics,
    transactions,
    users,
)
from inorder.wire.requests.replies import REPLY_CODES
from inorder.wire.signature import AK, SIGNATURE, TOKEN

if TYPE_CHECKING:
    from inorder.access.service import Admission, Guard
    from inorder.broker.broker import Broker
    from inorder.net.accepted import ServerConnection
    from inorder.wire.frame import RawFrame

log = get_logger(__name__)

_Request = TypeVar("_Request")

Reply = Command | Coroutine[Any, Any, Command | None] | None
"""An answer, one that takes time, or none: the handler sends it itself, or there is none."""


@dataclass(frozen=True, slots=True)
class Call(Generic[_Request]):
    """One request on its way to its handler. `request` is None if its code has no typed header."""

    broker: Broker
    connection: ServerConnection
    command: Command
    request: _Request
    admission: Admission | None = None
    """Who asks, by which rights; None: access is not controlled."""

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        *,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Command:
        """Return the answer to this request."""
        return self.command.reply(code, remark, fields=fields, body=body)


_Entry = tuple[type[Any] | None, Callable[[Call[Any]], Reply]]


def _serve(
    request: type[_Request], handler: Callable[[Call[_Request]], Reply], code: int | None = None
) -> tuple[int, _Entry]:
    return request.CODE if code is None else code, (request, handler)  # type: ignore[attr-defined]


def _raw(code: int, handler: Callable[[Call[None]], Reply]) -> tuple[int, _Entry]:
    return code, (None, handler)


_ENTRIES: Final = (
    _serve(offsets.QueryConsumerOffset, offset_handlers.query_consumer_offset),
    _serve(offsets.UpdateConsumerOffset, offset_handlers.update_consumer_offset),
    _serve(offsets.SearchOffset, offset_handlers.search_offset),
    _serve(offsets.GetMaxOffset, offset_handlers.get_max_offset),
    _serve(offsets.GetMinOffset, offset_handlers.get_min_offset),
    _serve(offsets.GetEarliest, offset_handlers.get_earliest),
    _raw(RequestCode.HEART_BEAT, group_handlers.heart_beat),
    _serve(groups.UnregisterClient, group_handlers.unregister_client),
    _serve(groups.GetConsumerList, group_handlers.get_consumer_list),
    _raw(RequestCode.CHECK_CLIENT_CONFIG, group_handlers.check_client_config),
    _serve(connections.SendBack, retry_handlers.consumer_send_back),
    _raw(RequestCode.SEND_REPLY_MESSAGE, reply_handlers.send_reply),
    _raw(RequestCode.SEND_REPLY_MESSAGE_V2, reply_handlers.send_reply),
    _raw(RequestCode.LOCK_BATCH_MQ, lock_handlers.lock_batch),
    _raw(RequestCode.UNLOCK_BATCH_MQ, lock_handlers.unlock_batch),
    _serve(pulls.ViewMessage, admin_handlers.view_message),
    _serve(pulls.QueryMessage, admin_handlers.query_message),
    _serve(topics.CreateTopic, topic_handlers.create_topic),
    _raw(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topic_handlers.create_topic_list),
    _raw(RequestCode.GET_ALL_TOPIC_CONFIG, topic_handlers.get_all_topics),
    _serve(topics.GetTopicConfig, topic_handlers.get_topic),
    _raw(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, topic_handlers.get_system_topics),
    _serve(topics.DeleteTopic, topic_handlers.delete_topic),
    _raw(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group_handlers.update_group),
    _raw(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, group_handlers.update_group_list),
    _raw(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, group_handlers.get_all_groups),
    _serve(groups.GetGroupConfig, group_handlers.get_group),
    _serve(groups.DeleteGroup, group_handlers.delete_group),
    _serve(offsets.ForbidGroup, group_handlers.forbid_group),
    _serve(offsets.GetConsumerConnections, group_handlers.get_consumer_connections),
    _serve(offsets.GetProducerConnections, group_handlers.get_producer_connections),
    _raw(RequestCode.GET_ALL_PRODUCER_INFO, group_handlers.get_all_producers),
    _serve(offsets.GetSubscription, group_handlers.get_subscription),
    _serve(offsets.GetTopicStats, offset_handlers.get_topic_stats),
    _serve(offsets.GetConsumeStats, offset_handlers.get_consume_stats),
    _serve(offsets.GetGroupsOfTopic, offset_handlers.get_groups_of_topic),
    _serve(offsets.GetTopicsOfGroup, offset_handlers.get_topics_of_group),
    _serve(offsets.ResetOffset, offset_handlers.reset_offset),
    _serve(offsets.CloneOffsets, offset_handlers.clone_offsets),
    _serve(
        connections.GetConsumerStatus,
        relay.get_consumer_status,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,  # CODE is the broker's own request
    ),
    _serve(connections.GetRunningInfo, relay.get_running_info),
    _serve(connections.ConsumeDirectly, relay.consume_directly),
    _raw(RequestCode.GET_ALL_DELAY_OFFSET, relay.get_delay_offsets),
    _serve(timers.Recall, timer_handlers.recall),
    _raw(RequestCode.GET_TIMER_CHECK_POINT, timer_handlers.get_checkpoint),
    _raw(RequestCode.GET_TIMER_METRICS, timer_handlers.get_metrics),
    _raw(RequestCode.GET_BROKER_RUNTIME_INFO, admin_handlers.get_runtime_info),
    _raw(RequestCode.GET_BROKER_CONFIG, admin_handlers.get_broker_config),
    _raw(RequestCode.UPDATE_BROKER_CONFIG, admin_handlers.update_broker_config),
    _serve(transactions.EndTransaction, transaction_handlers.end_transaction),
    _serve(transactions.ResumeCheck, transaction_handlers.resume_check),
    _serve(transactions.TransactionsPending, transaction_handlers.list_pending),
    _serve(statistics.GetTimeSpans, statistics_handlers.get_time_spans),
    _serve(statistics.GetCorrectionOffsets, statistics_handlers.get_correction_offsets),
    _serve(statistics.GetStatsData, statistics_handlers.get_stats_data),
    _serve(statistics.GetAllConsumeStats, statistics_handlers.get_all_consume_stats),
    _serve(statistics.GetQueueContents, statistics_handlers.get_queue_contents),
    _raw(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, cleaning_handlers.clean_queues),
    _raw(RequestCode.CLEAN_UNUSED_TOPIC, cleaning_handlers.clean_topics),
    _raw(RequestCode.DELETE_EXPIRED_COMMITLOG, cleaning_handlers.clean_log),
    _serve(parking.Park, parking_handlers.park),
    _serve(parking.ParkedKeys, parking_handlers.keys),
    _serve(parking.ParkedList, parking_handlers.list_),
    _serve(parking.ParkedRead, parking_handlers.read),
    _serve(parking.Redrive, parking_handlers.redrive),
    _serve(parking.Redriven, parking_handlers.redriven),
    _serve(parking.Unpark, parking_handlers.unpark),
    _serve(parking.ParkedDrop, parking_handlers.drop),
    _serve(parking.ParkMove, parking_handlers.move),
    _serve(pops.PopMessage, pop_handlers.pop),
    _serve(pops.AckMessage, pop_handlers.ack),
    _raw(RequestCode.BATCH_ACK_MESSAGE, pop_handlers.batch_ack),
    _serve(pops.ChangeInvisibleTime, pop_handlers.change_invisible_time),
    _serve(pops.PeekMessage, pop_handlers.peek),
    _serve(pops.Notification, pop_handlers.notification),
    _serve(pops.PollingInfo, pop_handlers.polling_info),
    _raw(RequestCode.QUERY_ASSIGNMENT, assignment_handlers.query_assignment),
    _raw(RequestCode.SET_MESSAGE_REQUEST_MODE, assignment_handlers.set_request_mode),
    _raw(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, assignment_handlers.get_request_modes),
    _serve(producers.ProducerHello, producer_handlers.hello),
    _serve(producers.ProducerState, producer_handlers.state),
    _serve(producers.ProducerDrop, producer_handlers.drop),
    _serve(producers.ProducerList, producer_handlers.list_names),
    _serve(leases.Lease, lease_handlers.lease),
    _serve(leases.Release, lease_handlers.release),
    _serve(leases.Commit, lease_handlers.commit),
    _serve(leases.Leases, lease_handlers.list_leases),
    _serve(leases.LeaseFree, lease_handlers.free),
    _serve(resizing.ResizeDecide, resizing_handlers.decide),
    _serve(resizing.ResizeStop, resizing_handlers.stop),
    _serve(resizing.ResizeOpen, resizing_handlers.open_next),
    _serve(resizing.ResizeStatus, resizing_handlers.status),
    _serve(resizing.ResizeRelease, resizing_handlers.release),
    _serve(resizing.ResizeGo, resizing_handlers.go),
    _serve(resizing.ResizeWithdraw, resizing_handlers.withdraw),
    _serve(resizing.ResizeRewind, resizing_handlers.rewind),
    _serve(users.CreateUser, user_handlers.create_user),
    _serve(users.UpdateUser, user_handlers.update_user),
    _serve(users.DeleteUser, user_handlers.delete_user),
    _serve(users.GetUser, user_handlers.get_user),
    _serve(users.ListUsers, user_handlers.list_users),
    _serve(users.CreateAcl, user_handlers.put_acl),
    _serve(users.UpdateAcl, user_handlers.put_acl),
    _serve(users.DeleteAcl, user_handlers.delete_acl),
    _serve(users.GetAcl, user_handlers.get_acl),
    _serve(users.ListAcls, user_handlers.list_acls),
)
HANDLERS: Final[Mapping[int, _Entry]] = dict(_ENTRIES)
"""The request type and the handler of each code, apart from sends and pulls."""


def invoke(
    broker: Broker,
    connection: ServerConnection,
    command: Command,
    admission: Admission | None = None,
) -> Reply:
    """Decode a request and call its handler; KeyError if its code is not served."""
    request, handler = HANDLERS[command.code]
    decoded = None if request is None else decode_fields(request, command.fields)
    return handler(Call(broker, connection, command, decoded, admission))


PULL_REQUESTS: Final = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
SERVED: Final = frozenset(HANDLERS) | SEND_CODES | PULL_REQUESTS
"""Every code that the broker serves."""
_NOT_OF_THE_GONE: Final = (
    SEND_CODES | PULL_REQUESTS | {RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION}
)

_SEND_V2: Final = b'{"code":310,'
_SEND_BATCH: Final = b'{"code":320,'
_PULL: Final = b'{"code":11,'
_SEND: Final = b'{"code":10,'
_DELETING: Final = frozenset(
    (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP)
)
_NEVER: Final = 1 << 62
_CREDENTIALS: Final = (AK, SIGNATURE, SESSION, COUNTER, BOUND, TOKEN)
_LOGGED_REFUSALS: Final = frozenset(
    (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL)
)  # refusals that an operator should know of: the client is no match, and may not say so
_SENDING: Final = SEND_CODES | REPLY_CODES
_REFUSALS_WITH_REGION: Final = frozenset((2, 13, 14, 16, 17, 29))


class Router:
    """Hand frames to their handlers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._guard = broker.guard
        self._tasks: set[asyncio.Task[None]] = set()
        self._outstanding: dict[int, int] = {}
        self._unsettled_max = broker.config.store.pending_bytes_max
        self._outstanding_max = broker.config.net.outstanding_max
        self._region = {
            "TRACE_ON": "true" if broker.config.trace_on else "false",
            "MSG_REGION": broker.config.region,
        }
        self.unknown_codes: dict[int, int] = {}
        self._refusals = Refusals(log)

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        """Serve all frames of one read, in order; their appends become one tick.

        Sends and pulls of a peer that is gone are dropped: a send may have come again over the
        peer's next connection, and would be stored behind newer messages of its key.
        """
        broker = self._broker
        if connection.gone:
            frames = [one for one in frames if decode_command(one).code not in _NOT_OF_THE_GONE]
        if self._guard is not None:
            self._judge_frames(self._guard, connection, frames)
            return
        sends, pulls = broker.sends, broker.pulls
        replies = PendingReplies(connection, broker.clock.now_ms())
        writable = broker.writable and broker.ticks.unsettled_bytes <= self._unsettled_max
        monotonic_ms = broker.clock.monotonic_ms
        ends_ms = monotonic_ms() + SHARE_MS if len(frames) > 1 else _NEVER
        plain = writable and sends.compiled
        index, count = 0, len(frames)
        try:
            while index < count:
                if connection.busy:
                    connection.defer(frames[index:])
                    break
                frame = serializer, header, body = frames[index]
                start = header[:12] if serializer == 0 else b""
                if start[:11] == _PULL:
                    if pulls.pull_raw(connection, header):
                        if index & 3 == 3 and monotonic_ms() >= ends_ms:
                            connection.end_share()
                        index += 1
                        continue
                elif writable:
                    end = sends.take_plain(connection, frames, index, replies) if plain else index
                    if end == index and (
                        (
                            start in (_SEND_V2, _SEND_BATCH)
                            and sends.send_v2(connection, header, body, replies)
                        )
                        or (
                            start[:11] == _SEND
                            and sends.send_long(connection, header, body, replies)
                        )
                    ):
                        end += 1
                    if end > index:
                        index = end
                        continue
                index += 1
                self._general(connection, frame, replies)
                if ends_ms != _NEVER and monotonic_ms() >= ends_ms:
                    connection.end_share()
        finally:
            # Also when a later frame is garbage: what was appended is written and answered.
            broker.ticks.take(replies)

    def _general(
        self, connection: ServerConnection, frame: RawFrame, replies: PendingReplies
    ) -> None:
        command = decode_command(frame)
        if command.is_response:
            connection.take_response(command)
            return
        self._serve_command(connection, command, replies, None)

    def _serve_command(
        self,
        connection: ServerConnection,
        command: Command,
        replies: PendingReplies,
        admission: Admission | None,
    ) -> None:
        try:
            if command.code in SEND_CODES:
                self._broker.sends.send_command(connection, command, replies)
            elif command.code in PULL_REQUESTS:
                self._broker.pulls.pull_command(connection, command, admission)
            else:
                self._control(connection, command, admission)
        except RemoteProtocolError:
            raise
        except Exception as error:  # the root of every request: nothing may escape unanswered
            self.fail(connection, command, error)

    def _judge_frames(
        self, guard: Guard, connection: ServerConnection, frames: list[RawFrame]
    ) -> None:
        """Serve the frames that the guard admits, in order.

        Every frame is decoded and judged. The fast paths get what was judged, written anew: the
        first reader of a header could take what another reader takes from its end.
        """
        broker = self._broker
        replies = PendingReplies(connection, broker.clock.now_ms())
        monotonic_ms = broker.clock.monotonic_ms
        ends_ms = monotonic_ms() + SHARE_MS if len(frames) > 1 else _NEVER
        sends: list[Command] = []
        try:
            for index, frame in enumerate(frames):
                if connection.busy:
                    connection.defer(frames[index:])
                    break
                command = decode_command(frame)
                if command.is_response:
                    connection.take_response(command)
                    continue
                admission = self._admit(guard, connection, command)
                if admission is None:
                    continue
                if command.code in SEND_CODES and command.serializer == JSON:
                    sends.append(command)
                    continue
                self._serve_sends(connection, sends, replies)
                if (
                    command.code != RequestCode.PULL_MESSAGE
                    or command.serializer != JSON
                    or not broker.pulls.pull_raw(connection, encode_header(command), admission)
                ):
                    self._serve_command(connection, command, replies, admission)
                if ends_ms != _NEVER and monotonic_ms() >= ends_ms:
                    connection.end_share()
        finally:
            # Also when a later frame is garbage: what was appended is written and answered.
            try:
                self._serve_sends(connection, sends, replies)
            finally:
                broker.ticks.take(replies)

    def _admit(
        self, guard: Guard, connection: ServerConnection, command: Command
    ) -> Admission | None:
        """Let the guard judge a request, and answer a refusal; handlers see no credentials."""
        try:
            judged = guard.admit(connection, command)
        except Exception as error:  # a bug of the guard opens nothing
            self.fail(connection, command, error)
            return None
        if isinstance(judged, Refused):
            self.refuse(connection, command, judged)
            return None
        fields = command.fields
        for name in _CREDENTIALS:
            if name in fields:
                del fields[name]
        return judged

    def _serve_sends(
        self, connection: ServerConnection, commands: list[Command], replies: PendingReplies
    ) -> None:
        """Serve sends that were judged, by the fastest way that takes each; empty the list."""
        if not commands:
            return
        broker, sends = self._broker, self._broker.sends
        writable = broker.writable and broker.ticks.unsettled_bytes <= self._unsettled_max
        frames: list[RawFrame] = [
            (JSON, encode_header(one), one.body)  # type: ignore[misc]  # a frame's body is bytes
            for one in commands
        ]
        index, count = 0, len(commands)
        while index < count:
            end = index
            if writable:
                if sends.compiled:
                    end = sends.take_plain(connection, frames, index, replies)
                if end == index:
                    _, header, body = frames[index]
                    long = commands[index].code == RequestCode.SEND_MESSAGE
                    take = sends.send_long if long else sends.send_v2
                    end += take(connection, header, body, replies)
            if end == index:
                self._serve_command(connection, commands[index], replies, None)
                end += 1
            index = end
        commands.clear()

    def refuse(self, connection: ServerConnection, command: Command, refused: Refused) -> None:
        """Answer a request that the guard does not admit."""
        now_ms = self._broker.clock.monotonic_ms()
        code = ResponseCode.NO_PERMISSION
        self._refusals.refused(now_ms, connection.peer, command.code, code, refused.remark)
        fields = self._region if command.code in _SENDING else None
        self.answer(connection, command, command.reply(code, refused.remark, fields=fields))

    def _control(
        self, connection: ServerConnection, command: Command, admission: Admission | None
    ) -> None:
        if command.code not in HANDLERS:
            if len(self.unknown_codes) < 1024 or command.code in self.unknown_codes:
                self.unknown_codes[command.code] = self.unknown_codes.get(command.code, 0) + 1
            self.answer(
                connection,
                command,
                command.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    not_supported(command.code),
                ),
            )
            return
        saving = self._broker.saving
        asked = saving.asked
        result = invoke(self._broker, connection, command, admission)
        if saving.asked != asked and result is not None:  # it changed a table of names
            result = self._when_saved(command.code, result)
        if isinstance(result, Command):
            self.answer(connection, command, result)
        elif result is not None:
            self.spawn(connection, command, result)

    async def _when_saved(
        self, code: int, result: Command | Coroutine[Any, Any, Command | None]
    ) -> Command | None:
        """Answer when what the request changed is in its file."""
        await self._broker.saving.saved(always=code in _DELETING)
        return result if isinstance(result, Command) else await result

    def spawn(
        self,
        connection: ServerConnection,
        command: Command,
        work: Coroutine[Any, Any, Command | None],
    ) -> None:
        waiting = self._outstanding.get(connection.id, 0)
        if waiting >= self._outstanding_max:
            work.close()
            self.answer(
                connection,
                command,
                command.reply(
                    ResponseCode.SYSTEM_BUSY,
                    f"[OVERLOAD]{waiting} requests of this connection wait for an answer",
                ),
            )
            return
        self._outstanding[connection.id] = waiting + 1
        task = asyncio.get_running_loop().create_task(
            self._finish(connection, command, work), name=f"request-{command.code}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self,
        connection: ServerConnection,
        command: Command,
        work: Coroutine[Any, Any, Command | None],
    ) -> None:
        try:
            reply = await work
            if reply is not None:
                self.answer(connection, command, reply)
        except Exception as error:  # a task root: the answer says what the log says
            self.fail(connection, command, error)
        finally:
            left = self._outstanding.get(connection.id, 1) - 1
            if left > 0:
                self._outstanding[connection.id] = left
            else:
                self._outstanding.pop(connection.id, None)

    def fail(self, connection: ServerConnection, command: Command, error: Exception) -> None:
        fields = None
        if isinstance(error, BrokerError):
            code, remark = error.code, error.remark
            fields = getattr(error, "fields", None)
        elif isinstance(error, StoreBusy):
            code, remark = int(ResponseCode.SYSTEM_BUSY), f"[OVERLOAD]{error}"
        elif isinstance(error, StoreError):
            code, remark = int(ResponseCode.SERVICE_NOT_AVAILABLE), str(error)
        elif isinstance(error, InorderError):
            code, remark = int(ResponseCode.SYSTEM_ERROR), str(error)
        else:
            code = int(ResponseCode.SYSTEM_ERROR)
            remark = f"{type(error).__name__}: {error}"
            log.error(
                "request failed code=%d id=%d peer=%s",
                command.code,
                command.request_id,
                connection.peer,
                exc_info=error,
            )
        if fields is None and command.code in _SENDING and code in _REFUSALS_WITH_REGION:
            fields = self._region
        if (
            code == ResponseCode.SYSTEM_ERROR
            and command.code in SEND_CODES
            and self._broker.producers.has_heard(connection)
        ):
            fields = _said_of_storing(error)
        self.answer(connection, command, command.reply(code, remark, fields=fields))

    def answer(self, connection: ServerConnection, command: Command, reply: Command) -> None:
        # Nobody hears of a refusal to end a transaction: the request is one-way.
        if reply.code in _LOGGED_REFUSALS or (
            reply.code and command.code == RequestCode.END_TRANSACTION
        ):
            now_ms = self._broker.clock.monotonic_ms()
            self._refusals.refused(now_ms, connection.peer, command.code, reply.code, reply.remark)
        if command.is_oneway or connection.closed:
            return
        if (
            self._guard is not None
            and command.code in SESSION_CODES
            and command.language == LanguageCode.PYTHON
        ):
            reply.fields[SESSION] = self._guard.session_of(connection)
        try:
            connection.send(reply)
        except LocalProtocolError as error:  # it may be larger than a frame
            connection.send(command.reply(ResponseCode.SYSTEM_ERROR, str(error)))

    async def drain(self) -> None:
        """Wait for the requests that are being served."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        """Give up the requests that are being served."""
        for task in self._tasks:
            task.cancel()


def _said_of_storing(error: Exception) -> dict[str, str] | None:
    """Say that nothing was stored if a rule refused the send; anything else tells nothing."""
    if isinstance(error, BrokerError) and not isinstance(error, StoredInPart):
        return {STORED: NOTHING_STORED}
    return None
