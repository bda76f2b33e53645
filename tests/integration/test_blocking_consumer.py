"""`inorder.Consumer`: plain handlers in threads, signals, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import inorder
import inorder.testing
from inorder.testing import RunningBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    before = set(threading.enumerate())
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=4)
        yield running
    # The client's loop gives its own pool two seconds; a busy machine may need more for the last.
    wait(lambda: set(threading.enumerate()) <= before)


def send(broker: RunningBroker, count: int) -> None:
    with broker.producer() as producer:
        for number in range(count):
            producer.send("orders", str(number).encode(), key=f"k{number % 7}")


def wait(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def consumer_of(broker: RunningBroker, **options) -> inorder.Consumer:
    return inorder.Consumer(broker.namesrv, **{"group": "g", "consume_from": "first", **options})


def test_plain_handlers_run_in_threads_one_per_queue(broker: RunningBroker):
    """Never two at a time for one queue, several queues at a time, each in order."""
    consumer = consumer_of(broker)
    running: set[int] = set()
    got: list[tuple[int, int]] = []
    together = threading.Event()

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        assert message.queue.index not in running
        running.add(message.queue.index)
        if len(running) > 1:
            together.set()
        together.wait(10)  # the first waits for one of another queue
        time.sleep(0.002)
        running.discard(message.queue.index)
        got.append((message.queue.index, message.offset))
        assert threading.current_thread().name.startswith("inorder handler")

    send(broker, 100)
    with consumer:
        wait(lambda: len(got) == 100)
    assert together.is_set()
    for index in range(4):
        offsets = [offset for queue, offset in got if queue == index]
        assert offsets == list(range(len(offsets)))
    assert sum(consumer.statistics().queues.values()) == 100


def test_nothing_waits_behind_a_handler_that_hangs(broker: RunningBroker):
    """Short handlers are called several times in a row; when one is not short, others go on."""
    consumer = consumer_of(broker)
    gate, done, hung = threading.Event(), [], []

    @consumer.on("orders", order=None, concurrency=3)
    def handle(message: inorder.ReceivedMessage) -> None:
        if message.offset == 200 and message.queue.index < 2:
            hung.append(threading.current_thread().name)
            gate.wait(200)
        done.append(message.message_id)

    send(broker, 1600)
    with consumer:
        wait(lambda: len(hung) == 2 and len(done) == 1598, 90)
        assert not gate.is_set()
        gate.set()
        wait(lambda: len(done) == 1600)
    assert len(set(done)) == 1600
    assert len(set(hung)) == 2


def test_nothing_waits_behind_a_handler_that_fails(broker: RunningBroker):
    """Without order the messages behind a failed one are handled, also if no further one comes."""
    broker.create_topic("receipts", queues=1)
    consumer = consumer_of(broker)
    done: list[int] = []

    @consumer.on("receipts", order=None, concurrency=1)
    def handle(message: inorder.ReceivedMessage) -> None:
        if message.offset >= 500 and message.offset % 3 == 0:
            raise inorder.Retry(after=3600)
        done.append(message.offset)

    with broker.producer() as producer:
        for number in range(600):
            producer.send("receipts", str(number).encode())
    with consumer:
        wait(lambda: len(done) >= 566)
    assert sorted(done) == [n for n in range(600) if n < 500 or n % 3]


def test_failures_retries_and_async_handlers(broker: RunningBroker):
    """Both kinds of handlers on one consumer; Retry and exceptions hold the queue."""
    consumer = consumer_of(broker)
    got: list[bytes] = []
    others: list[bytes] = []

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        got.append(message.body)
        if message.attempt == 1:
            raise inorder.Retry(after=0.01)

    @consumer.on("others")
    async def handle_others(message: inorder.ReceivedMessage) -> None:
        others.append(message.body)

    with broker.producer() as producer:
        producer.send("orders", b"a", key="k")
        producer.send("orders", b"b", key="k")
        producer.send("others", b"x")
    with consumer:
        wait(lambda: len(got) == 4 and len(others) == 1)
    assert got == [b"a", b"a", b"b", b"b"]


def test_concurrent_handlers_share_the_pool(broker: RunningBroker):
    """order=None: as many threads as asked for, and no more."""
    consumer = consumer_of(broker)
    lock, running, most, done = threading.Lock(), 0, 0, 0
    all_five = threading.Event()

    @consumer.on("orders", order=None, concurrency=5)
    def handle(message: inorder.ReceivedMessage) -> None:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, running)
            if running == 5:
                all_five.set()
        all_five.wait(10)  # the first ones wait for the fifth
        time.sleep(0.01)
        with lock:
            running -= 1
            done += 1

    send(broker, 60)
    with consumer:
        wait(lambda: done == 60)
    assert most == 5


def test_calls_from_other_threads_and_from_handlers(broker: RunningBroker):
    """pause, resume, assignment, commit and seek work while it runs, from anywhere."""
    consumer = consumer_of(broker)
    got: list[int] = []

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        assert message.queue in consumer.assignment()
        got.append(message.offset)

    with pytest.raises(inorder.InorderError, match="not started"):
        consumer.pause()
    send(broker, 10)
    with consumer:
        wait(lambda: len(got) == 10)
        consumer.pause()
        send(broker, 5)
        time.sleep(0.2)
        assert len(got) == 10
        assert set(consumer.paused()) == set(consumer.assignment())
        consumer.resume()
        wait(lambda: len(got) == 15)
        wait(lambda: sum(consumer.statistics().queues.values()) == 15)
        consumer.commit()
        queue = next(q for q in consumer.assignment() if q.topic == "orders")
        wait(lambda: queue in consumer.assignment())
        done = consumer.statistics().queues[queue]
        assert consumer.seek(queue, "beginning") == 0
        wait(lambda: len(got) == 15 + done)


def test_run_returns_when_a_handler_closes_the_consumer(broker: RunningBroker):
    """And everything that was done is committed."""
    consumer = consumer_of(broker)
    got: list[bytes] = []

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        got.append(message.body)
        if len(got) == 10:
            consumer.close()

    send(broker, 50)
    consumer.run()
    assert len(got) >= 10
    assert sum(consumer.statistics().queues.values()) == len(got)


def test_a_handler_closes_what_a_block_or_nobody_runs(broker: RunningBroker):
    """It returns at once, no further message is begun; a `close` elsewhere waits for the rest."""
    consumer = consumer_of(broker)
    begun, closed, gate = [], threading.Event(), threading.Event()

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        begun.append(message.body)
        consumer.close()
        closed.set()
        gate.wait(20)

    send(broker, 100)
    with consumer:
        assert closed.wait(20)
        with pytest.raises(inorder.InorderError, match="closed"):
            consumer.start()
        gate.set()
    assert len(begun) <= 4  # of each queue one: whoever began before the first close
    assert sum(consumer.statistics().queues.values()) == len(begun)


def test_an_async_handler_of_a_blocking_consumer_closes_it(broker: RunningBroker):
    """It runs on the client's own loop: nothing is to wait there."""
    consumer = consumer_of(broker)
    got: list[bytes] = []

    @consumer.on("orders")
    async def handle(message: inorder.ReceivedMessage) -> None:
        got.append(message.body)
        consumer.close()
        await asyncio.to_thread(consumer.close)

    send(broker, 100)
    consumer.run()
    assert 1 <= len(got) <= 4
    assert sum(consumer.statistics().queues.values()) == len(got)


