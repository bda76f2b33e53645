"""Setting keys aside at the broker, and knowing which are.

What is known of a queue's parked keys, and when it has to be asked for, is in `state/parking.py`.
No handler of a queue starts before its keys are known as the broker's number for them says; the
number comes with the lease and with every pull.

A message that failed too often is parked as the first of its key, or joins what lies there; the
messages behind it join it one request after the other, in order. A request whose answer is lost is
made again: the broker knows a message by its offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

from inorder.client.counting import Counts
from inorder.client.holding import Holding
from inorder.client.leasing import Leases
from inorder.client.parkingapi import ParkingApi
from inorder.client.session import Session
from inorder.client.state.keyed import Work
from inorder.client.state.parking import ParkedView, error_text, key_to_park
from inorder.errors import InorderError, LeaseLost, RouteError
from inorder.logs import get_logger
from inorder.model import MASTER_ID, ReceivedMessage, TopicQueue
from inorder.tasks import Tasks
from inorder.wire.requests.parking import Outcome, Park, ParkBody, ParkItem

log = get_logger(__name__)

LOAD_AGAIN_MS: Final = 200

Changed = Callable[[Holding], None]


class Parker:
    """The parked keys of one consumer's queues."""

    def __init__(
        self, session: Session, group: str, *, leases: Leases, tasks: Tasks, counts: Counts
    ) -> None:
        self._session = session
        self._group = group
        self._leases = leases
        self._tasks = tasks
        self._counts = counts
        self._loading: set[Holding] = set()
        self._said_full = False
        self.changed: Changed = lambda holding: None
        """Is told that the keys of a queue are known, anew."""

    def view(self, holding: Holding) -> ParkedView:
        """Return what is known of a queue."""
        found = holding.view
        if found is None:
            found = holding.view = ParkedView(holding.parked)
            if holding.keys is not None:
                holding.keys.parked = found.keys
        return found

    def is_known(self, holding: Holding) -> bool:
        """Tell whether a queue's parked keys are known; if not, ask for them."""
        # hot: asked before every handler
        view = holding.view
        if view is not None and holding.parked <= view.version:
            return True
        view = self.view(holding)
        if not holding.leased or holding.parked <= view.version:
            return True
        if holding not in self._loading:
            self._loading.add(holding)
            self._tasks.start(self._load(holding, view), name=f"parked keys of {holding.queue}")
        return False

    async def _load(self, holding: Holding, view: ParkedView) -> None:
        queue, found = holding.queue, None
        try:
            while found is None and holding.live:
                try:
                    api = await self.api(queue)
                    found = await api.keys(self._group, queue.topic, queue.index)
                except InorderError as error:
                    log.warning("parked keys are not known yet queue=%s error=%s", queue, error)
                    await asyncio.sleep(LOAD_AGAIN_MS / 1000)
        finally:
            self._loading.discard(holding)
        if found is None:
            return
        done = [] if view.is_loaded else found.done  # later on they are our own
        view.load(found)
        # A copy of an older version than the number that brought us here would be asked for again.
        holding.parked = min(holding.parked, found.version)
        if holding.keys is not None:
            holding.keys.parked = view.keys
            holding.keys.done_elsewhere(done)
        if holding.live:
            self.changed(holding)

    async def api(self, queue: TopicQueue) -> ParkingApi:
        """Return the requests to a queue's broker, also if it has no queue of the topic any more.

        Raises InorderError.
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

    async def park_first(self, holding: Holding, work: Work, error: BaseException | None) -> str:
        """Park the first message of a work, which failed too often; return what became of it.

        Empty: it cannot be parked, or the queue is not ours any more and nobody knows.
        """
        first = work.messages[0]
        key = key_to_park(work.key, first)
        if key is None:
            log.error("key is too long to be parked, it blocks queue=%s offset=%d",
                      holding.queue, first.offset)  # fmt: skip
            return ""
        item = ParkItem(
            first.offset, key, first.redeliveries + 1, error_text(error) or "?",
            first.fence.sequence,
        )  # fmt: skip
        outcome: Outcome | Literal[""] = ""
        while not outcome and holding.live:
            # Without an answer it may be parked: the handler must not have it before that is known.
            outcomes = await self._park(holding, [item])
            if outcomes:
                outcome = outcomes[0]
            else:
                await asyncio.sleep(LOAD_AGAIN_MS / 1000)
        if outcome == "parked":
            self.view(holding).park(key, first.offset)
            log.warning(
                "key is parked group=%s queue=%s key=%s offset=%d tried=%d: %s; see `inorder "
                "parked %s`", self._group, holding.queue, key, first.offset,
                first.redeliveries + 1, item.error, self._group,
            )  # fmt: skip
        return outcome

    async def join(
        self, holding: Holding, key: str, messages: Sequence[ReceivedMessage]
    ) -> int | None:
        """Let messages join their parked key; return how many of them did, from the first on.

        None: nobody knows.
        """
        items = [ParkItem(one.offset, key, 0, None, one.fence.sequence) for one in messages]
        outcomes = await self._park(holding, items)
        if not outcomes:
            return None
        view, done = self.view(holding), 0
        for message, outcome in zip(messages, outcomes, strict=False):
            if outcome == "live":
                view.go_live(key)
            if outcome != "parked":
                break
            view.park(key, message.offset)
            done += 1
        return done

    async def _park(self, holding: Holding, items: list[ParkItem]) -> list[Outcome]:
        queue = holding.queue
        request = Park(
            self._group, self._session.client_id, self._leases.instance, queue.topic, queue.index,
            holding.tenure.epoch,
        )  # fmt: skip
        try:
            answer = await (await self.api(queue)).park(request, ParkBody(items))
        except LeaseLost as error:
            log.info("not parked, the lease is lost queue=%s: %s", queue, error)
            return []
        except InorderError as error:
            log.warning("not parked yet queue=%s error=%s", queue, error)
            return []
        self.view(holding).answered(answer.before, answer.version)
        self._counts.parked += sum(1 for outcome in answer.outcomes if outcome == "parked")
        self._say(queue, answer.outcomes, answer.remark)
        return answer.outcomes

    def _say(self, queue: TopicQueue, outcomes: list[Outcome], remark: str) -> None:
        if "gone" in outcomes:
            log.error("the broker does not have a message any more that is to be parked queue=%s; "
                      "it blocks its key", queue)  # fmt: skip
        full = "full" in outcomes
        if full and not self._said_full:
            log.error(
                "nothing more can be parked, keys block group=%s queue=%s: %s; redrive or drop "
                "some (`inorder parked %s`)", self._group, queue, remark, self._group,
            )  # fmt: skip
        self._said_full = full
