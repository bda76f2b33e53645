"""Consumers that pop in order, killed and frozen, and a broker that is killed: is all in order?

Processes of one group pop; others produce. At random a consumer gets SIGKILL and another one takes
its place, or it is stopped past its invisible time and goes on, or the broker gets SIGKILL and is
started again. What handlers do ends in a table of SQLite that compares the token of the pop and the
offset. In the end the log is read without our code and judged: everything acknowledged to a
producer is handled; first deliveries and effects of a queue are in order; a batch holds its queue
until it is acknowledged or its time is over, also over kills of the broker; an acknowledgement is
refused when the next batch is out, and what was acknowledged with success does not come again; no
committed offset passes a message that is not done.

    python -m tests.crash.pops --minutes 5 --seed 7
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inorder.checker import (
    Applied,
    Event,
    Granted,
    Handled,
    HandledResult,
    Report,
    Rules,
    check,
)
from tests.crash.consuming import Watch, make_topic
from tests.crash.crew import (
    GROUP,
    Crew,
    Figures,
    Member,
    command,
    start_name_server,
    start_producers,
)
from tests.crash.frontdoor import BROKER
from tests.crash.poppers import PopOrders, start_words
from tests.crash.producers import TOPIC
from tests.crash.producing import QUEUES, OurBroker, Worker, stop_all, stored
from tests.kit.pophistory import Ack, Grant, PopHistory
from tests.kit.simcluster import stream

DRAIN_S = 120
LINE_BYTES_MAX = 1000
TRIES = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how many, how often."""

    seconds: float = 300.0
    seed: int = 1
    members: int = 2
    invisible_ms: int = 2000
    handle_s: float = 0.02
    pause_s: tuple[float, float] = (0.3, 3.0)
    rate: float = 40.0
    """Messages a second of each of the producers."""
    producers: int = 4


class Ledger:
    """The store: the newest token and offset of each queue, and what was applied."""

    def __init__(self, path: Path) -> None:
        self._base = sqlite3.connect(path, isolation_level=None)
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute("CREATE TABLE queues (queue INT PRIMARY KEY, token INT, offset INT)")
        self._server: asyncio.Server
        self.effects: list[Applied] = []
        self.refused = 0

    async def start(self) -> int:
        """Serve; return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Serve no more."""
        self._server.close()
        await asyncio.sleep(0)
        self._base.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(b"ok\n" if self.apply(*json.loads(line)) else b"old\n")
        except (ConnectionError, ValueError):  # it was killed, perhaps within a line
            pass
        finally:
            writer.close()

    def apply(self, queue: int, offset: int, token: int, id_: str, key: str) -> bool:
        """Take an effect under no older token, once, in the order of offsets."""
        base = self._base
        base.execute("INSERT OR IGNORE INTO queues VALUES (?, 0, -1)", (queue,))
        taken = base.execute(
            "UPDATE queues SET token = ?, offset = ? WHERE queue = ? AND token <= ? AND offset < ?",
            (token, offset, queue, token, offset),
        ).rowcount
        if taken:
            self.effects.append(Applied(id_, key, offset, time.monotonic_ns()))
        self.refused += not taken
        return bool(taken)


