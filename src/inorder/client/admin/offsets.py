"""Offsets of a group: get, set, reset to a time or an offset.

How an offset is reset: decision 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from inorder.client.access import Access
from inorder.client.admin.cluster import Cluster
from inorder.client.api import BrokerApi
from inorder.client.rules.routes import broker_masters, moment_ms, subscribe_queues
from inorder.errors import ConsumerNotOnline, NotFound, TransportError, UsageError
from inorder.model import TopicQueue
from inorder.wire.requests.offsets import ResetOffset

ResetTarget = datetime | Literal["beginning", "end"]

_BEGINNING_MS: Final = 0
_END_MS: Final = -1  # on the wire: to the end of each queue


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The offsets of a queue, and a group's committed one; None if there is none."""

    queue: TopicQueue
    min_offset: int
    max_offset: int
    committed_offset: int | None


class Offsets:
    """The offsets of groups."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster

    async def get(self, group: str, topic: str) -> list[QueueOffsets]:
        """Return the committed offset of a group on each queue of a topic."""
        found = []
        for queue in subscribe_queues(await self._cluster.route(topic), topic):
            api = await self._api(queue)
            try:
                committed = await api.query_offset(group, queue, set_zero_if_not_found=False)
            except NotFound:
                committed = None
            found.append(
                QueueOffsets(
                    queue, await api.min_offset(queue), await api.max_offset(queue), committed
                )
            )
        return found

    async def at_time(self, queue: TopicQueue, moment: datetime) -> int:
        """Return the offset of the first message stored at a time or after it."""
        return await (await self._api(queue)).search_offset(queue, moment_ms(moment))

    async def set(self, group: str, queue: TopicQueue, offset: int) -> None:
        """Store an offset for a group that is not online; its members would overwrite it.

        Raises UsageError if it is online, or the offset lies outside of the queue.
        """
        api = await self._api(queue)
        try:
            online = (await api.consumer_connections(group)).connections
        except ConsumerNotOnline:
            online = ()
        if online:
            raise UsageError(
                f"group {group} is online with {len(online)} clients, which would overwrite the "
                "offset; stop them first, or reset instead of set"
            )
        start, end = await api.min_offset(queue), await api.max_offset(queue)
        if not start <= offset <= end:
            raise UsageError(
                f"offset {offset} lies outside of queue {queue.index} of {queue.topic} on "
                f"{queue.broker}, which goes from {start} to {end}"
            )
        await api.update_offset(group, queue, offset)
        if await api.query_offset(group, queue) != offset:
            raise UsageError(
                f"the offset of group {group} on queue {queue.index} of {queue.topic} was not set: "
                "a reset waits for its next pull, or its last owner's lease has not run out; "
                "reset instead of set"
            )

    async def reset(self, group: str, topic: str, to: ResetTarget) -> dict[TopicQueue, int]:
        """Set a group to a time on all queues of a topic, online or not; return the offsets.

        `to` is a time, "beginning" or "end". Consumers that are online learn it with their next
        pull. Raises TransportError if a broker of the topic's key map is not registered.
        """
        timestamp_ms = _target_ms(to)
        masters = broker_masters(await self._cluster.route(topic))
        found: dict[TopicQueue, int] = {}
        for _, address in sorted(masters.items()):
            api = await self._cluster.api(address)
            found.update(await api.reset_offset(ResetOffset(topic, group, timestamp_ms)))
        key_map = (await self._access.open()).key_map(topic)
        away = sorted({name for name, _ in key_map.queues} - set(masters)) if key_map else []
        if away:
            raise TransportError(
                f"broker {', '.join(away)} of topic {topic} is not registered: group {group} was "
                "set elsewhere on the others only; start it, then reset again"
            )
        return dict(sorted(found.items()))

    async def reset_queue(self, group: str, queue: TopicQueue, offset: int) -> int:
        """Set a group to an offset on one queue, online or not.

        Raises UsageError if the broker can only reset all queues of a topic at once.
        """
        api = await self._api(queue)
        if (await api.settings()).get("useServerSideResetOffset") != "true":
            raise UsageError(
                f"broker {queue.broker} can only reset all queues of a topic at once; reset "
                "without naming a queue, or stop the group and set the offset"
            )
        request = ResetOffset(queue.topic, group, _END_MS, True, queue.index, offset)
        return (await api.reset_offset(request))[queue]

    async def _api(self, queue: TopicQueue) -> BrokerApi:
        return await (await self._access.open()).reader_of(queue)


def _target_ms(to: ResetTarget) -> int:
    if isinstance(to, datetime):
        return moment_ms(to)
    if to not in ("beginning", "end"):
        raise UsageError(f"{to!r}: reset to a datetime, 'beginning' or 'end'")
    return _BEGINNING_MS if to == "beginning" else _END_MS
