"""The steps of a resize for the client that drives it: views of brokers in, next step out. No I/O.

decide at the first broker -> stop at all -> go at the first -> open at all, the first last; publish

Only the brokers remember anything between the steps. So any client can continue after one that was
killed, and several may drive at once: every step may be repeated. The first broker opens last: once
it has opened a version, all others have.

Up to `go` a plan can be withdrawn, at the first broker and then at all brokers that answer. A first
broker that has withdrawn a plan never agrees to `go`, so no broker opens it. A broker that missed
the withdrawal is told with the next resize, or with the next withdrawal.

How a resize keeps order: decision 13. How a first map is made: decision 43.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inorder.errors import UsageError
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import Plan, ResizeView

Places = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """The wanted queues and the id of their plan. No queues: finish the plan that was decided."""

    id: str
    queues: Places | None
    without: tuple[str, ...] = ()
    """Brokers that are gone for good; they are not in the views."""
    anew: bool = False
    """Resize even if the first broker has these queues: others use another map of its version."""


@dataclass(frozen=True, slots=True)
class Decide:
    """The topic's first broker decides the plan."""

    broker: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class Stop:
    """These brokers stop the present version; all may be asked at once."""

    brokers: tuple[str, ...]
    plan: Plan


@dataclass(frozen=True, slots=True)
class Go:
    """All brokers have stopped: the topic's first broker makes the plan final."""

    broker: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class Withdraw:
    """These brokers withdraw a plan."""

    brokers: tuple[str, ...]
    plan: Plan


@dataclass(frozen=True, slots=True)
class TooLate:
    """The plan cannot be withdrawn: brokers may use the new queues."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Open:
    """These brokers open the next version."""

    brokers: tuple[str, ...]
    plan: Plan
    empty: bool = False
    """With a first map: no message was stored before."""


@dataclass(frozen=True, slots=True)
class Publish:
    """All brokers are open: tell the name servers the map, which ends the resize."""

    map: str


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Another resize, to other queues, was decided before and must end first."""

    plan: Plan


Step = Decide | Stop | Go | Open | Withdraw | Publish | UnderWay


def next_step(views: Mapping[str, ResizeView], goal: Goal) -> Step:
    """Return the next step; `views` has all brokers of the topic."""
    name = min(views)
    first = views[name]
    plan = first.plan
    left = _left_over(views, first)
    if left is not None:
        return left
    if plan is None:
        same = goal.queues == KeyMap.decode(first.map).queues and not goal.anew
        if goal.queues is None or same or first.opened == goal.id:
            return Publish(first.map)
        version = first.version + 1
        wanted = KeyMap.of(version, goal.queues)
        return Decide(name, Plan(goal.id, version, wanted.encode(), without=goal.without))
    if goal.queues not in (None, KeyMap.decode(plan.map).queues):
        return UnderWay(plan)
    behind = {one: view for one, view in views.items() if view.version < plan.version}
    running = tuple(sorted(one for one, view in behind.items() if not _is_stopped(view, plan)))
    if running:
        return Stop(running, plan)
    if not first.going:
        return Go(name, plan)
    others = tuple(sorted(one for one in behind if one != name))
    return Open(others or (name,), plan)


def _is_stopped(view: ResizeView, plan: Plan) -> bool:
    return view.ends is not None and view.plan is not None and view.plan.id == plan.id


def _left_over(views: Mapping[str, ResizeView], first: ResizeView) -> Withdraw | None:
    """Return the step for a broker that still has a withdrawn plan."""
    for view in views.values():
        if view.plan is not None and view.plan.id in first.withdrawn:
            return Withdraw((view.broker,), view.plan)
    return None


