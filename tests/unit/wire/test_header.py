"""Headers, JSON and binary."""

from __future__ import annotations

import json
import struct

import pytest

from inorder.errors import LocalProtocolError, RemoteProtocolError
from inorder.wire.codes import LanguageCode
from inorder.wire.header import FIELDS_MAX, Command, decode_command, encode_header


def read(header: str | bytes) -> Command:
    """Decode a JSON header."""
    return decode_command((0, header.encode() if isinstance(header, str) else header, b""))


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        ('{"code":1,"opaque":2}', {}),
        ('{"code":1,"opaque":2,"extFields":null}', {}),
        ('{"code":1,"opaque":2,"extFields":{}}', {}),
        ('{"code":1,"opaque":2,"extFields":{"a":"x"}}\n', {"a": "x"}),
        (
            '{"code":1,"opaque":2,"extFields":{"a":3,"b":true,"c":false}}',
            {"a": "3", "b": "true", "c": "false"},
        ),
        (
            '{"code":1,"opaque":2,"extFields":{"a":-1794705365151,"b":null,"c":1.5}}',
            {"a": "-1794705365151", "c": "1.5"},
        ),
        ('{"code":"1","opaque":"2","extFields":{"a":"x"},"unknown":[{}]}', {"a": "x"}),
        (' {"extFields":{"a":"\\u4e2d文\\n"},"opaque":2,"code":1}', {"a": "中文\n"}),
    ],
)
def test_json_of_any_client(header: str, fields: dict[str, str]) -> None:
    """Fields are always text, whatever the client made of them."""
    command = read(header)
    assert (command.code, command.request_id, command.fields) == (1, 2, fields)


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ('"GO"', LanguageCode.GO),
        ('"KLINGON"', LanguageCode.OTHER),
        ("1", LanguageCode.CPP),
        ("99", LanguageCode.OTHER),
        ("null", LanguageCode.JAVA),
        ("[]", LanguageCode.OTHER),
    ],
)
def test_languages(language: str, expected: int) -> None:
    """A name or a number; what is unknown is OTHER."""
    assert read(f'{{"code":1,"opaque":2,"language":{language}}}').language == expected


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b"{}",
        b'{"code":1}',
        b'{"opaque":1}',
        b'{"code":null,"opaque":1}',
        b'{"code":1.5,"opaque":1}',
        b'{"code":true,"opaque":1}',
        b'{"code":2147483648,"opaque":1}',
        b'{"code":1,"opaque":99999999999999999999999}',
        b'{"code":1,"opaque":"x"}',
        b'{"code":1,"opaque":"1111111111111111111111"}',
        b'{"code":1,"opaque":1,"extFields":[]}',
        b'{"code":1,"opaque":1,"extFields":{"a":{}}}',
        b'{"code":1,"opaque":1,"extFields":{"a":[1]}}',
        b'{"code":1,"opaque":1,"remark":{}}',
        b'{"code":1,"opaque":1,"remark":"\xff"}',
        b'{"code":1,"opaque":1,"remark":"\\ud800"}',
        b'{"code":NaN,"opaque":1}',
        b'{"code":1,"opaque":1}x',
        b"\x00" * 50,
        b'{"code":1,"opaque":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        json.dumps(
            {"code": 1, "opaque": 1, "extFields": dict.fromkeys(map(str, range(1025)), "")}
        ).encode(),
        json.dumps(
            {"code": 1, "opaque": 1, "extFields": dict.fromkeys(map(str, range(1025)), 1)}
        ).encode(),
    ],
    ids=lambda header: repr(header[:40]),
)
def test_what_is_no_header_is_refused(header: bytes) -> None:
    """Garbage of any kind is a protocol error and nothing else."""
    with pytest.raises(RemoteProtocolError):
        read(header)


def test_answers_write_fields_only_if_there_are_any() -> None:
    """No fields: no key; an empty dict: an empty object; later ones: written."""
    request = Command.request(1)
    assert b"extFields" not in encode_header(request.reply())
    assert b'"extFields":{}' in encode_header(request.reply(fields={}))
    late = request.reply()
    late.fields["a"] = "b"
    assert b'"extFields":{"a":"b"}' in encode_header(late)


def test_an_empty_remark_is_kept() -> None:
    """Go sends one."""
    assert read('{"code":1,"opaque":2,"remark":""}').remark == ""


@pytest.mark.parametrize(
    "command",
    [
        Command.request(1, {"a": "\ud800"}),
        Command(1, remark="\ud800"),
        Command.request(1, {"a": "\ud800"}, serializer=1),
        Command.request(200050, serializer=1),
        Command.request(1, version=40000, serializer=1),
        Command.request(1, {"k" * 40000: "v"}, serializer=1),
    ],
    ids=["field", "remark", "binary field", "POP code", "version", "long name"],
)
def test_what_the_serializer_cannot_carry_is_not_sent(command: Command) -> None:
    """We fail before anything is written."""
    with pytest.raises(LocalProtocolError):
        encode_header(command)


def test_binary_round_trip() -> None:
    """Everything that a binary header holds comes back."""
    command = Command(
        -1,
        -2,
        3,
        {"topic": "中", "": "x", "empty": ""},
        "remark",
        language=200,
        version=-5,
        serializer=1,
    )
    assert decode_command((1, encode_header(command), b"")) == command


FIXED = struct.pack(">hBhiii", 105, 0, 479, 7, 0, 0)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        FIXED,
        FIXED + b"\0\0\0",
        FIXED + struct.pack(">i", -1),
        FIXED + struct.pack(">i", 1),
        FIXED[:-4] + struct.pack(">ii", -1, 0),
        FIXED[:-4] + struct.pack(">ii", 5, 0),
        FIXED[:-4] + struct.pack(">ib", 1, -1) + struct.pack(">i", 0),
        FIXED + struct.pack(">ih", 2, 1),
        FIXED + struct.pack(">ib", 1, 0),
        FIXED + struct.pack(">ihi", 6, -1, 0),
        FIXED + struct.pack(">ihbi", 7, 1, 65, 1),
        FIXED + struct.pack(">ihbi", 7, 1, 65, -1),
        FIXED + struct.pack(">ihbi", 7, 1, -1, 0),
        FIXED
        + struct.pack(">i", 10 * (FIELDS_MAX + 1))
        + b"".join(struct.pack(">h4si", 4, b"%04d" % i, 0) for i in range(FIELDS_MAX + 1)),
    ],
    ids=range(15),
)
def test_broken_binary_headers_are_refused(header: bytes) -> None:
    """Lengths that do not fit, text that is no UTF-8, too many fields."""
    with pytest.raises(RemoteProtocolError):
        decode_command((1, header, b""))


def test_unknown_serializer_is_refused() -> None:
    """There are two."""
    with pytest.raises(RemoteProtocolError, match="serializer 2"):
        decode_command((2, b"", b""))
