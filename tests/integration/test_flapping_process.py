"""A15 with real processes: a broker that is killed every few seconds, and an owner that is dead.

Counted in lives of the broker, and by the leases that its own clock counts: a busy machine makes
lives longer, never more of them.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import inorder

pytestmark = pytest.mark.slow

LIFE_S = 3.0
LIVES_MAX = 12
"""The lease is of 5 s: with the second life it is over. A busy consumer may need some more."""
OWNER = """
import sys, time
import inorder

consumer = inorder.Consumer(sys.argv[1], group="billing", consume_from="first")

@consumer.on("orders", order="queue")
def handle(message):
    print("handling", flush=True)
    time.sleep(3600)

consumer.run()
"""


@contextlib.contextmanager
def process(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run Python; whatever happens, it is gone afterwards."""
    with (cwd / "stderr.txt").open("a") as log:
        child = subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()


def first_line(child: subprocess.Popen[str], starts_with: str) -> dict[str, str]:
    """Wait for a line and return what it says."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.startswith(starts_with), line
    return dict(re.findall(r"(\w+)=(\S+)", line))


def test_a_dead_owners_queue_moves_though_the_broker_is_killed_every_3_s(tmp_path: Path) -> None:
    """It took a life of the broker that is longer than the lease; now two short ones are enough."""
    got: list[bytes] = []
    names = ("-m", "inorder.cli.main", "nameserver", "--port", "0", "--data", str(tmp_path / "n"))
    with process(*names, cwd=tmp_path) as name_server:
        namesrv = first_line(name_server, "ready ")["namesrv"]

        def broker(port: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
            words = ("broker", "--namesrv", namesrv, "--port", port, "--data", str(tmp_path / "b"))
            return process("-m", "inorder.cli.main", *words, cwd=tmp_path)

        with broker("0") as first:
            port = first_line(first, "ready ")["broker"].rpartition(":")[2]
            with inorder.Admin(namesrv) as admin:
                admin.topics.create("orders", queues=1)
            with inorder.Producer(namesrv) as producer:
                producer.send("orders", b"one", key="k")
            with process("-c", OWNER, namesrv, cwd=tmp_path) as owner:
                first_line(owner, "handling")
                first.kill()  # before the owner: its end is not heard of
                first.wait()

        heir = inorder.Consumer(namesrv, group="billing", consume_from="first")

        @heir.on("orders", order="queue")
        def handle(message: inorder.ReceivedMessage) -> None:
            got.append(message.body)

        thread = threading.Thread(target=heir.run, daemon=True)
        thread.start()
        lives = 0
        try:
            while not got and lives < LIVES_MAX:
                with broker(port) as again:
                    first_line(again, "ready ")
                    lives += 1
                    ends = time.monotonic() + LIFE_S
                    while not got and time.monotonic() < ends:
                        time.sleep(0.02)
            assert got == [b"one"], f"nobody had the queue in {lives} lives of the broker"
        finally:
            with broker(port) as last:
                first_line(last, "ready ")
                heir.close()
                thread.join(60)
    print(f"the queue moved in life {lives} of the broker")
