"""`inorder console`: the web console, a process of its own that is a client of the cluster.

`inorder up --console` starts this command as a child process (`ConsoleProcess`) and stops it by
closing its standard input, as it does with broker processes. What the console is: decision 57.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder import credentials
from inorder.cli.oncluster import Cluster, OutputOption, on_cluster
from inorder.cli.output import Output, parse_time, put_line
from inorder.errors import InorderError, UsageError
from inorder.logs import get_logger
from inorder.wire.ids import show_address

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from inorder.cli.running import Startable
    from inorder.cli.target import Target
    from inorder.config import NetConfig
    from inorder.console.app import Console

log = get_logger("inorder.console")

PORT: Final = 8089
TOKEN: Final = "INORDER_CONSOLE_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_CHARS_MIN: Final = 16
STOP_S: Final = 5.0
OWN_CREDENTIALS: Final = (
    credentials.ACCESS_KEY, credentials.SECRET_KEY, credentials.SECURITY_TOKEN, credentials.FILE
)  # fmt: skip
"""Variables by which a client signs that is given no credentials: the console must not."""


@on_cluster
def console(
    target: Cluster,
    *,
    port: Annotated[int, typer.Option("--port", help="Port; 0 = any.")] = PORT,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Also on a --host that others reach, without encryption."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name of this console; repeatable.", metavar="NAME"),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open it in this machine's browser.")
    ] = False,
    output: OutputOption = Output.TABLE,
    supervised: Annotated[
        bool, typer.Option("--supervised", hidden=True, help="Of `up --console`.")
    ] = False,
) -> None:
    """Serve the web console of a cluster, ours or Apache RocketMQ's.

    People sign in as users of the brokers; brokers refuse what a user may not do. Where the brokers
    have no users, everybody on this machine may look, and the printed link lets its holder change
    things. INORDER_CONSOLE_TOKEN sets its token.
    """
    from inorder.console.rules import is_loopback

    if not is_loopback(host):
        if not insecure and not os.environ.get(TOKEN):
            raise UsageError(
                f"--host {host} is not loopback: secrets and messages would cross the network in "
                "the clear. Put a proxy with TLS in front of a loopback console; or give "
                f"--insecure, or {TOKEN} with a token of your own"
            )
        log.warning(
            "host=%s is not loopback: what people type and see crosses it in the clear", host
        )
    target.serve(
        lambda found: _serve(
            found, host, port, tuple(allow_host or ()), output, opens=open_, supervised=supervised
        )
    )


def _make(target: Target, host: str, names: Sequence[str], token: str) -> tuple[Console, str]:
    from inorder.clock import SystemClock
    from inorder.console.app import Console
    from inorder.console.rules import is_loopback
    from inorder.console.sessions import Sessions

    clock = SystemClock()
    sessions = Sessions(
        target.name_servers, clock, tls=target.context(), token=token, looks=is_loopback(host)
    )
    console = Console(
        sessions, clock, name_servers=target.name_servers, read_time=parse_time,
        hosts=(host, *names),
    )  # fmt: skip
    return console, sessions.token


async def _serve(
    target: Target, host: str, port: int, names: Sequence[str], output: Output, *,
    opens: bool, supervised: bool,
) -> None:  # fmt: skip
    """Serve until a signal comes, or if supervised until stdin closes."""
    import asyncio  # not needed to parse a command line

    token = os.environ.pop(TOKEN, "")
    if token and len(token) < TOKEN_CHARS_MIN:
        raise UsageError(f"{TOKEN} has {len(token)} characters; give {TOKEN_CHARS_MIN} at least")
    for name in OWN_CREDENTIALS:
        if os.environ.pop(name, None) is not None:
            log.warning("%s is not used: everybody signs in to the console as themselves", name)
    console, link_token = _make(target, host, names, token)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if supervised:
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        lifeline = asyncio.ensure_future(reader.read())
        lifeline.add_done_callback(lambda _: stopping.set())
    address = show_address(*await console.start(host, port))
    url = f"http://{address}"
    enter = f"{url}/enter?token={link_token}"
    _say_ready(url, enter, output, given=bool(token))
    if opens:
        import webbrowser

        webbrowser.open(enter)
    try:
        await stopping.wait()
    finally:
        await console.stop()


def _say_ready(url: str, enter: str, output: Output, *, given: bool) -> None:
    if output is Output.JSON:
        put_line(json.dumps({"ready": True, "console": url, "enter": "" if given else enter}),
                 flush=True)  # fmt: skip
        return
    put_line(f"ready console={url}", flush=True)
    if given:
        put_line(f"Sign in with the token of {TOKEN}, or as a user of the brokers.", flush=True)
    else:
        put_line(f"To change things where brokers have no users, once: {enter}", flush=True)


def tls_environment(net: NetConfig, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the child uses TLS where a server's own calls do.

    What `env` says already stays. With `tls_users` a certificate is a user, and the console is
    none: it shows only one that `env` names.
    """
    if not net.tls_enable and net.tls_mode != "enforcing":
        return {}
    found = {"INORDER_TLS": "true"}
    if net.tls_client_trust:
        found["INORDER_TLS_CA"] = net.tls_client_trust
    checked = net.tls_client_verify and bool(net.tls_enable or net.tls_client_trust)
    if not checked and not env.get("INORDER_TLS_CA"):
        found["INORDER_TLS_INSECURE"] = "true"
    if net.tls_client_auth != "none" and not net.tls_users and not env.get("INORDER_TLS_CERT"):
        if net.tls_client_certificate:
            pair = (net.tls_client_certificate, net.tls_client_key, net.tls_client_key_password)
        else:
            pair = (net.tls_certificate, net.tls_key, net.tls_key_password)
        names = ("INORDER_TLS_CERT", "INORDER_TLS_KEY", "INORDER_TLS_KEY_PASSWORD")
        found |= dict(zip(names, pair, strict=True))
    return {name: value for name, value in found.items() if value and not env.get(name)}


