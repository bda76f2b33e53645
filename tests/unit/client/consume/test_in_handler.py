"""The token of a running handler: who carries it, and when it is void."""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context, copy_context

from inorder.client.consume.workers import begin_call, end_call, in_handler

MINE, OTHER = object(), object()


def test_it_counts_for_its_own_consumer_while_the_call_runs():
    """Neither for another consumer, nor before, nor afterwards."""

    def check() -> None:
        assert not in_handler(MINE)
        call = begin_call(MINE)
        assert in_handler(MINE)
        assert not in_handler(OTHER)
        end_call(call)
        assert not in_handler(MINE)

    Context().run(check)


def test_copies_of_the_context_carry_it_until_the_call_ends():
    """A task or a thread that got the handler's context; void for all of them at once."""

    def check() -> None:
        call = begin_call(MINE)
        copied = copy_context()
        assert copied.run(in_handler, MINE)
        assert not Context().run(in_handler, MINE)
        end_call(call)
        assert not copied.run(in_handler, MINE)

    Context().run(check)


def test_a_handler_of_a_consumer_that_a_handler_started_is_in_both():
    """Either would wait for itself; the chain does not grow with calls that have ended."""

    def check() -> None:
        outer = begin_call(MINE)
        inner = begin_call(OTHER)
        assert in_handler(MINE)
        assert in_handler(OTHER)
        end_call(inner)
        assert in_handler(MINE)
        assert not in_handler(OTHER)
        end_call(outer)
        for _ in range(100):
            copy_context().run(begin_call, MINE)
        last = begin_call(MINE)
        assert last.outer is None

    Context().run(check)


def test_tasks_and_threads_of_a_handler():
    """A task carries it, `to_thread` too; a plain thread does not."""
    seen: dict[str, bool] = {}

    def note(name: str) -> None:
        seen[name] = in_handler(MINE)

    async def main() -> None:
        call = begin_call(MINE)
        gate = asyncio.Event()

        async def task() -> None:
            note("task")
            await gate.wait()
            note("task afterwards")

        running = asyncio.create_task(task())
        await asyncio.to_thread(note, "to_thread")
        thread = threading.Thread(target=note, args=("thread",))
        thread.start()
        thread.join()
        end_call(call)
        gate.set()
        await running

    asyncio.run(main())
    assert seen == {"task": True, "to_thread": True, "thread": False, "task afterwards": False}
