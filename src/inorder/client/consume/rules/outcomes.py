"""What a handler can say about a message, and what follows.

A handler that returns is done; a `Reply` that it returns is sent to whoever asked (replies.py).
`Retry(after=seconds)` asks for the message again later, in order;
`Reject` asks for no further attempt; any other exception is a failed attempt. With auto-commit off
a handler returns an `Outcome`. `attempts` counts like RocketMQ's maxReconsumeTimes: how often a
message is handed out *again*. The first attempt is not counted, so a handler sees a message at most
`attempts + 1` times.

**Ordered queues** follow MessageListenerOrderly's table. `before_batch` decides whether a handler
may start. `after_batch` turns an outcome into steps, in the order in which they are done:

    outcome       auto-commit on               auto-commit off
    SUCCESS       commit                       nothing: the batch stays taken
    COMMIT        commit, with a warning       commit everything that is taken
    ROLLBACK      commit, with a warning       put everything that is taken back, suspend
    SUSPEND       put the batch back, suspend  put the batch back, suspend
    any error     as SUSPEND                   as SUSPEND
    Handled       commit the messages that     as SUSPEND, unless all are done
                  are done, put the failed
                  one back, suspend

A message that was put back as often as the policy allows is sent back instead;
`after_ordered_send_back` decides what follows then. A result is not committed without a trusted
lock; the queue is given up. A result that arrives after the queue was allocated to another consumer
*is* committed, before the queue is released (O12).

**Queues without order** follow MessageListenerConcurrently's table. In a batch the messages up to
the ack index are done and the others have failed. Failed messages of a cluster are sent back to the
broker. A message that cannot be sent back is tried again here after 5 s, and holds up the committed
offset meanwhile. Failed messages of a broadcast are dropped, with a log line. The lowest unfinished
offset is committed. Results that arrive after the queue was given up are thrown away, because its
next owner begins at the offset that was committed then. Only a consumer that stops still counts
them, because it still owns the queue: `close()` waits until a failed message is sent back, for at
most STOP_SEND_BACK_MS, because messages above one that holds up the offset come again. For the same
reason it lets the handlers have the messages before one that was begun (`fills_gap`).

**Sending back.** A concurrent message goes back by request 36: the broker copies the stored record
to `%RETRY%group` with a delay that grows with the attempts (level 3 + attempts), or to `%DLQ%group`
after the last one. If that fails, and always for ordered queues, the client sends a copy to the
retry topic itself. The broker dead-letters a copy that was handed out more often than allowed.

**Hooks** get RocketMQ's words for the result of a call (`returned`):

    the handler                           status (ordered, or without order)     return type
    returns                               SUCCESS, CONSUME_SUCCESS               SUCCESS
    returns nothing, auto-commit is off   SUCCESS                                RETURN_NULL
    returns an Outcome                    that one                               SUCCESS or FAILED
    raises Retry or Reject                SUSPEND…, RECONSUME_LATER              FAILED
    returns Handled with an error         as if it had raised it                 as if
    returns Handled of fewer messages     SUSPEND…, RECONSUME_LATER if of none   FAILED
    raises anything else                  SUSPEND…, RECONSUME_LATER              EXCEPTION
    took as long as its time limit        as above                               TIME_OUT, unless it
                                                                                 raised

Unlike in RocketMQ, a handler that returns nothing is done; only with auto-commit off it owes an
Outcome. How attempts and retries are counted: decision 24.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from inorder.client.consume.rules.leases import LeaseState, RevokeReason
from inorder.client.consume.rules.queue import QueueProgress
from inorder.client.rules.routes import Duration, to_ms
from inorder.errors import UsageError
from inorder.model import ReceivedMessage
from inorder.wire import properties as names
from inorder.wire.names import DELAY_LEVELS_MS, RETRY_PREFIX
from inorder.wire.properties import error_of, format_properties, put_error

ATTEMPTS_MAX: Final = 2**31 - 1
"""RocketMQ's number for "without limit"."""
SUSPEND_DEFAULT_MS: Final = 1000
SUSPEND_MIN_MS: Final = 10
SUSPEND_MAX_MS: Final = 30_000
CONTINUOUS_MAX_MS: Final = 60_000
YIELD_MS: Final = 10
"""The pause of a queue that was handled for CONTINUOUS_MAX_MS, so that others get the thread."""
LOCAL_RETRY_MS: Final = 5000
STOP_SEND_BACK_MS: Final = 5000
"""How long a stopping consumer tries to send failed messages back."""
EXPIRED_SCAN_MS: Final = 15 * 60 * 1000
RUN_CALLS_MAX: Final = 64
RUN_US: Final = 1000
"""How long the calls of one run may take together, by the average of earlier calls."""
RUN_ENDS_MS: Final = 10
"""A run that takes longer ends; its remaining calls go to other workers."""
LATE_CHECK_MS: Final = 50
"""How often the loop looks for calls that wait behind a long one."""
HANDOVER_US: Final = 100
"""The cost of waking a thread: calls that take less time together stay in one run."""
AHEAD_US: Final = 10_000
"""How long the runs that wait at the workers keep them busy without the loop."""
AHEAD_MAX: Final = 4
TURN_RUNS_MAX: Final = 8
"""How many runs of one queue start before the next queue's turn."""
CALLS_SEEN_MIN: Final = 100
"""Fewer calls give no average."""
CALLS_KEPT_MAX: Final = 2000
FIRST_DELAY_LEVEL: Final = 3
BROKER_DECIDES: Final = 0
DEAD_LETTER_NOW: Final = -1
SEND_BACK_TIMEOUT_MS: Final = 5000
CONSUME_SUCCESS: Final = "CONSUME_SUCCESS"
RECONSUME_LATER: Final = "RECONSUME_LATER"


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
    """Returned by a handler of lists: the first `count` messages are done.

    With order the next message has failed, and those after it were not tried: only the attempts of
    the failed one are counted. Without order all others have failed; RocketMQ's ackIndex is
    `count - 1`. `error` says how: what follows is the same as after raising it.
    """

    count: int
    error: BaseException | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UsageError(f"Handled({self.count}): a count of messages is 0 or more")


