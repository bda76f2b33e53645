"""The fence of a key's messages over resizes, lost tails and hand-overs, at random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inorder.model import ReceivedMessage, TopicQueue
from inorder.ordering.fence import QueueFence
from inorder.ordering.keymap import KeyMap
from inorder.wire.requests.leases import VersionSpan

BROKERS = ("broker-a", "broker-b")


class Log:
    """What one broker has: queues with their ends, a generation, spans."""

    def __init__(self) -> None:
        self.generation = 0
        self.ends: dict[int, int] = {}
        self.spans: dict[int, list[VersionSpan]] = {}

    def open(self, queue: int, version: int) -> None:
        """Let a queue belong to a version from its end on."""
        end = self.ends.setdefault(queue, 0)
        spans = self.spans.setdefault(queue, [])
        spans.append(VersionSpan(end, version, self.generation))

    def lose(self, queue: int, count: int) -> None:
        """A power cut took the tail: a new generation begins at the recovered end."""
        self.generation += 1
        for each, spans in self.spans.items():
            if each == queue:
                self.ends[each] = max(0, self.ends[each] - count)
            end, version = self.ends[each], spans[-1].version
            spans[:] = [known for known in spans if known.from_offset < end]
            spans.append(VersionSpan(end, version, self.generation))


@given(
    st.lists(st.sampled_from(["send", "send", "send", "resize", "lose"]), max_size=40), st.data()
)
def test_sequences_grow_along_a_key(steps, data) -> None:  # type: ignore[no-untyped-def]
    """Whatever queue a key lies in, and whatever offsets are used again, its numbers grow."""
    logs = {name: Log() for name in BROKERS}
    version, last = 0, {"a": -1, "b": -1, "c": -1}
    key_map: KeyMap | None = None
    for step in ["resize", *steps]:
        if step == "resize":
            version += 1
            counts = {name: data.draw(st.integers(1, 3)) for name in BROKERS}
            places = [(name, index) for name in BROKERS for index in range(counts[name])]
            key_map = KeyMap.of(version, places)
            for name, index in places:
                logs[name].open(index, version)
        elif step == "lose":
            name = data.draw(st.sampled_from(BROKERS))
            queue = data.draw(st.sampled_from(sorted(logs[name].ends)))
            logs[name].lose(queue, data.draw(st.integers(0, 3)))
        else:
            assert key_map is not None
            key = data.draw(st.sampled_from(sorted(last)))
            name, index = key_map.queue(key)
            log = logs[name]
            offset, log.ends[index] = log.ends[index], log.ends[index] + 1
            queue = TopicQueue("orders", name, index)
            fences = QueueFence(queue, 1, log.spans[index], key_map=lambda known=key_map: known)
            message = ReceivedMessage(
                "orders", queue, offset, b"", {"__SHARDINGKEY": key}, "id", 0, 0
            )
            number = fences.of(message).sequence
            assert number is not None
            assert number > last[key]
            last[key] = number
