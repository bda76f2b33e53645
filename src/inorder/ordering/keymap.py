"""Which queue a key belongs to: the one place that knows the function.

It is that of Java's SelectMessageQueueByHash, `abs(key.hashCode() % n)`, so that producers in other
languages put a key into the same queue. Java's remainder has the sign of its left side, so the
absolute value may as well be taken first; Python's integers have no -2**31 that stays negative.
"""

from __future__ import annotations

from inorder.wire.javahash import java_hash


def queue_for_key(key: str, queues: int) -> int:
    """Return the index, within the sorted list of all queues of a topic, for a key."""
    if queues < 1:
        raise ValueError(f"a key needs at least one queue, not {queues}")
    return abs(java_hash(key)) % queues
