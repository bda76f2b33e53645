"""Releases groups into the next version of a topic's map, and rewinds groups into past versions.

**Release.** A broker holds a group at the ends of a version until the group has finished that
version on all brokers of the topic. `Releasing` watches the offsets of the groups that wait here.
When a group is done at this broker, it does the following:

1. It installs the group's parked keys in the queues where the next map places them, so that newer
   messages of a parked key join it there. Until then it reports the group as not done.
2. It asks the other brokers. If the group is done everywhere, it tells each of them to release the
   group, and releases the group itself.

Every step may be repeated, and each broker checks for itself. Clients only have to commit.

**Rewind.** `Rewinding` takes a group back into a past version. The pause of the group is on disk
before its offsets are set. Then its leases on the topic are revoked: owners finish what they handle
and commit it, and an expired lease cannot continue. The group is quiet at this broker when every
lease is released or expired. `Releasing` brings all brokers to the same state, and the group
resumes when it is paused and quiet at all of them.

The rules are in `rules.py`. Why: decisions 13 and 14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from inorder.broker.cluster import Peers
from inorder.broker.leases.rules import NOBODY
from inorder.broker.resizing import rules
from inorder.broker.resizing.rules import Standing
from inorder.errors import InorderError, InvalidParameter
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.parking import (
    MOVES_MAX,
    MoveBody,
    ParkedKeys,
    ParkMove,
    QueuePlace,
)
from inorder.wire.requests.resizing import (
    GroupProgress,
    ResizeRelease,
    ResizeRewind,
    ResizeStatus,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.resizing.rules import Versions
    from inorder.broker.resizing.service import Resizing


log = get_logger(__name__)

CHECK_MS: Final = 50
"""How often waiting groups are checked while offsets or versions change."""
IDLE_CHECK_MS: Final = 500
"""How often they are checked otherwise, and how soon other brokers are asked again."""
TRACK_MS: Final = 10_000
"""How long a group counts as existing after another broker asked about it."""
TRACKED_MAX: Final = 1000
"""How many groups are tracked because another broker asked about them."""
TELL_MS: Final = 1000
"""How long the reply to a reset waits for the other brokers."""
BUSY_MS: Final = 5000
"""How long after a change the groups are checked at the short interval."""


class Releasing:
    """Watches the groups that wait for a version, and releases or resumes them."""

    def __init__(self, broker: Broker, resizing: Resizing) -> None:
        self._broker = broker
        self._resizing = resizing
        self._peers = Peers(broker)
        self._task: asyncio.Task[None] | None = None
        self._noted: dict[tuple[str, str], bool] = {}
        self._moved: dict[tuple[str, str], int] = {}  # version for which parked keys are in place
        self._forgotten = 0
        self._seen = (-1, -1)
        self._changed_ms = 0
        self._asked_ms = 0
        self._stopped = False
        self._troubled: set[tuple[str, str]] = set()
        self._tracked: dict[tuple[str, str], int] = {}  # when another broker asked

    def __repr__(self) -> str:
        return f"Releasing({sorted(self.waiting())})"

    def cancel(self) -> None:
        """Stop watching."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._peers.close()

    def note(self, topic: str, group: str, *, member: bool = True) -> None:
        """Save soon that a group is held: after a restart its pulls may precede its heartbeat."""
        self._noted[topic, group] = member or self._noted.get((topic, group), False)
        self.watch()

    def track(self, topic: str, group: str) -> None:
        """Track a group that another broker asks about, although the group never came here."""
        now, now_ms = self._resizing.topics.get(topic), self._broker.clock.monotonic_ms()
        tracked = self._tracked
        if (topic, group) not in tracked and len(tracked) >= TRACKED_MAX:
            tracked = {one: at_ms for one, at_ms in tracked.items() if now_ms - at_ms < TRACK_MS}
            self._tracked = tracked
            if len(tracked) >= TRACKED_MAX:
                return
        if now is not None and now.past:
            tracked[topic, group] = now_ms
            if group not in now.groups:
                self.note(topic, group, member=False)

    def watch(self) -> None:
        """Start the task that watches groups, if some wait."""
        if self._task is None and not self._stopped and (self._noted or any(self.waiting())):
            loop = asyncio.get_running_loop()
            self._changed_ms = self._broker.clock.monotonic_ms()
            self._task = loop.create_task(self._run(), name="releasing")

    def waiting(self) -> Iterator[tuple[str, str]]:
        """Yield the topics and groups that wait for a version."""
        for topic, now in list(self._resizing.topics.items()):
            if topic in self._broker.topics:
                for group in rules.waiting(now):
                    yield topic, group

    def ready(self, topic: str, now: Versions, group: str) -> int:
        """Return the version into which this broker would release a group.

        It is at most one version ahead: the versions between may hold messages of parked keys.
        """
        version = rules.next_map(now, group)[0]
        moved = self._moved.get((topic, group), 0)
        if rules.is_paused(now, group):
            return rules.reading(now, group)
        if moved >= version and self._resizing.done(topic, now, group) >= version:
            return version
        return rules.reading(now, group)

    def forget_moves(self, topic: str, group: str) -> None:
        """Move the parked keys of a group again, because the group was rewound or deleted."""
        self._forgotten += 1
        self._moved.pop((topic, group), None)
        self.watch()

    async def _move_parked(self, topic: str, now: Versions, group: str) -> bool:
        """Install a group's parked keys where the next map places them; False: some must wait."""
        version, text = rules.next_map(now, group)
        if self._moved.get((topic, group), 0) >= version:
            return True
        forgotten = self._forgotten
        parking, mine = self._broker.parking, self._broker.config.name

        async def left_at(place: QueuePlace) -> frozenset[str]:
            request = ParkedKeys(group, topic, place.queue_id)
            found = await self._peers.ask(topic, place.broker, request)
            return frozenset(one.key for one in found.keys if one.moved and one.moved_by <= version)

        leaving = await parking.moves.leave(group, topic, KeyMap.decode(text), left_at)
        busy = leaving.busy
        if leaving.coming:  # must be durable before the release that relies on it
            await self._broker.housekeeping.flush_now()
        for name, moves in leaving.coming.items():
            if name == mine:
                busy += await parking.moves.come(group, topic, moves)
                await self._broker.housekeeping.flush_now()
                continue
            for start in range(0, len(moves), MOVES_MAX):
                body = MoveBody(moves[start : start + MOVES_MAX])
                request = ParkMove(group, topic)
                busy += (await self._peers.ask(topic, name, request, body.encode())).busy
        if forgotten != self._forgotten:
            return False  # rewound meanwhile: what was parked since has not moved
        if not busy:
            self._moved[topic, group] = version
        return not busy

    async def _run(self) -> None:
        clock = self._broker.clock
        try:
            while self._noted or any(self.waiting()):
                busy = clock.monotonic_ms() - self._changed_ms < BUSY_MS
                await asyncio.sleep((CHECK_MS if busy else IDLE_CHECK_MS) / 1000)
                await self._check()
        finally:
            self._task = None

    async def _check(self) -> None:
        """Save noted groups, then check every group that waits."""
        noted, self._noted = self._noted, {}
        for (topic, group), member in noted.items():
            await self._try(topic, group, self._resizing.hold(topic, group, member=member))
        now_ms = self._broker.clock.monotonic_ms()
        seen = (self._broker.offsets.revision, self._resizing.changes)
        if seen != self._seen:
            self._changed_ms = now_ms
        elif now_ms - self._asked_ms < IDLE_CHECK_MS:
            return
        self._seen, self._asked_ms = seen, now_ms
        for topic, group in list(self.waiting()):
            await self._try(topic, group, self._check_group(topic, group))

    async def _try(self, topic: str, group: str, work: Coroutine[Any, Any, None]) -> None:
        """Keep the failure of one group from the others, and log it once."""
        try:
            await work
            self._troubled.discard((topic, group))
        except (InorderError, OSError) as error:
            if (topic, group) not in self._troubled:
                self._troubled.add((topic, group))
                log.warning("topic=%s group=%s waits for the next version: %s", topic, group, error)

    async def _check_group(self, topic: str, group: str) -> None:
        await self._resizing.publish(topic)  # the group may need queues that are closed
        now = self._resizing.versions(topic)
        if self._is_deleted(group, topic):
            await self._resizing.forget_group(topic, group)
            return
        if rules.is_paused(now, group):
            await self._agree(topic, now, group)
            return
        done = self._resizing.done(topic, now, group) > rules.reading(now, group)
        if done and await self._move_parked(topic, now, group):
            await self._release(topic, now, group)

    def _is_deleted(self, group: str, topic: str) -> bool:
        broker = self._broker
        asked_ms = self._tracked.get((topic, group), -TRACK_MS)
        if broker.clock.monotonic_ms() - asked_ms < TRACK_MS:
            return False  # another broker knows the group
        self._tracked.pop((topic, group), None)
        return group not in broker.groups and not broker.offsets.queues(group, topic)

    async def _release(self, topic: str, now: Versions, group: str) -> None:
        version = rules.next_map(now, group)[0]
        # Otherwise a power cut could take back commits that the release relies on.
        await self._broker.offset_snapshot.saved()
        others = [name for name in rules.counts_of(now.map) if name != self._broker.config.name]
        began = number = rules.rewind_number_of(now, group)
        for name in others:
            there = await self._progress(topic, group, name)
            if there is None or there.done < version:
                return
            number = max(number, there.term)
        if rules.rewind_number_of(self._resizing.versions(topic), group) != began:
            return  # rewound meanwhile: the group was done here before that, elsewhere since
        request = ResizeRelease(topic, group, version, term=number)
        for name in others:
            await self._peers.ask(topic, name, request)
        await self._resizing.release(topic, group, version, force=False, rewind_number=number)

    async def _progress(self, topic: str, group: str, name: str) -> GroupProgress | None:
        """Ask another broker how far a group has come."""
        view = await self._peers.ask(topic, name, ResizeStatus(topic, group))
        return next((one for one in view.groups if one.group == group), None)

    # -- rewound groups -------------------------------------------------------------------------

    async def tell(self, topic: str, group: str) -> None:
        """Pause a group at the other brokers, as far as they can be reached.

        It runs before a reset is answered. Otherwise a consumer could get newer messages from a
        broker that does not know of the reset.
        """
        now, mine = self._resizing.versions(topic), self._broker.config.name
        if not rules.is_paused(now, group):
            return
        number, version = rules.rewind_number_of(now, group), rules.rewound_to(now, group)
        request = ResizeRewind(topic, group, version, number)

        async def tell(name: str) -> None:
            with suppress(InorderError, OSError):  # includes TimeoutError; `_agree` retries
                async with asyncio.timeout(TELL_MS / 1000):
                    await self._peers.ask(topic, name, request)

        await asyncio.gather(*(tell(name) for name in rules.brokers_of(now) - {mine}))

    async def _agree(self, topic: str, now: Versions, group: str) -> None:
        """Pause a group at all brokers; resume it when no consumer handles earlier deliveries."""
        mine, rewinding = self._broker.config.name, self._resizing.rewinding
        rewinding.revoke_leases(topic, group)  # needed after a start or a full disk
        standings: dict[str, Standing] = {}
        for name in rules.brokers_of(now) - {mine}:
            there = await self._progress(topic, group, name)
            if there is None:
                return
            standings[name] = Standing(there.term, there.back, there.rests, there.quiet)
        standings[mine] = rewinding.standing(topic, self._resizing.versions(topic), group)
        todo = rules.agree(standings)
        names = set(standings) if todo.over else set(todo.behind)
        request = ResizeRewind(topic, group, todo.version, todo.rewind_number, todo.over)
        for name in names - {mine}:
            await self._peers.ask(topic, name, request)
        if mine in names and todo.over:
            await rewinding.resume(topic, group, todo.rewind_number)
        elif mine in names:
            await rewinding.pause(topic, group, todo.version, todo.rewind_number)


