"""One producer's sends to one broker: a connection, a lane per queue, what to do with each answer.

There is no task per send: `pump` writes what a lane lets go, `answered` is called from
`data_received`. A task runs only while there is no connection: it connects, says hello (first, and
alone), and lets the lanes go on; lanes whose sends have an unknown outcome ask the broker first how
far it is. A broker that does not know hello gets one send per queue at a time, without numbers.

Telling callers that it will not be: their time is up, or their broker is gone for good.

What is lost or forgotten at a broker: told to whom it concerns, and how to go on.

Saying hello: the first request of a producer on a connection to a broker.

The answer tells whether the broker knows numbered sends, and shuts out what older connections of
this producer still hold. Each hello carries a higher incarnation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.client.api import BrokerApi
from inorder.client.rules.receipts import STATUSES, Verdict, verdict
from inorder.client.send.queues import Sending, SendQueue
from inorder.client.send.rules import DONE, IN_FLIGHT, UNSENT, Resolution
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    ConnectFailed,
    ConnectionLost,
    InorderError,
    MessagesLost,
    OutcomeUnknown,
    PredecessorFailed,
    ProducerStale,
    ProducerUnknown,
    RequestTimeout,
    SendTimedOut,
    TransportError,
    UsageError,
    broker_error,
)
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.tasks import Backoff
from inorder.wire.extensions import PROTOCOL, ExtensionAnswer
from inorder.wire.requests.producers import ProducerHello
from inorder.wire.requests.sendframes import SendAnswer, SendFields

if TYPE_CHECKING:
    from inorder.client.send.router import Delivery
    from inorder.net.connection import Connection

log = get_logger(__name__)


def fail_all(link: BrokerSender, error: InorderError) -> None:
    """Give up everything that waits for this broker."""
    for lane in link.lanes.values():
        fail_waiting(link, lane, error)


def fail_waiting(link: BrokerSender, lane: SendQueue, error: InorderError) -> None:
    """Give up everything that waits for a queue; what is unknown is told to be so."""
    # From the end: of a name, those behind one that failed would be told that instead.
    for sending in reversed([*lane.sent, *lane.waiting, *lane.moved]):
        if sending.state != DONE:
            known = sending.state == UNSENT and not sending.in_doubt
            lane.abandon(sending)
            link.owner.failed(
                sending,
                error if known else OutcomeUnknown(f"{error}; nobody knows of this message"),
            )
    lane.moved.clear()


def predecessor_failed(sending: Sending, lane: SendQueue) -> PredecessorFailed:
    """Return what the caller of a named producer is told of a message behind one that failed."""
    return PredecessorFailed(
        f"sequence {sending.number} of {lane.queue} was not stored, for one before it failed; send "
        "again from the first one that failed"
    )


def expire(link: BrokerSender, lane: SendQueue, sending: Sending) -> None:
    """Tell a caller that its time is up; the message keeps its number if it has one."""
    known = sending.state == UNSENT and not sending.in_doubt
    lane.abandon(sending)
    error: InorderError
    if sending.stored:
        link.owner.stored(sending, lane.queue, SendFields())  # only its receipt is missing
        return
    if not known:
        why = f" ({sending.failure})" if sending.failure is not None else ""
        error = SendTimedOut(
            f"broker {link.broker} did not answer a send in time{why}; the message may or may "
            "not be stored"
        )
    elif sending.failure is not None:
        error = sending.failure
    elif link.error is not None and link.connection is None:
        error = link.error
    elif sending.tries:
        error = RequestTimeout(f"no time was left for {lane.queue}; the message was not sent")
    else:
        error = RequestTimeout(
            f"earlier sends to topic {sending.topic} took all the time; this one was not sent"
        )
    link.owner.failed(sending, error)


def begin_again(
    link: BrokerSender, lane: SendQueue, lost: tuple[int, int] | None, new_id: str
) -> None:
    """Report what is lost, and go on: under a new id, or, with a name, not at all."""
    if lost is not None:
        link.owner.lost += lost[1] - lost[0] + 1
        log.error(
            "messages lost producer=%s queue=%s numbers=%d..%d: they were acknowledged, and "
            "the broker has lost the end of its log",
            lane.producer_id, lane.queue, *lost,
        )  # fmt: skip
    else:
        log.warning(
            "forgotten producer=%s queue=%s: going on under a new id",
            lane.producer_id, lane.queue,
        )  # fmt: skip
    if link.owner.named:
        if lost is not None:
            lane.confirmed = lane.tail = lost[0] - 1
        lane.highest = lane.confirmed
        error = MessagesLost(
            f"{lane.queue} has nothing of producer {lane.producer_id} behind "
            f"{lane.confirmed}: messages that were acknowledged are lost; send again from there"
        )
        fail_waiting(link, lane, error)
        return
    for sending in lane.restart():
        link.owner.stored(sending, lane.queue, SendFields())
    lane.use_id(new_id)
    lane.ready = False


def resolved(
    link: BrokerSender, lane: SendQueue, found: Resolution[Sending], new_id: str | None = None
) -> None:
    """Tell callers what the broker's word means, and go on."""
    for sending in found.unvouched:
        link.owner.failed(
            sending,
            OutcomeUnknown(
                f"{lane.queue} knows nothing of producer {lane.producer_id} any more; this "
                "message may or may not be stored"
            ),
        )
    for sending in found.doomed:
        link.owner.failed(sending, predecessor_failed(sending, lane))
    if found.lost or found.forgotten:
        begin_again(link, lane, found.lost, new_id or link.owner.new_id())
    link.owner.lane_drained(lane)


