"""A broker alone (no name server) on a disk in memory, and a connection to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from inorder.broker.broker import Broker
from inorder.clock import Clock, SystemClock
from inorder.config import BrokerConfig, NetConfig, StoreConfig
from inorder.disk import Files
from inorder.net.connection import Connection
from inorder.wire.header import Command
from tests.kit.disk import FakeFiles

SMALL = StoreConfig(
    segment_bytes=1 << 20, queue_file_bytes=2000, index_slots=500, index_entries=2000,
    queue_write_interval_ms=5, flush_interval_ms=20,
)  # fmt: skip

PATIENT_MS = 30_000
"""For connections and answers on a busy machine."""


@dataclass
class Rig:
    """A running broker and one client connection."""

    broker: Broker
    connection: Connection
    notices: list[Command]

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", *,
        timeout_ms: int = PATIENT_MS, serializer: int = 0,
    ) -> Command:  # fmt: skip
        """Send a request and return its answer."""
        return await self.connection.request(
            Command.request(code, fields, body, serializer=serializer), timeout_ms
        )

    async def send(self, body: bytes, **changes: str) -> Command:
        """Send a message with code 310."""
        return await self.ask(310, send_fields(**changes), body)

    async def pull(self, **changes: str) -> Command:
        """Pull with code 11 and a subscription in the request."""
        return await self.ask(11, pull_fields(**changes))


def send_fields(**changes: str) -> dict[str, str]:
    """Return a send header by letters."""
    return {
        "a": "PG", "b": "Orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
        "h": "0", "i": "TAGS\x01TagA\x02UNIQ_KEY\x01AB12\x02", "j": "0", "k": "false", "m": "false",
        **changes,
    }  # fmt: skip


def pull_fields(**changes: str) -> dict[str, str]:
    """Return a pull header."""
    return {
        "consumerGroup": "CG", "topic": "Orders", "queueId": "1", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "20000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", **changes,
    }  # fmt: skip


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something has happened."""
    while not condition():  # noqa: ASYNC110 - what is watched has no event to wait for
        await asyncio.sleep(0)


@asynccontextmanager
async def running(
    files: Files | None = None, *, store: StoreConfig = SMALL, stop: bool = True,
    clock: Clock | None = None, **settings: object,
) -> AsyncIterator[Rig]:  # fmt: skip
    """Start a broker on a disk; stop it cleanly at the end, or abandon it."""
    config = replace(BrokerConfig(port=0, data="/data", store=store), **settings)  # type: ignore[arg-type]
    broker = Broker(config, clock or SystemClock(), files if files is not None else FakeFiles())
    await broker.start()
    notices: list[Command] = []
    connection = await Connection.open(
        broker.address, NetConfig(), connect_timeout_ms=PATIENT_MS,
        on_request=lambda _, command: notices.append(command),
    )  # fmt: skip
    try:
        yield Rig(broker, connection, notices)
    finally:
        connection.close()
        if stop:
            await broker.stop()
        else:
            broker.abandon()
