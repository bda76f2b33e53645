"""The versions of a topic that are past: what queues hold of them, and when they are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from inorder.broker.state.resizing import Chapter, Versions, brokers_of, oldest, reading


def chapters(now: Versions, queue_id: int) -> list[tuple[int, int]]:
    """Return from which offset on a queue holds messages of which version, in order."""
    found: list[tuple[int, int]] = []
    start = 0
    for version, ends in [(one.version, one.ends) for one in now.past] + [(now.version, {})]:
        if found and found[-1][0] == start:
            found.pop()  # nothing came under it
        found.append((start, version))
        start = max(start, ends.get(queue_id, start))
    return found


def trim(now: Versions, first: Callable[[int], int], name: str) -> Versions:
    """Forget the oldest chapters of which no message is left; `name` is this broker's.

    If the topic has other brokers, only where they ended: messages of theirs may be left there,
    and a group that has yet to handle those must not get newer ones here.
    """
    gone = 0
    for chapter in now.past:
        if any(end > first(queue_id) for queue_id, end in chapter.ends.items()):
            break
        gone += 1
    if brokers_of(now) <= {name}:
        return replace(now, past=now.past[gone:]) if gone else now
    if not any(chapter.ends for chapter in now.past[:gone]):
        return now
    bare = (Chapter(one.version, one.map, {}) for one in now.past[:gone])
    return replace(now, past=(*bare, *now.past[gone:]))


def cut(now: Versions, last: Callable[[int], int]) -> Versions:
    """Bring noted ends back to what was recovered of the log."""

    def shorter(ends: dict[int, int]) -> dict[int, int]:
        return {queue_id: min(end, last(queue_id)) for queue_id, end in ends.items()}

    return replace(
        now,
        ends=None if now.ends is None else shorter(now.ends),
        past=tuple(Chapter(one.version, one.map, shorter(one.ends)) for one in now.past),
    )


def queues_left(now: Versions, first: Callable[[int], int], *, of: Iterable[str] | None) -> int:
    """Return how many queues hold messages of versions that are past, which groups have yet to get.

    Counted from 0 to the last of them. `of` are the groups; None: also those that may come.
    """
    version = oldest(now) if of is None else min((reading(now, one) for one in of), default=None)
    if version is None:
        return 0
    left = (
        queue_id + 1
        for chapter in now.past if chapter.version >= version
        for queue_id, end in chapter.ends.items() if end > first(queue_id)
    )  # fmt: skip
    return max(left, default=0)
