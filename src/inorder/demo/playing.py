"""What the parts of the demo share: how a part is played and judged, and how it waits."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from inorder.cli.failures import EXIT_FAILED
from inorder.cli.output import Output, as_json, put_page
from inorder.errors import RequestTimeout

LOOK_SECONDS: Final = 0.01
WAIT_SECONDS: Final = 90.0

Say = Callable[[str], None]
"""Prints a line for the person who watches the demo."""

R = TypeVar("R")


def play(
    part: Callable[[Path, Say], Coroutine[Any, Any, R]], ending: Callable[[R], str], output: Output
) -> None:
    """Play a part in a temporary folder and print it; exit with 1 unless all is in order.

    The result is a dataclass with `in_order`; `ending` is the last line for people.
    """
    chatty = output is Output.TABLE

    def say(text: str) -> None:
        if chatty:
            put_page(text, flush=True)

    with tempfile.TemporaryDirectory(prefix="inorder-demo-") as folder:
        result: Any = asyncio.run(part(Path(folder), say))
    say(ending(result))
    if not chatty:
        put_page(as_json(asdict(result)))
    if not result.in_order:
        raise SystemExit(EXIT_FAILED)


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
