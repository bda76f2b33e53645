"""What the broker stores when a consumer sends a message back: RocketMQ's rules.

    the message                                             its copy
    ----------------------------------------------------    --------------------------------------
    had `attempts_max` retries, or the level is below 0     queue 0 of %DLQ%group, at once
    otherwise, with a level above 0                         %RETRY%group, delayed by this level
    otherwise, with level 0                                 %RETRY%group, delayed by the level
                                                            3 + retries so far

The copy keeps body, flags, time and host of birth, tags and UNIQ_KEY. Its number of retries grows
by one. RETRY_TOPIC names the topic of the first message, ORIGIN_MESSAGE_ID its message id. How
attempts and retries are counted: decision 24.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from inorder.wire.extensions import SEND_PROPERTIES
from inorder.wire.ids import offset_message_id
from inorder.wire.names import dead_letter_topic, retry_topic
from inorder.wire.properties import join, parse, put_error
from inorder.wire.record import Record

FIRST_LEVEL: Final = 3
DEAD_LETTER_QUEUES: Final = 1


class SentBack(NamedTuple):
    """The message to store, without its queue; with `level` 0 it is delivered at once."""

    record: Record
    level: int
    dead: bool


def send_back(
    record: Record,
    *,
    group: str,
    level: int,
    attempts_max: int,
    store_host: bytes,
    error: str = "",
) -> SentBack:
    """Return the copy to store for a message that a group sends back.

    `error` says why the attempt failed; a dead letter keeps it.
    """
    found = parse(record.properties)
    for name in SEND_PROPERTIES:
        found.pop(name, None)
    found.setdefault("RETRY_TOPIC", record.topic)
    found["WAIT"] = "false"
    dead = record.redeliveries >= attempts_max or level < 0
    if dead:
        level = 0
    elif level == 0:
        level = FIRST_LEVEL + record.redeliveries
    found["DELAY"] = str(level)
    found.setdefault("ORIGIN_MESSAGE_ID", offset_message_id(record.store_host, record.position))
    if dead and error:
        put_error(found, error)
    topic = dead_letter_topic(group) if dead else retry_topic(group)
    return SentBack(
        replace(
            record,
            topic=topic,
            properties=join(found).encode(),
            store_host=store_host,
            redeliveries=record.redeliveries + 1,
            prepared_position=0,
            version=1,
        ),
        level,
        dead,
    )
