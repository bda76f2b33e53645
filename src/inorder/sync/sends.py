"""`send_nowait` for code that blocks: the caller waits for room, and makes the request itself.

A thread can call faster than a broker stores. So it waits here until what has no outcome yet is
below the limits, and is refused at the call if that takes too long: a message that was taken has a
future, and one that was not is never behind the caller's back. Checks and packing are done in the
caller's thread, so that a mistake is raised at the call, and the loop is left for its sockets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from inorder.client.send.failures import Asked, Unheard
from inorder.client.send.rules import Room
from inorder.client.session import Identity, MessageIds
from inorder.errors import SendsFailed
from inorder.logs import get_logger
from inorder.sync.calls import Posted

if TYPE_CHECKING:
    from inorder.clock import Clock
    from inorder.sync.portal import Portal

log = get_logger(__name__)

SLICE_SECONDS: Final = 0.05
"""Who waits looks again after this, woken or not: room may grow slowly, a client be closed."""
LOG_EVERY_MS: Final = 10_000


class SharedRoom(Room):
    """A room that threads come into and the loop lets go of."""

    __slots__ = ("_changed", "_waiting")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        super().__init__(messages_max, bytes_max)
        self._changed = threading.Condition()
        self._waiting = 0

    def enter(self, messages: int, bytes_: int) -> bool:
        with self._changed:
            return super().enter(messages, bytes_)

    def add(self, messages: int, bytes_: int) -> None:
        with self._changed:
            super().add(messages, bytes_)

    def leave(self, messages: int, bytes_: int) -> None:
        with self._changed:
            super().leave(messages, bytes_)
            if self._waiting and self.wide:
                self._changed.notify_all()

    def turn_away(self, messages: int) -> None:  # below 0: they are tried again
        with self._changed:
            super().turn_away(messages)

    def wait(self, seconds: float) -> None:
        """Wait until there is some room, or the time is up."""
        with self._changed:
            if self.full:
                self._waiting += 1
                try:
                    self._changed.wait(min(seconds, SLICE_SECONDS))
                finally:
                    self._waiting -= 1


class SharedUnheard(Unheard):
    """Failures that the loop counts and threads hear of."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.RLock()  # a future may be collected while it is held
        self._logged_ms = -LOG_EVERY_MS
        self._silent = 0

    def failed(self, future: Asked, error: BaseException) -> None:
        with self._lock:
            super().failed(future, error)

    def heard(self, future: Asked) -> None:
        with self._lock:
            super().heard(future)

    def take(self) -> SendsFailed | None:
        with self._lock:
            return super().take()

    def dropped(self, future: Asked, error: BaseException | None) -> None:
        """Nobody will ever ask: say so in the log, now and then."""
        with self._lock:
            if future.unheard_at != self._report:
                return
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._logged_ms < LOG_EVERY_MS:
                self._silent += 1
                return
            self._logged_ms, before, self._silent = now_ms, self._silent, 0
        topic, key = future.message
        log.error(
            "send failed, and nobody asked for its outcome topic=%s key=%s error=%s "
            "(and %d more before)", topic, key, error, before,
        )  # fmt: skip


class SendFuture(Posted):
    """The future of `send_nowait`: it knows whether somebody asks."""

    unheard_at = 0  # also of one whose making Ctrl-C has ended

    def __init__(
        self,
        portal: Portal,
        begin: Callable[..., None],
        unheard: SharedUnheard,
        room: SharedRoom,
        *,
        message: tuple[str, str | None],
        size: int,
    ) -> None:
        super().__init__(portal, begin, ())
        self.asked = False
        self.message = message  # its topic and key
        self._unheard = unheard
        self._room = room
        self._size = size
        self._failure: BaseException | None = None

    def carry(self, *args: Any) -> None:
        """Take along what its beginning needs."""
        self._args = args

    def begin(self, _: asyncio.AbstractEventLoop) -> None:
        if self.cancelled():
            self._portal.posted.discard(self)
            self._room.leave(1, self._size)
            return
        args, self._args = self._args, ()  # a request refers to its future
        try:
            self._begin(self, *args)
        except Exception as error:
            # Whoever has the future gets the error.
            self.set_exception(error)

    def set_exception(self, exception: BaseException | None) -> None:
        if exception is not None and not self.cancelled():
            self._failure = exception
            self._unheard.failed(self, exception)
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> Any:
        self.asked = True
        try:
            return super().result(timeout)
        finally:
            self._was_asked()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.asked = True
        try:
            return super().exception(timeout)
        finally:
            self._was_asked()

    def _was_asked(self) -> None:
        self.asked = False
        if self.unheard_at:
            self._unheard.heard(self)

    def __del__(self) -> None:
        if self.unheard_at and not self._portal.is_forked:
            self._unheard.dropped(self, self._failure)


class SharedIds:
    """Message ids for many threads."""

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._ids: MessageIds | None = None

    def next(self) -> tuple[str, int]:
        """Return an id and the time that is in it."""
        ids, now_ms = self.some(1)
        return ids[0], now_ms

    def some(self, count: int) -> tuple[list[str], int]:
        """Return ids, and the time that is in them."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if self._ids is None:
                self._ids = MessageIds(Identity.of_this_process(), self._clock)
            return self._ids.some(count, now_ms), now_ms


def bytes_of(body: object) -> int:
    """Return how much room a body takes; what is none is refused when the request is made."""
    return len(body) if isinstance(body, bytes) else 0
