"""`inorder up | nameserver | broker` as processes: ready line, signals, exit codes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder import Admin, Producer
from inorder.net.tls import client_context
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from tests.garbage.peer import Peer

pytestmark = pytest.mark.slow

TIMEOUT_S = 30


@contextlib.contextmanager
def inorder(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command; whatever happens, it is gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inorder.cli.main", *words],
        cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> dict[str, str]:
    """Wait for the ready line and return what it says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), (line, process.stderr and process.stderr.read())
    return dict(re.findall(r"(\w+)=(\S+)", line))


def stop(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    """Send a signal; return exit code and what was printed."""
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def accepts(address: str) -> bool:
    """Tell whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_says_ready_accepts_and_stops_cleanly(tmp_path: Path, number: int) -> None:
    """One line on stdout; both ports accept by then; a signal ends it with 0 and a clean store."""
    with inorder("up", "--namesrv-port", "0", "--broker-port", "0", cwd=tmp_path) as process:
        said = ready(process)
        assert accepts(said["namesrv"])
        assert accepts(said["broker"])
        assert said["data"] == "./inorder-data"
        assert (tmp_path / "inorder-data" / "abort").exists()
        code, out, err = stop(process, number)
    assert (code, out) == (0, ""), err
    assert "Traceback" not in err
    assert not (tmp_path / "inorder-data" / "abort").exists()
    assert not accepts(said["broker"])


def test_up_starts_again_on_its_directory(tmp_path: Path) -> None:
    """A second start finds what the first left, also after a kill."""
    words = ("up", "--namesrv-port", "0", "--broker-port", "0", "--data", str(tmp_path / "d"))
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -9), (signal.SIGTERM, 0)):
        with inorder(*words, cwd=tmp_path) as process:
            ready(process)
            assert stop(process, number)[0] == code


def test_name_server_and_broker_run_apart(tmp_path: Path) -> None:
    """Each says what it has; settings of RocketMQ work; the broker finds the name server."""
    words = ("nameserver", "--port", "0", "--data", str(tmp_path / "n"))
    with inorder(*words, cwd=tmp_path) as namesrv:
        address = ready(namesrv)["namesrv"]
        with inorder(
            "broker", "--name", "broker-x", "--namesrv", address, "--port", "0",
            "--data", str(tmp_path / "b"), "--set", "flushDiskType=SYNC_FLUSH",
            "--set", "haListenPort=10912", cwd=tmp_path,
        ) as broker:  # fmt: skip
            said = ready(broker)
            assert set(said) == {"broker", "data"}
            assert accepts(said["broker"])
            code, _, err = stop(broker)
            assert code == 0
            assert err.count("haListenPort") == 1
        assert stop(namesrv)[0] == 0


def test_port_in_use_is_one_line(tmp_path: Path) -> None:
    """The error names the port; exit code 1; nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with inorder(
            "up", "--namesrv-port", "0", "--broker-port", str(port), "--log-level", "error",
            cwd=tmp_path,
        ) as process:  # fmt: skip
            out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("inorder: ")
    assert str(port) in err


def test_directory_in_use_is_one_line(tmp_path: Path) -> None:
    """Two brokers cannot share a directory; the second says so."""
    words = ("up", "--namesrv-port", "0", "--broker-port", "0", "--log-level", "error")
    with inorder(*words, cwd=tmp_path) as first:
        ready(first)
        with inorder(*words, cwd=tmp_path) as second:
            out, err = second.communicate(timeout=TIMEOUT_S)
        assert (second.returncode, out) == (1, "")
        assert "Traceback" not in err
        assert err.splitlines()[-1].startswith("inorder: ")
        assert stop(first)[0] == 0


def test_open_address_warns(tmp_path: Path) -> None:
    """Whoever listens beyond loopback is told that there is no authentication."""
    with inorder(
        "up",
        "--host",
        "0.0.0.0",
        "--insecure",
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        cwd=tmp_path,
    ) as process:
        said = ready(process)
        port = said["broker"].rpartition(":")[2]
        assert accepts(f"127.0.0.1:{port}")
        code, _, err = stop(process)
    assert code == 0
    assert "no authentication" in err
    assert "advertised_host" in err


def test_tls_of_up_means_both_servers(tmp_path: Path) -> None:
    """With enforcing neither port takes plain text, and the broker registers over TLS."""
    words = ("up", "--namesrv-port", "0", "--broker-port", "0", "--data", str(tmp_path / "d"))
    with inorder(*words, "--set", "tls.server.mode=enforcing", cwd=tmp_path) as process:
        said = ready(process)
        for name in ("namesrv", "broker"):
            with Peer(_address(said[name])) as plain:
                plain.send(encode_frame(Command.request(31_999)))
                assert plain.closes()
        host, port = _address(said["namesrv"])
        context = client_context(trust_any=True)
        with (
            socket.create_connection((host, port), timeout=TIMEOUT_S) as raw,
            context.wrap_socket(raw) as encrypted,
        ):
            encrypted.sendall(encode_frame(Command.request(106)))
            assert b"broker-a" in encrypted.recv(65_536)
        assert stop(process)[0] == 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def test_a_data_directory_is_its_users_alone(tmp_path: Path) -> None:
    """Whatever the umask: 0700 and 0600, the name server's too; a directory that is there stays."""
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    words = ("up", "--namesrv-port", "0", "--broker-port", "0")
    for data in (tmp_path / "new" / "data", there):
        before = os.umask(0)
        try:
            with inorder(*words, "--data", str(data), cwd=tmp_path) as process:
                said = ready(process)
                with Admin(said["namesrv"]) as admin, Producer(said["namesrv"]) as producer:
                    admin.topics.create("Private", queues=2)
                    producer.send("Private", b"secret", key="k")
                assert stop(process)[0] == 0
        finally:
            os.umask(before)
    found = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    assert found.pop("there") == 0o755
    assert len(found) > 20
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (0o700 if (tmp_path / name).is_dir() else 0o600)
    }
    assert not wrong
