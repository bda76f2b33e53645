"""A user's five minutes: the commands of the README, as they stand there, one after the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## Five minutes")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    """Return the examples of the section."""
    return re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)


@contextmanager
def terminal(command: str, folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command that goes on, as in a terminal of its own; end it with Ctrl-C."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=folder, env=env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.communicate()


def run(command: str, folder: Path, env: dict[str, str]) -> str:
    """Run a command to its end; return what it prints, without a word on stderr."""
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command], cwd=folder, env=env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


def test_the_commands_do_what_the_readme_shows(tmp_path: Path) -> None:
    """Up, send, tail -f, lag, stop; all ends cleanly, and the data is there the next time."""
    install, up, send, tail, lag, look_around = blocks("bash")
    assert "pip install ." in install
    assert look_around.startswith("make demo")
    tool = tmp_path / "bin" / "inorder"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inorder.cli.main "$@"\n')
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    # The commands are those of the page; only the ports are any that are free.
    env |= {"INORDER_NAMESERVER__PORT": "0", "INORDER_BROKER__PORT": "0"}
    with terminal(up, tmp_path, env) as server:
        assert server.stdout is not None
        ready = re.match(r"ready namesrv=(\S+) broker=\S+ data=", server.stdout.readline())
        assert ready is not None
        env["INORDER_NAMESRV"] = ready[1]
        assert run(send, tmp_path, env) == "sent 3 messages to orders\n"
        with terminal(tail, tmp_path, env) as watching:
            assert watching.stdout is not None
            seen = [watching.stdout.readline().split() for _ in range(3)]
            run("inorder send orders delivered --key order-1", tmp_path, env)
            seen.append(watching.stdout.readline().split())
        assert watching.returncode == 0
        shown = [line.split() for line in blocks("text")[0].splitlines()]
        assert [line[1:] for line in seen[:3]] == [line[1:] for line in shown]
        assert [line[1].partition("@")[2] for line in seen] == ["0", "1", "2", "3"]
        assert seen[3][-1] == "delivered"
        assert re.search(r"\nlag 4, the oldest waits \d+\.\ds\n$", run(lag, tmp_path, env))
    assert server.returncode == 0
    with terminal(up, tmp_path, env) as server:
        assert server.stdout is not None
        ready = re.match(r"ready namesrv=(\S+)", server.stdout.readline())
        assert ready is not None
        env["INORDER_NAMESRV"] = ready[1]
        assert "\nlag 4, the oldest waits" in run("inorder lag billing", tmp_path, env)


def test_the_test_of_the_readme_passes(tmp_path: Path) -> None:
    """Ten lines at most, with the fixture that pytest finds by itself."""
    example = blocks("python")[0]
    assert len(example.splitlines()) <= 10
    (tmp_path / "test_it.py").write_text(example)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "inorder.testing.plugin",
            "-p", "no:cacheprovider", str(tmp_path),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
