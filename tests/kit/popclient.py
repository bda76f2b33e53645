"""A client of POP on the wire: pop, acknowledge one or many, change the invisible time.

It knows what a stock client knows, from the requests and answers alone, and checks what it reads by
itself: an answer that a stock client could not use is `BadAnswer`. A refusal is a code.

A popped message has a handle, RocketMQ's `extraInfo`: eight words, first offset of the batch, pop
time, invisible time, revive queue, retry flag, broker, queue, offset. The pop time is the token of
the batch; revive queue 999 says that the batch is in order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from inorder.errors import CorruptRecord
from inorder.net.connection import Connection
from inorder.wire.header import Command
from inorder.wire.properties import parse
from inorder.wire.record import Record, decode_all

POP, ACK, BATCH_ACK, CHANGE = 200050, 200051, 200151, 200053
HEART_BEAT: Final = 34
SUCCESS: Final = 0
NOTHING: Final = (19, 209, 210)
"""Codes of a pop that found nothing: not now, too many wait, the time of waiting is up."""
ORDERLY_REVIVE: Final = 999
COUNT_MAX: Final = 32
INFO_CHARS_MAX: Final = 1 << 16
LONG_MAX: Final = (1 << 63) - 1
MARGIN_MS: Final = 5000
"""How much longer than its time of waiting a pop may take."""


class BadAnswer(AssertionError):
    """An answer that no client can use."""


class Place(NamedTuple):
    """A queue as the texts of an answer name it; `retry` as in a handle."""

    retry: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Handle:
    """What an acknowledgement names."""

    topic: str
    """The topic that the message lies in, also if that is one of retries."""
    first: int
    pop_time: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue_id: int
    offset: int

    @classmethod
    def of(cls, text: str, topic: str, group: str) -> Handle:
        """Read one. `topic` is that of the pop."""
        words = text.split(" ")
        if len(words) != 8 or words[4] not in ("0", "1", "2"):
            raise BadAnswer(f"a handle of other words: {text[:200]!r}")
        first, pop_time, invisible_ms, revive_queue, queue_id, offset = (
            number(words[place]) for place in (0, 1, 2, 3, 6, 7)
        )
        return cls(
            real_topic(topic, group, words[4]), first, pop_time, invisible_ms, revive_queue,
            words[4], words[5], queue_id, offset,
        )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"{self.first} {self.pop_time} {self.invisible_ms} {self.revive_queue} {self.retry} "
            f"{self.broker} {self.queue_id} {self.offset}"
        )


@dataclass(frozen=True, slots=True)
class Popped:
    """A message of a batch."""

    record: Record
    handle: Handle
    times: int
    """How often it was handed out before."""

    @property
    def body(self) -> str:
        return self.record.body.decode()

    @property
    def properties(self) -> dict[str, str]:
        return parse(self.record.properties)


@dataclass(frozen=True, slots=True)
class Batch:
    """The answer to a pop; without messages if it found none, or was refused."""

    code: int
    remark: str
    pop_time: int = 0
    invisible_ms: int = 0
    rest: int = 0
    messages: tuple[Popped, ...] = ()

    @property
    def refused(self) -> bool:
        """Tell whether it was neither answered with messages nor with none."""
        return self.code != SUCCESS and self.code not in NOTHING


def number(text: str | None) -> int:
    """Read a number that is not negative."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadAnswer(f"no number: {text!r:.100}")
    if (found := int(text)) > LONG_MAX:
        raise BadAnswer(f"no long: {text}")
    return found


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return where messages of a retry flag lie."""
    return {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[retry]


def places(text: str | None) -> dict[Place, str]:
    """Read "retry queue value;…", where no place comes twice."""
    found: dict[Place, str] = {}
    if not text:
        return found
    if len(text) > INFO_CHARS_MAX:
        raise BadAnswer(f"{len(text)} characters of places")
    for one in text.split(";"):
        words = one.split(" ")
        if len(words) != 3 or words[0] not in ("0", "1", "2"):
            raise BadAnswer(f"no place: {one[:200]!r}")
        place = Place(words[0], number(words[1]))
        if place in found:
            raise BadAnswer(f"a place twice: {text[:200]!r}")
        found[place] = words[2]
    return found


def counts(text: str | None) -> tuple[dict[Place, int], dict[tuple[Place, int], int]]:
    """Read how often queues, and offsets of queues, were handed out before."""
    queues: dict[Place, int] = {}
    offsets: dict[tuple[Place, int], int] = {}
    if not text:
        return queues, offsets
    if len(text) > INFO_CHARS_MAX:
        raise BadAnswer(f"{len(text)} characters of counts")
    for one in text.split(";"):
        words = one.split(" ")
        if len(words) != 3 or words[0] not in ("0", "1", "2"):
            raise BadAnswer(f"no count: {one[:200]!r}")
        if words[1].startswith("qo"):
            queue_id, _, offset = words[1][2:].partition("%")
            place = Place(words[0], number(queue_id))
            offsets[place, number(offset)] = number(words[2])
        else:
            queues[Place(words[0], number(words[1]))] = number(words[2])
    return queues, offsets


def bits_of(offsets: Iterable[int], first: int) -> str:
    """Return a Java BitSet of places behind the first, as its JSON has it."""
    bits = 0
    for offset in offsets:
        assert 0 <= offset - first < 4096
        bits |= 1 << (offset - first)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


class PopClient:
    """Pops for one group over one connection to one broker."""

    def __init__(
        self, connection: Connection, group: str, *, broker: str = "broker-a",
        timeout_ms: int = 3000,
    ) -> None:  # fmt: skip
        self.group = group
        self._connection = connection
        self._broker = broker
        self._timeout_ms = timeout_ms

    async def heartbeat(self, client_id: str, *topics: str) -> None:
        """Join the group, as stock clients do before they pop."""
        subscriptions = [
            {
                "classFilterMode": False, "codeSet": [], "expressionType": "TAG",
                "subString": "*", "subVersion": 1, "tagsSet": [], "topic": topic,
            }
            for topic in topics
        ]  # fmt: skip
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": self.group, "messageModel": "CLUSTERING",
            "subscriptionDataSet": subscriptions, "unitMode": False,
        }  # fmt: skip
        body = {
            "clientID": client_id, "consumerDataSet": [consumer], "heartbeatFingerprint": 0,
            "producerDataSet": [], "withoutSub": False,
        }  # fmt: skip
        answer = await self._ask(HEART_BEAT, {}, json.dumps(body).encode())
        if answer.code != SUCCESS:
            raise BadAnswer(f"a heartbeat was answered {answer.code}: {answer.remark}")

    async def pop(
        self,
        topic: str,
        *,
        invisible_ms: int,
        queue_id: int = -1,
        count: int = COUNT_MAX,
        poll_ms: int = 0,
        born_ms: int = 0,
        order: bool = False,
        attempt: str = "",
    ) -> Batch:
        """Take messages. From the first one on if the group has no offset yet."""
        fields = {
            "consumerGroup": self.group, "topic": topic, "queueId": str(queue_id),
            "maxMsgNums": str(count), "invisibleTime": str(invisible_ms), "pollTime": str(poll_ms),
            "bornTime": str(born_ms), "initMode": "0", "expType": "TAG", "exp": "*",
            "order": "true" if order else "false", "bname": self._broker,
        }  # fmt: skip
        if attempt:
            fields["attemptId"] = attempt
        answer = await self._ask(POP, fields, timeout_ms=poll_ms + MARGIN_MS)
        if answer.code != SUCCESS:
            return Batch(answer.code, answer.remark or "")
        batch = read_batch(answer, topic, self.group, self._broker)
        if len(batch.messages) > count:
            raise BadAnswer(f"{len(batch.messages)} messages for {count}")
        for one in batch.messages:
            handle = one.handle
            if queue_id >= 0 and handle.retry == "0" and handle.queue_id != queue_id:
                raise BadAnswer(f"queue {handle.queue_id} for {queue_id}")
            if (handle.revive_queue == ORDERLY_REVIVE) != order:
                raise BadAnswer(f"revive queue {handle.revive_queue} for order={order}")
            if order and handle.retry != "0":
                raise BadAnswer("a pop in order took a retry")
        return batch

    async def ack(self, handle: Handle) -> int:
        """Acknowledge a message; return the code of the answer."""
        answer = await self._ask(ACK, self._naming(handle))
        return answer.code

    async def ack_all(self, handles: Iterable[Handle]) -> int:
        """Acknowledge many with one request; return the code of the answer."""
        batches: dict[tuple[str, int, int, int], list[Handle]] = {}
        for one in handles:
            place = (one.topic, one.queue_id, one.first, one.pop_time)
            batches.setdefault(place, []).append(one)
        acks = []
        for (topic, queue_id, first, pop_time), ones in batches.items():
            prefixes = (f"%RETRY%{self.group}_", f"%RETRY%{self.group}+")
            plain = topic[len(prefixes[0]) :] if topic.startswith(prefixes) else topic
            acks.append(
                {
                    "c": self.group, "t": plain, "r": ones[0].retry, "so": first, "q": queue_id,
                    "rq": ones[0].revive_queue, "pt": pop_time, "it": ones[0].invisible_ms,
                    "b": bits_of((one.offset for one in ones), first),
                }
            )  # fmt: skip
        body = json.dumps({"acks": acks, "brokerName": self._broker}).encode()
        return (await self._ask(BATCH_ACK, {"bname": self._broker}, body)).code

    async def change(self, handle: Handle, invisible_ms: int) -> tuple[int, Handle | None]:
        """Let a message stay invisible for a time from now; return the code and its new handle."""
        fields = self._naming(handle) | {"invisibleTime": str(invisible_ms)}
        answer = await self._ask(CHANGE, fields)
        if answer.code != SUCCESS:
            return answer.code, None
        return SUCCESS, replace(
            handle,
            first=handle.offset,
            pop_time=number(answer.fields.get("popTime")),
            invisible_ms=number(answer.fields.get("invisibleTime")),
            revive_queue=number(answer.fields.get("reviveQid")),
        )

    def _naming(self, handle: Handle) -> dict[str, str]:
        return {
            "consumerGroup": self.group, "topic": handle.topic, "queueId": str(handle.queue_id),
            "extraInfo": str(handle), "offset": str(handle.offset), "bname": self._broker,
        }  # fmt: skip

    async def _ask(
        self, code: int, fields: dict[str, str], body: bytes = b"", *, timeout_ms: int | None = None
    ) -> Command:
        command = Command.request(code, fields, body)
        return await self._connection.request(command, timeout_ms or self._timeout_ms)


def read_batch(answer: Command, topic: str, group: str, broker: str) -> Batch:
    """Read the messages of an answer and give each its handle, as the Java client does."""
    fields = answer.fields
    pop_time, invisible_ms = number(fields.get("popTime")), number(fields.get("invisibleTime"))
    revive_queue = number(fields.get("reviveQid"))
    first_of = {
        place: number(text) for place, text in places(fields.get("startOffsetInfo")).items()
    }
    told = {
        place: [number(one) for one in text.split(",")]
        for place, text in places(fields.get("msgOffsetInfo")).items()
    }
    queue_times, offset_times = counts(fields.get("orderCountInfo"))
    try:
        records = decode_all(answer.body)
    except CorruptRecord as error:
        raise BadAnswer(f"no messages: {error}") from error
    if not records:
        raise BadAnswer("a pop was answered with success and without a message")
    found: dict[Place, list[int]] = {}
    messages = []
    for record in records:
        known = parse(record.properties).get("POP_CK")
        if known is not None:
            handle = Handle.of(known, topic, group)
            if handle.retry == "0":
                raise BadAnswer(f"a message of the topic itself names its handle: {known!r}")
        else:
            if record.topic != topic:
                raise BadAnswer(f"{record.topic} came for {topic} without a handle")
            first = first_of.get(Place("0", record.queue_id))
            if first is None:
                raise BadAnswer(f"no first offset of queue {record.queue_id}")
            handle = Handle(
                topic, first, pop_time, invisible_ms, revive_queue, "0", broker, record.queue_id,
                record.queue_offset,
            )  # fmt: skip
        if (handle.queue_id, handle.offset) != (record.queue_id, record.queue_offset):
            raise BadAnswer(f"a handle of another message: {handle}")
        if handle.pop_time != pop_time or handle.broker != broker:
            raise BadAnswer(f"a handle of another pop: {handle}, not {pop_time}")
        if handle.offset < handle.first:
            raise BadAnswer(f"a message before the first one: {handle}")
        place = Place(handle.retry, handle.queue_id)
        found.setdefault(place, []).append(handle.offset)
        times = offset_times.get((place, handle.offset), queue_times.get(place, 0))
        messages.append(Popped(record, handle, max(times, record.redeliveries)))
    if told != found:
        raise BadAnswer(f"offsets {told} were told and {found} came")
    for offsets in found.values():
        if offsets != sorted(set(offsets)):
            raise BadAnswer(f"offsets are not in order: {offsets}")
    return Batch(
        SUCCESS, answer.remark or "", pop_time, invisible_ms, number(fields.get("restNum")),
        tuple(messages),
    )  # fmt: skip
