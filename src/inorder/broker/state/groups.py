"""The consumer groups that a broker knows, and what each may do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from inorder.broker.topics import rules as attributes
from inorder.errors import SystemError_
from inorder.model import DataVersion, GroupConfig
from inorder.wire import fastjson
from inorder.wire.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, validate_group
from inorder.wire.requests.groups import GroupTable as GroupTableBody
from inorder.wire.requests.groups import group_config_to_json
from inorder.wire.requests.topics import data_version_to_json

__all__ = ["FORBID_READ", "GroupTable", "validate_group"]

FORBID_READ = 1 << 2


class GroupTable:
    """Group name to configuration."""

    def __init__(self, *, now_ms: int, groups_max: int = 100_000) -> None:
        self.data_version = DataVersion(timestamp_ms=now_ms)
        self.groups_max = groups_max
        self._table = {name: GroupConfig(name) for name in SYSTEM_GROUPS}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._texts: dict[str, tuple[GroupConfig, bytes]] = {}

    def __repr__(self) -> str:
        return f"GroupTable({len(self._table)} groups, version {self.data_version.counter})"

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(self._table.values())

    def get(self, name: str) -> GroupConfig | None:
        """Return a group's configuration, or None."""
        return self._table.get(name)

    def names(self) -> list[str]:
        """Return all group names."""
        return list(self._table)

    def find_or_create(self, name: str, *, auto_create: bool, now_ms: int) -> GroupConfig | None:
        """Return a group, made with default settings if allowed; None if it cannot be.

        What is new counts in `data_version`; the caller saves it. With `groups_max` groups no
        further one is made.
        """
        found = self._table.get(name)
        if found is not None:
            return found
        if not auto_create and not name.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if validate_group(name) is not None or len(self._table) >= self.groups_max:
            return None
        config = GroupConfig(name)
        self._table[name] = config
        self.data_version.next(now_ms)
        return config

    def put(self, config: GroupConfig, now_ms: int) -> None:
        """Add or replace a group, its attributes being changes (`+name`) to the stored ones."""
        old = self._table.get(config.name)
        if old is None and len(self._table) >= self.groups_max:
            raise SystemError_(
                f"group {config.name} was not created: this broker holds {self.groups_max} groups "
                "(groups_max); delete some or raise the limit"
            )
        result = attributes.alter(
            {} if old is None else old.attributes,
            config.attributes,
            create=old is None,
            known=attributes.GROUP_ATTRIBUTES,
        )
        self._table[config.name] = replace(config, attributes=result)
        self.data_version.next(now_ms)

    def delete(self, name: str, now_ms: int) -> GroupConfig | None:
        """Remove a group and what it is forbidden; return what it was."""
        self._forbidden.pop(name, None)
        old = self._table.pop(name, None)
        self._texts.pop(name, None)
        if old is not None:
            self.data_version.next(now_ms)
        return old

    def is_forbidden(self, group: str, topic: str, mask: int = FORBID_READ) -> bool:
        """Tell whether the forbidden table denies a group something on a topic."""
        topics = self._forbidden.get(group)
        return topics is not None and bool(topics.get(topic, 0) & mask)

    def forbid(self, group: str, topic: str, *, forbidden: bool, now_ms: int) -> None:
        """Deny a group to read a topic, or allow it again."""
        if self.is_forbidden(group, topic) == forbidden:
            return
        topics = self._forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) ^ FORBID_READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._forbidden[group]
        self.data_version.next(now_ms)

    def prepare(self, count: int) -> bool:
        """Make the text of up to `count` groups that have none; True when all have."""
        if len(self._texts) < len(self._table):
            missing = (config for name, config in self._table.items() if name not in self._texts)
            for config in list(itertools.islice(missing, count)):
                self._text(config)
        return len(self._texts) >= len(self._table)

    def encode(self, *, pretty: bool = True) -> bytes:
        """Return the content of `subscriptionGroup.json`, which is also the answer to code 201.

        The file is written with every new group, so the text of each is kept, as for topics.
        """
        if not pretty:
            return GroupTableBody(self.data_version, self._table, self._forbidden).encode()
        head = fastjson.dumps(
            {
                "dataVersion": data_version_to_json(self.data_version),
                "forbiddenTable": self._forbidden,
            },
            pretty=True,
        )
        texts = map(self._text, self._table.values())
        return b"".join(
            (head[:-2], b',\n\t"subscriptionGroupTable":{', b",".join(texts), b"\n\t}\n}")
        )

    def _text(self, config: GroupConfig) -> bytes:
        known = self._texts.get(config.name)
        if known is None or known[0] is not config:
            entry = {config.name: group_config_to_json(config)}
            text = fastjson.dumps(entry, pretty=True)[1:-2].replace(b"\n", b"\n\t")
            known = self._texts[config.name] = (config, text)
        return known[1]

    def decode(self, data: bytes) -> None:
        """Take over the content of `subscriptionGroup.json`; RemoteProtocolError if it is not."""
        loaded = GroupTableBody.decode(data)
        self.data_version = loaded.version
        self._table.update(loaded.groups)
        self._forbidden.update(loaded.forbidden)
