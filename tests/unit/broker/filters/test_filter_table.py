"""The table of SQL92 filters: what heartbeats make of it, and its file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inorder.broker.filters import records, rules
from inorder.broker.filters.records import bloom_places, decode_filters, murmur3
from inorder.broker.filters.rules import CompiledFilters, FilterTable, filter_of
from inorder.errors import RemoteProtocolError, SubscriptionParseFailed
from inorder.model import Subscription
from inorder.wire.requests.pulls import parse_subscription

DAY_MS = 24 * 3_600_000


def sql(text: str, version: int = 1, topic: str = "t", kind: str = "SQL92") -> Subscription:
    return parse_subscription(topic, text, version, kind)


@pytest.fixture
def table() -> FilterTable:
    return FilterTable(CompiledFilters())


def shown(table: FilterTable, topic: str = "t", group: str = "g") -> tuple[str, int, bool] | None:
    found = table.get(topic, group)
    return found and (found.filter.text, found.record.version, found.record.dead)


def test_a_heartbeat_registers_filters_by_their_version(table: FilterTable) -> None:
    """A newer version replaces, an older or equal one does not."""
    assert table.register("g", [sql("a > 1", 5), parse_subscription("u", "*", 5)], 100) == []
    assert shown(table) == ("a > 1", 5, False)
    assert shown(table, "u") is None
    for text, version, kept in (
        ("a > 2", 4, ("a > 1", 5, False)),
        ("a > 2", 5, ("a > 1", 5, False)),
        ("a > 2", 6, ("a > 2", 6, False)),
        ("a > 2", 7, ("a > 2", 7, False)),
    ):
        assert table.register("g", [sql(text, version)], 100) == []
        assert shown(table) == kept


def test_a_bad_expression_removes_the_one_before_it(table: FilterTable) -> None:
    """So that pulls say that something is wrong, as RocketMQ has it."""
    table.register("g", [sql("a > 1", 5)], 100)
    (problem,) = table.register("g", [sql("a > (", 6)], 100)
    assert problem.startswith("topic t: the SQL filter is not valid")
    assert shown(table) is None
    (problem,) = table.register("g", [sql("a", 7, kind="XPATH")], 100)
    assert "no filter of the type 'XPATH'" in problem
    assert table.register("g", [sql("", 8)], 100) == []
    assert (len(table), shown(table)) == (0, None)


def test_filters_die_with_their_topic_or_group_and_come_back(table: FilterTable) -> None:
    """A day later they are removed."""
    both = [sql("a > 1", 5), sql("b > 1", 5, "u")]
    table.register("g", both, 100)
    table.register("g", both[:1], 200)
    assert (shown(table), shown(table, "u")) == (("a > 1", 5, False), ("b > 1", 5, True))
    table.register("g", both, 300)
    assert shown(table, "u") == ("b > 1", 5, False)
    table.group_left("g", 400)
    assert (shown(table), shown(table, "u")) == (("a > 1", 5, True), ("b > 1", 5, True))
    table.register("g", both[:1], 500)
    table.clean(400 + DAY_MS - 1, DAY_MS)
    assert len(table) == 2
    table.clean(400 + DAY_MS, DAY_MS)
    assert (shown(table), shown(table, "u")) == (("a > 1", 5, False), None)
    table.group_left("nobody", 600)


def test_the_table_is_bounded(table: FilterTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter that died first makes room; while all live a further one is not kept."""
    monkeypatch.setattr(rules, "FILTERS_MAX", 2)
    table.register("g", [sql("a > 1")], 100)
    table.register("h", [sql("a > 2")], 100)
    (problem,) = table.register("i", [sql("a > 3")], 100)
    assert "keeps 2 filters" in problem
    table.group_left("h", 100)
    table.group_left("g", 200)
    assert table.register("i", [sql("a > 3")], 300) == []
    assert [shown(table, group=group) is not None for group in "ghi"] == [True, False, True]
    monkeypatch.setattr(rules, "FILTERS_MAX", 99)
    monkeypatch.setattr(rules, "CHARS_MAX", 12)
    assert len(table.register("j", [sql("a > 4444444")], 300)) == 1
    assert [shown(table, group=group) is not None for group in "gij"] == [False, True, False]


def test_compiled_filters_are_kept_up_to_a_number_of_characters() -> None:
    """The one that was not used for longest is forgotten first."""
    kept = CompiledFilters(chars_max=3 * 256)
    first = kept.of("a = 1")
    kept.of("a = 2"), kept.of("a = 3")
    assert kept.of("a = 1") is first
    kept.of("a = 4")
    assert [text in kept for text in ("a = 1", "a = 2", "a = 3", "a = 4")] == [1, 0, 1, 1]
    kept.of("a = '" + "x" * 700 + "'")
    assert len(kept) == 1
    with pytest.raises(SubscriptionParseFailed):
        filter_of(kept, "SQL92", "a = ")
    assert len(kept) == 1


