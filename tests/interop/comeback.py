"""A16 with a real Java consumer: it is stopped, its queues move, and it comes back.

    python -m tests.interop.comeback          (part of make proof-handover)

stops it for 125 s, its connections open: then RocketMQ's rules count it as gone. `make interop` has
its connections closed in the moment in which it is stopped, which takes half of that. The committed
offsets are read all the time: none goes back.

Messages still come twice: a Java client that gets its lock again goes on with what it has cached,
and pulls from where it was (O25). That is its own doing; the group's offset does not follow it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.interop.grounds import Ground
from tests.interop.handover import FIRST, JAVA_5, OURS, SECOND, WAIT_S, Pair, now_us
from tests.interop.rawclient import RawClient
from tests.interop.stage import Background, Stage
from tests.interop.stock import QUEUES, running

FROZEN_S = 125.0
"""A broker forgets a client of which it has not heard for 120 s."""
BACK_S = 45.0
"""How long it is watched: it commits every 5 s and rebalances every 20 s."""


class Offsets(Background):
    """What a group has committed on each queue, read again and again; `back` is what went back."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        super().__init__(address)
        self.topic = topic
        self.now: dict[int, int] = {}
        self.back: list[tuple[int, int, int]] = []
        self.reads = 0

    def talk(self, raw: RawClient) -> None:
        """Read the offsets after each pause."""
        while not self.ending.wait(0.02):
            for queue in range(QUEUES):
                offset = raw.committed(self.topic, self.topic, queue)
                if offset is None:
                    continue
                if offset < self.now.get(queue, 0):
                    self.back.append((queue, self.now[queue], offset))
                self.now[queue] = offset
                self.reads += 1


@dataclass(frozen=True)
class Outcome:
    """What became of it."""

    back: list[tuple[int, int, int]]
    """(queue, offset before, offset after) where an offset was lowered."""
    doubled: int
    committed: dict[int, int]


def come_back(ground: Ground, folder: Path, *, frozen_s: float) -> Outcome:
    """Let two consumers share the queues, stop one of them, and let it go on later.

    `frozen_s` 0: its connections are closed, and it goes on when the other one has all queues.
    """
    with ExitStack() as processes:
        first = processes.enter_context(running(JAVA_5, ground, folder / FIRST))
        stage = Stage(f"comeback-{time.monotonic_ns() % 10**9}", JAVA_5, first, processes, folder)
        second = stage.start(SECOND)
        pair = Pair(stage, first, second)
        stage.begin_at_zero()
        with stage.trickle() as trickle, Offsets(ground.address, stage.topic) as offsets:
            pair.push(first, FIRST)
            stage.wait(lambda: pair.alone(FIRST), "the first has all", WAIT_S)
            links, began_us = ground.relay.links(), now_us()
            pair.push(second, SECOND)
            stage.wait(pair.shared, "each has half", WAIT_S)
            second.driver.freeze()
            if frozen_s:
                time.sleep(frozen_s)
            else:
                ground.relay.cut(since=links)
            stage.wait(lambda: pair.alone(FIRST), "the first has all again", WAIT_S)
            second.driver.thaw()
            time.sleep(BACK_S)
            stage.wait(pair.flows, "every queue is handled", WAIT_S)
        stage.wait(lambda: pair.handled() >= set(range(trickle.sent)), "all is handled", WAIT_S)
        assert offsets.reads > QUEUES
        outcome = pair.outcome(began_us, trickle.sent)
        return Outcome(offsets.back, outcome.doubled, offsets.now)


def main() -> int:
    """Play the long one and print what was seen."""
    with tempfile.TemporaryDirectory(prefix="comeback-") as folder:
        ground = Ground(OURS, relayed=True)
        try:
            outcome = come_back(ground, Path(folder), frozen_s=FROZEN_S)
        finally:
            ground.stop()
    print(outcome)
    return 1 if outcome.back else 0


if __name__ == "__main__":
    sys.exit(main())
