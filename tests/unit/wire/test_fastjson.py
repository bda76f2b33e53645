"""fastjson's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import LocalProtocolError, RemoteProtocolError
from inorder.wire.fastjson import dumps, loads

BEAN = (("brokerName", "b"), ("queueId", 0), ("topic", "t"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("[]", []),
        ("null", None),
        (' [1, 2.5 , true,false,null,"x"] \n', [1, 2.5, True, False, None, "x"]),
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ('{ -1 : "a" }', {-1: "a"}),
        ('{"0":"a"}', {"0": "a"}),
        ('{"a":1,"a":2}', {"a": 2}),
        ("{0:1,0:2}", {0: 2}),
        ('{{"brokerName":"b","queueId":0,"topic":"t"}:5}', {BEAN: 5}),
        ('{{"topic":"t","queueId":0,"brokerName":"b"}:{"x":[{}]}}', {BEAN: {"x": [{}]}}),
        ("{{}:1}", {(): 1}),
        ('{0:[1,{1:2}],"k":{"l":[]}}', {0: [1, {1: 2}], "k": {"l": []}}),
        ('{0:"\\u4e2d\\n\\"{0:1}"}', {0: '中\n"{0:1}'}),
        ("{0:1e3,1:-2.5E-1}", {0: 1000.0, 1: -0.25}),
        ("{0:true,1:false,2:null}", {0: True, 1: False, 2: None}),
        ('{"a":{"b":{"x":1}},"c":{"$ref":"$.a.b"}}', {"a": {"b": {"x": 1}}, "c": {"x": 1}}),
        ('[[1,2],{"$ref":"$[0]"}]', [[1, 2], [1, 2]]),
        ('{"%R.g":{"x":1},"c":[{"$ref":"$.\\\\%R\\\\.g"}]}', {"%R.g": {"x": 1}, "c": [{"x": 1}]}),
        ('"$ref"', "$ref"),
        ('{"$ref":1,"b":2}', {"$ref": 1, "b": 2}),
    ],
)
def test_reads(text: str, value: Any) -> None:
    """Standard JSON, bare number keys, object keys, references."""
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert loads(memoryview(text.encode())) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"[",
        b"[1",
        b"[1,]",
        b"[,]",
        b"{,}",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,}',
        b"{0:1",
        b"{0 1}",
        b"{a:1}",
        b"{'a':1}",
        b"{1.5:1}",
        b"{0:1}x",
        b"{0:tru}",
        b"{0:nul}",
        b"{0:-}",
        b"{0:1a}",
        b"{0:NaN}",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"{0:1e999}",
        b"{0:" + b"9" * 21 + b"}",
        b"{0:" + b"9" * 100 + b"}",
        b'{0:"a',
        b'{0:"\\x"}',
        b'{0:"\\ud800"}',
        b'"\\ud800"',
        b'{0:"\xff"}',
        b"\xff",
        b"{{0:1}:1}",
        b'{{"a":[]}:1}',
        b'{{"a":{}}:1}',
        b"[" * 65 + b"]" * 65,
        b"{0:" * 65 + b"1" + b"}" * 65,
        b"[" * 1_000_00,
        b'{"a":' * 100_000,
        b"{" * 100_000,
        b'[{"$ref":"$"}]',
        b'[{"$ref":"$.x"}]',
        b'[{"$ref":"$[0]"}]',
        b'[{"$ref":"$[9]"}]',
        b'[{"$ref":".."}]',
        b'[{"$ref":1}]',
        b'[[[]],{"$ref":"$[0]"}]',
        b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        b'[{"$ref":"$x"}]',
        b"[" + b"0," * 200_001 + b"0]",
    ],
    ids=lambda text: repr(text[:30]),
)
def test_refuses(text: bytes) -> None:
    """Anything else is a protocol error, however deep or broken."""
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_depth_up_to_the_limit_passes() -> None:
    """64 levels are enough for any body; both ways count alike."""
    assert loads(b"[" * 64 + b"]" * 64) is not None
    assert loads(b"{0:" * 64 + b"1" + b"}" * 64) is not None
    with pytest.raises(RemoteProtocolError, match="deeper than 3"):
        loads(b"[[[[]]]]", depth_max=3)


def test_depth_counts_levels_not_brackets() -> None:
    """Many flat objects are not deep."""
    assert len(loads(b"[" + b",".join([b"{}"] * 1000) + b"]")) == 1000


def test_items_are_limited() -> None:
    """The number of values bounds the memory."""
    with pytest.raises(RemoteProtocolError, match="more than 3 items"):
        loads(b"[1,2,3,4]", items_max=3)
    assert loads(b"[1,2,3,4]", items_max=4) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": None, "b": 1}, b'{"b":1}'),
        ([None, 1], b"[null,1]"),
        ({0: "a", 1: 2.5}, b'{0:"a",1:2.5}'),
        ({BEAN: 5}, b'{{"brokerName":"b","queueId":0,"topic":"t"}:5}'),
        (
            {"t": True, "f": False, "s": 'q"\n\u4e2d'},
            '{"t":true,"f":false,"s":"q\\"\\n\u4e2d"}'.encode(),
        ),
        ({"a": ("x", "y"), "b": []}, b'{"a":["x","y"],"b":[]}'),
        ({}, b"{}"),
    ],
)
def test_writes_compact(value: Any, text: bytes) -> None:
    """No spaces, no nulls in objects, number and object keys bare."""
    assert dumps(value) == text


def test_number_keys_may_be_quoted() -> None:
    """Newer clients want standard JSON."""
    assert dumps({0: {1: "a"}}, bare_int_keys=False) == b'{"0":{"1":"a"}}'


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        object(),
        b"x",
        {1.5: 1},
        {True: 1},
        {None: 1},
        "\ud800",
        {"\ud800": 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_has_not_is_refused(value: Any) -> None:
    """A mistake of inorder's is found here, not by a peer."""
    with pytest.raises(LocalProtocolError):
        dumps(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    """Loops end."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(LocalProtocolError):
        dumps(loop)


CONSUMER_OFFSETS = b"""{
\t"dataVersion":{
\t\t"counter":0,
\t\t"stateVersion":0,
\t\t"timestamp":1794716721266
\t},
\t"groupTopicMap":{
\t\t"GoldCG":["GoldOrders"],
\t\t"GoldRG":["%RETRY%GoldRG","GoldRetry"]
\t},
\t"offsetTable":{
\t\t"GoldOrders@GoldCG":{0:120,1:120,2:120,3:120
\t\t},
\t\t"%RETRY%GoldRG@GoldRG":{0:2
\t\t}
\t}
}"""
LOCAL_OFFSETS = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"TopicA"
\t\t}:7,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"TopicA"
\t\t}:5
\t}
}"""
EMPTY_TABLES = b'{\n\t"a":{},\n\t"b":[],\n\t"c":[\n\t\t{\n\t\t\t"x":1\n\t\t}\n\t]\n}'


@pytest.mark.parametrize("text", [CONSUMER_OFFSETS, LOCAL_OFFSETS, EMPTY_TABLES])
def test_pretty_is_the_layout_of_files(text: bytes) -> None:
    """What a real broker and client wrote to disk is written again, byte for byte."""
    assert dumps(loads(text), pretty=True) == text
