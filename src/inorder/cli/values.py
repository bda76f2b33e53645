"""Words of the command line that mean values: times, permissions, `name=value`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from inorder.errors import UsageError
from inorder.model import PERM_READ, PERM_WRITE

_AGO: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PERMS: Final = {"r": PERM_READ, "w": PERM_WRITE, "-": 0}
TIME_HELP: Final = "a time (2026-11-15T08:00:00, 1794716671692ms) or an age (90s, 15m, 2h, 1d)"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DIGITS_MIN: Final = 12


def parse_time(text: str, now_ms: int) -> datetime:
    """Read a time: ISO 8601 (local if no zone), ms since 1970, or how long ago."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        amount, unit = int(ago[1]), ago[2]
        if unit == "ms" and len(ago[1]) >= _EPOCH_DIGITS_MIN:
            return _moment(amount)
        return _moment(max(0, now_ms - amount * _UNIT_MS[unit]))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(f"{text!r} is no time; give {TIME_HELP}") from None


def parse_duration(text: str, option: str) -> float:
    """Read a duration in seconds: `10`, `10s`, `5m`, `2h`."""
    found = _AGO.fullmatch(text if not text.isdigit() else f"{text}s")
    if found is None:
        raise UsageError(f"{option} {text!r} is no duration; give seconds, or 10s, 5m, 2h")
    return int(found[1]) * _UNIT_MS[found[2]] / 1000


def _moment(timestamp_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


def show_time(timestamp_ms: int) -> str:
    """Write a time for people, in UTC."""
    if timestamp_ms <= 0:
        return ""
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def parse_perm(text: str) -> int:
    """Read `rw`, `r`, `w` or `-`."""
    if not text or any(letter not in _PERMS for letter in text):
        raise UsageError(f"{text!r} is no permission; give rw, r, w or -")
    return sum({_PERMS[letter] for letter in text})


def show_perm(perm: int) -> str:
    """Write permissions as `rw`."""
    return "".join(letter for letter, bit in _PERMS.items() if bit and perm & bit) or "-"


def parse_pairs(items: Iterable[str] | None, option: str) -> dict[str, str]:
    """Read `name=value` items."""
    found = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {item!r} is not name=value")
        found[name] = value
    return found
