"""`inorder send` with many lines: what an interruption leaves."""

import asyncio
import contextlib
from typing import Any, ClassVar

import pytest

from inorder.cli import sending
from inorder.cli.send import Line
from inorder.config import ClientConfig


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


class AnySession:
    config = ClientConfig()


def test_ctrl_c_cancels_all_pending_lines_in_one_step_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No later message of a key can be written while an earlier one is cancelled already."""
    monkeypatch.setattr(sending, "Producer", Pending)
    lines = [Line(where=f"line {n}", key="k", tag=None, body=b"x") for n in range(10)]
    session: Any = AnySession()

    async def interrupt() -> None:
        sent = asyncio.create_task(sending.send_all(session, "orders", lines, {}, None))
        for _ in range(len(lines)):
            await asyncio.sleep(0)
        assert len(Pending.sends) == len(lines)
        sent.cancel()
        while not sent.done():
            assert len({one.cancelled() for one in Pending.sends}) == 1
            await asyncio.sleep(0)
        assert all(one.cancelled() for one in Pending.sends)
        with contextlib.suppress(asyncio.CancelledError):
            await sent

    asyncio.run(interrupt())
    assert "0 were sent, of 10 more nobody knows" in capsys.readouterr().err
