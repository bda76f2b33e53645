"""Typed requests: every code that is served and whose header is read or built has one."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any, get_type_hints

import pytest
from msgspec import Struct, structs

from inorder.errors import SystemError_
from inorder.wire import requests
from inorder.wire.fields import decode_fields, encode_fields, wire_names
from inorder.wire.requests.sends import SendMessage, SendReply
from tests.kit.headers import headers_of

MODULES = [
    importlib.import_module(f"{requests.__name__}.{item.name}")
    for item in pkgutil.iter_modules(requests.__path__)
]
HEADERS = headers_of(MODULES)
LETTERS = (310, 320)
# Nobody reads or builds a header of these: the body says all, or there is nothing to say.
WITHOUT_HEADER = {18, 40, 225, 304, 311, 312, 313, 318, 319}
BROKER_CODES = {
    10,
    11,
    12,
    14,
    15,
    17,
    18,
    21,
    25,
    26,
    28,
    29,
    30,
    31,
    32,
    33,
    34,
    35,
    38,
    40,
    41,
    42,
    46,
    200,
    201,
    207,
    215,
    225,
    305,
    351,
    352,
}
NAME_SERVER_CODES = {
    100,
    101,
    102,
    103,
    104,
    105,
    106,
    205,
    206,
    216,
    217,
    219,
    224,
    304,
    311,
    312,
    313,
    318,
    319,
    322,
    327,
    901,
    904,
}


def sample(cls: type, *, options: bool) -> Any:
    """Fill a header with values of the right types."""
    values = {}
    for name, kind in get_type_hints(cls).items():
        if name == "CODE" or (name in optional(cls) and not options):
            continue
        values[name] = True if "bool" in str(kind) else 7 if "int" in str(kind) else "text"
    return cls(**values)


def optional(cls: type) -> set[str]:
    """Return the fields that may be left out."""
    if issubclass(cls, Struct):
        return {one.name for one in structs.fields(cls) if not one.required}
    return {one.name for one in dataclasses.fields(cls) if one.default is not dataclasses.MISSING}


def test_every_code_has_one_request() -> None:
    """No code is missing, none has two headers."""
    codes = [int(cls.CODE) for cls in HEADERS if hasattr(cls, "CODE")]
    assert len(codes) == len(set(codes))
    assert set(codes) >= (BROKER_CODES | NAME_SERVER_CODES) - WITHOUT_HEADER
    assert not WITHOUT_HEADER & set(codes)


@pytest.mark.parametrize("cls", HEADERS, ids=lambda cls: cls.__name__)
def test_headers_come_back(cls: type) -> None:
    """Written and read, with and without what may be left out, a header is the same."""
    for options in (False, True):
        value = sample(cls, options=options)
        assert decode_fields(cls, encode_fields(value)) == value


@pytest.mark.parametrize("cls", HEADERS, ids=lambda cls: cls.__name__)
def test_headers_are_frozen_and_have_a_wire_name_for_each_field(cls: type) -> None:
    """Values that travel do not change, and no two fields share a name."""
    names = wire_names(cls)
    value = sample(cls, options=True)
    fields = [name for name in get_type_hints(cls) if name != "CODE"]
    assert len(set(names)) == len(names) == len(fields)
    for name in fields:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_send_has_two_sets_of_names() -> None:
    """The same header by long names and by letters."""
    header = SendMessage("g", "T", "TBW102", 4, -1, 0, 5, 6, "p", 1, True, 16, True, "b")
    letters = header.to_fields_v2()
    assert "".join(letters) == "abcdefghijklmn"
    assert SendMessage.from_fields_v2(letters) == header
    for code in LETTERS:
        assert SendMessage.from_fields(code, letters) == header
    long_names = encode_fields(header)
    assert list(long_names)[3] == "defaultTopicQueueNums"
    assert SendMessage.from_fields(10, long_names) == header
    with pytest.raises(SystemError_, match="field a is missing"):
        SendMessage.from_fields(310, long_names)


def test_send_reply_has_rocketmqs_names() -> None:
    """Java reads exactly these."""
    fields = encode_fields(SendReply("id", 1, 2, "u", region="r", trace_on=True))
    assert fields == {
        "msgId": "id",
        "queueId": "1",
        "queueOffset": "2",
        "transactionId": "u",
        "MSG_REGION": "r",
        "TRACE_ON": "true",
    }
