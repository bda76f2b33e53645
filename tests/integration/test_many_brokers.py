"""`inorder up --brokers N` as processes: one ready line, one stop, brokers that come back."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inorder import Admin, Consumer, Producer, PullConsumer, ReceivedMessage
from inorder.config import ClientConfig
from inorder.net.tls import client_context

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
TOPIC = "orders"
PATIENT = ClientConfig(send_timeout_ms=1000 * TIMEOUT_S)
KEYS = [f"key-{number}" for number in range(24)]


class Up:
    """A running `inorder up`, with its log in a file."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "inorder.cli.main", "up", "--namesrv-port", "0",
                 "--broker-port", "0", "--data", str(folder / "data"), *words],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip

    def ready(self) -> dict[str, str]:
        """Wait for the ready line and return what it says."""
        line = self.line()
        assert line.startswith("ready "), (line, self.log())
        return dict(re.findall(r"(\w+)=(\S+)", line))

    def line(self) -> str:
        """Return the next line on stdout."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT_S)[0], self.log()
        return self.process.stdout.readline()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def log(self) -> str:
        """Return all log lines so far."""
        return (self.folder / "log").read_text()

    def children(self) -> dict[str, int]:
        """Return the process ids of the brokers by name."""
        return {
            words[words.index("--name") + 1]: pid
            for pid, parent, words in processes()
            if parent == self.process.pid and "--supervised" in words
        }


def processes() -> list[tuple[int, int, list[str]]]:
    """Return id, parent and command line of all processes."""
    text = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    found = [line.split() for line in text.splitlines()]
    return [(int(pid), int(parent), words) for pid, parent, *words in found]


def of_folder(folder: Path) -> list[int]:
    """Return the broker processes that use a folder, whoever is their parent."""
    return [
        pid
        for pid, _, words in processes()
        if "--supervised" in words and str(folder / "data") in " ".join(words)
    ]


@contextlib.contextmanager
def up(folder: Path, *words: str) -> Iterator[Up]:
    """Run `inorder up`; whatever happens, all its processes are gone afterwards."""
    running = Up(folder, *words)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()
        for pid in of_folder(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def accepts(address: str) -> bool:
    """Tell whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def second_port_taken() -> Iterator[int]:
    """Return a port for the first of two brokers; that of the second is taken."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1] - 10
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue
            yield port
            return
    raise AssertionError("no port is free")


def unclean(folder: Path) -> list[Path]:
    """Return what brokers leave that did not stop cleanly."""
    return list((folder / "data").rglob("abort"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_ready_line_and_one_signal_for_all(tmp_path: Path, number: int) -> None:
    """All ports accept and the name server lists all by then; the signal ends all with 0."""
    with up(tmp_path, "--brokers", "3", "-o", "json") as running:
        said = json.loads(running.line())
        assert list(said) == ["ready", "namesrv", "brokers", "data"]
        assert list(said["brokers"]) == ["broker-a", "broker-b", "broker-c"]
        assert all(accepts(address) for address in said["brokers"].values())
        with Admin(said["namesrv"]) as admin:
            assert [node.name for node in admin.cluster.masters()] == list(said["brokers"])
        assert set(running.children()) == set(said["brokers"])
        assert len(unclean(tmp_path)) == 3
        assert running.stop(number) == 0, running.log()
        assert running.process.stdout is not None
        assert running.process.stdout.read() == ""
        assert of_folder(tmp_path) == []
        assert unclean(tmp_path) == []
        assert "Traceback" not in running.log()


def test_topics_spread_over_all_brokers_under_one_key_map(tmp_path: Path) -> None:
    """Made by a first send or by an admin; producers agree, and a consumer has all in order."""
    with up(tmp_path, "--brokers", "3") as running:
        namesrv = running.ready()["namesrv"]
        with Admin(namesrv) as admin:
            admin.topics.create("made", queues=2)
        places: dict[str, set[tuple[str, str, int]]] = defaultdict(set)
        for topic in (TOPIC, "made"):
            for first in (0, 5):
                with Producer(namesrv) as producer:
                    sent = [
                        (key, producer.send_nowait(topic, str(number).encode(), key=key))
                        for number in range(first, first + 5)
                        for key in KEYS
                    ]
                    for key, future in sent:
                        queue = future.result(TIMEOUT_S).queue
                        places[f"{topic} {key}"].add((topic, queue.broker, queue.index))
        assert {len(found) for found in places.values()} == {1}
        for topic, count in ((TOPIC, 4), ("made", 2)):
            used = {found for one in places.values() for found in one if found[0] == topic}
            assert {broker for _, broker, _ in used} == {"broker-a", "broker-b", "broker-c"}
            with Admin(namesrv) as admin:
                described = admin.topics.describe(topic)
            assert len(described.queues) == 3 * count
        seen: dict[str, list[int]] = defaultdict(list)
        consumer = Consumer(namesrv, group="billing", consume_from="first")

        @consumer.on(TOPIC, order="key")
        def handle(message: ReceivedMessage) -> None:
            seen[str(message.key)].append(int(message.body))

        with consumer:
            until(lambda: sum(map(len, seen.values())) >= 10 * len(KEYS), "all are handled")
        assert dict(seen) == {key: list(range(10)) for key in KEYS}
        assert running.stop() == 0, running.log()


def test_a_broker_that_is_killed_comes_back_while_the_others_serve(tmp_path: Path) -> None:
    """It is said and started again at its address; messages are there once, each key's in order."""
    with up(tmp_path, "--brokers", "3") as running:
        said = running.ready()
        namesrv = said["namesrv"]
        with Producer(namesrv, config=PATIENT) as producer:
            place = {key: producer.send(TOPIC, b"0", key=key).queue for key in KEYS}
            victim = running.children()["broker-b"]
            waiting = []
            for number in range(1, 200):
                if number == 50:
                    os.kill(victim, signal.SIGKILL)
                for key in KEYS:
                    body = str(number).encode()
                    waiting.append(producer.send_nowait(TOPIC, body, key=key))
            for future in waiting:
                future.result(TIMEOUT_S)
        until(lambda: "broker=broker-b is ready again" in running.log(), running.log())
        assert "broker=broker-b ended (SIGKILL); its keys wait" in running.log()
        again = running.children()
        assert set(again) == {"broker-a", "broker-b", "broker-c"}
        assert again["broker-b"] != victim
        assert all(accepts(address) for address in said["brokers"].split(";"))
        found: dict[str, list[int]] = defaultdict(list)
        with PullConsumer(namesrv, group="check") as consumer:
            for queue in set(place.values()):
                for message in consumer.pull_all(queue):
                    assert queue == place[str(message.key)]
                    found[str(message.key)].append(int(message.body))
        assert dict(found) == {key: list(range(200)) for key in KEYS}
        assert running.stop() == 0, running.log()


