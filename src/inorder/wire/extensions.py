"""What we add to RocketMQ's protocol, in one table.

A stock broker answers our request codes with 3 and ignores our fields; a stock client never sends
either. Both blocks of numbers are unused by RocketMQ. `docs/design/extensions.md` is made from this
file.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final

CAPABILITY: Final = "inorder"
"""The field of HEART_BEAT's and PRODUCER_HELLO's answers that says: this is our broker."""

PROTOCOL: Final = 2
"""Its value; in PRODUCER_HELLO the client's. From 2 on a keyed send says what chose its queue."""

PRODUCER_ID: Final = "INORDER_PID"
"""Property: the producer that numbers its messages."""

SEQUENCE: Final = "INORDER_SEQ"
"""Property: the number of the message within (producer, topic, queue)."""

PREDECESSOR: Final = "INORDER_PREV"
"""Property of a named producer's message: the number before it on that queue; -1 for none."""

SCHEDULED: Final = "INORDER_SCHED"
"""Property of a delayed message on delivery: `level:offset` of the queue in which it waited."""

DEAD_ORIGIN: Final = "INORDER_DEAD_ORIGIN"
"""Property of a dead letter of Spark: `topic/broker/queue/offset` of the message."""

DEAD_TRIES: Final = "INORDER_DEAD_TRIES"
"""Property of a dead letter of Spark: how often a handler had it."""

DEAD_ERROR: Final = "INORDER_DEAD_ERROR"
"""Property of a dead letter: how the last try failed; one line, cut. Not on those that a stock
client or broker made."""

SENT_BACK_ERROR: Final = "error"
"""Field of CONSUMER_SEND_MSG_BACK: how the try failed, for DEAD_ERROR if it was the last one."""

FORWARDED: Final = "INORDER_FORWARD"
"""Property of a delayed message on its way to another broker: the log's generation, the topic."""

MAP_VERSION: Final = "mv"
"""Field of a send: the version of the map that chose its queue. Of a pull's answer: the topic's."""

MAP_DIGEST: Final = "md"
"""Field of a send beside `mv`: the digest of the map's text; two maps may have one version."""

QUEUE_CHOSEN: Final = "mq"
"""Field of a send with a key: `1`, the caller chose its queue, not the map."""

BROKER_IDENTITY: Final = "inorderIdentity"
"""Field of REGISTER_BROKER: the text that tells this broker's directory from any other."""

ROUTE_TOPIC: Final = "topic"
"""Field of NOTIFY_CONSUMER_IDS_CHANGED: the queues of this topic changed; ask for its route."""

BULK: Final = "bulk"
"""Field of a pull: the answer may have so many bytes, and as many messages as were asked for."""

EPOCH: Final = "epoch"
"""Field of a pull: the epoch of the lease under which it is made; a stale one is refused."""

ONLY_UP: Final = "onlyUp"
"""Field of UPDATE_CONSUMER_OFFSET and of a pull that commits: what is below the stored offset is
ignored. A client sends it to those who speak ONLY_UP_SINCE; with others it looks first."""

ONLY_UP_SINCE: Final = 2
"""The protocol that has it."""

DIFFERING: Final = "subsDiffer"
"""Field of HEART_BEAT's answer: a JSON object, by group, of how its members' subscriptions differ;
absent if none do. Of SUBSCRIPTIONS_DIFFER: the groups that were not joined, with commas."""

DIFFERENCES: Final = "inorderDifferences"
"""Key in the body of GET_CONSUMER_CONNECTION_LIST's answer: topics that members of the group
subscribe differently, and who wants what; absent if there are none."""

PARKED: Final = "parked"
"""Field of a pull's answer: changes with the parked keys of the queue; absent if there are none."""

PARK_TOPIC: Final = "INORDER_PARK_TOPIC"
"""Property of a parked message: the topic it was parked from."""

