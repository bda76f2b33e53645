"""Which directories of Apache RocketMQ hold queues that we cannot read.

    queue.type=BatchCQ          a queue's entries have 46 bytes and stand for several messages each;
                                they lie in `batchconsumequeue/<topic>/<queue id>/`
    cleanup.policy=COMPACTION   old messages of a queue are in `compaction/compactionLog/<topic>/`
                                and not in the log any more

Read as plain queues they would show a part of the messages and hide the others. Earlier versions
of ours took the attributes and kept plain queues all the same: there they mean nothing and are
dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

NOT_HERE: Final[Mapping[str, str]] = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}
"""Attributes of topics, and the value of each that we do not have."""

TOPICS_SHOWN: Final = 5


def not_here(attributes: Mapping[str, str]) -> list[str]:
    """Return the names of the attributes whose values we do not have."""
    return [name for name, value in NOT_HERE.items() if attributes.get(name) == value]


def problems(
    topics: Mapping[str, Mapping[str, str]],
    batched: Collection[str],
    compacted: Collection[str],
    *,
    ours: bool,
) -> list[str]:
    """Return why a directory is not opened; nothing if it is.

    `topics` are the attributes of the topics by name; `batched` and `compacted` the topics with
    files of such queues. A directory that was `ours` before has plain queues where it has no such
    files.
    """
    found = [
        f"topic {topic} has batch queues (batchconsumequeue/{topic}, queue.type=BatchCQ)"
        for topic in sorted(batched)
    ]
    found += [
        f"topic {topic} is compacted (compaction/compactionLog/{topic}, cleanup.policy=COMPACTION)"
        for topic in sorted(compacted)
    ]
    if not ours:
        found += [
            f"topic {topic} has the attribute {name}={NOT_HERE[name]}"
            for topic, attributes in sorted(topics.items())
            if topic not in batched and topic not in compacted
            for name in not_here(attributes)
        ]
    return found
