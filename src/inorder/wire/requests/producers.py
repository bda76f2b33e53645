"""Idempotent sending: hello, state, drop, list. See `wire/extensions.py`."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.extensions import ExtensionCode


class ProducerHello(msgspec.Struct, frozen=True):
    """Bind a producer to this connection; the first request on a connection, and alone.

    From its answer on, the sends of this producer over connections of lower incarnations are
    refused. The answer carries the capability.
    """

    CODE: ClassVar = ExtensionCode.PRODUCER_HELLO

    producer_id: str
    incarnation: int
    named: bool = False
    memory: int = -1
    """`memory` of the answer to this producer's first hello to this broker; -1 in the first.

    If the broker has forgotten producers since, and knows nothing of this one, it answers
    PRODUCER_UNKNOWN: what was sent and not confirmed may be stored, and nobody can tell.
    """
    protocol: int = 1
    """What this producer's sends say; see `PROTOCOL`."""


class ProducerHelloReply(msgspec.Struct, frozen=True):
    """The broker speaks our protocol; `highest` is the incarnation that counts now."""

    inorder: int
    highest: int
    memory: int = 0
    """Changes whenever the broker forgets a producer; see `ProducerHello.memory`."""


class ProducerState(msgspec.Struct, frozen=True):
    """Ask for the numbers of a producer on one queue."""

    CODE: ClassVar = ExtensionCode.PRODUCER_STATE

    producer_id: str
    topic: str
    queue_id: int


class ProducerStateReply(msgspec.Struct, frozen=True):
    """`expected`: the next number (anonymous; 0 if unknown). `last`: the last stored, -1 if none.

    `known` is false if the broker has no state of this producer on this queue.
    """

    known: bool
    expected: int
    last: int


class ProducerDrop(msgspec.Struct, frozen=True):
    """Forget a named producer; the answer says on how many queues it was known."""

    CODE: ClassVar = ExtensionCode.PRODUCER_DROP

    producer_id: str


class ProducerDropReply(msgspec.Struct, frozen=True):
    """How many queues knew it."""

    queues: int


class ProducerList(msgspec.Struct, frozen=True):
    """List named producers; the body of the answer is JSON."""

    CODE: ClassVar = ExtensionCode.PRODUCER_LIST

    prefix: str = ""
