"""A directory that one broker left is opened by the other, both ways, stopped or killed."""

from __future__ import annotations

import json
import random
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.process import free_ports
from tests.interop.rawclient import BatchItem, RawClient, Stored, body_of, position_of
from tests.interop.rocketmq import SMALL_FILES, OurBroker, Running, ended, real_broker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ORDERS, BATCHES, BLOBS = "InteropOrders", "InteropBatches", "InteropBlobs"
QUEUES = {ORDERS: 5, BATCHES: 3, BLOBS: 2}
GROUPS = ("interop_group_a", "interop_group_b")
COMPRESSED = 0x301
OFFSETS_SAVED_TIMEOUT_S = 10
SHOWN_TIMEOUT_S = 10


@dataclass
class Written:
    """What was acknowledged: bodies by place, keys by topic."""

    bodies: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    keys: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def add(self, topic: str, stored: Stored, body: bytes, keys: str, *, step: int = 0) -> None:
        """Remember one acknowledged message."""
        place = (topic, stored.queue_id, stored.queue_offset + step)
        assert place not in self.bodies, f"two messages at {place}"
        self.bodies[place] = body
        for key in keys.split():
            self.keys.setdefault((topic, key), set()).add(body)


@dataclass(frozen=True)
class Seen:
    """What a broker serves."""

    records: dict[tuple[str, int], list[bytes]]
    ends: dict[tuple[str, int], tuple[int, int]]
    found: dict[tuple[str, str], set[bytes]]
    committed: dict[tuple[str, str, int], int | None]
    topics: dict[str, tuple[int, int, int]]


def write(client: RawClient, seed: int, written: Written) -> None:
    """Send singles, batches, large and compressed messages, and commit offsets."""
    rng = random.Random(seed)
    for number in range(1500):
        body = f"order {seed} {number} ".encode() + rng.randbytes(rng.randrange(1, 400))
        keys = f"k{seed}-{number} shared{seed}-{number % 97}"
        properties = {"UNIQ_KEY": _unique(seed, number), "KEYS": keys, "WAIT": "true"}
        if number % 3:
            properties["TAGS"] = f"Tag{number % 5}"
        if number % 7 == 0:
            properties["größe"] = "schön 漢字"
        stored = client.send_message(
            ORDERS, number % QUEUES[ORDERS], body, properties, flag=number % 4
        )
        written.add(ORDERS, stored, body, f"{keys} {properties['UNIQ_KEY']}")
    for number in range(60):
        items = [
            BatchItem(
                f"item {seed} {number} {step}".encode() * rng.randrange(1, 9),
                {"UNIQ_KEY": _unique(seed, 100_000 + number * 100 + step), "KEYS": f"b{seed}"},
            )
            for step in range(rng.randrange(1, 33))
        ]
        stored = client.send_batch(BATCHES, number % QUEUES[BATCHES], items)
        for step, item in enumerate(items):
            written.add(BATCHES, stored, item.body, item.properties["UNIQ_KEY"], step=step)
    for number in range(40):
        body = rng.randbytes(rng.choice([1, 5_000, 60_000, 200_000]))
        flags = COMPRESSED if number % 2 else 0
        body = zlib.compress(body) if flags else body
        key = f"blob{seed}-{number}"
        stored = client.send_message(
            BLOBS, number % QUEUES[BLOBS], body, {"KEYS": key, "TAGS": "Blob"}, sys_flag=flags
        )
        written.add(BLOBS, stored, body, key)
    for group in GROUPS:
        for queue_id in range(QUEUES[ORDERS]):
            offset = rng.randrange(1, 300)
            client.commit(group, ORDERS, queue_id, offset)
            written.committed[group, ORDERS, queue_id] = offset


