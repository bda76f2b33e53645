"""What hostile peers say, by name: streams that are no frames, and frames that ask for trouble."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterator

from inorder.wire.codes import RequestCode
from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from tests.garbage.peer import raw_frame

MIB = 1024 * 1024
BIG = 2**63
NAMES = (
    "../../x", "..", ".", "", "/etc/passwd", "a/b", "a\x00b", "a\nb", "con\x1b[31m", "x" * 128,
    "x" * 40_000, "%RETRY%../../x", "%DLQ%", "\u0430dmin", "\uff0e\uff0e/x", "TBW102",
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "\x01", "a\x02b", "%s%n%x",
    "$(id)", "'; drop", "*", "a b",
)  # fmt: skip
NUMBERS = (
    "-1",
    "2147483648",
    str(BIG),
    str(-BIG - 1),
    "9" * 5000,
    "NaN",
    "1e9",
    "0x10",
    "",
    "\uff11",
)


def broken_streams(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield bytes after which nothing sensible can follow: the connection must be closed."""
    for length in (-1, -(2**31), 0, 1, 2, 3, 16 * MIB + 1, 0x7FFFFFFF):
        yield f"frame length {length}", struct.pack(">iI", length, 10) + bytes(64)
        yield f"frame length {length}, four bytes", struct.pack(">i", length)
    header = b'{"code":310,"opaque":1}'
    yield "header beyond the frame", struct.pack(">iI", 4 + len(header), 5000) + header
    yield "header of 16 MiB", struct.pack(">iI", 100, 0xFFFFFF) + header
    for serializer in (2, 3, 127, 128, 255):
        yield f"serializer {serializer}", raw_frame(header, serializer=serializer)
    yield "empty header", raw_frame(b"")
    yield "header is no JSON", raw_frame(b"hello, this is HTTP")
    yield "header is a list", raw_frame(b"[1,2,3]")
    yield "header is null", raw_frame(b"null")
    yield "deep list", raw_frame(b"[" * 500_000)
    yield "deep object", raw_frame(b'{"a":' * 150_000 + b"1" + b"}" * 150_000)
    deep = b'{"code":10,"opaque":1,"extFields":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    yield "deep fields", raw_frame(deep)
    for name, value in (
        ("NaN", b"NaN"), ("Infinity", b"Infinity"), ("5000 digits", b"9" * 5000),
        ("1e400", b"1e400"), ("2^31", b"2147483648"), ("a text", b'"x"'), ("a list", b"[]"),
        ("null", b"null"),
        ("a fraction", b"1.5"),
    ):  # fmt: skip
        yield f"code is {name}", raw_frame(b'{"code":' + value + b',"opaque":1}')
        yield f"id is {name}", raw_frame(b'{"code":310,"opaque":' + value + b"}")
    yield "wrong UTF-8", raw_frame(b'{"code":310,"opaque":1,"extFields":{"b":"\xff\xfe"}}')
    yield "overlong UTF-8", raw_frame(b'{"code":310,"opaque":1,"extFields":{"b":"\xc0\xaf"}}')
    yield "lone surrogate", raw_frame(b'{"code":310,"opaque":1,"extFields":{"b":"\\ud800"}}')
    yield "raw surrogate", raw_frame(b'{"code":310,"opaque":1,"extFields":{"b":"\xed\xa0\x80"}}')
    fields = b",".join(b'"f%d":"x"' % index for index in range(5000))
    yield "5000 fields", raw_frame(b'{"code":310,"opaque":1,"extFields":{' + fields + b"}}")
    yield "a list as field", raw_frame(b'{"code":34,"opaque":1,"extFields":{"a":[1]}}')
    yield from _broken_binary()
    yield "TLS hello and garbage", b"\x16\x03\x01\x02\x00" + bytes(600)
    yield "TLS alert", b"\x15\x03\x01\x00\x02\x02\x28"
    yield "HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "SSH", b"SSH-2.0-OpenSSH_9.0\r\n" * 4
    yield "gRPC", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    dice = random.Random(seed)
    for index in range(40):
        # 2..21: neither a frame of sensible length nor TLS.
        yield f"random bytes {index}", bytes((dice.randrange(2, 22),)) + dice.randbytes(300)


