"""The demo's part about parking: one key fails and is parked, the others flow, the key is redriven.

Payments of many customers are handled by key. The payments of one customer fail: after its attempts
the key is parked, its later messages join it, and all other keys go on. Then the cause is repaired
and the key is redriven while new payments arrive. At the end the order checker judges the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final

from inorder.checker import Handled, HandledResult, Handling, Rules, Sent, Stored, check, queue_name
from inorder.client.admin import Admin
from inorder.client.consume.consumer import Consumer
from inorder.client.consume.rules.outcomes import Park
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.demo.playing import Say, until, until_true
from inorder.model import ReceivedMessage, TopicConfig

TOPIC: Final = "payments"
GROUP: Final = "demo-parking"
QUEUES: Final = 4
BAD: Final = "customer-13"
LATER: Final = 5


@dataclass(frozen=True, slots=True)
class ParkingResult:
    """The result of this part."""

    customers: int
    payments: int
    parked_key: str
    parked: int
    """How many payments of the key were parked."""
    first_error: str
    others_done: int
    """Payments of the other customers that were handled while the key was parked."""
    redriven: int
    in_order: bool
    findings: tuple[str, ...]
    verdict: str


class _Scene:
    """The consumer, and the history that it leaves."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.producer = Producer(session, group="demo-payments")
        self.history: list[Sent | Stored | Handled] = []
        self.done: list[ReceivedMessage] = []
        self.mended = False
        self.numbers: dict[str, int] = {}

    async def pay(self, key: str, count: int) -> None:
        """Send payments of a customer."""
        for _ in range(count):
            number = self.numbers[key] = self.numbers.get(key, -1) + 1
            body = f"{key} payment {number}".encode()
            receipt = await self.producer.send(
                TOPIC, body, key=key, properties={"sequence": str(number)}
            )
            where = queue_name(receipt.queue)
            self.history.append(
                Sent("cashier", key, number, receipt.message_id, queue=where, offset=receipt.offset)
            )
            self.history.append(Stored(where, receipt.offset, receipt.message_id, key, number))

    async def handle(self, message: ReceivedMessage) -> None:
        """Book a payment, if its customer is known."""
        begin = time.monotonic_ns()
        fails = message.key == BAD and not self.mended
        result = HandledResult.FAILED if fails else HandledResult.DONE
        await asyncio.sleep(0.001)
        self.history.append(
            Handled(
                "C", queue_name(message.queue), message.offset, message.message_id, message.key,
                begin, time.monotonic_ns(), result,
            )
        )  # fmt: skip
        if fails:
            raise LookupError(f"{message.key} is not in the books")
        self.done.append(message)

    def done_of(self, key: str) -> int:
        """Return how many payments of a customer were booked."""
        return sum(message.key == key for message in self.done)


async def play_parking(session: Session, broker_address: str, say: Say) -> ParkingResult:
    """Play the part on a running cluster."""
    api = await session.broker_at(broker_address)
    await api.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES, order=True))
    scene, admin = _Scene(session), Admin(session)
    consumer = Consumer(session, group=GROUP, consume_from="first")
    consumer.on(TOPIC, order="key", concurrency=16, on_failure=Park(attempts=1))(scene.handle)
    quiet = logging.getLogger("inorder.client")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)  # failed attempts are the point of this part
    try:
        async with consumer:
            return await _act(scene, admin, consumer, say)
    finally:
        quiet.setLevel(level)
        await scene.producer.close()


async def _act(scene: _Scene, admin: Admin, consumer: Consumer, say: Say) -> ParkingResult:
    customers, each = 20, 10
    keys = [f"customer-{number}" for number in range(customers)]
    say(f"\n{customers} customers pay {each} times; the payments of {BAD} fail ...")
    await asyncio.gather(*(scene.pay(key, each) for key in keys))
    others = (customers - 1) * each
    await until(lambda: len(scene.done) == others, "the others' payments are handled")
    await until(lambda: consumer.statistics().parked == each, "the key is parked")
    (one,) = await admin.parked.list(GROUP)
    say(
        f"{BAD} is parked with {one.messages} payments ({one.first_error}); the other "
        f"{others} are handled: inorder parked {GROUP}"
    )
    scene.mended = True
    say(f"the books are mended: inorder redrive {GROUP} {BAD}, while it pays {LATER} times more")
    await admin.parked.redrive(GROUP, [BAD])
    await scene.pay(BAD, LATER)
    await until(lambda: scene.done_of(BAD) == each + LATER, "the key is redriven")

    async def live() -> bool:
        return not await admin.parked.list(GROUP)

    await until_true(live, "the key is live")
    await scene.pay(BAD, 1)
    await until(lambda: scene.done_of(BAD) == each + LATER + 1, "the key flows again")
    report = check(scene.history, rules=Rules(handling=Handling.KEY))
    say(f"{BAD} is live: {scene.done_of(BAD)} payments in order; order checker: {report}")
    return ParkingResult(
        customers=customers,
        payments=len(scene.done),
        parked_key=BAD,
        parked=one.messages,
        first_error=one.first_error,
        others_done=others,
        redriven=scene.done_of(BAD) - 1,
        in_order=report.ok,
        findings=tuple(map(str, report.findings)),
        verdict=str(report),
    )
