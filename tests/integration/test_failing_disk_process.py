"""A broker process whose disk fails for a while: what its users see, and what it says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import inorder
from inorder.errors import InorderError, ServiceNotAvailable
from tests.integration.test_serve_process import ready, stop

pytestmark = pytest.mark.slow

CODE = """
import os, sys
control, real = sys.argv.pop(1), os.fdatasync
def fdatasync(fd):
    if os.path.exists(control) and "/inorder/owners" in os.readlink(f"/proc/self/fd/{fd}"):
        raise OSError(5, "Input/output error")
    real(fd)
os.fdatasync = fdatasync
from inorder.broker.leases import storage
storage.HEAL_RETRY_MS = 300
from inorder.cli.main import main
main()
"""


def until(condition: Callable[[], bool]) -> None:
    """Wait for something to happen."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_failed_sync_of_the_owners_stops_and_goes_on_without_a_restart(
    tmp_path: Path, flush: str
) -> None:
    """Sends are refused, nothing is handled; then all goes on, each once and in order."""
    control, errors = tmp_path / "broken", tmp_path / "stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [
                sys.executable, "-c", CODE, str(control), "up", "--namesrv-port", "0",
                "--broker-port", "0", "--data", "d", "--set", f"flushDiskType={flush}",
            ],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
            text=True,
        )  # fmt: skip
    try:
        namesrv = ready(process)["namesrv"]
        got: list[int] = []
        consumer = inorder.Consumer(namesrv, group="g", consume_from="first")

        @consumer.on("T", order="key")
        def handle(message: inorder.ReceivedMessage) -> None:
            got.append(int(message.body))

        with inorder.Producer(namesrv) as producer:
            _send(producer, 0)
            with consumer:
                until(lambda: len(got) == 20)
                control.touch()
                broken = 20
                with pytest.raises(ServiceNotAvailable, match="in doubt"):
                    for _ in range(400):  # commits of what is handled meet the disk
                        producer.send("T", b"%d" % broken, key="k", timeout=2)
                        broken += 1
                        time.sleep(0.05)
                time.sleep(1)  # it tries to heal, in vain
                with pytest.raises(InorderError):
                    producer.send("T", b"-1", key="k", timeout=1)
                control.unlink()
                until(lambda: _taken(producer, broken))
                until(lambda: got[-1] == broken)
                _send(producer, broken + 1)
                until(lambda: got[-1] == broken + 20)
        assert list(dict.fromkeys(got)) == list(range(broken + 21))
        assert stop(process)[0] == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    said = errors.read_text()
    assert said.count("CRITICAL") == 1, said
    assert said.count("taken again") == 1
    assert "takes writes again" not in said


def _send(producer: inorder.Producer, first: int) -> None:
    for number in range(first, first + 20):
        producer.send("T", b"%d" % number, key="k")


def _taken(producer: inorder.Producer, number: int) -> bool:
    try:
        producer.send("T", b"%d" % number, key="k", timeout=2)
    except ServiceNotAvailable:
        return False
    return True
