"""What a handler can say, and what is done about a message that keeps failing.

A handler returns: done. It raises `Retry(after=seconds)`: again later, in order; `Reject`: no
further try. Any other exception is a failed attempt. With auto-commit off it returns an `Outcome`.

`attempts` counts as RocketMQ's maxReconsumeTimes does: how often a message is handed out *again*.
The first time is not counted, so a handler sees a message at most `attempts + 1` times.

What follows when the handler of an ordered queue ends: MessageListenerOrderly's table.

`before_batch` says whether a handler may start. `after_batch` turns what the handler said into
steps, in the order in which they are to be done:

    outcome       auto-commit on               auto-commit off
    SUCCESS       commit                       nothing: it stays taken
    COMMIT        commit, with a warning       commit all that is taken
    ROLLBACK      commit, with a warning       put all that is taken back, suspend
    SUSPEND       put the batch back, suspend  put the batch back, suspend
    any error     as SUSPEND                   as SUSPEND

A message that was put back as often as the policy allows is sent back instead: `after_send_back`
says what follows then. What is not under a trusted lock is not committed, and ends the tenure. What
ends after the queue was allocated to another consumer *is* committed, before the queue is released
(O12).

What follows when a concurrent handler ends: MessageListenerConcurrently's table.

A batch has an ack index: messages up to it are done, those behind it failed. Failed ones of a
cluster are sent back to the broker; what cannot be sent back is tried again here in 5 s and holds
the offset meanwhile. Failed ones of a broadcast are dropped, and said so. What is committed is the
lowest offset that is not done. What ends after the queue was given up is thrown away: its next
owner begins at the offset that was committed then. Only what ends while the consumer stops counts:
the queue is still its own.

A failed message on its way back: the request for the broker, and the copy for the retry topic.

A concurrent message goes back by request 36: the broker copies the stored record to `%RETRY%group`
with a delay that grows with the attempts (level 3 + attempts), or to `%DLQ%group` after the last
one. If that fails, and always for ordered queues, the client sends a copy to the retry topic
itself; one that was handed out more often than allowed is dead-lettered by the broker on arrival.

What a call of a handler came to, in RocketMQ's words: for hooks.

    the handler                           status (ordered, or without order)     return type
    returns                               SUCCESS, CONSUME_SUCCESS               SUCCESS
    returns nothing, auto-commit is off   SUCCESS                                RETURN_NULL
    returns an Outcome                    that one                               SUCCESS or FAILED
    raises Retry or Reject, Handled(0)    SUSPEND…, RECONSUME_LATER              FAILED
    raises anything else                  SUSPEND…, RECONSUME_LATER              EXCEPTION
    took as long as its time limit        as above                               TIME_OUT, unless it
                                                                                 raised

To return nothing is to be done, unlike in RocketMQ. Only a handler that commits by itself was to
say something.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.queue import ProcessQueue
from inorder.client.rules.routes import Duration, to_ms
from inorder.errors import UsageError
from inorder.model import ReceivedMessage
from inorder.wire import properties as names
from inorder.wire.names import DELAY_LEVELS_MS, RETRY_PREFIX
from inorder.wire.properties import error_of, put_error

ATTEMPTS_MAX: Final = 2**31 - 1
"""RocketMQ's number for "for ever"."""