class Popper(Member):
    """A consumer process that can also be made to stand still, and what it wrote down."""

    def __init__(self, folder: Path, orders: PopOrders) -> None:
        super().__init__(folder, orders.name, start_words(orders), Path(orders.events))
        self._path = Path(orders.events)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end of the block."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def lines(self) -> list[dict[str, Any]]:
        """Return what it wrote; of one that was killed the last line may be cut."""
        if not self._path.exists():
            return []
        with self._path.open() as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    @property
    def is_busy(self) -> bool:
        """Tell whether it is in the middle of a message, by the last line that it wrote."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - LINE_BYTES_MAX))
                return b'"what": "start"' in file.read().splitlines()[-1]
        except (FileNotFoundError, IndexError):
            return False


class Torment:
    """What is done to consumers and broker."""

    def __init__(self, plan: Plan, crew: Crew[Popper], broker: OurBroker) -> None:
        self._plan, self._crew, self._broker = plan, crew, broker
        self._frozen: dict[Popper, asyncio.Task[None]] = {}
        self._draw: random.Random = stream(plan.seed, "pops")
        self.events: Counter[str] = Counter()

    async def run(self, *, show: bool) -> None:
        """Do something to somebody, again and again; each kind at least once."""
        began = time.monotonic()
        kinds = ["freeze", "kill", "broker"]
        while (passed_s := time.monotonic() - began) < self._plan.seconds:
            left_s = self._plan.seconds - passed_s
            await asyncio.sleep(min(left_s, self._draw.uniform(*self._plan.pause_s)))
            missing = [kind for kind in kinds if not self.events[kind]]
            what = self._draw.choice(missing or ["freeze", "freeze", "kill", "broker"])
            await self._do(what)
            if show:
                print(f"{time.monotonic() - began:.0f} s: {what}", flush=True)
        await asyncio.gather(*self._frozen.values())

    async def _do(self, what: str) -> None:
        draw, crew = self._draw, self._crew
        if what == "broker":
            self._broker.kill()
            await asyncio.sleep(draw.uniform(0, 0.3))
            await self._broker.start()
        else:
            member = await self._somebody()
            if member is None:
                return
            if what == "freeze":
                seconds = draw.uniform(1.3, 2.5) * self._plan.invisible_ms / 1000
                self._frozen[member] = asyncio.create_task(self._freeze(member, seconds))
            else:
                crew.running.remove(member)
                member.kill()
                crew.add()
        self.events[what] += 1

    async def _freeze(self, member: Popper, seconds: float) -> None:
        """Stop it in the middle of a message, for a time and until another one has its queue."""
        for _ in range(TRIES):
            with member.frozen():
                await asyncio.sleep(0.02)
                at = member.lines()[-1]
                if at["what"] == "start":
                    await asyncio.sleep(seconds)
                    await self._overtaken(at)
                    return
            await asyncio.sleep(0.01)

    async def _overtaken(self, at: dict[str, Any]) -> None:
        for _ in range(TRIES):
            lines = (line for other in self._crew.running for line in other.lines())
            if any(
                line["what"] == "grant"
                and line["queue"] == at["queue"]
                and line["token"] > at["token"]
                for line in lines
            ):
                return
            await asyncio.sleep(0.2)

    async def _somebody(self) -> Popper | None:
        """Return somebody who is in the middle of a message, leaving one to go on beside it."""
        for _ in range(500):
            free = [one for one in self._crew.running if self._is_free(one)]
            busy = [one for one in free if one.is_busy] if len(free) > 1 else []
            if busy:
                return self._draw.choice(busy)
            await asyncio.sleep(0.005)
        return None

    def _is_free(self, member: Popper) -> bool:
        freezing = self._frozen.get(member)
        return freezing is None or freezing.done()

    def cancel(self) -> None:
        """Let all go on."""
        for freezing in self._frozen.values():
            freezing.cancel()


async def run(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Figures, list[str]]:
    """Play a plan; return the checker's verdict, figures, and what else is wrong."""
    began, figures = time.monotonic(), Figures()
    names, namesrv = await start_name_server(folder)
    broker, ledger = OurBroker(folder, "", namesrv), Ledger(folder / "ledger.sqlite")
    ledger_port = await ledger.start()

    def start(name: str) -> Popper:
        orders = PopOrders(
            f"127.0.0.1:{broker.port}", name, GROUP, TOPIC, QUEUES, plan.seed,
            str(folder / f"popped-{name}.jsonl"), ledger_port, plan.invisible_ms, plan.handle_s,
        )  # fmt: skip
        return Popper(folder, orders)

    crew = Crew(start)
    torment = Torment(plan, crew, broker)
    workers: list[Worker] = []
    try:
        await broker.start()
        await make_topic(namesrv, broker.port)
        workers += start_producers(
            folder, namesrv, producers=plan.producers, seed=plan.seed, rate=plan.rate
        )
        for _ in range(plan.members):
            crew.add()
        watch = Watch(namesrv)
        watching = asyncio.create_task(watch.run())
        await torment.run(show=show)
        told = await stop_all(workers)
        await crew.wait_done(watch.left, DRAIN_S)
        await crew.stop()
        watching.cancel()
        await asyncio.wait((watching,))
        broker.kill()
        await broker.start()
        broker.kill()
    finally:
        for worker in workers:
            worker.kill()
        torment.cancel()
        crew.kill()
        broker.kill()
        await ledger.stop()
        await names.stop()
    contents = broker.read()
    assert not contents.problems, "\n".join(contents.problems)
    history, events = read(crew.all)
    wrong = list(history.judge())
    rules = Rules(handled_once=False, complete_handled=True, acknowledged_min=30)
    report = check([*told, *stored(contents), *events, *watch.seen, *ledger.effects], rules=rules)
    figures.seconds = time.monotonic() - began
    figures.events.update(torment.events)
    figures.count(report, "acknowledged", "stored", "handled", "outlived", "repeated_effects")
    figures.counted.update(
        pops=len(history.grants), acks=len(history.acks), stale_acks_refused=history.stale,
        refused_by_the_store=ledger.refused, applied=len(ledger.effects),
    )  # fmt: skip
    return report, figures, wrong


