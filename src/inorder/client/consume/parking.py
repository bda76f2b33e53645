"""Parking keys at the broker, and redriving them.

**Parking** (`Parker`). A message that failed too often is parked: it becomes the first of its key's
list, or joins the list. Later messages of the key join it one request after the other, in order. A
request without an answer is repeated: the broker recognises a message by its offset. No handler of
a queue starts before its parked keys are known in the version that the broker names; the version
comes with the lease and with every pull. `rules/parking.py` keeps the copy.

**Redriving** (`Redriver`), by the owner of the queue. A redrive reads a key's list from its
beginning and hands one message after the other to the handler. Each result is reported before the
next message begins. When the list is empty the owner unparks the key. The broker refuses if the
list has grown; then the redrive continues. A key that came with a resize has older lists in other
queues, and those are drained first, the oldest first. A pointer to a list that is closed, or to a
queue where the key is live, is left over from an owner that died: nothing is drained there, and the
pointer is removed.

A message that fails ends the redrive: its key stays parked, with the new error. `Retry` only makes
the redrive wait. A message that is at the handler when the queue is given up is finished and
reported before the release.

How parked keys are stored: decision 21. Who parks and who releases a key: decision 22.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Literal, Protocol
from weakref import WeakKeyDictionary

from inorder.client.api import ParkingApi
from inorder.client.consume.hooks import Hooks, ParkContext
from inorder.client.consume.leases import Leases
from inorder.client.consume.messages import receive
from inorder.client.consume.queue import AssignedQueue, QueueEvents
from inorder.client.consume.rules.keyed import Work
from inorder.client.consume.rules.outcomes import Retry, retry_pause_ms
from inorder.client.consume.rules.parking import (
    UNKNOWN,
    ParkedView,
    RedrivePace,
    error_text,
    key_to_park,
    restore,
)
from inorder.client.consume.workers import Counts, Run
from inorder.client.session import Session
from inorder.errors import InorderError, LeaseLost, RouteError
from inorder.logs import get_logger
from inorder.model import MASTER_ID, ReceivedMessage, TopicQueue
from inorder.tasks import Tasks
from inorder.wire.requests.parking import Outcome as ParkOutcome
from inorder.wire.requests.parking import (
    OwnedKey,
    Park,
    ParkBody,
    ParkedRead,
    ParkItem,
    QueuePlace,
    Redriven,
    RedrivenBody,
    Unpark,
)

log = get_logger(__name__)

LOAD_AGAIN_MS: Final = 200
AT_ONCE: Final = 8
"""Keys of one queue that are redriven at the same time."""
READ_MESSAGES: Final = 32
AGAIN_MS: Final = 500
RELOAD_MS: Final = 5000
"""How often a queue's parked keys are reloaded while a redrive waits."""
OLDER_MAX: Final = 64
"""The most resizes over which a key stays parked."""


