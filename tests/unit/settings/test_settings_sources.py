"""Files of settings: TOML and RocketMQ's properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.config import BrokerConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.settings import load, load_with_origins
from inorder.settings.load import FILE_BYTES_MAX, read_file

STOCK_BROKER_CONF = """\
# a stock file
brokerClusterName = DefaultCluster
brokerName = broker-b
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
"""


def write(path: Path, text: str) -> Path:
    """Write a file and return its path."""
    path.write_text(text)
    return path


def test_rocketmqs_broker_conf_loads(tmp_path: Path) -> None:
    """RocketMQ's own example file is understood whole, nothing ignored."""
    loaded = load_with_origins(
        BrokerConfig, file=write(tmp_path / "broker.conf", STOCK_BROKER_CONF)
    )
    config = loaded.config
    assert (config.name, config.store.retention_hours, config.store.delete_when) == (
        "broker-b", 48, "04",
    )  # fmt: skip
    assert config.store.sync_flush
    assert loaded.ignored == ()


def test_properties_follow_javas_rules(tmp_path: Path) -> None:
    """Comments, colons, blanks, continuation lines and escapes."""
    file = write(
        tmp_path / "x.properties",
        "! note\n\n  a=1\nb : two words \nc=one,\\\n   two\nd\\:e=\\u0041\\t.\nempty=\n",
    )
    assert read_file(file, BrokerConfig) == {
        "a": "1", "b": "two words", "c": "one,two", "d:e": "A\t.", "empty": "",
    }  # fmt: skip


def test_line_without_value_is_named(tmp_path: Path) -> None:
    """A line that is no pair is an error with its number."""
    file = write(tmp_path / "broker.conf", "brokerName=b\nnonsense\n")
    with pytest.raises(ConfigError, match="line 2 "):
        load(BrokerConfig, file=file)


def test_toml_has_a_table_for_each_server(tmp_path: Path) -> None:
    """One file serves both; dotted tables step into parts; RocketMQ's names are fine too."""
    file = write(
        tmp_path / "inorder.toml",
        "[broker]\nport = 1\nmaxMessageSize = 1000\n[broker.store]\nsync_flush = true\n"
        "[nameserver]\nport = 2\n",
    )
    broker = load(BrokerConfig, file=file)
    assert (broker.port, broker.store.message_bytes_max, broker.store.sync_flush) == (1, 1000, True)
    assert load(NameServerConfig, file=file).port == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 1\n", "top level"),
        ("[brocker]\nport = 1\n", "top level"),
        ("[broker]\nport = [1]\n", "neither text"),
        ("[broker\n", "not TOML"),
        ('[broker]\nport = "x"\n', "whole number"),
    ],
)
def test_wrong_toml_is_named(tmp_path: Path, text: str, words: str) -> None:
    """What cannot be understood is said with the file's name."""
    file = write(tmp_path / "inorder.toml", text)
    with pytest.raises(ConfigError, match=words) as caught:
        load(BrokerConfig, file=file)
    assert "inorder.toml" in str(caught.value)


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    """Missing, huge and binary files end in a ConfigError, not in a traceback."""
    binary, huge = tmp_path / "b.conf", tmp_path / "h.conf"
    binary.write_bytes(b"\xff\xfe=1")
    huge.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    for file in (tmp_path / "missing.conf", binary, huge, tmp_path):
        with pytest.raises(ConfigError):
            load(BrokerConfig, file=file)
