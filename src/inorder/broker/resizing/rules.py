"""The key map versions of a topic at one broker: plans, past versions, and groups that read them.

A resize replaces the key map of a topic. Each map has a version, and every broker of the topic goes
through the same states:

    open n ──stop──> stopped n, ends recorded ──open──> open n+1, n is past
      │                                                    │
      └ sends of version n are accepted,                   └ a group reads past the ends of n only
        sends of other versions are refused                  after it was released into n+1

**Plans.** The topic's first broker decides the plan of a resize (`decide`): the first plan wins.
The other brokers accept a plan only if they know no other one. When all brokers have stopped, the
first broker makes the plan final (`go`); only then may any broker open the next version. Until then
the first broker can withdraw the plan, even if another broker is gone for good.

**Past versions.** A queue holds the messages of a past version up to the recorded end, and those of
the next version after it. The next map may place a key in another queue, so a group must finish a
version on all brokers before it reads the next one. Each broker holds the group's pulls at the ends
until then. A group that is new here begins with the oldest past version of which messages are left.

**Rewinds.** An offset reset can take a group back into a past version. A key of the replay may
belong to another queue in a newer version, where a consumer handles it right now. So the group is
paused first:

    reset at one broker ──> paused there, offsets set ──> paused at all brokers, leases revoked
                        ──> no consumer handles earlier deliveries ──> resumed

Every broker where a group is paused asks the others for their state and tells them what is missing
(`agree`). Each step may be repeated and is on disk before it counts. The rewind number says how
often a group was rewound. A request to resume or to release names the rewind number on which it is
based; a broker that knows a newer number refuses it.

All values here are immutable: the service saves the new value before it counts. `Resizes` holds the
values of all topics and the content of their file; it also remembers the last version of deleted
topics, so that a new topic of the same name begins above it.

Why resizes work this way: decisions 13 (resize), 14 (rewind) and 43 (a topic's first map).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from inorder.broker.parking.rules import ParkedKey
from inorder.errors import (
    GroupNotDone,
    InvalidParameter,
    KeyMapChanged,
    RemoteProtocolError,
    ResizeUnderWay,
)
from inorder.ordering.keymap import KeyMap, digest_of, version_of
from inorder.wire.requests.resizing import PastVersion, Plan

VERSION_MAX: Final = 2047
"""A fence has eleven bits for the version."""
GROUPS_MAX: Final = 100_000
WITHDRAWN_MAX: Final = 64
"""How many withdrawn plans are remembered, so that their late requests are refused."""
GONE_MAX: Final = 100_000
"""How many deleted topics are remembered with their last version."""
REWIND_NUMBER_MAX: Final = 1 << 53
NO_VERSION: Final = ""
"""Matches the map version of no send."""
NO_DIGEST: Final = "-"
"""Matches the map digest of no send."""


class Reading(msgspec.Struct, frozen=True):
    """The version that a group may read; `member` if its pulls are held at the ends."""

    version: int
    member: bool = False
    term: int = 0
    """File name of the rewind number: how often the group was rewound into a past version."""
    rests: bool = False
    """File name of "paused": the group gets nothing until all brokers know of its rewind."""


class Versions(msgspec.Struct, frozen=True):
    """What one broker knows of the versions of one topic."""

    version: int = 0
    map: str = ""
    opened: str = ""
    """The id of the plan that opened this version."""
    plan: Plan | None = None
    ends: dict[int, int] | None = None
    """Where the present version ends in each queue; None while the version is open."""
    past: tuple[PastVersion, ...] = ()
    groups: dict[str, Reading] = {}
    going: bool = False
    """At the topic's first broker: the plan is final, since other brokers may have opened it."""
    withdrawn: tuple[str, ...] = ()
    """The ids of withdrawn plans, oldest first."""
    term: int = 0
    """The highest rewind number of forgotten groups: a new group of the name counts on from it."""
    made: int = 0
    """The permission that a topic gets with its first map, if a plan created it; else 0."""

    @property
    def making(self) -> bool:
        """Return whether a plan created the topic, and its first map is not open yet."""
        return self.made > 0 and self.version == 0

    @property
    def stopped(self) -> bool:
        """Return whether the broker accepts no more sends of this version."""
        return self.ends is not None