def read(members: Iterable[Popper]) -> tuple[PopHistory, list[Event]]:
    """Return what the consumers wrote down, as history and as events."""
    history, events = PopHistory(), list[Event]()
    runs: dict[tuple[str, int, int, int], Handled] = {}
    for member in members:
        grants: dict[tuple[int, int], Grant] = {}
        for line in member.lines():
            read_line(line, member.name, history, grants, runs)
    history.grants.sort(key=lambda grant: grant.at_ns)
    for grant in history.grants:
        events.append(Granted(grant.client, name_of(grant.queue_id), grant.token, grant.at_ns))
    return history, [*events, *runs.values()]


def read_line(
    line: dict[str, Any],
    client: str,
    history: PopHistory,
    grants: dict[tuple[int, int], Grant],
    runs: dict[tuple[str, int, int, int], Handled],
) -> None:
    """Take a line of one consumer over."""
    what = line["what"]
    if what == "refused":
        return
    queue, token = line["queue"], line["token"]
    if what == "grant":
        offsets: Sequence[int] = line["offsets"]
        grant = Grant(
            client, line["attempt"], TOPIC, queue, token, tuple(offsets), line["sent"],
            line["at"], dict.fromkeys(offsets, line["until"]),
        )  # fmt: skip
        grants[queue, token] = history.add(grant)
        return
    grant, offset = grants[queue, token], line["offset"]
    if what == "asked":
        grant.asked.setdefault(offset, line["sent"])
    elif what == "acked":
        history.acks.append(Ack(grant, (offset,), line["sent"], line["at"], line["code"]))
        if line["code"] == 0:
            grant.taken.setdefault(offset, line["at"])
    elif what == "changed":
        history.changes.append(Ack(grant, (offset,), line["sent"], line["at"], line["code"]))
        grant.until_ns[offset] = max(grant.until_ns[offset], line["until"])
    else:
        end_ns = line.get("end")
        result = None
        if end_ns is not None:
            result = HandledResult.DONE if line["done"] else HandledResult.FAILED
        runs[client, queue, offset, line["start"]] = Handled(
            client, name_of(queue), offset, line["id"], line["key"], line["start"], end_ns, result,
            token,
        )  # fmt: skip


def name_of(queue_id: int) -> str:
    """Return the name of a queue in events."""
    return f"{TOPIC}/{BROKER}/{queue_id}"


async def prove(plan: Plan, folder: Path, *, show: bool = False) -> tuple[Report, Figures]:
    """Play a plan for the command line; what the checker does not know is printed and raised."""
    report, figures, wrong = await run(plan, folder, show=show)
    assert not wrong, "\n".join(wrong[:20])
    assert figures.counted["stale_acks_refused"] > 0, "nothing stale came"
    return report, figures


if __name__ == "__main__":
    command(prove, Plan, about=__doc__, minutes=5.0, rate=40.0)
