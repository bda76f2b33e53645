"""Codes 12 and 33."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inorder.wire.record import decode


def search(broker: Any, key: str, **more: str) -> Any:
    """Ask for a key of topic t."""
    fields = {
        "topic": "t",
        "key": key,
        "maxNum": "5",
        "beginTimestamp": "0",
        "endTimestamp": "9000000000000000",
        **more,
    }
    return broker.ask(12, fields)


def test_a_record_is_found_by_its_position(broker: Any) -> None:
    """Code 33 answers one record, and code 1 for anything that is not the start of one."""
    broker.put("t", 0, b"first")
    position = broker.put("t", 1, b"second")
    answer = broker.ask(33, {"offset": str(position), "topic": "t"})
    assert answer.code == 0
    assert not answer.has_fields
    assert decode(answer.body).body == b"second"
    for wrong in (7, -1, 10**12, position + 1):
        answer = broker.ask(33, {"offset": str(wrong)})
        assert answer.code == 1
        assert answer.remark == f"can not find message by the offset, {wrong}"


def test_records_are_found_by_key_oldest_first(broker: Any) -> None:
    """Code 12 answers the newest matches in the order of the log, and how far the index is."""
    for number in range(7):
        broker.put("t", 0, b"body %d" % number, b"KEYS\x01k1 k%d\x02" % number)
    answer = search(broker, "k1")
    assert answer.code == 0
    assert set(answer.fields) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    bodies = []
    rest = bytes(answer.body)
    while rest:
        record = decode(rest)
        bodies.append(record.body)
        rest = rest[record.size :]
    assert bodies == [b"body 2", b"body 3", b"body 4", b"body 5", b"body 6"]


def test_an_unknown_key_is_not_found(broker: Any) -> None:
    """No match is 22 with zeros for the index."""
    answer = search(broker, "nokey")
    assert answer.code == 22
    assert answer.remark == "can not find message, maybe time range not correct"
    assert answer.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


def test_a_search_by_message_id_is_not_cut_short(broker: Any) -> None:
    """With the unique flag the client's number does not count."""
    for _ in range(3):
        broker.put("t", 0, b"x", b"UNIQ_KEY\x01ID\x02")
    assert len(search(broker, "ID", maxNum="1").body) == len(search(broker, "ID").body) // 3
    unique = search(broker, "ID", maxNum="1", _UNIQUE_KEY_QUERY="true")
    assert unique.body == search(broker, "ID").body


def test_what_is_not_durable_is_not_shown_under_sync_flush(broker: Any) -> None:
    """Under sync flush a record can be looked up only once it is on disk."""
    position = broker.put("t", 0, b"x", b"KEYS\x01k\x02")
    broker.store.config = replace(broker.store.config, sync_flush=True)
    assert broker.ask(33, {"offset": str(position)}).code == 1
    assert search(broker, "k").code == 22
    broker.store.sync()
    assert broker.ask(33, {"offset": str(position)}).code == 0
    assert search(broker, "k").code == 0
