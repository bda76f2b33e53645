"""Loops of `send_nowait` as programs have them: no loss without a word, nothing overtakes."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import inorder
import inorder.aio
import inorder.testing
from inorder.config import BrokerConfig, ClientConfig, StoreConfig
from inorder.errors import (
    AlreadyClosed,
    MessageIllegal,
    SendsFailed,
    TooManyOutstanding,
    UsageError,
)
from inorder.testing import RunningBroker

COUNT = 40_000  # four times as many as may wait
WAIT_S = 60
TOO_LARGE = Random(1).randbytes(9000)  # for the broker, also when it is packed
NARROW = ClientConfig(
    sends_waiting_max=5, sends_waiting_bytes_max=5000, retry_first_ms=5, retry_max_ms=20,
    send_timeout_ms=30_000,
)  # fmt: skip

PROGRAM = """
    import sys
    import inorder

    count = int(sys.argv[2])
    with inorder.Producer(sys.argv[1]) as producer:
        for number in range(count):
            producer.send_nowait("orders", b"%d" % number, key=f"k{number % 16}", timeout=60)
        producer.flush()
        print(producer.statistics())
    with inorder.Producer(sys.argv[1]) as producer:
        messages = [
            inorder.Message("batched", b"%d" % n, key=f"k{n % 16}") for n in range(count // 4)
        ]
        print(len(producer.send_batch(messages, timeout=60)))
"""


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A broker whose clients have little room, and take small messages only."""
    config = BrokerConfig(store=StoreConfig(message_bytes_max=8000))
    with inorder.testing.broker(config=config, client=NARROW) as running:
        yield running


def bodies(broker: RunningBroker) -> list[bytes]:
    return [message.body for message in broker.messages("orders")]


async def read_all(address: str, topic: str) -> list[tuple[str, int]]:
    async with inorder.aio.PullConsumer(address, group="reader") as reader:
        return [
            (str(message.key), int(message.body))
            for queue in await reader.queues(topic)
            async for message in reader.pull_all(queue)
        ]


@pytest.mark.slow
def test_a_long_loop_is_all_stored(tmp_path: Path) -> None:
    """By a program of a few lines, also as one batch: all there, each key in order."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    words = ["up", "--namesrv-port", "0", "--broker-port", "0", "--data", str(tmp_path / "data")]
    server = subprocess.Popen(
        [sys.executable, "-m", "inorder.cli.main", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        said = dict(re.findall(r"(\w+)=(\S+)", server.stdout.readline()))
        done = subprocess.run(
            [sys.executable, program, said["namesrv"], str(COUNT)],
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert f"sent={COUNT}, failed=0" in done.stdout
        for topic, count in (("orders", COUNT), ("batched", COUNT // 4)):
            found = asyncio.run(read_all(said["namesrv"], topic))
            assert len(found) == count
            for key in {key for key, _ in found}:
                its = [number for one, number in found if one == key]
                assert its == sorted(set(its)), (topic, key)
    finally:
        server.terminate()
        server.communicate(timeout=WAIT_S)


def test_a_send_above_the_limit_is_refused_at_the_call(broker: RunningBroker) -> None:
    """It is not taken, and nothing of it comes later; what was taken is stored."""
    with broker.producer() as producer:
        producer.send("orders", b"first", key="k")
        broker.freeze()
        taken = [producer.send_nowait("orders", b"%d" % n, key="k") for n in range(5)]
        with pytest.raises(TooManyOutstanding, match="sends_waiting_max"):
            producer.send_nowait("orders", b"refused", key="k", timeout=0.1)
        with pytest.raises(TooManyOutstanding, match="sends_waiting_max"):
            producer.send("orders", b"refused", key="k", timeout=0.1)
        broker.thaw()
        assert [future.result(WAIT_S).offset for future in taken] == [1, 2, 3, 4, 5]
        producer.send_nowait("orders", b"5", key="k")
        producer.flush()
        assert producer.statistics().refused == 2
    assert bodies(broker) == [b"first", *(b"%d" % n for n in range(6))]


def test_a_send_that_waits_for_the_limit_continues_when_it_may(broker: RunningBroker) -> None:
    """In the order of the calls, however few may be under way; bytes count as well."""
    with broker.producer() as producer:
        for n in range(60):
            body = b"%d" % n if n % 3 else b"%d " % n + b"x" * 3000
            if n % 10 == 7:
                producer.send("orders", body, key="k")
            elif n % 10 == 9:
                producer.send_batch([inorder.Message("orders", body, key="k")])
            else:
                producer.send_nowait("orders", body, key="k")
        producer.flush()
        assert producer.statistics().failed == 0
    assert [int(body.split()[0]) for body in bodies(broker)] == list(range(60))


def test_a_batch_above_the_limit_is_stored(broker: RunningBroker) -> None:
    """In parts, in its order."""
    with broker.producer() as producer:
        messages = [inorder.Message("orders", b"%d" % n, key="k") for n in range(300)]
        assert len(producer.send_batch(messages)) == 300
    assert [int(body) for body in bodies(broker)] == list(range(300))


def test_a_closed_producer_lets_nobody_wait(broker: RunningBroker) -> None:
    """Who waits for room when it is closed is told so."""
    with broker.producer() as producer:
        producer.send("orders", b"first", key="k")
        broker.freeze()
        for n in range(5):
            producer.send_nowait("orders", b"%d" % n, key="k")
        told: list[BaseException] = []

        def wait_for_room() -> None:
            try:
                producer.send_nowait("orders", b"late", key="k", timeout=WAIT_S)
            except BaseException as error:
                told.append(error)

        waiting = threading.Thread(target=wait_for_room)
        waiting.start()
        closing = threading.Thread(target=producer.close)
        closing.start()
        waiting.join(WAIT_S)
        broker.thaw()
        closing.join(WAIT_S)
    assert [type(error) for error in told] == [AlreadyClosed]
    assert b"late" not in bodies(broker)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"body": "text"}, UsageError),
        ({"body": b""}, MessageIllegal),
        ({"body": b"x", "delay_level": -1}, UsageError),
        ({"body": b"x", "queue": inorder.TopicQueue("other", "b", 0)}, UsageError),
        ({"body": b"x", "sequence": 1}, UsageError),
    ],
)
def test_a_mistake_is_raised_at_the_call(
    broker: RunningBroker, message: dict[str, object], error: type[Exception]
) -> None:
    """As in inorder.aio: not in a future that nobody may look at; and it takes no room."""
    with broker.producer() as producer:
        for _ in range(7):
            with pytest.raises(error):
                producer.send_nowait("orders", **message)  # type: ignore[arg-type]
        producer.send_nowait("orders", b"fine").result(WAIT_S)


def test_failures_that_nobody_asked_for_are_reported(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """By flush and close, once; futures that are gone are named in the log; asked ones are not."""
    too_large = TOO_LARGE
    with broker.producer() as producer, caplog.at_level(logging.ERROR):
        for n in range(4):
            producer.send_nowait("orders", too_large, key=f"k{n}")
        with pytest.raises(SendsFailed, match="4 messages of send_nowait failed") as told:
            producer.flush()
        assert told.value.count == 4
        assert "nobody asked for its outcome topic=orders" in caplog.text
        producer.flush()
        asked = producer.send_nowait("orders", too_large, key="k")
        assert isinstance(asked.exception(WAIT_S), MessageIllegal)
        watched = producer.send_nowait("orders", too_large, key="k")
        watched.add_done_callback(lambda done: done.exception())
        producer.flush()
        kept = producer.send_nowait("orders", too_large, key="k")
        with pytest.raises(SendsFailed, match="1 messages"):
            producer.close()
        assert isinstance(kept.exception(), MessageIllegal)


def test_a_block_keeps_its_own_error(broker: RunningBroker) -> None:
    """A failed send does not hide what ended the block."""
    with pytest.raises(ZeroDivisionError), broker.producer() as producer:
        producer.send_nowait("orders", TOO_LARGE, key="k")
        raise ZeroDivisionError


def test_cancelled_futures_give_their_room_back(broker: RunningBroker) -> None:
    """Whether they had begun or not."""
    with broker.producer() as producer:
        producer.send("orders", b"first", key="k")
        for _ in range(20):
            futures = [producer.send_nowait("orders", b"x", key="k") for _ in range(4)]
            for future in futures:
                future.cancel()
        producer.flush()
        assert producer._room.messages == 0
        assert producer._room.bytes == 0
