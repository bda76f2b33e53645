"""Typed values of settings, their ranges, and the catalogue of all settings.

The catalogue flattens the dataclasses of `inorder.config` to dotted names. The unit at the end of a
name gives the range; `_RANGES` holds the exceptions. `check_together` checks settings that depend
on each other.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, get_type_hints

from inorder.config import BrokerConfig, ClientConfig, NameServerConfig, NetConfig, StoreConfig
from inorder.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a configuration class."""

    name: str
    """Dotted, as in `store.flush_interval_ms`."""
    type: type
    default: bool | int | float | str
    doc: str
    rocketmq: str | None
    secret: bool = False
    """Its value is never shown."""


class Catalog:
    """The settings of one class, found by inorder's name or by RocketMQ's."""

    def __init__(self, cls: type) -> None:
        self.settings: dict[str, Setting] = {found.name: found for found in _flatten(cls, "")}
        self.by_rocketmq: dict[str, Setting] = {
            setting.rocketmq: setting for setting in self.settings.values() if setting.rocketmq
        }

    def find(self, name: str) -> Setting | None:
        """Return the setting of a name, inorder's or RocketMQ's."""
        return self.settings.get(name) or self.by_rocketmq.get(name)

    def unknown(self, name: str, where: str) -> ConfigError:
        """Return the error for an unknown name, with the nearest known one."""
        known = [*self.settings, *self.by_rocketmq]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        if not near:
            last = name.rsplit(".", 1)[-1]
            near = [full for full in self.settings if full.rsplit(".", 1)[-1] == last][:1]
        hint = f"did you mean {near[0]!r}?" if near else "`inorder config show` lists all of them"
        return ConfigError(f"unknown setting {name!r} ({where}); {hint}")


_catalogs: dict[type, Catalog] = {}


def catalog(cls: type) -> Catalog:
    """Return the catalog of a configuration class; made once."""
    if cls not in _catalogs:
        _catalogs[cls] = Catalog(cls)
    return _catalogs[cls]


def _flatten(cls: type, prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from _flatten(kind, f"{prefix}{field.name}.")
        else:
            meta = field.metadata
            assert field.default is not dataclasses.MISSING, f"{field.name} has no default"
            yield Setting(
                name=prefix + field.name,
                type=kind,
                default=field.default,
                doc=meta["doc"],
                rocketmq=meta["rocketmq"],
                secret=meta["secret"],
            )


Raw = bool | int | float | str

_WORDS: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip

# Java's int and long: the values that RocketMQ's tools and files can hold.
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1

_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "port": (0, 65535),
    "default_topic_queues": (1, 65536),
    # Offsets inside of a file are Java ints in the index; a segment must hold at least a message.
    "store.segment_bytes": (4096, _INT_MAX),
    "store.queue_file_bytes": (20, _INT_MAX),
    "store.message_bytes_max": (1, _INT_MAX // 4),
    "net.frame_bytes_max": (1024, 2**30),
    "linger_ms": (0, 60_000),
    "default_pop_share": (-1, _INT_MAX),
    "pop_from_retry_probability": (0, 100),
    "pop_inflight_max": (1, 20_000),
    "pop_order_invisible_max_ms": (1, 24 * 3_600_000),
    "consumer.pull_interval_ms": (0, _LONG_MAX),
    "consumer.concurrency": (1, 1000),
    "consumer.topic_messages_max": (0, _LONG_MAX),
    "consumer.topic_bytes_max": (0, _LONG_MAX),
}

_BY_UNIT: Final[Mapping[str, tuple[float, float]]] = {
    "ms": (1, _LONG_MAX),
    "hours": (1, 24 * 365 * 100),
    "bytes": (1, _LONG_MAX),
    "max": (1, _LONG_MAX),
    "slots": (1, _INT_MAX),
    "entries": (1, _INT_MAX),
    "ratio": (0.0, 1.0),
}

_CHOICES: Final[Mapping[str, tuple[Raw, ...]]] = {
    "broker_id": (0,),
    "perm": (2, 4, 6),
    "access.level": ("", "off", "log", "enforce"),
    "net.tls_mode": ("disabled", "permissive", "enforcing"),
    "default_request_mode": ("PULL", "POP"),
    "compression": ("zlib", "lz4", "zstd", "none"),
}

_ADDRESS: Final = r"([^\s;:]+|\[[^\s;]+\]):\d{1,5}"

_PATTERNS: Final[Mapping[str, tuple[str, str]]] = {
    "name": (r"[A-Za-z0-9_.-]{1,127}", "letters, digits, '_', '-' and '.', at most 127"),
    "cluster": (r"[A-Za-z0-9_.-]{1,127}", "letters, digits, '_', '-' and '.', at most 127"),
    "host": (r"\S+", "an address"),
    "data": (r".*\S.*", "a directory"),
    "namesrv": (rf"({_ADDRESS}(;{_ADDRESS})*;?)?", "host:port, several separated by ';'"),
    "store.delete_when": (r"([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*",
                          "hours of the day, 00 to 23, separated by ';'"),
}  # fmt: skip


def parse(setting: Setting, raw: Raw, where: str) -> Raw:
    """Return the typed value of a setting, or raise an error that names it and its origin."""
    value = _typed(setting, raw, where)
    _check_range(setting, value, where)
    return value


def _typed(setting: Setting, raw: Raw, where: str) -> Raw:
    wanted = setting.type
    if isinstance(raw, str) and wanted is not str:
        text = raw.strip()
        try:
            return _WORDS[text.lower()] if wanted is bool else wanted(text)
        except (ValueError, KeyError):
            pass
    elif wanted is float and type(raw) is int:
        return float(raw)
    elif type(raw) is wanted:
        return raw.strip() if isinstance(raw, str) else raw
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}
    shown = "hidden" if setting.secret else repr(raw)
    raise ConfigError(f"{setting.name} is {shown} ({where}); it must be {kinds[wanted]}")


