"""A broker with very many topics still fits one registration."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from inorder.broker.cluster import Registration
from inorder.broker.topics.rules import TopicTable
from inorder.clock import SystemClock
from inorder.config import BrokerConfig
from inorder.model import TopicConfig
from inorder.wire.fields import decode_fields
from inorder.wire.frame import FRAME_BYTES_MAX, encode_frame
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.routes import RegisterBroker


@dataclass
class Named:
    """A broker as its registration sees it."""

    config: BrokerConfig = field(default_factory=BrokerConfig)
    clock: SystemClock = field(default_factory=SystemClock)
    address: str = "127.0.0.1:10911"
    identity: str = "identity-of-a-directory"
    accounts: None = None
    topics: TopicTable = field(
        default_factory=lambda: TopicTable(cluster="c", broker="b", now_ms=1)
    )

    def save_topics(self) -> None:
        """Nothing is saved here."""


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 99_000])
def test_as_many_topics_as_are_allowed_can_be_registered(count: int) -> None:
    """With names of the greatest length: plain while it is short, then compressed."""
    broker = Named()
    for number in range(count):
        broker.topics.put(TopicConfig(f"{number:0127d}", 8, 8), 1)
    registration = Registration(broker)
    command = registration._command(asyncio.run(registration._full_body()))
    assert len(encode_frame(command)) < FRAME_BYTES_MAX
    header = decode_fields(RegisterBroker, command.fields)
    assert header.compressed == (count > 1000)
    body = RegisterBrokerBody.decode(
        command.body, version=command.version, compressed=header.compressed
    )
    assert body.topics == {config.name: config for config in broker.topics}
