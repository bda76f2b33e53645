"""A RocketMQ client in the simulation, by raw frames: it was an owner once, and comes back late.

It is no member: it has yet to send its heartbeat. Now and then it first locks a queue that is free
and falls silent with it. Then it waits for moments in which nobody holds a queue, and commits there
what it knew long ago, as clients in Java, Go and C++ do, by request or with a pull.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from inorder.config import NetConfig
from inorder.errors import InorderError
from inorder.model import GroupQueue, TopicQueue
from inorder.net.connection import Connection
from inorder.wire.codes import LanguageCode
from inorder.wire.header import Command
from inorder.wire.requests.leases import LockBatchBody
from tests.simulation.simwatch import GROUP, TOPIC

if TYPE_CHECKING:
    from tests.kit.simcluster import SimBroker
    from tests.simulation.simworld import World

_NET: Final = NetConfig(tls_mode="disabled")
LOOKS_S: Final = 0.01
COMMITS_MAX: Final = 60
BACK_S: Final = 6.0
TIMEOUT_MS: Final = 2000


class Comeback:
    """One such client, for a while."""

    def __init__(self, world: World, draw: random.Random) -> None:
        self._world = world
        self._draw = draw
        self._locks = draw.random() < 0.4
        self.client_id = f"10.0.9.{len(world.timeline)}@7"
        self._node = world.loop.node(self.client_id.partition("@")[0])
        self._connections: dict[str, Connection] = {}

    async def run(self, while_s: float) -> None:
        """Remember how far the group is; come back when it is further, and commit that."""
        if self._locks:
            await self._lock_one()
        known: dict[TopicQueue, int] = {}
        back = self._world.loop.time() + while_s
        while self._world.loop.time() < back:
            first = {queue: offset for queue, offset in self._offsets().items() if offset >= 0}
            known = first | known
            await asyncio.sleep(10 * LOOKS_S)
        self._world.say(f"{self.client_id} is back")
        until, commits = self._world.loop.time() + BACK_S, 0
        while self._world.loop.time() < until and commits < COMMITS_MAX:
            for queue, offset in self._offsets().items():
                if queue in known and known[queue] <= offset and not self._held(queue):
                    commits += 1
                    self._world.late_commits += 1
                    await self._commit(queue, known[queue])
            await self._world.freed(LOOKS_S * self._draw.uniform(1, 5))
        for connection in self._connections.values():
            connection.close()

    def _offsets(self) -> dict[TopicQueue, int]:
        return {
            TopicQueue(TOPIC, broker.name, index): broker.broker.offsets.query(GROUP, TOPIC, index)
            for broker in self._world.cluster.brokers
            for index in range(self._world.plan.queues)
        }

    def _broker(self, queue: TopicQueue) -> SimBroker:
        return next(one for one in self._world.cluster.brokers if one.name == queue.broker)

    def _held(self, queue: TopicQueue) -> bool:
        return self._broker(queue).broker.locks.is_locked(GroupQueue.of(GROUP, queue))

    async def _lock_one(self) -> None:
        """Lock the first queue that is free, within a second."""
        for _ in range(100):
            free = [queue for queue in self._offsets() if not self._held(queue)]
            if free:
                queue = self._draw.choice(free)
                body = LockBatchBody(self.client_id, GROUP, (queue,)).encode()
                await self._say(queue, Command.request(41, {}, body, language=LanguageCode.JAVA))
                return
            await asyncio.sleep(LOOKS_S)

    async def _commit(self, queue: TopicQueue, offset: int) -> None:
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue.index),
            "commitOffset": str(offset),
        }  # fmt: skip
        match self._draw.choice(("java", "go", "cpp", "pull")):
            case "java":
                request = Command.request(15, fields, language=LanguageCode.JAVA, oneway=True)
            case "go":
                request = Command.request(15, fields, language=LanguageCode.GO)
            case "cpp":
                request = Command.request(15, fields, language=LanguageCode.CPP)
            case _:
                pull = {
                    "queueOffset": str(offset), "maxMsgNums": "1", "sysFlag": "5",
                    "suspendTimeoutMillis": "1", "subscription": "*", "subVersion": "0",
                    "expressionType": "TAG",
                }  # fmt: skip
                request = Command.request(11, fields | pull, language=LanguageCode.JAVA)
        await self._say(queue, request)

    async def _say(self, queue: TopicQueue, request: Command) -> None:
        try:
            await self._node.run(self._ask(self._broker(queue).address, request))
        except InorderError as error:
            self._world.say(f"{self.client_id} is not heard: {error}")

    async def _ask(self, address: str, request: Command) -> None:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await Connection.open(address, _NET, on_request=lambda *_: None)
            self._connections[address] = connection
        if request.is_oneway:
            connection.notify(request)
        else:
            await connection.request(request, TIMEOUT_MS)
