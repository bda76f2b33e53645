"""Handlers without order: many at a time; failed messages go back to the broker.

`ConcurrentRunner` gives queues their turn, so that a queue with a long backlog does not hold up the
others, and settles runs that ended together, queue by queue. `rules/outcomes.py` decides what the
end of a run means.

`Returner` gives messages back to the broker: to the retry topic, or to the dead letters. Request 36
names the stored record, and the broker copies it. If the broker refuses, the client sends a copy to
the retry topic itself, as RocketMQ's client does, but not while this group holds locks of ordered
queues: then a broker takes every such copy for a dead letter.

How attempts and retries are counted: decision 24. How handlers run and stop: decision 29.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.registrations import HandlerRegistration
from inorder.client.consume.rules import outcomes as rules
from inorder.client.consume.rules.leases import RevokeReason
from inorder.client.consume.rules.outcomes import (
    ATTEMPTS_MAX,
    FIRST_DELAY_LEVEL,
    SEND_BACK_TIMEOUT_MS,
    Failure,
    Outcome,
    Reject,
    Retry,
    RetryCopy,
    failure_of,
    level_of,
    retry_copy,
)
from inorder.client.consume.rules.queue import EXPIRED_PER_ROUND_MAX
from inorder.client.consume.workers import Batch, Counts, Run, Workers
from inorder.client.session import Session
from inorder.clock import Clock
from inorder.errors import BrokerError, InorderError
from inorder.logs import get_logger
from inorder.model import ReceivedMessage
from inorder.tasks import Backoff, Tasks
from inorder.wire.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from inorder.wire.properties import format_properties
from inorder.wire.requests.connections import SendBack as SendBackRequest
from inorder.wire.requests.sends import SendMessage

log = get_logger(__name__)

SendBack = Callable[[HandlerRegistration, ReceivedMessage, Failure], Awaitable[bool]]

PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
_STOP_RETRY_MS: Final = 50
_STOP_RETRY_MAX_MS: Final = 500


class TopicHandler:
    """The handler of one topic, the workers that call it, and its runs."""

    def __init__(self, registration: HandlerRegistration, workers: Workers) -> None:
        self.registration = registration
        self.workers = workers
        self.pace = rules.CallPace()
        self.runs: set[ConcurrentRun] = set()
        self._runs_max = workers.capacity

    @property
    def room(self) -> int:
        """Return how many more runs the workers take."""
        return self._runs_max - len(self.runs)

    def ended(self, runs: Sequence[ConcurrentRun]) -> None:
        """Note that runs have ended, and how long their calls took."""
        self.runs.difference_update(runs)
        self.pace.note(sum([run.calls for run in runs]), sum([run.spent_ms for run in runs]))
        self._runs_max = rules.runs_in_hand(self.pace, capacity=self.workers.capacity)


class ConcurrentRun(Run):
    """A run of one queue's messages by the handler of one topic."""

    __slots__ = ("assigned", "handler")

    assigned: AssignedQueue
    handler: TopicHandler


