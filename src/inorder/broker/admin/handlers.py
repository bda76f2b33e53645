"""Requests of operators about a running broker, and queries for single messages.

    GET_BROKER_RUNTIME_INFO (28)    counters, rates, disk usage, and losses of messages
    GET_BROKER_CONFIG (26)          the settings, under RocketMQ's names
    UPDATE_BROKER_CONFIG (25)       change settings; refused unless `remote_config` is true
    VIEW_MESSAGE_BY_ID (33)         the message at a position of the log
    QUERY_MESSAGE (12)              the messages of a key

The counters are in `rules.py`. Where settings come from: decision 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from inorder.config import AccessConfig, BrokerConfig, NetConfig, StoreConfig, is_open
from inorder.errors import ConfigError, InvalidParameter, NoPermission, SystemError_
from inorder.logs import get_logger, set_levels
from inorder.model import DataVersion
from inorder.settings.values import catalog, parse
from inorder.wire.codes import VERSION, ResponseCode
from inorder.wire.fields import encode_fields
from inorder.wire.names import SCHEDULE_TOPIC
from inorder.wire.record import decode
from inorder.wire.requests.nameserver import decode_settings, encode_kv_table, encode_settings
from inorder.wire.requests.pulls import QueryMessage, QueryMessageReply, ViewMessage
from inorder.wire.requests.topics import encode_data_version

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call
    from inorder.wire.header import Command

logger = get_logger(__name__)

VERSION_NAME: Final = "V5_3_3"
"""The RocketMQ release whose protocol version the replies carry."""

HIDDEN: Final = frozenset({
    "data", "tls_certificate", "tls_key", "tls_trust", "tls_client_trust",
    "tls_client_certificate", "tls_client_key", "key_file",
})  # fmt: skip
"""Settings that name files of the broker; clients see neither them nor secrets."""

LOSSES_SHOWN_MAX: Final = 100
UNSUPPORTED_SHOWN_MAX: Final = 100

NO_BUFFER_LIMIT: Final = 2**31 - 1


def get_runtime_info(call: Call[None]) -> Command:
    """Reply with counters and rates under RocketMQ's names."""
    broker = call.broker
    broker.count()
    table = {
        **_totals(broker), **_rates(broker), **_disk(broker), **_queues(), **_delays(broker),
        **_pops(broker), **_losses(broker), **_defences(broker), **_ours(broker),
    }  # fmt: skip
    if broker.guard is not None:
        table |= broker.guard.statistics()
    return call.reply(body=encode_kv_table(table))


