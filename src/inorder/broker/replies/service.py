"""Pushes a reply to the client that asked, then stores it in the cluster's reply topic.

The order is RocketMQ's, and so are the answers: 0 if the client took the reply, else 1. In both
cases the reply is stored, unless `store_replies` is off, and the answer says where. If only the
storing fails, the answer is 0 without a place: the client has the reply.

The client is found by the id in its heartbeat as a producer; its newest connection counts. Why:
decision 51.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.replies.rules import (
    PUSH_MS,
    Waiting,
    bytes_of,
    push_of,
    requester_of,
    require_reply,
)
from inorder.broker.sends.checks import admit, require_writable, with_unique_key
from inorder.broker.sends.rules import require_body, require_properties
from inorder.broker.ticks import PendingReplies
from inorder.errors import BrokerError, StoreError, SystemBusy, TransportError
from inorder.logs import get_logger
from inorder.wire.codes import ResponseCode
from inorder.wire.fields import encode_fields
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from inorder.wire.ids import offset_message_id
from inorder.wire.properties import REPLY_TO_CLIENT
from inorder.wire.requests.replies import PushReply, reply_topic
from inorder.wire.requests.sends import SendMessage

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.net.accepted import ServerConnection

log = get_logger(__name__)


class ReplyService:
    """The replies of responders, and the clients that wait for them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = reply_topic(broker.config.cluster)
        self._region = {
            "TRACE_ON": "true" if broker.config.trace_on else "false",
            "MSG_REGION": broker.config.region,
        }
        self._waiting = Waiting()
        self.pushed = 0
        self.failed = 0

    async def take(
        self, connection: ServerConnection, command: Command, request: SendMessage
    ) -> Command | None:
        """Push a reply and store it; return the answer, None if the tick gives it."""
        broker, body, size = self._broker, bytes(command.body), bytes_of(command)
        size_max = broker.config.store.message_bytes_max
        require_reply(request, self._topic)
        admit(broker, broker.sends, connection, request, command.version)
        require_body(body, size_max)
        require_properties(request.properties or "", size_max)
        if not self._waiting.enter(size):
            raise SystemBusy("[OVERLOAD]too many replies wait for the clients that asked for them")
        try:
            failure = await self._push(connection, request, body)
        finally:
            self._waiting.leave(size)
        self.pushed += not failure
        self.failed += bool(failure)
        if broker.config.store_replies:
            try:
                self._store(connection, command, request, body, failure)
            except (BrokerError, StoreError) as error:
                log.warning("a reply is not stored peer=%s: %s", connection.peer, error)
            else:
                return None
        fields = self._fields(request.queue_id, "0", 0)
        return command.reply(_code_of(failure), failure or None, fields=fields)

    async def _push(self, connection: ServerConnection, request: SendMessage, body: bytes) -> str:
        """Push a reply to the client that asked; return why that failed, empty: it did not."""
        broker, client_id = self._broker, requester_of(request)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        client = broker.members.producer_of(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        header = push_of(
            request,
            region=self._region,
            born_host=connection.peer,
            store_host=broker.address,
            now_ms=broker.clock.now_ms(),
        )
        try:
            push = Command.request(PushReply.CODE, encode_fields(header), body)
            answer = await client.request(push, PUSH_MS)
        except TransportError as error:
            log.info("a reply is not pushed client=%s: %s", client_id, error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                return ""
            log.info("client=%s refuses a reply: %s", client_id, answer.remark)
        return f"push reply message to {client_id}fail."

    def _store(
        self,
        connection: ServerConnection,
        command: Command,
        request: SendMessage,
        body: bytes,
        failure: str,
    ) -> None:
        """Store a reply; it is answered when it is stored."""
        broker = self._broker
        require_writable(broker)
        target, request = admit(broker, broker.sends, connection, request, command.version)
        replies = PendingReplies(connection, broker.clock.now_ms())
        properties, _ = with_unique_key(broker, request.properties or "")
        offset = target.queue.next_offset
        position = broker.sends.packer.put(
            target,
            connection.peer_host,
            properties.encode(),
            body,
            request.flag,
            request.sys_flag,
            request.born_at_ms,
            request.redeliveries or 0,
            replies.now_ms,
        )
        if command.is_oneway:
            replies.add_oneway()
        else:
            message_id = offset_message_id(broker.store_host, position)
            fields = self._fields(target.queue_id, message_id, offset)
            answer = command.reply(_code_of(failure), failure or None, fields=fields)
            replies.add(encode_frame(answer))
        broker.ticks.take(replies)

    def _fields(self, queue_id: int, message_id: str, offset: int) -> dict[str, str]:
        """Return the fields of an answer: where the reply is stored."""
        where = {"queueId": str(queue_id), "msgId": message_id, "queueOffset": str(offset)}
        return {**where, **self._region}


def _code_of(failure: str) -> ResponseCode:
    return ResponseCode.SYSTEM_ERROR if failure else ResponseCode.SUCCESS
