"""Running in the foreground: ready line, signals, failures; with a server that only takes notes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable

import pytest
import typer

from inorder.cli.failures import keeping_data
from inorder.cli.output import Output
from inorder.cli.running import Single, serve


class NotingServer:
    """A server that notes what is done to it, and can do something while it starts."""

    def __init__(self, while_starting: Callable[[], None] = lambda: None) -> None:
        self.notes: list[str] = []
        self.hangs = False
        self._while_starting = while_starting

    async def start(self) -> tuple[str, int]:
        """Start, or hang as a long recovery does."""
        self.notes.append("start")
        self._while_starting()
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.notes.append("cancelled")
        return "::1", 7

    async def stop(self) -> None:
        """Stop."""
        self.notes.append("stop")


def send_sigterm() -> None:
    """Signal this process; the loop's handler takes it."""
    os.kill(os.getpid(), signal.SIGTERM)


def test_ready_line_then_signal_then_stop(capsys: pytest.CaptureFixture[str]) -> None:
    """Exactly one line on stdout, after the start; the signal stops it."""
    server = NotingServer(while_starting=send_sigterm)
    single = Single(server)
    serve(single, lambda: {"namesrv": single.address})
    assert server.notes == ["start", "stop"]
    assert capsys.readouterr().out in ("", "ready namesrv=[::1]:7\n")


def test_ready_line_carries_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    """The line is asked for when everything accepts, and says what was bound."""
    server = NotingServer()
    single = Single(server)

    def describe() -> dict[str, str]:
        send_sigterm()
        return {"namesrv": single.address}

    serve(single, describe)
    assert capsys.readouterr().out == "ready namesrv=[::1]:7\n"
    serve(Single(NotingServer()), describe, Output.JSON)
    assert capsys.readouterr().out == '{"ready": true, "namesrv": "[::1]:7"}\n'
    assert server.notes == ["start", "stop"]


def test_signal_during_a_long_start_does_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """A recovery that takes minutes can be stopped; nothing is said to be ready."""
    server = NotingServer(while_starting=send_sigterm)
    server.hangs = True
    serve(server, dict)
    assert server.notes == ["start", "cancelled", "stop"]
    assert capsys.readouterr().out == ""


def test_a_supervised_server_stops_with_its_lifeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that started it is gone, or wants it to stop: the pipe closes."""
    read, write = os.pipe()
    late: list[str] = []

    def goes_on() -> None:
        late.append("it goes on")
        send_sigterm()

    def while_starting() -> None:
        asyncio.get_running_loop().call_later(5, goes_on)

    def ready() -> dict[str, str]:
        os.close(write)
        return {}

    server = NotingServer(while_starting)
    with os.fdopen(read) as lifeline:
        monkeypatch.setattr("sys.stdin", lifeline)
        serve(server, ready, supervised=True)
    assert (server.notes, late) == (["start", "stop"], [])


def test_failed_start_cleans_up(capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes through; what was begun is stopped."""

    def fail() -> None:
        raise OSError("no such port")

    server = NotingServer(while_starting=fail)
    with pytest.raises(OSError, match="no such port"):
        serve(server, dict)
    assert server.notes == ["start", "stop"]
    assert capsys.readouterr().out == ""


def test_a_full_disk_is_named_though_the_write_names_no_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A write of bytes fails without a name; the data directory is what it was for."""
    with pytest.raises(typer.Exit), keeping_data("/data"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "/data: No space left on device; make room" in capsys.readouterr().err


def test_an_error_of_a_socket_is_not_one_of_the_data_directory() -> None:
    """It names no file either, and is described elsewhere."""
    with pytest.raises(OSError, match="in use"), keeping_data("/data"):
        raise OSError(errno.EADDRINUSE, "address in use")
