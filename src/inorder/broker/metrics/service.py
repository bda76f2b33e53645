"""What a scrape reads: the broker's tables as lines, in small steps, and the sampler of ages.

`Collector.fill` is a generator that gives the loop back after each step: a queue, a line, a group.
Whoever drives it decides how many steps make a slice (`net/admin.py`). It touches no file and no
log: what must be read there, the ages of messages, is sampled every SAMPLE_S by `Ages`, in slices
of the same kind, and only where a commit has moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from inorder.broker.metrics.rules import CATALOGUE, is_retry, language_of, mode_of, version_of, yes
from inorder.broker.resizing.rules import queues_left
from inorder.exposition import Page
from inorder.model import GroupQueue
from inorder.net.admin import process_lines
from inorder.ordering.finished import FinishedMap
from inorder.wire.names import (
    DEAD_LETTER_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
)
from inorder.wire.record import STORED_AT_END, stored_at_ms

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.store.consumequeue import QueueIndex

SAMPLE_S: Final = 5.0
STEPS: Final = 128
"""Queues that the sampler looks at before it gives the loop back."""
DISK: Final = ("local", "disk")
REMOTING: Final = "remoting"

Steps = Iterator[None]
_Row = tuple[str, str, int, int, int, int]
"""Group, topic, lag, in flight, unfinished, done."""
_Column = tuple[str, bool, Callable[[_Row], float]]
"""A family, whether it has RocketMQ's labels, and its value of a row."""


_Stored = dict[GroupQueue, tuple[int, int]]
"""The first offset of a queue that a group has not done or pulled, and when it was stored."""
_Oldest = dict[tuple[str, str], int]


