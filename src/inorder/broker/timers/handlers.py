"""Requests about timers.

    RECALL_MESSAGE (370)          do not deliver a timer; RocketMQ's checks in RocketMQ's order
    GET_TIMER_CHECK_POINT (60)    up to when timers are delivered
    GET_TIMER_METRICS (61)        how many of each topic wait

A recall is stored like a timer for the time of its message, and answered when it is safe by the
flush mode. Why: decision 52.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.broker.sends.checks import require_writable
from inorder.broker.ticks import PendingReplies
from inorder.broker.timers import records
from inorder.broker.timers.storage import first_waiting
from inorder.errors import (
    LocalProtocolError,
    NoPermission,
    RemoteProtocolError,
    ServiceNotAvailable,
)
from inorder.model import PERM_WRITE
from inorder.wire.codes import ResponseCode
from inorder.wire.frame import encode_frame
from inorder.wire.properties import format_properties
from inorder.wire.requests.timers import Recall
from inorder.wire.timers import (
    RECALL_BODY,
    RECALL_TAG,
    RECALLED_KEY,
    Handle,
    decode_handle,
    due_of,
    recalled_key,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command

_SECOND_MS: Final = 1000


def recall(call: Call[Recall]) -> Reply:
    """Store a recall; reply when it is stored."""
    broker, request = call.broker, call.request
    if not broker.config.recall_enable:
        raise NoPermission("recall failed, operation is forbidden")
    if not broker.config.perm & PERM_WRITE:
        raise ServiceNotAvailable("recall failed, broker service not available")
    fields = {"MSG_REGION": broker.config.region}
    if request.topic not in broker.topics:
        text = f"recall failed, the topic[{request.topic}] not exist"
        return call.reply(ResponseCode.TOPIC_NOT_EXIST, text, fields=fields)
    now_ms = broker.clock.now_ms()
    try:
        handle = decode_handle(request.recall_handle)
        properties = _properties(request, handle, now_ms)
    except (RemoteProtocolError, LocalProtocolError) as error:
        return call.reply(ResponseCode.ILLEGAL_OPERATION, str(error), fields=fields)
    wrong = _wrong(broker, request, handle, now_ms)
    if wrong:
        return call.reply(ResponseCode.ILLEGAL_OPERATION, wrong, fields=fields)
    require_writable(broker)
    target, properties, code = broker.timers.place(
        broker.sends.target(request.topic, 0), properties, now_ms
    )
    assert code is not None, "the time was checked"
    offset = target.queue.next_offset
    connection = call.connection
    broker.sends.packer.put(
        target, connection.peer_host, properties.encode(), RECALL_BODY, 0, 0, now_ms, 0, now_ms,
        code,
    )  # fmt: skip
    broker.timers.packed(offset, code, properties)
    replies = PendingReplies(connection, now_ms)
    answer = call.reply(fields={**fields, "msgId": handle.message_id})
    if call.command.is_oneway:
        replies.add_oneway()
    else:
        replies.add(encode_frame(answer))
    broker.ticks.take(replies)
    return None


def _wrong(broker: Broker, request: Recall, handle: Handle, now_ms: int) -> str | None:
    if handle.topic != request.topic:
        return "recall failed, topic not match"
    if handle.broker != broker.config.name:
        return "recall failed, broker service not available"
    left_ms = handle.due_ms - now_ms
    longest_ms = broker.config.store.timer_max_delay_sec * _SECOND_MS
    if left_ms <= 0 or left_ms >= longest_ms or broker.timer_table.is_over(handle.due_ms):
        return "recall failed, timestamp invalid"
    return None


def _properties(request: Recall, handle: Handle, now_ms: int) -> str:
    found = {
        "TAGS": RECALL_TAG,
        RECALLED_KEY: recalled_key(handle.topic, handle.message_id),
        "UNIQ_KEY": handle.message_id,
        "TIMER_DELIVER_MS": str(handle.due_ms),
        "BORN_TIMESTAMP": str(now_ms),
    }
    if request.producer_group:
        found["PGROUP"] = request.producer_group
    return format_properties(found)


def get_checkpoint(call: Call[None]) -> Command:
    """Reply with 56 bytes, as RocketMQ's brokers do."""
    table, store = call.broker.timer_table, call.broker.store
    read_ms = due_of(table.frontier[0])
    return call.reply(body=records.checkpoint(read_ms, first_waiting(store, table), table.version))


def get_metrics(call: Call[None]) -> Command:
    """Reply with the counts of waiting timers by topic."""
    table = call.broker.timer_table
    return call.reply(body=records.metrics(table.counts, table.version))
