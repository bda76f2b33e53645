"""What a handler can say, and what is done about a message that keeps failing.

A handler returns: done. It raises `Retry(after=seconds)`: again later, in order; `Reject`: no
further try. Any other exception is a failed attempt. With auto-commit off it returns an `Outcome`.

`attempts` counts as RocketMQ's maxReconsumeTimes does: how often a message is handed out *again*.
The first time is not counted, so a handler sees a message at most `attempts + 1` times.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from inorder.client.durations import Duration, to_ms
from inorder.errors import UsageError

ATTEMPTS_MAX: Final = 2**31 - 1
"""RocketMQ's number for "for ever"."""


class Outcome(Enum):
    """What a handler of an ordered queue may return; RocketMQ's ConsumeOrderlyStatus."""

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class Retry(Exception):
    """Raised by a handler: not now, again later, nothing overtakes it.

    Without `after` the pause is the consumer's default. An ordered queue waits 10 ms to 30 s; a
    concurrent message goes to the retry topic with the shortest delay level that is long enough.
    """

    def __init__(self, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else to_ms(after)
        super().__init__("try again later" if after is None else f"try again after {after} s")


class Reject(Exception):
    """Raised by a handler: this message will never do, no further try.

    It goes to the dead letters at once, with this text; with Park its key is parked. Only Block()
    without a number of attempts lets nothing leave its queue: there it is a failed attempt.
    """

    def __init__(self, reason: object = "") -> None:
        super().__init__(str(reason) if reason else "the handler rejected it")


@dataclass(frozen=True, slots=True)
class Handled:
    """Returned by a concurrent handler of batches: the first `count` messages are done, the others
    failed. RocketMQ's ackIndex is `count - 1`."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UsageError(f"Handled({self.count}): a count of messages is 0 or more")


@dataclass(frozen=True, slots=True)
class Block:
    """The queue waits for the message: for ever, or until it was tried `attempts` times again.

    Then it goes to the dead-letter topic, as with RocketMQ's maxReconsumeTimes.
    """

    attempts: int | None = None

    def __post_init__(self) -> None:
        if self.attempts is not None:
            _check_attempts(self.attempts)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """After `attempts` further tries the message goes to `%DLQ%group`, and what follows goes on."""

    attempts: int = 16

    def __post_init__(self) -> None:
        _check_attempts(self.attempts)


@dataclass(frozen=True, slots=True)
class Park:
    """After `attempts` further tries the key is set aside, and the other keys go on.

    Its later messages join it in their order, until somebody lets them be handled again (`inorder
    redrive`) or drops them. `Retry` only makes the key wait and does not count as a try. Needs
    order="key" and brokers of ours.
    """

    attempts: int = 5

    def __post_init__(self) -> None:
        _check_attempts(self.attempts)


Policy = Block | DeadLetter | Park


def default_policy(order: str | None) -> Policy:
    """Return RocketMQ's: an ordered queue waits for ever, else there are 16 further tries."""
    return DeadLetter() if order is None else Block()


def check_policy(policy: Policy, order: str | None) -> None:
    """Refuse what has no meaning: a concurrent message blocks nothing, a queue is no key."""
    if order != "key" and isinstance(policy, Park):
        instead = "DeadLetter(attempts=…)" + (" or Block()" if order == "queue" else "")
        raise UsageError(
            f"Park sets a key aside while others go on, and order={order!r} knows no keys; use "
            f"order='key', or {instead}"
        )
    if order is None and isinstance(policy, Block):
        raise UsageError(
            "Block holds what follows, and with order=None nothing follows; "
            "use DeadLetter(attempts=…), or order='queue'"
        )


def redeliveries_max(policy: Policy) -> int:
    """Return RocketMQ's maxReconsumeTimes; ATTEMPTS_MAX stands for "for ever"."""
    return ATTEMPTS_MAX if policy.attempts is None else policy.attempts


def attempts_left(policy: Policy, error: BaseException | None) -> int:
    """Return the redeliveries that are allowed to a message whose handler ended so."""
    limit = redeliveries_max(policy)
    return 0 if isinstance(error, Reject) and limit < ATTEMPTS_MAX else limit


def _check_attempts(attempts: int) -> None:
    if not 0 <= attempts <= ATTEMPTS_MAX:
        raise UsageError(f"attempts={attempts}: give 0 or more")