def read(client: RawClient, written: Written) -> Seen:
    """Read everything back: all queues, a sample of the keys, the groups' offsets, the topics."""
    places = [(topic, queue) for topic, queues in QUEUES.items() for queue in range(queues)]
    keys = sorted(written.keys)[:: max(1, len(written.keys) // 400)]
    topics = client.topic_queues()
    return Seen(
        records={place: client.read_queue(*place) for place in places},
        ends={place: (client.min_offset(*place), client.max_offset(*place)) for place in places},
        found={key: client.query(*key) for key in keys},
        committed={place: client.committed(*place) for place in written.committed},
        topics={topic: topics[topic] for topic in QUEUES},
    )


def check(seen: Seen, written: Written, client: RawClient) -> None:
    """Compare what is served with what was acknowledged."""
    served = {
        (topic, queue_id, offset): body_of(record)
        for (topic, queue_id), records in seen.records.items()
        for offset, record in enumerate(records, start=seen.ends[topic, queue_id][0])
    }
    assert served == written.bodies
    for (topic, key), records in seen.found.items():
        wanted = written.keys[topic, key]
        assert wanted <= {body_of(record) for record in records}, f"query of {topic} {key}"
    assert seen.committed == written.committed
    for queue in seen.records.values():
        for record in queue[:: max(1, len(queue) // 20)]:
            assert client.view(position_of(record)) == record


def end(server: Running, how: str) -> None:
    """Stop the broker cleanly, or kill it."""
    if how == "kill":
        server.child.kill()
        return
    status = server.child.stop()
    assert not isinstance(server, OurBroker) or status == 0, server.child.output()


def wait_shown(client: RawClient, written: Written) -> None:
    """Wait until the last message is shown: RocketMQ builds its queues behind the answers."""
    deadline = time.monotonic() + SHOWN_TIMEOUT_S
    places = {(topic, queue_id) for topic, queue_id, _ in written.bodies}
    while sum(client.max_offset(*place) for place in places) < len(written.bodies):
        assert time.monotonic() < deadline, "some messages are never shown"
        time.sleep(0.05)


def wait_saved(store: Path, written: Written) -> None:
    """Wait until the committed offsets are in the file, so that a kill may not lose them."""
    deadline = time.monotonic() + OFFSETS_SAVED_TIMEOUT_S
    while time.monotonic() < deadline:
        if _saved_offsets(store) == written.committed:
            return
        time.sleep(0.1)
    pytest.fail(f"offsets were not saved: {_saved_offsets(store)} is not {written.committed}")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_each_broker_serves_what_the_other_left(tmp_path: Path, how: str) -> None:
    """Ours writes, theirs serves the same bytes and appends, ours serves all of it and appends."""
    store, port = tmp_path / "store", free_ports(1, apart=(-2, 0, 1))[0]
    written = Written()
    turns: list[Callable[[], Running]] = [
        lambda: OurBroker(tmp_path, store=store, port=port, settings=SMALL_FILES),
        lambda: real_broker(tmp_path, store=store, port=port, settings=SMALL_FILES),
        lambda: OurBroker(tmp_path, store=store, port=port, settings=SMALL_FILES),
        lambda: real_broker(tmp_path, store=store, port=port, settings=SMALL_FILES),
    ]
    _take_turns(turns, how, store, written)
    assert len(list((store / "commitlog").iterdir())) > 5
    assert len(list((store / "index").iterdir())) > 1


def _take_turns(
    turns: list[Callable[[], Running]], how: str, store: Path, written: Written
) -> None:
    """Let each broker read what was left, write its own, read again, and end."""
    before: Seen | None = None
    for turn, start in enumerate(turns):
        server = start()
        with ended(server), RawClient(server.address, timeout_s=30) as client:
            if before is None:
                for topic, queues in QUEUES.items():
                    client.create_topic(topic, queues)
                for group in GROUPS:
                    client.create_group(group)
            else:
                seen = read(client, written)
                assert seen.records == before.records, f"turn {turn}: records differ"
                assert seen.ends == before.ends
                assert seen.committed == before.committed
                assert seen.topics == before.topics
                check(seen, written, client)
            write(client, seed=turn, written=written)
            wait_shown(client, written)
            before = read(client, written)
            check(before, written, client)
            wait_saved(store, written)
            end(server, how)


def _unique(seed: int, number: int) -> str:
    return f"7F000001{seed:08X}{number:016X}"


def _saved_offsets(store: Path) -> dict[tuple[str, str, int], int]:
    """Read consumerOffset.json, whose numbers as keys have no quotes when Java wrote it."""
    path = store / "config" / "consumerOffset.json"
    try:
        text = re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', path.read_text())
        table = json.loads(text)["offsetTable"]
    except (FileNotFoundError, ValueError):  # between the old file and the new
        return {}
    return {
        (group, topic, int(queue_id)): offset
        for topic_at_group, offsets in table.items()
        for topic, group in [topic_at_group.split("@")]
        for queue_id, offset in offsets.items()
        if group in GROUPS
    }
