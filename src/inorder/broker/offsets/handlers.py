"""Requests about offsets: of groups (14, 15), of queues (29 to 32), progress (202, 208, 300, 343),
resets (222) and copies (314).

A reset also works while the group is offline. The new offset waits per queue for the next pull,
which is answered with "offset moved". The broker answers held pulls at once, and sends
RESET_CONSUMER_CLIENT_OFFSET (220) to clients that do not pull. Decision 25 gives the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from inorder.broker.groups.relay import tell_reset
from inorder.broker.offsets.rules import Ruling, kind_of
from inorder.errors import (
    GroupNotFound,
    InvalidParameter,
    NoPermission,
    SystemError_,
    TopicNotFound,
)
from inorder.logs import get_logger
from inorder.model import TopicConfig, TopicQueue
from inorder.wire.codes import LanguageCode, ResponseCode
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.names import TRANSACTION_GROUP
from inorder.wire.requests.nameserver import encode_group_list, encode_topic_list
from inorder.wire.requests.offsets import (
    CloneOffsets,
    ConsumeStats,
    GetConsumeStats,
    GetEarliest,
    GetGroupsOfTopic,
    GetMaxOffset,
    GetMinOffset,
    GetTopicsOfGroup,
    GetTopicStats,
    OffsetReply,
    QueryConsumerOffset,
    QueueProgress,
    QueueStats,
    ResetOffset,
    SearchOffset,
    TimestampReply,
    TopicStats,
    UpdateConsumerOffset,
    encode_queue_offsets,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply

logger = get_logger(__name__)
GO_REPLY_MS: Final = 100
"""How long after its commit a Go client gets the reply."""


def query_consumer_offset(call: Call[QueryConsumerOffset]) -> Command:
    """Return the stored offset of a group, or where a group without one starts.

    - An empty queue: its end. RocketMQ replies "not found" and the client then asks for the
      maximum; a message stored in between would never be handled (O28).
    - A young queue, whose first message is still in memory: 0, as RocketMQ.
    - Otherwise "not found": the client decides by its own setting.
    """
    request = call.request
    topic, queue_id = request.topic, request.queue_id
    offset = call.broker.offsets.query(request.consumer_group, topic, queue_id)
    if offset < 0:
        if request.set_zero_if_not_found is False:
            return call.reply(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
                fields={},
            )
        start = call.broker.offset_service.first_offset(topic, queue_id)
        if start is None:
            return call.reply(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                fields={},
            )
        offset = start
    return call.reply(fields=encode_fields(OffsetReply(offset)))


def update_consumer_offset(call: Call[UpdateConsumerOffset]) -> Reply:
    """Commit an offset without an epoch.

    `broker/offsets/rules` judges it. An ignored commit (negative, lower, or of another client than
    the owner) gets a success reply with a remark. An offset beyond the end of the queue is refused.

    """
    broker, request = call.broker, call.request
    group, topic = request.consumer_group, request.topic
    if group not in broker.groups:
        return call.reply(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!", fields={}
        )
    if topic not in broker.topics:
        return call.reply(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", fields={})
    missing = "QueueId" if request.queue_id is None else "Offset"
    if request.queue_id is None or request.commit_offset is None:
        return call.reply(
            ResponseCode.INVALID_PARAMETER, f"{missing} is null, topic is {topic}", fields={}
        )
    if broker.offsets.has_reset(group, topic, request.queue_id):
        return call.reply(remark="Offset has been previously reset", fields={})
    queue_id, offset = request.queue_id, request.commit_offset
    kind = kind_of(
        oneway=call.command.is_oneway,
        member=broker.members.client_id(group, call.connection) is not None,
        language=call.command.language,
        only_up=bool(request.only_up),
    )

    def store() -> Command:
        before = broker.offsets.query(group, topic, queue_id)
        ruling = broker.offset_service.commit(
            group, topic, queue_id, offset, call.connection, kind=kind
        )
        if ruling is not Ruling.TAKEN:
            return _not_taken(call.command, ruling, before)
        if offset < before:
            broker.parking.went_back(group, topic, queue_id)
        if not call.command.is_oneway:  # a one-way commit is written within a second
            broker.lease_journal.flush()
        return call.reply(fields={})

    ruling = broker.offset_service.commit(
        group, topic, queue_id, offset, call.connection, kind=kind, judge_only=True
    )
    if ruling is not Ruling.TAKEN:
        return _not_taken(call.command, ruling, broker.offsets.query(group, topic, queue_id))
    version = _goes_back_to(broker, group, topic, queue_id, offset)
    if version is not None:
        return answer_paused(broker, topic, group, version, store)
    answer = store()
    if call.command.language == LanguageCode.GO and not call.command.is_oneway:
        _reply_later(call, answer)
        return None
    if call.command.is_oneway or answer.remark or not broker.config.store.sync_flush:
        return answer
    return answer_settled(broker, answer)


def _reply_later(call: Call[UpdateConsumerOffset], answer: Command) -> None:
    """Reply to a Go client when it has certainly sent the commits behind this one.

    A Go client does not wait for these replies. When it stops, it commits its queues one by one and
    closes. A reply that lies unread in its socket then makes the close a reset, which destroys the
    commits that the broker has not read yet.
    """
    loop = asyncio.get_running_loop()
    loop.call_later(GO_REPLY_MS / 1000, call.connection.send, answer)


def _not_taken(command: Command, ruling: Ruling, known: int) -> Command:
    """Reply to a commit that changes nothing."""
    if ruling is Ruling.BEYOND:
        raise InvalidParameter(
            "the offset lies beyond the end of the queue; commit what was consumed, or reset the "
            "group to the end"
        )
    why = {
        Ruling.HELD: "Offset ignored: the queue is locked by another client",
        Ruling.LOWER: f"Offset ignored: the group is at {known} already; reset it to go back",
        Ruling.OWN: "Offset ignored: the broker itself keeps the offsets of this group",
    }
    return command.reply(remark=why.get(ruling), fields={})


def _goes_back_to(broker: Broker, group: str, topic: str, queue_id: int, offset: int) -> int | None:
    """Return the past key map version that an offset rewinds into; None: the offset is progress."""
    if not 0 <= offset < broker.offsets.query(group, topic, queue_id):
        return None
    return broker.resizing.rewinding.version_touched(topic, group, {queue_id: offset})


async def answer_paused(
    broker: Broker, topic: str, group: str, version: int, then: Callable[[], Command]
) -> Command:
    """Pause a group, then set offsets that rewind it into a past key map version."""
    await broker.resizing.rewinding.pause(topic, group, version)
    if not broker.resizing.rewinding.is_paused(topic, group):
        raise TopicNotFound(f"topic[{topic}], or group {group}, was deleted meanwhile")
    answer = then()
    if broker.config.store.sync_flush:
        await broker.lease_journal.settled()
    await broker.resizing.rewinding.tell(topic, group)
    return answer


async def answer_settled(broker: Broker, answer: Command) -> Command:
    """Reply when the lease journal is on disk."""
    await broker.lease_journal.settled()
    return answer


def get_max_offset(call: Call[GetMaxOffset]) -> Command:
    """Return the offset of the next message; 0 for an unknown queue."""
    offset = call.broker.store.end_offset(call.request.topic, call.request.queue_id)
    return call.reply(fields=encode_fields(OffsetReply(offset)))


def get_min_offset(call: Call[GetMinOffset]) -> Command:
    """Return the offset of the oldest message; 0 for an unknown queue."""
    offset = call.broker.store.min_offset(call.request.topic, call.request.queue_id)
    return call.reply(fields=encode_fields(OffsetReply(offset)))


def search_offset(call: Call[SearchOffset]) -> Command:
    """Return the first offset stored at or after a time; with UPPER the last at or before it."""
    request = call.request
    offset = call.broker.store.offset_by_time(
        request.topic,
        request.queue_id,
        request.timestamp_ms,
        "UPPER" if (request.boundary_type or "").upper() == "UPPER" else "LOWER",
    )
    return call.reply(fields=encode_fields(OffsetReply(offset)))


def get_earliest(call: Call[GetEarliest]) -> Command:
    """Return when the oldest message of a queue was stored; -1 if there is none."""
    stored_at_ms = call.broker.store.earliest_time(call.request.topic, call.request.queue_id)
    return call.reply(fields=encode_fields(TimestampReply(stored_at_ms)))


RATE_WINDOW_MS: Final = 60_000
NOT_GIVEN: Final = -1


def get_topic_stats(call: Call[GetTopicStats]) -> Command:
    """Return the offsets of the queues of a topic, and its recent messages per second."""
    broker = call.broker
    topic = call.request.topic
    config = broker.topics.get(topic)
    if config is None:
        raise TopicNotFound(f"topic[{topic}] not exist")
    since_ms = broker.clock.now_ms() - RATE_WINDOW_MS
    stats, recent = {}, 0
    for queue_id in range(max(config.read_queues, config.write_queues)):
        start, end = _bounds(broker, topic, queue_id)
        updated_at_ms = broker.store.stored_at(topic, queue_id, end - 1) if end else 0
        stats[_queue(broker, topic, queue_id)] = QueueStats(start, end, updated_at_ms)
        if updated_at_ms >= since_ms:
            recent += end - broker.store.offset_by_time(topic, queue_id, since_ms)
    return call.reply(body=TopicStats(stats, recent * 1000 / RATE_WINDOW_MS).encode())


def get_consume_stats(call: Call[GetConsumeStats]) -> Command:
    """Return the progress of a group on each queue; the broker keeps no rate and replies 0."""
    broker = call.broker
    group, offsets = call.request.consumer_group, broker.offsets
    found = {}
    for topic in _topics(broker, call.request):
        config = broker.topics.get(topic)
        for queue_id in range(0 if config is None else config.read_queues):
            committed = max(0, offsets.query(group, topic, queue_id))
            done_at_ms = broker.store.stored_at(topic, queue_id, committed - 1)
            found[_queue(broker, topic, queue_id)] = QueueProgress(
                _bounds(broker, topic, queue_id)[1],
                committed,
                max(committed, offsets.query_pull(group, topic, queue_id)),
                max(0, done_at_ms),
            )
    return call.reply(body=ConsumeStats(found).encode())


def _topics(broker: Broker, request: GetConsumeStats) -> list[str]:
    """Return the topics to report: the requested list, or those that the group subscribes to."""
    listed = [name for name in (request.topic_list or "").split(";") if name]
    if listed:
        return listed
    topic, group = (request.topic or "").strip(), request.consumer_group
    found = [topic] if topic else broker.offsets.topics_of(group)
    online = broker.members.group(group)
    if online is None or not online.subscriptions:
        return found
    return [name for name in found if name in online.subscriptions]


def get_groups_of_topic(call: Call[GetGroupsOfTopic]) -> Command:
    """Return the groups that subscribe to a topic or have offsets on it."""
    topic = call.request.topic
    names = {*call.broker.members.subscribers(topic), *call.broker.offsets.groups_of(topic)}
    return call.reply(body=encode_group_list(sorted(names)))


def get_topics_of_group(call: Call[GetTopicsOfGroup]) -> Command:
    """Return the topics on which a group has offsets."""
    group = call.request.group
    names = sorted(call.broker.offsets.topics_of(group))
    return call.reply(body=encode_topic_list(names, call.broker.address))


def reset_offset(call: Call[ResetOffset]) -> Reply:
    """Set the offsets of a group, online or not; reply with the new ones.

    Under sync flush the reply waits for the disk, so a power cut does not undo the reset. If a
    resize lies between the old and the new offset, the group is first paused for the rewind
    (`broker/resizing/rules.py`).
    """
    broker, request = call.broker, call.request
    topic, group = request.topic, request.group
    config = broker.topics.get(topic)
    if config is None:
        raise TopicNotFound(f"Topic {topic} does not exist")
    if group not in broker.groups:
        raise GroupNotFound(f"Group {group} does not exist")
    _require_foreign(group)
    targets = _targets(broker, request, config)
    if not targets:
        raise SystemError_("No queues to reset.")

    notes: list[asyncio.Task[None]] = []

    def reset() -> Command:
        notes.extend(_reset(broker, request, targets))
        logger.info(
            "offsets reset topic=%s group=%s queues=%s peer=%s",
            topic, group, targets, call.connection.peer,
        )  # fmt: skip
        decided = {_queue(broker, topic, queue_id): offset for queue_id, offset in targets.items()}
        return call.reply(body=encode_queue_offsets(decided))

    version = broker.resizing.rewinding.version_touched(topic, group, targets)
    if version is not None:
        return _answer_noted(answer_paused(broker, topic, group, version, reset), notes)
    answer = reset()
    settled = answer_settled(broker, answer) if broker.config.store.sync_flush else answer
    return _answer_noted(settled, notes) if notes else settled


def _require_foreign(group: str) -> None:
    """Refuse to set the offsets of the group by which the broker itself reads transactions."""
    if group == TRANSACTION_GROUP:
        raise NoPermission(f"the broker itself keeps the offsets of group {group}; name another")


async def _answer_noted(
    answer: Command | Coroutine[Any, Any, Command], notes: list[asyncio.Task[None]]
) -> Command:
    """Reply when the reset also counts for parked keys."""
    found = answer if isinstance(answer, Command) else await answer
    await asyncio.gather(*map(asyncio.shield, notes))
    return found


def _reset(
    broker: Broker, request: ResetOffset, targets: dict[int, int]
) -> list[asyncio.Task[None]]:
    topic, group = request.topic, request.group
    broker.offset_service.reset(group, topic, targets)
    notes = broker.parking.was_reset(group, topic, targets)
    for queue_id in targets:
        broker.wake(topic, queue_id)
    # Held pulls have told their clients. Clients that do not pull get a request of their own.
    untold = {
        _queue(broker, topic, queue_id): offset
        for queue_id, offset in targets.items()
        if broker.offsets.has_reset(group, topic, queue_id)
    }
    tell_reset(broker, group, topic, untold, request.timestamp_ms)
    return notes


def _targets(broker: Broker, request: ResetOffset, config: TopicConfig) -> dict[int, int]:
    topic, queue_id = request.topic, request.queue_id
    count = broker.resizing.read_queues(config)
    if queue_id < 0:
        queues = range(count)
        return {index: _at_time(broker, topic, index, request.timestamp_ms) for index in queues}
    if queue_id >= count:
        raise InvalidParameter(
            f"queueId {queue_id} is illegal, topic {topic} has {count} read queues"
        )
    if request.offset == NOT_GIVEN:
        return {queue_id: _at_time(broker, topic, queue_id, request.timestamp_ms)}
    start, end = _bounds(broker, topic, queue_id)
    if not start <= request.offset <= end:
        raise SystemError_(
            f"Target offset {request.offset} not in consume queue range [{start}-{end}]"
        )
    return {queue_id: request.offset}


def clone_offsets(call: Call[CloneOffsets]) -> Reply:
    """Copy the offsets of a group to another, on one topic or all; skip unknown topics."""
    broker, request = call.broker, call.request
    source, target = request.source_group, request.target_group
    if broker.find_group(request.target_group) is None:
        raise GroupNotFound(f"Group {request.target_group} does not exist")
    _require_foreign(target)
    online = None if request.offline else broker.members.group(source)
    topics = [
        topic
        for topic in (
            [request.topic] if request.topic.strip() else broker.offsets.topics_of(source)
        )
        if topic in broker.topics
        and (online is None or not online.subscriptions or topic in online.subscriptions)
    ]
    touched = {topic: _touched(broker, source, target, topic) for topic in topics}
    notes: list[asyncio.Task[None]] = []

    def clone(topic: str) -> None:
        broker.offsets.clone(source, target, topic, broker.clock.now_ms())
        notes.extend(broker.parking.was_reset(target, topic, broker.offsets.queues(source, topic)))

    for topic in topics:
        if touched[topic] is None:
            clone(topic)
    paused = {topic: version for topic, version in touched.items() if version is not None}
    if paused:
        return _answer_noted(_clone_paused(broker, target, paused, clone, call.command), notes)
    return _answer_noted(call.reply(), notes) if notes else call.reply()


def _touched(broker: Broker, source: str, target: str, topic: str) -> int | None:
    offsets = broker.offsets.queues(source, topic)
    return broker.resizing.rewinding.version_touched(topic, target, offsets)


async def _clone_paused(
    broker: Broker,
    target: str,
    versions: dict[str, int],
    clone: Callable[[str], None],
    command: Command,
) -> Command:
    """Rewind one topic after the other, so that nothing happens between a pause and its offsets."""
    for topic, version in versions.items():

        def then(topic: str = topic) -> Command:
            clone(topic)
            return command.reply()

        await answer_paused(broker, topic, target, version, then)
    return command.reply()


def _at_time(broker: Broker, topic: str, queue_id: int, timestamp_ms: int) -> int:
    if timestamp_ms < 0:
        return _bounds(broker, topic, queue_id)[1]
    return broker.store.offset_by_time(topic, queue_id, timestamp_ms)


def _bounds(broker: Broker, topic: str, queue_id: int) -> tuple[int, int]:
    """Return the first offset of a queue and the end."""
    queue = broker.store.find_queue(topic, queue_id)
    return (0, 0) if queue is None else (max(0, queue.min_offset), queue.visible_offset)


def _queue(broker: Broker, topic: str, queue_id: int) -> TopicQueue:
    return TopicQueue(topic, broker.config.name, queue_id)
