"""Transactions of our client in the simulated cluster: over kills, once each, by commit order."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field

import pytest

from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.config import BrokerConfig, StoreConfig
from inorder.errors import InorderError
from inorder.model import ReceivedMessage, TopicConfig, TransactionState
from inorder.wire.record import Record
from tests.crash.load import read_queue
from tests.kit.simcluster import BROKER_HOST, SimCluster, stream
from tests.kit.simloop import SimLoop, run

SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, 9)
TOPIC, QUEUES, KEYS, KILLS = "paid", 2, 4, 5
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK


@dataclass
class Business:
    """What each program decided, once; and which commits were answered, in their order."""

    outcome: dict[str, TransactionState] = field(default_factory=dict)
    answered: dict[str, list[str]] = field(default_factory=dict)
    closing: bool = False

    def decide(self, id_: str, state: TransactionState) -> TransactionState:
        return self.outcome.setdefault(id_, state)

    def listener(self, message: ReceivedMessage) -> TransactionState:
        return self.decide(message.body.decode(), ROLLBACK)


async def trade(session: Session, business: Business, name: str, seed: int) -> None:
    """Begin and end transactions; a program has keys of its own: its commits have an order."""
    draw = stream(seed, name)
    producer = Producer(session, group="shop", on_transaction_check=business.listener)
    number = 0
    while not business.closing:
        await asyncio.sleep(draw.uniform(0, 0.2))
        number += 1
        id_, key = f"{name}-{number}", f"{name}-{draw.randrange(KEYS)}"
        transaction = producer.transaction(TOPIC, id_.encode(), key=key, timeout=3)
        try:
            await transaction.begin()
            await asyncio.sleep(draw.choice((0, 0.01, draw.uniform(0, 2.0))))
            wanted = COMMIT if draw.random() < 0.7 else ROLLBACK
            if business.decide(id_, wanted) is not COMMIT:
                await transaction.rollback()
                continue
            await transaction.commit()
            business.answered.setdefault(key, []).append(id_)
        except InorderError:
            continue
    await producer.close()


async def play(loop: SimLoop) -> tuple[Business, dict[int, list[Record]], int]:
    """Kill broker and clients; return the decisions, what is stored, and what is pending."""
    draw = stream(loop.seed, "transactions")
    store = StoreConfig(
        segment_bytes=1 << 20, queue_file_bytes=20 * 1000, index_slots=100, index_entries=4000
    )
    cluster = SimCluster(
        loop,
        broker=BrokerConfig(
            store=store, transaction_timeout_ms=500, transaction_check_interval_ms=400,
            transaction_checks_max=100_000, transaction_note_interval_ms=700,
        ),
    )  # fmt: skip
    await cluster.start()
    node, session = await cluster.client()
    api = await node.run(session.broker_at(f"{BROKER_HOST}:10911"))
    await node.run(api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES)))
    business = Business()
    programs = []
    for number in range(2 + KILLS):
        node, session = await cluster.client()
        programs.append((node, node.run(trade(session, business, f"p{number}", loop.seed))))
    tasks = [asyncio.ensure_future(work) for _, work in programs]
    for victim in range(KILLS):
        await asyncio.sleep(draw.uniform(0.5, 3))
        loop.kill(programs[victim][0])
        if draw.random() < 0.7:
            cluster.kill_broker()
            await asyncio.sleep(draw.uniform(0, 1))
            await cluster.start_broker()
    await asyncio.sleep(2)
    business.closing = True
    await asyncio.wait(tasks[KILLS:])  # those of the dead never end
    node, session = await cluster.client()
    last = Producer(session, group="shop", on_transaction_check=business.listener)
    await node.run(last.start())
    await asyncio.sleep(60)
    api = await node.run(session.broker_at(f"{BROKER_HOST}:10911"))
    records = {queue: await node.run(read_queue(api, (TOPIC, queue))) for queue in range(QUEUES)}
    pending = len(cluster.brokers[0].broker.transactions)
    await node.run(last.close())
    await cluster.stop()
    return business, records, pending


def judge(seed: int) -> Counter[str]:
    """Play a seed; nothing pends, none is doubled or unwanted, keys are in the order of commits."""
    business, records, pending = run(play, seed)
    assert pending == 0
    stored = [record.body.decode() for queue in records.values() for record in queue]
    count = Counter(stored)
    assert max(count.values()) == 1
    wanted = {id_ for id_, state in business.outcome.items() if state is COMMIT}
    assert set(stored) <= wanted
    answered = {id_ for ids in business.answered.values() for id_ in ids}
    assert answered <= set(stored)
    assert len(answered) > 20
    for ids in business.answered.values():
        places = [stored.index(id_) for id_ in ids]
        assert places == sorted(places)
    return Counter(committed=len(stored), begun=len(business.outcome))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_transaction_has_its_outcome_once_and_keys_are_in_the_order_of_commits(seed: int):
    """Programs and broker are killed; a listener that lives answers for the dead."""
    assert judge(seed)["committed"] > 20