class Parker:
    """Parks keys of one consumer's queues, and knows which keys are parked."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        leases: Leases,
        tasks: Tasks,
        counts: Counts,
        events: QueueEvents,
        hooks: Hooks,
    ) -> None:
        self._session = session
        self._group = group
        self._hooks = hooks
        self._leases = leases
        self._tasks = tasks
        self._counts = counts
        self._events = events
        self._loading: set[AssignedQueue] = set()
        self._said_full = False

    def view(self, assigned: AssignedQueue) -> ParkedView:
        """Return the copy of a queue's parked keys."""
        found = assigned.view
        if found is None:
            found = assigned.view = ParkedView(assigned.parked)
            if assigned.progress.keys is not None:
                assigned.progress.keys.parked = found.keys
        return found

    def is_known(self, assigned: AssignedQueue) -> bool:
        """Return whether a queue's parked keys are known; load them if not."""
        # hot: called before every handler
        view = assigned.view
        if view is not None and assigned.parked <= view.version:
            return True
        view = self.view(assigned)
        if not assigned.leased or assigned.parked <= view.version:
            return True
        if assigned not in self._loading:
            self._loading.add(assigned)
            self._tasks.start(self._load(assigned, view), name=f"parked keys of {assigned.queue}")
        return False

    async def _load(self, assigned: AssignedQueue, view: ParkedView) -> None:
        queue, found = assigned.queue, None
        try:
            while found is None and assigned.live:
                try:
                    api = await self.api(queue)
                    found = await api.keys(self._group, queue.topic, queue.index)
                except InorderError as error:
                    log.warning("parked keys are not known yet queue=%s error=%s", queue, error)
                    await asyncio.sleep(LOAD_AGAIN_MS / 1000)
        finally:
            self._loading.discard(assigned)
        if found is None:
            return
        done = [] if view.is_loaded else found.done  # later ones are parked by this owner itself
        view.load(found)
        # Without this, a copy that is older than the version that triggered the load is reloaded.
        assigned.parked = min(assigned.parked, found.version)
        if assigned.progress.keys is not None:
            assigned.progress.keys.parked = view.keys
            assigned.progress.done_elsewhere(done)
        if assigned.live:
            self._events.parked_loaded(assigned)

    async def api(self, queue: TopicQueue) -> ParkingApi:
        """Return the parking requests of a queue's broker, even if the route omits the broker.

        Raises InorderError if the broker is not reachable.
        """
        try:
            return ParkingApi(await self._session.master_of(queue))
        except RouteError:
            info = await self._session.cluster_info()
            broker = info.brokers.get(queue.broker)
            if broker is None or MASTER_ID not in broker.addresses:
                raise
            return ParkingApi(await self._session.broker_at(broker.addresses[MASTER_ID]))

    # Parking.

    async def park_first(
        self, assigned: AssignedQueue, work: Work, error: BaseException | None
    ) -> str:
        """Park the first message of a `Work`; return the broker's outcome.

        The outcome is empty if the message cannot be parked, or if the queue was given up before
        the broker answered.
        """
        first = work.messages[0]
        key = key_to_park(work.key, first)
        if key is None:
            log.error("key is too long to be parked, it blocks queue=%s offset=%d",
                      assigned.queue, first.offset)  # fmt: skip
            return ""
        item = ParkItem(
            first.offset, key, first.redeliveries + 1, error_text(error) or "?",
            first.fence.sequence,
        )  # fmt: skip
        outcome: ParkOutcome | Literal[""] = ""
        while not outcome and assigned.live:
            # Without an answer it may be parked, so the handler must not get it yet.
            outcomes = await self._park(assigned, [item])
            if outcomes:
                outcome = outcomes[0]
            else:
                await asyncio.sleep(LOAD_AGAIN_MS / 1000)
        if outcome == "parked":
            self.view(assigned).park(key, first.offset)
            log.warning(
                "key is parked group=%s queue=%s key=%s offset=%d tried=%d: %s; see `inorder "
                "parked %s`", self._group, assigned.queue, key, first.offset,
                first.redeliveries + 1, item.error, self._group,
            )  # fmt: skip
            self._tell(assigned.queue, key, (first,), error)
        return outcome

    async def join(
        self, assigned: AssignedQueue, key: str, messages: Sequence[ReceivedMessage]
    ) -> int | None:
        """Let messages join their parked key; return how many joined, counted from the first.

        None means that the broker did not answer.
        """
        items = [ParkItem(one.offset, key, 0, None, one.fence.sequence) for one in messages]
        outcomes = await self._park(assigned, items)
        if not outcomes:
            return None
        view, done = self.view(assigned), 0
        for message, outcome in zip(messages, outcomes, strict=False):
            if outcome == "live":
                view.go_live(key)
            if outcome != "parked":
                break
            view.park(key, message.offset)
            done += 1
        if done:
            self._tell(assigned.queue, key, messages[:done], None)
        return done

    def _tell(
        self,
        queue: TopicQueue,
        key: str,
        messages: Sequence[ReceivedMessage],
        error: BaseException | None,
    ) -> None:
        if self._hooks.park is not None:
            self._hooks.parked(ParkContext(self._group, queue, key, tuple(messages), error))

    async def _park(self, assigned: AssignedQueue, items: list[ParkItem]) -> list[ParkOutcome]:
        queue = assigned.queue
        request = Park(
            self._group, self._session.client_id, self._leases.instance, queue.topic, queue.index,
            assigned.lease.epoch,
        )  # fmt: skip
        try:
            answer = await (await self.api(queue)).park(request, ParkBody(items))
        except LeaseLost as error:
            log.info("not parked, the lease is lost queue=%s: %s", queue, error)
            return []
        except InorderError as error:
            log.warning("not parked yet queue=%s error=%s", queue, error)
            return []
        self.view(assigned).answered(answer.before, answer.version)
        self._counts.parked += sum(1 for outcome in answer.outcomes if outcome == "parked")
        self._log_outcomes(queue, answer.outcomes, answer.remark)
        return answer.outcomes

    def _log_outcomes(self, queue: TopicQueue, outcomes: list[ParkOutcome], remark: str) -> None:
        if "gone" in outcomes:
            log.error("a message cannot be parked, the broker has deleted it; it blocks its key "
                      "queue=%s", queue)  # fmt: skip
        full = "full" in outcomes
        if full and not self._said_full:
            log.error(
                "nothing more can be parked, keys block group=%s queue=%s: %s; redrive or drop "
                "some (`inorder parked %s`)", self._group, queue, remark, self._group,
            )  # fmt: skip
        self._said_full = full


