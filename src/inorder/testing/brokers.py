"""A name server and a broker for tests, in the process, with switches for faults.

    with inorder.testing.broker() as broker:               # async with: on the loop of the test
        with broker.producer() as producer:
            producer.send("orders", b"created", key="order-42")
        assert [message.body for message in broker.messages("orders")] == [b"created"]

    AsyncRunningBroker   both servers on the test's event loop
    RunningBroker        the same in a thread of its own, for code that blocks
    Faults               stands between the broker's connections and the broker: delays, drops and
                         holds requests, or cuts the connection before the reply

Both servers start in about ten milliseconds, on a free port and in a temporary folder, and leave
nothing behind. Faults act on the broker alone, which keeps its address over a restart. What the
testing kit offers: decision 31.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from inorder.broker.broker import Broker
from inorder.checker import Stored, queue_name
from inorder.client.consume.pullconsumer import ConsumeFrom
from inorder.client.consume.pullconsumer import PullConsumer as AsyncPullConsumer
from inorder.client.send.checks import GROUP
from inorder.client.send.producer import Producer as AsyncProducer
from inorder.client.session import Session
from inorder.clock import Clock, SystemClock
from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.credentials import Credentials
from inorder.disk import OsFiles
from inorder.errors import NotStarted
from inorder.model import ReceivedMessage, TopicConfig
from inorder.nameserver.server import NameServer
from inorder.net.accepted import FrameHandler, ServerConnection
from inorder.sync.portal import Portal, blocking
from inorder.sync.producer import Producer
from inorder.sync.pullconsumer import PullConsumer
from inorder.wire.frame import RawFrame
from inorder.wire.header import decode_command
from inorder.wire.ids import show_address


class Faults:
    """A frame handler that delays, drops or passes frames. Frames never overtake each other."""

    def __init__(self, behind: FrameHandler) -> None:
        self.behind = behind
        self.frozen = False
        self.delay_ms = 0
        self.drop_left = 0
        self.drop_code: int | None = None
        self.lose_left = 0
        self.passed = 0
        self._held: deque[tuple[float, ServerConnection, list[RawFrame]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, connection: ServerConnection) -> None:
        """Pass it on."""
        self.behind.connection_made(connection)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """Pass it on."""
        self.behind.connection_lost(connection, reason)

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        """Drop, hold or pass on the frames of one read."""
        frames = [frame for frame in frames if not self._drops(frame)]
        if not frames:
            return
        if self.frozen or self.delay_ms or self._held:
            due = self._now() + self.delay_ms / 1000
            self._held.append((due, connection, frames))
            self.pump()
        else:
            self._pass(connection, frames)

    def pump(self) -> None:
        """Pass on the frames that are due, and set a timer for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and not self.frozen:
            due, connection, frames = self._held[0]
            if due > self._now():
                self._timer = asyncio.get_running_loop().call_at(due, self.pump)
                return
            self._held.popleft()
            if not connection.closed:
                self._pass(connection, frames)

    def clear(self) -> None:
        """End all faults; held frames go on at once."""
        self.frozen = False
        self.delay_ms = self.drop_left = self.lose_left = 0
        self._held = deque((0.0, connection, frames) for _, connection, frames in self._held)
        self.pump()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _drops(self, frame: RawFrame) -> bool:
        if self.drop_left and self.drop_code in (None, decode_command(frame).code):
            self.drop_left -= 1
            return True
        return False

    def _pass(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        self.passed += len(frames)
        self.behind.frames_received(connection, frames)
        if self.lose_left:
            self.lose_left -= 1
            connection.abort("the answer is lost: a fault of the test")


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
        credentials: Credentials | None = None,
    ) -> None:
        self._config = replace(config or BrokerConfig(), port=0)
        self._client = client
        self._credentials = credentials
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

    def producer(self, *, group: str = GROUP) -> AsyncProducer:
        """Return a new producer; close it."""
        return AsyncProducer(
            self.namesrv, group=group, config=self._client, credentials=self._credentials
        )

    def consumer(
        self, group: str = "tests", *, consume_from: ConsumeFrom = "first"
    ) -> AsyncPullConsumer:
        """Return a new pull consumer; close it."""
        return AsyncPullConsumer(
            self.namesrv, group=group, config=self._client, credentials=self._credentials,
            consume_from=consume_from,
        )  # fmt: skip

    async def create_topic(self, name: str, *, queues: int = 4, perm: int = 6) -> None:
        """Create or change a topic."""
        async with Session(self.namesrv, credentials=self._credentials) as session:
            config = TopicConfig(name, queues, queues, perm)
            await (await session.broker_at(self.address)).create_topic(config)

    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return everything that is stored of a topic, queue by queue."""
        reader = AsyncPullConsumer(self.namesrv, group="testing", credentials=self._credentials)
        async with reader as consumer:
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
        """End `freeze`: the broker serves the requests that arrived meanwhile."""
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
        for _ in range(TURNS_TO_NOTICE):  # clients of this loop see their connections close
            await asyncio.sleep(0)
        await killed.offload.drain()
        killed.offload.close()

    def __repr__(self) -> str:
        state = "stopped" if self._names is None else "running" if self._broker else "killed"
        return f"AsyncRunningBroker({state}, namesrv={self.namesrv!r})"

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


class broker:
    """Run a name server and a broker while a block runs, with `with` or `async with`.

    `data` is a folder to keep; without it a temporary one is used and removed. `client` are the
    settings of producers and consumers that the broker makes for you, `credentials` what they sign
    with.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig | None = None,
        client: ClientConfig | None = None,
        data: Path | None = None,
        clock: Clock | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "config": config, "client": client, "data": data, "clock": clock,
            "credentials": credentials,
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
        credentials: Credentials | None = None,
    ) -> None:
        self._async = AsyncRunningBroker(
            config=config, client=client, data=data, clock=clock, credentials=credentials
        )
        self._client = client
        self._credentials = credentials
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
        """Return the address of the name server, for clients."""
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
        return Producer(
            self.namesrv, group=group, config=self._client, credentials=self._credentials
        )

    def consumer(
        self, group: str = "tests", *, consume_from: ConsumeFrom = "first"
    ) -> PullConsumer:
        """Return a new pull consumer; close it."""
        return PullConsumer(
            self.namesrv, group=group, config=self._client, credentials=self._credentials,
            consume_from=consume_from,
        )  # fmt: skip

    create_topic = blocking(AsyncRunningBroker.create_topic)
    messages = blocking(AsyncRunningBroker.messages)
    stored = blocking(AsyncRunningBroker.stored)

    # Faults.

    drop = blocking(AsyncRunningBroker.drop)
    lose_answers = blocking(AsyncRunningBroker.lose_answers)
    delay = blocking(AsyncRunningBroker.delay)
    freeze = blocking(AsyncRunningBroker.freeze)
    thaw = blocking(AsyncRunningBroker.thaw)
    close_connections = blocking(AsyncRunningBroker.close_connections)
    restart = blocking(AsyncRunningBroker.restart)
    kill = blocking(AsyncRunningBroker.kill)

    def __repr__(self) -> str:
        return repr(self._async).removeprefix("Async")

    def _running(self) -> Portal:
        if self._portal is None:
            raise NotStarted("this broker does not run; start it first")
        return self._portal
