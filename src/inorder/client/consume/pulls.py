"""The pull loop of one queue: one pull at a time, held by the broker while it has nothing.

When to pull and what an answer means is in `client/consume/rules/pulls.py`; this file does it.

One pull: the request, the records checked and unpacked, the tags compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from inorder.client.consume.messages import receive_from
from inorder.client.consume.queue import Holding
from inorder.client.consume.rules import pulls as rules
from inorder.client.consume.rules.pulls import PullStatus
from inorder.client.consume.workers import Counts
from inorder.client.session import Session
from inorder.errors import BrokerError, ConnectFailed, InorderError, LeaseLost, RequestTimeout
from inorder.logs import get_logger
from inorder.model import MASTER_ID, ReceivedMessage, Subscription, TopicQueue
from inorder.ordering.finished import SPAN_MAX
from inorder.wire.codes import ResponseCode
from inorder.wire.requests.pulls import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages, and where to go on."""

    status: PullStatus
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int


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
    """Ask for messages from an offset on; the broker may hold the pull for `suspend_ms`.

    Raises CorruptRecord if the first message that came is not what was stored; those before a
    damaged one are returned.
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
        "TAG",
    )
    api = await session.reader_of(queue)
    pulled = await api.pull_message(request, timeout_ms=suspend_ms + config.request_timeout_ms)
    reply = pulled.reply
    found: tuple[ReceivedMessage, ...] = ()
    next_offset = reply.next_begin_offset
    if pulled.code == ResponseCode.SUCCESS:
        found, next_offset = receive_from(
            queue, offset, pulled.body, next_offset, body_bytes_max=config.message_bytes_max
        )
    if not subscription.matches_all:
        found = tuple(message for message in found if _wanted(message, subscription))
    return PullResult(
        PullStatus(pulled.code),
        found,
        next_offset,
        reply.min_offset,
        reply.max_offset,
    )


def _wanted(message: ReceivedMessage, subscription: Subscription) -> bool:
    """Compare the tag itself: brokers compare hashes only."""
    return message.tag in subscription.tags


_HELD_MS: Final = 100
"""A broker that has nothing holds the pull at least so long, or is not asked again at once."""
REACH_MAX: Final = SPAN_MAX // 2
"""How far pulls of order="key" go ahead of the first message that is not done."""


class Puller:
    """Pulls the queues of one group."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        clustering: bool,
        counts: Counts,
        done_to: Callable[[Holding, bool], int | None],
        piggybacked: Callable[[Holding, int], None],
        arrived: Callable[[Holding], None],
        finished_to: Callable[[Holding, int], None],
        confirmed: Callable[[Holding, int], None],
        lost: Callable[[Holding], None],
        look: Callable[[Holding], Awaitable[None]],
    ) -> None:
        self._session = session
        self._config = session.config.consumer
        self._group = group
        self._clustering = clustering
        self._counts = counts
        self._done_to = done_to
        self._piggybacked = piggybacked
        self._arrived = arrived
        self._finished_to = finished_to
        self._confirmed = confirmed
        self._lost = lost
        self._look = look
        self._suggested = rules.Suggested()

    async def run(self, holding: Holding) -> None:
        """Pull until the queue is given up."""
        failing = ""
        while True:
            step = rules.before_pull(
                holding.cache,
                holding.tenure,
                limits=holding.limits,
                now_ms=self._session.clock.monotonic_ms(),
                ordered=holding.ordered and not holding.keyed,
                needs_lock=holding.needs_lock,
                paused=holding.paused,
                reach_max=REACH_MAX if holding.keyed else 0,
            )
            if isinstance(step, rules.PullNow):
                try:
                    step = await self._pull(holding, step.offset)
                    failing = ""
                except LeaseLost:
                    holding.pulling = None  # this task: it ends by itself
                    self._lost(holding)
                    return
                except InorderError as error:
                    failing = await self._failed(holding, error, failing)
                    step = rules.after_failed_pull(
                        flow_control=isinstance(error, BrokerError)
                        and error.code == ResponseCode.FLOW_CONTROL,
                        error_delay_ms=self._config.pull_error_delay_ms,
                    )
                    await holding.rest(step.ms)
                    continue
            if isinstance(step, rules.Forget):
                holding.pulling = None  # this task: it ends by itself
                holding.dropped()
                return
            if isinstance(step, rules.PullLater):
                await asyncio.sleep(step.ms / 1000)

    async def _pull(
        self, holding: Holding, offset: int
    ) -> rules.PullNow | rules.PullLater | rules.Forget:
        """Pull once and take the answer in."""
        clock = self._session.clock
        asked_ms = clock.monotonic_ms()
        result = await self._ask(holding, offset)
        now_ms = clock.monotonic_ms()
        waited_ms = now_ms - asked_ms
        if result.messages:
            self._counts.arrived(holding.queue.topic, len(result.messages), waited_ms)
        pulled = rules.after_pull(
            holding.cache,
            holding.tenure,
            rules.PullStatus(result.status.value),
            result.messages,
            result.next_offset,
            interval_ms=self._config.pull_interval_ms,
            now_ms=now_ms,
            plenty=holding.limits.messages_max // 2,
        )
        if pulled.commit is not None:
            self._finished_to(holding, pulled.commit)
        if pulled.handle:
            self._arrived(holding)
        if isinstance(pulled.pull, rules.FixOffset):
            log.warning(
                "offset %d of %s is not stored; going on at %d (stored: %d to %d)",
                offset, holding.queue, pulled.pull.offset, result.min_offset, result.max_offset,
            )  # fmt: skip
            holding.fixed = pulled.pull.offset
            return rules.FORGET
        if result.status is PullStatus.NOTHING_NEW and waited_ms < _HELD_MS:
            return rules.PullLater(_HELD_MS, "the broker does not hold pulls")
        return pulled.pull

    async def _ask(self, holding: Holding, offset: int) -> PullResult:
        queue, config = holding.queue, self._config
        suggested = self._suggested.of(queue)
        api = await self._session.reader_of(queue, suggested)
        done_to = self._done_to(holding, api.compares_offsets)
        fields = rules.pull_fields(
            holding.subscription,
            done_to=done_to,
            clustering=self._clustering,
            to_master=suggested == MASTER_ID,
            post_subscription=True,  # our own tags, whatever others of the group asked for (O24)
        )
        request = PullMessage(
            self._group,
            queue.topic,
            queue.index,
            offset,
            config.pull_messages_max,
            fields.sys_flag,
            fields.commit_offset,
            config.pull_suspend_ms,
            fields.sub_version,
            fields.subscription,
            holding.subscription.expression_type,
            epoch=holding.tenure.epoch or None,
            only_up=True if fields.commit_offset else None,
        )
        sent_ms = self._session.clock.monotonic_ms()
        answer = await api.pull_message(request, timeout_ms=config.pull_timeout_ms)
        if holding.leased:
            self._confirmed(holding, sent_ms)
            if holding.is_news(answer.reply.map_version):
                await self._look(holding)
            holding.parked = max(holding.parked, answer.reply.parked or 0)
        if fields.commit_offset and done_to is not None:
            self._piggybacked(holding, done_to)
        self._suggested.note(queue, answer.reply.suggest_broker_id)
        reply = answer.reply
        found: tuple[ReceivedMessage, ...] = ()
        next_offset = reply.next_begin_offset
        if answer.code == ResponseCode.SUCCESS:
            whole, next_offset = receive_from(
                queue,
                offset,
                answer.body,
                next_offset,
                body_bytes_max=self._session.config.message_bytes_max,
                fencing=holding.fencing,
            )
            found = rules.for_handlers(
                whole, holding.subscription, topic=queue.topic, group=self._group
            )
        return PullResult(
            PullStatus(answer.code),
            holding.not_done(found),
            next_offset,
            reply.min_offset,
            reply.max_offset,
        )

    async def _failed(self, holding: Holding, error: InorderError, before: str) -> str:
        """Say what is the matter, once; return its kind."""
        kind = f"{type(error).__name__} {getattr(error, 'code', '')}"
        if kind != before:
            log.warning("pull failed, trying again queue=%s error=%s", holding.queue, error)
        if isinstance(error, RequestTimeout):
            self._session.drop_connection(holding.queue, "a pull was not answered in time")
        elif isinstance(error, ConnectFailed):
            await self._session.try_refresh_route(holding.queue.topic)
        self._suggested.forget(holding.queue)
        return kind