# Plans.


def decide(now: Versions, plan: Plan) -> Versions:
    """Accept a plan at the topic's first broker. Repeating it changes nothing."""
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
    """Record the ends of the present version, and the groups that read the topic.

    `groups` tells for each group whether its pulls are to be held. Recorded ends never change.
    `made` is the permission of a topic that the plan created. `last` is as in `check_next`.
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
    """Begin the version of a plan, after all brokers of the topic have stopped the previous one.

    `empty`: no broker stored a message before the topic's first map, so no group has to read any.
    """
    if now.version == version and now.opened == plan_id:
        return now
    plan, ends = _stopped_for(now, plan_id, version)
    ended = PastVersion(now.version, now.map or plan.base, ends)
    forgotten = not now.version and (empty or not plan.base)
    return replace(
        now,
        version=version,
        map=plan.map,
        opened=plan_id,
        plan=None,
        ends=None,
        going=False,
        past=now.past if forgotten else (*now.past, ended),
    )


def go(now: Versions, plan_id: str, version: int) -> Versions:
    """Make a plan final, at the topic's first broker, after all brokers have stopped."""
    if now.version == version and now.opened == plan_id:
        return now
    _stopped_for(now, plan_id, version)
    return now if now.going else replace(now, going=True)


def _check_not_withdrawn(now: Versions, plan_id: str) -> None:
    if plan_id in now.withdrawn:
        raise InvalidParameter(f"the resize {plan_id} was withdrawn")


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
    """Withdraw a plan: the present version opens again, and requests of the plan are refused.

    The first broker must be asked before all others. If it agrees, no broker has opened the planned
    version, and none will.
    """
    if now.opened == plan_id:
        raise InvalidParameter(f"version {now.version} is open here; it cannot be withdrawn")
    mine = now.plan is not None and now.plan.id == plan_id
    if mine and now.going:
        raise InvalidParameter(
            "it is too late to withdraw the resize: brokers may use the new queues already; "
            "finish it with `inorder topic resize --resume`"
        )
    if not mine and plan_id in now.withdrawn:
        return now
    known = (*(one for one in now.withdrawn if one != plan_id), plan_id)[-WITHDRAWN_MAX:]
    if not mine:
        return replace(now, withdrawn=known)
    return replace(
        now, plan=None, ends=None, withdrawn=known
    )  # a topic that the plan created stays closed


def check_next(now: Versions, plan: Plan, *, last: int = 0) -> None:
    """Refuse a plan that is withdrawn, not for the next version, or competes with another.

    The version of a topic's first map must be above `last`, the highest version that its name ever
    had.
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
    """Return the broker that decides the plans of a topic; empty if there is none yet.

    It is the first broker of the present map, or of the planned first map.
    """
    plan = now.plan
    names = set(counts_of(now.map)) if now.map else set(counts_of(plan.map)) if plan else set()
    return min(names - set(plan.without if plan else ()), default="")


def counts_of(text: str) -> dict[str, int]:
    """Return how many queues each broker has in a map. A broker's queues must be 0, 1, … in it."""
    counts: dict[str, int] = {}
    for broker, index in KeyMap.decode(text).queues:
        if index != counts.get(broker, 0):
            raise InvalidParameter(f"the queues of {broker} in {text[:80]} are not 0, 1, …")
        counts[broker] = index + 1
    return counts


def brokers_of(now: Versions) -> set[str]:
    """Return the brokers that hold messages of a topic under any version of its map."""
    texts = [now.map, *(one.map for one in now.past)]
    if now.plan is not None:
        texts += [now.plan.map, now.plan.base]
    return {name for text in texts if text for name in counts_of(text)}


# Sends.