def test_the_file_has_rocketmqs_format(table: FilterTable) -> None:
    """Tabs, the names of fastjson, and the bits of a bloom filter, which RocketMQ asks for."""
    table.register("g2", [sql("a > 5 AND b = 'x'", 1731600000000, "TopicTest")], 1731600000001)
    text = table.encode()
    assert json.loads(text) == {
        "filterDataByTopic": {
            "TopicTest": {
                "groupFilterData": {
                    "g2": {
                        "bloomFilterData": {
                            "bitNum": 112, "bitPos": bloom_places("g2#TopicTest"),
                        },
                        "bornTime": 1731600000001, "clientVersion": 1731600000000,
                        "consumerGroup": "g2", "dead": False, "deadTime": 0,
                        "expression": "a > 5 AND b = 'x'", "expressionType": "SQL92",
                        "topic": "TopicTest",
                    }
                },
                "topic": "TopicTest",
            }
        }
    }  # fmt: skip
    lines = text.decode().split("\n")
    assert lines[:5] == [
        "{", '\t"filterDataByTopic":{', '\t\t"TopicTest":{', '\t\t\t"groupFilterData":{',
        '\t\t\t\t"g2":{',
    ]  # fmt: skip
    assert lines[-6:] == [
        "\t\t\t\t}", "\t\t\t},", '\t\t\t"topic":"TopicTest"', "\t\t}", "\t}", "}",
    ]  # fmt: skip
    assert FilterTable(CompiledFilters()).encode() == b'{\n\t"filterDataByTopic":{}\n}'


def test_what_is_loaded_counts_as_dead_until_its_group_speaks(table: FilterTable) -> None:
    """Since half a minute before the start, but not before its birth."""
    table.register("g", [sql("a > 1", 5), sql("b > 1", 5, "u")], 100)
    table.register("h", [sql("a > 2", 6)], 90_000)
    table.group_left("h", 95_000)
    again = FilterTable(CompiledFilters())
    assert again.load(table.encode(), 100_000) == []
    dead = {key: again.get(*key).record.dead_ms for key in (("t", "g"), ("u", "g"), ("t", "h"))}  # type: ignore[union-attr]
    assert dead == {("t", "g"): 70_000, ("u", "g"): 70_000, ("t", "h"): 95_000}
    again.register("g", [sql("a > 1", 5)], 100_000)
    again.clean(70_000 + DAY_MS, DAY_MS)
    assert (shown(again), shown(again, "u")) == (("a > 1", 5, False), None)
    assert shown(again, group="h") == ("a > 2", 6, True)


def test_the_file_is_encoded_in_portions(table: FilterTable) -> None:
    """A large table is encoded over several turns; a change makes its entry new."""
    for number in range(5):
        table.register(f"g{number}", [sql(f"a > {number}")], 100)
    before = table.revision
    assert [table.prepare(2) for _ in range(3)] == [False, False, True]
    assert len(decode_filters(table.encode())) == 5
    table.group_left("g3", 200)
    assert table.revision > before
    assert not table.prepare(0)
    found = {record.group: record.dead for record in decode_filters(table.encode())}
    assert found == {f"g{number}": number == 3 for number in range(5)}


@pytest.mark.parametrize(
    "content",
    [
        b"[]", b'{"filterDataByTopic":[]}', b'{"filterDataByTopic":{"t":5}}',
        b'{"filterDataByTopic":{"t":{"groupFilterData":{"g":{"topic":"u"}}}}}',
        b'{"filterDataByTopic":{"t":{"groupFilterData":{"g":{"bornTime":"x"}}}}}',
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused(content: bytes) -> None:
    """Nothing of it is taken."""
    with pytest.raises(RemoteProtocolError):
        decode_filters(content)


def test_what_cannot_be_compiled_is_left_out_and_told(table: FilterTable) -> None:
    """RocketMQ keeps such an entry and lets every message pass; nulls are skipped."""
    entry: dict[str, Any] = {"expression": "a > (", "expressionType": "SQL92", "bornTime": 5}
    good = {**entry, "expression": "a > 1"}
    content = {"filterDataByTopic": {"t": {"groupFilterData": {"g": entry, "h": good, "i": None}}}}
    (problem,) = table.load(json.dumps(content).encode(), 100_000)
    assert problem.startswith("group g, topic t: the SQL filter is not valid")
    assert shown(table, group="h") == ("a > 1", 0, True)
    assert table.load(b"{}", 100_000) == []


def test_the_hash_is_murmur3() -> None:
    """Known values of murmur3_x64_128, first half."""
    assert murmur3(b"") == 0
    assert murmur3(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3(b"hello, world") == 0x342FAC623A5EBC8E
    assert murmur3(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C
    places = bloom_places("group#topic")
    assert len(places) == records.BLOOM_HASHES
    assert all(0 <= place < records.BLOOM_BITS for place in places)
