"""The exactly-once sink over whole batches: what is stored, once, in order, whatever fails."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import inorder
from inorder.errors import ConnectionLost, InorderError, TopicNotRouted
from inorder.net.blocking import BlockingConnection
from inorder.spark.cluster import Cluster
from inorder.spark.sink import packing
from inorder.spark.sink.options import parse
from inorder.spark.sink.sender import AHEAD_MAX, Sender
from inorder.spark.sink.service import OutOfOrder, send_rows
from inorder.wire.requests.producers import ProducerState
from inorder.wire.requests.sendframes import by_map
from inorder.wire.requests.sends import decode_batch
from tests.spark.jobkit import stored

pa = pytest.importorskip("pyarrow")

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema([
    ("body", pa.binary()), ("key", pa.string()), ("tag", pa.string()), ("keys", pa.string()),
    ("properties", pa.map_(pa.string(), pa.string())), ("source_topic", pa.string()),
    ("source_broker", pa.string()), ("source_queue", pa.int32()), ("source_offset", pa.int64()),
])  # fmt: skip


def row(offset: int, *, queue: int = 0, body: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "body": (f"{queue}.{offset}" if body is None else body).encode(), "key": f"k{offset % 7}",
        "tag": "t" if offset % 2 else None, "keys": "a b" if offset % 3 else "",
        "properties": [("shop", "s1"), ("UNIQ_KEY", "no"), ("INORDER_SEQ", "9")],
        "source_topic": "orders", "source_broker": "broker-a", "source_queue": queue,
        "source_offset": offset, **more,
    }  # fmt: skip


def batch(rows: list[dict[str, Any]]) -> Any:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def send(namesrv: str, *batches: Any, **options: str) -> None:
    given = {"namesrv": namesrv, "topic": "results", "sinkId": "copy", **options}
    send_rows(parse(given, list(batches[0].schema.names)), iter(batches))


@pytest.fixture
def results(namesrv: str) -> str:
    """Return a name server that knows the topic of the results.

    A group that never reads on keeps queues readable that a resize takes away.
    """
    with inorder.Admin(namesrv) as admin:
        admin.topics.create("results", queues=3)
    renewer = Cluster(namesrv, group="keeper")
    renewer.make_group()
    for queue in renewer.queues("results"):
        renewer.commit(queue, 0)
    return namesrv


def bodies(namesrv: str, topic: str = "results") -> list[str]:
    return sorted(message.body.decode() for message in stored(namesrv, topic))


def test_rows_are_stored_as_they_are(results: str) -> None:
    """Body, key, tag, words and properties, as a producer would have sent them."""
    send(results, batch([row(5), row(6)]))
    first, second = sorted(stored(results, "results"), key=lambda message: message.body)
    assert (first.body, first.key, first.tag) == (b"0.5", "k5", "t")
    assert (second.key, second.tag, second.properties.get("KEYS")) == ("k6", None, None)
    assert first.properties["KEYS"] == "a b"
    assert first.properties["shop"] == "s1"
    assert first.properties["INORDER_PID"] == "spark:copy:orders:broker-a:0"
    assert first.properties["INORDER_SEQ"] == str(5 << 20)
    assert len(first.message_id) == 32
    assert first.message_id != second.message_id


def test_a_task_that_is_repeated_sends_what_is_missing(results: str) -> None:
    """Whatever the batches are: rows of several queues, several of one message, in any cut."""
    rows = [row(at, queue=queue, body=f"{queue}.{at}.{part}")
            for at in range(300) for queue in (0, 1)
            for part in range(1 + (at % 50 == 0))]  # fmt: skip
    half = rows[:217]
    send(results, batch(half))
    for cut in (1, 100, 400):
        send(results, *(batch(rows[at : at + cut]) for at in range(0, len(rows), cut)))
    found = stored(results, "results")
    assert sorted(message.body.decode() for message in found) == sorted(
        one["body"].decode() for one in rows
    )
    last: dict[tuple[str | None, str], tuple[int, ...]] = {}
    for message in found:
        queue, *place = message.body.decode().split(".")
        key = (message.key, queue)
        assert tuple(map(int, place)) > last.get(key, (-1,))
        last[key] = tuple(map(int, place))


def test_large_batches_are_cut(results: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests hold so many messages and bytes at most; a row larger than that goes alone."""
    monkeypatch.setattr(packing, "CHUNK_BYTES", 2000)
    rows = [row(at, body="x" * (at * 37 % 900 + 1) + f".{at}") for at in range(200)]
    rows[50]["body"] = b"y" * 5000
    send(results, batch(rows))
    assert bodies(results) == sorted(one["body"].decode() for one in rows)


