"""The replay's own tools: captured answers are equal to themselves, and changed ones are caught."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from inorder.wire.header import Command
from tests.golden.replay import capture
from tests.golden.replay.channels import CapturedServers
from tests.golden.replay.compare import Exchange, compare
from tests.golden.replay.player import Player
from tests.golden.replay.state import past_of


def _played(name: str) -> list[Exchange]:
    conversation = capture.load(name)
    return asyncio.run(Player(conversation, CapturedServers(conversation)).play()).exchanges


def _changed(command: Command, **changes: object) -> Command:
    copy = Command(
        command.code,
        command.request_id,
        command.flag,
        dict(command.fields) if command.has_fields else None,
        command.remark,
        command.body,
        language=command.language,
        version=command.version,
        serializer=command.serializer,
    )
    for name, value in changes.items():
        setattr(copy, name, value)
    return copy


def _wheres(exchange: Exchange, **changes: object) -> list[str]:
    changed = replace(exchange, ours=_changed(exchange.ours, **changes))
    return [difference.where for difference in compare(changed)]


def _find(name: str, code: int, answer_code: int = 0) -> Exchange:
    return next(
        one
        for one in _played(name)
        if one.code == code and one.captured.code == answer_code and one.captured.body
    )


@pytest.mark.slow
def test_captured_answers_are_equal_to_themselves() -> None:
    """Servers that give the captured answers get no difference, in any conversation."""
    count = 0
    for name in capture.names():
        exchanges = _played(name)
        answered = list(capture.load(name).answered())
        assert [d for one in exchanges for d in compare(one)] == []
        assert len(exchanges) == len(answered)
        count += len(exchanges)
    assert count > 2300


def test_a_changed_code_flag_or_name_is_caught_everywhere() -> None:
    """Code, flag and names of fields are compared in trimmed conversations, too."""
    for name in ("java53-order", "java53-pull"):
        pull = _find(name, 11)
        assert _wheres(pull, code=19) == ["code"]
        assert _wheres(pull, flag=3) == ["flag"]
        assert _wheres(pull, version=1) == ["version"]
        assert _wheres(pull, has_fields=False) == ["fields"]
        fewer = {k: v for k, v in pull.ours.fields.items() if k != "minOffset"}
        assert _wheres(pull, fields=fewer) == ["field.minOffset"]
        more = {**pull.ours.fields, "extra": "1"}
        assert _wheres(pull, fields=more) == ["field.extra"]


def test_a_changed_value_is_caught_in_whole_conversations_only() -> None:
    """Values are compared where everything that led to them is known."""
    for name, expected in (("java53-order", []), ("java53-pull", ["field.nextBeginOffset"])):
        pull = _find(name, 11)
        fields = {**pull.ours.fields, "nextBeginOffset": "77"}
        assert _wheres(pull, fields=fields) == expected


def test_a_changed_message_is_caught() -> None:
    """Messages in a body are compared field by field, property by property."""
    pull = _find("java53-pull", 11)
    body = bytes(pull.ours.body)
    assert _wheres(pull, body=body.replace(b"TagA", b"TagX")) == [
        "body.0.property.TAGS",
        "body.2.property.TAGS",
        "body.4.property.TAGS",
    ]
    first_size = int.from_bytes(body[:4], "big")
    assert _wheres(pull, body=body[first_size:]) == ["body.records"]
    assert _wheres(pull, body=b"") == ["body"]


def test_a_changed_json_body_is_caught() -> None:
    """Bodies are compared by structure: kinds of keys, values, members of sets."""
    route = _find("probe-json", 105)
    body = bytes(route.ours.body)
    assert _wheres(route, body=body.replace(b'"perm":7', b'"perm":6')) != []
    assert _wheres(route, body=body.replace(b'{"0":', b"{0:")) != []
    assert _wheres(route, body=body.replace(b"127.0.0.1:22911", b"127.0.0.1:1")) == []
    topics = _find("probe-json", 206)
    body = bytes(topics.ours.body)
    assert _wheres(topics, body=body.replace(b'"CapTx",', b"")) == ["body.topicList.CapTx"]


def test_ids_are_compared_by_kind() -> None:
    """Another message id is no difference; another number of them or none is."""
    send = next(one for one in _played("java53-prod") if one.code == 320)
    ids = send.ours.fields["msgId"]
    other = ids.replace("7F0000010000597F00000000", "7F000001000022B800000000")
    assert _wheres(send, fields={**send.ours.fields, "msgId": other}) == []
    fewer = ids.partition(",")[0]
    assert _wheres(send, fields={**send.ours.fields, "msgId": fewer}) == ["field.msgId"]
    wrong = {**send.ours.fields, "transactionId": "0" * 32}
    assert _wheres(send, fields=wrong) == ["field.transactionId"]


def test_the_past_is_derived_from_the_answers() -> None:
    """Queue lengths before a conversation are those that its first answers presuppose."""
    past = past_of(capture.load("probe-json"))
    assert past.lengths["CapProd", 0] == 6
    assert past.lengths["CapProd", 3] == 13
    assert past.topics["CapWriteOnly"]["perm"] == 2
    assert "PROBE_CG" not in past.groups
    assert past_of(capture.load("java53-prod")).lengths == {}
