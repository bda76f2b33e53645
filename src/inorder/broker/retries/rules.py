"""What becomes of a message that a consumer gives back (code 36): RocketMQ's rules.

    it was tried `attempts_max` times already, or the level is below 0    %DLQ%group, queue 0
    otherwise                                                             %RETRY%group, later:
        level 0                                                           level 3 + attempts so far
        level above 0                                                     that level

The new message is the old one: body, flags, birth, tags and UNIQ_KEY stay. It counts one attempt
more, RETRY_TOPIC names the topic that it came from first, ORIGIN_MESSAGE_ID its first place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from inorder.wire.extensions import SEND_PROPERTIES
from inorder.wire.ids import offset_message_id
from inorder.wire.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from inorder.wire.properties import join, parse, put_error
from inorder.wire.record import Record

FIRST_LEVEL: Final = 3
DEAD_LETTER_QUEUES: Final = 1


class SentBack(NamedTuple):
    """The message to store, but for its queue; `level` 0: at once."""

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
    """Return what to store for a message that a group gives back.

    `error` says how the try failed; a dead letter keeps it.
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
    topic = (DEAD_LETTER_PREFIX if dead else RETRY_PREFIX) + group
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
