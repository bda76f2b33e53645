"""A backup of a real broker under load, restored elsewhere, and judged by the order checker.

Also: `kill -9` of the backup itself, again and again, beside the same load.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import inorder
from inorder import checker
from tests.integration.test_flapping_process import first_line, process

pytestmark = pytest.mark.slow

SETTINGS = (
    "--set", "mappedFileSizeCommitLog=262144", "--set", "mappedFileSizeConsumeQueue=20000",
    "--set", "maxHashSlotNum=2000", "--set", "maxIndexNum=8000", "--set", "maxMessageSize=65536",
    "--log-level", "warning",
)  # fmt: skip
KEYS = 20
LATER = 10**6
BODY = b"x" * 200


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of inorder to its end."""
    return subprocess.run(
        [sys.executable, "-m", "inorder.cli.main", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


class Load:
    """A producer in a thread, and what was acknowledged, in order."""

    def __init__(self, namesrv: str) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self._namesrv = namesrv
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with inorder.Producer(self._namesrv) as producer:
            while not self._ended.is_set():
                futures = []
                for _ in range(50):
                    key = f"k{number % KEYS}"
                    body = b"%d %s" % (number, BODY)
                    futures.append((key, number, producer.send_nowait("orders", body, key=key)))
                    number += 1
                for key, sent, future in futures:
                    future.result(30)
                    self.acknowledged.append((key, sent))
                self._ended.wait(0.03)

    def wait(self, count: int) -> None:
        """Wait for so many more messages."""
        goal, ends = len(self.acknowledged) + count, time.monotonic() + 60
        while len(self.acknowledged) < goal:
            assert self._thread.is_alive()
            assert time.monotonic() < ends
            time.sleep(0.01)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(60)


def test_a_backup_under_load_holds_all_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    """Killed backups beside the load count for nothing; the whole ones are restored and checked."""
    drawn = random.Random(19)
    target, fresh = str(tmp_path / "safe"), tmp_path / "fresh"
    up = ("-m", "inorder.cli.main", "up", "--namesrv-port", "0", "--broker-port", "0", *SETTINGS)
    with process(*up, "--data", str(tmp_path / "d"), cwd=tmp_path) as broker:
        namesrv = first_line(broker, "ready ")["namesrv"]
        load = Load(namesrv)
        load.wait(1500)
        for _ in range(3):
            killed = subprocess.Popen(
                [sys.executable, "-m", "inorder.cli.main", "backup", str(tmp_path / "d"), target]
            )
            time.sleep(drawn.uniform(0.2, 0.9))
            killed.kill()
            killed.wait()
        before = list(load.acknowledged)
        taken = command("backup", str(tmp_path / "d"), target, "-o", "json")
        assert taken.returncode == 0, taken.stderr
        load.wait(500)
        later = list(load.acknowledged)
        again = command("backup", str(tmp_path / "d"), target, "-o", "json")
        assert again.returncode == 0, again.stderr
        load.stop()
        broker.kill()
    number = int(Path(json.loads(taken.stdout)["path"]).name)
    for backup, expected in ((f"{number:06d}", before), (f"{number + 1:06d}", later)):
        data = fresh / backup
        made = command(
            "restore", f"{target}/{backup}", str(data), "--above-version", "3",
            *SETTINGS[:-2],
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        deep = command("check", "--deep", str(data), "-o", "json")
        assert deep.returncode == 0, deep.stdout
        with process(*up, "--data", str(data), cwd=tmp_path) as restored:
            judge(first_line(restored, "ready ")["namesrv"], expected)


def judge(namesrv: str, acknowledged: list[tuple[str, int]]) -> None:
    """Send some more, handle all, and let the checker compare."""
    sent = list(acknowledged)
    events: list[checker.Handled] = []
    with inorder.Producer(namesrv) as producer:
        for number in range(LATER, LATER + KEYS):
            producer.send("orders", b"%d " % number, key=f"k{number % KEYS}")
            sent.append((f"k{number % KEYS}", number))
    wanted = {f"k{number % KEYS}" for number in range(KEYS)}
    done = threading.Event()
    consumer = inorder.Consumer(namesrv, group="audit", consume_from="first")

    @consumer.on("orders", order="queue")
    def handle(message: inorder.ReceivedMessage) -> None:
        number, now_ns = int(message.body.split()[0]), time.monotonic_ns()
        events.append(
            checker.Handled(
                "c", str(message.queue), message.offset, str(number), message.key, now_ns,
                now_ns + 1, checker.HandledResult.DONE, None, message.fence.sequence,
            )
        )  # fmt: skip
        if number >= LATER:
            wanted.discard(str(message.key))
            if not wanted:
                done.set()

    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    try:
        assert done.wait(60), f"missing of {wanted}"
    finally:
        consumer.close()
        thread.join(60)
    last: dict[str | None, int] = {}
    for event in events:
        assert event.fence is not None
        assert event.fence > last.get(event.key, -1), f"the fence of {event.key} goes back"
        last[event.key] = event.fence
    known = {number for _, number in sent}
    extra = {(event.key, int(event.id)) for event in events if int(event.id) not in known}
    results = [(key, number, checker.SentResult.OK) for key, number in sent]
    # Sent while the backup was taken: it may be there or not.
    results += [(str(key), number, checker.SentResult.UNKNOWN) for key, number in sorted(extra)]
    sends = [checker.Sent("p", key, number, str(number), result) for key, number, result in results]
    report = checker.check([*sends, *events], rules=checker.Rules())
    assert report.ok, report
