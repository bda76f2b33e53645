"""What a history is held to: the defaults are the whole contract, each switch gives one part up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Handling(StrEnum):
    """Which messages wait for each other in a consumer."""

    QUEUE = "queue"
    """One handler per queue, in the order of offsets."""
    KEY = "key"
    """One handler per key, in the order of offsets of the key."""
    CONCURRENT = "concurrent"
    """No order: only loss, doubles and phantoms are looked for."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The promises to check.

    `stored_once` off: a retried send may leave copies; order is judged on first copies.
    `handled_once` off: an effect may repeat after a fault; order is judged on first effects.
    `one_queue_per_key` off: for topics whose number of queues changed.
    `dense` off: what was read is filtered (by tag, say), so offsets may have holes.
    `complete_stored`, `complete_handled`: the history holds everything that was stored or handled,
    so what is missing is lost; None = yes if it holds any such event.
    `acknowledged_min`: with fewer acknowledged sends the history proves nothing.
    """

    stored_once: bool = True
    handled_once: bool = True
    one_queue_per_key: bool = True
    dense: bool = True
    handling: Handling = Handling.QUEUE
    complete_stored: bool | None = None
    complete_handled: bool | None = None
    acknowledged_min: int = 1
    findings_max: int = 1000
