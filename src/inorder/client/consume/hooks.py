"""Functions of the application that run around every call of a handler, in its thread.

A hook gets a context, RocketMQ's ConsumeMessageContext. It watches and changes nothing: an
exception in a hook is logged, and the call continues as if there were no hook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inorder.client.consume.rules.outcomes import Handled, ReturnType, returned
from inorder.client.consume.workers import Batch, Call
from inorder.clock import Clock, SystemClock
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, TopicQueue

log = get_logger(__name__)


@dataclass(slots=True)
class HandleContext:
    """One call of a handler, for hooks. Its outcome is known in `after_handle`."""

    group: str
    topic: str
    queue: TopicQueue
    messages: tuple[ReceivedMessage, ...]
    status: str = ""
    """RocketMQ's: CONSUME_SUCCESS or RECONSUME_LATER; with order an Outcome's value."""
    return_type: ReturnType | None = None
    success: bool = False
    error: BaseException | None = None
    spent_ms: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    """Values that `before_handle` stores for `after_handle`."""


@dataclass(frozen=True, slots=True)
class ParkContext:
    """Messages that the broker has just parked, in order, for `after_park`."""

    group: str
    queue: TopicQueue
    key: str
    messages: tuple[ReceivedMessage, ...]
    error: BaseException | None
    """Why the key is parked; None if the messages joined a key that was parked before."""


Hook = Callable[[HandleContext], None]
ParkHook = Callable[[ParkContext], None]
HooksWhen = Callable[[Batch], bool]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions to call before and after every handler, and the values for their context."""

    before: Hook | None = None
    after: Hook | None = None
    group: str = ""
    timeout_ms: int = 0
    clock: Clock = field(default_factory=SystemClock)
    park: ParkHook | None = None
    when: HooksWhen | None = None
    """For which calls `before` and `after` are called; None: for all."""

    def parked(self, context: ParkContext) -> None:
        """Call `after_park`, on the event loop."""
        if self.park is not None:
            try:
                self.park(context)
            except Exception:
                # The application's own code: the messages are parked.
                log.exception("after_park failed group=%s queue=%s", context.group, context.queue)

    def around(self, call: Call, *, is_async: bool, ordered: bool, auto_commit: bool) -> Call:
        """Return the call with the hooks around it; the call itself if there are none."""
        if self.before is None and self.after is None:
            return call
        kind = _Hooked(self, ordered=ordered, auto_commit=auto_commit)
        when = self.when

        def hooked(batch: Batch) -> Any:
            # hot: 0.1 µs if the hooks are not for this call.
            if when is not None and not when(batch):
                return call(batch)
            context, began_ms = kind.begin(batch)
            result, error = None, None
            try:
                result = call(batch)
                return result
            except BaseException as failure:
                error = failure
                raise
            finally:
                kind.end(context, began_ms, result, error)

        async def hooked_async(batch: Batch) -> Any:
            context, began_ms = kind.begin(batch)
            result, error = None, None
            try:
                result = await call(batch)
                return result
            except BaseException as failure:
                error = failure
                raise
            finally:
                kind.end(context, began_ms, result, error)

        def hooked_later(batch: Batch) -> Any:
            if when is not None and not when(batch):
                return call(batch)
            return hooked_async(batch)

        return hooked_later if is_async else hooked


class _Hooked:
    """The hooks around the handler of one topic."""

    def __init__(self, hooks: Hooks, *, ordered: bool, auto_commit: bool) -> None:
        self._hooks = hooks
        self._ordered = ordered
        self._auto_commit = auto_commit

    def begin(self, batch: Batch) -> tuple[HandleContext, int]:
        """Call `before_handle`; return the context and the time at which the call begins."""
        hooks, first = self._hooks, batch[0]
        context = HandleContext(hooks.group, first.topic, first.queue, tuple(batch))
        _tell(hooks.before, context, "before_handle")
        return context, hooks.clock.monotonic_ms()

    def end(
        self, context: HandleContext, began_ms: int, result: object, error: BaseException | None
    ) -> None:
        """Call `after_handle` with the result of the call."""
        hooks = self._hooks
        context.spent_ms = hooks.clock.monotonic_ms() - began_ms
        if error is None and isinstance(result, Handled):
            error = result.error
        context.error = error
        context.status, context.return_type, context.success = returned(
            result,
            error,
            ordered=self._ordered,
            auto_commit=self._auto_commit,
            spent_ms=context.spent_ms,
            timeout_ms=hooks.timeout_ms,
            batch=len(context.messages),
        )
        _tell(hooks.after, context, "after_handle")


def _tell(hook: Hook | None, context: HandleContext, name: str) -> None:
    if hook is None:
        return
    try:
        hook(context)
    except Exception:
        # The application's own code, which must not change the outcome of the call.
        log.exception(
            "%s failed, the attempt continues group=%s topic=%s queue=%s offset=%d", name,
            context.group, context.topic, context.queue, context.messages[0].offset,
        )  # fmt: skip
