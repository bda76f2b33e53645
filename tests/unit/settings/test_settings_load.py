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
