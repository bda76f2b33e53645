"""Times and handles of messages for a time of day."""

from __future__ import annotations

import base64

import pytest

from inorder.errors import RemoteProtocolError
from inorder.wire.properties import join
from inorder.wire.timers import (
    Handle,
    code_of,
    decode_handle,
    due_ms,
    due_of,
    entry_code,
    is_recall,
)


@pytest.mark.parametrize(
    ("properties", "due"),
    [
        ({"TIMER_OUT_MS": "1499", "TIMER_DELIVER_MS": "1500"}, 1500),
        ({"TIMER_OUT_MS": "1000", "TIMER_DELIVER_MS": "1500"}, 1500),
        ({"TIMER_OUT_MS": "1000", "TIMER_DELIVER_MS": "2000"}, 2000),
        ({"TIMER_OUT_MS": "1000", "TIMER_DELAY_MS": "400"}, 2000),
        ({"TIMER_OUT_MS": "1000", "TIMER_DELIVER_MS": "99"}, 2000),
        ({"TIMER_OUT_MS": "x"}, None),
        ({}, None),
    ],
)
def test_the_time_of_a_stored_timer(properties: dict[str, str], due: int | None) -> None:
    """Ours to the millisecond; RocketMQ's, too, if the sender gave it, else never early."""
    assert due_ms(join(properties).encode()) == due


def test_recalls_sort_before_the_messages_of_their_millisecond() -> None:
    """And after those of the millisecond before; no tag hash is mistaken for a code."""
    codes = [code_of(7), code_of(8, recall=True), code_of(8), code_of(9, recall=True)]
    assert codes == sorted(codes)
    assert [due_of(code) for code in codes] == [7, 8, 8, 9]
    assert [is_recall(code) for code in codes] == [False, True, False, True]
    assert code_of(1_700_000_000_000) > 1 << 32
    stored = {"TIMER_OUT_MS": "7", "TIMER_DELIVER_MS": "8", "TIMER_DEL_UNIQKEY": "t+U"}
    assert entry_code(join(stored).encode()) == code_of(8, recall=True)


def test_a_handle_is_rocketmqs() -> None:
    """As a broker of 5.3 answered it."""
    text = (
        "djEgQ2FwUHJvZCBicm9rZXItYSAxNzk0NzE1Njc1MDAxIEMwMDAwMjAyNDQ1MDRFMEUyRjJBNDhGQkZBNkIwMDEw"
    )
    handle = decode_handle(text)
    assert handle == Handle(
        "CapProd", "broker-a", 1_794_715_675_001, "C000020244504E0E2F2A48FBFA6B0010"
    )
    assert handle.encode() == text


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "abc",
        "ä",
        encoded("v2 t b 1 U"),
        encoded("v1 t b 1"),
        encoded("v1 t  1 U"),
        "A" * 9000,
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    """With RocketMQ's words."""
    with pytest.raises(RemoteProtocolError, match="recall handle is invalid"):
        decode_handle(text)


def test_a_time_that_is_no_number_is_minus_one() -> None:
    """As RocketMQ reads it: the recall is refused for its time."""
    assert decode_handle(encoded("v1 t b soon U")).due_ms == -1
