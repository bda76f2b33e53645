"""Sends many lines, up to WINDOW at a time; the messages of one key are stored in their order.

The first failure ends the command and names its line. All lines before it are stored.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from inorder.cli.output import progress, put_line, put_page
from inorder.cli.send import Line
from inorder.client.send.producer import Producer, checked_delay
from inorder.client.session import Session
from inorder.errors import InorderError
from inorder.model import SendReceipt
from inorder.wire.names import parse_delay_levels

WINDOW: Final = 256


class LineFailed(InorderError):
    """A line could not be sent."""


async def send_all(
    session: Session,
    topic: str,
    lines: Iterable[Line],
    properties: dict[str, str],
    shown: Callable[[SendReceipt], None] | None,
    *,
    delay_s: float | None = None,
) -> int:
    """Send messages; return how many were stored. Raises LineFailed."""
    checked_delay(delay_s, None, None, parse_delay_levels(session.config.delay_levels))
    pending: deque[tuple[Line, asyncio.Task[SendReceipt]]] = deque()
    count = 0

    async def settle(down_to: int) -> None:
        nonlocal count
        while len(pending) > down_to:
            line, task = pending.popleft()
            try:
                receipt = await task
            except InorderError as error:
                raise LineFailed(f"{line.where}: {error} ({count} were sent before)") from error
            count += 1
            advance(1)
            if shown is not None:
                shown(receipt)

    async with Producer(session, group="inorder-send") as producer:
        with progress("sent") as advance:
            try:
                for line in lines:
                    words = [line.key] if line.key and " " not in line.key else []
                    sending = producer.send(
                        topic, line.body, key=line.key, tag=line.tag, keys=words,
                        properties=properties, delay=delay_s,
                    )  # fmt: skip
                    pending.append((line, asyncio.create_task(sending)))
                    await settle(WINDOW - 1)
                await settle(0)
            except asyncio.CancelledError:
                left = len(pending)
                text = f"inorder: interrupted; {count} were sent, of {left} more nobody knows"
                put_line(text, err=True)
                raise
            finally:
                for _, task in pending:
                    task.cancel()
                await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
    return count


def print_receipt(receipt: SendReceipt) -> None:
    """Print where a message is, as a line of JSON."""
    queue = receipt.queue
    put_page(
        json.dumps(
            {
                "message_id": receipt.message_id,
                "topic": queue.topic,
                "broker": queue.broker,
                "queue": queue.index,
                "offset": receipt.offset,
                "status": receipt.status.value,
            }
        )
    )
