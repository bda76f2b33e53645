"""A consumer that is stopped, as users stop one: processes, signals, `with`, `close` in a handler.

When `run`, `close` or `with` comes back, every handler that began has ended, what is done is
committed, the queues are free and the group is left. A handler writes a letter when it begins and
one when it ends; the group's offsets are compared with them. `INORDER_STOPS=200` makes 200 rounds
of each.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import inorder
import inorder.testing
from inorder.testing import RunningBroker

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("INORDER_STOPS", "3"))
MESSAGES = 8000
WAIT_S = 60

SERVICE = """
import os, sys, threading
import inorder

effects = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
consumer = inorder.Consumer(group=sys.argv[2], consume_from="first")
producer = inorder.Producer()

@consumer.on("orders")
def handle(message):
    os.write(effects, b"b")
    producer.send("shipped", message.body, key=message.key)
    os.write(effects, b"e")
    # the end

def returned():
    os.write(effects, b"|")
"""

RUN = """
consumer.run()
returned()
producer.close()
"""

STOPS_ITSELF = """
    if message.offset == int(sys.argv[3]):
        consumer.close()
        os.write(effects, b"c")
"""

PROGRAMS = {
    "run": SERVICE + RUN,
    "with": SERVICE
    + """
stop = threading.Event()
import signal
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with consumer:
    while not stop.wait(0.05):
        pass
returned()
producer.close()
""",
    "handler": SERVICE.replace("    # the end", STOPS_ITSELF) + RUN,
    "command": SERVICE,
}


@dataclass(frozen=True)
class Ended:
    """What a program left behind."""

    code: int
    begun: int
    ended: int
    begun_after_close: int
    after: str
    committed: int
    members: int
    errors: str


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=4)
        running.create_topic("shipped", queues=4)
        with running.producer() as producer:
            for first in range(0, MESSAGES, 500):
                producer.send_batch(
                    [
                        inorder.Message("orders", b"%d" % number, key=f"k{number % 97}")
                        for number in range(first, first + 500)
                    ]
                )
        yield running


def play(broker: RunningBroker, folder: Path, kind: str, round_: int) -> Ended:
    """Run a program, stop it at a random moment, and see what it left behind."""
    rng = random.Random(f"{kind} {round_}")
    group, effects = f"{kind}-{round_}", folder / f"{kind}-{round_}.effects"
    script = folder / f"service_{kind}.py"
    script.write_text(PROGRAMS[kind])
    words = [str(script), str(effects), group, str(rng.randrange(20, 400))]
    if kind == "command":
        text = (
            PROGRAMS[kind]
            .replace("sys.argv[1]", repr(words[1]))
            .replace("sys.argv[2]", repr(group))
        )
        (folder / f"module_{round_}.py").write_text(text)
        words = ["-m", "inorder.cli.main", "consume", f"module_{round_}:consumer",
                 "--log-level", "error"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *words], cwd=folder, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env=os.environ | {"NAMESRV_ADDR": broker.namesrv},
    )  # fmt: skip
    try:
        if kind != "handler":
            wanted, until = rng.randrange(50, 1500), time.monotonic() + WAIT_S
            while process.poll() is None and (
                not effects.exists() or effects.stat().st_size < wanted
            ):
                assert time.monotonic() < until, "nothing is handled"
                time.sleep(0.002)
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    before, _, after = effects.read_text().partition("|")
    with inorder.Admin(broker.namesrv) as admin:
        offsets = admin.offsets.get(group, "orders")
        members = sum(len(each.connections) for each in admin.groups.consumers(group).values())
    return Ended(
        process.returncode, before.count("b"), before.count("e"),
        before.partition("c")[2].count("b"), after,
        sum(max(0, each.committed_offset or 0) for each in offsets), members, errors,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["run", "with", "handler", "command"])
def test_when_it_returns_all_has_ended_and_is_committed(
    broker: RunningBroker, tmp_path: Path, kind: str
) -> None:
    """SIGTERM of a service whose handler sends; `with`; close in a handler; `inorder consume`."""
    bad = []
    for round_ in range(ROUNDS):
        one = play(broker, tmp_path, kind, round_)
        good = (
            one.code == 0
            and one.begun == one.ended == one.committed > 0
            and one.begun_after_close <= 3  # of each other queue one that was on its way
            and not one.after
            and not one.members
        )
        if not good:
            bad.append((round_, one))
    assert not bad, f"{len(bad)} of {ROUNDS}: {bad[:3]}"
