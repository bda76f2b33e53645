"""From a frame to the code that answers it, and from an exception to an answer.

Sends and pulls in their usual JSON form go straight to `broker/sends/service.py` and `broker/pulls/service.py` from the first bytes
of the header. Everything else becomes a Command and finds its handler in the table of
`handlers/`. Unknown codes are answered 3 at once. This is the one place that turns an exception
into a response code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from inorder.broker.handlers import HANDLERS
from inorder.broker.sends.service import SEND_CODES
from inorder.broker.ticks import Answers
from inorder.errors import (
    BrokerError,
    InorderError,
    LocalProtocolError,
    RemoteProtocolError,
    StoreBusy,
    StoredInPart,
    StoreError,
)
from inorder.logs import get_logger
from inorder.net.fairness import SHARE_MS
from inorder.net.peerlog import Refusals
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.extensions import NOTHING_STORED, STORED
from inorder.wire.header import Command, decode_command

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.net.accepted import ServerConnection
    from inorder.wire.frame import RawFrame

log = get_logger(__name__)

PULL_CODES: Final = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))

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
            elif command.code in PULL_CODES:
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
                    f" request type {command.code} not supported",
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
