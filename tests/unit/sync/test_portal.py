"""The portal: a loop in a thread, there while somebody needs it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from contextvars import ContextVar, copy_context

import pytest

from inorder.client.send.rules import TIMES_AGAIN
from inorder.config import ClientConfig
from inorder.errors import AlreadyClosed, RequestTimeout, UsageError
from inorder.sync import portal as module
from inorder.sync.portal import Call, Portal, lease
from tests.descriptors import descriptors


def portal_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "inorder"]


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def fail() -> None:
    raise ValueError("as told")


def test_functions_and_coroutines_run_on_the_loop():
    """Results and errors come back; what is no coroutine is called as well."""
    portal = Portal()
    try:
        assert portal.call(double, 21) == 42
        assert portal.call(threading.get_ident) != threading.get_ident()
        with pytest.raises(ValueError, match="as told"):
            portal.call(fail)
        with pytest.raises(ZeroDivisionError):
            portal.call(lambda: 1 // 0)
    finally:
        portal.stop()


def test_the_thread_lives_as_long_as_somebody_has_a_lease():
    """It starts with the first and ends with the last."""
    assert portal_threads() == []
    first, second = lease(), lease()
    assert first is second
    assert len(portal_threads()) == 1
    first.release()
    assert second.call(double, 1) == 2
    second.release()
    assert portal_threads() == []
    with pytest.raises(AlreadyClosed):
        second.call(double, 1)
    third = lease()
    assert third is not first
    third.release()


def test_a_timeout_cancels_the_call():
    """The work ends too."""
    portal, ended = Portal(), threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    try:
        with pytest.raises(RequestTimeout):
            portal.call(work, timeout=0.01)
        assert ended.wait(5)
    finally:
        portal.stop()


def test_stopping_ends_what_still_runs():
    """Whoever waits gets an error, not silence."""
    portal = Portal()
    begun, errors = threading.Event(), []

    async def work() -> None:
        begun.set()
        await asyncio.sleep(60)

    def wait() -> None:
        try:
            portal.call(work)
        except AlreadyClosed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(5)
    portal.stop()
    thread.join(5)
    assert len(errors) == 1


def test_submitted_work_has_a_future():
    """With the result, the error, and cancellation both ways."""
    portal = Portal()
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def begin(coroutine: object) -> object:
        return asyncio.ensure_future(coroutine)

    try:
        assert portal.submit(begin, double(3)).result(5) == 6
        assert isinstance(portal.submit(begin, fail()).exception(5), ValueError)
        assert isinstance(portal.submit(lambda: 1 // 0).exception(5), ZeroDivisionError)
        running = portal.submit(begin, work())
        portal.call(double, 1)
        assert running.cancel()
        assert ended.wait(5)
    finally:
        portal.stop()


def test_calls_of_one_thread_begin_in_their_order():
    """Submitted ones and waited-for ones alike."""
    portal, order = Portal(), []

    async def note(number: int) -> None:
        order.append(number)

    try:
        for number in range(0, 100, 2):
            portal.submit(lambda n=number: asyncio.ensure_future(note(n)))
            portal.submit(lambda n=number + 1: asyncio.ensure_future(note(n)))
        portal.call(note, 100)
        assert order == list(range(101))
    finally:
        portal.stop()


def test_many_threads_at_once():
    """Each gets its own results."""
    portal, wrong = Portal(), []

    def work(start: int) -> None:
        numbers = range(start, start + 200)
        wrong.extend(n for n in numbers if portal.call(double, n) != 2 * n)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    portal.stop()
    assert wrong == []


def test_it_works_inside_a_running_loop():
    """As in a notebook: the caller's loop blocks, but nothing complains."""
    portal = Portal()

    async def notebook() -> int:
        return portal.call(double, 4)

    try:
        assert asyncio.run(notebook()) == 8
    finally:
        portal.stop()


def test_a_call_from_the_loop_itself_is_refused():
    """It would wait for itself for ever."""
    portal = Portal()

    async def hook() -> None:
        portal.call(double, 1)

    try:
        with pytest.raises(UsageError, match=r"inorder\.aio"):
            portal.call(hook)
    finally:
        portal.stop()


def test_an_async_iterator_becomes_an_iterator():
    """Also one that is left early: its finally block runs."""
    portal, closed = Portal(), []

    async def count() -> object:
        try:
            for n in range(5):
                yield n
        finally:
            closed.append(True)

    try:
        assert list(portal.iterate(count())) == [0, 1, 2, 3, 4]
        iterator = portal.iterate(count())
        assert next(iterator) == 0
        iterator.close()
        assert closed == [True, True]
    finally:
        portal.stop()


