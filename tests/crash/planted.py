"""Bugs planted from outside into broker or client, one rule at a time, to see that they are found.

`python -m tests.crash.planted NAME WORDS...` runs `inorder WORDS...` with a bug in the broker;
`plant(NAME)` plants those of either side in this process. The product has no such switch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def no_duplicate_check() -> None:
    """The broker stores a number again that it has stored."""
    from inorder.broker.producers import service as producer_service
    from inorder.ordering.sequence import Verdict

    judge_batch = producer_service.judge_batch
    settle = producer_service.Claim.settle

    def judge(last: int | None, numbers: Any) -> tuple[Verdict, int]:
        verdict, _ = judge_batch(last, numbers)
        return (Verdict.NEXT, 0) if verdict is Verdict.DUPLICATE else (verdict, 0)

    def note_new_ones(claim: producer_service.Claim, *place: Any) -> None:
        assert claim.state is not None
        if claim.rest[0] > claim.state.last:
            settle(claim, *place)

    producer_service.judge_batch = judge
    producer_service.Claim.settle = note_new_ones  # type: ignore[method-assign, assignment]


def no_gap_check() -> None:
    """The broker stores a number though the one before it is missing."""
    from inorder.broker.producers import service as producer_service
    from inorder.ordering.sequence import Verdict

    judge_batch = producer_service.judge_batch

    def judge(last: int | None, numbers: Any) -> tuple[Verdict, int]:
        verdict, done = judge_batch(last, numbers)
        return Verdict.NEXT if verdict is Verdict.GAP else verdict, done

    producer_service.judge_batch = judge


def no_fence() -> None:
    """The broker takes late copies of older connections, and does not compare ids."""
    from inorder.broker.producers.rules import ProducerTable
    from inorder.broker.producers.service import SequenceChecks
    from inorder.errors import ProducerMismatch

    speaker, stored = ProducerTable.speaker, SequenceChecks._stored

    def anyone(table: Any, producer_id: str, connection: Any) -> Any:
        return table.find(producer_id) or speaker(table, producer_id, connection)

    def whichever(self: Any, numbers: Any, number: int, unique: str | None) -> Any:
        try:
            return stored(self, numbers, number, unique)
        except ProducerMismatch as error:
            return stored(self, numbers, number, str(error).rpartition(" ")[2])

    ProducerTable.speaker = anyone  # type: ignore[method-assign]
    SequenceChecks._stored = whichever  # type: ignore[method-assign]


def half_a_replay() -> None:
    """The broker reads only the first numbers of each queue from its log when it starts."""
    from inorder.broker.producers.rules import ProducerTable

    replayed = ProducerTable.replayed

    def first_ones(table: Any, *place: Any, **how: Any) -> None:
        if place[3] < 10:
            replayed(table, *place, **how)

    ProducerTable.replayed = first_ones  # type: ignore[method-assign]


def renumber_at_once() -> None:
    """The client gives numbers anew without asking what became of those that it had given."""
    from inorder.client.send.queues import DONE, IN_FLIGHT, UNSENT, SendQueue

    def lose(queue: Any) -> None:
        for send in queue.sent:
            if send.state == IN_FLIGHT:
                send.state = DONE if send.abandoned else UNSENT
        queue.in_flight = queue.messages = 0
        queue.rewind()

    SendQueue.lose = lose  # type: ignore[method-assign]


def go_on_behind_a_failure() -> None:
    """The client of a name sends on though a message was given up that may come again."""
    from inorder.client.send.queues import SendQueue

    SendQueue.doom = lambda *_: []  # type: ignore[method-assign, assignment]


PLANTS: dict[str, Callable[[], None]] = {
    "no duplicate check": no_duplicate_check,
    "no gap check": no_gap_check,
    "no fence": no_fence,
    "half a replay": half_a_replay,
    "renumber at once": renumber_at_once,
    "go on behind a failure": go_on_behind_a_failure,
}


def plant(name: str) -> None:
    """Plant a bug in this process; nothing if the name is empty."""
    if name:
        PLANTS[name]()


if __name__ == "__main__":
    from inorder.cli.main import main

    plant(sys.argv[1])
    sys.argv = ["inorder", *sys.argv[2:]]
    main()
