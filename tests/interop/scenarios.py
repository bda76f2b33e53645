"""What every RocketMQ client must do with inorder: a table of scenarios, and who cannot play which.

`test_rocketmq_scenarios.py` plays the table; docs/reference/stock-clients.md is made from it by
`python -m tests.interop.scenarios`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.driver import Message, by_queue
from tests.interop.rawclient import RawClient, body_of
from tests.interop.stage import BUSY_S, Stage
from tests.interop.stock import BY_NAME, QUEUES, SETTLE_S, Client, as_sent

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stock-clients.md"

CPP, NODE, GO = "cpp-0.4.4", "ali-ons-3.12", "go-2.1.2"
JAVA_4, JAVA_5 = "java-4.9.8-json", "java-5.3.3-json"
KINDS = [BY_NAME[name] for name in (JAVA_4, JAVA_5, CPP, GO, NODE)]

# Level 3 is that of a first retry. RocketMQ's own levels would make sixteen tries last 4.7 hours.
LEVELS_S = [1, 2, 3] + [1] * 15
DELAY_LEVELS = " ".join(f"{seconds}s" for seconds in LEVELS_S)
TRIES_MAX = 16
LATE_S_MAX = 3.0
TAKE_OVER_S_MAX = 33.0
RETURN_S_MAX = 45.0
NO_ORDER = "it has no ordered consumer: it takes no locks"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One column of the table."""

    name: str
    what: str
    play: Callable[[Stage], None]
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Why a client cannot play it, by the client's name."""


def ordered(stage: Stage) -> None:
    client, topic = stage.main, stage.topic
    client.push(stage.topic, topic, group=topic, mode="orderly")
    stage.wait_queues(client, topic)
    client.produce(topic, 400)
    client.wait_got(topic, 400 + stage.probes)
    assert by_queue(stage.got(client)) == as_sent(0, 400)


def backlog(stage: Stage) -> None:
    client, topic = stage.main, stage.topic
    client.produce(topic, 1000)
    stage.begin_at_zero()
    client.push(topic, topic, group=topic, mode=stage.mode)
    client.wait_got(topic, 1000)
    time.sleep(SETTLE_S)
    client.stop(topic)
    assert by_queue(client.driver.messages("got", topic)) == as_sent(0, 1000)
    with RawClient(client.server.address) as raw:
        raw.wait_committed(topic, topic, [250] * QUEUES)


def kill(stage: Stage) -> None:
    survivor, victim = stage.main, stage.start("victim")
    stage.share(survivor, victim)
    with stage.trickle() as trickle:
        stage.wait_share(victim)
        victim.driver.kill()
        took_s = stage.wait_all_queues(survivor, trickle, within_s=TAKE_OVER_S_MAX + BUSY_S)
    print(f"{stage.name}: taken over {took_s:.1f} s after the kill")
    stage.check_first_deliveries([survivor, victim], trickle.sent)


def rejoin(stage: Stage) -> None:
    stays, victim = stage.main, stage.start("victim")
    stage.share(stays, victim)
    with stage.trickle() as trickle:
        stage.wait_share(victim)
        victim.driver.kill()
        again = stage.start("victim")
        stage.push(again)
        within_s = RETURN_S_MAX + BUSY_S
        stage.wait_share(again, since=trickle.sent, within_s=within_s)
        stage.wait_all_queues(stays, trickle, again, within_s=within_s)
    stage.check_first_deliveries([stays, victim, again], trickle.sent)


def tag(stage: Stage) -> None:
    client, topic = stage.main, stage.topic
    client.produce(topic, 120, tags="paid,packed,sent")
    stage.begin_at_zero()
    client.push(topic, topic, group=topic, tags="paid,sent", mode=stage.mode)
    wanted = {
        queue: [number for number in numbers if number % 3 != 1]
        for queue, numbers in as_sent(0, 120).items()
    }
    client.wait_got(topic, 80)
    messages = client.driver.messages("got", topic)
    assert by_queue(messages) == wanted
    assert {message.tag for message in messages} == {"paid", "sent"}


