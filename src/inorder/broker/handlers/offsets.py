"""Offsets: what a group has consumed (14, 15), what a queue holds (29 to 32)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from inorder.broker.handlers.context import BrokerLike
from inorder.broker.state.commits import Ruling, manner_of
from inorder.errors import InvalidParameter, TopicNotFound
from inorder.wire.codes import ResponseCode
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.requests.offsets import (
    GetEarliest,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    TimestampReply,
    UpdateConsumerOffset,
)

if TYPE_CHECKING:
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command


def query_consumer_offset(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command:
    """Answer the stored offset of a group, or where a group without one starts.

    - A queue that holds nothing: its end. RocketMQ answers "not found" and the client then asks for
      the maximum; a message stored between the two would never be handled (O28).
    - A young queue, whose first message is still there and in memory: 0, as RocketMQ.
    - Otherwise not found; the client decides by its own setting.
    """
    request = decode_fields(QueryConsumerOffset, command.fields)
    topic, queue_id = request.topic, request.queue_id
    offset = broker.offsets.query(request.consumer_group, topic, queue_id)
    if offset < 0:
        if request.set_zero_if_not_found is False:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
                fields={},
            )
        start = first_offset(broker, topic, queue_id)
        if start is None:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                fields={},
            )
        offset = start
    return command.reply(fields=encode_fields(OffsetReply(offset)))


def first_offset(broker: BrokerLike, topic: str, queue_id: int) -> int | None:
    """Return where a group without an offset starts; None: where its own setting says."""
    config = broker.topics.get(topic)
    if config is None or not 0 <= queue_id < config.read_queues:
        return None
    store = broker.store
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return 0
    if queue.min_offset >= queue.visible_offset:
        return queue.visible_offset
    first = queue.entry(0) if queue.min_offset <= 0 else None
    if first is not None and store.log.end_position - first[0] <= store.reader.hot_bytes:
        return 0
    return None


def update_consumer_offset(
    broker: BrokerLike, connection: ServerConnection, command: Command
) -> Command | Coroutine[Any, Any, Command]:
    """Store what a group says of its progress; below zero says nothing.

    `state/commits.py` says whose word counts: what is further already, or another one's, is
    answered as taken, with a remark; what lies beyond the end of the queue is refused.
    """
    request = decode_fields(UpdateConsumerOffset, command.fields)
    group, topic = request.consumer_group, request.topic
    if group not in broker.groups:
        return command.reply(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!", fields={}
        )
    if topic not in broker.topics:
        return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", fields={})
    missing = "QueueId" if request.queue_id is None else "Offset"
    if request.queue_id is None or request.commit_offset is None:
        return command.reply(
            ResponseCode.INVALID_PARAMETER, f"{missing} is null, topic is {topic}", fields={}
        )
    if broker.offsets.has_reset(group, topic, request.queue_id):
        return command.reply(remark="Offset has been previously reset", fields={})
    queue_id, offset = request.queue_id, request.commit_offset
    manner = manner_of(
        oneway=command.is_oneway,
        member=broker.members.client_id(group, connection) is not None,
        language=command.language,
        only_up=bool(request.only_up),
    )

    def store() -> Command:
        before = broker.offsets.query(group, topic, queue_id)
        ruling = broker.commit_offset(group, topic, queue_id, offset, connection, manner=manner)
        if ruling is not Ruling.TAKEN:
            return _not_taken(command, ruling, before)
        if offset < before:
            broker.parking.went_back(group, topic, queue_id)
        if not command.is_oneway:  # else nobody hears when it is safe; within a second it is
            broker.owners_file.flush()
        return command.reply(fields={})

    ruling = broker.commit_offset(
        group, topic, queue_id, offset, connection, manner=manner, look=True
    )
    if ruling is not Ruling.TAKEN:
        return _not_taken(command, ruling, broker.offsets.query(group, topic, queue_id))
    version = _goes_back_to(broker, group, topic, queue_id, offset)
    if version is not None:
        return answer_rested(broker, topic, group, version, store)
    answer = store()
    if command.is_oneway or answer.remark or not broker.config.store.sync_flush:
        return answer
    return answer_settled(broker, answer)


def _not_taken(command: Command, ruling: Ruling, known: int) -> Command:
    """Answer a commit that changes nothing."""
    if ruling is Ruling.BEYOND:
        raise InvalidParameter(
            "the offset lies beyond the end of the queue; commit what was consumed, or reset the "
            "group to the end"
        )
    why = {
        Ruling.HELD: "Offset ignored: the queue is locked by another client",
        Ruling.LOWER: f"Offset ignored: the group is at {known} already; reset it to go back",
    }
    return command.reply(remark=why.get(ruling), fields={})


def _goes_back_to(
    broker: BrokerLike, group: str, topic: str, queue_id: int, offset: int
) -> int | None:
    """Return the version that is past into which an offset leads back; None: it is progress."""
    if not 0 <= offset < broker.offsets.query(group, topic, queue_id):
        return None
    return broker.resizing.rewinding.version_touched(topic, group, {queue_id: offset})


async def answer_rested(
    broker: BrokerLike, topic: str, group: str, version: int, then: Callable[[], Command]
) -> Command:
    """Set offsets that lead into a version which is past, once the group gets nothing."""
    await broker.resizing.rewinding.rest(topic, group, version)
    if not broker.resizing.rewinding.rests(topic, group):
        raise TopicNotFound(f"topic[{topic}], or group {group}, was deleted meanwhile")
    answer = then()
    if broker.config.store.sync_flush:
        await broker.owners_file.settled()
    await broker.resizing.rewinding.tell(topic, group)
    return answer


async def answer_settled(broker: BrokerLike, answer: Command) -> Command:
    """Answer when what was written of offsets and owners is on disk."""
    await broker.owners_file.settled()
    return answer


def get_max_offset(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer the offset that the next message will get; 0 for an unknown queue."""
    request = decode_fields(GetMaxOffset, command.fields)
    queue = broker.store.find_queue(request.topic, request.queue_id)
    offset = 0 if queue is None else queue.visible_offset
    return command.reply(fields=encode_fields(OffsetReply(offset)))


def get_min_offset(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer the offset of the oldest message; 0 for an unknown queue."""
    request = decode_fields(GetMinOffset, command.fields)
    queue = broker.store.find_queue(request.topic, request.queue_id)
    offset = 0 if queue is None else queue.min_offset
    return command.reply(fields=encode_fields(OffsetReply(offset)))


def search_offset(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer the first offset stored at or after a time; with UPPER the last at or before it."""
    request = decode_fields(SearchOffset, command.fields)
    offset = broker.store.offset_by_time(
        request.topic,
        request.queue_id,
        request.timestamp_ms,
        "UPPER" if (request.boundary_type or "").upper() == "UPPER" else "LOWER",
    )
    return command.reply(fields=encode_fields(OffsetReply(offset)))


def get_earliest(broker: BrokerLike, connection: ServerConnection, command: Command) -> Command:
    """Answer when the oldest message of a queue was stored; -1 if there is none."""
    request = decode_fields(GetEarliest, command.fields)
    stored_at_ms = broker.store.earliest_time(request.topic, request.queue_id)
    return command.reply(fields=encode_fields(TimestampReply(stored_at_ms)))
