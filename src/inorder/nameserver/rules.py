"""The tables of a name server, without clock or network: routes, and key-value settings.

    topic -> broker name -> queues         what brokers registered
    broker name -> broker id -> address    id 0 is the master
    (cluster, address) -> life             last sign of life, data version, liveness channel
    namespace -> key -> value              settings; RocketMQ keeps order topics here

RocketMQ's rules for routes:
- Topics come from masters (or, 5.x, the slave with the lowest id), and an entry is written only if
  the broker's data version changed or the entry is new. Registration adds and changes topics, it
  never removes any: a broker that registers a part of its table loses nothing.
- A broker is gone when it says so, when the connection that carried its registration closes, or
  when it is silent for its timeout. With the last address of a broker name its topics go too.
- An address has one id: registering it under another id moves it.
- Of two addresses that claim one id the one with the higher state version stays.
- An unknown broker id whose table has exactly one topic is refused: brokers register all their
  topics first, single changes after.

inorder's own rules: a refused registration leaves no trace; an address that comes back under
another broker name leaves the old one; the numbers of brokers and topic entries have limits. Key
maps come from an attribute of brokers' topics and go with them. An inorder broker says which
directory it has: while it is connected, no other one gets its name and id. How name servers that
differ are read: decision 44.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from inorder.errors import BrokerNameTaken, RemoteProtocolError, SystemError_
from inorder.model import MASTER_ID, PERM_WRITE, READ_WRITE, DataVersion, TopicConfig
from inorder.ordering import keymap
from inorder.wire import fastjson
from inorder.wire.requests.registration import Steps, finish
from inorder.wire.requests.routes import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRoute,
)

BROKERS_MAX: Final = 10_000
TOPIC_ENTRIES_MAX: Final = 1_000_000
TOPIC_CHARS_MAX: Final = 255
REGISTERED_CHARS_MAX: Final = 255
"""The longest name of a cluster, broker, address or zone."""

TOPICS_PER_STEP: Final = 500

UNIT_FLAG: Final = 1
UNIT_SUBSCRIPTION_FLAG: Final = 2

PermChange = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Registration:
    """One broker's registration. `channel` stands for its connection and is only compared."""

    cluster: str
    broker_name: str
    address: str
    broker_id: int
    ha_address: str
    channel: object
    version: DataVersion
    topics: dict[str, TopicConfig]
    timeout_ms: int
    acting_master: bool | None = None
    zone_name: str | None = None
    filter_servers: tuple[str, ...] = ()
    identity: str = ""
    """The identity of the broker's directory; empty: not an inorder broker, or an older one."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The master's addresses, for a slave; both are None for a master."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """A broker that was dropped."""

    cluster: str
    broker_name: str
    address: str
    channel: object


@dataclass(frozen=True, slots=True)
class RouteStatistics:
    """The size of the tables."""

    clusters: int
    brokers: int
    addresses: int
    topics: int
    topic_entries: int


@dataclass(slots=True)
class _Broker:
    """The addresses behind one broker name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone_name: str | None = None


@dataclass(slots=True)
class _Life:
    """The last registration or heartbeat of one address."""

    broker_name: str
    seen_at_ms: int
    timeout_ms: int
    version: DataVersion
    channel: object
    ha_address: str
    filter_servers: tuple[str, ...]
    identity: str = ""