_OF_A_REPLY: Final = frozenset(
    {names.UNIQ_KEY, names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL, names.MSG_TYPE}
)


@dataclass(frozen=True, slots=True)
class Reply:
    """Returned by a handler: the message is done, and this is the reply that its sender waits for.

    Only a message that asks for a reply gets one (`message.asks_reply`).
    """

    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        body: object = self.body
        if not isinstance(body, bytes) or not body:
            raise UsageError(
                f"the body of a Reply is {repr(body)[:32]}; give bytes, at least one, as in "
                "Reply(b'ok')"
            )
        if _OF_A_REPLY & self.properties.keys():
            reserved = ", ".join(sorted(_OF_A_REPLY & self.properties.keys()))
            raise UsageError(f"properties {reserved} of a Reply come from the message it answers")
        format_properties(self.properties)


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
    """Return RocketMQ's default: an ordered queue blocks for ever, else 16 further attempts."""
    return DeadLetter() if order is None else Block()


def check_policy(policy: Policy, order: str | None) -> None:
    """Raise UsageError for a policy that means nothing with this order."""
    if order != "key" and isinstance(policy, Park):
        instead = "DeadLetter(attempts=…)" + (" or Block()" if order == "queue" else "")
        raise UsageError(
            f"Park parks a key while others go on, and order={order!r} knows no keys; use "
            f"order='key', or {instead}"
        )
    if order is None and isinstance(policy, Block):
        raise UsageError(
            "Block holds what follows, and with order=None nothing follows; "
            "use DeadLetter(attempts=…), or order='queue'"
        )


def redeliveries_max(policy: Policy) -> int:
    """Return RocketMQ's maxReconsumeTimes; ATTEMPTS_MAX means without limit."""
    return ATTEMPTS_MAX if policy.attempts is None else policy.attempts


def attempts_left(policy: Policy, error: BaseException | None) -> int:
    """Return the redeliveries that the policy allows; 0 after a Reject, if they are limited."""
    limit = redeliveries_max(policy)
    return 0 if isinstance(error, Reject) and limit < ATTEMPTS_MAX else limit


def _check_attempts(attempts: int) -> None:
    if not 0 <= attempts <= ATTEMPTS_MAX:
        raise UsageError(f"attempts={attempts}: give 0 or more")


@dataclass(frozen=True, slots=True)
class Run:
    """Take a batch and call the handler."""


@dataclass(frozen=True, slots=True)
class SuspendFor:
    """Start no handler of this queue for `ms`; then messages that were put back come first."""

    ms: int


