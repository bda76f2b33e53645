"""The work that all drivers do, and how they report it. Nothing but the standard library."""

from __future__ import annotations

from collections.abc import Sequence

TOPIC = "BenchClients"
BODY = b"x" * 200
TAG = "TagA"
KEY = "order-4711"


def numbers(
    messages: int, seconds: float, cpu_s: float, took_s: Sequence[float] = ()
) -> dict[str, float]:
    """Return what a unit came to."""
    found = {
        "messages_per_s": messages / seconds,
        "client_cpu_us_per_message": cpu_s / max(1, messages) * 1e6,
        "messages": float(messages),
        "seconds": seconds,
    }
    if took_s:
        in_order = sorted(took_s)
        found["p50_us"] = in_order[len(in_order) // 2] * 1e6
        found["p99_us"] = in_order[len(in_order) * 99 // 100] * 1e6
    return found
