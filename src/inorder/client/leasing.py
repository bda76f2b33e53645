"""Leases at the brokers that know them: take, renew, commit, give back.

What to ask and what an answer means is in `state/leasing.py` and `state/commits.py`. Requests do
not wait for each other: each carries the epoch, and commits are numbered, so whatever comes late to
the broker is refused there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from inorder.client.ids import new_producer_id
from inorder.client.leaseapi import LeaseApi
from inorder.client.session import Session
from inorder.client.state import leasing as rules
from inorder.client.state.commits import NOTHING, Numbered
from inorder.client.state.tenure import Tenure, Terms
from inorder.errors import CodeNotSupported
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.wire.requests.leases import Commit, CommitBody, Lease, LeaseBody, QueueCommit, Release

log = get_logger(__name__)

LEASES_SINCE: Final = 1
"""The protocol of ours that has leases."""

_ON_ROCKETMQ: Final = (
    "broker %s knows no leases: queues are locked by RocketMQ's rules. Order is kept; a queue of a "
    "consumer that died is free after 60 s; after a crash what was done since the last commit is "
    "done again, with order='key' also what was done above it; messages have no fence"
)


class Leases:
    """The leases of one consumer, under an id of its own: another one is another owner."""

    def __init__(self, session: Session, group: str, terms: Terms) -> None:
        self.terms = terms
        self.instance = new_producer_id(session.message_ids)
        self._session = session
        self._group = group
        self._brokers: dict[str, TopicQueue] = {}
        self._numbers = itertools.count(1)
        self.met: set[str] = set()
        """Brokers that were asked whether they know leases."""

    @property
    def brokers(self) -> tuple[str, ...]:
        """Return the brokers that know leases, of those that were asked."""
        return tuple(self._brokers)

    async def known_at(self, queue: TopicQueue) -> bool:
        """Tell whether the broker of a queue knows leases. Raises InorderError if it is away."""
        capability = await self._session.capability(queue)
        self.met.add(queue.broker)
        if capability < LEASES_SINCE:
            self._without(queue)
            return False
        self._brokers[queue.broker] = queue
        return True

    async def take(self, queues: Sequence[TopicQueue]) -> rules.Acquired | None:
        """Ask for new queues of one broker; None if it does not know leases after all."""
        found = rules.Acquired({})
        broker = queues[0].broker
        for wishes in rules.take_wishes(queues, next(self._numbers)):
            api = await self._meet(queues[0])
            sent_ms = self._session.clock.monotonic_ms()
            try:
                answer = await api.lease(self._lease(), LeaseBody(wishes))
            except CodeNotSupported:
                self._without(queues[0])
                return None
            found = found.and_also(rules.acquired(broker, answer, sent_ms))
        return found

    async def renew(self, broker: str, owned: Mapping[TopicQueue, Tenure]) -> list[rules.Renewed]:
        """Renew what is ours at a broker. Raises InorderError if it does not answer.

        CodeNotSupported: it is another kind of broker by now, and knows nothing of our leases.
        """
        found = []
        for wishes in rules.renewal_wishes(owned, broker):
            queue = self._brokers.get(broker)
            if queue is None:
                break
            api = await self._meet(queue)
            sent_ms = self._session.clock.monotonic_ms()
            answer = await api.lease(
                self._lease(), LeaseBody(wishes), timeout_ms=self.request_timeout_ms
            )
            now_ms = self._session.clock.monotonic_ms()
            found.append(
                rules.apply_renewal(owned, broker, wishes, answer, sent_ms=sent_ms, now_ms=now_ms)
            )
        return found

    async def commit(
        self, commits: Sequence[tuple[TopicQueue, int, Numbered]]
    ) -> tuple[int, set[TopicQueue], set[TopicQueue]]:
        """Commit queues of one broker, with their epochs; return when it was sent, those that were
        taken, and those that are not ours any more."""
        broker = commits[0][0].broker
        body = CommitBody(
            [
                QueueCommit(
                    queue.topic,
                    queue.index,
                    epoch,
                    one.number,
                    one.progress.offset,
                    one.progress.finished,
                )
                for queue, epoch, one in commits
            ]
        )
        api = await self._meet(commits[0][0])
        sent_ms = self._session.clock.monotonic_ms()
        request = Commit(self._group, self._session.client_id, self.instance)
        answer = await api.commit(request, body, timeout_ms=self.request_timeout_ms)
        taken = {TopicQueue(one.topic, broker, one.queue_id) for one in answer.taken}
        lost = {TopicQueue(one.topic, broker, one.queue_id) for one in answer.lost}
        return sent_ms, taken, lost

    async def release(self, queue: TopicQueue, epoch: int, commit: Numbered | None) -> None:
        """Commit and give back in one request. Raises LeaseLost if it was not ours any more."""
        api = await self._meet(queue)
        await api.release(
            Release(
                self._group,
                self._session.client_id,
                self.instance,
                queue.topic,
                queue.index,
                epoch,
                NOTHING if commit is None else commit.progress.offset,
                "" if commit is None else commit.progress.finished,
                0 if commit is None else commit.number,
            ),
            timeout_ms=self.request_timeout_ms,
        )

    def forget(self, broker: str) -> None:
        """Use leases at a broker no more, until it says again that it knows them."""
        if broker in self._brokers:
            self._without(self._brokers[broker])
            self.met.discard(broker)

    def drop_connection(self, broker: str, reason: str) -> None:
        """Close the connection to a broker: it does not answer."""
        if broker in self._brokers:
            self._session.drop_connection(self._brokers[broker], reason)

    @property
    def request_timeout_ms(self) -> int:
        """Return how long an answer is waited for: later than the end of the lease it is none."""
        return min(self._session.config.request_timeout_ms, self.terms.lease_ms)

    async def _meet(self, queue: TopicQueue) -> LeaseApi:
        """Return a queue's broker; over a new connection it hears of us first."""
        await self._session.capability(queue)
        return LeaseApi(await self._session.master_of(queue))

    def _lease(self) -> Lease:
        return Lease(
            self._group,
            self._session.client_id,
            self.instance,
            self.terms.lease_ms,
            self.terms.grace_ms,
        )

    def _without(self, queue: TopicQueue) -> None:
        self._brokers.pop(queue.broker, None)
        self._session.say_once("leases", _ON_ROCKETMQ, queue.broker)


def commit_parts(
    commits: Sequence[tuple[TopicQueue, int, Numbered]], *, count_max: int, chars_max: int
) -> list[list[tuple[TopicQueue, int, Numbered]]]:
    """Divide the commits for a broker into requests of a bounded size."""
    parts: list[list[tuple[TopicQueue, int, Numbered]]] = []
    room = 0
    for one in commits:
        size = len(one[2].progress.finished)
        if not parts or len(parts[-1]) >= count_max or size > room:
            parts.append([])
            room = chars_max
        parts[-1].append(one)
        room -= size
    return parts
