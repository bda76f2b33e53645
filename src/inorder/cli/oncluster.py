"""Commands that talk to a cluster: options, connection, errors with a way out, completion.

    @on_cluster
    def delete(target: Cluster, topic: TopicArgument, …) -> None:
        target.run(lambda admin: admin.topics.delete(topic))

The decorator replaces the first parameter by the options of the cluster. An error about an unknown
topic or group suggests the name nearest to the argument `topic` or `group`.

`confirm` asks before something is destroyed, unless `--yes` was given. The shell completes names of
topics and groups while somebody types, so completion answers quickly or not at all, and its
failures are silent. How commands behave: decision 30.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

import typer
from typer.core import TyperGroup

from inorder.cli.failures import LogLevel, logging_to_stderr, says_errors
from inorder.cli.output import Output
from inorder.cli.target import FIELDS, Target, find_target
from inorder.client.rules.nameservers import parse_name_servers
from inorder.errors import ConnectFailed, GroupNotFound, InorderError, TopicNotRouted, UsageError
from inorder.escaping import escaped

if TYPE_CHECKING:
    from inorder.client.admin import Admin
    from inorder.client.session import Session

Arguments = ParamSpec("Arguments")
T = TypeVar("T")

OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Form.")]
SystemOption = Annotated[bool, typer.Option("--system", help="Also those of the system.")]
OnlyClusterOption = Annotated[str | None, typer.Option("--cluster", help="Only on this one.")]
OnlyTopicOption = Annotated[str | None, typer.Option("--topic", help="Only of this one.")]

_PANEL: Final = {
    "namesrv": (
        str | None,
        typer.Option(
            "--namesrv", metavar="H:P;H2:P",
            help="Name servers.  [env: INORDER_NAMESRV, NAMESRV_ADDR; default: 127.0.0.1:9876]",
        ),
    ),
    "profile": (
        str | None,
        typer.Option("--profile", help="Cluster of the profiles file.  [env: INORDER_PROFILE]"),
    ),
    "tls": (bool | None, typer.Option("--tls/--no-tls", help="Encrypt.  [env: INORDER_TLS]")),
    "tls_ca": (
        str | None,
        typer.Option("--tls-ca", help="Who signs the servers' certificates.", metavar="PEM"),
    ),
    "tls_cert": (str | None, typer.Option("--tls-cert", help="Our certificate.", metavar="PEM")),
    "tls_key": (str | None, typer.Option("--tls-key", help="Its private key.", metavar="PEM")),
    "tls_insecure": (
        bool | None,
        typer.Option("--tls-insecure", help="Trust any certificate.", show_default=False),
    ),
    "credentials_file": (
        str | None,
        typer.Option(
            "--credentials-file", metavar="FILE",
            help="Who signs: access_key, secret_key.  [env: INORDER_CREDENTIALS_FILE, or "
            "INORDER_ACCESS_KEY and INORDER_SECRET_KEY]",
        ),
    ),
    "log_level": (
        LogLevel | None,
        typer.Option("--log-level", help="Show log lines on stderr, from this level on."),
    ),
}  # fmt: skip


class Cluster:
    """The cluster of a command, and the topic and group that the command was given."""

    def __init__(self, options: Mapping[str, Any], named: Mapping[str, str | None]) -> None:
        self._options_level = options["log_level"]
        self._level = LogLevel(self._options_level or LogLevel.CRITICAL)
        self._options = {name: options.get(name) for name in (*FIELDS, "profile")}
        self._named = named

    def run(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Connect, work, disconnect."""
        return self.run_session(lambda _, admin: work(admin))

    def run_session(
        self, work: Callable[[Session, Admin], Awaitable[T]], *, fast: bool = False
    ) -> T:
        """Do as `run` for work that also uses the session; `fast` loads uvloop for long work."""
        import asyncio  # not needed to parse a command line

        from inorder.cli.running import loop_factory

        factory = loop_factory() if fast else None
        with logging_to_stderr(self._level), asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(self._run(work))

    def serve(self, work: Callable[[Target], Coroutine[Any, Any, None]]) -> None:
        """Run a server of this cluster until it ends; without --log-level it logs what it does."""
        import asyncio  # not needed to parse a command line

        from inorder.cli.running import loop_factory

        level = LogLevel(self._level if self._options_level else LogLevel.INFO)
        with logging_to_stderr(level), asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(work(self.target()))

    def target(self) -> Target:
        """Return the cluster, with the origin of each value."""
        return find_target(self._options, os.environ)

    def session(self) -> Session:
        """Return a new session, to be started."""
        from inorder.cli.settings import read_settings
        from inorder.client.session import Session
        from inorder.config import ClientConfig

        target = find_target(self._options, os.environ)
        parse_name_servers(target.name_servers, target.values["namesrv"].origin)
        config = read_settings(ClientConfig, None, {}).config
        return Session(
            target.name_servers, config=config, tls=target.context(),
            credentials=target.credentials(),
        )  # fmt: skip

    async def _run(self, work: Callable[[Session, Admin], Awaitable[T]]) -> T:
        from inorder.client.admin import Admin

        async with self.session() as session:
            admin = Admin(session)
            try:
                return await work(session, admin)
            except ConnectFailed as error:
                raise ConnectFailed(f"{error}; {self._advice(session, error)}") from error
            except TopicNotRouted as error:
                known = await _known(admin.topics.names)
                hint = _nearest("topic", self._named.get("topic"), known)
                raise TopicNotRouted(f"{error}{hint}") from error
            except GroupNotFound as error:
                known = await _known(admin.groups.names)
                hint = _nearest("group", self._named.get("group"), known)
                raise GroupNotFound(f"{error}{hint}") from error

    def _advice(self, session: Session, error: ConnectFailed) -> str:
        """Return advice: the name server is not there, or a broker is not at its address."""
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return "name who signed its certificate with --tls-ca, or trust any by --tls-insecure"
        if "TLS" in str(error):
            return "turn TLS on with --tls or off with --no-tls, as the server wants it"
        if session.statistics().connected:
            return (
                "the name server says that the broker is there; is it reachable from here? "
                "(advertised_host of the broker, RocketMQ's brokerIP1)"
            )
        target = find_target(self._options, os.environ)
        origin = target.values["namesrv"].origin
        return (
            f"name servers {target.name_servers} ({origin}); start it with `inorder up`, or name "
            "another one with --namesrv"
        )


