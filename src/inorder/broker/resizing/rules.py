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

The versions of a topic that are past: what queues hold of them, and when they are forgotten.

The versions of all topics at one broker (`broker/resizing/rules.py` has the rules of one), and
their file.

A topic of which nothing is written has what its attribute says. Of deleted ones the last version is
remembered: a new topic of the name begins above it.

A group that is set back into a version that is past: first it rests, at all brokers.

    reset at one broker ──> it rests there, the offsets are set ──> it rests at all brokers, its
    queues are asked back ──> nobody handles what was given before ──> it reads on

A key of the replay may lie in another queue by a newer version of the map, at another broker, and
be handled there just now. So a group that rests gets nothing, nowhere, until every broker of the
topic has it rest in the same version and its queues were given back. Every broker where it rests
asks the others and tells them (`agree`); all of it may be repeated, and is on disk before it
counts.

The term says how often a group was set back. Whoever wants to let it go on names the term by which
it found it done: a broker that knows a newer one refuses.
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


class PastVersion(msgspec.Struct, frozen=True):
    """A version that is past, and where it ended in each queue of this broker."""

    version: int
    map: str
    ends: dict[int, int]


class Reading(msgspec.Struct, frozen=True):
    """The version that a group may read; `member` if its pulls are held."""

    version: int
    member: bool = False
    term: int = 0
    """How often it was set back into a version that is past (`broker/resizing/rules.py`)."""
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
    past: tuple[PastVersion, ...] = ()
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
    for past in now.past:
        if past.version >= version and _behind(past, committed, first):
            return past.version
    return now.version


def behind(
    now: Versions, group: str, committed: Callable[[int], int], first: Callable[[int], int]
) -> int:
    """Return how many messages of the chapter that it reads a group has yet to finish."""
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
    """Let a group read a version; `done` is what it could read here. Never goes back.

    By the `term` it was found done everywhere. None: an operator insists, it rests no more.
    """
    before = known_of(now, group)
    if rewind_number is None and before.rests:
        before = replace(before, rests=False)
        now = replace(now, groups={**now.groups, group: before})
    elif rewind_number is not None and (before.rests or rewind_number < before.term):
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
    known = replace(before, version=version, term=max(before.term, rewind_number or 0))
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
    for past in now.past:
        if past.version > version:
            return past.version, past.map
    return now.version, now.map


def waiting(now: Versions) -> list[str]:
    """Return the groups that have not been released into the present version, or rest."""
    return sorted(
        group for group, known in now.groups.items()
        if known.rests or reading(now, group) < now.version
    )  # fmt: skip


def version_spans(now: Versions, queue_id: int) -> list[tuple[int, int]]:
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
    """Bring noted ends back to what was recovered of the log."""

    def shorter(ends: dict[int, int]) -> dict[int, int]:
        return {queue_id: min(end, last(queue_id)) for queue_id, end in ends.items()}

    return replace(
        now,
        ends=None if now.ends is None else shorter(now.ends),
        past=tuple(PastVersion(one.version, one.map, shorter(one.ends)) for one in now.past),
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
        for past in now.past if past.version >= version
        for queue_id, end in past.ends.items() if end > first(queue_id)
    )  # fmt: skip
    return max(left, default=0)


GONE_MAX: Final = 100_000
"""Deleted names whose last version is remembered one by one."""


class _File(msgspec.Struct):
    topics: dict[str, Versions] = {}
    gone: dict[str, int] = {}
    floor: int = 0


