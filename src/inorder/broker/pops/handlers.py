"""Requests about pops.

    POP_MESSAGE (200050)                   take messages, or wait for some
    ACK_MESSAGE (200051), BATCH_ACK (200151)
    CHANGE_MESSAGE_INVISIBLETIME (200053)
    PEEK_MESSAGE (200052)                  read without taking
    NOTIFICATION (200054)                  wait until a pop would find something
    POLLING_INFO (200055)                  how many pops wait

`service.py` and `acks.py` do the work. Why: decision 54.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.pops.checks import check_readable
from inorder.broker.pops.service import Ask, Pop
from inorder.errors import BrokerError
from inorder.wire.codes import ResponseCode
from inorder.wire.requests.pops import (
    AckMessage,
    ChangeInvisibleTime,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    decode_batch_ack,
    pop_header,
)

if TYPE_CHECKING:
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command


def pop(call: Call[PopMessage]) -> Reply:
    """Take messages, or wait for some; a refusal has the fields of an answer, as in RocketMQ."""
    try:
        return call.broker.pops.pop(
            Pop(call.connection, call.command, call.request, call.admission)
        )
    except BrokerError as error:
        return call.reply(error.code, error.remark, fields=pop_header())


def ack(call: Call[AckMessage]) -> Reply:
    """Take an acknowledgement."""
    return call.broker.acks.ack(call.command, call.request, call.connection)


def batch_ack(call: Call[None]) -> Reply:
    """Take acknowledgements of several pops."""
    if not call.command.body:
        return call.reply(ResponseCode.NO_MESSAGE)
    return call.broker.acks.ack_batch(call.command, decode_batch_ack(call.command.body))


def change_invisible_time(call: Call[ChangeInvisibleTime]) -> Reply:
    """Change when others see a message."""
    return call.broker.acks.change(call.command, call.request, call.connection)


def peek(call: Call[PeekMessage]) -> Reply:
    """Read what a pop would find."""
    return call.broker.pops.peek(call.connection, call.command, call.request)


def notification(call: Call[Notification]) -> Reply:
    """Tell when a pop would find something."""
    return call.broker.pops.ask(Ask(call.connection, call.command, call.request, call.admission))


def polling_info(call: Call[PollingInfo]) -> Command:
    """Tell how many pops of a group wait."""
    request = call.request
    check_readable(
        call.broker, request.consumer_group, request.topic, request.queue_id, call.connection.peer
    )
    count = call.broker.pops.waiting(request.topic, request.consumer_group, request.queue_id)
    return call.reply(fields={"pollingNum": str(count)})
