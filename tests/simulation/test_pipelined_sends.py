"""Pipelined producers over a bad network and a broker that is killed, from one seed.

Every producer has many sends of a key on their way: single ones, batches, one-way ones, some with
so little time that their callers give up. In the end the log holds each message at most once, what
was acknowledged exactly once, and all in the order of the calls.
"""

from __future__ import annotations

import asyncio
import os
import random
import zlib
from dataclasses import replace

import pytest

from inorder.checker import Kind, Report, Sent, SentResult, queue_name
from inorder.client.send.producer import Producer
from inorder.client.send.sender import BrokerSender
from inorder.client.session import Session
from inorder.errors import FlushTimeout, InorderError, TransportError
from inorder.model import Message, SendReceipt
from inorder.net.connection import Connection
from tests.kit.simcluster import stream
from tests.kit.simloop import SimLoop, run
from tests.simulation.test_send_kill_recover import TOPIC, Plan, Scenario

SEEDS = [int(os.environ["INORDER_SEED"])] if "INORDER_SEED" in os.environ else range(1, 16)


class Pipelined(Scenario):
    """Bursts instead of pairs."""

    async def produce(self, session: Session, name: str) -> None:
        draw = stream(self.loop.seed, name)
        producer = Producer(session)
        counts = dict.fromkeys((f"key-{n}" for n in range(self.plan.keys)), 0)
        work: list[asyncio.Future[None]] = []
        for _ in range(12):
            await asyncio.sleep(draw.expovariate(4))
            for _ in range(draw.randint(1, 30)):
                key = draw.choice(list(counts))
                size = draw.choice((1, 1, 1, 1, 3))
                first, counts[key] = counts[key], counts[key] + size
                ids = [f"{name}/{key}/{first + n}" for n in range(size)]
                send = self.burst(producer, name, key, first, ids, draw)
                work.append(asyncio.ensure_future(send))
                await asyncio.sleep(0)  # its place is taken when it first runs
        await asyncio.gather(*work)
        assert producer.statistics().waiting == 0

    async def burst(  # noqa: PLR0917 - called in one place
        self,
        producer: Producer,
        name: str,
        key: str,
        first: int,
        ids: list[str],
        draw: random.Random,
    ) -> None:
        timeout = draw.choice((0.05, 0.5, 60, 60, 60))
        bodies = [id_.encode() + bytes(draw.randint(0, 900)) for id_ in ids]
        marks = [{"id": id_, "sequence": str(first + n)} for n, id_ in enumerate(ids)]
        result = SentResult.OK
        receipts: list[SendReceipt] = []
        try:
            if len(ids) > 1:
                messages = [
                    Message(TOPIC, body, key, properties=mark)
                    for body, mark in zip(bodies, marks, strict=True)
                ]
                receipts = await producer.send_batch(messages, timeout=timeout)
            elif draw.random() < 0.1:
                await producer.send_oneway(
                    TOPIC, bodies[0], key=key, properties=marks[0], timeout=timeout
                )
                result = SentResult.UNKNOWN
            else:
                receipts = [
                    await producer.send(
                        TOPIC, bodies[0], key=key, properties=marks[0], timeout=timeout
                    )
                ]
        except (TransportError, FlushTimeout):
            result = SentResult.UNKNOWN
        except InorderError:
            result = SentResult.FAILED
        for n, (id_, body) in enumerate(zip(ids, bodies, strict=True)):
            receipt = receipts[n] if receipts else None
            queue = None if receipt is None else queue_name(receipt.queue)
            offset = None if receipt is None or receipt.offset < 0 else receipt.offset
            digest = f"{zlib.crc32(body):08x}"
            self.history.append(Sent(name, key, first + n, id_, result, queue, offset, digest))


def play(seed: int) -> Report:
    """Return the verdict on one seed."""

    async def main(loop: SimLoop) -> Report:
        plan = replace(Plan.of(seed), drops=True)
        return await Pipelined(loop, plan).play()

    return run(main, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_pipelined_sends_are_stored_once_and_in_order(seed: int):
    """Over crashes, cuts, partitions and callers that give up."""
    report = play(seed)
    print(f"seed {seed}: {report}")
    assert report.ok, f"make sim SEED={seed}\n{report}"
    assert report.counts["stored"] > 50


@pytest.mark.slow
def test_without_numbers_the_same_runs_leave_second_copies(monkeypatch: pytest.MonkeyPatch):
    """The judge sees what numbers prevent."""

    async def no_hello(_: BrokerSender, connection: Connection) -> bool:
        connection.numbers_sends = False
        return False

    monkeypatch.setattr(BrokerSender, "hello", no_hello)
    found = [play(seed).by_kind for seed in (1, 2, 3)]
    assert any(Kind.DOUBLED in kinds for kinds in found)
    assert all(kinds.keys() <= {Kind.DOUBLED} for kinds in found)
