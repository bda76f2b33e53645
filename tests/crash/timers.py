"""Messages for a time of day of a real broker process, to the millisecond, over kills.

Many wait all the time, for times that are hours away. Beside them messages are sent at a steady
rate for times up to a minute from then, to the millisecond; some of them are recalled. Now and
then the broker is killed with SIGKILL and started again. In the end the log is read: each message
that was acknowledged was delivered exactly once, unless its recall was acknowledged, and then
never; none came before its time, and those that fell due while the broker was up came on time and
in the order of their times. Exits with 1 if a promise is broken. Prints memory and CPU.

    python -m tests.crash.timers --messages 100000 --rate 2000 --standing 1000000 --kills 20
"""

from __future__ import annotations

import argparse
import asyncio
import os
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
from inorder.model import TopicConfig, TopicQueue
from inorder.net.connection import Connection
from inorder.store.scan import LogScan
from inorder.store.store import Store
from inorder.wire.codes import RequestCode
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.names import TIMER_TOPIC
from inorder.wire.properties import get
from inorder.wire.requests.sends import SendMessage
from inorder.wire.requests.timers import Recall
from inorder.wire.timers import RECALLED_KEY, due_ms
from tests.crash.killing import READY_S, ROOT, Wrong, end

STANDING_MS = 6 * 3_600_000
TOPIC = "later"
QUEUES = 4
WINDOW = 2000
ON_TIME_MS = 100
CATCH_UP_MS = 1000
"""Messages that fall due this long after a start share it with those that had to wait for it."""
RECALLED_EVERY = 50
QUIET_S = 3.0


@dataclass
class Sendings:
    """What is known from outside."""

    acknowledged: set[int] = field(default_factory=set)
    acknowledged_ms: dict[int, int] = field(default_factory=dict)
    acknowledged_by: dict[int, str] = field(default_factory=dict)
    """The address of the broker that did."""
    refused: set[int] = field(default_factory=set)
    recalled: set[int] = field(default_factory=set)
    perhaps_recalled: set[int] = field(default_factory=set)
    next_id: int = 0
    down_ms: list[tuple[int, int]] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Parts of a CPU that the broker took, over a while each."""


class BrokerProcess:
    """The broker, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.data, self._log = folder / "data", folder / "log"
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        # An address of its own: while it is down, no other program's server may get its port.
        draw = random.SystemRandom()
        self._host = f"127.{draw.randrange(1, 255)}.{draw.randrange(256)}.{draw.randrange(1, 255)}"

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
        words = [
            "broker",
            "--host",
            self._host,
            "--port",
            "0",
            "--data",
            str(self.data),
            "--log-level",
            "warning",
        ]
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

    def used(self) -> tuple[float, float]:
        """Return its memory in MB and the CPU seconds that it has taken; zeros without one."""
        try:
            process = self._process
            folder = Path(f"/proc/{process.pid if process is not None else 0}")
            pages = int((folder / "statm").read_text().split()[1])
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, IndexError):
            return 0.0, 0.0
        ticks = int(fields[11]) + int(fields[12])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, ticks / os.sysconf("SC_CLK_TCK")

    def own_memory_mb(self) -> float:
        """Return its memory without the pages of files, which the system takes back at need."""
        try:
            text = Path(f"/proc/{self._process.pid}/status").read_text() if self._process else ""
        except OSError:
            return 0.0
        found = re.search(r"RssAnon:\s+(\d+) kB", text)
        return int(found[1]) / 1000 if found is not None else 0.0


def command(id_: int, name: str, value: int) -> Command:
    """Return the send of a message."""
    properties = f"UNIQ_KEY\x01{id_:032X}\x02{name}\x01{value}\x02"
    header = SendMessage("p", TOPIC, "TBW102", QUEUES, id_ % QUEUES, 0, 0, 0, properties)
    return Command.request(RequestCode.SEND_MESSAGE_V2, header.to_fields_v2(), b"%200d" % id_)