class Resizes:
    """The topics of which more is known than the map in their attribute."""

    def __init__(self) -> None:
        self.topics: dict[str, Versions] = {}
        self._gone: dict[str, int] = {}
        self._floor = 0

    def __repr__(self) -> str:
        return f"Resizes({len(self.topics)} topics, {len(self._gone)} deleted)"

    def of(self, topic: str, version: int, text: str) -> Versions:
        """Return a topic's versions; `version` and `text` are those of its attribute."""
        found = self.topics.get(topic)
        if found is None or found.version < version:
            return Versions(version, text)
        return found

    def last(self, topic: str) -> int:
        """Return the highest version that a deleted topic of this name had."""
        return self._gone.get(topic, self._floor)

    def delete(self, topic: str, version: int) -> None:
        """Forget a topic, but not its last version: a new topic of this name begins above it.

        Of too many names the oldest are forgotten, and every new name then begins above theirs.
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
        """Return the content of the file as it will be."""
        topics = {**self.topics, topic: versions}
        return msgspec.json.encode(_File(topics, self._gone, self._floor))

    def decode(self, data: bytes) -> None:
        """Take over the content of the file; RemoteProtocolError if it is not that."""
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise RemoteProtocolError(f"not the versions of topics: {error}") from None
        self.topics, self._gone, self._floor = found.topics, found.gone, found.floor


TERM_MAX: Final = 1 << 53


class Standing(NamedTuple):
    """What one broker says of a group."""

    rewind_number: int
    version: int
    """The one that it may read, or, while it rests, will."""
    paused: bool
    quiet: bool


class Agreement(NamedTuple):
    """What is to be done."""

    rewind_number: int
    version: int
    behind: tuple[str, ...]
    """The brokers that have to be told to let it rest in that version."""
    over: bool
    """It may read on, everywhere."""


class Eligibility(NamedTuple):
    """How far a group has come with a parked key."""

    eligible: bool
    """What it has come to of it may be handled, if there is any yet."""
    blocked: bool
    """It does not go on before that was done: newer messages of the key would pass those."""


def version_touched(
    now: Versions,
    targets: Mapping[int, int],
    committed: Callable[[int], int],
    first: Callable[[int], int],
) -> int | None:
    """Return the oldest version that is past of which new offsets bring back or skip something.

    Who skips the rest of a version lets the next one begin, while the last handler still runs.
    """
    for past in now.past:
        for queue_id, offset in targets.items():
            begin = first(queue_id)
            low, high = sorted((max(committed(queue_id), begin), max(offset, begin)))
            if low < min(high, past.ends.get(queue_id, 0)):
                return past.version
    return None


def rewind_number_of(now: Versions, group: str) -> int:
    """Return how often a group was set back, as far as is known."""
    return known_of(now, group).term


def next_rewind_number(now: Versions, group: str) -> int:
    """Return the term of a group that is set back."""
    return rewind_number_of(now, group) + 1


def pause(now: Versions, group: str, version: int, rewind_number: int) -> Versions:
    """Let a group rest, and read a version afterwards; what is older, or known, changes nothing."""
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
    """Let a group read again that rested, if it was not set back once more."""
    known = known_of(now, group)
    if not known.rests or known.term != rewind_number:
        return now
    return replace(now, groups={**now.groups, group: replace(known, rests=False)})


def is_paused(now: Versions, group: str) -> bool:
    """Tell whether a group gets nothing."""
    return known_of(now, group).rests


def rewound_to(now: Versions, group: str) -> int:
    """Return the version that a group reads, or was set back into while it rests.

    That may be one of which nothing is left here.
    """
    known = known_of(now, group)
    return known.version if known.rests else reading(now, group)


def agree(standings: Mapping[str, Standing]) -> Agreement:
    """Return what to do about a group that rests at some broker, given what all say."""
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
    """Tell how far a group has come with a parked key of a queue.

    A group that was set back may have reached some of a key's lists and messages and not others, or
    none: then it is not handled, and stays where it is. The same if the key belongs elsewhere.
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
        return Eligibility(True, False)  # it was not put there by a map
    past = next(past for past in now.past if past.version >= version)
    if decode_map(past.map).queue(one.sharding_key) != queue:
        return Eligibility(False, False)
    next_version, text = next_map(now, group)
    to = decode_map(text).queue(one.sharding_key)
    elsewhere = one.moved_to is not None and (
        one.moved_to != to or one.moved_by not in (0, next_version)  # 0: nobody noted it
    )
    return Eligibility(True, begun and to != queue and (later or elsewhere))


@lru_cache(maxsize=256)
def decode_map(text: str) -> KeyMap:
    """Decode the text of a key map; the last ones are cached."""
    return KeyMap.decode(text)
