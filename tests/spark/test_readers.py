"""The readers and the writer without a JVM: every way to say what to read, and what is planned."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

import inorder
from inorder.errors import ConfigError, InorderError
from inorder.spark.source import service as module
from inorder.spark.source.options import parse
from inorder.spark.source.rules import DataLoss
from inorder.spark.source.service import PushingReader, Reader, StreamReader
from tests.spark.jobkit import fill, stored

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BROKER = "broker-a"


def rows(reader: Any, partitions: Any = None) -> list[dict[str, Any]]:
    """Return what a reader reads, partition by partition."""
    return [
        row
        for partition in (reader.partitions() if partitions is None else partitions)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def batch(namesrv: str, **options: str) -> Reader:
    return Reader(parse({"namesrv": namesrv, "topic": "orders", **options}))


def stream(namesrv: str, **options: str) -> StreamReader:
    given = {"namesrv": namesrv, "topic": "orders", "startingOffsets": "earliest", **options}
    return StreamReader(parse(given))


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in found)


def places(**queues: int) -> str:
    return json.dumps({"orders": {BROKER: {name[1:]: at for name, at in queues.items()}}})


def limit(reader: StreamReader) -> Any:
    return reader.getDefaultReadLimit()


def moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def test_every_way_to_say_where(namesrv: str) -> None:
    """Earliest, latest, group, offsets with -2 and -1, and times, as start and as end."""
    fill(namesrv, 200)
    middle_ms = max(message.stored_at_ms for message in stored(namesrv, "orders")) + 1
    while int(time.time() * 1000) <= middle_ms:
        pass  # the next messages are stored in a later millisecond
    fill(namesrv, 100, first=200)
    with inorder.PullConsumer(namesrv, group="half") as consumer:
        consumer.assign(consumer.queues("orders"))
        for queue in consumer.queues("orders"):
            end = len([m for m in stored(namesrv, "orders") if m.queue == queue
                       and int(m.body) < 200])  # fmt: skip
            consumer.commit(queue, end)
    old, new, everything = list(range(200)), list(range(200, 300)), list(range(300))
    for options, expected in (
        ({}, everything),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, everything),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": "group", "group": "half"}, new),
        ({"endingOffsets": "group", "group": "half"}, old),
        ({"startingOffsets": "group", "group": "nobody"}, everything),
        ({"startingTimestamp": str(middle_ms)}, new),
        ({"startingTimestamp": moment(middle_ms), "startingOffsets": "latest"}, new),
        ({"endingTimestamp": str(middle_ms)}, old),
        ({"startingTimestamp": moment(middle_ms + 3_600_000)}, []),
        ({"startingOffsets": places(q0=-1, q1=-2)}, None),
    ):
        found = numbers(rows(batch(namesrv, **options)))
        if expected is None:
            assert set(found) == {
                int(m.body) for m in stored(namesrv, "orders") if m.queue.index != 0
            }
        else:
            assert found == expected, options
    with pytest.raises(ConfigError, match="there is no queue 99 of topic orders"):
        rows(batch(namesrv, startingOffsets=places(q99=0)))


def test_fewer_columns_and_one_key(namesrv: str) -> None:
    """`columns` in the order of the schema; `key` decodes no other message."""
    fill(namesrv, 200)
    found = rows(batch(namesrv, columns="body,offset"))
    assert list(found[0]) == ["offset", "body"]
    found = rows(batch(namesrv, key="order-7"))
    assert numbers(found) == list(range(7, 200, 20))
    assert {row["key"] for row in found} == {"order-7"}
    assert rows(batch(namesrv, key="order-")) == [], "a part of a key is none"
    assert rows(batch(namesrv, key="nobody")) == []


def test_filters_narrow_what_is_read(namesrv: str) -> None:
    """Tag, key, queue, offset and time: with pushdown, less is planned and read."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan

    fill(namesrv, 400)
    message = stored(namesrv, "orders")[0]

    def read(*filters: Any) -> tuple[int, list[dict[str, Any]]]:
        reader = PushingReader(parse({"namesrv": namesrv, "topic": "orders", "pushdown": "true"}))
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark checks again"
        planned = reader.partitions()
        spans = [span for part in planned for span in part.portion.ranges]  # type: ignore[attr-defined]
        return sum(span.count for span in spans), rows(reader, planned)

    assert read(EqualTo(("tag",), "new"))[1] == [
        row for row in rows(batch(namesrv)) if row["tag"] == "new"
    ]
    assert len(read(In(("key",), ["order-3", "order-4"]))[1]) == 40
    planned, _ = read(EqualTo(("queue",), message.queue.index))
    assert 0 < planned < 400
    planned, found = read(GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 7))
    assert planned <= 3 * 8
    assert {row["offset"] for row in found} <= {5, 6, 7}
    late = datetime(2100, 1, 1, tzinfo=UTC)
    assert read(GreaterThanOrEqual(("stored_at",), late))[0] == 0
    assert read(LessThan(("stored_at",), late))[0] == 400