class ConcurrentRunner:
    """Hands the messages of queues to the handlers of their topics."""

    def __init__(
        self,
        *,
        handlers: Mapping[str, TopicHandler],
        fallback: Callable[[str], TopicHandler],
        clock: Clock,
        counts: Counts,
        tasks: Tasks,
        send_back: SendBack,
        broadcasting: bool,
        handler_timeout_ms: int,
    ) -> None:
        self._handlers = handlers
        self._fallback = fallback
        self._clock = clock
        self._counts = counts
        self._tasks = tasks
        self._send_back = send_back
        self._broadcasting = broadcasting
        self._handler_timeout_ms = handler_timeout_ms
        self._turns: deque[AssignedQueue] = deque()
        self._over: list[Run] = []  # runs that have ended
        self._late_check: asyncio.TimerHandle | None = None
        self._stop_ends_ms: int | None = None
        """When a stopping consumer gives up sending messages back; None before it has tried."""
        self._ended = False

    def pump(self, assigned: AssignedQueue) -> None:
        """Start the runs of a queue that may start, now or when a worker is free."""
        self._line_up(assigned)
        self._go_on()

    def _line_up(self, assigned: AssignedQueue) -> None:
        """Give a queue a turn, unless it has one."""
        if not assigned.has_turn:
            assigned.has_turn = True
            self._turns.append(assigned)

    def _go_on(self) -> None:
        """Give queues their turn until no queue has work or no worker is free."""
        refused = 0
        while self._turns and refused < len(self._turns):
            assigned = self._turns.popleft()
            if not assigned.live or assigned.paused or not assigned.progress.waiting:
                assigned.has_turn = False
                continue
            if self._start(assigned):
                refused = 0
            else:
                refused += 1
            self._turns.append(assigned)

    def _start(self, assigned: AssignedQueue) -> bool:
        """Start runs of a queue; return whether there was room for one."""
        now_ms = self._clock.monotonic_ms()
        if assigned.queue.topic.startswith(RETRY_PREFIX):
            # One message at a time: the next may belong to another topic and handler.
            if any(handler.room <= 0 for handler in self._handlers.values()):
                return False
            taken = assigned.progress.take(1, now_ms)
            self._submit(assigned, self._handler_of(taken[0].topic), ((taken,),))
            return True
        handler = self._handlers[assigned.queue.topic]
        room, size = handler.room, handler.registration.batch
        if room <= 0:
            return False
        waiting = assigned.progress.waiting // size
        calls = rules.calls_of_run(handler.pace, waiting=waiting, workers=handler.workers.capacity)
        count = min(room, rules.TURN_RUNS_MAX)
        taken = assigned.progress.take(size * calls * count, now_ms)
        self._submit(assigned, handler, rules.runs(taken, size, calls))
        return True

    def _handler_of(self, topic: str) -> TopicHandler:
        """Return the handler for messages of a topic, which may come by the retry topic."""
        return self._handlers.get(topic) or self._fallback(topic)

    def _submit(
        self, assigned: AssignedQueue, handler: TopicHandler, runs: Sequence[Sequence[Batch]]
    ) -> None:
        assigned.enter(len(runs))
        self._hand_out(assigned, handler, runs, assigned.may_start)

    def _hand_out(
        self,
        assigned: AssignedQueue,
        handler: TopicHandler,
        runs: Sequence[Sequence[Batch]],
        may_start: Callable[[int], bool],
    ) -> None:
        for batches in runs:
            run = ConcurrentRun(
                batches,
                may_start=may_start,
                ended=self._over.append,
                settle=self._settle,
                slice_ms=rules.RUN_ENDS_MS,
            )
            run.assigned, run.handler = assigned, handler
            handler.runs.add(run)
            handler.workers.submit(run)
        if self._late_check is None and len(runs[0]) > 1:
            self._check_later()

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._late_check = loop.call_later(rules.LATE_CHECK_MS / 1000, self._reclaim)

    def _reclaim(self) -> None:
        """Take back the calls that wait behind a long one, for workers that are free."""
        self._late_check = None
        now_ms = self._clock.monotonic_ms()
        several = [
            run
            for handler in self._handlers.values()
            for run in handler.runs
            if len(run.batches) > 1 and run.assigned.live
        ]
        for run in several:
            if rules.is_late(run.started_ms, now_ms):
                run.assigned.progress.make_again(m for batch in run.reclaim() for m in batch)
                self.pump(run.assigned)
        if several and self._late_check is None:
            self._check_later()

    def _settle(self) -> None:
        """Settle the runs that have ended, and start others in their place."""
        ended: dict[tuple[AssignedQueue, TopicHandler], list[ConcurrentRun]] = {}
        for run in self._over:
            assert isinstance(run, ConcurrentRun)
            ended.setdefault((run.assigned, run.handler), []).append(run)
        self._over.clear()
        for (assigned, handler), runs in ended.items():
            handler.ended(runs)
            try:
                self._finish(assigned, handler, runs)
            except Exception:
                # A bug that concerns one queue must not stop the others.
                log.exception("what follows handlers failed queue=%s", assigned.queue)
        self._go_on()

    def halt(self, assigned_queues: Sequence[AssignedQueue]) -> None:
        """Finish what lies before a begun message in queues that a stopping consumer gives up."""
        for assigned in assigned_queues:
            self._fill(assigned)

    def end(self) -> None:
        """Begin nothing more: the stopping consumer does not wait any longer."""
        self._ended = True

    def _fill(self, assigned: AssignedQueue) -> None:
        """Hand out what lies before a begun message, if the queue is to have no gap at its end."""
        if self._ended or not rules.fills_gap(
            assigned.lease, paused=assigned.paused, cancelled=assigned.cancelled
        ):
            return
        missing = assigned.progress.take_below(assigned.begun_to, self._clock.monotonic_ms())
        by_handler: dict[TopicHandler, list[ReceivedMessage]] = {}
        for message in missing:
            by_handler.setdefault(self._handler_of(message.topic), []).append(message)
        for handler, messages in by_handler.items():
            runs = rules.runs(messages, handler.registration.batch, 1)
            assigned.hold(len(runs))
            self._hand_out(assigned, handler, runs, self._may_fill)

    def _may_fill(self, _: int) -> bool:
        return not self._ended

    def _finish(
        self, assigned: AssignedQueue, handler: TopicHandler, runs: Sequence[ConcurrentRun]
    ) -> None:
        assigned.begun_to = max(assigned.begun_to, *(run.begun_to for run in runs))
        assigned.cancelled = assigned.cancelled or any(run.cancelled for run in runs)
        done = [m for run in runs for batch in run.batches[: run.done] for m in batch]
        if done:
            spent_ms = sum(run.spent_ms for run in runs if run.done)
            self._counts.ended(handler.registration.topic, len(done), 0, spent_ms)
            self._conclude(assigned, handler, done, len(done), None)
        rest: list[ReceivedMessage] = []
        for run in runs:
            if run.done < len(run.batches):
                rest += self._stopped(assigned, handler, run)
        if rest:
            assigned.progress.make_again(rest)
            self._line_up(assigned)  # it may have had nothing to do, and lost its turn
        self._fill(assigned)
        assigned.leave(len(runs))

    def _stopped(
        self, assigned: AssignedQueue, handler: TopicHandler, run: Run
    ) -> list[ReceivedMessage]:
        """Settle the call at which a run stopped; return the messages that it did not reach."""
        rest, batch = run.done, run.stopped_at
        if batch is not None:
            rest += 1
            count = self._done(run, batch)
            spent_ms = 0 if run.done else run.spent_ms
            self._counts.ended(handler.registration.topic, count, len(batch) - count, spent_ms)
            self._conclude(assigned, handler, batch, count, run.error)
        return [message for one in run.batches[rest:] for message in one]

    def _conclude(
        self,
        assigned: AssignedQueue,
        handler: TopicHandler,
        batch: Batch,
        done: int,
        error: BaseException | None,
    ) -> None:
        concluded = rules.conclude(
            assigned.progress,
            assigned.lease,
            batch,
            done=done,
            broadcasting=self._broadcasting,
            now_ms=self._clock.monotonic_ms(),
        )
        for message in concluded.dropped:
            self._counts.dropped += 1
            log.warning("a broadcast message failed and is dropped: %s", where(message))
        if concluded.send_back:
            self._start_return(assigned, handler, concluded, failure_of(error))

    def _start_return(
        self,
        assigned: AssignedQueue,
        handler: TopicHandler,
        concluded: rules.Concluded,
        failure: Failure,
    ) -> None:
        if self._tasks.stopped:
            return  # close() did not wait for the handler: its result does not count
        assigned.hold()
        work = self._return(assigned, handler, concluded, failure)
        self._tasks.start(work, name=f"send back of {assigned.queue}")

    def _done(self, run: Run, batch: Batch) -> int:
        """Return how many messages of a batch succeeded."""
        count = rules.done_count(run.result, len(batch))
        if run.error is not None:
            count = count if run.is_part else 0
            if isinstance(run.error, Reject):
                log.warning("message is rejected %s error=%s", where(batch[count]), run.error)
            elif not isinstance(run.error, Retry):
                log.warning("handler failed %s", where(batch[count]), exc_info=run.error)
            return count
        return 0 if run.result in (Outcome.SUSPEND, Outcome.ROLLBACK) else count

    async def _return(
        self,
        assigned: AssignedQueue,
        handler: TopicHandler,
        concluded: rules.Concluded,
        failure: Failure,
    ) -> None:
        """Send failed messages back; retry here those that the broker does not accept."""
        sent: set[int] = set()
        try:
            for message in concluded.send_back:
                if await self._accepted(assigned, handler, message, failure):
                    sent.add(message.offset)
        finally:
            self._counts.sent_back += len(sent)
            retry = rules.after_concurrent_send_back(
                assigned.progress, assigned.lease, concluded, sent,
                now_ms=self._clock.monotonic_ms(),
            )  # fmt: skip
            for message in retry:
                assigned.later(
                    rules.LOCAL_RETRY_MS,
                    partial(self._again, handler=handler, message=message),
                    given_up=partial(
                        self._last_return, handler=handler, message=message, failure=failure
                    ),
                )
            assigned.leave()
            self._go_on()

    async def _accepted(
        self,
        assigned: AssignedQueue,
        handler: TopicHandler,
        message: ReceivedMessage,
        failure: Failure,
    ) -> bool:
        """Send a message back; a consumer that stops tries again for a while."""
        backoff = Backoff(_STOP_RETRY_MS, _STOP_RETRY_MAX_MS)
        while not await self._send_back(handler.registration, message, failure):
            if assigned.lease.dropped is not RevokeReason.STOPPED:
                return False
            now_ms = self._clock.monotonic_ms()
            if self._stop_ends_ms is None:
                self._stop_ends_ms = now_ms + rules.STOP_SEND_BACK_MS
            if now_ms >= self._stop_ends_ms:
                log.warning(
                    "a failed message is not sent back before the consumer stops; messages above "
                    "it that are done come again: %s",
                    where(message),
                )
                return False
            await asyncio.sleep(backoff.next_ms() / 1000)
        return True

    def _last_return(
        self,
        assigned: AssignedQueue,
        *,
        handler: TopicHandler,
        message: ReceivedMessage,
        failure: Failure,
    ) -> None:
        """Send back a message that waits for its next attempt here, because the consumer stops."""
        if assigned.lease.dropped is RevokeReason.STOPPED and message in assigned.progress:
            concluded = rules.Concluded(send_back=(message,))
            self._start_return(assigned, handler, concluded, failure)

    def _again(
        self, assigned: AssignedQueue, *, handler: TopicHandler, message: ReceivedMessage
    ) -> None:
        if assigned.live and message in assigned.progress:
            self._submit(assigned, handler, (((message,),),))

    async def clean(self, assigned_queues: Sequence[AssignedQueue]) -> None:
        """Send back messages whose handler runs too long, so that the offset can advance."""
        for handler in self._handlers.values():
            for run in handler.runs:
                if run.started_ms is not None and run.done < len(run.batches):
                    run.assigned.progress.start(run.batches[run.done], run.started_ms)
        for assigned in assigned_queues:
            for _ in range(EXPIRED_PER_ROUND_MAX):
                message = assigned.progress.expired(
                    self._clock.monotonic_ms(), timeout_ms=self._handler_timeout_ms
                )
                if message is None or not assigned.live:
                    break
                handler = self._handler_of(message.topic)
                if not await self._expire(assigned, handler, message):
                    break

    async def _expire(
        self, assigned: AssignedQueue, handler: TopicHandler, message: ReceivedMessage
    ) -> bool:
        log.warning(
            "a handler takes longer than %d ms; the message is sent back: %s",
            self._handler_timeout_ms, where(message),
        )  # fmt: skip
        why = f"the handler took longer than {self._handler_timeout_ms} ms"
        failure = Failure(why, level=FIRST_DELAY_LEVEL)
        if not await self._send_back(handler.registration, message, failure):
            return False
        self._counts.sent_back += 1
        if rules.counts_results(assigned.lease):
            assigned.progress.remove((message,), self._clock.monotonic_ms())
        return True


