"""Plain POP in the simulated cluster: consumers that share queues, and their judge.

What is judged: each message is handled at least once; a message that is out is out at nobody else
until its invisible time is over; what was acknowledged with success never comes again, over kills
of the broker, too; what was not comes again from the retry topic, counted up; the committed offset
passes nothing that is neither acknowledged nor in the retry topic; each pop has a token of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from inorder.checker import Handled, HandledResult, Handling, Rules, check
from inorder.config import NetConfig
from inorder.net.connection import Connection
from tests.kit.popclient import Batch, PopClient, Popped
from tests.kit.pophistory import CLOCK_NS, Grant
from tests.kit.simcluster import BROKER_HOST, PORT
from tests.kit.simloop import Node, SimLoop
from tests.simulation.simpops import (
    GROUP,
    TOPIC,
    Popper,
    PopPlan,
    PopWorld,
    name_of,
)

RETRY_TOPIC = f"%RETRY%{GROUP}_{TOPIC}"


@dataclass(eq=False)
class Delivery:
    """A message in the hands of a consumer."""

    client: str
    body: str
    grant: Grant
    offset: int
    times: int
    taken_ns: int = 0
    """When an acknowledgement of it was answered with success; 0: never."""

    @property
    def until_ns(self) -> int:
        return self.grant.until_ns[self.offset]


@dataclass(eq=False)
class Work:
    """A message that a consumer handles."""

    popped: Popped
    delivery: Delivery
    grants: list[Grant] = field(default_factory=list)


class PlainPopper(Popper):
    """Handles the messages of a batch beside each other."""

    world: PlainWorld

    async def turn(self) -> bool:
        world, plan = self.world, self.world.plan
        sent_ns = world.now_ns()

        async def act(client: PopClient) -> Batch:
            return await client.pop(
                TOPIC, invisible_ms=plan.invisible_ms, count=plan.count, poll_ms=plan.poll_ms,
                born_ms=world.born_ms(),
            )  # fmt: skip

        batch = await self.ask(act)
        if batch is None or not batch.messages:
            if batch is not None and batch.refused:
                world.figures[f"code {batch.code}"] += 1
                world.say(f"{self.name}: code {batch.code}: {batch.remark}")
            return False
        works = world.received(self.name, batch, sent_ns)
        done = [one for one in await asyncio.gather(*map(self._handle, works)) if one is not None]
        if plan.together and done:
            await self._acknowledge(done)
        return True

    async def _handle(self, work: Work) -> Work | None:
        """Return what is to be acknowledged with the others."""
        world, plan, delivery = self.world, self.world.plan, work.delivery
        if self.draw.random() < plan.change_ratio and not await self._change(
            work, plan.invisible_ms
        ):
            return None
        start_ns = world.now_ns()
        run = [start_ns, None, None]
        world.runs.append((delivery, run))
        self.busy = True
        try:
            await asyncio.sleep(plan.handler_s * self.draw.uniform(0.2, 1.0))
        finally:
            self.busy = False
        failed = not world.calm and self.draw.random() < plan.fail_ratio
        run[1:] = world.now_ns(), HandledResult.FAILED if failed else HandledResult.DONE
        if failed:
            if self.draw.random() < 0.5:
                await self._change(work, self.draw.randint(50, 500))
            return None
        if plan.together:
            return work
        await self._acknowledge([work])
        return None

    async def _acknowledge(self, works: list[Work]) -> None:
        grants: dict[Grant, list[Work]] = {}
        for work in works:
            grants.setdefault(work.delivery.grant, []).append(work)
        for grant, ones in grants.items():
            if await self.acknowledge(grant, [one.popped.handle for one in ones]):
                for one in ones:
                    one.delivery.taken_ns = self.world.now_ns()

    async def _change(self, work: Work, invisible_ms: int) -> bool:
        """Give a message another invisible time; False if it is lost."""
        world, popped, delivery = self.world, work.popped, work.delivery
        grant, sent_ns = delivery.grant, world.now_ns()
        before_ns, new_ns = delivery.until_ns, sent_ns + invisible_ms * 1_000_000
        grant.until_ns[delivery.offset] = min(before_ns, new_ns)
        world.say(f"{self.name} gives {delivery.body} {invisible_ms} ms from now on")
        answer = await self.ask(lambda client: client.change(popped.handle, invisible_ms))
        if answer is None:
            return False  # its handle may be of no use any more
        code, changed = answer
        if changed is None:
            world.figures["changes refused"] += 1
            world.say(f"{self.name} may not: {code}")
            grant.until_ns[delivery.offset] = before_ns
            return False
        world.figures["changes"] += 1
        if changed.pop_time < popped.handle.pop_time:
            world.problems.append(f"the token fell: {popped.handle} became {changed}")
        grant.until_ns[delivery.offset] = new_ns
        work.popped = Popped(popped.record, changed, popped.times)
        return True


class PlainWorld(PopWorld):
    """A run of plain POP."""

    watch_s = 0.6

    def __init__(self, loop: SimLoop, plan: PopPlan) -> None:
        super().__init__(loop, plan)
        self.runs: list[tuple[Delivery, list[Any]]] = []
        self.deliveries: dict[str, list[Delivery]] = {}

    def make_popper(self, node: Node) -> Popper:
        return PlainPopper(self, node)

    def received(self, client: str, batch: Batch, sent_ns: int) -> list[Work]:
        """Note a batch; return its messages."""
        at_ns, works = self.now_ns(), list[Work]()
        places: dict[tuple[str, int], list[Popped]] = {}
        for one in batch.messages:
            places.setdefault((one.handle.topic, one.handle.queue_id), []).append(one)
        for (topic, queue_id), messages in places.items():
            offsets = tuple(one.handle.offset for one in messages)
            until_ns = sent_ns + batch.invisible_ms * 1_000_000
            grant = Grant(
                client, "", topic, queue_id, batch.pop_time, offsets, sent_ns, at_ns,
                dict.fromkeys(offsets, until_ns),
            )  # fmt: skip
            self.say(f"{client} has {grant}: {' '.join(one.body for one in messages)}")
            self.history.grants.append(grant)
            for one in messages:
                delivery = Delivery(client, one.body, grant, one.handle.offset, one.times)
                self._judge_delivery(delivery, retried=one.handle.retry != "0")
                self.deliveries.setdefault(one.body, []).append(delivery)
                works.append(Work(one, delivery))
        return works

    def _judge_delivery(self, delivery: Delivery, *, retried: bool) -> None:
        before = self.deliveries.get(delivery.body, [])
        what = f"{delivery.body} came with {delivery.grant}"
        if retried != (delivery.grant.topic == RETRY_TOPIC) or (before and not retried):
            self.problems.append(f"{what} after {len(before)} deliveries")
        if retried != (delivery.times > 0):
            self.problems.append(f"{what}, counted {delivery.times}")
        for one in before:
            if one.times >= delivery.times:
                self.problems.append(f"{what} counted {delivery.times} after {one.times}")
            if one.taken_ns and one.taken_ns < delivery.grant.sent_ns:
                self.problems.append(f"{what}, and was acknowledged by {one.grant}")
            early_ms = (one.until_ns - CLOCK_NS - delivery.grant.at_ns) / 1e6
            if early_ms > 0 and one.offset not in one.grant.asked:
                self.problems.append(f"{what} {early_ms:.1f} ms before {one.grant} was over")

    async def watch(self) -> None:
        """Compare the committed offsets with what was acknowledged or is in the retry topic."""
        if self.down:
            return
        broker = self.cluster.broker
        retried = {body for _, _, body, _ in self.stored(RETRY_TOPIC)}
        asked = {
            one.body for ones in self.deliveries.values() for one in ones
            if one.offset in one.grant.asked
        }  # fmt: skip
        for queue_id, offset, body, _ in self.stored(TOPIC):
            committed = broker.offsets.query(GROUP, TOPIC, queue_id)
            if offset < committed and body not in asked and body not in retried:
                self.problems.append(f"{queue_id} is committed at {committed}, past {body}")

    # The end.

    def is_done(self) -> bool:
        return not self.left()

    def left(self) -> str:
        """Name what nobody has tried to acknowledge; then wait until nothing comes any more.

        Of what was tried without an answer nobody knows: it comes again, or it was taken.
        """
        asked = {
            body
            for body, ones in self.deliveries.items()
            if any(one.offset in one.grant.asked for one in ones)
        }
        if missing := self.acked.keys() - asked:
            return " ".join(sorted(missing)[:20])
        last_ns = max((grant.at_ns for grant in self.history.grants), default=0)
        quiet_ns = self.now_ns() - last_ns
        return "" if quiet_ns > (4 * self.plan.invisible_ms + 5000) * 1_000_000 else "not quiet yet"

    async def look_again(self) -> None:
        self.cluster.kill_broker()
        await self.cluster.start_broker()
        await asyncio.sleep(3 * self.plan.invisible_ms / 1000)
        net = NetConfig(tls_mode="disabled")
        connection = await Connection.open(f"{BROKER_HOST}:{PORT}", net)
        client = PopClient(connection, GROUP)
        for _ in range(8):
            sent_ns = self.now_ns()
            batch = await client.pop(TOPIC, invisible_ms=60_000)
            if not batch.messages:
                break
            self.received("the last", batch, sent_ns)  # it finds what was acknowledged
        connection.close()
        await self.watch()

    # The judge.

    def judge(self) -> None:
        """Hold the history against what is promised."""
        self._judge_tokens()
        events = [
            Handled(
                one.client, name_of(one.grant.queue_id), one.offset, one.body, None, run[0], run[1],
                run[2],
            )
            for one, run in self.runs
        ]  # fmt: skip
        done = {event.id for event in events if event.result is HandledResult.DONE}
        lost = self.acked.keys() - done
        if lost:
            self.problems.append(f"never handled: {sorted(lost)[:20]}")
        plain = [
            event for event, (one, _) in zip(events, self.runs, strict=True)
            if one.grant.topic == TOPIC
        ]  # fmt: skip
        rules = Rules(handled_once=False, handling=Handling.CONCURRENT, complete_handled=False)
        report = check([*self.events, *plain], rules=rules)
        if not report.ok:
            self.problems.append(str(report))
        self.figures.update(
            handled=len(self.runs), retried=len(self.runs) - len(plain),
            twice=sum(1 for ones in self.deliveries.values() if len(ones) > 1),
        )  # fmt: skip

    def _judge_tokens(self) -> None:
        places: dict[tuple[str, int], list[Grant]] = {}
        for grant in self.history.grants:
            places.setdefault((grant.topic, grant.queue_id), []).append(grant)
        first: Callable[[Grant], int] = lambda grant: grant.offsets[0]  # noqa: E731
        for grants in places.values():
            for before, after in pairwise(sorted(grants, key=first)):
                if after.offsets[0] <= before.offsets[-1]:
                    self.problems.append(f"{before} and {after} overlap")
                if after.token <= before.token:
                    self.problems.append(f"{after} has no token above that of {before}")
