"""The programs of examples/, as a reader runs them: started, stopped, killed, started again."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import inorder
from inorder.testing import RunningBroker
from tests.house.sources import ROOT

EXAMPLES = ROOT / "examples"
STEPS = ("created", "paid", "packed", "shipped")
SECONDS = 60.0


def waits_for(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("it did not happen in time")
        time.sleep(0.02)


@contextmanager
def program(
    broker: RunningBroker, output: Path, *words: str | Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program against a broker, its output in a file; kill it if it is still there."""
    environment = {**os.environ, "INORDER_NAMESRV": broker.namesrv}
    with output.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *map(str, words)], env=environment, stdout=file,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    except BaseException:
        print(output.read_text())
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stops(process: subprocess.Popen[bytes], code: int = 0) -> None:
    """Stop a program as a supervisor does; it ends cleanly."""
    process.terminate()
    assert process.wait(SECONDS) == code


def send_steps(broker: RunningBroker, orders: int, steps: tuple[str, ...]) -> None:
    """Send some steps of all orders, interleaved."""
    with broker.producer() as producer:
        for step in steps:
            for order in range(orders):
                producer.send("orders", step.encode(), key=f"order-{order}")


def rows(path: Path, query: str) -> list[Any]:
    """Return what a database says; nothing, while its tables are not there."""
    with closing(sqlite3.connect(path, timeout=30)) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []


@pytest.mark.slow
def test_the_order_service_applies_each_event_once(
    inorder_broker: RunningBroker, tmp_path: Path
) -> None:
    """Killed in the middle, stopped, restarted, two at a time: each event once and in order."""
    path, log = tmp_path / "orders.db", tmp_path / "log"
    words = (EXAMPLES / "order_service.py", path)
    orders = 30
    with program(inorder_broker, log, *words) as process:
        send_steps(inorder_broker, orders, STEPS[:2])
        waits_for(lambda: len(rows(path, "SELECT 1 FROM orders")) > 5)
        process.kill()
        process.wait()
    with program(inorder_broker, log, *words) as one, program(inorder_broker, log, *words) as two:
        send_steps(inorder_broker, orders, STEPS[2:])
        done = "SELECT id FROM orders WHERE state = 'shipped'"
        waits_for(lambda: len(rows(path, done)) == orders)
        stops(one)
        stops(two)
    assert rows(path, "SELECT DISTINCT state, events FROM orders") == [("shipped", len(STEPS))]
    seen: dict[str, list[str]] = {}
    # Two processes write into one file: a line may follow another one before its end.
    for order, step in re.findall(rf"applied (\w+-\d+) ({'|'.join(STEPS)})", log.read_text()):
        seen.setdefault(order, []).append(step)
    assert len(seen) == orders
    for steps in seen.values():  # a kill may fall between an effect and its line: never a swap
        assert steps == [step for step in STEPS if step in steps]


