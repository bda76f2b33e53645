"""The at-least-once sink over whole batches: packed, numbered as they go, in order."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import inorder
from inorder.errors import CodeNotSupported, ConnectionLost, InorderError, ProducerUnknown
from inorder.model import ReceivedMessage
from inorder.net.blocking import BlockingConnection, BlockingProducer
from inorder.spark.cluster import Cluster
from inorder.spark.sink import packing
from inorder.spark.sink.options import parse
from inorder.spark.sink.sender import AHEAD_MAX, Sender
from inorder.spark.sink.service import send_rows
from inorder.sync import producer as blocking_producer
from inorder.wire.extensions import SOURCE
from inorder.wire.requests.sendframes import by_map
from tests.spark.jobkit import stored

pa = pytest.importorskip("pyarrow")

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema([
    ("body", pa.binary()), ("key", pa.string()), ("tag", pa.string()), ("keys", pa.string()),
    ("properties", pa.map_(pa.string(), pa.string())),
])  # fmt: skip


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "body": str(number).encode(), "key": f"k{number % 7}", "tag": "t" if number % 2 else None,
        "keys": "a b" if number % 3 else "",
        "properties": [("shop", "s1"), ("UNIQ_KEY", "no"), ("INORDER_SEQ", "9")], **more,
    }  # fmt: skip


def batch(first: int, end: int, **more: Any) -> Any:
    rows = [row(number, **more) for number in range(first, end)]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def send(namesrv: str, *batches: Any) -> None:
    given = {"namesrv": namesrv, "topic": "results", "delivery": "at-least-once"}
    send_rows(parse(given, list(batches[0].schema.names)), iter(batches))


@pytest.fixture
def results(namesrv: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a name server that knows the topic; no row may go through the producer.

    A group that never reads on keeps queues readable that a resize takes away.
    """
    with inorder.Admin(namesrv) as admin:
        admin.topics.create("results", queues=3)
    renewer = Cluster(namesrv, group="keeper")
    renewer.make_group()
    for queue in renewer.queues("results"):
        renewer.commit(queue, 0)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rows are packed, not sent one by one")

    monkeypatch.setattr(blocking_producer, "Producer", refuse)
    return namesrv


def numbers(found: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in found)


def check_once_in_order(namesrv: str, count: int) -> list[ReceivedMessage]:
    """Each row is there once; a key's rows ascend in a queue, and queues follow each other."""
    found = stored(namesrv, "results")
    assert numbers(found) == list(range(count))
    places: dict[str | None, dict[int, list[int]]] = {}
    for message in found:
        queues = places.setdefault(message.key, {})
        queues.setdefault(message.queue.index, []).append(int(message.body))
    for queues in places.values():
        runs = sorted(queues.values())
        joined = [number for run in runs for number in run]
        assert joined == sorted(joined)
    return found


def test_rows_are_stored_as_they_are(results: str) -> None:
    """Body, key, tag, words and properties; numbers from 0 on each queue, and no predecessor."""
    send(results, batch(0, 50), batch(50, 60))
    found = check_once_in_order(results, 60)
    first = next(message for message in found if message.body == b"1")
    assert (first.key, first.tag, first.properties["KEYS"]) == ("k1", "t", "a b")
    assert first.properties["shop"] == "s1"
    assert "INORDER_PREV" not in first.properties
    assert len({message.message_id for message in found}) == 60
    (producer,) = {message.properties["INORDER_PID"] for message in found}
    assert len(producer) == 16
    for message in found:
        assert message.properties["INORDER_SEQ"] == str(message.offset)


def test_a_repeated_task_stores_its_rows_again(results: str) -> None:
    """Nothing tells a repetition from new rows: that is what at-least-once means."""
    for _ in range(2):
        send(results, batch(0, 20))
    assert numbers(stored(results, "results")) == sorted([*range(20), *range(20)])


def test_rows_say_where_they_come_from(results: str) -> None:
    """If they have a source; a row without one says nothing."""
    rows = [
        {"body": b"0", "key": "k", "source_topic": "o", "source_broker": "b", "source_queue": 1,
         "source_offset": 17},
        {"body": b"1", "key": "k", "source_topic": None, "source_broker": None,
         "source_queue": None, "source_offset": None},
    ]  # fmt: skip
    send(results, pa.RecordBatch.from_pylist(rows))
    said = [message.properties.get(SOURCE) for message in stored(results, "results")]
    assert said == ["o|b|1|17", None]


def test_rows_without_a_key_spread(results: str) -> None:
    """Those of a source queue stay together; without a source each batch goes to the next queue."""
    send(results, *(batch(at, at + 5, key=None) for at in range(0, 30, 5)))
    found = stored(results, "results")
    assert numbers(found) == list(range(30))
    assert {queue.index for queue in {message.queue for message in found}} == {0, 1, 2}
    send(results, pa.RecordBatch.from_pylist(
        [{"body": b"%d" % at, "source_queue": at % 2} for at in range(30, 90)]
    ))  # fmt: skip
    placed = {
        (int(message.body) % 2, message.queue.index)
        for message in stored(results, "results")
        if int(message.body) >= 30
    }
    assert placed == {(0, 0), (1, 1)}


