"""The options of the source: what they mean, and what is said about bad ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyarrow")

from inorder.errors import ConfigError
from inorder.model import TopicQueue
from inorder.spark.cluster import Servers, Tls
from inorder.spark.source.options import parse

BASE = {"namesrv": "127.0.0.1:9876", "topic": "orders"}


def test_names_of_rocketmq_and_kafka_are_understood() -> None:
    """Existing jobs need few changes."""
    found = parse(
        {"nameServer": "h:1", "subscribe": "a, b", "consumerGroup": "g", "subExpression": "x || y"}
    )
    assert (found.namesrv, found.topics, found.group, found.tag) == (
        "h:1",
        ("a", "b"),
        "g",
        "x || y",
    )
    assert found.report_offsets


def test_an_sql_expression_is_checked_where_it_is_read() -> None:
    """Its error is marked; a tag beside it is refused."""
    found = parse({**BASE, "sql": "amount > 5"})
    assert (found.sql, found.tag, found.filtered) == ("amount > 5", "*", True)
    assert not parse(BASE).filtered
    with pytest.raises(ConfigError, match=r"(?s)^sql: the SQL filter is not valid.*\^$"):
        parse({**BASE, "sql": "amount >"})
    with pytest.raises(ConfigError, match="not both"):
        parse({**BASE, "sql": "amount > 5", "tag": "paid"})


def test_a_time_goes_before_offsets() -> None:
    """As with Kafka; both forms of a time are read."""
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    for text in (
        "2026-11-15T12:00:00+00:00",
        "2026-11-15 12:00:00",
        str(int(noon.timestamp() * 1000)),
    ):
        found = parse({**BASE, "startingTimestamp": text, "startingOffsets": "earliest"})
        assert found.starting == noon


def test_without_name_servers_the_environment_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for every other client: INORDER_NAMESRV, NAMESRV_ADDR, that of `inorder up`; read once."""
    monkeypatch.delenv("INORDER_NAMESRV", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert parse({"topic": "t"}).namesrv == "127.0.0.1:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert parse({"topic": "t"}).namesrv == "a:1;b:2"
    monkeypatch.setenv("INORDER_NAMESRV", "c:3")
    assert parse({"topic": "t"}).servers.namesrv == "c:3"
    assert parse({"topic": "t", "nameServer": "d:4"}).namesrv == "d:4"


def test_offsets_by_queue() -> None:
    """JSON by topic, broker and queue."""
    found = parse({**BASE, "startingOffsets": '{"orders": {"broker-a": {"0": 23, "1": -1}}}'})
    assert found.starting == {
        TopicQueue("orders", "broker-a", 0): 23,
        TopicQueue("orders", "broker-a", 1): -1,
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "t", "namesrv": "http://h:1"}, "without http://; write h:1"),
        ({"namesrv": "h:1"}, "topic is missing"),
        ({**BASE, "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({**BASE, "startingOffsets": "soon"}, "neither earliest, latest, group nor JSON"),
        ({**BASE, "endingOffsets": "earliest"}, "neither latest, group nor JSON"),
        ({**BASE, "startingTimestamp": "yesterday"}, "is no time"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, "no number above 0"),
        ({**BASE, "maxTriggerDelay": "fast"}, "no duration"),
        ({**BASE, "failOnDataLoss": "maybe"}, "neither true nor false"),
        ({**BASE, "columns": "offset,bodi"}, "no column 'bodi'"),
        ({**BASE, "maxRecordsPerPartition": "5"}, "ordered=false"),
        ({**BASE, "topicPattern": "x.*"}, "topic or topicPattern, not both"),
        ({"namesrv": "h:1", "topicPattern": "("}, "no regular expression"),
        ({**BASE, "columns": " , "}, "name at least one of"),
        ({**BASE, "endingOffsets": '{"t": 3}'}, "endingOffsets.*does not say where"),
        ({**BASE, "minOffsetsPerTrigger": "-1"}, "minOffsetsPerTrigger.*no number above 0"),
        ({**BASE, "maxPartitions": "many"}, "maxPartitions.*no number above 0"),
        ({**BASE, "idlePollMs": "soon"}, "idlePollMs.*no duration"),
        ({**BASE, "pushdown": "yes"}, "pushdown.*neither true nor false"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, str], says: str) -> None:
    """The error names the option and the way out."""
    with pytest.raises(ConfigError, match=says):
        parse(options)


def test_tls_is_an_option_however_it_is_written() -> None:
    """A word that is nearly one of them is answered with it."""
    found = parse({"namesrv": "h:1", "topic": "t", "tlsCa": "ca.pem"})
    assert found.servers == Servers("h:1", Tls(ca="ca.pem"))
    assert parse({"namesrv": "h:1", "topic": "t"}).tls is None
    with pytest.raises(ConfigError, match="did you mean tls_insecure"):
        parse({"namesrv": "h:1", "topic": "t", "tls_insecur": "true"})
