"""Operating a cluster from code that blocks; see `inorder.client.admin` for what each verb does.

with Admin("127.0.0.1:9876") as admin:
    admin.topics.create("orders", queues=8)
    for progress in admin.groups.lag("billing"):
        print(progress.queue, progress.lag)

Owners of queues for code that blocks; see `inorder.client.admin.groups`.

Parked keys for code that blocks; see `inorder.client.admin.parked` for what each verb does.
"""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterable
from datetime import datetime
from functools import partial

from inorder.client import admin as twin
from inorder.client.admin import groups as async_locks
from inorder.client.admin import parked as async_parked
from inorder.client.admin.messages import COUNT, PULL_MAX
from inorder.client.admin.parked import COUNT as PARKED_COUNT
from inorder.client.admin.parked import Keys
from inorder.client.admin.parked import Messages as ParkedMessages
from inorder.client.admin.resizing import OnProgress
from inorder.client.rules.resizing import TopicResize
from inorder.client.rules.routes import Duration
from inorder.config import ClientConfig
from inorder.model import (
    PERM_READ,
    PERM_WRITE,
    GroupConfig,
    ReceivedMessage,
    TopicConfig,
    TopicQueue,
)
from inorder.sync.portal import Portal, lease
from inorder.wire.requests.connections import ClientConnection, ConsumerConnections
from inorder.wire.requests.routes import ClusterInfo, TopicRoute


class Locks:
    """The owners of queues at all brokers."""

    def __init__(self, portal: Portal, locks: async_locks.Locks) -> None:
        self._portal = portal
        self._async = locks

    def list(
        self, group: str | None = None, *, topic: str | None = None
    ) -> list[async_locks.QueueLock]:
        """Return who owns which queues, of one group or topic if given, in order."""
        return self._portal.call(partial(self._async.list, group, topic=topic))

    def release(self, group: str, queue: TopicQueue) -> str:
        """Take a queue from its owner; return the owner's client id.

        Whatever the owner does under its epoch is refused from now on. Another member gets the
        queue when the owner has ceased by itself to start handlers: at most its grace after its
        last renewal, 30 s for a client of Apache RocketMQ. Raises NotFound if nobody owns it.
        """
        return self._portal.call(self._async.release, group, queue)