class SendMap(NamedTuple):
    """The key map by which sends to a topic are judged."""

    text: str
    """Empty: the topic has no map."""
    stopped: bool
    """A resize has closed the map, and the next one is not open yet."""

    @property
    def version(self) -> str:
        """Return the map version that sends must carry, as text; `NO_VERSION`: no send fits."""
        return NO_VERSION if self.stopped else str(version_of(self.text))

    @property
    def digest(self) -> str:
        """Return the map digest that keyed sends of inorder clients must carry.

        It is empty without a map; `NO_DIGEST`: no send fits.
        """
        if self.stopped:
            return NO_DIGEST
        return _digest(self.text) if version_of(self.text) else ""

    def check(self, topic: str, version: str | None, digest: str | None = None) -> None:
        """Refuse a send by a map that is not the open one.

        `version` is None if the send names no map. The digest counts only if it is given.

        Raises:
            KeyMapChanged: with the present map.
        """
        current = version_of(self.text)
        if not self.stopped and (version or "0") == self.version:
            if digest is None or digest == self.digest:
                return
            remark = f"the key map of topic[{topic}] is another one of version {current}"
        elif self.stopped and version == str(current):
            remark = f"topic[{topic}] is being resized, version {current} of its key map is closed"
        elif version is None:
            remark = (
                f"topic[{topic}] has a key map, and the queue of this key was chosen without it"
            )
        else:
            remark = f"the key map of topic[{topic}] has version {current}, not {version[:20]}"
        raise KeyMapChanged(remark, version=current, map=self.text)


def home(
    now: Versions, plan: Plan | None, queue: tuple[str, int], key: str | None
) -> tuple[str, int]:
    """Return the broker and queue to which a delayed message of `queue` belongs when it is due.

    `plan` is the plan for which the topic is stopped. A message that was placed by its key follows
    the newest map. Any other message of a removed queue goes to a queue that is left.
    """
    name, queue_id = queue
    if plan is None and not now.map:
        return queue
    newest = decode_map(now.map if plan is None else plan.map)
    if key is not None:
        maps = [text for text in (now.map, *(one.map for one in now.past)) if text]
        if plan is not None and plan.base:
            maps.append(plan.base)
        if any(decode_map(text).queue(key) == queue for text in maps):
            return newest.queue(key)
    count = sum(broker == name for broker, _ in newest.queues)
    return name, queue_id if queue_id < count or not count else queue_id % count


@lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    try:
        return KeyMap.decode(text).digest
    except RemoteProtocolError:  # set by hand
        return digest_of(text)


# Groups.


def oldest(now: Versions) -> int:
    """Return the oldest version of which messages may be left."""
    return now.past[0].version if now.past else now.version


def known_of(now: Versions, group: str) -> Reading:
    """Return the state of a group, or the initial state of a group that is new here."""
    return now.groups.get(group) or Reading(oldest(now), term=now.term)


def reading(now: Versions, group: str) -> int:
    """Return the version that a group may read."""
    return max(known_of(now, group).version, oldest(now))


def end_for(now: Versions, group: str, queue_id: int) -> int | None:
    """Return the offset at which a group's pulls of a queue are held; None: they are not held."""
    version, known = reading(now, group), now.groups.get(group)
    if known is not None and known.rests:
        return 0
    if version >= now.version:
        return None
    return next(one.ends.get(queue_id, 0) for one in now.past if one.version >= version)


def done_version(
    now: Versions, group: str, committed: Callable[[int], int], first: Callable[[int], int]
) -> int:
    """Return the newest version that this broker would let a group read.

    A group has finished a version when its committed offset of every queue is at the end, or when
    no message before the end is left.
    """
    version = reading(now, group)
    for past in now.past:
        if past.version >= version and _behind(past, committed, first):
            return past.version
    return now.version


def behind(
    now: Versions, group: str, committed: Callable[[int], int], first: Callable[[int], int]
) -> int:
    """Return how many messages of its present version a group has yet to finish."""
    version = reading(now, group)
    past = next((one for one in now.past if one.version >= version), None)
    return 0 if past is None else _behind(past, committed, first)


