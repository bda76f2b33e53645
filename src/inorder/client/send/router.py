"""The sends of one producer: which queue each one goes to, until when, and where to instead.

A send gets its place without an await: in the `SendQueue` of its queue, or, while the topic's route
is unknown, among the `unrouted` sends of the topic. Every outcome comes within the time that the
caller gave. One timer serves all deadlines.

Keys follow the topic's key map, if it has one. When a newer map replaces an older one, every queue
that may lose keys is drained first: no send in flight, no outcome unknown. Then its waiting sends
go to their new queues, and after them the sends that were called meanwhile.

    Producer ─> SendRouter ─> BrokerSender (one per broker) ─> SendQueue (one per queue) ─> Send

A thread may also send a lone message directly, over a blocking connection and under a producer id
of its own (`sync/direct.py`): `direct_target` allows it while the message's queue is empty. If the
outcome of a direct send is unknown, `take_over` puts it into a `SendQueue` of that id, and the
queue's own sends wait for it. The hello on the sender's connection fences off the direct
connection, the broker tells what it has stored, and the message comes to its end like any other.

How a producer keeps order and speed: decision 11. Who follows the key map: decision 12.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from inorder.client.identity import new_id
from inorder.client.rules.routes import publish_queues
from inorder.client.send.batches import Batch
from inorder.client.send.queues import (
    DONE,
    UNKNOWN,
    UNSENT,
    HalfReceipt,
    Send,
    SendQueue,
    Series,
    compiled,
)
from inorder.client.send.rules import FailedBrokers, RoundRobin
from inorder.client.send.sender import BrokerSender
from inorder.client.send.topics import TopicSends
from inorder.client.session import Session
from inorder.errors import (
    AlreadyClosed,
    InorderError,
    KeyMapConflict,
    NoWritableQueue,
    OutcomeUnknown,
    ProducerStale,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotRouted,
    UsageError,
)
from inorder.logs import get_logger
from inorder.model import SendReceipt, SendStatus, TopicQueue
from inorder.ordering.keymap import KeyMap, queue_for_key
from inorder.tasks import Backoff, Tasks
from inorder.wire.names import AUTO_CREATE_TOPIC
from inorder.wire.requests.routes import TopicRoute
from inorder.wire.requests.sendframes import CHOSEN, SendFields, SendTemplate

log = get_logger(__name__)

OnOutcome = Callable[[Send, Any, BaseException | None], None]
OnStored = Callable[[list[Send], TopicQueue, Sequence[int], SendStatus], None]

_INCARNATION_BITS: Final = 12
_KEYS_MAX: Final = 65_536
"""Of how many keys of a topic the queue is remembered."""
_LOOKS_MAX: Final = 100
"""How often, a millisecond apart, sockets are read before sends fail, while they bring answers."""


class Target(NamedTuple):
    """The queue and the broker of a direct send."""

    queue: TopicQueue
    placed: bytes
    """Header fields that say how the queue was chosen."""
    address: str


class SendRouter:
    """Takes the sends of a producer and brings them to the senders of their brokers."""

    def __init__(
        self,
        session: Session,
        group: str,
        on_outcome: OnOutcome,
        on_stored: OnStored,
        *,
        name: str | None = None,
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
        self._on_stored = on_stored
        self._incarnation = session.clock.now_ms() << _INCARNATION_BITS
        self.producer_id = name if name is not None else self.new_id()
        self._tasks = Tasks(f"producer {group}")
        self._round_robin = RoundRobin(session.identity.random32)
        self._failed = FailedBrokers(session.config.avoid_failed_ms)
        self.linger_ms = session.config.linger_ms
        self._request_bytes_max = min(
            session.config.batch_bytes_max, session.config.message_bytes_max
        )
        self.topics: dict[str, TopicSends] = {}
        self.senders: dict[str, BrokerSender] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._looks = 0
        self._bytes_heard = 0
        self._taken_over = 0

    async def close(self) -> None:
        """Stop all tasks and timers."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()
        for sender in self.senders.values():
            if sender.connection is not None:
                sender.connection.unwatch(sender)
        self._end_pending()

    def _end_pending(self) -> None:
        """Tell callers that no outcome comes any more: the end did not wait for theirs."""
        closed = AlreadyClosed("this producer was closed before the message was sent")
        for topic in self.topics.values():
            while topic.unrouted:
                self._fail_unrouted(topic.unrouted.popleft(), closed)
        for send in reversed(self.pending()):  # back to front: see BrokerSender._fail_pending
            if send.stored and send.queue is not None:  # only the receipt is missing
                self.stored(send, send.queue.topic_queue, SendFields())
            elif send.surely_not_stored:
                self.failed(send, closed)
            else:
                self.failed(
                    send,
                    OutcomeUnknown(
                        "this producer was closed before the broker answered; the message may or "
                        "may not be stored"
                    ),
                )
        for sender in self.senders.values():
            for queue in sender.queues.values():
                queue.forget()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task of this producer."""
        self._tasks.start(work, name=name)

    def backoff(self) -> Backoff:
        """Return the pauses between tries."""
        config = self.session.config
        return Backoff(config.retry_first_ms, config.retry_max_ms)

    def pending(self) -> list[Send]:
        """Return all sends without an outcome, but not those of unplaced batches."""
        found = [
            one for topic in self.topics.values() for one in topic.unrouted if isinstance(one, Send)
        ]
        for sender in self.senders.values():
            for queue in sender.queues.values():
                found += (*queue.sent, *queue.waiting, *queue.moved)
        return [send for send in found if not send.over]

    # Identity.

    def new_id(self) -> str:
        """Return an id that no other producer has."""
        return new_id(self.session.message_ids)

    def next_incarnation(self) -> int:
        """Return a number above all that were used."""
        self._incarnation += 1
        return self._incarnation

    def raise_incarnation(self, highest: int) -> None:
        """Use only numbers above this one."""
        self._incarnation = max(self._incarnation, highest)

    # Deadlines.

    def _check_at(self, due_ms: int) -> None:
        """Check the deadlines at this time at the latest."""
        if self._timer is not None:
            if due_ms >= self._due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        delay_ms = due_ms + 1 - self.clock.monotonic_ms()
        self._timer = self.loop.call_later(max(delay_ms, 0) / 1000, self._read_first)

    def _read_first(self) -> None:
        """Read what has come before any send fails: its answer may lie in a socket.

        If the timer is late, this process did not run, and its peers get that time again.
        """
        late_ms = self.clock.monotonic_ms() - self._due_ms - 1
        self._looks = 0
        self._look_again(min(late_ms, self.session.config.request_timeout_ms))

    def _look_again(self, delay_ms: int = 0) -> None:
        self._bytes_heard = sum(one.bytes_heard for one in self.senders.values())
        self._timer = self.loop.call_later(max(delay_ms, 1) / 1000, self._check_deadlines)
        self._due_ms = 0  # an earlier check is not possible

    def _check_deadlines(self) -> None:
        """Fail sends whose time is up; again when the next is due, or after a request's time."""
        heard = sum(one.bytes_heard for one in self.senders.values())
        if heard != self._bytes_heard and self._looks < _LOOKS_MAX:
            self._looks += 1
            self._look_again()
            return
        self._timer = None
        now_ms = self.clock.monotonic_ms()
        limit_ms = self.session.config.request_timeout_ms
        dues = [self._check_unrouted(topic, now_ms) for topic in self.topics.values()]
        dues += [one.check_deadlines(now_ms, limit_ms) for one in list(self.senders.values())]
        pending = [due_ms for due_ms in dues if due_ms is not None]
        if pending:
            self._check_at(min(*pending, now_ms + limit_ms))

    def _check_unrouted(self, topic: TopicSends, now_ms: int) -> int | None:
        for one in [one for one in topic.unrouted if one.deadline_ms <= now_ms]:
            topic.unrouted.remove(one)
            self._fail_unrouted(
                one,
                topic.error
                or RequestTimeout(
                    f"no name server said in time where topic {topic.name} is; nothing was sent"
                ),
            )
        return min((one.deadline_ms for one in topic.unrouted), default=None)

    # Places.

    def take(self, send: Send, now_ms: int) -> None:
        """Give a message its place, now. Raises UsageError for an impossible choice of queue."""
        if self.fenced is not None:
            raise self.fenced
        topic = self._topic(send.topic)
        if topic.unrouted or not self._is_routed(topic):
            topic.unrouted.append(send)
            self._find(topic)
        else:
            self._place(topic, send)
        self._check_at(min(send.deadline_ms, now_ms + self.session.config.request_timeout_ms))

    def take_many(self, sends: list[Send], now_ms: int) -> None:
        """Give messages their places, in order; then write. A refused one fails alone."""
        # hot: 0.8 us a message.
        if self.fenced is not None:
            for send in sends:
                self.failed(send, self.fenced)
            return
        touched: dict[SendQueue, None] = {}
        topic: TopicSends | None = None
        due_ms = now_ms + self.session.config.request_timeout_ms
        at = 0
        while at < len(sends):
            send = sends[at]
            if topic is None or send.topic != topic.name:
                topic = self._topic(send.topic)
                if topic.unrouted or not self._is_routed(topic):
                    self._find(topic)
            if compiled is not None and self._is_plain(topic):
                at, due_ms = topic.put_known(sends, at, due_ms, touched)
                if at == len(sends):
                    break
                send = sends[at]
                if send.topic != topic.name:
                    continue
            at += 1
            due_ms = min(due_ms, send.deadline_ms)
            if topic.unrouted or topic.finding:
                topic.unrouted.append(send)
                continue
            queue = self._put_keyed(topic, send)
            if queue is not None:
                touched[queue] = None
                continue
            try:
                queue = self._put(topic, send)
            except Exception as error:
                # Also an error of the caller's selector: the caller of the send gets it.
                self.failed(send, error)
                continue
            if queue is not None:
                touched[queue] = None
        for queue in touched:
            queue.sender.pump(queue)
        if sends:
            self._check_at(due_ms)

    def take_batch(self, batch: Batch, now_ms: int) -> None:
        """Group messages by queue and give each group its place."""
        if self.fenced is not None:
            raise self.fenced
        topic = self._topic(batch.topic)
        if topic.unrouted or not self._is_routed(topic):
            topic.unrouted.append(batch)
            self._find(topic)
        elif topic.draining:  # see _place_unrouted
            topic.error = RequestTimeout(
                f"topic {topic.name} was resized, and what was sent before is not settled yet; "
                "nothing of the batch was sent"
            )
            topic.unrouted.append(batch)
        else:
            self._place_turn(topic, batch)
        self._check_at(min(batch.deadline_ms, now_ms + self.session.config.request_timeout_ms))

    def _topic(self, name: str) -> TopicSends:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicSends(name)
        return topic

    def _is_routed(self, topic: TopicSends) -> bool:
        """Return whether the topic has a route; adopt a newer route or key map."""
        route = self.session.known_route(topic.name)
        if route is None:
            topic.route = None
            return False
        if route is not topic.route or self.session.key_map(topic.name) is not topic.key_map:
            self._adopt(topic, route)
        return bool(topic.queues or topic.key_map)

    def _adopt(self, topic: TopicSends, route: TopicRoute) -> None:
        """Use a route, and the topic's key map; drain the queues that keys may have left."""
        if topic.adopt(route, self.session.key_map(topic.name)):
            queues = [one for sender in self.senders.values() for one in sender.queues.values()]
            topic.draining = [one for one in queues if one.topic_queue.topic == topic.name]
            for queue in list(topic.draining):
                queue.draining = True
                self.queue_drained(queue)

    def _place(self, topic: TopicSends, send: Send) -> None:
        """Put a message into the send queue of its queue, and write it if possible."""
        queue = self._put(topic, send)
        if queue is not None:
            queue.sender.pump(queue)

    def _put(self, topic: TopicSends, send: Send) -> SendQueue | None:
        """Put a message into the send queue of its queue; None: it waits until its key may move."""
        queue = self._choose(topic, send)
        if queue.named:
            queue.check_sequence(send)
        if topic.previous and send.by_key:
            previous = topic.previous_queue(send)
            if previous is not None:
                self._assign(send, previous)
                previous.moved.append(send)
                return None
        self._assign(send, queue)
        queue.waiting.append(send)
        return queue

    def _is_plain(self, topic: TopicSends) -> bool:
        """Return whether `_put_keyed` may place messages now."""
        return not (
            topic.unrouted or topic.finding or topic.previous or self.named
            or self.session.key_maps.conflicts
        )  # fmt: skip

    def _put_keyed(self, topic: TopicSends, send: Send) -> SendQueue | None:
        """Do what `_put` does with a new message whose key's queue is known; None if it is not."""
        # hot: 0.2 us.
        key = send.key
        if key is None or send.choice is not None or topic.previous or self.named:
            return None
        queue = topic.by_key.get(key)
        if queue is None or self.session.key_maps.conflicts:
            return None
        send.by_key, send.placed, send.queue = True, topic.placed, queue
        queue.sender.pending += send.count
        queue.waiting.append(send)
        return queue

    @staticmethod
    def _assign(send: Send, queue: SendQueue) -> None:
        """Let a queue have a send; its broker's share of the room counts it."""
        if send.queue is not None:
            send.queue.sender.pending -= send.count
        send.queue = queue
        queue.sender.pending += send.count

    @staticmethod
    def _end(send: Send) -> None:
        """Note that a send has its outcome."""
        send.over = True
        if send.queue is not None:
            send.queue.sender.pending -= send.count

    def is_crowded(self, name: str, key: str, messages_max: int) -> bool:
        """Return whether a key's broker, one of several, has its share of the room.

        So a broker that stalls does not take the room of the others. Other threads call this; it
        only reads.
        """
        topic = self.topics.get(name)
        queues = [] if topic is None else topic.keyed_send_queues
        brokers = len(self.senders)
        if not queues or brokers < 2:
            return False
        queue = queues[queue_for_key(key, len(queues))]
        return queue is not None and queue.sender.pending >= max(messages_max // brokers, 1)

    def _choose(self, topic: TopicSends, send: Send) -> SendQueue:
        # hot: 0.6 us.
        choice, key = send.choice, send.key
        if choice is not None:
            message = send.messages[0] if send.messages else None
            chosen = choice.fixed(topic.keyed, message)
            assert chosen is not None, "a choice chooses"
            send.by_key, send.placed = False, CHOSEN
            return self.send_queue(chosen)
        if key is None and topic.queues:
            avoid = self._failed.to_avoid(self.clock.monotonic_ms()) if self._failed else ()
            index = self._round_robin.index(topic.queues, avoid)
            queue = topic.send_queues[index]
            if queue is None:
                queue = topic.send_queues[index] = self.send_queue(topic.queues[index])
            return queue
        if key is None:
            return self.send_queue(self._round_robin.select(topic.keyed))
        if self.session.key_maps.conflicts:
            self._refuse_contradicted(topic)
        queue = topic.by_key.get(key)
        if queue is None:
            index = queue_for_key(key, len(topic.keyed))
            queue = topic.keyed_send_queues[index]
            if queue is None:
                queue = topic.keyed_send_queues[index] = self.send_queue(topic.keyed[index])
            if len(topic.by_key) >= _KEYS_MAX:
                topic.by_key.clear()
            topic.by_key[key] = queue
        send.by_key, send.placed = True, topic.placed
        return queue

    def send_queue(self, topic_queue: TopicQueue) -> SendQueue:
        """Return the send queue of a queue."""
        sender = self.senders.get(topic_queue.broker)
        if sender is None:
            sender = self.senders[topic_queue.broker] = BrokerSender(self, topic_queue.broker)
        queue = sender.queues.get(topic_queue)
        if queue is None:
            queue = sender.queues[topic_queue] = SendQueue(
                sender, topic_queue, self.template(topic_queue), self.producer_id,
                window=self.session.config.sends_in_flight_max, named=self.named,
                backoff=self.backoff(), bytes_max=self._request_bytes_max,
            )  # fmt: skip
            if sender.connection is not None:
                queue.connected(
                    idempotent=bool(sender.connection.numbers_sends), batches=sender.batches
                )
        return queue

    def template(self, topic_queue: TopicQueue) -> SendTemplate:
        """Return the header of sends to a queue."""
        return SendTemplate(
            group=self._group,
            topic=topic_queue.topic,
            template_topic=AUTO_CREATE_TOPIC,
            template_queues=self.session.config.default_topic_queues,
            queue_id=topic_queue.index,
            broker=topic_queue.broker,
        )

    # Batches.

    def _place_turn(self, topic: TopicSends, batch: Batch) -> bool:
        """Give some messages of a batch their places; True if those were the last.

        A large batch takes several turns of the loop. Meanwhile it stands first among the unrouted
        sends of its topic, so that no later call comes between.
        """
        if not batch.wanted:
            batch.fail(asyncio.CancelledError())
            return True
        self._place_batch(topic, batch)
        if batch.placed:
            return True
        topic.unrouted.appendleft(batch)
        topic.error = RequestTimeout(
            f"a batch before it to topic {topic.name} took all the time; nothing was sent"
        )
        batch.resume = lambda: self._next_turn(topic)
        if not batch.stalled:
            self.loop.call_soon(batch.resume)
        return False

    def _next_turn(self, topic: TopicSends) -> None:
        if self.closed or topic.finding or topic.draining or not topic.unrouted:
            return  # the end of that places the unrouted sends
        if self._is_routed(topic):
            self._place_unrouted(topic)
        else:
            self._find(topic)

    def _place_batch(self, topic: TopicSends, batch: Batch) -> None:
        """Put the messages of one turn into the send queues of their queues."""
        queues = topic.queues or topic.keyed
        together = batch.together if batch.together in queues else None
        targets: list[tuple[TopicQueue, int]] = []
        by_key: set[TopicQueue] = set()
        for message in batch.turn():
            version = 0
            target = batch.choice.fixed(topic.keyed, message)
            if target is None and message.key is not None:
                self._refuse_contradicted(topic)
                target = topic.keyed[queue_for_key(message.key, len(topic.keyed))]
                version = 0 if topic.key_map is None else topic.key_map.version
                by_key.add(target)
            elif target is None:
                avoid = self._failed.to_avoid(self.clock.monotonic_ms())
                together = together or self._round_robin.select(queues, avoid)
                target = batch.together = together
            targets.append((target, version))
        made = batch.place(targets)
        try:
            for target, _, send in made if self.named else ():
                self.send_queue(target).check_sequence(send)
        except UsageError as error:
            for _, _, send in made:
                self.failed(send, error)
            return
        filled: dict[TopicQueue, SendQueue] = {}
        chosen = batch.choice.queue is not None or batch.choice.selector is not None
        for target, _, send in made:
            queue = filled[target] = self.send_queue(target)
            self._assign(send, queue)
            send.by_key = target in by_key
            send.placed = CHOSEN if chosen else topic.placed if send.by_key else b""
            queue.waiting.append(send)
        for queue in filled.values():
            queue.sender.pump(queue)

    # Routes that are not known yet.

    def _find(self, topic: TopicSends) -> None:
        """Ask for the route of a topic, unless that is under way."""
        if not topic.finding:
            topic.finding = True
            self.start(self._find_route(topic), f"route {topic.name}")

    async def _find_route(self, topic: TopicSends) -> None:
        """Ask for a route, again and again; then place all unrouted sends, in order."""
        backoff = self.backoff()
        try:
            while topic.unrouted:
                try:
                    await self._find_queues(topic)
                    self._place_unrouted(topic)
                    return
                except InorderError as error:
                    topic.error = error
                    if not error.retriable:
                        while topic.unrouted:
                            self._fail_unrouted(topic.unrouted.popleft(), error)
                        return
                self.retries += 1
                await asyncio.sleep(backoff.next_ms() / 1000)
                if isinstance(topic.error, NoWritableQueue):
                    await self.session.try_refresh_route(topic.name)
        finally:
            topic.finding = False

    async def _find_queues(self, topic: TopicSends) -> None:
        route = await self._route(topic.name)
        if not self._is_routed(topic):
            self._adopt(topic, route)  # the template's route: a send makes the topic
        if not topic.keyed:
            raise NoWritableQueue(
                f"topic {topic.name} has no queue that may be written to; give it write "
                "permission, or start its broker"
            )

    async def _route(self, name: str) -> TopicRoute:
        """Return the route of a topic; make a topic that is unknown or half made."""
        session = self.session
        try:
            route = await session.route(name)
            if publish_queues(route, name) or session.key_map(name) is not None:
                return route
        except TopicNotRouted:
            pass
        if await session.make_topic(name):
            return await session.route(name)
        return await session.route_for_send(name)  # perhaps the template's: a send makes the topic

    def _place_unrouted(self, topic: TopicSends) -> None:
        """Place the unrouted sends in order; a batch waits until all queues are drained."""
        topic.error = None
        while topic.unrouted:
            if topic.draining and not isinstance(topic.unrouted[0], Send):
                return  # its keys may have left several queues: it goes on when all are drained
            one = topic.unrouted.popleft()
            try:
                if not isinstance(one, Send):
                    if not self._place_turn(topic, one):
                        return
                elif one.wanted:
                    self._place(topic, one)
                else:
                    self.failed(one, asyncio.CancelledError())
            except Exception as error:
                # Also an error of the caller's selector: the caller of the send gets it.
                self._fail_unrouted(one, error)

    def _fail_unrouted(self, one: Send | Batch, error: BaseException) -> None:
        """Tell a caller that nothing was sent."""
        if isinstance(one, Send):
            self.failed(one, error)
        else:
            one.fail(error)

    # Outcomes.

    def stored(
        self,
        send: Send,
        queue: TopicQueue,
        fields: SendFields,
        status: SendStatus = SendStatus.OK,
    ) -> None:
        """Tell a caller that its request is stored; offset -1 if the broker has forgotten it."""
        if send.over:
            return
        self._end(send)
        if fields.queueId not in (queue.index, -1):
            queue = TopicQueue(queue.topic, queue.broker, fields.queueId)
        part, first = send.part, fields.queueOffset
        if part.half:
            half = HalfReceipt(part.ids[0], queue, first, status, stored_id=fields.msgId)
            self._on_outcome(send, half, None)
            return
        if part.items is None:
            receipt = SendReceipt(part.ids[0], queue, first, status, fields.recallHandle or None)
            self._on_outcome(send, receipt, None)
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
        self._on_outcome(send, receipts, None)

    def stored_together(
        self, sends: list[Send], queue: TopicQueue, fields: SendFields, status: SendStatus
    ) -> None:
        """Tell callers that the messages of one request are stored."""
        # hot: 0.3 us a message.
        if fields.queueId not in (queue.index, -1):
            queue = TopicQueue(queue.topic, queue.broker, fields.queueId)
        first, count = fields.queueOffset, len(sends)
        if sends[0].queue is not None:
            sends[0].queue.sender.pending -= sum([not send.over for send in sends])
        offsets: Sequence[int] = range(first, first + count) if first >= 0 else [-1] * count
        if fields.offsets:
            offsets = [int(offset) for offset in fields.offsets.split(",")]
            offsets = [*offsets, *[-1] * count][:count]
        self._on_stored(sends, queue, offsets, status)

    def failed(self, send: Send, error: BaseException) -> None:
        """Tell a caller that its message is not stored, or that the outcome is unknown."""
        if send.over:
            return
        self._end(send)
        if send.series is not None:
            send.series.fail(error)
        self._on_outcome(send, None, error)
        if self.named:
            self._fail_behind(send)

    def _fail_behind(self, send: Send) -> None:
        """Fail the sends of a named producer after one that failed and is not stored."""
        queue = send.queue
        if queue is not None and send.last > queue.confirmed:
            queue.may_come_again(send)
            for behind in queue.doom(send):
                self.failed(behind, behind.predecessor_failed())

    def written(self, send: Send) -> None:
        """Tell the caller of a one-way message that it is written; its outcome still counts."""
        if not send.over:
            send.answered_early = True
            self._end(send)
            self._on_outcome(send, None, None)

    # Brokers that fail.

    def broker_failed(self, broker: str) -> None:
        """Avoid a broker for a while."""
        self._failed.failed(broker, self.clock.monotonic_ms())

    def broker_worked(self, broker: str) -> None:
        """Stop avoiding a broker."""
        self._failed.worked(broker)

    def elsewhere(self, send: Send, broker: str) -> TopicQueue | None:
        """Return a queue of another broker for a message that may go to any queue."""
        topic = self.topics[send.topic]
        if not topic.queues:
            return None
        avoid = self._failed.to_avoid(self.clock.monotonic_ms())
        other = self._round_robin.select(topic.queues, avoid)
        return other if other.broker != broker else None

    def move(self, send: Send, topic_queue: TopicQueue) -> None:
        """Bring a message that is not stored to another queue."""
        send.state, send.sequence, send.last = UNSENT, -1, -1
        self.retries += 1
        send.tries = 0
        queue = self.send_queue(topic_queue)
        self._assign(send, queue)
        queue.waiting.append(send)
        queue.sender.pump(queue)

    def sender_failed(self, sender: BrokerSender) -> None:
        """Move the sends that may go to any queue away from a broker that cannot be reached."""
        self.broker_failed(sender.broker)
        for queue in list(sender.queues.values()):
            for send in queue.withdraw(_may_move):
                other = self.elsewhere(send, sender.broker)
                if other is None:
                    queue.waiting.append(send)
                else:
                    self.move(send, other)

    # Key maps that change.

    def key_map_refused(self, queue: SendQueue, fields: SendFields) -> None:
        """Use the broker's key map if it is newer; if it is older, wait for the broker."""
        topic = self.topics[queue.topic_queue.topic]
        with contextlib.suppress(RemoteProtocolError):
            self.session.take_key_map(topic.name, KeyMap.decode(fields.map))
        self._is_routed(topic)
        if not topic.previous:
            queue.sender.pause(queue)
            if not topic.settling:
                topic.settling = True
                self.start(self._settle(topic, fields.map), f"map {topic.name}")

    async def _settle(self, topic: TopicSends, text: str) -> None:
        """Ask name servers and brokers which key map counts, and use that one."""
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
            self._is_routed(topic)

    def _fail_keyed(self, topic: TopicSends, error: InorderError) -> None:
        """Fail waiting sends whose keys have no queue; sends in flight keep their outcome."""
        for sender in self.senders.values():
            for queue in sender.queues.values():
                if queue.topic_queue.topic == topic.name:
                    for send in queue.withdraw(_follows_map):
                        send.state = DONE
                        self.failed(send, error)

    def _refuse_contradicted(self, topic: TopicSends) -> None:
        """Raise KeyMapConflict if brokers contradict each other; ask them again after a while."""
        maps = self.session.key_maps
        error = maps.conflict(topic.name)
        if error is None:
            return
        if maps.is_stale(topic.name) and not topic.settling:
            topic.settling = True
            self.start(self._settle(topic, ""), f"map {topic.name}")
        raise error

    def queue_drained(self, queue: SendQueue) -> None:
        """Place sends again whose queue changed by a newer key map, once the queue is drained."""
        topic = self.topics[queue.topic_queue.topic]
        if not queue.drained or queue.held:
            return
        waiting: list[Send] = []
        if queue.draining:
            queue.draining = False
            topic.draining.remove(queue)
            if not topic.draining:
                topic.previous.clear()
            waiting = [*queue.withdraw(_follows_map), *queue.moved]
            queue.moved.clear()
        if topic.key_map is not None and queue.topic_queue not in topic.keyed:
            waiting += queue.withdraw(_may_move)  # the queue was taken away
        for send in waiting:
            if send.state != DONE:
                self._place_again(topic, send)
        if topic.unrouted and not topic.draining and not topic.finding:
            self._place_unrouted(topic)

    def _place_again(self, topic: TopicSends, send: Send) -> None:
        """Bring a message, or the messages of a batch, to their queues by the newer map.

        The messages are known not to be stored.
        """
        if send.series is not None:
            self._end(send)  # others take its place
            for target, one in self._divide(topic, send, send.series):
                self._place_part(topic, target, one)
            return
        if not self.named:
            send.sequence = send.last = -1
        try:
            self._place(topic, send)
        except (UsageError, KeyMapConflict) as error:
            self.failed(send, error)

    def _divide(
        self, topic: TopicSends, send: Send, series: Series
    ) -> list[tuple[TopicQueue, Send]]:
        """Make a request for each queue of a batch; messages without a key stay together."""
        groups: dict[TopicQueue, list[int]] = {}
        keyless: list[int] = []
        for position, message in enumerate(send.messages or ()):
            if message.key is None:
                keyless.append(position)
            else:
                target = topic.keyed[queue_for_key(message.key, len(topic.keyed))]
                groups.setdefault(target, []).append(position)
        if keyless:
            target = next(iter(groups), None) or self._round_robin.select(topic.keyed)
            groups[target] = sorted((*groups.get(target, ()), *keyless))
        return list(zip(groups, series.divide(send, list(groups.values())), strict=True))

    def _place_part(self, topic: TopicSends, target: TopicQueue, send: Send) -> None:
        queue = self.send_queue(target)
        self._assign(send, queue)
        send.by_key = any(message.key is not None for message in send.messages or ())
        send.placed = topic.placed if send.by_key else b""
        try:
            if queue.named:
                queue.check_sequence(send)
        except UsageError as error:
            self.failed(send, error)
            return
        queue.waiting.append(send)
        queue.sender.pump(queue)

    # Direct sends.

    def direct_target(self, name: str, key: str | None, turn: int) -> Target | None:
        """Return where a message may be sent directly now; None: by its send queue.

        Other threads call this; it only reads. `turn` counts messages without a key. Sends that
        the same thread handed over before are in the send queue, or in the portal's inbox, which
        the caller has checked.
        """
        topic, session = self.topics.get(name), self.session
        if (
            topic is None
            or topic.route is None
            or topic.unrouted
            or topic.previous
            or session.known_route(name) is not topic.route
            or session.key_map(name) is not topic.key_map
        ):
            return None
        queues = topic.send_queues if key is None else topic.keyed_send_queues
        if not queues:
            return None
        queue = queues[turn % len(queues) if key is None else queue_for_key(key, len(queues))]
        if (
            queue is None
            or queue.sent
            or queue.waiting
            or queue.moved
            or queue.waits_for
            or not queue.ready
        ):
            return None
        connection = queue.sender.connection
        if connection is None or not queue.idempotent:
            return None
        placed = b"" if key is None else topic.placed
        return Target(queue.topic_queue, placed, connection.address)

    def take_over(self, send: Send, target: Target, producer_id: str) -> None:
        """Bring a direct send to its end that has a sequence number and an unknown outcome."""
        queue = self.send_queue(target.queue)
        sender = queue.sender
        first = SendQueue(
            sender, target.queue, self.template(target.queue), producer_id, window=1, named=False,
            backoff=self.backoff(),
        )  # fmt: skip
        self._assign(send, first)
        send.state = UNKNOWN
        send.by_key, send.placed = send.key is not None, target.placed
        first.sent.append(send)
        first.unknown = 1
        first.tail, first.confirmed = send.sequence, send.sequence - 1
        while queue.waits_for is not None:
            queue = queue.waits_for
        queue.waits_for, first.waited_for_by = first, queue
        self._check_at(send.deadline_ms)
        self._taken_over += 1
        key = TopicQueue(target.queue.topic, target.queue.broker, -self._taken_over)
        sender.queues[key] = first
        sender.pump(first)


def _may_move(send: Send) -> bool:
    return send.may_move


def _follows_map(send: Send) -> bool:
    return send.by_key and not send.stored
