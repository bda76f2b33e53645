"""Which queue a key belongs to: the only place that knows the function and the map.

The function is that of Java's SelectMessageQueueByHash, `abs(key.hashCode() % n)`, so that
producers in other languages put a key into the same queue. Java's remainder has the sign of its
left side, so the absolute value may be taken first; Python's integers have no -2**31 that stays
negative.

The map is the list that the function points into: all queues of a topic, with a version. Each
broker of the topic keeps it as an attribute of the topic, and the name server keeps it in its
key-value config, so that a broker that is down does not change where a key goes. Both hold this
text:

    3/broker-a:0-7/broker-b:0-3        version 3: twelve queues, in this order

Versions begin at 1. Version 0 stands for a topic without a map, whose keys are spread over all
queues of its route. The text has no comma and no equals sign, because they separate RocketMQ's
attributes; names are percent-encoded. What the key map is, and who follows it: decision 12.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from inorder.errors import RemoteProtocolError
from inorder.wire.ids import java_hash

ATTRIBUTE: Final = "inorder.keymap"
"""The attribute of a topic that holds its map at a broker."""

NAMESPACE: Final = "INORDER_KEYMAP"
"""The namespace of the name server's key-value config that holds the maps, by topic."""

QUEUES_MAX: Final = 262_144
"""A map with more queues is refused as damaged."""

_DIGEST_BYTES: Final = 8
_RUN: Final = re.compile(r"([^/:,=]+):([0-9]{1,9})-([0-9]{1,9})")
_VERSION: Final = re.compile(r"0|[1-9][0-9]{0,17}")


def queue_for_key(key: str, queues: int) -> int:
    """Return the index, within the sorted list of all queues of a topic, for a key."""
    if queues < 1:
        raise ValueError(f"a key needs at least one queue, not {queues}")
    return abs(java_hash(key)) % queues


def version_of(text: str) -> int:
    """Return the version of a map's text; 0 if it is not one."""
    version = text.partition("/")[0]
    return int(version) if _VERSION.fullmatch(version) else 0


@lru_cache(maxsize=1024)
def digest_of(text: str) -> str:
    """Return the digest of a map's text, which tells it from other maps of its version."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class KeyMap:
    """A version of a topic's list of (broker name, queue id)."""

    version: int
    queues: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        """Refuse values that the text cannot hold."""
        if self.version < 0:
            raise ValueError(f"no key map has version {self.version}")
        if not self.queues:
            raise ValueError("a key map needs at least one queue")

    @classmethod
    def of(cls, version: int, queues: Iterable[tuple[str, int]]) -> KeyMap:
        """Make a map over queues in any order: it is sorted, as RocketMQ's clients sort."""
        return cls(version, tuple(sorted(set(queues))))

    def queue(self, key: str) -> tuple[str, int]:
        """Return the broker and the queue of a key."""
        return self.queues[queue_for_key(key, len(self.queues))]

    @property
    def digest(self) -> str:
        """Return the digest of this map's text."""
        return digest_of(self.encode())

    def encode(self) -> str:
        """Return the map as text."""
        runs: list[list[int]] = []
        names: list[str] = []
        for broker, index in self.queues:
            if names and names[-1] == broker and runs[-1][1] + 1 == index:
                runs[-1][1] = index
            else:
                names.append(broker)
                runs.append([index, index])
        parts = [
            f"{quote(name, safe='')}:{first}-{last}"
            for name, (first, last) in zip(names, runs, strict=True)
        ]
        return "/".join([str(self.version), *parts])

    @classmethod
    def decode(cls, text: str) -> KeyMap:
        """Read a map.

        Raises:
            RemoteProtocolError: it is not one.
        """
        version, *runs = text.split("/")
        if not _VERSION.fullmatch(version) or not runs:
            raise RemoteProtocolError(f"not a key map: {text[:80]!r}")
        queues: list[tuple[str, int]] = []
        for run in runs:
            found = _RUN.fullmatch(run)
            if found is None:
                raise RemoteProtocolError(f"not a key map: {run[:80]!r}")
            name, first, last = unquote(found[1]), int(found[2]), int(found[3])
            if not 0 < last - first + 1 <= QUEUES_MAX - len(queues):
                raise RemoteProtocolError(f"not a key map: {run[:80]!r} in {text[:80]!r}")
            queues += [(name, index) for index in range(first, last + 1)]
        return cls(int(version), tuple(queues))