class Parked:
    """The parked keys of all brokers."""

    def __init__(self, portal: Portal, parked: async_parked.Parked) -> None:
        self._portal = portal
        self._async = parked

    def list(self, group: str | None = None, *, topic: str | None = None) -> Keys:
        """Return the parked keys, of one group or topic if given, longest parked first."""
        return self._portal.call(partial(self._async.list, group, topic=topic))

    def full(self, group: str | None = None) -> dict[tuple[str, str], str]:
        """Return the (group, broker) that cannot park more, and why: their keys block there."""
        return self._portal.call(self._async.full, group)

    def show(
        self, group: str, key: str, *, topic: str | None = None, count: int = PARKED_COUNT
    ) -> ParkedMessages:
        """Return the first messages of a parked key, as they were when they were parked.

        Raises NotFound if no such key is parked.
        """
        return self._portal.call(partial(self._async.show, group, key, topic=topic, count=count))

    def redrive(
        self,
        group: str,
        keys: Iterable[str] = (),
        *,
        topic: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Keys:
        """Let parked keys (none given: all of the group) be handled again, in order.

        It is done by the consumers of the group, at most `rate` messages a second in all. A key
        goes live when its list is empty; one that fails again stays parked. Returns the keys; with
        `dry_run` nothing happens to them. Raises NotFound if one of them is not parked.
        """
        return self._portal.call(
            partial(self._async.redrive, group, keys, topic=topic, rate=rate, dry_run=dry_run)
        )

    def cancel(self, group: str, keys: Iterable[str] = (), *, topic: str | None = None) -> Keys:
        """Take redrives back (none given: all of the group); what was handled stays handled."""
        return self._portal.call(partial(self._async.cancel, group, keys, topic=topic))

    def drop(
        self,
        group: str,
        keys: Iterable[str],
        *,
        reason: str,
        topic: str | None = None,
        first: bool = False,
    ) -> int:
        """Throw the messages of keys away for good, or only the `first` one of each.

        Returns how many those were. A key whose messages are all dropped goes live. The reason is
        kept in %PARK%group. Raises NotFound if one of the keys is not parked.
        """
        return self._portal.call(
            partial(self._async.drop, group, keys, reason=reason, topic=topic, first=first)
        )

    def park(
        self,
        group: str,
        queue: TopicQueue,
        offset: int,
        key: str,
        *,
        tries: int = 1,
        error: str | None = None,
        fence: int | None = None,
        until: int | None = None,
    ) -> str:
        """Park a message of a queue that no consumer of the group has; say what became of it.

        With `error` it parks its key; without, it joins a key that is parked. The answer is
        "parked", also if it was before; "live": the key is not parked (any more), handle it;
        "full": there is no room; "gone": the broker does not have the message. Raises LeaseLost if
        a consumer of the group has the queue. A message below the group's offset counts as done; a
        job that commits by batches says with `until` what the offset is once its batch is done.
        """
        return self._portal.call(partial(
            self._async.park, group, queue, offset, key, tries=tries, error=error, fence=fence,
            until=until,
        ))  # fmt: skip

    def keys(self, group: str, queue: TopicQueue) -> frozenset[str]:
        """Return the keys of a queue that are parked: their messages are not to be handled."""
        return self._portal.call(self._async.keys, group, queue)

    def redriven(self, group: str, queue: TopicQueue, key: str, offsets: Iterable[int]) -> None:
        """Say that messages of a parked key were handled: they leave its list."""
        self._portal.call(self._async.redriven, group, queue, key, offsets)

    def unpark(self, group: str, queue: TopicQueue, key: str, end: int) -> bool:
        """Let a key go live whose list is empty and ends at an offset; False if it grew."""
        return self._portal.call(self._async.unpark, group, queue, key, end)


class Admin:
    """The nouns of a cluster, each with its verbs: `cluster`, `topics`, `groups`, …

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._closed = True  # until there is something to close
        self._async = twin.Admin(namesrv, config=config, tls=tls)
        self._portal = lease()
        self._closed = False
        self.cluster = Cluster(self._portal, self._async.cluster)
        self.topics = Topics(self._portal, self._async.topics)
        self.groups = Groups(self._portal, self._async.groups)
        self.offsets = Offsets(self._portal, self._async.offsets)
        self.messages = Messages(self._portal, self._async.messages)
        self.locks = Locks(self._portal, self._async.locks)
        self.parked = Parked(self._portal, self._async.parked)
        self.producers = Producers(self._portal, self._async.producers)

    def close(self) -> None:
        """Let go of the connections; twice is fine."""
        if not self._closed:
            self._closed = True
            self._portal.finish(self._async.close)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return repr(self._async)


class Cluster:
    """The brokers that the name server knows."""

    def __init__(self, portal: Portal, cluster: twin.Cluster) -> None:
        self._portal = portal
        self._async = cluster

    def info(self) -> ClusterInfo:
        """Return brokers by name, and broker names by cluster."""
        return self._portal.call(self._async.info)

    def brokers(self) -> list[twin.BrokerNode]:
        """Return all brokers, masters and slaves, sorted by cluster and name."""
        return self._portal.call(self._async.brokers)

    def masters(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[twin.BrokerNode]:
        """Return the brokers that take writes, of one cluster or name if given.

        Raises NoBroker if there is none.
        """
        return self._portal.call(partial(self._async.masters, cluster=cluster, broker=broker))

    def find(self, name_or_address: str) -> twin.BrokerNode:
        """Return the broker of an address, or the master of a name. Raises UsageError."""
        return self._portal.call(self._async.find, name_or_address)

    def runtime(self, name_or_address: str) -> dict[str, str]:
        """Return a broker's statistics under RocketMQ's names."""
        return self._portal.call(self._async.runtime, name_or_address)

    def settings(self, name_or_address: str) -> dict[str, str]:
        """Return a broker's settings under RocketMQ's names."""
        return self._portal.call(self._async.settings, name_or_address)

    def update_settings(self, name_or_address: str, settings: dict[str, str]) -> None:
        """Change settings of a broker that may change at run time."""
        self._portal.call(self._async.update_settings, name_or_address, settings)

    def route(self, topic: str) -> TopicRoute:
        """Return who serves a topic, as the name server knows it now. Raises TopicNotRouted."""
        return self._portal.call(self._async.route, topic)


class Topics:
    """The topics of a cluster."""

    def __init__(self, portal: Portal, topics: twin.Topics) -> None:
        self._portal = portal
        self._async = topics

    def names(self, *, system: bool = False) -> list[str]:
        """Return the names that the name server knows; without those of the system."""
        return self._portal.call(partial(self._async.names, system=system))

    def table(self, *, system: bool = False) -> dict[str, dict[str, TopicConfig]]:
        """Return the settings of all topics, by name and broker."""
        return self._portal.call(partial(self._async.table, system=system))

    def create(
        self,
        name: str,
        *,
        queues: int = 8,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: dict[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic on every master, or set it so; `queues` is per broker."""
        self._portal.call(partial(
            self._async.create, name, queues=queues, perm=perm, order=order,
            attributes=attributes, cluster=cluster,
        ))  # fmt: skip

    def update(
        self,
        name: str,
        *,
        queues: int | None = None,
        perm: int | None = None,
        attributes: dict[str, str] | None = None,
        shrink: bool = False,
    ) -> None:
        """Change what is given and leave the rest; `queues` is per broker.

        Raises UsageError for another number of queues of a topic with a key map (see `resize`), of
        others for fewer queues than now, unless `shrink` says that this is meant.
        """
        self._portal.call(partial(
            self._async.update, name, queues=queues, perm=perm, attributes=attributes,
            shrink=shrink,
        ))  # fmt: skip

    def resize(
        self,
        name: str,
        *,
        queues: int | None = None,
        wait: Duration = 30,
        on_progress: OnProgress | None = None,
        without: Iterable[str] = (),
    ) -> TopicResize:
        """Give a topic another number of queues, in all, while it is in use; keys stay in order.

        A topic without a key map gets its first one. `without` are brokers that are gone for good,
        with what they hold: the others share the queues, and nobody waits for them.

        Without `queues` a resize that was begun is finished. `on_progress` is called in a thread of
        the client.

        Raises UsageError if the topic has no key map, ResizeUnderWay if another resize of it has to
        be finished first, InterruptedResize after `wait`.
        """
        return self._portal.call(partial(
            self._async.resize, name, queues=queues, wait=wait, on_progress=on_progress,
            without=without,
        ))  # fmt: skip

    def repair(self, name: str, *, wait: Duration = 30) -> TopicResize:
        """Give a topic one key map whose brokers use different ones of one version.

        Raises UsageError if there is nothing to repair, InterruptedResize after `wait`.
        """
        return self._portal.call(partial(self._async.repair, name, wait=wait))

    def resize_status(self, name: str) -> TopicResize:
        """Return where a topic stands: a resize under way, and the groups that wait."""
        return self._portal.call(self._async.resize_status, name)

    def abort_resize(self, name: str) -> TopicResize:
        """Abort a resize that waits for a missing broker; keyed sends continue.

        Raises ResizeUnderWay if it is too late, TransportError if the first broker is away.
        """
        return self._portal.call(self._async.abort_resize, name)

    def release_group(self, name: str, group: str) -> int:
        """Let a group read the present version of a topic now; return which that is.

        For a group that holds back the end of a resize and will not come: what it has not finished
        may then be handled after newer messages of the same keys, or not at all.
        """
        return self._portal.call(self._async.release_group, name, group)

    def delete(self, name: str) -> None:
        """Delete a topic with its messages and offsets. Raises TopicNotRouted if there is none."""
        self._portal.call(self._async.delete, name)

    def configs(self, name: str) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker. Raises TopicNotRouted."""
        return self._portal.call(self._async.configs, name)

    def find_queue(self, name: str, index: int, broker: str | None = None) -> TopicQueue:
        """Return a queue by its number; the broker may be left out if there is one only.

        Raises UsageError if there is no such queue, or several.
        """
        return self._portal.call(self._async.find_queue, name, index, broker)

    def describe(self, name: str) -> twin.TopicView:
        """Return all about a topic. Raises TopicNotRouted."""
        return self._portal.call(self._async.describe, name)


class Groups:
    """The consumer groups of a cluster."""

    def __init__(self, portal: Portal, groups: twin.Groups) -> None:
        self._portal = portal
        self._async = groups

    def names(self, *, system: bool = False) -> list[str]:
        """Return the groups that any master knows; without those of the system."""
        return self._portal.call(partial(self._async.names, system=system))

    def table(self, *, system: bool = False) -> dict[str, dict[str, GroupConfig]]:
        """Return the settings of all groups, by name and broker."""
        return self._portal.call(partial(self._async.table, system=system))

    def create(self, config: GroupConfig, *, cluster: str | None = None) -> None:
        """Create or change a group on every master."""
        self._portal.call(partial(self._async.create, config, cluster=cluster))

    def delete(self, name: str, *, offsets: bool = True) -> None:
        """Delete a group, with its offsets unless they shall stay, and with its own topics:
        retries, dead letters, parked messages.

        Raises GroupNotFound.
        """
        self._portal.call(partial(self._async.delete, name, offsets=offsets))

    def configs(self, name: str) -> dict[str, GroupConfig]:
        """Return the settings of a group by broker. Raises GroupNotFound."""
        return self._portal.call(self._async.configs, name)

    def describe(self, name: str) -> twin.GroupView:
        """Return all about a group. Raises GroupNotFound."""
        return self._portal.call(self._async.describe, name)

    def lag(
        self, name: str, topic: str | None = None, *, ages: bool = False
    ) -> list[twin.QueueLag]:
        """Return how far a group is on all queues that it has offsets of, or is online for.

        With `ages` also since when the oldest message waits, which is one read a queue.
        """
        return self._portal.call(partial(self._async.lag, name, topic, ages=ages))

    def consumers(self, name: str) -> dict[twin.BrokerNode, ConsumerConnections]:
        """Return the connected consumers of a group, by broker; empty if there are none."""
        return self._portal.call(self._async.consumers, name)

    def producers(self, name: str) -> dict[twin.BrokerNode, list[ClientConnection]]:
        """Return the connected producers of a group, by broker; empty if there are none."""
        return self._portal.call(self._async.producers, name)


class Offsets:
    """The offsets of groups."""

    def __init__(self, portal: Portal, offsets: twin.Offsets) -> None:
        self._portal = portal
        self._async = offsets

    def get(self, group: str, topic: str) -> list[twin.QueueOffsets]:
        """Return the committed offset of a group on each queue of a topic."""
        return self._portal.call(self._async.get, group, topic)

    def at_time(self, queue: TopicQueue, moment: datetime) -> int:
        """Return the first offset of a queue that was stored at a time or after it."""
        return self._portal.call(self._async.at_time, queue, moment)

    def set(self, group: str, queue: TopicQueue, offset: int) -> None:
        """Store an offset for a group that is not online; its members would overwrite it.

        Raises UsageError if it is online, or the offset lies outside of the queue.
        """
        self._portal.call(self._async.set, group, queue, offset)

    def reset(self, group: str, topic: str, to: twin.ResetTarget) -> dict[TopicQueue, int]:
        """Set a group to a time on all queues of a topic, online or not; return the offsets.

        `to` is a time, "beginning" or "end". Consumers that are online learn it with their next
        pull.
        """
        return self._portal.call(self._async.reset, group, topic, to)

    def reset_queue(self, group: str, queue: TopicQueue, offset: int) -> int:
        """Set a group to an offset on one queue, online or not.

        Raises UsageError if the broker can only reset all queues of a topic at once.
        """
        return self._portal.call(self._async.reset_queue, group, queue, offset)


class Messages:
    """The messages of a cluster."""

    def __init__(self, portal: Portal, messages: twin.Messages) -> None:
        self._portal = portal
        self._async = messages

    def by_id(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Return the messages of an id, the producer's or the broker's; several after a retry.

        Raises NotFound, TopicNotRouted.
        """
        return self._portal.call(self._async.by_id, topic, message_id)

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        count: int = COUNT,
    ) -> list[ReceivedMessage]:
        """Return messages that carry an index key, stored between two times, oldest first."""
        return self._portal.call(
            partial(self._async.by_key, topic, key, since=since, until=until, count=count)
        )

    def by_time(
        self,
        topic: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        count: int = COUNT,
    ) -> list[ReceivedMessage]:
        """Return messages stored from `since` to before `until`, by time, `count` at most."""
        return self._portal.call(partial(self._async.by_time, topic, since, until, count=count))

    def by_offset(self, queue: TopicQueue, offset: int) -> ReceivedMessage:
        """Return the message at an offset. Raises OffsetOutOfRange."""
        return self._portal.call(self._async.by_offset, queue, offset)

    def read(
        self,
        queue: TopicQueue,
        offset: int,
        *,
        tag: str = "*",
        count: int = PULL_MAX,
        wait: Duration = 0,
    ) -> twin.Batch:
        """Return messages from an offset on; wait for the first one for up to `wait` seconds.

        Nothing is committed. An offset that is not there leads to the nearest one that is.
        """
        return self._portal.call(
            partial(self._async.read, queue, offset, tag=tag, count=count, wait=wait)
        )


class Producers:
    """The named producers of all brokers."""

    def __init__(self, portal: Portal, producers: twin.Producers) -> None:
        self._portal = portal
        self._async = producers

    def list(self, prefix: str = "") -> list[twin.ProducerView]:
        """Return the named producers whose names begin so, sorted; of a broker at most 10,000."""
        return self._portal.call(self._async.list, prefix)

    def drop(self, name: str) -> int:
        """Forget a named producer on all brokers; return on how many queues it was known.

        What it sent stays. A producer of that name that sends again begins anew: numbers that it
        repeats are stored a second time. Raises NotFound if no broker knows it.
        """
        return self._portal.call(self._async.drop, name)
