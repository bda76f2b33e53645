"""The versions of all topics at one broker (`resizing.py` has the rules of one), and their file.

A topic of which nothing is written has what its attribute says. Of deleted ones the last version is
remembered: a new topic of the name begins above it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from inorder.broker.state.resizing import Versions
from inorder.errors import RemoteProtocolError

GONE_MAX: Final = 100_000
"""Deleted names whose last version is remembered one by one."""


class _File(msgspec.Struct):
    topics: dict[str, Versions] = {}
    gone: dict[str, int] = {}
    floor: int = 0


class Resizes:
    """The topics of which more is known than the map in their attribute."""

    def __init__(self) -> None:
        self.topics: dict[str, Versions] = {}
        self._gone: dict[str, int] = {}
        self._floor = 0

    def __repr__(self) -> str:
        return f"Resizes({len(self.topics)} topics, {len(self._gone)} deleted)"

    def of(self, topic: str, version: int, text: str) -> Versions:
        """Return a topic's versions; `version` and `text` are those of its attribute."""
        found = self.topics.get(topic)
        if found is None or found.version < version:
            return Versions(version, text)
        return found

    def last(self, topic: str) -> int:
        """Return the highest version that a deleted topic of this name had."""
        return self._gone.get(topic, self._floor)

    def delete(self, topic: str, version: int) -> None:
        """Forget a topic, but not its last version: a new topic of this name begins above it.

        Of too many names the oldest are forgotten, and every new name then begins above theirs.
        """
        self.topics.pop(topic, None)
        if version > self.last(topic):
            self._gone.pop(topic, None)
            self._gone[topic] = version
        while len(self._gone) > GONE_MAX:
            self._floor = max(self._floor, self._gone.pop(next(iter(self._gone))))

    def encode(self) -> bytes:
        """Return the content of the file."""
        return msgspec.json.encode(_File(self.topics, self._gone, self._floor))

    def encode_with(self, topic: str, versions: Versions) -> bytes:
        """Return the content of the file as it will be."""
        topics = {**self.topics, topic: versions}
        return msgspec.json.encode(_File(topics, self._gone, self._floor))

    def decode(self, data: bytes) -> None:
        """Take over the content of the file; RemoteProtocolError if it is not that."""
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not the versions of topics: {error}") from None
        self.topics, self._gone, self._floor = found.topics, found.gone, found.floor
