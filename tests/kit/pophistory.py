"""What consumers that pop in order know of their batches, and the judge of it.

A batch is known by the instants of its consumer: its invisible time ends no earlier than counted
from the sending of the pop, and it was given no later than its answer came. All times are
nanoseconds of one clock. The judge looks at one group; a batch is one queue's part of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

CLOCK_NS: Final = 2_000_000
"""How much a broker that counts whole milliseconds may be off."""


@dataclass(eq=False)
class Grant:
    """What a pop took from one queue, as the client that took it knows it."""

    client: str
    attempt: str
    topic: str
    queue_id: int
    token: int
    offsets: tuple[int, ...]
    sent_ns: int
    at_ns: int
    """When the answer came."""
    until_ns: dict[int, int] = field(default_factory=dict)
    """Until when each message is invisible at least."""
    asked: dict[int, int] = field(default_factory=dict)
    """When the first acknowledgement of each message was sent."""
    taken: dict[int, int] = field(default_factory=dict)
    """When the first acknowledgement of each message was answered with success."""

    def __str__(self) -> str:
        offsets = f"{self.offsets[0]}-{self.offsets[-1]}"
        return f"{self.topic}/{self.queue_id} {offsets} token {self.token} of {self.client}"

    def held_until(self, at_ns: int) -> int:
        """Return until when it held its queue at least, as it was known at a time."""
        left = [
            until_ns
            for offset, until_ns in self.until_ns.items()
            if self.asked.get(offset, at_ns) >= at_ns
        ]
        return max(left, default=0)


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement, or a change, of messages of one batch; code None: nobody knows."""

    grant: Grant
    offsets: tuple[int, ...]
    sent_ns: int
    at_ns: int
    code: int | None


@dataclass(eq=False)
class Reset:
    """An operator's reset of a queue."""

    queue_id: int
    target: int
    sent_ns: int
    position: int
    """How far the queue had been handed out."""
    answered: bool = False


@dataclass
class PopHistory:
    """All that a run of orderly POP knows of batches."""

    grants: list[Grant] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    changes: list[Ack] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    elsewhere: dict[int, dict[int, int]] = field(default_factory=dict)
    """When an owner that does not pop was done with an offset, by queue."""

    def add(self, grant: Grant) -> Grant:
        """Note a batch and return it; the same attempt under the same token is the same batch.

        Under another token it takes the place of the batch of before.
        """
        for before in reversed(self.grants):
            if (before.queue_id, before.attempt) == (grant.queue_id, grant.attempt):
                if before.token == grant.token:
                    return before
                before.until_ns.clear()
                break
        self.grants.append(grant)
        return grant

    def successor(self, ack: Ack) -> Grant | None:
        """Return the batch that had come by when an acknowledgement of an older one was sent."""
        for one in self._of(ack.grant.queue_id):
            if one.token > ack.grant.token and one.at_ns <= ack.sent_ns:
                return one
        return None

    @property
    def stale(self) -> int:
        """Return how many acknowledgements were refused that came after the next batch."""
        return sum(1 for one in self.acks if one.code and self.successor(one) is not None)

    def judge(self) -> Iterator[str]:
        """Yield what is wrong."""
        for queue_id in sorted({grant.queue_id for grant in self.grants}):
            grants = self._of(queue_id)
            for place, grant in enumerate(grants):
                yield from self._judge_grant(grant, grants[:place])
                yield from self._judge_begin(grant)
            yield from self._judge_acks(queue_id)
        for change in self.changes:
            if change.code == 0 and self.successor(change) is not None:
                yield f"{change.grant} was changed after it was over"

    def _of(self, queue_id: int) -> list[Grant]:
        """Return the batches of a queue in the order of their answers.

        That is the order in which they were given: who gets an answer after the end of the
        invisible time throws it away, and it is not here.
        """
        return [grant for grant in self.grants if grant.queue_id == queue_id]

    def _was_reset(self, queue_id: int, offset: int, until_ns: int) -> bool:
        """Tell whether an operator may have brought a message back before a time."""
        return any(
            one.queue_id == queue_id and one.target <= offset and one.sent_ns < until_ns
            for one in self.resets
        )

    def _judge_grant(self, grant: Grant, before: Iterable[Grant]) -> Iterator[str]:
        """A token above all before; no batch before it still out, or acknowledged in it."""
        if list(grant.offsets) != list(range(grant.offsets[0], grant.offsets[-1] + 1)):
            yield f"{grant} has holes: {grant.offsets}"
        for one in before:
            if one.attempt == grant.attempt:
                if one.token > grant.token:
                    yield f"the token of {grant} is below that of {one}"
                continue
            if one.token >= grant.token:
                yield f"the token of {grant} is not above that of {one}"
            held_ns = one.held_until(grant.at_ns) - CLOCK_NS
            if grant.at_ns < held_ns:
                yield f"{grant} came {(held_ns - grant.at_ns) / 1e6:.1f} ms before {one} was over"
            for offset in one.taken:
                if offset >= grant.offsets[0] and not self._was_reset(
                    grant.queue_id, offset, grant.at_ns
                ):
                    yield f"{offset} was acknowledged by {one}, and came again with {grant}"

    def _judge_begin(self, grant: Grant) -> Iterator[str]:
        """A batch begins at the first message that is not acknowledged: before it all is done."""
        done = {
            offset
            for one in self._of(grant.queue_id)
            for offset, at_ns in one.asked.items()
            if at_ns < grant.at_ns
        }
        elsewhere = self.elsewhere.get(grant.queue_id, {})
        done |= {offset for offset, at_ns in elsewhere.items() if at_ns < grant.at_ns}
        missing = set(range(grant.offsets[0])) - done
        if missing:
            yield f"{grant} begins behind {sorted(missing)[:9]}, which nobody acknowledged"

    def _judge_acks(self, queue_id: int) -> Iterator[str]:
        """No success under an old token, and none under two."""
        taken: dict[int, Ack] = {}
        for ack in self.acks:
            if ack.grant.queue_id != queue_id or ack.code != 0:
                continue
            successor = self.successor(ack)
            if successor is not None:
                yield f"{ack.grant} was acknowledged after {successor} had come"
            for offset in ack.offsets:
                first = taken.setdefault(offset, ack)
                if first.grant.token != ack.grant.token and not self._was_reset(
                    queue_id, offset, ack.sent_ns
                ):
                    yield f"{queue_id}/{offset} was acknowledged by {first.grant} and {ack.grant}"
