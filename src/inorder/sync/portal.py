"""The portal: one event loop in a thread, shared by all clients of code that blocks.

    caller's thread                     the portal's thread
    call(fn, …) ── inbox, one wake-up ──> fn(…) runs on the loop
    waits on a lock <── released ──────── its result or error

    Call, Waiter, Posted, Submitted   work in the inbox, and how its outcome reaches the caller
    Portal, lease                     the loop; one for all clients of the process
    Ending                            closing an object that several threads close at once
    Facade, blocking, on_loop         blocking methods made from those of the async client

The thread starts with the first client and ends with the last one. The caller may have a loop of
its own, as in a notebook. Many calls share a wake-up, so the loop wakes in an empty context and no
call inherits another's context variables.

After a fork the child has no portal thread. Objects from before the fork raise UsageError there;
new objects get a new portal.

If a program ends without closing its objects, the portal closes them: consumers commit, then
producers wait for the outcomes of their sends. The log, which goes to stderr by default, names the
sends that failed or had no outcome in time. Why the blocking client stands on the async one:
decision 27.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextvars import Context
from functools import partial, wraps
from threading import get_ident
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from inorder.errors import AlreadyClosed, InorderError, RequestTimeout, UsageError
from inorder.logs import get_logger

log = get_logger(__name__)


_SIGNAL_SECONDS = 0.5


class Work(Protocol):
    """Work in the inbox. `begin` returns True if it has more to do before any other work begins."""

    def begin(self, loop: asyncio.AbstractEventLoop) -> bool | None: ...

    def fail(self, error: Exception) -> None: ...


class Outbox(Work, Protocol):
    """Messages that have a future each; its length is how many have no outcome."""

    def __len__(self) -> int: ...
    def __hash__(self) -> int: ...


class Call:
    """A call whose caller waits for the outcome, on a lock: nothing wakes a thread faster."""

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
            # Any exception is the caller's, not the loop's.
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
    """A caller that waits for an outcome. The code that brings the outcome sees a future."""

    __slots__ = ("_args", "_begin", "_error", "_lock", "_portal", "_result", "gone")

    def __init__(self, portal: Portal, begin: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._portal = portal
        self._begin = begin
        self._args = args
        self._result: Any = None
        self._error: BaseException | None = None
        self.gone = False  # the caller was interrupted, or has its outcome

    def begin(self, _: asyncio.AbstractEventLoop) -> None:
        if self.gone:
            return
        try:
            self._begin(self, *self._args)
        except BaseException as error:
            # Any exception is the caller's, not the loop's.
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
    """A future whose outcome may be set without a check whether it was cancelled."""

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
            # The future carries the error to its owner.
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
            # The future carries the error to its owner.
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


T = TypeVar("T")
P = ParamSpec("P")

_EXIT_SECONDS = 1.0
"""How long the end of a program waits for handlers, and for the loop to end."""
_OUTCOME_SECONDS = 40.0
"""How long the end of a program waits for outcomes; each send has a shorter limit of its own,
unless `send_timeout_ms` is raised."""
_RESOLVE_SECONDS = 2.0
_BEGUN_MAX = 256


class AsyncCloseable(Protocol):
    """An object on the loop that the portal closes at the end of the program, if it is open."""

    async def close(self) -> None: ...


class Portal:
    """A loop in a thread. `lease` returns the shared one; a portal of your own must be stopped."""

    def __init__(self, name: str = "inorder") -> None:
        self.users = 0
        self._pid = os.getpid()
        self._loop = _new_loop()
        self._inbox: deque[Work] = deque()
        self.posted: set[Waiter | Posted] = set()  # accepted, and without an outcome
        self.outboxes: set[Outbox] = set()  # of open producers
        self._open: weakref.WeakKeyDictionary[AsyncCloseable, bool] = weakref.WeakKeyDictionary()
        self._woken = False
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        self._ident = self._thread.ident

    @overload
    def call(
        self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout: float | None = None
    ) -> T: ...

    @overload
    def call(self, fn: Callable[..., T], *args: Any, timeout: float | None = None) -> T: ...

    def call(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run a function on the loop, await its result if it is awaitable, and return the result.

        Ctrl-C, and `timeout` seconds if given, end the wait and cancel the call.
        """
        call = Call(fn, args)
        try:
            self.put(call)
            done = call.wait(timeout)
        except InorderError:
            raise  # the portal did not accept the call
        except BaseException:
            self._cancel(call)
            raise
        if not done:
            self._cancel(call)
            raise RequestTimeout(f"no result in {timeout} s; the call was given up")
        return call.outcome()

    def submit(self, fn: Callable[..., asyncio.Future[T]], *args: Any) -> Future[T]:
        """Run a function on the loop and return the future of its result."""
        submitted = Submitted(fn, args)
        self.put(submitted)
        return submitted.future

    def post(self, begin: Callable[..., object], *args: Any) -> Any:
        """Run `begin(waiter, …)` on the loop and return the result that it sets on the waiter.

        For frequent calls: it costs two switches of threads, and no task and no future.
        """
        waiter = Waiter(self, begin, args)
        self.posted.add(waiter)
        try:
            self.put(waiter)
            waiter.wait()
        except BaseException:
            waiter.gone = True  # the portal did not accept it, or the caller was interrupted
            self.posted.discard(waiter)
            raise
        return waiter.outcome()

    def post_nowait(self, begin: Callable[..., None], *args: Any) -> Future[Any]:
        """Run `begin(future, …)` on the loop and return the future."""
        posted = Posted(self, begin, args)
        self.hand_over(posted)
        return posted

    def hand_over(self, posted: Posted) -> None:
        """Let a future begin on the loop."""
        self.posted.add(posted)
        try:
            self.put(posted)
        except BaseException:
            self.posted.discard(posted)
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Return the items of an async iterator, one call for each."""
        try:
            while True:
                try:
                    item: T = self.call(_next, source)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if isinstance(source, AsyncGenerator):
                with contextlib.suppress(AlreadyClosed):  # then it has ended with the loop
                    self.call(_close, source)

    def poke(self, fn: Callable[..., Any], *args: Any) -> None:
        """Run a function on the loop without waiting; a signal handler may call this."""
        with contextlib.suppress(AlreadyClosed):
            self.put(Call(fn, args))

    @property
    def is_forked(self) -> bool:
        """Tell whether this is a child of the process that has the loop."""
        return self._pid != os.getpid()

    @property
    def is_here(self) -> bool:
        """Tell whether this is the loop's own thread."""
        return threading.get_ident() == self._thread.ident and not self.is_forked

    def finish(self, close: Callable[[], Any]) -> None:
        """Run the last function of an object and release its lease; in a forked child, nothing."""
        if self.is_forked:
            return
        try:
            self.call(close)
        finally:
            self.release()

    def release(self) -> None:
        """Give a lease back; with the last one the thread ends."""
        if _leases.give_back(self):
            self.stop()

    def stop(self, timeout: float | None = None) -> None:
        """End the loop and its thread; running calls are cancelled."""
        if self._stopped or self._pid != os.getpid():
            return
        with contextlib.suppress(RuntimeError):  # closed in this moment
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)

    def close_at_exit(self, opened: AsyncCloseable, *, handles: bool = False) -> None:
        """Close an object at the end of the program, if it is open; those with handlers first."""
        self._open[opened] = handles

    def end_with_program(self) -> None:
        """Close the open objects, log the messages without an outcome, and end the loop."""
        found = sorted(self._open.items(), key=lambda item: not item[1])
        left = 0
        for opened, handles in found:
            options = {"timeout": _EXIT_SECONDS} if handles else {}
            closing = Call(partial(opened.close, **options), ())
            try:
                self.put(closing)
                if closing.wait(_OUTCOME_SECONDS):
                    closing.outcome()
                    continue
                left = max(left, self._without_outcome)  # giving up ends them
                self._cancel(closing)
                raise RequestTimeout(f"no result in {_OUTCOME_SECONDS} s; the call was given up")
            except InorderError as error:
                log.error(
                    "the program ended without closing a %s: %s", type(opened).__name__, error
                )
        left = max(left, self._without_outcome)
        if left:
            log.error(
                "the program ended before %d messages had an outcome: they may be stored or lost; "
                "call flush() or close() before the end", left,
            )  # fmt: skip
        self.stop(_EXIT_SECONDS)

    @property
    def _without_outcome(self) -> int:
        """The number of messages that the loop has and whose callers know nothing yet."""
        return max(len(self.posted), sum(map(len, self.outboxes)))

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "running"
        return f"Portal({self._thread.name!r}, {state}, users={self.users})"

    # From the caller's thread to the loop's.

    def check_thread(self) -> None:
        """Refuse a call that can have no outcome: in a forked child, or from the loop itself."""
        # hot: 0.05 us; to ask the system for the process would take 0.2 us.
        if self._pid == _leases.pid and self._ident != get_ident():
            return
        if self._pid != _leases.pid:
            raise UsageError(
                f"this object was made in process {self._pid}, before the fork; "
                "make a new one in this process"
            )
        raise UsageError(
            "this call would block the client's own event loop; hooks and callbacks must not "
            "call the blocking client (use inorder.aio there)"
        )

    def put(self, work: Work) -> None:
        """Let work begin on the loop."""
        self.check_thread()
        self._inbox.append(work)
        if self._stopped:
            raise AlreadyClosed("the client was closed; make a new one")
        if not self._woken:  # many calls at a time share a wake-up
            try:
                self._woken = True
                self._loop.call_soon_threadsafe(self._drain, context=Context())
            except RuntimeError:
                raise AlreadyClosed("the client was closed; make a new one") from None
            except BaseException:
                self._woken = False  # Ctrl-C in between: the next call must wake the loop
                raise

    def _cancel(self, call: Call) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call.cancel, context=Context())

    # In the loop's thread.

    def _drain(self) -> None:
        """Begin the work of the inbox, a part at a time, so that sockets are served in between."""
        self._woken = False
        inbox = self._inbox
        for _ in range(min(len(inbox), _BEGUN_MAX)):
            work = inbox.popleft()
            if work.begin(self._loop):
                inbox.appendleft(work)
                break
        if inbox and not self._woken:
            self._woken = True
            self._loop.call_soon(self._drain, context=Context())

    def _main(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            self._wind_up()
        finally:
            self._stopped = True
            while self._inbox:
                self._inbox.popleft().fail(AlreadyClosed("the client was closed meanwhile"))
            ended = AlreadyClosed("the client was closed while the call waited")
            for one in (*self.posted, *self.outboxes):
                one.fail(ended)
            asyncio.set_event_loop(None)
            loop.close()

    def _wind_up(self) -> None:
        loop = self._loop
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        # A slow name resolution must not delay the end of the program.
        with contextlib.suppress(TimeoutError):
            ending = asyncio.wait_for(loop.shutdown_default_executor(), _RESOLVE_SECONDS)
            loop.run_until_complete(ending)


class _Leases:
    """The portal that the clients of this process share, and its number of users."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._portal: Portal | None = None
        self._before_fork: list[Portal] = []

    def take(self) -> Portal:
        with self._lock:
            if self._portal is None:
                self._portal = Portal()
                self._end_in_child()
            self._portal.users += 1
            return self._portal

    def give_back(self, portal: Portal) -> bool:
        """Return whether this was the last user."""
        with self._lock:
            portal.users -= 1
            if portal.users:
                return False
            if self._portal is portal:
                self._portal = None
            return True

    def after_fork(self) -> None:
        """Forget the parent's portal, but keep it: to close it would disturb the parent's loop."""
        self.pid = os.getpid()
        self._lock = threading.Lock()
        if self._portal is not None:
            self._before_fork.append(self._portal)
            self._portal = None

    def at_exit(self) -> None:
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.end_with_program()

    def _end_in_child(self) -> None:
        """Register `at_exit` with multiprocessing: its children do not call atexit's functions."""
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self.at_exit, exitpriority=100)


