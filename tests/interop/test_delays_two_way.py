"""Delayed messages that wait in a directory while the brokers take turns on it."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.process import free_ports
from tests.interop.rawclient import RawClient, body_of
from tests.interop.rocketmq import SMALL_FILES, OurBroker, Running, ended, real_broker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC, SCHEDULE = "InteropLater", "SCHEDULE_TOPIC_XXXX"
DELAYS_MS = (2000, 15_000)
SETTINGS = {**SMALL_FILES, "messageDelayLevel": "2s 15s"}
EACH = 20
COME_TIMEOUT_S = 40


def stored_ms(record: bytes) -> int:
    """Return when a record with IPv4 hosts was stored."""
    return int(struct.unpack_from(">q", record, 56)[0])


def wait_for(client: RawClient, count: int) -> None:
    """Wait until so many messages have come."""
    deadline = time.monotonic() + COME_TIMEOUT_S
    while client.max_offset(TOPIC, 0) < count:
        assert time.monotonic() < deadline, f"{client.max_offset(TOPIC, 0)} of {count} came"
        time.sleep(0.1)


def test_each_broker_delivers_what_waits_in_the_directory_of_the_other(tmp_path: Path) -> None:
    """The short delay ends under the broker that took the message, the long one under the next.

    Each comes once, none early, and each broker goes on where the other has stopped.
    """
    store, port = tmp_path / "store", free_ports(1, apart=(-2, 0, 1))[0]
    turns: list[Callable[[], Running]] = [
        lambda: OurBroker(tmp_path, store=store, port=port, settings=SETTINGS),
        lambda: real_broker(tmp_path, store=store, port=port, settings=SETTINGS),
    ] * 2
    sent: set[bytes] = set()
    for turn, start in enumerate(turns):
        server = start()
        with ended(server), RawClient(server.address, timeout_s=30) as client:
            if not turn:
                client.create_topic(TOPIC, 1)
            for number in range(EACH):
                for level in (1, 2):
                    body = f"{turn}-{level}-{number}".encode()
                    properties = {"UNIQ_KEY": body.hex().upper(), "DELAY": str(level)}
                    client.send_message(TOPIC, 0, body, properties)
                    sent.add(body)
            wait_for(client, EACH * (2 * turn + 1))
            if turn == len(turns) - 1:
                wait_for(client, len(sent))
                time.sleep(1)  # for what comes twice
                _judge(client, sent)
            server.child.stop()


def _judge(client: RawClient, sent: set[bytes]) -> None:
    due_ms = {
        body_of(record): stored_ms(record) + DELAYS_MS[level]
        for level in range(2)
        for record in client.read_queue(SCHEDULE, level)
    }
    assert due_ms.keys() == sent
    came = [(body_of(record), stored_ms(record)) for record in client.read_queue(TOPIC, 0)]
    assert sorted(body for body, _ in came) == sorted(sent)
    assert [body for body, at_ms in came if at_ms < due_ms[body]] == []
