"""What a conversation takes for granted: topics, groups, messages and offsets of before.

It is derived from the answers in the capture. Before a whole conversation each queue gets as many
messages as it must have had, with the contents that later answers show. A trimmed one lacks part of
its own traffic, so there the queues also grow on the way, just before the request whose answer
shows that they had grown.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from inorder.wire import fastjson
from inorder.wire.header import Command
from inorder.wire.properties import format_properties
from inorder.wire.properties import parse as parse_properties
from inorder.wire.record import Record
from inorder.wire.requests.sends import BatchItem, encode_batch
from tests.golden.replay.capture import BROKER, NAMESRV, Conversation, Row, records_of

Queue = tuple[str, int]

PULLS = frozenset((11, 361))
SENDS = frozenset((10, 310, 320))
SUSPEND = 2

_SPECIAL = ("DELAY", "TRAN_MSG", "INNER_NUM", "INNER_MULTI_DISPATCH", "POP_CK")
# The broker adds these when it stores a message.
_ADDED = frozenset(("MSG_REGION", "TRACE_ON", "CLUSTER"))
_TRANSACTION_BITS = 0xC
_PULL_STATUSES = frozenset((0, 19, 20, 21))


@dataclass(slots=True)
class Past:
    """What there was before the first frame."""

    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    lengths: dict[Queue, int] = field(default_factory=dict)
    records: dict[tuple[str, int, int], Record] = field(default_factory=dict)


def past_of(conversation: Conversation) -> Past:
    """Derive the state that a conversation starts from."""
    past = Past()
    for one in conversation.records():
        past.records.setdefault((one.topic, one.queue_id, one.queue_offset), one)
    past.topics.update(_topics(conversation))
    _tables(conversation, past)
    if conversation.whole:
        past.lengths.update(_lengths(conversation))
        past.offsets.update(_offsets(conversation))
    return past


def send_target(command: Command) -> Queue:
    """Return the topic and queue that a send names."""
    fields = command.fields
    if command.code == 10:
        return fields.get("topic", ""), int(fields.get("queueId", "0"))
    return fields.get("b", ""), int(fields.get("e", "0"))


def is_plain_send(command: Command) -> bool:
    """Tell whether a send goes straight to its topic: no delay, timer or transaction."""
    fields = command.fields
    if int(fields.get("f") or fields.get("sysFlag") or 0) & _TRANSACTION_BITS:
        return False
    found = parse_properties(fields.get("i") or fields.get("properties") or "")
    return not _is_special(found)


def _is_special(found: dict[str, str]) -> bool:
    return any(name in _SPECIAL or name.startswith("TIMER_") for name in found)


def plain_properties(raw: bytes) -> str:
    """Return the properties of a stored message as its sender may have sent them."""
    found = {
        name: value
        for name, value in parse_properties(raw).items()
        if name not in _ADDED and name not in _SPECIAL and not name.startswith("TIMER_")
    }
    return format_properties(found)


def topic_of_route(answer: Command) -> dict[str, Any] | None:
    """Return the topic config that a route answer shows."""
    if answer.code != 0 or not answer.body:
        return None
    data = fastjson.loads(bytes(answer.body))["queueDatas"][0]
    return {
        "readQueueNums": data["readQueueNums"],
        "writeQueueNums": data["writeQueueNums"],
        "perm": data["perm"],
        "topicSysFlag": data.get("topicSysFlag", 0),
        "order": False,
    }


def _topics(conversation: Conversation) -> dict[str, dict[str, Any]]:
    """Return the topics that the first question about them finds."""
    asked: set[str] = set()
    found: dict[str, dict[str, Any]] = {}
    for request, answer in conversation.answered():
        code, fields = request.command.code, request.command.fields
        if request.command.code == 17:
            asked.add(fields.get("topic", ""))
        if code in SENDS and answer.command.code == 0:
            asked.add(send_target(request.command)[0])
        if code not in (105, 208, 351) or fields.get("topic", "") in ("", *asked):
            continue
        asked.add(fields.get("topic", ""))
        config: dict[str, Any] | None
        if code == 208:
            queues = len(_queue_table(answer.command))
            config = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "order": False}
        elif code == 105:
            config = topic_of_route(answer.command)
        else:
            ok = answer.command.code == 0
            config = fastjson.loads(bytes(answer.command.body)) if ok else None
        if config is not None:
            found[fields["topic"]] = config
    return found


def _tables(conversation: Conversation, past: Past) -> None:
    """Take over whole tables, except what the conversation itself names and so may have made."""
    named = _named(conversation)
    known: set[str] | None = None
    for request, answer in conversation.answered():
        command = answer.command
        if command.code != 0 or not command.body:
            continue
        if request.command.code == 206 and known is None:
            known = set(fastjson.loads(bytes(command.body))["topicList"])
        elif request.command.code == 21:
            table = fastjson.loads(bytes(command.body))["topicConfigTable"]
            for name, config in table.items():
                if name in known if known is not None else name not in named:
                    past.topics.setdefault(name, config)
        elif request.command.code == 201:
            table = fastjson.loads(bytes(command.body))["subscriptionGroupTable"]
            past.groups.update((k, v) for k, v in table.items() if k and k not in named)
        elif request.command.code == 43:
            table = fastjson.loads(bytes(command.body))["offsetTable"]
            for pair, offsets in table.items():
                topic, _, group = pair.partition("@")
                if group not in named:
                    past.offsets.update(((topic, group, q), n) for q, n in offsets.items())


def _named(conversation: Conversation) -> set[str]:
    """Return all words that requests carry in fields that name a group or topic."""
    names = ("consumerGroup", "group", "groupName", "topic", "b", "srcGroup", "destGroup")
    found: set[str] = set()
    for row in conversation.rows:
        if row.is_request:
            found.update(row.command.fields.get(name, "") for name in names)
            if row.command.code == 200:
                found.add(fastjson.loads(bytes(row.command.body)).get("groupName", ""))
    return found


def _lengths(conversation: Conversation) -> dict[Queue, int]:
    """Return how long each queue was at the start, by the first answer that tells."""
    sent: defaultdict[Queue, int] = defaultdict(int)
    lengths: dict[Queue, int] = {}

    def learn(queue: Queue, length: int) -> None:
        lengths.setdefault(queue, max(0, length - sent[queue]))

    for row in conversation.rows:
        if not row.is_request:
            continue
        command, fields = row.command, row.command.fields
        answer = conversation.by_seq[row.pair].command if row.pair is not None else None
        if command.code in SENDS and is_plain_send(command):
            if answer is None:
                sent[send_target(command)] += 1
            elif answer.code == 0:
                queue = _stored_under(command), int(answer.fields["queueId"])
                learn(queue, int(answer.fields["queueOffset"]))
                sent[queue] += answer.fields["msgId"].count(",") + 1
        elif answer is None:
            continue
        elif command.code in PULLS and answer.code in _PULL_STATUSES:
            learn((fields["topic"], int(fields["queueId"])), int(answer.fields["maxOffset"]))
        elif command.code == 30 and answer.code == 0:
            learn((fields["topic"], int(fields["queueId"])), int(answer.fields["offset"]))
        elif command.code in (202, 208) and answer.code == 0:
            for named, item in _queue_table(answer):
                length = item["maxOffset" if command.code == 202 else "brokerOffset"]
                learn((named["topic"], named["queueId"]), length)
    return {queue: length for queue, length in lengths.items() if length}


def _stored_under(command: Command) -> str:
    """Return the topic that a send is stored under: after the last retry, the dead letters."""
    topic, fields = send_target(command)[0], command.fields
    if topic.startswith("%RETRY%") and int(fields.get("j", "0")) > int(fields.get("l", "16")):
        return "%DLQ%" + topic.removeprefix("%RETRY%")
    return topic


def _offsets(conversation: Conversation) -> dict[tuple[str, str, int], int]:
    """Return the consumer offsets that were there before anything was committed."""
    seen: set[tuple[str, str, int]] = set()
    found: dict[tuple[str, str, int], int] = {}
    for row in conversation.rows:
        fields = row.command.fields
        if row.is_request and row.command.code == 208 and row.pair is not None:
            for named, item in _queue_table(conversation.by_seq[row.pair].command):
                key = named["topic"], fields["consumerGroup"], named["queueId"]
                if item["consumerOffset"] and key not in seen:
                    found.setdefault(key, item["consumerOffset"])
        if not row.is_request or row.command.code not in (14, 15, 222) or "queueId" not in fields:
            continue
        key = fields["topic"], fields["consumerGroup"], int(fields["queueId"])
        if row.command.code == 14 and key not in seen and row.pair is not None:
            answer = conversation.by_seq[row.pair].command
            if answer.code == 0 and answer.fields["offset"] != "0":
                found[key] = int(answer.fields["offset"])
        seen.add(key)
    return found


def _queue_table(answer: Command) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the queues of an answer that has them as keys, with what is said of each."""
    table = fastjson.loads(bytes(answer.body))["offsetTable"]
    return [(dict(key), item) for key, item in table.items()]