class Ages:
    """When the oldest message of each group, topic and queue was stored; sampled."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._undone: _Stored = {}
        self._unpulled: _Stored = {}
        self.oldest_ms: _Oldest = {}
        """By group and topic: when the oldest message was stored that is not done."""
        self.unpulled_ms: _Oldest = {}
        """The same of the oldest message that is not pulled."""
        self.log_began_ms = 0

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        """Look at every queue of every group once."""
        undone: _Stored = {}
        unpulled: _Stored = {}
        oldest_ms: _Oldest = {}
        unpulled_ms: _Oldest = {}
        steps = 0
        offsets = self._broker.offsets
        for topic, group in offsets.pairs():
            for queue_id, offset in offsets.queues(group, topic).items():
                steps += 1
                if steps % STEPS == 0:
                    await asyncio.sleep(0)
                key = GroupQueue(group, topic, queue_id)
                await self._look(key, offset, self._undone, undone, oldest_ms)
                if key in undone:  # else there is nothing behind it
                    pulled = max(offset, offsets.query_pull(group, topic, queue_id))
                    await self._look(key, pulled, self._unpulled, unpulled, unpulled_ms)
        self._undone, self._unpulled = undone, unpulled
        self.oldest_ms, self.unpulled_ms = oldest_ms, unpulled_ms
        log = self._broker.store.log
        if log.end_position > log.min_position:
            self.log_began_ms = await self._stored_ms(log.min_position)

    async def _look(
        self, key: GroupQueue, offset: int, before: _Stored, known: _Stored, oldest_ms: _Oldest
    ) -> None:
        """Note when the first message from an offset on was stored, if there is one."""
        queue = self._broker.store.find_queue(key.topic, key.queue_id)
        if queue is None or max(offset, queue.min_offset) >= queue.visible_offset:
            return
        offset = max(offset, queue.min_offset)
        found = before.get(key)
        if found is None or found[0] != offset:
            entry = queue.entry(offset)
            found = offset, 0 if entry is None else await self._stored_ms(entry[0])
        known[key] = found
        if found[1] > 0:
            pair = key.group, key.topic
            oldest_ms[pair] = min(oldest_ms.get(pair, found[1]), found[1])

    async def _stored_ms(self, position: int) -> int:
        """Return the store time of the record at a position; one that is cold a thread reads."""
        store = self._broker.store
        if store.log.end_position - position <= store.reader.hot_bytes:
            view = store.log.view_at(position, STORED_AT_END)
            return 0 if view is None else stored_at_ms(view)
        reader = store.reader
        parts = await self._broker.offload.call(lambda: reader.load([(position, STORED_AT_END)]))
        return stored_at_ms(parts[0]) if parts else 0


class Collector:
    """The families of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.ages = Ages(broker)
        self.recovery_s = 0.0
        self._names: dict[str, str] = {}

    def page(self, *, openmetrics: bool, only: frozenset[str] = frozenset()) -> Page:
        """Return an empty page for this broker."""
        config = self._broker.config
        constant = {"cluster": config.cluster, "node_type": "broker", "node_id": config.name}
        return Page(
            openmetrics=openmetrics, constant=constant, only=only, names=self._names,
            series_max=config.metrics_series_max,
        )  # fmt: skip

    def fill(self, page: Page) -> Steps:
        """Write all families; each step is small."""
        parts: tuple[Callable[[Page], Steps], ...] = (
            self._process, self._broker_itself, self._store, self._net, self._measured, self._timed,
            self._topics, self._progress, self._clients, self._leases, self._parking, self._resizes,
            self._counted,
        )  # fmt: skip
        for part in parts:
            yield from part(page)
        page.begin(CATALOGUE["inorder_metrics_left_out_series"])
        page.put_in_any_case(page.left_out + self._broker.counts.left_out)

    # -- numbers of the whole broker ---------------------------------------------------------------

    @staticmethod
    def _put(page: Page, name: str, value: float, *labels: str) -> None:
        page.begin(CATALOGUE[name])
        page.put(value, *labels)

    def _process(self, page: Page) -> Steps:
        process_lines(page, self._broker.started_ms)
        yield

    def _broker_itself(self, page: Page) -> Steps:
        broker = self._broker
        self._put(page, "rocketmq_broker_permission", broker.config.perm)
        self._put(page, "rocketmq_topic_number", len(broker.topics))
        self._put(page, "rocketmq_consumer_group_number", len(broker.groups))
        self._put(page, "rocketmq_half_messages", len(broker.transactions))
        ended = broker.transaction_service
        self._put(page, "rocketmq_commit_messages_total", ended.committed)
        self._put(page, "rocketmq_rollback_messages_total", ended.rolled_back)
        yield
        half = next(iter(broker.transactions), None)
        now_ms = broker.clock.now_ms()
        age_ms = 0 if half is None else max(0, now_ms - half.born_at_ms)
        self._put(page, "inorder_transactions_oldest_age_seconds", age_ms / 1000)
        self._put(page, "rocketmq_timing_messages", broker.timer_table.total)
        self._put(page, "rocketmq_pop_checkpoint_buffer_size", broker.pop_table.points)
        self._put(page, "rocketmq_pop_revive_retry_messages_total", broker.revival.revived)
        self._put(page, "inorder_pop_messages", broker.pop_table.messages)
        self._put(page, "inorder_producers", len(broker.producers))
        yield

    def _store(self, page: Page) -> Steps:
        broker = self._broker
        log = broker.store.log
        usage = broker.files.usage(broker.config.data_path)
        self._put(page, "rocketmq_storage_size_bytes", usage.total - usage.free, *DISK)
        behind = max(0, log.end_position - log.durable_position)
        self._put(page, "rocketmq_storage_flush_behind_bytes", behind, *DISK)
        self._put(page, "rocketmq_storage_dispatch_behind_bytes", 0, *DISK)
        began_ms = self.ages.log_began_ms
        age_ms = max(0, broker.clock.now_ms() - began_ms) if began_ms else 0
        self._put(page, "rocketmq_storage_message_reserve_time_milliseconds", age_ms, *DISK)
        self._put(page, "inorder_writable", int(broker.writable))
        self._put(page, "inorder_disk_used_ratio", usage.used_ratio)
        page.begin(CATALOGUE["inorder_log_position_bytes"])
        page.put(log.min_position, "first")
        page.put(log.durable_position, "durable")
        page.put(log.end_position, "end")
        self._put(page, "inorder_recovery_seconds", self.recovery_s)
        yield
        page.begin(CATALOGUE["inorder_delayed_messages"])
        for level, offset in broker.delays.settled().items():
            end = broker.store.end_offset(SCHEDULE_TOPIC, level - 1)
            page.put(max(0, end - offset), str(level))
            yield

    def _net(self, page: Page) -> Steps:
        broker = self._broker
        found = broker.server.statistics()
        self._put(page, "inorder_connections", found.connections)
        self._put(page, "inorder_connections_refused_total", found.connections_refused)
        page.begin(CATALOGUE["inorder_connections_closed_total"])
        page.put(found.closed_for_protocol, "protocol")
        page.put(found.closed_for_silence, "silence")
        page.put(found.closed_for_slowness, "slowness")
        self._put(page, "inorder_held_pulls", len(broker.waits))
        page.begin(CATALOGUE["rocketmq_processor_watermark"])
        page.put(broker.ticks.unsettled_bytes, "send")
        page.put(len(broker.waits) + len(broker.pop_polls), "pull")
        page.begin(CATALOGUE["inorder_requests_unsupported_total"])
        for code, count in sorted(broker.router.unknown_codes.items()):
            page.put(count, str(code))
        yield

    def _measured(self, page: Page) -> Steps:
        meters = self._broker.meters
        if meters is None:
            return
        for name, found in (
            ("inorder_tick_messages", meters.tick_messages),
            ("inorder_tick_bytes", meters.tick_bytes),
            ("inorder_write_seconds", meters.write),
            ("inorder_fsync_seconds", meters.fsync),
            ("inorder_loop_lag_seconds", meters.loop),
        ):
            page.begin(CATALOGUE[name])
            page.put_histogram(found)
        self._put(page, "inorder_loop_lag_max_seconds", meters.take_loop_max())
        page.begin(CATALOGUE["inorder_lease_handover_seconds"])
        for cause, found in sorted(meters.handovers.by_cause.items()):
            page.put_histogram(found, cause)
        yield

    def _timed(self, page: Page) -> Steps:
        meters = self._broker.meters
        if meters is None:
            return
        page.begin(CATALOGUE["rocketmq_rpc_latency_milliseconds"])
        page.put_histogram(meters.sends, REMOTING, "send_message_v2", "success", "false", "success")
        for (code, answered), found in sorted(meters.requests.items()):
            result = "success" if answered == "success" else "biz_failed"
            page.put_histogram(found, REMOTING, code, answered, "false", result)
            yield

    # -- topics and groups -------------------------------------------------------------------------

    def _topics(self, page: Page) -> Steps:
        broker = self._broker
        page.begin(CATALOGUE["rocketmq_messages_in_total"])
        dead: list[tuple[str, str, int]] = []
        stored: list[tuple[int, str, str, str]] = []
        for topic in broker.topics.names():
            total = size = 0
            for queue_id in range(self._queue_count(topic)):
                queue = broker.store.find_queue(topic, queue_id)
                if queue is not None:
                    total += queue.visible_offset
                    size += queue.stored_bytes
                yield
            if topic.startswith(DEAD_LETTER_PREFIX):
                dead.append((topic.removeprefix(DEAD_LETTER_PREFIX), topic, total))
            if not is_retry(topic):
                kind = "fifo" if topic in broker.resizing.topics else "normal"
                flag = yes(broker.topics.is_system(topic))
                page.put(total, topic, kind, flag)
                stored.append((size, topic, kind, flag))
        page.begin(CATALOGUE["rocketmq_throughput_in_total"])
        for row in stored:
            page.put(*row)
            yield
        page.begin(CATALOGUE["rocketmq_send_to_dlq_messages_total"])
        for group, topic, total in dead:
            page.put(total, group, topic, yes(_is_system(group)))
            yield
        page.begin(CATALOGUE["rocketmq_messages_out_total"])
        given: list[tuple[int, str, str, str, str]] = []
        for (topic, group), messages, size in broker.deliveries.totals():
            flags = yes(is_retry(topic)), yes(_is_system(group))
            page.put(messages, topic, group, *flags)
            given.append((size, topic, group, *flags))
            yield
        page.begin(CATALOGUE["rocketmq_throughput_out_total"])
        for out in given:
            page.put(*out)
            yield

    def _queue_count(self, topic: str) -> int:
        config = self._broker.topics.get(topic)
        return 0 if config is None else max(config.read_queues, config.write_queues)

    def _progress(self, page: Page) -> Steps:
        """Walk the queues of every group once, then write the families that come of it."""
        broker = self._broker
        rows: list[_Row] = []
        for topic, group in broker.offsets.pairs():
            lag = inflight = unfinished = done = 0
            for queue_id, offset in broker.offsets.queues(group, topic).items():
                yield
                queue = broker.store.find_queue(topic, queue_id)
                done += offset
                if queue is None:
                    continue
                pulled = broker.offsets.query_pull(group, topic, queue_id)
                found = _behind(queue, offset, pulled)
                lag += found[0]
                inflight += found[1]
                finished = broker.commits.finished(GroupQueue(group, topic, queue_id), offset)
                ahead = FinishedMap.decode(finished).count if finished else 0
                unfinished += max(0, found[0] - ahead)
            rows.append((group, topic, lag, inflight, unfinished, done))
        now_ms, ages = broker.clock.now_ms(), self.ages

        def age_ms(row: _Row) -> int:
            since = ages.oldest_ms.get((row[0], row[1]))
            return 0 if since is None or not row[2] else max(0, now_ms - since)

        def queueing_ms(row: _Row) -> int:
            since = ages.unpulled_ms.get((row[0], row[1]))
            return 0 if since is None or row[2] == row[3] else max(0, now_ms - since)

        values: tuple[_Column, ...] = (
            ("rocketmq_consumer_lag_messages", True, lambda row: row[2]),
            ("rocketmq_consumer_inflight_messages", True, lambda row: row[3]),
            ("rocketmq_consumer_ready_messages", True, lambda row: row[2] - row[3]),
            ("rocketmq_consumer_lag_latency_milliseconds", True, age_ms),
            ("rocketmq_consumer_queueing_latency_milliseconds", True, queueing_ms),
            ("inorder_group_oldest_unfinished_age_seconds", False, lambda row: age_ms(row) / 1000),
            ("inorder_group_unfinished_messages", False, lambda row: row[4]),
            ("inorder_group_done_total", False, lambda row: row[5]),
        )
        for name, is_rocketmqs, value in values:
            page.begin(CATALOGUE[name])
            for row in rows:
                group, topic = row[0], row[1]
                if is_rocketmqs:
                    flags = (yes(is_retry(topic)), yes(_is_system(group)))
                    page.put(value(row), group, topic, *flags)
                else:
                    page.put(value(row), group, topic)
                yield

    def _clients(self, page: Page) -> Steps:
        members = self._broker.members
        page.begin(CATALOGUE["inorder_group_members"])
        consumers: Counter[tuple[str, str, str, str]] = Counter()
        for name in members.groups():
            group = members.group(name)
            if group is None:
                continue
            page.put(len(group.client_ids()), name)
            for member in list(group.members.values()):
                peer = (language_of(member.language), version_of(member.version))
                consumers[name, *peer, mode_of(group.consume_type)] += 1
                yield
        page.begin(CATALOGUE["rocketmq_consumer_connections"])
        for (name, language, version, mode), count in consumers.items():
            page.put(count, name, language, version, mode, REMOTING, yes(_is_system(name)))
            yield
        producers: Counter[tuple[str, str]] = Counter()
        for name in members.producer_groups():
            for member in members.producers(name):
                producers[language_of(member.language), version_of(member.version)] += 1
                yield
        page.begin(CATALOGUE["rocketmq_producer_connections"])
        for (language, version), count in sorted(producers.items()):
            page.put(count, language, version, REMOTING)
            yield

    def _leases(self, page: Page) -> Steps:
        broker = self._broker
        table, closed = broker.leases, broker.server.find
        states: Counter[tuple[str, str]] = Counter()
        owned: Counter[tuple[str, str]] = Counter()
        for group in table.groups():
            for key, lease in table.held(group).items():
                gone = not lease.owner.is_rocketmq and closed(lease.connection) is None
                states[group, "grace" if gone else "held"] += 1
                owned[group, key.topic] += 1
                if table.waiting(key):
                    states[group, "waited_for"] += 1
                yield
        page.begin(CATALOGUE["inorder_leases"])
        for (group, state), count in states.items():
            page.put(count, group, state)
            yield
        free: Counter[str] = Counter()
        for group, topic in table.ordered():
            config = broker.topics.get(topic)
            if config is not None:
                free[group] += max(0, config.read_queues - owned[group, topic])
            yield
        page.begin(CATALOGUE["inorder_group_queues_without_owner"])
        for group, count in free.items():
            page.put(count, group)
            yield

    def _parking(self, page: Page) -> Steps:
        parking, now_ms = self._broker.parking, self._broker.clock.now_ms()
        groups = parking.table.groups()
        found = {group: parking.table.statistics(group) for group in groups}
        yield
        for index, name in enumerate(("keys", "messages", "bytes")):
            page.begin(CATALOGUE[f"inorder_parked_{name}"])
            for group in groups:
                page.put(found[group][index], group)
                yield
        page.begin(CATALOGUE["inorder_parked_oldest_age_seconds"])
        for group in groups:
            since_ms = parking.table.oldest_ms(group)
            page.put(0 if since_ms is None else max(0, now_ms - since_ms) / 1000, group)
            yield
        page.begin(CATALOGUE["inorder_parking_full"])
        full = parking.full_groups()
        for group in groups:
            page.put(int(group in full), group)
            yield

    def _resizes(self, page: Page) -> Steps:
        resizing = self._broker.resizing
        versions = dict(resizing.topics)
        page.begin(CATALOGUE["inorder_keymap_version"])
        for topic, now in versions.items():
            page.put(now.version, topic)
            yield
        page.begin(CATALOGUE["inorder_resize_state"])
        open_: list[str] = []
        for topic, now in versions.items():
            state = 0
            if now.stopped:
                state = 2
            elif now.plan is not None and now.plan.version > now.version:
                state = 1
            elif queues_left(now, resizing.first_offsets(topic), of=now.groups):
                state = 3
            if state:
                open_.append(topic)
            page.put(state, topic)
            yield
        page.begin(CATALOGUE["inorder_resize_messages_left"])
        for topic in open_:
            for group in versions[topic].groups:
                progress = resizing.progress(topic, versions[topic], group)
                page.put(progress.behind, group, topic)
                yield

    def _counted(self, page: Page) -> Steps:
        for name in (
            "inorder_lease_grants_total", "inorder_fenced_requests_total", "inorder_parked_total",
            "inorder_parked_dropped_total", "inorder_redriven_total", "inorder_producer_gaps_total",
        ):  # fmt: skip
            page.begin(CATALOGUE[name])
            for labels, count in self._broker.counts.items(name):
                page.put(count, *labels)
                yield


def _behind(queue: QueueIndex, offset: int, pulled: int) -> tuple[int, int]:
    """Return how many messages lie behind the committed offset, and how many of them are pulled."""
    first, end = queue.min_offset, queue.visible_offset
    at = min(max(offset, first), end)
    return end - at, max(0, min(max(pulled, at), end) - at)


def _is_system(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
