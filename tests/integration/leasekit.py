"""Consumers of both kinds that speak to a broker by hand: members of a group, leases, locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inorder.config import NetConfig
from inorder.disk import Files
from inorder.model import Subscription, TopicQueue
from inorder.net.connection import Connection
from inorder.testing.clock import FakeClock
from inorder.wire.codes import LanguageCode
from inorder.wire.header import Command
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData
from inorder.wire.requests.leases import (
    CommitAnswer,
    CommitBody,
    LeaseAnswer,
    LeaseBody,
    LeaseGrant,
    LeaseRefusal,
    LockBatchBody,
    LockedQueues,
    QueueCommit,
    QueueWish,
)
from inorder.wire.requests.nameserver import decode_consumer_ids
from tests.integration.brokerkit import PATIENT_MS, Rig, pull_fields, running

TOPIC, GROUP = "Orders", "CG"
LEASE_MS, GRACE_MS = 5000, 1000
QUEUES = tuple(TopicQueue(TOPIC, "broker-a", index) for index in range(4))


@dataclass
class Peer:
    """A consumer of group CG."""

    name: str
    connection: Connection
    notices: list[Command]
    language: int = LanguageCode.PYTHON

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        command = Command.request(code, fields, body, language=self.language)
        return await self.connection.request(command, PATIENT_MS)

    async def beat(self) -> None:
        data = ConsumerData(
            GROUP, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET",
            (Subscription(TOPIC, "*", version=1),),
        )  # fmt: skip
        assert (
            await self.ask(34, body=ClientHeartbeat(self.name, consumers=(data,)).encode())
        ).code == 0


@dataclass
class RocketMQPeer(Peer):
    """One of Apache RocketMQ's."""

    async def lock(self, *queues: TopicQueue) -> set[TopicQueue]:
        """Lock or renew; return what it owns of these."""
        answer = await self.ask(41, body=LockBatchBody(self.name, GROUP, queues).encode())
        return set(LockedQueues.decode(answer.body).queues)

    async def unlock(self, *queues: TopicQueue) -> None:
        await self.ask(42, body=LockBatchBody(self.name, GROUP, queues).encode())

    async def commit(self, offset: int, queue_id: int = 0) -> Command:
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
        return await self.ask(15, fields | {"commitOffset": str(offset)})


@dataclass
class Ours(Peer):
    """One of ours; it remembers its epochs."""

    instance: str = "0123456789abcdef"
    epochs: dict[int, int] = field(default_factory=dict)
    number: int = 0

    @property
    def who(self) -> dict[str, str]:
        return {"group": GROUP, "clientId": self.name, "instance": self.instance}

    async def members(self) -> list[str]:
        answer = await self.ask(38, {"consumerGroup": GROUP})
        return decode_consumer_ids(answer.body) if answer.code == 0 else []

    async def lease(
        self, *queues: int, epoch: int | None = None, lease_ms: int = LEASE_MS,
        grace_ms: int = GRACE_MS,
    ) -> LeaseAnswer:  # fmt: skip
        """Take queues, or renew those that it has."""
        wishes = [
            QueueWish(TOPIC, q, self.epochs.get(q, 0) if epoch is None else epoch) for q in queues
        ]
        terms = {"leaseMs": str(lease_ms), "graceMs": str(grace_ms)}
        answer = await self.ask(7120, self.who | terms, LeaseBody(wishes).encode())
        assert answer.code == 0, answer.remark
        found = LeaseAnswer.decode(answer.body)
        for grant in found.granted:
            self.epochs[grant.queue] = grant.epoch
        return found

    async def take(self, queue: int = 0) -> LeaseGrant:
        """Take a queue that must be free."""
        answer = await self.lease(queue, epoch=0)
        assert not answer.refused, answer.refused
        return answer.granted[0]

    async def refused(self, queue: int = 0, *, epoch: int | None = None) -> LeaseRefusal:
        """Ask for a queue that must not be."""
        answer = await self.lease(queue, epoch=epoch)
        assert not answer.granted, answer.granted
        return answer.refused[0]

    async def commit(
        self, offset: int, finished: str = "", *, queue: int = 0, epoch: int | None = None,
        number: int | None = None,
    ) -> bool:  # fmt: skip
        """Commit; tell whether it was taken."""
        self.number += 1
        one = QueueCommit(
            TOPIC, queue, self.epochs[queue] if epoch is None else epoch,
            self.number if number is None else number, offset, finished,
        )  # fmt: skip
        answer = await self.ask(7122, self.who, CommitBody([one]).encode())
        assert answer.code == 0, answer.remark
        found = CommitAnswer.decode(answer.body)
        assert bool(found.taken) != bool(found.lost)
        return bool(found.taken)

    async def release(
        self, offset: int = -1, finished: str = "", *, queue: int = 0, number: int | None = None,
    ) -> Command:  # fmt: skip
        self.number += 1
        return await self.ask(
            7121,
            self.who
            | {
                "topic": TOPIC, "queueId": str(queue), "epoch": str(self.epochs[queue]),
                "offset": str(offset), "finished": finished,
                "number": str(self.number if number is None else number),
            },
        )  # fmt: skip

    async def pull(self, queue: int = 0, **changes: str) -> Command:
        epoch = str(self.epochs[queue])
        return await self.ask(11, pull_fields(queueId=str(queue), epoch=epoch, **changes))


P = TypeVar("P", bound=Peer)


@asynccontextmanager
async def connected(
    rig: Rig, make: Callable[[str, Connection, list[Command]], P], *names: str
) -> AsyncIterator[list[P]]:
    """Connect members of the group that have been told of each other."""
    made: list[P] = []
    for name in names:
        notices: list[Command] = []

        def note(_: Connection, command: Command, notices: list[Command] = notices) -> None:
            notices.append(command)

        connection = await Connection.open(
            rig.broker.address, NetConfig(), connect_timeout_ms=PATIENT_MS, on_request=note
        )
        made.append(make(name, connection, notices))
        await made[-1].beat()
    await rig.ask(28)  # a round trip: what was to be told is told
    await asyncio.sleep(0)
    for one in made:
        one.notices.clear()
    try:
        yield made
    finally:
        for one in made:
            one.connection.close()


def ours(
    rig: Rig, *names: str, instance: str | None = None
) -> AbstractAsyncContextManager[list[Ours]]:
    """Connect consumers of ours."""

    def make(name: str, connection: Connection, notices: list[Command]) -> Ours:
        return Ours(name, connection, notices, instance=instance or f"i{name}")

    return connected(rig, make, *names)


def rocketmq(
    rig: Rig, *names: str, language: int = LanguageCode.JAVA
) -> AbstractAsyncContextManager[list[RocketMQPeer]]:
    """Connect consumers of Apache RocketMQ."""

    def make(name: str, connection: Connection, notices: list[Command]) -> RocketMQPeer:
        return RocketMQPeer(name, connection, notices, language)

    return connected(rig, make, *names)


@asynccontextmanager
async def group(
    *names: str, messages: int = 8, files: Files | None = None, clock: FakeClock | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Any, ...]]:  # fmt: skip
    """Run a broker whose clock stands still, with messages in queue 0 and consumers of ours.

    Gives the rig, the clock, and the consumers.
    """
    clock = FakeClock() if clock is None else clock
    async with running(files, clock=clock, **settings) as rig, ours(rig, *names) as members:
        await send(rig, messages)
        yield rig, clock, *members


async def send(rig: Rig, count: int, *, queue: int = 0) -> None:
    """Store messages."""
    for number in range(count):
        assert (await rig.send(b"%d" % number, e=str(queue))).code == 0
