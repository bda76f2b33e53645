"""Servers as processes under a small `ulimit -n`: connections never take what files need."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder import Admin, Producer
from tests.integration.test_serve_process import TIMEOUT_S, ready, stop

pytestmark = pytest.mark.slow

LIMIT = 256
IDLE = LIMIT + 50
FLUSH_ALL_S = 1


@contextlib.contextmanager
def limited(limit: int, *words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command that may have `limit` descriptors; it is gone afterwards."""
    code = (
        "import resource, sys; "
        "from inorder.broker import housekeeping; "
        f"housekeeping.FLUSH_ALL_MS = {FLUSH_ALL_S * 1000}; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit})); "
        "from inorder.cli.main import main; main()"
    )
    with (cwd / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def idle(address: str, count: int) -> list[socket.socket]:
    """Open connections that say nothing; the server may close some."""
    host, _, port = address.rpartition(":")
    return [socket.create_connection((host, int(port)), timeout=10) for _ in range(count)]


def still_open(sockets: list[socket.socket]) -> int:
    """Count those that the server has not closed."""
    count = 0
    for one in sockets:
        one.setblocking(False)
        try:
            count += one.recv(1) != b""
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


@pytest.mark.parametrize(
    ("server", "flush"), [("broker", "SYNC_FLUSH"), ("namesrv", "ASYNC_FLUSH")]
)
def test_idle_connections_do_not_stop_the_flush(tmp_path: Path, server: str, flush: str) -> None:
    """More idle connections than descriptors: sends go on, also when the files are flushed."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < IDLE + 100:
        pytest.skip("this process may not open enough connections")
    with limited(
        LIMIT, "up", "--namesrv-port", "0", "--broker-port", "0", "--data", "d",
        "--set", f"flushDiskType={flush}", cwd=tmp_path,
    ) as process:  # fmt: skip
        said = ready(process)
        with Admin(said["namesrv"]) as admin, Producer(said["namesrv"]) as producer:
            admin.topics.create("Wide", queues=64)
            producer.send("Wide", b"before", key="k")
            opened = idle(said[server], IDLE)
            try:
                ends = time.monotonic() + FLUSH_ALL_S * 2
                sent = 0
                while time.monotonic() < ends or sent <= 50:  # beyond the flush of everything
                    producer.send("Wide", b"x", key=f"k{sent}")
                    sent += 1
                    time.sleep(0.02)
                left = still_open(opened)
                assert LIMIT // 4 < left < LIMIT - LIMIT // 4
            finally:
                for one in opened:
                    one.close()
            producer.send("Wide", b"after", key="k")
        code, _, _ = stop(process)
    err = (tmp_path / "stderr").read_text()
    assert code == 0, err
    assert "CRITICAL" not in err
    assert "ERROR" not in err
    assert "kept for files" in err, "the refused connections are said"


@pytest.mark.parametrize(
    ("words", "limit", "needs"),
    [
        (("up", "--namesrv-port", "0", "--broker-port", "0"), 64, "needs 120"),
        (("broker", "--port", "0"), 64, "needs 120"),
        (("broker", "--port", "0"), 128, "needs 136"),
        (("nameserver", "--port", "0"), 48, "needs 64"),
    ],
)
def test_a_limit_that_is_too_small_is_refused(
    tmp_path: Path, words: tuple[str, ...], limit: int, needs: str
) -> None:
    """One line says how many there are and how many are needed; nothing is made on disk."""
    with limited(limit, *words, "--data", str(tmp_path / "d"), cwd=tmp_path) as process:
        out, _ = process.communicate(timeout=TIMEOUT_S)
    err = (tmp_path / "stderr").read_text()
    assert (process.returncode, out) == (2, ""), err
    besides = sum(said in err for said in ("registers nowhere", "slower than an install"))
    assert err.count("\n") == 1 + besides, err
    assert f"may open {limit} files and connections (ulimit -n) and {needs}" in err
    assert not (tmp_path / "d").exists()


def test_a_small_limit_that_is_enough_serves(tmp_path: Path) -> None:
    """160 descriptors: some dozen clients, many queues; a stop is clean."""
    with limited(
        160, "up", "--namesrv-port", "0", "--broker-port", "0", "--data", "d", cwd=tmp_path
    ) as process:
        said = ready(process)
        with Producer(said["namesrv"]) as producer:
            for number in range(200):
                producer.send(f"T{number % 20}", b"x", key=f"k{number}")
        assert stop(process, signal.SIGTERM)[0] == 0
    err = (tmp_path / "stderr").read_text()
    assert "ERROR" not in err
    assert "CRITICAL" not in err
