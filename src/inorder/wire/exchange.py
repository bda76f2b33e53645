"""Requests that wait for their response: request ids and deadlines, without sockets.

Each side of a connection numbers its own requests, so equal ids in opposite directions do not
clash. The caller opens an entry with a token, any value that it wants back. The entry leaves the
table once: by its response, by its deadline, by cancellation or when the connection is lost.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from inorder.errors import TooManyOutstanding

Token = TypeVar("Token")

REQUEST_ID_MAX = 0x7FFFFFFF


class Exchange(Generic[Token]):
    """The outstanding requests of one side of one connection."""

    __slots__ = ("_last_id", "_outstanding", "_outstanding_max", "next_deadline_ms")

    def __init__(self, outstanding_max: int) -> None:
        self._outstanding_max = outstanding_max
        self._outstanding: dict[int, tuple[Token, int]] = {}
        self._last_id = 0
        self.next_deadline_ms: int | None = None
        """No deadline is earlier than this; it may be too early, never too late."""

    def next_id(self) -> int:
        """Return an id that no outstanding request has; never 0, which some peers take as none."""
        request_id = self._last_id
        while True:
            request_id = request_id + 1 if request_id < REQUEST_ID_MAX else 1
            if request_id not in self._outstanding:
                self._last_id = request_id
                return request_id

    def open(self, token: Token, deadline_ms: int) -> int:
        """Register a request and return its id. Raises TooManyOutstanding at the limit."""
        if len(self._outstanding) >= self._outstanding_max:
            raise TooManyOutstanding(
                f"{len(self._outstanding)} requests wait for an answer on this connection; "
                "send fewer at a time or raise outstanding_max"
            )
        request_id = self.next_id()
        self._outstanding[request_id] = (token, deadline_ms)
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms
        return request_id

    def take(self, request_id: int) -> Token | None:
        """Remove and return a request's token; None if unknown: late, cancelled or a stray."""
        found = self._outstanding.pop(request_id, None)
        return None if found is None else found[0]

    def expire(self, now_ms: int) -> list[Token]:
        """Remove and return the tokens whose deadline is reached, in order of their requests."""
        outstanding = self._outstanding
        expired = [request_id for request_id, (_, at_ms) in outstanding.items() if at_ms <= now_ms]
        tokens = [outstanding.pop(request_id)[0] for request_id in expired]
        self.next_deadline_ms = min((at_ms for _, at_ms in outstanding.values()), default=None)
        return tokens

    def drain(self) -> list[Token]:
        """Remove and return all tokens: the connection is gone."""
        tokens = [token for token, _ in self._outstanding.values()]
        self._outstanding.clear()
        self.next_deadline_ms = None
        return tokens

    def __len__(self) -> int:
        return len(self._outstanding)

    def __repr__(self) -> str:
        return f"Exchange(outstanding={len(self)}/{self._outstanding_max}, last_id={self._last_id})"
