"""Replies that brokers push to a session (326), for the producers that share it.

A reply that no producer waits for any more is counted and dropped. The broker hears that it was
taken, as from RocketMQ's client. Why: decision 51.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inorder.errors import InorderError
from inorder.logs import get_logger
from inorder.model import Message
from inorder.net.connection import Connection
from inorder.wire import properties as names
from inorder.wire.codes import ResponseCode
from inorder.wire.compression import decompress_body
from inorder.wire.fields import decode_fields
from inorder.wire.header import Command
from inorder.wire.requests.replies import PushReply

log = get_logger(__name__)


class WaitingRequests(Protocol):
    """The requests of one producer."""

    def take(self, id_: str, read: Callable[[], Message]) -> bool:
        """Give a reply to its caller; False if nobody waits for it here."""
        ...


def reply_of(push: PushReply, body: bytes | memoryview, *, body_bytes_max: int) -> Message:
    """Return a pushed reply as a message. Raises InorderError if its body cannot be read."""
    found = names.parse(push.properties or "")
    return Message(
        push.topic,
        decompress_body(push.sys_flag, body, limit=body_bytes_max),
        found.get(names.SHARDING_KEY),
        found.get(names.TAGS),
        tuple(found.get(names.KEYS, "").split()),
        found,
        push.flag,
    )


class ReplyInbox:
    """Takes the replies that brokers push to one session."""

    def __init__(self, body_bytes_max: int) -> None:
        self.late = 0
        self._body_bytes_max = body_bytes_max
        self._waiting: list[WaitingRequests] = []

    def add(self, requests: WaitingRequests) -> None:
        """Take the replies to a producer's requests."""
        self._waiting.append(requests)

    def remove(self, requests: WaitingRequests) -> None:
        """Take no more replies to a producer's requests."""
        self._waiting.remove(requests)

    def pushed(self, connection: Connection, command: Command) -> None:
        """Take a reply, and tell the broker so."""
        try:
            push = decode_fields(PushReply, command.fields)
        except InorderError as error:
            answer = command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        else:
            self._take(push, command.body)
            answer = command.reply()
        if not command.is_oneway:
            connection.send(answer)

    def _take(self, push: PushReply, body: bytes | memoryview) -> None:
        id_ = names.parse(push.properties or "").get(names.CORRELATION_ID, "")

        def read() -> Message:
            return reply_of(push, body, body_bytes_max=self._body_bytes_max)

        if not any(one.take(id_, read) for one in self._waiting):
            self.late += 1
            log.info("a reply came too late, or again, and is dropped request=%s", id_)