class Sender:
    """Sends over every end of the broker."""

    def __init__(self, broker: BrokerProcess, log: Sendings, draw: random.Random) -> None:
        self._broker = broker
        self._log = log
        self._draw = draw
        self._clock = SystemClock()
        self._window = asyncio.Semaphore(WINDOW)
        self.longest_ms = 60_000
        self.ended = 0.0
        self._connection: Connection | None = None

    async def send(self, count: int, rate: float, *, standing: bool) -> None:
        """Send so many messages at a rate (0: as fast as it goes)."""
        began, log = time.monotonic(), self._log
        for number in range(count):
            if rate and number % 50 == 0:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            id_, log.next_id = log.next_id, log.next_id + 1
            name, value = "TIMER_DELIVER_MS", self._clock.now_ms()
            if standing:
                value += STANDING_MS + self._draw.randrange(STANDING_MS)
            elif id_ % 3:
                value += self._draw.randrange(500, self.longest_ms)
            else:
                name, value = "TIMER_DELAY_MS", self._draw.randrange(500, self.longest_ms)
            await self._hand_over(command(id_, name, value), id_)
        for _ in range(WINDOW):
            await self._window.acquire()
        for _ in range(WINDOW):
            self._window.release()
        self.ended = time.monotonic()

    async def _hand_over(self, request: Command, id_: int) -> None:
        await self._window.acquire()
        while self._connection is None or self._connection.closed:
            try:
                self._connection = await Connection.open(self._broker.address, NetConfig())
            except (InorderError, OSError):
                await asyncio.sleep(0.02)
        try:
            answer = self._connection.call(request, 30_000)
        except InorderError:
            self._window.release()
            self._connection = None
            return
        address = self._connection.address
        answer.add_done_callback(lambda done: self._sent(id_, done, address))

    def _sent(self, id_: int, answer: asyncio.Future[Command], address: str) -> None:
        log = self._log
        if answer.cancelled() or answer.exception() is not None:
            self._window.release()
            return  # nobody knows
        found = answer.result()
        (log.acknowledged if found.code == 0 else log.refused).add(id_)
        log.acknowledged_ms[id_] = self._clock.now_ms()
        log.acknowledged_by[id_] = address
        connection = self._connection
        handle = found.fields.get("recallHandle")  # none if its time was over when it arrived
        if handle is None or id_ % RECALLED_EVERY or connection is None or connection.closed:
            self._window.release()
            return
        fields = encode_fields(Recall(TOPIC, handle))
        log.perhaps_recalled.add(id_)
        try:
            recall = connection.call(Command.request(370, fields), 30_000)
        except InorderError:
            self._window.release()
            return
        recall.add_done_callback(lambda done: self._recalled(id_, done))

    def _recalled(self, id_: int, answer: asyncio.Future[Command]) -> None:
        self._window.release()
        if not answer.cancelled() and answer.exception() is None:
            if answer.result().code == 0:
                self._log.recalled.add(id_)
            else:
                self._log.perhaps_recalled.discard(id_)


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


async def watch(broker: BrokerProcess, log: Sendings) -> None:
    """Note memory and CPU every second."""
    before, at = broker.used()[1], time.monotonic()
    while True:
        await asyncio.sleep(1)
        log.memory_mb.append(broker.own_memory_mb())
        used, now = broker.used()[1], time.monotonic()
        if used >= before:
            log.busy.append((used - before) / (now - at))
        before, at = used, now


async def delivered(broker: BrokerProcess) -> None:
    """Wait until nothing more is delivered: a start on a busy machine may have taken long."""
    connection = await Connection.open(broker.address, NetConfig())
    api = BrokerApi(connection, timeout_ms=30_000)
    queues = [TopicQueue(TOPIC, "broker-a", index) for index in range(QUEUES)]
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        count = sum([await api.max_offset(queue) for queue in queues])
        if count != seen:
            seen, since = count, time.monotonic()
        await asyncio.sleep(0.2)
    connection.close()


async def play(folder: Path, args: argparse.Namespace) -> tuple[Sendings, Path]:
    """Send, kill, wait for the last to be due, stop."""
    broker, log = BrokerProcess(folder), Sendings()
    try:
        await broker.start()
        api = BrokerApi(await Connection.open(broker.address, NetConfig()), timeout_ms=10_000)
        await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
        sender = Sender(broker, log, random.Random(11))
        empty_mb, began = broker.own_memory_mb(), time.monotonic()
        await sender.send(args.standing, 0, standing=True)
        print(
            f"waiting={len(log.acknowledged)} after_s={time.monotonic() - began:.0f} "
            f"memory_mb={empty_mb:.0f}..{broker.own_memory_mb():.0f}", flush=True,
        )  # fmt: skip
        await asyncio.sleep(12)  # saves and index writes are over
        used, began = broker.used()[1], time.monotonic()
        await asyncio.sleep(args.idle)
        busy = (broker.used()[1] - used) / (time.monotonic() - began)
        print(f"idle_cpu={busy:.2%} memory_mb={broker.own_memory_mb():.0f}", flush=True)
        watching = asyncio.create_task(watch(broker, log))
        sender.longest_ms = int(args.longest * 1000)
        seconds = args.messages / args.rate + args.longest
        sending = asyncio.create_task(sender.send(args.messages, args.rate, standing=False))
        await torment(broker, log, args.kills, seconds)
        await sending
        await asyncio.sleep(max(0.0, sender.ended + args.longest + 2 - time.monotonic()))
        await delivered(broker)
        watching.cancel()
        broker.end(signal.SIGTERM)
    finally:
        broker.end(signal.SIGKILL)
    return log, broker.data


@dataclass
class Found:
    """What the log holds: when each message is due, and when it came."""

    due_ms: dict[int, int] = field(default_factory=dict)
    came_ms: dict[int, int] = field(default_factory=dict)
    times: Counter[int] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)
    """The ids as they came."""
    end_ms: int = 0


