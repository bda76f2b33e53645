"""The options and columns of the source. An error names the option and the way out.

Names are RocketMQ's and Kafka's where they have one, so that existing jobs need few changes. The
columns of `format("inorder")` are declared for Spark and for Arrow; both must match exactly. Why
these columns: decision 33.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from inorder.client.consume.rules.pulls import subscription_of
from inorder.errors import ConfigError, SubscriptionParseFailed, UsageError
from inorder.spark.cluster import (
    NAMES,
    NOBODY,
    Login,
    Servers,
    Tls,
    chosen_servers,
    common_name,
    read_tls,
)
from inorder.spark.source.rules import Places, from_json

FIELDS: Final[tuple[tuple[str, str, pa.DataType], ...]] = (
    ("topic", "string", pa.string()),
    ("broker", "string", pa.string()),
    ("queue", "int", pa.int32()),
    ("offset", "bigint", pa.int64()),
    ("key", "string", pa.string()),
    ("tag", "string", pa.string()),
    ("keys", "string", pa.string()),
    ("body", "binary", pa.binary()),
    ("properties", "map<string,string>", pa.map_(pa.string(), pa.string())),
    ("born_at", "timestamp", pa.timestamp("us", tz="UTC")),
    ("stored_at", "timestamp", pa.timestamp("us", tz="UTC")),
    ("message_id", "string", pa.string()),
    ("redeliveries", "int", pa.int32()),
)
COLUMNS: Final = tuple(name for name, _, _ in FIELDS)


def chosen(text: str | None) -> tuple[str, ...]:
    """Return the columns that an option names, in the order of the schema; all if it is absent."""
    if text is None:
        return COLUMNS
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in COLUMNS:
            raise ConfigError(
                f"columns: there is no column {name!r}; there are {', '.join(COLUMNS)}"
            )
    if not wanted:
        raise ConfigError(f"columns: name at least one of {', '.join(COLUMNS)}")
    return tuple(name for name in COLUMNS if name in wanted)


def spark_schema(columns: Sequence[str] = COLUMNS) -> str:
    """Return the schema as Spark reads it."""
    return ", ".join(f"{name} {kind}" for name, kind, _ in FIELDS if name in columns)


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of the batches."""
    return pa.schema([(name, kind) for name, _, kind in FIELDS if name in columns])


Where = Places | datetime | str
"""Offsets per queue, a time, or one of earliest, latest, group."""

