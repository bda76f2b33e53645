"""Message ids and packed addresses."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime

import pytest

from inorder.errors import CorruptRecord, LocalProtocolError, RemoteProtocolError
from inorder.wire.ids import UniqueIds, offset_message_id, pack_host, parse_message_id, unpack_host

MONTH_MS = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("ip", "port", "position", "text"),
    [
        ("10.0.0.1", 10911, 1024, "0A00000100002A9F0000000000000400"),
        ("::1", 1, 0, "0" * 31 + "1" + "00000001" + "0" * 16),
        ("255.255.255.255", 65535, (1 << 63) - 1, "FFFFFFFF0000FFFF7FFFFFFFFFFFFFFF"),
    ],
)
def test_offset_ids(ip: str, port: int, position: int, text: str) -> None:
    """An id says where the record lies, and can be read back."""
    assert offset_message_id(pack_host(ip, port), position) == text
    assert parse_message_id(text) == (ip, port, position)


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "X" * 32, " " * 32, "0a 0" * 8, "é" * 32, "0" * 55]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    """Users type ids."""
    with pytest.raises(RemoteProtocolError):
        parse_message_id(text)


@pytest.mark.parametrize("ip", ["", "localhost", "1.2.3", "1.2.3.4.5", "x::y"])
def test_hosts_are_addresses(ip: str) -> None:
    """Names cannot be packed."""
    with pytest.raises(LocalProtocolError):
        pack_host(ip, 1)


@pytest.mark.parametrize("port", [-(1 << 32), 1 << 31])
def test_ports_fit_their_field(port: int) -> None:
    """A port has four bytes."""
    with pytest.raises(LocalProtocolError):
        pack_host("1.2.3.4", port)


@pytest.mark.parametrize("size", [0, 7, 9, 19, 21])
def test_packed_hosts_have_two_sizes(size: int) -> None:
    """Anything else is a broken record."""
    with pytest.raises(CorruptRecord):
        unpack_host(bytes(size))


def test_a_scope_is_left_out() -> None:
    """Link-local addresses come with one."""
    assert unpack_host(pack_host("fe80::1%eth0", 9)) == ("fe80::1", 9)


def test_unique_ids_hold_address_process_time_and_counter() -> None:
    """The parts stand where RocketMQ's tools look for them."""
    ids = UniqueIds("127.0.0.1", 0x12345, 0xCAFEBABE, zone=UTC)
    assert ids.next(MONTH_MS + 5) == "7F0000012345CAFEBABE000000050000"
    assert ids.next(MONTH_MS + 5) == "7F0000012345CAFEBABE000000050001"
    assert len(UniqueIds("::1", 1, 2, zone=UTC).next(MONTH_MS)) == 56


def test_unique_ids_begin_anew_each_month() -> None:
    """Time counts from the first of the month, over the turn of the year too, and backwards."""
    ids = UniqueIds("127.0.0.1", 1, 2, zone=UTC)
    december = int(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() * 1000)
    assert ids.next(december)[20:28] == f"{31 * 86_400_000 - 1000:08X}"
    assert ids.next(december + 1000)[20:28] == "00000000"
    assert ids.next(december)[20:28] == f"{31 * 86_400_000 - 1000:08X}"


def test_a_full_round_of_the_counter_is_distinct() -> None:
    """65,536 ids of one millisecond differ."""
    ids = UniqueIds("127.0.0.1", 1, 2, zone=UTC)
    assert len({ids.next(MONTH_MS) for _ in range(1 << 16)}) == 1 << 16


def test_threads_share_a_series_without_a_lock() -> None:
    """Each id is given once, whichever thread asks and whatever time it has read."""
    ids = UniqueIds("127.0.0.1", 1, 2, zone=UTC)
    found: list[list[str]] = [[] for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda mine=mine: mine.extend(
                    ids.next(MONTH_MS + n % 3) for n in range(5000)
                )
            )
            for mine in found
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len({one for mine in found for one in mine}) == 20_000
    assert {one[20:28] for mine in found for one in mine} == {f"{n:08X}" for n in range(3)}
