"""From the options of `inorder up | nameserver | broker` to the settings of the servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inorder.broker.broker
import inorder.cli.running
import inorder.cli.supervising
import inorder.embedded
import inorder.nameserver.server
from inorder.cli.contents import app
from inorder.config import AccessConfig, BrokerConfig, NameServerConfig, NetConfig, is_open
from tests.kit.commands import CliRunner


class Started:
    """What would have been started, with its settings."""

    def __init__(self, *configs: Any) -> None:
        self.configs = [c for c in configs if isinstance(c, BrokerConfig | NameServerConfig)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[BrokerConfig | NameServerConfig]:
    """Collect the settings instead of starting servers."""
    found: list[BrokerConfig | NameServerConfig] = []

    def note(server: Any, _describe: object, _output: object, **_more: object) -> None:
        inner = getattr(server, "_server", server)
        found.extend(inner.configs)

    monkeypatch.setattr(inorder.embedded, "Embedded", Started)
    monkeypatch.setattr(inorder.broker.broker, "Broker", Started)
    monkeypatch.setattr(inorder.nameserver.server, "NameServer", Started)
    monkeypatch.setattr(inorder.cli.running, "serve", note)
    return found


def run(*words: str) -> str:
    """Run the command line; return what it logged."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stderr


def test_up_has_the_documented_defaults(started: list[Any]) -> None:
    """Loopback, 9876, 10911, ./inorder-data; the name server's files lie below."""
    run("up")
    namesrv, broker = started
    assert (namesrv.host, namesrv.port) == ("127.0.0.1", 9876)
    assert (broker.host, broker.port, broker.data) == ("127.0.0.1", 10911, "./inorder-data")
    assert namesrv.data == "inorder-data/namesrv"


def test_up_takes_its_options(started: list[Any], tmp_path: Path) -> None:
    """Each option reaches its server; --set reaches either."""
    run(
        "up", "--host", "127.0.0.2", "--namesrv-port", "0", "--broker-port", "1",
        "--data", str(tmp_path), "--set", "flushDiskType=SYNC_FLUSH", "--set", "broker.name=b",
        "--set", "nameserver.scan_interval_ms=9",
    )  # fmt: skip
    namesrv, broker = started
    assert (namesrv.host, namesrv.port, namesrv.scan_interval_ms) == ("127.0.0.2", 0, 9)
    assert namesrv.data == str(tmp_path / "namesrv")
    assert (broker.host, broker.port, broker.name) == ("127.0.0.2", 1, "b")
    assert broker.store.sync_flush


def test_the_switch_of_rocketmq_4_means_the_broker(started: list[Any], tmp_path: Path) -> None:
    """Its name servers control nothing; the home of its files comes from the environment, too."""
    words = ["up", "--data", str(tmp_path), "--set", "aclEnable=true"]
    result = CliRunner().invoke(app, words, env={"ROCKETMQ_HOME": "/opt/rocketmq"})
    assert result.exit_code == 0, result.output
    namesrv, broker = started
    assert namesrv.access.effective_level == "off"
    assert broker.access.effective_level == "enforce"
    assert broker.access.rocketmq_home == "/opt/rocketmq"


def test_options_win_over_set_and_file(started: list[Any], tmp_path: Path) -> None:
    """A flag is the last word; what only the file says stays."""
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=1\nbrokerName=from-file\n")
    run("up", "--config", str(file), "--set", "port=2", "--broker-port", "3")
    namesrv, broker = started
    assert (broker.port, broker.name, namesrv.port) == (3, "from-file", 9876)


def test_one_toml_file_serves_both(started: list[Any], tmp_path: Path) -> None:
    """Tables of TOML reach their servers."""
    file = tmp_path / "inorder.toml"
    file.write_text('[broker]\nport = 1\n[nameserver]\nport = 2\ndata = "elsewhere"\n')
    run("up", "--config", str(file))
    namesrv, broker = started
    assert (broker.port, namesrv.port, namesrv.data) == (1, 2, "elsewhere")


