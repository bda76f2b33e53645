"""`inorder config show | profiles`: every setting, its value in force and its origin.

Where settings come from: decision 2.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from inorder.cli.failures import says_errors
from inorder.cli.output import Output, as_json, put_line, put_page, table
from inorder.cli.target import FIELDS, HIDDEN, SECRETS, find_target, profiles_file, read_profiles
from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.settings import Loaded, Value, catalog, load_with_origins

Config = TypeVar("Config")
Raw = bool | int | float | str

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Settings file: TOML, or RocketMQ's broker.conf.", metavar="FILE"
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, ours or RocketMQ's name; repeatable.", metavar="K=V"),
]


class Server(StrEnum):
    """A program that has settings."""

    BROKER = "broker"
    NAMESERVER = "nameserver"
    CLIENT = "client"


_CLASSES: dict[Server, type] = {
    Server.BROKER: BrokerConfig,
    Server.NAMESERVER: NameServerConfig,
    Server.CLIENT: ClientConfig,
}


def parse_sets(items: Sequence[str] | None) -> dict[str, Raw]:
    """Split the `K=V` of `--set`."""
    flags: dict[str, Raw] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {item!r} is not name=value; write e.g. --set port=10911")
        flags[name.strip()] = value
    return flags


def read_settings(
    cls: type[Config], file: Path | None, flags: Mapping[str, Raw | None]
) -> Loaded[Config]:
    """Load settings with the real environment; options that were not given are None."""
    given = {name: value for name, value in flags.items() if value is not None}
    return load_with_origins(cls, file=file, env=os.environ, flags=given)


@says_errors
def show(
    server: Annotated[Server, typer.Argument(help="Whose settings.")] = Server.BROKER,
    output: Annotated[Output, typer.Option("-o", "--output", help="Form.")] = Output.TABLE,
    config: ConfigOption = None,
    set_: SetOption = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="For client: the cluster of this one.")
    ] = None,
) -> None:
    """Print every setting: its value, where that came from, and RocketMQ's name for it.

    For `client`: which cluster the other commands talk to, and how.
    """
    cls = _CLASSES[server]
    loaded: Loaded[Any] = read_settings(cls, config, parse_sets(set_))
    settings = catalog(cls).settings
    values = {
        name: Value("(hidden)", found.origin)
        if name in settings and settings[name].secret and found.value
        else found
        for name, found in loaded.values.items()
    }
    if server is Server.CLIENT:
        values = {**find_target({"profile": profile}, os.environ).shown(), **values}
    names = {name: found.rocketmq for name, found in settings.items()} | {"namesrv": "namesrvAddr"}
    if output is Output.JSON:
        rows = {
            name: {
                "value": found.value,
                "origin": found.origin,
                "rocketmq": names.get(name),
                "doc": settings[name].doc if name in settings else None,
            }
            for name, found in values.items()
        }
        put_page(as_json({"settings": rows, "ignored": list(loaded.ignored)}))
        return
    put_page(
        table(
            ("setting", "value", "origin", "rocketmq"),
            [(name, one.value, one.origin, names.get(name)) for name, one in values.items()],
        )
    )
    if loaded.ignored:
        put_page()
        put_line(f"settings of RocketMQ without a meaning here: {', '.join(loaded.ignored)}")


@says_errors
def profiles(
    *,
    output: Annotated[Output, typer.Option("-o", "--output", help="Form.")] = Output.TABLE,
) -> None:
    """List the clusters of the profiles file, and mark the one in force."""
    path, found = profiles_file(os.environ), read_profiles(os.environ)
    chosen = os.environ.get("INORDER_PROFILE")
    if chosen is None:
        origin = find_target({}, os.environ).values["namesrv"].origin
        chosen = origin.removeprefix("profile ") if origin.startswith("profile ") else None
    if output is Output.JSON:
        rows = [
            {"profile": name, "in_force": name == chosen, **_shown(values)}
            for name, values in found.items()
        ]
        put_page(as_json({"file": str(path), "profiles": rows}))
        return
    if not found:
        put_line(f'no profiles; write [NAME] and namesrv = "host:9876" into {path}')
        return
    columns = [one for one in FIELDS if one not in SECRETS]
    cells = [
        (name, "yes" if name == chosen else "", *(_shown(values).get(one) for one in columns))
        for name, values in found.items()
    ]
    put_page(table(("profile", "in force", *(one.replace("_", " ") for one in columns)), cells))
    put_page()
    put_line(str(path))


def _shown(profile: Mapping[str, bool | str]) -> dict[str, bool | str]:
    return {name: HIDDEN if name in SECRETS else value for name, value in profile.items()}
