"""The blocking Admin: each verb of each noun once, against a broker in the process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import inorder
import inorder.testing
from inorder.errors import AlreadyClosed, NotFound, TopicNotRouted, UsageError
from inorder.testing import RunningBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A broker with six orders in two queues and a group."""
    with inorder.testing.broker() as running:
        running.create_topic("orders", queues=2)
        with running.producer() as producer:
            for number in range(6):
                producer.send("orders", b"%d" % number, key=f"k{number}", keys=[f"k{number}"])
        yield running


def test_topics_and_cluster(broker: RunningBroker) -> None:
    """Create, list, describe, change, delete; who serves it, and how."""
    with inorder.Admin(broker.namesrv) as admin:
        admin.topics.create("more", queues=1, attributes={"message.type": "FIFO"})
        assert admin.topics.names() == ["more", "orders"]
        assert admin.topics.table()["orders"]["broker-a"].read_queues == 2
        assert admin.topics.resize("more", queues=2).queues == 2
        assert admin.topics.resize_status("more").is_done
        assert admin.topics.configs("more")["broker-a"].write_queues == 2
        assert admin.topics.describe("orders").messages == 6
        assert admin.topics.find_queue("orders", 1).index == 1
        admin.topics.delete("more")
        with pytest.raises(TopicNotRouted):
            admin.topics.describe("more")
        (node,) = admin.cluster.masters(broker="broker-a")
        assert node == admin.cluster.find(node.address) == admin.cluster.brokers()[0]
        assert "broker-a" in admin.cluster.info().brokers
        assert admin.cluster.route("orders").brokers
        assert admin.cluster.runtime("broker-a")["brokerActive"] == "true"
        assert admin.cluster.settings("broker-a")["brokerName"] == "broker-a"
        with pytest.raises(inorder.BrokerError, match="remote_config"):
            admin.cluster.update_settings("broker-a", {"brokerPermission": "4"})


def test_groups_and_offsets(broker: RunningBroker) -> None:
    """A group is made, put anywhere, measured, deleted."""
    with inorder.Admin(broker.namesrv) as admin:
        admin.groups.create(inorder.GroupConfig("billing", retry_max_times=3))
        assert admin.groups.names() == ["billing"]
        assert admin.groups.configs("billing")["broker-a"].retry_max_times == 3
        assert "billing" in admin.groups.table()
        assert (admin.groups.consumers("billing"), admin.groups.producers("nobody")) == ({}, {})
        queues = [one.queue for one in admin.offsets.get("billing", "orders")]
        admin.offsets.set("billing", queues[0], 1)
        assert sum(admin.offsets.reset("billing", "orders", "end").values()) == 6
        assert sum(one.lag for one in admin.groups.lag("billing")) == 0
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        assert admin.offsets.at_time(queues[0], an_hour_ago) == 0
        assert set(admin.offsets.reset("billing", "orders", an_hour_ago).values()) == {0}
        assert admin.groups.describe("billing").lag == 6
        assert admin.offsets.reset_queue("billing", queues[1], 1) == 1
        with pytest.raises(UsageError, match="'beginning' or 'end'"):
            admin.offsets.reset("billing", "orders", "middle")  # type: ignore[arg-type]
        admin.groups.delete("billing")
        assert admin.groups.names() == []


def test_messages(broker: RunningBroker) -> None:
    """By id, key, offset and time; times are datetimes to the millisecond."""
    with inorder.Admin(broker.namesrv) as admin:
        (found,) = admin.messages.by_key("orders", "k3")
        assert admin.messages.by_id("orders", found.message_id) == [found]
        assert admin.messages.by_offset(found.queue, found.offset) == found
        assert len(admin.messages.by_time("orders")) == 6
        stored = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=found.stored_at_ms)
        assert found in admin.messages.by_time("orders", stored)
        assert found not in admin.messages.by_time("orders", None, stored)
        batch = admin.messages.read(found.queue, 0, wait=timedelta(seconds=1))
        assert batch.next_offset == batch.end_offset == len(batch.messages)
        with pytest.raises(NotFound):
            admin.messages.by_id("orders", "0" * 32)


def test_a_closed_admin_says_so(broker: RunningBroker) -> None:
    """Twice is fine; use after close is not, whoever else keeps the session alive."""
    with broker.producer() as producer:
        producer.send("orders", b"x", key="k")
        admin = inorder.Admin(broker.namesrv)
        admin.topics.names()
        admin.close()
        admin.close()
        with pytest.raises(AlreadyClosed):
            admin.topics.names()
        producer.send("orders", b"y", key="k")
    assert repr(admin) == f"Admin('{broker.namesrv}')"
