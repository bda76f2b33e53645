"""Servers that control access, and connections that sign by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from inorder.access.rules import Entry, User, parse_actions, parse_resource, parse_source
from inorder.broker.broker import Broker
from inorder.clock import Clock, SystemClock
from inorder.config import AccessConfig, BrokerConfig, NameServerConfig, NetConfig
from inorder.disk import Files
from inorder.nameserver.server import NameServer
from inorder.net.connection import Connection
from inorder.wire.header import Command
from inorder.wire.signature import AK, SIGNATURE, content, sign
from tests.integration.brokerkit import PATIENT_MS, SMALL
from tests.kit.disk import FakeFiles

ROOT = ("root", "a-long-root-secret")
INNER = ("server", "a-long-inner-secret")
SETTINGS = AccessConfig(
    level="enforce",
    init_user='{{"username":"{}","password":"{}"}}'.format(*ROOT),
    inner_credentials='{{"accessKey":"{}","secretKey":"{}"}}'.format(*INNER),
)
SECRETS = {
    name: f"a-long-secret-of-{name}" for name in ("alice", "bob", "carol", "dave", "nobody")
} | dict([ROOT, INNER])


def entry(resource: str, actions: str, *, allow: bool = True, sources: Iterable[str] = ()) -> Entry:
    """Return a rule: `Topic:orders`, `Pub,Sub`."""
    return Entry(
        parse_resource(resource),
        parse_actions(actions.split(",")),
        allow,
        tuple(map(parse_source, sources)),
    )


def signed(
    user: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
    *, secret: str | None = None, **more: Any,
) -> Command:  # fmt: skip
    """Return a request as a stock client signs it."""
    command = Command.request(code, dict(fields or {}), body, **more)
    command.fields[AK] = user
    key = SECRETS[user] if secret is None else secret
    command.fields[SIGNATURE] = sign(key.encode(), content(command.fields, command.body))
    return command


class Caller:
    """One connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def ask(
        self, user: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
        **more: Any,
    ) -> Command:  # fmt: skip
        """Send a signed request and return its answer."""
        return await self.connection.request(signed(user, code, fields, body, **more), PATIENT_MS)

    async def raw(self, command: Command) -> Command:
        """Send a request as it is."""
        return await self.connection.request(command, PATIENT_MS)

    async def open(self) -> Caller:
        """Return another connection to the same server."""
        return await connect(self.connection.address)


async def connect(address: str, asked: list[Command] | None = None) -> Caller:
    """Open a connection; what the server asks over it is put into the list."""
    seen: list[Command] = [] if asked is None else asked
    return Caller(
        await Connection.open(
            address, NetConfig(), connect_timeout_ms=PATIENT_MS,
            on_request=lambda _, command: seen.append(command),
        )
    )  # fmt: skip


def allow(broker: Broker, user: str, *entries: Entry, **changes: Any) -> None:
    """Create a user with rules, or add rules to one."""
    accounts = broker.accounts
    assert accounts is not None
    if user not in accounts.book.users or changes:
        made = User(user, SECRETS[user].encode(), **changes)
        accounts.put_user(made, by="test", peer="")
    if entries:
        accounts.put_entries(user, entries, by="test", peer="")


@asynccontextmanager
async def guarded(
    files: Files | None = None, *, access: AccessConfig = SETTINGS, clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Broker, Caller]]:  # fmt: skip
    """Run a broker that controls access."""
    config = replace(BrokerConfig(port=0, data="/data", store=SMALL, access=access), **settings)
    broker = Broker(config, clock or SystemClock(), FakeFiles() if files is None else files)
    await broker.start()
    caller = await connect(broker.address)
    try:
        yield broker, caller
    finally:
        caller.connection.close()
        await broker.stop()


@asynccontextmanager
async def guarded_names(
    files: Files | None = None, *, access: AccessConfig = SETTINGS, data: str = "/names"
) -> AsyncIterator[tuple[NameServer, Caller, str]]:
    """Run a name server that controls access."""
    config = NameServerConfig(port=0, data=data, access=access)
    server = NameServer(config, SystemClock(), FakeFiles() if files is None else files)
    host, port = await server.start()
    caller = await connect(f"{host}:{port}")
    try:
        yield server, caller, f"{host}:{port}"
    finally:
        caller.connection.close()
        await server.stop()


def send_of(topic: str, **changes: str) -> dict[str, str]:
    """Return a send header by letters."""
    return {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
        "h": "0", "i": "TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false", **changes,
    }  # fmt: skip


def pull_of(topic: str, group: str, **changes: str) -> dict[str, str]:
    """Return a pull header."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": "1", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", **changes,
    }  # fmt: skip


def long_names(fields: dict[str, str]) -> dict[str, str]:
    """Return a send header of code 10."""
    names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
        "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
        "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
    }  # fmt: skip
    return {names[name]: value for name, value in fields.items()}


def stored(broker: Broker) -> dict[tuple[str, int], int]:
    """Return how many messages each queue has."""
    return {
        (topic.name, queue.queue_id): queue.next_offset
        for topic in broker.topics
        for queue in broker.store.queues_of(topic.name)
        if queue.next_offset
    }


async def until(condition: Any) -> None:
    """Wait until something has happened."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is watched has no event
            await asyncio.sleep(0.01)
