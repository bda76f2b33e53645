"""`inorder up | nameserver | broker`: from options to settings to a running server.

Options are the last layer over file and environment, so no option has a default here: the defaults
stand in `inorder.config`. How a server runs and stops is in `running.py`, how several brokers do in
`supervising.py`.
"""

from __future__ import annotations

import dataclasses
import socket
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from inorder.cli.brokers import BROKERS_MAX, BrokerPlan, child_words, left_out, plan_brokers
from inorder.cli.failures import LogLevel, keeping_data, says_errors, setup_logging, shape_logs
from inorder.cli.output import Output
from inorder.cli.settings import ConfigOption, Raw, SetOption, parse_sets, read_settings
from inorder.config import AccessConfig, BrokerConfig, NameServerConfig, NetConfig, is_open
from inorder.errors import ConfigError
from inorder.logs import get_logger
from inorder.settings import catalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from inorder.cli.running import Listener, Ready, Startable
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
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond loopback although whoever reaches the port may do everything.",
    ),
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
    insecure: InsecureOption = False,
    console: Annotated[
        bool, typer.Option("--console", help="Also a web console, in a process of its own.")
    ] = False,
    console_host: Annotated[
        str | None,
        typer.Option("--console-host", help="Address of the console.  [default: 127.0.0.1]"),
    ] = None,
    console_port: Annotated[
        int | None, typer.Option("--console-port", help="Its port; 0 = any.  [default: 8089]")
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    log_level: LevelOption = LogLevel.INFO,
    output: ReadyOption = Output.TABLE,
) -> None:  # fmt: skip
    """Start a name server and a broker in one process, or several brokers in one process each.

    --set means the broker; write --set nameserver.NAME=VALUE for the name server. A properties
    file of RocketMQ, given with --config, means the broker too. Settings of TLS and of access mean
    both.

    With --brokers 3 there are broker-a, broker-b and broker-c, on --broker-port and 10 and 20 above
    it, with their files in --data, --data/broker-b and --data/broker-c. A topic that is created
    gets queues on all of them. A broker process that ends is started again; Ctrl-C stops all.
    """
    setup_logging(log_level)
    sets = parse_sets(set_)
    for_namesrv = {name: sets.pop(name) for name in list(sets) if name.startswith("nameserver.")}
    own = {name.removeprefix("broker."): value for name, value in sets.items()}
    own_names = {name.removeprefix("nameserver."): value for name, value in for_namesrv.items()}
    broker = read_settings(
        BrokerConfig, config, _over(own, host=host, port=broker_port, data=data)
    )  # fmt: skip
    namesrv = read_settings(
        NameServerConfig,
        config if config is not None and config.suffix == ".toml" else None,
        _over(own_names, host=host, port=namesrv_port),
    )
    shape_logs(broker.config.log_format, broker.config.log_levels)
    namesrv_config = namesrv.config
    if namesrv.values["data"].origin == "default":
        below = str(Path(broker.config.data) / "namesrv")
        namesrv_config = dataclasses.replace(namesrv_config, data=below)
    namesrv_config = _same_tls(broker, namesrv, namesrv_config)
    broker_access, namesrv_config = _same_access(broker, namesrv, namesrv_config, brokers or 1)
    with_access = dataclasses.replace(broker.config, access=broker_access)
    _check_open(with_access, namesrv_config, insecure=insecure)
    _warn(broker, namesrv)
    _check_left_out(broker.config, brokers)
    broker_config = _advertised(with_access)
    words = _console_words(console_host, console_port, log_level) if console else None
    if brokers is not None and brokers > 1:
        _serve_many(
            namesrv_config, broker_config, count=brokers, file=config, sets=sets,
            log_level=log_level, output=output, console=words,
        )  # fmt: skip
        return

    _serve_pair(namesrv_config, broker_config, output, words)


def _serve_pair(
    namesrv_config: NameServerConfig,
    broker_config: BrokerConfig,
    output: Output,
    console: list[str] | None,
) -> None:
    """Run a name server and a broker in this process until a signal comes."""
    from inorder.embedded import Embedded

    pair = Embedded(namesrv_config, broker_config)
    with keeping_data(broker_config.data):
        _serve_all(
            pair,
            lambda: {
                "namesrv": pair.namesrv_address,
                "broker": pair.broker_address,
                "data": broker_config.data,
            },
            output,
            namesrv=lambda: pair.namesrv_address,
            console=console,
            net=broker_config.net,
        )


def _console_words(host: str | None, port: int | None, log_level: LogLevel) -> list[str]:
    words = ["--log-level", str(log_level)]
    words += ["--host", host] if host is not None else []
    return [*words, "--port", str(port)] if port is not None else words


