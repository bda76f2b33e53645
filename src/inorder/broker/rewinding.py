"""Setting groups back into a version that is past, at one broker. Rules: `state/rewinding.py`.

That a group rests is on disk before its offsets are set. Then its queues of the topic are asked
back from their owners, who finish what they handle and commit it; whose lease has run out cannot go
on. It is quiet here when all are given back, or have run out. Who asks the other brokers:
`releasing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inorder.broker.leases.rules import NOBODY
from inorder.broker.parking.rules import ParkedKey, Place
from inorder.broker.state import resizing as versions
from inorder.broker.state import rewinding as rules
from inorder.broker.state.rewinding import Reach, Standing
from inorder.errors import InvalidParameter
from inorder.logs import get_logger
from inorder.wire.requests.parking import QueuePlace

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.resizing import Resizing
    from inorder.broker.state.resizing import Versions

log = get_logger(__name__)


class Rewinding:
    """The groups of this broker that were set back."""

    def __init__(self, broker: Broker, resizing: Resizing) -> None:
        self._broker = broker
        self._resizing = resizing
        self._emptied: dict[tuple[str, str], int] = {}  # in which term queues were asked for

    def __repr__(self) -> str:
        return f"Rewinding({sorted(self._emptied)})"

    def version_touched(self, topic: str, group: str, targets: Mapping[int, int]) -> int | None:
        """Return the version that is past of which new offsets bring back or skip something."""
        now = self._resizing.topics.get(topic)
        if now is None or not now.past:
            return None
        return rules.version_touched(now, targets, *self._resizing.bounds.left(topic, group))

    async def rest(self, topic: str, group: str, version: int, term: int | None = None) -> None:
        """Give a group nothing more: it is set back into a version; None: here, so once more.

        Nothing else happens between its end and what its caller does next.
        """

        def rule(now: Versions) -> Versions:
            check_mapped(topic, now)
            return rules.rest(now, group, version, term or rules.next_term(now, group))

        await self._resizing.change(topic, rule)
        self.empty(topic, group)
        self._resizing.releasing.forget_moves(topic, group)

    async def tell(self, topic: str, group: str) -> None:
        """Have the other brokers know, if they can be asked, that a group rests."""
        await self._resizing.releasing.tell(topic, group)

    def rests(self, topic: str, group: str) -> bool:
        """Tell whether a group gets nothing."""
        now = self._resizing.topics.get(topic)
        return now is not None and rules.rests(now, group)

    async def go_on(self, topic: str, group: str, term: int) -> None:
        """Let a group read again that was set back: it rests everywhere, and nobody handles."""
        new = await self._resizing.change(topic, lambda now: rules.go_on(now, group, term))
        if new is not None:
            version = rules.back_to(new, group)
            log.info("topic=%s group=%s reads version=%d once more", topic, group, version)
            self.over(topic, group)

    def standing(self, topic: str, now: Versions, group: str) -> Standing:
        """Return what the others have to know of a group."""
        term, resting = rules.term_of(now, group), rules.rests(now, group)
        quiet = not resting or (
            self._emptied.get((topic, group)) == term and not self._is_owned(topic, group)
        )
        return Standing(term, rules.back_to(now, group), resting, quiet)

    def _is_owned(self, topic: str, group: str) -> bool:
        """Tell whether somebody may still handle what was given before."""
        leases = self._broker.leases
        if self._broker.clock.monotonic_ms() < leases.closed_until_ms:
            return True  # who had what before the start is not known
        return any(
            queue.topic == topic and (one.recalled or one.owner == NOBODY)
            for queue, one in leases.held(group).items()
        )

    def empty(self, topic: str, group: str) -> None:
        """Ask for the queues of a group that rests, once in a term."""
        now = self._resizing.topics.get(topic)
        known = None if now is None else now.groups.get(group)
        if known is None or not known.rests or self._emptied.get((topic, group)) == known.term:
            return
        asked = [
            queue.queue_id for queue in self._broker.store.queues_of(topic)
            if self._broker.ownership.recall(group, topic, queue.queue_id)
        ]  # fmt: skip
        self._emptied[topic, group] = known.term
        log.warning(
            "topic=%s group=%s was set back into version=%d: it gets nothing until all brokers "
            "know and what is handled has ended (queues=%s; `inorder locks` shows by whom)",
            topic, group, known.version, asked,
        )  # fmt: skip

    async def group_deleted(self, group: str) -> None:
        """Forget how far a group was that was deleted with its offsets."""
        for topic, now in list(self._resizing.topics.items()):
            if group in now.groups and topic in self._broker.topics:
                await self._resizing.forget_group(topic, group)

    def forget(self, topic: str, group: str = "") -> None:
        """Forget a group, or ("") all of a topic."""
        for one in [one for one in self._emptied if one[0] == topic and group in ("", one[1])]:
            del self._emptied[one]

    def over(self, topic: str, group: str) -> None:
        """Let a group that rested read again, and its parked keys be handled."""
        self._emptied.pop((topic, group), None)
        for place, parked in self._broker.parking.table.places.items():
            if (place.group, place.topic) == (group, topic):
                parked.touch()
        for queue in self._broker.store.queues_of(topic):
            self._broker.wake(topic, queue.queue_id)

    def reach(self, place: Place, one: ParkedKey) -> Reach:
        """Tell how far a group has come with one of its parked keys."""
        now = self._resizing.topics.get(place.topic)
        queue = (self._broker.config.name, place.queue_id)
        return Reach(True, False) if now is None else rules.reach(now, place.group, queue, one)

    def older(self, place: Place, one: ParkedKey) -> list[QueuePlace]:
        """Return the older lists of a parked key that a group has reached, the oldest first."""
        now = self._resizing.topics.get(place.topic)
        return one.older_until(None if now is None else versions.reading(now, place.group))

    def end_for(self, place: Place) -> int | None:
        """Return the offset of a queue up to which a group has come; None: it may have all."""
        now = self._resizing.topics.get(place.topic)
        return None if now is None else versions.end_for(now, place.group, place.queue_id)


def check_mapped(topic: str, now: Versions) -> None:
    """Refuse what concerns versions of a topic that has none."""
    if not now.version:
        raise InvalidParameter(
            f"topic[{topic}] has no key map; `inorder topic create` gives it one"
        )