def _behind(past: PastVersion, committed: Callable[[int], int], first: Callable[[int], int]) -> int:
    return sum(
        max(0, end - max(committed(queue_id), first(queue_id)))
        for queue_id, end in past.ends.items()
    )


def release(
    now: Versions, group: str, version: int, *, done: int, rewind_number: int | None = None
) -> Versions:
    """Let a group read a version. A release never takes a group back.

    `done` is the newest version that the group could read here. `rewind_number` is the one on which
    the release is based; None: an operator forces the release, which also ends a pause.
    """
    before = known_of(now, group)
    if rewind_number is None and before.rests:
        before = replace(before, rests=False)
        now = replace(now, groups={**now.groups, group: before})
    elif rewind_number is not None and (before.rests or rewind_number < before.term):
        raise GroupNotDone(
            f"group {group} was rewound into version {reading(now, group)}, so it cannot read "
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
    known = replace(before, version=version, term=max(before.term, rewind_number or 0))
    return replace(now, groups={**now.groups, group: known})


def hold(now: Versions, group: str, *, member: bool) -> Versions:
    """Remember over restarts that a group is waited for; `member`: its pulls are held."""
    before = known_of(now, group)
    if group not in now.groups and len(now.groups) >= GROUPS_MAX:
        return now
    held = replace(before, member=before.member or member)
    return replace(now, groups={**now.groups, group: held})


def forget(now: Versions, groups: Iterable[str]) -> Versions:
    """Stop waiting for groups that were deleted."""
    gone = set(groups) & now.groups.keys()
    return replace(
        now,
        groups={name: one for name, one in now.groups.items() if name not in gone},
        term=max(now.term, *(now.groups[name].term for name in gone), 0),
    )


def next_map(now: Versions, group: str) -> tuple[int, str]:
    """Return the version after the one that a group reads, and its map."""
    version = reading(now, group)
    for past in now.past:
        if past.version > version:
            return past.version, past.map
    return now.version, now.map


def waiting(now: Versions) -> list[str]:
    """Return the groups that are paused or not yet released into the present version."""
    return sorted(
        group for group, known in now.groups.items()
        if known.rests or reading(now, group) < now.version
    )  # fmt: skip


def version_spans(now: Versions, queue_id: int) -> list[tuple[int, int]]:
    """Return (first offset, version) for each run of one version in a queue, in order."""
    found: list[tuple[int, int]] = []
    start = 0
    for version, ends in [(one.version, one.ends) for one in now.past] + [(now.version, {})]:
        if found and found[-1][0] == start:
            found.pop()  # no message was stored under that version
        found.append((start, version))
        start = max(start, ends.get(queue_id, start))
    return found


def trim(now: Versions, first: Callable[[int], int], name: str) -> Versions:
    """Drop the oldest past versions of which no message is left; `name` is this broker's.

    If the topic has other brokers, only the ends are dropped. Other brokers may still hold messages
    of such a version, and a group that has not handled those must not get newer messages here.
    """
    gone = 0
    for past in now.past:
        if any(end > first(queue_id) for queue_id, end in past.ends.items()):
            break
        gone += 1
    if brokers_of(now) <= {name}:
        return replace(now, past=now.past[gone:]) if gone else now
    if not any(past.ends for past in now.past[:gone]):
        return now
    bare = (PastVersion(one.version, one.map, {}) for one in now.past[:gone])
    return replace(now, past=(*bare, *now.past[gone:]))


def cut(now: Versions, last: Callable[[int], int]) -> Versions:
    """Lower recorded ends that lie beyond the end of the recovered log."""

    def shorter(ends: dict[int, int]) -> dict[int, int]:
        return {queue_id: min(end, last(queue_id)) for queue_id, end in ends.items()}

    return replace(
        now,
        ends=None if now.ends is None else shorter(now.ends),
        past=tuple(PastVersion(one.version, one.map, shorter(one.ends)) for one in now.past),
    )


def queues_left(now: Versions, first: Callable[[int], int], *, of: Iterable[str] | None) -> int:
    """Return how many queues, counted from 0, hold messages of past versions that groups must read.

    `of` names the groups; None: also groups that may come later.
    """
    version = oldest(now) if of is None else min((reading(now, one) for one in of), default=None)
    if version is None:
        return 0
    left = (
        queue_id + 1
        for past in now.past if past.version >= version
        for queue_id, end in past.ends.items() if end > first(queue_id)
    )  # fmt: skip
    return max(left, default=0)


# Rewinds.


class Standing(NamedTuple):
    """What one broker reports of a group."""

    rewind_number: int
    version: int
    """The version that the group reads, or will read when it resumes."""
    paused: bool
    quiet: bool


class Agreement(NamedTuple):
    """What to do about a paused group."""

    rewind_number: int
    version: int
    behind: tuple[str, ...]
    """The brokers that must still pause the group in this version."""
    over: bool
    """The group may resume at all brokers."""


class Eligibility(NamedTuple):
    """Whether a parked key may be redriven now, and whether its group waits for that."""

    eligible: bool
    """The group has reached this key's messages, so they may be redriven. There may be none yet."""
    blocked: bool
    """The group is not released before the key was redriven: newer messages would pass the parked
    ones."""


def version_touched(
    now: Versions,
    targets: Mapping[int, int],
    committed: Callable[[int], int],
    first: Callable[[int], int],
) -> int | None:
    """Return the oldest past version of which new offsets would replay or skip messages.

    Skipping counts too: it would let the next version begin while the last handler still runs.
    """
    for past in now.past:
        for queue_id, offset in targets.items():
            begin = first(queue_id)
            low, high = sorted((max(committed(queue_id), begin), max(offset, begin)))
            if low < min(high, past.ends.get(queue_id, 0)):
                return past.version
    return None


def rewind_number_of(now: Versions, group: str) -> int:
    """Return how often a group was rewound, as far as this broker knows."""
    return known_of(now, group).term


def next_rewind_number(now: Versions, group: str) -> int:
    """Return the number of a group's next rewind."""
    return rewind_number_of(now, group) + 1


def pause(now: Versions, group: str, version: int, rewind_number: int) -> Versions:
    """Pause a group until it resumes in a version. An older or repeated request changes nothing."""
    known, before = known_of(now, group), rewound_to(now, group)
    if rewind_number < known.term:
        return now
    if rewind_number == known.term and (not known.rests or version >= before):
        return now
    if group not in now.groups and len(now.groups) >= GROUPS_MAX:
        raise InvalidParameter(f"{GROUPS_MAX} groups of the topic are remembered; no more are")
    paused = Reading(min(version, before), known.member, rewind_number, rests=True)
    return replace(now, groups={**now.groups, group: paused})


def resume(now: Versions, group: str, rewind_number: int) -> Versions:
    """Let a paused group read again, unless it was rewound once more."""
    known = known_of(now, group)
    if not known.rests or known.term != rewind_number:
        return now
    return replace(now, groups={**now.groups, group: replace(known, rests=False)})


def is_paused(now: Versions, group: str) -> bool:
    """Return whether a group gets no messages because of a rewind."""
    return known_of(now, group).rests


def rewound_to(now: Versions, group: str) -> int:
    """Return the version that a group reads or, while it is paused, was rewound into.

    No message of that version need be left here.
    """
    known = known_of(now, group)
    return known.version if known.rests else reading(now, group)


def agree(standings: Mapping[str, Standing]) -> Agreement:
    """Decide what to do about a group that is paused at some broker, given all brokers' reports."""
    said = standings.values()
    number = max(one.rewind_number for one in said)
    version = min(one.version for one in said)
    resumed = any(one.rewind_number == number and not one.paused for one in said)
    if resumed and any(one.paused and one.rewind_number < number for one in said):
        # A broker that forgot earlier rewinds began to count anew: its rewind is the newest.
        return Agreement(number + 1, version, tuple(sorted(standings)), over=False)
    if resumed:  # the brokers had agreed, and one of them has not heard it yet
        return Agreement(number, version, (), over=True)
    behind = tuple(
        sorted(
            name for name, one in standings.items()
            if one.rewind_number < number or one.version > version
        )
    )  # fmt: skip
    over = not behind and all(one.quiet for one in said)
    return Agreement(number, version, behind, over)


def eligibility(now: Versions, group: str, queue: tuple[str, int], one: ParkedKey) -> Eligibility:
    """Decide whether a parked key of a queue may be redriven now.

    A rewound group may have reached some lists and messages of a key, all of them, or none. A key
    of which it has reached none is not redriven and does not move. The same holds for a key that
    belongs to another queue by the version that the group reads.
    """
    if is_paused(now, group):
        return Eligibility(False, False)
    held, version = end_for(now, group, queue[1]), reading(now, group)
    if held is None:
        return Eligibility(True, False)
    begun = any(by <= version for by in one.older.values()) or (
        bool(one.messages) and one.messages[0].origin < held
    )
    later = any(by > version for by in one.older.values()) or (
        bool(one.messages) and one.messages[-1].origin >= held
    )
    if later and not begun:
        return Eligibility(False, False)
    if not one.sharding_key:
        return Eligibility(True, False)  # no map placed it
    past = next(past for past in now.past if past.version >= version)
    if decode_map(past.map).queue(one.sharding_key) != queue:
        return Eligibility(False, False)
    next_version, text = next_map(now, group)
    to = decode_map(text).queue(one.sharding_key)
    elsewhere = one.moved_to is not None and (
        one.moved_to != to or one.moved_by not in (0, next_version)  # 0: an old record
    )
    return Eligibility(True, begun and to != queue and (later or elsewhere))


@lru_cache(maxsize=256)
def decode_map(text: str) -> KeyMap:
    """Decode the text of a key map; the last ones are cached."""
    return KeyMap.decode(text)


# All topics.


class _File(msgspec.Struct):
    topics: dict[str, Versions] = {}
    gone: dict[str, int] = {}
    floor: int = 0


class Resizes:
    """The versions of all topics that were resized, and the last versions of deleted topics."""

    def __init__(self) -> None:
        self.topics: dict[str, Versions] = {}
        self._gone: dict[str, int] = {}
        self._floor = 0

    def __repr__(self) -> str:
        return f"Resizes({len(self.topics)} topics, {len(self._gone)} deleted)"

    def of(self, topic: str, version: int, text: str) -> Versions:
        """Return the versions of a topic; `version` and `text` come from its attribute."""
        found = self.topics.get(topic)
        if found is None or found.version < version:
            return Versions(version, text)
        return found

    def last(self, topic: str) -> int:
        """Return the highest version that a deleted topic of this name had."""
        return self._gone.get(topic, self._floor)

    def delete(self, topic: str, version: int) -> None:
        """Forget a topic, but remember its last version: a new topic of this name begins above it.

        Above `GONE_MAX` names the oldest are dropped, and every new topic then begins above their
        versions.
        """
        self.topics.pop(topic, None)
        if version > self.last(topic):
            self._gone.pop(topic, None)
            self._gone[topic] = version
        while len(self._gone) > GONE_MAX:
            self._floor = max(self._floor, self._gone.pop(next(iter(self._gone))))

    def encode(self) -> bytes:
        """Return the content of the file."""
        return msgspec.json.encode(_File(self.topics, self._gone, self._floor))

    def encode_with(self, topic: str, versions: Versions) -> bytes:
        """Return the content of the file after a change of one topic."""
        topics = {**self.topics, topic: versions}
        return msgspec.json.encode(_File(topics, self._gone, self._floor))

    def decode(self, data: bytes) -> None:
        """Load the content of the file. Raises RemoteProtocolError if it is malformed."""
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not the versions of topics: {error}") from None
        self.topics, self._gone, self._floor = found.topics, found.gone, found.floor
