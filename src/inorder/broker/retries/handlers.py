"""CONSUMER_SEND_MSG_BACK (36): a consumer sends back a message that it could not handle.

The broker stores a copy for a later attempt, or as a dead letter. RocketMQ's checks are here, in
RocketMQ's order; `rules.py` decides what is stored. How attempts are counted: decision 24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inorder.broker.groups.rules import RETRY_QUEUES_MAX, UNIT_SUBSCRIBED
from inorder.broker.retries.rules import DEAD_LETTER_QUEUES, send_back
from inorder.broker.sends.rules import FAQ
from inorder.errors import GroupNotFound, NoPermission, SystemError_
from inorder.logs import get_logger
from inorder.model import PERM_WRITE
from inorder.wire.names import dead_letter_topic, retry_topic
from inorder.wire.record import decode
from inorder.wire.requests.connections import SendBack

if TYPE_CHECKING:
    from inorder.broker.router import Call, Reply

logger = get_logger(__name__)

VERSION_WITH_MAX: Final = 121
"""The protocol version of RocketMQ 3.4.9. From it on, the client sends the limit of attempts."""


def consumer_send_back(call: Call[SendBack]) -> Reply:
    """Store a copy of the message for its group; reply when the copy is stored."""
    broker, request = call.broker, call.request
    group = broker.find_group(request.group)
    if group is None:
        raise GroupNotFound(f"subscription group not exist, {request.group} {FAQ}")
    if not broker.config.perm & PERM_WRITE:
        raise NoPermission(f"the broker[{broker.address}] sending message is forbidden")
    if group.retry_queues <= 0:
        return call.reply()  # the group is configured without retries
    queues = min(group.retry_queues, RETRY_QUEUES_MAX)
    flag = UNIT_SUBSCRIBED if request.unit_mode else 0
    topic = broker.ensure_topic(retry_topic(group.name), queues=queues, sys_flag=flag)
    if not topic.writable:
        raise NoPermission(f"the topic[{topic.name}] sending message is forbidden")
    found = broker.store.visible_record(request.position)
    if found is None:
        raise SystemError_(f"look message by offset failed, {request.position}")
    attempts_max = group.retry_max_times
    if call.command.version >= VERSION_WITH_MAX and request.redeliveries_max is not None:
        attempts_max = request.redeliveries_max
    back = send_back(
        decode(found),
        group=group.name,
        level=request.delay_level,
        attempts_max=attempts_max,
        store_host=broker.store_host,
        error=request.error or "",
    )
    queue_id = 0 if back.dead else broker.random.randrange(queues)
    if back.dead:
        broker.ensure_topic(dead_letter_topic(group.name), queues=DEAD_LETTER_QUEUES)
        logger.info(
            "to the dead letters group=%s topic=%s position=%d attempts=%d",
            group.name, request.origin_topic, request.position, back.record.redeliveries,
        )  # fmt: skip
    broker.append(
        back.record, queue_id, level=back.level, connection=call.connection,
        answer=call.reply(), oneway=call.command.is_oneway,
    )  # fmt: skip
    return None
