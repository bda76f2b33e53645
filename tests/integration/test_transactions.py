"""Transactions of our client against a running broker: questions, kills, lost answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

import inorder
import inorder.testing
from inorder import aio
from inorder.config import BrokerConfig, ClientConfig
from inorder.errors import OutcomeUnknown, UsageError
from inorder.model import ReceivedMessage
from inorder.testing.brokers import AsyncRunningBroker

pytestmark = pytest.mark.slow

COMMIT, ROLLBACK = aio.TransactionState.COMMIT, aio.TransactionState.ROLLBACK
UNKNOWN = aio.TransactionState.UNKNOWN
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
EAGER = BrokerConfig(
    transaction_timeout_ms=20, transaction_check_interval_ms=20, transaction_note_interval_ms=50,
    transaction_checks_max=10_000,
)  # fmt: skip
PATIENT = ClientConfig(heartbeat_interval_ms=200, send_timeout_ms=20_000)


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await ask():  # noqa: ASYNC110 - a broker changes it
            await asyncio.sleep(0.01)


async def bodies(broker: AsyncRunningBroker) -> list[bytes]:
    return [message.body for message in await broker.messages("orders")]


async def until_stored(broker: AsyncRunningBroker, *wanted: bytes) -> None:
    async def stored() -> bool:
        return await bodies(broker) == list(wanted)

    await until(stored)


def test_a_lost_answer_repeats_neither_half_nor_commit() -> None:
    """The half comes again with its sequence number, the end is known."""

    async def scenario() -> None:
        async with inorder.testing.broker(client=PATIENT) as broker:
            await broker.create_topic("orders")
            async with aio.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
                await producer.send("orders", b"warm", key="k")
                await broker.lose_answers()
                transaction = producer.transaction("orders", b"paid", key="k")
                await transaction.begin()
                await broker.lose_answers()
                receipt = await transaction.commit()
                assert receipt.state is COMMIT
                assert len(broker._running().transactions) == 0
            assert await bodies(broker) == [b"warm", b"paid"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("answer", "stored"), [(COMMIT, [b"paid"]), (ROLLBACK, [])])
def test_another_producer_of_the_group_answers_for_one_that_is_gone(
    answer: aio.TransactionState, stored: list[bytes]
) -> None:
    """It never sent anything: it makes itself known to all brokers at its start."""

    async def scenario() -> None:
        asked: list[ReceivedMessage] = []

        def listener(message: ReceivedMessage) -> aio.TransactionState:
            asked.append(message)
            return answer

        async with inorder.testing.broker(config=EAGER) as broker:
            await broker.create_topic("orders")
            async with aio.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
                await producer.transaction("orders", b"paid", key="42", tag="t").begin()
            async with aio.Producer(
                broker.namesrv, config=PATIENT, group="shop", on_transaction_check=listener
            ):
                running = broker._running()

                async def resolved() -> bool:
                    return not len(running.transactions)

                await until(resolved)
            assert [message.body for message in await broker.messages("orders")] == stored
            assert (asked[0].topic, asked[0].key, asked[0].tag) == ("orders", "42", "t")

    asyncio.run(scenario())


def test_an_open_transaction_is_unknown_and_a_decided_one_is_known_without_a_listener() -> None:
    """A block may last longer than the broker's patience; its end counts once."""

    async def scenario() -> None:
        async with inorder.testing.broker(config=EAGER) as broker:
            await broker.create_topic("orders")
            async with aio.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
                running = broker._running()
                async with producer.transaction("orders", b"1", key="k"):

                    async def was_asked() -> bool:
                        return any(half.checks >= 3 for half in running.transactions)

                    await until(was_asked)
                assert await bodies(broker) == [b"1"]
                transaction = producer.transaction("orders", b"2", key="k")
                await transaction.begin()
                assert producer._checks is not None
                producer._checks.decisions.decided(transaction.receipt.transaction_id, COMMIT)
                await until_stored(broker, b"1", b"2")

    asyncio.run(scenario())


def test_producers_of_one_session_and_group_answer_together() -> None:
    """Each for what it began; the listener of any of them for the rest."""

    async def scenario() -> None:
        async with inorder.testing.broker(config=EAGER) as broker:
            await broker.create_topic("orders", queues=1)
            async with aio.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
                await producer.transaction("orders", b"of the dead", key="k").begin()
            async with aio.Session(broker.namesrv, config=PATIENT) as session:
                first = aio.Producer(session, group="shop", on_transaction_check=lambda _: COMMIT)
                second = aio.Producer(session, group="shop")
                await first.start()
                await until_stored(broker, b"of the dead")
                async with (
                    second.transaction("orders", b"second", key="k"),
                    first.transaction("orders", b"first", key="k"),
                ):
                    running = broker._running()

                    async def were_asked() -> bool:
                        return all(half.checks >= 3 for half in running.transactions)

                    await until(were_asked)
                await first.close()
                async with second.transaction("orders", b"third", key="k"):
                    pass
                await second.close()
            assert await bodies(broker) == [b"of the dead", b"first", b"second", b"third"]

    asyncio.run(scenario())


