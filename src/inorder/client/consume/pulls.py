"""The pull loop of an assigned queue, and the reading of pull answers.

A queue has one pull under way at a time; the broker holds it while it has nothing new. `Puller`
runs the loop of a consumer; `pull` asks once, for a pull consumer. Both read the answer by
`pull_result`: check and unpack the records, compare the tags. `rules/pulls.py` decides when to pull
and what an answer means. What a pull carries: decision 26.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from inorder.client.api import BrokerApi, Pulled
from inorder.client.consume.leases import LeaseRenewer
from inorder.client.consume.messages import receive_from
from inorder.client.consume.queue import AssignedQueue, QueueEvents
from inorder.client.consume.rules import pulls as rules
from inorder.client.consume.rules.commits import Progress
from inorder.client.consume.rules.pulls import PullStatus
from inorder.client.consume.workers import Counts
from inorder.client.session import Session
from inorder.errors import (
    AccessDenied,
    BrokerError,
    ConnectFailed,
    InorderError,
    LeaseLost,
    RequestTimeout,
    SystemError_,
)
from inorder.logs import get_logger
from inorder.model import MASTER_ID, Fencing, ReceivedMessage, Subscription, TopicQueue
from inorder.ordering.finished import SPAN_MAX
from inorder.wire.codes import ResponseCode
from inorder.wire.requests.groups import ClientConfigCheck
from inorder.wire.requests.pulls import PULL_SUBSCRIPTION, PULL_SUSPEND, SQL92, PullMessage

log = get_logger(__name__)

_HELD_MS: Final = 100
"""A broker that answers "nothing new" sooner does not hold pulls: the loop pauses instead."""
PULL_AHEAD_MAX: Final = SPAN_MAX // 2
"""How far pulls with order="key" go ahead of the first unfinished message."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """The messages of a pull, and the offset of the next one."""

    status: PullStatus
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int


_FILTERS_TAKEN_MAX: Final = 1000


async def require_filter(
    session: Session, api: BrokerApi, broker: str, group: str, subscription: Subscription
) -> None:
    """Ask a broker once whether it filters by an SQL expression, before the first pull with it.

    Apache RocketMQ answers a pull with an expression that it cannot read as if all messages
    matched.

    Raises:
        BrokerError: the broker cannot read the expression, or filters by tags only.
    """
    known = broker, subscription.expression
    if subscription.expression_type != SQL92 or known in session.filters_taken:
        return
    try:
        await api.check_subscription(ClientConfigCheck(session.client_id, group, subscription))
    except BrokerError as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            raise SystemError_(
                f"{error.remark}; set enablePropertyFilter=true on broker {broker}, or subscribe "
                "by tags"
            ) from error
        raise
    if len(session.filters_taken) >= _FILTERS_TAKEN_MAX:
        session.filters_taken.clear()
    session.filters_taken.add(known)


async def pull(
    session: Session,
    group: str,
    queue: TopicQueue,
    offset: int,
    *,
    subscription: Subscription,
    messages_max: int | None = None,
    suspend_ms: int = 0,
) -> PullResult:
    """Pull at an offset; the broker may hold the pull for `suspend_ms`.

    Raises CorruptRecord if the first message is damaged; the messages before a damaged one are
    returned.
    """
    config = session.config
    request = PullMessage(
        group,
        queue.topic,
        queue.index,
        offset,
        config.pull_messages_max if messages_max is None else messages_max,
        PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
        0,
        suspend_ms,
        0,
        subscription.expression,
        subscription.expression_type,
    )
    api = await session.reader_of(queue)
    await require_filter(session, api, queue.broker, group, subscription)
    answer = await api.pull_message(request, timeout_ms=suspend_ms + config.request_timeout_ms)
    return pull_result(
        answer, queue, offset, subscription=subscription, body_bytes_max=config.message_bytes_max
    )


def pull_result(
    answer: Pulled,
    queue: TopicQueue,
    offset: int,
    *,
    subscription: Subscription,
    body_bytes_max: int,
    group: str | None = None,
    fencing: Fencing | None = None,
) -> PullResult:
    """Check and unpack the records of an answer to a pull at `offset`, and compare their tags.

    With a `group`, messages of its retry topic get their original topic back. Raises CorruptRecord
    if the first message is damaged; the messages before a damaged one are returned.
    """
    reply = answer.reply
    found: tuple[ReceivedMessage, ...] = ()
    next_offset = reply.next_begin_offset
    if answer.code == ResponseCode.SUCCESS:
        whole, next_offset = receive_from(
            queue, offset, answer.body, next_offset, body_bytes_max=body_bytes_max, fencing=fencing
        )
        found = rules.for_handlers(whole, subscription, topic=queue.topic, group=group)
    return PullResult(
        PullStatus(answer.code), found, next_offset, reply.min_offset, reply.max_offset
    )


class Puller:
    """Pulls the assigned queues of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        clustering: bool,
        counts: Counts,
        renewer: LeaseRenewer,
        events: QueueEvents,
    ) -> None:
        self._session = session
        self._config = session.config.consumer
        self._group = group
        self._clustering = clustering
        self._counts = counts
        self._renewer = renewer
        self._events = events
        self._suggested = rules.Suggested()

    async def run(self, assigned: AssignedQueue) -> None:
        """Pull a queue until it is given up."""
        failing = ""
        while True:
            step = rules.before_pull(
                assigned.progress,
                assigned.lease,
                limits=assigned.limits,
                now_ms=self._session.clock.monotonic_ms(),
                ordered=assigned.ordered and not assigned.keyed,
                needs_lock=assigned.needs_lock,
                paused=assigned.paused,
                ahead_max=PULL_AHEAD_MAX if assigned.keyed else 0,
            )
            if isinstance(step, rules.PullNow):
                try:
                    step = await self._pull(assigned, step.offset)
                    failing = ""
                except LeaseLost:
                    assigned.pulling = None  # it is this task, which ends itself
                    self._events.lost(assigned)
                    return
                except InorderError as error:
                    failing = await self._failed(assigned, error, failing)
                    step = rules.after_failed_pull(
                        denied=isinstance(error, AccessDenied),
                        flow_control=isinstance(error, BrokerError)
                        and error.code == ResponseCode.FLOW_CONTROL,
                        error_delay_ms=self._config.pull_error_delay_ms,
                    )
                    await assigned.pause(step.ms)
                    continue
            if isinstance(step, rules.Forget):
                assigned.pulling = None  # it is this task, which ends itself
                assigned.dropped()
                return
            if isinstance(step, rules.PullLater):
                await asyncio.sleep(step.ms / 1000)

    async def _pull(
        self, assigned: AssignedQueue, offset: int
    ) -> rules.PullNow | rules.PullLater | rules.Forget:
        """Pull once and add the messages to the queue's progress."""
        clock = self._session.clock
        began_ms = clock.monotonic_ms()
        result = await self._ask(assigned, offset)
        now_ms = clock.monotonic_ms()
        waited_ms = now_ms - began_ms
        if result.messages:
            self._counts.arrived(assigned.queue.topic, len(result.messages), waited_ms)
        pulled = rules.after_pull(
            assigned.progress,
            assigned.lease,
            result.status,
            result.messages,
            result.next_offset,
            interval_ms=self._config.pull_interval_ms,
            now_ms=now_ms,
            plenty=assigned.limits.messages_max // 2,
        )
        if pulled.passed:
            self._events.passed(assigned)
        if pulled.handle:
            self._events.arrived(assigned)
        if isinstance(pulled.pull, rules.FixOffset):
            log.warning(
                "offset %d of %s is not stored; continuing at %d (stored: %d to %d)",
                offset, assigned.queue, pulled.pull.offset, result.min_offset, result.max_offset,
            )  # fmt: skip
            assigned.progress.moved_to = pulled.pull.offset
            return rules.FORGET
        if result.status is PullStatus.NOTHING_NEW and waited_ms < _HELD_MS:
            return rules.PullLater(_HELD_MS, "the broker does not hold pulls")
        return pulled.pull

    async def _ask(self, assigned: AssignedQueue, offset: int) -> PullResult:
        queue, config = assigned.queue, self._config
        suggested = self._suggested.of(queue)
        api = await self._session.reader_of(queue, suggested)
        await require_filter(self._session, api, queue.broker, self._group, assigned.subscription)
        done_to = self._to_commit(assigned, compares=api.compares_offsets)
        fields = rules.pull_fields(
            assigned.subscription,
            done_to=done_to,
            clustering=self._clustering,
            to_master=suggested == MASTER_ID,
            post_subscription=True,  # own tags, whatever other members subscribe to (O24)
        )
        count = rules.pull_count(
            assigned.progress,
            assigned.limits,
            ordered=assigned.ordered and not assigned.keyed,
            most=config.pull_messages_max,
        )
        request = PullMessage(
            self._group,
            queue.topic,
            queue.index,
            offset,
            count,
            fields.sys_flag,
            fields.commit_offset,
            config.pull_suspend_ms,
            fields.sub_version,
            fields.subscription,
            assigned.subscription.expression_type,
            bulk=rules.PULL_BYTES if count > rules.PULL_COUNT_MIN else None,
            epoch=assigned.lease.epoch or None,
            only_up=True if fields.commit_offset else None,
        )
        sent_ms = self._session.clock.monotonic_ms()
        answer = await api.pull_message(request, timeout_ms=config.pull_timeout_ms)
        if assigned.leased:
            self._events.confirmed(assigned, sent_ms)
            if assigned.is_news(answer.reply.map_version):
                await self._renewer.refresh(assigned)
            assigned.parked = max(assigned.parked, answer.reply.parked or 0)
        if fields.commit_offset and done_to is not None:
            assigned.progress.saved = Progress(done_to)
        self._suggested.note(queue, answer.reply.suggest_broker_id)
        result = pull_result(
            answer,
            queue,
            offset,
            subscription=assigned.subscription,
            body_bytes_max=self._session.config.message_bytes_max,
            group=self._group,
            fencing=assigned.fencing,
        )
        return replace(result, messages=assigned.progress.without_finished(result.messages))

    def _to_commit(self, assigned: AssignedQueue, *, compares: bool) -> int | None:
        """Return the offset that a pull commits on its way, if any.

        Under a lease a pull commits nothing. Without a lock RocketMQ stores any offset that a pull
        carries, even a lower one from a consumer that has lost the queue without knowing. So only a
        broker that compares offsets (`compares`) gets it; elsewhere the committer looks first.
        """
        now_ms = self._session.clock.monotonic_ms()
        if assigned.leased or not assigned.may_commit(now_ms):
            return None
        if not assigned.needs_lock and not compares:
            return None
        return None if assigned.progress.is_saved else assigned.progress.offset

    async def _failed(self, assigned: AssignedQueue, error: InorderError, before: str) -> str:
        """Log a failed pull, once per kind of error; return the kind."""
        kind = f"{type(error).__name__} {getattr(error, 'code', '')}"
        if kind != before and not isinstance(error, AccessDenied):  # the session logs that
            log.warning("pull failed, trying again queue=%s error=%s", assigned.queue, error)
        if isinstance(error, RequestTimeout):
            self._session.drop_connection(assigned.queue, "a pull was not answered in time")
        elif isinstance(error, ConnectFailed):
            await self._session.try_refresh_route(assigned.queue.topic)
        self._suggested.forget(assigned.queue)
        return kind
