"""What a thread hands to the portal's loop, and how it gets the outcome back."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from inorder.errors import AlreadyClosed

if TYPE_CHECKING:
    from inorder.sync.portal import Portal

_SIGNAL_SECONDS = 0.5


class Work(Protocol):
    """What lies in the inbox."""

    def begin(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Call:
    """A call that somebody waits for. A lock is the fastest thing to wait on."""

    __slots__ = ("_args", "_cancelled", "_error", "_finished", "_fn", "_lock", "_result", "_task")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._fn = fn
        self._args = args
        self._result: Any = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._finished = False
        self._cancelled = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._cancelled:
            return
        try:
            result = self._fn(*self._args)
        except BaseException as error:
            # Whatever it is belongs to the caller, not to the loop.
            self._finish(None, error)
            return
        if inspect.isawaitable(result):
            self._task = loop.create_task(self._await(result), name="inorder call")
            self._task.add_done_callback(self._ended)
        else:
            self._finish(result, None)

    async def _await(self, awaitable: Any) -> None:
        try:
            result = await awaitable
        except BaseException as error:
            # As above; a cancelled call ends here, and so does its task.
            self._finish(None, error)
        else:
            self._finish(result, None)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._finish(None, asyncio.CancelledError())  # it was cancelled before it began

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if not self._finished:
            self._finished = True
            self._result, self._error = result, error
            self._lock.release()

    def fail(self, error: Exception) -> None:
        self._finish(None, error)

    def wait(self, timeout: float | None) -> bool:
        """Wait for the outcome; return whether it came in time.

        In slices: a signal that arrives just before the thread blocks, or that another thread
        gets, does not end the wait of a lock.
        """
        left = float("inf") if timeout is None else timeout
        while not self._lock.acquire(timeout=min(left, _SIGNAL_SECONDS)):
            left -= _SIGNAL_SECONDS
            if left <= 0:
                return False
        return True

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def outcome(self) -> Any:
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            if isinstance(error, asyncio.CancelledError):
                raise AlreadyClosed("the client was closed while the call waited") from None
            raise error
        finally:
            del error  # its traceback refers to this frame


class Waiter:
    """A caller that waits for an outcome; to whoever brings it, it looks like a future."""

    __slots__ = ("_args", "_begin", "_error", "_lock", "_portal", "_result", "gone")

    def __init__(self, portal: Portal, begin: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._portal = portal
        self._begin = begin
        self._args = args
        self._result: Any = None
        self._error: BaseException | None = None
        self.gone = False  # interrupted, or told

    def begin(self, _: asyncio.AbstractEventLoop) -> None:
        if self.gone:
            return
        try:
            self._begin(self, *self._args)
        except BaseException as error:
            # Whatever it is belongs to the caller, not to the loop.
            self.set_exception(error)

    def done(self) -> bool:
        return self.gone

    def set_result(self, result: Any) -> None:
        self._result = result
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._tell()

    def _tell(self) -> None:
        self.gone = True
        self._portal.posted.discard(self)
        self._lock.release()

    def fail(self, error: Exception) -> None:
        if not self.gone:
            self.set_exception(error)

    def wait(self) -> None:
        """Wait for the outcome; in slices, see `Call.wait`."""
        while not self._lock.acquire(timeout=_SIGNAL_SECONDS):
            pass

    def outcome(self) -> Any:
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


class Posted(Future[Any]):
    """A future that may be brought its outcome without asking whether it was cancelled."""

    def __init__(self, portal: Portal, begin: Callable[..., None], args: tuple[Any, ...]) -> None:
        super().__init__()
        self._portal = portal
        self._begin = begin
        self._args = args

    def begin(self, _: asyncio.AbstractEventLoop) -> None:
        if self.cancelled():
            self._portal.posted.discard(self)
            return
        try:
            self._begin(self, *self._args)
        except Exception as error:
            # Whoever has the future gets the error.
            self.set_exception(error)

    def set_result(self, result: Any) -> None:
        self._portal.posted.discard(self)
        if self.set_running_or_notify_cancel():
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        self._portal.posted.discard(self)
        if self.set_running_or_notify_cancel():
            super().set_exception(exception)

    def fail(self, error: Exception) -> None:
        if not self.done():
            self.set_exception(error)


class Submitted:
    """A call with a future."""

    __slots__ = ("_args", "_fn", "future")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.future: Future[Any] = Future()
        self._fn = fn
        self._args = args

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.future.cancelled():
            return
        try:
            inner = asyncio.ensure_future(self._fn(*self._args), loop=loop)
        except Exception as error:
            # Whoever has the future gets the error.
            self.fail(error)
            return
        inner.add_done_callback(self._copy)
        self.future.add_done_callback(
            lambda done: (
                loop.call_soon_threadsafe(inner.cancel, context=Context())
                if done.cancelled()
                else None
            )
        )

    def _copy(self, inner: asyncio.Future[Any]) -> None:
        if inner.cancelled():
            self.future.cancel()
            self.future.set_running_or_notify_cancel()
            return
        error = inner.exception()
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(inner.result())

    def fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
