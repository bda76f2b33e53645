"""Questions of brokers about transactions: how many of them a producer takes at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from inorder.client.send.transactions import QUESTIONS_BYTES_MAX, QUESTIONS_MAX, Checks
from inorder.config import ClientConfig
from inorder.model import ReceivedMessage, TransactionState
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.record import Record, encode
from inorder.wire.requests.transactions import CheckTransactionState


def question(number: int, body: bytes = b"paid") -> Command:
    """A broker's question about one transaction."""
    record = Record("orders", 0, 0, 0, body, b"UNIQ_KEY\x01U%d\x02PGROUP\x01shop\x02" % number)
    asked = CheckTransactionState(number, number, "RMQ_SYS_TRANS_HALF_TOPIC", f"U{number}")
    return Command.request(asked.CODE, encode_fields(asked), encode(record), oneway=True)


def answered(bodies: list[bytes]) -> int:
    """How many questions that come at once are answered by a listener that takes its time."""
    answers: list[Command] = []

    async def listener(_: ReceivedMessage) -> TransactionState:
        await asyncio.sleep(0.001)
        return TransactionState.COMMIT

    async def scenario() -> None:
        session = SimpleNamespace(config=ClientConfig(), stop_checks=lambda _: None)
        checks = Checks(cast("Any", session), "shop")
        checks.join(listener)
        connection = cast("Any", SimpleNamespace(notify=answers.append))
        for number, body in enumerate(bodies):
            checks.asked(connection, question(number, body))
        while checks._answering:  # noqa: ASYNC110 - the tasks change it
            await asyncio.sleep(0)
        assert checks._answering_bytes == 0
        await checks.leave(listener)

    asyncio.run(scenario())
    return len(answers)


def test_all_transactions_of_a_program_that_died_are_answered_for_at_once() -> None:
    """A question that is not taken counts at the broker, which gives up after fifteen."""
    assert answered([b"paid"] * QUESTIONS_MAX) == QUESTIONS_MAX
    assert answered([b"paid"] * (QUESTIONS_MAX + 5)) == QUESTIONS_MAX


def test_questions_take_bounded_memory() -> None:
    """A single large one is taken always."""
    large = bytes(QUESTIONS_BYTES_MAX // 8)
    assert answered([large] * 9) == 7
    assert answered([large]) == 1
