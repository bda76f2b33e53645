"""The versions of a topic's key map at one broker: which is open, how others ended, who reads what.

    open n ──stop──> stopped n, ends noted ──open──> open n+1, n is past
      │                                                  │
      └ sends of version n are taken,                    └ a group reads on behind the ends of n
        of others refused                                  only when it was released for n+1

A version that is past is a chapter of the topic: up to its noted end a queue holds messages that
were placed by its map, behind it those of the next. A key may lie elsewhere in the next chapter, so
a group has to finish a chapter on all brokers before it gets the next; each broker holds its pulls
at the ends until then. A group that is not known here begins with the oldest chapter that is left.

The plan of a resize is decided at the topic's first broker, whoever comes first; the others take
part in a plan only if they know of no other. When all have stopped, the first broker is asked once
more whether to go on (`go`), and only then any of them opens the next version; until then the plan
can be taken back there (`withdraw`), also if another broker is gone for good. All values here are
replaced, never changed: a shell saves the new one before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from inorder.errors import (
    GroupNotDone,
    InvalidParameter,
    KeyMapChanged,
    RemoteProtocolError,
    ResizeUnderWay,
)
from inorder.ordering.keymap import KeyMap

VERSION_MAX: Final = 2047
"""A fence has eleven bits for the version."""
GROUPS_MAX: Final = 100_000
WITHDRAWN_MAX: Final = 64
"""Plans that were taken back and are remembered: a late request of theirs is refused."""


class Plan(msgspec.Struct, frozen=True):
    """The next version of a topic's map, and the id of whoever planned it."""

    id: str
    version: int
    map: str
    base: str = ""
    """Of a topic's first map: how keys were placed before, as a map of version 0."""
    without: tuple[str, ...] = ()
    """Brokers that are gone for good: nobody waits for them."""


class Chapter(msgspec.Struct, frozen=True):
    """A version that is past, and where it ended in each queue of this broker."""

    version: int
    map: str
    ends: dict[int, int]


class Reading(msgspec.Struct, frozen=True):
    """The version that a group may read; `member` if its pulls are held."""

    version: int
    member: bool = False
    term: int = 0
    """How often it was set back into a version that is past (`rewinding.py`)."""
    rests: bool = False
    """It was, and gets nothing until that is known and done at all brokers."""


class Versions(msgspec.Struct, frozen=True):
    """The versions of one topic at this broker."""

    version: int = 0
    map: str = ""
    opened: str = ""
    """The id of the plan that began this version."""
    plan: Plan | None = None
    ends: dict[int, int] | None = None
    """Where this version ended: it is stopped for good."""
    past: tuple[Chapter, ...] = ()
    groups: dict[str, Reading] = {}
    going: bool = False
    """At the first broker: some may have opened the plan's version, it cannot be taken back."""
    withdrawn: tuple[str, ...] = ()
    """The ids of plans that were taken back, oldest first."""
    term: int = 0
    """The highest of groups that were forgotten: who is made again, and set back, is above it."""
    made: int = 0
    """The permission of a topic that a plan made, when it is open; 0: it was there before."""

    @property
    def making(self) -> bool:
        """Tell whether the topic was made for a first map, and has none yet: it stores nothing."""
        return self.made > 0 and self.version == 0

    @property
    def stopped(self) -> bool:
        """Tell whether no send of this version is taken any more."""
        return self.ends is not None


# The plan.


def decide(now: Versions, plan: Plan) -> Versions:
    """Decide a plan, at the topic's first broker; the same one again changes nothing."""
    if _is_done(now, plan):
        return now
    check_next(now, plan)
    return now if now.plan is not None else replace(now, plan=plan)


def note(
    now: Versions,
    plan: Plan,
    ends: Mapping[int, int],
    groups: Mapping[str, bool],
    *,
    last: int = 0,
    made: int = 0,
) -> Versions:
    """Note the ends of the present version and the groups that read the topic.

    `groups` tells of each whether its pulls are to be held. Ends that were noted stay. `made`: the
    topic was not there, and has this permission when the plan is open. `last` as in `check_next`.
    """
    if _is_done(now, plan):
        return now
    check_next(now, plan, last=last)
    if now.ends is not None:
        return now
    known = dict(now.groups)
    for group, member in list(groups.items())[: GROUPS_MAX - len(known)]:
        before = known_of(now, group)
        known[group] = replace(before, member=before.member or member)
    made = made or now.made
    return replace(now, plan=plan, ends=dict(ends), groups=known, made=made)


