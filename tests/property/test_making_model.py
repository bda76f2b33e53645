"""Making first maps under a bad network: the code's own rules, rival makers, any schedule (A13).

Makers look at brokers and act on what they saw, later; their requests come late, twice or never,
and makers die. Their views overlap in one broker. Never do two maps of one version take sends, and
whoever comes last brings one map to all of its brokers.
"""

from __future__ import annotations

from random import Random

import pytest

from inorder.broker.resizing import rules as broker_rules
from inorder.broker.resizing.rules import Versions
from inorder.client.rules import keymaps
from inorder.client.rules.keymaps import Wanted
from inorder.client.rules.resizing import Go, Open, Publish, Stop, Withdraw
from inorder.errors import BrokerError
from inorder.wire.requests.resizing import ResizeView

VIEWS = (("a", "b"), ("b",), ("b", "c"), ("a", "b", "c"))
Request = tuple[str, Stop | Go | Open | Withdraw]


class Cluster:
    """Brokers of a topic that is not there yet, and requests that are under way."""

    def __init__(self) -> None:
        self.brokers = {name: Versions() for name in "abc"}
        self.under_way: list[Request] = []
        self.opened: set[tuple[int, str]] = set()

    def view(self, name: str) -> ResizeView:
        now = self.brokers[name]
        return ResizeView(
            name, "t", now.version, now.map, now.version, now.plan, now.ends, now.opened,
            going=now.going, withdrawn=now.withdrawn, protocol=2, empty=True, making=now.making,
        )  # fmt: skip

    def serve(self, name: str, step: Stop | Go | Open | Withdraw) -> None:
        now, plan = self.brokers[name], step.plan
        if isinstance(step, Stop):
            new = broker_rules.note(now, plan, {}, {}, last=now.version, made=6)
        elif isinstance(step, Go):
            if broker_rules.first_of(now) != name:
                return
            new = broker_rules.go(now, plan.id, plan.version)
        elif isinstance(step, Open):
            new = broker_rules.open_next(now, plan.id, plan.version, empty=step.empty)
        else:
            new = broker_rules.withdraw(now, plan.id)
        self.brokers[name] = new
        self.opened |= {(one.version, one.map) for one in self.brokers.values() if one.version}

    def try_serve(self, name: str, step: Stop | Go | Open | Withdraw) -> None:
        try:
            self.serve(name, step)
        except BrokerError:
            return


class Maker:
    """One that makes the topic by what it sees."""

    def __init__(self, number: int, names: tuple[str, ...]) -> None:
        self.number, self.names = number, names
        self.seen: dict[str, ResizeView] = {}
        self.ids = 0

    def look(self, cluster: Cluster) -> None:
        self.seen, wanted = {}, set(self.names)
        while wanted:
            self.seen |= {name: cluster.view(name) for name in wanted}
            wanted = keymaps.mentioned(self.seen) - self.seen.keys()

    def step(self) -> keymaps.Step:
        while True:
            wanted = Wanted(f"{self.number}.{self.ids}", tuple((name, 0) for name in self.names))
            if not any(wanted.id in view.withdrawn for view in self.seen.values()):
                return keymaps.next_step(self.seen, wanted)
            self.ids += 1

    def requests(self) -> list[Request]:
        step = self.step()
        if isinstance(step, Publish):
            return []
        names = (step.broker,) if isinstance(step, Go) else step.brokers
        return [(name, step) for name in names]


def play(seed: int) -> Cluster:
    """Let makers run against each other; then one more, alone, on a network that works."""
    random, cluster = Random(seed), Cluster()
    makers = [Maker(number, random.choice(VIEWS)) for number in range(3)]
    for _ in range(random.randrange(5, 60)):
        maker = random.choice(makers)
        what = random.random()
        if what < 0.35:
            maker.look(cluster)
        elif what < 0.6 and maker.seen:
            cluster.under_way += maker.requests()
        elif cluster.under_way:
            request = random.choice(cluster.under_way)
            if random.random() < 0.6:
                cluster.under_way.remove(request)
            if random.random() < 0.85:
                cluster.try_serve(*request)
        assert len(cluster.opened) <= 1, cluster.opened
    last = Maker(9, random.choice(VIEWS))
    for _ in range(200):
        last.look(cluster)
        if isinstance(last.step(), Publish):
            break
        for request in last.requests():
            cluster.try_serve(*request)
        if cluster.under_way and random.random() < 0.3:  # what is late still comes
            cluster.try_serve(*cluster.under_way.pop())
        assert len(cluster.opened) <= 1, cluster.opened
    else:
        raise AssertionError(f"it never ends: {cluster.brokers}")
    return cluster


@pytest.mark.slow
def test_there_is_one_map_whoever_makes_it() -> None:
    """3,000 schedules: one map, open at all of its brokers, in the end."""
    for seed in range(3000):
        cluster = play(seed)
        (opened,) = cluster.opened
        brokers = broker_rules.counts_of(opened[1])
        held = {name: cluster.brokers[name].map for name in brokers}
        assert set(held.values()) == {opened[1]}, (seed, held)


def test_a_map_that_is_opened_before_all_hold_it_meets_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without that rule the same schedules give one version two maps: the test can fail."""
    true_step = keymaps.next_step

    def hasty(views: dict[str, ResizeView], wanted: Wanted) -> keymaps.Step:
        step = true_step(views, wanted)
        assigned = tuple(sorted(name for name, view in views.items() if view.plan))
        return Open(assigned, step.plan) if isinstance(step, Stop) and assigned else step

    monkeypatch.setattr(keymaps, "next_step", hasty)
    with pytest.raises(AssertionError):
        for seed in range(3000):
            play(seed)
