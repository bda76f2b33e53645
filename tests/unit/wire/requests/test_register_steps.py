"""Large registrations are read and written in steps, with the same result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inorder.errors import SystemError_
from inorder.model import DataVersion, TopicConfig
from inorder.wire.requests import registration
from inorder.wire.requests.registration import RegisterBrokerBody, Steps, finish

VERSION = DataVersion(3, 1_700_000_000_000, 77)
STANDARD = 479


def topics(count: int) -> dict[str, TopicConfig]:
    """Return topics, some with attributes that look like the end of an entry."""
    made = {}
    for number in range(count):
        attributes = {'a},"b': '"},"'} if number % 7 == 0 else {}
        name = f"topic{number:06d}"
        made[name] = TopicConfig(name, 1 + number % 9, 2, 6, attributes=attributes)
    return made


def counted(steps: Steps[Any]) -> tuple[int, Any]:
    """Take all steps; return how many there were, and the result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_registration_is_read_in_many_steps(compressed: bool) -> None:
    """No step reads more than a few hundred topics; all of them arrive."""
    body = RegisterBrokerBody(VERSION, topics(5000), ("a:1",))
    raw = body.encode(compressed=compressed)
    count, found = counted(
        RegisterBrokerBody.decode_steps(raw, version=STANDARD, compressed=compressed)
    )
    assert found == body
    assert count >= 15


def test_pieces_are_cut_between_topics_whatever_stands_in_them() -> None:
    """Of a piece that ends inside of a topic an earlier comma is tried."""
    original = registration.PIECE_BYTES
    body = RegisterBrokerBody(VERSION, topics(60), ())
    raw = body.encode()
    try:
        for size in range(400, 700, 7):
            registration.PIECE_BYTES = size  # type: ignore[misc]
            assert RegisterBrokerBody.decode(raw, version=STANDARD) == body
    finally:
        registration.PIECE_BYTES = original  # type: ignore[misc]


def test_a_small_registration_is_read_at_once() -> None:
    """An ordinary one costs no waiting."""
    raw = RegisterBrokerBody(VERSION, topics(50)).encode()
    assert counted(RegisterBrokerBody.decode_steps(raw, version=STANDARD))[0] == 0


def test_what_is_large_beside_its_topics_is_refused() -> None:
    """A registration may be long because of topics only: the rest is read in one go."""
    raw = json.dumps({"filterServerList": ["x" * 100] * 20_000}).encode()
    with pytest.raises(SystemError_, match="beside topics"):
        RegisterBrokerBody.decode(raw, version=STANDARD)


@pytest.mark.parametrize("cut", [10_000, 70_000, 90_000])
def test_a_large_registration_that_is_cut_is_refused(cut: int) -> None:
    """Nothing of it counts, in whichever piece it ends."""
    raw = RegisterBrokerBody(VERSION, topics(1000)).encode()
    with pytest.raises(SystemError_):
        RegisterBrokerBody.decode(raw[:cut], version=STANDARD)


def test_writing_in_steps_gives_the_same_bytes() -> None:
    """JSON where it fits, with the same order of fields."""
    body = RegisterBrokerBody(VERSION, topics(1000))
    count, raw = counted(body.encode_steps())
    assert raw == body.encode()
    assert count >= 3


def test_what_is_too_long_for_json_is_written_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps end in the zlib form, which says the same."""
    monkeypatch.setattr(registration, "JSON_BYTES_MAX", 10_000)
    body = RegisterBrokerBody(VERSION, topics(500))
    raw = finish(body.encode_steps())
    assert raw[:1] == b"\x78"
    found = RegisterBrokerBody.decode(raw, version=STANDARD, compressed=True)
    assert found.topics == body.topics
