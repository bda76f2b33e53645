"""Orderly POP in the simulated cluster: consumers that handle batches in order, and their judge.

A consumer counts the invisible time of a batch from the sending of its pop, and begins no message
after that. It ends what it has begun, writes to a store that compares tokens, and acknowledges,
however late: the broker must refuse what is stale. A consumer of ours with `order="queue"` may take
queues over in between, an operator may reset them or resize the topic.

What is judged: first deliveries and effects are in order, without a gap; nothing is lost; a batch
holds its queue until all of it is acknowledged or its invisible time is over, over kills of the
broker, too; no message is acknowledged under two tokens, and none under an old one; what was
acknowledged does not come again; tokens grow; the committed offset passes nothing that is not done.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from inorder.broker.broker import Broker
from inorder.checker import (
    Applied,
    Committed,
    Granted,
    Handled,
    HandledResult,
    Handling,
    Rules,
    check,
)
from inorder.client.api import BrokerApi
from inorder.client.consume.consumer import Consumer
from inorder.config import NetConfig
from inorder.errors import InorderError, NotFound
from inorder.model import ReceivedMessage, TopicQueue
from inorder.net.connection import Connection
from tests.kit.popclient import PopClient, Popped
from tests.kit.pophistory import CLOCK_NS, Ack, Grant, Reset
from tests.kit.simcluster import BROKER_HOST, PORT
from tests.kit.simloop import Node, SimLoop
from tests.simulation.simpops import (
    BROKER,
    GROUP,
    TOPIC,
    Popper,
    PopPlan,
    PopWorld,
    name_of,
)


class TokenStore:
    """What handlers write to: a token and an offset per queue, an effect only above both.

    Where a consumer of ours shares the group its epochs are other numbers than the tokens of pops;
    then offsets alone are compared.
    """

    def __init__(self, world: OrderedWorld) -> None:
        self._world = world
        self._rows: dict[int, tuple[int, int]] = {}
        self.refused = 0

    def apply(self, queue_id: int, offset: int, token: int, body: str, key: str | None) -> None:
        """UPDATE … SET token = ?, offset = ? WHERE queue = ? AND token <= ? AND offset < ?"""
        world = self._world
        known_token, known = self._rows.get(queue_id, (0, -1))
        if offset <= known or token < known_token:
            self.refused += 1
            return
        if offset != known + 1:
            world.problems.append(f"the effect of {queue_id}/{offset} came after that of {known}")
        self._rows[queue_id] = (token, offset)
        world.events.append(Applied(body, key, world.number_of(body), world.now_ns()))
        world.effects[queue_id] = offset


@dataclass(frozen=True, slots=True)
class Lease:
    """The broker gave a queue to a consumer of ours."""

    client: str
    queue_id: int
    epoch: int
    at_ns: int


@dataclass(eq=False)
class Run:
    """A handler at work, of a pop or of a consumer of ours."""

    client: str
    owner: Grant | tuple[int, int]
    """The batch; or queue and epoch of a lease."""
    queue_id: int
    offset: int
    body: str
    key: str | None
    start_ns: int
    end_ns: int | None = None
    result: HandledResult | None = None


class OrderedPopper(Popper):
    """Handles batches queue by queue, in order."""

    world: OrderedWorld

    def __init__(self, world: OrderedWorld, node: Node) -> None:
        super().__init__(world, node)
        self._open: tuple[str, int, int] | None = None
        """Attempt, queue and time of a pop of which nobody knows what became."""

    async def turn(self) -> bool:
        world, plan = self.world, self.world.plan
        if self._open is None or world.now_ns() - self._open[2] > plan.invisible_ms * 300_000:
            self.attempts += 1
            queue_id = self.draw.choice((-1, self.draw.randrange(world.queues_max)))
            self._open = f"{self.name}-{self.attempts}", queue_id, world.now_ns()
        attempt, queue_id, sent_ns = self._open
        grants = await self._pop(attempt, queue_id, sent_ns)
        if grants is None:
            return False
        if grants and queue_id >= 0 and self.draw.random() < plan.repeat_ratio:
            world.say(f"{self.name} tries {attempt} again")
            again = await self._pop(attempt, queue_id, sent_ns)
            if again is None:
                return False
            world.compare_attempts(grants, again)
            grants = again
        self._open = None
        await asyncio.gather(*(self._handle(*one) for one in grants))
        return bool(grants)

    async def _pop(
        self, attempt: str, queue_id: int, sent_ns: int
    ) -> list[tuple[Grant, list[Popped]]] | None:
        """Return what each queue gave; None: nobody knows."""
        world, plan = self.world, self.world.plan

        async def act(client: PopClient) -> Any:
            return await client.pop(
                TOPIC, invisible_ms=plan.invisible_ms, queue_id=queue_id, count=plan.count,
                poll_ms=plan.poll_ms, born_ms=world.born_ms(), order=True, attempt=attempt,
            )  # fmt: skip

        batch = await self.ask(act)
        if batch is None:
            return None
        if batch.refused:
            world.figures[f"code {batch.code}"] += 1
            world.say(f"{self.name}: code {batch.code}: {batch.remark}")
            return []
        at_ns, queues = world.now_ns(), dict[int, list[Popped]]()
        for one in batch.messages:
            queues.setdefault(one.handle.queue_id, []).append(one)
        if at_ns >= sent_ns + plan.invisible_ms * 1_000_000:
            world.say(f"{self.name} got an answer too late, and drops it")
            world.figures["late answers"] += 1
            return []
        found = []
        for queue, messages in queues.items():
            offsets = tuple(one.handle.offset for one in messages)
            until_ns = sent_ns + batch.invisible_ms * 1_000_000
            grant = Grant(
                self.name, attempt, TOPIC, queue, batch.pop_time, offsets, sent_ns, at_ns,
                dict.fromkeys(offsets, until_ns),
            )  # fmt: skip
            found.append((world.granted(grant), messages))
        return found

    async def _handle(self, grant: Grant, messages: list[Popped]) -> None:
        done: list[Popped] = []
        await self._handle_all(grant, list(messages), done)
        if done:
            await self.acknowledge(grant, [one.handle for one in done])

    async def _handle_all(self, grant: Grant, rest: list[Popped], done: list[Popped]) -> None:
        """Handle messages as long as the batch may go on; note in `done` what to acknowledge."""
        plan = self.world.plan
        while rest:
            if self.draw.random() < plan.change_ratio:
                rest = await self._change(grant, rest, plan.invisible_ms)
            if not rest or not self._may_begin(grant, rest):
                return
            if not await self._handle_one(grant, rest[0]):
                if self.draw.random() < 0.5:
                    await self._change(grant, rest, self.draw.randint(1, 200))
                return
            one = rest.pop(0)
            if plan.together:
                done.append(one)
            elif not await self.acknowledge(grant, [one.handle]):
                return

    def _may_begin(self, grant: Grant, rest: list[Popped]) -> bool:
        """Compare the clock with the earliest end of what is left of the batch."""
        until_ns = min(grant.until_ns[one.handle.offset] for one in rest)
        if self.world.now_ns() < until_ns:
            return True
        self.world.say(f"{self.name} leaves {grant}")
        return False

    async def _handle_one(self, grant: Grant, one: Popped) -> bool:
        world, handle = self.world, one.handle
        key = one.properties.get("__SHARDINGKEY")
        run = Run(
            self.name, grant, handle.queue_id, handle.offset, one.body, key, world.now_ns()
        )  # fmt: skip
        world.runs.append(run)
        world.say(f"{self.name} starts {handle.queue_id}/{handle.offset} ({one.body})")
        self.busy = True
        try:
            await asyncio.sleep(world.plan.handler_s * self.draw.uniform(0.2, 1.0))
        finally:
            self.busy = False
        if not world.calm and self.draw.random() < world.plan.fail_ratio:
            run.end_ns, run.result = world.now_ns(), HandledResult.FAILED
            return False
        token = grant.token if not world.plan.has("takeover") else 0
        world.store.apply(handle.queue_id, handle.offset, token, one.body, key)
        run.end_ns, run.result = world.now_ns(), HandledResult.DONE
        world.done.setdefault(handle.queue_id, set()).add(handle.offset)
        return True

    async def _change(self, grant: Grant, rest: list[Popped], invisible_ms: int) -> list[Popped]:
        """Give all that is left of a batch another invisible time; nothing is left if it is lost.

        What was not answered may have the time of before, or the new one.
        """
        world, kept = self.world, list[Popped]()
        world.say(f"{self.name} gives {grant} {invisible_ms} ms from now on")
        for one in rest:
            handle, sent_ns = one.handle, world.now_ns()
            before_ns, new_ns = grant.until_ns[handle.offset], sent_ns + invisible_ms * 1_000_000
            grant.until_ns[handle.offset] = min(before_ns, new_ns)
            answer = await self.ask(
                lambda client, handle=handle: client.change(handle, invisible_ms)
            )
            if answer is None:
                kept.append(one)
                continue
            code, changed = answer
            world.history.changes.append(
                Ack(grant, (handle.offset,), sent_ns, world.now_ns(), code)
            )
            world.figures["changes"] += code == 0
            if changed is None:
                world.figures["changes refused"] += 1
                grant.until_ns[handle.offset] = before_ns
                return []
            if changed.pop_time != grant.token:
                world.problems.append(f"{grant} has another token after a change: {changed}")
            grant.until_ns[handle.offset] = new_ns
            kept.append(Popped(one.record, changed, one.times))
        return kept


class OrderedWorld(PopWorld):
    """A run of orderly POP."""

    def __init__(self, loop: SimLoop, plan: PopPlan) -> None:
        super().__init__(loop, plan)
        self.store = TokenStore(self)
        self.runs: list[Run] = []
        self.effects: dict[int, int] = {}
        self.done: dict[int, set[int]] = {}
        """Offsets that a handler is done with, by queue."""
        self.leases: list[Lease] = []
        self.commits: list[Committed] = []
        self._last: dict[int, int] = {}
        self._observer: BrokerApi | None = None
        self.cluster.brokers[0].on_made = self._watch_leases

    def make_popper(self, node: Node) -> Popper:
        return OrderedPopper(self, node)

    # Notes.

    def granted(self, grant: Grant) -> Grant:
        """Note a batch; an attempt that is tried again has the batch of before."""
        self.say(f"{grant.client} has {grant}")
        return self.history.add(grant)

    def compare_attempts(
        self,
        first: list[tuple[Grant, list[Popped]]],
        again: list[tuple[Grant, list[Popped]]],
    ) -> None:
        """Nobody acknowledged anything in between: the same attempt is the same batch."""
        self.figures["same attempts"] += 1
        before = {grant.queue_id: grant.offsets for grant, _ in first}
        after = {grant.queue_id: grant.offsets for grant, _ in again}
        sent_ns = first[0][0].sent_ns
        if before == after:
            return
        if not after and self.now_ns() >= sent_ns + self.plan.invisible_ms * 1_000_000:
            return  # an answer that came too late
        self.problems.append(f"the same attempt got {before}, then {after}")

    def _watch_leases(self, broker: Broker) -> None:
        service: Any = broker.lease_service
        lease = service.lease

        def noted(group: str, owner: Any, terms: Any, wishes: Any, connection: Any) -> Any:
            answer = lease(group, owner, terms, wishes, connection)
            for grant in answer.granted:
                if (group, grant.topic) == (GROUP, TOPIC) and grant.fresh:
                    client = owner.client_id.partition("@")[0]
                    self.say(f"{client} was granted {grant.queue} epoch {grant.epoch:x}")
                    one = Lease(client, grant.queue, grant.epoch, self.now_ns())
                    self.leases.append(one)
            return answer

        service.lease = noted

    async def watch(self) -> None:
        """Ask for the committed offsets, as any client may."""
        if self._observer is None or self._observer.connection.closed:  # type: ignore[attr-defined]
            net = NetConfig(tls_mode="disabled")
            connection = await Connection.open(
                f"{BROKER_HOST}:{PORT}", net, connect_timeout_ms=500
            )  # fmt: skip
            self._observer = BrokerApi(connection, timeout_ms=500)
        for queue_id in range(self.queues_max):
            queue = TopicQueue(TOPIC, BROKER, queue_id)
            with contextlib.suppress(NotFound):  # a queue that there is not, or not yet
                self._note_offset(queue_id, await self._observer.query_offset(GROUP, queue))

    def _note_offset(self, queue_id: int, offset: int) -> None:
        last = self._last.get(queue_id)
        if offset < 0 or offset == last:
            return
        self._last[queue_id] = offset
        name = name_of(queue_id)
        if last is not None and offset < last:
            wanted = [one for one in self.history.resets if one.queue_id == queue_id]
            if any(one.target <= offset for one in wanted):
                target = max(one.target for one in wanted if one.target <= offset)
                self.commits.append(Committed("an operator", name, target, self.now_ns(), True))
        self.say(f"{queue_id} is committed at {offset}")
        self.commits.append(Committed("the group", name, offset, self.now_ns()))

    # Faults.

    def more_faults(self) -> dict[str, Callable[[random.Random], Awaitable[None]]]:
        return {"reset": self._reset, "resize": self._resize, "takeover": self._take_over}

    async def _reset(self, draw: random.Random) -> None:
        """Back: what an operator skips nobody handles. While a batch is out, if there is one."""
        await self._somebody(draw)
        queue_id = draw.randrange(self.plan.queues)
        position = self.position(queue_id)
        target = draw.randint(0, max(0, self._last.get(queue_id, 0)))
        reset = Reset(queue_id, target, self.now_ns(), position)
        self.history.resets.append(reset)
        self.say(f"{queue_id} is reset to {reset.target} of {position}")
        try:
            await self.admin.offsets.reset_queue(
                GROUP, TopicQueue(TOPIC, BROKER, queue_id), reset.target
            )
        except InorderError as error:
            self.say(f"the reset was not answered: {error}")
            return
        reset.answered = True
        self.say("the reset was answered")

    def position(self, queue_id: int) -> int:
        """Return behind the last message of a queue that was handed out."""
        ends = [run.offset + 1 for run in self.runs if run.queue_id == queue_id]
        return max(ends, default=0)

    async def _resize(self, draw: random.Random) -> None:
        queues = draw.randint(1, self.queues_max)
        self.say(f"the topic is resized to {queues} queues")
        await self.patiently(lambda: self.admin.topics.resize(TOPIC, queues=queues, wait=5))
        self.say("the topic is resized")

    async def _take_over(self, draw: random.Random) -> None:
        """A consumer of ours, beside those that pop or instead of them, for a while."""
        self.paused = self.paused or draw.random() < 0.5
        node, session = await self.cluster.client(self.client_config)
        consumer = Consumer(session, group=GROUP, consume_from="first")

        async def handle(message: ReceivedMessage) -> None:
            await self._handle(node.host, message)

        consumer.on(TOPIC, order="queue")(handle)
        self.say(f"{node.host}, a consumer of ours, joins")
        await node.run(self.patiently(consumer.start))
        await asyncio.sleep(draw.uniform(1.0, 5.0) + self.plan.invisible_ms / 1000)
        await node.run(consumer.close())
        await node.run(session.close())
        self.say(f"{node.host} has left")
        self.paused = False

    async def _handle(self, client: str, message: ReceivedMessage) -> None:
        queue_id, body, epoch = message.queue.index, message.body.decode(), message.fence.epoch
        run = Run(
            client, (queue_id, epoch or 0), queue_id, message.offset, body, message.key,
            self.now_ns(),
        )  # fmt: skip
        self.runs.append(run)
        self.say(f"{client} starts {queue_id}/{message.offset} ({body})")
        await asyncio.sleep(self.plan.handler_s / 2)
        self.store.apply(queue_id, message.offset, 0, body, message.key)
        run.end_ns, run.result = self.now_ns(), HandledResult.DONE
        self.done.setdefault(queue_id, set()).add(message.offset)
        self.figures["handled under leases"] += 1

    # The end.

    def is_done(self) -> bool:
        return not self.left()

    def left(self) -> str:
        if self.down:
            return "the broker is down"
        broker = self.cluster.broker
        for queue in broker.store.queues_of(TOPIC):
            committed = broker.offsets.query(GROUP, TOPIC, queue.queue_id)
            if max(0, committed) < queue.visible_offset:
                return f"{queue.queue_id} is at {committed} of {queue.visible_offset}"
        last = {one.queue_id: one for one in self.history.resets}.values()
        waiting = [one for one in last if one.answered and not self._is_replayed(one)]
        return f"a reset of {waiting[0].queue_id} to {waiting[0].target}" if waiting else ""

    def _is_replayed(self, reset: Reset) -> bool:
        """Tell whether all from the target on was begun again."""
        again = {
            run.offset for run in self.runs
            if run.queue_id == reset.queue_id and run.start_ns > reset.sent_ns
        }  # fmt: skip
        return again >= set(range(reset.target, reset.position))

    async def look_again(self) -> None:
        before = {
            queue.queue_id: self.cluster.broker.offsets.query(GROUP, TOPIC, queue.queue_id)
            for queue in self.cluster.broker.store.queues_of(TOPIC)
        }
        self.cluster.kill_broker()
        await self.cluster.start_broker()
        self._observer = None
        await self.watch()
        for queue_id, offset in before.items():
            if (now := self.cluster.broker.offsets.query(GROUP, TOPIC, queue_id)) != offset:
                self.problems.append(f"after a kill {queue_id} is at {now} and not at {offset}")
        net = NetConfig(tls_mode="disabled")
        connection = await Connection.open(f"{BROKER_HOST}:{PORT}", net)
        batch = await PopClient(connection, GROUP).pop(
            TOPIC, invisible_ms=1000, order=True, attempt="the last"
        )
        connection.close()
        if batch.refused or batch.messages:
            self.problems.append(f"in the end a pop was answered {batch}")

    # The judge.

    def judge(self) -> None:
        """Hold the history against what is promised."""
        for run in self.runs:
            if isinstance(run.owner, tuple) and run.end_ns is not None:
                done = self.history.elsewhere.setdefault(run.queue_id, {})
                done.setdefault(run.offset, run.end_ns)
        self.problems += self.history.judge()
        self._judge_gaps()
        self._judge_leases()
        rules = Rules(
            handled_once=False,
            handling=Handling.QUEUE,
            one_queue_per_key=not self.plan.has("resize"),
        )
        report = check([*self.events, *self.commits, *self._owners()], rules=rules)
        self.figures.update(
            handled=len(self.runs), effects=sum(map(len, self.done.values())),
            refused_effects=self.store.refused, outlived=report.counts.get("outlived", 0),
            stale=self.history.stale,
        )  # fmt: skip
        if not report.ok:
            self.problems.append(str(report))

    def _judge_gaps(self) -> None:
        """First deliveries of a queue have no gap."""
        tops: dict[int, int] = {}
        for run in self.runs:
            top = tops.get(run.queue_id, -1)
            if run.offset > top + 1:
                self.problems.append(
                    f"{run.client} started {run.queue_id}/{run.offset} after {top}"
                )
            tops[run.queue_id] = max(top, run.offset)

    def _judge_leases(self) -> None:
        """No queue is leased while a batch of it is out."""
        for lease in self.leases:
            for grant in self.history.grants:
                if grant.queue_id == lease.queue_id and grant.at_ns < lease.at_ns:
                    held_ns = grant.held_until(lease.at_ns) - CLOCK_NS
                    if lease.at_ns < held_ns:
                        self.problems.append(
                            f"{lease} came {(held_ns - lease.at_ns) / 1e6:.1f} ms before {grant} "
                            "was over"
                        )

    def _owners(self) -> list[Granted | Handled]:
        """Return grants and runs for the checker, all owners of a queue numbered in one row."""
        numbers: dict[tuple[int, str, int], int] = {}
        events: list[Granted | Handled] = []
        owners = [(one.at_ns, one) for one in (*self.history.grants, *self.leases)]
        for number, (at_ns, one) in enumerate(sorted(owners, key=lambda pair: pair[0]), 1):
            kind = "pop" if isinstance(one, Grant) else "lease"
            token = one.token if isinstance(one, Grant) else one.epoch
            place = (one.queue_id, kind, token)
            if place not in numbers:
                numbers[place] = number
                events.append(Granted(one.client, name_of(one.queue_id), number, at_ns))
        for run in self.runs:
            owner = run.owner
            place = (
                (owner.queue_id, "pop", owner.token)
                if isinstance(owner, Grant)
                else (owner[0], "lease", owner[1])
            )
            events.append(
                Handled(
                    run.client, name_of(run.queue_id), run.offset, run.body, run.key, run.start_ns,
                    run.end_ns, run.result, numbers.get(place),
                )
            )  # fmt: skip
        return events