def test_several_close_at_once(broker: RunningBroker):
    """Each returns when the handler that ran has ended and is committed, not before."""
    consumer = consumer_of(broker)
    entered, gate = threading.Event(), threading.Event()
    ended, seen = [], []

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        entered.set()
        gate.wait(20)
        ended.append(message.body)

    def close() -> None:
        consumer.close()
        seen.append((len(ended), sum(consumer.statistics().queues.values())))

    send(broker, 1)
    consumer.start()
    assert entered.wait(20)
    closers = [threading.Thread(target=close) for _ in range(8)]
    for closer in closers:
        closer.start()
    time.sleep(0.1)
    assert seen == []
    gate.set()
    for closer in closers:
        closer.join(20)
    assert seen == [(1, 1)] * 8
    consumer.close()


def test_an_impatient_close_ends_a_patient_one(broker: RunningBroker):
    """`timeout` bounds the wait for handlers; the earliest end counts for all who wait."""
    consumer = consumer_of(broker)
    entered, gate = threading.Event(), threading.Event()

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        entered.set()
        gate.wait(120)

    send(broker, 1)
    consumer.start()
    assert entered.wait(20)
    patient = threading.Thread(target=consumer.close, args=(100,))
    patient.start()
    consumer.close(timeout=0)
    patient.join(60)
    assert not patient.is_alive()
    assert consumer.statistics().running == 1
    gate.set()
    wait(lambda: not any("inorder handler" in t.name for t in threading.enumerate()))


def test_an_error_of_the_block_is_not_masked(broker: RunningBroker, monkeypatch):
    """What the block raised goes on; what `close` raised then is logged."""
    consumer = consumer_of(broker)
    consumer.on("orders")(print)

    def fail(timeout: float | None = None) -> None:
        raise inorder.UsageError("as told")

    with pytest.raises(ZeroDivisionError), consumer:
        monkeypatch.setattr(consumer, "close", fail)
        raise ZeroDivisionError
    monkeypatch.undo()
    consumer.close()