class Outcome(Enum):
    """What a handler of an ordered queue may return; RocketMQ's ConsumeOrderlyStatus."""

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class Retry(Exception):
    """Raised by a handler to be called again later with the same message; no message overtakes it.

    Without `after` the pause is the consumer's default. An ordered queue waits 10 ms to 30 s; a
    concurrent message goes to the retry topic with the shortest delay level that is long enough.
    """

    def __init__(self, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else to_ms(after)
        super().__init__("try again later" if after is None else f"try again after {after} s")


class Reject(Exception):
    """Raised by a handler that can never handle the message; there is no further attempt.

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
    """After `attempts` further attempts the message goes to `%DLQ%group`; the queue continues."""

    attempts: int = 16

    def __post_init__(self) -> None:
        _check_attempts(self.attempts)


@dataclass(frozen=True, slots=True)
class Park:
    """After `attempts` further attempts the key is parked, and the other keys continue.

    Its later messages join it in order, until an operator redrives (`inorder redrive`) or drops
    them. `Retry` only makes the key wait and does not count as an attempt. Needs order="key" and
    inorder brokers.
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


SUSPEND_DEFAULT_MS: Final = 1000
SUSPEND_MIN_MS: Final = 10
SUSPEND_MAX_MS: Final = 30_000
CONTINUOUS_MAX_MS: Final = 60_000
YIELD_MS: Final = 10
"""The pause of a queue that was handled for CONTINUOUS_MAX_MS: others get the thread."""


@dataclass(frozen=True, slots=True)
class Run:
    """Take a batch and call the handler."""


@dataclass(slots=True)
class Commit:
    """Everything below the offset is done."""

    offset: int


@dataclass(frozen=True, slots=True)
class SuspendFor:
    """Start no handler of this queue for a while; what was put back comes first then."""

    ms: int


@dataclass(frozen=True, slots=True)
class SendBack:
    """Send these to the retry topic (the broker dead-letters them), then ask `after_send_back`."""

    messages: tuple[ReceivedMessage, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Start no further handler in this tenure; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Start no handler until the broker has confirmed the lease; then ask again."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Say this in the log."""

    text: str


Step = Run | Commit | SuspendFor | SendBack | Stop | Hold | Warn
Before = Run | SuspendFor | Stop | Hold

RUN: Final = Run()
HOLD: Final = Hold()


def before_batch(
    lease_state: LeaseState,
    *,
    now_ms: int,
    began_ms: int,
    needs_lock: bool,
    run_max_ms: int = CONTINUOUS_MAX_MS,
) -> Before:
    """Tell whether a handler may start now; `began_ms`: since when the queue is handled in one go.

    An ordered queue whose lock is lost or in doubt is dropped here: it begins anew with a new lock.
    One whose lease is in doubt waits.
    """
    if lease_state.dropped is not None:
        return Stop(lease_state.dropped.value)
    if needs_lock and not lease_state.check_lock(now_ms):
        return HOLD if lease_state.epoch else Stop(RevokeReason.LOCK_EXPIRED.value)
    if now_ms - began_ms > run_max_ms:
        return SuspendFor(YIELD_MS)
    return RUN


def after_batch(
    cache: ProcessQueue,
    lease_state: LeaseState,
    batch: Sequence[ReceivedMessage],
    outcome: Outcome,
    *,
    now_ms: int,
    needs_lock: bool,
    auto_commit: bool = True,
    suspend_ms: int | None = None,
    redeliveries_max: int,
    default_suspend_ms: int = SUSPEND_DEFAULT_MS,
) -> tuple[Step, ...]:
    """Return the steps after a handler; the cache is changed accordingly.

    `suspend_ms` is what the handler asked for; an exception is Outcome.SUSPEND without it. Steps
    end with Stop if no further handler may start; with none of Stop, SuspendFor and SendBack the
    next batch may follow at once.
    """
    if not lease_state.may_commit(now_ms, needs_lock=needs_lock):
        if lease_state.dropped is None:
            lease_state.check_lock(now_ms)
        assert lease_state.dropped is not None
        return (Stop(f"a result is not committed: {lease_state.dropped.value}"),)
    pause = SuspendFor(retry_pause_ms(suspend_ms, default_suspend_ms))
    steps: list[Step]
    if outcome is Outcome.SUSPEND:
        spent = tuple(message for message in batch if message.redeliveries >= redeliveries_max)
        if spent and lease_state.dropped is None:
            return (SendBack(spent),)
        cache.make_again(map(_again, batch))
        steps = [pause]
    elif auto_commit:
        steps = []
        if outcome is not Outcome.SUCCESS:
            steps.append(
                Warn(f"{outcome.name} means nothing with auto-commit on; taken as success")
            )
        steps += _commit(cache)
    elif outcome is Outcome.COMMIT:
        steps = _commit(cache)
    elif outcome is Outcome.ROLLBACK:
        cache.rollback()
        steps = [pause]
    else:
        steps = []
    if lease_state.dropped is not None:
        steps = [step for step in steps if not isinstance(step, SuspendFor)]
        steps.append(Stop(lease_state.dropped.value))
    return tuple(steps)


def after_ordered_send_back(
    cache: ProcessQueue,
    lease_state: LeaseState,
    batch: Sequence[ReceivedMessage],
    sent: Collection[int],
    *,
    now_ms: int,
    needs_lock: bool,
    auto_commit: bool = True,
    suspend_ms: int | None = None,
    default_suspend_ms: int = SUSPEND_DEFAULT_MS,
) -> tuple[Step, ...]:
    """Return the steps after a SendBack; `sent` holds the offsets that the broker took.

    Those are done and never handled again (O17); the rest of the batch is put back. All sent: the
    queue goes on at once, and commits.
    """
    if not lease_state.may_commit(now_ms, needs_lock=needs_lock):
        if lease_state.dropped is None:
            lease_state.check_lock(now_ms)
        assert lease_state.dropped is not None
        return (Stop(f"a result is not committed: {lease_state.dropped.value}"),)
    rest = [message for message in batch if message.offset not in sent]
    cache.make_again(map(_again, rest))
    steps: list[Step] = []
    gone = [message for message in batch if message.offset in sent]
    if auto_commit and gone:
        offset = cache.remove(gone, now_ms)
        steps += [] if offset is None else [Commit(offset)]
    if lease_state.dropped is not None:
        steps.append(Stop(lease_state.dropped.value))
    elif rest:
        steps.append(SuspendFor(retry_pause_ms(suspend_ms, default_suspend_ms)))
    return tuple(steps)


def is_failure(outcome: Outcome, *, auto_commit: bool = True) -> bool:
    """Tell whether a batch with this outcome comes again; with auto-commit on ROLLBACK does not."""
    return outcome is Outcome.SUSPEND or (outcome is Outcome.ROLLBACK and not auto_commit)


def retry_pause_ms(
    asked_ms: int | None, default_ms: int = SUSPEND_DEFAULT_MS, *, of_key: bool = False
) -> int:
    """Return the pause before the next attempt at a failed message.

    `asked_ms` comes from `Retry(after=…)`; None stands for the consumer's default. A queue waits
    10 ms to 30 s, and -1 stands for the default too, as in RocketMQ. A key (`of_key`) holds up
    nothing but its own messages, so it waits as long as its handler asks, and at least 10 ms.
    """
    if of_key:
        return default_ms if asked_ms is None else max(SUSPEND_MIN_MS, asked_ms)
    wanted = default_ms if asked_ms is None or asked_ms == -1 else asked_ms
    return max(SUSPEND_MIN_MS, min(wanted, SUSPEND_MAX_MS))


def _commit(cache: ProcessQueue) -> list[Step]:
    offset = cache.commit()
    return [] if offset is None else [Commit(offset)]


def _again(message: ReceivedMessage) -> ReceivedMessage:
    return replace(message, redeliveries=message.redeliveries + 1)


LOCAL_RETRY_MS: Final = 5000
EXPIRED_SCAN_MS: Final = 15 * 60 * 1000
RUN_CALLS_MAX: Final = 64
RUN_US: Final = 1000
"""How long the calls of one run may take together, by the average of those before."""
RUN_ENDS_MS: Final = 10
"""A run whose calls take longer than expected ends then; others get what it did not come to."""
LOOK_MS: Final = 50
"""How often it is seen whether something waits behind a call that takes long."""
HANDOVER_US: Final = 100
"""What it costs to wake a thread: calls that take less together are not divided."""
AHEAD_US: Final = 10_000
"""For how long workers have something to do without a word from the loop."""
AHEAD_MAX: Final = 4
TURN_RUNS_MAX: Final = 8
"""How many runs of one queue are started before it is another one's turn."""
CALLS_SEEN_MIN: Final = 100
"""Fewer calls say nothing of the average."""
CALLS_KEPT_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class Concluded:
    """What became of a batch."""

    done: tuple[ReceivedMessage, ...] = ()
    send_back: tuple[ReceivedMessage, ...] = ()
    dropped: tuple[ReceivedMessage, ...] = ()
    """Failed messages of a broadcast, gone for good: one log line each."""
    ignored: bool = False
    """The queue was given up meanwhile: nothing is committed, nothing sent back."""
    commit: int | None = None
    """What may be committed now; with `send_back`, ask `after_send_back` instead."""


@dataclass(frozen=True, slots=True)
class AfterSendBack:
    """What is left of a batch after its failed messages were sent back."""

    commit: int | None
    retry: tuple[ReceivedMessage, ...] = ()
    """To be handled again here, after LOCAL_RETRY_MS; redeliveries count up."""


def batches(messages: Sequence[ReceivedMessage], size: int) -> list[Sequence[ReceivedMessage]]:
    """Cut what was taken into batches for one call of the handler each."""
    return [messages[start : start + size] for start in range(0, len(messages), size)]


def runs(
    messages: Sequence[ReceivedMessage], size: int, calls: int
) -> list[Sequence[Sequence[ReceivedMessage]]]:
    """Cut what was taken into runs of so many calls, each call with a batch of that size."""
    cut = batches(messages, size)
    if calls == 1:
        return [(batch,) for batch in cut]
    return [cut[start : start + calls] for start in range(0, len(cut), calls)]


class Pace:
    """How long calls of a handler take: the average of the last ones, older ones counting less."""

    __slots__ = ("_calls", "_spent_ms")

    def __init__(self, calls: int = 0, spent_ms: int = 0) -> None:
        self._calls = calls
        self._spent_ms = spent_ms

    def note(self, calls: int, spent_ms: int) -> None:
        """Count calls that took so long together."""
        self._calls += calls
        self._spent_ms += spent_ms
        if self._calls >= CALLS_KEPT_MAX:
            self._calls //= 2
            self._spent_ms //= 2

    def calls_in(self, span_us: int) -> int:
        """Return how many calls fit into a span of time: 0 for long ones, and if nothing is known;
        no more than a run may have calls for those too short to be timed."""
        if self._calls < CALLS_SEEN_MIN:
            return 0
        if self._spent_ms == 0:
            return RUN_CALLS_MAX
        return span_us * self._calls // (1000 * self._spent_ms)


def calls_of_run(pace: Pace, *, waiting: int, workers: int) -> int:
    """Return how many calls one worker makes before it comes back for more.

    A step between threads costs more than a short handler does, so short ones are called several
    times; but no longer than such a step takes if another worker would have nothing to do, and
    never for long: what waits behind a long one waits although others may become free.
    """
    alone = pace.calls_in(HANDOVER_US)
    return max(1, min(pace.calls_in(RUN_US), max(alone, waiting // max(1, workers)), RUN_CALLS_MAX))


def runs_in_hand(pace: Pace, *, capacity: int) -> int:
    """Return how many runs the workers have, those that wait included.

    Whoever is free takes the next one, so nothing waits for a worker while another one is idle. The
    shorter runs are the more of them wait there: the loop then hears of many at once.
    """
    run_calls = max(1, min(pace.calls_in(RUN_US), RUN_CALLS_MAX))
    return capacity * max(1, min(pace.calls_in(AHEAD_US) // run_calls, AHEAD_MAX))


def is_late(started_ms: int | None, now_ms: int) -> bool:
    """Tell whether what a run has not come to is taken back, for whoever is free."""
    return started_ms is not None and now_ms - started_ms > RUN_ENDS_MS


def tells_loop(ended: int, waiting: int, *, workers: int) -> bool:
    """Tell whether a worker wakes the loop for the runs that have ended.

    It need not while the workers have enough to do; but many at once would hold them all up.
    """
    return waiting <= workers or ended >= workers


def done_count(result: object, batch: int) -> int:
    """Return how many of a batch are done when the handler returned this: all, or as it says."""
    return min(result.count, batch) if isinstance(result, Handled) else batch


def conclude(
    cache: ProcessQueue,
    lease_state: LeaseState,
    batch: Sequence[ReceivedMessage],
    *,
    done: int,
    broadcasting: bool,
    now_ms: int,
) -> Concluded:
    """Say what follows when the first `done` messages of a batch succeeded (0: it failed)."""
    if lease_state.dropped is not None:
        return Concluded(ignored=True)
    succeeded, failed = tuple(batch[:done]), tuple(batch[done:])
    if broadcasting:
        return Concluded(succeeded, dropped=failed, commit=cache.remove(batch, now_ms))
    back = tuple(message for message in failed if message in cache)
    if not back:
        return Concluded(succeeded, commit=cache.remove(batch, now_ms))
    return Concluded(succeeded, send_back=back)


def after_concurrent_send_back(
    cache: ProcessQueue,
    lease_state: LeaseState,
    concluded: Concluded,
    sent: Collection[int],
    *,
    now_ms: int,
) -> AfterSendBack:
    """Say what follows when the broker took the messages with these offsets.

    The others stay taken and hold the offset.
    """
    failed = [message for message in concluded.send_back if message.offset not in sent]
    retry = tuple(replace(message, redeliveries=message.redeliveries + 1) for message in failed)
    cache.replace_taken(retry)
    gone = [message for message in concluded.send_back if message.offset in sent]
    commit = cache.remove((*concluded.done, *gone), now_ms)
    if lease_state.dropped is not None:
        return AfterSendBack(None)
    return AfterSendBack(commit, retry)


FIRST_DELAY_LEVEL: Final = 3
BROKER_DECIDES: Final = 0
DEAD_LETTER_NOW: Final = -1
SEND_BACK_TIMEOUT_MS: Final = 5000

"""RocketMQ's 18 levels, from level 1 on, as brokers have them if not set otherwise."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a try failed, and what the handler asked for."""

    error: str = ""
    after_ms: int | None = None
    rejected: bool = False
    level: int | None = None
    """The delay level, where it is not for the handler to say."""


def failure_of(error: BaseException | None) -> Failure:
    """Return what a handler said by what it raised; None: it returned that it failed."""
    return Failure(
        error_of(error_text(error)),
        error.after_ms if isinstance(error, Retry) else None,
        isinstance(error, Reject),
    )


def error_text(error: BaseException | None) -> str:
    """Return how a try failed, for people."""
    if error is None:
        return "the handler asked for a pause"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class RetryCopy:
    """What the client sends to the retry topic; both numbers go into the header of the send."""

    topic: str
    body: bytes
    properties: dict[str, str]
    redeliveries: int
    redeliveries_max: int
    flag: int = 0


def retry_topic(group: str) -> str:
    """Return the topic of a group's failed messages."""
    return RETRY_PREFIX + group


def retry_copy(
    message: ReceivedMessage, group: str, *, redeliveries_max: int, failure: Failure | None = None
) -> RetryCopy:
    """Return the copy: same body, flag and properties, its origin, one redelivery more, a delay.

    One that is to be a dead letter says how it failed.
    """
    failure = failure or Failure()
    if failure.rejected:
        redeliveries_max = min(redeliveries_max, message.redeliveries)
    properties = dict(message.properties)
    properties.pop(names.TRAN_MSG, None)
    properties[names.ORIGIN_MESSAGE_ID] = (
        properties.get(names.ORIGIN_MESSAGE_ID) or message.message_id
    )
    properties[names.RETRY_TOPIC] = message.topic
    properties[names.DELAY] = str(FIRST_DELAY_LEVEL + message.redeliveries)
    if message.redeliveries >= redeliveries_max:
        put_error(properties, failure.error)
    return RetryCopy(
        retry_topic(group),
        message.body,
        properties,
        message.redeliveries + 1,
        min(redeliveries_max, ATTEMPTS_MAX),
        message.flag,
    )


def level_of(failure: Failure) -> int:
    """Return the delay level of a message that goes back: RocketMQ's delayLevelWhenNextConsume."""
    if failure.level is not None:
        return failure.level
    return DEAD_LETTER_NOW if failure.rejected else delay_level(failure.after_ms)


def delay_level(after_ms: int | None, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return the level for `Retry(after=…)`: the shortest that is long enough, else the last.

    None: the broker decides by the attempts.
    """
    if after_ms is None:
        return BROKER_DECIDES
    for level, delay_ms in enumerate(levels_ms, 1):
        if delay_ms >= after_ms:
            return level
    return len(levels_ms)


CONSUME_SUCCESS: Final = "CONSUME_SUCCESS"
RECONSUME_LATER: Final = "RECONSUME_LATER"


class ReturnType(Enum):
    """How a call of a handler ended; RocketMQ's ConsumeReturnType."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURN_NULL = "RETURNNULL"
    FAILED = "FAILED"


class Returned(NamedTuple):
    """What a call came to."""

    status: str
    return_type: ReturnType
    success: bool


def returned(
    result: object,
    error: BaseException | None,
    *,
    ordered: bool,
    auto_commit: bool = True,
    spent_ms: int,
    timeout_ms: int,
) -> Returned:
    """Say what a call came to that returned `result`, or raised `error`, after so long."""
    outcome = _outcome(result, error, ordered=ordered)
    failed = is_failure(outcome, auto_commit=auto_commit and ordered)
    if ordered:
        status = outcome.value
    else:
        status = RECONSUME_LATER if failed else CONSUME_SUCCESS
    if error is not None and not isinstance(error, Retry | Reject):
        kind = ReturnType.EXCEPTION
    elif error is None and result is None and not auto_commit:
        kind = ReturnType.RETURN_NULL
    elif spent_ms >= timeout_ms:
        kind = ReturnType.TIME_OUT
    else:
        kind = ReturnType.FAILED if failed else ReturnType.SUCCESS
    return Returned(status, kind, not failed)


def _outcome(result: object, error: BaseException | None, *, ordered: bool) -> Outcome:
    if error is not None or (not ordered and isinstance(result, Handled) and not result.count):
        return Outcome.SUSPEND
    return result if isinstance(result, Outcome) else Outcome.SUCCESS