def read(data: Path) -> Found:
    """Read the whole log."""
    found = Found()
    store = Store.open(data, StoreConfig(), OsFiles(), SystemClock())
    try:
        for record in LogScan(store.log.segments, store.log.min_position):
            id_ = int(get(record.properties, b"UNIQ_KEY") or b"0", 16)
            found.end_ms = max(found.end_ms, record.stored_at_ms)
            if record.topic == TOPIC:
                found.came_ms[id_] = record.stored_at_ms
                found.times[id_] += 1
                found.order.append(id_)
                asked = int(get(record.properties, b"TIMER_DELIVER_MS") or 0)
                if asked > record.stored_at_ms:  # then it may not have come at once
                    found.due_ms.setdefault(id_, asked)
            elif record.topic == TIMER_TOPIC and not get(record.properties, RECALLED_KEY.encode()):
                found.due_ms[id_] = due_ms(record.properties) or 0
    finally:
        store.abandon()
    return found


def judge(log: Sendings, found: Found) -> list[str]:
    """Print the figures; return what is wrong."""
    wrong = []
    due = {id_: at for id_, at in found.due_ms.items() if at <= found.end_ms}
    lost = [id_ for id_ in due if id_ not in found.came_ms and id_ not in log.perhaps_recalled]
    came = found.due_ms.keys() | found.came_ms.keys()  # at once, if its time was over
    lost += [id_ for id_ in log.acknowledged if id_ not in came]
    twice = [id_ for id_, times in found.times.items() if times > 1]
    early = [id_ for id_, came in found.came_ms.items() if came < found.due_ms.get(id_, 0)]
    ghosts = [id_ for id_ in log.refused if id_ in found.due_ms]
    back = [id_ for id_ in log.recalled if id_ in found.came_ms]
    for id_ in lost[:5]:
        print(f"lost {id_}: by {log.acknowledged_by.get(id_)} at {log.acknowledged_ms.get(id_)}")
    for name, ids in (
        ("lost", lost), ("twice", twice), ("early", early), ("refused", ghosts), ("recalled", back),
    ):  # fmt: skip
        if ids:
            wrong.append(f"{len(ids)} {name}: {sorted(ids)[:5]}")
    up_late, down_late, swapped = _lateness(log, found)
    if swapped:
        wrong.append(f"{swapped} out of the order of their times")
    on_time = sum(late <= ON_TIME_MS for late in up_late) / max(1, len(up_late))
    if on_time < 0.99:
        wrong.append(f"only {on_time:.2%} came within {ON_TIME_MS} ms")
    print(
        f"delivered={len(found.came_ms)} acknowledged={len(log.acknowledged)} "
        f"recalled={len(log.recalled)} kills={len(log.down_ms)} lost={len(lost)} "
        f"twice={len(twice)} early={len(early)} out_of_order={swapped}"
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
    if log.memory_mb:
        print(
            f"memory_mb: median={statistics.median(log.memory_mb):.0f} "
            f"max={max(log.memory_mb):.0f}; cpu under load: "
            f"median={statistics.median(log.busy):.0%} max={max(log.busy):.0%}"
        )
    return wrong


def _lateness(log: Sendings, found: Found) -> tuple[list[int], list[int], int]:
    """Return how late messages came that fell due while the broker was up, and over kills.

    The latter are those that fell due while it was down, just before, or just after, when it still
    had others to deliver. They count from when the broker was back for good. The last value counts
    messages that came after one with a later time, although they were acknowledged before that one
    came: on a busy machine a message may be stored after its own time.
    """
    down = sorted(log.down_ms)
    begins = [begin for begin, _ in down]
    up_late, down_late = [], []
    swapped = latest = latest_came = 0
    for id_ in found.order:
        if id_ not in found.due_ms:
            continue  # its time was over when the broker got it
        due, came = found.due_ms[id_], found.came_ms[id_]
        swapped += due < latest and log.acknowledged_ms.get(id_, 0) <= latest_came
        if due >= latest:
            latest, latest_came = due, came
        back = down[bisect_right(begins, due + ON_TIME_MS) - 1][1] if down else 0
        if not down or begins[0] > due + ON_TIME_MS or due >= back + CATCH_UP_MS:
            up_late.append(came - due)
        else:
            back = down[max(0, bisect_right(begins, came) - 1)][1]
            down_late.append(max(0, came - max(due, back)))
    return up_late, down_late, swapped


def _spread(late_ms: list[int]) -> str:
    if not late_ms:
        return ""
    late_ms = sorted(late_ms)
    at = [late_ms[min(len(late_ms) - 1, int(len(late_ms) * part))] for part in (0.5, 0.99, 0.999)]
    return f"p50_ms={at[0]} p99_ms={at[1]} p99.9_ms={at[2]} max_ms={late_ms[-1]}"


def main() -> int:
    """Return 0 if every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--standing", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=60, help="seconds to the latest time")
    parser.add_argument("--idle", type=float, default=30)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="inorder-timers-"))
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
