"""What a conversation is played against: connections over sockets, or the capture itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from inorder.wire.frame import encode_frame
from inorder.wire.header import Command, decode_command
from tests.golden.replay.capture import Conversation, split_frame

ANSWER_SECONDS = 20
PUSH_REPLY = 326


class Channel(Protocol):
    """One connection to a server."""

    notified: Counter[int]

    async def send(self, frame: bytes) -> None:
        """Send a frame."""

    async def answer(self, request_id: int) -> Command:
        """Wait for the answer to a request."""

    def has_answer(self, request_id: int) -> bool:
        """Tell whether the answer to a request is there."""

    async def close(self) -> None:
        """Hang up, and return when the server knows."""


class Servers(Protocol):
    """What a conversation is played against."""

    async def connect(self, peer: str) -> Channel:
        """Open a connection."""

    async def settle(self) -> None:
        """Wait until what was done has its effect everywhere."""

    def set_time(self, now_ms: int) -> None:
        """Set the wall clock."""

    def choose_queue(self, queue_id: int) -> None:
        """Say which queue to choose for a message that leaves it to the broker."""

    def ask_producers(self) -> None:
        """Ask producers about the transactions without an outcome."""

    @property
    def can_prepare(self) -> bool:
        """Tell whether they keep state of their own."""


class CapturedServers:
    """Servers that give the captured answers: against these, every conversation must be equal."""

    can_prepare = False

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    async def connect(self, peer: str) -> Channel:
        """Open a connection."""
        return _CapturedChannel(self)

    async def settle(self) -> None:
        """Nothing happens here."""

    def set_time(self, now_ms: int) -> None:
        """There is no clock."""

    def choose_queue(self, queue_id: int) -> None:
        """There are no queues."""

    def ask_producers(self) -> None:
        """Nobody asks."""

    def answer(self, request: Command) -> Command:
        """Return the captured answer to a request."""
        for row in self._conversation.rows:
            if row.is_request and row.pair is not None and _same(row.command, request):
                return self._conversation.by_seq[row.pair].command
        return request.reply()


def _same(one: Command, other: Command) -> bool:
    ignored = ("suspendTimeoutMillis", "pollTime")
    return (one.code, one.request_id, one.body) == (other.code, other.request_id, other.body) and {
        name: value for name, value in one.fields.items() if name not in ignored
    } == {name: value for name, value in other.fields.items() if name not in ignored}


class _CapturedChannel:
    def __init__(self, servers: CapturedServers) -> None:
        self._servers = servers
        self._answers: dict[int, Command] = {}
        self.notified: Counter[int] = Counter()

    async def send(self, frame: bytes) -> None:
        request = decode_command(split_frame(frame))
        if not request.is_oneway:
            self._answers[request.request_id] = self._servers.answer(request)

    async def answer(self, request_id: int) -> Command:
        return self._answers.pop(request_id)

    def has_answer(self, request_id: int) -> bool:
        return request_id in self._answers

    async def close(self) -> None:
        self._answers.clear()


class SocketChannel:
    """A connection over a real socket."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connections: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connections = connections
        self._answers: dict[int, asyncio.Future[Command]] = {}
        self.notified: Counter[int] = Counter()
        self._task = asyncio.create_task(self._read())

    async def send(self, frame: bytes) -> None:
        """Send a frame."""
        request_id = decode_command(split_frame(frame)).request_id
        self._answers[request_id] = asyncio.get_running_loop().create_future()
        self._writer.write(frame)
        await self._writer.drain()

    async def answer(self, request_id: int) -> Command:
        """Wait for the answer to a request."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self._answers[request_id]

    def has_answer(self, request_id: int) -> bool:
        """Tell whether the answer to a request is there."""
        return self._answers[request_id].done()

    async def close(self) -> None:
        """Hang up, and return when the server knows."""
        before = self._connections()
        self._task.cancel()
        self._writer.close()
        try:
            await self._task
        except asyncio.CancelledError:
            pass
        await self._writer.wait_closed()
        async with asyncio.timeout(ANSWER_SECONDS):
            while self._connections() >= before:  # noqa: ASYNC110  # servers signal nothing
                await asyncio.sleep(0)

    async def _read(self) -> None:
        while True:
            try:
                head = await self._reader.readexactly(4)
                frame = head + await self._reader.readexactly(int.from_bytes(head, "big"))
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                for waiting in self._answers.values():
                    if not waiting.done():
                        waiting.set_exception(ConnectionError(f"the server hung up: {error}"))
                        waiting.exception()
                return
            command = decode_command(split_frame(frame))
            if not command.is_response:
                self.notified[command.code] += 1
                if command.code == PUSH_REPLY:  # every captured client took the replies
                    self._writer.write(encode_frame(command.reply()))
                elif not command.is_oneway:  # the captured client did not answer, or is not here
                    self._writer.write(encode_frame(command.reply(1, "the capture has no answer")))
                continue
            waiting_for = self._answers.get(command.request_id)
            if waiting_for is not None and not waiting_for.done():
                waiting_for.set_result(command)