_leases = _Leases()
os.register_at_fork(after_in_child=_leases.after_fork)
atexit.register(_leases.at_exit)


def lease(opened: AsyncCloseable | None = None, *, handles: bool = False) -> Portal:
    """Return the portal of this process, started if nobody uses it yet; `release` it once.

    The portal closes `opened` at the end of the program, with `handles` before others.
    """
    portal = _leases.take()
    if opened is not None:
        portal.close_at_exit(opened, handles=handles)
    return portal


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop, or asyncio's where the platform has no uvloop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Ending:
    """Closes an object for several threads, and releases its portal after the last of them.

    Each thread's `close` runs on the loop and returns when the object is closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._over = False

    def close(self, portal: Portal, close: Callable[[], Any]) -> None:
        """Close the object; do nothing in a forked child, or if it is closed."""
        if portal.is_forked:
            return
        with self._lock:
            if self._over:
                return
            self._waiting += 1
        try:
            portal.call(close)
        finally:
            with self._lock:
                self._waiting -= 1
                last = self._over = self._waiting == 0
            if last:
                portal.release()


class Served(Protocol):
    """An object of the blocking client: its async counterpart lives on the loop of a portal."""

    _async: Any

    def _running(self) -> Portal: ...


class Closeable:
    """A blocking client that its user closes; Python warns about one that is forgotten."""

    _closed = True
    """A client counts as open from the end of its constructor on."""

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)


class Facade:
    """Blocking methods over one object of the async client; `blocking` makes each of them."""

    def __init__(self, portal: Portal, counterpart: Any) -> None:
        self._portal = portal
        self._async = counterpart

    def _running(self) -> Portal:
        return self._portal


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking counterpart of an async method: same name, signature and docstring."""
    return _called_on_loop(method)


def on_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the counterpart of a plain method, which only the loop's thread may run."""
    return _called_on_loop(method)


def _called_on_loop(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Served, /, *args: Any, **kwargs: Any) -> Any:
        return self._running().call(partial(method, self._async, *args, **kwargs))

    return call
