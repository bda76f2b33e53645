"""RocketMQ's Java client over TLS, where the broker accepts nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.remoting import RemotingError
from bench.systems import start_ours
from tests.interop.driver import Driver, by_queue
from tests.interop.rawclient import GET_MAX_OFFSET, RawClient
from tests.interop.stock import KINDS, as_sent
from tests.interop.toolchains import Lacking

pytestmark = [pytest.mark.interop, pytest.mark.slow]

READY = re.compile(r"^ready namesrv=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+) ", re.MULTILINE)


def test_a_java_client_works_where_plain_text_is_refused(tmp_path: Path) -> None:
    """With `tls.server.mode=enforcing` plain connections are closed; `tls.enable=true` works.

    The settings of `inorder up` are the broker's; the name server takes both, and Java uses TLS.
    """
    kind = next(kind for kind in KINDS if kind.name == "java-5.3.3-tls")
    try:
        command = kind.command()
    except Lacking as lacking:
        pytest.skip(f"{kind.name} cannot run here: {lacking}")
    flags = {"broker-port": 0, "namesrv-port": 0, "data": tmp_path / "data"}
    settings = {"tls.server.mode": "enforcing"}
    server = start_ours("up", tmp_path, flags=flags, settings=settings)
    try:
        server.wait_until(lambda: READY.search(server.output()) is not None, timeout_s=30)
        ready = READY.search(server.output())
        assert ready is not None
        broker = ("127.0.0.1", int(ready.group(2)))
        with RawClient(broker) as raw, pytest.raises((RemotingError, OSError)):
            raw.request(GET_MAX_OFFSET, {"topic": "TBW102", "queueId": 0})
        driver = Driver(kind.name, command, f"127.0.0.1:{ready.group(1)}", tmp_path / "client")
        try:
            driver.do("produce", topic="made_by_sending", first=0, count=100, tags="A")
            driver.do(
                "push", name="r", group="g", topic="made_by_sending", tags="*", mode="concurrent"
            )
            driver.wait(lambda: len(driver.messages("got")) >= 100, "100 messages", timeout_s=30)
            assert by_queue(driver.messages("got")) == as_sent(0, 100)
        finally:
            driver.end()
    finally:
        server.kill()
