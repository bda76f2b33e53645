"""One event loop in a thread of its own, for all clients of code that blocks.

    caller's thread                     the portal's thread
    call(fn, …) ── inbox, one wake-up ──> fn(…) runs on the loop
    waits on a lock <── released ──────── its result or error

The thread starts with the first client and ends with the last one. It is no matter whether the
caller has a loop of its own: a notebook, a pytest, a worker thread are all the same to it. The loop
is woken in an empty context: many calls share a wake-up, and none of them is the others' business.

After a fork the child has no portal thread. Objects made before the fork say so when they are used
there; new ones get a new portal.

A program that ends without closing its objects has them closed: consumers commit what is done, then
producers get the outcomes of what they sent. What failed, or got none in time, is said in the log,
which without any settings goes to stderr.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import Any, Protocol, TypeVar, overload

from inorder.errors import AlreadyClosed, InorderError, RequestTimeout, UsageError
from inorder.logs import get_logger
from inorder.sync.calls import Call, Posted, Submitted, Waiter, Work

__all__ = ["Future", "Portal", "lease"]

T = TypeVar("T")

log = get_logger(__name__)

_EXIT_SECONDS = 1.0
"""How long the end of a program waits for handlers, and for the loop to end."""
_OUTCOME_SECONDS = 30.0
"""How long it waits for outcomes; each send has a shorter time of its own."""
_RESOLVE_SECONDS = 2.0
_BEGUN_MAX = 256


class Guest(Protocol):
    """What lives on the loop, and is closed at the end of the program if nobody did."""

    async def close(self) -> None: ...


class Portal:
    """A loop in a thread. Share one by `lease`, or make one and `stop` it."""

    def __init__(self, name: str = "inorder") -> None:
        self.users = 0
        self._pid = os.getpid()
        self._loop = _new_loop()
        self._inbox: deque[Work] = deque()
        self.posted: set[Waiter | Posted] = set()  # handed over, and without an outcome
        self._guests: weakref.WeakKeyDictionary[Guest, bool] = weakref.WeakKeyDictionary()
        self._woken = False
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @overload
    def call(
        self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout: float | None = None
    ) -> T: ...

    @overload
    def call(self, fn: Callable[..., T], *args: Any, timeout: float | None = None) -> T: ...

    def call(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run a function on the loop, await what it returns, and give back the result.

        Ctrl-C, and `timeout` seconds if given, end the wait and cancel the call.
        """
        call = Call(fn, args)
        try:
            self._put(call)
            done = call.wait(timeout)
        except InorderError:
            raise  # it was not taken
        except BaseException:
            self._cancel(call)
            raise
        if not done:
            self._cancel(call)
            raise RequestTimeout(f"no result in {timeout} s; the call was given up")
        return call.outcome()

    def submit(self, fn: Callable[..., asyncio.Future[T]], *args: Any) -> Future[T]:
        """Run a function on the loop and return the future of what it returns."""
        submitted = Submitted(fn, args)
        self._put(submitted)
        return submitted.future

    def post(self, begin: Callable[..., None], *args: Any) -> Any:
        """Run `begin(waiter, …)` on the loop and wait for what it makes the waiter's result.

        For what is called often: nothing but the two switches of threads, no task, no future.
        """
        waiter = Waiter(self, begin, args)
        self.posted.add(waiter)
        try:
            self._put(waiter)
            waiter.wait()
        except BaseException:
            waiter.gone = True  # it was not taken, or is not waited for any more
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
            self._put(posted)
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
        """Run a function on the loop and forget it; a signal's handler may call this."""
        with contextlib.suppress(AlreadyClosed):
            self._put(Call(fn, args))

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
        """End the loop and its thread; whatever still runs is cancelled."""
        if self._stopped or self._pid != os.getpid():
            return
        with contextlib.suppress(RuntimeError):  # closed in this moment
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)

    def invite(self, guest: Guest, *, handles: bool = False) -> None:
        """Close an object at the end of the program, if nobody did; those with handlers first."""
        self._guests[guest] = handles

    def end_with_program(self) -> None:
        """Close what was left open, say what was lost by that, and end the loop."""
        guests = sorted(self._guests.items(), key=lambda item: not item[1])
        for guest, handles in guests:
            options = {"timeout": _EXIT_SECONDS} if handles else {}
            try:
                self.call(partial(guest.close, **options), timeout=_OUTCOME_SECONDS)
            except InorderError as error:
                log.error("the program ended without closing a %s: %s", type(guest).__name__, error)
        if self.posted:
            log.error(
                "the program ended before %d messages had an outcome: they may be stored or lost; "
                "call flush() or close() before the end", len(self.posted),
            )  # fmt: skip
        self.stop(_EXIT_SECONDS)

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "running"
        return f"Portal({self._thread.name!r}, {state}, users={self.users})"

    # From the caller's thread to the loop's.

    def check_thread(self) -> None:
        """Refuse a call that can have no outcome: in a forked child, or from the loop itself."""
        if self._pid != os.getpid():
            raise UsageError(
                f"this object was made in process {self._pid}, before the fork; "
                "make a new one in this process"
            )
        if self.is_here:
            raise UsageError(
                "this call would block the client's own event loop; hooks and callbacks must not "
                "call the blocking client (use inorder.aio there)"
            )

    def _put(self, work: Work) -> None:
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
        """Begin what lies in the inbox, some at a time: sockets are looked at in between."""
        self._woken = False
        inbox = self._inbox
        for _ in range(min(len(inbox), _BEGUN_MAX)):
            inbox.popleft().begin(self._loop)
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
            for posted in list(self.posted):
                posted.fail(AlreadyClosed("the client was closed while the call waited"))
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
        # A name that takes long to resolve must not keep the caller from ending.
        with contextlib.suppress(TimeoutError):
            ending = asyncio.wait_for(loop.shutdown_default_executor(), _RESOLVE_SECONDS)
            loop.run_until_complete(ending)


class _Leases:
    """The portal that the clients of this process share, and who uses it."""

    def __init__(self) -> None:
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
        """Return whether it was the last."""
        with self._lock:
            portal.users -= 1
            if portal.users:
                return False
            if self._portal is portal:
                self._portal = None
            return True

    def after_fork(self) -> None:
        """Forget the parent's portal, but keep it: to close it would disturb the parent's loop."""
        self._lock = threading.Lock()
        if self._portal is not None:
            self._before_fork.append(self._portal)
            self._portal = None

    def at_exit(self) -> None:
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.end_with_program()

    def _end_in_child(self) -> None:
        """A child of multiprocessing does not call what atexit knows, but has its own list."""
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self.at_exit, exitpriority=100)


_leases = _Leases()
os.register_at_fork(after_in_child=_leases.after_fork)
atexit.register(_leases.at_exit)


def lease(guest: Guest | None = None, *, handles: bool = False) -> Portal:
    """Return the portal of this process, started if nobody uses it yet; `release` it once.

    `guest` is closed at the end of the program if nobody did; `handles`: before the others.
    """
    portal = _leases.take()
    if guest is not None:
        portal.invite(guest, handles=handles)
    return portal


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop where it is installed; the code is the same on either."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
