"""From a frame to the code that answers it, and from an exception to an answer.

Sends and pulls in their usual JSON form go straight to `broker/sends/service.py` and
`broker/pulls/service.py` from the first bytes of the header. Everything else becomes a Command and
finds its handler in the table of `handlers/`. Unknown codes are answered 3 at once. This is the one
place that turns an exception into a response code.

The control plane: what the broker answers to everything but sends and pulls.

HANDLERS is the table of contents. A code that is not in it is answered with 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from inorder.broker.admin import handlers as admin_handlers
from inorder.broker.context import Handler
from inorder.broker.groups import handlers as group_handlers
from inorder.broker.groups import relay
from inorder.broker.leases import handlers as lease_handlers
from inorder.broker.locks import handlers as lock_handlers
from inorder.broker.offsets import handlers as offset_handlers
from inorder.broker.parking import handlers as parking_handlers
from inorder.broker.producers import handlers as producer_handlers
from inorder.broker.resizing import handlers as resizing_handlers
from inorder.broker.retries import handlers as retrie_handlers
from inorder.broker.sends.service import SEND_CODES
from inorder.broker.ticks import Answers
from inorder.broker.topics import handlers as topic_handlers
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
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.extensions import NOTHING_STORED, STORED, ExtensionCode
from inorder.wire.header import Command, decode_command

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.net.accepted import ServerConnection
    from inorder.wire.frame import RawFrame

log = get_logger(__name__)

HANDLERS: Final[Mapping[int, Handler]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: offset_handlers.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offset_handlers.update_consumer_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offset_handlers.search_offset,
    RequestCode.GET_MAX_OFFSET: offset_handlers.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offset_handlers.get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offset_handlers.get_earliest,
    RequestCode.HEART_BEAT: group_handlers.heart_beat,
    RequestCode.UNREGISTER_CLIENT: group_handlers.unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: group_handlers.get_consumer_list,
    RequestCode.CHECK_CLIENT_CONFIG: group_handlers.check_client_config,
    RequestCode.CONSUMER_SEND_MSG_BACK: retrie_handlers.consumer_send_back,
    RequestCode.LOCK_BATCH_MQ: lock_handlers.lock_batch,
    RequestCode.UNLOCK_BATCH_MQ: lock_handlers.unlock_batch,
    RequestCode.VIEW_MESSAGE_BY_ID: admin_handlers.view_message,
    RequestCode.QUERY_MESSAGE: admin_handlers.query_message,
    RequestCode.UPDATE_AND_CREATE_TOPIC: topic_handlers.create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topic_handlers.create_topic_list,
    RequestCode.GET_ALL_TOPIC_CONFIG: topic_handlers.get_all_topics,
    RequestCode.GET_TOPIC_CONFIG: topic_handlers.get_topic,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topic_handlers.get_system_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: topic_handlers.delete_topic,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: group_handlers.update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: group_handlers.update_group_list,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: group_handlers.get_all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group_handlers.get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: group_handlers.delete_group,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: group_handlers.forbid_group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: group_handlers.get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: group_handlers.get_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: group_handlers.get_all_producers,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: group_handlers.get_subscription,
    RequestCode.GET_TOPIC_STATS_INFO: offset_handlers.get_topic_stats,
    RequestCode.GET_CONSUME_STATS: offset_handlers.get_consume_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: offset_handlers.get_groups_of_topic,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: offset_handlers.get_topics_of_group,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offset_handlers.reset_offset,
    RequestCode.CLONE_GROUP_OFFSET: offset_handlers.clone_offsets,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: relay.get_consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: relay.get_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: relay.consume_directly,
    RequestCode.GET_ALL_DELAY_OFFSET: relay.get_delay_offsets,
    RequestCode.GET_BROKER_RUNTIME_INFO: admin_handlers.get_runtime_info,
    RequestCode.GET_BROKER_CONFIG: admin_handlers.get_broker_config,
    RequestCode.UPDATE_BROKER_CONFIG: admin_handlers.update_broker_config,
    ExtensionCode.PARK: parking_handlers.park,
    ExtensionCode.PARKED_KEYS: parking_handlers.keys,
    ExtensionCode.PARKED_LIST: parking_handlers.list_,
    ExtensionCode.PARKED_READ: parking_handlers.read,
    ExtensionCode.REDRIVE: parking_handlers.redrive,
    ExtensionCode.REDRIVEN: parking_handlers.redriven,
    ExtensionCode.UNPARK: parking_handlers.unpark,
    ExtensionCode.PARKED_DROP: parking_handlers.drop,
    ExtensionCode.PARK_MOVE: parking_handlers.move,
    ExtensionCode.PRODUCER_HELLO: producer_handlers.hello,
    ExtensionCode.PRODUCER_STATE: producer_handlers.state,
    ExtensionCode.PRODUCER_DROP: producer_handlers.drop,
    ExtensionCode.PRODUCER_LIST: producer_handlers.list_names,
    ExtensionCode.LEASE: lease_handlers.lease,
    ExtensionCode.RELEASE: lease_handlers.release,
    ExtensionCode.COMMIT: lease_handlers.commit,
    ExtensionCode.LEASES: lease_handlers.list_leases,
    ExtensionCode.LEASE_FREE: lease_handlers.free,
    ExtensionCode.RESIZE_DECIDE: resizing_handlers.decide,
    ExtensionCode.RESIZE_STOP: resizing_handlers.stop,
    ExtensionCode.RESIZE_OPEN: resizing_handlers.open_next,
    ExtensionCode.RESIZE_STATUS: resizing_handlers.status,
    ExtensionCode.RESIZE_RELEASE: resizing_handlers.release,
    ExtensionCode.RESIZE_GO: resizing_handlers.go,
    ExtensionCode.RESIZE_WITHDRAW: resizing_handlers.withdraw,
    ExtensionCode.RESIZE_REWIND: resizing_handlers.rewind,
}


PULL_REQUESTS: Final = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))

_SEND_V2: Final = b'{"code":310,'
_SEND_BATCH: Final = b'{"code":320,'
_PULL: Final = b'{"code":11,'
_SEND: Final = b'{"code":10,'
_DELETING: Final = frozenset(
    (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP)
)
_NEVER: Final = 1 << 62
_SAID: Final = frozenset(
    (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL)
)  # refusals that an operator should know of: the client is no match, and may not say so
_REFUSALS_WITH_REGION: Final = frozenset((2, 13, 14, 16, 17, 29))


class Router:
    """Hand frames to their handlers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
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
        """Serve all frames of one read, in order; their appends become one tick."""
        broker = self._broker
        hot, pulls = broker.hot, broker.pulls
        answers = Answers(connection, broker.clock.now_ms())
        writable = broker.writable and broker.ticks.unsettled_bytes <= self._unsettled_max
        monotonic_ms = broker.clock.monotonic_ms
        ends_ms = monotonic_ms() + SHARE_MS if len(frames) > 1 else _NEVER
        try:
            for index, frame in enumerate(frames):
                serializer, header, body = frame
                if connection.busy:
                    connection.defer(frames[index:])
                    break
                if serializer == 0:
                    start = header[:12]
                    if start in (_SEND_V2, _SEND_BATCH):
                        if writable and hot.send_v2(connection, header, body, answers):
                            continue
                    elif start[:11] == _PULL:
                        if pulls.pull_raw(connection, header):
                            if index & 3 == 3 and monotonic_ms() >= ends_ms:
                                connection.end_share()
                            continue
                    elif (
                        start[:11] == _SEND
                        and writable
                        and hot.send_long(connection, header, body, answers)
                    ):
                        continue
                self._general(connection, frame, answers)
                if ends_ms != _NEVER and monotonic_ms() >= ends_ms:
                    connection.end_share()
        finally:
            # Also when a later frame is garbage: what was appended is written and answered.
            broker.ticks.take(answers)

    def _general(self, connection: ServerConnection, frame: RawFrame, answers: Answers) -> None:
        command = decode_command(frame)
        if command.is_response:
            connection.take_response(command)
            return
        try:
            if command.code in SEND_CODES:
                self._broker.hot.send_command(connection, command, answers)
            elif command.code in PULL_REQUESTS:
                self._broker.pulls.pull_command(connection, command)
            else:
                self._control(connection, command)
        except RemoteProtocolError:
            raise
        except Exception as error:  # the root of every request: nothing may escape unanswered
            self._failed(connection, command, error)

    def _control(self, connection: ServerConnection, command: Command) -> None:
        handler = HANDLERS.get(command.code)
        if handler is None:
            if len(self.unknown_codes) < 1024 or command.code in self.unknown_codes:
                self.unknown_codes[command.code] = self.unknown_codes.get(command.code, 0) + 1
            self._reply(
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
        result = handler(self._broker, connection, command)
        if saving.asked != asked and result is not None:  # it changed a table of names
            result = self._when_saved(command.code, result)
        if isinstance(result, Command):
            self._reply(connection, command, result)
        elif result is not None:
            self._spawn(connection, command, result)

    async def _when_saved(
        self, code: int, result: Command | Coroutine[Any, Any, Command | None]
    ) -> Command | None:
        """Answer when what the request changed is in its file."""
        await self._broker.saving.saved(always=code in _DELETING)
        return result if isinstance(result, Command) else await result

    def _spawn(
        self,
        connection: ServerConnection,
        command: Command,
        work: Coroutine[Any, Any, Command | None],
    ) -> None:
        waiting = self._outstanding.get(connection.id, 0)
        if waiting >= self._outstanding_max:
            work.close()
            self._reply(
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
                self._reply(connection, command, reply)
        except Exception as error:  # a task root: the answer says what the log says
            self._failed(connection, command, error)
        finally:
            left = self._outstanding.get(connection.id, 1) - 1
            if left > 0:
                self._outstanding[connection.id] = left
            else:
                self._outstanding.pop(connection.id, None)

    def _failed(self, connection: ServerConnection, command: Command, error: Exception) -> None:
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
        if fields is None and command.code in SEND_CODES and code in _REFUSALS_WITH_REGION:
            fields = self._region
        if (
            code == ResponseCode.SYSTEM_ERROR
            and command.code in SEND_CODES
            and self._broker.producers.has_heard(connection)
        ):
            fields = _said_of_storing(error)
        self._reply(connection, command, command.reply(code, remark, fields=fields))

    def _reply(self, connection: ServerConnection, command: Command, reply: Command) -> None:
        if reply.code in _SAID:
            now_ms = self._broker.clock.monotonic_ms()
            self._refusals.refused(now_ms, connection.peer, command.code, reply.code, reply.remark)
        if command.is_oneway or connection.closed:
            return
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