def test_queues_are_whole_unless_order_is_given_up(namesrv: str) -> None:
    """Packed into as many tasks as wanted; cut only with ordered=false."""
    fill(namesrv, 400)
    for wanted in (1, 3, 100):
        parts: Any = batch(namesrv, maxPartitions=str(wanted)).partitions()
        queues = [span.queue for part in parts for span in part.portion.ranges]
        assert len(parts) <= wanted
        assert len(queues) == len(set(queues))
    reader = batch(namesrv, ordered="false", maxRecordsPerPartition="30")
    parts = reader.partitions()
    assert all(span.count <= 30 for part in parts for span in part.portion.ranges)
    assert len(parts) >= 400 / 30
    assert numbers(rows(reader)) == list(range(400))


def test_a_stream_waits_for_enough(namesrv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """minOffsetsPerTrigger holds a batch back, maxTriggerDelay lets it go."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "ROUTES_AGE_S", 1e9)
    fill(namesrv, 50)
    reader = stream(namesrv, minOffsetsPerTrigger="60", maxTriggerDelay="10s")
    start = reader.initialOffset()
    assert reader.latestOffset(start, limit(reader))["q"] == start["q"]
    fill(namesrv, 20, first=50)
    end = reader.latestOffset(start, limit(reader))
    assert numbers(rows(reader, reader.partitions(start, end))) == list(range(70))
    fill(namesrv, 5, first=70)
    assert reader.latestOffset(end, limit(reader))["q"] == end["q"]
    now[0] += 11
    assert reader.latestOffset(end, limit(reader))["q"] != end["q"]


def test_what_is_available_now_is_fixed(namesrv: str) -> None:
    """What comes after the start of such a run is for the next one; the limit is shared out."""
    fill(namesrv, 100)
    reader = stream(namesrv, maxOffsetsPerTrigger="30")
    at = start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(namesrv, 100, first=100)
    sizes = []
    while (end := reader.latestOffset(at, limit(reader)))["q"] != at["q"]:
        sizes.append(len(rows(reader, reader.partitions(at, end))))
        at = end
    assert sizes == [30, 30, 30, 10]
    assert numbers(rows(reader, reader.partitions(start, at))) == list(range(100))


def test_queues_and_topics_that_come_later_are_read(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue more is read from its beginning, and so is a topic that matches the pattern."""
    monkeypatch.setattr(module, "ROUTES_AGE_S", -1.0)
    with inorder.Admin(namesrv) as admin:
        admin.topics.create("orders", queues=2)
        fill(namesrv, 40)
        reader = stream(namesrv)
        pattern = StreamReader(parse({"namesrv": namesrv, "topicPattern": "ord.*",
                                      "startingOffsets": "earliest"}))  # fmt: skip
        start, begin = reader.initialOffset(), pattern.initialOffset()
        end = reader.latestOffset(start, limit(reader))
        assert pattern.latestOffset(begin, limit(pattern))["q"] == end["q"]
        admin.topics.create("orderly", queues=1)
        with inorder.Producer(namesrv) as producer:
            producer.send("orderly", b"40", key="x")
    found = pattern.latestOffset({**begin, "q": end["q"]}, limit(pattern))
    assert found["q"]["orderly"] == {BROKER: {"0": 1}}
    more = rows(pattern, pattern.partitions({**begin, "q": end["q"]}, found))
    assert [(row["topic"], row["body"]) for row in more] == [("orderly", b"40")]


def test_lost_messages_are_an_error_or_left_out(namesrv: str) -> None:
    """Offsets beyond what is stored: refused by default, skipped with failOnDataLoss=false."""
    fill(namesrv, 20)
    queue = stored(namesrv, "orders")[0].queue.index
    reader = stream(namesrv)
    start = reader.initialOffset()
    ahead = {**start, "q": json.loads(places(**{f"q{queue}": 1000}))}
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        reader.latestOffset(ahead, limit(reader))
    careless = stream(namesrv, failOnDataLoss="false")
    end = careless.latestOffset(ahead, limit(careless))
    assert end["q"]["orders"][BROKER][str(queue)] < 1000
    beyond: Any = batch(namesrv).partitions()
    wide = [module.MessagePartition(type(part.portion)(part.portion.options, tuple(
        type(span)(span.queue, span.start, span.end + 5) for span in part.portion.ranges)))
        for part in beyond]  # fmt: skip
    with pytest.raises(DataLoss, match="are gone"):
        rows(batch(namesrv), wide)


def test_a_topic_that_is_not_there_is_named(namesrv: str) -> None:
    """With the way out; and so is a name server that does not answer."""
    with pytest.raises(InorderError, match="knows topic nothing; create it"):
        Reader(parse({"namesrv": namesrv, "topic": "nothing"})).partitions()
    with pytest.raises(InorderError, match=r"127\.0\.0\.1:1"):
        Reader(parse({"namesrv": "127.0.0.1:1", "topic": "orders"})).partitions()


def test_the_sink_delays_and_keeps_properties(namesrv: str) -> None:
    """Rows with a delay level come later, once each; properties of the system are left out."""
    import pyarrow as pa

    from inorder.spark.sink.options import parse as sink_options
    from inorder.spark.sink.service import send_rows

    made = [
        {"body": f"{at}".encode(), "key": f"k{at % 2}" if at % 3 else None, "tag": "t",
         "properties": [("shop", "s1"), ("UNIQ_KEY", "no"), ("INORDER_SEQ", "7")],
         "delay_level": 1 if at == 4 else None, "source_topic": "orders", "source_broker": BROKER,
         "source_queue": 1, "source_offset": at}
        for at in range(8)
    ]  # fmt: skip
    schema = pa.schema([
        ("body", pa.binary()), ("key", pa.string()), ("tag", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())), ("delay_level", pa.int32()),
        ("source_topic", pa.string()), ("source_broker", pa.string()),
        ("source_queue", pa.int32()), ("source_offset", pa.int64()),
    ])  # fmt: skip
    rows_in = pa.RecordBatch.from_pylist(made, schema=schema)
    options = sink_options(
        {"namesrv": namesrv, "topic": "results", "sinkId": "s"}, list(schema.names)
    )
    for _ in range(2):
        send_rows(options, iter([rows_in]))
    at_once = stored(namesrv, "results")
    assert sorted(int(m.body) for m in at_once if int(m.body) != 4) == [0, 1, 2, 3, 5, 6, 7]
    assert all(m.properties["shop"] == "s1" for m in at_once)
    assert len({m.queue for m in at_once if m.key is None}) == 1
    deadline = time.monotonic() + 10
    while len(stored(namesrv, "results")) < 8:
        assert time.monotonic() < deadline
    assert sorted(int(m.body) for m in stored(namesrv, "results")) == list(range(8))


