"""`inorder up | nameserver | broker`: from options to settings to a running server.

Options are the last layer over file and environment, so no option has a default here: the defaults
stand in `inorder.config`. How a server runs and stops is in `running.py`.
"""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from inorder.cli.failures import LogLevel, keeping_data, says_errors, setup_logging
from inorder.cli.output import Output
from inorder.cli.settings import ConfigOption, Raw, SetOption, parse_sets, read_settings
from inorder.config import BrokerConfig, NameServerConfig, NetConfig
from inorder.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from inorder.cli.running import Listener
    from inorder.clock import Clock
    from inorder.disk import Files
    from inorder.settings import Loaded

C = TypeVar("C", BrokerConfig, NameServerConfig)

log = get_logger("inorder.serve")

HostOption = Annotated[
    str | None, typer.Option("--host", help="Address to listen on.  [default: 127.0.0.1]")
]
DataOption = Annotated[
    str | None, typer.Option("--data", help="Directory.  [default: ./inorder-data]")
]
ReadyOption = Annotated[
    Output, typer.Option("-o", "--output", help="Form of the line that says that it is ready.")
]
LevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="Least level of log lines on stderr.")
]


@says_errors
def up(
    *,
    host: HostOption = None,
    namesrv_port: Annotated[
        int | None,
        typer.Option("--namesrv-port", help="Name server's port; 0 = any.  [default: 9876]"),
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option("--broker-port", help="Broker's port; 0 = any.  [default: 10911]")
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    log_level: LevelOption = LogLevel.INFO,
    output: ReadyOption = Output.TABLE,
) -> None:
    """Start a name server and a broker in one process.

    --set means the broker; write --set nameserver.NAME=VALUE for the name server. A properties
    file of RocketMQ, given with --config, means the broker too. TLS settings mean both.
    """
    setup_logging(log_level)
    sets = parse_sets(set_)
    for_namesrv = {name: sets.pop(name) for name in list(sets) if name.startswith("nameserver.")}
    broker = read_settings(
        BrokerConfig,
        config,
        _over(
            {name.removeprefix("broker."): value for name, value in sets.items()},
            host=host,
            port=broker_port,
            data=data,
        ),
    )
    namesrv = read_settings(
        NameServerConfig,
        config if config is not None and config.suffix == ".toml" else None,
        _over(
            {name.removeprefix("nameserver."): value for name, value in for_namesrv.items()},
            host=host,
            port=namesrv_port,
        ),
    )
    namesrv_config = namesrv.config
    if namesrv.values["data"].origin == "default":
        below = str(Path(broker.config.data) / "namesrv")
        namesrv_config = dataclasses.replace(namesrv_config, data=below)
    namesrv_config = _same_tls(broker, namesrv, namesrv_config)
    _warn(broker, namesrv)

    from inorder.cli.running import serve
    from inorder.embedded import Embedded

    pair = Embedded(namesrv_config, _advertised(broker.config))
    with keeping_data(broker.config.data):
        serve(
            pair,
            lambda: {
                "namesrv": pair.namesrv_address,
                "broker": pair.broker_address,
                "data": broker.config.data,
            },
            output,
        )


@says_errors
def nameserver(
    *,
    host: HostOption = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port; 0 = any.  [default: 9876]")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Directory.  [default: ./inorder-data/namesrv]")
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    log_level: LevelOption = LogLevel.INFO,
    output: ReadyOption = Output.TABLE,
) -> None:
    """Start a name server."""
    setup_logging(log_level)
    flags = _over(parse_sets(set_), host=host, port=port, data=data)
    loaded = read_settings(NameServerConfig, config, flags)
    _warn(loaded)

    from inorder.nameserver.server import NameServer

    _serve_one(NameServer, loaded.config, "namesrv", output)


@says_errors
def broker(
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="Broker name.  [default: broker-a]")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Cluster name.  [default: DefaultCluster]")
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option("--namesrv", help="Name servers to register with.", metavar="H:P;H2:P"),
    ] = None,
    host: HostOption = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port; 0 = any.  [default: 10911]")
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    log_level: LevelOption = LogLevel.INFO,
    output: ReadyOption = Output.TABLE,
) -> None:
    """Start a broker."""
    setup_logging(log_level)
    flags = _over(
        parse_sets(set_),
        name=name,
        cluster=cluster,
        namesrv=namesrv,
        host=host,
        port=port,
        data=data,
    )
    loaded = read_settings(BrokerConfig, config, flags)
    _warn(loaded)
    if not loaded.config.namesrv:
        log.warning("the broker registers nowhere, clients will not find it; give --namesrv H:P")

    from inorder.broker.broker import Broker

    _serve_one(Broker, _advertised(loaded.config), "broker", output)


def _serve_one(
    make: Callable[[C, Clock, Files], Listener], config: C, role: str, output: Output
) -> None:
    """Run one server until a signal comes; its ready line names its address by `role`."""
    from inorder.cli.running import Single, serve
    from inorder.clock import SystemClock
    from inorder.disk import OsFiles

    server = Single(make(config, SystemClock(), OsFiles()))
    with keeping_data(config.data):
        serve(server, lambda: {role: server.address, "data": config.data}, output)


def _same_tls(
    broker: Loaded[BrokerConfig], namesrv: Loaded[NameServerConfig], config: NameServerConfig
) -> NameServerConfig:
    """Apply the broker's TLS settings to its name server, where that has none of its own."""
    names = [field.name for field in dataclasses.fields(NetConfig) if field.name.startswith("tls_")]
    changes = {
        name: getattr(broker.config.net, name)
        for name in names
        if namesrv.values[f"net.{name}"].origin == "default"
    }
    return dataclasses.replace(config, net=dataclasses.replace(config.net, **changes))


def _over(sets: dict[str, Raw], **options: Raw | None) -> dict[str, Raw | None]:
    """Lay the given options over the values of `--set`."""
    return {**sets, **{name: value for name, value in options.items() if value is not None}}


def _warn(*loaded: Loaded[Any]) -> None:
    """Warn once of ignored settings, and of a server that listens beyond loopback."""
    ignored = sorted({name for one in loaded for name in one.ignored})
    if ignored:
        log.warning("settings of RocketMQ without a meaning here, ignored: %s", ", ".join(ignored))
    for host in sorted({str(one.values["host"].value) for one in loaded}):
        if not _is_loopback(host):
            log.warning(
                "host=%s is not loopback and there is no authentication: whoever reaches the port "
                "may read and write; keep it on a network that you trust",
                host,
            )


def _advertised(config: BrokerConfig) -> BrokerConfig:
    """Return the settings, with an address for clients if the broker listens on all addresses."""
    if config.advertised_host or config.host not in ("0.0.0.0", "::"):  # noqa: S104
        return config
    try:
        host = socket.gethostbyname(socket.gethostname())
    except OSError:
        host = "127.0.0.1"
    log.warning(
        "host=%s: clients are told to come to %s; if that is wrong, --set advertised_host=ADDRESS",
        config.host,
        host,
    )
    return dataclasses.replace(config, advertised_host=host)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
