"""Reads lines and sends them, up to WINDOW at a time; the messages of one key keep their order.

A line is sent when it is read, also when the next one comes later: from a pipe whose writer goes
on, or from a terminal. The first failure ends the command and names its line. All lines before it
are stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from datetime import datetime
from io import BufferedIOBase
from typing import Final

from inorder.cli.output import progress, put_line, put_page
from inorder.cli.send import Line
from inorder.client.send.checks import checked_delay
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.errors import InorderError, UsageError
from inorder.model import SendReceipt
from inorder.wire.names import parse_delay_levels

WINDOW: Final = 256
CHUNK_BYTES: Final = 1 << 16
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Above what a broker takes: input without an end of a line must not fill the memory."""


class LineFailed(InorderError):
    """A line could not be sent."""


async def lines_of(
    sources: Iterable[tuple[str, bytes | BufferedIOBase]],
) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the bodies of sources, line by line where they are streams, each with its place.

    Empty lines are left out. The loop goes on while a stream has nothing.
    """
    for name, source in sources:
        if isinstance(source, bytes):
            yield name, source
            continue
        number, rest = 0, b""
        async for chunk in _chunks(source):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                number += 1
                if data := line.rstrip(b"\r"):
                    yield f"{name} {number}", data
            if len(rest) > LINE_BYTES_MAX:
                text = f"{name} {number + 1} is longer than {LINE_BYTES_MAX:,} bytes"
                raise UsageError(f"{text}: one message a line; --whole sends a file as one message")
        if data := rest.rstrip(b"\r"):
            yield f"{name} {number + 1}", data


async def _chunks(stream: BufferedIOBase) -> AsyncIterator[bytes]:
    try:
        descriptor = stream.fileno()
    except OSError:
        descriptor = -1  # it is in memory
    if descriptor < 0 or not _keeps_waiting(descriptor):
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
        return
    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
        chunk = stream.read1(CHUNK_BYTES)  # what is there: the buffer of the stream is empty
        if not chunk:
            return
        yield chunk


def _keeps_waiting(descriptor: int) -> bool:
    """Tell whether a read may wait for somebody who writes: of a pipe, a socket, a terminal."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class _Lines:
    """Lines on their way: a task reads and sends them, its owner settles them in their order."""

    def __init__(self, send: Callable[[Line], asyncio.Task[SendReceipt]]) -> None:
        self.pending: deque[tuple[Line, asyncio.Task[SendReceipt]]] = deque()
        self._send = send
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self, lines: AsyncIterable[Line]) -> None:
        """Send each line when it comes, while fewer than WINDOW have no outcome."""
        try:
            async for line in lines:
                while len(self.pending) >= WINDOW:
                    self._room.clear()
                    await self._room.wait()
                self.pending.append((line, self._send(line)))
                self._changed.set()
        finally:
            self._changed.set()

    async def settled(self, reading: asyncio.Task[None]) -> AsyncIterator[SendReceipt]:
        """Yield the receipt of each line. Raises LineFailed, or what ended the reading."""
        count = 0
        while self.pending or not reading.done():
            if not self.pending:
                self._changed.clear()
                await self._changed.wait()
                continue
            line, task = self.pending[0]
            try:
                # Ctrl-C must not cancel this send alone: later ones of its key would go on.
                receipt = await asyncio.shield(task)
            except InorderError as error:
                raise LineFailed(f"{line.where}: {error} ({count} were sent before)") from error
            self.pending.popleft()
            self._room.set()
            count += 1
            yield receipt
        await reading

    async def end(self) -> None:
        """Cancel all that have no outcome in one step of the loop: no queue sends in between."""
        for _, task in self.pending:
            task.cancel()
        await asyncio.gather(*(task for _, task in self.pending), return_exceptions=True)


async def send_all(
    session: Session,
    topic: str,
    lines: AsyncIterable[Line],
    properties: dict[str, str],
    shown: Callable[[SendReceipt], None] | None,
    *,
    delay_s: float | None = None,
    moment: datetime | None = None,
) -> int:
    """Send messages; return how many were stored. Raises LineFailed."""
    checked_delay(delay_s, None, moment, parse_delay_levels(session.config.delay_levels))
    count = 0
    async with Producer(session, group="inorder-send") as producer:

        def send(line: Line) -> asyncio.Task[SendReceipt]:
            words = [line.key] if line.key and " " not in line.key else []
            sending = producer.send(
                topic, line.body, key=line.key, tag=line.tag, keys=words,
                properties=properties, delay=delay_s, deliver_at=moment,
            )  # fmt: skip
            return asyncio.create_task(sending)

        with progress("sent") as advance:
            under_way = _Lines(send)
            reading = asyncio.create_task(under_way.read(lines))
            try:
                async for receipt in under_way.settled(reading):
                    count += 1
                    advance(1)
                    if shown is not None:
                        shown(receipt)
            except asyncio.CancelledError:
                left = len(under_way.pending)
                text = f"inorder: interrupted; {count} were sent, of {left} more nobody knows"
                put_line(text, err=True)
                raise
            finally:
                reading.cancel()
                await under_way.end()
                await asyncio.gather(reading, return_exceptions=True)
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