class Rewinding:
    """Rewinds the groups of this broker."""

    def __init__(self, broker: Broker, resizing: Resizing) -> None:
        self._broker = broker
        self._resizing = resizing
        self._revoked: dict[tuple[str, str], int] = {}  # rewind number of the last revocation

    def __repr__(self) -> str:
        return f"Rewinding({sorted(self._revoked)})"

    def version_touched(self, topic: str, group: str, targets: Mapping[int, int]) -> int | None:
        """Return the oldest past version of which new offsets would replay or skip messages."""
        now = self._resizing.topics.get(topic)
        if now is None or not now.past:
            return None
        return rules.version_touched(now, targets, *self._resizing.progress_of(topic, group))

    async def pause(
        self, topic: str, group: str, version: int, rewind_number: int | None = None
    ) -> None:
        """Pause a group, which is rewound into a version.

        Without a number, this broker begins a new rewind. Nothing else runs between the end of this
        method and the next step of its caller.
        """

        def rule(now: Versions) -> Versions:
            check_mapped(topic, now)
            return rules.pause(
                now, group, version, rewind_number or rules.next_rewind_number(now, group)
            )

        await self._resizing.change(topic, rule)
        self.revoke_leases(topic, group)
        self._resizing.releasing.forget_moves(topic, group)

    async def tell(self, topic: str, group: str) -> None:
        """Tell the other brokers of a pause, as far as they can be reached."""
        await self._resizing.releasing.tell(topic, group)

    def is_paused(self, topic: str, group: str) -> bool:
        """Return whether a group is paused."""
        now = self._resizing.topics.get(topic)
        return now is not None and rules.is_paused(now, group)

    async def resume(self, topic: str, group: str, rewind_number: int) -> None:
        """Resume a group that is paused at all brokers and handled nowhere."""
        new = await self._resizing.change(
            topic, lambda now: rules.resume(now, group, rewind_number)
        )
        if new is not None:
            version = rules.rewound_to(new, group)
            log.info("topic=%s group=%s reads version=%d once more", topic, group, version)
            self.wake(topic, group)

    def standing(self, topic: str, now: Versions, group: str) -> Standing:
        """Return what the other brokers need to know of a group."""
        number, paused = rules.rewind_number_of(now, group), rules.is_paused(now, group)
        quiet = not paused or (
            self._revoked.get((topic, group)) == number and not self._is_owned(topic, group)
        )
        return Standing(number, rules.rewound_to(now, group), paused, quiet)

    def _is_owned(self, topic: str, group: str) -> bool:
        """Return whether a consumer may still handle earlier deliveries."""
        leases = self._broker.leases
        if self._broker.clock.monotonic_ms() < leases.closed_until_ms:
            return True  # leases from before the start are not known
        return any(
            key.topic == topic and (one.is_revoked or one.owner == NOBODY)
            for key, one in leases.held(group).items()
        )

    def revoke_leases(self, topic: str, group: str) -> None:
        """Revoke the leases of a paused group, once per rewind."""
        now = self._resizing.topics.get(topic)
        known = None if now is None else now.groups.get(group)
        if known is None or not known.rests or self._revoked.get((topic, group)) == known.term:
            return
        revoked = [
            queue.queue_id for queue in self._broker.store.queues_of(topic)
            if self._broker.lease_service.revoke(GroupQueue(group, topic, queue.queue_id))
        ]  # fmt: skip
        self._revoked[topic, group] = known.term
        log.warning(
            "topic=%s group=%s was rewound into version=%d: it is paused until all brokers know "
            "and its handlers have ended (queues=%s; `inorder locks` shows the owners)",
            topic, group, known.version, revoked,
        )  # fmt: skip

    async def group_deleted(self, group: str) -> None:
        """Forget the progress of a group that was deleted with its offsets."""
        for topic, now in list(self._resizing.topics.items()):
            if group in now.groups and topic in self._broker.topics:
                await self._resizing.forget_group(topic, group)

    def forget(self, topic: str, group: str = "") -> None:
        """Forget a group, or ("") all groups of a topic."""
        for one in [one for one in self._revoked if one[0] == topic and group in ("", one[1])]:
            del self._revoked[one]

    def wake(self, topic: str, group: str) -> None:
        """Wake the pulls and the parked keys of a group that reads again."""
        self._revoked.pop((topic, group), None)
        for place, parked in self._broker.parking.table.places.items():
            if (place.group, place.topic) == (group, topic):
                parked.touch()
        for queue in self._broker.store.queues_of(topic):
            self._broker.wake(topic, queue.queue_id)


def check_mapped(topic: str, now: Versions) -> None:
    """Refuse requests about versions for a topic without a key map."""
    if not now.version:
        raise InvalidParameter(
            f"topic[{topic}] has no key map; `inorder topic create` gives it one"
        )
