"""Our answers beside those that a RocketMQ 5.3.3 name server gave to the same requests."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inorder.config import NameServerConfig
from inorder.model import DataVersion, TopicConfig
from inorder.nameserver.handlers import Call, Desk, answer
from inorder.nameserver.rules import KvTable, Registration, RouteTable
from inorder.wire import fastjson
from inorder.wire.frame import FrameDecoder
from inorder.wire.header import Command, decode_command
from inorder.wire.requests.nameserver import decode_topic_list

FRAMES = Path(__file__).parents[1] / "frames"

LISTS = {206, 224, 304}
"""Topic lists come in the order of a Java hash map."""


def conversation(name: str) -> Iterator[tuple[int, str, Command, Command | None]]:
    """Yield number, connection, request and answer of what went to the name server."""
    with lzma.open(FRAMES / f"{name}.jsonl.xz", "rt") as lines:
        rows = {row["seq"]: row for row in map(json.loads, lines)}
    for row in rows.values():
        if row["peer"] == "namesrv" and row["dir"] == "c2s" and not row["is_response"]:
            pair = rows[row["pair"]] if row["pair"] else None
            yield row["seq"], str(row["conn"]), command(row), pair and command(pair)


def command(row: dict[str, Any]) -> Command:
    """Return the command of a captured row."""
    (frame,) = FrameDecoder().receive_data(base64.b64decode(row["frame_b64"]))
    return decode_command(frame)


def comparable(reply: Command, code: int) -> tuple[Any, ...]:
    """Return what must be equal: code, remark, fields, and the body byte for byte but for lists."""
    body: Any = bytes(reply.body)
    if code in LISTS and body:
        body = fastjson.loads(body)
        body["topicList"] = sorted(body["topicList"])
    return int(reply.code), reply.remark, reply.fields, body


def new_desk() -> Desk:
    """Return the tables of a fresh name server."""
    return Desk(NameServerConfig(), RouteTable(), KvTable(), lambda: None)


@pytest.mark.parametrize(
    ("name", "compared", "not_kept"),
    [
        # In front of these routes a registration was trimmed from the capture.
        ("broker-namesrv", 10, {13, 15, 17, 19, 21, 23}),
        ("broker-namesrv-bin", 9, set()),
        # The broker asked before its registration had been carried out.
        ("broker-namesrv-actingmaster", 5, {2}),
        ("broker-namesrv-actingmaster-compat", 12, set()),
    ],
)
def test_a_real_broker_gets_the_same_answers(name: str, compared: int, not_kept: set[int]) -> None:
    """Registration, heartbeat, route and farewell of a Java broker, JSON and binary."""
    desk = new_desk()
    count = 0
    for seq, channel, request, real in conversation(name):
        ours = answer(desk, Call(request, channel, seq))
        if real is not None and seq not in not_kept:
            assert comparable(ours, request.code) == comparable(real, request.code), seq
            count += 1
    assert count == compared


def test_a_broker_with_compressed_registration_is_registered() -> None:
    """RocketMQ answers it with a NullPointerException; here the broker is in the routes."""
    desk = new_desk()
    codes = []
    for seq, channel, request, _real in conversation("broker-namesrv-compressed"):
        ours = answer(desk, Call(request, channel, seq))
        if request.code == 103:
            codes.append(ours.code)
            assert desk.routes.route("TBW102") is not None
            assert desk.routes.route("SCHEDULE_TOPIC_XXXX") is not None
    assert codes
    assert set(codes) == {0}


@pytest.mark.parametrize(("name", "template_perm"), [("probe-json", 7), ("probe-bin", 6)])
def test_probes_get_the_same_answers(name: str, template_perm: int) -> None:
    """Unknown codes, topics and keys, missing fields, wrong checksums: the same words."""
    rows = list(conversation(name))
    (listed,) = [real for _, _, request, real in rows if request.code == 206 and real]
    topics = {topic: TopicConfig(topic) for topic in decode_topic_list(listed.body)}
    topics["TBW102"] = TopicConfig("TBW102", perm=template_perm)
    desk = new_desk()
    desk.routes.register(
        Registration(
            cluster="DefaultCluster", broker_name="broker-a", address="127.0.0.1:22911",
            broker_id=0, ha_address="192.0.2.2:22912", channel="broker", version=DataVersion(),
            topics=topics, timeout_ms=120_000, acting_master=False,
        ),
        now_ms=0,
    )  # fmt: skip
    count = 0
    for seq, channel, request, real in rows:
        ours = answer(desk, Call(request, channel, seq))
        assert real is not None
        assert comparable(ours, request.code) == comparable(real, request.code), seq
        count += 1
    assert count == 29
