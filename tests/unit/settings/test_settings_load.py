"""Layers of settings, their origins, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.settings import load, load_with_origins


def test_defaults_are_those_of_the_dataclasses() -> None:
    """Without any layer the result equals a plain instance, and says so."""
    loaded = load_with_origins(BrokerConfig)
    assert loaded.config == BrokerConfig()
    assert {value.origin for value in loaded.values.values()} == {"default"}


def test_later_layers_win(tmp_path: Path) -> None:
    """Flags beat the environment, which beats the file, which beats the default."""
    file = tmp_path / "inorder.toml"
    file.write_text('[broker]\nname = "f"\ncluster = "f"\nregion = "f"\n')
    env = {"INORDER_BROKER__NAME": "e", "INORDER_BROKER__CLUSTER": "e"}
    loaded = load_with_origins(BrokerConfig, file=file, env=env, flags={"name": "g"})
    config = loaded.config
    assert (config.name, config.cluster, config.region) == ("g", "e", "f")
    assert loaded.values["name"].origin == "flag"
    assert loaded.values["cluster"].origin == "environment INORDER_BROKER__CLUSTER"
    assert loaded.values["region"].origin == f"file {file}"
    assert loaded.values["port"].origin == "default"


def test_environment_reaches_nested_settings() -> None:
    """Two underscores step into a part; each server has its own prefix."""
    env = {
        "INORDER_BROKER__STORE__FLUSH_INTERVAL_MS": "7",
        "INORDER_NAMESERVER__NET__CONNECTIONS_MAX": "9",
    }
    assert load(BrokerConfig, env=env).store.flush_interval_ms == 7
    assert load(BrokerConfig, env=env).net.connections_max == BrokerConfig().net.connections_max
    assert load(NameServerConfig, env=env).net.connections_max == 9


def test_clients_have_settings_too() -> None:
    """They have a prefix of their own; under RocketMQ's names or inorder's."""
    loaded = load(ClientConfig, env={"INORDER_CLIENT__SEND_TIMEOUT_MS": "7"})
    assert loaded.send_timeout_ms == 7
    assert load(ClientConfig, flags={"pullBatchSize": 5}).pull_messages_max == 5
    with pytest.raises(ConfigError, match="did you mean"):
        load(ClientConfig, flags={"pullBatchsize": 5})


def test_rocketmqs_variable_is_a_fallback() -> None:
    """NAMESRV_ADDR counts, but inorder's variable wins."""
    assert load(BrokerConfig, env={"NAMESRV_ADDR": "a:1"}).namesrv == "a:1"
    both = {"NAMESRV_ADDR": "a:1", "INORDER_BROKER__NAMESRV": "b:2"}
    assert load(BrokerConfig, env=both).namesrv == "b:2"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("store.flush_interval", "store.flush_interval_ms"),
        ("sync_flush", "store.sync_flush"),
        ("brokername", "brokerName"),
    ],
)
def test_unknown_name_suggests_the_nearest(name: str, nearest: str) -> None:
    """A misspelt name is an error that names the one that was meant."""
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        load(BrokerConfig, flags={name: "1"})


def test_unknown_variable_is_an_error() -> None:
    """A misspelt variable with our prefix is not ignored."""
    with pytest.raises(ConfigError, match="INORDER_BROKER__STORE__FLUSH_INTERVAL"):
        load(BrokerConfig, env={"INORDER_BROKER__STORE__FLUSH_INTERVAL": "7"})


