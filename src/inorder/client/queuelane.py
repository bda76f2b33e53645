"""The lane of a queue with what the shell keeps beside it: a producer's id, frames, pauses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inorder.client.sending import Sending
from inorder.client.state.lane import DONE, Lane
from inorder.errors import UsageError
from inorder.model import TopicQueue
from inorder.tasks import Backoff
from inorder.wire.requests.sendframes import SendTemplate
from inorder.wire.requests.sends import BatchItem, encode_batch

if TYPE_CHECKING:
    from inorder.client.link import Link


class QueueLane(Lane[Sending]):
    """The lane of a queue, with what the shell keeps beside it."""

    __slots__ = (
        "backoff",
        "before",
        "behind",
        "draining",
        "forgotten",
        "highest",
        "highest_failed",
        "link",
        "moved",
        "paused",
        "producer_id",
        "queue",
        "ready",
        "syncing",
        "template",
    )

    def __init__(
        self, link: Link, queue: TopicQueue, template: SendTemplate, producer_id: str, *,
        window: int, named: bool, backoff: Backoff,
    ) -> None:  # fmt: skip
        super().__init__(window, named=named)
        self.link = link
        self.queue = queue
        self.template = template
        self.backoff = backoff
        self.ready = False  # the broker was told who we are, and how far it is is known
        self.syncing = False
        self.behind: QueueLane | None = None  # what must be settled first: see expressway.py
        self.before: QueueLane | None = None  # the one that waits for this
        self.draining = False  # keys have left this queue: see Delivery.lane_drained
        self.paused = False  # after a refusal that may pass
        self.forgotten = False  # the broker said so; a new id when all is answered
        self.highest = -1  # named: the highest number that a caller gave
        self.highest_failed = False  # and its caller was told of a failure: it may come again
        self.moved: deque[Sending] = deque()  # of keys that left this queue, until it is drained
        self.producer_id = ""
        self.use_id(producer_id)

    def use_id(self, producer_id: str) -> None:
        """Number messages as this producer."""
        self.producer_id = producer_id
        self.template.set_producer(producer_id, named=self.named)

    @property
    def settled_all(self) -> bool:
        """Tell whether nothing is left in it."""
        return all(one.state == DONE for one in (*self.sent, *self.waiting, *self.moved))

    @property
    def idle(self) -> bool:
        """Tell whether nobody waits for anything here, nor behind it."""
        return super().idle and all(one.state == DONE for one in self.moved)

    @property
    def drained(self) -> bool:
        """Tell whether nothing is in flight and nothing unknown."""
        return not self.in_flight and not self.unknown

    def withdraw(self, which: Callable[[Sending], bool]) -> list[Sending]:
        """Take those out that wait and are such."""
        taken = [one for one in self.waiting if one.state != DONE and which(one)]
        if taken:
            gone = set(map(id, taken))
            left = [one for one in self.waiting if id(one) not in gone]
            self.waiting.clear()
            self.waiting.extend(left)
        return taken

    def frame(self, request_id: int, sending: Sending, *, oneway: bool) -> bytes:
        """Return the frame of an entry that `next` gave out."""
        part = sending.part
        body, items = part.body, part.items
        numbers: tuple[int, ...] = ()
        if items is not None:
            body = encode_batch(self._numbered(sending, items) if self.numbered else items)
        elif self.numbered:
            numbers = (sending.number, sending.previous) if self.named else (sending.number,)
        return self.template.frame(
            request_id,
            part.properties,
            body,
            numbers=numbers,
            sys_flag=part.sys_flag,
            flag=part.flag,
            born_at_ms=part.born_at_ms,
            batch=items is not None,
            oneway=oneway,
            placed=sending.placed,
        )

    def _numbered(self, sending: Sending, items: Sequence[BatchItem]) -> list[BatchItem]:
        """Return the items of a batch with the properties that number them."""
        mark = self.template.item_mark
        if not self.named:
            return [
                BatchItem(item.flag, item.body, item.properties + mark % number)
                for number, item in enumerate(items, sending.number)
            ]
        sequences = sending.part.sequences
        before = (sending.previous, *sequences[:-1])
        return [
            BatchItem(item.flag, item.body, item.properties + mark % (number, previous))
            for number, previous, item in zip(sequences, before, items, strict=True)
        ]

    def check_sequence(self, sending: Sending) -> None:
        """Refuse a caller's number that a later one of this queue has passed."""
        number = sending.number
        if number < self.highest or (number == self.highest and not self.highest_failed):
            raise UsageError(
                f"sequence {number} of {self.queue} comes after {self.highest}; sequences of a "
                "queue only grow"
            )
        self.highest, self.highest_failed = sending.last, False

    def may_come_again(self, sending: Sending) -> None:
        """Let a caller that was told of a failure go on from there."""
        if sending.number <= self.highest:
            self.highest, self.highest_failed = sending.number, True