def test_a_killed_broker_knows_its_transactions_when_it_is_back() -> None:
    """What was open is ended after the restart; what was committed is there once."""

    async def scenario() -> None:
        async with inorder.testing.broker(client=PATIENT) as broker:
            await broker.create_topic("orders")
            async with aio.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
                for number in range(5):
                    async with producer.transaction("orders", b"%d" % number, key="k"):
                        if number % 2:
                            await broker.kill()
                            await broker.restart()
                await broker.kill()
                await broker.restart()
                with pytest.raises(KeyError):
                    async with producer.transaction("orders", b"no", key="k"):
                        await broker.kill()
                        await broker.restart()
                        raise KeyError
                assert len(broker._running().transactions) == 0
            assert await bodies(broker) == [b"%d" % number for number in range(5)]

    asyncio.run(scenario())


def test_a_listener_that_fails_or_answers_nonsense_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both count as unknown and are logged; it may be async."""

    async def scenario() -> None:
        answers = iter([ValueError("database away"), "commit", UNKNOWN, COMMIT])

        async def listener(message: ReceivedMessage) -> aio.TransactionState:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]

        async with inorder.testing.broker(config=EAGER) as broker:
            await broker.create_topic("orders")
            async with aio.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
                await producer.transaction("orders", b"paid", key="k").begin()
            async with aio.Producer(
                broker.namesrv, config=PATIENT, group="shop", on_transaction_check=listener
            ):
                await until_stored(broker, b"paid")

    asyncio.run(scenario())
    assert "database away" in caplog.text
    assert "no TransactionState" in caplog.text


def test_a_blocking_listener_runs_in_a_thread_of_its_own() -> None:
    """While it blocks, the producer goes on sending."""
    begun, go_on = threading.Event(), threading.Event()

    def listener(message: ReceivedMessage) -> inorder.TransactionState:
        begun.set()
        assert go_on.wait(30)
        return inorder.TransactionState.COMMIT

    with inorder.testing.broker(config=EAGER) as broker:
        broker.create_topic("orders", queues=1)
        with inorder.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
            producer.transaction("orders", b"first", key="k").__enter__()
        with inorder.Producer(
            broker.namesrv, config=PATIENT, group="shop", on_transaction_check=listener
        ) as producer:
            assert begun.wait(30)
            producer.send("orders", b"second", key="k")
            go_on.set()
            with inorder.PullConsumer(
                broker.namesrv, group="readers", consume_from="first"
            ) as consumer:
                found: list[bytes] = []
                consumer.assign(consumer.queues("orders"))
                while len(found) < 2:
                    found += [message.body for message in consumer.poll(1)]
    assert found == [b"second", b"first"], "a message joins its key when it is committed"


def test_no_end_that_reaches_no_broker_is_unknown() -> None:
    """The error says what will happen; the broker gets the same end when it asks."""

    async def scenario() -> None:
        async with inorder.testing.broker(config=EAGER) as broker:
            await broker.create_topic("orders")
            async with aio.Producer(broker.namesrv, config=PATIENT, group="shop") as producer:
                transaction = producer.transaction("orders", b"paid", key="k", timeout=0.3)
                await transaction.begin()
                await broker.kill()
                with pytest.raises(OutcomeUnknown, match="will answer commit"):
                    await transaction.commit()
                await broker.restart()
                await until_stored(broker, b"paid")

    asyncio.run(scenario())


def test_mistakes_are_named_at_the_call() -> None:
    """A listener needs a group of its own and must be callable; a named producer has none."""
    with pytest.raises(UsageError, match="group="):
        inorder.Producer("127.0.0.1:1", on_transaction_check=lambda _: COMMIT)
    with pytest.raises(UsageError, match="function"):
        inorder.Producer("127.0.0.1:1", group="g", on_transaction_check="commit")  # type: ignore[arg-type]
    with (
        inorder.Producer("127.0.0.1:1", id="pipe") as producer,
        pytest.raises(UsageError, match="named producer"),
    ):
        producer.transaction("orders", b"x", key="k")


def test_nothing_is_repeated_at_a_broker_that_numbers_no_sends() -> None:
    """As at Apache RocketMQ: a second half, or a second commit, would be a second message."""

    async def scenario() -> None:
        async with inorder.testing.broker(config=EAGER) as broker:
            await broker.create_topic("orders", queues=1)
            async with aio.Session(broker.namesrv, config=PATIENT) as session:
                producer = aio.Producer(session, group="shop")

                async def without_numbers() -> None:
                    connection = await session.master_connection(
                        aio.TopicQueue("orders", "broker-a", 0)
                    )
                    connection.numbers_sends, connection.capability = False, 0

                await without_numbers()
                await producer.send("orders", b"warm", key="k")
                await broker.lose_answers()
                lost = producer.transaction("orders", b"never", key="k")
                with pytest.raises(OutcomeUnknown):
                    await lost.begin()
                assert broker._running().store.queue(HALVES, 0).next_offset == 1
                await without_numbers()
                transaction = producer.transaction("orders", b"paid", key="k")
                await transaction.begin()
                await without_numbers()
                await broker.lose_answers()
                with pytest.raises(OutcomeUnknown, match="will answer commit"):
                    await transaction.commit()
                await session.heartbeat()

                async def resolved() -> bool:
                    return not len(broker._running().transactions)

                await until(resolved)
                await producer.close()
            assert await bodies(broker) == [b"warm", b"paid"]

    asyncio.run(scenario())
