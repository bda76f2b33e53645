"""Run a server in the foreground: start, say `ready`, wait for a signal, stop cleanly.

stdout carries exactly one line, when everything accepts connections:
`ready namesrv=HOST:PORT broker=HOST:PORT data=DIR`, or the same as a JSON object. SIGTERM or SIGINT
stops and exits 0 once everything is on disk; a second one ends the process at once, as a crash
would. A broker process of `inorder up --brokers N` also stops when its standard input closes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from inorder.accelerated import slower_parts
from inorder.cli.failures import EXIT_FAILED
from inorder.cli.output import Output
from inorder.logs import get_logger
from inorder.wire.ids import show_address

log = get_logger("inorder.serve")

GC_THRESHOLDS = (20_000, 50, 100)


class Startable(Protocol):
    """A server, or several that start and stop together."""

    async def start(self) -> object: ...

    async def stop(self) -> None: ...


class Listener(Protocol):
    """A server with one port."""

    async def start(self) -> tuple[str, int]: ...

    async def stop(self) -> None: ...


class Single:
    """One server, which remembers the address that it got."""

    def __init__(self, server: Listener) -> None:
        self._server = server
        self.address = ""

    async def start(self) -> None:
        """Start the server."""
        self.address = show_address(*await self._server.start())

    async def stop(self) -> None:
        """Stop the server."""
        await self._server.stop()


Ready = Mapping[str, str | Mapping[str, str]]
"""What the ready line says: addresses and directories; of several servers by name."""


def serve(
    server: Startable,
    describe: Callable[[], Ready],
    output: Output = Output.TABLE,
    *,
    supervised: bool = False,
    kill: Callable[[], None] = lambda: None,
) -> None:
    """Run until a signal comes, or if supervised until stdin closes; `kill` is for a second one."""
    if not supervised and (slower := slower_parts()):
        log.warning("slower than an install from a wheel, with the same results: %s", slower)
    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(server, lambda: _ready_line(describe(), output), supervised, kill))


def _ready_line(values: Ready, output: Output) -> str:
    if output is Output.JSON:
        return json.dumps({"ready": True, **values})
    words = ["ready"]
    for name, value in values.items():
        words.append(f"{name}={value if isinstance(value, str) else ';'.join(value.values())}")
    return " ".join(words)


def raise_file_limit() -> None:
    """Raise the limit of open files to the system's maximum, for connections and queue files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit on open files stays at %d: %s", soft, error)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory, where the platform has uvloop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Lifeline(asyncio.Protocol):
    """Stops the server when the process that started it closes the pipe, or is gone."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._stopping.is_set():
            log.info("stdin is closed, stopping")
            self._stopping.set()


async def _serve(
    server: Startable, ready_line: Callable[[], str], supervised: bool, kill: Callable[[], None]
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, signal.Signals(number).name, stopping, kill)
    if supervised:
        await loop.connect_read_pipe(lambda: _Lifeline(stopping), sys.stdin)
    starting = asyncio.ensure_future(server.start())
    stop_asked = asyncio.ensure_future(stopping.wait())
    try:
        # A signal during a long recovery must not wait for its end.
        await asyncio.wait((starting, stop_asked), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            # Objects alive now live for ever: later collections need not scan them.
            gc.freeze()
            # Many connections are many objects and no garbage: a full collection would look at
            # all of them, for tens of milliseconds. Cycles that live short go in the first.
            gc.set_threshold(*GC_THRESHOLDS)
            print(ready_line(), flush=True)
            await stop_asked
    finally:
        starting.cancel()
        stop_asked.cancel()
        await asyncio.gather(starting, stop_asked, return_exceptions=True)
        await server.stop()
    log.info("stopped")


def _on_signal(name: str, stopping: asyncio.Event, kill: Callable[[], None]) -> None:
    if stopping.is_set():
        log.warning("signal=%s again, ending without cleaning up", name)
        kill()
        os._exit(EXIT_FAILED)
    log.info("signal=%s, stopping", name)
    stopping.set()
