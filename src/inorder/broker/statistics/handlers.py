"""Statistics and queue contents for operators: 303, 308, 315, 317, 321.

An answer that walks many groups or queues lets others come first now and then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inorder.broker.statistics.rules import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    correction_offsets,
    window_of,
)
from inorder.errors import InvalidParameter, TopicNotFound
from inorder.model import TopicConfig, TopicQueue
from inorder.store.layout import ENTRY, ENTRY_BYTES
from inorder.wire.codes import NOTHING_SET, ResponseCode
from inorder.wire.requests.offsets import ConsumeStats, QueueProgress
from inorder.wire.requests.statistics import (
    GROUP_GET_NUMS,
    TOPIC_PUT_NUMS,
    AllConsumeStats,
    GetAllConsumeStats,
    GetCorrectionOffsets,
    GetQueueContents,
    GetStatsData,
    GetTimeSpans,
    QueueContents,
    QueueEntry,
    StatsData,
    TimeSpan,
    WindowStats,
    encode_correction_offsets,
    encode_time_spans,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command

ENTRIES_MAX: Final = 10_000
"""Entries of a queue in one answer."""
QUEUES_AT_ONCE: Final = 64
"""Queues that are looked at before others come first."""


def get_time_spans(call: Call[GetTimeSpans]) -> Reply:
    """Reply with the store times of a topic's queues, and how late a group is (303)."""
    config = call.broker.topics.get(call.request.topic)
    if config is None:
        raise TopicNotFound(f"topic[{call.request.topic}] not exist")
    return _time_spans(call, config)


async def _time_spans(call: Call[GetTimeSpans], config: TopicConfig) -> Command:
    broker, topic, group = call.broker, call.request.topic, call.request.group
    store, spans = broker.store, []
    for queue_id in range(config.write_queues):
        await _pause(queue_id)
        end, done = store.end_offset(topic, queue_id), broker.offsets.query(group, topic, queue_id)
        first_ms = store.earliest_time(topic, queue_id)
        consumed_ms = store.stored_at(topic, queue_id, done - 1) if done > 0 else first_ms
        delay_ms = 0
        start = max(done, store.min_offset(topic, queue_id), 0)
        if start < end:
            delay_ms = broker.clock.now_ms() - store.stored_at(topic, queue_id, start)
        spans.append(
            TimeSpan(
                TopicQueue(topic, broker.config.name, queue_id),
                first_ms,
                store.stored_at(topic, queue_id, end - 1),
                consumed_ms,
                delay_ms,
            )
        )
    return call.reply(body=encode_time_spans(spans))


async def _pause(count: int) -> None:
    if count % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
        await asyncio.sleep(0)


def get_correction_offsets(call: Call[GetCorrectionOffsets]) -> Command:
    """Reply with the lowest offsets that any group has on a topic (308).

    `filterGroups` leaves groups out. RocketMQ deletes their offsets instead.
    """
    request, offsets, store = call.request, call.broker.offsets, call.broker.store
    topic = request.topic
    found = [(group, offsets.queues(group, topic)) for group in offsets.groups_of(topic)]
    firsts = {
        queue_id: store.min_offset(topic, queue_id) for _, queues in found for queue_id in queues
    }
    lowest = correction_offsets(
        found,
        firsts,
        compare=offsets.queues(request.compare_group, topic),
        left_out=(request.filter_groups or "").split(","),
    )
    return call.reply(body=encode_correction_offsets(lowest))


def get_stats_data(call: Call[GetStatsData]) -> Command:
    """Reply with the messages of a topic, or given to a group, in three windows (315)."""
    broker, request = call.broker, call.request
    found: StatsData | None = None
    if request.stats_name == TOPIC_PUT_NUMS:
        found = _put_of(broker, request.stats_key)
    elif request.stats_name == GROUP_GET_NUMS:
        topic, _, group = request.stats_key.partition("@")
        found = broker.deliveries.of(topic, group, broker.clock.monotonic_ms())
    if found is None:
        return call.reply(
            ResponseCode.SYSTEM_ERROR,
            f"The stats <{request.stats_name}> <{request.stats_key}> not exist",
        )
    return call.reply(body=found.encode())


