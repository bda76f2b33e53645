"""The web console in front of Apache RocketMQ: what it has is shown, what it has not is said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import inorder
import inorder.aio
from inorder.errors import InorderError
from tests.integration.consolekit import Browser, console, until
from tests.interop.rocketmq import real_cluster

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run Apache RocketMQ's name server and broker."""
    with real_cluster(tmp_path_factory.mktemp("rocketmq")) as (host, port):
        yield f"{host}:{port}"


async def _fill(namesrv: str) -> inorder.aio.Consumer:
    """Send messages of two keys and start a group that handles them."""
    async with inorder.aio.Admin(namesrv) as admin:

        async def made() -> bool:
            try:
                await admin.topics.create("console-orders", queues=2)
            except InorderError:
                return False
            return True

        await until(made, 60)
    async with inorder.aio.Producer(namesrv) as producer:
        for number in range(10):
            await producer.send("console-orders", b'{"n": %d}' % number, key=f"order-{number % 2}",
                                tag="paid")  # fmt: skip
    consumer = inorder.aio.Consumer(namesrv, group="console-billing", consume_from="first")

    @consumer.on("console-orders", order="queue")
    async def handle(message: inorder.ReceivedMessage) -> None: ...

    await consumer.start()
    return consumer


def test_every_page_on_rocketmq(namesrv: str) -> None:
    """Lists, lag, messages, search and the story work; owners, parking and resizes are said to
    be unknown there, with the reason, and never look empty."""

    async def main() -> None:
        consumer = await _fill(namesrv)
        async with console(namesrv) as (address, sessions):
            browser = Browser(address)
            await browser.sign_in(sessions.token)

            async def done() -> bool:
                page = await browser.get("/groups/console-billing")
                return page.status == 200 and "To do 0" in page.text

            await until(done, 60)
            group = await browser.get("/groups/console-billing")
            assert "1 member is connected" in group.text
            assert "Apache RocketMQ does not tell who holds its locks" in group.text
            assert "Apache RocketMQ keeps no parked keys" in group.text
            for path, words in (
                ("/", "Groups"),
                ("/topics?word=console", "console-orders"),
                ("/topics/console-orders", "Messages by queue"),
                ("/groups/console-billing/owners", "Apache RocketMQ does not tell"),
                ("/topics/console-orders/resize", "it is Apache RocketMQ"),
                ("/parked", "Apache RocketMQ keeps none"),
                ("/messages?topic=console-orders", "order-1"),
                ("/messages?topic=console-orders&key=order-1", "5 shown"),
                ("/groups/console-billing/offsets?topic=console-orders&to=beginning",
                 "Handled again 10"),
                ("/settings", "brokerClusterName"),
                ("/brokers", "answers"),
                ("/audit", "Was order kept?"),
            ):  # fmt: skip
                page = await browser.get(path)
                assert page.status == 200, (path, page.text)
                assert words in page.text, (path, page.text)
            story = await browser.get("/keys?topic=console-orders&key=order-1")
            assert story.steps() == ["sent", "stored"] * 5 + ["committed"]
            assert "Apache RocketMQ keeps no versions" in story.text
            await browser.submit("/audit", "Run the audit", "/audit", topic="console-orders")

            async def judged() -> bool:
                return "in order nothing is lost" in (await browser.get("/audit")).text

            await until(judged)
            sent = await browser.submit(
                "/topics/console-orders/send", "Send a message to console-orders",
                "/topics/console-orders/send", body="x", key="order-1",
            )  # fmt: skip
            assert "is stored at" in sent.text
            await consumer.close()
            page = "/groups/console-billing/offsets?topic=console-orders&to=beginning"
            reset = await browser.submit(
                page, "Reset console-billing", "/groups/console-billing/offsets",
                confirm="console-billing", reason="again",
            )  # fmt: skip
            assert "goes on at beginning of console-orders" in reset.text

    asyncio.run(main())
