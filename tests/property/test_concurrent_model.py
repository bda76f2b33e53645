"""Concurrent handlers in any order: the offset passes nothing that is not done or sent back."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.client.consume.rules.leases import LeaseState
from inorder.client.consume.rules.outcomes import after_concurrent_send_back, conclude
from inorder.client.consume.rules.queue import QueueProgress
from inorder.model import ReceivedMessage, TopicQueue

QUEUE = TopicQueue("orders", "broker-a", 0)
MESSAGES = 24


@settings(deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 4))
def test_the_offset_waits_for_the_slowest(seed: int, broadcasting: bool, size: int) -> None:
    """Batches end in any order, partly done, sent back or not: nothing is passed or forgotten."""
    random, progress, lease = Random(seed), QueueProgress(0), LeaseState(QUEUE, now_ms=0)
    progress.put(
        [ReceivedMessage("orders", QUEUE, at, b"", {}, "", 0, 0) for at in range(MESSAGES)],
        MESSAGES,
    )
    running: list[list[ReceivedMessage]] = []
    done: set[int] = set()
    committed = 0
    for _ in range(100 * MESSAGES):
        if random.random() < 0.4 and (batch := progress.take(size, 0)):
            running.append(batch)
            continue
        if not running:
            continue
        batch = running.pop(random.randrange(len(running)))
        good = random.randint(0, len(batch))
        found = conclude(progress, lease, batch, done=good, broadcasting=broadcasting, now_ms=0)
        assert not done & {one.offset for one in batch}, "handled after it was done"
        done |= {one.offset for one in (*found.done, *found.dropped)}
        assert bool(found.dropped) <= broadcasting
        if found.send_back:
            assert progress.done_below == committed, "nothing is committed before the answer"
            sent = {one.offset for one in found.send_back if random.random() < 0.6}
            done |= sent
            retry = after_concurrent_send_back(progress, lease, found, sent, now_ms=0)
            if retry:
                running.append(list(retry))
        commit = progress.done_below
        assert commit == min(set(range(MESSAGES)) - done, default=MESSAGES)
        assert commit >= committed
        committed = commit
    assert (committed, progress.count, running) == (MESSAGES, 0, [])
