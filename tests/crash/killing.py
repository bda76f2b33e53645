"""kill -9 of a real broker process under load, round after round, with every promise checked.

One round: start, load it with pipelined producers and committing consumers, SIGKILL it after 0.1 to
2 s (now and then SIGTERM: what is acknowledged on the way out counts as well); then perhaps kill it
again, up to three times, while it recovers (at a random time, or at a chosen change of a file:
`dying.py`; sometimes with queues and index removed, so that they are made again from the log); then
start it in peace, read everything back and judge it (`load.py`), stop or kill it, and read its
files without our code (`verify.py`). Where recovery was killed, a copy of the directory is
recovered in one go and must come out the same. A directory lives for some rounds; half of them
flush asynchronously, half synchronously.

    python -m tests.crash.killing --rounds 100 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from inorder.client.api import BrokerApi
from tests.crash.load import QUEUES, TOPICS, Book, Sender, connect, consume, make_topics
from tests.crash.verify import Contents, verify

SEGMENT_BYTES = 1 << 20
QUEUE_FILE_BYTES = 20 * 500
INDEX_SLOTS = 2000
INDEX_ENTRIES = 8000
SETTINGS = (
    f"mappedFileSizeCommitLog={SEGMENT_BYTES}",
    f"mappedFileSizeConsumeQueue={QUEUE_FILE_BYTES}",
    f"maxHashSlotNum={INDEX_SLOTS}",
    f"maxIndexNum={INDEX_ENTRIES}",
    "maxMessageSize=131072",
    "flushIntervalCommitLog=40",
    "store.queue_write_interval_ms=20",
    "flushConsumerOffsetInterval=150",
)
ROOT = Path(__file__).parents[2]
ROUNDS_PER_LIFE = 5
ACKS_A_ROUND_MIN = 101
LOAD_S_MAX = 2.0
STOP_RATIO = 0.1
SENDERS = 3
READY_S = 60
RECOVERY_CHANGES_MAX = 16
REBUILD_CHANGES_MAX = 120
REBUILD_RATIO = 0.2


class Wrong(AssertionError):
    """A promise was broken."""


@dataclass
class Figures:
    """What a run amounted to."""

    rounds: int = 0
    lives: int = 0
    acknowledged: int = 0
    copies: int = 0
    kills: int = 0
    stops: int = 0
    kills_in_recovery: int = 0
    rebuilt: int = 0
    recoveries_compared: int = 0
    records_verified: int = 0
    segments: int = 0
    seconds: float = 0.0
    acks_by_mode: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        modes = " ".join(f"{mode}={count}" for mode, count in sorted(self.acks_by_mode.items()))
        return (
            f"rounds={self.rounds} directories={self.lives} acknowledged={self.acknowledged} "
            f"({modes}) kills={self.kills} stops_under_load={self.stops} "
            f"kills_during_recovery={self.kills_in_recovery} "
            f"rebuilt_from_the_log={self.rebuilt} "
            f"recoveries_compared={self.recoveries_compared} copies_by_retries={self.copies} "
            f"records_verified={self.records_verified} segments={self.segments} "
            f"lost=0 seconds={self.seconds:.0f}"
        )


class Process:
    """A broker process on a directory."""

    def __init__(self, data: Path, *, sync: bool, pair: bool, log: Path) -> None:
        self._data = data
        self._log = log
        self._words = ["up", "--namesrv-port", "0", "--broker-port", "0"] if pair else [
            "broker", "--port", "0"
        ]  # fmt: skip
        self._words += ["--data", str(data), "--log-level", "warning"]
        for setting in (*SETTINGS, f"flushDiskType={'SYNC' if sync else 'ASYNC'}_FLUSH"):
            self._words += ["--set", setting]

    def start(
        self, *, dies_at: int | None = None, data: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start it; it dies at a change of a file if told to."""
        words = list(self._words)
        if data is not None:
            words[words.index("--data") + 1] = str(data)
        module = ["inorder.cli.main"] if dies_at is None else ["tests.crash.dying", str(dies_at)]
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *module, *words],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    async def ready(self, process: subprocess.Popen[str]) -> str:
        """Wait until it accepts; return its address."""
        assert process.stdout is not None
        reading = asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        line = await asyncio.wait_for(reading, READY_S)
        found = re.search(r"broker=(\S+)", line)
        if found is None:
            raise Wrong(f"the broker did not start: {self._log.read_text()[-2000:]}")
        return found[1]