def _serve_all(
    servers: Startable,
    describe: Callable[[], Ready],
    output: Output,
    *,
    namesrv: Callable[[], str],
    console: list[str] | None,
    net: NetConfig,
    kill: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes; with the words of a console, also that."""
    from inorder.cli.running import serve

    if console is None:
        serve(servers, describe, output, kill=kill)
        return

    from inorder.cli.console import WithConsole
    from inorder.embedded import reached_at

    whole = WithConsole(servers, lambda: reached_at(namesrv()), console, net)

    def kill_all() -> None:
        whole.process.kill()
        kill()

    serve(whole, lambda: {**describe(), "console": whole.process.url}, output, kill=kill_all)


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
    insecure: InsecureOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    log_level: LevelOption = LogLevel.INFO,
    output: ReadyOption = Output.TABLE,
) -> None:
    """Start a name server."""
    setup_logging(log_level)
    flags = _over(parse_sets(set_), host=host, port=port, data=data)
    loaded = read_settings(NameServerConfig, config, flags)
    _check_open(loaded.config, insecure=insecure)
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
    insecure: InsecureOption = False,
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
    if not supervised:  # else the process that started this one has checked and warned
        _check_open(loaded.config, insecure=insecure)
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
    console: list[str] | None,
) -> None:
    """Run a name server and several broker processes until a signal comes."""
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
        _serve_all(
            several,
            lambda: {
                "namesrv": several.namesrv_address,
                "brokers": several.addresses,
                "data": broker_config.data,
            },
            output,
            namesrv=lambda: several.namesrv_address,
            console=console,
            net=broker_config.net,
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


def _same_access(
    broker: Loaded[BrokerConfig],
    namesrv: Loaded[NameServerConfig],
    config: NameServerConfig,
    brokers: int,
) -> tuple[AccessConfig, NameServerConfig]:
    """Apply the broker's settings of access to its name server, where that has none of its own.

    A pair in one process needs no line with its credentials: it gets new ones at each start. The
    ACL files of RocketMQ 4 are the broker's: there name servers control nothing.
    """
    access = broker.config.access
    if access.effective_level != "off" and not access.inner_credentials and brokers == 1:
        from inorder.access.storage import own_credentials

        access = dataclasses.replace(access, inner_credentials=own_credentials())
    if access.only_plain:
        return access, config
    of_broker = {"init_user", "acl_enable", "rocketmq_home"}
    names = {field.name for field in dataclasses.fields(AccessConfig)}
    changes = {
        name: getattr(access, name)
        for name in names - of_broker
        if namesrv.values[f"access.{name}"].origin == "default"
    }
    return access, dataclasses.replace(config, access=dataclasses.replace(config.access, **changes))


def _over(sets: dict[str, Raw], **options: Raw | None) -> dict[str, Raw | None]:
    """Lay the given options over the values of `--set`."""
    return {**sets, **{name: value for name, value in options.items() if value is not None}}


def _warn(*loaded: Loaded[Any]) -> None:
    """Warn once of settings that mean less than they seem to."""
    ignored = sorted({name for one in loaded for name in one.ignored})
    if ignored:
        log.warning("settings of RocketMQ without a meaning here, ignored: %s", ", ".join(ignored))
    if any(
        one.config.net.tls_client_auth == "require" and one.config.net.tls_mode == "permissive"
        for one in loaded
    ):
        log.warning(
            "net.tls_client_auth=require, and net.tls_mode=permissive: who speaks plain text is "
            "asked for no certificate; net.tls_mode=enforcing closes such connections"
        )
    for config in (one.config for one in loaded if isinstance(one.config, BrokerConfig)):
        told = config.advertised_host
        if told and _is_loopback(config.host) and not _is_loopback(told):
            log.warning(
                "clients are told to come to %s (advertised_host, RocketMQ's brokerIP1), and the "
                "broker listens on %s only; give --host, or bindAddress in the settings file",
                told, config.host,
            )  # fmt: skip


def _check_open(*configs: BrokerConfig | NameServerConfig, insecure: bool) -> None:
    """Refuse to let everybody in from other machines, or warn if that was asked for."""
    for host in sorted({one.host for one in configs if is_open(one)}):
        if _is_loopback(host):
            continue
        if not insecure:
            raise ConfigError(
                f"host={host} (RocketMQ's bindAddress) lets other machines in, and there is no "
                "authentication: whoever reaches the port may read, write and delete. Listen on "
                "127.0.0.1, make users, ask clients for certificates (net.tls_mode=enforcing and "
                "net.tls_client_auth=require), or give --insecure on a network that you trust"
            )
        log.warning(
            "host=%s lets other machines in, and there is no authentication (--insecure): whoever "
            "reaches the port may read, write and delete; keep it on a network that you trust",
            host,
        )
    for one in configs:
        if one.admin_port < 0 or _is_loopback(one.admin_host):
            continue
        if not insecure:
            raise ConfigError(
                f"admin_host={one.admin_host} lets other machines in, and the admin port asks "
                "nobody who he is: whoever reaches it may read the names of topics and groups. "
                "Listen on 127.0.0.1, or give --insecure on a network that you trust"
            )
        log.warning(
            "admin_host=%s is not loopback (--insecure): whoever reaches port %d may read the "
            "names of topics and groups; keep it on a network that you trust",
            one.admin_host, one.admin_port,
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
    if host == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False  # a name may mean any address
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
