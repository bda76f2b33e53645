"""How our cost per message grows (it must not) with what is stored, known, connected or behind.

Each curve holds everything but one number, and measures CPU per message at each of its values.
The last column is the cost relative to the first point: within 1.25 is flat.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench import loadgen
from bench.compare import Say, measure
from bench.loadgen import Load
from bench.remoting import Connection
from bench.systems import Ours

FLAT = 1.25
QUEUES_TIMEOUT_S = 180.0
FIRST_TOUCH = "first"
UPDATE_CONSUMER_OFFSET = 15
CREATE_TOPIC = 17
UPDATE_GROUP = 200
SEND = Load("send", 8, 32)
PULL = Load("pull", 8, 4)


@dataclass(frozen=True, slots=True)
class Point:
    """The cost at one value of what varies."""

    curve: str
    value: int
    load: str
    cpu_us_per_message: float
    messages_per_s: float
    relative: float
    bad: list[str]


@dataclass(frozen=True, slots=True)
class Effort:
    """How far the curves go and how often a point is measured."""

    stored_max: int = 10_000_000
    many_max: int = 10_000
    units: int = 3
    seconds: float = 2.0


def steps(first: int, last: int) -> Iterator[int]:
    """Yield first, ten times that, and so on up to last."""
    while first < last:
        yield first
        first *= 10
    yield last


class _Curve:
    """Collects the points of one curve."""

    def __init__(self, name: str, effort: Effort, say: Say) -> None:
        self.name, self.effort, self._say = name, effort, say
        self.points: list[Point] = []
        self._first: dict[str, float] = {}

    def point(
        self,
        system: Ours,
        value: int,
        load: Load,
        *,
        start_offsets: Sequence[int] | None = None,
        label: str = "",
    ) -> None:
        units, bad, label = [], [], label or load.mode
        for _ in range(self.effort.units):
            unit, complaints = measure(
                system, load, self.effort.seconds, start_offsets=start_offsets
            )
            units.append(unit)
            bad += complaints
            if unit["idle_closed"]:
                bad.append(f"{unit['idle_closed']:.0f} idle connections were closed")
        cost = statistics.median(unit["cpu_us_per_message"] for unit in units)
        rate = statistics.median(unit["messages_per_s"] for unit in units)
        relative = cost / self._first.setdefault(label, cost) if cost else 0.0
        self.points.append(Point(self.name, value, label, cost, rate, relative, bad))
        self._say(
            f"  {self.name:16} {value:>12,} {label:5} {cost:8.2f} us/message"
            f" {rate:>12,.0f}/s  x {relative:.2f}{'  BAD ' + bad[0] if bad else ''}"
        )


def stored(curve: _Curve) -> None:
    """Vary the messages stored, and with them the lag of a consumer that begins at the start."""
    with Ours() as system:
        have = 0
        for value in steps(10_000, curve.effort.stored_max):
            loadgen.fill(system.address, "CurveStored", value - have, batched=True)
            have = value
            curve.point(system, value, replace(PULL, topic="CurveStored"))
            # The sends go to another topic: they must not count as stored ones here.
            curve.point(system, value, replace(SEND, topic="CurveOther"))


def lag(curve: _Curve) -> None:
    """Vary how far behind the end of its queues a consumer reads."""
    with Ours() as system:
        total = curve.effort.stored_max
        loadgen.fill(system.address, "CurveLag", total, batched=True)
        ends = loadgen.max_offsets(system.address, "CurveLag")
        load = replace(PULL, topic="CurveLag")
        for value in steps(10_000, total):
            offsets = [max(0, end - value // len(ends)) for end in ends]
            curve.point(system, value, load, start_offsets=offsets)


def topics(curve: _Curve) -> None:
    """Vary the topics that exist; ten of them are written to."""
    with Ours() as system, Connection(system.address, timeout_s=60) as connection:
        have = 0
        for value in steps(10, curve.effort.many_max):
            for number in range(have, value):
                connection.call(CREATE_TOPIC, topic_fields(f"CurveTopic{number:05}", queues=1))
            have = value
            curve.point(system, value, replace(SEND, topic="CurveTopic", topics=10, queues=1))


def spread(curve: _Curve) -> None:
    """Vary the topics, all of them written to in turn: no two messages of a tick share anything.

    "first" is the time in which their queues get their files, a directory and a file each, "send"
    the time after that.
    """
    with Ours() as system, Connection(system.address, timeout_s=60) as connection:
        have = 0
        for value in steps(10, curve.effort.many_max):
            for number in range(have, value):
                connection.call(CREATE_TOPIC, topic_fields(f"CurveTopic{number:05}", queues=1))
            have = value
            load = replace(SEND, topic="CurveTopic", topics=value, queues=1)
            curve.point(system, value, load, label=FIRST_TOUCH)
            _wait_for_queues(system, value)
            curve.point(system, value, load)


def _wait_for_queues(system: Ours, count: int) -> None:
    """Wait until every topic of the curve has its queue on disk."""
    (folder,) = system.directory.rglob("consumequeue")
    deadline = time.monotonic() + QUEUES_TIMEOUT_S
    while len(os.listdir(folder)) < count and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1.0)


def groups(curve: _Curve) -> None:
    """Vary the consumer groups, each with a stored offset; one of them pulls."""
    with Ours() as system, Connection(system.address, timeout_s=60) as connection:
        loadgen.fill(system.address, "CurveGroups", 100_000, batched=False)
        have = 0
        for value in steps(10, curve.effort.many_max):
            for number in range(have, value):
                name = f"curve_group_{number:05}"
                connection.call(UPDATE_GROUP, body=group_body(name))
                fields = {"consumerGroup": name, "topic": "CurveGroups", "queueId": number % 8}
                connection.call(UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": number})
            have = value
            load = replace(PULL, topic="CurveGroups", group="curve_group_00000")
            curve.point(system, value, load)
            curve.point(system, value, replace(SEND, topic="CurveOther"))


def connections(curve: _Curve) -> None:
    """Vary the connections that are open and silent."""
    with Ours() as system:
        for value in (0, *steps(100, curve.effort.many_max)):
            curve.point(system, value, replace(SEND, idle_connections=value))


CURVES: dict[str, Callable[[_Curve], None]] = {
    "stored": stored,
    "lag": lag,
    "topics": topics,
    "spread": spread,
    "groups": groups,
    "connections": connections,
}


def run_curves(names: list[str], effort: Effort, say: Say) -> list[Point]:
    """Measure the named curves, all of them if none is named."""
    points: list[Point] = []
    for name in names or list(CURVES):
        say(f"curve {name}")
        curve = _Curve(name, effort, say)
        CURVES[name](curve)
        points += curve.points
    return points


def topic_fields(name: str, *, queues: int) -> dict[str, object]:
    """Return the fields that create a topic, as the admin tool sends them."""
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }


def group_body(name: str) -> bytes:
    """Return the body that creates a group, as the admin tool sends it."""
    return json.dumps(
        {
            "groupName": name,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeBroadcastEnable": True,
            "retryQueueNums": 1,
            "retryMaxTimes": 16,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": True,
        }
    ).encode()


def table(points: list[Point]) -> str:
    """Return the points as lines, with a remark where the cost grew."""
    head = (
        f"{'curve':12} {'value':>12} {'load':5} {'us/message':>11} {'messages/s':>12} {'grew':>6}"
    )
    lines = [head]
    lines += [
        f"{point.curve:12} {point.value:>12,} {point.load:5} {point.cpu_us_per_message:>11.2f}"
        f" {point.messages_per_s:>12,.0f} {point.relative:>6.2f}"
        f"{'' if point.relative <= FLAT or point.load == FIRST_TOUCH else '  > ' + str(FLAT)}"
        f"{'  BAD ' + point.bad[0] if point.bad else ''}"
        for point in points
    ]
    return "\n".join(lines)