def test_a_handler_seeks_its_own_queue(broker: RunningBroker):
    """It does not wait for its own end."""
    consumer = consumer_of(broker)
    got: list[int] = []

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        got.append(message.offset)
        if len(got) == 3:
            assert consumer.seek(message.queue, 1) == 1

    with broker.producer() as producer:
        for number in range(3):
            producer.send("orders", b"%d" % number, key="k")
    with consumer:
        wait(lambda: len(got) >= 5)
    assert got[:5] == [0, 1, 2, 1, 2]


def test_a_handler_that_does_not_end_is_left_behind(broker: RunningBroker):
    """close returns after its timeout; the thread ends when the handler does."""
    config = inorder.ClientConfig(consumer=inorder.ConsumerConfig(close_timeout_ms=200))
    consumer = consumer_of(broker, config=config)
    release, entered, left = threading.Event(), threading.Event(), threading.Event()

    @consumer.on("orders")
    def handle(message: inorder.ReceivedMessage) -> None:
        entered.set()
        release.wait(60)
        left.set()

    send(broker, 1)
    consumer.start()
    assert entered.wait(10)
    begun = time.monotonic()
    consumer.close()
    assert 0.19 <= time.monotonic() - begun < 30  # long before the handler ends by itself
    release.set()
    assert left.wait(5)
    wait(lambda: not any("inorder handler" in t.name for t in threading.enumerate()))


def test_an_unclosed_consumer_is_reported(broker: RunningBroker):
    """As for every client of ours; one that never started has nothing to close."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        never = consumer_of(broker)
        del never
    consumer = consumer_of(broker)
    consumer.on("orders")(print)
    consumer.start()
    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        consumer.__del__()
    consumer.close()


APP = """
import inorder

consumer = inorder.Consumer(group="g", consume_from="first")

@consumer.on("orders")
def handle(message):
    print(message.body.decode() + "\\n", end="", flush=True)  # one write

def make():
    import inorder.aio
    made = inorder.aio.Consumer(group="async", consume_from="first")

    @made.on("orders")
    async def handle(message):
        print(message.body.decode() + "\\n", end="", flush=True)  # one write

    return made
"""


def start_cli(broker: RunningBroker, folder: Path, target: str) -> subprocess.Popen[str]:
    (folder / "shop.py").write_text(APP)
    return subprocess.Popen(
        [sys.executable, "-m", "inorder.cli.main", "consume", target, "-o", "json",
         "--log-level", "warning"],
        cwd=folder, env=os.environ | {"NAMESRV_ADDR": broker.namesrv},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("target", ["shop:consumer", "shop:make"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_runs_a_consumer_and_stops_cleanly(
    broker: RunningBroker, tmp_path: Path, target: str, number: signal.Signals
):
    """`inorder consume`: handlers run; a signal ends it with exit code 0 and the statistics."""
    send(broker, 20)
    process = start_cli(broker, tmp_path, target)
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(20)]
    assert sorted(map(int, lines)) == list(range(20))
    process.send_signal(number)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    statistics = json.loads(out)
    assert statistics["handled"] == 20
    assert sum(statistics["queues"].values()) == 20


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("shop", "write MODULE:NAME"),
        ("shopp:consumer", "there is no module shopp"),
        ("shop:consumers", "its consumers are: consumer"),
        ("shop:inorder", "is no Consumer"),
    ],
)
def test_the_command_says_what_is_wrong(
    broker: RunningBroker, tmp_path: Path, target: str, says: str
):
    """One line, exit code 2."""
    process = start_cli(broker, tmp_path, target)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert says in errors
    assert len(errors.splitlines()) == 1


def test_the_command_says_that_nobody_is_there(broker: RunningBroker, tmp_path: Path):
    """No name server: it waits, says for whom, and SIGTERM ends it cleanly."""
    (tmp_path / "shop.py").write_text(APP)
    waiting = subprocess.Popen(
        [sys.executable, "-m", "inorder.cli.main", "consume", "shop:consumer"],
        cwd=tmp_path, env=os.environ | {"NAMESRV_ADDR": "127.0.0.1:1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert waiting.stderr is not None
        said = next(line for line in waiting.stderr if "waits for a name server" in line)
        assert "127.0.0.1:1" in said
        waiting.send_signal(signal.SIGTERM)
        waiting.communicate(timeout=60)
        assert waiting.returncode == 0
    finally:
        waiting.kill()
        waiting.wait(60)
