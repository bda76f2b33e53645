"""Failures that nobody asked for: `flush` and `close` report them, once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.errors import NoPermission, SendsFailed
from inorder.wire.codes import RequestCode, ResponseCode
from tests.unit.client.scripted import Scripted, over_the_wire, refuse

SEND = RequestCode.SEND_MESSAGE_V2
REFUSED = refuse(ResponseCode.NO_PERMISSION)


def test_flush_reports_what_nobody_asked_for():
    """With how many, and examples; then it is reported, and the next flush is quiet."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [REFUSED] * 7
        futures = [producer.send_nowait("t", b"%d" % n, key=f"k{n}") for n in range(8)]
        with pytest.raises(SendsFailed, match=r"7 messages .*key 'k\d': scripted.* 2 more") as told:
            await producer.flush()
        assert told.value.count == 7
        await producer.flush()
        failed = [future.exception() for future in futures]
        assert sum(isinstance(error, NoPermission) for error in failed) == 7
        statistics = producer.statistics()
        assert (statistics.failed, statistics.unheard) == (7, 0)
        await producer.close()

    over_the_wire(scenario)


@pytest.mark.parametrize("how", ["await", "gather", "exception", "result", "callback"])
def test_what_was_asked_for_is_not_reported(how: str):
    """Whoever got the error from the future, or waited for it, knows."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [REFUSED]
        future = producer.send_nowait("t", b"x", key="k")
        if how == "await":
            with pytest.raises(NoPermission):
                await future
        elif how == "gather":
            assert isinstance((await asyncio.gather(future, return_exceptions=True))[0], Exception)
        elif how == "callback":
            future.add_done_callback(lambda done: done.exception())
        else:
            await asyncio.wait([future])
            assert producer.statistics().unheard == 1
            with pytest.raises(NoPermission):
                raise future.exception() if how == "exception" else future.result() or Exception()
        await producer.flush()
        await producer.close()
        assert producer.statistics().unheard == 0

    over_the_wire(scenario)


def test_close_reports_when_all_is_done():
    """The producer is closed all the same; a second close is quiet."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        server.answers[SEND] = [REFUSED]
        producer.send_nowait("t", b"x", key="k")
        with pytest.raises(SendsFailed, match="1 messages"):
            await producer.close()
        await producer.close()

    over_the_wire(scenario)


def test_a_block_keeps_its_own_error(caplog: pytest.LogCaptureFixture):
    """What close reports goes to the log then."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.answers[SEND] = [REFUSED] * 2
        with pytest.raises(ZeroDivisionError):
            async with Producer(client) as producer:
                producer.send_nowait("t", b"x", key="k")
                raise ZeroDivisionError
        with pytest.raises(SendsFailed):
            async with Producer(client) as producer:
                producer.send_nowait("t", b"x", key="k")

    with caplog.at_level(logging.ERROR):
        over_the_wire(scenario)
    assert "1 messages of send_nowait failed" in caplog.text