@pytest.mark.slow
def test_the_parking_service_goes_on_without_the_parked(
    inorder_broker: RunningBroker, tmp_path: Path
) -> None:
    """Unknown customers are parked over a kill, and billed in order when they are known."""
    path, log = tmp_path / "bills.db", tmp_path / "log"
    words = (EXAMPLES / "parking.py", path)
    inorder_cli = [sys.executable, "-m", "inorder.cli.main"]
    environment = {**os.environ, "INORDER_NAMESRV": inorder_broker.namesrv}

    def add(name: str) -> None:
        with program(inorder_broker, log, *words, "add", name) as adding:
            assert adding.wait(SECONDS) == 0

    def parked(admin: inorder.Admin) -> dict[str, int]:
        return {one.key: one.messages for one in admin.parked.list("billing")}

    add("anna")
    with inorder.Admin(inorder_broker.namesrv) as admin, inorder_broker.producer() as producer:
        with program(inorder_broker, log, *words) as process:
            for amount in (10, 20, 30):
                for customer in ("anna", "bert", "carl"):
                    producer.send("payments", b"%d" % amount, key=customer)
            waits_for(lambda: parked(admin) == {"bert": 3, "carl": 3})
            waits_for(lambda: len(rows(path, "SELECT 1 FROM bills")) == 3)
            process.kill()
            process.wait()
        add("bert")
        producer.send("payments", b"40", key="bert")
        with program(inorder_broker, log, *words) as process:
            done = subprocess.run(
                [*inorder_cli, "redrive", "billing", "bert", "--wait"],
                env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            waits_for(lambda: len(rows(path, "SELECT 1 FROM bills")) == 7)
            stops(process)
        assert parked(admin) == {"carl": 3}
    for customer, amounts in (("anna", [10, 20, 30]), ("bert", [10, 20, 30, 40])):
        query = f"SELECT amount FROM bills WHERE customer = '{customer}' ORDER BY sequence"
        assert [amount for (amount,) in rows(path, query)] == amounts


@pytest.mark.slow
def test_the_web_application_says_what_is_stored(
    inorder_broker: RunningBroker, tmp_path: Path
) -> None:
    """Steps are stored in order over a broker's restart; one that is not stored is no success."""
    pytest.importorskip("fastapi", reason="`make examples` installs it")
    pytest.importorskip("uvicorn")
    httpx = pytest.importorskip("httpx")
    log = tmp_path / "log"
    words = ("-m", "uvicorn", "web_shop:app", "--app-dir", EXAMPLES, "--port", "0")
    address = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
    with program(inorder_broker, log, *words) as process:
        waits_for(lambda: address.search(log.read_text()) is not None)
        found = address.search(log.read_text())
        assert found is not None
        with httpx.Client(base_url=found[1], timeout=SECONDS) as client:
            for step in ("created", "paid"):
                answer = client.post(f"/orders/order-1/{step}")
                assert answer.status_code == 201, answer.text
            inorder_broker.restart()
            assert client.post("/orders/order-1/packed").json()["offset"] == 2
            inorder_broker.kill()
            answer = client.post("/orders/order-2/created")
            assert answer.status_code in (503, 504), answer.text
            assert "stored" in answer.json()["detail"]
            inorder_broker.restart()
            assert client.post("/orders/order-1/shipped").status_code == 201
        stops(process, -signal.SIGTERM)  # uvicorn closes everything, then ends by the signal
    stored = inorder_broker.messages("orders")
    steps = [one.body.decode() for one in stored if one.key == "order-1"]
    assert steps == ["created", "paid", "packed", "shipped"]
    assert "Application shutdown complete" in log.read_text()


@pytest.mark.slow
def test_the_tests_with_faults_pass() -> None:
    """A reader's pytest runs the file as it is."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0",
         str(EXAMPLES / "test_with_faults.py")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


@pytest.mark.spark
def test_the_pipeline_continues_where_it_was(inorder_broker: RunningBroker, tmp_path: Path) -> None:
    """Two runs: each payment once, balances go on from the state of the run before."""
    path, log = tmp_path / "balances", tmp_path / "log"
    printed = re.compile(r"^\|\s*(\w+)\|\s*(-?\d+)\|\s*(-?\d+)\|$", re.MULTILINE)

    def run(*payments: tuple[str, int]) -> list[tuple[str, int, int]]:
        with inorder_broker.producer() as producer:
            for account, amount in payments:
                producer.send("account-payments", b"%d" % amount, key=account)
        log.write_text("")
        with program(inorder_broker, log, EXAMPLES / "spark_balances.py", path) as process:
            assert process.wait(240) == 0
        return [(a, int(b), int(c)) for a, b, c in printed.findall(log.read_text())]

    first = run(("anna", 10), ("bert", 7), ("anna", -3))
    assert [row for row in first if row[0] == "anna"] == [("anna", 10, 10), ("anna", -3, 7)]
    both = run(("anna", 100))
    assert [row for row in both if row[0] == "anna"][-1] == ("anna", 100, 107)
    assert len(both) == 4


def test_every_example_is_described() -> None:
    """Each program has a section in the page that readers find."""
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f"]({path.name})" in page
