"""Consumers of ours that speak to a broker by hand: leases, commits, releases, pulls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from inorder.config import NetConfig
from inorder.model import Subscription
from inorder.net.connection import Connection
from inorder.wire.bodies import ClientHeartbeat, ConsumerData, decode_consumer_ids
from inorder.wire.bodies.leases import (
    CommitAnswer,
    CommitBody,
    LeaseAnswer,
    LeaseBody,
    LeaseGrant,
    LeaseRefusal,
    QueueCommit,
    QueueWish,
)
from inorder.wire.command import Command
from tests.integration.brokerkit import Rig, pull_fields

TOPIC, GROUP = "Orders", "CG"
LEASE_MS, GRACE_MS = 5000, 1000


@dataclass
class Ours:
    """A consumer of group CG; it remembers its epochs."""

    name: str
    connection: Connection
    instance: str = "0123456789abcdef"
    notices: list[Command] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    number: int = 0

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        return await self.connection.request(Command.request(code, fields, body), 5000)

    @property
    def who(self) -> dict[str, str]:
        return {"group": GROUP, "clientId": self.name, "instance": self.instance}

    async def beat(self) -> None:
        data = ConsumerData(
            GROUP, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET",
            (Subscription(TOPIC, "*", version=1),),
        )  # fmt: skip
        assert (
            await self.ask(34, body=ClientHeartbeat(self.name, consumers=(data,)).encode())
        ).code == 0

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


@asynccontextmanager
async def ours(rig: Rig, *names: str, instance: str | None = None) -> AsyncIterator[list[Ours]]:
    """Connect consumers that are members of the group."""
    made: list[Ours] = []
    for name in names:
        notices: list[Command] = []

        def note(_: Connection, command: Command, notices: list[Command] = notices) -> None:
            notices.append(command)

        connection = await Connection.open(rig.broker.address, NetConfig(), on_request=note)
        one = Ours(name, connection, instance or f"i{name}", notices)
        await one.beat()
        made.append(one)
    await rig.ask(28)  # a round trip: what was to be told is told
    for one in made:
        one.notices.clear()
    try:
        yield made
    finally:
        for one in made:
            one.connection.close()


async def send(rig: Rig, count: int, *, queue: int = 0) -> None:
    """Store messages."""
    for number in range(count):
        assert (await rig.send(b"%d" % number, e=str(queue))).code == 0
