"""The short way for sends: no future, no task, no command for each.

`post` numbers a send; whoever posted it writes its frame with that number and gets the answer in
`answered`, straight from `data_received`. Watchers are told when the connection is lost, and when
there is room again after it was full.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from inorder.wire.frame import RawFrame
from inorder.wire.header import FLAG_RESPONSE, JSON
from inorder.wire.requests.sendframes import SendAnswer, decode_answer

if TYPE_CHECKING:
    from inorder.config import NetConfig
    from inorder.net.calls import Calls
    from inorder.net.connection import Connection


class Posted(Protocol):
    """A send on its way."""

    def answered(self, answer: SendAnswer) -> None:
        """Take the answer. It never comes if the connection is lost."""
        ...


class Watcher(Protocol):
    """Somebody who posts."""

    def connection_lost(self, connection: Connection, reason: str) -> None:
        """Learn that nothing more comes of what was posted."""
        ...

    def connection_has_room(self, connection: Connection) -> None:
        """Learn that one may post again."""
        ...


class Posting:
    """The part of a Connection that serves those who post."""

    _calls: Calls
    _config: NetConfig
    _reason: str | None
    _writable: asyncio.Future[None] | None
    _requests_sent: int
    _responses_received: int

    def __init__(self) -> None:
        self._posts: dict[int, Posted] = {}
        self._watchers: dict[Watcher, None] = {}
        self._was_full = False

    def watch(self, watcher: Watcher) -> None:
        """Tell somebody of the connection's fate."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Tell somebody nothing more."""
        self._watchers.pop(watcher, None)

    @property
    def full(self) -> bool:
        """Tell whether nothing should be posted now; watchers learn when that is over."""
        if self._writable is None and len(self._posts) < self._config.outstanding_max:
            return False
        self._was_full = True
        return True

    def next_id(self) -> int:
        """Return an id that nothing in flight has."""
        request_id = self._calls.next_id()
        while request_id in self._posts:
            request_id = self._calls.next_id()
        return request_id

    def post(self, posted: Posted) -> int:
        """Number a send; the caller writes its frame with the id that is returned."""
        request_id = self.next_id()
        self._posts[request_id] = posted
        self._requests_sent += 1
        return request_id

    def _receive_posted(self, frame: RawFrame) -> bool:
        """Take an answer to something posted; False if the frame is anything else."""
        # hot: 0.8 us, without what `answered` does.
        answer = decode_answer(frame[1]) if frame[0] == JSON else None
        if answer is None or not answer.flag & FLAG_RESPONSE:
            return False
        posted = self._posts.pop(answer.opaque, None)
        if posted is None:
            return False
        self._responses_received += 1
        posted.answered(answer)
        return True

    def _tell_room(self) -> None:
        if not self.full:
            self._was_full = False
            for watcher in list(self._watchers):
                watcher.connection_has_room(cast("Connection", self))

    def _end_posts(self) -> None:
        """Nothing more is read: tell those who posted, also if the last bytes leave slowly."""
        self._posts.clear()
        watchers, self._watchers = list(self._watchers), {}
        for watcher in watchers:
            watcher.connection_lost(cast("Connection", self), self._reason or "")
