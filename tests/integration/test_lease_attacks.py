"""Owners of both kinds at random on a broker that is killed, cut off from power and folded.

The clock stands still but for what the story says. Each owner believes in a queue for as long as
its last answer lets it: ours for the grace, a RocketMQ client for 30 s. No two ever believe in the
same one; and what is committed goes back only where an operator, a tool, or a power cut under async
flush takes it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random

import pytest

from inorder.model import GroupQueue
from inorder.testing.clock import FakeClock
from inorder.wire.codes import LanguageCode
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.requests.offsets import ResetOffset
from tests.integration.brokerkit import Rig, pull_fields, running
from tests.integration.leasekit import (
    GRACE_MS,
    GROUP,
    LEASE_MS,
    QUEUES,
    TOPIC,
    Ours,
    RocketMQPeer,
    ours,
    rocketmq,
    send,
)
from tests.kit.disk import FakeFiles

MESSAGES = 30
ROCKETMQ_VIEW_MS = 30_000
QUEUE_COUNT = 2
LIVES, STEPS = 12, (4, 8, 16, 40)


class Attack:
    """One story."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.clock, self.files = FakeClock(), FakeFiles()
        self.epochs: dict[str, dict[int, int]] = {}
        self.numbers: dict[str, int] = {}
        self.believes: dict[tuple[int, str], int] = {}
        self.known = dict.fromkeys(range(QUEUE_COUNT), -1)
        self.said: list[str] = []
        self.grace_ms = self.draw.choice((GRACE_MS, LEASE_MS))
        self.rig: Rig

    async def play(self) -> None:
        """Play it, life after life of the broker."""
        for life in range(LIVES):
            async with AsyncExitStack() as stack:
                self.rig = await stack.enter_async_context(
                    running(self.files, clock=self.clock, stop=False)
                )
                names = ["a", "b"]
                mine = await stack.enter_async_context(ours(self.rig, *names))
                theirs = await stack.enter_async_context(rocketmq(self.rig, "s", "t"))
                if not life:
                    for queue in range(QUEUE_COUNT):
                        await send(self.rig, MESSAGES, queue=queue)
                    await (
                        self.rig.broker.housekeeping.flush_now()
                    )  # the log is not what is lost here
                for one in mine:
                    one.epochs = self.epochs.setdefault(one.name, {})
                    one.number = self.numbers.get(one.name, 0)
                self.compare("the start")
                for _ in range(self.draw.choice(STEPS)):
                    await self.step(mine, theirs)
                self.rig.broker.lease_journal.flush()  # RocketMQ commits, within a second
                for one in mine:
                    self.numbers[one.name] = one.number
            self.end_life()

    def end_life(self) -> None:
        """Kill the broker, or cut its power."""
        if self.draw.random() < 0.8:
            self.files = self.files.kill()
            self.said.append("killed")
        else:
            self.files = self.files.crash(self.draw)
            self.known = dict.fromkeys(self.known, -1)
            self.said.append("power cut")
        self.clock.advance(self.draw.choice((0, 10, 500, 3000)))

    async def step(self, mine: list[Ours], theirs: list[RocketMQPeer]) -> None:
        """Do something, then look."""
        queue = self.draw.randrange(QUEUE_COUNT)
        act = self.draw.choice(
            ("lease", "lease", "lease", "lease", "lease", "commit", "release", "pull", "lock",
             "lock", "unlock", "stock commit", "thawed", "time", "time", "fold", "reset", "tool",
             "take away")
        )  # fmt: skip
        own, stranger = self.draw.choice(mine), self.draw.choice(theirs)
        self.said.append(
            f"{self.clock.monotonic_ms()}: {act} of {own.name}/{stranger.name} {queue}"
        )
        may_lower = False
        match act:
            case "lease":
                answer = await own.lease(queue, grace_ms=self.grace_ms)
                self.heard(own.name, queue, self.grace_ms if answer.granted else 0)
                if not answer.granted:
                    own.epochs.pop(queue, None)
            case "commit" if own.epochs.get(queue):
                taken = await own.commit(self.draw.randint(0, MESSAGES), queue=queue)
                self.heard(own.name, queue, self.grace_ms if taken else 0)
            case "release" if own.epochs.get(queue):
                self.heard(own.name, queue, 0)
                await own.release(self.draw.choice((-1, MESSAGES)), queue=queue)
                own.epochs.pop(queue)
            case "pull" if own.epochs.get(queue):
                answered = await own.pull(queue, sysFlag="0")
                self.heard(own.name, queue, self.grace_ms if answered.code == 0 else 0)
            case "lock":
                granted = await stranger.lock(QUEUES[queue])
                self.heard(stranger.name, queue, ROCKETMQ_VIEW_MS if granted else 0)
            case "unlock":
                self.heard(stranger.name, queue, 0)
                await stranger.unlock(QUEUES[queue])
            case "stock commit":
                await self.rocketmq_commit(stranger, queue)
            case "thawed":
                await self.rocketmq_commit(self.rig, queue)
            case "time":
                self.clock.advance(
                    self.draw.choice((50, 400, 900, 1500, 2500, 2500, LEASE_MS, 31_000))
                )
                await self.rig.broker.lease_expiry.check()
            case "fold":
                await self.rig.broker.lease_journal.fold()
            case "reset":
                may_lower = True
                order = ResetOffset(TOPIC, GROUP, 0, queue_id=queue, offset=self.low())
                assert (await self.rig.ask(order.CODE, encode_fields(order))).code == 0
                await self.rig.pull(queueId=str(queue), sysFlag="0", queueOffset="0")
            case "tool":
                may_lower = True
                await self.rig.ask(15, self.fields(queue))
            case "take away":
                self.rig.broker.lease_service.force_release(GroupQueue(GROUP, TOPIC, queue))
        self.compare(act, queue if may_lower else None)

    async def rocketmq_commit(self, who: RocketMQPeer | Rig, queue: int) -> None:
        """Commit anything, as Java, Go or C++ do, or with a pull."""
        fields = self.fields(queue)
        match self.draw.choice(("java", "go", "cpp", "pull")):
            case "java":
                command = Command.request(15, fields, oneway=True, language=LanguageCode.JAVA)
                who.connection.notify(command)
                await who.ask(28)
            case "pull":
                await who.ask(11, pull_fields(**fields, sysFlag="5", suspendTimeoutMillis="1"))
            case name:
                language = LanguageCode.GO if name == "go" else LanguageCode.CPP
                command = Command.request(15, fields, language=language)
                await who.connection.request(command, 5000)

    def fields(self, queue: int) -> dict[str, str]:
        return {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue),
            "commitOffset": str(self.offset()),
        }  # fmt: skip

    def offset(self) -> int:
        return self.draw.randint(0, MESSAGES + 3) if self.draw.random() < 0.2 else self.low()

    def low(self) -> int:
        return self.draw.randint(0, MESSAGES // 2)

    def heard(self, name: str, queue: int, trust_ms: int) -> None:
        """Note for how long somebody believes in a queue now."""
        self.believes[queue, name] = self.clock.monotonic_ms() + trust_ms if trust_ms else 0

    def compare(self, what: str, lowered: int | None = None) -> None:
        """Hold what is believed and stored against the contract."""
        now_ms, ordered = self.clock.monotonic_ms(), self.rig.broker.leases.is_ordered(GROUP, TOPIC)
        for queue, before in self.known.items():
            believers = [
                name
                for (place, name), until_ms in self.believes.items()
                if place == queue and until_ms > now_ms
            ]
            assert len(believers) < 2, f"{believers} both believe in {queue}: {self.said}"
            offset = self.rig.broker.offsets.query(GROUP, TOPIC, queue)
            assert offset <= MESSAGES, f"{offset} is beyond the end: {self.said}"
            if queue != lowered and ordered:
                assert offset >= before, f"{what} took {queue} from {before} back: {self.said}"
            self.known[queue] = offset


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(12), 44, 95])
def test_nobody_believes_beside_another_and_nothing_goes_back(seed: int) -> None:
    """Whatever owners of both kinds, operators, tools and the machine do."""
    asyncio.run(Attack(seed).play())
