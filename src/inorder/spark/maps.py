"""Which version of a topic's key map placed a message, asked of the brokers; and moving its keys.

Asked once in a task, behind the planning of its batch: so whatever the batch holds is known. Rules:
`state/moving.py`.
"""

from __future__ import annotations

from inorder.model import TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.spark.cluster import Cluster
from inorder.spark.state.lines import Keys, Line
from inorder.spark.state.moving import map_at, move, must_move
from inorder.spark.state.versions import Version
from inorder.spark.versionfiles import of_topic
from inorder.wire.bodies.resizing import ResizeView


class Maps:
    """The key maps of the topics of a task."""

    def __init__(self, namesrv: str, group: str, state: str) -> None:
        self._cluster = Cluster(namesrv, group=group)
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
        """Take over keys that came with a new version; return the lines that wait for others."""
        if before is not None and before.map_version >= version:
            return []
        folders = of_topic(self._state, query, queue.topic)
        found = {home: folder.past(batch) for home, folder in folders.items()}
        pasts = {home: past for home, past in found.items() if past is not None}
        if not must_move(before, (past.version for past in pasts.values()), version):
            return []
        return move((queue.broker, queue.index), keys, pasts, self._maps(queue.topic), version)

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