class Greeter:
    """Introduces the producer of a link to its broker."""

    def __init__(self, link: BrokerSender) -> None:
        self._link = link
        self._owner = link.owner
        self._memory = -1  # the broker's, when we first said hello
        self._met = False
        self.greeted: dict[str, None] = {}
        """The ids under which we are known on the present connection."""

    async def greet(self, connection: Connection) -> bool:
        """Say hello; False if the broker does not know what that is."""
        try:
            await self.hello(connection, self._owner.producer_id)
        except CodeNotSupported:
            connection.numbers_sends = False
            self._owner.session.say_once(
                "numbers",
                "broker %s knows no numbered sends: one send per queue at a time, in order, each "
                "stored at least once",
                self._link.broker,
            )
            return False
        connection.numbers_sends = True
        return True

    async def hello(self, connection: Connection, producer_id: str) -> None:
        """Say hello under an id. Raises ProducerStale if another one has taken over a name."""
        owner = self._owner
        api = BrokerApi(connection, timeout_ms=owner.session.config.request_timeout_ms)
        fresh = not (self._met and owner.named)
        while True:
            request = ProducerHello(
                producer_id, owner.next_incarnation(), owner.named, memory=self._memory,
                protocol=PROTOCOL,
            )  # fmt: skip
            try:
                reply = await api.producer_hello(request)
                break
            except ProducerStale as error:
                if not fresh:
                    raise self.fenced(error) from None
                fresh = not owner.named  # a name that starts takes over, once
                owner.raise_incarnation(error.highest)
            except ProducerUnknown:
                producer_id = self._forget(producer_id)
        self._met = True
        if self._memory < 0:
            self._memory = reply.memory
        self.greeted[producer_id] = None

    def _forget(self, producer_id: str) -> str:
        """The broker may have forgotten an id: nobody can tell what is stored of it. Use another.

        Returns the new one.
        """
        new_id = self._owner.new_id()
        if producer_id == self._owner.producer_id:
            self._owner.producer_id = new_id
        self._memory = -1
        for lane in self._link.lanes.values():
            if lane.producer_id != producer_id:
                continue
            if lane.tail < 0:
                lane.use_id(new_id)
            else:
                found = lane.resolve(-1, known=False, evicted=True)
                resolved(self._link, lane, found, new_id)
        return new_id

    def fenced(self, error: BrokerError) -> ProducerStale:
        """Return the error of a name that somebody else has taken over."""
        return ProducerStale(
            f"another producer with the id {self._owner.producer_id!r} has started and this one is "
            f"shut out of broker {self._link.broker} ({error}); close it",
            code=error.code,
        )


_NO_FIELDS: Final = SendFields()


