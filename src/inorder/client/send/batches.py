"""One call of `send_batch`: messages grouped by queue, requests, and their receipts in order.

A large batch gets its places in several turns of the loop, so that sockets are served in between.
It gets no more places than the producer's limit of waiting messages allows. In each queue nothing
is sent after a failed request of the batch. How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from inorder.client.send.messages import check_topic, check_topic_type, compose_batch
from inorder.client.send.queues import DONE, Choice, Send, Series
from inorder.config import ClientConfig
from inorder.errors import BatchIncomplete, InorderError, RequestTimeout, UsageError
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.wire.requests.sends import BatchItem

TURN_MESSAGES: Final = 8192
"""How many messages get their places in one turn of the loop, which takes about 10 ms."""


class Batch:
    """One call: messages of one topic. `place` makes the requests once the queues are known."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        messages: Sequence[Message],
        items: Sequence[BatchItem],
        message_ids: Sequence[str],
        numbers: Sequence[int],
        choice: Choice,
        deadline_ms: int,
        born_at_ms: int,
        config: ClientConfig,
        on_failure: Callable[[int, int], None],
    ) -> None:
        self.topic = messages[0].topic
        self.choice = choice
        self.deadline_ms = deadline_ms
        self.resume: Callable[[], None] = lambda: None  # is called when a turn is possible again
        self.together: TopicQueue | None = None  # the queue of the messages without a key
        self.size = _size(items)
        self._messages = messages
        self._items = items
        self._message_ids = message_ids
        self._numbers = numbers
        self._born_at_ms = born_at_ms
        self._config = config
        self._on_failure = on_failure
        self._parts: list[tuple[list[int], asyncio.Future[Any]]] = []
        self._next = 0  # position of the first message without a place
        self._end = 0  # where this turn ends
        self._open = 0  # messages with a place and without an outcome
        self.stalled = False  # too many of those: no further turn until some have their outcome
        self._version = 0
        self._series: dict[TopicQueue, Series] = {}
        self._earlier: list[Series] = []
        self._all_placed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # Places.

    @property
    def wanted(self) -> bool:
        """Return whether the caller still waits."""
        return not self._all_placed.cancelled()

    @property
    def placed(self) -> bool:
        """Return whether all messages have their places."""
        return self._next == len(self._messages)

    def turn(self) -> Sequence[Message]:
        """Return the messages of this turn; none if earlier ones must be settled first."""
        ahead = max(self._config.sends_waiting_max - self._open, 0)
        self.stalled = not ahead
        self._end = min(self._next + min(TURN_MESSAGES, ahead), len(self._messages))
        return self._messages[self._next : self._end]

    def place(self, targets: list[tuple[TopicQueue, int]]) -> list[tuple[TopicQueue, int, Send]]:
        """Return the requests of a turn, given each message's queue and the version of its map."""
        groups: dict[TopicQueue, list[int]] = {}
        versions: dict[TopicQueue, int] = {}
        for index, (queue, version) in enumerate(targets, self._next):
            groups.setdefault(queue, []).append(index)
            versions[queue] = max(version, versions.get(queue, 0))
        self._follow(max(versions.values(), default=self._version))
        made = [
            (queue, versions[queue], one)
            for queue, indexes in groups.items()
            for one in self._requests(queue, indexes)
        ]
        self._next = self._end
        if self.placed and not self._all_placed.done():
            self._all_placed.set_result(None)
        return made

    def _follow(self, version: int) -> None:
        """Follow a newer key map: a key may now be behind a failure in another queue."""
        if version != self._version:
            self._version = version
            self._earlier += self._series.values()
            self._series = {}

    def _requests(self, queue: TopicQueue, indexes: list[int]) -> list[Send]:
        series = self._series.get(queue)
        if series is None:
            series = self._series[queue] = Series(self.divide, tuple(self._earlier))
        items = [self._items[index] for index in indexes]
        ids = [self._message_ids[index] for index in indexes]
        numbers = [self._numbers[index] for index in indexes] if self._numbers else ()
        parts = compose_batch(items, ids, self._born_at_ms, self._config, sequences=numbers)
        first, made = 0, []
        for part in parts:
            end = first + part.count
            future = self._future(part.count)
            send = Send(
                self.topic, None, part, None, self.deadline_ms, future,
                messages=[self._messages[index] for index in indexes[first:end]], series=series,
            )  # fmt: skip
            send.size = _size(part.items or ())
            made.append(send)
            self._parts.append((indexes[first:end], future))
            first = end
        return made

    def _future(self, count: int) -> asyncio.Future[Any]:
        """Return the future of a request with `count` messages."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open += count
        future.add_done_callback(lambda _: self._settled(count))
        return future

    def _settled(self, count: int) -> None:
        self._open -= count
        if self.stalled and self._open <= self._config.sends_waiting_max // 2:
            self.stalled = False
            self.resume()

    def divide(self, send: Send, groups: Sequence[Sequence[int]]) -> list[Send]:
        """Replace a request that is not stored by one request for each group of its messages.

        A group lists positions in the request, in their order.
        """
        at = next(at for at, part in enumerate(self._parts) if part[1] is send.waiter)
        indexes, old = self._parts[at]
        parts: list[tuple[list[int], asyncio.Future[Any]]] = []
        made = []
        for group in groups:
            future = self._future(len(group))
            one = Send(
                send.topic, None, send.part.pick(group), None, self.deadline_ms, future,
                messages=[(send.messages or ())[place] for place in group],
                series=send.series,
            )  # fmt: skip
            one.size = _size(one.part.items or ())
            made.append(one)
            parts.append(([indexes[place] for place in group], future))
        self._parts[at : at + 1] = parts
        send.over, send.state = True, DONE
        if not old.done():
            old.set_result([])  # `receipts` then waits for the new ones
        return made

    def fail(self, error: BaseException) -> None:
        """End the call: messages without a place are not sent."""
        left = range(self._next, len(self._messages))
        self._next = len(self._messages)
        self._on_failure(len(left), _size(self._items[left.start :]))
        if not self._parts:
            if not self._all_placed.done():
                self._all_placed.set_exception(error)
            return
        if isinstance(error, RequestTimeout):
            error = RequestTimeout(
                f"the time was up before the last {len(left)} messages of the batch were sent"
            )
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        self._parts.append((list(left), future))
        if self._all_placed.done():  # the caller has gone
            future.exception()
        else:
            self._all_placed.set_result(None)

    async def receipts(self) -> list[SendReceipt]:
        """Wait for all requests; return the receipts in the order of the messages.

        Raises the error if there is one for all, BatchIncomplete if some of several failed.
        """
        try:
            await self._all_placed
        except asyncio.CancelledError:
            for _, future in self._parts:
                future.cancel()
            raise
        parts: list[tuple[list[int], asyncio.Future[Any]]] = []
        while parts != self._parts:  # a request may have been divided meanwhile
            parts = list(self._parts)
            waiters = [future for _, future in parts]
            outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        return _in_order([indexes for indexes, _ in parts], outcomes)


def _size(items: Sequence[BatchItem]) -> int:
    return sum([len(item.body) for item in items])


def one_topic(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages if they are messages of one topic with a valid name."""
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Sequence):
        raise UsageError(
            f"send_batch takes a list of messages, not a {type(messages).__name__}; "
            'give [inorder.Message("orders", b"paid", key="order-42"), …]'
        )
    for place, message in enumerate(messages):
        if not isinstance(message, Message):
            raise UsageError(
                f"message {place} of the batch is a {type(message).__name__}: "
                f"{message!r:.64}; give inorder.Message(topic, body, key=…)"
            )
        if type(message.topic) is not str:
            check_topic_type(message.topic, message.body)
    topics = {message.topic for message in messages}
    if len(topics) > 1:
        raise UsageError(f"a batch is of one topic, not of {', '.join(sorted(topics))}")
    for topic in topics:
        check_topic(topic)
    return messages


def _in_order(
    places: Sequence[list[int]], outcomes: Sequence[list[SendReceipt] | BaseException]
) -> list[SendReceipt]:
    """Put the receipts of all requests in the order of the messages; raise if some are missing."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures:
        same = len(failures) == len(outcomes) and all(one is failure for one in failures)
        if not isinstance(failure, InorderError) or same:
            raise failure
    found: dict[int, SendReceipt | BaseException] = {}
    for indexes, outcome in zip(places, outcomes, strict=True):
        for place, index in enumerate(indexes):
            found[index] = outcome if isinstance(outcome, BaseException) else outcome[place]
    in_order = [found[index] for index in range(len(found))]
    receipts = [outcome for outcome in in_order if isinstance(outcome, SendReceipt)]
    if failures:
        raise BatchIncomplete(
            f"{len(receipts)} of {len(in_order)} messages are stored; the first failure: "
            f"{failures[0]}; see .outcomes, and send the others again",
            in_order,
        )
    return receipts
