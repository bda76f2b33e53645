"""Pipelined producers over a bad network and a broker that is killed, from one seed.

Every producer has many sends of a key on their way: single ones, batches, one-way ones, some with
so little time that their callers give up. Another load are bursts of `send_nowait` and `submit` of
few keys, which travel in requests of many messages. In the end the log holds each message at most
once, what was acknowledged exactly once, and all in the order of the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import zlib
from dataclasses import replace
from typing import Any

import pytest

from inorder.checker import Kind, Report, Sent, SentResult, queue_name
from inorder.client.send.producer import Producer
from inorder.client.send.sender import BrokerSender
from inorder.client.session import Session
from inorder.errors import FlushTimeout, InorderError, NoRoom, SendsFailed, TransportError
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


class Bursts(Pipelined):
    """Hundreds of messages of few keys at once, so that most share a request with others."""

    async def produce(self, session: Session, name: str) -> None:
        draw = stream(self.loop.seed, name)
        producer = Producer(session)
        counts = dict.fromkeys((f"key-{n}" for n in range(3)), 0)
        for _ in range(8):
            await asyncio.sleep(draw.expovariate(4))
            limit = draw.choice((0.3, 2, 60, 60, None))
            for _ in range(draw.randint(1, 200)):
                await self.add(producer, name, draw, counts, limit)
                if draw.random() < 0.02:
                    await asyncio.sleep(draw.uniform(0, 0.05))
        with contextlib.suppress(SendsFailed):
            await producer.flush()
        assert producer.statistics().waiting == 0

    async def add(
        self, producer: Producer, name: str, draw: random.Random, counts: dict[str, int],
        limit: float | None,
    ) -> None:  # fmt: skip
        """Hand one message over; its outcome is noted when it comes."""
        key = draw.choice(list(counts))
        number = counts[key]
        id_ = f"{name}/{key}/{number}"
        body = id_.encode() + bytes(draw.choice((0, 20, 900, 6000)))
        how: dict[str, Any] = {
            "key": key, "timeout": limit, "properties": {"id": id_, "sequence": str(number)}
        }  # fmt: skip
        try:
            if draw.random() < 0.5:
                future = producer.send_nowait(TOPIC, body, **how)
            else:
                future = await producer.submit(TOPIC, body, **how)
        except NoRoom:
            return  # it was not accepted: its number is free
        counts[key] += 1
        if draw.random() < 0.02:
            asyncio.get_running_loop().call_later(draw.uniform(0, 0.5), future.cancel)
        future.add_done_callback(
            lambda done: self.note(name, key, number, id_, body, done)  # type: ignore[arg-type]
        )

    def note(  # noqa: PLR0917 - called in one place
        self, name: str, key: str, number: int, id_: str, body: bytes,
        done: asyncio.Future[SendReceipt],
    ) -> None:  # fmt: skip
        """Keep what the caller was told."""
        result, queue, offset = SentResult.OK, None, None
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if isinstance(error, TransportError | FlushTimeout | asyncio.CancelledError):
            result = SentResult.UNKNOWN
        elif error is not None:
            assert isinstance(error, InorderError), error
            result = SentResult.FAILED
        elif done.result().offset >= 0:
            queue, offset = queue_name(done.result().queue), done.result().offset
        digest = f"{zlib.crc32(body):08x}"
        self.history.append(Sent(name, key, number, id_, result, queue, offset, digest))


def play(seed: int, scenario: type[Pipelined] = Pipelined) -> Report:
    """Return the verdict on one seed."""

    async def main(loop: SimLoop) -> Report:
        plan = replace(Plan.of(seed), drops=True)
        return await scenario(loop, plan).play()

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
@pytest.mark.parametrize("seed", SEEDS)
def test_bursts_that_share_requests_are_stored_once_and_in_order(seed: int):
    """The same for messages of single calls that travel together."""
    report = play(seed, Bursts)
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
