"""Types, ranges and RocketMQ's units."""

from __future__ import annotations

import pytest

from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.settings import catalog, load
from inorder.settings.rocketmq import foreign_names
from inorder.settings.values import allowed, parse
from inorder.wire.requests.leases import LEASE_MS_MAX, LEASE_MS_MIN

Raw = bool | int | float | str


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("port", "0", 0),
        ("port", " 10911 ", 10911),
        ("trace_on", "False", False),
        ("trace_on", "yes", True),
        ("store.disk_full_ratio", 1, 1.0),
        ("store.delete_when", "04;16", "04;16"),
        ("namesrv", "a:1;[::1]:2;", "a:1;[::1]:2;"),
        ("namesrv", "", ""),
    ],
)
def test_values_are_read(name: str, raw: Raw, value: Raw) -> None:
    """Text and native values become what the setting is."""
    setting = catalog(BrokerConfig).settings[name]
    parsed = parse(setting, raw, "test")
    assert parsed == value
    assert type(parsed) is setting.type


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("port", "65536"),
        ("port", -1),
        ("port", True),
        ("port", 1.5),
        ("port", ""),
        ("trace_on", "perhaps"),
        ("trace_on", 2),
        ("perm", "7"),
        ("name", "a b"),
        ("name", ""),
        ("name", "x" * 128),
        ("host", ""),
        ("data", " "),
        ("namesrv", "no-port"),
        ("net.tls_mode", "maybe"),
        ("store.delete_when", "25"),
        ("store.disk_full_ratio", "90"),
        ("store.disk_full_ratio", "nan"),
        ("store.disk_used_ratio_max", "1.01"),
        ("store.flush_interval_ms", "0"),
        ("store.segment_bytes", 2**31),
        ("default_topic_queues", 0),
        ("short_polling_ms", "1e3"),
    ],
)
def test_wrong_values_name_the_setting(name: str, raw: Raw) -> None:
    """A value of the wrong type or range is refused with the setting's name and origin."""
    with pytest.raises(ConfigError, match=rf"^{name} is .*\(here\); it must be"):
        parse(catalog(BrokerConfig).settings[name], raw, "here")


def test_every_default_is_allowed() -> None:
    """The ranges accept what we ship, and each setting has a line of documentation."""
    for cls in (BrokerConfig, NameServerConfig, ClientConfig):
        for setting in catalog(cls).settings.values():
            assert parse(setting, setting.default, "default") == setting.default
            assert setting.doc
            assert "inf" not in allowed(setting)


@pytest.mark.parametrize(
    ("name", "value", "ours", "expected"),
    [
        ("flushDiskType", "SYNC_FLUSH", "store.sync_flush", True),
        ("flushDiskType", "ASYNC_FLUSH", "store.sync_flush", False),
        ("serverChannelMaxIdleTimeSeconds", "30", "net.idle_timeout_ms", 30_000),
        ("diskMaxUsedSpaceRatio", "70", "store.disk_used_ratio_max", 0.7),
        ("diskSpaceWarningLevelRatio", "95", "store.disk_full_ratio", 0.95),
        ("tls.server.mode", "disabled", "net.tls_mode", "disabled"),
    ],
)
def test_rocketmqs_units_are_converted(name: str, value: str, ours: str, expected: Raw) -> None:
    """Under RocketMQ's name a value has RocketMQ's unit."""
    config: object = load(BrokerConfig, flags={name: value})
    for part in ours.split("."):
        config = getattr(config, part)
    assert config == pytest.approx(expected) if isinstance(expected, float) else config == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brokerRole", "SLAVE"),
        ("enableDLegerCommitLog", "true"),
        ("storeType", "defaultRocksDB"),
        ("storePathCommitLog", "/elsewhere/commitlog"),
        ("flushDiskType", "SOMETIMES"),
        ("serverChannelMaxIdleTimeSeconds", "soon"),
    ],
)
def test_promises_that_cannot_be_kept_are_refused(name: str, value: str) -> None:
    """To ignore these would break a promise silently."""
    with pytest.raises(ConfigError, match=name):
        load(BrokerConfig, flags={name: value})


def test_harmless_values_of_promises_pass() -> None:
    """The same names are fine when they ask for what we do anyway."""
    flags: dict[str, Raw] = {
        "brokerRole": "ASYNC_MASTER",
        "aclEnable": False,
        "storePathRootDir": "/store",
        "storePathCommitLog": "/store/commitlog",
    }
    assert load(BrokerConfig, flags=flags).data == "/store"


def test_shared_names_are_rocketmqs() -> None:
    """Every name that we claim to share exists there."""
    for cls in (BrokerConfig, NameServerConfig):
        assert set(catalog(cls).by_rocketmq) <= foreign_names(cls)


def test_the_documented_range_of_a_lease_is_the_enforced_one() -> None:
    """Consumers and brokers refuse leases outside of these bounds."""
    doc = catalog(ClientConfig).settings["consumer.lease_ms"].doc
    assert doc.endswith(f"; {LEASE_MS_MIN} to {LEASE_MS_MAX}")
