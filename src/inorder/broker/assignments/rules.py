"""Which queues a member gets that asks the broker, and whether it pulls or pops them.

RocketMQ's brokers know two strategies, AVG and AVG_BY_CIRCLE, over sorted queues and sorted client
ids. A group that pops shares more: with `share` <= 0, or as many as there are other members, each
member pops all queues, named by the queue -1 of each broker. Otherwise a member also gets the
queues of the next `share` members, and no member is without a queue.

`RequestModes` is RocketMQ's `messageRequestMode.json`. Why: decision 54.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from inorder.errors import BrokerError, RemoteProtocolError
from inorder.model import TopicQueue
from inorder.wire import fastjson, shapes
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.requests.assignments import POP, PULL, RequestMode, mode_from_json

MODES_MAX: Final = 100_000
"""Pairs of topic and group with a mode of their own."""
FILE_ITEMS_MAX: Final = 1 << 22


class ModesFull(BrokerError):
    """There are too many modes."""

    code = 1


class RequestModes:
    """Whether groups pull or pop topics."""

    def __init__(self) -> None:
        self._table: dict[str, dict[str, RequestMode]] = {}
        self._count = 0
        self.revision = 0

    def __repr__(self) -> str:
        return f"RequestModes({self._count} modes)"

    def get(self, topic: str, group: str) -> RequestMode | None:
        """Return the mode that was set."""
        return self._table.get(topic, {}).get(group)

    def find(self, topic: str, group: str, *, default: str, share: int) -> RequestMode:
        """Return the mode that holds; a retry topic without one is pulled."""
        found = self.get(topic, group)
        if found is not None:
            return found
        mode = PULL if topic.startswith(RETRY_PREFIX) else default
        return RequestMode(topic, group, mode, share if mode == POP else 0)

    def put(self, mode: RequestMode) -> None:
        """Set a mode. Raises ModesFull."""
        groups = self._table.get(mode.topic, {})
        if mode.group not in groups:
            if self._count >= MODES_MAX:
                raise ModesFull(f"this broker holds {MODES_MAX} request modes already")
            self._count += 1
        self._table.setdefault(mode.topic, {})[mode.group] = mode
        self.revision += 1

    def forget(self, *, group: str = "", topic: str = "") -> bool:
        """Forget the modes of a deleted group or topic; return whether there were any."""
        gone = [
            (name, one)
            for name, groups in self._table.items()
            for one in groups
            if group in ("", one) and topic in ("", name)
        ]
        for name, one in gone:
            del self._table[name][one]
            if not self._table[name]:
                del self._table[name]
        self._count -= len(gone)
        self.revision += bool(gone)
        return bool(gone)

    def prepare(self, count: int) -> bool:
        """Encode nothing in advance: the table is small."""
        return True

    def encode(self) -> bytes:
        """Return the content of `messageRequestMode.json`."""
        return fastjson.dumps(self.to_json(), pretty=True)

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's object."""
        return {
            "messageRequestModeMap": {
                topic: {group: mode.to_json() for group, mode in groups.items()}
                for topic, groups in self._table.items()
            }
        }

    def decode(self, data: bytes) -> None:
        """Load the content of the file; RemoteProtocolError if it is malformed."""
        content = shapes.as_object(fastjson.loads(data, items_max=FILE_ITEMS_MAX), "modes")
        table = shapes.as_object(content.get("messageRequestModeMap"), "messageRequestModeMap")
        found: dict[str, dict[str, RequestMode]] = {}
        for topic, groups in table.items():
            for group, mode in shapes.as_object(groups, str(topic)).items():
                found.setdefault(str(topic), {})[str(group)] = mode_from_json(mode)
        count = sum(map(len, found.values()))
        if count > MODES_MAX:
            raise RemoteProtocolError(f"{count} request modes are more than {MODES_MAX}")
        self._table, self._count = found, count


def _range(client_id: str, queues: Sequence[TopicQueue], ids: Sequence[str]) -> list[TopicQueue]:
    """Return a contiguous range; the first members get one more."""
    index = ids.index(client_id)
    each, more = divmod(len(queues), len(ids))
    start = index * each + min(index, more)
    return list(queues[start : start + each + (index < more)])


def _circle(client_id: str, queues: Sequence[TopicQueue], ids: Sequence[str]) -> list[TopicQueue]:
    """Return every n-th queue."""
    return list(queues[ids.index(client_id) :: len(ids)])


_STRATEGIES: Final = {"AVG": _range, "AVG_BY_CIRCLE": _circle}


def assign(
    mode: RequestMode,
    strategy: str,
    client_id: str,
    queues: Sequence[TopicQueue],
    client_ids: Sequence[str],
) -> list[TopicQueue] | None:
    """Return the queues of a member; None: RocketMQ answers nothing, the member keeps its own."""
    allocate = _STRATEGIES.get(strategy)
    if allocate is None or not queues or not client_ids or not client_id.strip():
        return None
    queues = sorted(queues)
    ids = sorted(client_ids, key=lambda one: one.encode("utf-16-be", "surrogatepass"))
    if mode.mode == POP and (mode.share <= 0 or mode.share >= len(ids) - 1):
        return list(dict.fromkeys(TopicQueue(one.topic, one.broker, -1) for one in queues))
    if client_id not in ids:
        return []
    if mode.mode != POP:
        return allocate(client_id, queues, ids)
    index = ids.index(client_id)
    if len(ids) > len(queues):  # every member gets one
        return [queues[index % len(queues)]]
    sharing = (ids[(index + step) % len(ids)] for step in range(mode.share + 1))
    return list(dict.fromkeys(q for one in sharing for q in allocate(one, queues, ids)))
