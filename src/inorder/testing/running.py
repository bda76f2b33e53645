"""A broker for tests: in the process; port and folder of its own.

    with inorder.testing.broker() as broker:
        with broker.producer() as producer:
            producer.send("orders", b"created", key="order-42")
        assert [message.body for message in broker.messages("orders")] == [b"created"]

Name server and broker start in some ten milliseconds and leave nothing behind. The faults act on
the broker alone; it keeps its address when it is started again. `with` runs both in a thread of
their own, `async with` on the loop of the test (`hosted.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from inorder.checker import Stored
from inorder.client.consume.pullconsumer import ConsumeFrom
from inorder.client.send.producer import GROUP
from inorder.clock import Clock
from inorder.config import BrokerConfig, ClientConfig
from inorder.errors import NotStarted
from inorder.model import ReceivedMessage
from inorder.sync.portal import Portal
from inorder.sync.producer import Producer
from inorder.sync.pullconsumer import PullConsumer
from inorder.testing.hosted import AsyncRunningBroker

T = TypeVar("T")


class broker:
    """Run a name server and a broker while a block runs, with `with` or `async with`.

    `data` is a folder to keep; without it a temporary one is used and removed. `client` are the
    settings of producers and consumers that the broker makes for you.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig | None = None,
        client: ClientConfig | None = None,
        data: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "config": config, "client": client, "data": data, "clock": clock
        }  # fmt: skip
        self._blocking: RunningBroker | None = None
        self._async: AsyncRunningBroker | None = None

    def __enter__(self) -> RunningBroker:
        self._blocking = RunningBroker(**self._settings)
        self._blocking.start()
        return self._blocking

    def __exit__(self, *_: object) -> None:
        assert self._blocking is not None
        self._blocking.stop()

    async def __aenter__(self) -> AsyncRunningBroker:
        self._async = AsyncRunningBroker(**self._settings)
        await self._async.start()
        return self._async

    async def __aexit__(self, *_: object) -> None:
        assert self._async is not None
        await self._async.stop()


class RunningBroker:
    """A name server and a broker; see `broker`."""

    def __init__(
        self,
        *,
        config: BrokerConfig | None = None,
        client: ClientConfig | None = None,
        data: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._async = AsyncRunningBroker(config=config, client=client, data=data, clock=clock)
        self._client = client
        self._portal: Portal | None = None

    def start(self) -> None:
        """Start both servers; when this returns they accept connections."""
        self._portal = Portal("inorder-test-broker")
        try:
            self._portal.call(self._async.start)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop both servers and remove the temporary folder; twice is fine."""
        portal, self._portal = self._portal, None
        if portal is None:
            return
        try:
            portal.call(self._async.stop)
        finally:
            portal.stop()

    @property
    def namesrv(self) -> str:
        """Return what to give to clients."""
        return self._async.namesrv

    @property
    def address(self) -> str:
        """Return `host:port` of the broker; clients want `namesrv`."""
        return self._async.address

    @property
    def connections(self) -> int:
        """Return how many connections the broker has."""
        return self._running().call(lambda: self._async.connections)

    # Clients.

    def producer(self, *, group: str = GROUP) -> Producer:
        """Return a new producer; close it."""
        return Producer(self.namesrv, group=group, config=self._client)

    def consumer(
        self, group: str = "tests", *, consume_from: ConsumeFrom = "first"
    ) -> PullConsumer:
        """Return a new pull consumer; close it."""
        return PullConsumer(
            self.namesrv, group=group, config=self._client, consume_from=consume_from
        )

    def create_topic(self, name: str, *, queues: int = 4, perm: int = 6) -> None:
        """Create or change a topic."""
        self._call(partial(self._async.create_topic, name, queues=queues, perm=perm))

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return everything that is stored of a topic, queue by queue."""
        return self._call(self._async.messages, topic)

    def stored(self, topic: str) -> list[Stored]:
        """Return the same as events for the order checker."""
        return self._call(self._async.stored, topic)

    # Faults.

    def drop(self, count: int = 1, *, code: int | None = None) -> None:
        """Let the next requests (of a code) vanish: not carried out, not answered."""
        self._call(partial(self._async.drop, count, code=code))

    def lose_answers(self, count: int = 1) -> None:
        """Carry out the next requests, but cut their connection before the answer."""
        self._call(self._async.lose_answers, count)

    def delay(self, seconds: float) -> None:
        """Let the broker get every request later; 0 ends it."""
        self._call(self._async.delay, seconds)

    def freeze(self) -> None:
        """Let the broker do nothing, with all connections open, until `thaw`."""
        self._call(self._async.freeze)

    def thaw(self) -> None:
        """Go on with what came meanwhile."""
        self._call(self._async.thaw)

    def close_connections(self) -> None:
        """Cut all connections to the broker."""
        self._call(self._async.close_connections)

    def restart(self) -> None:
        """Stop the broker cleanly, if it runs, and start it again; faults are over then."""
        self._call(self._async.restart)

    def kill(self) -> None:
        """End the broker as a kill would: nothing is finished, nothing is saved. Then `restart`."""
        self._call(self._async.kill)

    def __repr__(self) -> str:
        return repr(self._async).removeprefix("Async")

    def _call(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        return self._running().call(fn, *args)

    def _running(self) -> Portal:
        if self._portal is None:
            raise NotStarted("this broker does not run; start it first")
        return self._portal
