"""Saying hello: the first request of a producer on a connection to a broker.

The answer tells whether the broker knows numbered sends, and shuts out what older connections of
this producer still hold. Each hello carries a higher incarnation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.client.api import BrokerApi
from inorder.client.losses import resolved
from inorder.errors import BrokerError, CodeNotSupported, ProducerStale, ProducerUnknown
from inorder.wire.extensions import PROTOCOL
from inorder.wire.requests.producers import ProducerHello

if TYPE_CHECKING:
    from inorder.client.link import Link
    from inorder.net.connection import Connection


class Greeter:
    """Introduces the producer of a link to its broker."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._owner = link.owner
        self._memory = -1  # the broker's, when we first said hello
        self._met = False
        self.greeted: dict[str, None] = {}
        """The ids under which we are known on the present connection."""

    async def greet(self, connection: Connection) -> bool:
        """Say hello; False if the broker does not know what that is."""
        try:
            await self.hello(connection, self._owner.producer_id)
        except CodeNotSupported:
            connection.numbers_sends = False
            self._owner.session.say_once(
                "numbers",
                "broker %s knows no numbered sends: one send per queue at a time, in order, each "
                "stored at least once",
                self._link.broker,
            )
            return False
        connection.numbers_sends = True
        return True

    async def hello(self, connection: Connection, producer_id: str) -> None:
        """Say hello under an id. Raises ProducerStale if another one has taken over a name."""
        owner = self._owner
        api = BrokerApi(connection, timeout_ms=owner.session.config.request_timeout_ms)
        fresh = not (self._met and owner.named)
        while True:
            request = ProducerHello(
                producer_id, owner.next_incarnation(), owner.named, memory=self._memory,
                protocol=PROTOCOL,
            )  # fmt: skip
            try:
                reply = await api.producer_hello(request)
                break
            except ProducerStale as error:
                if not fresh:
                    raise self.fenced(error) from None
                fresh = not owner.named  # a name that starts takes over, once
                owner.raise_incarnation(error.highest)
            except ProducerUnknown:
                producer_id = self._forget(producer_id)
        self._met = True
        if self._memory < 0:
            self._memory = reply.memory
        self.greeted[producer_id] = None

    def _forget(self, producer_id: str) -> str:
        """The broker may have forgotten an id: nobody can tell what is stored of it. Use another.

        Returns the new one.
        """
        new_id = self._owner.new_id()
        if producer_id == self._owner.producer_id:
            self._owner.producer_id = new_id
        self._memory = -1
        for lane in self._link.lanes.values():
            if lane.producer_id != producer_id:
                continue
            if lane.tail < 0:
                lane.use_id(new_id)
            else:
                found = lane.resolve(-1, known=False, evicted=True)
                resolved(self._link, lane, found, new_id)
        return new_id

    def fenced(self, error: BrokerError) -> ProducerStale:
        """Return the error of a name that somebody else has taken over."""
        return ProducerStale(
            f"another producer with the id {self._owner.producer_id!r} has started and this one is "
            f"shut out of broker {self._link.broker} ({error}); close it",
            code=error.code,
        )
