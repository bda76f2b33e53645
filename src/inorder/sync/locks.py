"""Owners of queues for code that blocks; see `inorder.client.admin.groups`."""

from __future__ import annotations

from functools import partial

from inorder.client.admin import groups as twin
from inorder.model import TopicQueue
from inorder.sync.portal import Portal


class Locks:
    """The owners of queues at all brokers."""

    def __init__(self, portal: Portal, locks: twin.Locks) -> None:
        self._portal = portal
        self._async = locks

    def list(self, group: str | None = None, *, topic: str | None = None) -> list[twin.QueueLock]:
        """Return who owns which queues, of one group or topic if given, in order."""
        return self._portal.call(partial(self._async.list, group, topic=topic))

    def release(self, group: str, queue: TopicQueue) -> str:
        """Take a queue from its owner; return the owner's client id.

        Whatever the owner does under its epoch is refused from now on. Another member gets the
        queue when the owner has ceased by itself to start handlers: at most its grace after its
        last renewal, 30 s for a client of Apache RocketMQ. Raises NotFound if nobody owns it.
        """
        return self._portal.call(self._async.release, group, queue)
