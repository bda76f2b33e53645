"""JSON bodies: fastjson's dialect comes back, and garbage only raises what it should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.errors import BrokerError, RemoteProtocolError
from inorder.wire.fastjson import dumps, loads
from inorder.wire.ids import java_hash, java_hash_bytes
from inorder.wire.requests.groups import (
    ClientConfigCheck,
    ClientHeartbeat,
    GroupTable,
    decode_group_config,
    decode_group_configs,
)
from inorder.wire.requests.leases import LockBatchBody, LockedQueues
from inorder.wire.requests.nameserver import decode_consumer_ids, decode_kv_table, decode_settings
from inorder.wire.requests.registration import RegisterBrokerBody
from inorder.wire.requests.routes import BrokerMemberGroup, ClusterInfo, TopicRoute
from inorder.wire.requests.topics import (
    TopicTable,
    decode_data_version,
    decode_topic_config,
    decode_topic_configs,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
)
BEANS = st.dictionaries(TEXT, st.integers(-9, 9) | TEXT, max_size=3).map(
    lambda bean: tuple(sorted(bean.items()))
)
KEYS = TEXT.filter(lambda text: text != "$ref") | st.integers(-(1 << 62), 1 << 62) | BEANS
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(VALUES, st.booleans())
def test_values_come_back(value: Any, pretty: bool) -> None:
    """Number keys, object keys, any nesting, compact and pretty."""
    assert loads(dumps(value, pretty=pretty)) == value


@settings(max_examples=300, deadline=None)
@given(st.text('{}[]:,"0123456789.-eE \\u$reftn', max_size=40) | st.binary(max_size=40))
def test_garbage_is_refused_or_read(data: str | bytes) -> None:
    """One kind of error; what is read can be written."""
    try:
        value = loads(data)
    except RemoteProtocolError:
        return
    assert isinstance(dumps(value), bytes)


DECODERS = [
    ClientHeartbeat.decode,
    ClientConfigCheck.decode,
    LockBatchBody.decode,
    LockedQueues.decode,
    TopicTable.decode,
    GroupTable.decode,
    decode_topic_config,
    decode_topic_configs,
    decode_group_config,
    decode_group_configs,
    decode_consumer_ids,
    decode_kv_table,
    decode_settings,
    decode_data_version,
    lambda data: RegisterBrokerBody.decode(data, version=479),
    lambda data: RegisterBrokerBody.decode(data, version=1, compressed=True),
    TopicRoute.decode,
    TopicRoute.decode_request,
    ClusterInfo.decode,
    BrokerMemberGroup.decode,
]
NAMES = st.sampled_from(
    [
        "clientID",
        "consumerDataSet",
        "producerDataSet",
        "groupName",
        "subscriptionDataSet",
        "topic",
        "subString",
        "tagsSet",
        "clientId",
        "consumerGroup",
        "mqSet",
        "brokerName",
        "queueId",
        "lockOKMQSet",
        "topicConfigTable",
        "dataVersion",
        "topicConfigSerializeWrapper",
        "attributes",
        "subscriptionGroupTable",
        "forbiddenTable",
        "topicConfigList",
        "groupConfigList",
        "table",
        "brokerDatas",
        "queueDatas",
        "brokerAddrs",
        "brokerMemberGroup",
        "perm",
        "subscriptionData",
        "consumerIdList",
        "brokerAddrTable",
        "clusterAddrTable",
        "filterServerTable",
        "topicName",
    ]
)
SHAPED = st.recursive(
    st.none() | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | KEYS, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize("decode", DECODERS, ids=range(len(DECODERS)))
@settings(max_examples=40, deadline=None)
@given(value=SHAPED)
def test_any_json_is_a_body_or_refused(decode: Any, value: Any) -> None:
    """A decoder raises the errors of its documentation and no other."""
    try:
        decode(dumps(value))
    except (RemoteProtocolError, BrokerError):
        pass


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_both_hashes_agree(text: str) -> None:
    """Text and its UTF-8 have the same hash, a signed 32-bit number."""
    assert java_hash(text) == java_hash_bytes(text.encode())
    assert -(1 << 31) <= java_hash(text) < 1 << 31