class RouteTable:
    """All routes of a name server."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._lives: dict[tuple[str, str], _Life] = {}
        self._channels: dict[object, dict[tuple[str, str], None]] = {}
        self._of_broker: dict[str, dict[str, QueueData]] = {}
        self._maps: dict[str, dict[str, str]] = {}
        self._leaving: deque[tuple[str, Iterator[tuple[str, QueueData]]]] = deque()
        self._entries = 0

    # Brokers.

    def register(self, new: Registration, *, now_ms: int) -> Registered:
        """Take a broker's registration. Raises SystemError_ if it is refused."""
        return finish(self.register_steps(new, now_ms=now_ms))

    def register_steps(self, new: Registration, *, now_ms: int) -> Steps[Registered]:
        """Do as `register`, many topics in steps: the broker is known first, then its topics.

        Ends with SystemError_ if the broker went, or registered again, in between.
        """
        broker = self._brokers.get(new.broker_name) or _Broker(new.cluster)
        addresses = {
            broker_id: address
            for broker_id, address in broker.addresses.items()
            if address != new.address or broker_id == new.broker_id
        }
        self._check_not_taken(new, broker.addresses.get(new.broker_id))
        if self._outdated(new, addresses.get(new.broker_id)):
            broker.addresses = addresses
            self._forget_life((new.cluster, new.address))
            return Registered()
        first = new.broker_id not in addresses
        if first and len(new.topics) == 1:
            raise SystemError_("register broker failed")
        self._check_room(new)
        self._leave_other_name(new)
        broker.addresses = addresses
        broker.addresses[new.broker_id] = new.address
        broker.acting_master = bool(new.acting_master)
        broker.zone_name = new.zone_name
        self._brokers[new.broker_name] = broker
        master = new.broker_id == MASTER_ID
        prime_slave = new.acting_master is not None and new.broker_id == min(addresses)
        changed = first or self.data_version(new.cluster, new.address) != new.version
        self._live(new, now_ms)
        if master or prime_slave:
            wipe = not master and broker.acting_master
            yield from self._take_topics(new, changed=changed, wipe_write=wipe)
        return Registered() if master else self._master_of(new.cluster, broker)

    def unregister(self, cluster: str, broker_name: str, address: str) -> None:
        """Forget a broker that leaves; unknown ones change nothing."""
        self._forget_life((cluster, address))
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.addresses = {i: a for i, a in broker.addresses.items() if a != address}
        if not broker.addresses:
            del self._brokers[broker_name]
            self._remove_topics_of(broker_name)
        elif broker.acting_master and min(broker.addresses) != MASTER_ID:
            self._set_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def channel_lost(self, channel: object) -> list[Gone]:
        """Drop the brokers that registered over a connection which is gone."""
        return self._drop(self._channels.get(channel, ()))

    def expire(self, now_ms: int) -> list[Gone]:
        """Drop the brokers that are silent for longer than their timeout."""
        return self._drop(
            key for key, life in self._lives.items() if life.seen_at_ms + life.timeout_ms < now_ms
        )

    def touch(self, cluster: str, address: str, *, now_ms: int) -> None:
        """Note a sign of life; unknown brokers change nothing."""
        life = self._lives.get((cluster, address))
        if life is not None:
            life.seen_at_ms = now_ms

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered last."""
        life = self._lives.get((cluster, address))
        return None if life is None else life.version

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Give or take the write permission of all topics of a broker; return their number.

        Giving it sets read and write, whatever was before.
        """
        if writable:
            return self._set_perms(broker_name, lambda _: READ_WRITE)
        return self._set_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, and which cluster has which."""
        clusters: dict[str, list[str]] = {}
        for name, broker in sorted(self._brokers.items()):
            clusters.setdefault(broker.cluster, []).append(name)
        return ClusterInfo(
            {name: self._broker_data(name) for name in sorted(self._brokers)},
            {cluster: tuple(names) for cluster, names in sorted(clusters.items())},
        )

    def members(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """Return the addresses of a broker name; none if it is unknown."""
        broker = self._brokers.get(broker_name)
        return BrokerMemberGroup(cluster, broker_name, dict(broker.addresses) if broker else {})

    # Topics.

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if no broker serves it."""
        queues = self._topics.get(topic, {})
        names = [name for name in sorted(queues) if name in self._brokers]
        if not names:
            return None
        servers = {
            address: list(life.filter_servers)
            for (_, address), life in self._lives.items()
            if life.filter_servers and life.broker_name in queues
        }
        return TopicRoute(
            tuple(map(self._broker_data, names)),
            tuple(queues[name] for name in sorted(queues)),
            filter_servers=servers,
        )

    def key_map(self, topic: str, *others: str) -> str | None:
        """Return the newest key map of a topic that a broker registered, or of `others`.

        inorder's own: a broker's topic has it as an attribute.
        """
        texts = [*self._maps.get(topic, {}).values(), *others]
        return max(texts, key=keymap.version_of, default=None)

    def add_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic by hand; nothing happens if one of its brokers is unknown.

        Raises SystemError_ if the name is too long or the table is full.
        """
        wanted = {queue.broker_name: queue for queue in queues}
        if len(topic) > TOPIC_CHARS_MAX:
            raise SystemError_(f"a topic name has more than {TOPIC_CHARS_MAX} characters")
        if self._entries + len(wanted) > TOPIC_ENTRIES_MAX:
            raise SystemError_(f"there are {self._entries} topic entries already")
        if wanted and all(name in self._brokers for name in wanted):
            for name, queue in wanted.items():
                self._put(topic, name, queue)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, of one cluster or of all."""
        for name in list(self._topics.get(topic, {})):
            broker = self._brokers.get(name)
            if not cluster or (broker is not None and broker.cluster == cluster):
                self._remove(topic, name)

    def topics(self) -> list[str]:
        """Return all topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that some broker of a cluster has."""
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    def topics_with_flags(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Return the topics whose first entry has one set of unit flags and lacks another."""
        return [
            topic
            for topic, queues in self._topics.items()
            for flags in [next(iter(queues.values())).sys_flag]
            if flags & wanted == wanted and not flags & unwanted
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return cluster and broker names, which are topics too, and the address of some broker."""
        info = self.cluster_info()
        names = [name for cluster, names in info.clusters.items() for name in (cluster, *names)]
        addresses = (a for broker in info.brokers.values() for a in broker.addresses.values())
        return names, next(addresses, None)

    def statistics(self) -> RouteStatistics:
        """Return the size of the tables."""
        return RouteStatistics(
            clusters=len({broker.cluster for broker in self._brokers.values()}),
            brokers=len(self._brokers),
            addresses=len(self._lives),
            topics=len(self._topics),
            topic_entries=self._entries,
        )

    def __repr__(self) -> str:
        return f"RouteTable(brokers={len(self._brokers)}, topics={len(self._topics)})"

    # Inside.

    def _outdated(self, new: Registration, holder: str | None) -> bool:
        """Return whether another address holds the id with a higher state version."""
        if holder is None or holder == new.address:
            return False
        life = self._lives.get((new.cluster, holder))
        return life is not None and life.version.state_version > new.version.state_version

    def _check_not_taken(self, new: Registration, holder: str | None) -> None:
        """Refuse the name and id of another inorder broker that is connected.

        A broker with another identity is another one. So is one with the same identity at a second
        address: its directory was copied. A broker that reconnects is the same.
        """
        life = None if holder is None else self._lives.get((new.cluster, holder))
        if life is None or not life.identity or not new.identity or life.channel is new.channel:
            return
        if life.identity == new.identity and holder == new.address:
            return
        why = "its directory is a copy" if life.identity == new.identity else "it is another broker"
        raise BrokerNameTaken(
            f"broker {new.broker_name} with id {new.broker_id} is connected from {holder}, so the "
            f"one at {new.address} is not registered: {why}; give it another name, or stop one"
        )

    def _leave_other_name(self, new: Registration) -> None:
        """Forget the address's former broker name: nothing else would ever remove it."""
        life = self._lives.get((new.cluster, new.address))
        if life is not None and life.broker_name != new.broker_name:
            self.unregister(new.cluster, life.broker_name, new.address)

    def _check_room(self, new: Registration) -> None:
        texts = (new.cluster, new.broker_name, new.address, new.ha_address, new.zone_name or "")
        if any(len(text) > REGISTERED_CHARS_MAX for text in (*texts, *new.filter_servers)):
            raise SystemError_(
                f"a name or an address has more than {REGISTERED_CHARS_MAX} characters"
            )
        if any(len(name) > TOPIC_CHARS_MAX for name in new.topics):
            raise SystemError_(f"a topic name has more than {TOPIC_CHARS_MAX} characters")
        known = (new.cluster, new.address) in self._lives
        if not known and len(self._lives) >= BROKERS_MAX:
            raise SystemError_(f"there are {BROKERS_MAX} brokers already")
        if self._entries + len(new.topics) > TOPIC_ENTRIES_MAX:
            added = sum(new.broker_name not in self._topics.get(t, {}) for t in new.topics)
            if self._entries + added > TOPIC_ENTRIES_MAX:
                raise SystemError_(f"there are {self._entries} topic entries already")

    def _live(self, new: Registration, now_ms: int) -> None:
        key = (new.cluster, new.address)
        old = self._lives.get(key)
        if old is not None:
            self._forget_channel(key, old.channel)
        self._lives[key] = _Life(
            new.broker_name,
            now_ms,
            new.timeout_ms,
            dataclasses.replace(new.version),
            new.channel,
            new.ha_address,
            new.filter_servers,
            new.identity,
        )
        self._channels.setdefault(new.channel, {})[key] = None

    def _forget_channel(self, key: tuple[str, str], channel: object) -> None:
        keys = self._channels.get(channel, {})
        keys.pop(key, None)
        if not keys:
            self._channels.pop(channel, None)

    def _forget_life(self, key: tuple[str, str]) -> None:
        life = self._lives.pop(key, None)
        if life is not None:
            self._forget_channel(key, life.channel)

    def _take_topics(
        self, new: Registration, *, changed: bool, wipe_write: bool
    ) -> Generator[None, None, None]:
        life = self._lives[new.cluster, new.address]
        for number, config in enumerate(new.topics.values()):
            if changed or new.broker_name not in self._topics.get(config.name, {}):
                perm = config.perm & ~PERM_WRITE if wipe_write else config.perm
                queue = QueueData(
                    new.broker_name, config.read_queues, config.write_queues, perm, config.sys_flag
                )
                self._put(config.name, new.broker_name, queue)
                self._note_map(config, new.broker_name)
            if number % TOPICS_PER_STEP == TOPICS_PER_STEP - 1:
                yield
                if self._lives.get((new.cluster, new.address)) is not life:
                    raise SystemError_("the broker left or registered again meanwhile")

    def _master_of(self, cluster: str, broker: _Broker) -> Registered:
        address = broker.addresses.get(MASTER_ID)
        life = None if address is None else self._lives.get((cluster, address))
        return Registered() if life is None else Registered(address, life.ha_address)

    def _drop(self, keys: Iterable[tuple[str, str]]) -> list[Gone]:
        gone = []
        for cluster, address in list(keys):
            life = self._lives[cluster, address]
            gone.append(Gone(cluster, life.broker_name, address, life.channel))
            self.unregister(cluster, life.broker_name, address)
        return gone

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        return BrokerData(
            broker.cluster, name, dict(broker.addresses), broker.acting_master, broker.zone_name
        )

    def _set_perms(self, broker_name: str, change: PermChange) -> int:
        entries = self._of_broker.get(broker_name, {})
        for topic, queue in list(entries.items()):
            self._put(topic, broker_name, dataclasses.replace(queue, perm=change(queue.perm)))
        return len(entries)

    def _put(self, topic: str, broker_name: str, queue: QueueData) -> None:
        queues = self._topics.setdefault(topic, {})
        self._entries += broker_name not in queues
        queues[broker_name] = queue
        self._of_broker.setdefault(broker_name, {})[topic] = queue

    def _note_map(self, config: TopicConfig, broker_name: str) -> None:
        text = config.attributes.get(keymap.ATTRIBUTE, "")
        if keymap.version_of(text):
            self._maps.setdefault(config.name, {})[broker_name] = text
        elif config.name in self._maps:
            self._forget_map(config.name, broker_name)

    def _forget_map(self, topic: str, broker_name: str) -> None:
        maps = self._maps.get(topic, {})
        if maps.pop(broker_name, None) is not None and not maps:
            del self._maps[topic]

    def _remove(self, topic: str, broker_name: str) -> None:
        self._forget_map(topic, broker_name)
        queues = self._topics[topic]
        queue = queues.pop(broker_name)
        self._entries -= 1
        if not queues:
            del self._topics[topic]
        of_broker = self._of_broker.get(broker_name, {})
        if of_broker.get(topic) is queue:
            del of_broker[topic]

    def _remove_topics_of(self, broker_name: str) -> None:
        """Remove the topics of a broker that is gone; many of them later, by `clean_up`."""
        entries = self._of_broker.pop(broker_name, {})
        self._leaving.append((broker_name, iter(entries.items())))
        self.clean_up(TOPICS_PER_STEP)

    @property
    def unclean(self) -> bool:
        """Return whether topics of brokers that are gone still wait to be removed."""
        return bool(self._leaving)

    def clean_up(self, count: int) -> bool:
        """Remove up to `count` topics of brokers that are gone; True if more are left.

        A topic that the broker registered again meanwhile is another entry, and stays.
        """
        while self._leaving:
            broker_name, entries = self._leaving[0]
            for topic, queue in itertools.islice(entries, count):
                count -= 1
                if self._topics.get(topic, {}).get(broker_name) is queue:
                    self._remove(topic, broker_name)
            if count <= 0:
                return True
            self._leaving.popleft()
        return False


def only_zone(route: TopicRoute, zone_name: str) -> TopicRoute:
    """Return the part of a route that lies in a zone; brokers without a master stay."""
    kept = tuple(
        broker
        for broker in route.brokers
        if MASTER_ID not in broker.addresses
        or (broker.zone_name or "").lower() == zone_name.lower()
    )
    dropped = {broker.name for broker in route.brokers} - {broker.name for broker in kept}
    lost = {
        a for broker in route.brokers if broker.name in dropped for a in broker.addresses.values()
    }
    return dataclasses.replace(
        route,
        brokers=kept,
        queues=tuple(queue for queue in route.queues if queue.broker_name not in dropped),
        filter_servers={a: names for a, names in route.filter_servers.items() if a not in lost},
    )


ENTRIES_MAX: Final = 100_000
NAMESPACES_MAX: Final = 10_000
"""Limit of namespaces, which stay when their last value is deleted."""
TEXT_CHARS_MAX: Final = 64 * 1024
TABLE_CHARS_MAX: Final = 16 * 1024 * 1024
"""Limit of all names and values together, since every change writes the whole table."""


class KvTable:
    """The values. A namespace stays, empty, when its last key is deleted, as in RocketMQ."""

    def __init__(self) -> None:
        self._spaces: dict[str, dict[str, str]] = {}
        self._count = 0
        self._chars = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keep a value. Raises SystemError_ if it is too long or there are too many."""
        if len(namespace) + len(key) + len(value) > TEXT_CHARS_MAX:
            raise SystemError_(f"namespace, key and value have more than {TEXT_CHARS_MAX} chars")
        old = self.get(namespace, key)
        if old is None and self._count >= ENTRIES_MAX:
            raise SystemError_(f"there are {ENTRIES_MAX} values already; delete some first")
        if namespace not in self._spaces and len(self._spaces) >= NAMESPACES_MAX:
            raise SystemError_(f"there are {NAMESPACES_MAX} namespaces already")
        added = len(value) - len(old) if old is not None else len(key) + len(value)
        if namespace not in self._spaces:
            added += len(namespace)
        if added > 0 and self._chars + added > TABLE_CHARS_MAX:
            raise SystemError_(f"all values together have more than {TABLE_CHARS_MAX} chars")
        self._spaces.setdefault(namespace, {})[key] = value
        self._count += old is None
        self._chars += added

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, if there is one."""
        return self._spaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> bool:
        """Forget a value; tell whether there was one."""
        old = self._spaces.get(namespace, {}).pop(key, None)
        if old is None:
            return False
        self._count -= 1
        self._chars -= len(key) + len(old)
        return True

    def namespace(self, name: str) -> dict[str, str] | None:
        """Return a copy of all values of a namespace; None if there never was one."""
        found = self._spaces.get(name)
        return None if found is None else dict(found)

    def encode(self) -> bytes:
        """Return the text of kvConfig.json, as RocketMQ writes it."""
        return fastjson.dumps({"configTable": self._spaces})

    @classmethod
    def decode(cls, text: bytes) -> KvTable:
        """Return the table of a kvConfig.json. Raises RemoteProtocolError if it is not one."""
        table = cls()
        found = fastjson.loads(text, items_max=10 * ENTRIES_MAX)
        spaces = found.get("configTable") if isinstance(found, dict) else None
        if not isinstance(spaces, dict):
            raise RemoteProtocolError("no object with a configTable")
        for namespace, values in spaces.items():
            texts = table._spaces[_text(namespace)] = _texts(values)
            table._count += len(texts)
            table._chars += len(namespace) + sum(map(len, texts)) + sum(map(len, texts.values()))
        return table

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"KvTable(namespaces={len(self._spaces)}, values={len(self)})"


def _texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise RemoteProtocolError("a namespace is not an object")
    return {_text(key): _text(value) for key, value in values.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RemoteProtocolError(f"{value!r:.50} is not text")
    return value
