"""`inorder config show`: every setting, its value in force and who said so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from inorder.cli.failures import says_errors
from inorder.cli.render import Output, as_json, table
from inorder.config import BrokerConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.settings import Loaded, catalog, load_with_origins

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
    """What has settings."""

    BROKER = "broker"
    NAMESERVER = "nameserver"


_CLASSES: dict[Server, type] = {
    Server.BROKER: BrokerConfig,
    Server.NAMESERVER: NameServerConfig,
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
) -> None:
    """Print every setting: its value, where that came from, and RocketMQ's name for it."""
    cls = _CLASSES[server]
    loaded: Loaded[Any] = read_settings(cls, config, parse_sets(set_))
    settings = catalog(cls).settings
    if output is Output.JSON:
        rows = {
            name: {
                "value": found.value,
                "origin": found.origin,
                "rocketmq": settings[name].rocketmq,
                "doc": settings[name].doc,
            }
            for name, found in loaded.values.items()
        }
        print(as_json({"settings": rows, "ignored": list(loaded.ignored)}))
        return
    print(
        table(
            ("setting", "value", "origin", "rocketmq"),
            [
                (name, found.value, found.origin, settings[name].rocketmq)
                for name, found in loaded.values.items()
            ],
        )
    )
    if loaded.ignored:
        print(f"\nsettings of RocketMQ without a meaning here: {', '.join(loaded.ignored)}")
