"""Bit rot: one file of a data directory is damaged, the broker started, everything consumed.

Each case follows from its seed: messages are sent and handled, the broker stops or is killed, one
file is zeroed, flipped, cut, removed or swapped with an older copy, the broker starts again, more
is sent. Then a group that had come to the end and one that begins consume it all. The judge wants:

- each acknowledged message has its effect, once, in both groups; or *its* loss was reported:
  `losses.json` names its queue and offset, or positions of the log, or the broker refuses to start
  and says why; or it waits, in its queue, at or behind a damaged message that the client names;
- no message that is sent after the damage is refused by its fence, and epochs do not go back.

    python -m tests.rot.rotting --seed 7          one case
    python -m tests.rot.rotting --cases 5000      many; --seconds 60 ends them early
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from inorder.broker.damage.storage import Reported
from inorder.client.consume.consumer import Consumer
from inorder.client.send.producer import Producer
from inorder.config import BrokerConfig, StoreConfig
from inorder.errors import InorderError
from inorder.model import ReceivedMessage, TopicConfig
from tests.kit.disk import FakeFiles
from tests.kit.simcluster import BROKER_HOST, SimCluster
from tests.kit.simloop import Node, SimLoop, run

TOPIC = "orders"
QUEUES = 2
DATA = Path("/data")
KINDS = ("zeroed", "flipped", "cut", "removed", "swapped")
HARMLESS = frozenset({"lock", "losses.json", "losses.json.bak"})
"""Files that say nothing that a broker goes by."""
STORE = StoreConfig(
    segment_bytes=16 * 1024, queue_file_bytes=400, index_slots=50, index_entries=400
)
CORRUPT = re.compile(
    r"the message of orders/[^/]+/(\d+) at offset (\d+), .* is damaged: record at "
)
"""A client says so of a message whose body has another checksum or whose lengths do not add up, and
keeps asking: nothing behind it is handed out before."""
PATIENCE_S = 120.0
"""Simulated seconds in which all has to be handled."""


@dataclass
class Group:
    """A consumer that applies an effect only if its fence is above the last of its key."""

    name: str
    last: dict[str, int] = field(default_factory=dict)
    applied: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def handle(self, message: ReceivedMessage) -> None:
        """Apply a message."""
        fence, key = message.fence, message.key or ""
        if fence.sequence is None or fence.epoch is None:
            self.problems.append(f"{message.body!r} has no fence")
            return
        if fence.epoch < self.epochs.get(message.queue.index, 0):
            self.problems.append(f"the epoch of queue {message.queue.index} went back")
        self.epochs[message.queue.index] = fence.epoch
        if fence.sequence > self.last.get(key, -1):
            self.last[key] = fence.sequence
            self.applied.append(message.body)
        else:
            self.refused.append(message.body)


@dataclass
class Verdict:
    """What became of a case."""

    seed: int
    damage: str = ""
    outcome: str = ""
    problems: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        state = "FAILED" if self.problems else "ok"
        lines = [f"seed {self.seed}: {state}, {self.damage}: {self.outcome}"]
        return "\n  ".join([*lines, *self.problems, *(self.said[:8] if self.problems else ())])


class _Ears(logging.Handler):
    """Hears what is said at ERROR, and of messages that are not what was sent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said = f"{record.name}: {record.getMessage()}"[:300]
        if record.levelno >= logging.ERROR or CORRUPT.search(said):
            self.heard.append(said)


def play(seed: int, *, only: str = "", kind: str = "") -> Verdict:
    """Play and judge one case; `only` is a part of the name of the file to damage."""
    ears = _Ears()
    logger = logging.getLogger("inorder")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(ears)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        case = Case(seed, only=only, kind=kind)
        run(case.play, seed)
        case.verdict.said = ears.heard
        case.judge()
        return case.verdict
    finally:
        logger.removeHandler(ears)
        logger.setLevel(level)
        logger.propagate = propagates