def _broken_binary() -> Iterator[tuple[str, bytes]]:
    fixed = struct.pack(">hBhii", 310, 0, 479, 1, 0)
    for name, rest in (
        ("cut", b""),
        ("remark of -1", struct.pack(">i", -1) + bytes(4)),
        ("remark of 2^31-1", struct.pack(">i", 2**31 - 1) + bytes(4)),
        ("fields of -1", struct.pack(">ii", 0, -1)),
        ("fields of 2^31-1", struct.pack(">ii", 0, 2**31 - 1)),
        ("a name of -1", struct.pack(">iih", 0, 6, -1) + bytes(4)),
        ("a name beyond the end", struct.pack(">iih", 0, 6, 32767) + bytes(4)),
        ("a value beyond the end", struct.pack(">iih1si", 0, 7, 1, b"a", 2**31 - 1)),
        ("a value of -1", struct.pack(">iih1si", 0, 7, 1, b"a", -1)),
        ("wrong UTF-8", struct.pack(">iih1si", 0, 7, 1, b"\xff", 0)),
    ):
        yield f"binary header, {name}", raw_frame(fixed + rest, serializer=1)


def send_fields(topic: str = "garbage", **changed: str) -> dict[str, str]:
    """Return the letters of a plain send, some of them changed."""
    fields = {
        "a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": "", "j": "0", "k": "false", "l": "16", "m": "false",
    }  # fmt: skip
    return {**fields, **changed}


