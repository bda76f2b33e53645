"""The topics of a broker: how they are created, their attributes, and foreign queues.

`TopicTable` creates topics. A send to an unknown topic creates it from a template with the inherit
bit: `TBW102`, or the topics named after the cluster and the broker. A heartbeat creates the retry
topic of its group. An admin request creates any other. Every change counts in `data_version`, by
which name servers notice it.

`alter` applies changes to attributes: `+name=value` sets, `-name` removes. Each name has its own
set of legal values.

`problems` finds queues of Apache RocketMQ that inorder cannot read:

    queue.type=BatchCQ          queue entries have 46 bytes and stand for several messages each, in
                                `batchconsumequeue/<topic>/<queue id>/`
    cleanup.policy=COMPACTION   old messages are in `compaction/compactionLog/<topic>/` and no
                                longer in the log

Read as plain queues, they would show some messages and hide others. Earlier versions of inorder
accepted the attributes and kept plain queues; in their directories the attributes are dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from inorder.errors import InvalidParameter, RemoteProtocolError, SystemError_
from inorder.model import PERM_INHERIT, READ_WRITE, DataVersion, GroupConfig, TopicConfig
from inorder.ordering import keymap
from inorder.wire import fastjson
from inorder.wire.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    FIXED_SYSTEM_TOPICS,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
    retry_topic,
)
from inorder.wire.requests.replies import reply_topic
from inorder.wire.requests.topics import TopicTable as TopicTableBody
from inorder.wire.requests.topics import data_version_to_json, topic_config_to_json

NOT_HERE: Final[Mapping[str, str]] = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}
"""Topic attributes with the value that inorder does not support."""

TOPICS_SHOWN: Final = 5


def not_here(attributes: Mapping[str, str]) -> list[str]:
    """Return the names of the attributes with unsupported values."""
    return [name for name, value in NOT_HERE.items() if attributes.get(name) == value]


def problems(
    topics: Mapping[str, Mapping[str, str]],
    batched: Collection[str],
    compacted: Collection[str],
    *,
    ours: bool,
) -> list[str]:
    """Return why the broker does not open a directory; empty if it does.

    `topics` holds the attributes of the topics by name; `batched` and `compacted` are the topics
    with files of such queues. Without such files, a directory that was `ours` before has plain
    queues.
    """
    found = [
        f"topic {topic} has batch queues (batchconsumequeue/{topic}, queue.type=BatchCQ)"
        for topic in sorted(batched)
    ]
    found += [
        f"topic {topic} is compacted (compaction/compactionLog/{topic}, cleanup.policy=COMPACTION)"
        for topic in sorted(compacted)
    ]
    if not ours:
        found += [
            f"topic {topic} has the attribute {name}={NOT_HERE[name]}"
            for topic, attributes in sorted(topics.items())
            if topic not in batched and topic not in compacted
            for name in not_here(attributes)
        ]
    return found


LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """What an attribute may hold, and whether it may change once the topic exists."""

    changeable: bool
    check: Callable[[str], None]


def parse_changes(text: str) -> dict[str, str]:
    """Parse `+a=1,-b` into {"+a": "1", "-b": ""}."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise SystemError_(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise SystemError_(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise SystemError_(f"key duplication: {key}")
        changes[key] = value
    return changes


def alter(
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    create: bool,
    known: Mapping[str, Attribute] | None = None,
) -> dict[str, str]:
    """Return the attributes after `changes`; SystemError_ names the first one that is wrong."""
    known = TOPIC_ATTRIBUTES if known is None else known
    result = dict(current)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or "+" in name or "-" in name:
            raise SystemError_("kv string format wrong.")
        if sign == "+":
            _check(name, value, known, new=create)
            result[name] = value
        elif create:
            raise SystemError_(f"only add attribute is supported while creating topic. key: {name}")
        elif sign == "-":
            if name not in current:
                raise SystemError_(f"attempt to delete a nonexistent key: {name}")
            _check(name, None, known, new=False)
            result.pop(name, None)
        else:
            raise SystemError_(f"wrong format key: {name}")
    return result


def _check(name: str, value: str | None, known: Mapping[str, Attribute], *, new: bool) -> None:
    attribute = known.get(name)
    if attribute is None:
        raise SystemError_(f"unsupported key: {name}")
    if not new and not attribute.changeable:
        raise SystemError_(f"attempt to update an unchangeable attribute. key: {name}")
    if value is not None:
        attribute.check(value)


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise SystemError_(f"value is not in set: [{', '.join(allowed)}]")

    return check


