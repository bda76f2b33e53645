"""How commands behave towards people and pipes: TLS, suggestions, closed pipes, completion."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import inorder.testing
from inorder.config import BrokerConfig, NetConfig
from inorder.testing import RunningBroker

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "inorder.cli.main")
NAME = "prog_name='inorder'"
ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """A broker with a topic of 2,000 messages and a group."""
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=2)
        with inorder.Producer(running.namesrv) as producer:
            batch = [inorder.Message("orders", b"x" * 200, key=f"k{n % 9}") for n in range(2000)]
            producer.send_batch(batch)
        with inorder.Admin(running.namesrv) as admin:
            admin.groups.create(inorder.GroupConfig("billing"))
        yield running


def run(
    broker: RunningBroker, *words: str, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own."""
    return subprocess.run(
        [*COMMAND, *words], env={**os.environ, "INORDER_NAMESRV": broker.namesrv, **env},
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        "tail orders --from beginning",
        "tail orders --from beginning -o json",
        "topic describe orders",
        "config show",
        "send orders -o json",
    ],
)
def test_a_closed_pipe_ends_it_quietly(broker: RunningBroker, words: str) -> None:
    """`| head -1`: no traceback; 141 as for any other tool if there was more to say."""
    lines = "".join(f"{number}\n" for number in range(3000))
    shell = f'"$0" -m inorder.cli.main {words} | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable], input=lines, capture_output=True, text=True,
        env={**os.environ, "INORDER_NAMESRV": broker.namesrv}, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 141)
    if "beginning" in words:
        assert done.returncode == 141
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_no_colours_in_a_pipe(broker: RunningBroker) -> None:
    """What a program reads holds no escapes, whatever the terminal is called."""
    for words in (("topic", "list"), ("send", "orders", "hello"), ("topic", "lits"), ("--help",)):
        done = run(broker, *words, TERM="xterm-256color", FORCE_COLOR="")
        assert ESCAPE not in done.stdout + done.stderr


def test_names_are_completed_from_the_cluster(broker: RunningBroker) -> None:
    """Topics and groups, for bash; a cluster that is away completes nothing and says nothing."""

    def complete(line: str, namesrv: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", f"from inorder.cli.contents import app; app({NAME})"],
            env={
                **os.environ, "INORDER_NAMESRV": namesrv, "_INORDER_COMPLETE": "complete_bash",
                "COMP_WORDS": line, "COMP_CWORD": str(len(line.split())),
            },
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout.strip(), done.stderr

    assert complete("inorder tail ", broker.namesrv) == ("orders", "")
    assert complete("inorder group describe ", broker.namesrv) == ("billing", "")
    assert complete("inorder tail ", "127.0.0.1:1") == ("", "")


def test_a_person_is_asked_before_something_is_deleted(broker: RunningBroker) -> None:
    """On a terminal there is a question; anything but yes leaves all as it is."""
    broker.create_topic("precious", queues=1)

    def answer(text: bytes) -> int:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "topic", "delete", "precious"], stdin=theirs, stdout=theirs, stderr=theirs,
            env={**os.environ, "INORDER_NAMESRV": broker.namesrv},
        )  # fmt: skip
        os.close(theirs)
        said = b""
        while b"?" not in said:
            said += os.read(ours, 1000)
        assert b"Delete topic precious with all its messages?" in said
        os.write(ours, text)
        code = process.wait(60)
        os.close(ours)
        return code

    assert answer(b"n\n") == 1
    assert "precious" in run(broker, "topic", "list").stdout
    assert answer(b"y\n") == 0
    assert "precious" not in run(broker, "topic", "list").stdout


