"""What peers wrote, in the terminal of whoever looks: nothing that is obeyed, forged or endless."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import inorder
from inorder.testing import RunningBroker
from inorder.testing import broker as testing_broker

pytestmark = pytest.mark.slow

TOPIC = "hostile"
EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\r\n12:00 forged\u202elive\u200b\x7f"
BODIES = [
    EVIL.encode(),
    b"x" * 5000,
    bytes(range(256)) * 20,
    "two\nlines\tand 键".encode(),
]


def plain(text: str) -> bool:
    """Tell whether a terminal would obey or hide nothing of it."""
    return all(c in "\n\xa0" or c.isprintable() for c in text)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """Run a broker that holds hostile messages, a hostile group's lag and a hostile parked key."""
    with testing_broker() as running:
        running.create_topic(TOPIC, queues=1)
        with inorder.Producer(running.namesrv) as producer:
            for body in BODIES:
                producer.send(
                    TOPIC, body, key=EVIL, tag="T\x1b[0m", keys=["k\x1bey"],
                    properties={"note\x1b": EVIL},
                )  # fmt: skip
        yield running


def until(holds: Callable[[], object]) -> None:
    """Wait until it holds."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("it does not come")


def run(broker: RunningBroker, *words: str, code: int = 0) -> bytes:
    """Run a command as a process, with its output in a pipe; return stdout, stderr on failure."""
    env = {**os.environ, "INORDER_NAMESRV": broker.namesrv, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", "inorder.cli.main", *words],
        env=env,
        capture_output=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("tail", TOPIC, "--from", "beginning"),
        ("tail", TOPIC, "--from", "beginning", "--body"),
        ("tail", TOPIC, "--from", "beginning", "--format", "{key} {tag} {properties} {body}"),
        ("message", "find", TOPIC, "--from", "1h"),
    ],
    ids=lambda words: "-".join(words[:1] + words[4:5]),
)
def test_a_message_is_one_line_of_bounded_length(
    broker: RunningBroker, words: tuple[str, ...]
) -> None:
    """Keys, tags, properties and bodies are escaped; what is long is cut, with its size."""
    text = run(broker, *words).decode()
    lines = text.splitlines()
    assert plain(text), text
    assert len(lines) == len(BODIES)
    assert max(map(len, lines)) < 4000
    assert "\\x1b]0;owned\\x07" in text
    assert "… (5,000 bytes)" in text
    assert "… (5,120 bytes, not UTF-8)" in text
    assert "two\\nlines\\tand 键" in text


def test_raw_gives_every_byte(broker: RunningBroker) -> None:
    """`--raw` writes bodies as they are, each followed by a newline."""
    told = run(broker, "tail", TOPIC, "--from", "beginning", "--raw")
    assert told == b"".join(body + b"\n" for body in BODIES)
    one = run(broker, "message", "get", TOPIC, "--queue", "0", "--offset", "2", "--raw")
    assert one == BODIES[2] + b"\n"
    form = ("tail", TOPIC, "--from", "beginning", "-n", "1", "--raw", "--format", "{body}")
    assert run(broker, *form) == BODIES[0] + b"\n"
    assert b"give one" in run(broker, "tail", TOPIC, "--raw", "-o", "json", code=2)


def test_json_is_whole_and_plain(broker: RunningBroker) -> None:
    """Programs get everything back; a terminal that shows the JSON obeys none of it."""
    for words in (
        ("tail", TOPIC, "--from", "beginning"),
        ("message", "find", TOPIC, "--from", "1h"),
    ):
        text = run(broker, *words, "-o", "json").decode()
        assert plain(text)
        rows = [json.loads(line) for line in text.splitlines()] if words[0] == "tail" else None
        rows = json.loads(text) if rows is None else rows
        assert rows[0]["body"] == rows[0]["key"] == EVIL
        assert rows[0]["properties"]["note\x1b"] == EVIL


def test_a_sheet_keeps_the_lines_of_a_body_and_nothing_else(broker: RunningBroker) -> None:
    """`message get` shows a text with its lines, and properties in their cells."""
    for offset in range(len(BODIES)):
        text = run(
            broker, "message", "get", TOPIC, "--queue", "0", "--offset", str(offset)
        ).decode()
        assert plain(text.replace("\t", " "))
        assert "forged" not in [line[:12].strip() for line in text.splitlines()]
    assert "two\nlines\tand 键" in text
    assert "note\\x1b" in text


def test_a_parked_key_is_shown_without_harm(broker: RunningBroker) -> None:
    """The list of parked keys, one of them, and the redrive of it print what consumers said."""
    topic = "hostile-parking"
    broker.create_topic(topic, queues=1)
    with inorder.Producer(broker.namesrv) as producer:
        producer.send(topic, EVIL.encode(), key=EVIL)
    consumer = inorder.Consumer(broker.namesrv, group="parking-group", consume_from="first")

    @consumer.on(topic, order="key", on_failure=inorder.Park(attempts=1))
    def fail(message: inorder.ReceivedMessage) -> None:
        raise ValueError(EVIL)

    with consumer, inorder.Admin(broker.namesrv) as admin:
        until(lambda: admin.parked.list("parking-group"))
    for words in (
        ("parked", "list", "parking-group"),
        ("parked", "show", "parking-group", EVIL),
        ("redrive", "parking-group", "--dry-run"),
    ):
        text = run(broker, *words).decode()
        assert plain(text), (words, text)
        assert "\\x1b" in text
        assert not re.search(r"^12:00 forged", text, re.M)


def test_an_error_of_a_peer_is_one_line(broker: RunningBroker) -> None:
    """What a broker says about a name that it was given comes back escaped."""
    told = run(broker, "topic", "describe", EVIL, code=1).decode()
    assert plain(told)
    assert len(told.splitlines()) == 1


def test_the_lag_of_a_group_that_never_committed_has_an_age(broker: RunningBroker) -> None:
    """A group that is online and has done nothing shows what it has to do, and for how long."""
    topic, blocked = "never-committed", []
    broker.create_topic(topic, queues=2)
    with inorder.Producer(broker.namesrv) as producer:
        producer.send(topic, b"1", key="a")
    consumer = inorder.Consumer(broker.namesrv, group="never-group", consume_from="first")

    @consumer.on(topic, order="queue")
    def fail(message: inorder.ReceivedMessage) -> None:
        blocked.append(message)
        raise ValueError("not yet")

    with consumer:
        until(lambda: blocked)
        sheet = run(broker, "lag", "never-group").decode()
        assert re.search(rf"{topic} +broker-a +\d +0 +\d +1 +1 +\d+\.\ds", sheet), sheet
        assert re.search(r"^lag 1, the oldest waits \d+\.\ds$", sheet, re.M)
        overview = run(broker, "lag").decode()
        assert re.search(rf"^never-group +{topic} +1 +\d+\.\ds$", overview, re.M), overview


def test_log_lines_of_a_command_carry_no_reprs(tmp_path: Path, broker: RunningBroker) -> None:
    """INFO lines of a consumer name queues in words."""
    program = tmp_path / "app.py"
    program.write_text(
        "import inorder\n"
        f"consumer = inorder.Consumer({broker.namesrv!r}, group='logging-group')\n"
        "@consumer.on('hostile', order='queue')\n"
        "def handle(message):\n"
        "    print(message.offset, flush=True)\n"
    )
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "inorder.cli.main", "consume", "app:consumer"]
    with subprocess.Popen(
        [*command, "--app-dir", str(tmp_path)], env=env, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        watchdog = threading.Timer(60, process.kill)  # whatever it says, it ends
        watchdog.start()
        seen = []
        for line in process.stderr:
            seen.append(line)
            if "is assigned" in line:
                break
        process.terminate()
        seen += process.communicate(timeout=60)[1].splitlines()
        watchdog.cancel()
    text = "".join(seen)
    assert "queue=hostile/broker-a/0 of group=logging-group is assigned" in text
    assert not re.search(r"\w+\(\w+=|TopicQueue|<\w+\.", text), text