class Case:
    """One case, from its seed."""

    def __init__(self, seed: int, *, only: str = "", kind: str = "") -> None:
        self.random = Random(seed)
        self.verdict = Verdict(seed)
        self._only = only
        self._kind = kind
        self.old = Group("old")
        self.late = Group("late")
        self.before: list[bytes] = []
        self.after: list[bytes] = []
        self._refused = False
        self._places: dict[bytes, tuple[int, int]] = {}
        """The queue and the offset that the producer was told of each message."""
        self._ends: dict[bytes, int] = {}
        """Where the record of each message ends in the log."""
        self.losses: list[Reported] = []

    async def play(self, loop: SimLoop) -> None:
        """Send, damage, send, consume."""
        config = BrokerConfig(store=STORE)
        cluster = SimCluster(loop, broker=config)
        await cluster.start()
        node, session = await cluster.client()
        api = await session.broker_at(f"{BROKER_HOST}:10911")
        await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
        producer = Producer(session)
        nodes = [await self._consume(cluster, self.old)]
        first = self.random.randint(5, 60)
        await self._send(cluster, producer, self.before, first)
        await self._settle(self.old, first)
        older = cluster.disk.kill()
        if self.random.random() < 0.5:
            await self._restart(cluster, lambda _files: None)
        await self._send(cluster, producer, self.before, self.random.randint(1, 60))
        if self.random.random() < 0.8:
            await self._settle(self.old, len(self.before))
        try:
            await self._restart(cluster, lambda files: self._damage(files, older))
        except InorderError as error:
            self._refused = True
            self.verdict.outcome = f"refused to start: {error}"
            return
        nodes.append(await self._consume(cluster, self.late))
        await self._send(cluster, producer, self.after, 20)
        total = len(self.before) + len(self.after)
        await self._settle(self.old, total)
        await self._settle(self.late, total)
        self.losses = list(cluster.broker.losses.reported)
        for one, consumer in nodes:
            await one.run(consumer.close())
        await producer.close()
        await session.close()
        await cluster.stop()
        del node

    async def _consume(self, cluster: SimCluster, group: Group) -> tuple[Node, Consumer]:
        node, session = await cluster.client()
        consumer = Consumer(session, group=group.name, consume_from="first")

        @consumer.on(TOPIC, order="queue")
        async def handle(message: ReceivedMessage) -> None:
            group.handle(message)

        await node.run(consumer.start())
        return node, consumer

    async def _send(
        self, cluster: SimCluster, producer: Producer, sent: list[bytes], count: int
    ) -> None:
        for _ in range(count):
            number = len(self.before) + len(self.after)
            body = b"%d " % number + self.random.randbytes(self.random.randrange(200))
            receipt = await producer.send(TOPIC, body, key=f"k{number % 5}", timeout=60)
            sent.append(body)
            end = cluster.broker.store.log.end_position
            self.note(body, queue=receipt.queue.index, offset=receipt.offset, end=end)

    def note(self, body: bytes, *, queue: int, offset: int, end: int) -> None:
        """Note where a message is stored, and where its record ends in the log."""
        self._places[body] = queue, offset
        self._ends[body] = end

    async def _settle(self, group: Group, count: int) -> None:
        """Wait until so many have their effect, or nothing more comes."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + PATIENCE_S
        while len(group.applied) < count and loop.time() < ends:  # noqa: ASYNC110 - simulated
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.random.choice((0.1, 1.5, 6, 12)))

    async def _restart(self, cluster: SimCluster, damage: object) -> None:
        if self.random.random() < 0.5:
            await cluster.brokers[0].stop()
            state = "stopped"
        else:
            cluster.kill_broker()
            state = "killed"
        assert callable(damage)
        what = damage(cluster.disk)
        if what:
            self.verdict.damage = f"{state}, {what}"
        await cluster.start_broker()

    def _damage(self, files: FakeFiles, older: FakeFiles) -> str:
        paths = [path for path in map(Path, sorted(files.tree())) if self._is_file(files, path)]
        if not paths:
            return "no such file"
        path = self.random.choice(paths)
        kinds = [self._kind] if self._kind else [
            kind for kind in KINDS if kind != "swapped" or older.exists(path)
        ]  # fmt: skip
        kind = self.random.choice(kinds)
        size = len(files.read(path))
        start = self.random.randrange(max(1, _used(files.read(path))))
        length = self.random.choice((1, 20, 200, size))
        if kind == "removed" or not size:
            files.remove(path)
            return f"{path} removed"
        if kind == "swapped" and older.exists(path):
            content = older.read(path)
            _set_size(files, path, len(content))
            files.write(path, content)
            return f"{path} swapped with an older copy of {len(content)} bytes"
        if kind == "cut":
            _set_size(files, path, start)
            return f"{path} cut to {start} of {size} bytes"
        old = files.read(path)[start : start + length]
        if kind == "zeroed":
            files.write(path, bytes(len(old)), start)
            return f"{path} zeroed from {start}, {len(old)} bytes"
        at = start + self.random.randrange(len(old))
        files.write(path, bytes([files.read(path)[at] ^ 1 << self.random.randrange(8)]), at)
        return f"{path} flipped at {at}"

    def _is_file(self, files: FakeFiles, path: Path) -> bool:
        if files.is_dir(path) or path.name in HARMLESS or DATA not in path.parents:
            return False
        return self._only in str(path)

    def judge(self) -> None:
        """Say what is wrong."""
        verdict = self.verdict
        if self._refused:
            return
        damaged = {
            (int(found[1]), int(found[2]))
            for line in verdict.said
            if (found := CORRUPT.search(line))
        }
        named = bool(self.losses or damaged)
        verdict.outcome = "reported" if named else "all there"
        for group in (self.old, self.late):
            counts = Counter(group.applied)
            twice = [body for body, count in counts.items() if count > 1]
            missing = [body for body in (*self.before, *self.after) if body not in counts]
            silent = [body for body in missing if not self._is_excused(body, damaged)]
            fenced = [body for body in self.after if body in group.refused and body not in counts]
            verdict.problems += group.problems
            if twice:
                verdict.problems.append(f"{group.name}: {len(twice)} effects came twice")
            if silent:
                places = sorted(self._places[body] for body in silent)
                verdict.problems.append(
                    f"{group.name}: {len(silent)} messages lost, not reported: {places[:5]}"
                )
            if fenced:
                verdict.problems.append(
                    f"{group.name}: {len(fenced)} new messages refused by their fence"
                )
            if missing and not silent:
                verdict.outcome = f"{len(missing)} lost, reported"

    def _is_excused(self, body: bytes, damaged: set[tuple[int, int]]) -> bool:
        """Return whether a report names the message, or it waits behind a damaged one."""
        queue, offset = self._places[body]
        for loss in self.losses:
            gone = range(loss.low, loss.high)
            if not loss.topic and self._ends[body] - 1 in gone:
                return True
            if (loss.topic, loss.queue_id) == (TOPIC, queue) and offset in gone:
                return True
        return any(queue == place[0] and offset >= place[1] for place in damaged)


def _used(data: bytes) -> int:
    """Return up to where a file holds something."""
    return len(data.rstrip(b"\0"))


def _set_size(files: FakeFiles, path: Path, size: int) -> None:
    file = files.open(path)
    file.truncate(size)
    file.close()


def main(arguments: list[str]) -> int:
    """Play cases and print how they went."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, help="one case")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--only", default="", help="a part of the name of the damaged file")
    parser.add_argument("--kind", default="", choices=("", *KINDS))
    given = parser.parse_args(arguments)
    if given.seed is not None:
        verdict = play(given.seed, only=given.only, kind=given.kind)
        print(verdict, *verdict.said, sep="\n  ")
        return bool(verdict.problems)
    began, outcomes, failed = time.monotonic(), Counter[str](), 0
    for number, seed in enumerate(range(given.first, given.first + given.cases), 1):
        verdict = play(seed, only=given.only, kind=given.kind)
        outcomes[verdict.outcome.split(":", 1)[0].lstrip("0123456789 ")] += 1
        if verdict.problems:
            failed += 1
            print(verdict, flush=True)
        if number % 100 == 0:
            print(f"{number} cases, {time.monotonic() - began:.0f} s, {failed} failed", flush=True)
        if time.monotonic() - began > given.seconds:
            break
    print(f"{number} cases, {time.monotonic() - began:.0f} s: {failed} failed;", dict(outcomes))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