def on_cluster(
    command: Callable[Concatenate[Cluster, Arguments], T],
) -> Callable[..., T]:
    """Make a command of a function whose first parameter is the cluster."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
        )
        for name, (kind, option) in _PANEL.items()
    ]

    bound: Callable[..., T] = says_errors(command)

    @functools.wraps(command)
    def wrapper(**words: Any) -> T:
        options = {name: words.pop(name) for name in _PANEL}
        named = {name: words.get(name) for name in ("topic", "group")}
        return bound(Cluster(options, named), **words)

    parameters = [*own, *added]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    del wrapper.__wrapped__  # typer would read its signature instead
    return wrapper


async def _known(names: Callable[..., Awaitable[list[str]]]) -> list[str]:
    try:
        return await names()
    except InorderError:
        return []  # the error counts more than its hint


def _nearest(kind: str, name: str | None, known: list[str]) -> str:
    if name is None or name in known or not known:
        return ""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; `inorder {kind} list` shows what there is"


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal and return if the answer is yes; without a terminal, require --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is there to ask; give --yes to say so")
    typer.confirm(question, abort=True, err=True)


PATIENCE_SECONDS: Final = 2.0


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics with this prefix."""
    return _complete(ctx, incomplete, "topics")


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups with this prefix."""
    return _complete(ctx, incomplete, "groups")


def _complete(ctx: typer.Context, incomplete: str, noun: str) -> list[str]:
    import asyncio

    try:
        names = asyncio.run(_names(ctx, noun))
    except (InorderError, OSError, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete) and name == escaped(name)]


async def _names(ctx: typer.Context, noun: str) -> list[str]:
    import asyncio

    from inorder.client.admin import Admin

    options = {name: ctx.params.get(name) for name in (*FIELDS, "profile")}
    target = find_target(options, os.environ)
    async with asyncio.timeout(PATIENCE_SECONDS):
        tls, credentials = target.context(), target.credentials()
        async with Admin(target.name_servers, tls=tls, credentials=credentials) as admin:
            return await _ask(admin, noun)


async def _ask(admin: Admin, noun: str) -> list[str]:
    return await (admin.topics.names() if noun == "topics" else admin.groups.names())


TopicArgument = Annotated[
    str, typer.Argument(help="Topic.", metavar="TOPIC", autocompletion=complete_topics)
]
GroupArgument = Annotated[
    str, typer.Argument(help="Group.", metavar="GROUP", autocompletion=complete_groups)
]
AnyGroupArgument = Annotated[
    str | None,
    typer.Argument(help="Group; without, all.", metavar="[GROUP]", autocompletion=complete_groups),
]


class ListByDefault(TyperGroup):
    """A noun without a verb lists: `inorder locks billing` is `inorder locks list billing`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the word `list` if it is left out."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)
