"""Dead letters of `process_in_order`: stored where those of a consumer are, each once.

A dead letter goes to queue 0 of `%DLQ%<group>` at the broker that it came from. It has its
properties, its original place, the number of its attempts and the cause. Query, queue, batch and
place make its sequence number, so a repeated batch stores no second copy. Apache RocketMQ has no
idempotent producers: there a repeated batch may store one. Why: decision 35.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from inorder.errors import TopicNotRouted
from inorder.logs import get_logger
from inorder.model import Message, TopicQueue
from inorder.spark.cluster import Cluster, Servers
from inorder.spark.ordered.rules import Letter, sequence
from inorder.wire import properties as names
from inorder.wire.extensions import DEAD_ERROR, DEAD_ORIGIN, DEAD_TRIES
from inorder.wire.names import dead_letter_topic

log = get_logger(__name__)

AT_ONCE: Final = 500
_NOT_COPIED: Final = frozenset(
    {
        names.KEYS, names.TAGS, names.UNIQ_KEY, names.SHARDING_KEY, names.WAIT, names.DELAY,
        names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC, names.TRAN_MSG,
        names.CLUSTER, names.MSG_REGION, names.TRACE_ON, names.MIN_OFFSET, names.MAX_OFFSET,
    }
)  # fmt: skip


def letter_message(letter: Letter, group: str) -> Message:
    """Return the message that is stored for a dead letter."""
    message = letter.message
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in _NOT_COPIED and not name.startswith("INORDER_")
    }
    properties.setdefault(names.RETRY_TOPIC, message.topic)
    if message.message_id:
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    properties[DEAD_ORIGIN] = f"{message.topic}/{message.broker}/{message.queue}/{message.offset}"
    properties[DEAD_TRIES] = str(message.attempt)
    properties[DEAD_ERROR] = _one_line(letter.cause)
    keys = tuple((message.keys or "").split())
    return Message(
        dead_letter_topic(group), message.body, message.key, message.tag, keys, properties
    )


def _one_line(text: str) -> str:
    return " ".join(text.replace("\x01", " ").replace("\x02", " ").split()) or "unknown"


def send_dead_letters(
    servers: Servers,
    group: str,
    producer_name: str,
    batch: int,
    letters: Sequence[Letter],
    *,
    start: int = 0,
) -> None:
    """Store dead letters in their order; those that are stored already are left out.

    `start` is the number of the first one within its batch.
    """
    if not letters:
        return
    _make_topic(servers, group)
    numbered = [
        (letter_message(letter, group), letter.message.broker, sequence(batch, index))
        for index, letter in enumerate(letters, start)
    ]
    # Only inorder brokers have key maps and idempotent producers.
    is_ours = bool(Cluster(servers, group=group).versions(dead_letter_topic(group)))
    if not is_ours:
        log.warning(
            "dead letters are stored at least once: Apache RocketMQ brokers group=%s", group
        )
    _send(servers, group, numbered, producer_name if is_ours else None)


def _send(
    servers: Servers, group: str, numbered: list[tuple[Message, str, int]], name: str | None
) -> None:
    from inorder.sync.producer import Producer

    tls, credentials = servers.context(), servers.credentials()
    with Producer(servers.namesrv, id=name, tls=tls, credentials=credentials) as producer:
        for at in range(0, len(numbered), AT_ONCE):
            some = sorted(numbered[at : at + AT_ONCE], key=lambda one: (one[1], one[2]))
            for broker, members in groupby(some, key=lambda one: one[1]):
                chosen = list(members)
                producer.send_batch(
                    [message for message, _, _ in chosen],
                    queue=TopicQueue(dead_letter_topic(group), broker, 0),
                    sequences=None if name is None else [number for _, _, number in chosen],
                )


def _make_topic(servers: Servers, group: str) -> None:
    """Make the topic of the group's dead letters if there is none: one queue, as brokers do."""
    from inorder.sync.admin import Admin

    try:
        Cluster(servers, group=group).queues(dead_letter_topic(group))
    except TopicNotRouted:
        tls, credentials = servers.context(), servers.credentials()
        with Admin(servers.namesrv, tls=tls, credentials=credentials) as admin:
            admin.topics.create(dead_letter_topic(group), queues=1)
