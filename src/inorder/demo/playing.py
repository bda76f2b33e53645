"""What the parts of the demo share: where they report, and how they wait for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from inorder.errors import RequestTimeout

LOOK_SECONDS: Final = 0.01
WAIT_SECONDS: Final = 90.0

Say = Callable[[str], None]
"""Prints a line for the person who watches the demo."""


async def until(condition: Callable[[], bool], what: str, *, seconds: float = WAIT_SECONDS) -> None:
    """Wait until a condition holds. Raises RequestTimeout, which names `what`."""

    async def holds() -> bool:
        return condition()

    await until_true(holds, what, seconds=seconds)


async def until_true(
    condition: Callable[[], Awaitable[bool]], what: str, *, seconds: float = WAIT_SECONDS
) -> None:
    """Wait until an async condition holds. Raises RequestTimeout, which names `what`."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - other processes make it true
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise RequestTimeout(f"the demo waits in vain: {what}") from None
