"""`inorder send` with many lines: when each is sent, and what an interruption leaves."""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from inorder.cli import sending
from inorder.cli.send import Line
from inorder.config import ClientConfig
from inorder.errors import UsageError
from inorder.model import SendReceipt, TopicQueue


class Pending:
    """A producer whose sends have no outcome."""

    sends: ClassVar[list[asyncio.Future[None]]] = []

    def __init__(self, *_: object, **__: object) -> None:
        Pending.sends = []

    async def __aenter__(self) -> "Pending":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def send(self, *_: object, **__: object) -> None:
        self.sends.append(asyncio.get_running_loop().create_future())
        await self.sends[-1]


class Storing(Pending):
    """A producer whose sends are stored in the next step of the loop."""

    async def send(self, *_: object, **__: object) -> Any:
        offset = len(self.sends)
        self.sends.append(asyncio.get_running_loop().create_future())
        await asyncio.sleep(0)
        return SendReceipt("id", TopicQueue("orders", "broker-a", 0), offset)


class AnySession:
    config = ClientConfig()


def line(number: int) -> Line:
    return Line(where=f"line {number}", key="k", tag=None, body=b"x")


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until something is so."""
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


async def lines_to(count: int) -> AsyncIterator[Line]:
    """Yield lines at once."""
    for number in range(count):
        yield line(number)


def test_ctrl_c_cancels_all_pending_lines_in_one_step_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No later message of a key can be written while an earlier one is cancelled already."""
    monkeypatch.setattr(sending, "Producer", Pending)
    session: Any = AnySession()

    async def interrupt() -> None:
        sent = asyncio.create_task(sending.send_all(session, "orders", lines_to(10), {}, None))
        await until(lambda: len(Pending.sends) == 10)
        sent.cancel()
        while not sent.done():
            assert len({one.cancelled() for one in Pending.sends}) == 1
            await asyncio.sleep(0)
        assert all(one.cancelled() for one in Pending.sends)
        with contextlib.suppress(asyncio.CancelledError):
            await sent

    asyncio.run(interrupt())
    assert "0 were sent, of 10 more nobody knows" in capsys.readouterr().err


def test_a_line_is_sent_and_told_when_it_comes_not_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer of the pipe goes on: `tail -f log | inorder send` sends each line at once."""
    monkeypatch.setattr(sending, "Producer", Storing)
    session: Any = AnySession()

    async def scenario() -> None:
        reader, writer = os.pipe()
        told: list[SendReceipt] = []
        with os.fdopen(reader, "rb") as stream:

            async def lines() -> AsyncIterator[Line]:
                async for where, data in sending.lines_of([("line", stream)]):
                    yield Line(where, data)

            work = sending.send_all(session, "orders", lines(), {}, told.append)
            sent = asyncio.create_task(work)
            for number in range(3):
                os.write(writer, b"a\r\n\n")
                await until(lambda wanted=number + 1: len(told) == wanted)
                assert not sent.done()
            os.write(writer, b"the last has no end")
            os.close(writer)
            assert await sent == 4

    asyncio.run(scenario())


def test_ctrl_c_ends_the_wait_for_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes into the pipe: the command ends, and says what was sent."""
    monkeypatch.setattr(sending, "Producer", Storing)
    session: Any = AnySession()

    async def scenario() -> None:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as stream, os.fdopen(writer, "wb"):

            async def lines() -> AsyncIterator[Line]:
                async for where, data in sending.lines_of([("line", stream)]):
                    yield Line(where, data)

            sent = asyncio.create_task(sending.send_all(session, "orders", lines(), {}, None))
            await asyncio.sleep(0.01)
            sent.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sent

    asyncio.run(scenario())


def test_lines_before_a_bad_one_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a line comes when all lines before it have their outcome."""
    monkeypatch.setattr(sending, "Producer", Storing)
    session: Any = AnySession()
    told: list[SendReceipt] = []

    async def lines() -> AsyncIterator[Line]:
        for number in range(600):
            yield line(number)
        raise UsageError("line 601 is not JSON")

    with pytest.raises(UsageError, match="601"):
        asyncio.run(sending.send_all(session, "orders", lines(), {}, told.append))
    assert [one.offset for one in told] == list(range(600))


def test_input_without_the_end_of_a_line_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the line and the way out."""
    monkeypatch.setattr(sending, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(sending, "CHUNK_BYTES", 100)

    async def scenario() -> None:
        async for _ in sending.lines_of([("line", io.BytesIO(b"one\n" + b"x" * 5000))]):
            pass

    with pytest.raises(UsageError, match=r"line 2 is longer than 1,000 bytes.*--whole"):
        asyncio.run(scenario())


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1 << 16])
def test_lines_are_cut_alike_however_they_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chunk_bytes: int
) -> None:
    """A file and bytes in memory: places count empty lines, which are left out."""
    monkeypatch.setattr(sending, "CHUNK_BYTES", chunk_bytes)
    text = b"one\r\n\n\xffthree\nfour"
    path = tmp_path / "lines"
    path.write_bytes(text)

    async def scenario() -> list[tuple[str, bytes]]:
        with path.open("rb") as stream:
            sources = [("the body", b"a\nb"), ("file", stream), ("line", io.BytesIO(text))]
            return [each async for each in sending.lines_of(sources)]

    found = [("1", b"one"), ("3", b"\xffthree"), ("4", b"four")]
    wanted = [(f"{name} {number}", data) for name in ("file", "line") for number, data in found]
    assert asyncio.run(scenario()) == [("the body", b"a\nb"), *wanted]
