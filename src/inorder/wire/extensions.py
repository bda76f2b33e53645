"""The additions to RocketMQ's protocol, in one table: codes, fields and properties.

A RocketMQ broker answers inorder's request codes with code 3 and ignores the fields. A RocketMQ
client sends neither. RocketMQ uses none of these numbers. `docs/design/extensions.md` is generated
from this file.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final

CAPABILITY: Final = "inorder"
"""Field of the answers to HEART_BEAT and PRODUCER_HELLO: the broker is an inorder broker."""

PROTOCOL: Final = 2
"""Value of that field; PRODUCER_HELLO has the client's. Since 2 a keyed send names its key map."""

PRODUCER_ID: Final = "INORDER_PID"
"""Property: the id of the idempotent producer."""

SEQUENCE: Final = "INORDER_SEQ"
"""Property: the sequence number of the message within (producer, topic, queue)."""

PREDECESSOR: Final = "INORDER_PREV"
"""Property of a named producer's message: the previous sequence number on that queue; -1: none."""

SCHEDULED: Final = "INORDER_SCHED"
"""Property of a delayed message on delivery: `level:offset` of the queue in which it waited."""

HALF: Final = "INORDER_HALF"
"""Property of a transactional message: the log position of its first half. A half that was put back
has it, and so has the message that is stored in its place when the transaction is committed or
given up. A start finds by it which halves have ended."""

ENDED_BEFORE: Final = "INORDER_ENDED"
"""Property of a record of ended halves (RMQ_SYS_TRANS_OP_HALF_TOPIC): all halves that ended before
this log position are in it or in earlier such records."""

ENDS: Final = "INORDER_ENDS"
"""Property of a record of ended halves: a letter for each offset in it. c: committed, r: rolled
back, g: given up, p: put back. A start knows by it how the last transactions have ended."""

TIMED: Final = "INORDER_TIMER"
"""Property of a message with a time on delivery: its offset in the queue in which it waited."""

# These describe one send; a copy of the message that the broker stores elsewhere drops them.
SEND_PROPERTIES: Final = (PRODUCER_ID, SEQUENCE, PREDECESSOR, SCHEDULED, TIMED)
OUR_PREFIX: Final = "INORDER_"
"""How the names of the properties begin that brokers and clients of ours set."""

SOURCE: Final = "inorder_source"
"""Property of a result: topic, broker, queue and offset, between bars, of the message that it was
made of. A dead letter that was sent again names the letter by it."""

DEAD_ORIGIN: Final = "INORDER_DEAD_ORIGIN"
"""Property of a dead letter of Spark: `topic/broker/queue/offset` of the message."""

DEAD_TRIES: Final = "INORDER_DEAD_TRIES"
"""Property of a dead letter of Spark: how many attempts it had."""

DEAD_ERROR: Final = "INORDER_DEAD_ERROR"
"""Property of a dead letter: how the last attempt failed; one line, truncated. Dead letters that a
RocketMQ client or broker created do not have it."""

SENT_BACK_ERROR: Final = "error"
"""Field of CONSUMER_SEND_MSG_BACK: how the attempt failed; DEAD_ERROR if it was the last one."""

FORWARDED: Final = "INORDER_FORWARD"
"""Property of a delayed message on its way to another broker: the log's generation, the topic."""

MAP_VERSION: Final = "mv"
"""Field of a send: the key map version that chose the queue. In a pull's answer: the topic's."""

MAP_DIGEST: Final = "md"
"""Field of a send beside `mv`: the digest of the map's text; two maps may have one version."""

QUEUE_CHOSEN: Final = "mq"
"""Field of a send with a key: `1` if the caller chose the queue and not the key map."""

BROKER_IDENTITY: Final = "inorderIdentity"
"""Field of REGISTER_BROKER: the identity of the broker's directory."""

ROUTE_TOPIC: Final = "topic"
"""Field of NOTIFY_CONSUMER_IDS_CHANGED: the queues of this topic changed; ask for its route."""

BULK: Final = "bulk"
"""Field of a pull: the maximum bytes of the answer; the count is the one that the pull asks for."""

EPOCH: Final = "epoch"
"""Field of a pull: the epoch of the client's lease; the broker refuses a stale one."""

ONLY_UP: Final = "onlyUp"
"""Field of UPDATE_CONSUMER_OFFSET and of a pull that commits: the broker ignores an offset below
the stored one. A client sends it since protocol ONLY_UP_SINCE; else it reads the offset first."""

ONLY_UP_SINCE: Final = 2
"""The first protocol with that field."""

DIFFERING: Final = "subsDiffer"
"""Field of HEART_BEAT's answer: a JSON object, by group: how its members' subscriptions differ;
absent if none do. In SUBSCRIPTIONS_DIFFER: the groups that were not joined, with commas."""

DIFFERENCES: Final = "inorderDifferences"
"""Key in the body of GET_CONSUMER_CONNECTION_LIST's answer: topics that members of the group
subscribe to differently, with each member's subscription; absent if there are none."""