def where(message: ReceivedMessage) -> str:
    """Describe a message for log lines."""
    queue = message.queue
    return (
        f"topic={message.topic} queue={queue.broker}/{queue.topic}/{queue.index} "
        f"offset={message.offset} key={message.key} tried={message.redeliveries + 1}"
    )


class Returner:
    """Gives messages of one group back to the broker."""

    def __init__(self, session: Session, group: str, *, holds_locks: Callable[[], bool]) -> None:
        self._session = session
        self._group = group
        self._holds_locks = holds_locks

    async def send_back(
        self,
        registration: HandlerRegistration,
        message: ReceivedMessage,
        failure: Failure,
    ) -> bool:
        """Send a message back, to be redelivered later; return whether the broker accepted it."""
        attempts = registration.redeliveries_max
        request = SendBackRequest(
            message.position,
            self._group,
            level_of(failure),
            message.message_id,
            message.topic,
            redeliveries_max=min(attempts, ATTEMPTS_MAX),
            error=failure.error or None,
        )
        try:
            api = await self._session.master_of(message.queue)
            await api.send_back(request, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except BrokerError as error:
            log.warning("send back refused %s error=%s", where(message), error)
        except InorderError as error:
            log.warning("send back failed %s error=%s", where(message), error)
            return False
        else:
            return True
        return not self._holds_locks() and await self._send_copy(registration, message, failure)

    async def dead_letter(
        self,
        registration: HandlerRegistration,
        messages: Sequence[ReceivedMessage],
        failure: Failure,
    ) -> set[int]:
        """Dead-letter messages of an ordered queue; return the offsets that succeeded."""
        sent = set()
        for message in messages:
            if await self._send_copy(registration, message, failure):
                log.warning("message is dead-lettered %s", where(message))
                sent.add(message.offset)
        return sent

    async def _send_copy(
        self, registration: HandlerRegistration, message: ReceivedMessage, failure: Failure
    ) -> bool:
        limit = registration.redeliveries_max
        copy = retry_copy(message, self._group, redeliveries_max=limit, failure=failure)
        try:
            api = await self._session.master_of(message.queue)
            await api.send_message(self._request(copy, message), copy.body)
        except InorderError as error:
            log.warning("copy to %s failed %s error=%s", copy.topic, where(message), error)
            return False
        return True

    def _request(self, copy: RetryCopy, message: ReceivedMessage) -> SendMessage:
        return SendMessage(
            PRODUCER_GROUP,
            copy.topic,
            AUTO_CREATE_TOPIC,
            self._session.config.default_topic_queues,
            0,
            0,
            message.born_at_ms,
            copy.flag,
            format_properties(copy.properties),
            copy.redeliveries,
            redeliveries_max=copy.redeliveries_max,
            broker_name=message.queue.broker,
        )
