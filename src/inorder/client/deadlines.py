"""One timer for all deadlines of a producer.

It looks when the earliest is due, and at least once in the time that a request may take while
something is under way: callers whose time is up are told, connections that do not answer are given
up. Setting it costs a comparison per send.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from inorder.client.givingup import expire
from inorder.client.state.lane import DONE, IN_FLIGHT
from inorder.errors import RequestTimeout

if TYPE_CHECKING:
    from inorder.client.delivery import Delivery
    from inorder.client.link import Link
    from inorder.client.queuelane import QueueLane
    from inorder.client.topiclines import TopicLine


class Deadlines:
    """The timer of a delivery."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def arm(self, due_ms: int) -> None:
        """Look at this time at the latest."""
        if self._timer is not None:
            if due_ms >= self._due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        delay_ms = due_ms + 1 - self._delivery.clock.monotonic_ms()
        self._timer = self._delivery.loop.call_later(max(delay_ms, 0) / 1000, self._check)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        delivery = self._delivery
        now_ms = delivery.clock.monotonic_ms()
        limit_ms = delivery.session.config.request_timeout_ms
        dues = [self._check_early(topic, now_ms) for topic in delivery.topics.values()]
        for link in list(delivery.links.values()):
            dues += self._check_link(link, now_ms, limit_ms)
        pending = [due_ms for due_ms in dues if due_ms is not None]
        if pending:
            self.arm(min(*pending, now_ms + limit_ms))

    def _check_early(self, topic: TopicLine, now_ms: int) -> int | None:
        for early in [one for one in topic.early if one.deadline_ms <= now_ms]:
            topic.early.remove(early)
            self._delivery.fail_early(
                early,
                topic.error
                or RequestTimeout(
                    f"no name server said in time where topic {topic.name} is; nothing was sent"
                ),
            )
        return min((early.deadline_ms for early in topic.early), default=None)

    def _check_link(self, link: Link, now_ms: int, limit_ms: int) -> list[int | None]:
        dues: list[int | None] = []
        stuck = False
        for lane in list(link.lanes.values()):
            dues.append(self._check_lane(link, lane, now_ms))
            oldest = next((one for one in lane.sent if one.state == IN_FLIGHT), None)
            if oldest is not None:
                due_ms = oldest.written_ms + limit_ms
                stuck = stuck or due_ms <= now_ms
                dues.append(max(due_ms, now_ms + 1))
        if stuck:
            link.drop(f"a send was not answered in {limit_ms} ms")
        return dues

    def _check_lane(self, link: Link, lane: QueueLane, now_ms: int) -> int | None:
        due_ms: int | None = None
        for sending in [*lane.sent, *lane.waiting, *lane.moved]:
            if sending.state == DONE or sending.abandoned:
                continue
            if sending.deadline_ms <= now_ms:
                expire(link, lane, sending)
            elif due_ms is None or sending.deadline_ms < due_ms:
                due_ms = sending.deadline_ms
        return due_ms
