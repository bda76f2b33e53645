"""Parked keys for code that blocks; see `inorder.client.admin.parked` for what each verb does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from inorder.client.admin import parked as twin
from inorder.client.admin.parked import COUNT, Keys, Messages
from inorder.model import TopicQueue
from inorder.sync.portal import Portal


class Parked:
    """The parked keys of all brokers."""

    def __init__(self, portal: Portal, parked: twin.Parked) -> None:
        self._portal = portal
        self._async = parked

    def list(self, group: str | None = None, *, topic: str | None = None) -> Keys:
        """Return the parked keys, of one group or topic if given, longest parked first."""
        return self._portal.call(partial(self._async.list, group, topic=topic))

    def full(self, group: str | None = None) -> dict[tuple[str, str], str]:
        """Return the (group, broker) that cannot park more, and why: their keys block there."""
        return self._portal.call(self._async.full, group)

    def show(
        self, group: str, key: str, *, topic: str | None = None, count: int = COUNT
    ) -> Messages:
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