def test_it_runs_without_uvloop(monkeypatch: pytest.MonkeyPatch):
    """uvloop is used where it is installed; asyncio's own loop does as well."""
    monkeypatch.setattr(module, "_new_loop", asyncio.new_event_loop)
    portal = Portal()
    try:
        assert portal.call(double, 5) == 10
    finally:
        portal.stop()


def test_ctrl_c_interrupts_a_call():
    """The wait ends with KeyboardInterrupt and the work is cancelled."""
    portal, begun, ended = Portal(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait(5)
        os.kill(os.getpid(), signal.SIGINT)

    # A test runner's worker process may ignore the signal; a program does not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.call(work)
        assert ended.wait(5)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
        portal.stop()


def test_nothing_stays_after_many_portals():
    """No thread, no descriptor."""
    gc.collect()
    before = descriptors()
    for n in range(50):
        portal = lease()
        assert portal.call(double, n) == 2 * n
        portal.release()
    gc.collect()
    assert descriptors() <= before
    assert portal_threads() == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # it is what we look at
def test_a_fork_gets_a_clear_error_or_a_portal_of_its_own():
    """What was made before says so at once; what is made in the child works; no hang."""
    portal = lease()
    assert portal.call(double, 1) == 2
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            try:
                portal.call(double, 1)
            except UsageError as error:
                said = b"before the fork" if "before the fork" in str(error) else b"other"
            portal.finish(lambda: None)
            own = lease()
            said += b" %d" % own.call(double, 2, timeout=10)
            own.release()
        finally:
            os.write(writing, said)
            os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline, "the child hangs"
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"before the fork 4"
    assert portal.call(double, 3) == 6
    portal.release()


def test_the_loop_is_woken_in_an_empty_context():
    """Whatever the caller carries: calls share wake-ups, and what begins there is nobody's."""
    mark: ContextVar[str] = ContextVar("mark", default="")
    portal, seen = Portal(), []

    async def look() -> None:
        seen.append(mark.get())

    def caller() -> None:
        mark.set("a caller's")
        portal.call(look)
        portal.call(lambda: seen.append(mark.get()))
        portal.post(lambda waiter: waiter.set_result(seen.append(mark.get())))
        portal.submit(lambda: asyncio.ensure_future(look())).result(5)

    try:
        copy_context().run(caller)
    finally:
        portal.stop()
    assert seen == ["", "", "", ""]


def test_an_interrupted_call_does_not_keep_the_next_one_from_waking_the_loop(monkeypatch):
    """Ctrl-C between two lines of a call: those after it go on."""
    portal = Portal()

    def interrupted(*args: object, **options: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    class Loop:
        def __getattr__(self, name: str) -> object:
            return interrupted if name == "call_soon_threadsafe" else getattr(loop, name)

    loop = portal._loop
    try:
        monkeypatch.setattr(portal, "_loop", Loop())
        with pytest.raises(KeyboardInterrupt):
            portal.call(double, 1)
        assert portal.call(double, 2, timeout=20) == 4
    finally:
        portal.stop()


def test_a_busy_caller_leaves_the_loop_its_timers_and_sockets():
    """Work that comes faster than it is done does not keep the loop from everything else."""
    portal = Portal()
    more = True

    class Again:
        def begin(self, loop: asyncio.AbstractEventLoop) -> None:
            if more:
                portal._inbox.append(self)

        def fail(self, error: Exception) -> None: ...

    async def nap() -> str:
        await asyncio.sleep(0.001)
        return "woken"

    try:
        portal.put(Again())
        assert portal.call(nap, timeout=30) == "woken"
    finally:
        more = False
        portal.stop()


def test_the_end_of_a_program_waits_longer_than_any_send_of_a_default_client():
    """A message of `send_nowait` whose broker is away, and whose last try is not answered."""
    config = ClientConfig()
    longest_ms = (1 + TIMES_AGAIN) * config.send_timeout_ms + config.request_timeout_ms
    assert longest_ms < module._OUTCOME_SECONDS * 1000


def test_the_end_of_a_program_names_the_messages_that_it_gives_up(monkeypatch, caplog):
    """Also if giving the close up ends them."""

    class Box(set[int]):
        __hash__ = object.__hash__

        def fail(self, error: Exception) -> None:
            self.clear()

        def begin(self, loop: asyncio.AbstractEventLoop) -> None: ...

    class Opened:
        async def close(self) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                box.clear()

    monkeypatch.setattr(module, "_OUTCOME_SECONDS", 0.1)
    portal, box, opened = Portal(), Box({1, 2, 3}), Opened()
    portal.outboxes.add(box)
    portal.close_at_exit(opened)
    cancel = portal._cancel

    def cancel_and_wait(call: Call) -> None:
        cancel(call)
        portal.call(asyncio.sleep, 0)

    monkeypatch.setattr(portal, "_cancel", cancel_and_wait)
    portal.end_with_program()
    assert "before 3 messages had an outcome" in caplog.text
