"""What a batch of `process_in_order` made of parked keys, told to the brokers.

It is told after the batch is decided, and told again if the batch is repeated: the broker knows a
message that was parked by its queue and offset until the group has committed the batch, and what
was redriven and let go changes nothing a second time.
"""

from __future__ import annotations

import time
from typing import Any, Final

from inorder.errors import InorderError, LeaseLost, UsageError
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.spark.cluster import Cluster
from inorder.spark.state.messages import Letter
from inorder.spark.state.parking import Aside, Redone
from inorder.spark.state.versions import Version
from inorder.wire.fields import decode_fields
from inorder.wire.header import Command
from inorder.wire.requests import parking as requests
from inorder.wire.requests.parking import (
    ITEMS_MAX,
    KeyList,
    NamedKey,
    ParkAnswer,
    ParkBody,
    ParkItem,
    QueuePlace,
    RedrivenBody,
)

log = get_logger(__name__)

FULL_TRIES: Final = 5
FULL_PAUSE_S: Final = 1.0
_JOB: Final = ("job", "")
_NO_MORE: Final = "its key was let go while it was on its way to it"


class ParkingFull(InorderError):
    """What a batch decided to park has no room; it is tried again when the query is."""


class Reports:
    """Tells the brokers of a group."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._group = cluster.group

    def carry_out(self, queue: TopicQueue, version: Version) -> list[tuple[int, Letter]]:
        """Tell the broker what a batch decided; return what it cannot park any more, numbered."""
        for redone in version.redone:
            self._tell(queue, redone)
        gone = self._park(queue, version.asides, version.last + 1)
        for redone in version.redone:
            if redone.live:
                self._let_go(queue, redone.key, redone.end)
                log.info(
                    "key is live again group=%s queue=%s key=%s", self._group, queue, redone.key
                )
        return gone

    def _tell(self, queue: TopicQueue, redone: Redone) -> None:
        """Say which messages were handled again, of each list, and whether the next one failed."""
        for drained in redone.lists:
            at = TopicQueue(queue.topic, *drained.home)
            self._redriven(at, redone.key, drained.done, heir=drained.heir is not None)
            if drained.heir is not None and drained.closed:
                heir = TopicQueue(queue.topic, *drained.heir)
                if not drained.stale:
                    self._let_go(at, redone.key, 1 << 62, heir=True)
                body = RedrivenBody(older=QueuePlace(*drained.home))
                self._redriven_by(heir, redone.key, body, heir=heir != queue)
        if redone.error is not None:
            self._redriven_by(queue, redone.key, RedrivenBody(error=redone.error))
            log.warning(
                "redrive ended, the key stays parked group=%s queue=%s key=%s: %s",
                self._group, queue, redone.key, redone.error,
            )  # fmt: skip

    def _redriven(
        self, queue: TopicQueue, key: str, done: list[int], *, heir: bool = False
    ) -> None:
        for at in range(0, len(done), ITEMS_MAX):
            self._redriven_by(queue, key, RedrivenBody(done[at : at + ITEMS_MAX]), heir=heir)

    def _redriven_by(
        self, queue: TopicQueue, key: str, body: RedrivenBody, *, heir: bool = False
    ) -> None:
        request = requests.Redriven(self._group, *_JOB, queue.topic, queue.index, 0, key, heir)
        self._order(queue, request, body.encode())

    def _let_go(self, queue: TopicQueue, key: str, end: int, *, heir: bool = False) -> None:
        request = requests.Unpark(self._group, *_JOB, queue.topic, queue.index, 0, key, end, heir)
        reply = decode_fields(requests.UnparkReply, self._order(queue, request).fields)
        if not reply.live:
            raise InorderError(
                f"parked key {key} of group {self._group} cannot go live: {reply.why}; somebody "
                "else parks messages of its queue"
            )

    def _park(self, queue: TopicQueue, asides: list[Aside], until: int) -> list[tuple[int, Letter]]:
        """Park messages in their order; those that have no room are tried again for a while."""
        gone: list[tuple[int, Letter]] = []
        waiting = list(enumerate(asides))
        for tried in range(1, FULL_TRIES + 1):
            waiting, why = self._park_all(queue, waiting, until, gone)
            if not waiting:
                return gone
            if tried < FULL_TRIES:
                time.sleep(FULL_PAUSE_S)
        raise ParkingFull(
            f"{len(waiting)} messages of queue {queue.broker}/{queue.index} of topic {queue.topic} "
            f"cannot be parked: {why}. Redrive or drop some (`inorder parked {self._group}`), and "
            "start the query again: it goes on where it was"
        )

    def _park_all(
        self,
        queue: TopicQueue,
        items: list[tuple[int, Aside]],
        until: int,
        gone: list[tuple[int, Letter]],
    ) -> tuple[list[tuple[int, Aside]], str]:
        """Return what had no room, with all that follows of its keys, and why."""
        left: list[tuple[int, Aside]] = []
        full: set[str] = set()
        why = ""
        for at in range(0, len(items), ITEMS_MAX):
            some = items[at : at + ITEMS_MAX]
            answer = self._ask_park(queue, [one for _, one in some], until)
            why = answer.remark or why
            for (number, one), outcome in zip(some, answer.outcomes, strict=True):
                if outcome == "full" or one.key in full:
                    full.add(one.key)
                    left.append((number, one))
                elif outcome == "live":
                    self._park_again(queue, one, until)
                elif outcome == "gone":
                    gone.append((number, self._letter(queue, one)))
                elif one.error is not None:
                    log.warning(
                        "key is parked group=%s queue=%s key=%s offset=%d tried=%d: %s; see "
                        "`inorder parked %s`", self._group, queue, one.key, one.offset, one.tries,
                        one.error, self._group,
                    )  # fmt: skip
        return left, why

    def _ask_park(self, queue: TopicQueue, asides: list[Aside], until: int) -> ParkAnswer:
        items = [ParkItem(one.offset, one.key, one.tries, one.error, None, until) for one in asides]
        request = requests.Park(self._group, *_JOB, queue.topic, queue.index, 0)
        return ParkAnswer.decode(self._order(queue, request, ParkBody(items).encode()).body)

    def _park_again(self, queue: TopicQueue, one: Aside, until: int) -> None:
        """Park a message whose key an operator dropped meanwhile, and ask for it: it comes next."""
        self._ask_park(queue, [Aside(one.offset, one.key, 0, _NO_MORE)], until)
        named = KeyList([NamedKey(queue.topic, queue.index, one.key)])
        self._order(queue, requests.Redrive(self._group), named.encode())

    def _letter(self, queue: TopicQueue, one: Aside) -> Letter:
        if one.message is None:
            raise InorderError(
                f"message {one.offset} of queue {queue.broker}/{queue.index} of topic "
                f"{queue.topic} is to be parked, and its broker does not have it any more"
            )
        cause = one.error or "its key is parked"
        return Letter(one.message, f"{cause}; it was not parked: its broker had removed it")

    def _order(self, queue: TopicQueue, request: Any, body: bytes = b"") -> Command:
        try:
            return self._cluster.ask(queue, request, body)
        except LeaseLost as error:
            raise UsageError(
                f"consumer {error.holder} of group {self._group} has queue {queue.broker}/"
                f"{queue.index} of topic {queue.topic}: a query parks and redrives keys only where "
                "no consumer does; give it a group of its own"
            ) from error
