"""A name server and a broker inside the process, for tests: port 0, a directory of its own.

    async with Cluster() as cluster:
        producer = await cluster.producer()
        await producer.send("orders", b"created", key="order-1")

It runs on any loop, and closes the sessions that it made. For faults see `simcluster`.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from inorder.client.api import BrokerApi
from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.clock import Clock, SystemClock
from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.disk import Files
from inorder.embedded import Embedded


class Cluster:
    """An embedded cluster of one broker."""

    def __init__(
        self,
        *,
        data: Path | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
        broker: BrokerConfig | None = None,
        client: ClientConfig | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._files = files
        self._client = client or ClientConfig()
        self._broker_config = broker or BrokerConfig()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._data = data
        self._sessions: list[Session] = []
        self._shared: Session | None = None
        self.embedded: Embedded

    async def start(self) -> None:
        """Start both servers; when this returns they accept connections."""
        folder = self._data or self._make_folder()
        self.embedded = Embedded(
            NameServerConfig(port=0, data=str(folder / "namesrv")),
            replace(self._broker_config, port=0, data=str(folder / "broker")),
            clock=self._clock,
            files=self._files,
        )
        try:
            await self.embedded.start()
        except BaseException:
            self._remove_folder()
            raise

    async def stop(self) -> None:
        """Close the sessions, stop both servers, remove the temporary directory."""
        try:
            for session in self._sessions:
                await session.close()
            await self.embedded.stop()
        finally:
            self._sessions.clear()
            self._shared = None
            self._remove_folder()

    async def restart(self) -> None:
        """Stop both servers cleanly and start them again on the same data, on new ports."""
        assert self._data is not None or self._files is not None, "give the cluster a data path"
        for session in self._sessions:
            await session.close()
        self._sessions.clear()
        self._shared = None
        await self.embedded.stop()
        await self.start()

    async def __aenter__(self) -> Cluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def namesrv(self) -> str:
        """Return the address to give to clients."""
        return self.embedded.namesrv_address

    async def session(self) -> Session:
        """Return a new session, started."""
        session = Session(self.namesrv, config=self._client, clock=self._clock)
        self._sessions.append(session)
        await session.start()
        return session

    async def producer(self) -> Producer:
        """Return a new producer on the shared session."""
        return Producer(await self._shared_session())

    async def consumer(self, group: str = "tests") -> PullConsumer:
        """Return a new pull consumer on the shared session."""
        return PullConsumer(await self._shared_session(), group=group)

    async def broker(self) -> BrokerApi:
        """Return the broker's requests."""
        session = await self._shared_session()
        return await session.broker_at(self.embedded.broker_address)

    async def _shared_session(self) -> Session:
        if self._shared is None:
            self._shared = await self.session()
        return self._shared

    def _make_folder(self) -> Path:
        if self._files is not None:
            return Path("/cluster")  # on a disk of the test's own
        self._temporary = tempfile.TemporaryDirectory(prefix="inorder-test-")
        return Path(self._temporary.name)

    def _remove_folder(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