_ALIASES: Final = {
    "nameserver": "namesrv",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "topics": "topic",
    "consumergroup": "group",
    "subexpression": "tag",
}
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "namesrv", "topic", "topicPattern", "key", "group", "tag", "sql", "columns",
        "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp",
        "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "failOnDataLoss",
        "maxPartitions", "ordered",
        "maxRecordsPerPartition", "reportOffsets", "idlePollMs", "pushdown", "checkCrc", "path",
    )
}  # fmt: skip
_DURATION: Final = re.compile(r"\s*([0-9]+)\s*(ms|s|m|h|d)?\s*")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1}
DEFAULT_GROUP: Final = "inorder_spark"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of a source."""

    namesrv: str
    topics: tuple[str, ...]
    pattern: str | None = None
    keys: tuple[str, ...] = ()
    group: str = DEFAULT_GROUP
    tag: str = "*"
    sql: str | None = None
    columns: tuple[str, ...] = COLUMNS
    starting: Where | None = None
    ending: Where | None = None
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = 15 * 60_000
    fail_on_data_loss: bool = True
    partitions_max: int | None = None
    ordered: bool = True
    records_per_partition_max: int | None = None
    report_offsets: bool = False
    idle_poll_ms: int = 100
    pushdown: bool = False
    check_crc: bool = True
    tls: Tls | None = None
    login: Login = NOBODY

    @property
    def filtered(self) -> bool:
        """Return whether the broker leaves messages out."""
        return self.sql is not None or self.tag not in ("*", "")

    @property
    def servers(self) -> Servers:
        """Return the servers to read from."""
        return Servers(self.namesrv, self.tls, self.login)


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of `spark.read` or `spark.readStream`."""
    given: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        wanted = _KNOWN.get(_ALIASES.get(lower, lower).lower()) or common_name(name)
        if wanted is None:
            names = {**_KNOWN, **{name: name for name in NAMES}}
            near = difflib.get_close_matches(lower, list(names), 1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            raise ConfigError(f"the source has no option {name!r}{hint}")
        given[wanted] = value
    ordered = _boolean(given, "ordered", True)
    per_partition = _count(given, "maxRecordsPerPartition")
    if ordered and per_partition is not None:
        raise ConfigError(
            "maxRecordsPerPartition cuts queues into pieces and so gives up their order; "
            "say ordered=false as well if that is what you want"
        )
    return SourceOptions(
        namesrv=chosen_servers(given.get("namesrv")),
        topics=() if "topicPattern" in given else _topics(given),
        pattern=_pattern(given),
        keys=(given["key"],) if given.get("key") else (),
        group=given.get("group", DEFAULT_GROUP),
        tag=given.get("tag", "*"),
        sql=_sql(given),
        columns=chosen(given.get("columns")),
        starting=_where(given, "starting"),
        ending=_where(given, "ending"),
        offsets_per_trigger_max=_count(given, "maxOffsetsPerTrigger"),
        offsets_per_trigger_min=_count(given, "minOffsetsPerTrigger"),
        trigger_delay_ms_max=_duration(given, "maxTriggerDelay", 15 * 60_000),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", True),
        partitions_max=_count(given, "maxPartitions"),
        ordered=ordered,
        records_per_partition_max=per_partition,
        report_offsets=_boolean(given, "reportOffsets", "group" in given),
        idle_poll_ms=_duration(given, "idlePollMs", 100),
        pushdown=_boolean(given, "pushdown", False),
        check_crc=_boolean(given, "checkCrc", True),
        tls=read_tls(given),
        login=Login.of(given.get("credentials_file")),
    )


def _sql(given: Mapping[str, str]) -> str | None:
    """Read the SQL92 expression. Raises ConfigError, with the place of an error marked."""
    text = given.get("sql")
    if text is not None:
        try:
            subscription_of("", given.get("tag", "*"), text)
        except (UsageError, SubscriptionParseFailed) as error:
            raise ConfigError(f"sql: {error}") from None
    return text


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("topic", "") or given.get("path", "")
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ConfigError(
            "the option topic is missing: one, or several separated by commas; or topicPattern"
        )
    return found


def _pattern(given: Mapping[str, str]) -> str | None:
    text = given.get("topicPattern")
    if text is None:
        return None
    if given.get("topic") or given.get("path"):
        raise ConfigError("give topic or topicPattern, not both")
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"topicPattern: {text!r} is no regular expression: {error}") from None
    return text


def _where(given: Mapping[str, str], side: str) -> Where | None:
    """Read startingTimestamp or startingOffsets; the time goes first, as with Kafka."""
    text = given.get(f"{side}Timestamp")
    if text is not None:
        return _time(text, f"{side}Timestamp")
    name = f"{side}Offsets"
    text = given.get(name)
    if text is None:
        return None
    word = text.strip().lower()
    words = ("earliest", "latest", "group") if side == "starting" else ("latest", "group")
    if word in words:
        return word
    try:
        value = json.loads(text)
    except ValueError:
        raise ConfigError(
            f"{name}: {text[:80]!r} is neither {', '.join(words)} nor JSON like "
            '{"topic": {"broker": {"0": 17}}}'
        ) from None
    return from_json(value, name)


def _time(text: str, name: str) -> datetime:
    """Read milliseconds since 1970, or a time as ISO 8601 writes it (UTC if it does not say)."""
    stripped = text.strip()
    try:
        if stripped.isascii() and stripped.isdigit():
            return datetime.fromtimestamp(int(stripped) / 1000, UTC)
        found = datetime.fromisoformat(stripped)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"{name}: {text[:80]!r} is no time; write milliseconds since 1970, or "
            "2026-11-15T09:00:00+00:00"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < 1:
        raise ConfigError(f"{name}: {text[:80]!r} is no number above 0")
    return int(text)


def _duration(given: Mapping[str, str], name: str, default_ms: int) -> int:
    text = given.get(name)
    if text is None:
        return default_ms
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(f"{name}: {text[:80]!r} is no duration; write 500ms, 10s or 15m")
    return int(found[1]) * _UNIT_MS[found[2]]


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{name}: {text[:80]!r} is neither true nor false")
    return word == "true"