def test_brokers_stop_cleanly_when_their_parent_is_killed(tmp_path: Path) -> None:
    """No broker is left alone with a port and a directory that nobody can use."""
    with up(tmp_path, "--brokers", "2") as running:
        running.ready()
        assert len(of_folder(tmp_path)) == 2
        running.process.kill()
        until(lambda: of_folder(tmp_path) == [], "the brokers end")
        assert unclean(tmp_path) == []
        with up(tmp_path, "--brokers", "2") as again:
            again.ready()
            assert again.stop() == 0


def test_a_broker_that_does_not_start_is_the_end_of_all(tmp_path: Path) -> None:
    """Nothing is said to be ready, and nothing is left; the broker's own error is there."""
    with (
        second_port_taken() as port,
        up(tmp_path, "--broker-port", str(port), "--brokers", "2") as running,
    ):
        assert running.process.wait(TIMEOUT_S) == 1
        assert running.line() == ""
        assert of_folder(tmp_path) == []
        last = running.log().splitlines()[-1]
        assert last == "inorder: broker broker-b did not start (exit code 1); see above why"
        assert f"{port + 10}" in running.log()
        assert "Traceback" not in running.log()


def test_a_second_signal_ends_brokers_that_do_not_stop(tmp_path: Path) -> None:
    """A broker that hangs does not hold up whoever wants it gone."""
    with up(tmp_path, "--brokers", "2") as running:
        running.ready()
        os.kill(running.children()["broker-a"], signal.SIGSTOP)
        running.process.send_signal(signal.SIGINT)
        until(lambda: "broker-b inorder.serve stopped" in running.log(), "the other stops")
        assert running.process.poll() is None
        assert running.stop(signal.SIGINT) == 1
        until(lambda: of_folder(tmp_path) == [], "all are gone")


def test_a_directory_of_one_broker_goes_on_with_more(tmp_path: Path) -> None:
    """What a plain `up` stored is there, new topics spread, and no broker is forgotten later."""
    with up(tmp_path) as one:
        with Producer(one.ready()["namesrv"]) as producer:
            before = producer.send("before", b"old", key="k")
        assert one.stop() == 0
    with up(tmp_path, "--brokers", "2") as two:
        namesrv = two.ready()["namesrv"]
        with PullConsumer(namesrv, group="check") as consumer:
            assert [message.body for message in consumer.pull_all(before.queue)] == [b"old"]
        with Producer(namesrv) as producer:
            assert producer.send("before", b"new", key="k").queue == before.queue
            used = {producer.send("after", b"x", key=key).queue.broker for key in KEYS}
        assert used == {"broker-a", "broker-b"}
        assert two.stop() == 0
    with up(tmp_path) as refused:
        assert refused.process.wait(TIMEOUT_S) == 2
        assert "has messages of broker-b" in refused.log()


def test_settings_and_tls_reach_every_broker(tmp_path: Path) -> None:
    """--set means all brokers; TLS all servers, and they find each other by it."""
    with up(
        tmp_path, "--brokers", "2", "--set", "tls.server.mode=enforcing",
        "--set", "autoCreateTopicEnable=false",
    ) as running:  # fmt: skip
        said = running.ready()
        host, _, port = said["brokers"].partition(";")[0].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as plain:
            plain.sendall(bytes(64))
            assert plain.recv(64) == b""
        with Admin(said["namesrv"], tls=client_context(trust_any=True)) as admin:
            for name in ("broker-a", "broker-b"):
                assert admin.cluster.settings(name)["autoCreateTopicEnable"] == "false"
        assert running.stop() == 0, running.log()
