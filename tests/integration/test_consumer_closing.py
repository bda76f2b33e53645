"""`aio.Consumer.close`: whoever calls it, in a handler or not, and when."""

from __future__ import annotations

import asyncio

import pytest

import inorder.aio
import inorder.testing
from inorder.model import ReceivedMessage
from tests.integration.consumerkit import GROUP, TOPIC, Kit, begin, consumer_of, play

ORDERS = ["queue", "key", None]


def committed(kit: Kit) -> int:
    return sum(kit.cluster.broker.offsets.queues(GROUP, TOPIC).values())


@pytest.mark.parametrize("order", ORDERS)
def test_a_handler_that_awaits_a_task_which_closes_does_not_wait_for_itself(order: str | None):
    """The task belongs to the handler: close only asks. Nothing more is begun, all is committed."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        begun = 0

        @consumer.on(TOPIC, order=order, concurrency=4)  # type: ignore[arg-type]
        async def handle(message: ReceivedMessage) -> None:
            nonlocal begun
            begun += 1
            await asyncio.sleep(0.001)
            if len(kit.got) >= 10:
                await asyncio.create_task(consumer.close())
                after.append(begun)
            kit.got.append(message)

        after: list[int] = []
        await kit.send(400)
        node = next(node for node, _, one in kit.started if one is consumer)
        started = kit.loop.time()
        await node.run(consumer.run())
        assert kit.loop.time() - started < 10  # seconds of the simulation; a deadlock takes 30
        assert begun == after[0] == len(kit.got)
        if order != "key":  # there a map of what is done above goes along
            assert committed(kit) == begun
        assert not kit.cluster.broker.locks.held(GROUP)
        assert GROUP not in kit.cluster.broker.members.groups()

    play(story, queues=4)


def test_a_task_that_outlives_its_handler_waits_for_the_end():
    """The handler's token is void when the handler ended: such a close is like any other."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)
        closed: list[tuple[int, int]] = []
        running, tasks = 0, []

        async def close_later() -> None:
            await asyncio.sleep(0.05)
            await consumer.close()
            closed.append((running, len(kit.got)))

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            nonlocal running
            running += 1
            if not tasks:
                tasks.append(asyncio.create_task(close_later()))
            else:
                await asyncio.sleep(0.2)
            running -= 1
            kit.got.append(message)

        await kit.send(40)
        await begin(kit, consumer)
        await kit.until(lambda: bool(closed))
        assert closed == [(0, len(kit.got))]
        assert committed(kit) == len(kit.got)

    play(story, queues=4)


def test_the_earliest_end_of_several_closes_counts():
    """`timeout` bounds the wait for handlers; one that is left behind is cancelled, uncommitted."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(10_000)

        await kit.send(1, key="k")
        await begin(kit, consumer)
        await kit.until(lambda: consumer.statistics().running == 1)
        started = kit.loop.time()
        patient = asyncio.create_task(consumer.close(timeout=20))
        await asyncio.sleep(1)
        await consumer.close(timeout=2)
        assert 3 <= kit.loop.time() - started < 4
        await patient
        assert kit.loop.time() - started < 4
        assert committed(kit) == 0

    play(story, queues=1)


def test_an_error_of_the_block_is_not_masked():
    """What the block raised goes on; what `close` raised then is logged."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None: ...

        async def fail(timeout: float | None = None) -> None:  # noqa: ASYNC109 - as close has it
            raise inorder.UsageError("as told")

        node = next(node for node, _, one in kit.started if one is consumer)

        async def block() -> None:
            async with consumer:
                consumer.close = fail  # type: ignore[method-assign]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await node.run(block())
        del consumer.close

    play(story, queues=1)


@pytest.mark.slow
def test_a_program_whose_main_returns_does_not_wait_for_handlers_that_were_cancelled():
    """asyncio.run cancels all tasks at its end, handlers too: run() closes without them."""
    with inorder.testing.broker() as broker:
        broker.create_topic("orders", queues=1)
        with broker.producer() as producer:
            for number in range(5):
                producer.send("orders", b"%d" % number, key="k")
        ended: list[float] = []

        async def main() -> None:
            consumer = inorder.aio.Consumer(broker.namesrv, group="g", consume_from="first")
            entered = asyncio.Event()

            @consumer.on("orders")
            async def handle(message: ReceivedMessage) -> None:
                if message.offset == 3:
                    entered.set()
                    await asyncio.sleep(600)

            async def run() -> None:
                try:
                    await consumer.run()
                finally:
                    loop = asyncio.get_running_loop()
                    ended.append(loop.time() - began)

            task = asyncio.create_task(run())
            await entered.wait()
            began = asyncio.get_running_loop().time()
            del task

        asyncio.run(main())
        with inorder.Admin(broker.namesrv) as admin:
            assert [each.committed_offset for each in admin.offsets.get("g", "orders")] == [3]
    assert len(ended) == 1
    assert ended[0] < 25  # close_timeout_ms is 30 s


def test_run_returns_with_the_error_when_a_step_of_close_fails():
    """A bug in closing is an error of `run`, not a program that waits for ever."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        def broken() -> None:
            raise RuntimeError("a bug")

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            assert consumer._service is not None
            consumer._service.halt = broken  # type: ignore[method-assign]
            await consumer.close()

        await kit.send(1)
        node = next(node for node, _, one in kit.started if one is consumer)
        running = asyncio.ensure_future(node.run(consumer.run()))
        await asyncio.wait((running,), timeout=20)
        assert running.done(), "run() waits for ever"
        with pytest.raises(RuntimeError, match="a bug"):
            await running
        kit.started.clear()  # it cannot be closed

    play(story, queues=1)
