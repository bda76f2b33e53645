"""What a Spark process asks of a cluster with an SQL92 expression; without Spark itself."""

from __future__ import annotations

import pytest

import inorder
from inorder.errors import ConfigError
from inorder.spark.cluster import Cluster
from inorder.testing import broker as testing_broker
from inorder.wire.record import decode_all


def test_ranges_are_read_through_the_filter() -> None:
    """Each broker is asked once whether it filters; stretches without a match are passed."""
    with testing_broker() as broker:
        with inorder.Producer(broker.namesrv) as producer:
            for number in range(3000):
                amount = {"amount": str(number % 1000)}
                producer.send("orders", b"%d" % number, key="k", properties=amount)
        cluster = Cluster(broker.namesrv, group="spark")
        queues = cluster.queues("orders")
        cluster.require_filter(queues, "amount = 999")
        assert cluster._filters_taken == {(queues[0].broker, "amount = 999")}
        bodies, ends = [], cluster.ends(queues)
        (queue,) = (queue for queue in queues if ends[queue])
        for pulled in cluster.read(queue, 0, ends[queue], sql="amount = 999"):
            bodies += [record.body for record in decode_all(pulled.data)]
            at = pulled.next_offset
        assert (bodies, at) == ([b"999", b"1999", b"2999"], 3000)
        with pytest.raises(ConfigError, match=r"^sql: broker .*not valid"):
            cluster.require_filter(queues, "amount = ")
