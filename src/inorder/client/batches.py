"""One call of `send_batch`: messages grouped by queue, requests, and their receipts in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from inorder.client.ids import MessageIds
from inorder.client.outgoing import check_topic, compose_batch
from inorder.client.sending import Sending, Series
from inorder.client.state.lane import DONE
from inorder.config import ClientConfig
from inorder.errors import BatchIncomplete, InorderError, UsageError
from inorder.model import Message, SendReceipt, TopicQueue


class Batch:
    """Messages of one topic. `place` makes the requests, once the queues are known."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        messages: list[Message],
        numbers: Sequence[int],
        deadline_ms: int,
        born_at_ms: int,
        message_ids: MessageIds,
        config: ClientConfig,
        on_failure: Callable[[int], None],
    ) -> None:
        self._messages = messages
        self._numbers = numbers
        self._deadline_ms = deadline_ms
        self._born_at_ms = born_at_ms
        self._message_ids = message_ids
        self._config = config
        self._on_failure = on_failure
        self._parts: list[tuple[list[int], asyncio.Future[Any]]] = []
        self._placed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def place(self, targets: list[tuple[TopicQueue, int]]) -> list[tuple[TopicQueue, int, Sending]]:
        """Return the requests, given the queue of each message and the version of its map."""
        groups: dict[TopicQueue, list[int]] = {}
        versions: dict[TopicQueue, int] = {}
        for index, (queue, version) in enumerate(targets):
            groups.setdefault(queue, []).append(index)
            versions[queue] = max(version, versions.get(queue, 0))
        made = [
            (queue, versions[queue], one)
            for queue, indexes in groups.items()
            for one in self._requests(indexes)
        ]
        if not self._placed.done():
            self._placed.set_result(None)
        return made

    def _requests(self, indexes: list[int]) -> list[Sending]:
        members = [self._messages[index] for index in indexes]
        ids = [self._message_ids.at(self._born_at_ms) for _ in members]
        numbers = [self._numbers[index] for index in indexes] if self._numbers else ()
        parts = compose_batch(members, ids, self._born_at_ms, self._config, sequences=numbers)
        series, first, made = Series(self.divide), 0, []
        for part in parts:
            end = first + part.count
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            made.append(
                Sending(
                    members[0].topic, None, part, None, self._deadline_ms, future,
                    messages=members[first:end], series=series,
                )
            )  # fmt: skip
            self._parts.append((indexes[first:end], future))
            first = end
        return made

    def divide(self, sending: Sending, groups: Sequence[Sequence[int]]) -> list[Sending]:
        """Return a request for each group of messages of one that is not stored; it is over then.

        A group names places in the request, in their order.
        """
        at = next(at for at, part in enumerate(self._parts) if part[1] is sending.waiter)
        indexes, old = self._parts[at]
        parts: list[tuple[list[int], asyncio.Future[Any]]] = []
        made = []
        for group in groups:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            made.append(
                Sending(
                    sending.topic, None, sending.part.pick(group), None, self._deadline_ms, future,
                    messages=[(sending.messages or ())[place] for place in group],
                    series=sending.series,
                )
            )  # fmt: skip
            parts.append(([indexes[place] for place in group], future))
        self._parts[at : at + 1] = parts
        sending.over, sending.state = True, DONE
        if not old.done():
            old.set_result([])  # whoever waits looks at the new ones
        return made

    def fail(self, error: BaseException) -> None:
        """End the call: nothing of it was sent."""
        self._on_failure(len(self._messages))
        if not self._placed.done():
            self._placed.set_exception(error)

    async def receipts(self) -> list[SendReceipt]:
        """Wait for all requests; return the receipts in the order of the messages.

        Raises the error if there was one request, BatchIncomplete if some of several failed.
        """
        await self._placed
        parts: list[tuple[list[int], asyncio.Future[Any]]] = []
        while parts != self._parts:  # a request may have been divided meanwhile
            parts = list(self._parts)
            waiters = [future for _, future in parts]
            outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        return _in_order([indexes for indexes, _ in parts], outcomes)


def one_topic(messages: list[Message]) -> list[Message]:
    """Return the messages if they are of one topic, and it has a name."""
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
        if not isinstance(failure, InorderError) or len(outcomes) == 1:
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