def test_results_at_least_once_say_where_they_come_from(namesrv: str) -> None:
    """The property is there where no number says it; an audit reads both."""
    import pyarrow as pa

    from inorder.spark.sink.options import parse as sink_options
    from inorder.spark.sink.service import send_rows
    from inorder.wire.extensions import SOURCE

    row = {"body": b"x", "key": "k", "source_topic": "orders", "source_broker": BROKER,
           "source_queue": 1, "source_offset": 17}  # fmt: skip
    options = sink_options({"namesrv": namesrv, "topic": "results", "delivery": "at-least-once"},
                           list(row))  # fmt: skip
    send_rows(options, iter([pa.RecordBatch.from_pylist([row])]))
    assert stored(namesrv, "results")[0].properties[SOURCE] == "orders|broker-a|1|17"


def test_small_batches_are_joined_in_their_order(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many queues with few messages each are few batches; large ones stay as they are."""
    from inorder.spark.source import service as source_service

    fill(namesrv, 400)
    monkeypatch.setattr(source_service, "ROWS_MIN", 150)
    reader = batch(namesrv, maxPartitions="1")
    (part,) = reader.partitions()
    found = list(reader.read(part))
    assert sum(one.num_rows for one in found) == 400
    assert len(found) <= 3
    places = [(row["queue"], row["offset"]) for one in found for row in one.to_pylist()]
    assert places == sorted(places)
