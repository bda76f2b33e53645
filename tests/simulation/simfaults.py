"""The faults of a plan: what each kind does to the cluster, and for how long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from inorder.broker.leases.rules import Lease
from inorder.errors import InorderError, ResizeUnderWay, ServiceNotAvailable
from inorder.model import GroupQueue, TopicQueue
from inorder.wire.requests.leases import LeaseFree
from tests.kit.clock import SimClock
from tests.kit.simcluster import SimBroker, stream
from tests.simulation.simcomeback import Comeback
from tests.simulation.simplan import Fault
from tests.simulation.simwatch import GROUP, TOPIC
from tests.simulation.simworld import Member, World

DAY_MS = 24 * 3600 * 1000


def _host(lease: Lease) -> str:
    return lease.client_id.partition("@")[0]


class Nobody(Exception):
    """There is no member left to do something to."""


class Faults:
    """Does what the plan says, each at its time; those that last end by themselves."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self._lasting: list[asyncio.Task[None]] = []
        self._down: set[str] = set()

    async def run(self) -> None:
        """Return when all of them are over."""
        began = self._loop.time()
        for fault in self._world.plan.faults:
            await asyncio.sleep(max(0.0, began + fault.at_s - self._loop.time()))
            self._lasting.append(asyncio.ensure_future(self._do(fault)))
        await asyncio.gather(*self._lasting)

    async def _do(self, fault: Fault) -> None:
        draw = stream(self._world.plan.seed, "fault", fault.number)
        act: Callable[[random.Random], Awaitable[None]] = _ACTS[fault.kind].__get__(self)
        self._world.say(f"FAULT {fault.number}: {fault.kind}")
        try:
            await act(draw)
        except Nobody:
            self._world.say(f"fault {fault.number} finds nobody")
        except InorderError as error:
            self._world.say(f"fault {fault.number} was refused: {error}")

    def _member(self, draw: random.Random) -> Member:
        alive = [one for one in self._world.members if one.alive]
        if not alive:
            raise Nobody
        return draw.choice(alive)

    def _while_s(self, draw: random.Random) -> float:
        """Return a time around the length of a lease, often longer."""
        return draw.choice((0.3, 0.9, 1.5, 3.0)) * self._world.plan.lease_ms / 1000

    # Members.

    async def join(self, draw: random.Random) -> None:
        await self._world.join()

    async def close(self, draw: random.Random) -> None:
        member = self._member(draw)
        if sum(one.alive for one in self._world.members) < 2:
            await self._world.join()
        if not member.alive or member.node.frozen:
            return
        member.closing = True
        self._world.say(f"{member.node.host} closes")
        await self._world.leave(member)

    async def kill(self, draw: random.Random) -> None:
        member = self._member(draw)
        self._world.say(f"{member.node.host} is killed")
        self._loop.kill(member.node, silent=draw.random() < 0.5)
        await asyncio.sleep(draw.uniform(0, 1))
        await self._world.join()

    async def freeze(self, draw: random.Random) -> None:
        member, while_s = self._member(draw), self._while_s(draw)
        if member.node.frozen:
            return
        self._world.say(f"{member.node.host} is stopped for {while_s:.2f} s")
        self._loop.freeze(member.node)
        await asyncio.sleep(while_s)
        if member.node.alive and member.node.frozen:
            self._world.say(f"{member.node.host} goes on")
            self._loop.thaw(member.node)

    # The network.

    async def partition(self, draw: random.Random) -> None:
        member, broker = self._member(draw), draw.choice(self._world.cluster.brokers)
        ends = [member.node.host, broker.host]
        draw.shuffle(ends)
        both_ways = draw.random() < 0.5
        while_s = self._while_s(draw)
        arrow = "from and to" if both_ways else "to"
        self._world.say(f"nothing passes from {ends[0]} {arrow} {ends[1]} for {while_s:.2f} s")
        self._loop.network.partition(ends[0], ends[1], both_ways=both_ways)
        await asyncio.sleep(while_s)
        self._loop.network.heal()

    async def slow(self, draw: random.Random) -> None:
        member, broker = self._member(draw), draw.choice(self._world.cluster.brokers)
        most_ms = draw.choice((50, 300, 1200))
        ends = [member.node.host, broker.host]
        draw.shuffle(ends)
        self._world.say(f"up to {most_ms} ms from {ends[0]} to {ends[1]}")
        self._loop.network.set_delay(*ends, 1, most_ms)
        await asyncio.sleep(self._while_s(draw))
        self._loop.network.set_delay(*ends, *self._loop.network.delay_ms)

    async def drop(self, draw: random.Random) -> None:
        member = self._member(draw)
        for connection in self._loop.network.connections(member.node.host):
            connection.drop()

    async def half_open(self, draw: random.Random) -> None:
        """The broker's side of a connection is reset, the client's side hears nothing."""
        member, broker = self._member(draw), draw.choice(self._world.cluster.brokers)
        for connection in self._loop.network.connections(member.node.host):
            if broker.host in connection.hosts:
                self._world.say(f"{broker.name} loses {connection.name}, alone")
                connection.stall()
                connection.ends[1].reset_now()
        await asyncio.sleep(self._while_s(draw))
        self._loop.network.heal()

    async def copies(self, draw: random.Random) -> None:
        self._world.copying = draw
        await asyncio.sleep(self._while_s(draw))
        self._world.copying = None

    # Brokers.

    async def kill_broker(self, draw: random.Random) -> None:
        await self._bounce(draw, "killed")

    async def cut_power(self, draw: random.Random) -> None:
        await self._bounce(draw, "without power")

    async def restart(self, draw: random.Random) -> None:
        """Rolling, if there are several."""
        for _ in self._world.cluster.brokers:
            await self._bounce(draw, "stopped")

    async def _bounce(self, draw: random.Random, how: str) -> None:
        broker = draw.choice(self._world.cluster.brokers)
        if broker.name in self._down:
            return
        self._down.add(broker.name)
        self._world.say(f"{broker.name} is {how}")
        lossy = how == "without power" and not self._world.plan.sync_flush
        unsynced = self._world.unsynced(broker) if lossy else None
        if how == "killed":
            broker.kill()
        elif how == "stopped":
            try:
                await broker.stop()
            except (OSError, InorderError) as error:  # the disk is full: it ends all the same
                self._world.say(f"{broker.name} could not stop cleanly: {error}")
                broker.kill()
        else:
            broker.cut_power()
        await asyncio.sleep(draw.choice((0.01, 0.3, 1.0)) * draw.random())
        ended = "cut" if how == "without power" else "killed"
        await self._world.start_broker(broker, how=ended, unsynced=unsynced)
        self._down.discard(broker.name)

    async def names(self, draw: random.Random) -> None:
        """One of the name servers, which know different brokers, dies and comes back knowing none.

        Half of the time brokers and clients then hear first what the other one does not know.
        """
        number = draw.choice((0, 1))
        if f"names {number}" in self._down:
            return
        self._down.add(f"names {number}")
        server = self._world.cluster.names[number]
        self._world.say(f"name server {number} dies")
        server.kill()
        await asyncio.sleep(self._while_s(draw))
        await server.start()
        self._world.say(f"name server {number} is back")
        self._down.discard(f"names {number}")

    async def flap(self, draw: random.Random) -> None:
        """A broker dies again and again, soon after each start; often an owner died with it."""
        broker = draw.choice(self._world.cluster.brokers)
        if broker.name in self._down:
            return
        self._down.add(broker.name)
        owners = {_host(lease) for lease in broker.broker.leases.held(GROUP).values()}
        mortal = [one for one in self._world.members if one.alive and one.node.host in owners]
        dead = draw.choice(mortal) if mortal and draw.random() < 0.7 else None
        self._world.say(f"{broker.name} flaps" + (f", {dead.node.host} is dead" if dead else ""))
        broker.kill()
        joining: asyncio.Future[None] | None = None
        if dead is not None:
            self._loop.kill(dead.node, silent=draw.random() < 0.5)
            joining = asyncio.ensure_future(self._world.join())
        ends: dict[GroupQueue, int] = {}
        for life in range(draw.randint(3, 7)):
            if life:
                await asyncio.sleep(draw.uniform(0.05, 0.95) * self._world.plan.lease_ms / 1000)
                self._world.say(f"{broker.name} dies again")
                broker.kill()
            await asyncio.sleep(draw.choice((0.0, 0.02, 0.2)))
            await self._world.start_broker(broker, how="killed")
            if dead is not None:
                self._judge_dead(broker, dead, ends)
        self._down.discard(broker.name)
        if joining is not None:
            await joining

    def _judge_dead(self, broker: SimBroker, dead: Member, ends: dict[GroupQueue, int]) -> None:
        """A dead owner's lease ends when the first start after its death has said that it does."""
        for queue, lease in broker.broker.leases.held(GROUP).items():
            if _host(lease) != dead.node.host:
                continue
            end = ends.setdefault(queue, lease.expires_ms)
            if lease.expires_ms > end:
                self._world.problems.append(
                    f"P6: {queue} is kept for {dead.node.host}, who is dead, until "
                    f"{lease.expires_ms} ms and not until {end} ms"
                )

    async def comeback(self, draw: random.Random) -> None:
        """A RocketMQ client of long ago commits what it knew then, where nobody holds the queue."""
        kinds = {fault.kind for fault in self._world.plan.faults}
        if kinds & {"reset", "power cut"}:
            return  # it may then know more than the group: to a broker that is progress
        await Comeback(self._world, draw).run(self._while_s(draw))

    async def clock(self, draw: random.Random) -> None:
        clocks: list[SimClock] = [broker.clock for broker in self._world.cluster.brokers]
        for member in self._world.members:
            assert isinstance(member.session.clock, SimClock)
            clocks.append(member.session.clock)
        draw.choice(clocks).skew_ms += draw.choice((-DAY_MS, -3000, 3000, DAY_MS))

    async def disk_full(self, draw: random.Random) -> None:
        broker = draw.choice(self._world.cluster.brokers)
        disk = broker.disk
        disk.capacity = disk.used_bytes + draw.choice((0, 4096, 16384))
        await asyncio.sleep(self._while_s(draw))
        broker.disk.capacity = disk.capacity = None

    # Operators.

    def _queue(self, draw: random.Random) -> TopicQueue:
        broker = draw.choice(self._world.cluster.brokers)
        return TopicQueue(TOPIC, broker.name, draw.randrange(self._world.plan.queues))

    async def reset(self, draw: random.Random) -> None:
        """Back: what an operator skips nobody handles."""
        queue = self._queue(draw)
        broker = next(one for one in self._world.cluster.brokers if one.name == queue.broker)
        offset = draw.randint(0, max(0, broker.broker.offsets.query(GROUP, TOPIC, queue.index)))
        self._world.say(f"{queue} is reset to {offset}")
        await self._world.admin.offsets.reset_queue(GROUP, queue, offset)

    async def take_away(self, draw: random.Random) -> None:
        queue = self._queue(draw)
        broker = next(one for one in self._world.cluster.brokers if one.name == queue.broker)
        self._world.say(f"{queue} is taken from its owner")
        api = await self._world.admin.cluster.api(broker.address)
        await api.ask(LeaseFree(GROUP, TOPIC, queue.index))

    async def resize(self, draw: random.Random) -> None:
        """The first call decides the number; if a broker is away it is finished by another."""
        queues: int | None = draw.randint(len(self._world.cluster.brokers), 6)
        self._world.say(f"the topic is resized to {queues} queues")

        async def go_on() -> None:
            nonlocal queues
            try:
                await self._world.admin.topics.resize(TOPIC, queues=queues, wait=5)
            except ResizeUnderWay:
                queues = None
                raise

        await self._world.patiently(go_on)
        self._world.say("the topic is resized")

    async def abort(self, draw: random.Random) -> None:
        """A resize is begun, given up and taken back; finished if it is too late for that."""
        queues = draw.randint(len(self._world.cluster.brokers), 6)
        topics = self._world.admin.topics
        self._world.say(f"the topic is resized to {queues} queues, and that is given up")
        resizing = asyncio.ensure_future(topics.resize(TOPIC, queues=queues, wait=0))
        await asyncio.wait([resizing], timeout=draw.choice((0.0, 0.005, 0.02, 0.2)))
        resizing.cancel()
        await asyncio.wait([resizing])
        if not resizing.cancelled():
            resizing.exception()  # seen

        async def take_back() -> None:
            try:
                found = await topics.abort_resize(TOPIC)
            except ResizeUnderWay:
                await topics.resize(TOPIC, wait=5)
                return
            if found.away:
                raise ServiceNotAvailable(f"{found.away} did not hear of it")

        await self._world.patiently(take_back)
        self._world.say("the resize is taken back, or done")

    async def redrive(self, draw: random.Random) -> None:
        """Before anything is cured: what fails again stays parked."""
        await self._world.admin.parked.redrive(GROUP)


_ACTS = {
    "join": Faults.join, "close": Faults.close, "kill": Faults.kill, "freeze": Faults.freeze,
    "partition": Faults.partition, "slow": Faults.slow, "drop": Faults.drop,
    "half-open": Faults.half_open, "copies": Faults.copies, "broker killed": Faults.kill_broker,
    "power cut": Faults.cut_power, "broker restarted": Faults.restart, "clock": Faults.clock,
    "disk full": Faults.disk_full, "reset": Faults.reset,
    "redrive": Faults.redrive, "taken away": Faults.take_away, "resize": Faults.resize,
    "abort": Faults.abort, "names": Faults.names, "flap": Faults.flap, "comeback": Faults.comeback,
}  # fmt: skip
