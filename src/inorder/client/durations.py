"""Durations of the public calls: seconds or a timedelta outside, milliseconds inside."""

from __future__ import annotations

import math
from datetime import timedelta

from inorder.errors import UsageError

Duration = float | timedelta


def to_ms(duration: Duration) -> int:
    """Return whole milliseconds, rounded up."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not seconds >= 0 or math.isinf(seconds):
        raise UsageError(f"{duration!r} is no duration; give seconds, 0 or more, or a timedelta")
    return math.ceil(seconds * 1000)
