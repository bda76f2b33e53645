"""Dataclasses as header fields."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from inorder.errors import SystemError_
from inorder.wire.fields import Int32, decode_fields, encode_fields, wire_names


@dataclass(frozen=True, slots=True)
class Sample:
    """One field of each kind."""

    consumer_group: str
    queue_id: Int32
    offset: int = field(metadata={"wire": "theOffset", "letter": "o"})
    ratio: float = 0.5
    force: bool = False
    note: str | None = None
    count: Int32 | None = None


FULL = {"consumerGroup": "g", "queueId": "1", "theOffset": "2"}


def test_names_are_camel_case_unless_told_otherwise() -> None:
    """Wire names follow from Python names."""
    assert wire_names(Sample)[:3] == ("consumerGroup", "queueId", "theOffset")
    assert wire_names(Sample, names="letter")[2] == "o"


def test_round_trip_without_and_with_options() -> None:
    """Defaults fill what is absent, None is not written."""
    sample = decode_fields(Sample, FULL)
    assert sample == Sample("g", 1, 2)
    assert encode_fields(sample) == {**FULL, "ratio": "0.5", "force": "false"}
    full = Sample("g", -1, -2, 1.5, True, "x", 7)
    assert decode_fields(Sample, encode_fields(full)) == full


@pytest.mark.parametrize("name", FULL)
def test_a_missing_field_is_named(name: str) -> None:
    """The answer tells which field the client forgot."""
    fields = {key: value for key, value in FULL.items() if key != name}
    with pytest.raises(SystemError_, match=name) as raised:
        decode_fields(Sample, fields)
    assert raised.value.code == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queueId", "x"),
        ("queueId", "2147483648"),
        ("queueId", "-2147483649"),
        ("queueId", "1.0"),
        ("queueId", "1_0"),
        ("queueId", "9" * 5000),
        ("queueId", ""),
        ("theOffset", "9223372036854775808"),
        ("theOffset", "-9223372036854775809"),
        ("ratio", "NaN"),
        ("ratio", "inf"),
        ("ratio", "x"),
        ("count", "x"),
    ],
)
def test_a_malformed_number_is_named(name: str, text: str) -> None:
    """Numbers outside of RocketMQ's types are refused, not cut."""
    with pytest.raises(SystemError_, match=name):
        decode_fields(Sample, {**FULL, name: text})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("TRUE", True),
        ("1", True),
        ("false", False),
        ("0", False),
        ("yes", False),
        ("", False),
    ],
)
def test_booleans(text: str, expected: bool) -> None:
    """True in any case, and the 1 of C++ clients."""
    assert decode_fields(Sample, {**FULL, "force": text}).force is expected


def test_limits_of_integers_pass() -> None:
    """The extreme values of both sizes are legal."""
    fields = {**FULL, "queueId": "-2147483648", "theOffset": "9223372036854775807"}
    sample = decode_fields(Sample, fields)
    assert (sample.queue_id, sample.offset) == (-(1 << 31), (1 << 63) - 1)


def test_unknown_fields_are_ignored_and_empty_text_is_kept() -> None:
    """Newer clients send more; an empty text is a text."""
    assert decode_fields(Sample, {**FULL, "bname": "b", "note": ""}).note == ""
