"""`process_in_order` in a real Spark: order, state, outcomes, and each effect once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.errors import UsageError
from inorder.model import Message
from tests.spark.jobkit import stored

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

KEYS = 20


def fill(namesrv: str, first: int, end: int) -> None:
    """Send numbered messages of 20 keys, every third with the tag `new`."""
    with inorder.Producer(namesrv) as producer:
        producer.send_batch(
            [Message("orders", b"%d" % at, key=f"order-{at % KEYS}",
                     tag="new" if at % 3 == 0 else "paid") for at in range(first, end)]
        )  # fmt: skip


def counting() -> Callable[[Any, Any], Any]:
    """Return a handler that counts a key's messages and gives each its number."""

    def handler(message: Any, state: Any) -> Any:
        seen = (state or 0) + 1
        body = f"{message.key} {seen} {message.body.decode()}"
        return seen, [{"key": message.key, "body": body}]

    return handler


class Runs:
    """Runs of one query over one checkpoint."""

    def __init__(self, spark: Any, namesrv: str, folder: Path, **options: Any) -> None:
        self.spark, self.namesrv, self.folder, self.options = spark, namesrv, folder, options

    def __call__(self, handler: Any, *, per_batch: int = 100, tag: str = "*", **more: Any) -> Any:
        from inorder.spark import process_in_order

        stream = (
            self.spark.readStream.format("inorder")
            .options(namesrv=self.namesrv, topic="orders", startingOffsets="earliest", tag=tag,
                     maxOffsetsPerTrigger=str(per_batch))
            .load()
        )  # fmt: skip
        rows = process_in_order(
            stream, handler, namesrv=self.namesrv,
            **{"schema": "key string, body string", "state": str(self.folder / "state"),
               **self.options, **more},
        )  # fmt: skip
        query = (
            rows.writeStream.format("inorder").options(namesrv=self.namesrv, topic="results")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return query

    def set_back(self) -> None:
        """Leave the checkpoint as a kill between the sink and Spark's commit log leaves it."""
        newest = max((self.folder / "checkpoint" / "commits").glob("[0-9]*"),
                     key=lambda path: int(path.name))  # fmt: skip
        newest.unlink()


def check(namesrv: str, count: int) -> None:
    """Every message has one result, numbered and in order within its key."""
    found: dict[str, list[tuple[int, int]]] = {}
    for message in stored(namesrv, "results"):
        key, seen, number = message.body.decode().split()
        found.setdefault(key, []).append((int(seen), int(number)))
    for at in range(KEYS):
        numbers = list(range(at, count, KEYS))
        assert found[f"order-{at}"] == list(zip(range(1, len(numbers) + 1), numbers, strict=True))


def test_states_go_on_from_batch_to_batch_and_run_to_run(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """Each message is handled once, in the order of its key, with the state of the one before."""
    runs = Runs(spark, namesrv, tmp_path)
    fill(namesrv, 0, 400)
    runs(counting())
    fill(namesrv, 400, 700)
    runs(counting(), per_batch=1000)
    check(namesrv, 700)


def test_a_repeated_batch_is_not_handled_again(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """What was decided stays: a handler that says something else each time changes nothing."""

    def random(message: Any, state: Any) -> Any:
        seen = (state or 0) + 1
        return seen, [(message.key, f"{message.key} {seen} {uuid.uuid4()}")]

    runs = Runs(spark, namesrv, tmp_path)
    fill(namesrv, 0, 200)
    runs(random)
    before = [(m.queue, m.offset, m.body) for m in stored(namesrv, "results")]
    runs.set_back()
    runs(random)
    assert [(m.queue, m.offset, m.body) for m in stored(namesrv, "results")] == before
    assert len(before) == 200


def test_the_code_may_change_within_a_batch(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """The batch keeps what the old code decided; the next one is the new code's, states go on."""

    def renamed(message: Any, state: Any) -> Any:
        seen = (state or 0) + 1
        return seen, [{"body": f"new {seen}", "key": message.key, "tag": "new"}]

    runs = Runs(spark, namesrv, tmp_path)
    fill(namesrv, 0, 100)
    runs(counting())
    runs.set_back()
    fill(namesrv, 100, 120)
    runs(renamed, schema="body string, tag string, key string")
    bodies = [m.body.decode() for m in stored(namesrv, "results")]
    assert len(bodies) == 120
    assert sorted(body for body in bodies if body.startswith("new")) == ["new 6"] * 20


def test_retries_hold_their_key_and_dead_letters_leave(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """A busy key waits alone, in order; what fails too often is found where a consumer's is."""

    def handler(message: Any, state: Any) -> Any:
        number = int(message.body)
        if number == 21 and message.attempt < 3:
            raise inorder.Retry(after=0.05)
        if number == 42:
            raise ValueError("card declined")
        seen = (state or 0) + 1
        return seen, [(message.key, f"{message.key} {seen} {number}")]

    runs = Runs(spark, namesrv, tmp_path, group="billing", pause=0.01,
                patience=5, on_failure=inorder.DeadLetter(attempts=2))  # fmt: skip
    fill(namesrv, 0, 200)
    runs(handler)
    runs.set_back()
    runs(handler)
    numbers: dict[str, list[int]] = {}
    for message in stored(namesrv, "results"):
        key, _, number = message.body.decode().split()
        numbers.setdefault(key, []).append(int(number))
    assert numbers["order-1"] == list(range(1, 200, KEYS))
    assert numbers["order-2"] == [2, 22, *range(62, 200, KEYS)]
    (letter,) = stored(namesrv, "%DLQ%billing")
    assert (letter.body, letter.key, letter.tag) == (b"42", "order-2", "new")
    assert letter.properties["RETRY_TOPIC"] == "orders"
    assert letter.properties["INORDER_DEAD_ERROR"] == "ValueError: card declined"
    assert letter.properties["INORDER_DEAD_TRIES"] == "3"
    assert letter.properties["INORDER_DEAD_ORIGIN"].startswith("orders/broker-a/")


def test_a_key_that_waits_goes_on_in_a_later_run(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """It is listed meanwhile, and nothing of it was skipped."""
    from inorder.spark import waiting

    flag = tmp_path / "gateway-is-up"

    def handler(message: Any, state: Any) -> Any:
        if message.key == "order-3" and not flag.exists():
            raise ConnectionError("gateway")
        return counting_step(message, state)

    counting_step = counting()
    runs = Runs(spark, namesrv, tmp_path, pause=0)
    fill(namesrv, 0, 200)
    runs(handler)
    (one,) = waiting(str(tmp_path / "state"))
    assert (one.key, one.messages, one.cause) == ("order-3", 10, "ConnectionError: gateway")
    flag.touch()
    fill(namesrv, 200, 400)
    runs(handler)
    check(namesrv, 400)
    assert waiting(str(tmp_path / "state")) == []


def test_a_parked_key_is_redriven_in_a_later_run(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """A batch is repeated, the key is redriven by another run: each message once, in order."""
    mended = tmp_path / "mended"

    def handler(message: Any, state: Any) -> Any:
        if int(message.body) == 42 and not mended.exists():
            raise ValueError("card declined")
        return counting_step(message, state)

    counting_step = counting()
    runs = Runs(spark, namesrv, tmp_path, group="billing", on_failure=inorder.Park(attempts=0))
    fill(namesrv, 0, 200)
    runs(handler)
    runs.set_back()
    runs(handler)
    with inorder.Admin(namesrv) as admin:
        (one,) = admin.parked.list("billing")
        assert (one.key, one.first_error) == ("order-2", "ValueError: card declined")
        parked = [int(message.body) for message in admin.parked.show("billing", "order-2")]
        assert parked == list(range(42, 200, KEYS))
        mended.touch()
        admin.parked.redrive("billing", ["order-2"])
        fill(namesrv, 200, 400)
        runs(handler, per_batch=1000)
        assert admin.parked.list("billing") == []
    check(namesrv, 400)


def test_states_follow_their_keys_through_a_resize(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """More queues, then fewer, with messages of two versions unread at once: all in order."""
    runs = Runs(spark, namesrv, tmp_path)
    with inorder.Admin(namesrv) as admin:
        admin.topics.create("orders", queues=4)
        fill(namesrv, 0, 200)
        runs(counting(), per_batch=1000)
        fill(namesrv, 200, 300)
        admin.topics.resize("orders", queues=7)
        fill(namesrv, 300, 400)
        runs(counting(), per_batch=1000)
        admin.topics.resize("orders", queues=3)
    fill(namesrv, 400, 500)
    runs(counting(), per_batch=1000)
    check(namesrv, 500)
    fill(namesrv, 500, 600)
    with inorder.Admin(namesrv) as admin:
        admin.topics.resize("orders", queues=1)
    runs(counting(), per_batch=1000)
    check(namesrv, 600)


def test_missing_offsets_are_refused_unless_they_are_meant(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    """A filter leaves holes; who wants that says so."""
    fill(namesrv, 0, 100)
    with pytest.raises(Exception, match="if that is meant, say holes=True"):
        Runs(spark, namesrv, tmp_path / "a")(counting(), tag="new")
    Runs(spark, namesrv, tmp_path / "b")(counting(), tag="new", holes=True)
    assert len(stored(namesrv, "results")) == 34


def test_with_timers_keys_are_tried_on_time(spark: Any, namesrv: str, tmp_path: Path) -> None:
    """By bucket, in Spark's own state: the same results, and a retry without new messages."""
    from inorder.spark import process_in_order

    def handler(message: Any, state: Any) -> Any:
        if int(message.body) in (21, 45) and message.attempt < 3:
            raise inorder.Retry(after=0.2)
        return counting_step(message, state)

    counting_step = counting()
    with inorder.Admin(namesrv) as admin:
        admin.topics.create("results", queues=2)
    fill(namesrv, 0, 200)
    stream = (
        spark.readStream.format("inorder")
        .options(namesrv=namesrv, topic="orders", startingOffsets="earliest",
                 maxOffsetsPerTrigger="120")
        .load()
    )  # fmt: skip
    rows = process_in_order(
        stream, handler, schema="key string, body string", namesrv=namesrv, timers=True, buckets=4
    )
    query = (
        rows.writeStream.format("inorder").options(namesrv=namesrv, topic="results")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="500 milliseconds").start()
    )  # fmt: skip
    try:
        for _ in range(150):
            query.awaitTermination(1)
            if len(stored(namesrv, "results")) == 200:
                break
    finally:
        query.stop()
    check(namesrv, 200)


def test_what_cannot_be_is_refused(spark: Any, namesrv: str) -> None:
    """Before anything runs, with the way out."""
    from inorder.spark import process_in_order

    fill(namesrv, 0, 10)
    options = {"namesrv": namesrv, "topic": "orders"}
    stream = spark.readStream.format("inorder").options(**options).load()
    batch = spark.read.format("inorder").options(**options).load()
    row = {"schema": "key string", "state": "s", "namesrv": namesrv}
    letters = inorder.DeadLetter(attempts=1)
    for frame, given, says in [
        (batch, row, "works on streams"),
        (stream.drop("offset"), row, "needs the column offset"),
        (stream, {"schema": "key string", "namesrv": namesrv}, "needs state="),
        (stream, {**row, "on_failure": letters}, "group= as well"),
        (stream, {**row, "on_failure": inorder.Park()}, "parked keys go to %PARK%<group>"),
        (stream, {**row, "on_failure": inorder.Park(), "group": "g", "timers": True}, "by queue"),
        (stream, {**row, "schema": "sequence int"}, "column sequence is made"),
        (stream, {**row, "timers": True, "buckets": 0}, "buckets=0"),
    ]:
        with pytest.raises(UsageError, match=says):
            process_in_order(frame, counting(), **given)