class Hands:
    """Bring servers into a state, by requests of its own on connections of its own."""

    def __init__(self, ask: Any, past: Past, *, whole: bool, before_ms: int) -> None:
        self._ask = ask
        self._past = past
        self._whole = whole
        self._before_ms = before_ms
        self.positions: dict[int, tuple[int, int]] = {}
        """Captured position of a record: our position, and size of the captured record."""

    async def prepare(self) -> None:
        """Make the past."""
        for name, config in self._past.topics.items():
            await self._topic(name, config)
        for config in self._past.groups.values():
            await self._ask(BROKER, 200, {}, fastjson.dumps(config))
        known = sorted(
            (
                one
                for key, one in self._past.records.items()
                if one.queue_offset < self._past.lengths.get(key[:2], 0)
            ),
            key=lambda one: one.position,
        )
        for one in known:
            await self.grow((one.topic, one.queue_id), one.queue_offset + 1, at_ms=one.stored_at_ms)
        for queue, length in self._past.lengths.items():
            await self.grow(queue, length)
        for (topic, group, queue_id), offset in self._past.offsets.items():
            await self.commit(topic, group, queue_id, offset)

    async def before_request(self, request: Row, answer: Row | None) -> None:
        """Add to a trimmed conversation's state what this answer needs."""
        if self._whole or answer is None:
            return
        command, fields, reply = request.command, request.command.fields, answer.command
        code = command.code
        if code == 105 and fields.get("topic"):
            config = topic_of_route(reply)
            if config is not None and not await self._exists(fields["topic"]):
                await self._topic(fields["topic"], config)
        elif code in PULLS and reply.code in _PULL_STATUSES:
            await self._before_pull(fields, reply)
        elif code == 14 and reply.code == 0:
            await self.commit(
                fields["topic"],
                fields["consumerGroup"],
                int(fields["queueId"]),
                int(reply.fields["offset"]),
            )
        elif code == 222 and reply.code == 0:
            group = fastjson.dumps({"groupName": fields["group"]})
            await self._ask(BROKER, 200, {}, group)
        elif code in (12, 33):
            for one in records_of(code, reply):
                await self._need_queue(one.topic, one.queue_id)
                await self.grow((one.topic, one.queue_id), one.queue_offset + 1)

    async def _before_pull(self, fields: dict[str, str], reply: Command) -> None:
        queue = fields["topic"], int(fields["queueId"])
        await self._need_queue(*queue)
        length = int(reply.fields["maxOffset"])
        if reply.code == 0 and int(fields["sysFlag"]) & SUSPEND:
            begin = int(fields["queueOffset"])
            examines = fields.get("expressionType") == "SQL92" and await self._length(queue) > begin
            if not examines:  # what is there does not match: it is not held
                length = min(length, begin)  # the rest comes while it is held
        await self.grow(queue, length)

    async def before_answer(self, request: Row, answer: Row) -> None:
        """Let arrive what a held pull of a trimmed conversation was woken by."""
        if not self._whole and answer.command.code == 0 and request.command.code in PULLS:
            fields = request.command.fields
            await self.grow(
                (fields["topic"], int(fields["queueId"])), int(answer.command.fields["maxOffset"])
            )

    async def grow(self, queue: Queue, length: int, *, at_ms: int | None = None) -> None:
        """Send messages until a queue is as long as given; unknown ones as of `at_ms`."""
        topic, queue_id = queue
        for offset in range(await self._length(queue), length):
            await self._send(topic, queue_id, offset, at_ms or self._before_ms)

    async def _length(self, queue: Queue) -> int:
        topic, queue_id = queue
        reply = await self._ask(BROKER, 30, {"topic": topic, "queueId": str(queue_id)})
        return int(reply.fields["offset"])

    async def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Commit an offset of a group, which is made if need be."""
        fields = {
            "topic": topic,
            "consumerGroup": group,
            "queueId": str(queue_id),
            "commitOffset": str(offset),
        }
        reply = await self._ask(BROKER, 15, fields)
        if reply.code == 26:
            await self._ask(BROKER, 200, {}, fastjson.dumps({"groupName": group}))
            await self._ask(BROKER, 15, fields)

    async def _send(self, topic: str, queue_id: int, offset: int, at_ms: int) -> None:
        one = self._past.records.get((topic, queue_id, offset))
        if one is None:
            one = Record(
                topic, queue_id, offset, -1, b"before the capture", b"TAGS\x01BeforeTheCapture\x02"
            )
        properties = plain_properties(one.properties)
        fields = {
            "a": "BEFORE_THE_CAPTURE",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": str(one.sys_flag & ~_TRANSACTION_BITS),
            "g": str(one.born_at_ms),
            "h": str(one.flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
        }
        body = one.body
        if "UNIQ_KEY" not in properties:  # only in a batch does a message go without
            body = encode_batch([BatchItem(one.flag, body, properties.encode())])
            fields.update(i="", m="true")
        reply = await self._ask(BROKER, 310, fields, body, at_ms=one.stored_at_ms or at_ms)
        if reply.code != 0:
            raise AssertionError(f"cannot bring {topic}/{queue_id} to {offset}: {reply}")
        if one.position >= 0:
            self.positions[one.position] = position_of(reply.fields["msgId"]), one.size

    async def _need_queue(self, topic: str, queue_id: int) -> None:
        if not await self._exists(topic):
            queues = 1 + max([queue_id, *(key[1] for key in self._past.records if key[0] == topic)])
            await self._topic(topic, {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6})

    async def _exists(self, topic: str) -> bool:
        return bool((await self._ask(NAMESRV, 105, {"topic": topic})).code == 0)

    async def _topic(self, name: str, config: dict[str, Any]) -> None:
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(config["readQueueNums"]),
            "writeQueueNums": str(config["writeQueueNums"]),
            "perm": str(config["perm"]),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": str(config.get("topicSysFlag", 0)),
            "order": "true" if config.get("order") else "false",
        }
        attributes = config.get("attributes") or {}
        if attributes:
            fields["attributes"] = ",".join(f"+{k}={v}" for k, v in attributes.items())
        reply = await self._ask(BROKER, 17, fields)
        # 29: one of the broker's own, which is there anyway.
        if reply.code not in (0, 29):
            raise AssertionError(f"cannot make topic {name}: {reply}")


def position_of(message_id: str) -> int:
    """Return the position in the last eight bytes of a message id."""
    with contextlib.suppress(ValueError):
        return int(message_id[-16:], 16)
    return -1
