"""Business transactions over kills of producers and broker: each is all or nothing.

Programs change a database (SQLite) and send a message in one transaction, with keys of their own.
Programs and broker are killed at random and started again. A listener answers the questions of the
broker from the database, and writes down there that a transaction is not to come any more, so that
a program that lives still cannot finish it. In the end every half must be resolved, and the topic
must hold exactly the messages whose change is in the database, each once. If the commit of one
message was answered before the commit of another one of its key was sent, it lies before it.

    python -m tests.crash.transactions --kills 100
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import inorder
from inorder.errors import InorderError
from inorder.model import ReceivedMessage
from tests.crash.killing import READY_S, ROOT, Wrong, end

TOPIC = "payments"
GROUP = "shop"
KEYS = 12
THREADS = 3
PROGRAMS = 2
ROLLED_BACK_RATIO = 0.2
BROKER_RATIO = 0.4
SETTINGS = (
    "transactionTimeOut=300", "transactionCheckInterval=150", "transactionCheckMax=1000000",
    "transactionOpBatchInterval=400", "mappedFileSizeCommitLog=1048576", "maxMessageSize=131072",
    "flushConsumerOffsetInterval=500",
)  # fmt: skip
RESOLVED_S = 120


class Ledger:
    """The database of the business: the outcome of each transaction, written once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._open()) as ledger:
            ledger.execute("PRAGMA journal_mode=WAL")
            ledger.execute("CREATE TABLE IF NOT EXISTS outcomes (id TEXT PRIMARY KEY, done INT)")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=60, isolation_level=None)

    def pay(self, id_: str) -> None:
        """Make the change of a transaction; fails if it is not to come any more."""
        with closing(self._open()) as ledger:
            ledger.execute("INSERT INTO outcomes VALUES (?, 1)", (id_,))

    def is_paid(self, id_: str) -> bool:
        """Return whether the change was made; if not, it cannot be made any more."""
        with closing(self._open()) as ledger:
            ledger.execute("INSERT OR IGNORE INTO outcomes VALUES (?, 0)", (id_,))
            return bool(
                ledger.execute("SELECT done FROM outcomes WHERE id = ?", (id_,)).fetchone()[0]
            )

    def paid(self) -> set[str]:
        """Return the transactions whose change was made."""
        with closing(self._open()) as ledger:
            return {row[0] for row in ledger.execute("SELECT id FROM outcomes WHERE done = 1")}


class Undecided(Exception):
    """The business does not want this transaction."""


