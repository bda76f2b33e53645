"""Transactions of our client, on our broker and on Apache RocketMQ alike.

The broker asks about a transaction 6 s after its half at the earliest, and once in 30 s by default;
the tests of a running cluster do not wait for that (`tests/interop`, `tests/integration` do).
"""

from __future__ import annotations

import asyncio

import pytest

import inorder
from inorder import aio
from inorder.errors import UsageError
from tests.suite.conftest import SuiteCluster
from tests.suite.test_suite_blocking import poll

pytestmark = pytest.mark.slow


def test_what_is_committed_is_consumed_and_what_is_rolled_back_is_not(
    cluster: SuiteCluster, topic: str
) -> None:
    """In the order of the commits, each once; the receipt tells the end."""
    with inorder.Producer(cluster.namesrv, group=cluster.unique("shops")) as producer:
        with producer.transaction(topic, b"0", key="k") as first:
            assert first.receipt.state is inorder.TransactionState.UNKNOWN
        assert first.receipt.state is inorder.TransactionState.COMMIT
        with pytest.raises(ZeroDivisionError), producer.transaction(topic, b"99", key="k") as bad:
            raise ZeroDivisionError
        assert bad.receipt.state is inorder.TransactionState.ROLLBACK
        with producer.transaction(topic, b"2", key="k") as early:
            with producer.transaction(topic, b"1", key="k"):
                pass
            receipt = early.commit()
            assert receipt.state is inorder.TransactionState.COMMIT
        producer.send(topic, b"3", key="k")
        with producer.transaction(topic, b"98", key="k") as dropped:
            dropped.rollback()
    group = cluster.unique("readers")
    with inorder.PullConsumer(cluster.namesrv, group=group, consume_from="first") as consumer:
        consumer.assign([first.receipt.queue])
        assert poll(consumer, 4) == [0, 1, 2, 3]
        assert list(consumer.poll(0.2)) == []


def test_the_async_block_does_the_same(cluster: SuiteCluster, topic: str) -> None:
    """And its message carries key, tag and properties."""

    async def scenario() -> None:
        async with aio.Producer(cluster.namesrv, group=cluster.unique("shops")) as producer:
            async with producer.transaction(
                topic, b"7" * 5000, key="k", tag="paid", properties={"source": "web"}
            ) as done:
                pass
            assert done.receipt.state is aio.TransactionState.COMMIT
        group = cluster.unique("readers")
        async with aio.PullConsumer(cluster.namesrv, group=group, consume_from="first") as consumer:
            await consumer.assign([done.receipt.queue])
            (message,) = await consumer.poll(20)
            assert (message.body, message.key, message.tag) == (b"7" * 5000, "k", "paid")
            assert message.properties["source"] == "web"
            assert message.message_id == done.receipt.transaction_id

    asyncio.run(scenario())


def test_what_is_pending_is_listed(cluster: SuiteCluster, topic: str) -> None:
    """By the brokers that keep a list; an id that names no broker is refused by all."""
    with (
        inorder.Admin(cluster.namesrv) as admin,
        inorder.Producer(cluster.namesrv, group=cluster.unique("shops")) as producer,
        producer.transaction(topic, b"1", key="k") as pending,
    ):
        if cluster.differs("pending-transactions"):
            with pytest.raises(UsageError, match="no list"):
                admin.cluster.transactions(topic)
        else:
            (found,) = admin.cluster.transactions(topic).values()
            assert (found.total, found.oldest[0].key) == (1, "k")
            assert found.oldest[0].transaction_id == pending.receipt.transaction_id
        with pytest.raises(UsageError, match="no broker"):
            admin.cluster.resume_transaction("nonsense")


def test_a_transaction_is_ended_once(cluster: SuiteCluster, topic: str) -> None:
    """Its other end, a second block and a use before the first are mistakes that are named."""
    with inorder.Producer(cluster.namesrv, group=cluster.unique("shops")) as producer:
        early = producer.transaction(topic, b"1", key="k")
        with pytest.raises(UsageError, match="has not begun"):
            early.commit()
        with early:
            early.commit()
            with pytest.raises(UsageError, match="ended by commit"):
                early.rollback()
        with pytest.raises(UsageError, match="one message"), early:
            pass
        with pytest.raises(UsageError, match="TRAN_MSG"):
            producer.send(topic, b"1", properties={"TRAN_MSG": "true"})
