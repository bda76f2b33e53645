"""A named producer as a pipeline uses one: chunks of numbered messages, run again until done.

Numbers grow with gaps. When anything of a chunk fails the pipeline begins again with that chunk, as
a task that is retried would: a new producer of the same name, the same messages, the same numbers.
Whatever became of the first attempt, each message is to be stored once, in the order of its queue.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter

from inorder.aio import ClientConfig, Producer, SendReceipt, Session, TopicQueue
from inorder.checker import Event, Sent, SentResult, queue_name
from inorder.errors import InorderError
from tests.crash.frontdoor import BROKER
from tests.kit.simcluster import stream

CHUNK = 24
GAP_MAX = 10
FINISH_S = 60.0


class Pipeline:
    """One named producer, over and over."""

    def __init__(
        self, name: str, namesrv: str, *, topic: str, queues: int, seed: int, config: ClientConfig
    ) -> None:
        self.events: list[Event] = []
        self.attempts: Counter[str] = Counter()
        self._name = name
        self._namesrv = namesrv
        self._config = config
        self._topic = topic
        self._queues = [TopicQueue(topic, BROKER, index) for index in range(queues)]
        self._draw: random.Random = stream(seed, name)
        self._number = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Send chunk after chunk; the last one is brought to its end."""
        async with Session(self._namesrv, config=self._config) as session:
            while not stop.is_set():
                chunk = [self._letter() for _ in range(self._draw.randint(1, CHUNK))]
                await self._finish(session, chunk, stop)
                await asyncio.sleep(self._draw.uniform(0, 0.1))

    def _letter(self) -> tuple[TopicQueue, int]:
        self._number += self._draw.randint(1, GAP_MAX)
        return self._draw.choice(self._queues), self._number

    async def _finish(
        self, session: Session, chunk: list[tuple[TopicQueue, int]], stop: asyncio.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        stopped_at: float | None = None
        while True:
            self.attempts["chunks"] += 1
            outcomes = await self._attempt(session, chunk)
            if not any(isinstance(one, BaseException) for one in outcomes):
                self.attempts["done"] += 1
                break
            if stop.is_set():
                stopped_at = stopped_at or loop.time()
                if loop.time() - stopped_at > FINISH_S:
                    break
            await asyncio.sleep(0.05)
        for (queue, number), outcome in zip(chunk, outcomes, strict=True):
            self._note(queue, number, outcome)

    async def _attempt(
        self, session: Session, chunk: list[tuple[TopicQueue, int]]
    ) -> list[SendReceipt | BaseException]:
        async with Producer(session, id=self._name) as producer:
            futures = []
            for queue, number in chunk:
                body = self._id(queue, number)
                properties = {"id": body, "sequence": str(number)}
                futures.append(
                    producer.send_nowait(
                        self._topic, body.encode(), key=self._key(queue), queue=queue,
                        sequence=number, properties=properties, timeout=self._draw.choice((1, 5)),
                    )
                )  # fmt: skip
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for one in outcomes:
            if isinstance(one, BaseException):
                assert isinstance(one, InorderError), one
                self.attempts[type(one).__name__] += 1
        return outcomes

    def _key(self, queue: TopicQueue) -> str:
        return f"{self._name}-{queue.index}"

    def _id(self, queue: TopicQueue, number: int) -> str:
        return f"{self._key(queue)}/{number}"

    def _note(self, queue: TopicQueue, number: int, outcome: SendReceipt | BaseException) -> None:
        place, offset, result = None, None, SentResult.UNKNOWN
        if isinstance(outcome, SendReceipt):
            result = SentResult.OK
            if outcome.offset >= 0:
                place, offset = queue_name(outcome.queue), outcome.offset
        id_ = self._id(queue, number)
        digest = f"{zlib.crc32(id_.encode()):08x}"
        self.events.append(
            Sent(self._name, self._key(queue), number, id_, result, place, offset, digest)
        )