class BrokerSender:
    """The sends of a producer to one broker."""

    def __init__(self, owner: Delivery, broker: str) -> None:
        self.owner = owner
        self.broker = broker
        self.lanes: dict[TopicQueue, SendQueue] = {}
        self.connection: Connection | None = None
        self.error: InorderError | None = None  # why there is no connection
        self._greeter = Greeter(self)
        self._recovering = False

    # Writing.

    def pump(self, lane: SendQueue) -> None:
        """Write what the lane lets go."""
        # hot: 3 us a send, with its frame.
        connection = self.connection
        if connection is None:
            self.wake()
            return
        if lane.behind is not None and not self._may_pass(lane, lane.behind):
            return
        if not lane.ready:
            self._prepare(lane)
            return
        if lane.paused:
            return
        waiting = lane.waiting
        while waiting:
            first = waiting[0]
            if first.state != DONE and not first.wanted:
                self._drop_unwanted(lane, first)
                continue
            if connection.full:
                return
            sending = lane.next()
            if sending is None:
                return
            self._write(connection, lane, sending)

    def _may_pass(self, lane: SendQueue, behind: SendQueue) -> bool:
        """Settle what was sent past the lane; then it is gone."""
        if not behind.settled_all:
            self.pump(behind)
        if not behind.settled_all:
            return False
        self.lanes = {queue: one for queue, one in self.lanes.items() if one is not behind}
        lane.behind = behind.behind
        return lane.behind is None or self._may_pass(lane, lane.behind)

    def _write(self, connection: Connection, lane: SendQueue, sending: Sending) -> None:
        owner = self.owner
        unanswered = sending.oneway and not lane.numbered
        request_id = connection.next_id() if unanswered else connection.post(sending)
        connection.write(lane.frame(request_id, sending, oneway=unanswered))
        sending.written_ms = owner.clock.monotonic_ms()
        if sending.tries:
            owner.retries += 1
        sending.tries += 1
        if sending.oneway:
            owner.written(sending)
            if unanswered:
                lane.confirm(sending)

    def _drop_unwanted(self, lane: SendQueue, sending: Sending) -> None:
        series = sending.series
        error = None if series is None else series.error
        lane.waiting.popleft()
        lane.abandon(sending)
        if isinstance(error, InorderError):
            error = PredecessorFailed(
                f"{sending.count} messages to {lane.queue} were not sent, for one before them in "
                f"the batch failed: {error}"
            )
        self.owner.failed(sending, error or asyncio.CancelledError())

    # Answers.

    def answered(self, lane: SendQueue, sending: Sending, answer: SendAnswer) -> None:
        """Take the broker's answer to a send."""
        # hot: 2 us with the receipt.
        if sending.state != IN_FLIGHT:
            return  # of a connection that was given up
        status = STATUSES.get(answer.code)
        if status is not None:
            lane.confirm(sending)
            self.owner.stored(sending, lane.queue, answer.extFields or _NO_FIELDS, status)
            if lane.backoff.attempts:
                lane.backoff.reset()
                self.owner.broker_worked(self.broker)
        else:
            self._refused(lane, sending, answer)
        if lane.before is not None and lane.settled_all:
            self.pump(lane.before)
        elif lane.held:
            self._hold(lane)
        elif lane.draining:
            self.owner.lane_drained(lane)
            self.pump(lane)
        elif lane.waiting:
            self.pump(lane)

    def _refused(self, lane: SendQueue, sending: Sending, answer: SendAnswer) -> None:
        code, fields = answer.code, answer.extFields or _NO_FIELDS
        error = broker_error(code, answer.remark)
        is_unknown = verdict(code, fields.stored) is Verdict.UNKNOWN
        if sending.doomed and not is_unknown:
            lane.refuse(sending, final=True)
            self.owner.failed(sending, predecessor_failed(sending, lane))
        elif is_unknown:
            self._left_open(lane, sending, error)
        elif not lane.numbered:
            self._refused_plainly(lane, sending, error)
        elif code == ExtensionAnswer.PRODUCER_GAP:
            lane.gap(sending, fields.expected - (0 if lane.named else 1))
        elif code == ExtensionAnswer.PRODUCER_UNKNOWN and sending.stored:
            lane.confirm(sending)  # the answer is forgotten, the message is there
            self.owner.stored(sending, lane.queue, _NO_FIELDS)
        elif code == ExtensionAnswer.PRODUCER_UNKNOWN and not lane.named and lane.confirmed < 0:
            # Nothing of this id is stored: what comes before was refused. Under another id a late
            # copy of it would be taken, too.
            lane.refuse(sending, final=False)
        elif code in (ExtensionAnswer.PRODUCER_UNKNOWN, ExtensionAnswer.PRODUCER_MISMATCH) and (
            not lane.named
        ):
            log.warning("broker=%s queue=%s says: %s", self.broker, lane.queue, error)
            lane.refuse(sending, final=False)
            lane.forgotten = True
        elif code == ExtensionAnswer.PRODUCER_STALE:
            self._stale(lane, sending, error)
        elif code == ExtensionAnswer.KEY_MAP_CHANGED:
            sending.failure = error
            lane.refuse(sending, final=False)
            self.owner.map_refused(lane, fields)
        else:
            self._refused_plainly(lane, sending, error)

    def _left_open(self, lane: SendQueue, sending: Sending, error: BrokerError) -> None:
        """Take an answer that does not tell whether the message is stored."""
        if lane.numbered:  # the broker's numbers will tell where to go on
            lane.doubt(sending)
            lane.ready = False
            lane.abandon(sending)
        else:
            lane.refuse(sending, final=True)
        self.owner.failed(
            sending,
            OutcomeUnknown(
                f"broker {self.broker} answered {error.code}: {error}; the message may or may not "
                "be stored", error.code,
            ),
        )  # fmt: skip

    def _refused_plainly(self, lane: SendQueue, sending: Sending, error: BrokerError) -> None:
        """Take a definite refusal: final, or to be tried again here or elsewhere."""
        if not error.retriable and sending.stored:
            lane.confirm(sending)  # it was sent again for its receipt only
            self.owner.stored(sending, lane.queue, _NO_FIELDS)
            return
        if not error.retriable:
            lane.refuse(sending, final=True)
            # A refusal of this try says nothing about an earlier one that was not answered.
            doubt = OutcomeUnknown(f"{sending.failure or error}") if sending.in_doubt else None
            self.owner.failed(sending, doubt or error)
            return
        self.owner.broker_failed(self.broker)
        if not sending.in_doubt:
            sending.failure = error
        other = self.owner.elsewhere(sending, self.broker) if sending.may_move else None
        lane.refuse(sending, final=other is not None)
        if other is not None:
            self.owner.move(sending, other)
        self.pause(lane)

    def _stale(self, lane: SendQueue, sending: Sending, error: BrokerError) -> None:
        """Take the word that another one speaks for us: final for a name, nonsense otherwise."""
        lane.refuse(sending, final=self.owner.named)
        if self.owner.named:
            self.owner.fenced = self._greeter.fenced(error)
            self.owner.failed(sending, self.owner.fenced)
            fail_waiting(self, lane, self.owner.fenced)
        elif self.connection is not None:
            self.drop("the broker wants to be greeted again")

    def _hold(self, lane: SendQueue) -> None:
        """Go on after a refusal, if all is answered."""
        if not lane.settled:
            if lane.needs_state and self.connection is not None:
                self._prepare(lane)
            return
        lost, lane.lost = lane.lost, None
        forgotten, lane.forgotten = lane.forgotten, False
        lane.rewind()
        if lost or forgotten:
            begin_again(self, lane, lost, self.owner.new_id())
        self.owner.lane_drained(lane)
        self.pump(lane)

    def pause(self, lane: SendQueue) -> None:
        """Try again a little later, each time a little more so."""
        if not lane.paused:
            lane.paused = True
            delay_ms = lane.backoff.next_ms()
            self.owner.loop.call_later(delay_ms / 1000, self._resume, lane)

    def _resume(self, lane: SendQueue) -> None:
        lane.paused = False
        if not self.owner.closed:
            self.pump(lane)

    # Connections.

    def wake(self) -> None:
        """Connect, unless that is under way."""
        if not self._recovering:
            self._recovering = True
            self.owner.start(self._recover(), f"connect {self.broker}")

    def drop(self, reason: str) -> None:
        """Close the connection: it does not answer, or must be begun again."""
        if self.connection is not None:
            self.connection.close(reason)

    def connection_lost(self, connection: Connection, reason: str) -> None:
        """Keep what was in flight until its outcome is known."""
        if connection is not self.connection:
            return
        self.connection = None
        self._greeter.greeted.clear()
        error = ConnectionLost(
            f"lost the connection to {connection.address}: {reason}; the message may or may not "
            "be stored"
        )
        for lane in self.lanes.values():
            if not lane.numbered:
                for sending in lane.sent:
                    sending.failure = error
            lane.lose()
            lane.ready = False
        if self.owner.closed:
            return
        for lane in [lane for lane in self.lanes.values() if lane.draining]:
            self.owner.lane_drained(lane)
        self.owner.link_failed(self)
        if self._busy_queue() is not None:
            self.wake()

    def connection_has_room(self, connection: Connection) -> None:
        """Go on writing."""
        if connection is self.connection:
            for lane in self.lanes.values():
                self.pump(lane)

    async def _recover(self) -> None:
        config = self.owner.session.config
        backoff = Backoff(config.retry_first_ms, config.retry_max_ms)
        try:
            while (queue := self._busy_queue()) is not None:
                try:
                    await self._meet(queue)
                    break
                except TransportError as error:
                    self.error = error
                except InorderError as error:
                    self.error = error
                    if not error.retriable:
                        fail_all(self, error)
                        continue
                self.owner.link_failed(self)
                if isinstance(self.error, ConnectFailed):
                    await self.owner.session.try_refresh_route(queue.topic)
                await asyncio.sleep(backoff.next_ms() / 1000)
        finally:
            self._recovering = False
        for lane in list(self.lanes.values()):
            if not lane.idle:
                self.pump(lane)

    def _busy_queue(self) -> TopicQueue | None:
        return next((queue for queue, lane in self.lanes.items() if not lane.idle), None)

    async def _meet(self, queue: TopicQueue) -> None:
        session = self.owner.session
        connection = await session.master_connection(queue)
        numbered = connection.numbers_sends is not False and await self._greeter.greet(connection)
        if not numbered and self.owner.named:
            raise UsageError(
                f"broker {self.broker} knows no numbered sends, which a named producer (id=) "
                "needs; it is no broker of inorder"
            )
        if connection.closed:
            raise ConnectionLost(f"lost the connection to {connection.address} at the hello")
        self.connection = connection
        self.error = None
        connection.watch(self)
        for lane in self.lanes.values():
            lane.meet(numbered=numbered)

    # Asking how far the broker is.

    def _prepare(self, lane: SendQueue) -> None:
        """Make a lane ready: say hello under its id, ask what is stored, if need be."""
        if not lane.numbered or (
            lane.producer_id in self._greeter.greeted and lane.synced and not lane.unknown
        ):
            lane.ready = True
            self.pump(lane)
        elif not lane.syncing and not lane.in_flight:
            lane.syncing = True
            self.owner.start(self._sync(lane), f"numbers of {lane.queue}")

    async def _sync(self, lane: SendQueue) -> None:
        connection = self.connection
        failure: InorderError | None = None
        try:
            if connection is not None:
                await self._ask(connection, lane)
        except InorderError as error:
            failure = error
        finally:
            lane.syncing = False
        if failure is not None and connection is self.connection and connection is not None:
            if isinstance(failure, TransportError) or failure.retriable:
                self.drop(f"it did not tell how far it is: {failure}")
            else:
                fail_waiting(self, lane, failure)
        if lane.before is not None and lane.settled_all:
            self.pump(lane.before)
        elif not lane.idle:
            self.pump(lane)

    async def _ask(self, connection: Connection, lane: SendQueue) -> None:
        if lane.producer_id not in self._greeter.greeted:
            await self._greeter.hello(connection, lane.producer_id)
        if connection is self.connection and lane.needs_state:
            api = BrokerApi(connection, timeout_ms=self.owner.session.config.request_timeout_ms)
            state = await api.producer_state(lane.producer_id, lane.queue)
            if connection is self.connection and not lane.in_flight:
                resolved(self, lane, lane.resolve(state.last, known=state.known))
