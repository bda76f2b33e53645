"""Handing a queue back: wait for its handlers, commit, release; each step waits for its answer.

Under a lease the commit and the release are one request, and the broker wakes the next owner as it
answers. With RocketMQ's locks they are two requests. A running handler is never forced: the release
waits for it. A moved queue without order does not wait: it is committed as it stands, and the
results of its handlers are thrown away, as in RocketMQ. Who may commit: decision 16.
"""

from __future__ import annotations

import asyncio
from typing import Final

from inorder.client.consume.commits import Committer
from inorder.client.consume.leases import Leases, Locks
from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.rules.assignment import Release, release_steps
from inorder.client.consume.rules.commits import NumberedCommit
from inorder.client.session import Session
from inorder.errors import InorderError, LeaseLost, LeasesFull
from inorder.logs import get_logger
from inorder.tasks import Backoff
from inorder.wire.requests.offsets import ResetOffset

log = get_logger(__name__)

COMMIT_TRIES: Final = 5
"""Attempts at the last commit of a queue without a lock."""
STOP_COMMIT_MS: Final = 5000
"""How long a stopping consumer waits for a broker that does not answer."""


class Releaser:
    """Releases the queues of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        committer: Committer,
        locks: Locks,
        leases: Leases,
    ) -> None:
        self._session = session
        self._group = group
        self._committer = committer
        self._locks = locks
        self._leases = leases
        self.stopping = False

    async def release(self, assigned: AssignedQueue) -> None:
        """Release a dropped queue; returns when it is released, or when its commit has failed."""
        while (steps := self._steps(assigned)) == (Release.WAIT,):
            assigned.idle.clear()
            await assigned.idle.wait()
        if assigned.leased:
            await self._give_back(assigned)
        else:
            committed = await self._last_commit(assigned, steps)
            if Release.UNLOCK in steps and committed:
                await self._locks.release(assigned.queue)

    def _steps(self, assigned: AssignedQueue) -> tuple[Release, ...]:
        return release_steps(
            assigned.lease,
            commit=not assigned.progress.is_saved,
            ordered=assigned.ordered,
        )

    # Under a lease.

    async def _give_back(self, assigned: AssignedQueue) -> None:
        """Commit and release in one request.

        A broker that does not answer is asked again while the lease lasts, because no other owner
        begins before its end.
        """
        lease, queue = assigned.lease, assigned.queue
        if not lease.locked and not lease.reserved_epoch:
            return  # lost: the broker has given it to another owner
        commit = await self._final(assigned) if lease.locked else None
        backoff = Backoff(self._session.config.retry_first_ms, self._session.config.retry_max_ms)
        began_ms = self._session.clock.monotonic_ms()
        while True:
            try:
                await self._leases.release(queue, lease.reserved_epoch or lease.epoch, commit)
                return
            except LeaseLost as error:
                if commit is not None:
                    self._say_uncommitted(assigned, str(error))
                return
            except LeasesFull as error:
                if commit is None:
                    raise
                self._say_uncommitted(assigned, str(error))
                commit = None  # the commit before stays in force
                continue
            except InorderError as error:
                now_ms = self._session.clock.monotonic_ms()
                over = now_ms >= max(lease.lease_ends_ms(), began_ms + self._leases.terms.lease_ms)
                if over or (self.stopping and now_ms - began_ms > STOP_COMMIT_MS):
                    self._say_uncommitted(assigned, str(error))
                    return
            await asyncio.sleep(backoff.next_ms() / 1000)

    async def _final(self, assigned: AssignedQueue) -> NumberedCommit | None:
        """Return the last commit: the finished messages, or the offset to continue at."""
        progress = assigned.progress
        assert assigned.lease.dropped is not None
        if progress.moved_to is None:
            return progress.next_commit() if assigned.lease.dropped.may_commit else None
        if progress.moved_to < progress.saved.offset:
            await self._reset(assigned, progress.moved_to)
            return None
        return progress.next_commit()

    async def _reset(self, assigned: AssignedQueue, offset: int) -> None:
        """Set a lower offset by a reset, which raises the epoch; commits never lower it."""
        queue = assigned.queue
        request = ResetOffset(queue.topic, self._group, -1, True, queue.index, offset)
        try:
            await (await self._session.master_of(queue)).reset_offset(request)
        except InorderError as error:
            log.warning("queue=%s was not set to offset %d: %s", queue, offset, error)

    def _say_uncommitted(self, assigned: AssignedQueue, why: str) -> None:
        log.warning(
            "queue=%s was given up without its last commit (offset %d): messages since the commit "
            "before are handled again; %s",
            assigned.queue, assigned.progress.offset, why,
        )  # fmt: skip

    # With RocketMQ's locks.

    async def _last_commit(self, assigned: AssignedQueue, steps: tuple[Release, ...]) -> bool:
        """Commit the finished messages, or the offset to continue at; return whether to unlock.

        A broker that does not answer is asked again while the lock lasts, because no other owner
        begins before its end.
        """
        if Release.COMMIT not in steps and assigned.progress.moved_to is None:
            return True
        backoff = Backoff(self._session.config.retry_first_ms, self._session.config.retry_max_ms)
        began_ms = self._session.clock.monotonic_ms()
        while True:
            if await self._last_save(assigned):
                return True
            now_ms = self._session.clock.monotonic_ms()
            if assigned.needs_lock and not assigned.lease.is_trusted(now_ms):
                break
            if not assigned.needs_lock and backoff.attempts >= COMMIT_TRIES:
                break
            if self.stopping and now_ms - began_ms > STOP_COMMIT_MS:
                break
            await asyncio.sleep(backoff.next_ms() / 1000)
        self._say_uncommitted(assigned, "its broker did not answer")
        return False

    async def _last_save(self, assigned: AssignedQueue) -> bool:
        progress = assigned.progress
        if progress.moved_to is None:
            await self._committer.of([assigned.queue])
            return progress.is_saved
        return await self._committer.move(assigned.queue, progress.moved_to)