def _put_of(broker: Broker, topic: str) -> StatsData | None:
    """Return how many messages a topic got; None if it has none.

    How many requests brought them is not known: each message counts as one.
    """
    queues = [queue for queue in broker.store.queues_of(topic) if queue.visible_offset]
    if topic not in broker.topics or not queues:
        return None
    now_ms = broker.clock.now_ms()

    def since(window_ms: int) -> WindowStats:
        count = sum(
            queue.visible_offset
            - max(
                broker.store.offset_by_time(topic, queue.queue_id, now_ms - window_ms),
                queue.min_offset,
            )
            for queue in queues
            if broker.store.stored_at(topic, queue.queue_id, queue.visible_offset - 1)
            >= now_ms - window_ms
        )
        return window_of(count, window_ms, count)

    return StatsData(since(MINUTE_MS), since(HOUR_MS), since(DAY_MS))


def get_all_consume_stats(call: Call[GetAllConsumeStats]) -> Reply:
    """Reply with the progress of all groups (317)."""
    return _all_consume_stats(call)


async def _all_consume_stats(call: Call[GetAllConsumeStats]) -> Command:
    broker = call.broker
    found: dict[str, list[ConsumeStats]] = {config.name: [] for config in broker.groups}
    lag = count = 0
    for topic, group in broker.offsets.pairs():
        config, online = broker.topics.get(topic), broker.members.group(group)
        if config is None or group not in found or (call.request.is_order and not config.order):
            continue
        if online is not None and online.subscriptions and topic not in online.subscriptions:
            continue
        queues = {}
        for queue_id in range(config.write_queues):
            await _pause(count)
            count += 1
            end = broker.store.end_offset(topic, queue_id)
            done = max(0, broker.offsets.query(group, topic, queue_id))
            at_ms = max(0, broker.store.stored_at(topic, queue_id, done - 1))
            queue = TopicQueue(topic, broker.config.name, queue_id)
            queues[queue] = QueueProgress(end, done, 0, at_ms)
            lag += max(0, end - done)
        given = broker.deliveries.of(topic, group, broker.clock.monotonic_ms())
        found[group].append(ConsumeStats(queues, 0.0 if given is None else given.minute.rate))
    # In a thread: the text of 100,000 queues takes a second.
    body = await broker.offload.call(AllConsumeStats(broker.address, found, lag).encode)
    return call.reply(body=body)


def get_queue_contents(call: Call[GetQueueContents]) -> Command:
    """Reply with the entries of a queue (321): where its messages lie in the log."""
    broker, request = call.broker, call.request
    topic, queue_id = request.topic, request.queue_id
    if request.count > ENTRIES_MAX:
        raise InvalidParameter(f"count is {request.count}; ask for at most {ENTRIES_MAX} entries")
    queue = broker.store.find_queue(topic, queue_id)
    if queue is None:
        return call.reply(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    group = request.consumer_group
    subscription = None if group is None else broker.members.subscription(group, topic)
    filter_text = None
    if group is not None:
        filter_text = "null" if subscription else f"{group}@{topic} is not online!"
    first, end = max(0, queue.min_offset), queue.visible_offset
    entries, remark = None, f"Index {request.index} of {queue_id}@{topic} is not exist!"
    if first <= request.index < end:
        data = queue.read(request.index, max(0, min(request.count, end - request.index)))
        entries = tuple(
            QueueEntry(*ENTRY.unpack_from(data, at)) for at in range(0, len(data), ENTRY_BYTES)
        )
        remark = NOTHING_SET
    contents = QueueContents(first, end, entries, subscription, filter_text)
    return call.reply(remark=remark, body=contents.encode() if entries is not None else b"")
