"""What the console asks the cluster for by itself while somebody looks: one poller a visitor.

Every two seconds while a page is open, every thirty seconds for ten minutes after that, then never.
A round asks each broker for its statistics, its leases and its parked keys, and some groups for
their lag in turn: a cluster with thousands of groups is gone through in many rounds. A broker that
does not answer is a row with its error; what was seen of it before stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from inorder.client.admin import Admin, BrokerNode, ParkedKey, QueueLock
from inorder.client.api import BrokerApi
from inorder.clock import Clock
from inorder.console.rules import BrokerRow, GroupRow, History
from inorder.errors import AccessDenied, InorderError, UsageError
from inorder.logs import get_logger
from inorder.tasks import Tasks

log = get_logger("inorder.console")

T = TypeVar("T")

FAST_S: Final = 2.0
SLOW_S: Final = 30.0
LOOKED_MS: Final = 15_000
KEEPS_MS: Final = 600_000
GROUPS_A_ROUND: Final = 20
NAMES_ROUNDS: Final = 5
FEW_NAMES: Final = 500
"""Fewer groups are listed anew in every round, more in every fifth."""
AGES_MAX: Final = 64
"""Queues of a group with work whose oldest message is read in one go."""
ASK_S: Final = 5.0


@dataclass(slots=True)
class Snapshot:
    """What was seen last."""

    at_ms: int = 0
    brokers: list[BrokerRow] = field(default_factory=list)
    group_names: list[str] = field(default_factory=list)
    groups: dict[str, GroupRow] = field(default_factory=dict)
    locks: list[QueueLock] | None = None
    """None: the brokers do not tell."""
    parked: list[ParkedKey] | None = None
    full: dict[tuple[str, str], str] = field(default_factory=dict)
    error: str = ""
    """Why the last round failed; empty: it did not."""
    denied: bool = False
    """The brokers refuse this visitor."""


async def ask_each(
    admin: Admin, call: Callable[[BrokerApi], Awaitable[T]]
) -> dict[BrokerNode, T | InorderError]:
    """Ask every master at once; one that does not answer has its error in the result."""

    async def ask(node: BrokerNode) -> T | InorderError:
        try:
            async with asyncio.timeout(ASK_S):
                return await call(await admin.cluster.api(node.address))
        except InorderError as error:
            return error
        except TimeoutError:
            return InorderError(f"no answer within {ASK_S:.0f} s")

    nodes = await admin.cluster.masters()
    answers = await asyncio.gather(*map(ask, nodes))
    return dict(zip(nodes, answers, strict=True))


async def group_row(admin: Admin, name: str, now_ms: int) -> GroupRow:
    """Return the present state of a group."""
    try:
        lags = await admin.groups.lag(name)
        if 0 < sum(1 for one in lags if one.lag) <= AGES_MAX:
            lags = await admin.groups.lag(name, ages=True)
        online = await admin.groups.consumers(name)
    except InorderError as error:
        return GroupRow(name, now_ms, 0, 0, 0, 0, (), str(error))
    members = {one.client_id for each in online.values() for one in each.connections}
    return GroupRow(
        name,
        now_ms,
        sum(one.lag for one in lags),
        min((one.waiting_since_ms for one in lags if one.waiting_since_ms), default=0),
        len(members),
        len(lags),
        tuple(sorted({one.queue.topic for one in lags})),
    )


class Watch:
    """The poller of one visitor."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._tasks = Tasks("console watch")
        self._running = False
        self._looked_ms = 0
        self._next = 0
        self._rounds = 0
        self._wake = asyncio.Event()
        self._first: asyncio.Future[None] | None = None
        self.snapshot = Snapshot()
        self.history = History()

    async def look(self) -> Snapshot:
        """Return what was seen last; the first look waits for a round."""
        self._looked_ms = self._clock.monotonic_ms()
        if not self._running:
            self._running = True
            self._first = asyncio.get_running_loop().create_future()
            self._tasks.start(self._run(), name="poll")
        else:
            self._wake.set()
        if self._first is not None:
            try:
                async with asyncio.timeout(ASK_S):
                    await asyncio.shield(self._first)
            except TimeoutError:
                self.snapshot.error = f"the cluster did not answer within {ASK_S:.0f} s"
        return self.snapshot

    async def close(self) -> None:
        """Stop polling."""
        await self._tasks.stop()
        self._running = False

    async def refresh(self) -> None:
        """Take a round now: something was changed."""
        if self._running:
            await self._round()

    async def _run(self) -> None:
        while True:
            await self._round()
            if self._first is not None and not self._first.done():
                self._first.set_result(None)
            silent_ms = self._clock.monotonic_ms() - self._looked_ms
            if silent_ms > KEEPS_MS:
                self._running, self._first = False, None
                return
            self._wake.clear()
            pause = FAST_S if silent_ms < LOOKED_MS else SLOW_S
            await asyncio.sleep(FAST_S)
            if pause > FAST_S:
                try:
                    async with asyncio.timeout(pause - FAST_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def _round(self) -> None:
        now_ms = self._clock.now_ms()
        shot = self.snapshot
        try:
            await self._see(shot, now_ms)
            shot.error, shot.denied = "", False
        except AccessDenied as error:
            shot.error, shot.denied = str(error), True
        except (InorderError, OSError) as error:
            shot.error = str(error)
        except Exception:
            # The root of the poller: pages go on with what was seen, and say that it is old.
            log.exception("a look at the cluster failed")
            shot.error = "the console failed; its log says why"
        shot.at_ms = now_ms if not shot.error else shot.at_ms

    async def _see(self, shot: Snapshot, now_ms: int) -> None:
        answers = await ask_each(self._admin, lambda api: api.runtime_info())
        shot.brokers = [
            BrokerRow(node.name, node.address, node.cluster, node.broker_id, error=str(answer))
            if isinstance(answer, InorderError)
            else BrokerRow(node.name, node.address, node.cluster, node.broker_id, answer)
            for node, answer in answers.items()
        ]
        denied = next((one for one in answers.values() if isinstance(one, AccessDenied)), None)
        if denied is not None and all(isinstance(one, AccessDenied) for one in answers.values()):
            raise denied
        await self._see_ours(shot, now_ms)
        if self._rounds % NAMES_ROUNDS == 0 or len(shot.group_names) < FEW_NAMES:
            shot.group_names = await self._admin.groups.names()
            known = set(shot.group_names)
            shot.groups = {name: row for name, row in shot.groups.items() if name in known}
        self._rounds += 1
        names, count = shot.group_names, len(shot.group_names)
        chosen = [names[(self._next + at) % count] for at in range(min(GROUPS_A_ROUND, count))]
        self._next = (self._next + len(chosen)) % max(1, count)
        for name in chosen:
            row = shot.groups[name] = await group_row(self._admin, name, now_ms)
            if not row.error:
                self.history.note_group(row)

    async def _see_ours(self, shot: Snapshot, now_ms: int) -> None:
        """Ask for leases and parked keys, which brokers of Apache RocketMQ do not have."""
        try:
            shot.locks = await self._admin.locks.list()
            self.history.note_owners(shot.locks, now_ms)
        except UsageError:
            shot.locks = None
        try:
            shot.parked = await self._admin.parked.list()
            shot.full = await self._admin.parked.full()
        except UsageError:
            shot.parked, shot.full = None, {}
