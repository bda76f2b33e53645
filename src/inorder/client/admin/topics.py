"""Topics: list, create, change, resize, delete, and the contents of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from inorder.client.access import Access
from inorder.client.admin.cluster import Cluster
from inorder.client.admin.resizing import OnProgress, Resizer
from inorder.client.api import BrokerApi
from inorder.client.keymaps import Maker
from inorder.client.rules.resizing import Goal, TopicResize, spread
from inorder.client.rules.routes import Duration, broker_masters, subscribe_queues, to_ms
from inorder.errors import (
    CodeNotSupported,
    TopicNotFound,
    TopicNotRouted,
    TransportError,
    UsageError,
)
from inorder.model import READ_WRITE, TopicConfig, TopicQueue
from inorder.ordering import keymap
from inorder.ordering.keymap import KeyMap
from inorder.wire.names import GROUP_PREFIXES, ORDER_TOPIC_CONFIG, SYSTEM_TOPIC_PREFIXES
from inorder.wire.requests.resizing import ResizeStatus

MAKE_WAIT_MS: Final = 30_000
HIDDEN_PREFIXES: Final = (*GROUP_PREFIXES, *SYSTEM_TOPIC_PREFIXES)


@dataclass(frozen=True, slots=True)
class QueueView:
    """The offsets of one queue."""

    queue: TopicQueue
    min_offset: int
    max_offset: int
    updated_at_ms: int

    @property
    def messages(self) -> int:
        """Return how many messages the queue holds."""
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic: its settings on each broker, its queues, the groups that consume it."""

    name: str
    configs: dict[str, TopicConfig]
    queues: tuple[QueueView, ...]
    groups: tuple[str, ...]
    put_rate: float

    @property
    def messages(self) -> int:
        """Return how many messages all queues hold."""
        return sum(queue.messages for queue in self.queues)


