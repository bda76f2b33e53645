"""Resizing a topic at one broker: each step is decided by `rules.py`, saved, and then takes effect.

- stop: sends are refused at once. When the log is durable up to the queue ends of that moment,
  the ends are saved; the reply follows the save.
- go: the plan is final on disk before any broker opens the next version.
- open: the new map is saved before its first send is accepted; `topics.json` follows. Queues that
  the map no longer has stay readable until no group needs them. They open again for a group that
  comes later.
- release: a group reads on when that is saved; `release.py` decides when to ask for it.
- pause: a rewound group gets nothing once that is saved (`release.py`).

The state is in `inorder/resizing.json`. It takes precedence over the attribute in `topics.json`: a
start repairs the attribute if a crash came between the two files.

`Placement` gives the key map that a send must name (`rules.SendMap` judges it), and the queue where
a delayed message belongs when it is due. `Sends` caches what a send must name. Why: decisions 13
and 43.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from inorder.broker.resizing import rules
from inorder.broker.resizing.release import Releasing, Rewinding, check_mapped
from inorder.broker.resizing.rules import Resizes, SendMap, Versions
from inorder.errors import (
    InvalidParameter,
    KeyMapChanged,
    NoPermission,
    ServiceNotAvailable,
    TopicNotFound,
)
from inorder.logs import get_logger
from inorder.model import TopicConfig
from inorder.ordering import keymap
from inorder.store.snapshot import Snapshot
from inorder.wire.extensions import PROTOCOL
from inorder.wire.properties import get
from inorder.wire.requests.resizing import GroupProgress, Plan, ResizeView

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

log = get_logger(__name__)


Offsets = Callable[[int], int]
"""Maps the number of a queue to an offset."""

SETTLE_MS_MAX: Final = 10_000
PLAN_ID_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True, repr=False)
class Placement:
    """Gives the key map that a send must name, and the queue that a delayed message belongs to."""

    _broker: Broker
    _resizing: Resizing

    def send_map(self, topic: str) -> SendMap:
        """Return the map by which sends to a topic are judged now."""
        config = self._broker.topics.get(topic)
        if config is None:
            return SendMap("", stopped=False)
        return SendMap(map_text(config), stopped=self._resizing.closing(topic) is not None)

    def check_queue(self, topic: str, queue_id: int, *, inorder_client: bool) -> None:
        """Refuse a send to a queue that a resize removes, or to a topic without its first map.

        The error for an inorder client carries the map.
        """
        if self._resizing.is_making(topic):
            remark = f"topic[{topic}] is being made: not all of its brokers have its key map yet"
        elif self._is_removed(topic, queue_id):
            remark = (
                f"queue {queue_id} of topic[{topic}] is closed for writing, a resize takes it away"
            )
        else:
            return
        if not inorder_client:
            raise NoPermission(remark)
        text = map_text(self._broker.topics.get(topic) or TopicConfig(topic))
        raise KeyMapChanged(remark, version=keymap.version_of(text), map=text)

    def takes(self, topic: str, queue_id: int) -> bool:
        """Return whether `check_queue` lets a send pass."""
        return not (self._resizing.is_making(topic) or self._is_removed(topic, queue_id))

    def _is_removed(self, topic: str, queue_id: int) -> bool:
        plan = self._resizing.closing(topic)
        if plan is not None:
            return queue_id >= rules.counts_of(plan.map).get(self._broker.config.name, 0)
        config = self._broker.topics.get(topic)
        return config is not None and bool(map_text(config)) and queue_id >= config.write_queues

    def home(self, topic: str, queue_id: int, properties: bytes) -> tuple[str, int]:
        """Return the broker and queue to which a delayed message belongs when it is due."""
        name = self._broker.config.name
        plan = self._resizing.closing(topic)
        if topic not in self._broker.topics or (
            plan is None and topic not in self._resizing.topics
        ):
            return name, queue_id
        found = get(properties, b"__SHARDINGKEY")
        key = None if found is None else found.decode("utf-8", "replace")
        return rules.home(self._resizing.versions(topic), plan, (name, queue_id), key)


def map_text(config: TopicConfig) -> str:
    """Return the key map of a topic as text, empty if it has none."""
    return config.attributes.get(keymap.ATTRIBUTE, "")


class Resizing:
    """The versions of this broker's topics, and the steps of a resize."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = Resizes()
        path = broker.config.data_path / "inorder" / "resizing.json"
        self._file = Snapshot(broker.files, path, broker.safety)
        self._mending: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._stopping: dict[str, Plan] = {}
        self._fresh: dict[
            str, int
        ] = {}  # created topics that are not saved yet -> their permission
        self.placement = Placement(broker, self)
        self.rewinding = Rewinding(broker, self)
        self.releasing = Releasing(broker, self)
        self.changes = 0

    def __repr__(self) -> str:
        return f"Resizing({self._table!r}, stopping {sorted(self._stopping)})"

    # -- start -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Load the file."""
        self._file.load(self._table.decode)

    def settle(self) -> None:
        """Reconcile the file with the recovered log, and the topics with the file."""
        changed = False
        for topic, found in list(self._table.topics.items()):
            cut = rules.cut(found, self.end_offsets(topic))
            kept = rules.trim(cut, self.first_offsets(topic), self._broker.config.name)
            if kept != found:
                log.warning("recorded ends were lowered or dropped topic=%s", topic)
                self._table.topics[topic] = kept
                changed = True
            config = self._broker.topics.get(topic)
            if config is None:  # the broker was killed while the topic was deleted
                self._table.delete(topic, found.version)
                changed = True
            if config is None or keymap.version_of(map_text(config)) > found.version:
                continue
            mended = self._with_map(config, found)
            if mended != config:
                self._broker.topics.put(mended, self._broker.clock.now_ms())
        if changed:
            self._file.save(self._table.encode())

    def closing(self, topic: str) -> Plan | None:
        """Return the plan for which a topic is stopped; None if its version is open."""
        plan = self._stopping.get(topic)
        known = self._table.topics.get(topic)
        if plan is None and known is not None and known.stopped:
            plan = known.plan
        return plan

    @property
    def topics(self) -> dict[str, Versions]:
        """Return the topics that were resized or have a plan."""
        return self._table.topics

    # -- queries ---------------------------------------------------------------------------------

    def versions(self, topic: str) -> Versions:
        """Return the versions of a topic. Raises TopicNotFound."""
        config = self._broker.topics.get(topic)
        if config is None:
            raise TopicNotFound(f"topic[{topic}] not exist")
        text = map_text(config)
        return self._table.of(topic, keymap.version_of(text), text)

    def version_spans(self, topic: str, queue_id: int) -> list[tuple[int, int]]:
        """Return from which offset on a queue holds messages of which map version."""
        now = self.versions(topic) if topic in self._broker.topics else Versions()
        return rules.version_spans(now, queue_id)

    def last_version(self, topic: str) -> int:
        """Return the highest version that the topic name ever had here."""
        known = self._table.topics.get(topic)
        version = 0 if topic not in self._broker.topics else self.versions(topic).version
        return max(version, self._table.last(topic), 0 if known is None else known.version)

    def first_offsets(self, topic: str) -> Offsets:
        """Return the function that tells where each queue of a topic begins."""
        return partial(self._broker.store.min_offset, topic)

    def end_offsets(self, topic: str) -> Offsets:
        """Return the function that tells where each queue of a topic ends for readers."""
        return partial(self._broker.store.end_offset, topic)

    def progress_of(self, topic: str, group: str) -> tuple[Offsets, Offsets]:
        """Return the functions for a group's committed offsets (-1: none) and first offsets."""
        offsets = self._broker.offsets
        return lambda queue_id: offsets.query(group, topic, queue_id), self.first_offsets(topic)

    def track(self, topic: str, group: str) -> None:
        """Track a group that another broker asks about, although the group never came here."""
        self.releasing.track(topic, group)

    def is_resized(self, topic: str) -> bool:
        """Return whether a topic has past versions, or groups that wait for the present one."""
        known = self._table.topics.get(topic)
        return known is not None and bool(known.past or rules.waiting(known))

    def held_at(self, topic: str, group: str, queue_id: int, *, leased: bool) -> int | None:
        """Return the offset at which a group's pulls of a queue are held; None: they are not held.

        Only members of groups are held. A reader that is not a member sees all messages.
        """
        now = self._table.topics.get(topic)
        end = None if now is None else rules.end_for(now, group, queue_id)
        if now is None or end is None:
            return None
        known = now.groups.get(group)
        if known is None or not known.member:
            if not leased and not self._is_member(group, topic):
                return None
            self.releasing.note(topic, group)
        self.releasing.watch()
        return end

    def _is_member(self, group: str, topic: str) -> bool:
        found = self._broker.members.group(group)
        return found is not None and topic in found.subscriptions and not found.broadcasting

    # -- the steps of a resize -------------------------------------------------------------------

    async def decide(self, topic: str, plan: Plan) -> ResizeView:
        """Decide a plan, as the topic's first broker."""
        async with self._changing:
            now = self._planned(topic, plan.id)
            check_mapped(topic, now)
            self._check_first(topic, now, plan.without)
            await self._keep(topic, now, rules.decide(now, plan))
        return self.view(topic)

    async def stop(self, topic: str, plan: Plan, making: TopicConfig | None = None) -> ResizeView:
        """Stop the present version and record where it ends.

        `making` is the topic to create for its first map, if it does not exist.
        """
        async with self._changing:
            missing = making is not None and topic not in self._broker.topics
            now = Versions() if missing else self._planned(topic, plan.id)
            last = self.last_version(topic)
            if now.opened != plan.id and not now.stopped:
                rules.check_next(now, plan, last=last)
                await self._stop(topic, now, plan, making)
            else:
                rules.note(now, plan, {}, {}, last=last)  # refuses another plan and changes nothing
        return self.view(topic)

    async def _stop(
        self, topic: str, now: Versions, plan: Plan, making: TopicConfig | None = None
    ) -> None:
        self._stopping[topic] = plan
        if making is not None and not now.version and self.is_bare(topic):
            self._make(making, plan)
        self._forget_targets()
        try:
            ends = await self._ends(topic)
        except BaseException:
            del self._stopping[topic]
            self._forget_targets()
            raise
        # From here on the ends may be on disk, whatever fails: the version stays stopped.
        noted = rules.note(
            now, plan, ends, self._groups(topic), last=self.last_version(topic),
            made=self._fresh.get(topic, 0),
        )  # fmt: skip
        await self._keep(topic, now, noted)
        self._fresh.pop(topic, None)
        self._stopping.pop(topic, None)
        log.info("topic=%s version=%d stopped ends=%s", topic, now.version, ends)

    def _make(self, config: TopicConfig, plan: Plan) -> None:
        """Create a topic that is closed until its first map opens."""
        count = rules.counts_of(plan.map).get(self._broker.config.name, 0)
        closed = replace(config, read_queues=count, write_queues=count, perm=0)
        self._fresh[config.name] = config.perm
        self._broker.topics.put(closed, self._broker.clock.now_ms())
        self._broker.save_topics()
        log.info("topic=%s created, closed until all brokers of %s have it", config.name, plan.map)

    def is_bare(self, topic: str) -> bool:
        """Return whether a topic does not exist, or is as a kill left it right after creation."""
        config = self._broker.topics.get(topic)
        return config is None or (not config.perm and not map_text(config) and self.is_empty(topic))

    def is_empty(self, topic: str) -> bool:
        """Return whether this broker stores no message of a topic."""
        first = self.first_offsets(topic)
        return all(
            queue.next_offset <= first(queue.queue_id)
            for queue in self._broker.store.queues_of(topic)
        )

    def is_making(self, topic: str) -> bool:
        """Return whether a plan created the topic and its first map is not open yet."""
        known = self._table.topics.get(topic)
        made = topic in self._fresh or (known is not None and known.making)
        return made and not self._map_of(topic)

    def _map_of(self, topic: str) -> int:
        config = self._broker.topics.get(topic)
        return 0 if config is None else keymap.version_of(map_text(config))

    async def _ends(self, topic: str) -> dict[int, int]:
        """Return the present ends of the queues, once the log is durable up to them."""
        broker = self._broker
        ends = {queue.queue_id: queue.next_offset for queue in broker.store.queues_of(topic)}
        await broker.housekeeping.flush_now()
        until_ms = broker.clock.monotonic_ms() + SETTLE_MS_MAX
        while any(self.end_offsets(topic)(queue_id) < end for queue_id, end in ends.items()):
            if broker.clock.monotonic_ms() > until_ms or not broker.writable:
                raise ServiceNotAvailable(f"the last messages of {topic} cannot be stored")
            await asyncio.sleep(0.001)
        return ends

    def _groups(self, topic: str) -> dict[str, bool]:
        broker = self._broker
        found = dict.fromkeys(broker.offsets.groups_of(topic), False)
        # A power cut may have lost a group's offsets but not its parked keys.
        found.update(dict.fromkeys(broker.parking.table.groups_of(topic), False))
        found.update(
            {
                group: True
                for group in broker.members.subscribers(topic)
                if self._is_member(group, topic)
            }
        )
        return found

    async def open(
        self, topic: str, plan_id: str, version: int, *, empty: bool = False
    ) -> ResizeView:
        """Open the planned version."""
        async with self._changing:
            now = self.versions(topic)
            opened = rules.open_next(now, plan_id, version, empty=empty)
            if opened is not now:
                await self._keep(topic, now, opened)
                log.info("topic=%s version=%d opened map: %s", topic, version, opened.map)
        await self.publish(topic)
        return self.view(topic)

    async def go(self, topic: str, plan_id: str, version: int) -> ResizeView:
        """Make the plan final, as the topic's first broker."""
        async with self._changing:
            now = self.versions(topic)
            self._check_first(topic, now)
            await self._keep(topic, now, rules.go(now, plan_id, version))
        return self.view(topic)

    async def withdraw(self, topic: str, plan_id: str) -> ResizeView:
        """Withdraw a plan: the present version is open again when that is saved."""
        async with self._changing:
            now = self._planned(topic, plan_id)
            await self._keep(topic, now, rules.withdraw(now, plan_id))
            stopping = self._stopping.get(topic)
            if stopping is not None and stopping.id == plan_id:  # the save of its ends had failed
                del self._stopping[topic]
                self._forget_targets()
            log.info("resize withdrawn topic=%s version=%d plan=%s", topic, now.version, plan_id)
        return self.view(topic)

    def _check_first(self, topic: str, now: Versions, without: tuple[str, ...] = ()) -> None:
        plan = now.plan
        if plan is None and without and now.map:
            first = min(set(rules.counts_of(now.map)) - set(without), default="")
        else:
            first = rules.first_of(now)
        if first != self._broker.config.name:
            raise InvalidParameter(f"resizes of topic[{topic}] are decided at broker {first}")

    def read_queues(self, config: TopicConfig) -> int:
        """Return how many queues of a topic hold messages, including closed ones."""
        now = self._table.topics.get(config.name)
        if now is None:
            return config.read_queues
        left = rules.queues_left(now, self.first_offsets(config.name), of=None)
        return max(config.read_queues, left)

    async def publish(self, topic: str) -> None:
        """Give the topic the queues of its version and those that groups must still read.

        Name servers and consumers learn of the change.
        """
        broker = self._broker
        self.releasing.watch()
        config = broker.topics.get(topic)
        if config is None:
            return
        new = self._with_map(config, self.versions(topic))
        if new == config:
            return
        broker.topics.put(new, broker.clock.now_ms())
        broker.save_topics()
        broker.registration.topic_changed(new)
        await broker.registration.register_now()
        broker.notify_route_changed(topic)

    def _with_map(self, config: TopicConfig, now: Versions) -> TopicConfig:
        if not now.version:
            return config
        count = rules.counts_of(now.map).get(self._broker.config.name, 0)
        waiting, first = rules.waiting(now), self.first_offsets(config.name)
        parked = self._broker.parking.redrive_scope.queues_left(config.name, waiting)
        wanted = max(count, rules.queues_left(now, first, of=waiting), parked)
        if waiting:
            wanted = max(wanted, config.read_queues)
        if now.plan is not None or now.stopped:  # unchanged until the next version is open
            count, wanted = config.write_queues, max(wanted, config.read_queues)
        attributes = {**config.attributes, keymap.ATTRIBUTE: now.map}
        if now.made and not map_text(config):  # created for this map, which is open now
            config = config.with_perm(now.made)
        return replace(config, write_queues=count, read_queues=wanted, attributes=attributes)

    def _planned(self, topic: str, plan_id: str) -> Versions:
        now = self.versions(topic)
        if not 0 < len(plan_id) <= PLAN_ID_CHARS_MAX:
            raise InvalidParameter(f"the id of a plan has 1 to {PLAN_ID_CHARS_MAX} characters")
        return now

    async def _keep(self, topic: str, old: Versions | None, new: Versions) -> None:
        """Save the new state of a topic, then let it take effect."""
        if new is old:
            return
        content = self._table.encode_with(topic, new)
        await self._broker.offload.call(lambda: self._file.save(content))
        if topic in self._broker.topics:  # otherwise it was deleted meanwhile
            self._table.topics[topic] = new
        self.changes += 1
        self._forget_targets()

    def repair_file(self) -> None:
        """Save the versions again if the last save may not have reached the disk."""
        if self._file.in_doubt and (self._mending is None or self._mending.done()):
            self._mending = asyncio.get_running_loop().create_task(self._mend(), name="resizing")

    async def _mend(self) -> None:
        async with self._changing:
            content = self._table.encode()
            with contextlib.suppress(OSError):  # logged by the snapshot, retried later
                await self._broker.offload.call(lambda: self._file.save(content))

    def cancel(self) -> None:
        """Cancel the background tasks."""
        if self._mending is not None:
            self._mending.cancel()
        self.releasing.cancel()

    def _forget_targets(self) -> None:
        self._broker.sends.forget_targets()
        self._broker.pulls.forget_checks()

    async def delete(self, topic: str, version: int) -> None:
        """Forget a deleted topic, but not its last version."""
        if not version and topic not in self._table.topics:
            return
        async with self._changing:
            self._table.delete(topic, version)
            self.rewinding.forget(topic)
            content = self._table.encode()
            await self._broker.offload.call(lambda: self._file.save(content))

    # -- groups ----------------------------------------------------------------------------------

    async def release(
        self, topic: str, group: str, version: int, *, force: bool, rewind_number: int = 0
    ) -> None:
        """Let a group read a version if it has finished the earlier ones here."""
        async with self._changing:
            now = self.versions(topic)
            if version > now.version:
                raise KeyMapChanged(
                    f"version {version} of {topic} is not open here", version=now.version
                )
            done = now.version if force else self.done(topic, now, group)
            new = rules.release(
                now, group, version, done=done, rewind_number=None if force else rewind_number
            )
            if new is not now:
                await self._keep(topic, now, new)
                log.info(
                    "topic=%s group=%s reads version=%d%s",
                    topic, group, version, " by an operator's order" if force else "",
                )  # fmt: skip
        self.rewinding.wake(topic, group)
        await self.publish(topic)

    async def hold(self, topic: str, group: str, *, member: bool) -> None:
        """Save that a group is waited for, and whether its pulls are held."""
        async with self._changing:
            if topic in self._table.topics and topic in self._broker.topics:
                held = rules.hold(self.versions(topic), group, member=member)
                await self._keep(topic, None, held)

    async def forget_group(self, topic: str, group: str) -> None:
        """Stop waiting for a deleted group. If the group comes back, it begins anew."""
        await self.change(topic, lambda now: rules.forget(now, [group]))
        self.rewinding.forget(topic, group)
        self.releasing.forget_moves(topic, group)
        await self.publish(topic)

    async def change(self, topic: str, rule: Callable[[Versions], Versions]) -> Versions | None:
        """Apply a rule to a topic, save the result, and return it; None if nothing changed."""
        async with self._changing:
            now = self.versions(topic)
            new = rule(now)
            await self._keep(topic, now, new)
        return None if new is now else new

    def done(self, topic: str, now: Versions, group: str) -> int:
        """Return the newest version that this broker would let a group read."""
        return rules.done_version(now, group, *self.progress_of(topic, group))

    # -- view ------------------------------------------------------------------------------------

    def view(self, topic: str, group: str = "") -> ResizeView:
        """Return what this broker knows of a topic, and the progress of one group or ("") of all.

        The topic need not exist.
        """
        broker = self._broker
        config = broker.topics.get(topic)
        now = Versions() if config is None else self.versions(topic)
        names = [group] if group else sorted(
            {*now.groups, *broker.offsets.groups_of(topic), *broker.members.subscribers(topic)}
        )  # fmt: skip
        return ResizeView(
            broker.config.name,
            topic,
            now.version,
            now.map,
            self.last_version(topic),
            now.plan,
            now.ends,
            now.opened,
            now.past,
            tuple(self.progress(topic, now, name) for name in names),
            0 if config is None else config.read_queues,
            0 if config is None else config.write_queues,
            now.going,
            now.withdrawn,
            PROTOCOL,
            self.is_empty(topic),
            self.is_making(topic) or (config is not None and self.is_bare(topic)),
            broker.config.auto_create_topics,
        )

    def progress(self, topic: str, now: Versions, group: str) -> GroupProgress:
        """Return how far a group has come with a topic, for other brokers and operators."""
        found = self._broker.members.group(group)
        standing = self.rewinding.standing(topic, now, group)
        return GroupProgress(
            group,
            rules.reading(now, group),
            self.releasing.ready(topic, now, group),
            rules.behind(now, group, *self.progress_of(topic, group)),
            found is not None and topic in found.subscriptions,
            standing.rewind_number,
            standing.paused,
            standing.quiet,
            standing.version,
        )
