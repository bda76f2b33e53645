"""What the guard of a broker is made of: the file, the table of codes, and whose a message is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.access import codes
from inorder.access.rules import is_system_topic
from inorder.access.service import Accounts, Guard, check_settings, open_accounts
from inorder.access.storage import NAME, open_file, unpredictable
from inorder.wire.properties import get
from inorder.wire.record import decode
from inorder.wire.requests.replies import reply_topic

if TYPE_CHECKING:
    from collections.abc import Collection

    from inorder.broker.broker import Broker


class Messages:
    """Whose a message is that a request names by its position in the log."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic_at(self, position: int) -> str | None:
        """Return the topic that the message at a position was sent to; None: there is none."""
        found = self._broker.store.visible_record(position)
        if found is None:
            return None
        record = decode(found, check_crc=False)
        if is_system_topic(record.topic):  # it waits there for its time or for its outcome
            real = get(record.properties, b"REAL_TOPIC")
            if real is not None:
                return real.decode("utf-8", "replace")
        return record.topic

    def topic_of_half(self, position: int) -> str | None:
        """Return the topic of a transaction, by the position that its producer knows."""
        return self._broker.transaction_service.topic_of(position)


def load_accounts(broker: Broker) -> Accounts | None:
    """Return the users and rules; None: access is not controlled.

    Raises:
        ConfigError: half a configuration, or nobody could change anything.
        StoreError: the file cannot be used.
    """
    config = broker.config
    check_settings(config.access, needs_inner=bool(config.namesrv))
    if config.access.effective_level == "off":
        return None
    path = config.data_path / "inorder" / NAME
    file = open_file(broker.files, path, config.access.key_file)
    return open_accounts(file, config.access, broker.clock, needs_super=True)


def make_guard(broker: Broker, accounts: Accounts, served: Collection[int]) -> Guard:
    """Return the guard of a broker."""
    config = broker.config
    return Guard(
        accounts,
        config.access,
        codes.BROKER,
        served,
        draw=unpredictable,
        lookups=Messages(broker),
        cluster=config.cluster,
        own_topics=frozenset((config.trace_topic_name, reply_topic(config.cluster))),
    )
