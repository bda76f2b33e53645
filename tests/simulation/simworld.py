"""A cluster under a plan: producers, consumers, an operator, faults; and everything they did.

The state code and the shells are the real ones; the loop, the network, the disks and the clocks are
simulated (`inorder.testing`). What handlers do ends in a store that compares fences, as the
documentation tells users to.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from inorder.broker.broker import Broker
from inorder.checker import (
    Applied,
    Committed,
    Event,
    Granted,
    Handled,
    HandledResult,
    Sent,
    SentResult,
    Stored,
    queue_name,
)
from inorder.client.admin import Admin
from inorder.client.consume.consumer import Consumer
from inorder.client.consume.rules.outcomes import Block, Park, Retry
from inorder.client.consume.rules.outcomes import Handled as BatchHandled
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, ClientConfig, ConsumerConfig, StoreConfig
from inorder.errors import AlreadyClosed, InorderError
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.properties import parse
from inorder.wire.record import decode
from tests.kit.simcluster import SimBroker, SimCluster, stream
from tests.kit.simloop import Node, SimLoop
from tests.model.traces import Happened
from tests.simulation.simlosses import Cut, may_miss
from tests.simulation.simplan import Plan
from tests.simulation.simwatch import GROUP, TOPIC, Watch

PATIENCE_S: Final = 400.0
"""Virtual seconds after the last fault in which everything must be done."""
ATTEMPTS: Final = 2
_STORE: Final = StoreConfig(
    segment_bytes=64 * 1024, queue_file_bytes=20 * 500, index_slots=50, index_entries=200
)


@dataclass(eq=False)
class Member:
    """A consumer on a node of its own."""

    node: Node
    session: Session
    consumer: Consumer
    closing: bool = False

    @property
    def alive(self) -> bool:
        """Tell whether it is to be counted on."""
        return self.node.alive and not self.closing


@dataclass(eq=False)
class Run:
    """A handler at work."""

    client: str
    message: ReceivedMessage
    start_ns: int
    end_ns: int | None = None
    result: HandledResult | None = None

    def event(self, aside: set[tuple[str, int]]) -> Handled:
        """Return what the checker gets.

        A redriven message of a key that has moved has the epoch of the key's present queue, which
        says nothing of the one that it was stored in.
        """
        message = self.message
        queue, epoch = queue_name(message.queue), message.fence.epoch
        if (queue, message.offset) in aside:
            epoch = None
        return Handled(
            self.client, queue, message.offset, message.body.decode(), message.key, self.start_ns,
            self.end_ns, self.result, epoch, message.fence.sequence,
        )  # fmt: skip


class FenceStore:
    """What the handlers write to: a number per key, an effect only above it."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.effects: list[Applied] = []
        self.refused = 0

    def apply(self, message: ReceivedMessage, now_ns: int) -> None:
        """UPDATE ... SET seq = ? WHERE key = ? AND seq < ?"""
        assert message.key is not None
        fence = message.fence.sequence
        assert fence is not None, f"{message} has no sequence"
        if self.rows.get(message.key, -1) >= fence:
            self.refused += 1
            return
        self.rows[message.key] = fence
        self.effects.append(Applied(message.body.decode(), message.key, fence, now_ns))


