"""`inorder up | nameserver | broker`: from options to settings to a running server.

Options are the last layer over file and environment, so no option has a default here: the defaults
stand in `inorder.config`. How a server runs and stops is in `running.py`, how several brokers do in
`supervising.py`.
"""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from inorder.cli.brokers import BROKERS_MAX, BrokerPlan, child_words, left_out, plan_brokers
from inorder.cli.failures import LogLevel, keeping_data, says_errors, setup_logging, shape_logs
from inorder.cli.output import Output
from inorder.cli.settings import ConfigOption, Raw, SetOption, parse_sets, read_settings
from inorder.config import BrokerConfig, NameServerConfig, NetConfig
from inorder.errors import ConfigError
from inorder.logs import get_logger
from inorder.settings import catalog

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
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers", min=1, max=BROKERS_MAX,
            help="Brokers; several are a process each, for more cores.  [default: 1]",
        ),
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    log_level: LevelOption = LogLevel.INFO,
    output: ReadyOption = Output.TABLE,
) -> None:  # fmt: skip
    """Start a name server and a broker in one process, or several brokers in one process each.

    --set means the broker; write --set nameserver.NAME=VALUE for the name server. A properties
    file of RocketMQ, given with --config, means the broker too. TLS settings mean both.

    With --brokers 3 there are broker-a, broker-b and broker-c, on --broker-port and 10 and 20 above
    it, with their files in --data, --data/broker-b and --data/broker-c. A topic that is created
    gets queues on all of them. A broker process that ends is started again; Ctrl-C stops all.
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
    shape_logs(broker.config.log_format, broker.config.log_levels)
    namesrv_config = namesrv.config
    if namesrv.values["data"].origin == "default":
        below = str(Path(broker.config.data) / "namesrv")
        namesrv_config = dataclasses.replace(namesrv_config, data=below)
    namesrv_config = _same_tls(broker, namesrv, namesrv_config)
    _warn(broker, namesrv)
    _check_left_out(broker.config, brokers)
    broker_config = _advertised(broker.config)
    if brokers is not None and brokers > 1:
        _serve_many(
            namesrv_config,
            broker_config,
            count=brokers,
            file=config,
            sets=sets,
            log_level=log_level,
            output=output,
        )
        return

    from inorder.cli.running import serve
    from inorder.embedded import Embedded

    pair = Embedded(namesrv_config, broker_config)
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
    shape_logs(loaded.config.log_format, loaded.config.log_levels)
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
    supervised: Annotated[
        bool, typer.Option("--supervised", hidden=True, help="Of `up --brokers`.")
    ] = False,
) -> None:
    """Start a broker."""
    setup_logging(log_level, (name or "") if supervised else "")
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
    shape_logs(
        loaded.config.log_format, loaded.config.log_levels, (name or "") if supervised else ""
    )
    if not supervised:  # else the process that started this one has warned
        _warn(loaded)
    if not loaded.config.namesrv:
        log.warning("the broker registers nowhere, clients will not find it; give --namesrv H:P")

    from inorder.broker.broker import Broker

    _serve_one(Broker, _advertised(loaded.config), "broker", output, supervised=supervised)


def _serve_one(
    make: Callable[[C, Clock, Files], Listener],
    config: C,
    role: str,
    output: Output,
    *,
    supervised: bool = False,
) -> None:
    """Run one server until a signal comes; its ready line names its address by `role`."""
    from inorder.cli.running import Single, serve
    from inorder.clock import SystemClock
    from inorder.disk import OsFiles

    server = Single(make(config, SystemClock(), OsFiles()))
    with keeping_data(config.data):
        serve(
            server,
            lambda: {role: server.address, "data": config.data},
            output,
            supervised=supervised,
        )


def _serve_many(
    namesrv_config: NameServerConfig,
    broker_config: BrokerConfig,
    *,
    count: int,
    file: Path | None,
    sets: dict[str, Raw],
    log_level: LogLevel,
    output: Output,
) -> None:
    """Run a name server and several broker processes until a signal comes."""
    from inorder.cli.running import serve
    from inorder.cli.supervising import Brokers
    from inorder.clock import SystemClock
    from inorder.disk import OsFiles
    from inorder.nameserver.server import NameServer

    plans = plan_brokers(broker_config, count, namesrv_config.port)
    given = _for_children(sets, broker_config)

    def words(plan: BrokerPlan, namesrv: str) -> list[str]:
        others = [one for one in broker_config.namesrv.split(";") if one and one != namesrv]
        return child_words(
            plan,
            ";".join([namesrv, *others]),
            host=broker_config.host,
            config=file,
            sets=given,
            log_level=log_level,
        )

    clock = SystemClock()
    several = Brokers(
        NameServer(namesrv_config, clock, OsFiles()),
        plans,
        words,
        clock,
        stop_ms=broker_config.shutdown_timeout_ms,
    )
    with keeping_data(broker_config.data):
        serve(
            several,
            lambda: {
                "namesrv": several.namesrv_address,
                "brokers": several.addresses,
                "data": broker_config.data,
            },
            output,
            kill=several.kill,
        )


def _for_children(sets: dict[str, Raw], config: BrokerConfig) -> dict[str, object]:
    """Return the settings of `--set` for every broker, without what each gets as an option."""
    known = catalog(BrokerConfig).settings
    own = {"name", "port", "data", "host", "namesrv", "advertised_host", "admin_port"}
    own |= {alias for name in own if (alias := known[name].rocketmq)}
    found: dict[str, object] = {
        name: value
        for full, value in sets.items()
        if (name := full.removeprefix("broker.")) not in own
    }
    if config.advertised_host:
        found["advertised_host"] = config.advertised_host
    return found


def _check_left_out(config: BrokerConfig, count: int | None) -> None:
    """Refuse to leave brokers out that are there, unless their number was given."""
    from inorder.disk import OsFiles

    missing = left_out(config, count or 1, OsFiles())
    if not missing:
        return
    where = f"data directory {config.data} has messages of {', '.join(missing)}"
    if count is None:
        raise ConfigError(
            f"{where}, of a start with --brokers; give --brokers again with their number, or "
            "--brokers 1 to leave them out"
        )
    log.warning("%s: left out by --brokers %d; keys of their queues wait for them", where, count)


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
    for one in loaded:
        admin_host, port = str(one.values["admin_host"].value), one.values["admin_port"].value
        if int(port) >= 0 and not _is_loopback(admin_host):
            log.warning(
                "admin_host=%s is not loopback: whoever reaches port %s may read the names of "
                "topics and groups; keep it on a network that you trust", admin_host, port,
            )  # fmt: skip


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
