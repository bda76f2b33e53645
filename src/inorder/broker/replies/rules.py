"""What a reply may be, the request that pushes it, and how many replies may wait for their push.

A reply goes to the cluster's reply topic and to nothing else. It is a plain message: no batch, no
delay, no transaction. Why: decision 51.
"""

from __future__ import annotations

from typing import Final

from inorder.broker.sends.rules import TRANSACTION_BITS, is_special, level_in, refuse_special
from inorder.broker.timers.rules import asks_for_a_time
from inorder.errors import MessageIllegal, NoPermission
from inorder.wire import properties as props
from inorder.wire.header import Command
from inorder.wire.properties import REPLY_TO_CLIENT
from inorder.wire.requests.replies import PUSH_REPLY_TIME, PushReply
from inorder.wire.requests.sends import SendMessage

PUSH_MS: Final = 10_000
"""How long the broker waits for the requester's answer to a push, as RocketMQ does."""
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of requests that may wait for the answers to their pushes."""


class Waiting:
    """The bytes of replies that wait for the answer to their push, and their limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def enter(self, size: int) -> bool:
        """Count a reply; False if there is no room. One reply fits always."""
        if self.bytes and self.bytes + size > self.bytes_max:
            return False
        self.bytes += size
        return True

    def leave(self, size: int) -> None:
        """Release a reply."""
        self.bytes -= size


def bytes_of(command: Command) -> int:
    """Return about how much memory a request takes."""
    return len(command.body) + sum(len(name) + len(value) for name, value in command.fields.items())


def require_reply(request: SendMessage, topic: str) -> None:
    """Refuse what is not a plain message for the reply topic of this broker's cluster."""
    if request.topic != topic:
        raise NoPermission(
            f"Sending a reply to topic[{request.topic}] is forbidden; replies of this cluster go "
            f"to {topic}"
        )
    found = props.parse(request.properties or "") if is_special(request.properties or "") else {}
    special = found.get("TRAN_MSG", "false").lower() == "true" or asks_for_a_time(found)
    if special or request.batch or level_in(found) > 0 or request.sys_flag & TRANSACTION_BITS:
        raise MessageIllegal("a reply is a single message without a delay or a transaction")
    refuse_special(found, request.topic)


def requester_of(request: SendMessage) -> str | None:
    """Return the client id of the client that asked; None if the reply does not name it."""
    return props.parse(request.properties or "").get(REPLY_TO_CLIENT)


def push_of(
    request: SendMessage, *, region: dict[str, str], born_host: str, store_host: str, now_ms: int
) -> PushReply:
    """Return the header of the request that pushes a reply to the client that asked."""
    properties = {
        **props.parse(request.properties or ""),
        **region,
        PUSH_REPLY_TIME: str(now_ms),
    }
    return PushReply(
        producer_group=request.producer_group,
        topic=request.topic,
        default_topic=request.default_topic,
        default_topic_queues=request.default_topic_queues,
        queue_id=request.queue_id,
        sys_flag=request.sys_flag,
        born_at_ms=request.born_at_ms,
        flag=request.flag,
        born_host=born_host,
        store_host=store_host,
        stored_at_ms=now_ms,
        properties=props.join(properties),
        redeliveries=request.redeliveries,
        unit_mode=request.unit_mode,
    )
