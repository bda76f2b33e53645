"""What was read ahead of one queue, and how far the reader is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from inorder.model import ReceivedMessage


class _Chunk:
    """The messages of one pull, and where it ended: further on if the last ones were filtered."""

    __slots__ = ("at", "messages", "next_offset")

    def __init__(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        self.messages = messages
        self.next_offset = next_offset
        self.at = 0


class Prefetched:
    """Messages in order. `position` is what the reader gets next, `fetch_offset` what we pull."""

    __slots__ = ("_chunks", "fetch_offset", "messages", "position", "size_bytes")

    def __init__(self, offset: int) -> None:
        self.position = offset
        self.fetch_offset = offset
        self.messages = 0
        self.size_bytes = 0
        self._chunks: deque[_Chunk] = deque()

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Append what a pull from `fetch_offset` found."""
        self.fetch_offset = next_offset
        if messages:
            self._chunks.append(_Chunk(messages, next_offset))
            self.messages += len(messages)
            self.size_bytes += sum(len(message.body) for message in messages)
        elif self._chunks:
            self._chunks[-1].next_offset = next_offset
        else:
            self.position = next_offset

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Return up to `limit` messages and move on behind them."""
        taken: list[ReceivedMessage] = []
        while self._chunks and len(taken) < limit:
            chunk = self._chunks[0]
            found = chunk.messages[chunk.at : chunk.at + limit - len(taken)]
            taken += found
            chunk.at += len(found)
            if chunk.at == len(chunk.messages):
                self._chunks.popleft()
                self.position = chunk.next_offset
            else:
                self.position = found[-1].offset + 1
        self.messages -= len(taken)
        self.size_bytes -= sum(len(message.body) for message in taken)
        return taken

    def __repr__(self) -> str:
        return f"Prefetched(position={self.position}, messages={self.messages})"
