"""Load for a broker that will die: pipelined producers, committing consumers, and the judgement.

Everything that was sent, answered, delivered and committed over all lives of one data directory is
kept in a `Book`. After a restart `Book.judge` reads every queue to its end and says what is wrong:
the order checker's findings, copies that no retry explains, an offset that names another message
than the one once shown there, a committed offset that nobody committed or beyond the log.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from inorder.checker import Event, Kind, Report, Rules, Sent, SentResult, Stored, check
from inorder.client.api import BrokerApi
from inorder.config import NetConfig
from inorder.errors import InorderError, NotFound, TransportError
from inorder.model import TopicConfig, TopicQueue
from inorder.net.connection import Connection
from inorder.wire import properties as names
from inorder.wire.codes import RequestCode
from inorder.wire.header import Command
from inorder.wire.ids import java_hash
from inorder.wire.properties import format_properties, parse
from inorder.wire.record import Record
from inorder.wire.requests.pulls import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, QueryMessage
from inorder.wire.requests.sends import BatchItem, SendMessage, encode_batch

GROUP = "readers"
TOPICS = ("orders", "payments", "stock")
QUEUES = 3
KEYS = 12
BATCH_RATIO = 0.15
LARGE_BATCH_RATIO = 0.05
LARGE_BATCH_MORE = (130, 300)
"""Messages of a large batch, as the Spark sink sends them."""
BATCH_BYTES_MAX = 65_000
"""A batch ends above this: the broker of the kill rounds refuses 131,072 bytes. If the answer is
lost, the sender would send the refused messages again, one by one, after later ones of their keys.
"""
LETTER_EXTRA_BYTES = 200
TIMEOUT_MS = 30_000
SLOW_S = 0.005
LOSS = frozenset((Kind.LOST, Kind.OFFSET_CONFLICT))
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Letter:
    """One message to send."""

    producer: str
    id: str
    key: str
    sequence: int
    place: Place
    body: bytes

    @property
    def properties(self) -> str:
        return format_properties(
            {
                names.UNIQ_KEY: self.id, names.KEYS: f"{self.key} s{self.sequence}",
                names.TAGS: f"tag{self.sequence % 3}", names.SHARDING_KEY: self.key,
                "sequence": str(self.sequence),
            }
        )  # fmt: skip


@dataclass
class Book:
    """What is known about one data directory from outside."""

    events: list[Event] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    shown: dict[tuple[Place, int], str] = field(default_factory=dict)
    committed: dict[Place, set[int]] = field(default_factory=dict)
    copies: int = 0
    forgotten: list[str] = field(default_factory=list)

    def note(self, letter: Letter, result: SentResult, offset: int | None = None) -> None:
        """Write down how a send ended."""
        self.acknowledged += result is SentResult.OK
        queue = None if offset is None else _name(letter.place)
        digest = f"{zlib.crc32(letter.body):08x}"
        self.events.append(
            Sent(letter.producer, letter.key, letter.sequence, letter.id, result, queue, offset,
                 digest)
        )  # fmt: skip

    def show(self, place: Place, record: Record) -> str | None:
        """A consumer got a record; return what is wrong with that."""
        found = _id(record)
        known = self.shown.setdefault((place, record.queue_offset), found)
        if known == found:
            return None
        return f"{_name(place)}/{record.queue_offset} was {known} and is now {found}"

    async def judge(self, api: BrokerApi, *, allowed: frozenset[Kind] = frozenset()) -> list[str]:
        """Read everything and return what is wrong; `allowed` kinds are not held against it."""
        wrong: list[str] = []
        stored: list[Event] = []
        found: Counter[str] = Counter()
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                place = (topic, queue_id)
                records = await read_queue(api, place)
                found.update(map(_id, records))
                stored += [_stored(place, record) for record in records]
                if not allowed:
                    wrong += filter(None, (self.show(place, record) for record in records))
                    wrong += self._judge_shown(place, len(records))
                wrong += await self._judge_commit(api, place, len(records))
        rules = Rules(stored_once=False, acknowledged_min=0, complete_stored=True)
        report: Report = check([*self.events, *stored], rules=rules)
        wrong += [str(one) for one in report.findings if one.kind not in allowed]
        self.copies = sum(found.values()) - len(found)
        wrong += [
            f"{id_} is stored {count} times after {self.attempts[id_]} tries"
            for id_, count in found.items()
            if count > self.attempts[id_]
        ]
        return wrong

    async def judge_after_loss(self, api: BrokerApi) -> list[str]:
        """Judge where the end may be lost; then forget it: its offsets are given again."""
        wrong = await self.judge(api, allowed=LOSS)
        self.forgotten = []
        for place in ((topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)):
            there = [_id(record) for record in await read_queue(api, place)]
            for (where, offset), id_ in list(self.shown.items()):
                if where == place and (offset >= len(there) or there[offset] != id_):
                    del self.shown[where, offset]
                    self.forgotten.append(id_)
            wrong += self._judge_prefix(place, there)
        return wrong

    def _judge_prefix(self, place: Place, there: list[str]) -> list[str]:
        """What is gone must be the end: nothing acknowledged is missing before what is there."""
        wrong = []
        name = _name(place)
        for number, event in enumerate(self.events):
            if not isinstance(event, Sent) or event.queue != name or event.offset is None:
                continue
            if event.offset < len(there) and there[event.offset] == event.id:
                continue
            if event.offset < len(there):
                wrong.append(f"{name}/{event.offset} was {event.id}, is {there[event.offset]}")
            self.forgotten.append(event.id)
            self.events[number] = replace(event, result=SentResult.UNKNOWN, queue=None, offset=None)
        return wrong

    def _judge_shown(self, place: Place, end: int) -> list[str]:
        gone = [offset for (where, offset) in self.shown if where == place and offset >= end]
        return [f"{_name(place)} ends at {end}, but {max(gone)} was shown"] if gone else []

    async def _judge_commit(self, api: BrokerApi, place: Place, end: int) -> list[str]:
        try:
            offset = await api.query_offset(GROUP, _queue(place), set_zero_if_not_found=False)
        except NotFound:
            return []
        wrong = []
        if offset > end:
            wrong.append(f"{_name(place)}: committed {offset} beyond its end {end}")
        known = self.committed.setdefault(place, set())
        if offset not in known | {end}:
            wrong.append(f"{_name(place)}: offset {offset}, which nobody committed")
        known.add(offset)  # one that was cut back to the end may stay while the queue grows again
        return wrong

    async def judge_keys(self, api: BrokerApi, draw: random.Random, count: int = 10) -> list[str]:
        """Ask the index for some acknowledged messages by id."""
        sent = [e for e in self.events if isinstance(e, Sent) and e.result is SentResult.OK]
        wrong = []
        for event in draw.sample(sent, k=min(count, len(sent))):
            assert event.queue is not None
            topic = event.queue.partition("/")[0]
            request = QueryMessage(topic, event.id, 32, 0, 1 << 62, unique_key=True)
            try:
                records = await api.query_message(request)
            except NotFound:
                records = []
            if not any(record.queue_offset == event.offset for record in records):
                wrong.append(f"{event.id} is not found by its id")
        return wrong


class Sender:
    """One producer: pipelines, and retries part of what it never got an answer for."""

    def __init__(self, name: str, book: Book, seed: int) -> None:
        self._name = name
        self._book = book
        self._draw = random.Random(f"{name}/{seed}")
        self._sequences: Counter[str] = Counter()
        self._number = 0
        self._again: list[Letter] = []
        self.large = False

    async def run(
        self,
        connection: Connection,
        *,
        window: int = 64,
        pause_ms: Callable[[], float] | None = None,
        full_speed: int = 1 << 30,
    ) -> None:
        """Send until the connection is lost or the task is cancelled.

        After `full_speed` requests it goes on slowly: what is sent must all be read and judged.
        """
        draw = self._draw
        sent = 0
        unanswered: dict[str, Letter] = {}
        room = asyncio.Semaphore(window)
        again, self._again = self._again, []
        try:
            while not connection.closed:
                if again:
                    letters = [again.pop(0)]
                elif draw.random() < BATCH_RATIO:
                    letters = self.batch()
                else:
                    letters = [self.letter()]
                await room.acquire()
                for letter in letters:
                    unanswered[letter.id] = letter
                    self._book.attempts[letter.id] += 1
                self._send(connection, letters, unanswered, room)
                sent += 1
                if pause_ms is not None:
                    await asyncio.sleep(pause_ms() / 1000)
                elif sent > full_speed:
                    await asyncio.sleep(draw.uniform(0, SLOW_S))
                elif draw.random() < 0.05:
                    await asyncio.sleep(0)
        except TransportError:
            pass
        finally:
            left = list(unanswered.values())
            for letter in left:
                self._book.note(letter, SentResult.UNKNOWN)
            if left and draw.random() < 0.5:
                self._again = [*left, *again]
            else:
                self._again = again
            unanswered.clear()

    def _send(
        self, connection: Connection, letters: list[Letter], unanswered: dict[str, Letter],
        room: asyncio.Semaphore,
    ) -> None:  # fmt: skip
        answer = connection.call(send_command(letters), TIMEOUT_MS)

        def done(finished: asyncio.Future[Command]) -> None:
            room.release()
            if finished.cancelled() or finished.exception() is not None:
                return
            reply = finished.result()
            for number, letter in enumerate(letters):
                if unanswered.pop(letter.id, None) is None:
                    continue
                if reply.code == 0:
                    offset = int(reply.fields["queueOffset"]) + number
                    self._book.note(letter, SentResult.OK, offset)
                else:
                    # 1: the disk failed under it; 10: it took too long. Neither says no.
                    doubt = reply.code in (1, 10)
                    self._book.refused[reply.code] += 1
                    self._book.note(letter, SentResult.UNKNOWN if doubt else SentResult.FAILED)

        answer.add_done_callback(done)

    def letter(self, place: Place | None = None) -> Letter:
        """Return the next message, of one queue if told which."""
        draw = self._draw
        while True:
            topic = draw.choice(TOPICS) if place is None else place[0]
            key = f"{topic}-{self._name}-{draw.randrange(KEYS)}"
            home = (topic, abs(java_hash(key)) % QUEUES)
            if place is None or home == place:
                break
        self._number += 1
        self._sequences[key] += 1
        size = draw.choice((10, 100, 400, 1500))
        if self.large and draw.random() < 0.01:
            size = 60_000
        id_ = f"{self._name}-{self._number:07d}"
        body = id_.encode() + draw.randbytes(8) * (size // 8)
        return Letter(self._name, id_, key, self._sequences[key], home, body)

    def batch(self) -> list[Letter]:
        """Return the next messages of one queue."""
        first = self.letter()
        more = self._draw.randint(1, 7)
        if self.large and self._draw.random() < LARGE_BATCH_RATIO:
            more = self._draw.randint(*LARGE_BATCH_MORE)
        letters = [first]
        size = len(first.body)
        while more and size < BATCH_BYTES_MAX:
            more -= 1
            letters.append(self.letter(first.place))
            size += len(letters[-1].body) + LETTER_EXTRA_BYTES
        return letters


async def consume(api: BrokerApi, places: list[Place], book: Book, *, suspend_ms: int) -> None:
    """Pull some queues from where the group stands, and commit, until the connection is lost."""

    async def one(place: Place) -> None:
        queue = _queue(place)
        offset = await api.query_offset(GROUP, queue)
        while True:
            pulled = await api.pull_message(pull(place, offset, suspend_ms), timeout_ms=TIMEOUT_MS)
            for record in pulled.records():
                problem = book.show(place, record)
                assert problem is None, problem
            if pulled.reply.next_begin_offset != offset:
                offset = pulled.reply.next_begin_offset
                book.committed.setdefault(place, set()).add(offset)
                await api.update_offset(GROUP, queue, offset)

    try:
        await asyncio.gather(*map(one, places))
    except InorderError:
        pass  # the broker is gone, or stopped taking requests


async def connect(
    address: str, on_request: Callable[[Connection, Command], None] | None = None
) -> Connection:
    """Open a connection for any of the above."""
    if on_request is None:
        return await Connection.open(address, NetConfig(), connect_timeout_ms=TIMEOUT_MS)
    return await Connection.open(
        address, NetConfig(), connect_timeout_ms=TIMEOUT_MS, on_request=on_request
    )


async def make_topics(api: BrokerApi) -> None:
    """Make the topics; they must be there for ever."""
    for topic in TOPICS:
        await api.create_topic(TopicConfig(topic, QUEUES, QUEUES))


async def read_queue(api: BrokerApi, place: Place) -> list[Record]:
    """Read a queue from its first to its last message."""
    queue = _queue(place)
    offset, end = await api.min_offset(queue), await api.max_offset(queue)
    records: list[Record] = []
    while offset < end:
        pulled = await api.pull_message(pull(place, offset, 0), timeout_ms=TIMEOUT_MS)
        assert pulled.code == 0, f"{_name(place)}: code {pulled.code} at {offset} of {end}"
        records += pulled.records()
        offset = pulled.reply.next_begin_offset
    return records


def pull(place: Place, offset: int, suspend_ms: int) -> PullMessage:
    """Return a pull of a queue."""
    flag = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0)
    return PullMessage(GROUP, place[0], place[1], offset, 32, flag, 0, suspend_ms, 0, "*", "TAG")


def send_command(letters: list[Letter]) -> Command:
    """Return the request that sends a message, or several as a batch."""
    first = letters[0]
    batch = len(letters) > 1
    if batch:
        items = [BatchItem(0, one.body, one.properties.encode()) for one in letters]
        body, text = encode_batch(items), ""
    else:
        body, text = first.body, first.properties
    request = SendMessage(
        "writers", first.place[0], "TBW102", 4, first.place[1], 0, 1_700_000_000_000, 0, text,
        batch=batch,
    )  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return Command.request(code, request.to_fields_v2(), body)


def _stored(place: Place, record: Record) -> Stored:
    found = parse(record.properties)
    return Stored(
        _name(place), record.queue_offset, found[names.UNIQ_KEY], found[names.SHARDING_KEY],
        int(found["sequence"]), f"{zlib.crc32(record.body):08x}",
    )  # fmt: skip


def _id(record: Record) -> str:
    return parse(record.properties)[names.UNIQ_KEY]


def _queue(place: Place) -> TopicQueue:
    return TopicQueue(place[0], "broker-a", place[1])


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