def open_next(now: Versions, plan_id: str, version: int, *, empty: bool = False) -> Versions:
    """Begin the version of a plan; all brokers of the topic have stopped the one before.

    `empty`: nothing was stored at any of them before the topic's first map, so nobody has to read
    that first.
    """
    if now.version == version and now.opened == plan_id:
        return now
    plan, ends = _stopped_for(now, plan_id, version)
    chapter = Chapter(now.version, now.map or plan.base, ends)
    forgotten = not now.version and (empty or not plan.base)
    return replace(
        now,
        version=version,
        map=plan.map,
        opened=plan_id,
        plan=None,
        ends=None,
        going=False,
        past=now.past if forgotten else (*now.past, chapter),
    )


def go(now: Versions, plan_id: str, version: int) -> Versions:
    """Let a plan be opened, at the first broker, when all have stopped: it stands from now on."""
    if now.version == version and now.opened == plan_id:
        return now
    _stopped_for(now, plan_id, version)
    return now if now.going else replace(now, going=True)


def _check_not_withdrawn(now: Versions, plan_id: str) -> None:
    if plan_id in now.withdrawn:
        raise InvalidParameter(f"the resize {plan_id} was taken back")


def _stopped_for(now: Versions, plan_id: str, version: int) -> tuple[Plan, dict[int, int]]:
    _check_not_withdrawn(now, plan_id)
    plan = now.plan
    if plan is None or plan.version != version:
        raise _changed(now, version)
    if plan.id != plan_id:
        raise _under_way(plan)
    if now.ends is None:
        raise InvalidParameter(f"version {now.version} is not stopped here, so {version} must wait")
    return plan, now.ends


def withdraw(now: Versions, plan_id: str) -> Versions:
    """Take a plan back: the present version is open again, and no request of the plan counts.

    To be asked of the first broker before all others: if it agrees nobody has opened the plan's
    version, and nobody will.
    """
    if now.opened == plan_id:
        raise InvalidParameter(f"version {now.version} is open here; it cannot be taken back")
    mine = now.plan is not None and now.plan.id == plan_id
    if mine and now.going:
        raise InvalidParameter(
            "it is too late to take the resize back: brokers may use the new queues already; "
            "finish it with `inorder topic resize --resume`"
        )
    if not mine and plan_id in now.withdrawn:
        return now
    known = (*(one for one in now.withdrawn if one != plan_id), plan_id)[-WITHDRAWN_MAX:]
    if not mine:
        return replace(now, withdrawn=known)
    return replace(now, plan=None, ends=None, withdrawn=known)  # what was made stays closed


def check_next(now: Versions, plan: Plan, *, last: int = 0) -> None:
    """Refuse a plan that is not for the next version, not the one decided, or taken back.

    A topic's first map has a version above `last`, the highest that its name ever had here.
    """
    _check_not_withdrawn(now, plan.id)
    if now.plan is not None and now.plan.id != plan.id:
        raise _under_way(now.plan)
    if plan.version != now.version + 1 if now.version else plan.version <= last:
        raise _changed(now, plan.version)
    if plan.base:
        counts_of(plan.base)
    if plan.version > VERSION_MAX:
        raise InvalidParameter(f"a topic has at most {VERSION_MAX} versions of its key map")
    try:
        found = KeyMap.decode(plan.map)
    except RemoteProtocolError as error:
        raise InvalidParameter(str(error)) from None
    if found.version != plan.version:
        raise InvalidParameter(f"the map has version {found.version}, the plan {plan.version}")
    counts_of(plan.map)


def _is_done(now: Versions, plan: Plan) -> bool:
    return now.version == plan.version and now.opened == plan.id


def _under_way(plan: Plan) -> ResizeUnderWay:
    return ResizeUnderWay(
        f"another resize to version {plan.version} was decided, {plan.id}; finish it first with "
        "`inorder topic resize --resume`",
        version=plan.version,
        plan_id=plan.id,
    )


def _changed(now: Versions, wanted: int) -> KeyMapChanged:
    return KeyMapChanged(
        f"the key map has version {now.version} here, so its next one is not {wanted}",
        version=now.version,
        map=now.map,
    )


def first_of(now: Versions) -> str:
    """Return the broker that decides about plans of a topic, empty if there is none yet.

    The first one of the present map, or of the map that is to be its first one.
    """
    plan = now.plan
    names = set(counts_of(now.map)) if now.map else set(counts_of(plan.map)) if plan else set()
    return min(names - set(plan.without if plan else ()), default="")


def counts_of(text: str) -> dict[str, int]:
    """Return how many queues each broker has in a map. A broker's queues are 0, 1, … in it."""
    counts: dict[str, int] = {}
    for broker, index in KeyMap.decode(text).queues:
        if index != counts.get(broker, 0):
            raise InvalidParameter(f"the queues of {broker} in {text[:80]} are not 0, 1, …")
        counts[broker] = index + 1
    return counts


