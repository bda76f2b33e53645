"""Requests of idempotent producers: hello (7100), state (7101), drop (7102), list (7103).

Their sends are judged in `service.py`. Why: decision 10.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from inorder.broker.producers.rules import RUNS_MAX
from inorder.broker.producers.service import last_position
from inorder.errors import InvalidParameter, ProducerUnknown
from inorder.logs import get_logger
from inorder.ordering.sequence import expected
from inorder.wire.extensions import PROTOCOL
from inorder.wire.fields import encode_fields
from inorder.wire.frame import encode_frame
from inorder.wire.requests.producers import (
    PRODUCER_ID_CHARS_MAX,
    NamedProducer,
    ProducerDrop,
    ProducerDropReply,
    ProducerHello,
    ProducerHelloReply,
    ProducerList,
    ProducerState,
    ProducerStateReply,
    encode_named_producers,
    offsets_text,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command

logger = get_logger(__name__)

NAMES_LISTED_MAX = 10_000
PLACES_MAX = RUNS_MAX
"""Of how many messages one answer tells the places: a producer has no more in flight."""


def hello(call: Call[ProducerHello]) -> Command:
    """Bind a producer to this connection; its earlier connections may not send any more."""
    request = call.request
    _check_id(request.producer_id)
    if request.incarnation < 0:
        raise InvalidParameter(f"incarnation {request.incarnation} is below 0")
    producer = call.broker.producers.hello(
        request.producer_id,
        request.incarnation,
        call.connection,
        named=request.named,
        memory=request.memory,
        protocol=request.protocol,
    )
    reply = ProducerHelloReply(PROTOCOL, producer.highest, call.broker.producers.memory, batches=1)
    return call.reply(fields=encode_fields(reply))


def _check_id(producer_id: str) -> None:
    if (
        not 0 < len(producer_id) <= PRODUCER_ID_CHARS_MAX
        or "\x01" in producer_id
        or "\x02" in producer_id
    ):
        raise InvalidParameter(
            f"a producer's id has 1 to {PRODUCER_ID_CHARS_MAX} characters and neither \\x01 nor "
            "\\x02 in it"
        )


async def state(call: Call[ProducerState]) -> Command | None:
    """Return what is stored of a producer on a queue.

    It waits for the open tick, which may still be undone. Where messages lie it tells once they are
    safe, because their senders take the answer for a receipt.
    """
    request = call.request
    place = (request.producer_id, request.topic, request.queue_id)
    state = call.broker.producers.queue_state(*place)
    while state is not None and state.last != state.settled_last:
        await asyncio.sleep(0)
        state = call.broker.producers.queue_state(*place)
    if state is None:
        reply = ProducerStateReply(False, 0, -1)
    else:
        named = state.producer.named
        reply = ProducerStateReply(True, expected(state.last, named=named), state.last)
        if 0 <= request.since <= state.last:
            places = offsets_text(state.places(request.since, PLACES_MAX))
            answer = call.reply(
                fields=encode_fields(msgspec.structs.replace(reply, offsets=places))
            )
            position = last_position(call.broker.store, state)
            call.broker.ticks.reply_again(call.connection, encode_frame(answer), position)
            return None
    return call.reply(fields=encode_fields(reply))


def drop(call: Call[ProducerDrop]) -> Reply:
    """Forget a named producer; the reply follows when no crash can bring it back."""
    producer_id = call.request.producer_id
    queues = call.broker.producers.drop_name(producer_id)
    if queues is None:
        raise ProducerUnknown(f"there is no producer named {producer_id}")
    logger.info("producer=%s dropped peer=%s", producer_id, call.connection.peer)
    return _answer_saved(call.broker, call.reply(fields=encode_fields(ProducerDropReply(queues))))


async def _answer_saved(broker: Broker, answer: Command) -> Command:
    await broker.producer_snapshot.save_now()
    return answer


def list_names(call: Call[ProducerList]) -> Command:
    """Return the named producers and what is stored of each, as JSON."""
    prefix = call.request.prefix
    names = [name for name in call.broker.producers.names if name.startswith(prefix)]
    listed = []
    for name in names[:NAMES_LISTED_MAX]:
        producer = call.broker.producers.find(name)
        assert producer is not None, "it was listed a moment ago"
        last = {place: state.settled_last for place, state in sorted(producer.queues.items())}
        listed.append(NamedProducer(name, producer.connection is not None, last))
    return call.reply(fields={}, body=encode_named_producers(listed, len(names)))