def delay(stage: Stage) -> None:
    client, topic = stage.main, stage.topic
    client.push(topic, topic, group=topic, mode=stage.mode)
    for level in (1, 2):
        client.produce(topic, 8, first=level * 100, delay=level)
    client.wait_got(topic, 16)
    got = client.driver.messages("got", topic)
    sent = {m.number: m.begin_us for m in client.driver.messages("sent", topic)}
    late_s = [(m.begin_us - sent[m.number]) / 1e6 - LEVELS_S[m.number // 100 - 1] for m in got]
    assert sorted(m.number for m in got) == [*range(100, 108), *range(200, 208)]
    assert min(late_s) >= 0, late_s
    assert max(late_s) < LATE_S_MAX + BUSY_S, late_s


def retry(stage: Stage) -> None:
    client, topic, once, dead = stage.main, stage.topic, 3, 5
    client.push(topic, topic, group=topic, refuse=f"{once}:1,{dead}:99")
    stage.wait_members(1)
    # One by one: the C++ client sends back whatever came with the same pull.
    client.produce(topic, 1, first=once)
    client.wait_got(topic, 1)
    client.produce(topic, 1, first=dead)
    client.driver.wait(
        lambda: len(runs(client, "refused", topic, dead)) > TRIES_MAX,
        f"{TRIES_MAX + 1} attempts at {dead}",
        timeout_s=90,
    )
    with RawClient(client.server.address) as raw:
        dead_topic = f"%DLQ%{topic}"
        stage.wait(lambda: raw.max_offset(dead_topic, 0) == 1, "a dead letter")
        assert [body_of(record) for record in raw.read_queue(dead_topic, 0)] == [b"5"]
    (again,) = client.driver.messages("got", topic)
    assert (again.number, again.tries, again.topic) == (once, 1, topic)
    attempts = runs(client, "refused", topic, dead)
    assert [m.tries for m in attempts] == list(range(TRIES_MAX + 1))
    assert {m.topic for m in attempts} == {topic}


def orderly_retry(stage: Stage) -> None:
    client, topic = stage.main, stage.topic
    client.produce(topic, 40)
    stage.begin_at_zero()
    client.push(topic, topic, group=topic, mode="orderly", refuse="8:3")
    client.wait_got(topic, 40)
    assert by_queue(client.driver.messages("got", topic)) == as_sent(0, 40)
    begun = by_queue(client.driver.messages("begun", topic))
    assert begun == as_sent(0, 40) | {0: [0, 4, 8, 8, 8, *range(8, 40, 4)]}


def orderly_dead(stage: Stage) -> None:
    client, topic = stage.main, stage.topic
    client.produce(topic, 40)
    stage.begin_at_zero()
    client.push(topic, topic, group=topic, mode="orderly", refuse="8:99", tries=2)
    client.wait_got(topic, 39)
    expected = as_sent(0, 40)
    expected[0].remove(8)
    assert by_queue(client.driver.messages("got", topic)) == expected
    with RawClient(client.server.address) as raw:
        stage.wait(lambda: raw.max_offset(f"%DLQ%{topic}", 0) == 1, "a dead letter")
        assert [body_of(record) for record in raw.read_queue(f"%DLQ%{topic}", 0)] == [b"8"]


def runs(client: Client, kind: str, name: str, number: int) -> list[Message]:
    """Return what a consumer said about one number."""
    return [m for m in client.driver.messages(kind, name) if m.number == number]


SCENARIOS = [
    Scenario(
        "ordered",
        "an ordered consumer handles 400 messages while they are sent: each once, each queue in "
        "order",
        ordered,
        {NODE: NO_ORDER},
    ),
    Scenario(
        "backlog",
        "1,000 messages lie there when it starts: each once, each queue in order; a clean stop has "
        "committed all",
        backlog,
    ),
    Scenario(
        "kill",
        f"one of two members gets kill -9: the other has its queues within {TAKE_OVER_S_MAX:.0f} "
        "s, nothing is lost, first deliveries are in order",
        kill,
    ),
    Scenario(
        "rejoin",
        "one of two members gets kill -9 and starts again under its name: it has its queues within "
        f"{RETURN_S_MAX:.0f} s, nothing is lost, first deliveries are in order",
        rejoin,
    ),
    Scenario("tag", "two of three tags are subscribed: no other comes, each queue in order", tag),
    Scenario(
        "delay",
        f"messages with delay levels 1 and 2: none early, none later than {LATE_S_MAX:.0f} s",
        delay,
    ),
    Scenario(
        "retry",
        "a message that is refused once comes again under its own topic; one that always is comes "
        f"{TRIES_MAX} times again and is a dead letter then",
        retry,
    ),
    Scenario(
        "orderly-retry",
        "a message that is refused three times holds up its queue and no other",
        orderly_retry,
        {NODE: NO_ORDER},
    ),
    Scenario(
        "orderly-dead",
        "with a maximum of two retries a message that is always refused becomes a dead letter, and "
        "its queue continues",
        orderly_dead,
        {NODE: NO_ORDER, CPP: "it has no maximum for ordered messages, it tries for ever"},
    ),
]

HEAD = """\
# What RocketMQ clients do

Generated by `python -m tests.interop.scenarios`; do not edit. `make interop` plays every cell that
says yes (`tests/interop/test_rocketmq_scenarios.py`) with RocketMQ clients and `inorder up`. The
delay levels there are 1, 2, 3 and then fifteen times 1 second. [How to use
the clients](../howto/stock-clients.md).

"""
CANNOT = """
A client that has no ordered consumer plays *backlog*, *kill*, *rejoin*, *tag* and *delay* without
order; after a kill it may then see messages in another order.

"""


def page() -> str:
    """Return the page of the table."""
    names = [kind.name.removesuffix("-json") for kind in KINDS]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    reasons: list[str] = []
    for scenario in SCENARIOS:
        cells = []
        for kind in KINDS:
            if (reason := scenario.cannot.get(kind.name)) is None:
                cells.append("yes")
                continue
            if (text := f"{kind.name}: {reason}.") not in reasons:
                reasons.append(text)
            cells.append(f"no ({reasons.index(text) + 1})")
        lines.append(f"| **{scenario.name}**: {scenario.what} | {' | '.join(cells)} |")
    notes = [f"{number}. {text}" for number, text in enumerate(reasons, 1)]
    return HEAD + "\n".join(lines) + "\n" + CANNOT + "\n".join(notes) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