class Runs(Protocol):
    """Calls the handler of a topic for redriven messages."""

    async def run_apart(self, assigned: AssignedQueue, message: ReceivedMessage) -> Run:
        """Hand one message to the handler, beside the messages of the queue; return the run."""
        ...


class _Over(Exception):
    """A redrive ends here; its key stays parked."""


class _Waits(_Over):
    """The messages wait for older ones, which come again after a reset."""


class Redriver:
    """The redrives of one consumer's queues."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        parker: Parker,
        leases: Leases,
        tasks: Tasks,
        events: QueueEvents,
        suspend_ms: int,
    ) -> None:
        self.session = session
        self.parker = parker
        self.suspend_ms = suspend_ms
        self._group = group
        self._leases = leases
        self._tasks = tasks
        self._events = events
        self._active: WeakKeyDictionary[AssignedQueue, set[str]] = WeakKeyDictionary()
        self._paces: WeakKeyDictionary[AssignedQueue, RedrivePace] = WeakKeyDictionary()
        self._turns = itertools.count(1)
        self._begun: WeakKeyDictionary[AssignedQueue, dict[str, int]] = WeakKeyDictionary()
        self._reloaded_ms: WeakKeyDictionary[AssignedQueue, int] = WeakKeyDictionary()

    def start_wanted(self, assigned: AssignedQueue, runs: Runs) -> None:
        """Start the wanted redrives of a queue whose parked keys are known."""
        if not assigned.live or not assigned.leased:
            return
        wanted = self.parker.view(assigned).wanted(self._active.get(assigned, ()))
        if not wanted:
            return
        active = self._active.setdefault(assigned, set())
        pace = self._paces.setdefault(assigned, RedrivePace())
        begun = self._begun.setdefault(assigned, {})
        wanted.sort(key=lambda one: begun.get(one.key, 0))  # a redrive that waits lets others begin
        for one in wanted[: max(0, AT_ONCE - len(active))]:
            active.add(one.key)
            if one.key not in begun:
                log.info(
                    "redrive begins group=%s queue=%s key=%s", self._group, assigned.queue, one.key
                )
            begun[one.key] = next(self._turns)
            self._tasks.start(
                self._run(assigned, runs, one, pace),
                name=f"redrive of {one.key} in {assigned.queue}",
            )

    def check(self, assigned: AssignedQueue) -> None:
        """Mark the copy as stale if the broker wants a redrive that the copy does not show.

        The version may be one that this consumer has: a restarted broker counts changes without a
        record again.
        """
        view = self.parker.view(assigned)
        if assigned.redrive and not self._active.get(assigned) and not view.wanted(()):
            view.version = UNKNOWN

    def reload(self, assigned: AssignedQueue) -> None:
        """Mark the copy of a queue's parked keys as stale, at most every RELOAD_MS."""
        now_ms = self.session.clock.monotonic_ms()
        if now_ms - self._reloaded_ms.get(assigned, -RELOAD_MS) >= RELOAD_MS:
            self._reloaded_ms[assigned] = now_ms
            self.parker.view(assigned).version = UNKNOWN

    async def _run(
        self, assigned: AssignedQueue, runs: Runs, one: OwnedKey, pace: RedrivePace
    ) -> None:
        redrive = _KeyRedrive(self, assigned, runs, one, pace)
        try:
            await redrive.run()
        except _Over as why:
            level = logging.DEBUG if isinstance(why, _Waits) else logging.WARNING
            log.log(
                level,
                "redrive ended, the key stays parked group=%s queue=%s key=%s handled=%d: %s",
                self._group, assigned.queue, one.key, redrive.handled, why,
            )  # fmt: skip
            await asyncio.sleep(AGAIN_MS / 1000)  # it may still be wanted, and start again
        else:
            self._begun[assigned].pop(one.key, None)
            log.info(
                "redrive is complete, the key is live group=%s queue=%s key=%s handled=%d",
                self._group, assigned.queue, one.key, redrive.handled,
            )  # fmt: skip
        finally:
            self._active[assigned].discard(one.key)
        if assigned.live:
            self._events.parked_loaded(assigned)

    async def api(self, queue: TopicQueue) -> ParkingApi:
        """Return the parking requests of a queue's broker."""
        return await self.parker.api(queue)

    def owner(self) -> tuple[str, str, str]:
        """Return the first fields of every request of an owner."""
        return self._group, self.session.client_id, self._leases.instance


