"""What the tests of Spark share: filled topics, stored messages, examples of pages, the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inorder
from inorder.model import Message, ReceivedMessage

SOURCES = Path(__file__).resolve().parents[2] / "src"


def fill(namesrv: str, count: int, *, topic: str = "orders", first: int = 0) -> None:
    """Send numbered messages of 20 keys with a property, some with a tag."""
    with inorder.Producer(namesrv) as producer:
        for start in range(first, first + count, 1000):
            producer.send_batch(
                [
                    Message(topic, f"{at}".encode(), key=f"order-{at % 20}",
                            tag="new" if at % 3 == 0 else "paid", keys=(f"n{at}",),
                            properties={"shop": f"s{at % 5}"})
                    for at in range(start, min(start + 1000, first + count))
                ]
            )  # fmt: skip


def stored(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """Return what a topic holds, queue by queue, in order."""
    with inorder.PullConsumer(namesrv, group="look") as consumer:
        return [
            message
            for queue in consumer.queues(topic, wait=5)
            for message in consumer.pull_all(queue, 0)
        ]


def examples(page: Path, language: str = "python") -> list[str]:
    """Return the examples of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def program(examples: list[str], namesrv: str, folder: Path) -> str:
    """Return examples as one program, with servers and folder of a test and without a session."""
    code = "\n".join(examples).replace('spark = session("local[2]")\n', "")
    return code.replace('"127.0.0.1:9876", "."', f"{namesrv!r}, {str(folder)!r}")


def check_in_order(messages: list[ReceivedMessage], count: int) -> None:
    """Assert that numbered messages are there once each, those of a key in their order."""
    assert sorted(int(message.body) for message in messages) == list(range(count))
    last: dict[str, int] = {}
    for message in messages:
        assert message.key is not None
        assert int(message.body) > last.get(message.key, -1)
        last[message.key] = int(message.body)


def forget_last_commit(checkpoint: Path) -> None:
    """Set a checkpoint back by a batch, as a kill before Spark's commit leaves it."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    newest = max(commits, key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)


def files_of(folder: Path, suffix: str) -> list[Path]:
    """Return the files below a folder that a job may be changing: what goes meanwhile is gone."""
    return [
        Path(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if name.endswith(suffix)
    ]


def command(*words: str) -> list[str]:
    """Return the command line of `inorder pipeline …`."""
    return [sys.executable, "-m", "inorder.cli.main", "pipeline", *words]


def environment() -> dict[str, str]:
    """Return the environment in which workers find the package."""
    return {**os.environ, "PYTHONPATH": str(SOURCES), "COLUMNS": "100"}


def kill_when(words: list[str], is_time: Callable[[], bool], log: Path) -> None:
    """Run a job in a process group of its own, and end it and its JVM at once (SIGKILL)."""
    with log.open("w") as out:
        process: Any = subprocess.Popen(
            words, env=environment(), stdout=out, stderr=out, start_new_session=True
        )
        deadline = time.monotonic() + 90
        try:
            while not is_time():
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
