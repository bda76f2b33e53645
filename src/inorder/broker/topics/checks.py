"""Which topics a client may create or change.

`check_topic` holds RocketMQ's checks in RocketMQ's order. `check_key_map` protects the key map of
a topic (decision 13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from inorder.errors import InvalidParameter, SystemError_
from inorder.model import TopicConfig
from inorder.ordering import keymap
from inorder.wire.names import validate_topic

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.topics.rules import TopicTable

QUEUES_MAX: Final = 65_536
PERM_MAX: Final = 15
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


def check_topic(topics: TopicTable, config: TopicConfig) -> None:
    """Refuse a topic whose name or settings are invalid."""
    invalid = validate_topic(config.name)
    if invalid is not None:
        raise InvalidParameter(invalid)
    check_not_system(topics, config.name)
    if config.filter_type not in FILTER_TYPES:
        raise SystemError_(f"topicFilterType = [{config.filter_type}] value invalid")
    for count in (config.read_queues, config.write_queues):
        if not 0 <= count <= QUEUES_MAX:
            raise InvalidParameter(f"{count} queues: a topic has 0 to {QUEUES_MAX}")
    if not 0 <= config.perm <= PERM_MAX:
        raise InvalidParameter(
            f"perm {config.perm} is not made of 4 (read), 2 (write), 1 (inherit)"
        )
    if config.attributes.get("+message.type") == "MIXED":
        raise InvalidParameter("MIXED message type is not supported.")


def check_key_map(broker: Broker, config: TopicConfig, changes: Mapping[str, str]) -> None:
    """Refuse a change that would move keys between queues.

    A topic with a key map keeps its map and its queue counts: only a resize changes them. This
    request may give a topic its first map, if the topic holds no messages and the version is
    higher than any that a deleted topic of the same name had.
    """
    known = broker.topics.get(config.name)
    old = None if known is None else known.attributes.get(keymap.ATTRIBUTE)
    new = changes.get(f"+{keymap.ATTRIBUTE}")
    removed = f"-{keymap.ATTRIBUTE}" in changes
    if known is not None and old is not None:
        counts = (config.read_queues, config.write_queues)
        if removed or new not in (None, old) or counts != (known.read_queues, known.write_queues):
            raise InvalidParameter(
                f"topic[{config.name}] has a key map, so its {known.write_queues} queues do not "
                "change by this request: it would break the order of its keys; use "
                "`inorder topic resize`"
            )
    elif new is not None:
        if known is not None and not broker.resizing.is_empty(config.name):
            raise InvalidParameter(
                f"topic[{config.name}] has messages, which its first key map would move keys away "
                "from; use `inorder topic resize`, which keeps their order"
            )
        last = broker.resizing.last_version(config.name)
        if keymap.version_of(new) <= last:
            raise InvalidParameter(
                f"a topic[{config.name}] had version {last} of its key map before it was deleted; "
                f"the next one is {last + 1}, not {keymap.version_of(new)}"
            )


def check_not_system(topics: TopicTable, name: str) -> None:
    """Refuse to change or delete a system topic."""
    if topics.is_system(name):
        raise InvalidParameter(f"The topic[{name}] is conflict with system topic.")
