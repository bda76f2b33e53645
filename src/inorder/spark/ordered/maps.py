"""Which version of a topic's key map placed a message, asked of the brokers; and moving its keys.

A task asks once, after its batch was planned, so the versions of all messages in the batch are
known. The rules are in `spark/ordered/records.py`. Why: decision 35.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from inorder.errors import InorderError, UsageError
from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.spark.cluster import Cluster
from inorder.spark.ordered.records import Version, map_at, move, must_move
from inorder.spark.ordered.rules import Keys, Line
from inorder.spark.ordered.storage import of_topic
from inorder.wire.requests.resizing import ResizeView

RELEASE_S: Final = 30.0
LOOK_S: Final = 0.05


class NotReleased(InorderError):
    """The brokers do not release the group into a new version of a topic's key map yet."""


class Maps:
    """The key maps of the topics of a task."""

    def __init__(self, cluster: Cluster, state: str) -> None:
        self._cluster = cluster
        self._state = state
        self._views: dict[str, list[ResizeView]] = {}

    def version_at(self, queue: TopicQueue, offset: int) -> int:
        """Return the version of the map that placed a message; 0 if its topic has none."""
        views = self._topic(queue.topic)
        view = next((one for one in views if one.broker == queue.broker), None)
        if view is None:
            return 0
        over = [(past.version, past.ends.get(queue.index, 0)) for past in view.past]
        return map_at(offset, over, view.version)

    def move(
        self,
        queue: TopicQueue,
        before: Version | None,
        keys: Keys,
        *,
        query: str,
        batch: int,
        version: int,
    ) -> list[Line]:
        """Take over keys that moved here with a new version; return lines for other queues."""
        if before is not None and before.map_version >= version:
            return []
        folders = of_topic(self._state, query, queue.topic)
        found = {home: folder.past(batch) for home, folder in folders.items()}
        pasts = {home: past for home, past in found.items() if past is not None}
        if not must_move(before, (past.version for past in pasts.values()), version):
            return []
        return move((queue.broker, queue.index), keys, pasts, self._maps(queue.topic), version)

    def follow(self, topic: str, version: int, commit: Callable[[TopicQueue, int], None]) -> None:
        """Release the group into a version of the key map; its parked keys move with it.

        All queues were read to the ends of the versions before, and those batches are done: that
        is said by `commit`. The brokers then move the parked keys, and let the group go on.
        """
        ahead = max(self._released(topic), default=version)
        if ahead > version:
            raise UsageError(
                f"group {self._cluster.group} has gone on to version {ahead} of the key map of "
                f"topic {topic}, and this query reads version {version}: its parked keys would be "
                "left behind. Give the query a group of its own"
            )
        if min(self._released(topic), default=version) >= version:
            return
        for view in self._topic(topic):
            for past in view.past:
                if past.version < version:
                    for index, end in past.ends.items():
                        queue = TopicQueue(topic, view.broker, index)
                        if (self._cluster.committed(queue) or 0) < end:
                            commit(queue, end)
        deadline_s = time.monotonic() + RELEASE_S
        while min(self._released(topic), default=version) < version:
            if time.monotonic() > deadline_s:
                raise NotReleased(
                    f"group {self._cluster.group} cannot go on to version {version} of the key map "
                    f"of topic {topic} yet: a broker is away, or a parked key would come back onto "
                    "its own older list (the broker's log names it). Drop it, or let a consumer of "
                    "the group redrive it while no query runs"
                )
            time.sleep(LOOK_S)
            self._views.pop(topic)

    def _released(self, topic: str) -> list[int]:
        """Return the version that the group may read, by each broker of the topic."""
        return [
            one.version
            for view in self._topic(topic)
            for one in view.groups
            if one.group == self._cluster.group and view.version
        ]

    def _topic(self, topic: str) -> list[ResizeView]:
        if topic not in self._views:
            self._views[topic] = self._cluster.versions(topic)
        return self._views[topic]

    def _maps(self, topic: str) -> dict[int, KeyMap]:
        texts: dict[int, str] = {}
        for view in self._topic(topic):
            texts |= {past.version: past.map for past in view.past}
            if view.version:
                texts[view.version] = view.map
        return {version: KeyMap.decode(text) for version, text in texts.items()}
