"""Processes that a warm one forks: what their asker would have started, and ended as that would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inorder.spark import warm

pytestmark = pytest.mark.slow

MODULE = """
import os, sys, time
print(os.getpid(), os.getppid(), flush=True)
print(sys.argv[1:], os.environ.get("WORD"), os.getcwd(), __name__, "colorsys" in sys.modules)
print("to stderr", file=sys.stderr)
print(sys.stdin.readline().strip(), flush=True)
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(7)
"""
WAIT_S = 20


class Warmed:
    """A warm process, and how to ask it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "asked.py").write_text(MODULE)
        (folder / "warm").mkdir()
        self.address = str(folder / "warm" / "s")
        self.environment = {
            **os.environ, "PYTHONPATH": f"{folder}:{Path(warm.__file__).parents[2]}",
            "PYTHONHASHSEED": "0",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inorder.spark.warm", self.address, "colorsys"],
            env=self.environment, stdin=subprocess.PIPE,
        )  # fmt: skip
        until(lambda: Path(self.address).exists())

    def ask(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start what Spark would start."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", warm.__file__, self.address, sys.executable,
             "-m", "asked", *words],
            env={**self.environment, "WORD": "here", **more}, cwd=self.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


def until(is_true: Callable[[], bool]) -> None:
    """Wait for something."""
    deadline_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it went in between
        return True


@pytest.fixture
def warmed(tmp_path: Path) -> Iterator[Warmed]:
    """Return a warm process that is ended as a driver ends it."""
    made = Warmed(tmp_path)
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    assert made.process.wait(WAIT_S) == 0
    assert not Path(made.address).parent.exists()


def test_a_process_is_forked(warmed: Warmed) -> None:
    """With streams, arguments, environment and folder of the asker, and its status comes back."""
    for _ in range(2):
        asker = warmed.ask("a b", "")
        out, errors = asker.communicate("hello\n", timeout=WAIT_S)
        first, *lines = out.splitlines()
        assert int(first.split()[1]) == warmed.process.pid
        assert lines == [f"['a b', ''] here {warmed.folder} __main__ True", "hello"]
        assert (errors, asker.returncode) == ("to stderr\n", 7)


@pytest.mark.parametrize(
    "more", [{"PYTHONPATH": "/elsewhere:{}"}, {"PYTHONHASHSEED": "5"}], ids=["path", "seed"]
)
def test_what_a_fork_cannot_be_is_started(warmed: Warmed, more: dict[str, str]) -> None:
    """Another search path, another hash seed: a new process, as ever."""
    asker = warmed.ask(**{name: word.format(warmed.folder) for name, word in more.items()})
    out, _ = asker.communicate("hello\n", timeout=WAIT_S)
    first, line, _ = out.splitlines()
    assert first.split()[0] == str(asker.pid)
    assert line.endswith("__main__ False")
    assert asker.returncode == 7


def test_without_a_warm_process_one_is_started(tmp_path: Path) -> None:
    """Its socket is there, and nobody listens."""
    warmed = Warmed(tmp_path)
    with warmed.process:
        warmed.process.kill()
    asker = warmed.ask()
    out, _ = asker.communicate("hello\n", timeout=WAIT_S)
    assert out.split()[0] == str(asker.pid)


def test_a_process_ends_with_its_asker(warmed: Warmed) -> None:
    """Spark ends what it has started, gently or not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        asker = warmed.ask("wait")
        assert asker.stdin is not None
        assert asker.stdout is not None
        asker.stdin.write("hello\n")
        asker.stdin.flush()
        pid = int(asker.stdout.readline().split()[0])
        assert pid != asker.pid
        asker.send_signal(number)
        asker.communicate(timeout=WAIT_S)
        until(lambda: is_gone(pid))  # noqa: B023 - called at once


def test_a_bad_request_harms_nobody(warmed: Warmed) -> None:
    """Askers that go, say nothing of use, or want no module."""
    import socket

    for words in (b"", b"\x00\x00\x00\x05nojso", b"\x00\x00\x00\x02{}", b"\x00\x00"):
        with socket.socket(socket.AF_UNIX) as asker:
            asker.connect(warmed.address)
            asker.sendall(words)
            asker.shutdown(socket.SHUT_WR)
            assert asker.recv(1) == b""
    asker = warmed.ask()
    asker.communicate("hello\n", timeout=WAIT_S)
    assert asker.returncode == 7