def test_settings_of_rocketmq_without_meaning_are_listed_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They do not stop the start; one warning names them all."""
    flags = {"haListenPort": "1", "sendMessageThreadPoolNums": "4", "brokerName": "b"}
    with caplog.at_level(logging.WARNING):
        assert load(BrokerConfig, flags=flags).name == "b"
    (record,) = caplog.records
    assert record.getMessage().endswith("ignored: haListenPort, sendMessageThreadPoolNums")


def test_contradicting_settings_are_refused() -> None:
    """Settings that are fine alone and wrong together are named."""
    cases: list[tuple[dict[str, bool | int | float | str], str]] = [
        ({"store.queue_file_bytes": 30}, "multiple of 20"),
        ({"store.segment_bytes": 4096}, "segment_bytes"),
        ({"store.disk_full_ratio": 0.5}, "ascend"),
        ({"net.frame_bytes_max": 4096}, "frame_bytes_max"),
        ({"net.tls_key": "k.pem"}, "belong together"),
        ({"store.index_entries": 1}, "index_entries"),
        ({"advertised_host": "broker.example"}, "advertised_host"),
    ]
    for flags, words in cases:
        with pytest.raises(ConfigError, match=words):
            load(BrokerConfig, flags=flags)


PAIR = {"tls.server.certPath": "c.pem", "tls.server.keyPath": "k.pem"}
TRUST = {"tls.server.trustCertPath": "ca.pem"}


def test_rocketmqs_keys_of_tls() -> None:
    """The keys of a server and of its calls have a meaning, on brokers and name servers."""
    flags = {
        **PAIR, **TRUST, "tls.server.mode": "enforcing", "tls.server.authClient": "true",
        "tls.server.need.client.auth": "require", "tls.test.mode.enable": "false",
        "tls.enable": "true", "tls.client.authServer": "false", "tls.client.certPath": "cc.pem",
        "tls.client.keyPath": "ck.pem", "tls.client.trustCertPath": "cca.pem",
    }  # fmt: skip
    for cls in (BrokerConfig, NameServerConfig):
        loaded = load_with_origins(cls, flags=flags)
        net = loaded.config.net
        assert (net.tls_certificate, net.tls_key, net.tls_trust) == ("c.pem", "k.pem", "ca.pem")
        assert (net.tls_mode, net.tls_client_auth) == ("enforcing", "require")
        assert (net.tls_enable, net.tls_client_verify) == (True, False)
        assert (net.tls_client_certificate, net.tls_client_key) == ("cc.pem", "ck.pem")
        assert net.tls_client_trust == "cca.pem"
        assert loaded.ignored == ()


def test_the_proxys_names_of_tls() -> None:
    """`tlsKeyPath` and its like mean the same settings."""
    flags = {"tlsKeyPath": "k.pem", "tlsCertPath": "c.pem", "tlsTestModeEnable": "false"}
    net = load(BrokerConfig, flags=flags).net
    assert (net.tls_certificate, net.tls_key) == ("c.pem", "k.pem")
    assert load(BrokerConfig, flags={"useTLS": "true"}).net.tls_enable


def test_test_mode_means_a_certificate_of_the_servers_own() -> None:
    """It is the default without a certificate; calls to other servers then trust theirs."""
    net = load(BrokerConfig, flags={"tls.test.mode.enable": "true", "tls.enable": "true"}).net
    assert (net.tls_enable, net.tls_client_verify) == (True, False)
    given = {"tls.test.mode.enable": "true", "tls.client.authServer": "true"}
    assert load(BrokerConfig, flags=given).net.tls_client_verify


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tls.test.mode.enable": "false"}, "tls.server.certPath and tls.server.keyPath are miss"),
        ({"tls.test.mode.enable": "true", **PAIR}, "would leave tls.server.certPath unused"),
        ({"tls.test.mode.enable": "perhaps"}, "must be true or false"),
        ({"tls.server.need.client.auth": "require"}, "tls.server.trustCertPath"),
        ({"tls.server.need.client.auth": "optional"}, "tls.server.trustCertPath"),
        ({"tls.server.need.client.auth": "always"}, "none, optional, require"),
        (
            {"tls.server.need.client.auth": "require", "tls.server.authClient": "false"},
            "without it any certificate would do",
        ),
        ({"tls.server.authClient": "true", **TRUST}, "tls.server.need.client.auth=require is mis"),
        ({"tls.server.certPath": "c.pem"}, "belong together"),
        ({"tls.config.file": "/etc/rocketmq/tls.properties"}, "put the lines of that file into"),
    ],
)
def test_half_a_configuration_of_tls_is_an_error(flags: dict[str, str], words: str) -> None:
    """Nothing is silently weaker than it looks; the error names the line that is missing."""
    with pytest.raises(ConfigError, match=words):
        load(BrokerConfig, flags=flags)


def test_clients_that_are_checked_anyway(tmp_path: Path) -> None:
    """`authClient=false` cannot weaken `require`: it is listed as without a meaning."""
    flags = {**TRUST, "tls.server.need.client.auth": "require", "tls.server.authClient": "false"}
    assert load_with_origins(BrokerConfig, flags=flags).ignored == ("tls.server.authClient",)


def test_secrets_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """A command line would show them; no text of the settings does."""
    file = tmp_path / "broker.conf"
    file.write_text("tls.server.keyPassword=open sesame\n")
    config = load(BrokerConfig, file=file)
    assert config.net.tls_key_password == "open sesame"
    assert "sesame" not in repr(config)
    variable = "INORDER_BROKER__NET__TLS_KEY_PASSWORD"
    assert load(BrokerConfig, env={variable: "x"}).net.tls_key_password == "x"
    for name in ("tls.server.keyPassword", "net.tls_key_password"):
        with pytest.raises(ConfigError, match=variable) as caught:
            load(BrokerConfig, flags={name: "open sesame"})
        assert "sesame" not in str(caught.value)
