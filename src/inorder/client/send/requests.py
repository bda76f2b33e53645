"""Messages that ask for a reply, and wait for it.

    Producer.request ─> Requests.open        a waiter for the send
                        Request.set_result   the receipt of the message
    ReplyInbox ───────> Requests.take        the reply; the first one counts

The correlation id of a request is the id of its message. A reply may come before the receipt, since
it proves that the message was stored. Why: decision 51.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from inorder.client.send.queues import Waiter
from inorder.client.session import Session
from inorder.errors import InorderError, RequestTimeout, TooManyOutstanding
from inorder.logs import get_logger
from inorder.model import Message, SendReceipt
from inorder.wire import properties as names
from inorder.wire.requests.replies import reply_topic

log = get_logger(__name__)


def asking(
    properties: Mapping[str, str] | None, *, id_: str, client_id: str, timeout_ms: int
) -> dict[str, str]:
    """Return the properties of a message that asks for a reply."""
    return {
        **(properties or {}),
        names.CORRELATION_ID: id_,
        names.REPLY_TO_CLIENT: client_id,
        names.TTL: str(timeout_ms),
    }


class Request:
    """One message that asks for a reply: the waiter of its send, and then of its reply."""

    __slots__ = ("_is_due", "_over", "_receipt", "_requests", "_timer", "_waiter", "id")

    def __init__(self, requests: Requests, id_: str, waiter: Waiter, timeout_ms: int) -> None:
        self.id = id_
        self._requests = requests
        self._waiter = waiter
        self._receipt: SendReceipt | None = None
        self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._expire)
        self._is_due = False
        self._over = False

    def done(self) -> bool:
        """Return whether nobody waits any more."""
        return self._over or self._waiter.done()

    def set_result(self, receipt: SendReceipt) -> None:
        """Take the receipt of the message: the reply has the time that is left."""
        self._receipt = receipt
        if self._is_due:
            self._expire()

    def set_exception(self, error: BaseException) -> None:
        """Take the error of the send."""
        self.end(None, error)

    def _expire(self) -> None:
        """Give up: the time is up. Without a receipt the error of the send follows."""
        self._is_due = True
        receipt = self._receipt
        if self.done():
            self.forget()
        elif receipt is not None:
            self.end(
                None,
                RequestTimeout(
                    f"no reply to request {self.id} came in time; its message is stored in "
                    f"{receipt.queue} at offset {receipt.offset}, and may be handled yet, or may "
                    "have been"
                ),
            )

    def end(self, reply: Message | None, error: BaseException | None) -> None:
        """Give the caller the reply or the error."""
        self.forget()
        if self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(reply)
        else:
            self._waiter.set_exception(error)

    def forget(self) -> None:
        """Stop waiting."""
        self._over = True
        self._timer.cancel()
        self._requests.ended(self.id)


class Requests:
    """The requests of one producer that wait for their replies."""

    def __init__(self, waiting_max: int) -> None:
        self.answered = 0
        self._waiting: dict[str, Request] = {}
        self._waiting_max = waiting_max
        self._idle: asyncio.Event = asyncio.Event()
        self._topics: set[str] = set()

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def open(self, id_: str, waiter: Waiter, timeout_ms: int) -> Request:
        """Begin a request. Raises TooManyOutstanding if too many wait."""
        if len(self._waiting) >= self._waiting_max:
            self._drop_unwanted()
        if len(self._waiting) >= self._waiting_max:
            raise TooManyOutstanding(
                f"{len(self._waiting)} requests wait for their replies, the limit is "
                f"{self._waiting_max} (requests_waiting_max); wait for some of them"
            )
        request = self._waiting[id_] = Request(self, id_, waiter, timeout_ms)
        return request

    def _drop_unwanted(self) -> None:
        """Forget the requests whose callers have stopped waiting."""
        for request in [one for one in self._waiting.values() if one.done()]:
            request.forget()

    def ended(self, id_: str) -> None:
        """Forget a request."""
        if self._waiting.pop(id_, None) is not None and not self._waiting:
            self._idle.set()

    def take(self, id_: str, read: Callable[[], Message]) -> bool:
        """Give a reply to its caller; False if nobody waits for it here."""
        request = self._waiting.get(id_)
        if request is None or request.done():
            return False
        try:
            reply = read()
        except InorderError as error:
            request.end(None, error)
        else:
            self.answered += 1
            request.end(reply, None)
        return True

    async def settled(self) -> None:
        """Wait until no request waits; each has a deadline of its own."""
        self._drop_unwanted()
        while self._waiting:
            self._idle.clear()
            await self._idle.wait()

    def is_first_to(self, topic: str) -> bool:
        """Return whether no request went to a topic before, and note that one does."""
        if topic in self._topics:
            return False
        self._topics.add(topic)
        return True


async def introduce(session: Session, topic: str) -> None:
    """Let every broker of a topic's clusters know this client: any of them may get the reply.

    RocketMQ's responders send a reply to any broker of the cluster, and only a broker that has this
    client's heartbeat can push it.
    """
    try:
        route = await session.route_for_send(topic)
        for cluster in sorted({one.cluster for one in route.brokers}):
            await session.route(reply_topic(cluster))
        await session.heartbeat()
    except InorderError as error:
        log.info("replies by way of other brokers may be missed topic=%s: %s", topic, error)
