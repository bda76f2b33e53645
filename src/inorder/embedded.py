"""A name server and a broker in one process: for `inorder up`, the demo and tests.

Each knows only the other's address: the broker registers over a socket, as it would with a name
server on another machine.
"""

from __future__ import annotations

import dataclasses

from inorder.broker.broker import Broker, descriptors_kept
from inorder.clock import Clock, SystemClock
from inorder.config import BrokerConfig, NameServerConfig
from inorder.disk import Files, OsFiles
from inorder.errors import AlreadyClosed, NotStarted
from inorder.nameserver.server import NameServer
from inorder.wire.ids import show_address

Address = tuple[str, int]

# A server that listens on all addresses is reached from this machine at this one.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound to


def reached_at(address: str) -> str:
    """Return the address by which this machine reaches a server that listens at an address."""
    host, _, port = address.rpartition(":")
    return show_address(_WILDCARDS.get(host.strip("[]"), host.strip("[]")), int(port))


class Embedded:
    """A name server and a broker that is registered with it."""

    def __init__(
        self,
        namesrv_config: NameServerConfig | None = None,
        broker_config: BrokerConfig | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self._namesrv_config = namesrv_config or NameServerConfig()
        self._broker_config = broker_config or BrokerConfig()
        self._clock = clock or SystemClock()
        self._files = files or OsFiles()
        self._namesrv: NameServer | None = None
        self._broker: Broker | None = None
        self._namesrv_address: Address | None = None
        self._broker_address: Address | None = None
        self._stopped = False

    @property
    def broker(self) -> Broker:
        """Return the running broker."""
        if self._broker is None:
            raise NotStarted("the broker does not run; call start() first")
        return self._broker

    @property
    def namesrv(self) -> NameServer:
        """Return the running name server."""
        if self._namesrv is None:
            raise NotStarted("the name server does not run; call start() first")
        return self._namesrv

    @property
    def namesrv_address(self) -> str:
        """Return `host:port` of the name server."""
        if self._namesrv_address is None:
            raise NotStarted("the name server does not run; call start() first")
        return show_address(*self._namesrv_address)

    @property
    def broker_address(self) -> str:
        """Return `host:port` of the broker."""
        if self._broker_address is None:
            raise NotStarted("the broker does not run; call start() first")
        return show_address(*self._broker_address)

    async def start(self) -> None:
        """Start the name server, then the broker; when this returns both accept connections."""
        if self._stopped:
            raise AlreadyClosed("this pair was stopped; make a new one")
        namesrv = NameServer(self._namesrv_config, self._clock, self._files)
        namesrv.files_kept = descriptors_kept(self._broker_config, self._files)
        self._namesrv_address = await namesrv.start()
        self._namesrv = namesrv
        try:
            broker = Broker(self._with_own_namesrv(), self._clock, self._files)
            self._broker_address = await broker.start()
            self._broker = broker
        except BaseException:
            await self.stop()
            raise

    def _with_own_namesrv(self) -> BrokerConfig:
        assert self._namesrv_address is not None
        host, port = self._namesrv_address
        own = show_address(_WILDCARDS.get(host, host), port)
        others = [name for name in self._broker_config.namesrv.split(";") if name and name != own]
        return dataclasses.replace(self._broker_config, namesrv=";".join([own, *others]))

    async def stop(self) -> None:
        """Stop the broker, then the name server; twice is fine."""
        self._stopped = True
        broker, self._broker = self._broker, None
        namesrv, self._namesrv = self._namesrv, None
        try:
            if broker is not None:
                await broker.stop()
        finally:
            if namesrv is not None:
                await namesrv.stop()

    def abandon(self) -> None:
        """Drop the broker as a kill would; the name server stays and sees its connection close."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.abandon()

    async def __aenter__(self) -> Embedded:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        state = "running" if self._broker else "stopped" if self._stopped else "new"
        return f"Embedded({state}, data={self._broker_config.data!r})"
