"""The metrics of a broker: their catalogue, counters and meters, and labels that peers give.

`CATALOGUE` is the one list: the service fills it, docs/howto/monitoring.md shows it, and the tests
compare both. Names that begin with `rocketmq_` are those that RocketMQ 5.1.4 and newer serve, with
their labels; names that begin with `inorder_` are ours, in base units.

`Counts` counts rare things by labels and always exists: it costs nothing while nothing happens.
`Meters` measure; they exist only if the admin port or the log of slow operations is on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inorder.exposition import Family, Histogram
from inorder.model import GroupQueue
from inorder.wire.codes import LanguageCode, RequestCode, ResponseCode
from inorder.wire.extensions import ExtensionAnswer, ExtensionCode
from inorder.wire.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")
GROUP: Final = ("consumer_group",)
PAIR: Final = ("consumer_group", "topic")
STORAGE: Final = ("storage_type", "storage_medium")
RPC_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
HANDOVER_S: Final = (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
DISK_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
LOOP_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 5)
TICK_MESSAGES: Final = tuple(1 << power for power in range(11))
TICK_BYTES: Final = tuple(1 << power for power in range(10, 25, 2))
LABEL_SETS_MAX: Final = 20_000
"""Sets of labels that one counter keeps; what comes for further ones is counted as left out."""
HANDOVERS_MAX: Final = 10_000
"""Queues without an owner whose end of ownership is remembered."""
SLOW_BURST: Final = 10

# fmt: off
_FAMILIES: Final = (
    Family("rocketmq_broker_permission", "gauge", "What the broker allows: 4 read, 2 write"),
    Family("rocketmq_topic_number", "gauge", "Topics"),
    Family("rocketmq_consumer_group_number", "gauge", "Consumer groups with a configuration"),
    Family("rocketmq_messages_in_total", "counter", "Messages stored in a topic: the ends of its queues", ("topic", "message_type", "is_system")),
    Family("rocketmq_throughput_in_total", "counter", "Bytes of the records stored in a topic since the start", ("topic", "message_type", "is_system")),
    Family("rocketmq_messages_out_total", "counter", "Messages given to a group by pulls", ("topic", "consumer_group", "is_retry", "is_system")),
    Family("rocketmq_throughput_out_total", "counter", "Bytes of the records given to a group since the start", ("topic", "consumer_group", "is_retry", "is_system")),
    Family("rocketmq_send_to_dlq_messages_total", "counter", "Messages in the dead letter topic of a group", ("consumer_group", "topic", "is_system")),
    Family("rocketmq_consumer_lag_messages", "gauge", "Messages behind the committed offset, also of groups without members", LAG),
    Family("rocketmq_consumer_inflight_messages", "gauge", "Messages between the committed and the pulled offset", LAG),
    Family("rocketmq_consumer_ready_messages", "gauge", "Messages behind the pulled offset", LAG),
    Family("rocketmq_consumer_lag_latency_milliseconds", "gauge", "Age of the oldest message behind the committed offset, sampled every 5 s", LAG),
    Family("rocketmq_consumer_queueing_latency_milliseconds", "gauge", "Age of the oldest message behind the pulled offset, sampled every 5 s", LAG),
    Family("rocketmq_producer_connections", "gauge", "Connections of producers", ("language", "version", "protocol_type")),
    Family("rocketmq_consumer_connections", "gauge", "Connections of consumers", ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system")),
    Family("rocketmq_rpc_latency_milliseconds", "histogram", "Time from a request to its answer: sends, and requests other than pulls", ("protocol_type", "request_code", "response_code", "is_long_polling", "result"), RPC_MS),
    Family("rocketmq_processor_watermark", "gauge", "send: bytes that wait for the disk; pull: pulls and pops that wait for messages", ("processor",)),
    Family("rocketmq_storage_size_bytes", "gauge", "Used bytes of the disk", STORAGE),
    Family("rocketmq_storage_flush_behind_bytes", "gauge", "Bytes of the log that are not synced yet", STORAGE),
    Family("rocketmq_storage_dispatch_behind_bytes", "gauge", "Always 0: queue entries are made with their messages", STORAGE),
    Family("rocketmq_storage_message_reserve_time_milliseconds", "gauge", "Age of the oldest message of the log, sampled every 5 s", STORAGE),
    Family("rocketmq_half_messages", "gauge", "Transactions without an outcome"),
    Family("rocketmq_commit_messages_total", "counter", "Transactions committed since the start"),
    Family("rocketmq_rollback_messages_total", "counter", "Transactions rolled back since the start"),
    Family("rocketmq_timing_messages", "gauge", "Messages that wait for their time"),
    Family("rocketmq_pop_checkpoint_buffer_size", "gauge", "Pops with messages that are not acknowledged"),
    Family("rocketmq_pop_revive_retry_messages_total", "counter", "Popped messages that nobody acknowledged in time"),
    Family("inorder_group_oldest_unfinished_age_seconds", "gauge", "Age of the oldest message that a group has not done, sampled every 5 s; 0: none", PAIR),
    Family("inorder_group_unfinished_messages", "gauge", "Messages that a group has not done, without those finished out of order", PAIR),
    Family("inorder_group_done_total", "counter", "Sum of a group's committed offsets; a reset makes it smaller", PAIR),
    Family("inorder_group_members", "gauge", "Clients of a group", GROUP),
    Family("inorder_group_queues_without_owner", "gauge", "Queues of a group in order that nobody owns", GROUP),
    Family("inorder_lease_grants_total", "counter", "Queues granted: fresh to a new owner, resumed by the former one, stock by RocketMQ's locks", ("consumer_group", "kind")),
    Family("inorder_lease_handover_seconds", "histogram", "From the end of an ownership to the next owner, by how it ended", ("cause",), HANDOVER_S),
    Family("inorder_leases", "gauge", "Queues that are held, that a lost connection still holds, and that others wait for", ("consumer_group", "state")),
    Family("inorder_fenced_requests_total", "counter", "Requests under a stale epoch that were refused", ("consumer_group", "operation")),
    Family("inorder_parked_keys", "gauge", "Keys that a group has parked", GROUP),
    Family("inorder_parked_messages", "gauge", "Messages that a group has parked", GROUP),
    Family("inorder_parked_bytes", "gauge", "Bytes of the parked messages", GROUP),
    Family("inorder_parked_oldest_age_seconds", "gauge", "How long the oldest parked key is parked", GROUP),
    Family("inorder_parking_full", "gauge", "1: the group can park no more", GROUP),
    Family("inorder_parked_total", "counter", "Messages parked since the start", PAIR),
    Family("inorder_parked_dropped_total", "counter", "Parked messages dropped since the start", PAIR),
    Family("inorder_redriven_total", "counter", "Parked messages that a redrive has finished, and redrives that failed", ("consumer_group", "topic", "outcome")),
    Family("inorder_keymap_version", "gauge", "Version of a topic's key map", ("topic",)),
    Family("inorder_resize_state", "gauge", "0 no resize, 1 decided, 2 stopped, 3 open and groups still read older versions", ("topic",)),
    Family("inorder_resize_messages_left", "gauge", "Messages of older versions that a group has yet to finish", PAIR),
    Family("inorder_producers", "gauge", "Idempotent producers that the broker knows"),
    Family("inorder_producer_gaps_total", "counter", "Sends refused because one before them is missing"),
    Family("inorder_transactions_oldest_age_seconds", "gauge", "Age of the oldest transaction without an outcome"),
    Family("inorder_pop_messages", "gauge", "Popped messages that are not acknowledged"),
    Family("inorder_tick_messages", "histogram", "Messages that share a write", (), TICK_MESSAGES),
    Family("inorder_tick_bytes", "histogram", "Bytes that share a write", (), TICK_BYTES),
    Family("inorder_write_seconds", "histogram", "Time of a write of the log", (), DISK_S),
    Family("inorder_fsync_seconds", "histogram", "Time of a sync of the log, as the loop sees it", (), DISK_S),
    Family("inorder_loop_lag_seconds", "histogram", "How late the event loop was, four times a second", (), LOOP_S),
    Family("inorder_loop_lag_max_seconds", "gauge", "The latest it was since the last scrape"),
    Family("inorder_connections", "gauge", "Open connections"),
    Family("inorder_connections_refused_total", "counter", "Connections closed at once: too many, or no descriptor left"),
    Family("inorder_connections_closed_total", "counter", "Connections closed for what the peer did", ("reason",)),
    Family("inorder_held_pulls", "gauge", "Pulls that wait for messages"),
    Family("inorder_requests_unsupported_total", "counter", "Requests with codes that are not served", ("request_code",)),
    Family("inorder_writable", "gauge", "1: the broker takes messages"),
    Family("inorder_disk_used_ratio", "gauge", "Used share of the disk"),
    Family("inorder_log_position_bytes", "gauge", "Positions of the log: its first byte, how far it is synced, its end", ("edge",)),
    Family("inorder_recovery_seconds", "gauge", "Time that the last start took to open the data directory"),
    Family("inorder_delayed_messages", "gauge", "Messages that wait in a delay level", ("level",)),
    Family("inorder_metrics_left_out_series", "gauge", "Lines that the bounds left out of this page"),
)
# fmt: on
CATALOGUE: Final = {family.name: family for family in _FAMILIES}

_FIRST_RELEASE: Final = 213
"""RocketMQ's number of V4_0_0; every second number from there on is a release."""
_LAST_RELEASE: Final = 533
"""V5_6_0; what is above does not exist yet."""
_LANGUAGES: Final = {int(code): code.name for code in LanguageCode}
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_REQUESTS: Final = {
    int(code): code.name.lower() for codes in (RequestCode, ExtensionCode) for code in codes
}
_RESPONSES: Final = {
    int(code): code.name.lower() for codes in (ResponseCode, ExtensionAnswer) for code in codes
}


