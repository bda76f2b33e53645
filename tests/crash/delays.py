"""Delayed messages of a real broker process, on time and exactly once, over kills.

A million messages wait all the time (at a level of an hour). Beside them a million are sent at a
steady rate over eighteen levels of 1 to 60 s, so that as many fall due every second. Now and then
the broker is killed with SIGKILL and started again. In the end the log is read: each message that
waited was delivered exactly once (none was lost, none came twice), none before its time, and those
that fell due while the broker was up came on time. Exits with 1 if a promise is broken.

    python -m tests.crash.delays --messages 1000000 --rate 5000 --standing 1000000 --kills 20
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from inorder.client.api import BrokerApi
from inorder.clock import SystemClock
from inorder.config import NetConfig, StoreConfig
from inorder.disk import OsFiles
from inorder.errors import InorderError
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.store.scan import LogScan
from inorder.store.store import Store
from inorder.wire.codes import RequestCode
from inorder.wire.header import Command
from inorder.wire.properties import get
from inorder.wire.requests.sends import SendMessage
from tests.crash.killing import READY_S, ROOT, Wrong, end

DELAYS_S = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 35, 40, 45, 50, 60)
STANDING_LEVEL = len(DELAYS_S) + 1
LEVELS = " ".join(f"{seconds}s" for seconds in DELAYS_S) + " 1h"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TOPIC = "later"
QUEUES = 4
WINDOW = 2000
ON_TIME_MS = 100
CATCH_UP_MS = 1000
"""Messages that fall due this long after a start share it with those that had to wait for it."""


@dataclass
class Sendings:
    """What is known from outside."""

    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    next_id: int = 0
    down_ms: list[tuple[int, int]] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)


class BrokerProcess:
    """The broker, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.data, self._log = folder / "data", folder / "log"
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    async def start(self) -> float:
        """Start it; return how many seconds that took."""
        began = time.monotonic()
        process = self._process = self._launch()
        assert process.stdout is not None
        reading = asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        found = re.search(r"broker=(\S+)", await asyncio.wait_for(reading, READY_S))
        if found is None:
            raise Wrong(f"the broker did not start: {self._log.read_text()[-2000:]}")
        self.address = found[1]
        return time.monotonic() - began

    def _launch(self) -> subprocess.Popen[str]:
        words = ["broker", "--port", "0", "--data", str(self.data), "--log-level", "warning"]
        words += ["--set", f"messageDelayLevel={LEVELS}"]
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "inorder.cli.main", *words],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def end(self, number: int) -> None:
        """Send it a signal and wait for its end."""
        if self._process is not None:
            end(self._process, number)
            self._process = None


def command(id_: int, level: int) -> Command:
    """Return the send of a message."""
    properties = f"UNIQ_KEY\x01{id_:032X}\x02DELAY\x01{level}\x02"
    header = SendMessage("p", TOPIC, "TBW102", QUEUES, id_ % QUEUES, 0, 0, 0, properties)
    return Command.request(RequestCode.SEND_MESSAGE_V2, header.to_fields_v2(), b"%200d" % id_)


async def send(broker: BrokerProcess, log: Sendings, count: int, rate: float, level: int) -> None:
    """Send so many messages at a rate (0: as fast as it goes); level 0: of all levels in turn."""
    connection: Connection | None = None
    window = asyncio.Semaphore(WINDOW)
    began = time.monotonic()

    def finish(id_: int, answer: asyncio.Future[Command]) -> None:
        window.release()
        if answer.cancelled() or answer.exception() is not None:
            return  # nobody knows
        (log.acknowledged if answer.result().code == 0 else log.refused).add(id_)

    for number in range(count):
        if rate and number % 50 == 0:
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        await window.acquire()
        while connection is None or connection.closed:
            try:
                connection = await Connection.open(broker.address, NetConfig())
            except (InorderError, OSError):
                await asyncio.sleep(0.02)
        id_, log.next_id = log.next_id, log.next_id + 1
        try:
            answer = connection.call(command(id_, level or 1 + id_ % len(DELAYS_S)), 30_000)
        except InorderError:
            window.release()
            connection = None
            continue
        answer.add_done_callback(lambda done, id_=id_: finish(id_, done))
    for _ in range(WINDOW):
        await window.acquire()


async def torment(broker: BrokerProcess, log: Sendings, kills: int, seconds: float) -> None:
    """Kill it so many times within a time."""
    draw = random.Random(7)
    clock = SystemClock()
    times = sorted(draw.uniform(0.02, 0.98) * seconds for _ in range(kills))
    began = time.monotonic()
    for at in times:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        killed_ms = clock.now_ms()
        broker.end(signal.SIGKILL)
        log.starts_s.append(await broker.start())
        log.down_ms.append((killed_ms, clock.now_ms()))


