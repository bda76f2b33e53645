"""Which cluster a command talks to, and how it runs against it.

The name server comes from `--namesrv`, else from the profile of `--profile` or INORDER_PROFILE,
else from INORDER_NAMESRV, else from RocketMQ's NAMESRV_ADDR, else from the profile `default`, else
it is the one of `inorder up`. Profiles stand in a TOML file, by default
`~/.config/inorder/profiles.toml` (INORDER_PROFILES names another):

    [production]
    namesrv = "mq1:9876;mq2:9876"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from inorder.cli.render import Output
from inorder.errors import ConfigError, ConnectFailed

if TYPE_CHECKING:
    from inorder.client.admin import Admin
    from inorder.client.session import Session

T = TypeVar("T")

LOCAL: Final = "127.0.0.1:9876"

NamesrvOption = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        help="Name servers.  [env: INORDER_NAMESRV, NAMESRV_ADDR; default: 127.0.0.1:9876]",
        metavar="H:P;H2:P",
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", help="Cluster of the profiles file.  [env: INORDER_PROFILE]"),
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Form.")]


def name_servers(namesrv: str | None, profile: str | None, env: Mapping[str, str]) -> str:
    """Return the name servers that options and environment mean."""
    if namesrv:
        return namesrv
    wanted = profile or env.get("INORDER_PROFILE")
    if wanted:
        return _profile(wanted, env, required=True)
    return (
        env.get("INORDER_NAMESRV")
        or env.get("NAMESRV_ADDR")
        or _profile("default", env, required=False)
        or LOCAL
    )


def _profile(name: str, env: Mapping[str, str], *, required: bool) -> str:
    given = env.get("INORDER_PROFILES")
    folder = Path(
        env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "~").expanduser() / ".config"
    )
    path = Path(given) if given else folder / "inorder" / "profiles.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required or given:
            raise ConfigError(
                f"profile {name}: there is no {path}; make it with the lines "
                f'[{name}] and namesrv = "host:9876"'
            ) from None
        return ""
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    found = table.get(name)
    if found is None and not required:
        return ""
    if not isinstance(found, dict) or not isinstance(found.get("namesrv"), str):
        known = ", ".join(sorted(table)) or "none"
        raise ConfigError(f"{path} has no [{name}] with a namesrv; it has: {known}")
    return str(found["namesrv"])


def run(
    namesrv: str | None,
    profile: str | None,
    work: Callable[[Session, Admin], Awaitable[T]],
) -> T:
    """Connect, work, disconnect."""
    import asyncio  # not needed to parse a command line

    return asyncio.run(_run(name_servers(namesrv, profile, os.environ), work))


async def _run(servers: str, work: Callable[[Session, Admin], Awaitable[T]]) -> T:
    from inorder.client.admin import Admin
    from inorder.client.session import Session

    async with Session(servers) as session:
        try:
            return await work(session, Admin(session))
        except ConnectFailed as error:
            raise ConnectFailed(
                f"{error} (name servers: {servers}); start it with `inorder up`, or name another "
                "one with --namesrv"
            ) from error