PARK_QUEUE: Final = "INORDER_PARK_QUEUE"
"""Property of a parked message: the queue it was parked from."""

PARK_OFFSET: Final = "INORDER_PARK_OFFSET"
"""Property of a parked message: its offset in that queue."""

PARK_KEY: Final = "INORDER_PARK_KEY"
"""Property of a parked message: the key it was parked with; `%25`, `%01`, `%02` are escapes."""

PARK_TRIES: Final = "INORDER_PARK_TRIES"
"""Property of a parked message: how often a handler had it; 0: it joined its key."""

PARK_ERROR: Final = "INORDER_PARK_ERROR"
"""Property of a parked message: how the last try failed; absent: it joined its key."""

PARK_FENCE: Final = "INORDER_PARK_FENCE"
"""Property of a parked message: the sequence of its fence; absent: it has none."""

PARK_TIME: Final = "INORDER_PARK_TIME"
"""Property of a parked message: when it was parked, in ms."""

PARK_UNTIL: Final = "INORDER_PARK_UNTIL"
"""Property of a message that a job parked: the group's offset once the batch is done; or absent."""


STORED: Final = "stored"
"""Field of an answer to a send with SYSTEM_ERROR, if a producer has said hello on the connection:
`no`, nothing was stored; absent: who knows."""

NOTHING_STORED: Final = "no"
"""Its value."""


@unique
class ExtensionCode(IntEnum):
    """Requests of ours."""

    PRODUCER_HELLO = 7100
    PRODUCER_STATE = 7101
    PRODUCER_DROP = 7102
    PRODUCER_LIST = 7103
    LEASE = 7120
    RELEASE = 7121
    COMMIT = 7122
    LEASES = 7123
    LEASE_FREE = 7124
    RESIZE_DECIDE = 7140
    RESIZE_STOP = 7141
    RESIZE_OPEN = 7142
    RESIZE_STATUS = 7143
    RESIZE_RELEASE = 7144
    RESIZE_GO = 7145
    RESIZE_WITHDRAW = 7146
    RESIZE_REWIND = 7147
    PARK = 7130
    PARKED_KEYS = 7131
    PARKED_LIST = 7132
    PARKED_READ = 7133
    REDRIVE = 7134
    REDRIVEN = 7135
    UNPARK = 7136
    PARKED_DROP = 7137
    PARK_MOVE = 7138


@unique
class ExtensionAnswer(IntEnum):
    """Answers of ours."""

    PRODUCER_GAP = 7100
    """The number is not the next one; `expected` is. Nothing was stored."""
    PRODUCER_UNKNOWN = 7101
    """Nothing is known of this producer on this queue (evicted, or lost with the log's tail)."""
    PRODUCER_STALE = 7102
    """A newer incarnation of this producer has said hello, or none did here. Nothing was stored."""
    PRODUCER_MISMATCH = 7103
    """The number belongs to another message. Nothing was stored."""
    PRODUCERS_FULL = 7104
    """There is no room for another named producer."""
    KEY_MAP_CHANGED = 7110
    """The key map has another version, `version`; `map` holds it. Nothing was stored."""
    LEASE_LOST = 7120
    """Another consumer has the queue (`holder`, `epoch`), or it was reset, or freed. Not done."""
    LEASES_FULL = 7121
    """There is no room for another lease, or for another map of finished messages."""
    SUBSCRIPTIONS_DIFFER = 7160
    """A heartbeat's group has members with other subscriptions, and the broker is set to refuse
    such a member (`refuse_different_subscriptions`). Its other groups count."""
    RESIZE_UNDER_WAY = 7140
    """Another resize of the topic was decided: `planId`, `version`. Nothing was done."""
    GROUP_NOT_DONE = 7141
    """The group has yet to finish messages of an earlier version of the map. Nothing was done."""
    BROKER_NAME_TAKEN = 7150
    """A name server's: another broker with this name and id is connected. It is not registered."""