def test_a_lost_answer_is_asked_for(results: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks behind a request: what it stored is not sent again."""
    real, calls = BlockingConnection.receive, [0]

    def receive(self: BlockingConnection, number: int) -> Any:
        answer = real(self, number)
        calls[0] += 1
        if calls[0] in (9, 14, 15):
            self.close()
            raise ConnectionLost("the test took the cable out")
        return answer

    monkeypatch.setattr(BlockingConnection, "receive", receive)
    monkeypatch.setattr(packing, "CHUNK_MESSAGES", 20)
    rows = [row(at) for at in range(200)]
    send(results, batch(rows))
    assert calls[0] > 15
    assert bodies(results) == sorted(f"0.{at}" for at in range(200))


def refuse_one(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let the broker refuse the n-th request; return where requests are counted."""
    real, calls = Sender._send_chunk, [0]

    def send_chunk(self: Sender, connection: Any, pending: Any, placed: bytes) -> Any:
        calls[0] += 1
        return real(self, connection, pending, by_map(99, "0") if calls[0] == number else placed)

    monkeypatch.setattr(Sender, "_send_chunk", send_chunk)
    return calls


def test_requests_behind_one_that_failed_are_refused(
    results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were sent ahead; none is stored before the rows of the failed one, all of them after."""
    calls = refuse_one(monkeypatch, 3)
    monkeypatch.setattr(packing, "CHUNK_MESSAGES", 10)
    send(results, *(batch([row(at, key="k") for at in range(at, at + 50)])
                    for at in range(0, 200, 50)))  # fmt: skip
    assert calls[0] > 20, "those of the first try and those of the second"
    assert [message.body for message in stored(results, "results")] == [
        b"0.%d" % at for at in range(200)
    ]


def test_a_task_ends_when_its_last_rows_are_stored(
    results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its last request is a refusal: it is noticed, and the rows are sent again."""
    calls = refuse_one(monkeypatch, 1)
    send(results, batch([row(at, key="k") for at in range(5)]))
    assert calls[0] == 2
    assert bodies(results) == [f"0.{at}" for at in range(5)]


def test_a_broker_that_is_not_in_the_routes_yet_is_waited_for(
    results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came back a moment ago; the topic is known and its rows are sent again there."""
    refuse_one(monkeypatch, 1)
    real, calls = Sender._the_targets, [0]

    def the_targets(self: Sender, topic: str, *, anew: bool = False) -> Any:
        calls[0] += anew
        if anew and calls[0] == 1:
            raise TopicNotRouted("nobody knows it")
        return real(self, topic, anew=anew)

    monkeypatch.setattr(Sender, "_the_targets", the_targets)
    send(results, batch([row(at) for at in range(5)]))
    assert calls[0] == 2
    assert bodies(results) == [f"0.{at}" for at in range(5)]


def test_so_many_requests_go_ahead_and_no_more(
    results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task does not wait for each answer, and what it has sent without one is bounded."""
    real, most = Sender._send_chunk, [0]

    def send_chunk(self: Sender, connection: Any, pending: Any, placed: bytes) -> Any:
        most[0] = max(most[0], len(self._open) + 1)
        return real(self, connection, pending, placed)

    monkeypatch.setattr(Sender, "_send_chunk", send_chunk)
    monkeypatch.setattr(packing, "CHUNK_MESSAGES", 3)
    send(results, *(batch([row(at) for at in range(at, at + 100)]) for at in range(0, 300, 100)))
    assert most == [AHEAD_MAX]
    assert bodies(results) == sorted(f"0.{at}" for at in range(300))


def test_an_older_attempt_is_shut_out(results: str) -> None:
    """Who said hello later has the name; the attempt before it cannot store anything."""
    from inorder.errors import ProducerStale
    from inorder.spark.sink.sender import PackedSink

    options = parse({"namesrv": results, "topic": "results", "sinkId": "copy"}, list(SCHEMA.names))
    old, new = PackedSink(options), PackedSink(options)
    assert list(old.send(batch([row(0)]))) == []
    old.finish()
    assert list(new.send(batch([row(0), row(1)]))) == []
    new.finish()
    with pytest.raises(ProducerStale):
        list(old.send(batch([row(1), row(2)])))
        old.finish()
    old.close()
    new.close()
    assert bodies(results) == ["0.0", "0.1"]


def test_a_topic_is_made_on_the_way(namesrv: str) -> None:
    """Rows may name their own topics; one that is not there yet is made, and nothing is doubled."""
    schema = SCHEMA.append(pa.field("topic", pa.string()))
    rows = [{**row(at), "topic": "even" if at % 2 == 0 else None} for at in range(40)]
    made = pa.RecordBatch.from_pylist(rows, schema=schema)
    for _ in range(2):
        send(namesrv, made, made.slice(0, 0))
    assert bodies(namesrv, "even") == sorted(f"0.{at}" for at in range(0, 40, 2))
    assert bodies(namesrv) == sorted(f"0.{at}" for at in range(1, 40, 2))


def test_numbers_of_the_users_own(results: str) -> None:
    """`producer` and `sequence` instead of lineage; repeated numbers are not stored again."""
    rows = [{"body": f"{at}".encode(), "key": f"k{at % 3}", "producer": f"p{at % 2}",
             "sequence": at} for at in range(50)]  # fmt: skip
    made = pa.RecordBatch.from_pylist(rows)
    send(results, made)
    send(results, made)
    assert bodies(results) == sorted(str(at) for at in range(50))
    with pytest.raises(OutOfOrder, match="not in the order of their source"):
        send(results, made, made)


def test_some_rows_have_numbers_and_some_a_place(results: str) -> None:
    """Rows with numbers of their own use them, the others the place that they come from."""
    schema = SCHEMA.append(pa.field("producer", pa.string())).append(
        pa.field("sequence", pa.int64())
    )
    rows = [{**row(at), "producer": "p" if at % 2 else None, "sequence": at if at % 2 else None}
            for at in range(20)]  # fmt: skip
    made = pa.RecordBatch.from_pylist(rows, schema=schema)
    send(results, made)
    send(results, made)
    found = stored(results, "results")
    assert len(found) == 20
    assert {m.properties["INORDER_PID"] for m in found} == {"p", "spark:copy:orders:broker-a:0"}
    assert all(m.properties["inorder_source"].startswith("orders|broker-a|0|") for m in found)


def send_partly(namesrv: str, rows: list[dict[str, Any]], most: dict[int, int]) -> None:
    """Send rows as a task that dies: of some queues only the first rows are stored, or none."""
    real = Sender._settle

    def settle(self: Sender, *given: Any, **more: Any) -> Any:
        lanes = real(self, *given, **more)
        for lane in lanes:
            lane.rows = lane.rows[: most.get(lane.queue.index, len(lane.rows))]
        return [lane for lane in lanes if len(lane.rows)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "_settle", settle)
        send(namesrv, batch(rows))


def resize(namesrv: str, queues: int) -> None:
    with inorder.Admin(namesrv) as admin:
        admin.topics.resize("results", queues=queues)


def check_results(namesrv: str, count: int) -> None:
    """All rows are there once, and those of a key in the order in which consumers get them."""
    found = stored(namesrv, "results")
    assert sorted(int(m.body.split(b".")[1]) for m in found) == list(range(count))
    by_key: dict[str, list[tuple[int, int, int]]] = {}
    for message in found:
        producer = message.properties["INORDER_PID"]
        version = int(producer.partition("@")[2] or 1)
        place = (version, message.offset, int(message.body.split(b".")[1]))
        by_key.setdefault(message.key or f"of {producer.partition('@')[0]}", []).append(place)
    for places in by_key.values():
        numbers = [number for _, _, number in sorted(places)]
        assert numbers == sorted(numbers)


def test_a_repeated_batch_finds_its_rows_after_a_resize(results: str) -> None:
    """It was stored before its topic was resized: all of it, and nothing of it is sent again."""
    rows = [row(at) for at in range(200)]
    send(results, batch(rows))
    before = {(m.queue, m.offset) for m in stored(results, "results")}
    for queues in (5, 2):
        resize(results, queues)
        send(results, batch(rows[:50]), batch(rows[50:]))
        assert {(m.queue, m.offset) for m in stored(results, "results")} >= before
        check_results(results, 200)


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_is_repeated_between_resizes(results: str, seed: int) -> None:
    """Each try dies somewhere, the topic is resized behind it: every row once, keys in order."""
    chance, done = Random(seed), 0
    for _ in range(3):
        rows = [row(at, key=f"k{at % 7}" if seed % 2 else None) for at in range(done, done + 60)]
        for _ in range(chance.randrange(1, 4)):
            most = {queue: chance.choice((0, 3, 60)) for queue in range(8)}
            send_partly(results, rows, most)
            if chance.random() < 0.7:
                resize(results, chance.choice((1, 2, 4, 5, 7)))
        send(results, batch(rows[:20]), batch(rows[20:]))
        done += 60
        check_results(results, done)


def test_a_topic_is_resized_while_a_task_sends(
    results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its rows goes to the new queues; what is stored is not sent again."""
    monkeypatch.setattr(packing, "CHUNK_MESSAGES", 10)
    send(results, batch([row(at) for at in range(20)]))
    real, calls = Sender._send_chunk, [0]

    def send_chunk(self: Sender, connection: Any, pending: Any, placed: bytes) -> Any:
        calls[0] += 1
        if calls[0] in (5, 12):
            resize(results, 4 if calls[0] == 5 else 2)
        return real(self, connection, pending, placed)

    monkeypatch.setattr(Sender, "_send_chunk", send_chunk)
    send(
        results,
        batch([row(at) for at in range(20, 120)]),
        batch([row(at) for at in range(120, 200)]),
    )
    assert calls[0] > 12
    check_results(results, 200)


def test_past_versions_are_asked_only_by_the_first_batch(
    results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a batch has ended under a version, the next ones cannot have begun before it."""
    asked: list[str] = []
    real = BlockingConnection.ask

    def ask(self: BlockingConnection, request: Any, body: bytes = b"") -> Any:
        if isinstance(request, ProducerState):
            asked.append(request.producer_id)
        return real(self, request, body)

    send(results, batch([row(at) for at in range(50)]))
    resize(results, 5)
    monkeypatch.setattr(BlockingConnection, "ask", ask)
    send(results, batch([row(at) for at in range(50, 100)]))
    name = "spark:copy:orders:broker-a:0"
    assert set(asked) == {name, f"{name}@2"}
    asked.clear()
    send(results, batch([row(at) for at in range(100, 150)]))
    assert set(asked) == {f"{name}@2"}
    check_results(results, 150)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"body": None}, "has no body"),
        ({"body": b""}, "has no body"),
        ({"source_offset": None}, "does not say where it comes from"),
        ({"key": "a\x01b"}, "the column key has a value"),
        ({"properties": [("a", "")]}, "must not be empty"),
        ({"properties": [("a", "x" * 40_000)]}, "properties of a row have more than"),
        ({"source_broker": "b" * 130}, "no name of a producer"),
        ({"source_offset": 0}, "not in the order of their source"),
    ],
)
def test_what_cannot_be_sent_is_refused(results: str, change: dict[str, Any], says: str) -> None:
    """With the reason; nothing of the batch is stored."""
    with pytest.raises(InorderError, match=says):
        send(results, batch([row(1, queue=0), {**row(2), **change}]))
    assert stored(results, "results") == []


def test_packed_rows_are_what_the_codec_reads() -> None:
    """The body of a request, taken apart by the codec that brokers use."""
    import numpy as np

    made = batch([row(at) for at in range(5)])
    sender = packing.Sender("p", "p@2")
    (chunk,) = packing.pack(made, None, sender, np.arange(5) * 10, -1)
    items = decode_batch(chunk.body)
    assert [item.body.decode() for item in items] == [f"0.{at}" for at in range(5)]
    assert items[3].properties.endswith(
        b"INORDER_PID\x01p@2\x02INORDER_SEQ\x0130\x02INORDER_PREV\x0120\x02"
    )