class _KeyRedrive:
    """The redrive of one key."""

    def __init__(
        self,
        redriver: Redriver,
        assigned: AssignedQueue,
        runs: Runs,
        one: OwnedKey,
        pace: RedrivePace,
    ) -> None:
        self._redriver = redriver
        self._parker = redriver.parker
        self._assigned = assigned
        self._runs = runs
        self._key = one.key
        self._redrive = one.redrive
        self._rate = one.rate
        self._older = list(one.older)
        self._pace = pace
        self.handled = 0

    @property
    def _own(self) -> QueuePlace:
        return QueuePlace(self._assigned.queue.broker, self._assigned.queue.index)

    async def run(self) -> None:
        """Drain all lists and unpark the key. Raises _Over if that is not possible now."""
        await self._drain(self._own, self._older, depth=0)

    async def _drain(self, place: QueuePlace, older: list[QueuePlace], depth: int) -> None:
        """Drain the older lists, then this one, until the broker closes it."""
        await self._drain_older(place, older, depth)
        end = -1
        while True:
            found, count = await self._read(place)
            for message in found:
                end = max(end, message.offset)
                await self._handle(place, message)
            if not found:
                is_older = place != self._own  # it is closed even if later messages stay in it
                if (is_older or not count) and await self._unpark(place, end):
                    return
                if count:
                    self._redriver.reload(self._assigned)
                    raise _Waits(f"{count} messages in {self._queue(place)} wait for older ones")
                if is_older:
                    raise _Over(f"the older list in {self._queue(place)} is not closed yet")
                await asyncio.sleep(AGAIN_MS / 1000)
                known = self._parker.view(self._assigned).keys.get(self._key)
                await self._drain_older(place, [] if known is None else known.older, depth)

    async def _drain_older(
        self, place: QueuePlace, older: Iterable[QueuePlace], depth: int
    ) -> None:
        """Drain the lists that are older than a list, and remove the pointers to them."""
        if depth > OLDER_MAX:
            raise _Over("its older lists point at each other")
        for before in older:
            lists = await self._older_of(before)
            if lists is not None:
                await self._drain(before, lists, depth + 1)
            await self._report(place, RedrivenBody(older=before))

    async def _older_of(self, place: QueuePlace) -> list[QueuePlace] | None:
        """Return the lists that are older than a list in another queue.

        None: the list is closed already, or the key is live there and it is no older list.
        """
        queue = self._queue(place)
        try:
            api = await self._redriver.api(queue)
            found = await api.keys(self._redriver.owner()[0], queue.topic, queue.index)
        except InorderError as error:
            raise _Over(f"the older list in {queue} cannot be read: {error}") from error
        for one in found.keys:
            if one.key == self._key:
                return list(one.older) if one.moved else None
        return None

    async def _read(self, place: QueuePlace) -> tuple[list[ReceivedMessage], int]:
        """Return the first messages of a list, and the length of the list.

        Reported messages are gone from the list; messages that have to wait are not returned.
        """
        queue, assigned = self._queue(place), self._assigned
        request = ParkedRead(
            self._redriver.owner()[0], queue.topic, queue.index, self._key, -1, READ_MESSAGES,
            in_order=True,
        )  # fmt: skip
        try:
            parked = await (await self._redriver.api(queue)).read_counted(request)
            limit = self._redriver.session.config.message_bytes_max
            found = [receive(queue.broker, record, limit) for record in parked.records]
            return [restore(message, assigned.lease.epoch) for message in found], parked.messages
        except (InorderError, KeyError, ValueError) as error:
            raise _Over(f"its list in {queue} cannot be read: {error}") from error

    async def _handle(self, place: QueuePlace, message: ReceivedMessage) -> None:
        """Hand a message to the handler until it succeeds or fails; report the result."""
        assigned = self._assigned
        while True:
            wait_ms = self._pace.wait_ms(self._rate, self._now_ms())
            await asyncio.sleep(wait_ms / 1000)
            self._check()
            assigned.enter()
            try:
                run = await self._runs.run_apart(assigned, message)
                if run.done or (run.result is not None and not run.failed):
                    self.handled += 1
                    await self._report(place, RedrivenBody([message.offset]))
                    return
                failed = run.error is not None and not isinstance(run.error, Retry)
                if failed:
                    await self._report(self._own, RedrivenBody(error=error_text(run.error)))
                    self._parker.view(assigned).end(self._key, self._redrive)
                    raise _Over(
                        f"offset {message.offset} failed again: {error_text(run.error)}"
                    ) from run.error
            finally:
                assigned.leave()
            asked_ms = run.error.after_ms if isinstance(run.error, Retry) else None
            pause_ms = retry_pause_ms(asked_ms, self._redriver.suspend_ms, of_key=True)
            await asyncio.sleep(pause_ms / 1000)

    async def _report(self, place: QueuePlace, body: RedrivenBody) -> None:
        """Report results until the broker answers or the queue is given up."""
        is_older = place != self._own
        queue, epoch = self._queue(place), self._assigned.lease.epoch
        request = Redriven(
            *self._redriver.owner(),
            queue.topic,
            queue.index,
            0 if is_older else epoch,
            self._key,
            is_older,
        )
        while True:
            try:
                reply = await (await self._redriver.api(queue)).redriven(request, body)
            except InorderError as error:
                # Also if the lease is lost: it may come back, and the handler must not run again.
                log.warning("redrive is not reported yet queue=%s error=%s", queue, error)
                if not self._assigned.live:
                    raise _Over(f"a result is not reported: {error}") from error
                await asyncio.sleep(AGAIN_MS / 1000)
            else:
                if not is_older:
                    self._parker.view(self._assigned).answered(reply.before, reply.version)
                return

    async def _unpark(self, place: QueuePlace, end: int) -> bool:
        """Unpark the key, or close an older list; False if the list has grown."""
        is_older = place != self._own
        view = self._parker.view(self._assigned)
        if not is_older:
            known = view.keys.get(self._key)
            end = max(end, -1 if known is None else known.end)
        queue, epoch = self._queue(place), self._assigned.lease.epoch
        request = Unpark(
            *self._redriver.owner(), queue.topic, queue.index, 0 if is_older else epoch, self._key,
            end if not is_older else 2**62, is_older,
        )  # fmt: skip
        self._check()
        try:
            reply = await (await self._redriver.api(queue)).unpark(request)
        except InorderError as error:
            raise _Over(f"the key could not be unparked: {error}") from error
        if is_older:
            return reply.live
        view.answered(reply.before, reply.version)
        if reply.live:
            view.go_live(self._key)
        else:
            log.info("key is not live yet queue=%s key=%s: %s", queue, self._key, reply.why)
            view.version = UNKNOWN
            self._parker.is_known(self._assigned)  # loads the keys again
        return reply.live

    def _check(self) -> None:
        """Raise _Over if the queue was given up or the redrive was cancelled."""
        if not self._assigned.live:
            raise _Over("the queue is given up")
        if not self._parker.view(self._assigned).goes_on(self._key, self._redrive):
            raise _Over("the redrive was cancelled")

    def _queue(self, place: QueuePlace) -> TopicQueue:
        return TopicQueue(self._assigned.queue.topic, place.broker, place.queue_id)

    def _now_ms(self) -> int:
        return self._redriver.session.clock.monotonic_ms()
