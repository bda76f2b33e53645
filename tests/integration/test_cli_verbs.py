"""The commands that talk to a cluster, against one in the process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.cli.contents import app
from tests.kit.cluster import Cluster
from tests.kit.commands import CliRunner

pytestmark = pytest.mark.slow

NUMBERS = count()


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """Run a cluster on a loop of its own: a command has its own loop, too."""
    found: list[str] = []
    ready, done = threading.Event(), threading.Event()

    async def main() -> None:
        async with Cluster() as cluster:
            found.append(cluster.namesrv)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(30)
    yield found[0]
    done.set()
    thread.join(30)


class Shell:
    """Runs commands against the cluster."""

    def __init__(self, namesrv: str) -> None:
        self.env = {"INORDER_NAMESRV": namesrv}

    def run(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """Return what a command printed; its exit code is as given, and errors are one line."""
        done = CliRunner().invoke(app, list(words), env=self.env, input=stdin)
        assert done.exit_code == code, (done.output, done.exception)
        if code:
            assert len(done.stderr.splitlines()) == 1, done.stderr
            return done.stderr
        return done.stdout

    def json(self, *words: str, stdin: str = "") -> Any:
        """Return what a command printed as JSON."""
        return json.loads(self.run(*words, "-o", "json", stdin=stdin))

    def lines(self, *words: str, stdin: str = "") -> list[Any]:
        """Return the JSON lines that a command printed."""
        return [
            json.loads(line)
            for line in self.run(*words, "-o", "json", stdin=stdin).split("\n")
            if line
        ]


@pytest.fixture
def shell(namesrv: str) -> Shell:
    """Give a test a shell."""
    return Shell(namesrv)


@pytest.fixture
def topic(shell: Shell) -> str:
    """Give a test a topic of its own, with two queues and four messages of keys a and b."""
    name = f"topic-{next(NUMBERS)}"
    shell.run("topic", "create", name, "--queues", "2")
    shell.run("send", name, "--key-separator", "=", "--tag", "T", stdin="a=1\nb=1\n\na=2\nb=2\n")
    return name


def test_topics(shell: Shell, topic: str) -> None:
    """List, describe, update and delete, as a table and as JSON."""
    assert topic in shell.run("topic", "list")
    (row,) = [row for row in shell.json("topic", "list") if row["topic"] == topic]
    assert row["brokers"]["broker-a"]["read_queues"] == 2
    view = shell.json("topic", "describe", topic)
    assert (view["messages"], len(view["queues"])) == (4, 2)
    assert "messages 4" in shell.run("topic", "describe", topic)
    assert "topic resize" in shell.run("topic", "update", topic, "--queues", "1", code=2)
    assert "has 3 queues" in shell.run("topic", "resize", topic, "--queues", "3")
    shell.run("topic", "update", topic, "--perm", "r")
    config = shell.json("topic", "describe", topic)["brokers"]["broker-a"]
    assert (config["perm"], config["write_queues"]) == ("r", 3)
    shell.run("topic", "delete", topic, "--yes")
    assert f"knows topic {topic}; create it" in shell.run("topic", "describe", topic, code=1)


def test_tail_shows_messages_from_anywhere(shell: Shell, topic: str) -> None:
    """The last ones by default; from the beginning, an offset or a time; by tag and key."""
    rows = shell.lines("tail", topic)
    assert sorted(row["body"] for row in rows) == ["1", "1", "2", "2"]
    for key in "ab":
        of_key = shell.lines("tail", topic, "--key", key, "--from", "beginning")
        assert [row["body"] for row in of_key] == ["1", "2"]
        assert {row["key"] for row in of_key} == {key}
    assert len(shell.lines("tail", topic, "-n", "3")) == 3
    assert len(shell.lines("tail", topic, "-n", "3", "--from", "1h")) == 3
    assert len(shell.lines("tail", topic, "--from", "5m")) == 4
    assert shell.lines("tail", topic, "--from", "end") == []
    assert shell.lines("tail", topic, "--from", "2999-01-01") == []
    assert shell.lines("tail", topic, "--tag", "other") == []
    assert len(shell.lines("tail", topic, "--tag", "T || U")) == 4
    assert len(shell.lines("tail", topic, "--sql", "TAGS IN ('T', 'U')")) == 4
    assert shell.lines("tail", topic, "--from", "beginning", "--sql", "TAGS = 'other'") == []
    done = CliRunner().invoke(app, ["tail", topic, "--sql", "a == 5"], env=shell.env)
    assert (done.exit_code, done.stderr.splitlines()[1:]) == (2, ["  a == 5", "     ^"])
    assert "not both" in shell.run("tail", topic, "--sql", "a = 5", "--tag", "T", code=2)
    offset_one = shell.lines("tail", topic, "--from", "1")
    assert {row["offset"] for row in offset_one} <= {1, 2, 3}
    assert shell.run("tail", topic, "--body", "-n", "1") == "2\n"
    assert "is no time" in shell.run("tail", topic, "--from", "soon", code=2)
    shown = shell.run("tail", topic, "--key", "a", "--format", r"{offset}\t{key}={body}")
    assert [line.split("\t")[1] for line in shown.splitlines()] == ["a=1", "a=2"]
    assert shell.lines("tail", topic, "--from", "1h", "--to", "30m") == []
    assert len(shell.lines("tail", topic, "--from", "1h", "--to", "2999-01-01")) == 4
    assert "fields are time, topic" in shell.run("tail", topic, "--format", "{nope}", code=2)
    assert "give --from with it" in shell.run("tail", topic, "--to", "1h", code=2)


def test_the_last_with_a_tag_are_the_last_of_all_queues(shell: Shell) -> None:
    """One that lies far back in its queue and is newer than those of another is not missed."""
    name = f"topic-{next(NUMBERS)}"
    shell.run("topic", "create", name, "--queues", "2")
    queue_of: dict[int, str] = {}
    for number in range(20):
        (receipt,) = shell.lines("send", name, "x", "--key", f"k{number}", "--tag", "other")
        queue_of.setdefault(receipt["queue"], f"k{number}")
    for queue, body in ((1, "first"), (1, "second"), (0, "third")):
        shell.run("send", name, body, "--key", queue_of[queue], "--tag", "wanted")
    for _ in range(5):
        shell.run("send", name, "x", "--key", queue_of[0], "--tag", "other")
    shown = shell.run("tail", name, "--tag", "wanted", "-n", "2", "--body")
    assert shown == "second\nthird\n"


@contextmanager
def follow(namesrv: str, topic: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `tail -f` as a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inorder.cli.main", "tail", topic, "-f", "--body", *words],
        env={**os.environ, "INORDER_NAMESRV": namesrv}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_tail_follows_until_it_has_enough(namesrv: str, shell: Shell, topic: str) -> None:
    """With -f and -n it waits for messages that come later, and ends."""
    with follow(namesrv, topic, "--from", "beginning", "-n", "6") as process:
        shell.run("send", topic, "--key", "k", stdin="x\ny\n")
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert sorted(out.split()) == ["1", "1", "2", "2", "x", "y"]
    assert out.index("x") < out.index("y")


def test_an_interrupt_ends_tail_quietly(namesrv: str, shell: Shell, topic: str) -> None:
    """Ctrl-C is how one stops following: no trace, exit code 0."""
    with follow(namesrv, topic) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        shell.run("send", topic, "later")
        assert process.stdout.readline() == "later\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (0, "", "")


def test_send_takes_arguments_lines_json_and_files(
    shell: Shell, topic: str, tmp_path: Path
) -> None:
    """Every source, with key, tag and properties; receipts are JSON lines."""
    (receipt,) = shell.lines("send", topic, "hello", "--key", "k", "--property", "a=b")
    (message,) = shell.json("message", "get", topic, receipt["message_id"])
    assert (message["body"], message["key"], message["tag"]) == ("hello", "k", None)
    assert (message["properties"]["a"], message["offset"]) == ("b", receipt["offset"])
    file = tmp_path / "orders.jsonl"
    file.write_text('{"id": "o1", "step": "new"}\n{"id": "o1", "step": "paid"}\n')
    shell.run(
        "send", topic, "--file", str(file), "--json", "--key-field", "id", "--tag-field", "step"
    )
    rows = shell.lines("tail", topic, "--key", "o1", "--from", "beginning")
    assert [row["tag"] for row in rows] == ["new", "paid"]
    assert len({row["queue"] for row in rows}) == 1
    done = shell.run("send", topic, "--file", str(file), "--whole")
    assert done == f"sent 1 message to {topic}\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("send", "{topic}", "x", "--file", "f"), 2, "give a body or --file, not both"),
        (("send", "{topic}", "x", "--key-field", "id"), 2, "need --json"),
        (("send", "{topic}", "{{", "--json"), 2, "the body is not JSON"),
        (("send", "{topic}", "x", "--property", "KEYS=1"), 1, "the body: properties KEYS"),
        (("send", "{topic}", "--file", "nowhere"), 1, "nowhere: No such file"),
        (("send", "bad topic", "x"), 1, "the body: "),
        (("tail", "{topic}", "--queue", "7"), 2, "has no queue 7; it has 2"),
        (("message", "get", "{topic}"), 2, "give either a message id, or --queue and --offset"),
        (("message", "get", "{topic}", "00"), 1, "has no message 00"),
        (("message", "get", "{topic}", "--queue", "0", "--offset", "99"), 1, "no message 99"),
        (("message", "find", "{topic}"), 2, "give --key, or --from"),
        (("message", "find", "{topic}", "--key", "zz"), 1, "no message of key zz"),
        (("lag", "nobody"), 1, "no broker knows group nobody"),
        (("group", "describe", "nobody"), 1, "create it, or start a consumer"),
        (("offset", "reset", "g", "{topic}", "--to", "x"), 2, "is no time"),
        (("offset", "reset", "nobody", "{topic}", "--to", "end", "-y"), 1, "knows group nobody"),
        (("offset", "reset", "g", "{topic}", "--to", "x", "--queue", "0"), 2, "is no offset"),
        (("offset", "set", "g", "{topic}", "7", "0", "-y"), 2, "has no queue 7"),
        (("cluster", "runtime", "nobody"), 2, "no broker nobody is registered; there is: broker-a"),
        (("topic", "create", "x", "--cluster", "y"), 1, "no master of cluster y is registered"),
        (("topic", "create", "x", "--perm", "q"), 2, "is no permission"),
        (("topic", "delete", "{topic}"), 2, "Nobody is there to ask; give --yes"),
        (("topic", "describe", "{topic}x"), 1, "did you mean {topic}?"),
        (("tail", "zzz"), 1, "`inorder topic list` shows what there is"),
        (("bench", "pull", "--topic", "zzz"), 1, "knows topic zzz"),
        (("check", "nowhere"), 1, "nowhere: No such file"),
        (("topic", "list", "--namesrv", "127.0.0.1:1"), 1, "start it with `inorder up`"),
        (
            ("topic", "list", "--namesrv", "nonsense"),
            2,
            "'nonsense' (option): it has no port",
        ),
    ],
    ids=lambda value: "-".join(value[:4]) if isinstance(value, tuple) else None,
)
def test_errors_say_what_to_do(
    shell: Shell, topic: str, words: tuple[str, ...], code: int, says: str
) -> None:
    """One line on stderr with the object in question, and the exit code of its kind."""
    words = tuple(word.format(topic=topic) for word in words)
    assert says.format(topic=topic) in shell.run(*words, code=code)


def test_groups_offsets_and_lag(shell: Shell, topic: str) -> None:
    """A group is made, put anywhere, measured and deleted."""
    group = f"group-of-{topic}"
    shell.run("group", "create", group, "--orderly", "--retries", "3")
    assert group in shell.run("group", "list")
    (row,) = [row for row in shell.json("group", "list") if row["group"] == group]
    assert row["brokers"]["broker-a"]["retries"] == 3
    assert "has committed nothing yet" in shell.run("lag", group, code=1)
    ends = {row["queue"]: row["max_offset"] for row in shell.json("offset", "get", group, topic)}
    shell.run("offset", "set", group, topic, "0", "0", "--yes")
    assert shell.json("lag", group)["lag"] == 4
    reset = shell.json("offset", "reset", group, topic, "--to", "end", "--yes")
    assert {row["queue"]: row["offset"] for row in reset} == ends
    assert "lag 0" in shell.run("lag", group, "--topic", topic)
    shell.run("offset", "reset", group, topic, "--to", "0", "--queue", "1", "-y")
    sums = [row for row in shell.json("lag") if row["group"] == group]
    first = shell.json("message", "get", topic, "--queue", "1", "--offset", "0")[0]
    since_ms = first["stored_at_ms"]
    assert sums == [{"group": group, "topic": topic, "lag": ends[1], "waiting_since_ms": since_ms}]
    (line,) = [line for line in shell.run("lag").splitlines() if line.startswith(f"{group} ")]
    assert re.fullmatch(rf"\S+ +{topic} +{ends[1]} +\d+\.\ds", line)
    assert "nobody is online" in shell.run("group", "describe", group)
    assert shell.json("group", "describe", group)["lag"] == ends[1]
    shell.run("group", "delete", group, "-y")
    assert group not in shell.run("group", "list")


def test_members_that_subscribe_differently_are_shown(
    shell: Shell, namesrv: str, topic: str
) -> None:
    """Who wants what, as a table and as JSON; nothing of it when they agree."""
    group = f"differs-{topic}"
    consumers = [
        inorder.Consumer(namesrv, group=group, instance=f"{group}-{tag}")
        for tag in ("paid", "shipped")
    ]
    for consumer, tag in zip(consumers, ("paid", "shipped"), strict=True):
        consumer.on(topic, tag=tag)(lambda message: None)
    with consumers[0]:
        assert shell.json("group", "describe", group)["differences"] == []
        assert "different subscriptions" not in shell.run("group", "describe", group)
        with consumers[1]:
            (found,) = shell.json("group", "describe", group)["differences"]
            assert found["topic"] == topic
            assert [view["subscription"] for view in found["views"]] == ["paid", "shipped"]
            members = [view["members"] for view in found["views"]]
            assert all(f"{group}-" in one for (one,) in members)
            shown = shell.run("group", "describe", group)
            assert "different subscriptions: messages are skipped or stand still" in shown
            assert all(one in shown for (one,) in members)


def test_messages_are_found(shell: Shell, topic: str) -> None:
    """By key and by time; one is shown in full."""
    rows = shell.json("message", "find", topic, "--key", "a")
    assert [row["body"] for row in rows] == ["1", "2"]
    assert len(shell.run("message", "find", topic, "--from", "5m", "-n", "3").splitlines()) == 3
    first = rows[0]
    sheet = shell.run(
        "message", "get", topic, "--queue", str(first["queue"]), "--offset", str(first["offset"])
    )
    assert first["message_id"] in sheet
    assert sheet.endswith("\n\n1\n")


def test_pending_transactions_are_listed_and_given_up_ones_resumed(
    shell: Shell, namesrv: str
) -> None:
    """With what tells whose they are; a filter by topic; a wrong id is named."""
    with (
        inorder.Producer(namesrv, group="shop") as producer,
        producer.transaction("Pending", b"x", key="42") as transaction,
    ):
        (row,) = shell.json("cluster", "transactions")
        assert (row["topic"], row["key"], row["producer_group"]) == ("Pending", "42", "shop")
        assert row["transaction_id"] == transaction.receipt.transaction_id
        assert "shop" in shell.run("cluster", "transactions", "--topic", "Pending")
        assert shell.json("cluster", "transactions", "--topic", "other") == []
    assert shell.json("cluster", "transactions") == []
    assert "no broker" in shell.run("cluster", "resume", "nonsense", code=2)


def test_the_cluster_is_shown(shell: Shell) -> None:
    """Brokers with address, version and settings."""
    (row,) = shell.json("cluster", "list")
    assert (row["cluster"], row["broker"]) == ("DefaultCluster", "broker-a")
    assert row["address"] in shell.run("cluster", "list")
    (numbers,) = shell.json("cluster", "brokers")
    assert numbers["version"] == "V5_3_3"
    assert "V5_3_3" in shell.run("cluster", "brokers")
    assert shell.json("cluster", "runtime", "broker-a")["brokerActive"] == "true"
    assert "brokerName" in shell.run("cluster", "config", row["address"])
    refused = shell.run("cluster", "config", "broker-a", "--set", "brokerPermission=4", code=1)
    assert "remote_config=true" in refused


def test_send_takes_a_delay(shell: Shell, topic: str) -> None:
    """Any, or a time; what waits for its time is counted and can be recalled."""
    (receipt,) = shell.lines("send", topic, "later", "--key", "k", "--delay", "2h")
    assert receipt["status"] == "SEND_OK"
    assert "sent 1 message" in shell.run("send", topic, "later", "--delay", "10")
    (timer,) = shell.lines("send", topic, "x", "--delay", "1500m")
    at = (datetime.now(UTC) + timedelta(hours=5)).isoformat()
    assert "sent 1 message" in shell.run("send", topic, "x", "--deliver-at", at)
    assert "is no duration" in shell.run("send", topic, "x", "--delay", "soon", code=2)
    assert "is no time" in shell.run("send", topic, "x", "--deliver-at", "soon", code=2)
    assert "not both" in shell.run("send", topic, "x", "--deliver-at", at, "--delay", "1", code=2)
    waiting = {row["topic"]: row["waiting"] for row in shell.json("message", "waiting")}
    assert waiting[topic] == 2
    assert topic in shell.run("message", "waiting")
    assert "is recalled" in shell.run("message", "recall", topic, timer["handle"])
    assert "is no handle" in shell.run("message", "recall", topic, "xyz", code=2)


def test_a_broker_is_cleaned(shell: Shell, topic: str) -> None:
    """Nothing has expired: nothing changes; an unknown broker is named."""
    assert shell.run("cluster", "clean", "broker-a") == "broker broker-a cleaned\n"
    assert shell.json("cluster", "clean", "broker-a") == {"broker": "broker-a", "cleaned": True}
    assert shell.json("topic", "describe", topic)["messages"] == 4
    assert "no broker nowhere is registered" in shell.run("cluster", "clean", "nowhere", code=2)


def test_a_message_is_traced(shell: Shell, namesrv: str) -> None:
    """What `trace=True` wrote is shown, as a table and as JSON; without any the command fails."""
    assert "knows topic RMQ_SYS_TRACE_TOPIC" in shell.run("message", "trace", "ID", code=1)
    shell.run("topic", "create", "Traces", "--queues", "1")
    text = "\x01".join(
        ["Pub", "1700000000000", "R", "pg", "orders", "ID1", "null", "null", "h:1", "7", "2", "0",
         "", "true"]
    ) + "\x02"  # fmt: skip
    with inorder.Producer(namesrv) as producer:
        producer.send("Traces", text.encode(), keys=["ID1"])
    shown = shell.run("message", "trace", "ID1", "--trace-topic", "Traces")
    assert re.search(r"sent +pg +ok +2 ms", shown)
    (row,) = shell.json("message", "trace", "ID1", "--trace-topic", "Traces")
    assert (row["kind"], row["group"], row["success"]) == ("Pub", "pg", True)
    missing = shell.run("message", "trace", "ID2", "--trace-topic", "Traces", code=1)
    assert "no client has traced message ID2" in missing