def test_a_topic_is_made_on_the_way(namesrv: str) -> None:
    """Rows may name their own topics; one that is not there yet is made, and nothing is doubled."""
    rows = [{**row(at), "topic": "even" if at % 2 == 0 else None} for at in range(40)]
    made = pa.RecordBatch.from_pylist(rows, SCHEMA.append(pa.field("topic", pa.string())))
    send(namesrv, made.slice(0, 10), made.slice(10), made.slice(0, 0))
    assert numbers(stored(namesrv, "even")) == list(range(0, 40, 2))
    assert numbers(stored(namesrv, "results")) == list(range(1, 40, 2))


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_are_asked_for(
    results: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Connections break, requests are refused, and the topic is resized: every row once."""
    chance, done, broken = Random(seed), [0, 0], [0]
    real_receive, real_send = BlockingConnection.receive, Sender._send_chunk
    monkeypatch.setattr(packing, "CHUNK_MESSAGES", 10)

    def receive(self: BlockingConnection, number: int) -> Any:
        answer = real_receive(self, number)
        if done[0] > 3 and chance.random() < 0.05 and broken[0] < 6:
            broken[0] += 1
            self.close()
            raise ConnectionLost("the test took the cable out")
        return answer

    def send_chunk(self: Sender, connection: Any, pending: Any, placed: bytes) -> Any:
        done[0] += 1
        if done[0] == 20 and seed % 2:
            with inorder.Admin(results) as admin:
                admin.topics.resize("results", queues=5)
        if done[0] in (7, 31):
            placed = by_map(99, "0")
        return real_send(self, connection, pending, placed)

    monkeypatch.setattr(BlockingConnection, "receive", receive)
    monkeypatch.setattr(Sender, "_send_chunk", send_chunk)
    send(results, *(batch(at, at + 100) for at in range(0, 600, 100)))
    monkeypatch.undo()
    assert broken[0]
    check_once_in_order(results, 600)


def test_a_forgotten_id_begins_again(results: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker says that it knows nothing of the task any more: the rest is sent all the same."""
    real, calls = BlockingConnection.receive, [0]

    def receive(self: BlockingConnection, number: int) -> Any:
        answer = real(self, number)
        calls[0] += 1
        if calls[0] == 6:
            raise ProducerUnknown("it was long ago")
        return answer

    monkeypatch.setattr(BlockingConnection, "receive", receive)
    monkeypatch.setattr(packing, "CHUNK_MESSAGES", 10)
    send(results, batch(0, 100))
    check_once_in_order(results, 100)


def test_a_broker_without_numbers_gets_none(results: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apache RocketMQ: a queue has one request at a time, what is in doubt is stored again."""

    def hello(_: BlockingProducer) -> None:
        raise CodeNotSupported("request type 7000 not supported")

    real_send, real_receive = Sender._send_chunk, BlockingConnection.receive
    most, lost = [0], [0]

    def send_chunk(self: Sender, connection: Any, pending: Any, placed: bytes) -> Any:
        waiting = [sent.indexes for sent in self._open]
        most[0] = max(most[0], len(waiting) + 1)
        return real_send(self, connection, pending, placed)

    def receive(self: BlockingConnection, number: int) -> Any:
        answer = real_receive(self, number)
        lost[0] += 1
        if lost[0] == 8:
            self.close()
            raise ConnectionLost("the test took the cable out")
        return answer

    monkeypatch.setattr(BlockingProducer, "hello", hello)
    monkeypatch.setattr(Sender, "_send_chunk", send_chunk)
    monkeypatch.setattr(BlockingConnection, "receive", receive)
    monkeypatch.setattr(packing, "CHUNK_MESSAGES", 10)
    send(results, batch(0, 100), batch(100, 200))
    found = stored(results, "results")
    assert set(numbers(found)) == set(range(200))
    assert 200 < len(found) <= 230, "the request whose answer was lost, and those beside it"
    assert most[0] <= 3 < AHEAD_MAX
    assert not any("INORDER_PID" in message.properties for message in found)
    first: dict[str | None, int] = {}
    seen: set[bytes] = set()
    for message in found:  # order is judged on the first copy
        if message.body not in seen:
            assert int(message.body) > first.get(message.key, -1)
            first[message.key] = int(message.body)
            seen.add(message.body)
    ids = [(message.message_id, message.body) for message in found]
    assert len(set(ids)) == 200, "a copy has the id of the first"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"body": None}, "has no body"),
        ({"body": b""}, "has no body"),
        ({"key": "a\x01b"}, "the column key has a value"),
        ({"properties": [("a", "")]}, "must not be empty"),
    ],
)
def test_what_cannot_be_sent_is_refused(results: str, change: dict[str, Any], says: str) -> None:
    """With the reason; nothing of the batch is stored."""
    made = pa.RecordBatch.from_pylist([row(1), {**row(2), **change}], schema=SCHEMA)
    with pytest.raises(InorderError, match=says):
        send(results, made)
    assert stored(results, "results") == []
