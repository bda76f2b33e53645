"""Which key map of a topic counts, and how a topic gets its first one. No I/O.

*Which map counts.* The brokers of a map decide; name servers only point to maps. A map that one of
its brokers holds is valid, and the highest version counts. A map that all of its brokers deny is
void. While one of them is away nobody knows, and sends with its keys wait. Two maps of one version,
each held by a broker, contradict each other: no rule can say where a key is.

*The first map.* Given the view of each broker, `next_step` returns the next step of its making:

    installed closed at all its brokers, one after the other -> go at the first -> opened at all

The steps are those of a resize from version 0. Any client can continue after one that was killed,
and several may drive at once. A plan that is alone is completed, whoever made it. Of several plans
the one that may be open already wins, otherwise the one at the broker with the highest name; the
others are withdrawn. Plans are installed in the order of broker names, so the winner has all of its
earlier brokers. Where a map is open, it is the topic's map.

What the key map is: decision 12. How a first map is made: decision 43. Name servers that differ:
decision 44.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inorder.client.rules.resizing import Go, Open, Places, Publish, Stop, Withdraw
from inorder.errors import RemoteProtocolError
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.resizing import Plan, ResizeView


@dataclass(frozen=True, slots=True)
class Settled:
    """The map that counts, maps that are void, maps that contradict each other."""

    map: KeyMap | None
    void: frozenset[str] = frozenset()
    conflict: tuple[str, ...] = ()


def newest(texts: Iterable[str]) -> list[KeyMap]:
    """Return the readable maps of the highest version; several contradict each other."""
    found: dict[str, KeyMap] = {}
    for text in texts:
        try:
            key_map = KeyMap.decode(text)
        except RemoteProtocolError:
            continue
        found[key_map.encode()] = key_map
    highest = max((one.version for one in found.values()), default=0)
    return [found[text] for text in sorted(found) if found[text].version == highest]


def brokers_of(texts: Iterable[str]) -> set[str]:
    """Return the brokers of all these maps."""
    maps = [one for text in texts for one in newest([text])]
    return {broker for one in maps for broker, _ in one.queues}


def settle(told: Iterable[str], views: Mapping[str, ResizeView]) -> Settled:
    """Decide which of the told maps counts, by the views of the brokers that answered.

    A broker that knows no key maps holds none.
    """
    held = {view.map for view in views.values() if view.version and view.map}
    held_texts = {one.encode() for text in held for one in newest([text])}
    void: set[str] = set()
    left = set(held_texts)
    for text in told:
        for one in newest([text]):
            encoded = one.encode()
            if encoded in held_texts:
                continue
            if all(broker in views for broker, _ in one.queues):
                void.add(encoded)
            else:
                left.add(encoded)
    found = newest(left)
    contradicting = [one.encode() for one in found if one.encode() in held_texts]
    if len(contradicting) > 1:
        return Settled(None, frozenset(void), tuple(contradicting))
    if len(found) > 1:  # a map that a broker holds comes before one that a name server tells
        found = [one for one in found if one.encode() in held_texts] or found[:1]
    return Settled(found[0] if found else None, frozenset(void))


Step = Stop | Go | Open | Withdraw | Publish


@dataclass(frozen=True, slots=True)
class Wanted:
    """The queues that a maker wants, and the id of its plan."""

    id: str
    queues: Places


def next_step(views: Mapping[str, ResizeView], wanted: Wanted) -> Step:
    """Return the next step; `views` has every broker that a plan or map among them names."""
    plans = {name: view.plan for name, view in views.items() if view.plan and not view.version}
    opened = [view for view in views.values() if view.version]
    if opened:
        return _with_open(views, plans, opened)
    if not plans:
        plan = _planned(views, wanted)
        return Stop((_brokers(plan)[0],), plan)
    winner = _winner(views, plans)
    for name, plan in sorted(plans.items()):
        if plan.id != winner.id:
            return _withdrawal(plans, name, plan)
    first = _brokers(winner)[0]
    if winner.id in views[first].withdrawn:  # withdrawn, but not everywhere
        return Withdraw((next(iter(plans)),), winner)
    missing = [name for name in _brokers(winner) if name not in plans]
    if missing:
        return Stop((missing[0],), winner)
    if not views[first].going:
        return Go(first, winner)
    return _opening(views, winner, _brokers(winner))


def _with_open(
    views: Mapping[str, ResizeView], plans: Mapping[str, Plan], opened: list[ResizeView]
) -> Step:
    for view in opened:
        waiting = [name for name, plan in sorted(plans.items()) if plan.id == view.opened]
        if waiting:
            return _opening(views, plans[waiting[0]], waiting)
    for name, plan in sorted(plans.items()):
        if not views[name].going:
            return _withdrawal(plans, name, plan)
    return Publish(newest([view.map for view in opened])[0].encode())


def _opening(views: Mapping[str, ResizeView], plan: Plan, waiting: list[str]) -> Open:
    """Open the first broker last. Messages that were stored before, if any, are read first."""
    first = _brokers(plan)[0]
    of_plan = [views[name] for name in _brokers(plan) if name in views]
    empty = all(view.empty if not view.version else not view.past for view in of_plan)
    others = tuple(name for name in waiting if name != first)
    return Open(others or (first,), plan, empty=empty)


def _winner(views: Mapping[str, ResizeView], plans: Mapping[str, Plan]) -> Plan:
    going = [plan for name, plan in sorted(plans.items()) if views[name].going]
    return going[0] if going else plans[max(plans)]


def _withdrawal(plans: Mapping[str, Plan], name: str, plan: Plan) -> Withdraw:
    """Withdraw a plan, at its first broker before all others."""
    first = _brokers(plan)[0]
    held_there = first in plans and plans[first].id == plan.id
    return Withdraw((first if held_there else name,), plan)


def _planned(views: Mapping[str, ResizeView], wanted: Wanted) -> Plan:
    """Return a plan with a version above every version that this topic name ever had.

    Its base is the placement of keys before: over all queues with write permission.
    """
    version = 1 + max(view.last for view in views.values())
    before = [
        (name, index)
        for name, view in views.items() if not view.making and view.plan is None
        for index in range(view.write_queues)
    ]  # fmt: skip
    base = KeyMap.of(0, before).encode() if before else ""
    text = KeyMap.of(version, wanted.queues).encode()
    return Plan(wanted.id, version, text, base)


def is_there(views: Mapping[str, ResizeView]) -> bool:
    """Return whether the topic exists without a map, and nobody is making one."""
    begun = any(view.version or view.plan or view.making for view in views.values())
    return not begun and any(view.write_queues for view in views.values())


def mentioned(views: Mapping[str, ResizeView]) -> set[str]:
    """Return the brokers that plans and maps name."""
    texts = [view.map for view in views.values() if view.map]
    texts += [view.plan.map for view in views.values() if view.plan]
    return {broker for text in texts for one in newest([text]) for broker, _ in one.queues}


def _brokers(plan: Plan) -> list[str]:
    return sorted({broker for broker, _ in KeyMap.decode(plan.map).queues})
