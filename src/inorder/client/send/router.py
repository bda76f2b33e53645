"""Bringing messages to their queues: which one, in whose lane, until when, and where to instead.

A send takes its place without an await: in the lane of its queue, or, while the route is not known,
in the line of its topic. Everything happens inside the time that the caller gave; one timer looks
after all deadlines.

Keys follow the topic's key map, if it has one. When a map gives way to a newer one, a queue that
keys leave is first drained: nothing in flight, nothing unknown. Then what waits in its lane goes to
the new queues, and behind it what was called meanwhile.

One timer for all deadlines of a producer.

It looks when the earliest is due, and at least once in the time that a request may take while
something is under way: callers whose time is up are told, connections that do not answer are given
up. Setting it costs a comparison per send.

What a producer knows of a topic, and who waits in line until its route is known.

Finding the route of a topic for those who stand in its line.

Giving messages other places, by a newer key map: they are known not to be stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from inorder.client.rules.routes import publish_queues
from inorder.client.send.queues import Choice, Sending, SendQueue, Series
from inorder.client.send.rules import DONE, IN_FLIGHT, UNSENT, FailedBrokers, RoundRobin
from inorder.client.send.sender import BrokerSender, expire, predecessor_failed
from inorder.client.session import Session, new_producer_id
from inorder.errors import (
    InorderError,
    KeyMapConflict,
    NoWritableQueue,
    ProducerStale,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotRouted,
    UsageError,
)
from inorder.logs import get_logger
from inorder.model import Message, SendReceipt, SendStatus, TopicQueue
from inorder.ordering.keymap import KeyMap, queue_for_key
from inorder.tasks import Backoff, Tasks
from inorder.wire.names import AUTO_CREATE_TOPIC
from inorder.wire.requests.routes import TopicRoute
from inorder.wire.requests.sendframes import CHOSEN, SendFields, SendTemplate, by_map

log = get_logger(__name__)


class Deadlines:
    """The timer of a delivery."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def arm(self, due_ms: int) -> None:
        """Look at this time at the latest."""
        if self._timer is not None:
            if due_ms >= self._due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        delay_ms = due_ms + 1 - self._delivery.clock.monotonic_ms()
        self._timer = self._delivery.loop.call_later(max(delay_ms, 0) / 1000, self._check)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        delivery = self._delivery
        now_ms = delivery.clock.monotonic_ms()
        limit_ms = delivery.session.config.request_timeout_ms
        dues = [self._check_early(topic, now_ms) for topic in delivery.topics.values()]
        for link in list(delivery.links.values()):
            dues += self._check_link(link, now_ms, limit_ms)
        pending = [due_ms for due_ms in dues if due_ms is not None]
        if pending:
            self.arm(min(*pending, now_ms + limit_ms))

    def _check_early(self, topic: TopicLine, now_ms: int) -> int | None:
        for early in [one for one in topic.early if one.deadline_ms <= now_ms]:
            topic.early.remove(early)
            self._delivery.fail_early(
                early,
                topic.error
                or RequestTimeout(
                    f"no name server said in time where topic {topic.name} is; nothing was sent"
                ),
            )
        return min((early.deadline_ms for early in topic.early), default=None)

    def _check_link(self, link: BrokerSender, now_ms: int, limit_ms: int) -> list[int | None]:
        dues: list[int | None] = []
        stuck = False
        for lane in list(link.lanes.values()):
            dues.append(self._check_lane(link, lane, now_ms))
            oldest = next((one for one in lane.sent if one.state == IN_FLIGHT), None)
            if oldest is not None:
                due_ms = oldest.written_ms + limit_ms
                stuck = stuck or due_ms <= now_ms
                dues.append(max(due_ms, now_ms + 1))
        if stuck:
            link.drop(f"a send was not answered in {limit_ms} ms")
        return dues

    def _check_lane(self, link: BrokerSender, lane: SendQueue, now_ms: int) -> int | None:
        due_ms: int | None = None
        for sending in [*lane.sent, *lane.waiting, *lane.moved]:
            if sending.state == DONE or sending.abandoned:
                continue
            if sending.deadline_ms <= now_ms:
                expire(link, lane, sending)
            elif due_ms is None or sending.deadline_ms < due_ms:
                due_ms = sending.deadline_ms
        return due_ms