def end(process: subprocess.Popen[str], number: int) -> int:
    """Send a signal and wait for the end; return the exit code."""
    process.send_signal(number)
    process.wait(READY_S)
    assert process.stdout is not None
    process.stdout.close()
    return process.returncode


class Life:
    """One data directory over some rounds."""

    def __init__(self, folder: Path, seed: int, figures: Figures, load_s_max: float) -> None:
        self._load_s_max = load_s_max
        self._draw = random.Random(f"life/{seed}")
        self.sync = seed % 2 == 1
        self._data = folder / "data"
        self._log = folder / "log"
        self._folder = folder
        self._figures = figures
        self._process = Process(
            self._data, sync=self.sync, pair=self._draw.random() < 0.3, log=self._log
        )
        self._book = Book()
        self._senders = [Sender(f"p{number}", self._book, seed) for number in range(SENDERS)]
        for sender in self._senders:
            sender.large = True
        self._start_s = 0.5
        self._new = True

    async def round(self) -> None:
        """Load, kill, recover, judge."""
        figures, draw, book = self._figures, self._draw, self._book
        before = book.acknowledged
        await self._load_and_kill(draw.uniform(0.1, self._load_s_max))
        wanted = draw.random() < 0.6 or not figures.kills_in_recovery  # a short run has some, too
        image = await self._kill_in_recovery() if wanted else None
        contents = await self._judge()
        if image is not None:
            await self._compare(image, contents)
        figures.rounds += 1
        gained = book.acknowledged - before
        figures.acknowledged += gained
        mode = "sync" if self.sync else "async"
        figures.acks_by_mode[mode] = figures.acks_by_mode.get(mode, 0) + gained
        figures.records_verified += len(contents.records)
        figures.segments = max(figures.segments, contents.segments)

    def close(self) -> None:
        """Count what the directory came to."""
        self._figures.lives += 1
        self._figures.copies += self._book.copies

    async def _until_acknowledged(self, count: int) -> None:
        """However slow the machine is: a kill before anything was sent would prove nothing."""
        ends_s = time.monotonic() + READY_S
        while self._book.acknowledged < count and time.monotonic() < ends_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _load_and_kill(self, load_s: float) -> None:
        before = self._book.acknowledged
        process = self._process.start()
        try:
            address = await self._process.ready(process)
            connections = [await connect(address) for _ in range(SENDERS + 1)]
            api = BrokerApi(connections[-1])
            if self._new:
                await make_topics(api)
                self._new = False
            places = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
            tasks = [
                asyncio.create_task(
                    sender.run(
                        connection, window=self._draw.choice((1, 16, 128)),
                        full_speed=self._draw.randint(500, 3000),
                    )
                )
                for sender, connection in zip(self._senders, connections, strict=False)
            ]  # fmt: skip
            tasks.append(asyncio.create_task(consume(api, places, self._book, suspend_ms=500)))
            await asyncio.sleep(load_s)
            await self._until_acknowledged(before + ACKS_A_ROUND_MIN)
            how = signal.SIGTERM if self._draw.random() < STOP_RATIO else signal.SIGKILL
            process.send_signal(how)
            if how == signal.SIGKILL:
                self._figures.kills += 1
            for connection in connections:
                await connection.wait_closed()
            await asyncio.gather(*tasks)
            if how == signal.SIGTERM:
                self._figures.stops += 1
                if process.wait(READY_S) != 0 or (self._data / "abort").exists():
                    raise Wrong(f"stopped under load: {self._log.read_text()[-2000:]}")
        finally:
            end(process, signal.SIGKILL)

    async def _kill_in_recovery(self) -> Path:
        """Start and kill it before it is ready, once or more; return a copy made before."""
        image = self._folder / "image"
        if image.exists():
            shutil.rmtree(image)
        changes_max = RECOVERY_CHANGES_MAX
        if self._draw.random() < REBUILD_RATIO:  # all but the log follows from the log
            for name in ("inorder", "index", "consumequeue"):
                shutil.rmtree(self._data / name, ignore_errors=True)
            changes_max = REBUILD_CHANGES_MAX
            self._figures.rebuilt += 1
        _copy(self._data, image)
        for _ in range(self._draw.randint(1, 3)):
            if self._draw.random() < 0.7:
                process = self._process.start(dies_at=self._draw.randint(1, changes_max))
            else:
                process = self._process.start()
                await asyncio.sleep(self._draw.uniform(0.5, 1.0) * self._start_s)
                process.kill()
            try:
                await self._process.ready(process)
                self._figures.kills += 1  # too late: it was done
            except Wrong:
                self._figures.kills_in_recovery += 1
            end(process, signal.SIGKILL)
        return image

    async def _judge(self) -> Contents:
        began = time.monotonic()
        process = self._process.start()
        wrong: list[str] = []
        try:
            address = await self._process.ready(process)
            self._start_s = time.monotonic() - began
            connection = await connect(address)
            api = BrokerApi(connection, timeout_ms=30_000)
            wrong += await self._book.judge(api)
            wrong += await self._book.judge_keys(api, self._draw)
            connection.close()
            stop = self._draw.choice((signal.SIGTERM, signal.SIGKILL))
            code = end(process, stop)
            if code != (0 if stop == signal.SIGTERM else -9):
                wrong.append(f"exit code {code} after {stop.name}")
        finally:
            if process.poll() is None:
                end(process, signal.SIGKILL)
        contents = self._verify(self._data)
        _raise([*wrong, *contents.problems])
        return contents

    async def _compare(self, image: Path, contents: Contents) -> None:
        """Recover the copy in one go: it must come out as the directory did over its kills."""
        process = self._process.start(data=image)
        await self._process.ready(process)
        end(process, signal.SIGKILL)
        at_once = self._verify(image)
        _raise(at_once.problems)
        if at_once.logical != contents.logical:
            raise Wrong(f"recovered at once: {at_once}; over kills: {contents}")
        self._figures.recoveries_compared += 1

    def _verify(self, data: Path) -> Contents:
        return verify(
            data, segment_bytes=SEGMENT_BYTES, queue_file_bytes=QUEUE_FILE_BYTES,
            index_slots=INDEX_SLOTS, index_entries=INDEX_ENTRIES,
        )  # fmt: skip


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def _raise(problems: list[str]) -> None:
    if problems:
        raise Wrong("\n".join([f"{len(problems)} problems", *problems[:20]]))


