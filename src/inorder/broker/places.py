"""Where messages of a mapped topic may be put: by which version, in which queue, when it is due.

Asked on the way of a send (`broker/sends/service.py` keeps the answer), and for each delayed message of a topic that
was resized.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from inorder.broker.state import resizing as rules
from inorder.errors import KeyMapChanged, NoPermission, RemoteProtocolError
from inorder.model import TopicConfig
from inorder.ordering import keymap
from inorder.ordering.keymap import KeyMap
from inorder.wire.properties import get

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.resizing import Resizing
    from inorder.model import TopicConfig

NO_VERSION: Final = ""
"""What no send carries as the version of its map."""
NO_DIGEST: Final = "-"
"""What no send carries as the digest of its map."""


class Places:
    """The places of messages."""

    def __init__(self, broker: Broker, resizing: Resizing) -> None:
        self._broker = broker
        self._resizing = resizing

    def send_version(self, topic: str) -> str:
        """Return the version that sends must carry, as text; one that none has if none is taken."""
        config = self._broker.topics.get(topic)
        if config is None:
            return "0"
        if self._resizing.closing(topic) is not None:
            return NO_VERSION
        return str(keymap.version_of(map_text(config)))

    def send_digest(self, topic: str) -> str:
        """Return the digest that keyed sends of ours must carry; empty: the topic has no map."""
        config = self._broker.topics.get(topic)
        if config is not None and self._resizing.closing(topic) is not None:
            return NO_DIGEST
        text = "" if config is None else map_text(config)
        return _digest(text) if keymap.version_of(text) else ""

    def check_send(self, topic: str, version: str | None, digest: str | None = None) -> None:
        """Refuse a send by another map than the one that is open; None: the send has none."""
        config = self._broker.topics.get(topic)
        text = "" if config is None else map_text(config)
        current = keymap.version_of(text)
        wanted = self.send_version(topic)
        if wanted != NO_VERSION and (version or "0") == wanted:
            if digest is None or digest == self.send_digest(topic):
                return
            remark = f"the key map of topic[{topic}] is another one of version {current}"
        elif wanted == NO_VERSION and version == str(current):
            remark = f"topic[{topic}] is being resized, version {current} of its key map is closed"
        elif version is None:
            remark = (
                f"topic[{topic}] has a key map, and the queue of this key was chosen without it"
            )
        else:
            remark = f"the key map of topic[{topic}] has version {current}, not {version[:20]}"
        raise KeyMapChanged(remark, version=current, map=text)

    def check_queue(self, topic: str, queue_id: int, *, ours: bool) -> None:
        """Refuse a send to a queue that a resize takes away; our clients learn the map from it.

        Also one to a topic that is there for its first map, and has none yet.
        """
        if self._resizing.is_making(topic):
            remark = f"topic[{topic}] is being made, and its key map is not at all its brokers yet"
        elif self._is_closed(topic, queue_id):
            remark = (
                f"queue {queue_id} of topic[{topic}] is closed for writing, a resize takes it away"
            )
        else:
            return
        if not ours:
            raise NoPermission(remark)
        text = map_text(self._broker.topics.get(topic) or TopicConfig(topic))
        raise KeyMapChanged(remark, version=keymap.version_of(text), map=text)

    def _is_closed(self, topic: str, queue_id: int) -> bool:
        plan = self._resizing.closing(topic)
        if plan is not None:
            return queue_id >= rules.counts_of(plan.map).get(self._broker.config.name, 0)
        config = self._broker.topics.get(topic)
        return config is not None and bool(map_text(config)) and queue_id >= config.write_queues

    def home(self, topic: str, queue_id: int, properties: bytes) -> tuple[str, int]:
        """Return the broker and queue where a delayed message belongs now that it is due.

        What was placed by its key follows the newest map; what a resize took away from under other
        messages goes to a queue that is left.
        """
        name = self._broker.config.name
        plan = self._resizing.closing(topic)
        if topic not in self._broker.topics or (
            plan is None and topic not in self._resizing.topics
        ):
            return name, queue_id
        now = self._resizing.versions(topic)
        if plan is None and not now.map:
            return name, queue_id
        newest = _decode(now.map if plan is None else plan.map)
        key = get(properties, b"__SHARDINGKEY")
        if key is not None:
            text = key.decode("utf-8", "replace")
            maps = [text for text in (now.map, *(one.map for one in now.past)) if text]
            if plan is not None and plan.base:
                maps.append(plan.base)
            if any(_decode(one).queue(text) == (name, queue_id) for one in maps):
                return newest.queue(text)
        count = sum(broker == name for broker, _ in newest.queues)
        return name, queue_id if queue_id < count or not count else queue_id % count


@lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    try:
        return KeyMap.decode(text).digest
    except RemoteProtocolError:  # set by hand
        return keymap.digest_of(text)


@lru_cache(maxsize=256)
def _decode(text: str) -> KeyMap:
    return KeyMap.decode(text)


def map_text(config: TopicConfig) -> str:
    """Return the key map of a topic as text, empty if it has none."""
    return config.attributes.get(keymap.ATTRIBUTE, "")