def allowed(setting: Setting) -> str:
    """Return the allowed values of a setting in words; empty if the type says enough."""
    if setting.name in _CHOICES:
        return ", ".join(str(choice) for choice in _CHOICES[setting.name])
    if setting.name in _PATTERNS:
        return _PATTERNS[setting.name][1]
    limits = _limits(setting)
    if limits is None:
        return ""
    low, high = limits
    return f"at least {low:g}" if high >= _LONG_MAX else f"{low:.15g} to {high:.15g}"


def _limits(setting: Setting) -> tuple[float, float] | None:
    if setting.type not in (int, float):
        return None
    unit = setting.name.replace("_ratio_max", "_ratio").rsplit("_", 1)[-1]
    return _RANGES.get(setting.name) or _BY_UNIT.get(unit, (0, _LONG_MAX))


def _check_range(setting: Setting, value: Raw, where: str) -> None:
    limits = _limits(setting)
    wrong = (
        (setting.name in _CHOICES and value not in _CHOICES[setting.name])
        or (
            setting.name in _PATTERNS
            and not re.fullmatch(_PATTERNS[setting.name][0], str(value), re.DOTALL)
        )
        or (
            limits is not None
            and setting.name not in _CHOICES
            and not limits[0] <= float(value) <= limits[1]
        )
    )
    if wrong:
        raise ConfigError(f"{setting.name} is {value!r} ({where}); it must be: {allowed(setting)}")


def check_together(config: object) -> None:
    """Raise for settings that contradict each other."""
    if isinstance(config, BrokerConfig):
        _check_store(config.store)
        _check_advertised(config.advertised_host)
        if config.store.message_bytes_max + 65536 > config.net.frame_bytes_max:
            raise ConfigError(
                "net.frame_bytes_max must exceed store.message_bytes_max by 64 KiB for the header; "
                f"they are {config.net.frame_bytes_max} and {config.store.message_bytes_max}"
            )
    if isinstance(config, BrokerConfig | NameServerConfig | ClientConfig):
        _check_net(config.net)


def _check_store(store: StoreConfig) -> None:
    rules: tuple[tuple[Callable[[], bool], str], ...] = (
        (
            lambda: store.queue_file_bytes % 20 == 0,
            "store.queue_file_bytes must be a multiple of 20, the size of an entry",
        ),
        (
            lambda: store.message_bytes_max < store.segment_bytes,
            "store.message_bytes_max must be below store.segment_bytes: a message lies in one file",
        ),
        (lambda: store.index_entries >= 2, "store.index_entries must be at least 2"),
        (
            lambda: (
                store.disk_used_ratio_max
                <= store.disk_clean_forcibly_ratio
                <= store.disk_full_ratio
            ),
            "store.disk_used_ratio_max, disk_clean_forcibly_ratio and disk_full_ratio must ascend",
        ),
    )
    for holds, message in rules:
        if not holds():
            raise ConfigError(message)


def _check_advertised(host: str) -> None:
    if not host:
        return
    try:
        ip_address(host)
    except ValueError:
        raise ConfigError(
            f"advertised_host is {host!r}; it must be an IP address: records and ids hold it"
        ) from None


def _check_net(net: NetConfig) -> None:
    if bool(net.tls_certificate) != bool(net.tls_key):
        raise ConfigError("net.tls_certificate and net.tls_key belong together: set both or none")
