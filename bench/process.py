"""Child processes of the benchmark: started with a log file, measured through /proc, always ended.

Each is ended by its own process id. A child also gets SIGKILL from the kernel if the benchmark
itself dies, so that no 4-GB virtual machine is left behind.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PROCESS_CPU_CLOCK = 2  # the kernel's clock id of a process: (~pid << 3) | 2
OPEN_FILES = 65536
_claims: list[int] = []
_ports_lock = threading.Lock()


class StartFailed(Exception):
    """A process ended, or stayed silent, before it was ready."""


class Child:
    """One process with its output in a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.output_path = directory / f"{name}.out"
        self.started_at = time.monotonic()
        with self.output_path.open("ab") as output:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_prepare_child,  # noqa: PLW1509 - no threads here
            )

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self.process.poll() is None

    def output(self) -> str:
        """Return everything it printed so far."""
        return self.output_path.read_text(errors="replace")

    def pids(self) -> list[int]:
        """Return its own id and those of its descendants."""
        found = [self.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    found += [int(word) for word in children.read_text().split()]
                except OSError:  # a thread that ended meanwhile
                    continue
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads, past ones included."""
        return sum(time.clock_gettime(~pid << 3 | PROCESS_CPU_CLOCK) for pid in self.pids())

    def anonymous_bytes(self) -> int:
        """Return RssAnon: resident memory that is not file pages."""
        return sum(_status_bytes(pid, "RssAnon:") for pid in self.pids())

    def open_files(self) -> int:
        """Return how many file descriptors are open."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids())

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> float:
        """Poll until ready; return the milliseconds since the start of the process."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.alive:
                raise StartFailed(f"{self.name} ended: {self.output()[-2000:]}")
            if is_ready():
                return (time.monotonic() - self.started_at) * 1000
            time.sleep(0.005)
        raise StartFailed(f"{self.name} not ready after {timeout_s} s: {self.output()[-2000:]}")

    def stop(self, *, timeout_s: float = 60.0) -> int:
        """Ask it to end (SIGTERM), insist after the timeout; return its exit status."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.wait()

    def kill(self) -> None:
        """End it at once, as a power cut of the process would (SIGKILL)."""
        if self.alive:
            self.process.kill()
        self.process.wait()


def free_ports(count: int = 1, *, apart: Sequence[int] = (0,)) -> list[int]:
    """Return ports free on loopback; with each, the ports at the given distances are free too.

    A port is given out once, also among processes: the server that it is meant for may not listen
    yet.
    """
    found: list[int] = []
    with _ports_lock:
        for candidate in range(21000 + os.getpid() * 7 % 8000, 32000):
            if _claim({candidate + distance for distance in apart}):
                found.append(candidate)
                if len(found) == count:
                    return found
    raise StartFailed("no free ports")


def _claim(ports: set[int]) -> bool:
    """Claim free ports for this process, until it ends, by names that the kernel gives out once."""
    claims = []
    for port in ports:
        claim = socket.socket(socket.AF_UNIX)
        claims.append(claim)
        try:
            claim.bind(f"\0inorder-port-{port}")
        except OSError:
            break
        if not _is_free(port):
            break
    else:
        _claims.extend(claim.detach() for claim in claims)
        return True
    for claim in claims:
        claim.close()
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def _prepare_child() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
