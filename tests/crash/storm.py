"""A storm: consumers of one group join, leave, are stopped and killed, the broker is killed, now
and then again and again before a lease is over.

Producers run all the while. What handlers do ends in a table of SQLite that compares
`message.fence`. The broker writes down whom it grants what (`stormbroker.py`), so owners are judged
by its own word: who starts a handler on a queue that was another's by then is a violation. A
handler that was begun before and outlives its lease cannot be prevented: such are counted, and the
table refuses what they do too late. A process that is stopped between its look at the lease and the
start of the handler may start that one when it goes on: counted too, at most one for each stop and
worker.

    python -m tests.crash.storm --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inorder.checker import (
    Applied,
    Event,
    Granted,
    Handled,
    Handling,
    Kind,
    Report,
    Rules,
    check,
)
from tests.crash.consuming import Watch, make_topic
from tests.crash.crew import (
    GROUP,
    Crew,
    Member,
    read_events,
    start_name_server,
    start_producers,
)
from tests.crash.producers import TOPIC
from tests.crash.producing import OurBroker, Worker, stop_all, stored
from tests.crash.stormers import StormOrders, start_words
from tests.crash.verify import Contents
from tests.kit.simcluster import stream

DRAIN_S = 180
LATE_START_NS = 100_000_000
"""What a process starts so soon after it goes on was decided before it was stopped."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how many, how often."""

    seconds: float = 600.0
    seed: int = 1
    members: int = 16
    order: Literal["queue", "key"] = "key"
    lease_ms: int = 2000
    grace_ms: int = 700
    handle_s: float = 0.02
    pause_s: tuple[float, float] = (0.2, 2.5)
    rate: float = 25.0
    """Messages a second of each of the producers."""
    producers: int = 4


class Ledger:
    """The store: a table of what was applied, and one row per key with the last fence."""

    def __init__(self, path: Path) -> None:
        self._base = sqlite3.connect(path, isolation_level=None)
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("CREATE TABLE keys (key TEXT PRIMARY KEY, seq INTEGER NOT NULL)")
        self._base.execute("CREATE TABLE effects (id TEXT, key TEXT, seq INTEGER, at_ns INTEGER)")
        self._server: asyncio.Server
        self.refused = 0

    async def start(self) -> int:
        """Serve; return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Serve no more."""
        self._server.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(b"ok\n" if self.apply(*json.loads(line)) else b"old\n")
        except (ConnectionError, ValueError):  # it was killed, perhaps within a line
            pass
        finally:
            writer.close()

    def apply(self, key: str, sequence: int, id_: str) -> bool:
        """Take an effect, once, and none that is older than the key's last."""
        base = self._base
        base.execute("BEGIN")
        base.execute("INSERT OR IGNORE INTO keys VALUES (?, -1)", (key,))
        taken = base.execute(
            "UPDATE keys SET seq = ? WHERE key = ? AND seq < ?", (sequence, key, sequence)
        ).rowcount
        if taken:
            row = (id_, key, sequence, time.monotonic_ns())
            base.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", row)
        base.execute("COMMIT")
        self.refused += not taken
        return bool(taken)

    def effects(self) -> list[Applied]:
        """Return what took effect."""
        rows = self._base.execute("SELECT id, key, seq, at_ns FROM effects ORDER BY rowid")
        return [Applied(*row) for row in rows]


class StormBroker(OurBroker):
    """A broker that writes its grants down."""

    def __init__(self, folder: Path, namesrv: str, grants: Path) -> None:
        super().__init__(folder, "", namesrv, flush=("ASYNC",))
        self._words = ["tests.crash.stormbroker", str(grants), *self._words[1:]]


class Stormer(Member):
    """A consumer process that can also be made to stand still."""

    def __init__(self, folder: Path, orders: StormOrders) -> None:
        super().__init__(folder, orders.name, start_words(orders), Path(orders.events))
        self.stopped_ns: list[tuple[int, int]] = []

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        began_ns = time.monotonic_ns()
        self._process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.stopped_ns.append((began_ns, time.monotonic_ns()))
            self._process.send_signal(signal.SIGCONT)


