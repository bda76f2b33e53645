"""Which running handler a piece of code belongs to.

`close` waits for handlers, so a handler that waits for `close` waits for itself. Whether code runs
in a handler travels with its context: a call of a handler sets a token, and what the handler starts
(tasks, `asyncio.to_thread`, whatever copies the context) carries it too. The token is void as soon
as the call has ended: a task that outlives its handler may wait for `close` like everybody else.
"""

from __future__ import annotations

from contextvars import ContextVar


class HandlerCall:
    """One call of a handler of a consumer, while it runs."""

    __slots__ = ("consumer", "outer", "running")

    def __init__(self, consumer: object, outer: HandlerCall | None) -> None:
        self.consumer = consumer
        self.outer = outer
        """The handler that started this consumer, if it was one and still runs."""
        self.running = True


_CALL: ContextVar[HandlerCall | None] = ContextVar("inorder_handler_call", default=None)


def begin_call(consumer: object) -> HandlerCall:
    """Note that a handler of a consumer is called, in this context and those copied from it."""
    outer = _CALL.get()
    while outer is not None and not outer.running:
        outer = outer.outer
    call = HandlerCall(consumer, outer)
    _CALL.set(call)
    return call


def end_call(call: HandlerCall) -> None:
    """Note that it ended, for all who carry it."""
    call.running = False
    _CALL.set(call.outer)


def in_handler(consumer: object) -> bool:
    """Tell whether this code is, or was started by, a handler of a consumer that still runs."""
    call = _CALL.get()
    while call is not None:
        if call.running and call.consumer is consumer:
            return True
        call = call.outer
    return False
