"""The two systems that are compared, behind one shape: start, where to connect, what to measure."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, Self

from bench import installs
from bench.installs import Install
from bench.process import Child, StartFailed, free_ports
from bench.remoting import Connection, RemotingError
from bench.rocketmq import RocketMQBroker, RocketMQNameServer

GET_MAX_OFFSET = 30
GET_ROUTE = 105
ROOT = Path(__file__).resolve().parent.parent
OURS_READY_TIMEOUT_S = 30
THEIRS_READY_TIMEOUT_S = 120


class System(Protocol):
    """A name server and a broker, running."""

    name: str
    address: tuple[str, int]
    namesrv: tuple[str, int]
    broker: Child
    ready_ms: float

    def children(self) -> list[Child]:
        """Return all processes."""
        ...

    def stop(self) -> None:
        """End all processes and delete the data."""
        ...


class _Held:
    """A temporary directory that goes with the system."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="inorder-bench-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def children(self) -> list[Child]:
        raise NotImplementedError

    def stop(self) -> None:
        for child in self.children():
            child.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Ours(_Held):
    """`inorder up`: name server and broker in one process."""

    name = "inorder"

    def __init__(
        self,
        *,
        sync_flush: bool = False,
        settings: Mapping[str, object] | None = None,
        install: Install | None = None,
    ) -> None:
        super().__init__()
        namesrv_port, port = free_ports(2)
        self.address, self.namesrv = ("127.0.0.1", port), ("127.0.0.1", namesrv_port)
        flush = {"flushDiskType": "SYNC_FLUSH"} if sync_flush else {}
        self.broker = start_ours(
            "up",
            self.directory,
            flags={
                "broker-port": port,
                "namesrv-port": namesrv_port,
                "data": self.directory / "data",
            },
            settings={**flush, **(settings or {})},
            install=install,
        )
        try:
            self.ready_ms = self.broker.wait_until(
                lambda: serves(self.namesrv, self.address), timeout_s=OURS_READY_TIMEOUT_S
            )
        except StartFailed:
            self.stop()
            raise

    def children(self) -> list[Child]:
        """Return all processes."""
        return [self.broker]


class Secured(Ours):
    """`inorder up` that serves only users who may."""

    def __init__(self) -> None:
        _Held.__init__(self)
        namesrv_port, port = free_ports(2)
        self.address, self.namesrv = ("127.0.0.1", port), ("127.0.0.1", namesrv_port)
        data, secret = self.directory / "data", secrets.token_hex(16)
        self.root_keys = self.directory / "root.keys"
        self.root_keys.touch(mode=0o600)
        self.root_keys.write_text(f"access_key = root\nsecret_key = {secret}\n")
        words = ["user", "create", "root", "--super", "--secret-stdin", "--data", str(data)]
        chosen = installs.current()
        subprocess.run(
            [chosen.python, "-m", "inorder.cli.main", *words],
            input=secret, text=True, check=True, stdout=subprocess.DEVNULL,
            env=chosen.environment(),
        )  # fmt: skip
        self.broker = start_ours(
            "up",
            self.directory,
            flags={"broker-port": port, "namesrv-port": namesrv_port, "data": data},
            settings={"access.level": "enforce"},
        )
        try:
            self.ready_ms = self.broker.wait_until(
                lambda: "ready" in self.broker.output(), timeout_s=OURS_READY_TIMEOUT_S
            )
        except StartFailed:
            self.stop()
            raise


class Earlier(Ours):
    """`inorder up` as it was at a commit."""

    name = "earlier"

    def __init__(self, commit: str, *, sync_flush: bool = False) -> None:
        super().__init__(sync_flush=sync_flush, install=installs.of_commit(commit))


class Theirs(_Held):
    """Apache RocketMQ: a name server, and when that is up a broker, whose start is timed alone."""

    name = "rocketmq"

    def __init__(self, *, sync_flush: bool = False, heap: str = "4g") -> None:
        super().__init__()
        try:
            namesrv = RocketMQNameServer(self.directory)
            namesrv.wait_ready()
        except StartFailed:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        settings = {"flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"}
        broker = RocketMQBroker(
            self.directory, namesrv=namesrv.address, heap=heap, settings=settings
        )
        self.address, self.namesrv = broker.address, namesrv.address
        self.broker, self._namesrv_child = broker.child, namesrv.child
        try:
            # Now and then its first registration fails and the route comes 10 s later: not counted.
            self.ready_ms = broker.wait_ready()
            self.broker.wait_until(
                lambda: serves(self.namesrv, self.address), timeout_s=THEIRS_READY_TIMEOUT_S
            )
        except StartFailed:
            self.stop()
            raise

    def children(self) -> list[Child]:
        """Return all processes."""
        return [self.broker, self._namesrv_child]


def start_ours(
    command: str,
    directory: Path,
    *,
    flags: Mapping[str, object],
    settings: Mapping[str, object] | None = None,
    install: Install | None = None,
) -> Child:
    """Start `inorder <command>` of an installation, else of the chosen one.

    Settings may have RocketMQ's names.
    """
    chosen = install or installs.current()
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    words += [
        word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")
    ]
    return Child(
        f"inorder-{command}",
        [chosen.python, "-m", "inorder.cli.main", command, *words],
        directory=directory,
        environment={**chosen.environment(), "PYTHONUNBUFFERED": "1"},
    )


def serves(namesrv: tuple[str, int], broker: tuple[str, int]) -> bool:
    """Tell whether a client could work: the route leads to a broker, and the broker answers."""
    try:
        with Connection(namesrv, timeout_s=2) as connection:
            if connection.request(GET_ROUTE, {"topic": "TBW102"}).code != 0:
                return False
        with Connection(broker, timeout_s=2) as connection:
            return connection.request(GET_MAX_OFFSET, {"topic": "TBW102", "queueId": 0}).code == 0
    except (OSError, RemotingError):
        return False
