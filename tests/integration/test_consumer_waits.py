"""A consumer that starts before its name server and broker: real processes, real signals."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import inorder

pytestmark = pytest.mark.slow

SERVICE = """
import logging, sys
import inorder

logging.basicConfig(level="WARNING", stream=sys.stdout, format="%(message)s")
consumer = inorder.Consumer(sys.argv[1], group="early", consume_from="first")


@consumer.on("orders")
def handle(message):
    print("handled", message.body.decode(), flush=True)
    consumer.close()


consumer.run()
print("ended", flush=True)
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Process:
    """A program and the lines that it prints."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip())

    def line_with(self, text: str) -> str:
        """Return the next line with this text; a minute is time enough on any machine."""
        while True:
            line = self._lines.get(timeout=60)
            if text in line:
                return line


@contextmanager
def running(*words: str, cwd: Path) -> Iterator[Process]:
    one = Process(*words, cwd=cwd)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(60)
        assert one.process.stdout is not None
        one.process.stdout.close()


def test_a_consumer_waits_for_name_server_broker_and_topic(tmp_path: Path) -> None:
    """It says so, and handles what is sent once they are there; nothing is to be restarted."""
    address = f"127.0.0.1:{free_port()}"
    with running("-c", SERVICE, address, cwd=tmp_path) as service:
        said = service.line_with("waits for a name server")
        assert "group=early" in said
        assert address in said
        server = (
            "-m", "inorder.cli.main", "up", "--host", "127.0.0.1",
            "--namesrv-port", address.split(":")[1],
            "--broker-port", "0", "--data", str(tmp_path / "data"),
        )  # fmt: skip
        with running(*server, cwd=tmp_path) as up:
            up.line_with("ready")
            service.line_with("waits for topic orders")
            with inorder.Producer(address) as producer:
                producer.send("orders", b"first", key="k")
            assert service.line_with("handled") == "handled first"
            service.line_with("ended")
            assert service.process.wait(60) == 0
            up.process.send_signal(signal.SIGTERM)
            assert up.process.wait(60) == 0


def test_sigterm_ends_a_consumer_that_waits(tmp_path: Path) -> None:
    """Cleanly, as at any other time."""
    address = f"127.0.0.1:{free_port()}"
    with running("-c", SERVICE, address, cwd=tmp_path) as service:
        service.line_with("waits for a name server")
        service.process.send_signal(signal.SIGTERM)
        service.line_with("ended")
        assert service.process.wait(60) == 0


def test_a_start_that_waits_ends_when_the_consumer_is_closed() -> None:
    """With AlreadyClosed, which says when."""
    consumer = inorder.Consumer(f"127.0.0.1:{free_port()}", group="early")
    consumer.on("orders")(lambda message: None)
    closer = threading.Timer(0.3, consumer.close)
    closer.start()
    with pytest.raises(inorder.errors.AlreadyClosed, match="while it started"):
        consumer.start()
    closer.join(60)