def test_an_interrupted_send_says_how_far_it_came(broker: RunningBroker) -> None:
    """Ctrl-C in the middle of standard input: a line, 130, and what was sent is stored."""
    process = subprocess.Popen(
        [*COMMAND, "send", "orders", "--key", "interrupted", "-o", "json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "INORDER_NAMESRV": broker.namesrv},
    )  # fmt: skip
    assert process.stdin is not None
    for number in range(2000):
        process.stdin.write(f"{number}\n")
    process.stdin.flush()
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("verb", ["send", "pull", "roundtrip"])
def test_bench_measures_and_cleans_up(broker: RunningBroker, verb: str) -> None:
    """Numbers that make sense, a temporary topic that is gone."""
    done = run(broker, "bench", verb, "--count", "300", "--size", "100", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["messages"], found["mean_bytes"]) == (300, 100)
    assert found["messages_per_second"] > 10
    latency = found["latency_ms"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert found["client_cpu_us_per_message"] > 0
    assert "inorder-bench" not in run(broker, "topic", "list").stdout
    table = run(broker, "bench", verb, "--count", "50").stdout
    assert "messages/s" in table


def test_bench_uses_the_topic_that_it_is_told(broker: RunningBroker) -> None:
    """Several producers send to it; it is read and stays."""
    broker.create_topic("measured", queues=2)
    words = ("--topic", "measured", "-n", "200", "-o", "json")
    done = run(broker, "bench", "send", *words, "--producers", "3", "--window", "4", "--keys", "0")
    assert json.loads(done.stdout)["producers"] == 3
    held = len(broker.messages("measured"))
    assert held >= 200
    assert json.loads(run(broker, "bench", "pull", *words).stdout)["messages"] == 200
    assert len(broker.messages("measured")) == held


def test_check_judges_a_log(broker: RunningBroker, tmp_path: Path) -> None:
    """JSON lines and CSV; exit code 1 with what is wrong, 0 if nothing is."""
    sent = [
        f'{{"event": "sent", "producer": "p", "key": "k", "sequence": {n}, "id": "m{n}"}}\n'
        for n in range(3)
    ]
    log = tmp_path / "sent.jsonl"
    log.write_text("".join(sent))
    stored = tmp_path / "stored.csv"
    stored.write_text(
        "event,queue,offset,id,key\nstored,q,0,m0,k\nstored,q,1,m1,k\nstored,q,2,m2,k\n"
    )
    fine = run(broker, "check", str(log), str(stored))
    assert (fine.returncode, fine.stderr) == (0, "")
    assert fine.stdout.startswith("in order (sent=3 acknowledged=3 stored=3")
    stored.write_text(
        "event,queue,offset,id,key\nstored,q,0,m0,k\nstored,q,1,m2,k\nstored,q,2,m1,k\n"
    )
    wrong = run(broker, "check", str(log), str(stored), "-o", "json")
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["by_kind"] == {"inverted": 1}
    piped = run(broker, "check", "-", stdin="".join(sent))
    assert piped.returncode == 0
    stored.write_text("event,queue,offset,id\nstored,q,zero,m0\n")
    bad = run(broker, "check", str(stored))
    assert bad.returncode == 2
    assert "line 2: offset is 'zero', not a whole number" in bad.stderr


def test_tls_by_options_and_by_profile(tmp_path: Path) -> None:
    """Trusted by authority, refused without one, taken as it is if told so."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "cert.pem"), append=True)
    net = NetConfig(
        tls_certificate=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem"),
        tls_mode="permissive",
    )  # fmt: skip
    profiles = tmp_path / "profiles.toml"
    with inorder.testing.broker(config=BrokerConfig(net=net)) as secure:
        profiles.write_text(f'[safe]\nnamesrv = "{secure.namesrv}"\ntls_ca = "ca.pem"\n')
        # The name server of the kit has a certificate of its own making.
        assert run(secure, "topic", "list", "--tls-insecure").returncode == 0
        refused = run(secure, "topic", "list", "--tls")
        assert refused.returncode == 1
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
        assert "trust any by --tls-insecure" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        sent = run(secure, "send", "orders", "x", "--tls-insecure", "--key", "k")
        assert (sent.returncode, sent.stderr) == (0, "")
        by_profile = run(
            secure, "topic", "list", "--profile", "safe", INORDER_PROFILES=str(profiles)
        )
        assert "CERTIFICATE_VERIFY_FAILED" in by_profile.stderr
        missing = run(secure, "topic", "list", "--tls-ca", str(tmp_path / "none.pem"))
        assert (missing.returncode, "there is no file" in missing.stderr) == (2, True)


@pytest.mark.parametrize("verb", ["send", "roundtrip"])
def test_bench_ends_at_the_first_error(broker: RunningBroker, verb: str) -> None:
    """A topic that nobody may write to: one line, exit code 1, soon."""
    broker.create_topic("read-only", queues=1, perm=4)
    done = run(
        broker, "bench", verb, "--topic", "read-only", "-n", "5000",
        INORDER_CLIENT__SEND_TIMEOUT_MS="1500",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "read-only has no queue that may be written to" in done.stderr
    assert len(done.stderr.splitlines()) == 1
