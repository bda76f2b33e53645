"""The broker under attack: a real `inorder up` process, watched from outside.

What counts is what happens to the process, its memory, its files and its other clients, so all of
that is read from the system and not from what the broker says of itself.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

READY_TIMEOUT_S = 60.0
SAMPLE_INTERVAL_S = 0.05
MIB = 1024 * 1024
HOUSE = Path(__file__).resolve().parents[2]


class Target:
    """A name server and a broker in one process, in a directory of its own."""

    def __init__(
        self, root: Path, settings: dict[str, str], *, files_max: int = 0,
        secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`secrets` are variables of its environment."""
        self.root = root
        self.data = root / "data"
        self._log = root / "stderr.log"
        self._lag = root / "lag.json"
        for name in ("home", "tmp", "cwd"):
            (root / name).mkdir(parents=True)
        words = [sys.executable, "-m", "tests.garbage.measured", str(self._lag)]
        words += ["up", "--log-level", "warning"]
        words += ["--namesrv-port", "0", "--broker-port", "0", "--data", str(self.data)]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": f"{HOUSE / 'src'}:{HOUSE}",
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            **secrets,
        }
        if files_max:
            words = ["prlimit", f"--nofile={files_max}:{files_max}", *words]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                words,
                cwd=root / "cwd",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        said = dict(re.findall(r"(\w+)=(\S+)", self._first_line()))
        self.pid = self._process.pid
        self.namesrv = _address(said["namesrv"])
        self.broker = _address(said["broker"])
        self.memory = Memory(self.pid)
        self._outside = self._files_outside()

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_TIMEOUT_S)
        line = self._process.stdout.readline().decode() if readable else ""
        if not line.startswith("ready "):
            self.kill()
            raise RuntimeError(f"the broker did not start: {self.log_text()[-2000:]}")
        return line

    @property
    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process.poll() is None

    def log_text(self) -> str:
        """Return what the process wrote to stderr."""
        return self._log.read_text(errors="replace")

    def log_bytes(self) -> int:
        """Return how much the process wrote to stderr."""
        return self._log.stat().st_size

    def take_lag_ms(self) -> dict[str, dict[str, float]]:
        """Return how late its event loop was, and how long it worked in one go (`measured.py`)."""
        self._lag.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        if not wait_until(self._lag.exists, READY_TIMEOUT_S, 0.01):
            raise RuntimeError("the event loop of the broker stands still")
        said: dict[str, dict[str, float]] = json.loads(self._lag.read_text())
        return said

    def core_ms(self) -> tuple[float, float]:
        """Return how long its main thread ran so far, and how long it waited for a core."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        ran_ns, waited_ns = path.read_text().split()[:2]
        return int(ran_ns) / 1e6, int(waited_ns) / 1e6

    def sockets(self) -> int:
        """Count the sockets that the process has open, the listening ones included."""
        count = 0
        folder = Path(f"/proc/{self.pid}/fd")
        for name in os.listdir(folder):
            try:
                count += os.readlink(folder / name).startswith("socket:")
            except OSError:
                continue  # closed meanwhile
        return count

    def children(self) -> list[str]:
        """Return the processes that the broker has started."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return path.read_text().split() if path.exists() else []

    def new_files_outside(self) -> set[str]:
        """Return the files beside the data directory that were not there at the start."""
        return self._files_outside() - self._outside

    def strange_names_inside(self) -> list[str]:
        """Return the names in the data directory that no legal topic or file of ours has."""
        legal = re.compile(r"[%|a-zA-Z0-9_.@-]+").fullmatch
        return [str(path) for path in below(self.data) if not legal(path.name) or path.is_symlink()]

    def _files_outside(self) -> set[str]:
        return {
            str(path)
            for path in below(self.root)
            if self.data not in path.parents and path != self.data and path.stem != self._lag.stem
        }

    def stop(self) -> int:
        """End it by SIGTERM; return the exit code."""
        self.memory.stop()
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(READY_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Memory:
    """Samples the anonymous memory of a process: what it really holds, without mapped files."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/status")
        self._peak_bytes = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def now_bytes(self) -> int:
        """Return RssAnon."""
        try:
            found = re.search(r"RssAnon:\s+(\d+) kB", self._path.read_text())
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return int(found.group(1)) * 1024 if found else 0

    def take_peak_bytes(self) -> int:
        """Return the highest value since the last call."""
        peak = max(self._peak_bytes, self.now_bytes())
        self._peak_bytes = 0
        return peak

    def stop(self) -> None:
        """End the sampling."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_INTERVAL_S):
            self._peak_bytes = max(self._peak_bytes, self.now_bytes())


def below(folder: Path) -> Iterator[Path]:
    """Return everything below a folder; the process may take some of it away meanwhile."""
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(where, name)


def wait_until(condition: object, timeout_s: float, step_s: float = 0.05) -> bool:
    """Look again and again until `condition()` holds; False if it never did."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(step_s)
    return bool(condition())  # type: ignore[operator]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