async def play(folder: Path, args: argparse.Namespace) -> tuple[Sendings, Path]:
    """Send, kill, wait for the last to be due, stop."""
    broker, log = BrokerProcess(folder), Sendings()
    try:
        await broker.start()
        api = BrokerApi(await Connection.open(broker.address, NetConfig()), timeout_ms=10_000)
        await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
        began = time.monotonic()
        await send(broker, log, args.standing, 0, STANDING_LEVEL)
        print(f"waiting={len(log.acknowledged)} after_s={time.monotonic() - began:.0f}", flush=True)
        seconds = args.messages / args.rate + max(DELAYS_S)
        sending = asyncio.create_task(send(broker, log, args.messages, args.rate, 0))
        await torment(broker, log, args.kills, seconds)
        await sending
        await asyncio.sleep(max(DELAYS_S) + 2)
        broker.end(signal.SIGTERM)
    finally:
        broker.end(signal.SIGKILL)
    return log, broker.data


@dataclass
class Found:
    """What the log holds: when each message is due, and when it came."""

    due_ms: dict[int, int] = field(default_factory=dict)
    standing: set[int] = field(default_factory=set)
    came_ms: dict[int, int] = field(default_factory=dict)
    times: Counter[int] = field(default_factory=Counter)


def read(data: Path) -> Found:
    """Read the whole log."""
    found = Found()
    store = Store.open(data, StoreConfig(delay_levels=LEVELS), OsFiles(), SystemClock())
    try:
        for record in LogScan(store.log.segments, store.log.min_position):
            id_ = int(get(record.properties, b"UNIQ_KEY") or b"0", 16)
            if record.topic == TOPIC:
                found.came_ms[id_] = record.stored_at_ms
                found.times[id_] += 1
            elif record.queue_id + 1 == STANDING_LEVEL:
                found.standing.add(id_)
            elif record.topic == SCHEDULE:
                found.due_ms[id_] = record.stored_at_ms + DELAYS_S[record.queue_id] * 1000
    finally:
        store.abandon()
    return found


def judge(log: Sendings, found: Found) -> list[str]:
    """Print the figures; return what is wrong."""
    wrong = []
    kept = found.due_ms.keys() | found.standing
    lost = [id_ for id_ in found.due_ms if id_ not in found.came_ms]
    lost += [id_ for id_ in log.acknowledged if id_ not in kept]
    twice = [id_ for id_, times in found.times.items() if times > 1]
    early = [id_ for id_, due in found.due_ms.items() if found.came_ms.get(id_, due) < due]
    early += [id_ for id_ in found.standing if id_ in found.came_ms]
    ghosts = [id_ for id_ in log.refused if id_ in kept]
    for name, ids in (("lost", lost), ("twice", twice), ("early", early), ("refused", ghosts)):
        if ids:
            wrong.append(f"{len(ids)} {name}: {sorted(ids)[:5]}")
    up_late, down_late = _lateness(log, found)
    on_time = sum(late <= ON_TIME_MS for late in up_late) / max(1, len(up_late))
    if on_time < 0.99:
        wrong.append(f"only {on_time:.2%} came within {ON_TIME_MS} ms")
    a_second = sorted(Counter(due // 1000 for due in found.due_ms.values()).values())
    print(
        f"delivered={len(found.came_ms)} acknowledged={len(log.acknowledged)} "
        f"standing={len(found.standing)} "
        f"due_a_second=median {statistics.median(a_second):.0f}, max {a_second[-1]} "
        f"kills={len(log.down_ms)} lost={len(lost)} twice={len(twice)} early={len(early)}"
    )
    print(
        f"while the broker was up: count={len(up_late)} within_{ON_TIME_MS}_ms={on_time:.3%} "
        f"{_spread(up_late)}"
    )
    print(f"over kills, after the broker was back: count={len(down_late)} {_spread(down_late)}")
    if log.starts_s:
        print(
            f"starts: median_s={statistics.median(log.starts_s):.2f} max_s={max(log.starts_s):.2f}"
        )
    return wrong


def _lateness(log: Sendings, found: Found) -> tuple[list[int], list[int]]:
    """Return how late messages came that fell due while the broker was up, and over kills.

    The latter are those that fell due while it was down, just before, or just after, when it still
    had others to deliver. They count from when the broker was back for good.
    """
    down = sorted(log.down_ms)
    begins = [begin for begin, _ in down]
    up_late, down_late = [], []
    for id_, due in found.due_ms.items():
        came = found.came_ms.get(id_, due)
        back = down[bisect_right(begins, due + ON_TIME_MS) - 1][1] if down else 0
        if not down or begins[0] > due + ON_TIME_MS or due >= back + CATCH_UP_MS:
            up_late.append(came - due)
        else:
            back = down[max(0, bisect_right(begins, came) - 1)][1]
            down_late.append(max(0, came - max(due, back)))
    return up_late, down_late


def _spread(late_ms: list[int]) -> str:
    if not late_ms:
        return ""
    late_ms = sorted(late_ms)
    at = [late_ms[min(len(late_ms) - 1, int(len(late_ms) * part))] for part in (0.5, 0.99, 0.999)]
    return f"p50_ms={at[0]} p99_ms={at[1]} p99.9_ms={at[2]} max_ms={late_ms[-1]}"


def main() -> int:
    """Return 0 if every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--standing", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="inorder-delays-"))
    began = time.monotonic()
    log, data = asyncio.run(play(folder, args))
    wrong = judge(log, read(data))
    print(f"seconds={time.monotonic() - began:.0f}")
    for text in wrong:
        print("WRONG:", text)
    if wrong:
        print(f"kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