def language_of(code: int) -> str:
    """Return the name of a peer's language, `other` for unknown numbers."""
    return _LANGUAGES.get(code, "OTHER").lower()


def version_of(code: int) -> str:
    """Return the RocketMQ release that a peer says it is, such as `V4_9_4`, or `other`."""
    if not _FIRST_RELEASE <= code <= _LAST_RELEASE or (code - _FIRST_RELEASE) % 2:
        return "other"
    release = (code - _FIRST_RELEASE) // 2
    return f"V{4 + release // 100}_{release // 10 % 10}_{release % 10}"


def mode_of(consume_type: str) -> str:
    """Return how a group consumes, as RocketMQ's label has it."""
    return _MODES.get(consume_type, "other")


def request_of(code: int) -> str:
    """Return the name of a request code, `other` if it has none."""
    return _REQUESTS.get(code, "other")


def response_of(code: int) -> str:
    """Return the name of a response code, `other` if it has none."""
    return _RESPONSES.get(code, "other")


def yes(flag: bool) -> str:
    """Return a flag as the value of a label."""
    return "true" if flag else "false"


def is_retry(topic: str) -> bool:
    """Return whether a topic holds retries or dead letters of a group."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


class Counts:
    """Counters by name and labels, bounded."""

    __slots__ = ("_left_out", "_max", "_tables")

    def __init__(self, *, sets_max: int = LABEL_SETS_MAX) -> None:
        self._tables: dict[str, dict[tuple[str, ...], int]] = {}
        self._max = sets_max
        self._left_out = 0

    @property
    def left_out(self) -> int:
        """Return how many events came for label sets beyond the bound."""
        return self._left_out

    def add(self, name: str, *labels: str, count: int = 1) -> None:
        """Count events."""
        table = self._tables.setdefault(name, {})
        if labels in table:
            table[labels] += count
        elif len(table) < self._max:
            table[labels] = count
        else:
            self._left_out += count

    def items(self, name: str) -> Iterator[tuple[tuple[str, ...], int]]:
        """Return a counter's label sets and their counts, as they are now."""
        return iter(list(self._tables.get(name, {}).items()))

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """Forget a group or topic that was deleted."""
        for name, table in self._tables.items():
            names = CATALOGUE[name].labels
            for labels in list(table):
                found = dict(zip(names, labels, strict=True))
                if (group and found.get("consumer_group") == group) or (
                    topic and found.get("topic") == topic
                ):
                    del table[labels]

    def __repr__(self) -> str:
        return f"Counts({sum(map(len, self._tables.values()))} label sets)"