def _totals(broker: Broker) -> dict[str, str]:
    stats, now_ms = broker.stats, broker.clock.now_ms()
    minutes, seconds = divmod(max(0, now_ms - broker.started_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    average = stats.put_bytes / stats.put_messages if stats.put_messages else 0.0
    return {
        "brokerActive": "true",
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": VERSION_NAME,
        "bootTimestamp": str(broker.started_ms),
        "startAcceptSendRequestTimeStamp": "0",
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
        "putMessageTimesTotal": str(stats.put_messages),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageAverageSize": str(average),
        "putMessageFailedTimes": str(stats.put_failed),
        **{name: str(total) for name, total in stats.day_totals().items()},
    }


def _rates(broker: Broker) -> dict[str, str]:
    stats, now_ms = broker.stats, broker.clock.monotonic_ms()
    found, missed = stats.found_rates(now_ms), stats.missed_rates(now_ms)
    return {
        "putTps": str(stats.put_rates(now_ms)),
        "getFoundTps": str(found),
        "getMissTps": str(missed),
        "getTotalTps": str(found + missed),
        "getTransferredTps": str(stats.transferred_rates(now_ms)),
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": str(broker.timer_table.total),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }


def _disk(broker: Broker) -> dict[str, str]:
    log = broker.store.log
    usage = broker.files.usage(broker.config.data_path)
    ratio = f"{usage.used_ratio:.2f}"
    first = broker.store.record_at(log.min_position)
    earliest_ms = -1 if first is None else decode(first, check_crc=False).stored_at_ms
    return {
        "commitLogMinOffset": str(log.min_position),
        "commitLogMaxOffset": str(log.end_position),
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_size(usage.total)}, Free : {_size(usage.free)}.",
        "earliestMessageTimeStamp": str(earliest_ms),
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "pageCacheLockTimeMills": "0",
        "remainHowManyDataToFlush": _size(max(0, log.end_position - log.durable_position)),
        "remainTransientStoreBufferNumbs": str(NO_BUFFER_LIMIT),
    }


def _queues() -> dict[str, str]:
    """Return zeros for RocketMQ's thread pools: this broker has none."""
    table = {}
    for pool in ("send", "pull", "query", "litePull", "ack"):
        table[f"{pool}ThreadPoolQueueSize"] = "0"
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table[f"{pool}ThreadPoolQueueCapacity"] = "0"
    table["EndTransactionQueueSize"] = "0"
    table["EndTransactionThreadPoolQueueCapacity"] = "0"
    return table


def _delays(broker: Broker) -> dict[str, str]:
    """Return two offsets for each delay level: of the next delivery, and of the end."""
    table = {}
    for level, offset in broker.delays.settled().items():
        end = broker.store.end_offset(SCHEDULE_TOPIC, level - 1)
        table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    return table


def _pops(broker: Broker) -> dict[str, str]:
    """Return what is popped and what waits; no fields if nobody pops."""
    table = broker.pop_table
    if not table.queues and not table.batches:
        return {}
    return {
        "popMessagesInFlight": str(table.messages),
        "popCheckPointsInFlight": str(table.points),
        "popBatchesInOrder": str(len(table.batches)),
        "popRequestsWaiting": str(len(broker.pop_polls)),
        "popMessagesRevived": str(broker.revival.revived),
    }


def _ours(broker: Broker) -> dict[str, str]:
    """Return what `inorder doctor` asks for."""
    codes = sorted(broker.router.unknown_codes.items())[:UNSUPPORTED_SHOWN_MAX]
    return {
        "inorderNowMs": str(broker.clock.now_ms()),
        "inorderFilesMax": str(broker.files.descriptors_max()),
        "inorderWritable": "true" if broker.writable else "false",
        "inorderUnsupported": ",".join(f"{code}:{count}" for code, count in codes),
        "inorderHost": broker.config.host,
        "inorderOpen": "true" if is_open(broker.config) else "false",
    }


def _losses(broker: Broker) -> dict[str, str]:
    """Return the losses of messages that the broker has found; no fields if there are none."""
    found = broker.losses.reported
    if not found:
        return {}
    texts = {f"inorderLoss_{n}": one.text for n, one in enumerate(found[:LOSSES_SHOWN_MAX])}
    return {"inorderLosses": str(len(found)), **texts}


def _defences(broker: Broker) -> dict[str, str]:
    """Return what limits and logins held back, and about certificates; else no fields."""
    server = broker.server
    failures = server.failures
    counts = {
        "inorderLimitedRequests": server.limited_total,
        "inorderLoginFailures": failures.failed_total,
        "inorderLoginFailuresSlowed": failures.slowed_total,
        "inorderLoginFailuresClosed": failures.closed_total,
    }
    found = {name: str(count) for name, count in counts.items() if count}
    if server.tls.ends_ms:
        found["inorderTlsEndsMs"] = str(server.tls.ends_ms)
    if server.tls.problem:
        found["inorderTlsProblem"] = "new TLS files are not used; the log of the broker says why"
    return found


def _size(count: int) -> str:
    """Return a number of bytes in RocketMQ's notation: `235.3 GiB`."""
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in "KMGTPE":
        amount /= 1024
        if amount < 1024 or unit == "E":
            return f"{amount:.1f} {unit}iB"
    raise AssertionError("the last unit always fits")


def get_broker_config(call: Call[None]) -> Command:
    """Reply with the settings that RocketMQ has too, under its names."""
    version = encode_data_version(DataVersion(timestamp_ms=call.broker.started_ms))
    return call.reply(
        fields={"version": version.decode()}, body=encode_settings(settings(call.broker.config))
    )


def settings(config: BrokerConfig) -> dict[str, str]:
    """Return the settings that have a RocketMQ name: name and text, sorted by name."""
    shown: dict[str, str] = {}
    parts: tuple[BrokerConfig | StoreConfig | NetConfig | AccessConfig, ...] = (
        config, config.store, config.net, config.access,
    )  # fmt: skip
    for part in parts:
        for field in fields(part):
            name = field.metadata.get("rocketmq")
            if name and field.name not in HIDDEN and not field.metadata["secret"]:
                shown[name] = _text(field.name, getattr(part, field.name))
    shown["useServerSideResetOffset"] = "true"  # RocketMQ's tools read it before a reset
    return dict(sorted(shown.items()))


def _text(name: str, value: Any) -> str:
    if name == "sync_flush":
        return "SYNC_FLUSH" if value else "ASYNC_FLUSH"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and name.endswith(("ratio", "ratio_max")):
        return str(round(value * 100))
    return str(value)


def update_broker_config(call: Call[None]) -> Command:
    """Change settings at run time, if `remote_config` allows it.

    A single name that cannot be changed refuses the whole request. RocketMQ ignores unknown names
    and replies with success, so that a typing error looks like a change.
    """
    wanted = decode_settings(call.command.body)
    if not wanted:
        return call.reply()
    if not call.broker.config.remote_config:
        raise NoPermission(
            "Can not update config: this broker takes settings from its own command line and file "
            "only; start it with remote_config=true to allow it"
        )
    changes: dict[str, Any] = {}
    for name, text in wanted.items():
        change = CHANGEABLE.get(name)
        if change is not None:
            changes[change[0]] = change[1](name, text)
        elif name in FIXED:
            raise NoPermission(f"Can not update config in black list: {name}")
        else:
            raise InvalidParameter(
                f"{name[:80]} is no setting that this broker can change at run time; those are "
                f"{', '.join(sorted(CHANGEABLE))}"
            )
    if changes:
        _apply(call.broker, changes)
        logger.warning("settings changed peer=%s %s", call.connection.peer, changes)
    return call.reply()


def _apply(broker: Broker, changes: Mapping[str, Any]) -> None:
    config = replace(broker.config, **changes)
    if config.log_levels != broker.config.log_levels:
        set_levels(config.log_levels, before=broker.config.log_levels)
    perm_changed = config.perm != broker.config.perm
    broker.config = config
    broker.topics.auto_create = config.auto_create_topics
    if perm_changed:
        broker.topics.data_version.next(broker.clock.now_ms())
        broker.registration.refresh()


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise SystemError_(f"{name}={text} is neither true nor false")
    return text == "true"


def _between(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        plain = text.isascii() and text.isdigit() and len(text) <= len(str(high))
        if not plain or not low <= int(text) <= high:
            raise SystemError_(f"{name}={text} is not a number from {low} to {high}")
        return int(text)

    return read


def _log_levels(name: str, text: str) -> str:
    setting = catalog(BrokerConfig).settings["log_levels"]
    try:
        return str(parse(setting, text, "of a request"))
    except ConfigError as error:
        raise SystemError_(str(error)) from None


CHANGEABLE: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "brokerPermission": ("perm", _between(0, 7)),
    "autoCreateTopicEnable": ("auto_create_topics", _flag),
    "autoCreateSubscriptionGroup": ("auto_create_groups", _flag),
    "enablePropertyFilter": ("property_filter", _flag),
    "longPollingEnable": ("long_polling", _flag),
    "shortPollingTimeMills": ("short_polling_ms", _between(1, 600_000)),
    "log_levels": ("log_levels", _log_levels),
}
"""RocketMQ's name of a setting: inorder's name, and the reader of its text.

The broker reads each of these settings whenever it needs it, so a change takes effect at once.
"""

FIXED: Final = frozenset(
    {"brokerConfigPath", "rocketmqHome", "configBlackList", "storePathCommitLog"}
    | {
        field.metadata["rocketmq"]
        for part in (BrokerConfig, StoreConfig, NetConfig, AccessConfig)
        for field in fields(part)
        if field.metadata.get("rocketmq")
    }
).difference(CHANGEABLE)
"""Names of settings that a request cannot change."""


UNIQUE_KEY_COUNT = 32
"""How many records a search by message id returns, whatever number the client asks for."""
ANSWER_BYTES_MAX = 8 * 1024 * 1024


def view_message(call: Call[ViewMessage]) -> Command:
    """Reply with the record at a position of the log; code 1 if no record begins there."""
    position = call.request.position
    record = call.broker.store.visible_record(position)
    if record is None:
        return call.reply(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}"
        )
    return call.reply(body=bytes(record))


def query_message(call: Call[QueryMessage]) -> Command:
    """Reply with the records of a key stored between two times; code 22 if there are none."""
    request = call.request
    count = UNIQUE_KEY_COUNT if request.unique_key else request.max_messages
    hits = call.broker.store.query_keys(
        request.topic, request.key, max(0, count), request.begin_ms, request.end_ms
    )
    records: list[memoryview] = []
    size = 0
    for position in sorted(hits.positions):  # oldest first, as in RocketMQ
        record = call.broker.store.visible_record(position)
        if record is None:
            continue
        size += len(record)
        if records and size > ANSWER_BYTES_MAX:
            break
        records.append(record)
    if not records:
        return call.reply(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            fields=encode_fields(QueryMessageReply(0, 0)),
        )
    reply = QueryMessageReply(hits.last_update_ms, hits.last_update_position)
    return call.reply(fields=encode_fields(reply), body=b"".join(records))
