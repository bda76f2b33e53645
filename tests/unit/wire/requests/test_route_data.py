"""Routes and clusters."""

from __future__ import annotations

import pytest

from inorder.errors import RemoteProtocolError, SystemError_
from inorder.wire.requests.routes import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRoute,
)

QUOTED = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
    b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,'
    b'"topicSysFlag":0,"writeQueueNums":4}]}'
)
BARE = QUOTED.replace(b'"0":', b"0:").replace(b'"1":', b"1:")
BROKER = BrokerData("DefaultCluster", "broker-a", {1: "10.0.0.2:10911", 0: "10.0.0.1:10911"})
ROUTE = TopicRoute((BROKER,), (QueueData("broker-a", 4, 4, 6),))


def test_both_key_styles() -> None:
    """Old clients get bare keys, new ones quoted ones; both are read."""
    assert ROUTE.encode(standard=True) == QUOTED
    assert ROUTE.encode(standard=False) == BARE
    assert TopicRoute.decode(QUOTED) == TopicRoute.decode(BARE) == ROUTE


def test_what_other_versions_write() -> None:
    """Missing keys have Java's defaults, the misspelt flag is read, the order config is kept."""
    route = TopicRoute.decode(
        b'{"orderTopicConf":"a:4","queueDatas":[{"brokerName":"a","topicSynFlag":2}],'
        b'"brokerDatas":[{"brokerName":"a","brokerAddrs":null,"zoneName":"z"}],'
        b'"filterServerTable":{"x":["y"]}}'
    )
    assert route.queues == (QueueData("a", 0, 0, 0, 2),)
    assert route.brokers == (BrokerData("", "a", {}, zone_name="z"),)
    assert (route.order_conf, route.filter_servers) == ("a:4", {"x": ["y"]})
    assert TopicRoute.decode(route.encode()) == route


def test_cluster_info_has_bare_keys() -> None:
    """It always had."""
    info = ClusterInfo({"broker-a": BROKER}, {"DefaultCluster": ("broker-a",)})
    text = info.encode()
    assert b'{0:"10.0.0.1:10911",1:' in text
    assert text.endswith(b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}')
    assert ClusterInfo.decode(text) == info


def test_member_group() -> None:
    """As the description shows it."""
    group = BrokerMemberGroup("DefaultCluster", "broker-a", {0: "10.0.0.1:10911"})
    text = (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster"}}'
    )
    assert group.encode() == text
    assert BrokerMemberGroup.decode(text) == group


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"1",
        b'{"brokerDatas":{}}',
        b'{"brokerDatas":[1]}',
        b'{"brokerDatas":[{}]}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"x":"y"}}]}',
        b'{"queueDatas":[{}]}',
        b'{"queueDatas":[{"brokerName":"a","perm":"x"}]}',
        b'{"filterServerTable":{"a":1}}',
        b'{"queueDatas":[{"brokerName":"a","perm":99999999999}]}',
        b'{"orderTopicConf":[]}',
    ],
)
def test_broken_routes(data: bytes) -> None:
    """An answer that is no route breaks the protocol; a request that is none is answered."""
    with pytest.raises(RemoteProtocolError):
        TopicRoute.decode(data)
    with pytest.raises(SystemError_):
        TopicRoute.decode_request(data)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"brokerAddrTable":1}', b'{"clusterAddrTable":{"a":1}}']
)
def test_broken_cluster_info(data: bytes) -> None:
    """Shapes are checked."""
    with pytest.raises(RemoteProtocolError):
        ClusterInfo.decode(data)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"brokerMemberGroup":1}'])
def test_broken_member_group(data: bytes) -> None:
    """Shapes are checked."""
    with pytest.raises(RemoteProtocolError):
        BrokerMemberGroup.decode(data)
