"""Durations and times of the public calls: seconds, timedelta, datetime outside; ms inside."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from inorder.errors import UsageError

Duration = float | timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(duration: Duration) -> int:
    """Return whole milliseconds, rounded up."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not seconds >= 0 or math.isinf(seconds):
        raise UsageError(f"{duration!r} is no duration; give seconds, 0 or more, or a timedelta")
    return math.ceil(seconds * 1000)


def moment_ms(moment: datetime) -> int:
    """Return a time in ms since 1970; one without a zone is local."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