async def run(
    rounds: int,
    seed: int,
    *,
    folder: Path,
    rounds_per_life: int = ROUNDS_PER_LIFE,
    load_s_max: float = LOAD_S_MAX,
    show: bool = False,
) -> Figures:
    """Play rounds; raises `Wrong` and leaves the directory if a promise is broken."""
    figures = Figures()
    began = time.monotonic()
    number = seed * 1000
    while figures.rounds < rounds:
        home = folder / f"life-{number}"
        home.mkdir()
        life = Life(home, number, figures, load_s_max)
        for _ in range(min(rounds_per_life, rounds - figures.rounds)):
            try:
                await life.round()
            except BaseException as error:
                error.add_note(f"seed={seed} round={figures.rounds} directory={home}")
                raise
            if show:
                print(
                    f"round {figures.rounds} of {rounds}: {figures.acknowledged} acknowledged",
                    flush=True,
                )
        life.close()
        shutil.rmtree(home)
        number += 1
    figures.seconds = time.monotonic() - began
    return figures


def main() -> None:
    """Play as many rounds as asked for; the directory of a failure is kept."""
    parser = argparse.ArgumentParser(description="kill -9 a broker under load, and judge it")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="inorder-killing-"))
    print(f"seed={options.seed} directory={folder}", flush=True)
    figures = asyncio.run(run(options.rounds, options.seed, folder=folder, show=options.verbose))
    shutil.rmtree(folder)
    print(f"kill -9: seed={options.seed} {figures}")


if __name__ == "__main__":
    main()
