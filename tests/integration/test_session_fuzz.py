"""Whole sessions of almost valid requests: each is answered, and the broker goes on serving."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inorder.broker.router import HANDLERS
from inorder.wire.fields import wire_names
from inorder.wire.header import Command
from tests.fuzz.targets import REQUESTS
from tests.integration.brokerkit import Rig, running, send_fields

EXAMPLES = int(os.environ.get("INORDER_EXAMPLES", "40"))
ANSWER_TIMEOUT_MS = 15_000

NAMES = st.sampled_from(("Orders", "CG", "%RETRY%CG", "TBW102", "../x", "", "a" * 300, "\x00", "é"))
NUMBERS = st.sampled_from(
    ("0", "1", "-1", "4", "2147483647", "-2147483648", "9223372036854775807", str(2**63), "x", "")
)
FIELD_NAMES = sorted({name for cls in REQUESTS for name in wire_names(cls)})
VALUES = st.one_of(NAMES, NUMBERS, st.sampled_from(("true", "false", "null")), st.text(max_size=20))
CODES = st.sampled_from(sorted({*map(int, HANDLERS), 10, 11, 310, 320, 361, 31_999}))
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=8), NAMES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                (
                    "clientID",
                    "clientId",
                    "consumerGroup",
                    "mqSet",
                    "topic",
                    "queueId",
                    "groupName",
                    "consumerDataSet",
                    "producerDataSet",
                    "subscriptionDataSet",
                    "subString",
                    "topicConfigList",
                    "groupConfigList",
                    "attributes",
                    "$ref",
                )
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)
BODIES = st.one_of(
    st.binary(max_size=60),
    JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    st.just(b""),
)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    """A request of some code with the fields that it wants, some of them strange."""
    code = draw(CODES)
    known = [
        name for cls in REQUESTS if getattr(cls, "CODE", None) == code for name in wire_names(cls)
    ]
    fields = dict(send_fields()) if code in (310, 320) else {name: draw(VALUES) for name in known}
    for _ in range(draw(st.integers(0, 3))):
        fields[draw(st.sampled_from(FIELD_NAMES))] = draw(VALUES)
    if "suspendTimeoutMillis" in fields:
        fields["suspendTimeoutMillis"] = draw(st.sampled_from(("0", "5", "-1", "x")))
    # A binary header has two bytes for the code: no client can write those of POP in it.
    serializer = draw(st.integers(0, 1)) if code <= 32_767 else 0
    return Command.request(code, fields, draw(BODIES), serializer=serializer)


async def play(rig: Rig, session: list[Command]) -> None:
    """Send all at once, wait for all answers, then see whether the broker still does its work."""
    answers = await asyncio.gather(
        *(rig.connection.request(command, ANSWER_TIMEOUT_MS) for command in session)
    )
    for command, answer in zip(session, answers, strict=True):
        if command.code == 31_999:
            assert answer.code == 3
    sent = await rig.ask(310, send_fields(b="Alive", e="0"), b"alive")
    assert sent.code == 0, sent
    pulled = await rig.pull(
        topic="Alive", queueId="0", queueOffset=sent.fields["queueOffset"], consumerGroup="Alive"
    )
    assert pulled.code == 0, pulled
    assert b"alive" in bytes(pulled.body)


@pytest.mark.slow
def test_sessions_of_strange_requests_are_answered() -> None:
    """Every request with a readable header gets its answer; sends and pulls work afterwards."""
    with asyncio.Runner() as runner:
        context = running(topics_max=2000, groups_max=2000, remote_config=True)
        rig = runner.run(context.__aenter__())

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(st.lists(commands(), min_size=1, max_size=8))
        def sessions(session: list[Command]) -> None:
            runner.run(play(rig, session))

        try:
            sessions()
        finally:
            runner.run(context.__aexit__(None, None, None))