def test_broker_takes_its_options(started: list[Any]) -> None:
    """Name, cluster and name servers are given as documented."""
    run(
        "broker", "--name", "b", "--cluster", "c", "--namesrv", "h:1;h2:2", "--host", "127.0.0.1",
        "--port", "0", "--data", "d", "--set", "defaultTopicQueueNums=4",
    )  # fmt: skip
    (broker,) = started
    assert (broker.name, broker.cluster, broker.namesrv) == ("b", "c", "h:1;h2:2")
    assert (broker.port, broker.data, broker.default_topic_queues) == (0, "d", 4)


def test_name_server_takes_its_options(started: list[Any]) -> None:
    """Host, port and data."""
    run("nameserver", "--host", "127.0.0.1", "--port", "0", "--data", "d")
    (namesrv,) = started
    assert (namesrv.host, namesrv.port, namesrv.data) == ("127.0.0.1", 0, "d")


def test_open_host_is_advertised_by_one_address(started: list[Any]) -> None:
    """Listening everywhere, a broker still tells clients one address, and warns."""
    logged = run("broker", "--host", "0.0.0.0", "--namesrv", "h:1", "--insecure")
    (broker,) = started
    assert broker.advertised_host not in ("", "0.0.0.0")
    assert "no authentication" in logged
    assert broker.advertised_host in logged


def test_broker_without_name_server_warns(started: list[Any]) -> None:
    """Nobody would find it."""
    assert "registers nowhere" in run("broker")
    assert len(started) == 1


def children(*words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command lines of the brokers that `inorder up` would start."""
    found: list[str] = []

    class Noted(Started):
        kill = None

        def __init__(self, namesrv: Any, plans: Any, words: Any, *_: Any, **__: Any) -> None:
            super().__init__(*namesrv.configs)
            found.extend(" ".join(words(plan, "127.0.0.1:9876")) for plan in plans)

    monkeypatch.setattr(inorder.cli.supervising, "Brokers", Noted)
    run("up", *words)
    return found


def test_several_brokers_get_what_the_first_would(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Settings for all reach all; what tells them apart is derived, whoever set it."""
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=east-a\nnamesrvAddr=h:1\n")
    lines = children(
        "--brokers", "2", "--config", str(file), "--set", "listenPort=2000", "--set",
        "broker.flushDiskType=SYNC_FLUSH", "--set", "nameserver.scan_interval_ms=9",
        "--data", "d", "--log-level", "warning", monkeypatch=monkeypatch,
    )  # fmt: skip
    common = "broker --supervised --output json --log-level warning --name east-{} --namesrv "
    common += "127.0.0.1:9876;h:1 --host 127.0.0.1 --port {} --data {} "
    common += f"--config {file} --set flushDiskType=SYNC_FLUSH"
    assert lines == [common.format("a", 2000, "d"), common.format("b", 2010, "d/east-b")]
    (namesrv,) = started
    assert namesrv.scan_interval_ms == 9


def test_access_control_means_both_servers(started: list[Any], tmp_path: Path) -> None:
    """The name server checks what the broker checks; the pair shares credentials of its own."""
    file = tmp_path / "broker.conf"
    file.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        'initAuthenticationUser={"username":"root","password":"a-long-secret"}\n'
    )
    run("up", "--config", str(file))
    namesrv, broker = started
    assert namesrv.access.effective_level == broker.access.effective_level == "enforce"
    assert namesrv.access.inner_credentials == broker.access.inner_credentials
    assert "secretKey" in broker.access.inner_credentials
    assert not namesrv.access.init_user
    started.clear()
    run("up", "--config", str(file), "--set", "nameserver.access.level=log")
    assert [one.access.effective_level for one in started] == ["log", "enforce"]
    started.clear()
    run("up")
    assert [one.access.inner_credentials for one in started] == ["", ""]


def test_one_broker_is_no_process_of_its_own(started: list[Any]) -> None:
    """`--brokers 1` is the default."""
    run("up", "--brokers", "1")
    assert len(started) == 2


