"""Do something again and again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.clock import Clock

logger = get_logger(__name__)


async def periodic(
    action: Callable[[], Awaitable[None] | None],
    *,
    interval_ms: int,
    clock: Clock,
    name: str,
    first_ms: int | None = None,
) -> None:
    """Call `action` every `interval_ms` until cancelled; an error of it is logged, no more.

    The times are multiples of the interval from the start on. A call that takes longer than the
    interval makes the missed ones drop out; calls never overlap. `first_ms` is the delay of the
    first call, by default the interval.
    """
    if interval_ms <= 0:
        raise ValueError(f"periodic {name}: interval_ms={interval_ms} must be above 0")
    due_ms = clock.monotonic_ms() + (interval_ms if first_ms is None else first_ms)
    while True:
        wait_ms = due_ms - clock.monotonic_ms()
        await asyncio.sleep(max(wait_ms, 0) / 1000)
        try:
            result = action()
            if inspect.isawaitable(result):
                await result
        except Exception:
            # A task root: one failure must not end what has to happen again.
            logger.exception("periodic=%s failed; it is tried again in %d ms", name, interval_ms)
        missed = max(0, clock.monotonic_ms() - due_ms) // interval_ms
        due_ms += (missed + 1) * interval_ms