def _between(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            number = int(value)
        except ValueError:
            raise SystemError_(f'For input string: "{value}"') from None
        if not low <= number <= high:
            raise SystemError_(f"value is not in range({low}, {high})")

    return check


def _key_map(value: str) -> None:
    try:
        keymap.KeyMap.decode(value)
    except RemoteProtocolError as error:
        raise SystemError_(str(error)) from None


def _but(name: str, check: Callable[[str], None]) -> Callable[[str], None]:
    """Refuse a value that RocketMQ supports and inorder does not."""

    def check_here(value: str) -> None:
        check(value)
        if value == NOT_HERE[name]:
            raise InvalidParameter(
                f"{name}={value} is not supported by this broker; make the topic without it"
            )

    return check_here


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(False, _but("queue.type", _one_of("BatchCQ", "SimpleCQ"))),
    "cleanup.policy": Attribute(False, _but("cleanup.policy", _one_of("DELETE", "COMPACTION"))),
    "message.type": Attribute(
        True, _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
    ),
    "reserve.time": Attribute(True, _between(-1, LONG_MAX)),
    keymap.ATTRIBUTE: Attribute(True, _key_map),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {}


DELAY_LEVELS = 18


Config = TypeVar("Config", TopicConfig, GroupConfig)


class ConfigTable(Generic[Config]):
    """Configurations by name, and the version that counts their changes.

    The file of a table is written with every new name, so the table keeps the text of each
    configuration and joins the texts.
    """

    def __init__(self, to_json: Callable[[Config], Mapping[str, Any]], now_ms: int) -> None:
        self.data_version = DataVersion(timestamp_ms=now_ms)
        self._to_json: Callable[[Config], Mapping[str, Any]] = to_json
        self._table: dict[str, Config] = {}
        self._texts: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[Config]:
        return iter(self._table.values())

    def get(self, name: str) -> Config | None:
        """Return a configuration, or None."""
        return self._table.get(name)

    def names(self) -> list[str]:
        """Return all names."""
        return list(self._table)

    def prepare(self, count: int) -> bool:
        """Encode up to `count` configurations that are not encoded yet; return whether all are."""
        if len(self._texts) < len(self._table):
            missing = (name for name in self._table if name not in self._texts)
            for name in list(itertools.islice(missing, count)):
                self._texts[name] = self._text(name)
        return len(self._texts) >= len(self._table)

    def _encode_entries(self) -> bytes:
        """Return the entries of the table's JSON object, with their indentation in the file."""
        self.prepare(len(self._table))
        return b",".join(self._texts[name] for name in self._table)

    def _text(self, name: str) -> bytes:
        entry = fastjson.dumps({name: self._to_json(self._table[name])}, pretty=True)
        return entry[1:-2].replace(b"\n", b"\n\t")

    def _set(self, config: Config, now_ms: int) -> None:
        self._table[config.name] = config
        self._texts.pop(config.name, None)
        self.data_version.next(now_ms)

    def _remove(self, name: str, now_ms: int) -> Config | None:
        old = self._table.pop(name, None)
        if old is not None:
            self._texts.pop(name, None)
            self.data_version.next(now_ms)
        return old


TopicChange = tuple[int, str, TopicConfig | None]


class TopicTable(ConfigTable[TopicConfig]):
    """The configurations of topics, by name."""

    def __init__(
        self,
        *,
        cluster: str,
        broker: str,
        now_ms: int,
        default_queues: int = 8,
        auto_create: bool = True,
        topics_max: int = 100_000,
        trace_topic: str = "",
    ) -> None:
        super().__init__(topic_config_to_json, now_ms)
        self.auto_create = auto_create
        self.topics_max = topics_max
        self._changes: list[TopicChange] = []
        for config in _system_topics(cluster, broker, default_queues, auto_create):
            self._table[config.name] = config
        if trace_topic:
            self._table[trace_topic] = _topic(trace_topic, 1)
        self._system = FIXED_SYSTEM_TOPICS | self._table.keys()

    def __repr__(self) -> str:
        return f"TopicTable({len(self._table)} topics, version {self.data_version.counter})"

    def is_system(self, name: str) -> bool:
        """Return whether a topic is a system topic: clients may not create, change or delete it."""
        return name in self._system or name.startswith(SYSTEM_TOPIC_PREFIX)

    def system_names(self) -> list[str]:
        """Return the reserved names, whether the topics exist or not."""
        return sorted(self._system)

    def create_on_send(
        self, topic: str, default_topic: str, queues: int, now_ms: int, *, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create the topic of a send from its template; None if the template does not allow it.

        An existing topic is returned as it is. The caller checks the name first, and saves and
        registers a new topic. Raises SystemError_ when the broker holds `topics_max` topics.
        """
        found = self._table.get(topic)
        if found is not None:
            return found
        template = self._table.get(default_topic)
        if template is None or not template.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self.auto_create:
            return None
        count = max(0, min(queues, template.write_queues))
        config = TopicConfig(
            topic,
            read_queues=count,
            write_queues=count,
            perm=template.perm & ~PERM_INHERIT,
            filter_type=template.filter_type,
            sys_flag=sys_flag,
        )
        self.put(config, now_ms)
        return config

    def create_retry(
        self, group: str, queues: int, now_ms: int, *, order: bool = False, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create the retry topic of a group; return it if it is new or changed, else None."""
        return self.create_internal(
            retry_topic(group), queues, now_ms, order=order, sys_flag=sys_flag
        )

    def create_internal(
        self,
        name: str,
        queues: int,
        now_ms: int,
        *,
        perm: int = READ_WRITE,
        order: bool = False,
        sys_flag: int = 0,
    ) -> TopicConfig | None:
        """Create a topic that the broker needs itself; return it if it is new or changed."""
        found = self._table.get(name)
        if found is None:
            config = TopicConfig(
                name,
                read_queues=queues,
                write_queues=queues,
                perm=perm,
                sys_flag=sys_flag,
                order=order,
            )
        elif found.order != order:
            config = replace(found, order=order)
        else:
            return None
        self.put(config, now_ms)
        return config

    def put(self, config: TopicConfig, now_ms: int) -> None:
        """Add or replace a topic; raises SystemError_ when there is no room for a new one."""
        if config.name not in self._table and len(self._table) >= self.topics_max:
            raise SystemError_(
                f"topic {config.name} was not created: this broker holds {self.topics_max} topics "
                "(topics_max); delete some or raise the limit"
            )
        self._set(config, now_ms)
        self._changes.append((self.data_version.counter, config.name, config))

    def altered(self, config: TopicConfig, changes: dict[str, str]) -> TopicConfig:
        """Return `config` with the attributes that result from `changes` to those stored now."""
        old = self._table.get(config.name)
        current = {} if old is None else old.attributes
        return replace(config, attributes=alter(current, changes, create=old is None))

    def set_order(self, names: Collection[str], now_ms: int) -> list[TopicConfig]:
        """Mark the topics that the name servers call ordered; return those that changed."""
        changed = [
            replace(config, order=config.name in names)
            for config in self._table.values()
            if config.order != (config.name in names)
        ]
        for config in changed:
            self.put(config, now_ms)
        return changed

    def delete(self, name: str, now_ms: int) -> TopicConfig | None:
        """Remove and return a topic."""
        old = self._remove(name, now_ms)
        if old is not None:
            self._changes.append((self.data_version.counter, name, None))
        return old

    def take_changes(self) -> list[TopicChange]:
        """Return the changes since the last call: version, name, configuration (None: deleted)."""
        taken, self._changes = self._changes, []
        return taken

    def encode(self) -> bytes:
        """Return the content of `topics.json`."""
        version = fastjson.dumps(data_version_to_json(self.data_version), pretty=True)
        return b"".join(
            (
                b'{\n\t"dataVersion":',
                version.replace(b"\n", b"\n\t"),
                b',\n\t"topicConfigTable":{',
                self._encode_entries(),
                b"\n\t}\n}",
            )
        )

    def decode(self, data: bytes) -> None:
        """Load the content of `topics.json`; RemoteProtocolError if it is malformed."""
        loaded = TopicTableBody.decode(data)
        self.data_version = loaded.version
        self._table.update(loaded.topics)
        self._texts.clear()
        template = self._table.get(AUTO_CREATE_TOPIC)
        if template is not None and not self.auto_create:
            self._table[AUTO_CREATE_TOPIC] = template.with_perm(READ_WRITE)


def _system_topics(
    cluster: str, broker: str, default_queues: int, auto_create: bool
) -> Iterator[TopicConfig]:
    inherited = READ_WRITE | PERM_INHERIT
    yield _topic(SELF_TEST_TOPIC, 1)
    if auto_create:
        yield _topic(AUTO_CREATE_TOPIC, default_queues, inherited)
    yield _topic(BENCHMARK_TOPIC, 1024)
    yield _topic(cluster, 16, inherited)
    yield _topic(broker, 1, inherited)
    yield _topic(OFFSET_MOVED_TOPIC, 1)
    yield _topic(SCHEDULE_TOPIC, DELAY_LEVELS)
    yield _topic(reply_topic(cluster), 1)
    yield _topic(f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}", 8)
    yield _topic(f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, PERM_INHERIT)
    yield _topic(HALF_TOPIC, 1)
    yield _topic(OP_HALF_TOPIC, 1)
    yield _topic(TIMER_TOPIC, 1)


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(name, read_queues=queues, write_queues=queues, perm=perm)