@dataclass(frozen=True, slots=True)
class SendBack:
    """Send these to the retry topic, where the broker dead-letters them.

    Then `after_ordered_send_back` decides.
    """

    messages: tuple[ReceivedMessage, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Start no further handler: the queue is given up; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Start no handler until the broker has confirmed the lease."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Log this warning."""

    text: str


Step = Run | SuspendFor | SendBack | Stop | Hold | Warn
Before = Run | SuspendFor | Stop | Hold

RUN: Final = Run()
HOLD: Final = Hold()


def before_batch(
    lease: LeaseState,
    *,
    now_ms: int,
    began_ms: int,
    needs_lock: bool,
    run_max_ms: int = CONTINUOUS_MAX_MS,
) -> Before:
    """Decide whether a handler may start; `began_ms`: since when the queue runs without a pause.

    A queue with an untrusted RocketMQ lock is dropped, and begins again with a new lock. A queue
    with an unconfirmed lease waits.
    """
    if lease.dropped is not None:
        return Stop(lease.dropped.value)
    if needs_lock and not lease.check_trust(now_ms):
        return HOLD if lease.epoch else Stop(RevokeReason.LOCK_EXPIRED.value)
    if now_ms - began_ms > run_max_ms:
        return SuspendFor(YIELD_MS)
    return RUN


def after_batch(
    progress: QueueProgress,
    lease: LeaseState,
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
    """Return the steps after a handler has ended, and update the progress.

    `suspend_ms` is the pause that the handler asked for; an exception is Outcome.SUSPEND without
    one. The steps end with Stop if no further handler may start. Without Stop, SuspendFor and
    SendBack the next batch may follow at once.
    """
    if not lease.may_commit(now_ms, needs_lock=needs_lock):
        if lease.dropped is None:
            lease.check_trust(now_ms)
        assert lease.dropped is not None
        return (Stop(f"a result is not committed: {lease.dropped.value}"),)
    pause = SuspendFor(retry_pause_ms(suspend_ms, default_suspend_ms))
    steps: list[Step] = []
    if outcome is Outcome.SUSPEND:
        spent = tuple(message for message in batch if message.redeliveries >= redeliveries_max)
        if spent and lease.dropped is None:
            return (SendBack(spent),)
        progress.make_again(map(_again, batch))
        steps = [pause]
    elif auto_commit:
        if outcome is not Outcome.SUCCESS:
            steps.append(
                Warn(f"{outcome.name} means nothing with auto-commit on; taken as success")
            )
        progress.commit()
    elif outcome is Outcome.COMMIT:
        progress.commit()
    elif outcome is Outcome.ROLLBACK:
        progress.rollback()
        steps = [pause]
    if lease.dropped is not None:
        steps = [step for step in steps if not isinstance(step, SuspendFor)]
        steps.append(Stop(lease.dropped.value))
    return tuple(steps)


def after_ordered_send_back(
    progress: QueueProgress,
    lease: LeaseState,
    batch: Sequence[ReceivedMessage],
    sent: Collection[int],
    *,
    now_ms: int,
    needs_lock: bool,
    auto_commit: bool = True,
    suspend_ms: int | None = None,
    default_suspend_ms: int = SUSPEND_DEFAULT_MS,
) -> tuple[Step, ...]:
    """Return the steps after a SendBack; `sent` holds the offsets that the broker accepted.

    Those messages are finished and never handled again (O17); the rest of the batch is put back. If
    all were accepted, the queue commits and continues at once.
    """
    if not lease.may_commit(now_ms, needs_lock=needs_lock):
        if lease.dropped is None:
            lease.check_trust(now_ms)
        assert lease.dropped is not None
        return (Stop(f"a result is not committed: {lease.dropped.value}"),)
    rest = [message for message in batch if message.offset not in sent]
    progress.make_again(map(_again, rest))
    steps: list[Step] = []
    gone = [message for message in batch if message.offset in sent]
    if auto_commit and gone:
        progress.remove(gone, now_ms)
    if lease.dropped is not None:
        steps.append(Stop(lease.dropped.value))
    elif rest:
        steps.append(SuspendFor(retry_pause_ms(suspend_ms, default_suspend_ms)))
    return tuple(steps)


def is_failure(outcome: Outcome, *, auto_commit: bool = True) -> bool:
    """Return whether a batch with this outcome is handled again."""
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


def _again(message: ReceivedMessage) -> ReceivedMessage:
    return replace(message, redeliveries=message.redeliveries + 1)


@dataclass(frozen=True, slots=True)
class Concluded:
    """What follows the end of a batch."""

    done: tuple[ReceivedMessage, ...] = ()
    send_back: tuple[ReceivedMessage, ...] = ()
    dropped: tuple[ReceivedMessage, ...] = ()
    """Failed messages of a broadcast, which are lost: one log line each."""
    ignored: bool = False
    """The queue was given up: nothing is committed and nothing is sent back."""


def batches(messages: Sequence[ReceivedMessage], size: int) -> list[Sequence[ReceivedMessage]]:
    """Cut messages into batches, one for each call of the handler."""
    return [messages[start : start + size] for start in range(0, len(messages), size)]


def runs(
    messages: Sequence[ReceivedMessage], size: int, calls: int
) -> list[Sequence[Sequence[ReceivedMessage]]]:
    """Cut messages into runs of `calls` calls, each call with a batch of `size`."""
    cut = batches(messages, size)
    if calls == 1:
        return [(batch,) for batch in cut]
    return [cut[start : start + calls] for start in range(0, len(cut), calls)]


class CallPace:
    """The average duration of a handler's calls; older calls count less."""

    __slots__ = ("_calls", "_spent_ms")

    def __init__(self, calls: int = 0, spent_ms: int = 0) -> None:
        self._calls = calls
        self._spent_ms = spent_ms

    def note(self, calls: int, spent_ms: int) -> None:
        """Count calls that took `spent_ms` together."""
        self._calls += calls
        self._spent_ms += spent_ms
        if self._calls >= CALLS_KEPT_MAX:
            self._calls //= 2
            self._spent_ms //= 2

    def calls_in(self, span_us: int) -> int:
        """Return how many calls fit into a span of time.

        The result is 0 for long calls and without an average, and RUN_CALLS_MAX for calls that are
        too short to be timed.
        """
        if self._calls < CALLS_SEEN_MIN:
            return 0
        if self._spent_ms == 0:
            return RUN_CALLS_MAX
        return span_us * self._calls // (1000 * self._spent_ms)


def calls_of_run(pace: CallPace, *, waiting: int, workers: int) -> int:
    """Return how many calls one run has.

    Waking a thread costs more than a short handler, so a run has several short calls. It lasts no
    longer than waking a thread while another worker would be idle, and never long: calls behind a
    long one wait although other workers may be free.
    """
    cheap = pace.calls_in(HANDOVER_US)
    return max(1, min(pace.calls_in(RUN_US), max(cheap, waiting // max(1, workers)), RUN_CALLS_MAX))


def runs_in_hand(pace: CallPace, *, capacity: int) -> int:
    """Return how many runs the workers hold, waiting ones included.

    A free worker takes the next run, so no run waits while a worker is idle. The shorter the runs,
    the more of them wait at the workers, so that the loop settles many of them at once.
    """
    run_calls = max(1, min(pace.calls_in(RUN_US), RUN_CALLS_MAX))
    return capacity * max(1, min(pace.calls_in(AHEAD_US) // run_calls, AHEAD_MAX))


def is_late(started_ms: int | None, now_ms: int) -> bool:
    """Return whether the remaining calls of a run go back, for workers that are free."""
    return started_ms is not None and now_ms - started_ms > RUN_ENDS_MS


def tells_loop(ended: int, waiting: int, *, workers: int) -> bool:
    """Return whether a worker wakes the loop for the runs that have ended.

    It need not while the workers have enough to do, but a long list of ended runs would hold them
    up.
    """
    return waiting <= workers or ended >= workers


def done_count(result: object, batch: int) -> int:
    """Return how many messages of a batch are done when its handler has returned `result`."""
    return min(result.count, batch) if isinstance(result, Handled) else batch


class CallParts(NamedTuple):
    """What became of the messages of one call on an ordered topic."""

    done: int
    """So many are done."""
    failed: int
    """The next ones have failed. Those after them were not tried."""


def parts_of_failed(result: object, batch: int, *, auto_commit: bool = True) -> CallParts:
    """Return which messages of a failed call are done, and which have failed.

    Without a `Handled` the whole batch has failed, as in RocketMQ, and with auto-commit off too:
    there its messages are committed or rolled back together.
    """
    if not isinstance(result, Handled) or not auto_commit:
        return CallParts(0, batch)
    return CallParts(result.count, 1)


def counts_results(lease: LeaseState) -> bool:
    """Return whether the results of a queue without order count: it is owned, or being closed."""
    return lease.dropped in (None, RevokeReason.STOPPED)


def fills_gap(lease: LeaseState, *, paused: bool, cancelled: bool) -> bool:
    """Return whether a queue without order hands out messages before one that was begun.

    It does when its consumer stops: several workers have runs of the queue, and what lies before a
    message that is done holds up the committed offset. It does not when the user has paused the
    queue, or when the program has cancelled its handlers.
    """
    return lease.dropped is RevokeReason.STOPPED and not paused and not cancelled


def conclude(
    progress: QueueProgress,
    lease: LeaseState,
    batch: Sequence[ReceivedMessage],
    *,
    done: int,
    broadcasting: bool,
    now_ms: int,
) -> Concluded:
    """Decide what follows when the first `done` messages of a batch succeeded (0: none)."""
    if not counts_results(lease):
        return Concluded(ignored=True)
    succeeded, failed = tuple(batch[:done]), tuple(batch[done:])
    if broadcasting:
        progress.remove(batch, now_ms)
        return Concluded(succeeded, dropped=failed)
    back = tuple(message for message in failed if message in progress)
    if not back:
        progress.remove(batch, now_ms)
        return Concluded(succeeded)
    return Concluded(succeeded, send_back=back)


def after_concurrent_send_back(
    progress: QueueProgress,
    lease: LeaseState,
    concluded: Concluded,
    sent: Collection[int],
    *,
    now_ms: int,
) -> tuple[ReceivedMessage, ...]:
    """Finish the messages that succeeded, and those that the broker accepted (`sent`).

    The others stay taken and hold up the committed offset. They are tried again here after
    LOCAL_RETRY_MS, unless the consumer stops; returns them with one redelivery more.
    """
    if not counts_results(lease):
        return ()
    failed = [message for message in concluded.send_back if message.offset not in sent]
    retry = tuple(replace(message, redeliveries=message.redeliveries + 1) for message in failed)
    progress.replace_taken(retry)
    gone = [message for message in concluded.send_back if message.offset in sent]
    progress.remove((*concluded.done, *gone), now_ms)
    return retry if lease.dropped is None else ()


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed, and what the handler asked for."""

    error: str = ""
    after_ms: int | None = None
    rejected: bool = False
    level: int | None = None
    """A fixed delay level, which overrides the wish of the handler."""


def failure_of(error: BaseException | None) -> Failure:
    """Return the failure for an exception; None: the handler returned that it failed."""
    return Failure(
        error_of(error_text(error)),
        error.after_ms if isinstance(error, Retry) else None,
        isinstance(error, Reject),
    )


def error_text(error: BaseException | None) -> str:
    """Return why an attempt failed, as text."""
    if error is None:
        return "the handler asked for a pause"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class RetryCopy:
    """The message for the retry topic; the header of the send carries both numbers."""

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
    """Return the copy: body, flag and properties, its origin, one redelivery more, and a delay.

    The copy of a message without further attempts carries the error.
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
    """Return the delay level for a send-back: RocketMQ's delayLevelWhenNextConsume."""
    if failure.level is not None:
        return failure.level
    return DEAD_LETTER_NOW if failure.rejected else delay_level(failure.after_ms)


def delay_level(after_ms: int | None, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return the level for `Retry(after=…)`: the shortest that is long enough, else the last.

    For None the broker decides by the number of attempts.
    """
    if after_ms is None:
        return BROKER_DECIDES
    for level, delay_ms in enumerate(levels_ms, 1):
        if delay_ms >= after_ms:
            return level
    return len(levels_ms)


class ReturnType(Enum):
    """How a call of a handler ended; RocketMQ's ConsumeReturnType."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURN_NULL = "RETURNNULL"
    FAILED = "FAILED"


class Returned(NamedTuple):
    """The result of a call, in RocketMQ's words."""

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
    batch: int = 1,
) -> Returned:
    """Describe a call with `batch` messages that returned `result`, or raised `error`."""
    if error is None and isinstance(result, Handled):
        error = result.error
    outcome = _outcome(result, error, ordered=ordered, batch=batch)
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


def _outcome(result: object, error: BaseException | None, *, ordered: bool, batch: int) -> Outcome:
    if error is not None:
        return Outcome.SUSPEND
    if isinstance(result, Handled) and result.count < (batch if ordered else 1):
        return Outcome.SUSPEND
    return result if isinstance(result, Outcome) else Outcome.SUCCESS
