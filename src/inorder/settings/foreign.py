"""How RocketMQ's own settings are understood.

Three kinds: those that we share (some in another unit), those that promise something that inorder
cannot keep (refused, unless the value asks for nothing), and those without a meaning here
(collected for one warning). To ignore a setting of the second kind would break a promise silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from inorder.config import BrokerConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.settings.catalog import Setting
from inorder.settings.rocketmq_names import BROKER_NAMES, NAME_SERVER_NAMES

Raw = bool | int | float | str


_NAMES: Final[Mapping[type, frozenset[str]]] = {
    BrokerConfig: BROKER_NAMES,
    NameServerConfig: NAME_SERVER_NAMES,
}


def foreign_names(cls: type) -> frozenset[str]:
    """Return every name that RocketMQ knows in the settings file of this kind of server."""
    return _NAMES.get(cls, frozenset())


def _flush_mode(value: str) -> Raw:
    modes = {"SYNC_FLUSH": True, "ASYNC_FLUSH": False}
    if value not in modes:
        raise ConfigError(f"flushDiskType is {value!r}; it must be SYNC_FLUSH or ASYNC_FLUSH")
    return modes[value]


def _percent(value: str) -> Raw:
    return float(value) / 100


def _seconds(value: str) -> Raw:
    return int(value) * 1000


_TRANSLATE: Final[Mapping[str, Callable[[str], Raw]]] = {
    "flushDiskType": _flush_mode,
    "diskMaxUsedSpaceRatio": _percent,
    "diskSpaceCleanForciblyRatio": _percent,
    "diskSpaceWarningLevelRatio": _percent,
    "serverChannelMaxIdleTimeSeconds": _seconds,
}


def translate(setting: Setting, value: Raw, where: str) -> Raw:
    """Turn a value given under RocketMQ's name into ours."""
    assert setting.rocketmq is not None
    convert = _TRANSLATE.get(setting.rocketmq)
    if convert is None:
        return value
    try:
        return convert(str(value).strip())
    except ValueError:
        raise ConfigError(
            f"{setting.rocketmq} is {value!r} ({where}); it must be a number"
        ) from None


@dataclass(frozen=True, slots=True)
class _Promise:
    harmless: frozenset[str]
    reason: str


_OFF: Final = frozenset({"false", ""})
_NO_REPLICAS: Final = "inorder has no replicas yet: run it as a master"
_NO_ACCOUNTS: Final = "inorder has no access control yet: keep it on a network that you trust"
_ONE_ROOT: Final = "all files lie below storePathRootDir: set that instead"

_PROMISES: Final[Mapping[str, _Promise]] = {
    "brokerRole": _Promise(frozenset({"ASYNC_MASTER", "SYNC_MASTER"}), _NO_REPLICAS),
    "enableDLegerCommitLog": _Promise(_OFF, _NO_REPLICAS),
    "enableControllerMode": _Promise(_OFF, _NO_REPLICAS),
    "aclEnable": _Promise(_OFF, _NO_ACCOUNTS),
    "authenticationEnabled": _Promise(_OFF, _NO_ACCOUNTS),
    "authorizationEnabled": _Promise(_OFF, _NO_ACCOUNTS),
    "storeType": _Promise(frozenset({"default", ""}), "inorder writes RocketMQ's file store only"),
    "enableMultiDispatch": _Promise(_OFF, "light message queues are not served"),
}

_BELOW_ROOT: Final[Mapping[str, str]] = {
    "storePathCommitLog": "commitlog",
}


class Foreign:
    """Collects RocketMQ's settings that are not ours, and judges them when all layers are read."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, str]] = {}

    def add(self, name: str, value: Raw, where: str) -> None:
        """Note a setting; a later layer replaces an earlier one."""
        text = str(value).lower() if isinstance(value, bool) else str(value).strip()
        self._seen[name] = (text, where)

    def ignored(self, root: str) -> tuple[str, ...]:
        """Return the names without a meaning here; raise for a promise that cannot be kept."""
        without_meaning = []
        for name, (value, where) in self._seen.items():
            promise = _PROMISES.get(name)
            below = _BELOW_ROOT.get(name)
            if promise is not None and value not in promise.harmless:
                raise ConfigError(f"{name}={value} ({where}) cannot be kept; {promise.reason}")
            if below is not None and value.rstrip("/") != f"{root.rstrip('/')}/{below}":
                raise ConfigError(f"{name}={value} ({where}) cannot be kept; {_ONE_ROOT}")
            if below is None and not (name == "brokerRole" and value == "ASYNC_MASTER"):
                without_meaning.append(name)
        return tuple(sorted(without_meaning))