class Storm:
    """The consumers of a run, and what is done to them."""

    def __init__(self, plan: Plan, folder: Path, namesrv: str, store_port: int) -> None:
        self.plan = plan
        self.frozen: dict[Stormer, asyncio.Task[None]] = {}
        self.events: Counter[str] = Counter()

        def start(name: str) -> Stormer:
            orders = StormOrders(
                namesrv, name, GROUP, TOPIC, plan.seed, str(folder / f"handled-{name}"),
                store_port, plan.order, plan.lease_ms, plan.grace_ms, plan.handle_s,
            )  # fmt: skip
            return Stormer(folder, orders)

        self.crew = Crew(start)

    async def rage(self, broker: OurBroker, *, show: bool) -> None:
        """Do something to somebody, again and again, for the time that the plan gives."""
        draw = stream(self.plan.seed, "storm")
        until = time.monotonic() + self.plan.seconds
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, draw.uniform(*self.plan.pause_s)))
            what = draw.choice(("kill", "leave", "freeze", "freeze", "join", "broker", "flap"))
            await self._do(what, draw, broker)
            self.events[what] += 1
            if show:
                print(f"{self.plan.seconds - (until - time.monotonic()):.0f} s: {what}", flush=True)
        await asyncio.gather(*self.frozen.values())

    async def _do(self, what: str, draw: random.Random, broker: OurBroker) -> None:
        crew = self.crew
        free = [member for member in crew.running if not self._is_frozen(member)]
        if what in ("broker", "flap"):
            for life in range(1 if what == "broker" else draw.randint(2, 4)):
                if life:
                    await asyncio.sleep(draw.uniform(0.1, 0.9) * self.plan.lease_ms / 1000)
                broker.kill()
                await asyncio.sleep(draw.uniform(0, 0.5))
                await broker.start()
        elif what == "join" or len(free) < 2:
            if len(crew.running) < self.plan.members + 2:
                crew.add()
        elif what == "freeze":
            seconds = draw.choice((0.3, 1.0, 1.5, 2.5)) * self.plan.lease_ms / 1000
            member = draw.choice(free)
            self.frozen[member] = asyncio.create_task(member.freeze(seconds))
        else:
            member = draw.choice(free)
            crew.running.remove(member)
            if what == "kill":
                member.kill()
            else:
                await member.stop()
            if len(crew.running) < self.plan.members:
                crew.add()

    def _is_frozen(self, member: Stormer) -> bool:
        freezing = self.frozen.get(member)
        return freezing is not None and not freezing.done()

    def kill(self) -> None:
        """End all, whatever they do."""
        for freezing in self.frozen.values():
            freezing.cancel()
        self.crew.kill()


async def run(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Counter[str]]:
    """Play a plan; return the verdict, and what is counted only."""
    names, namesrv = await start_name_server(folder)
    grants, ledger = folder / "grants", Ledger(folder / "ledger.sqlite")
    broker = StormBroker(folder, namesrv, grants)
    storm = Storm(plan, folder, namesrv, await ledger.start())
    workers: list[Worker] = []
    try:
        await broker.start()
        await make_topic(namesrv, broker.port)
        workers += start_producers(
            folder, namesrv, producers=plan.producers, seed=plan.seed, rate=plan.rate
        )
        for _ in range(plan.members):
            storm.crew.add()
        await storm.rage(broker, show=show)
        told = await stop_all(workers)
        watch = Watch(namesrv)
        watching = asyncio.create_task(watch.run())
        await storm.crew.wait_done(watch.left, DRAIN_S)
        watching.cancel()
        await asyncio.wait((watching,))
        await storm.crew.stop()
        broker.kill()
        await broker.start()
        broker.kill()
    finally:
        for worker in workers:
            worker.kill()
        storm.kill()
        broker.kill()
        await ledger.stop()
        await names.stop()
    contents = broker.read()
    assert not contents.problems, "\n".join(contents.problems)
    storm.events["refused_by_fence"] = ledger.refused
    events = [*told, *read_events(grants), *ledger.effects()]
    return judge(plan, events, contents, storm), storm.events


def judge(plan: Plan, told: list[Event], contents: Contents, storm: Storm) -> Report:
    """Hold what was handled and applied against what is stored."""
    grants = [event for event in told if isinstance(event, Granted)]
    runs = storm.crew.handled()
    late = late_starts(storm.crew.all, runs, grants)
    storm.events["late_starts"] = len(late)
    rules = Rules(
        handled_once=False,
        handling=Handling.KEY if plan.order == "key" else Handling.QUEUE,
        acknowledged_min=30,
    )
    handled = [run for run in runs if run not in late]
    report = check([*told, *stored(contents), *handled], rules=rules)
    for name in ("outlived", "late_effects", "repeated_effects", "grants", "applied", "handled"):
        storm.events[name] = report.counts.get(name, 0)
    return report


def late_starts(
    members: Iterable[Stormer], runs: Iterable[Handled], grants: Iterable[Granted]
) -> set[Handled]:
    """Return the runs that were begun, after another's grant, in the moment after a stop.

    Their look at the lease came before it: no more than one for each stop and queue.
    """
    thaws = {member.name: member.stopped_ns for member in members}
    newest: dict[str, list[Granted]] = {}
    for grant in sorted(grants, key=lambda grant: grant.at_ns):
        newest.setdefault(grant.queue, []).append(grant)
    found: dict[tuple[str, int, str], Handled] = {}
    for run in runs:
        for _, until_ns in thaws.get(run.client, ()):
            overtaken = any(
                grant.client != run.client
                and run.epoch is not None
                and grant.epoch > run.epoch
                and grant.at_ns <= run.start_ns
                for grant in newest.get(run.queue, ())
            )
            if overtaken and 0 <= run.start_ns - until_ns < LATE_START_NS:
                found.setdefault((run.client, until_ns, run.queue), run)
    return set(found.values())


def main() -> None:
    """Play one plan and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--order", choices=["queue", "key"], default="key")
    options = parser.parse_args()
    plan = Plan(
        seconds=options.minutes * 60, seed=options.seed, members=options.members,
        order=options.order,
    )  # fmt: skip
    print(f"seed {plan.seed}: {plan}", flush=True)
    with tempfile.TemporaryDirectory(prefix="inorder-storm-") as folder:
        report, events = asyncio.run(run(plan, Path(folder), show=True))
    print(" ".join(f"{name}={count}" for name, count in sorted(events.items())))
    print(f"violations={sum(report.by_kind.values())} of which overlaps="
          f"{report.by_kind.get(Kind.OVERLAP, 0)}")  # fmt: skip
    print(report)
    sys.exit(not report.ok)


if __name__ == "__main__":
    main()
