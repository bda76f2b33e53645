"""A cluster whose consumers pop: the plan of a seed, the load, the faults, the end of a run.

What consumers do with a batch, and by what they are judged, is in `simpopsordered.py` (orderly POP)
and `simpopsplain.py`. They are clients on the wire (`tests/kit/popclient.py`): nothing of the
broker's POP is used but its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from inorder.checker import Event, Sent, SentResult, Stored, queue_name
from inorder.client.admin import Admin
from inorder.client.send.producer import Producer
from inorder.config import BrokerConfig, ClientConfig, ConsumerConfig, NetConfig, StoreConfig
from inorder.errors import InorderError
from inorder.model import TopicQueue
from inorder.net.connection import Connection
from inorder.testing.clock import EPOCH_MS
from inorder.wire.properties import parse
from inorder.wire.record import decode
from tests.kit.popclient import BadAnswer, Handle, PopClient
from tests.kit.pophistory import Ack, Grant, PopHistory
from tests.kit.simcluster import BROKER_HOST, PORT, SimCluster, stream
from tests.kit.simloop import Node, SimLoop

TOPIC: Final = "orders"
GROUP: Final = "billing"
BROKER: Final = "broker-a"
PATIENCE_S: Final = 200.0
"""Virtual seconds after the last fault in which everything must be done."""
BUSY_S: Final = 15.0
"""How long a fault waits for somebody who is in the middle of a message."""
ALWAYS: Final = ("kill", "freeze", "broker killed")
OFTEN: Final = (
    "kill", "freeze", "broker killed", "broker killed", "broker stopped", "drop", "cut off",
)  # fmt: skip
RARE: Final = ("reset", "resize", "takeover", "clock")
"""At most one of these kinds in a run, and in half of the runs none. Only orderly POP has them."""
_STORE: Final = StoreConfig(
    segment_bytes=64 * 1024, queue_file_bytes=20 * 500, index_slots=50, index_entries=200
)
T = TypeVar("T")


@dataclass(frozen=True)
class PopPlan:
    """One run."""

    seed: int
    order: bool
    queues: int
    members: int
    sends: int
    keys: int
    gap_s: float
    handler_s: float
    invisible_ms: int
    count: int
    """Messages of one pop at most."""
    poll_ms: int
    together: bool
    """Many acknowledgements in one request."""
    heartbeats: bool
    """Whether consumers join the group; a pop alone does not ask for it."""
    fail_ratio: float
    change_ratio: float
    repeat_ratio: float
    """Of pops whose answer is thrown away: the same attempt again."""
    sync_flush: bool
    faults: tuple[tuple[float, str], ...]

    @classmethod
    def of(cls, seed: int, *, order: bool | None = None) -> PopPlan:
        """Draw the plan of a seed. Without `order`, three of four runs are in order."""
        draw = stream(seed, "pops")
        drawn = draw.random() < 0.75
        order = drawn if order is None else order
        sends, gap_s = draw.randint(40, 90), draw.choice((0.02, 0.08, 0.15))
        span_s = sends * gap_s + 2
        rare = draw.choice((*RARE, *[""] * len(RARE)))
        kinds = [*ALWAYS, *draw.sample(OFTEN, k=draw.randint(0, 3))]
        if order and rare:
            kinds += [rare] * draw.choice((1, 1, 2))
        return cls(
            seed=seed,
            order=order,
            queues=draw.randint(1, 3),
            members=draw.randint(2, 3),
            sends=sends,
            keys=draw.randint(2, 8),
            gap_s=gap_s,
            handler_s=draw.choice((0.004, 0.03, 0.1)),
            invisible_ms=draw.choice((1500, 3000)),
            count=draw.choice((1, 4, 16, 32)),
            poll_ms=draw.choice((0, 200, 450)),
            together=draw.random() < 0.4,
            heartbeats=draw.random() < 0.5,
            fail_ratio=draw.choice((0.0, 0.04)),
            change_ratio=draw.choice((0.0, 0.1)),
            repeat_ratio=draw.choice((0.0, 0.1)),
            sync_flush=draw.random() < 0.3,
            faults=tuple(sorted((draw.uniform(0.3, span_s), kind) for kind in kinds)),
        )

    def has(self, kind: str) -> bool:
        """Tell whether a kind of fault is in it."""
        return any(one == kind for _, one in self.faults)


class Popper(ABC):
    """A consumer on a node of its own."""

    def __init__(self, world: PopWorld, node: Node) -> None:
        self.world, self.node = world, node
        self.name = node.host
        self.busy = False
        """In the middle of a message."""
        self.attempts = 0
        self.draw = stream(world.plan.seed, "popper", node.host)
        self._connection: Connection | None = None
        self._client: PopClient | None = None

    @property
    def usable(self) -> bool:
        """Tell whether it is to be counted on."""
        return self.node.alive and not self.node.frozen

    async def run(self) -> None:
        """Pop until the run is over."""
        world = self.world
        try:
            while not world.closing:
                if world.paused:
                    await asyncio.sleep(0.1)
                elif not await self.turn():
                    await asyncio.sleep(self.draw.uniform(0.02, 0.2))
        except BadAnswer as error:
            world.problems.append(f"{self.name}: {error}")
        finally:
            if self._connection is not None:
                self._connection.close()

    @abstractmethod
    async def turn(self) -> bool:
        """Pop once, and handle what came; False if nothing did."""

    async def ask(self, act: Callable[[PopClient], Awaitable[T]]) -> T | None:
        """Ask the broker, over a new connection if need be; None: nobody knows what became of it.

        A connection that fails tells nothing about the request that was on it.
        """
        try:
            if self._client is None or self._connection is None or self._connection.closed:
                self._client = await self._connect()
            return await act(self._client)
        except InorderError as error:
            self.world.say(f"{self.name}: {error}")
            return None

    async def _connect(self) -> PopClient:
        address = f"{BROKER_HOST}:{PORT}"
        net = NetConfig(tls_mode="disabled")
        self._connection = await Connection.open(address, net, connect_timeout_ms=1000)
        client = PopClient(self._connection, GROUP, timeout_ms=1000)
        if self.world.plan.heartbeats:
            await client.heartbeat(f"{self.name}@1", TOPIC)
        return client

    async def acknowledge(self, grant: Grant, handles: list[Handle]) -> bool:
        """Acknowledge messages of one batch; False: it was refused, or nobody answers."""
        world, offsets = self.world, tuple(one.offset for one in handles)
        for _ in range(3):
            sent_ns = world.now_ns()
            for offset in offsets:
                grant.asked.setdefault(offset, sent_ns)
            if len(handles) == 1 and not world.plan.together:
                code = await self.ask(lambda client: client.ack(handles[0]))
            else:
                code = await self.ask(lambda client: client.ack_all(handles))
            at_ns = world.now_ns()
            world.history.acks.append(Ack(grant, offsets, sent_ns, at_ns, code))
            world.say(f"{self.name} acknowledged {offsets} of {grant}: {code}")
            if code == 0:
                for offset in offsets:
                    grant.taken.setdefault(offset, at_ns)
            if code is not None:
                return code == 0
            await asyncio.sleep(self.draw.uniform(0.05, 0.3))
        return False


class PopWorld(ABC):
    """One run."""

    watch_s = 0.15

    def __init__(self, loop: SimLoop, plan: PopPlan) -> None:
        self.loop, self.plan = loop, plan
        store = StoreConfig(
            segment_bytes=_STORE.segment_bytes, queue_file_bytes=_STORE.queue_file_bytes,
            index_slots=_STORE.index_slots, index_entries=_STORE.index_entries,
            sync_flush=plan.sync_flush,
        )  # fmt: skip
        self.cluster = SimCluster(loop, broker=BrokerConfig(store=store))
        self.client_config = ClientConfig(
            consumer=ConsumerConfig(
                lease_ms=1500, grace_ms=500, suspend_ms=50, pull_suspend_ms=2000,
                pull_error_delay_ms=200, commit_interval_ms=300,
            )
        )  # fmt: skip
        self.admin: Admin
        self.events: list[Event] = []
        self.acked: dict[str, int] = {}
        """The bodies that producers were told are stored, and their numbers."""
        self.history = PopHistory()
        self.poppers: list[Popper] = []
        self.problems: list[str] = []
        self.timeline: list[tuple[float, str]] = []
        self.figures: Counter[str] = Counter()
        self.closing = self.paused = self.calm = self.down = False
        self._tasks: dict[Popper, asyncio.Task[None]] = {}
        self._told_ns = 0
        self._numbers: dict[str, int] = {}

    # Notes.

    def now_ns(self) -> int:
        """Return the time of the loop; later each time, for what comes first came before."""
        self._told_ns = max(self._told_ns + 1, int(self.loop.time() * 1e9))
        return self._told_ns

    def say(self, text: str) -> None:
        """Note something for the timeline."""
        self.timeline.append((self.loop.time(), text))

    def born_ms(self) -> int:
        """Return the birth time of a pop. A broker whose clock jumps would find all too old."""
        return 0 if self.plan.has("clock") else EPOCH_MS + int(self.loop.time() * 1000)

    def number_of(self, body: str) -> int:
        """Return which send a message was."""
        return self._numbers[body]

    @property
    def queues_max(self) -> int:
        """Return how many queues there may ever be."""
        return 5 if self.plan.has("resize") else self.plan.queues

    # Life.

    @abstractmethod
    def make_popper(self, node: Node) -> Popper:
        """Make a consumer."""

    @abstractmethod
    async def watch(self) -> None:
        """Look at the broker once."""

    @abstractmethod
    def is_done(self) -> bool:
        """Tell whether consumers have done what there is."""

    @abstractmethod
    def judge(self) -> None:
        """Find what is wrong."""

    async def play(self) -> None:
        """Play the plan."""
        await self.cluster.start()
        _, session = await self.cluster.client(self.client_config)
        self.admin = Admin(session)
        await self.patiently(lambda: self.admin.topics.create(TOPIC, queues=self.plan.queues))
        for _ in range(self.plan.members):
            self.join()
        watching = asyncio.ensure_future(self._watch())
        feeding = asyncio.ensure_future(self._feed())
        await self._torment()
        await feeding
        await self._finish()
        watching.cancel()
        self._read()
        await self.look_again()
        self.judge()
        self.figures.update(
            pops=len(self.history.grants), acks=len(self.history.acks), sent=len(self.acked),
            refused=sum(1 for one in self.history.acks if one.code),
        )  # fmt: skip

    async def patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do something that a fault may hinder for a while."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await act()
                except InorderError as error:
                    self.say(f"again: {error}")
                    await asyncio.sleep(0.3)

    def join(self) -> None:
        """Start another consumer."""
        node = self.loop.node(f"10.0.3.{len(self.poppers) + 1}")
        popper = self.make_popper(node)
        self.poppers.append(popper)
        self.say(f"{popper.name} joins")
        with node.here():
            self._tasks[popper] = asyncio.ensure_future(popper.run())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.watch_s)
            with contextlib.suppress(InorderError):
                await self.watch()

    async def _feed(self) -> None:
        """Send to all keys, without waiting for answers."""
        draw = stream(self.plan.seed, "feed")
        _, session = await self.cluster.client(self.client_config)
        producer = Producer(session)
        sending = []
        for number in range(self.plan.sends):
            key = f"k{draw.randrange(self.plan.keys)}"
            sending.append(asyncio.ensure_future(self._send(producer, number, key)))
            await asyncio.sleep(self.plan.gap_s * draw.uniform(0.1, 1.9))
        await asyncio.gather(*sending)
        await producer.close()
        await session.close()

    async def _send(self, producer: Producer, number: int, key: str) -> None:
        body = f"m{number}"
        self._numbers[body] = number
        try:
            receipt = await producer.send(TOPIC, body.encode(), key=key, timeout=PATIENCE_S)
        except InorderError as error:
            self.say(f"{body} has no outcome: {error}")
            self.events.append(Sent("p", key, number, body, SentResult.UNKNOWN))
            return
        self.acked[body] = number
        self.events.append(
            Sent("p", key, number, body, queue=queue_name(receipt.queue), offset=receipt.offset)
        )

    # Faults.

    async def _torment(self) -> None:
        began, lasting = self.loop.time(), []
        for number, (at_s, kind) in enumerate(self.plan.faults):
            await asyncio.sleep(max(0.0, began + at_s - self.loop.time()))
            draw = stream(self.plan.seed, "pop fault", number)
            self.say(f"FAULT {kind}")
            lasting.append(asyncio.ensure_future(self._do(kind, draw)))
        await asyncio.gather(*lasting)

    async def _do(self, kind: str, draw: random.Random) -> None:
        acts: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "kill": self._kill, "freeze": self._freeze, "broker killed": self._kill_broker,
            "broker stopped": self._stop_broker, "drop": self._drop, "cut off": self._cut_off,
            "clock": self._clock, **self.more_faults(),
        }  # fmt: skip
        await acts[kind](draw)

    def more_faults(self) -> dict[str, Callable[[random.Random], Awaitable[None]]]:
        """Return the faults of one kind of POP alone."""
        return {}

    async def _somebody(self, draw: random.Random) -> Popper | None:
        """Return somebody who is in the middle of a message, where there is one within a while."""
        until = self.loop.time() + BUSY_S
        while self.loop.time() < until:
            busy = [one for one in self.poppers if one.usable and one.busy]
            if busy:
                return draw.choice(busy)
            await asyncio.sleep(0.003)
        return next((one for one in self.poppers if one.usable), None)

    async def _kill(self, draw: random.Random) -> None:
        if (popper := await self._somebody(draw)) is not None:
            self.say(f"{popper.name} is killed")
            self.loop.kill(popper.node, silent=draw.random() < 0.5)
            await asyncio.sleep(draw.uniform(0, 1))
        self.join()

    async def _freeze(self, draw: random.Random) -> None:
        popper = await self._somebody(draw)
        if popper is None:
            return
        while_s = draw.uniform(1.2, 3.0) * self.plan.invisible_ms / 1000
        self.say(f"{popper.name} is stopped for {while_s:.2f} s")
        self.loop.freeze(popper.node)
        if not any(one.usable for one in self.poppers):
            self.join()
        await asyncio.sleep(while_s)
        if popper.node.alive and popper.node.frozen:
            self.say(f"{popper.name} goes on")
            self.loop.thaw(popper.node)

    async def _drop(self, draw: random.Random) -> None:
        """Its connections end; whether what was on the way arrived nobody knows."""
        if (popper := await self._somebody(draw)) is not None:
            self.say(f"{popper.name} loses its connections")
            for connection in self.loop.network.connections(popper.node.host):
                connection.drop()

    async def _cut_off(self, draw: random.Random) -> None:
        """It goes on, and hears nothing from the broker, or is not heard, past its time."""
        if (popper := await self._somebody(draw)) is None:
            return
        ends = [popper.name, BROKER_HOST]
        draw.shuffle(ends)
        self.say(f"nothing passes from {ends[0]} to {ends[1]}")
        self.loop.network.partition(*ends, both_ways=draw.random() < 0.5)
        await asyncio.sleep(draw.uniform(0.3, 2.0) * self.plan.invisible_ms / 1000)
        self.loop.network.heal()

    async def _kill_broker(self, draw: random.Random) -> None:
        await self._bounce(draw, killed=True)

    async def _stop_broker(self, draw: random.Random) -> None:
        await self._bounce(draw, killed=False)

    async def _bounce(self, draw: random.Random, *, killed: bool) -> None:
        if self.down:
            return
        self.down = True
        self.say(f"the broker is {'killed' if killed else 'stopped'}")
        if killed:
            self.cluster.kill_broker()
        else:
            await self.cluster.brokers[0].stop()
        await asyncio.sleep(draw.choice((0.01, 0.3, 1.0)) * draw.random())
        await self.cluster.start_broker()
        self.say("the broker runs again")
        self.down = False

    async def _clock(self, draw: random.Random) -> None:
        """The broker's time of day jumps; what lasts a while lasts as long as before."""
        clock = self.cluster.brokers[0].clock
        clock.skew_ms += draw.choice((-86_400_000, -3000, 3000, 86_400_000))
        self.say(f"the broker's clock is {clock.skew_ms} ms off")

    # The end.

    async def _finish(self) -> None:
        self.calm = True
        for popper in self.poppers:
            if popper.node.alive and popper.node.frozen:
                self.loop.thaw(popper.node)
        if not any(popper.usable for popper in self.poppers):
            self.join()
        until = self.loop.time() + PATIENCE_S
        while not self.is_done():
            if self.loop.time() > until or self.problems:
                self.problems.append(f"not done after {PATIENCE_S} s: {self.left()}")
                break
            await asyncio.sleep(0.25)
        self.closing = True
        alive = [self._tasks[one] for one in self.poppers if one.node.alive]
        done, late = await asyncio.wait(alive, timeout=PATIENCE_S)
        assert not late, f"{len(late)} consumers do not end"
        for task in done:
            task.result()

    @abstractmethod
    def left(self) -> str:
        """Say what is not done."""

    @abstractmethod
    async def look_again(self) -> None:
        """Kill the broker a last time, and see that it still knows what is done."""

    def stored(self, topic: str) -> list[tuple[int, int, str, str | None]]:
        """Return queue, offset, body and key of all that the broker has of a topic."""
        store = self.cluster.broker.store
        found = []
        for queue in store.queues_of(topic):
            for offset in range(queue.min_offset, queue.visible_offset):
                entry = queue.entry(offset)
                assert entry is not None, f"{topic}/{queue.queue_id} has no {offset}"
                view = store.log.view_at(entry[0], entry[1])
                assert view is not None, f"{topic}/{queue.queue_id} {offset} is not in the log"
                record = decode(view)
                key = parse(record.properties).get("__SHARDINGKEY")
                found.append((queue.queue_id, offset, bytes(record.body).decode(), key))
        return found

    def _read(self) -> None:
        for queue_id, offset, body, key in self.stored(TOPIC):
            name = queue_name(TopicQueue(TOPIC, BROKER, queue_id))
            self.events.append(Stored(name, offset, body, key))


def story(world: PopWorld, *, lines_max: int = 500) -> str:
    """Return what is wrong, and the end of the timeline."""
    lines = [f"seed {world.plan.seed}: {world.plan}", *world.problems, "timeline:"]
    lines += [f"  {at_s:9.3f}  {text}" for at_s, text in world.timeline[-lines_max:]]
    return "\n".join(lines)


def name_of(queue_id: int) -> str:
    """Return the name of a queue in events."""
    return queue_name(TopicQueue(TOPIC, BROKER, queue_id))
