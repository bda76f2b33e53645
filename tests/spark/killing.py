"""kill -9 of a pipeline's driver, its workers and its broker, round after round: each effect once.

A life is one checkpoint, one state, one broker and its topics; producers send all the time. In each
round the driver runs for a while and is killed: at a random moment with its JVM; by itself, between
its two sinks, or behind both before Spark notes the batch as done; or one of its workers dies in
the middle of a batch or beside its decision, or the broker is killed and started again. Now and
then the topic, or the one of the effects, is resized meanwhile. Some lives keep the state in Spark
(`timers`), some write to the topic alone, in some keys are parked and redriven instead of giving up
messages (`parks`). Half-way the code changes. At the end everything is read back: every message
that was acknowledged has its effect once, in the order of its key, with the state that follows from
those before; dead letters are there, once; nothing is parked.

    python -m tests.spark.killing --rounds 50 --seed 7
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import inorder
from bench.process import free_ports
from inorder.errors import InorderError
from inorder.model import Message
from tests.spark.victim import RESULTS, TOPIC, chained

ROOT = Path(__file__).parents[2]
KEYS = 40
QUEUES = 4
ROUNDS_PER_LIFE = 10
READY_S = 300
TRIES = 5
LETTERS = "%DLQ%effects"
DEATHS = (
    "driver", "driver", "driver", "after sink", "after sink", "between sinks", "in a batch",
    "after decision", "before decision", "broker",
)  # fmt: skip


class Wrong(AssertionError):
    """A promise was broken."""


@dataclass
class Figures:
    """What a run amounted to."""

    rounds: int = 0
    lives: int = 0
    sent: int = 0
    effects: int = 0
    letters: int = 0
    parked: int = 0
    resizes: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        deaths = ", ".join(f"{name}={count}" for name, count in sorted(self.deaths.items()))
        return (
            f"rounds={self.rounds} lives={self.lives} sent={self.sent} effects={self.effects} "
            f"dead_letters={self.letters} redriven_keys={self.parked} resizes={self.resizes} "
            f"lost=0 doubled=0 inverted=0 wrong_states=0 seconds={self.seconds:.0f} ({deaths})"
        )


class Broker:
    """A name server and a broker in a process that can be killed, on the same ports each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = free_ports(2)
        self.namesrv = f"127.0.0.1:{self.ports[0]}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it accepts."""
        words = [
            sys.executable, "-m", "inorder.cli.main", "up", "--namesrv-port", str(self.ports[0]),
            "--broker-port", str(self.ports[1]), "--data", str(self._folder / "data"),
            "--log-level", "warning",
        ]  # fmt: skip
        with (self._folder / "broker.log").open("a") as log:
            self.process = subprocess.Popen(
                words, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready"), f"the broker does not start: {line!r}"

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()


def environment() -> dict[str, str]:
    """Return the environment of children: they find the package and the tests."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Driver:
    """The pipeline's process with its JVM, in a group of their own."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self._log = folder / "driver.log"
        self._log.touch()
        self._logged = self._log.stat().st_size
        words = [sys.executable, "-m", "tests.spark.victim", str(folder), json.dumps(options)]
        with (folder / "driver.log").open("a") as log:
            self.process = subprocess.Popen(
                words, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip

    def ready(self) -> None:
        """Wait until Spark is there."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"the driver does not start: {line!r}"

    def ended(self, seconds: float) -> bool:
        """Wait for its end, so long."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def gave_up(self) -> bool:
        """Tell whether Spark ended itself: on a busy machine workers come later than it waits."""
        if self.process.poll() is None:
            return False
        with self._log.open("rb") as log:
            log.seek(self._logged)
            return b"worker failed to connect back" in log.read()

    def kill(self) -> None:
        """End all of it as kill -9 does."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Life:
    """One checkpoint from its beginning to its end."""

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        figures: Figures,
        *,
        timers: float = 0.2,
        parks: float = 0.4,
    ) -> None:
        self.folder, self.chance, self.figures = folder, chance, figures
        self.broker = Broker(folder)
        self.timers = chance.random() < timers
        self.parks = not self.timers and chance.random() < parks
        self.sink = "topic" if self.timers or chance.random() < 0.3 else "both"
        self.code = 1
        self.sent = [0] * KEYS
        self.queues = dict.fromkeys((TOPIC, RESULTS), QUEUES)
        self.drivers: list[Driver] = []

    def begin(self) -> None:
        """Start the broker and make the topics."""
        self.broker.start()
        with inorder.Admin(self.broker.namesrv) as admin:
            for topic in (TOPIC, RESULTS):
                admin.topics.create(topic, queues=QUEUES)

    def send(self, count: int) -> None:
        """Send the next messages of some keys, in order; all are acknowledged."""
        with inorder.Producer(self.broker.namesrv) as producer:
            for _ in range(0, count, 100):
                messages = []
                for _ in range(100):
                    key = self.chance.randrange(KEYS)
                    messages.append(Message(TOPIC, b"%d" % self.sent[key], f"key-{key}"))
                    self.sent[key] += 1
                producer.send_batch(messages, timeout=60)
                self.figures.sent += len(messages)

    def resize(self) -> None:
        """Give the topic more queues while all of it runs.

        Fewer would hide queues from a query that has not begun yet: it stops then. A topic with
        parked keys is resized once: a key that would come back onto its own older list has to be
        dropped, or redriven by a consumer, before the query can go on.
        """
        with inorder.Admin(self.broker.namesrv) as admin:
            for topic in (TOPIC, RESULTS):
                done = topic == TOPIC and self.parks and self.queues[topic] > QUEUES
                if self.chance.random() < 0.7 and not done:
                    self.queues[topic] += self.chance.randrange(1, 4)
                    admin.topics.resize(topic, queues=self.queues[topic], wait=60)
                    self.figures.resizes += 1

    def redrive(self) -> int:
        """Mend what was sent so far, let all parked keys be handled again; return how many."""
        with inorder.Admin(self.broker.namesrv) as admin:
            found = [one for one in admin.parked.list("effects") if one.moved_to is None]
            if found:
                (self.folder / "mended").write_text(str(max(self.sent)))
                admin.parked.redrive("effects")
        return len(found)

    def options(self, **more: Any) -> dict[str, Any]:
        """Return what the driver is told."""
        return {
            "namesrv": self.broker.namesrv, "sink": self.sink, "timers": self.timers,
            "parks": self.parks, "code": self.code, "batch": self.chance.choice((150, 400, 1000)),
            **more,
        }  # fmt: skip

    def choose(self) -> str:
        """Return what dies next, of what can in this life."""
        deaths = [
            death
            for death in DEATHS
            if not (self.sink == "topic" and "sink" in death)
            and not (self.timers and "decision" in death)
        ]
        return self.chance.choice(deaths)

    def round(self, death: str) -> None:
        """Let a driver run, and something die."""
        by_itself = death not in ("driver", "broker")
        driver = Driver(self.folder, self.options(die=death if by_itself else ""))
        self.drivers.append(driver)
        try:
            self.send(self.chance.randrange(1000, 4000))
            driver.ready()
            if self.chance.random() < 0.3:
                self.resize()
                self.send(500)
            if self.parks and self.chance.random() < 0.6:
                self.figures.parked += self.redrive()
                self.send(500)
            if death == "broker":
                time.sleep(self.chance.uniform(2, 6))
                self.broker.kill()
                time.sleep(self.chance.uniform(0, 0.5))
                self.broker.start()
                self.send(300)
                time.sleep(self.chance.uniform(1, 4))
            elif by_itself:
                self._wait_for_death(driver, death)
            else:
                time.sleep(self.chance.uniform(0, 8))
            if driver.gave_up():
                death = "Spark itself"
            elif driver.process.poll() is not None and not by_itself:
                raise Wrong(f"the driver ended by itself; see {self.folder}/driver.log")
        finally:
            driver.kill()
            (self.folder / "armed").unlink(missing_ok=True)
        self.figures.rounds += 1
        self.figures.deaths[death] += 1

    def _wait_for_death(self, driver: Driver, death: str) -> None:
        """Wait until what was armed has happened; a worker's death does not end the driver."""
        armed = self.folder / "armed"
        deadline_s = time.monotonic() + READY_S
        while armed.exists():
            if driver.gave_up():
                return
            if time.monotonic() > deadline_s:
                raise Wrong(f"nothing died {death}; see {self.folder}/driver.log")
            if driver.process.poll() is None and self.chance.random() < 0.02:
                self.send(100)
            time.sleep(0.05)
        if "sink" in death:
            assert driver.ended(READY_S), "it killed itself"
        else:
            time.sleep(self.chance.uniform(0, 3))
            if driver.process.poll() is not None and not driver.gave_up():
                raise Wrong(f"the driver did not survive a worker; see {self.folder}/driver.log")

    def finish(self) -> None:
        """Let everything be done in peace, and judge it."""
        if self.timers:
            self._let_timers_fire()
            self.judge()
            return
        self._run_to_the_end()
        tries = 0
        while self.parks and (count := self.redrive()):
            self.figures.parked += count
            tries += 1
            if tries > TRIES:
                raise Wrong(f"{count} keys are still parked; see {self.folder}")
            self.poke()
            self._run_to_the_end()
        self.judge()

    def poke(self) -> None:
        """Send something to every key: a redrive comes with the next messages of its queue."""
        with inorder.Producer(self.broker.namesrv) as producer:
            for key in range(KEYS):
                producer.send(TOPIC, b"%d" % self.sent[key], key=f"key-{key}")
                self.sent[key] += 1
        self.figures.sent += KEYS

    def _run_to_the_end(self) -> None:
        for _ in range(TRIES):
            driver = Driver(self.folder, self.options(last=True, batch=5000))
            self.drivers.append(driver)
            driver.ready()
            has_ended = driver.ended(2 * READY_S)
            if not driver.gave_up():
                break
        if not has_ended or driver.process.returncode != 0:
            raise Wrong(f"the last driver does not end well; see {self.folder}/driver.log")

    def _let_timers_fire(self) -> None:
        """Run on until nothing waits in Spark's state: a query with timers does not end itself."""
        driver = Driver(self.folder, self.options())
        self.drivers.append(driver)
        driver.ready()
        deadline_s = time.monotonic() + READY_S
        while len(self.read(RESULTS)) + len(self.read(LETTERS)) < sum(self.sent):
            if time.monotonic() > deadline_s:
                break  # the verdict says what is missing
            time.sleep(0.5)
        driver.kill()

    def read(self, topic: str) -> list[Any]:
        """Return what a topic holds, queue by queue."""
        with inorder.PullConsumer(self.broker.namesrv, group="judge") as consumer:
            try:
                queues = consumer.queues(topic)
            except InorderError:
                return []
            return [message for queue in queues for message in consumer.pull_all(queue, 0)]

    def judge(self) -> None:
        """Compare effects with what was sent. Raises Wrong."""
        effects: dict[str, list[tuple[int, ...]]] = {}
        for message in sorted(self.read(RESULTS), key=_place):
            key, *values = message.body.decode().split()
            assert key == message.key
            effects.setdefault(key, []).append(tuple(map(int, values)))
        letters = Counter((m.key, int(m.body)) for m in self.read(LETTERS))
        for index, count in enumerate(self.sent):
            key = f"key-{index}"
            dead = {number for number in range(count) if self._is_dead(number)}
            expected, check = [], 0
            for number in (number for number in range(count) if number not in dead):
                check = chained(check, number)
                expected.append((number, len(expected) + 1, check))
            if effects.get(key, []) != expected:
                raise Wrong(_difference(key, effects.get(key, []), expected))
            if {number: letters[key, number] for number in dead} != dict.fromkeys(dead, 1):
                raise Wrong(f"dead letters of {key}: {letters}, not one of each of {dead}")
            self.figures.effects += len(expected)
            self.figures.letters += len(dead)
        if sum(letters.values()) != sum(1 for c in self.sent for n in range(c) if self._is_dead(n)):
            raise Wrong(f"dead letters that nobody expects: {letters}")
        if self.sink == "both":
            self._judge_files(effects)

    def _is_dead(self, number: int) -> bool:
        return number % 211 == 17 and not self.parks

    def _judge_files(self, effects: dict[str, list[tuple[int, ...]]]) -> None:
        import pyarrow.parquet as pq

        found: list[str] = []
        for path in sorted((self.folder / "rows").glob("batch=*/*.parquet")):
            found += pq.ParquetFile(path).read(["body"])["body"].to_pylist()
        expected = [
            f"{key} {number} {count} {check}"
            for key, rows in effects.items()
            for number, count, check in rows
        ]
        if sorted(found) != sorted(expected):
            raise Wrong(f"{len(found)} rows in the files, {len(expected)} in the topic, or others")

    def end(self) -> None:
        """Leave no process behind."""
        for driver in self.drivers:
            driver.kill()
        self.broker.kill()


def _place(message: Any) -> tuple[int, int]:
    """Return where a result comes in its key: a version of the key map has it in one queue."""
    return int(message.properties["INORDER_PID"].partition("@")[2] or 1), message.offset


def _difference(key: str, found: list[Any], expected: list[Any]) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
        min(len(found), len(expected)),
    )
    return (
        f"{key}: {len(found)} effects, expected {len(expected)}; from {at} on "
        f"{found[at : at + 3]} instead of {expected[at : at + 3]}"
    )


def run(
    rounds: int,
    seed: int,
    folder: Path,
    *,
    per_life: int = ROUNDS_PER_LIFE,
    timers: float = 0.2,
    parks: float = 0.4,
) -> Figures:
    """Run so many rounds. Raises Wrong.

    `timers` is the share of lives with states in Spark, `parks` of the others that park keys.
    """
    figures, chance = Figures(), random.Random(seed)
    begin_s = time.monotonic()
    while figures.rounds < rounds:
        where = folder / f"life-{figures.lives}"
        where.mkdir(parents=True)
        life = Life(where, chance, figures, timers=timers, parks=parks)
        try:
            life.begin()
            for number in range(min(per_life, rounds - figures.rounds)):
                life.code = 1 if number < per_life // 2 else 2
                life.round(life.choose())
                print(f"round {figures.rounds}: {figures.deaths}", flush=True)
            life.finish()
        finally:
            life.end()
        figures.lives += 1
        shutil.rmtree(where)
    figures.seconds = time.monotonic() - begin_s
    return figures


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--per-life", type=int, default=ROUNDS_PER_LIFE)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--timers", type=float, default=0.2, help="share of lives with timers")
    parser.add_argument("--parks", type=float, default=0.4, help="share of the others that park")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="inorder-spark-killing-"))
    try:
        chosen = {name: getattr(options, name) for name in ("per_life", "timers", "parks")}
        print(run(options.rounds, options.seed, folder, **chosen))
    except BaseException:
        print(f"what is left: {folder}", flush=True)
        raise
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