def program(namesrv: str, folder: Path, name: str) -> None:
    """Pay until a file says stop; write down when each commit was sent and answered."""
    ledger = Ledger(folder / "ledger.db")
    stop = folder / "stop"

    def listener(message: ReceivedMessage) -> inorder.TransactionState:
        paid = ledger.is_paid(json.loads(message.body)["id"])
        return inorder.TransactionState.COMMIT if paid else inorder.TransactionState.ROLLBACK

    config = inorder.ClientConfig(
        send_timeout_ms=5000, request_timeout_ms=1000, heartbeat_interval_ms=500
    )

    def pay(number: int, book: int) -> None:
        draw = random.Random(f"{name} {number}")
        count = 0
        while not stop.exists():
            count += 1
            id_, key = f"{name}-{number}-{count}", f"account-{draw.randrange(KEYS)}"
            body = json.dumps({"id": id_, "key": key}).encode()
            sent_ns = answered_ns = 0
            with (
                suppress(InorderError, Undecided, sqlite3.IntegrityError),
                producer.transaction(TOPIC, body, key=key) as transaction,
            ):
                if draw.random() < ROLLED_BACK_RATIO:
                    raise Undecided
                ledger.pay(id_)
                sent_ns = time.monotonic_ns()
                transaction.commit()
                answered_ns = time.monotonic_ns()
            line = json.dumps({"id": id_, "sent": sent_ns, "answered": answered_ns})
            os.write(book, line.encode() + b"\n")

    with inorder.Producer(
        namesrv, group=GROUP, config=config, on_transaction_check=listener
    ) as producer:
        book = os.open(folder / "book.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        threads = [threading.Thread(target=pay, args=(n, book)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while not (folder / "resolved").exists():
            time.sleep(0.05)


@dataclass
class Crew:
    """The processes, killed and started again."""

    folder: Path
    flush: str
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ports: tuple[int, int] = (0, 0)
    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def start_broker(self) -> None:
        """Start name server and broker, at the ports of their first start."""
        words = ["up", "--namesrv-port", str(self.ports[0]), "--broker-port", str(self.ports[1])]
        words += ["--data", str(self.folder / "data"), "--log-level", "warning"]
        for setting in (*SETTINGS, f"flushDiskType={self.flush}"):
            words += ["--set", setting]
        process = self._launch("broker", ["-m", "inorder.cli.main", *words])
        assert process.stdout is not None
        line = _read_line(process, READY_S)
        found = re.search(r"namesrv=\S+:(\d+) broker=\S+:(\d+)", line)
        if found is None:
            raise Wrong(f"the broker did not start: {(self.folder / 'log').read_text()[-2000:]}")
        self.ports = int(found[1]), int(found[2])

    def start_program(self, place: int) -> None:
        """Start a program under a name that none had before."""
        self.starts += 1
        words = ["-m", "tests.crash.transactions", "--program", f"p{self.starts}"]
        words += ["--namesrv", self.namesrv, "--folder", str(self.folder)]
        self._launch(f"program {place}", words)

    def _launch(self, name: str, words: list[str]) -> subprocess.Popen[str]:
        with (self.folder / "log").open("a") as log:
            process = self.processes[name] = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        return process

    def kill(self, name: str) -> None:
        """Kill one, and start it again."""
        end(self.processes[name], signal.SIGKILL)
        self.kills[name.partition(" ")[0]] += 1
        if name == "broker":
            self.start_broker()
        else:
            self.start_program(int(name.partition(" ")[2]))

    def stop(self) -> None:
        """End all that runs."""
        for process in self.processes.values():
            if process.poll() is None:
                end(process, signal.SIGKILL)
            if process.stdout is not None:
                process.stdout.close()


def _read_line(process: subprocess.Popen[str], seconds: float) -> str:
    found: list[str] = []
    stream = process.stdout
    assert stream is not None
    reader = threading.Thread(target=lambda: found.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return found[0] if found else ""


def wait(what: str, seconds: float, done: Callable[[], bool]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise Wrong(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def pending(namesrv: str) -> int:
    """Return how many transactions have no outcome."""
    with inorder.Admin(namesrv) as admin:
        return sum(one.total for one in admin.cluster.transactions().values())


def consumed(namesrv: str) -> list[list[dict[str, str]]]:
    """Return the messages of each queue, in order."""
    with inorder.PullConsumer(namesrv, group="judges", consume_from="first") as consumer:
        return [
            [json.loads(message.body) for message in consumer.pull_all(queue)]
            for queue in consumer.queues(TOPIC, wait=10)
        ]


def judge(
    paid: set[str], queues: list[list[dict[str, str]]], book: dict[str, tuple[int, int]]
) -> list[str]:
    """Return what is wrong."""
    count = Counter(one["id"] for queue in queues for one in queue)
    wrong = []
    if lost := sorted(paid - count.keys()):
        wrong.append(f"{len(lost)} paid and without a message: {lost[:5]}")
    if extra := sorted(count.keys() - paid):
        wrong.append(f"{len(extra)} with a message and not paid: {extra[:5]}")
    if twice := sorted(id_ for id_, times in count.items() if times > 1):
        wrong.append(f"{len(twice)} with several messages: {twice[:5]}")
    newest_sent: dict[str, tuple[int, str]] = {}
    for queue in queues:
        for one in queue:
            id_, key = one["id"], one["key"]
            sent, answered = book.get(id_, (0, 0))
            before, other = newest_sent.get(key, (0, ""))
            if answered and answered < before:
                wrong.append(f"{id_} was committed before {other} was, and lies behind it: {key}")
            if answered:
                newest_sent[key] = max(newest_sent.get(key, (0, "")), (sent, id_))
    return wrong


def read_book(folder: Path) -> dict[str, tuple[int, int]]:
    """Return when each answered commit was sent and answered; the last line may be torn."""
    book = {}
    for line in (folder / "book.jsonl").read_text().splitlines():
        with suppress(json.JSONDecodeError):
            entry = json.loads(line)
            book[entry["id"]] = entry["sent"], entry["answered"]
    return book


def run(kills: int, seed: int, folder: Path, flush: str) -> None:
    """Kill, start again, and judge. Raises Wrong."""
    draw = random.Random(seed)
    crew = Crew(folder, flush)
    began = time.monotonic()
    try:
        crew.start_broker()
        with inorder.Admin(crew.namesrv) as admin:
            admin.topics.create(TOPIC, queues=4)
        for place in range(PROGRAMS):
            crew.start_program(place)
        time.sleep(1.5)
        for _ in range(kills):
            time.sleep(draw.uniform(0.2, 1.2))
            broker = draw.random() < BROKER_RATIO
            crew.kill("broker" if broker else f"program {draw.randrange(PROGRAMS)}")
        time.sleep(1)
        (folder / "stop").touch()
        time.sleep(1)
        wait("every half is resolved", RESOLVED_S, lambda: not pending(crew.namesrv))
        (folder / "resolved").touch()
        for name, process in crew.processes.items():
            if name != "broker":
                process.wait(30)
        crew.kill("broker")  # what it knows now comes from its files
        if pending(crew.namesrv):
            raise Wrong("a transaction is pending again after a restart")
        ledger, book = Ledger(folder / "ledger.db"), read_book(folder)
        paid, queues = ledger.paid(), consumed(crew.namesrv)
        wrong = judge(paid, queues, book)
        print(
            f"{flush}: kills={dict(crew.kills)} paid={len(paid)} "
            f"messages={sum(map(len, queues))} begun={len(book)} "
            f"seconds={time.monotonic() - began:.0f} wrong={len(wrong)}",
            flush=True,
        )
        if wrong:
            raise Wrong("; ".join(wrong[:5]))
        if len(paid) < kills:
            raise Wrong(f"only {len(paid)} transactions: that shows nothing")
    finally:
        crew.stop()


def main() -> None:
    """Run the proof, or one program of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--flush", default="", help="SYNC_FLUSH or ASYNC_FLUSH; both if not given")
    parser.add_argument("--program", default="")
    parser.add_argument("--namesrv", default="")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.program:
        program(given.namesrv, given.folder, given.program)
        return
    modes = [given.flush] if given.flush else ["ASYNC_FLUSH", "SYNC_FLUSH"]
    for number, mode in enumerate(modes):
        folder = Path(tempfile.mkdtemp(prefix="inorder-transactions-"))
        try:
            run(given.kills // len(modes), given.seed + number, folder, mode)
        except Wrong as error:
            print(f"WRONG: {error}\nsee {folder}")
            sys.exit(1)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