def withdrawal(views: Mapping[str, ResizeView]) -> Withdraw | TooLate | None:
    """Return the next step of withdrawing a resize; None: it is withdrawn.

    `views` has the brokers that answer, the topic's first one among them.
    """
    name = first_of(views)
    first = views[name]
    plan = first.plan
    if plan is not None:
        if first.going or any(view.version >= plan.version for view in views.values()):
            return TooLate(plan)
        return Withdraw((name,), plan)
    left = _left_over(views, first)
    if left is not None or not first.withdrawn:
        return left
    last = Plan(first.withdrawn[-1], first.version + 1, "")
    # Brokers that were not asked to stop must know too: the request may still come.
    behind = [one for one, view in views.items() if view.version == first.version]
    others = tuple(sorted(one for one in behind if last.id not in views[one].withdrawn))
    return Withdraw(others, last) if others else None


def first_of(views: Mapping[str, ResizeView]) -> str:
    """Return the broker that decides, by the oldest map among the views."""
    oldest = min(views.values(), key=lambda view: view.version or 1 << 62)
    return min(broker for broker, _ in KeyMap.decode(oldest.map).queues)


def spread(brokers: Iterable[str], queues: int) -> Places:
    """Spread queues over brokers; the first brokers get one more if the number is uneven."""
    names = sorted(set(brokers))
    if queues < len(names):
        raise UsageError(
            f"a topic on {len(names)} brokers has at least {len(names)} queues, not {queues}"
        )
    share, more = divmod(queues, len(names))
    return tuple(
        (name, index) for place, name in enumerate(names) for index in range(share + (place < more))
    )


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A group that must finish an older version before it gets the present one."""

    group: str
    version: int
    """The version that the group reads."""
    behind: int
    """Messages of that version that the group has not finished."""
    online: bool
    brokers: tuple[str, ...]
    """The brokers that still have such messages."""
    rests: bool = False
    """The group was rewound: it gets nothing until all brokers know and running handlers end."""


@dataclass(frozen=True, slots=True)
class TopicResize:
    """The state of a topic: its version, a resize under way, groups that wait for the last one."""

    topic: str
    version: int
    queues: int
    brokers: dict[str, int]
    """How many queues each broker has."""
    plan: Plan | None
    stopped: tuple[str, ...]
    """The brokers that have stopped the present version."""
    opened: tuple[str, ...]
    """The brokers that have opened the next version."""
    waiting: tuple[WaitingGroup, ...]
    closing: int
    """Queues that a resize removed and that can still be read."""
    away: tuple[str, ...] = ()
    """Brokers that did not answer; after a withdrawal they must still be told."""

    @property
    def is_done(self) -> bool:
        """Return whether every resize has ended."""
        return self.plan is None and not self.waiting and not self.closing and not self.away

    @property
    def planned_queues(self) -> int:
        """The number of queues after the resize under way."""
        return self.queues if self.plan is None else len(KeyMap.decode(self.plan.map).queues)


def summary(topic: str, views: Mapping[str, ResizeView]) -> TopicResize:
    """Return the state of a topic, from the views of its brokers."""
    first = views[min(views)]
    counts: dict[str, int] = dict.fromkeys(sorted(views), 0)
    shown = first.map or ("" if first.plan is None else first.plan.map)
    for broker, _ in KeyMap.decode(shown).queues if shown else ():
        counts[broker] = counts.get(broker, 0) + 1
    plan = first.plan
    return TopicResize(
        topic,
        first.version,
        sum(counts.values()),
        counts,
        plan,
        tuple(sorted(name for name, view in views.items() if view.ends is not None)),
        tuple(
            sorted(
                name
                for name, view in views.items()
                if plan is not None and view.version == plan.version
            )
        ),
        _waiting(views),
        sum(max(0, view.read_queues - view.write_queues) for view in views.values()),
    )


def _waiting(views: Mapping[str, ResizeView]) -> tuple[WaitingGroup, ...]:
    found: dict[str, WaitingGroup] = {}
    for name, view in views.items():
        for one in view.groups:
            if one.version >= view.version and not one.rests:
                continue
            before = found.get(one.group, WaitingGroup(one.group, one.version, 0, False, ()))
            found[one.group] = WaitingGroup(
                one.group,
                min(before.version, one.version),
                before.behind + one.behind,
                before.online or one.online,
                (*before.brokers, name) if one.behind else before.brokers,
                before.rests or one.rests,
            )
    return tuple(found[group] for group in sorted(found))
