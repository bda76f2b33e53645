"""Finding messages: by position (33), by key (12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.handlers.context import BrokerLike
from inorder.wire.codes import ResponseCode
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.requests.pulls import QueryMessage, QueryMessageReply, ViewMessage

if TYPE_CHECKING:
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command

UNIQUE_KEY_COUNT = 32
"""How many records a search by message id may find, whatever the client asks for."""
ANSWER_BYTES_MAX = 8 * 1024 * 1024


def view_message(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer the record at a position of the log; code 1 if none begins there."""
    position = decode_fields(ViewMessage, command.fields).position
    record = visible_record(broker, position)
    if record is None:
        return command.reply(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}"
        )
    return command.reply(body=bytes(record))


def query_message(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer the records of a key that were stored between two times; 22 if there is none."""
    request = decode_fields(QueryMessage, command.fields)
    count = UNIQUE_KEY_COUNT if request.unique_key else request.max_messages
    hits = broker.store.query_keys(
        request.topic, request.key, max(0, count), request.begin_ms, request.end_ms
    )
    records: list[memoryview] = []
    size = 0
    for position in sorted(hits.positions):  # oldest first, as RocketMQ answers
        record = visible_record(broker, position)
        if record is None:
            continue
        size += len(record)
        if records and size > ANSWER_BYTES_MAX:
            break
        records.append(record)
    if not records:
        return command.reply(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            fields=encode_fields(QueryMessageReply(0, 0)),
        )
    reply = QueryMessageReply(hits.last_update_ms, hits.last_update_position)
    return command.reply(fields=encode_fields(reply), body=b"".join(records))


def visible_record(broker: BrokerLike, position: int) -> memoryview | None:
    """Return a record unless it has yet to become durable under sync flush."""
    store = broker.store
    record = store.record_at(position)
    if record is None:
        return None
    if store.config.sync_flush and position + len(record) > store.log.durable_position:
        return None
    return record
