"""Requests that wait for their replies: the first outcome counts, and nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inorder.client.replies import reply_of
from inorder.client.send.requests import Request, Requests, asking
from inorder.errors import CorruptRecord, RequestTimeout, SendTimedOut, TooManyOutstanding
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.wire.requests.replies import PushReply

RECEIPT = SendReceipt("ID1", TopicQueue("t", "broker-a", 2), 7)
REPLY = Message("C_REPLY_TOPIC", b"yes")

Story = Callable[[Requests, asyncio.Future[Message], Request], Coroutine[Any, Any, None]]


def play(story: Story, *, timeout_ms: int = 60_000) -> None:
    async def main() -> None:
        requests = Requests(2)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        request = requests.open("ID1", future, timeout_ms)
        await story(requests, future, request)
        assert requests.waiting == 0
        await requests.settled()

    asyncio.run(main())


def test_the_first_reply_counts() -> None:
    """A second one finds nobody."""

    async def story(requests: Requests, future: asyncio.Future[Message], request: Request) -> None:
        request.set_result(RECEIPT)
        assert not future.done()
        assert requests.take("ID1", lambda: REPLY)
        assert not requests.take("ID1", lambda: REPLY)
        assert (await future, requests.answered) == (REPLY, 1)

    play(story)


def test_a_reply_may_come_before_the_receipt() -> None:
    """The receipt changes nothing then, and neither does an error of the send."""

    async def story(requests: Requests, future: asyncio.Future[Message], request: Request) -> None:
        assert requests.take("ID1", lambda: REPLY)
        assert request.done()
        request.set_result(RECEIPT)
        request.set_exception(SendTimedOut("no answer"))
        assert await future == REPLY

    play(story)


def test_without_a_reply_the_time_is_up() -> None:
    """The error says where the message lies."""

    async def story(_: Requests, future: asyncio.Future[Message], request: Request) -> None:
        request.set_result(RECEIPT)
        with pytest.raises(RequestTimeout, match=r"stored in t/broker-a/2 at offset 7") as raised:
            await future
        assert not isinstance(raised.value, SendTimedOut)

    play(story, timeout_ms=1)


def test_the_error_of_the_send_says_more_than_the_missing_reply() -> None:
    """At the deadline a request without a receipt waits for the outcome of its send."""

    async def story(_: Requests, future: asyncio.Future[Message], request: Request) -> None:
        await asyncio.sleep(0.01)
        assert not future.done()
        request.set_exception(SendTimedOut("the broker did not answer"))
        with pytest.raises(SendTimedOut):
            await future

    play(story, timeout_ms=1)


def test_a_receipt_after_the_deadline_ends_the_request() -> None:
    """The message is stored, and its reply would come too late."""

    async def story(_: Requests, future: asyncio.Future[Message], request: Request) -> None:
        await asyncio.sleep(0.01)
        request.set_result(RECEIPT)
        with pytest.raises(RequestTimeout):
            await future

    play(story, timeout_ms=1)


def test_a_caller_that_went_away_is_forgotten() -> None:
    """Its reply is late, and its place is free again."""

    async def story(requests: Requests, future: asyncio.Future[Message], _: Request) -> None:
        loop = asyncio.get_running_loop()
        other: asyncio.Future[Message] = loop.create_future()
        requests.open("ID2", other, 60_000)
        with pytest.raises(TooManyOutstanding, match="2 requests wait"):
            requests.open("ID3", loop.create_future(), 60_000)
        future.cancel()
        assert not requests.take("ID1", lambda: REPLY)
        third = requests.open("ID3", loop.create_future(), 60_000)
        other.cancel()
        third.forget()
        await requests.settled()

    play(story)


def test_a_reply_that_cannot_be_read_is_an_error() -> None:
    """Its caller need not wait until the time is up."""

    async def story(requests: Requests, future: asyncio.Future[Message], _: Request) -> None:
        def read() -> Message:
            raise CorruptRecord("zlib body is broken")

        assert requests.take("ID1", read)
        with pytest.raises(CorruptRecord):
            await future

    play(story)


def test_a_request_names_its_message_and_its_client() -> None:
    """The correlation id is the id of the message, the time is in milliseconds as in Java."""
    asked = asking({"a": "b"}, id_="ID1", client_id="ip@1", timeout_ms=1500)
    assert asked == {
        "a": "b", "CORRELATION_ID": "ID1", "REPLY_TO_CLIENT": "ip@1", "TTL": "1500",
    }  # fmt: skip


def test_a_pushed_reply_is_a_message() -> None:
    """With tag, keys and properties of the responder, and its body as it was."""
    push = PushReply(
        "PG", "C_REPLY_TOPIC", "TBW102", 4, 0, 0, 1, 3, "1.2.3.4:5", "1.2.3.4:6", 2,
        "TAGS\x01ok\x02KEYS\x01a b\x02x\x01y\x02",
    )  # fmt: skip
    reply = reply_of(push, b"body", body_bytes_max=10)
    assert (reply.body, reply.tag, reply.keys, reply.flag) == (b"body", "ok", ("a", "b"), 3)
    assert reply.properties["x"] == "y"
