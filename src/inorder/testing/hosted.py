"""A name server and a broker for tests, on the event loop of whoever asks, with fault switches.

    async with inorder.testing.broker() as broker:
        async with broker.producer() as producer:
            await producer.send("orders", b"created", key="order-42")
        assert [m.body for m in await broker.messages("orders")] == [b"created"]

`running.py` has the same for code that blocks, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from inorder.broker.broker import Broker
from inorder.checker import Stored, queue_name
from inorder.client.consume.pullconsumer import ConsumeFrom, PullConsumer
from inorder.client.send.producer import GROUP, Producer
from inorder.client.session import Session
from inorder.clock import Clock, SystemClock
from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.disk import OsFiles
from inorder.errors import NotStarted
from inorder.model import ReceivedMessage, TopicConfig
from inorder.nameserver.server import NameServer
from inorder.testing.faults import Faults
from inorder.wire.ids import show_address

TURNS_TO_NOTICE = 5


class AsyncRunningBroker:
    """A name server and a broker; see `broker`."""

    def __init__(
        self,
        *,
        config: BrokerConfig | None = None,
        client: ClientConfig | None = None,
        data: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = replace(config or BrokerConfig(), port=0)
        self._client = client
        self._data = data
        self._clock = clock or SystemClock()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._names: NameServer | None = None
        self._broker: Broker | None = None
        self._faults: Faults | None = None
        self.namesrv = ""

    async def start(self) -> None:
        """Start both servers; when this returns they accept connections."""
        if self._data is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="inorder-test-")
        folder = self._data or Path(self._temporary.name if self._temporary else "")
        try:
            names = NameServer(
                NameServerConfig(port=0, data=str(folder / "namesrv")), self._clock, OsFiles()
            )
            self.namesrv = show_address(*await names.start())
            self._names = names
            self._config = replace(self._config, data=str(folder / "broker"), namesrv=self.namesrv)
            await self._start_broker()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop both servers and remove the temporary folder; twice is fine."""
        try:
            await self._stop_broker()
        finally:
            names, self._names = self._names, None
            if names is not None:
                await names.stop()
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    @property
    def address(self) -> str:
        """Return `host:port` of the broker; clients want `namesrv`."""
        return show_address(self._config.host, self._config.port)

    @property
    def connections(self) -> int:
        """Return how many connections the broker has."""
        return sum(1 for _ in self._running().server.connections)

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

    async def create_topic(self, name: str, *, queues: int = 4, perm: int = 6) -> None:
        """Create or change a topic."""
        async with Session(self.namesrv) as session:
            config = TopicConfig(name, queues, queues, perm)
            await (await session.broker_at(self.address)).create_topic(config)

    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return everything that is stored of a topic, queue by queue."""
        async with PullConsumer(self.namesrv, group="testing") as consumer:
            return [
                message
                for queue in await consumer.queues(topic, wait=3)
                async for message in consumer.pull_all(queue)
            ]

    async def stored(self, topic: str) -> list[Stored]:
        """Return the same as events for the order checker."""
        return [
            Stored(queue_name(message.queue), message.offset, message.message_id, message.key)
            for message in await self.messages(topic)
        ]

    # Faults.

    async def drop(self, count: int = 1, *, code: int | None = None) -> None:
        """Let the next requests (of a code) vanish: not carried out, not answered."""
        self._set(drop_left=count, drop_code=code)

    async def lose_answers(self, count: int = 1) -> None:
        """Carry out the next requests, but cut their connection before the answer."""
        self._set(lose_left=count)

    async def delay(self, seconds: float) -> None:
        """Let the broker get every request later; 0 ends it."""
        self._set(delay_ms=int(seconds * 1000))

    async def freeze(self) -> None:
        """Let the broker do nothing, with all connections open, until `thaw`."""
        self._set(frozen=True)

    async def thaw(self) -> None:
        """Go on with what came meanwhile."""
        self._set(frozen=False)

    async def close_connections(self) -> None:
        """Cut all connections to the broker."""
        for connection in list(self._running().server.connections):
            connection.abort("closed by the test")

    async def restart(self) -> None:
        """Stop the broker cleanly, if it runs, and start it again; faults are over then."""
        await self._stop_broker()
        await self._start_broker()

    async def kill(self) -> None:
        """End the broker as a kill would: nothing is finished, nothing is saved. Then `restart`."""
        killed, self._broker = self._broker, None
        if killed is None:
            raise NotStarted("the broker was killed already; restart it first")
        killed.abandon()
        for _ in range(
            TURNS_TO_NOTICE
        ):  # so that clients of this loop see their connections closed
            await asyncio.sleep(0)
        await killed.offload.drain()
        killed.offload.close()

    def __repr__(self) -> str:
        state = "stopped" if self._names is None else "running" if self._broker else "killed"
        return f"AsyncRunningBroker({state}, namesrv={self.namesrv!r})"

    # Inside.

    async def _start_broker(self) -> None:
        started = Broker(self._config, self._clock, OsFiles())
        self._faults = Faults(started)
        started.server.handler = self._faults
        host, port = await started.start()
        self._broker = started
        self._config = replace(self._config, host=host, port=port)  # the same one next time

    async def _stop_broker(self) -> None:
        stopping, self._broker = self._broker, None
        if stopping is not None:
            assert self._faults is not None
            self._faults.clear()
            await stopping.stop()

    def _running(self) -> Broker:
        if self._broker is None:
            raise NotStarted("the broker does not run; start or restart it first")
        return self._broker

    def _set(self, **switches: int | None) -> None:
        self._running()
        assert self._faults is not None
        for name, value in switches.items():
            setattr(self._faults, name, value)
        self._faults.pump()
