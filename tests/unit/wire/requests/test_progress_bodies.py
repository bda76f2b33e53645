"""Bodies whose maps have queues as keys, and lists of clients, in the forms of 5.3 and 4.9."""

from __future__ import annotations

import pytest

from inorder.errors import RemoteProtocolError
from inorder.model import Subscription, TopicQueue
from inorder.wire.requests.connections import (
    ClientConnection,
    ConsumerConnections,
    decode_producer_connections,
    decode_producers,
    decode_subscription,
    encode_producer_connections,
    encode_producers,
    encode_subscription,
)
from inorder.wire.requests.offsets import (
    ConsumeStats,
    QueueProgress,
    QueueStats,
    TopicStats,
    decode_queue_offsets,
    encode_queue_offsets,
)

QUEUE = TopicQueue("TopicA", "broker-a", 0)
KEY = b'{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}'


def test_topic_stats_in_both_forms() -> None:
    """What 5.3 writes comes back the same; 4.9 has no rate."""
    text = (
        b'{"offsetTable":{' + KEY + b':{"lastUpdateTimestamp":17,"maxOffset":100,"minOffset":3}},'
        b'"topicPutTps":0.5}'
    )
    stats = TopicStats({QUEUE: QueueStats(3, 100, 17)}, 0.5)
    assert TopicStats.decode(text) == stats
    assert stats.encode() == text
    old = b'{"offsetTable":{' + KEY + b':{"maxOffset":100,"minOffset":3}}}'
    assert TopicStats.decode(old) == TopicStats({QUEUE: QueueStats(3, 100)})


def test_consume_stats_in_both_forms() -> None:
    """What 5.3 writes comes back the same; 4.9 has no pull offset, so it is the committed one."""
    text = (
        b'{"consumeTps":1.5,"offsetTable":{' + KEY + b':{"brokerOffset":100,"consumerOffset":90,'
        b'"lastTimestamp":17,"pullOffset":95}}}'
    )
    stats = ConsumeStats({QUEUE: QueueProgress(100, 90, 95, 17)}, 1.5)
    assert ConsumeStats.decode(text) == stats
    assert stats.encode() == text
    old = b'{"offsetTable":{' + KEY + b':{"brokerOffset":100,"consumerOffset":90}}}'
    assert ConsumeStats.decode(old).queues[QUEUE].pulled_offset == 90


def test_queue_offsets_with_quoted_keys() -> None:
    """A writer of standard JSON puts the queue into a text; both are read."""
    text = b'{"offsetTable":{' + KEY + b":55}}"
    assert encode_queue_offsets({QUEUE: 55}) == text
    assert decode_queue_offsets(text) == {QUEUE: 55}
    quoted = b'{"offsetTable":{"' + KEY.replace(b'"', b'\\"') + b'":55}}'
    assert decode_queue_offsets(quoted) == {QUEUE: 55}


def test_connections_round_trip() -> None:
    """Clients, subscriptions and producers come back as they went."""
    client = ClientConnection("c", "10.0.0.9:50000", "JAVA", 479)
    consumers = ConsumerConnections(
        (client,), "CONSUME_FROM_LAST_OFFSET", "CONSUME_PASSIVELY", "CLUSTERING",
        {"t": Subscription("t", version=5)},
    )  # fmt: skip
    assert ConsumerConnections.decode(consumers.encode()) == consumers
    encoded = encode_producer_connections([client])
    assert decode_producer_connections(encoded) == [client]
    seen = ClientConnection("c", "10.0.0.9:50000", "JAVA", 479, 17)
    assert decode_producers(encode_producers({"p": [seen]})) == {"p": [seen]}
    wanted = Subscription("t", version=5)
    assert decode_subscription(encode_subscription("g", "t", wanted)) == wanted
    assert decode_subscription(encode_subscription("g", "t", None)) is None


@pytest.mark.parametrize("text", [b"[]", b'{"offsetTable":[]}', b'{"offsetTable":{"x":1}}', b"{"])
def test_what_is_no_table_is_refused(text: bytes) -> None:
    """Garbage from a server is the server's breach of protocol."""
    with pytest.raises(RemoteProtocolError):
        ConsumeStats.decode(text)
