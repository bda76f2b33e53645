"""What the filters of a query say about what to read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

QUEUE_COLUMNS: Final = ("topic", "broker", "queue")


def values(filters: Iterable[Filter], column: str) -> set[Any] | None:
    """Return the only values that a column may have, None if any."""
    found: set[Any] | None = None
    for each in filters:
        if isinstance(each, EqualTo) and each.attribute == (column,):
            allowed = {each.value}
        elif isinstance(each, In) and each.attribute == (column,):
            allowed = set(each.value)
        else:
            continue
        found = allowed if found is None else found & allowed
    return found


def tags(filters: Iterable[Filter]) -> list[str] | None:
    """Return the tags that are asked for, None if any will do or they cannot be asked for."""
    wanted = values(filters, "tag")
    if not wanted or not all(isinstance(value, str) and value.strip() for value in wanted):
        return None
    if any("|" in value or value != value.strip() for value in wanted):
        return None
    return sorted(wanted)


def bounds(filters: Iterable[Filter], column: str) -> tuple[Any, Any]:
    """Return the lowest and highest value that a column may have, None where there is no bound."""
    low: Any = None
    high: Any = None
    for each in filters:
        if getattr(each, "attribute", None) != (column,):
            continue
        if isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo):
            low = each.value if low is None else max(low, each.value)
        if isinstance(each, LessThan | LessThanOrEqual | EqualTo):
            high = each.value if high is None else min(high, each.value)
    return low, high


def time_ms(value: datetime) -> int:
    """Return a time as the broker counts it."""
    return int(value.timestamp() * 1000)
