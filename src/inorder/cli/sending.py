"""Sends many lines, up to WINDOW at a time; the messages of one key are stored in their order.

The first failure ends the command and names its line. All lines before it are stored.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from inorder.cli.output import progress, put_line, put_page
from inorder.cli.send import Line
from inorder.client.send.checks import checked_delay
from inorder.client.send.producer import Producer
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
    moment: datetime | None = None,
) -> int:
    """Send messages; return how many were stored. Raises LineFailed."""
    checked_delay(delay_s, None, moment, parse_delay_levels(session.config.delay_levels))
    pending: deque[tuple[Line, asyncio.Task[SendReceipt]]] = deque()
    count = 0

    async def settle(down_to: int) -> None:
        nonlocal count
        while len(pending) > down_to:
            line, task = pending[0]
            try:
                # Ctrl-C must not cancel this send alone: later ones of its key would go on.
                receipt = await asyncio.shield(task)
            except InorderError as error:
                raise LineFailed(f"{line.where}: {error} ({count} were sent before)") from error
            pending.popleft()
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
                        properties=properties, delay=delay_s, deliver_at=moment,
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
                for _, task in pending:  # all in one step of the loop: no queue sends in between
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
                **({} if receipt.handle is None else {"handle": receipt.handle}),
            }
        )
    )