class World:
    """One run."""

    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.loop = loop
        self.plan = plan
        self.draw = stream(plan.seed, "world")
        self._clients = 0
        config = BrokerConfig(store=replace(_STORE, sync_flush=plan.sync_flush))
        known_to = [(0,), (0, 1)] if plan.names_differ else ()
        self.cluster = SimCluster(loop, broker=config, brokers=plan.brokers, known_to=known_to)
        self.client_config = ClientConfig(
            consumer=ConsumerConfig(
                lease_ms=plan.lease_ms,
                grace_ms=plan.grace_ms,
                suspend_ms=50,
                pull_suspend_ms=5000,
                pull_error_delay_ms=200,
                commit_interval_ms=500,
            )
        )
        self.members: list[Member] = []
        self.events: list[Event] = []
        self._told_ns = 0
        self.runs: list[Run] = []
        self.store = FenceStore()
        self.timeline: list[tuple[float, str]] = []
        self.problems: list[str] = []
        self.done: dict[str, set[int]] = {}
        """Offsets that a handler is done with, or that were set aside, by queue."""
        self.aside: list[tuple[str, int, str, int]] = []
        """What was parked, and when."""
        self.copying: random.Random | None = None
        self.acked: dict[str, float] = {}
        self.cured = False
        """What fails for good does not any more."""
        self.cuts: list[Cut] = []
        """The power cuts under async flush: what each may have taken."""
        self.traces: dict[str, list[Happened]] = {}
        """What befell each queue at its broker, for the model."""
        self.admin: Admin
        self.heard: dict[TopicQueue, tuple[int, int]] = {}
        """When a broker heard of the owner of a queue for the last time, and under which epoch."""
        self.late_commits = 0
        """Commits of RocketMQ clients that came back."""
        self._freed = asyncio.Event()

    # Notes.

    def note_freed(self) -> None:
        """Wake whoever waits for a queue that nobody holds."""
        self._freed.set()

    async def freed(self, timeout_s: float) -> None:
        """Wait for one, for a while."""
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._freed.wait()

    def now_ns(self) -> int:
        """Return the time of the loop; later each time, for what comes first came before."""
        self._told_ns = max(self._told_ns + 1, int(self.loop.time() * 1e9))
        return self._told_ns

    def say(self, text: str) -> None:
        """Note something for the timeline."""
        self.timeline.append((self.loop.time(), text))

    def granted(self, queue: TopicQueue, owner: Any, epoch: int) -> None:
        """Note the broker's word."""
        client = _host(owner.client_id)
        self.say(f"{client} was granted {queue.topic}/{queue.broker}/{queue.index} epoch {epoch:x}")
        self.events.append(Granted(client, queue_name(queue), epoch, self.now_ns()))

    def committed(
        self, queue: TopicQueue, client: str, offset: int, *, epoch: int | None = None,
        reset: bool = False, at_ns: int | None = None,
    ) -> None:  # fmt: skip
        """Note what the broker has now, or had then."""
        self.say(f"{_host(client)} committed {queue.broker}/{queue.index} {offset}")
        when_ns = self.now_ns() if at_ns is None else at_ns
        name = queue_name(queue)
        self.events.append(Committed(_host(client), name, offset, when_ns, reset, epoch))

    def parked(self, queue: TopicQueue, offset: int, key: str) -> None:
        """Note that a message was set aside, by the broker's word."""
        self.say(f"{queue.broker}/{queue.index} {offset} of key {key} was parked")
        self.done.setdefault(queue_name(queue), set()).add(offset)
        self.aside.append((queue_name(queue), offset, key, self.now_ns()))

    def finished(self, queue: TopicQueue, offsets: Iterable[int]) -> None:
        """Compare a map of finished messages with what is done."""
        early = set(offsets) - self.done.get(queue_name(queue), set())
        if early:
            self.problems.append(f"a map of {queue} holds {sorted(early)}, which are not done")

    # Life.

    async def start(self) -> None:
        """Start servers, make the topic, start consumers."""
        for broker in self.cluster.brokers:
            broker.on_made = self._watch
        await self.cluster.start()
        _, session = await self.cluster.client(self.client_config)
        self.admin = Admin(session)
        await self.patiently(lambda: self.admin.topics.create(TOPIC, queues=self.plan.queues))
        for _ in range(self.plan.members):
            await self.join()

    async def patiently(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Do something that a fault may hinder for a while."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await act()
                except AlreadyClosed:
                    return None  # by another fault
                except InorderError:
                    await asyncio.sleep(0.3)

    async def leave(self, member: Member) -> None:
        """Stop a consumer as one should; whoever is killed meanwhile never gets done."""

        async def close() -> None:
            await member.consumer.close()
            await member.session.close()

        with member.node.here():
            closing = asyncio.ensure_future(close())
        while not closing.done() and member.node.alive:
            await asyncio.wait([closing], timeout=0.5)
        if closing.done():
            closing.result()

    async def join(self) -> None:
        """Start another consumer."""
        node, session = await self._client()
        consumer = Consumer(session, group=GROUP, consume_from="first")
        policy = Park(attempts=ATTEMPTS) if self.plan.bad_keys else Block()
        on = consumer.on(
            TOPIC, order=self.plan.order, concurrency=4, batch=self.plan.batch, on_failure=policy
        )

        async def handle(message: ReceivedMessage) -> None:
            await self.handle(node.host, message)

        async def handle_list(messages: list[ReceivedMessage]) -> BatchHandled | None:
            return await self.handle_list(node.host, messages)

        on(handle if self.plan.batch == 1 else handle_list)
        member = Member(node, session, consumer)
        self.members.append(member)
        self.say(f"{node.host} joins")
        with node.here():
            starting = asyncio.ensure_future(self.patiently(consumer.start))
        while not starting.done() and node.alive:
            await asyncio.wait([starting], timeout=0.5)
        if starting.done():
            starting.result()

    async def handle_list(
        self, client: str, messages: list[ReceivedMessage]
    ) -> BatchHandled | None:
        """Handle one message after the other; say which one failed."""
        start_ns, runs = self.now_ns(), list[Run]()
        said = None
        try:
            for done, message in enumerate(messages):
                runs.append(Run(client, message, start_ns))
                try:
                    await self.handle(client, message, runs[-1])
                except Exception as error:
                    said = BatchHandled(done, error)
                    break
        finally:
            end_ns = self.now_ns()
            for run in runs:  # messages of one call share start and end
                run.end_ns = end_ns
        return said

    async def handle(self, client: str, message: ReceivedMessage, run: Run | None = None) -> None:
        """Take a while, fail now and then, write to the store."""
        run = run or Run(client, message, self.now_ns())
        self.runs.append(run)
        body = message.body.decode()
        where = f"{message.queue.broker}/{message.queue.index} {message.offset}"
        self.say(f"{client} starts {where} ({body}, key {message.key})")
        try:
            if self.plan.handler_s:
                await asyncio.sleep(self.plan.handler_s * self.draw.uniform(0.2, 1.0))
            if message.key is not None and not self.cured and self._is_bad(message.key):
                raise ValueError("a bad key")
            if self.draw.random() < self.plan.fail_ratio and not self.plan.bad_keys:
                raise Retry(after=0.05)
        except BaseException:
            run.end_ns, run.result = self.now_ns(), HandledResult.FAILED
            raise
        self.store.apply(message, self.now_ns())
        run.end_ns, run.result = self.now_ns(), HandledResult.DONE
        self.done.setdefault(queue_name(message.queue), set()).add(message.offset)
        self.say(f"{client} ended {where}")

    def _is_bad(self, key: str) -> bool:
        return int(key[1:]) < self.plan.bad_keys

    async def _client(self) -> tuple[Node, Session]:
        """Return a client; where name servers differ every other one asks the poorer one first."""
        self._clients += 1
        names = (0,) if not self.plan.names_differ else ((1, 0), (0, 1))[self._clients % 2]
        return await self.cluster.client(self.client_config, names=names)

    async def feed(self) -> None:
        """Send to all keys, without waiting for answers."""
        _, session = await self._client()
        producer = Producer(session)
        sending = []
        for number in range(self.plan.sends):
            key = f"k{self.draw.randrange(self.plan.keys)}"
            sending.append(asyncio.ensure_future(self._send(producer, number, key)))
            await asyncio.sleep(self.plan.gap_s * self.draw.uniform(0.1, 1.9))
        await asyncio.gather(*sending)
        await producer.close()
        await session.close()

    async def _send(self, producer: Producer, number: int, key: str) -> None:
        body = f"m{number}"
        try:
            receipt = await producer.send(TOPIC, body.encode(), key=key, timeout=PATIENCE_S)
        except InorderError as error:
            self.say(f"{body} has no outcome: {error}")
            self.events.append(Sent("p", key, number, body, SentResult.UNKNOWN))
            return
        self.acked[body] = self.loop.time()
        self.events.append(
            Sent("p", key, number, body, queue=queue_name(receipt.queue), offset=receipt.offset)
        )

    # Servers.

    def unsynced(self, broker: SimBroker) -> frozenset[str]:
        """Return the messages of a broker that a power cut may take now."""
        store, found = broker.broker.store, set()
        for queue in store.queues_of(TOPIC):
            for offset in range(queue.min_offset, queue.next_offset):
                entry = queue.given_entry(offset)
                if entry is not None and entry[0] + entry[1] > store.log.durable_position:
                    found.add(decode(store.log.bytes_at(entry[0], entry[1])).body.decode())
        return frozenset(found)

    async def start_broker(
        self, broker: SimBroker, *, how: str, unsynced: frozenset[str] | None = None
    ) -> None:
        """Start a broker again; what it knows then is compared with what it knew.

        `unsynced` is what it may have lost, None if it must have lost nothing.
        """
        cut = None if unsynced is None else Cut(broker.name, self.loop.time(), unsynced)
        broker.on_made = lambda made: self._watch(made, how=how, cut=cut)
        if cut is not None:
            self.cuts.append(cut)
        while True:
            try:
                await broker.start()
                break
            except (OSError, InorderError) as error:  # the disk is full: later, by hand
                self.say(f"{broker.name} did not start: {error}")
                broker.kill()
                await asyncio.sleep(0.2)
        self.say(f"{broker.name} runs again")

    def _watch(self, broker: Broker, *, how: str = "", cut: Cut | None = None) -> None:
        Watch(self, broker, how=how, cut=cut)

    # The end.

    async def finish(self) -> None:
        """End all faults, wait until everything is done, close, and look at what is stored."""
        self.copying = None
        self.loop.network.heal()
        for member in self.members:
            if member.node.frozen:
                self.loop.thaw(member.node)
        self.cured = True
        if not any(member.alive for member in self.members):
            await self.join()
        await self._drain(self._read())
        for member in self.members:
            if member.alive:
                await self.leave(member)

    async def _drain(self, stored: set[str]) -> None:
        """Wait until everything that is stored, or must be, was applied."""
        applied: set[str] = set()
        until = self.loop.time() + PATIENCE_S
        redrive_at = self.loop.time()
        while True:
            applied.update(effect.id for effect in self.store.effects[len(applied) :])
            missing = [
                id_
                for id_ in self.acked
                if id_ not in applied
                and (id_ in stored or not may_miss(id_, self.acked[id_], self.cuts))
            ]
            if not missing:
                return
            if self.loop.time() > until:
                self.problems.append(f"not done after {PATIENCE_S} s: {', '.join(missing[:9])}")
                return
            if self.plan.bad_keys and self.loop.time() >= redrive_at:
                await self.patiently(lambda: self.admin.parked.redrive(GROUP))
                redrive_at = self.loop.time() + 3.0
            await asyncio.sleep(0.25)

    def _read(self) -> set[str]:
        """Note everything that is stored, in queues that a resize took away too."""
        found: set[str] = set()
        for broker in self.cluster.brokers:
            store = broker.broker.store
            for queue in store.queues_of(TOPIC):
                name = queue_name(TopicQueue(TOPIC, broker.name, queue.queue_id))
                for offset in range(queue.min_offset, queue.visible_offset):
                    entry = queue.entry(offset)
                    assert entry is not None, f"{name} has no {offset}"
                    view = store.log.view_at(entry[0], entry[1])
                    assert view is not None, f"{name} {offset} is not in the log"
                    record = decode(view)
                    id_ = bytes(record.body).decode()
                    found.add(id_)
                    self.events.append(
                        Stored(
                            name,
                            offset,
                            id_,
                            parse(record.properties).get("__SHARDINGKEY"),
                        )
                    )
        return found


def _host(client_id: str) -> str:
    """Return the host of a client id: every client has its own."""
    return client_id.partition("@")[0]