def test_brokers_are_not_left_out_by_mistake(started: list[Any], tmp_path: Path) -> None:
    """A plain `up` where there were two is refused; a number that was given is obeyed, and said."""
    (tmp_path / "broker-b" / "commitlog").mkdir(parents=True)
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path)])
    assert (result.exit_code, started) == (2, [])
    assert "has messages of broker-b, of a start with --brokers" in result.stderr
    logged = run("up", "--data", str(tmp_path), "--brokers", "1")
    assert "broker-b: left out by --brokers 1" in logged


@pytest.mark.parametrize("command", ["up", "broker", "nameserver"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "::ffff:10.0.0.5", "127.example"])
def test_open_addresses_need_a_word(started: list[Any], command: str, host: str) -> None:
    """Beyond loopback without authentication a start is refused; --insecure starts and warns."""
    result = CliRunner().invoke(app, [command, "--host", host])
    assert (result.exit_code, started) == (2, [])
    assert "--insecure on a network that you trust" in " ".join(result.stderr.split())
    assert "there is no authentication (--insecure)" in run(command, "--host", host, "--insecure")
    assert started


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_loopback_needs_no_word(started: list[Any], host: str) -> None:
    """Nothing is refused, and nothing is said."""
    assert "authentication" not in run("up", "--host", host)
    assert started


@pytest.mark.parametrize("command", ["up", "broker", "nameserver"])
def test_an_open_admin_port_needs_a_word(started: list[Any], command: str) -> None:
    """It asks nobody who he is, whoever may use the other ports."""
    words = ["--set", "admin_port=0", "--set", "admin_host=0.0.0.0"]
    result = CliRunner().invoke(app, [command, *words])
    assert (result.exit_code, started) == (2, [])
    assert "admin_host=0.0.0.0 lets other machines in" in " ".join(result.stderr.split())
    assert "admin_host=0.0.0.0 is not loopback (--insecure)" in run(command, *words, "--insecure")
    assert started


def test_rocketmqs_file_names_the_way_out(started: list[Any], tmp_path: Path) -> None:
    """`bindAddress` opens as --host does; `brokerIP1` alone opens nothing, and that is said."""
    file = tmp_path / "broker.conf"
    file.write_text("bindAddress=0.0.0.0\nbrokerIP1=10.0.0.5\n")
    result = CliRunner().invoke(app, ["broker", "--config", str(file)])
    assert result.exit_code == 2
    assert "bindAddress" in result.stderr
    file.write_text("brokerIP1=10.0.0.5\n")
    logged = run("broker", "--config", str(file), "--namesrv", "h:1")
    assert "the broker listens on 127.0.0.1 only" in logged


def test_checked_clients_make_an_address_safe(started: list[Any]) -> None:
    """Certificates that every client must show are an authentication; optional ones are not."""
    words = ["up", "--host", "0.0.0.0", "--set", "advertised_host=127.0.0.1"]
    sets = ["tls_mode=enforcing", "tls_client_auth=require", "tls_trust=ca.pem"]
    given = [word for one in sets for word in ("--set", f"net.{one}")]
    assert "authentication" not in run(*words, *given)
    assert [one.net.tls_client_auth for one in started] == ["require", "require"]
    for weaker in ("net.tls_mode=permissive", "net.tls_client_auth=optional"):
        result = CliRunner().invoke(app, [*words, *given, "--set", weaker])
        assert result.exit_code == 2


def test_plain_text_beside_required_certificates_is_said(started: list[Any]) -> None:
    """`require` means TLS connections; the warning names the mode that closes the others."""
    logged = run("up", "--set", "net.tls_client_auth=require", "--set", "net.tls_trust=ca.pem")
    assert "net.tls_mode=enforcing closes" in logged


class Judged:
    """Settings as far as `is_open` reads them."""

    def __init__(self, access: str) -> None:
        self.access = AccessConfig(level=access)
        self.net = NetConfig()


@pytest.mark.parametrize(("access", "opened"), [("off", True), ("log", True), ("enforce", False)])
def test_enforced_users_close_a_server(access: str, opened: bool) -> None:
    """Users that are only counted refuse nobody."""
    assert is_open(Judged(access)) is opened  # type: ignore[arg-type]