class Handovers:
    """How long queues have no owner: from the end of an ownership to the next one."""

    __slots__ = ("_ended", "by_cause")

    def __init__(self) -> None:
        self._ended: dict[GroupQueue, tuple[str, int]] = {}
        self.by_cause: dict[str, Histogram] = {}

    def ended(self, key: GroupQueue, cause: str, now_ms: int) -> None:
        """Note that an ownership has ended."""
        if key in self._ended or len(self._ended) < HANDOVERS_MAX:
            self._ended[key] = (cause, now_ms)

    def granted(self, key: GroupQueue, now_ms: int, *, resumed: bool) -> None:
        """Note the next owner; one that resumes was never gone."""
        found = self._ended.pop(key, None)
        if found is not None and not resumed:
            cause, since_ms = found
            if cause not in self.by_cause:
                self.by_cause[cause] = Histogram(HANDOVER_S)
            self.by_cause[cause].observe((now_ms - since_ms) / 1000)

    def __repr__(self) -> str:
        return f"Handovers({len(self._ended)} queues without an owner)"


class Meters:
    """What is measured while somebody wants to know: writes, syncs, requests, the loop."""

    __slots__ = (
        "fsync",
        "handovers",
        "loop",
        "loop_max",
        "requests",
        "sends",
        "tick_bytes",
        "tick_messages",
        "write",
    )

    def __init__(self) -> None:
        self.handovers = Handovers()
        self.tick_messages = Histogram(TICK_MESSAGES)
        self.tick_bytes = Histogram(TICK_BYTES)
        self.write = Histogram(DISK_S)
        self.fsync = Histogram(DISK_S)
        self.loop = Histogram(LOOP_S)
        self.loop_max = 0.0
        self.sends = Histogram(RPC_MS)
        self.requests: dict[tuple[str, str], Histogram] = {}
        """By the names of request and answer, which come from tables: bounded."""

    def request(self, code: int, answered: int, took_ms: float) -> None:
        """Count an answered request."""
        names = (request_of(code), response_of(answered))
        found = self.requests.get(names)
        if found is None:
            found = self.requests[names] = Histogram(RPC_MS)
        found.observe(took_ms)

    def late(self, lag_s: float) -> None:
        """Count how late the loop was."""
        self.loop.observe(lag_s)
        self.loop_max = max(self.loop_max, lag_s)

    def take_loop_max(self) -> float:
        """Return the largest lag since the last call."""
        worst, self.loop_max = self.loop_max, 0.0
        return worst

    def __repr__(self) -> str:
        return f"Meters({self.loop.count} looks at the loop, {self.write.count} writes)"