def pull_fields(topic: str = "garbage", **changed: str) -> dict[str, str]:
    """Return the fields of a plain pull, some of them changed."""
    fields = {
        "consumerGroup": "garbage_group", "topic": topic, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return {**fields, **changed}


def hostile_commands() -> Iterator[tuple[str, Command]]:
    """Yield well-formed frames with content that is not; the broker answers them or closes."""
    yield from _hostile_names()
    yield from _hostile_numbers()
    yield from _hostile_properties()
    yield from _hostile_batches()
    yield from _hostile_bodies()
    for algorithm in (0x1, 0x101, 0x201, 0x301, 0x701):
        bomb = zlib.compress(bytes(64 * MIB), 9)
        yield (
            f"compressed body, flags {algorithm:#x}",
            Command.request(310, send_fields(f=str(algorithm)), bomb),
        )
    for flag in (0x4, 0x8, 0xC, 0x40, 0x80, 0x10, 0x20, 0x30, -1, 0x7FFFFFFF):
        yield f"send with flags {flag:#x}", Command.request(310, send_fields(f=str(flag)), b"x")
    tags = "||".join(map(str, range(150_000)))
    yield "150,000 tags", Command.request(11, pull_fields(subscription=tags[:900_000]))
    yield "operators only", Command.request(11, pull_fields(subscription="|" * 900_000))
    yield (
        "SQL",
        Command.request(11, pull_fields(subscription="(" * 10_000 + "a=1", expressionType="SQL92")),
    )
    yield "body of 5 MiB", Command.request(310, send_fields(), bytes(5 * MIB))
    yield "no body", Command.request(310, send_fields(), b"")


def _hostile_names() -> Iterator[tuple[str, Command]]:
    for name in NAMES:
        shown = repr(name[:20])
        yield f"send to topic {shown}", Command.request(310, send_fields(name), b"x")
        yield f"send, template {shown}", Command.request(310, send_fields("t", c=name), b"x")
        yield f"pull from topic {shown}", Command.request(11, pull_fields(name))
        yield f"pull by group {shown}", Command.request(11, pull_fields(consumerGroup=name))
        yield f"create topic {shown}", Command.request(
            17,
            {
                "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "perm": "6",
                "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG", "order": "false",
            },
        )  # fmt: skip
        yield f"delete topic {shown}", Command.request(215, {"topic": name})
        yield f"delete group {shown}", Command.request(207, {"groupName": name})
        yield f"max offset of {shown}", Command.request(30, {"topic": name, "queueId": "0"})
        yield f"earliest of {shown}", Command.request(32, {"topic": name, "queueId": "0"})
        yield (
            f"by time of {shown}",
            Command.request(29, {"topic": name, "queueId": "0", "timestamp": "0"}),
        )
        yield (
            f"commit on {shown}",
            Command.request(
                15, {"consumerGroup": name, "topic": name, "queueId": "0", "commitOffset": "1"}
            ),
        )
        yield (
            f"query of {shown}",
            Command.request(
                12,
                {
                    "topic": name,
                    "key": name,
                    "maxNum": "9",
                    "beginTimestamp": "0",
                    "endTimestamp": "9",
                },
            ),
        )
        yield f"group {shown}", Command.request(200, {}, json.dumps({"groupName": name}).encode())
        beat = {"clientID": name, "producerDataSet": [{"groupName": name}], "consumerDataSet": [
            {"groupName": name, "subscriptionDataSet": [{"topic": name, "subString": name}]}
        ]}  # fmt: skip
        yield f"heartbeat of {shown}", Command.request(34, {}, json.dumps(beat).encode())


def _hostile_numbers() -> Iterator[tuple[str, Command]]:
    for number in NUMBERS:
        shown = number[:22]
        for letter in "defghjl":
            yield (
                f"send, {letter}={shown}",
                Command.request(310, send_fields(**{letter: number}), b"x"),
            )
        for name in (
            "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "subVersion",
        ):  # fmt: skip
            yield f"pull, {name}={shown}", Command.request(11, pull_fields(**{name: number}))
        yield f"view {shown}", Command.request(33, {"offset": number})
        yield (
            f"by time {shown}",
            Command.request(29, {"topic": "garbage", "queueId": number, "timestamp": number}),
        )
        yield f"commit {shown}", Command.request(
            15,
            {"consumerGroup": "garbage_group", "topic": "garbage", "queueId": number,
             "commitOffset": number},
        )  # fmt: skip
        yield f"query {shown}", Command.request(
            12,
            {"topic": "garbage", "key": "k", "maxNum": number, "beginTimestamp": number,
             "endTimestamp": number},
        )  # fmt: skip
        yield f"topic with {shown} queues", Command.request(
            17,
            {"topic": "numbers", "defaultTopic": "TBW102", "readQueueNums": number,
             "writeQueueNums": number, "perm": number, "topicFilterType": "SINGLE_TAG",
             "order": "false"},
        )  # fmt: skip


def _hostile_properties() -> Iterator[tuple[str, Command]]:
    for name, text in (
        ("separators only", "\x01\x02" * 1000), ("names without values", "a\x01\x02b\x02c"),
        ("values with separators", "a\x01b\x01c\x01d\x02"), ("no end", "KEYS\x01a"),
        ("40,000 characters", "a\x01" + "x" * 40_000 + "\x02"), ("NUL", "a\x01\x00\x02"),
        ("forged topic", "REAL_TOPIC\x01x\x02REAL_QID\x015\x02"), ("delay", "DELAY\x0199\x02"),
        ("timer", "TIMER_DELIVER_MS\x01253402300799000\x02"), ("half", "TRAN_MSG\x01true\x02"),
        ("many keys", "KEYS\x01" + " ".join(map(str, range(5000))) + "\x02"),
        ("inner", "INNER_NUM\x015\x02"), ("an id with quotes", 'UNIQ_KEY\x01"},{"code":0\x02'),
        ("a long id", "UNIQ_KEY\x01" + "9" * 32_000 + "\x02"), ("emoji", "a\x01\U0001f600\x02"),
        ("repeated", "TAGS\x01a\x02TAGS\x01b\x02"),
    ):  # fmt: skip
        for code in (310, 320):
            yield f"{code}, properties: {name}", Command.request(code, send_fields(i=text), b"x")
        yield (
            f"retry, properties: {name}",
            Command.request(310, send_fields("%RETRY%garbage_group", i=text, j="99"), b"x"),
        )


def _hostile_batches() -> Iterator[tuple[str, Command]]:
    item = struct.pack(">iiiii", 25, 0, 0, 0, 3) + b"abc" + struct.pack(">h", 0)
    for name, body in (
        ("cut", item[:-1]), ("one byte more", item + b"x"), ("size 0", bytes(22)),
        ("size -1", struct.pack(">iiiii", -1, 0, 0, 0, 3) + item[20:]),
        ("size 2^31-1", struct.pack(">iiiii", 2**31 - 1, 0, 0, 0, 3) + item[20:]),
        ("body of -1", struct.pack(">iiiii", 25, 0, 0, 0, -1) + item[20:]),
        ("body of 2^31-1", struct.pack(">iiiii", 25, 0, 0, 0, 2**31 - 1) + item[20:]),
        ("properties of -1", item[:-2] + struct.pack(">h", -1)),
        ("properties of 32767", item[:-2] + struct.pack(">h", 32767)),
        ("delay inside", struct.pack(">iiiii", 32, 0, 0, 0, 2) + b"ab" + struct.pack(">h", 8)
         + b"DELAY\x013\x02"),
        ("100,000 messages", (struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"a\x00\x00") * 100_000),
    ):  # fmt: skip
        for code in (310, 320):
            yield f"{code} batch: {name}", Command.request(code, send_fields(m="true"), body)
        yield f"320 not a batch: {name}", Command.request(320, send_fields(), body)


JSON_BODIES = (
    RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_BROKER_CONFIG,
)  # fmt: skip


def _hostile_bodies() -> Iterator[tuple[str, Command]]:
    queues = b",".join(b'{"topic":"t%d","queueId":%d}' % (n, n) for n in range(20_000))
    texts = {
        "nothing": b"", "no JSON": b"\x00\x01\x02", "null": b"null", "a number": b"7",
        "deep list": b"[" * 1_000_000, "deep object": b'{"a":' * 200_000,
        "deep keys": b"{" * 500_000, "wrong UTF-8": b'{"clientID":"\xff"}',
        "NaN": b'{"clientID":NaN}',
        "5000 digits": b'{"clientID":"a","heartbeatFingerprint":' + b"9" * 5000 + b"}",
        "twice the same key": b'{"clientID":"a","clientID":"b"}',
        "lone surrogate": b'{"clientID":"\\ud800","consumerGroup":"g","clientId":"c","mqSet":[]}',
        "a reference to itself": b'{"clientID":"a","consumerDataSet":{"$ref":"$"}}',
        "references": b'{"clientID":"a","x":[' + b'{"$ref":"$.x[0]"},' * 30_000 + b"1]}",
        "a type": b'{"@type":"java.net.URL","val":"http://localhost"}',
        "a million commas": b'{"clientID":"a","producerDataSet":[' + b"{}," * 1_000_000 + b"{}]}",
        "20,000 queues": b'{"clientId":"c","consumerGroup":"g","mqSet":[%b]}' % queues,
        "a client id of 1 MB": b'{"clientID":"' + b"c" * MIB + b'"}',
        "a path": b"rocketmqHome=/tmp\nbrokerConfigPath=/etc/x\nstorePathRootDir=../../x\n",
    }  # fmt: skip
    for code in JSON_BODIES:
        for name, body in texts.items():
            yield f"code {int(code)}, body: {name}", Command.request(code, {}, body)


REGISTER = {
    "brokerName": "broker-evil", "brokerAddr": "127.0.0.1:1", "clusterName": "EvilCluster",
    "haServerAddr": "127.0.0.1:2", "brokerId": "0", "compressed": "false", "bodyCrc32": "0",
}  # fmt: skip


def hostile_registrations(size: float = 1.0) -> Iterator[tuple[str, Command]]:
    """Yield what hostile peers say to a name server; `size` scales what grows."""
    zipped = {**REGISTER, "compressed": "true"}
    yield "1 GiB of zeros, zlib", Command.request(103, zipped, _zeros(round(1024 * size)))
    version = b'{"counter":1,"timestamp":1}'
    topics = round(3_000_000 * size)
    lines = b"".join(
        struct.pack(">i", 15) + b"t%06d 1 1 6 S" % (n % 1_000_000) for n in range(topics)
    )
    plain = length_prefixed(version) + struct.pack(">i", topics) + lines
    yield "3 million topics, zlib", Command.request(103, zipped, zlib.compress(plain, 1))
    count = round(1_500_000 * size)
    fat = b"t 1 1 6 S {" + b",".join(b'"k%d":"v"' % n for n in range(count)) + b"}"
    plain = length_prefixed(version) + struct.pack(">i", 1) + length_prefixed(fat)
    yield "1.5 million attributes, zlib", Command.request(103, zipped, zlib.compress(plain, 1))
    for name, entry in (("JSON", b'"t%d":{}'), ("bare keys", b"%d:{}")):
        table = b",".join(entry % n for n in range(round(900_000 * size)))
        wrapper = b'{"dataVersion":{},"topicConfigTable":{' + table + b"}}"
        yield (
            f"900,000 topics, {name}",
            Command.request(103, REGISTER, b'{"topicConfigSerializeWrapper":' + wrapper + b"}"),
        )
    servers = b",".join([b'"x"'] * count)
    yield (
        "1.5 million filter servers",
        Command.request(103, REGISTER, b'{"filterServerList":[' + servers + b"]}"),
    )
    for name in ("brokerName", "clusterName", "brokerAddr", "haServerAddr"):
        yield (
            f"{name} of 900,000 characters",
            Command.request(103, {**REGISTER, name: "x" * 900_000}, b"{}"),
        )
    yield (
        "a count of 2^31-1",
        Command.request(
            103,
            zipped,
            zlib.compress(length_prefixed(version) + struct.pack(">i", 2**31 - 1)),
        ),
    )
    yield "not zlib", Command.request(103, zipped, b"\x78\x9cnot zlib")
    yield "data version of garbage", Command.request(322, REGISTER, b"[" * 100_000)
    yield "a route of garbage", Command.request(217, {"topic": "x"}, b"[" * 100_000)
    yield (
        "a path as key",
        Command.request(100, {"namespace": "../../x", "key": "../../x", "value": "../../x"}),
    )
    yield (
        "a value of 900,000 characters",
        Command.request(100, {"namespace": "n", "key": "k", "value": "v" * 900_000}),
    )
    yield "settings", Command.request(318, {}, b"kvConfigPath=/tmp/evil\nrocketmqHome=/tmp\n")
    for name in NAMES:
        yield f"route of {name[:20]!r}", Command.request(105, {"topic": name})
        yield f"forget {name[:20]!r}", Command.request(216, {"topic": name})
        yield f"settings under {name[:20]!r}", Command.request(219, {"namespace": name})


def length_prefixed(part: bytes) -> bytes:
    """Return bytes behind their length."""
    return struct.pack(">i", len(part)) + part


def _zeros(mebibytes: int) -> bytes:
    stream = zlib.compressobj(9)
    chunk = bytes(MIB)
    return b"".join([stream.compress(chunk) for _ in range(mebibytes)]) + stream.flush()


def unasked_effects() -> Iterator[tuple[str, str, bytes]]:
    """Yield what, topic and frame of answers that nobody waits for: they must change nothing."""
    more = {
        "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
        "order": "false", "defaultTopic": "TBW102", "producerGroup": "g", "queueId": "0",
        "defaultTopicQueueNums": "1", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
        "properties": "",
    }  # fmt: skip
    for code in (10, 310, 320, 11, 34, 17, 215):
        for topic in ("unasked", "asked"):
            fields = {**more, **send_fields(topic), **pull_fields(topic), "topic": topic}
            for flag in (1, 3):
                for serializer in (0, 1):
                    command = Command(code, 7, flag, fields, None, b"x", serializer=serializer)
                    name = f"code {code} with flag {flag}, serializer {serializer}"
                    yield name, topic, encode_frame(command)
