"""Giving messages back: to the retry topic, or to the dead letters.

Request 36 names the stored record, and the broker copies it. Where that is refused the client sends
a copy to the retry topic itself, as RocketMQ's does; but not while this group holds locks of
ordered queues, for then a broker takes every such copy for a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from inorder.client.concurrent import where
from inorder.client.handlers import Registration
from inorder.client.policies import ATTEMPTS_MAX
from inorder.client.session import TEMPLATE_TOPIC, Session
from inorder.client.state.sendback import (
    SEND_BACK_TIMEOUT_MS,
    Failure,
    RetryCopy,
    level_of,
    retry_copy,
)
from inorder.errors import BrokerError, InorderError
from inorder.logs import get_logger
from inorder.model import ReceivedMessage
from inorder.wire.properties import format_properties
from inorder.wire.requests.connections import SendBack
from inorder.wire.requests.sends import SendMessage

log = get_logger(__name__)

PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"


class Returner:
    """Gives the messages of one group back."""

    def __init__(self, session: Session, group: str, *, holds_locks: Callable[[], bool]) -> None:
        self._session = session
        self._group = group
        self._holds_locks = holds_locks

    async def send_back(
        self,
        registration: Registration,
        message: ReceivedMessage,
        failure: Failure,
    ) -> bool:
        """Let a message come again later; tell whether the broker took it."""
        attempts = registration.redeliveries_max
        request = SendBack(
            message.position,
            self._group,
            level_of(failure),
            message.message_id,
            message.topic,
            redeliveries_max=min(attempts, ATTEMPTS_MAX),
            error=failure.error or None,
        )
        try:
            api = await self._session.master_of(message.queue)
            await api.send_back(request, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except BrokerError as error:
            log.warning("send back refused %s error=%s", where(message), error)
        except InorderError as error:
            log.warning("send back failed %s error=%s", where(message), error)
            return False
        else:
            return True
        return not self._holds_locks() and await self._send_copy(registration, message, failure)

    async def dead_letter(
        self, registration: Registration, messages: Sequence[ReceivedMessage], failure: Failure
    ) -> set[int]:
        """Set messages of an ordered queue aside; return the offsets of those that are."""
        sent = set()
        for message in messages:
            if await self._send_copy(registration, message, failure):
                log.warning("message is dead-lettered %s", where(message))
                sent.add(message.offset)
        return sent

    async def _send_copy(
        self, registration: Registration, message: ReceivedMessage, failure: Failure
    ) -> bool:
        limit = registration.redeliveries_max
        copy = retry_copy(message, self._group, redeliveries_max=limit, failure=failure)
        try:
            api = await self._session.master_of(message.queue)
            await api.send_message(self._request(copy, message), copy.body)
        except InorderError as error:
            log.warning("copy to %s failed %s error=%s", copy.topic, where(message), error)
            return False
        return True

    def _request(self, copy: RetryCopy, message: ReceivedMessage) -> SendMessage:
        return SendMessage(
            PRODUCER_GROUP,
            copy.topic,
            TEMPLATE_TOPIC,
            self._session.config.default_topic_queues,
            0,
            0,
            message.born_at_ms,
            copy.flag,
            format_properties(copy.properties),
            copy.redeliveries,
            redeliveries_max=copy.redeliveries_max,
            broker_name=message.queue.broker,
        )