PARKED: Final = "parked"
"""Field of a pull's answer: version of the queue's parked keys; absent if there are none."""

PARK_TOPIC: Final = "INORDER_PARK_TOPIC"
"""Property of a parked message: the topic it was parked from."""

PARK_QUEUE: Final = "INORDER_PARK_QUEUE"
"""Property of a parked message: the queue it was parked from."""

PARK_OFFSET: Final = "INORDER_PARK_OFFSET"
"""Property of a parked message: its offset in that queue."""

PARK_KEY: Final = "INORDER_PARK_KEY"
"""Property of a parked message: the key it was parked with; `%25`, `%01`, `%02` are escapes."""

PARK_TRIES: Final = "INORDER_PARK_TRIES"
"""Property of a parked message: how many attempts it had; 0: it joined a parked key."""

PARK_ERROR: Final = "INORDER_PARK_ERROR"
"""Property of a parked message: how the last attempt failed; absent: it joined a parked key."""

PARK_FENCE: Final = "INORDER_PARK_FENCE"
"""Property of a parked message: the sequence of its fence; absent: it has none."""

PARK_TIME: Final = "INORDER_PARK_TIME"
"""Property of a parked message: when it was parked, in ms."""

PARK_UNTIL: Final = "INORDER_PARK_UNTIL"
"""Property of a message that a job parked: the group's offset once the batch is done; or absent."""


BATCHES: Final = "batches"
"""Field of PRODUCER_HELLO's answer: `1` if a refusal of a batch names the refused message and
PRODUCER_STATE tells where messages lie. Producers make batches by themselves only then."""

REFUSED_INDEX: Final = "index"
"""Field of a MESSAGE_ILLEGAL answer to a batch: the position of the message that is refused. The
others are not stored either, and may be sent again."""

STORED: Final = "stored"
"""Field of a SYSTEM_ERROR answer to a send, if a producer has sent its hello on the connection:
`no` means that nothing was stored; without the field the outcome is unknown."""

NOTHING_STORED: Final = "no"
"""Its value."""

SESSION: Final = "inorderSession"
"""Field of the answers to HEART_BEAT, PRODUCER_HELLO and GET_ROUTEINFO_BY_TOPIC, where access is
controlled: the id of the connection, 16 random bytes in hex. A client that signs sends it back with
every later request on the connection, with the next two fields."""

COUNTER: Final = "inorderCounter"
"""Field of a signed request: a decimal number that rises with each request of the connection. The
server takes each number once; one may come late, but not more than 1,024 behind the highest."""

BOUND: Final = "inorderBound"
"""Field of a signed request: HMAC-SHA256, in hex, of the session, the counter, the code, the names
and values of all fields with their lengths, and the length of the body; `wire/signature.py`."""

ACCESS: Final = "inorderAccess"
"""Field of REGISTER_BROKER's answer, where a name server controls access: the version of its users
and rules. A broker that has others gives them with PUT_ACCESS."""


@unique
class ExtensionCode(IntEnum):
    """Request codes of inorder."""

    PRODUCER_HELLO = 7100
    PRODUCER_STATE = 7101
    """With `since`, the answer's `offsets` lists where the messages from that number on lie, as
    `offset:count` with commas, -1 if that is not remembered; it comes when they are safe."""
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
    TRANSACTIONS_PENDING = 7170
    PUT_ACCESS = 7180
    """A broker gives a name server its users and rules, in the form of `inorder/access.json`."""


@unique
class ExtensionAnswer(IntEnum):
    """Answer codes of inorder."""

    PRODUCER_GAP = 7100
    """The sequence number is not the next one, which is `expected`. Nothing was stored."""
    PRODUCER_UNKNOWN = 7101
    """The producer is not known on this queue (evicted, or lost with the log's end)."""
    PRODUCER_STALE = 7102
    """A newer incarnation of the producer has sent a hello, or none has. Nothing was stored."""
    PRODUCER_MISMATCH = 7103
    """The number belongs to another message. Nothing was stored."""
    PRODUCERS_FULL = 7104
    """The table of named producers is full."""
    KEY_MAP_CHANGED = 7110
    """The key map has another version, `version`; `map` holds it. Nothing was stored."""
    LEASE_LOST = 7120
    """Another consumer owns the queue (`holder`, `epoch`), or a reset or forced release ended the
    lease. Nothing was done."""
    LEASES_FULL = 7121
    """The table of leases, or of finished maps, is full."""
    SUBSCRIPTIONS_DIFFER = 7160
    """A heartbeat's group has members with other subscriptions, and the broker is set to refuse
    such a member (`refuse_different_subscriptions`). The client joins its other groups."""
    RESIZE_UNDER_WAY = 7140
    """Another resize of the topic was decided: `planId`, `version`. Nothing was done."""
    GROUP_NOT_DONE = 7141
    """The group has yet to finish messages of an earlier version of the map. Nothing was done."""
    BROKER_NAME_TAKEN = 7150
    """From a name server: another broker with this name and id is connected. Not registered."""