class Topics:
    """The topics of a cluster."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def names(self, *, system: bool = False) -> list[str]:
        """Return the topics that a name server knows; system topics only with `system`."""
        session = await self._access.open()
        lists = await session.ask_name_servers(lambda api: api.topics())
        names = {name for one in lists for name in one}
        if not system:
            for reserved in (await self._cluster.each(lambda api: api.system_topics())).values():
                names.difference_update(reserved)
            names = {name for name in names if not name.startswith(HIDDEN_PREFIXES)}
        return sorted(names)

    async def table(self, *, system: bool = False) -> dict[str, dict[str, TopicConfig]]:
        """Return the settings of all topics, by name and broker."""
        found: dict[str, dict[str, TopicConfig]] = {
            name: {} for name in await self.names(system=system)
        }
        for node, topics in (await self._cluster.each(lambda api: api.topics())).items():
            for name, config in topics.items():
                if name in found:
                    found[name][node.name] = config
        return found

    async def create(
        self,
        name: str,
        *,
        queues: int = 8,
        perm: int = READ_WRITE,
        order: bool = False,
        attributes: dict[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic on every master, or change it there; `queues` is per broker.

        If all brokers are inorder brokers, the topic gets a key map: the list of all its queues,
        kept by each broker and by the name server. With it, keys keep their queues while a broker
        is down. The key map is open when all brokers have it. `resize` changes the number of queues
        of a topic with a key map.
        """
        session = await self._access.open()
        given = dict(attributes or {})
        nodes = dict.fromkeys(await self._cluster.masters(cluster=cluster))
        key_map = None
        made = await self._make(name, queues, [node.name for node in nodes], perm=perm, order=order)
        if not made:
            key_map = await self._new_map(name, queues, cluster)
        if key_map is not None:
            given[keymap.ATTRIBUTE] = key_map.encode()
        if not made or given:
            config = TopicConfig(name, queues, queues, perm, order=order, attributes=given)
            nodes = await self._cluster.each(lambda api: api.create_topic(config), cluster=cluster)
        if key_map is not None:
            text = key_map.encode()
            await session.tell_name_servers(lambda api: api.put_kv(keymap.NAMESPACE, name, text))
        if order:
            order_conf = ";".join(f"{node.name}:{queues}" for node in nodes)
            await session.tell_name_servers(
                lambda api: api.put_kv(ORDER_TOPIC_CONFIG, name, order_conf)
            )
        session.forget_route(name)

    async def _make(
        self, name: str, queues: int, brokers: list[str], *, perm: int, order: bool
    ) -> bool:
        """Give a topic its first key map; False if it has one, or a broker knows no maps."""
        maker = await self._maker(name, perm=perm, order=order)
        views = await maker.views(brokers)
        if views is None or any(view.version for view in views.values()):
            return False
        places = tuple((broker, index) for broker in sorted(brokers) for index in range(queues))
        return await maker.make(brokers, lambda _: places, timeout_ms=MAKE_WAIT_MS) is not None

    async def _maker(self, name: str, *, perm: int = 6, order: bool = False) -> Maker:
        async def addresses() -> dict[str, str]:
            return {node.name: node.address for node in await self._cluster.masters()}

        return Maker(await self._access.open(), name, addresses, perm=perm, order=order)

    async def _first_map(self, name: str, queues: int | None, wait_ms: int) -> bool:
        """Give a topic that may have messages its first key map; False if it has one."""
        route = await self._cluster.route(name)
        brokers = sorted(broker_masters(route))
        maker = await self._maker(name)
        try:
            views = await maker.views(brokers)
        except TransportError:
            return False  # the resize will say which broker is away
        if views is None or any(view.version for view in views.values()):
            return False
        total = sum(view.write_queues for view in views.values()) if queues is None else queues
        places = spread(brokers, total)
        return await maker.make(brokers, lambda _: places, timeout_ms=wait_ms) is not None

    async def _new_map(self, name: str, queues: int, cluster: str | None) -> KeyMap | None:
        """Return a first key map for brokers of protocol 1, which take it as an attribute.

        None if the topic has a map, or a broker knows no maps. The version is above all versions
        of topics with this name, deleted ones included.
        """
        places, last = [], 0
        for node in await self._cluster.masters(cluster=cluster):
            api = await self._cluster.api(node.address)
            try:
                view = await api.resize(ResizeStatus(name))
            except CodeNotSupported:
                return None  # a broker of Apache RocketMQ
            if view.version or view.write_queues:
                return None
            last = max(last, view.last)
            places += [(node.name, index) for index in range(queues)]
        return KeyMap.of(last + 1, places)

    async def update(
        self,
        name: str,
        *,
        queues: int | None = None,
        perm: int | None = None,
        attributes: dict[str, str] | None = None,
        shrink: bool = False,
    ) -> None:
        """Change the given settings of a topic and keep the others; `queues` is per broker.

        Raises UsageError if the topic has a key map and `queues` differs: use `resize`, which keeps
        keys in order. Raises UsageError if another topic would get fewer queues, because messages
        in the others could not be read any more; `shrink=True` allows it.
        """
        configs = await self.configs(name)
        if queues is not None and any(
            keymap.ATTRIBUTE in one.attributes
            and (one.read_queues, one.write_queues) != (queues, queues)
            for one in configs.values()
        ):
            raise UsageError(
                f"topic {name} has a key map, which another number of queues would break; use "
                f"`inorder topic resize {name} --queues TOTAL`"
            )
        most = max(max(one.read_queues, one.write_queues) for one in configs.values())
        if queues is not None and queues < most and not shrink:
            raise UsageError(
                f"topic {name} has {most} queues; with {queues} the messages of the others could "
                "not be read any more, and keys would change their queue"
            )
        changes = dict(attributes or {})
        for broker, old in configs.items():
            config = replace(
                old,
                read_queues=old.read_queues if queues is None else queues,
                write_queues=old.write_queues if queues is None else queues,
                perm=old.perm if perm is None else perm,
                attributes=changes,
            )
            node = await self._cluster.find(broker)
            await (await self._cluster.api(node.address)).create_topic(config)
        (await self._access.open()).forget_route(name)

    async def resize(
        self,
        name: str,
        *,
        queues: int | None = None,
        wait: Duration = 30,
        on_progress: OnProgress | None = None,
        without: Iterable[str] = (),
    ) -> TopicResize:
        """Change the number of a topic's queues while the topic is in use; keys stay in order.

        `queues` counts the queues of all brokers. Without `queues`, a resize that was begun before
        is finished. A topic that has no key map yet gets its first one. `without` names brokers
        that are gone for good with their messages: the other brokers share the queues, and the
        resize does not wait for them.

        When the call returns, producers use the new queues. Each group reads them after it has
        finished the messages sent before (see `resize_status`). If a broker does not answer for
        `wait`, the resize stays as it is; the same call finishes it, from any client.
        `on_progress` is called on the client's event loop; the blocking client runs that loop in a
        thread of its own.

        Raises UsageError if the topic has no key map and cannot get one (a broker of it is Apache
        RocketMQ, or `without` is given), ResizeUnderWay if another resize of the topic must be
        finished first, InterruptedResize after `wait`.
        """
        session = await self._access.open()
        gone = tuple(sorted(without))
        if not gone and await self._first_map(name, queues, to_ms(wait)):
            return await self.resize_status(name)
        resizer = Resizer(session, self._cluster, name, gone)
        wanted = None if queues is None else spread(await resizer.views(), queues)
        goal = Goal(session.message_ids.at(session.clock.now_ms()), wanted, gone)
        return await resizer.run(goal, timeout_ms=to_ms(wait), on_progress=on_progress)

    async def repair(self, name: str, *, wait: Duration = 30) -> TopicResize:
        """Give a topic one key map, if its brokers use different maps of one version.

        This happens if two clients create a topic and see different brokers. The next version has
        the queues of all maps. Messages of one key that were sent meanwhile may be in two queues;
        groups handle them before any message of the next version.

        Raises UsageError if there is nothing to repair, InterruptedResize after `wait`.
        """
        resizer = await self._resizer(name)
        maps = await resizer.contradicting()
        if len(maps) < 2:
            raise UsageError(f"the brokers of topic {name} agree on its key map; nothing to repair")
        wanted = tuple(sorted({place for one in maps for place in one.queues}))
        session = await self._access.open()
        goal = Goal(session.message_ids.at(session.clock.now_ms()), wanted, anew=True)
        return await resizer.run(goal, timeout_ms=to_ms(wait))

    async def resize_status(self, name: str) -> TopicResize:
        """Return the state of a topic: a resize under way, and the groups that wait."""
        return await (await self._resizer(name)).status()

    async def abort_resize(self, name: str) -> TopicResize:
        """Abort a resize that waits for a missing broker; keyed sends continue.

        The topic keeps its present queues, also those of the missing broker. `away` of the result
        names the brokers that did not answer: when one of them is back, call this again.

        Raises ResizeUnderWay if all brokers had stopped, because the resize can then only be
        finished. Raises TransportError if the topic's first broker, which decides, does not answer.
        """
        return await (await self._resizer(name)).withdraw()

    async def release_group(self, name: str, group: str) -> int:
        """Let a group read the present version of a topic now; return the version.

        Use this for a group that will not come back and delays the end of a resize. Its unfinished
        messages may then be handled after newer messages of the same keys. Unfinished messages in
        removed queues are not handled at all.
        """
        return await (await self._resizer(name)).release(group)

    async def _resizer(self, name: str) -> Resizer:
        return Resizer(await self._access.open(), self._cluster, name)

    async def delete(self, name: str) -> None:
        """Delete a topic with its messages and offsets. Raises TopicNotRouted if there is none."""
        session = await self._access.open()
        await session.refresh_route(name)
        await self._cluster.each(lambda api: api.delete_topic(name))
        await session.tell_name_servers(lambda api: api.delete_topic(name))
        await session.tell_name_servers(lambda api: api.delete_kv(ORDER_TOPIC_CONFIG, name))
        await session.tell_name_servers(lambda api: api.delete_kv(keymap.NAMESPACE, name))
        session.forget_route(name)

    async def configs(self, name: str) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker. Raises TopicNotRouted."""
        found = {}
        for broker, address in broker_masters(await self._cluster.route(name)).items():
            try:
                found[broker] = await _config(await self._cluster.api(address), name)
            except TopicNotFound:
                continue  # another master has it; the name server has yet to forget this one
        if not found:
            raise TopicNotRouted(f"no broker has topic {name} any more; create it")
        return found

    async def find_queue(self, name: str, index: int, broker: str | None = None) -> TopicQueue:
        """Return a queue by its number; the broker may be left out if there is one only.

        Raises UsageError if there is no such queue, or several.
        """
        queues = subscribe_queues(await self._cluster.route(name), name)
        found = [one for one in queues if one.index == index and broker in (None, one.broker)]
        if not found:
            known = ", ".join(f"{one.broker}/{one.index}" for one in queues) or "none"
            raise UsageError(f"topic {name} has no queue {index}; it has: {known}")
        if len(found) > 1:
            brokers = ", ".join(one.broker for one in found)
            raise UsageError(f"topic {name} has queue {index} on {brokers}; name the broker")
        return found[0]

    async def describe(self, name: str) -> TopicView:
        """Return the settings, queues and groups of a topic. Raises TopicNotRouted."""
        configs = await self.configs(name)
        masters = broker_masters(await (await self._access.open()).route(name))
        queues: list[QueueView] = []
        groups: set[str] = set()
        rate = 0.0
        for broker in configs:
            api = await self._cluster.api(masters[broker])
            stats = await api.topic_stats(name)
            rate += stats.put_rate
            queues += [
                QueueView(queue, item.min_offset, item.max_offset, item.updated_at_ms)
                for queue, item in stats.queues.items()
            ]
            groups.update(await api.groups_of(name))
        groups.discard(name)  # RocketMQ 5.3 lists the topic itself
        queues.sort(key=lambda view: view.queue)
        return TopicView(name, configs, tuple(queues), tuple(sorted(groups)), rate)


async def _config(api: BrokerApi, name: str) -> TopicConfig:
    """Return the settings of one topic; a broker of 4.9 can only list all topics."""
    try:
        return await api.topic(name)
    except CodeNotSupported:
        found = (await api.topics()).get(name)
        if found is None:
            raise TopicNotFound(f"No topic in this broker. topic: {name}") from None
        return found
