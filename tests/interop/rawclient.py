"""A broker as its own bytes show it: sends, pulls and look-ups, and records split by hand.

Built on `bench.remoting`, not on inorder's codec: what is compared here must not be read by the
code under test.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from bench.remoting import Answer, Connection, RemotingError

PULL_MESSAGE = 11
QUERY_MESSAGE = 12
QUERY_CONSUMER_OFFSET = 14
UPDATE_CONSUMER_OFFSET = 15
CREATE_TOPIC = 17
GET_ALL_TOPIC_CONFIG = 21
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
VIEW_MESSAGE_BY_ID = 33
GET_ROUTE = 105
GET_CLUSTER_INFO = 106
UPDATE_GROUP = 200
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320

SUBSCRIPTION_IN_REQUEST = 4
FOUND = 0
NOT_FOUND = 19
QUERY_NOT_FOUND = 22
FOR_EVER_MS = 4_000_000_000_000


class Stored(NamedTuple):
    """What a send answer says."""

    message_id: str
    queue_id: int
    queue_offset: int


class BatchItem(NamedTuple):
    """One message of a batch."""

    body: bytes
    properties: dict[str, str]


class RawClient(Connection):
    """One connection to a broker, with the requests that the tests need."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic as the admin tool does."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "perm": 6, "topicSysFlag": 0}
        fields |= {"readQueueNums": queues, "writeQueueNums": queues, "order": False}
        self.call(CREATE_TOPIC, fields | {"topicFilterType": "SINGLE_TAG"})

    def create_group(self, group: str) -> None:
        """Create a consumer group with the defaults of the admin tool."""
        body: dict[str, Any] = {"groupName": group, "consumeEnable": True, "retryQueueNums": 1}
        body |= {"consumeFromMinEnable": True, "consumeBroadcastEnable": True, "brokerId": 0}
        body |= {"retryMaxTimes": 16, "whichBrokerWhenConsumeSlowly": 1}
        self.call(UPDATE_GROUP, body=json.dumps(body).encode())

    def send_message(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        *,
        flag: int = 0,
        sys_flag: int = 0,
    ) -> Stored:
        """Send one message with code 310."""
        fields = _send_fields(topic, queue_id, properties, flag=flag, sys_flag=sys_flag)
        return _stored(self.call(SEND_MESSAGE_V2, fields | {"m": False}, body))

    def send_batch(self, topic: str, queue_id: int, items: Iterable[BatchItem]) -> Stored:
        """Send several messages with code 320."""
        body = b"".join(_batch_item(item) for item in items)
        fields = _send_fields(topic, queue_id, {}, flag=0, sys_flag=0)
        del fields["i"]
        return _stored(self.call(SEND_BATCH_MESSAGE, fields | {"m": True}, body))

    def pull(self, topic: str, queue_id: int, offset: int, *, count: int = 32) -> Answer:
        """Pull at an offset, without waiting for messages to come."""
        fields = {"consumerGroup": "interop_reader", "topic": topic, "queueId": queue_id}
        fields |= {"queueOffset": offset, "maxMsgNums": count, "sysFlag": SUBSCRIPTION_IN_REQUEST}
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*"}
        return self.request(PULL_MESSAGE, fields | {"subVersion": 0, "expressionType": "TAG"})

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue."""
        answer = self.call(GET_MIN_OFFSET, {"topic": topic, "queueId": queue_id})
        return int(answer.fields["offset"])

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last offset of a queue."""
        answer = self.call(GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
        return int(answer.fields["offset"])

    def read_queue(self, topic: str, queue_id: int) -> list[bytes]:
        """Return every record of a queue, from its first offset to its last, byte for byte."""
        offset, records = self.min_offset(topic, queue_id), list[bytes]()
        end = self.max_offset(topic, queue_id)
        while offset < end:
            answer = self.pull(topic, queue_id, offset)
            if answer.code != FOUND:
                raise RemotingError(f"pull of {topic}/{queue_id} at {offset}: {answer}")
            found = split_records(answer.body)
            offsets = [queue_offset_of(record) for record in found]
            if offsets != list(range(offset, int(answer.fields["nextBeginOffset"]))):
                raise RemotingError(f"pull of {topic}/{queue_id} at {offset} gave {offsets}")
            records += found
            offset += len(found)
        return records

    def query(self, topic: str, key: str, *, unique: bool = False) -> set[bytes]:
        """Return the records that the key index finds; hashes may clash, so keys are not judged."""
        fields = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0}
        fields |= {"endTimestamp": FOR_EVER_MS, "_UNIQUE_KEY_QUERY": unique}
        answer = self.request(QUERY_MESSAGE, fields)
        if answer.code not in (FOUND, QUERY_NOT_FOUND):
            raise RemotingError(f"query of {topic} {key}: {answer}")
        return set(split_records(answer.body))

    def view(self, position: int) -> bytes:
        """Return the record at a position of the log."""
        return self.call(VIEW_MESSAGE_BY_ID, {"offset": position}).body

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store the progress of a group."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        self.call(UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": offset})

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the progress of a group, None if there is none."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = self.request(QUERY_CONSUMER_OFFSET, fields | {"setZeroIfNotFound": False})
        return int(answer.fields["offset"]) if answer.code == 0 else None

    def wait_committed(
        self, group: str, topic: str, wanted: list[int], *, within_s: float = 10.0
    ) -> None:
        """Poll until queues 0, 1, … are committed so far: clients do it without an answer."""
        deadline = time.monotonic() + within_s
        while True:
            found = [self.committed(group, topic, queue) for queue in range(len(wanted))]
            if found == wanted:
                return
            assert time.monotonic() < deadline, f"committed {found}, not {wanted}"
            time.sleep(0.05)

    def topic_queues(self) -> dict[str, tuple[int, int, int]]:
        """Return (read queues, write queues, permission) of every topic."""
        table = bean(self.call(GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
        return {
            name: (config["readQueueNums"], config["writeQueueNums"], config["perm"])
            for name, config in table.items()
        }


def bean(body: bytes) -> Any:
    """Read JSON as fastjson writes it: map keys that are numbers come without quotes."""
    return json.loads(re.sub(r"([{,])(-?\d+):", r'\1"\2":', body.decode()))


def split_records(body: bytes) -> list[bytes]:
    """Split concatenated records by their sizes."""
    records, at = [], 0
    while at < len(body):
        size = struct.unpack_from(">i", body, at)[0]
        if size < 91 or at + size > len(body):
            raise RemotingError(f"record of {size} bytes at {at} of {len(body)}")
        records.append(body[at : at + size])
        at += size
    return records


def queue_offset_of(record: bytes) -> int:
    """Return the logical offset written in a record."""
    return int(struct.unpack_from(">q", record, 20)[0])


def position_of(record: bytes) -> int:
    """Return the log position written in a record."""
    return int(struct.unpack_from(">q", record, 28)[0])


def body_of(record: bytes) -> bytes:
    """Return the body of a record with IPv4 hosts."""
    size = struct.unpack_from(">i", record, 84)[0]
    return record[88 : 88 + size]


def _send_fields(
    topic: str, queue_id: int, properties: dict[str, str], *, flag: int, sys_flag: int
) -> dict[str, Any]:
    return {
        "a": "interop_producer",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": sys_flag,
        "g": int(time.time() * 1000),
        "h": flag,
        "i": _properties(properties),
        "j": 0,
        "k": False,
        "n": "broker-a",
    }


def _properties(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def _batch_item(item: BatchItem) -> bytes:
    properties = _properties(item.properties).encode()
    size = 22 + len(item.body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, len(item.body))
    return head + item.body + struct.pack(">h", len(properties)) + properties


def _stored(answer: Answer) -> Stored:
    fields = answer.fields
    return Stored(fields["msgId"], int(fields["queueId"]), int(fields["queueOffset"]))
