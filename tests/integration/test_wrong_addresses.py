"""The mistakes of a first day: a wrong address, a wrong directory. Each error says the way out."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import inorder
import inorder.aio
from inorder.config import BrokerConfig
from inorder.errors import ConfigError, InorderError
from inorder.testing import RunningBroker
from inorder.testing import broker as testing_broker
from tests.kit.cluster import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """Run a broker with a topic."""
    with testing_broker() as running:
        running.create_topic("orders")
        yield running


def send(namesrv: str | None) -> None:
    """Send as the quick start does."""
    with inorder.Producer(namesrv) as producer:
        producer.send("orders", b"x", key="a")


def pull(namesrv: str | None) -> None:
    """Look for queues."""
    with inorder.PullConsumer(namesrv, group="g") as consumer:
        consumer.queues("orders")


def look(namesrv: str | None) -> None:
    """List topics."""
    with inorder.Admin(namesrv) as admin:
        admin.topics.names()


def send_async(namesrv: str | None) -> None:
    """Send with asyncio."""

    async def story() -> None:
        async with inorder.aio.Producer(namesrv) as producer:
            await producer.send("orders", b"x", key="a")

    asyncio.run(story())


CALLS = [send, pull, look, send_async]


@pytest.mark.parametrize("call", CALLS)
def test_the_port_of_a_broker_is_said_to_be_that(
    broker: RunningBroker, call: Callable[[str | None], None]
) -> None:
    """Whoever does not know a name server's requests is called what it probably is."""
    with pytest.raises(ConfigError, match=r"is no name server.*broker.*9876"):
        call(broker.address)


def test_another_name_server_of_the_list_is_asked(broker: RunningBroker) -> None:
    """One wrong address among right ones costs nothing but a line of the log."""
    for call in CALLS:
        call(f"{broker.address};{broker.namesrv}")


@pytest.mark.parametrize("call", CALLS)
def test_the_environment_counts_where_no_argument_does(
    broker: RunningBroker, call: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Argument, INORDER_NAMESRV, NAMESRV_ADDR, in this order, in the blocking and async client."""
    monkeypatch.setenv("NAMESRV_ADDR", "http://wrong")
    monkeypatch.setenv("INORDER_NAMESRV", broker.namesrv)
    call(None)
    monkeypatch.setenv("INORDER_NAMESRV", "also wrong:1")
    with pytest.raises(ConfigError, match="environment INORDER_NAMESRV"):
        call(None)
    call(broker.namesrv)
    monkeypatch.delenv("INORDER_NAMESRV")
    with pytest.raises(ConfigError, match=r"environment NAMESRV_ADDR.*without http://"):
        call(None)


def test_a_consumer_with_a_wrong_address_does_not_start() -> None:
    """What can never be right is refused when it is made."""
    with pytest.raises(ConfigError, match=r"without http://; write 127\.0\.0\.1:9876"):
        inorder.Consumer("http://127.0.0.1:9876", group="g")
    with pytest.raises(ConfigError, match="it has no port"):
        inorder.aio.Consumer("127.0.0.1", group="g")


def test_a_broker_that_registers_with_a_broker_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """`inorder broker --namesrv` with the wrong port is named in its log."""
    from inorder.broker.broker import Broker
    from inorder.clock import SystemClock
    from tests.kit.disk import FakeFiles

    async def story() -> None:
        async with Cluster() as cluster:
            wrong = cluster.embedded.broker_address
            config = BrokerConfig(name="second", port=0, namesrv=wrong, data="d")
            second = Broker(config, SystemClock(), FakeFiles())
            await second.start()
            async with asyncio.timeout(60):
                while not any("no name server" in line for line in caplog.messages):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await second.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())


def bound() -> None:
    """Take away from root what lets it write everywhere, as for any other user."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE


def run(*words: str) -> tuple[int, str]:
    """Run a command until it ends; return its code and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "inorder.cli.main", *words, "--log-level", "critical"],
        capture_output=True, text=True, timeout=60, check=False, preexec_fn=bound,
    )  # fmt: skip
    return done.returncode, done.stderr


SERVERS = [
    ("up", "--namesrv-port", "0", "--broker-port", "0"),
    ("broker", "--port", "0"),
    ("nameserver", "--port", "0"),
]


@pytest.mark.parametrize("words", SERVERS, ids=lambda words: words[0])
def test_a_data_directory_that_cannot_be_one_is_refused(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """A file, a path below a file, and a directory that one may not write to; never "a port"."""
    file = tmp_path / "file"
    file.write_text("x")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    for data, says in (
        (file, "--data is a directory"),
        (file / "below", "--data is a directory"),
        (locked / "data", "this user may not write there; choose another --data"),
    ):
        code, told = run(*words, "--data", str(data))
        assert code == 1
        assert len(told.splitlines()) == 1, told
        assert says in told
        assert str(data) in told
        assert "port" not in told


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A directory that is there and may not be written to is said to be that, too."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    code, told = run(*SERVERS[0], "--data", str(locked))
    assert code == 1
    assert "Permission denied; this user may not write there" in told


def test_the_command_line_says_where_an_address_came_from(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error names the option, the variable or the profile that is wrong."""
    code, told = run("topic", "list", "--namesrv", "http://127.0.0.1:1")
    assert (code, "(option)" in told, "without http://" in told) == (2, True, True)
    monkeypatch.setenv("NAMESRV_ADDR", "mq")
    code, told = run("topic", "list")
    assert (code, "(environment NAMESRV_ADDR): it has no port" in told) == (2, True)
    code, told = run("topic", "list", "--namesrv", broker.address)
    assert (code, "is no name server" in told) == (2, True)


def test_errors_are_ours() -> None:
    """Whoever catches InorderError catches these."""
    with pytest.raises(InorderError):
        inorder.Producer("nonsense")