def brokers_of(now: Versions) -> set[str]:
    """Return the brokers that hold messages of a topic, by any version of its map."""
    texts = [now.map, *(one.map for one in now.past)]
    if now.plan is not None:
        texts += [now.plan.map, now.plan.base]
    return {name for text in texts if text for name in counts_of(text)}


# Groups.


def oldest(now: Versions) -> int:
    """Return the oldest version of which there are chapters."""
    return now.past[0].version if now.past else now.version


def known_of(now: Versions, group: str) -> Reading:
    """Return what is known of a group, or is so of one that never came."""
    return now.groups.get(group) or Reading(oldest(now), term=now.term)


def reading(now: Versions, group: str) -> int:
    """Return the version that a group may read."""
    return max(known_of(now, group).version, oldest(now))


def end_for(now: Versions, group: str, queue_id: int) -> int | None:
    """Return the offset at which a group's pulls of a queue are held; None: nowhere."""
    version, known = reading(now, group), now.groups.get(group)
    if known is not None and known.rests:
        return 0
    if version >= now.version:
        return None
    return next(one.ends.get(queue_id, 0) for one in now.past if one.version >= version)


def done_version(
    now: Versions, group: str, committed: Callable[[int], int], first: Callable[[int], int]
) -> int:
    """Return the version that a group could read, as far as this broker knows.

    It is done with a chapter when its offset of every queue is at the end, or nothing before the
    end is left to read.
    """
    version = reading(now, group)
    for chapter in now.past:
        if chapter.version >= version and _behind(chapter, committed, first):
            return chapter.version
    return now.version


def behind(
    now: Versions, group: str, committed: Callable[[int], int], first: Callable[[int], int]
) -> int:
    """Return how many messages of the chapter that it reads a group has yet to finish."""
    version = reading(now, group)
    chapter = next((one for one in now.past if one.version >= version), None)
    return 0 if chapter is None else _behind(chapter, committed, first)


def _behind(chapter: Chapter, committed: Callable[[int], int], first: Callable[[int], int]) -> int:
    return sum(
        max(0, end - max(committed(queue_id), first(queue_id)))
        for queue_id, end in chapter.ends.items()
    )


def release(
    now: Versions, group: str, version: int, *, done: int, term: int | None = None
) -> Versions:
    """Let a group read a version; `done` is what it could read here. Never goes back.

    By the `term` it was found done everywhere. None: an operator insists, it rests no more.
    """
    before = known_of(now, group)
    if term is None and before.rests:
        before = replace(before, rests=False)
        now = replace(now, groups={**now.groups, group: before})
    elif term is not None and (before.rests or term < before.term):
        raise GroupNotDone(
            f"group {group} was set back into version {reading(now, group)}, so it cannot read "
            f"version {version} yet"
        )
    if version > done:
        raise GroupNotDone(
            f"group {group} has yet to finish messages of version {done} here, so it cannot read "
            f"version {version}"
        )
    if version <= reading(now, group):
        return now
    if group not in now.groups and len(now.groups) >= GROUPS_MAX:
        raise InvalidParameter(f"{GROUPS_MAX} groups of the topic are remembered; no more are")
    known = replace(before, version=version, term=max(before.term, term or 0))
    return replace(now, groups={**now.groups, group: known})


def hold(now: Versions, group: str, *, member: bool) -> Versions:
    """Remember a group that is waited for, also over a restart; `member`: its pulls are held."""
    before = known_of(now, group)
    if group not in now.groups and len(now.groups) >= GROUPS_MAX:
        return now
    held = replace(before, member=before.member or member)
    return replace(now, groups={**now.groups, group: held})


def forget(now: Versions, groups: Iterable[str]) -> Versions:
    """Wait no more for groups that were deleted."""
    gone = set(groups) & now.groups.keys()
    return replace(
        now,
        groups={name: one for name, one in now.groups.items() if name not in gone},
        term=max(now.term, *(now.groups[name].term for name in gone), 0),
    )


def next_map(now: Versions, group: str) -> tuple[int, str]:
    """Return the version that comes after the one that a group reads, and its map."""
    version = reading(now, group)
    for chapter in now.past:
        if chapter.version > version:
            return chapter.version, chapter.map
    return now.version, now.map


def waiting(now: Versions) -> list[str]:
    """Return the groups that have not been released into the present version, or rest."""
    return sorted(
        group for group, known in now.groups.items()
        if known.rests or reading(now, group) < now.version
    )  # fmt: skip
