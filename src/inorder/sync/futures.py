"""The futures of a blocking `send_nowait`, and the failures that nobody reads.

One is made for every message, so what only a waiting caller needs is made for that caller: the
lock, the list of callbacks. What only a failed one needs, a finaliser, comes with the failure
(`Unheard`). A future that cannot be part of a cycle is not visited by the collector: the compiled
module makes it so, and it becomes visible with its lock or its error.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from inorder.accelerated import native
from inorder.client.send.failures import Asked, UnseenFailures
from inorder.client.send.queues import compiled
from inorder.errors import SendsFailed
from inorder.logs import get_logger
from inorder.model import SendReceipt

if TYPE_CHECKING:
    from inorder.clock import Clock

log = get_logger(__name__)

LOG_EVERY_MS: Final = 10_000
_PENDING: Final = "PENDING"
_CANCELLED_AND_NOTIFIED: Final = "CANCELLED_AND_NOTIFIED"
_FINISHED: Final = "FINISHED"


class SharedFailures(UnseenFailures):
    """Failures that the loop counts and threads are told of."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.RLock()  # a future may be collected while it is held
        self._logged_ms = -LOG_EVERY_MS
        self._silent = 0
        self._pid = os.getpid()

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
        """Log, at intervals, that a failed future was dropped unread."""
        if self._pid != os.getpid():
            return  # the lock may be the parent's for ever
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


_turn = threading.RLock()
"""Guards the outcome of futures that no caller waits for. A finaliser may run while it is held."""


def _after_fork() -> None:
    global _turn  # noqa: PLW0603 - the parent's loop may have held it
    _turn = threading.RLock()
    if native is not None:
        native.forked()  # what it made before belongs to the parent's loop


os.register_at_fork(after_in_child=_after_fork)


FUTURE_SLOTS: Final = (
    # Those that the compiled module knows by their place.
    "_state", "_result", "_lock", "topic", "key",
    # The others.
    "_done_callbacks", "_exception", "_unheard", "_waiters", "asked", "unheard_at",
)  # fmt: skip


def _show(future: object) -> None:
    """Let the collector visit a future: it may be in a cycle from now on."""
    if native is not None:
        native.track(future)


class SendFuture(Future[SendReceipt]):
    """The future of `send_nowait`: it records whether its outcome was read.

    Without the lock nobody waits, and the outcome is set under `_turn`, or in one step by the
    compiled module; once there is a lock, under that.

    `cancel` succeeds until there is an outcome. A message that is on its way is stored anyway.
    """

    __slots__ = FUTURE_SLOTS

    def __init__(self, unheard: SharedFailures, message: tuple[str, str | None]) -> None:
        self._state = _PENDING
        self._result = self._exception = None
        self._lock: threading.Condition | None = None
        self.topic, self.key = message
        self.asked = False
        self.unheard_at = 0
        self._unheard = unheard

    @property
    def message(self) -> tuple[str, str | None]:
        """The topic and the key."""
        return self.topic, self.key

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        with _turn:
            if self._lock is None:
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                _show(self)
                self._lock = threading.Condition()
            return self._lock

    def done(self) -> bool:
        return self._state != _PENDING

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._goes_on()
        return cancelled

    def _goes_on(self) -> bool:
        """Return whether an outcome counts; of a cancelled one tell those who wait for it."""
        with self._condition:
            told = self._state == _CANCELLED_AND_NOTIFIED
            return not told and self.set_running_or_notify_cancel()

    def set_result(self, result: Any) -> None:
        """Take the receipt, or the values that it is made of."""
        # hot: 0.2 us.
        with _turn:
            if self._lock is None:
                self._result = result
                self._state = _FINISHED
                return
        if self._goes_on():
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        _show(self)
        if exception is not None and self._state == _PENDING:
            self._unheard.failed(self, exception)
            if self.unheard_at:
                self.__class__ = Unheard  # it has the same slots
        if self._goes_on():
            super().set_exception(exception)

    def result(self, timeout: float | None = None) -> SendReceipt:
        # hot: 0.5 us once there is an outcome: nobody needs the lock then.
        found: Any = self._result
        if found is not None and self._state == _FINISHED:
            return SendReceipt(*found) if type(found) is tuple else found
        self.asked = True
        try:
            found = super().result(timeout)
        finally:
            self._was_asked()
        return SendReceipt(*found) if type(found) is tuple else found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.asked = True
        try:
            return super().exception(timeout)
        finally:
            self._was_asked()

    def _get_snapshot(self) -> tuple[bool, bool, SendReceipt | None, BaseException | None]:
        """Return (done, cancelled, result, error): asyncio of newer Pythons copies this."""
        if self._state == _PENDING:
            return False, False, None, None
        if self.cancelled():
            return True, True, None, None
        error = self.exception()
        return True, False, None if error is not None else self.result(), error

    def _was_asked(self) -> None:
        self.asked = False
        if self.unheard_at:
            self._unheard.heard(self)


class Unheard(SendFuture):
    """A future that failed while nobody waited for it."""

    __slots__ = ()

    def __del__(self) -> None:
        if self.unheard_at:
            self._unheard.dropped(self, self._exception)


if compiled is not None:
    compiled.use_futures(SendFuture, FUTURE_SLOTS, _PENDING, _FINISHED)