class ConsoleProcess:
    """The console of `inorder up --console`: a child process."""

    def __init__(self, words: Sequence[str], net: NetConfig) -> None:
        """`net`: how its servers use TLS."""
        self._words = list(words)
        self._net = net
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""
        self.enter = ""

    async def start(self, name_servers: str) -> None:
        """Start the process; return when it says that it is ready. Raises InorderError."""
        import asyncio

        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "inorder.cli.main", "console", "--supervised",
            "-o", "json", "--namesrv", name_servers, *self._words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
            env={**os.environ, **tls_environment(self._net, os.environ)},
        )  # fmt: skip
        assert process.stdout is not None
        line = await process.stdout.readline()
        try:
            found = json.loads(line)
            self.url, self.enter = found["console"], found["enter"]
        except (ValueError, KeyError, TypeError):
            await self.stop()
            raise InorderError("the console did not start; see above why") from None

    async def stop(self) -> None:
        """Stop the process, or kill it if it does not stop."""
        import asyncio

        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


class WithConsole:
    """Servers and their console, which start and stop together."""

    def __init__(
        self,
        servers: Startable,
        name_servers: Callable[[], str],
        words: Sequence[str],
        net: NetConfig,
    ) -> None:
        self.process = ConsoleProcess(words, net)
        self._servers = servers
        self._name_servers = name_servers

    async def start(self) -> None:
        """Start the servers, then the console."""
        await self._servers.start()
        try:
            await self.process.start(self._name_servers())
        except BaseException:
            await self._servers.stop()
            raise
        if self.process.enter:
            log.info("to change things in the console, once: %s", self.process.enter)

    async def stop(self) -> None:
        """Stop the console, then the servers."""
        try:
            await self.process.stop()
        finally:
            await self._servers.stop()
