"""What becomes of a message that is given back."""

from __future__ import annotations

import pytest

from inorder.broker.retries.rules import SentBack, send_back
from inorder.wire.ids import pack_host
from inorder.wire.properties import format_properties, parse
from inorder.wire.record import Record

THERE = pack_host("10.0.0.9", 10911)
HERE = pack_host("127.0.0.1", 10911)


def give_back(level: int = 0, attempts_max: int = 16, **more: object) -> SentBack:
    fields: dict[str, object] = {
        "properties": format_properties({"TAGS": "A", "UNIQ_KEY": "U1", "mine": "x"}).encode(),
        "store_host": THERE, "born_at_ms": 5, "sys_flag": 1, "flag": 3, **more,
    }  # fmt: skip
    record = Record("orders", 2, 7, 4096, b"body", **fields)  # type: ignore[arg-type]
    return send_back(record, group="g", level=level, attempts_max=attempts_max, store_host=HERE)


def test_the_message_stays_what_it_was() -> None:
    """Body, birth, flags, tags and UNIQ_KEY; one attempt more; where it came from."""
    back = give_back()
    assert back.record.topic == "%RETRY%g"
    assert (back.record.body, back.record.born_at_ms) == (b"body", 5)
    assert (back.record.sys_flag, back.record.flag, back.record.redeliveries) == (1, 3, 1)
    assert back.record.store_host == HERE
    assert parse(back.record.properties) == {
        "TAGS": "A", "UNIQ_KEY": "U1", "mine": "x", "RETRY_TOPIC": "orders", "WAIT": "false",
        "DELAY": "3", "ORIGIN_MESSAGE_ID": "0A00000900002A9F0000000000001000",
    }  # fmt: skip


@pytest.mark.parametrize(("attempts", "level"), [(0, 3), (1, 4), (15, 18)])
def test_the_level_grows_with_the_attempts(attempts: int, level: int) -> None:
    """Three more than were made."""
    back = give_back(redeliveries=attempts)
    assert (back.level, back.dead) == (level, False)
    assert parse(back.record.properties)["DELAY"] == str(level)


def test_an_explicit_level_counts() -> None:
    """Whatever the number of attempts."""
    assert give_back(level=7, redeliveries=5).level == 7


@pytest.mark.parametrize(("level", "attempts"), [(-1, 0), (0, 16), (5, 17)])
def test_the_last_attempt_ends_in_the_dead_letters(level: int, attempts: int) -> None:
    """So does a level below zero; at once, with one attempt more."""
    back = give_back(level=level, redeliveries=attempts)
    assert (back.record.topic, back.level, back.dead) == ("%DLQ%g", 0, True)
    assert back.record.redeliveries == attempts + 1
    assert parse(back.record.properties)["DELAY"] == "0"


def test_the_first_origin_is_kept() -> None:
    """Over any number of retries."""
    first = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "FIRST", "REAL_TOPIC": "%RETRY%g"}
    found = parse(give_back(properties=format_properties(first).encode()).record.properties)
    assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("orders", "FIRST")


def test_the_numbers_of_the_send_do_not_travel_on() -> None:
    """A retry is no send of that producer, and was not delivered from a level's queue yet."""
    names = ("UNIQ_KEY", "INORDER_PID", "INORDER_SEQ", "INORDER_PREV", "INORDER_SCHED")
    raw = format_properties(dict.fromkeys(names, "1")).encode()
    found = parse(give_back(properties=raw).record.properties)
    assert not [name for name in found if name.startswith("INORDER_")]


def test_odd_values_of_properties_survive() -> None:
    """A value may hold the separator between name and value."""
    assert parse(give_back(properties=b"k\x01a\x01b\x02").record.properties)["k"] == "a\x01b"
