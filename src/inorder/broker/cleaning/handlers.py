"""An operator asks to delete what is not needed any more: RocketMQ's answers, inorder's rules.

    CLEAN_EXPIRED_CONSUMEQUEUE (306)   queue files whose messages have all expired
    CLEAN_UNUSED_TOPIC (316)           queues of topics that do not exist
    DELETE_EXPIRED_COMMITLOG (329)     expired files of the log, at any hour of the day

RocketMQ forgets a queue whose messages have all expired, and its next message gets offset 0. Here
the queue goes on where it ended, because fences compare offsets. Why: decision 53.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from inorder.broker.cleaning import service
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command

logger = get_logger(__name__)


def clean_queues(call: Call[None]) -> Reply:
    """Delete the queue files whose messages have expired."""
    return _answer(call, service.clean_queues(call.broker), "queue files")


def clean_topics(call: Call[None]) -> Reply:
    """Delete the queues of topics that do not exist."""
    return _answer(call, service.clean_topics(call.broker), "unused topics")


def clean_log(call: Call[None]) -> Reply:
    """Delete expired log files."""
    return _answer(call, service.clean_log(call.broker), "log files")


async def _answer(call: Call[None], work: Coroutine[Any, Any, object], what: str) -> Command:
    logger.info("removed on request %s=%s peer=%s", what, await work, call.connection.peer)
    return call.reply()
