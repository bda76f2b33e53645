"""The offset file of a broadcast consumer: RocketMQ's text, and its backup.

The files in tests/golden/consuming were written by OffsetSerializeWrapper of rocketmq-client 5.3.3.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.client.consume.rules.commits import (
    format_offsets,
    merge_offsets,
    parse_offsets,
    path_parts,
    read_offsets,
)
from inorder.errors import ConfigError, RemoteProtocolError, UsageError
from inorder.model import TopicQueue

GOLDEN = Path(__file__).parents[4] / "golden" / "consuming"
ORDERS = TopicQueue("订单-orders", "broker-a", 0)
THREE = {
    TopicQueue("%RETRY%g", 'broker "b"', 3): 0,
    TopicQueue("T", "broker-a", 10): 2**63 - 1,
    ORDERS: 12,
}


@pytest.mark.parametrize(
    ("name", "offsets"), [("none", {}), ("one", {ORDERS: 12}), ("three", THREE)]
)
def test_the_text_is_javas_byte_for_byte(name: str, offsets: dict[TopicQueue, int]) -> None:
    """Read and written exactly."""
    text = (GOLDEN / f"offsets-{name}.json").read_bytes()
    assert parse_offsets(text) == offsets
    assert format_offsets(offsets) == text


def test_a_text_on_one_line_is_read() -> None:
    """As older clients write it."""
    text = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}'
    assert parse_offsets(text) == {TopicQueue("T", "b", 0): 12}
    assert parse_offsets(b"{}") == {}


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"top',
        b'{"offsetTable":[]}',
        b'{"offsetTable":{"T":1}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":"0","topic":"T"}:12}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:-1}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:"12"}}',
        b'{"offsetTable":{{"queueId":0,"topic":"T"}:12}}',
    ],
)
def test_a_damaged_text_is_an_error(text: bytes) -> None:
    """Half an offset table is not a smaller one."""
    with pytest.raises(RemoteProtocolError):
        parse_offsets(text)


GOOD, OTHER, BAD = format_offsets({ORDERS: 1}), format_offsets({ORDERS: 2}), b"{"


@pytest.mark.parametrize(
    ("main", "backup", "offset", "from_backup"),
    [
        (GOOD, OTHER, 1, False),
        (GOOD, None, 1, False),
        (GOOD, BAD, 1, False),
        (None, OTHER, 2, True),
        (b"", OTHER, 2, True),
        (BAD, OTHER, 2, True),
        (None, None, None, False),
        (b"", b"", None, False),
    ],
)
def test_the_backup_stands_in_for_the_file(
    main: bytes | None, backup: bytes | None, offset: int | None, from_backup: bool
) -> None:
    """Missing, empty or damaged: the version before it is read."""
    found, used_backup = read_offsets(main, backup)
    assert found == ({} if offset is None else {ORDERS: offset})
    assert used_backup is from_backup


@pytest.mark.parametrize(("main", "backup"), [(BAD, BAD), (BAD, None), (BAD, b""), (None, BAD)])
def test_damage_without_a_way_out_is_an_error(main: bytes | None, backup: bytes | None) -> None:
    """Beginning anew would skip or repeat messages; a person decides."""
    with pytest.raises(ConfigError, match="damaged"):
        read_offsets(main, backup)


def test_offsets_of_other_queues_stay_in_the_file() -> None:
    """What another consumer of the same id noted is not lost."""
    other = TopicQueue("T", "b", 0)
    assert merge_offsets({ORDERS: 1, other: 5}, {ORDERS: 2}) == {ORDERS: 2, other: 5}


def test_the_file_lies_under_the_id_and_the_group() -> None:
    """As in RocketMQ; a name that leads elsewhere is refused."""
    assert path_parts("10.0.0.1@DEFAULT", "g") == ("10.0.0.1@DEFAULT", "g", "offsets.json")
    for client_id, group in (("..", "g"), ("id", ""), ("id", "a/b"), ("a\0b", "g")):
        with pytest.raises(UsageError):
            path_parts(client_id, group)
