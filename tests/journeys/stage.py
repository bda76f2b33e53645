"""The processes of a journey: a broker that can be stopped and killed, programs, their files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import inorder
from inorder.checker import Committed, Stored
from tests.journeys.judging import Life

PROGRAMS = Path(__file__).parent / "programs"
START_S = 60
END_S = 120
STACKS_S = 20
GROUP, TOPIC, OUTPUT = "billing", "orders", "shipped"


class Broker:
    """`inorder up` as a process; it keeps its ports and its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = ("0", "0")
        self._process: subprocess.Popen[str] | None = None
        self.namesrv = ""

    def start(self) -> None:
        """Start, and return when both ports accept."""
        words = ["up", "--namesrv-port", self._ports[0], "--broker-port", self._ports[1],
                 "--data", str(self._folder / "data")]  # fmt: skip
        with (self._folder / "broker.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "inorder.cli.main", *words], cwd=self._folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), f"the broker did not start: {line!r}"
        said = dict(re.findall(r"(\w+)=(\S+)", line))
        self.namesrv = said["namesrv"]
        self._ports = (said["namesrv"].rpartition(":")[2], said["broker"].rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it with a signal; twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(END_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    # What it knows, asked as a user would.

    def prepare(self, queues: int) -> None:
        """Make the topics."""
        with inorder.Admin(self.namesrv) as admin:
            for name in (TOPIC, OUTPUT):
                admin.topics.create(name, queues=queues)

    def send(self, bodies: list[str]) -> None:
        """Send what the programs are to handle."""
        with inorder.Producer(self.namesrv) as producer:
            for first in range(0, len(bodies), 200):
                producer.send_batch(
                    [
                        inorder.Message(TOPIC, body.encode(), key=body.rpartition("-")[0])
                        for body in bodies[first : first + 200]
                    ]
                )

    def records(self, topic: str) -> tuple[Stored, ...]:
        """Return all that is stored in a topic."""
        found = []
        with inorder.PullConsumer(self.namesrv, group="reader") as reader:
            for queue in reader.queues(topic, wait=20):
                for message in reader.pull_all(queue):
                    body = message.body.decode()
                    number = int(body.rpartition("-")[2])
                    found.append(Stored(name_of(queue), message.offset, body, message.key, number))
        return tuple(found)

    def committed(self, name: str) -> list[Committed]:
        """Return how far the group is, with the time at which that was surely so."""
        with inorder.Admin(self.namesrv) as admin:
            offsets = admin.offsets.get(GROUP, TOPIC)
        return [
            Committed(name, name_of(each.queue), each.committed_offset, time.monotonic_ns())
            for each in offsets
            if each.committed_offset is not None and each.committed_offset > 0
        ]

    def ends(self) -> dict[str, int]:
        """Return the end of each queue."""
        with inorder.Admin(self.namesrv) as admin:
            return {
                name_of(each.queue): each.max_offset for each in admin.offsets.get(GROUP, TOPIC)
            }

    def parked(self) -> frozenset[str]:
        """Return the bodies of parked messages."""
        with inorder.Admin(self.namesrv) as admin:
            return frozenset(
                message.body.decode()
                for one in admin.parked.list(GROUP)
                for message in admin.parked.show(GROUP, one.key, count=10_000)
            )


def name_of(queue: inorder.TopicQueue) -> str:
    """Return the name of a queue as the ledger writes it."""
    return f"{queue.topic}/{queue.broker}/{queue.index}"


@dataclass(frozen=True, slots=True)
class End:
    """How a program may end after a signal."""

    codes: frozenset[int]
    clean: bool


class Program:
    """One process of a program."""

    def __init__(
        self, folder: Path, words: list[str], name: str, namesrv: str, count: int, *, forks: bool,
        finishes: bool,
    ) -> None:  # fmt: skip
        self.name = name
        self.started_ns = time.monotonic_ns()
        self._forks = forks
        self._finishes = finishes
        self._errors = folder / f"{name}.err"
        environment = os.environ | {
            "NAMESRV_ADDR": namesrv,
            "JOURNEY_LEDGER": str(folder / "ledger"),
            "JOURNEY_COUNT": str(count),
            "PYTHONFAULTHANDLER": "1",  # see `ended`
            "PYTHONPATH": os.pathsep.join(
                [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        environment.pop("INORDER_NAMESRV", None)
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                words, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=errors, stderr=errors, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Tell whether it runs."""
        return self._process.poll() is None

    def signal(self, number: int, *, whole_group: bool = False) -> None:
        """Send it a signal; SIGKILL goes to its children as well."""
        if whole_group or number == signal.SIGKILL:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    def ended(self, end: End, *, since: float | None = None) -> Life:
        """Wait for its end and return its life.

        One that does not end in time says in which lines its threads are, and that ends it.
        """
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STACKS_S)
        finally:
            self.kill()
        return Life(
            self.name,
            self.pid,
            self.started_ns,
            time.monotonic_ns(),
            self._process.returncode,
            end.codes,
            clean=end.clean,
            forks=self._forks,
            stop_s=0.0 if since is None else time.monotonic() - since,
            said=self._errors.read_text(errors="replace"),
            finishes=self._finishes,
        )

    def kill(self) -> None:
        """See that nothing of it is left."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for something; tell whether it came."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
