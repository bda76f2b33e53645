"""Programs that end without closing what they opened: outcomes come, or their lack is said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import inorder
import inorder.testing
from inorder.testing import RunningBroker

pytestmark = pytest.mark.slow

COUNT = 3000

SENDS = """
import inorder

def job():
    producer = inorder.Producer()
    for number in range(3000):
        producer.send_nowait("orders", b"%d" % number, key=f"k{number % 7}")
    globals()["kept"] = producer
"""

ENDINGS = {
    "main": SENDS + "job()\n",
    "exit": SENDS + "import sys\njob()\nsys.exit()\n",
    "error": SENDS + "job()\nraise SystemExit(0)\n",
    "fork": SENDS
    + """
import os, sys, warnings
# From 3.12 on Python warns of every fork beside threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
first = inorder.Producer()
first.send("others", b"from the parent")
child = os.fork()
if child == 0:
    job()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
first.send("others", b"from the parent again")
""",
    "multiprocessing": SENDS
    + """
import multiprocessing
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        child = context.Process(target=job)
        child.start()
        child.join()
        assert child.exitcode == 0
        if method == "fork":
            with inorder.PullConsumer(group="g") as reader:
                seen = sum(1 for q in reader.queues("orders") for _ in reader.pull_all(q))
            assert seen == 3000, seen
""",
}


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=4)
        yield running


def program(broker: RunningBroker, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=120,
        check=False, env=os.environ | {"NAMESRV_ADDR": broker.namesrv},
    )  # fmt: skip


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_sends_that_nobody_waited_for_get_their_outcome(
    broker: RunningBroker, tmp_path: Path, ending: str
) -> None:
    """Thousands of send_nowait and the end: each message is stored, those of a key in order."""
    done = program(broker, tmp_path, ENDINGS[ending])
    assert (done.returncode, done.stderr) == (0, "")
    stored = [int(message.body) for message in broker.messages("orders")]
    times = 2 if ending == "multiprocessing" else 1
    assert sorted(stored) == sorted(list(range(COUNT)) * times)


def test_a_consumer_that_is_left_open_commits_what_it_has_done(
    broker: RunningBroker, tmp_path: Path
) -> None:
    """The end of the program stops it: handlers end and count, the group is left."""
    with broker.producer() as producer:
        for number in range(500):
            producer.send("orders", b"%d" % number, key=f"k{number % 7}")
    done = program(
        broker,
        tmp_path,
        """
import threading, time
import inorder

consumer, enough = inorder.Consumer(group="g", consume_from="first"), threading.Event()
producer, count = inorder.Producer(), 0

@consumer.on("orders")
def handle(message):
    time.sleep(0.001)
    producer.send_nowait("shipped", message.body, key=message.key)
    if message.offset == 20:
        enough.set()

consumer.start()
enough.wait(60)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    handled = len(broker.messages("shipped"))
    with inorder.Admin(broker.namesrv) as admin:
        committed = sum(each.committed_offset or 0 for each in admin.offsets.get("g", "orders"))
        members = [each.connections for each in admin.groups.consumers("g").values()]
    assert committed == handled > 20
    assert not any(members)


@pytest.mark.parametrize("closes", [False, True])
def test_sends_that_have_no_outcome_are_said_to_be_lost(
    broker: RunningBroker, tmp_path: Path, closes: bool
) -> None:
    """The broker goes away for good: the program says at its end how many are lost, and why."""
    text = """
import sys
import inorder

config = inorder.ClientConfig(send_timeout_ms=500)
producer = inorder.Producer(config=config)
producer.send("orders", b"first", key="k")
print("go", flush=True)
sys.stdin.readline()
for number in range(40):
    producer.send_nowait("orders", b"%d" % number, key="k")
"""
    script = tmp_path / "program.py"
    script.write_text(text + ("producer.close()\n" if closes else ""))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"NAMESRV_ADDR": broker.namesrv},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        broker.kill()
        _, errors = process.communicate("go\n", timeout=120)
    finally:
        process.kill()
        process.wait()
    assert "40 messages of send_nowait failed" in errors
    assert process.returncode == (1 if closes else 0)