class BatchCall(Protocol):
    """Messages that wait to be grouped by queue, some at each turn."""

    topic: str
    choice: Choice
    deadline_ms: int
    resume: Callable[[], None]
    """Is called when there may be a further turn."""
    stalled: bool
    """No further turn before that."""
    together: TopicQueue | None
    """Where its messages without a key go."""

    @property
    def wanted(self) -> bool:
        """Tell whether somebody still waits for it."""
        ...

    @property
    def placed(self) -> bool:
        """Tell whether all messages have their places."""
        ...

    def turn(self) -> Sequence[Message]:
        """Return the messages of this turn; none if those before must be settled first."""
        ...

    def place(self, targets: list[tuple[TopicQueue, int]]) -> list[tuple[TopicQueue, int, Sending]]:
        """Return their requests, given the queue of each and the version of its map."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the call: nothing of the messages without a place is sent."""
        ...


class TopicLine:
    """What is known of a topic, and who waits until something is."""

    __slots__ = (
        "draining", "early", "error", "finding", "key_map", "keyed", "keyed_lanes", "lanes", "name",
        "placed", "previous", "queues", "route", "settling",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.route: TopicRoute | None = None
        self.key_map: KeyMap | None = None
        self.queues: list[TopicQueue] = []  # that may be written
        self.lanes: list[SendQueue | None] = []  # theirs
        self.keyed: list[TopicQueue] = []  # where keys go
        self.keyed_lanes: list[SendQueue | None] = []
        self.placed = b""  # what a send says whose key chose its queue
        self.previous: list[
            list[TopicQueue]
        ] = []  # keyed lists that gave way, until all is drained
        self.draining: list[SendQueue] = []
        self.early: deque[Sending | BatchCall] = deque()
        self.finding = False
        self.settling = False  # brokers are asked which key map counts
        self.error: InorderError | None = None

    def adopt(self, route: TopicRoute, key_map: KeyMap | None) -> bool:
        """Use a route and a key map; True if keys may have left queues by that.

        Also the first map of a topic that had none takes keys along, and one that was void.
        """
        old, before, self.route, self.key_map = self.key_map, self.keyed, route, key_map
        self.placed = b"" if key_map is None else by_map(key_map.version, key_map.digest)
        queues = publish_queues(route, self.name)
        if key_map is not None:  # a route may still have queues that were taken away
            mapped = set(key_map.queues)
            queues = [one for one in queues if (one.broker, one.index) in mapped] or queues
        if queues != self.queues:
            self.queues, self.lanes = queues, [None] * len(queues)
        keyed = self.queues
        if key_map is not None:
            keyed = [TopicQueue(self.name, broker, index) for broker, index in key_map.queues]
        if keyed != self.keyed:
            self.keyed, self.keyed_lanes = keyed, [None] * len(keyed)
        if old == key_map or not before:
            return False
        self.previous.append(before)
        return True

    def holder(self, sending: Sending) -> SendQueue | None:
        """Return the lane that a key has left, if it is not drained yet."""
        assert sending.key is not None
        for old in self.previous:
            place = old[queue_for_key(sending.key, len(old))]
            for lane in self.draining:
                if lane.queue == place:
                    return None if lane is sending.lane else lane
        return None


async def find_route(delivery: Delivery, topic: TopicLine) -> None:
    """Ask for a route, again and again; then give all in the line their places, in order."""
    backoff = delivery.backoff()
    try:
        while topic.early:
            try:
                await _look(delivery, topic)
                place_early(delivery, topic)
                return
            except InorderError as error:
                topic.error = error
                if not error.retriable:
                    while topic.early:
                        delivery.fail_early(topic.early.popleft(), error)
                    return
            delivery.retries += 1
            await asyncio.sleep(backoff.next_ms() / 1000)
            if isinstance(topic.error, NoWritableQueue):
                await delivery.session.try_refresh_route(topic.name)
    finally:
        topic.finding = False


async def _look(delivery: Delivery, topic: TopicLine) -> None:
    route = await _route(delivery, topic.name)
    if not delivery.is_known(topic):
        delivery.adopt(topic, route)  # that of the template: a send makes the topic
    if not topic.keyed:
        raise NoWritableQueue(
            f"topic {topic.name} has no queue that may be written to; give it write permission, "
            "or start its broker"
        )


async def _route(delivery: Delivery, name: str) -> TopicRoute:
    """Return the route of a topic, which is made if nobody knows it or it is half made."""
    session = delivery.session
    try:
        route = await session.route(name)
        if publish_queues(route, name) or session.key_map(name) is not None:
            return route
    except TopicNotRouted:
        pass
    if await session.make_topic(name):
        return await session.route(name)
    return await session.route_for_send(name)  # perhaps that of the template: a send makes it


def place_early(delivery: Delivery, topic: TopicLine) -> None:
    """Give all in the line their places, in order; a batch waits until queues are drained."""
    topic.error = None
    while topic.early:
        if topic.draining and not isinstance(topic.early[0], Sending):
            return  # its keys may have left several queues: it goes on when all are drained
        early = topic.early.popleft()
        try:
            if not isinstance(early, Sending):
                if not place_turn(delivery, topic, early):
                    return
            elif early.wanted:
                delivery.place(topic, early)
            else:
                delivery.failed(early, asyncio.CancelledError())
        except Exception as error:
            # Also what the caller's selector raises: whoever waits for the send gets it.
            delivery.fail_early(early, error)


def place_turn(delivery: Delivery, topic: TopicLine, call: BatchCall) -> bool:
    """Give some messages of a batch their places; True if those were the last.

    A large batch takes several turns of the loop. Meanwhile it stands first in the line of its
    topic, so that nothing that was called later comes between.
    """
    if not call.wanted:
        call.fail(asyncio.CancelledError())
        return True
    delivery.place_batch(topic, call)
    if call.placed:
        return True
    topic.early.appendleft(call)
    topic.error = RequestTimeout(
        f"a batch before it to topic {topic.name} took all the time; nothing was sent"
    )
    call.resume = lambda: _go_on(delivery, topic)
    if not call.stalled:
        delivery.loop.call_soon(call.resume)
    return False


def _go_on(delivery: Delivery, topic: TopicLine) -> None:
    if delivery.closed or topic.finding or topic.draining or not topic.early:
        return  # whoever finds the route or drains the queue goes on by itself
    if delivery.is_known(topic):
        place_early(delivery, topic)
    else:
        delivery.find(topic)


def place_again(delivery: Delivery, topic: TopicLine, sending: Sending) -> None:
    """Bring a message, or the messages of a batch, to where the newer map puts them."""
    if sending.series is not None:
        for queue, one in _divide(delivery, topic, sending, sending.series):
            _place(delivery, topic, queue, one)
        return
    if not delivery.named:
        sending.number = sending.last = -1
    try:
        delivery.place(topic, sending)
    except (UsageError, KeyMapConflict) as error:
        delivery.failed(sending, error)


def _divide(
    delivery: Delivery, topic: TopicLine, sending: Sending, series: Series
) -> list[tuple[TopicQueue, Sending]]:
    """Make a request for each queue of a batch's messages; those without a key stay together."""
    groups: dict[TopicQueue, list[int]] = {}
    keyless: list[int] = []
    for place, message in enumerate(sending.messages or ()):
        if message.key is None:
            keyless.append(place)
        else:
            queue = topic.keyed[queue_for_key(message.key, len(topic.keyed))]
            groups.setdefault(queue, []).append(place)
    if keyless:
        queue = next(iter(groups), None) or delivery.round_robin.select(topic.keyed)
        groups[queue] = sorted((*groups.get(queue, ()), *keyless))
    return list(zip(groups, series.divide(sending, list(groups.values())), strict=True))


def _place(delivery: Delivery, topic: TopicLine, queue: TopicQueue, one: Sending) -> None:
    lane = one.lane = delivery.lane(queue)
    one.by_key = any(message.key is not None for message in one.messages or ())
    one.placed = topic.placed if one.by_key else b""
    try:
        if lane.named:
            lane.check_sequence(one)
    except UsageError as error:
        delivery.failed(one, error)
        return
    lane.waiting.append(one)
    lane.link.pump(lane)


OnOutcome = Callable[[Sending, Any, BaseException | None], None]

_INCARNATION_BITS: Final = 12


class Delivery:
    """What a producer does over its session."""

    def __init__(
        self, session: Session, group: str, on_outcome: OnOutcome, *, name: str | None = None
    ) -> None:
        self.session = session
        self.clock = session.clock
        self.loop = asyncio.get_running_loop()
        self.named = name is not None
        self.fenced: ProducerStale | None = None
        self.retries = 0
        self.lost = 0
        self.closed = False
        self._group = group
        self._on_outcome = on_outcome
        self._incarnation = session.clock.now_ms() << _INCARNATION_BITS
        self.producer_id = name if name is not None else self.new_id()
        self._tasks = Tasks(f"producer {group}")
        self.round_robin = RoundRobin(session.identity.random32)
        self._failed = FailedBrokers(session.config.avoid_failed_ms)
        self.topics: dict[str, TopicLine] = {}
        self.links: dict[str, BrokerSender] = {}
        self._deadlines = Deadlines(self)
        self._doubts = 0

    async def close(self) -> None:
        """End everything; whoever still waits is told."""
        self.closed = True
        self._deadlines.stop()
        await self._tasks.stop()
        for link in self.links.values():
            if link.connection is not None:
                link.connection.unwatch(link)

    # Who we are.

    def new_id(self) -> str:
        """Return an id that no other producer has."""
        return new_producer_id(self.session.message_ids)

    def next_incarnation(self) -> int:
        """Return a number above all that were used."""
        self._incarnation += 1
        return self._incarnation

    def raise_incarnation(self, highest: int) -> None:
        """Use only numbers above this one."""
        self._incarnation = max(self._incarnation, highest)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task of this producer."""
        self._tasks.start(work, name=name)

    # Places.

    def take(self, sending: Sending, now_ms: int) -> None:
        """Give a message its place, now. Raises UsageError for a choice that cannot be."""
        if self.fenced is not None:
            raise self.fenced
        topic = self._topic(sending.topic)
        if topic.early or not self.is_known(topic):
            topic.early.append(sending)
            self.find(topic)
        else:
            self.place(topic, sending)
        self._deadlines.arm(
            min(sending.deadline_ms, now_ms + self.session.config.request_timeout_ms)
        )

    def take_batch(self, call: BatchCall, now_ms: int) -> None:
        """Group messages by queue and give each group its place."""
        if self.fenced is not None:
            raise self.fenced
        topic = self._topic(call.topic)
        if topic.early or not self.is_known(topic):
            topic.early.append(call)
            self.find(topic)
        elif topic.draining:  # see place_early
            topic.error = RequestTimeout(
                f"topic {topic.name} was resized, and what was sent before is not settled yet; "
                "nothing of the batch was sent"
            )
            topic.early.append(call)
        else:
            place_turn(self, topic, call)
        self._deadlines.arm(min(call.deadline_ms, now_ms + self.session.config.request_timeout_ms))

    def _topic(self, name: str) -> TopicLine:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicLine(name)
        return topic

    def is_known(self, topic: TopicLine) -> bool:
        """Tell whether there is a route to go by; take over what is new of it."""
        route = self.session.known_route(topic.name)
        if route is None:
            topic.route = None
            return False
        if route is not topic.route or self.session.key_map(topic.name) is not topic.key_map:
            self.adopt(topic, route)
        return bool(topic.queues or topic.key_map)

    def adopt(self, topic: TopicLine, route: TopicRoute) -> None:
        """Use a route, and the key map that belongs to it."""
        if topic.adopt(route, self.session.key_map(topic.name)):
            lanes = [lane for link in self.links.values() for lane in link.lanes.values()]
            topic.draining = [lane for lane in lanes if lane.queue.topic == topic.name]
            for lane in list(topic.draining):
                lane.draining = True
                self.lane_drained(lane)

    def place(self, topic: TopicLine, sending: Sending) -> None:
        """Put a message into the lane of its queue."""
        lane = self._choose(topic, sending)
        if lane.named:
            lane.check_sequence(sending)
        sending.lane = lane
        if topic.previous and sending.by_key:
            holder = topic.holder(sending)
            if holder is not None:
                sending.lane = holder
                holder.moved.append(sending)
                return
        lane.waiting.append(sending)
        lane.link.pump(lane)

    def _choose(self, topic: TopicLine, sending: Sending) -> SendQueue:
        # hot: 0.6 us.
        choice, key = sending.choice, sending.key
        if choice is not None:
            message = sending.messages[0] if sending.messages else None
            queue = choice.fixed(topic.keyed, message)
            assert queue is not None, "a choice chooses"
            sending.by_key, sending.placed = False, CHOSEN
            return self.lane(queue)
        if key is None and topic.queues:
            avoid = self._failed.to_avoid(self.clock.monotonic_ms()) if self._failed else ()
            index = self.round_robin.index(topic.queues, avoid)
            lane = topic.lanes[index]
            if lane is None:
                lane = topic.lanes[index] = self.lane(topic.queues[index])
            return lane
        if key is None:
            return self.lane(self.round_robin.select(topic.keyed))
        if self.session.key_maps.conflicts:
            self._refuse_contradicted(topic)
        index = queue_for_key(key, len(topic.keyed))
        lane = topic.keyed_lanes[index]
        if lane is None:
            lane = topic.keyed_lanes[index] = self.lane(topic.keyed[index])
        sending.by_key, sending.placed = True, topic.placed
        return lane

    def lane(self, queue: TopicQueue) -> SendQueue:
        """Return the lane of a queue."""
        link = self.links.get(queue.broker)
        if link is None:
            link = self.links[queue.broker] = BrokerSender(self, queue.broker)
        lane = link.lanes.get(queue)
        if lane is None:
            lane = link.lanes[queue] = SendQueue(
                link, queue, self.template(queue), self.producer_id,
                window=self.session.config.sends_in_flight_max, named=self.named,
                backoff=self.backoff(),
            )  # fmt: skip
            if link.connection is not None:
                lane.meet(numbered=bool(link.connection.numbers_sends))
        return lane

    def template(self, queue: TopicQueue) -> SendTemplate:
        """Return the header of sends to a queue."""
        return SendTemplate(
            group=self._group,
            topic=queue.topic,
            template_topic=AUTO_CREATE_TOPIC,
            template_queues=self.session.config.default_topic_queues,
            queue_id=queue.index,
            broker=queue.broker,
        )

    def next_doubt(self, deadline_ms: int) -> int:
        """Return a number for a lane of its own, of a message with this deadline."""
        self._deadlines.arm(deadline_ms)
        self._doubts += 1
        return self._doubts

    def place_batch(self, topic: TopicLine, call: BatchCall) -> None:
        """Put the next messages of a batch into the lanes of their queues."""
        queues = topic.queues or topic.keyed
        together = call.together if call.together in queues else None
        targets: list[tuple[TopicQueue, int]] = []
        by_key: set[TopicQueue] = set()
        for message in call.turn():
            version = 0
            queue = call.choice.fixed(topic.keyed, message)
            if queue is None and message.key is not None:
                self._refuse_contradicted(topic)
                queue = topic.keyed[queue_for_key(message.key, len(topic.keyed))]
                version = 0 if topic.key_map is None else topic.key_map.version
                by_key.add(queue)
            elif queue is None:
                avoid = self._failed.to_avoid(self.clock.monotonic_ms())
                together = together or self.round_robin.select(queues, avoid)
                queue = call.together = together
            targets.append((queue, version))
        made = call.place(targets)
        try:
            for queue, _, sending in made if self.named else ():
                self.lane(queue).check_sequence(sending)
        except UsageError as error:
            for _, _, sending in made:
                self.failed(sending, error)
            return
        lanes: dict[TopicQueue, SendQueue] = {}
        chosen = call.choice.queue is not None or call.choice.selector is not None
        for queue, _, sending in made:
            lane = lanes[queue] = self.lane(queue)
            sending.lane, sending.by_key = lane, queue in by_key
            sending.placed = CHOSEN if chosen else topic.placed if sending.by_key else b""
            lane.waiting.append(sending)
        for lane in lanes.values():
            lane.link.pump(lane)

    # Routes that are not known yet.

    def find(self, topic: TopicLine) -> None:
        """Ask for the route of a topic, unless that is under way."""
        if not topic.finding:
            topic.finding = True
            self.start(find_route(self, topic), f"route {topic.name}")

    def fail_early(self, early: Sending | BatchCall, error: BaseException) -> None:
        """Tell a caller in the line of its topic that nothing was sent."""
        if isinstance(early, Sending):
            self.failed(early, error)
        else:
            early.fail(error)

    # Outcomes.

    def stored(
        self,
        sending: Sending,
        queue: TopicQueue,
        fields: SendFields,
        status: SendStatus = SendStatus.OK,
    ) -> None:
        """A request is stored; the offset is -1 if the broker remembers it no more."""
        if sending.over:
            return
        sending.over = True
        if fields.queueId not in (queue.index, -1):
            queue = TopicQueue(queue.topic, queue.broker, fields.queueId)
        part, first = sending.part, fields.queueOffset
        if part.items is None:
            self._on_outcome(sending, SendReceipt(part.ids[0], queue, first, status), None)
            return
        offsets: Sequence[int] = [-1] * part.count
        if fields.offsets:
            offsets = [int(offset) for offset in fields.offsets.split(",")]
        elif first >= 0:
            offsets = range(first, first + part.count)
        receipts = [
            SendReceipt(id_, queue, offset, status)
            for id_, offset in zip(part.ids, offsets, strict=True)
        ]
        self._on_outcome(sending, receipts, None)

    def failed(self, sending: Sending, error: BaseException) -> None:
        """Tell a caller that its message is not stored, or that nobody knows."""
        if sending.over:
            return
        sending.over = True
        if sending.series is not None:
            sending.series.fail(error)
        self._on_outcome(sending, None, error)
        if self.named:
            self._fail_behind(sending)

    def _fail_behind(self, sending: Sending) -> None:
        """Give up what a named producer has behind a message that failed and is not stored."""
        lane = sending.lane
        if lane is not None and sending.last > lane.confirmed:
            lane.may_come_again(sending)
            for behind in lane.doom(sending):
                self.failed(behind, predecessor_failed(behind, lane))

    def written(self, sending: Sending) -> None:
        """A one-way message is on its way: its caller waits no more, we still care for it."""
        if not sending.over:
            sending.answered_early = True
            sending.over = True
            self._on_outcome(sending, None, None)

    # Brokers that fail.

    def broker_failed(self, broker: str) -> None:
        """Pass over a broker for a while."""
        self._failed.failed(broker, self.clock.monotonic_ms())

    def broker_worked(self, broker: str) -> None:
        """Pass over it no more."""
        self._failed.worked(broker)

    def elsewhere(self, sending: Sending, broker: str) -> TopicQueue | None:
        """Return a queue of another broker for a message that may go anywhere."""
        topic = self.topics[sending.topic]
        if not topic.queues:
            return None
        avoid = self._failed.to_avoid(self.clock.monotonic_ms())
        other = self.round_robin.select(topic.queues, avoid)
        return other if other.broker != broker else None

    def move(self, sending: Sending, queue: TopicQueue) -> None:
        """Bring a message that is not stored to another queue."""
        sending.state, sending.number, sending.last = UNSENT, -1, -1
        self.retries += 1
        sending.tries = 0
        lane = sending.lane = self.lane(queue)
        lane.waiting.append(sending)
        lane.link.pump(lane)

    def link_failed(self, link: BrokerSender) -> None:
        """A broker cannot be reached: messages that may go anywhere go elsewhere."""
        self.broker_failed(link.broker)
        for lane in list(link.lanes.values()):
            for sending in lane.withdraw(_may_move):
                other = self.elsewhere(sending, link.broker)
                if other is None:
                    lane.waiting.append(sending)
                else:
                    self.move(sending, other)

    # Key maps that change.

    def map_refused(self, lane: SendQueue, fields: SendFields) -> None:
        """Take the broker's key map if it is newer; if it is older the broker has to catch up."""
        topic = self.topics[lane.queue.topic]
        with contextlib.suppress(RemoteProtocolError):
            self.session.take_key_map(topic.name, KeyMap.decode(fields.map))
        self.is_known(topic)
        if not topic.previous:
            lane.link.pause(lane)
            if not topic.settling:
                topic.settling = True
                self.start(self._settle(topic, fields.map), f"map {topic.name}")

    async def _settle(self, topic: TopicLine, text: str) -> None:
        """Ask name servers and brokers which key map counts; go on by it."""
        try:
            await self.session.try_refresh_route(topic.name)
            await self.session.key_maps.settle(topic.name, text)
            if topic.name in self.session.key_maps.unfinished:
                await self.session.finish_topic(topic.name)
        finally:
            topic.settling = False
        conflict = self.session.key_maps.conflict(topic.name)
        if conflict is not None:
            self._fail_keyed(topic, conflict)
        else:
            self.is_known(topic)

    def _fail_keyed(self, topic: TopicLine, error: InorderError) -> None:
        """Tell those whose keys have no place; what was sent and not answered is settled first."""
        for link in self.links.values():
            for lane in link.lanes.values():
                if lane.queue.topic == topic.name:
                    for sending in lane.withdraw(_by_map):
                        sending.state = DONE
                        self.failed(sending, error)

    def _refuse_contradicted(self, topic: TopicLine) -> None:
        """Raise KeyMapConflict if keys have no place; brokers are asked again after a while."""
        maps = self.session.key_maps
        error = maps.conflict(topic.name)
        if error is None:
            return
        if maps.is_stale(topic.name) and not topic.settling:
            topic.settling = True
            self.start(self._settle(topic, ""), f"map {topic.name}")
        raise error

    def lane_drained(self, lane: SendQueue) -> None:
        """Send on what a newer key map takes away from a queue, if nothing of it is unknown."""
        topic = self.topics[lane.queue.topic]
        if not lane.drained or lane.held:
            return
        waiting: list[Sending] = []
        if lane.draining:
            lane.draining = False
            topic.draining.remove(lane)
            if not topic.draining:
                topic.previous.clear()
            waiting = [*lane.withdraw(_by_map), *lane.moved]
            lane.moved.clear()
        if topic.key_map is not None and lane.queue not in topic.keyed:
            waiting += lane.withdraw(_may_move)  # the queue was taken away
        for sending in waiting:
            if sending.state != DONE:
                place_again(self, topic, sending)
        if topic.early and not topic.draining and not topic.finding:
            place_early(self, topic)

    def backoff(self) -> Backoff:
        """Return the pauses between tries."""
        config = self.session.config
        return Backoff(config.retry_first_ms, config.retry_max_ms)


def _may_move(sending: Sending) -> bool:
    return sending.may_move


def _by_map(sending: Sending) -> bool:
    return sending.by_key and not sending.stored
