"""Offsets of a group: get, set, reset to a time or an offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inorder.client.admin.cluster import Cluster
from inorder.client.session import Session
from inorder.client.state.routes import broker_masters, subscribe_queues
from inorder.errors import ConsumerNotOnline, NotFound, UsageError
from inorder.model import TopicQueue
from inorder.wire.requests.progress import ResetOffset

BEGINNING_MS: Final = 0
END_MS: Final = -1
"""The time that means: to the end of each queue."""


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """What a queue holds and how far a group is; None if it never said."""

    queue: TopicQueue
    min_offset: int
    max_offset: int
    committed_offset: int | None


class Offsets:
    """The offsets of groups."""

    def __init__(self, session: Session, cluster: Cluster) -> None:
        self._session = session
        self._cluster = cluster

    async def get(self, group: str, topic: str) -> list[QueueOffsets]:
        """Return how far a group is on each queue of a topic."""
        found = []
        for queue in subscribe_queues(await self._session.refresh_route(topic), topic):
            api = await self._session.reader_of(queue)
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

    async def at_time(self, queue: TopicQueue, timestamp_ms: int) -> int:
        """Return the first offset of a queue that was stored at a time or after it."""
        return await (await self._session.reader_of(queue)).search_offset(queue, timestamp_ms)

    async def set(self, group: str, queue: TopicQueue, offset: int) -> None:
        """Store an offset for a group that is not online; its members would overwrite it.

        Raises UsageError if it is online, or the offset lies outside of the queue.
        """
        api = await self._session.reader_of(queue)
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
                f"a reset of group {group} on queue {queue.index} of {queue.topic} waits for its "
                "next pull and was not overwritten; reset again instead of set"
            )

    async def reset(
        self, group: str, topic: str, timestamp_ms: int = END_MS
    ) -> dict[TopicQueue, int]:
        """Set a group to a time on all queues of a topic, online or not; return the offsets.

        END_MS is the end of each queue, BEGINNING_MS its beginning. Consumers that are online
        learn it with their next pull.
        """
        masters = broker_masters(await self._session.refresh_route(topic))
        found: dict[TopicQueue, int] = {}
        for _, address in sorted(masters.items()):
            api = await self._cluster.api(address)
            found.update(await api.reset_offset(ResetOffset(topic, group, timestamp_ms)))
        return dict(sorted(found.items()))

    async def reset_queue(self, group: str, queue: TopicQueue, offset: int) -> int:
        """Set a group to an offset on one queue, online or not.

        Raises UsageError if the broker can only reset all queues of a topic at once.
        """
        api = await self._session.reader_of(queue)
        if (await api.settings()).get("useServerSideResetOffset") != "true":
            raise UsageError(
                f"broker {queue.broker} can only reset all queues of a topic at once; reset "
                "without naming a queue, or stop the group and set the offset"
            )
        request = ResetOffset(queue.topic, group, END_MS, True, queue.index, offset)
        return (await api.reset_offset(request))[queue]
