"""Every deliberate difference from RocketMQ 5.3.3, with its reason.

A difference that no rule covers fails the replay; so does a rule that covers nothing any more. The
reasons are printed in docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.golden.replay.capture import BROKER
from tests.golden.replay.compare import ABSENT, Difference, Exchange

SENDS = frozenset((10, 310, 320))
PULLS = frozenset((11, 361))

# Request codes of the broker that come later; they are answered 3 until then.
LATER: dict[int, str] = {}


def _later(what: str, *codes: int) -> None:
    LATER.update(dict.fromkeys(codes, what))


_later("replication", 43, 906, 907)
_later("not planned: cold data flow control", 2003)


@dataclass(frozen=True, slots=True)
class Rule:
    """One deliberate difference; empty `codes` means any code.

    `where` and `files` are patterns as of file names. `partial`: the code is not done while it is
    so. `state`: it follows from state that the broker cannot have. `everywhere`: it applies to all
    answers of a kind and says nothing about a single one.
    """

    id: str
    reason: str
    codes: frozenset[int] = frozenset()
    files: str = "*"
    where: str = "*"
    when: Callable[[Difference], bool] | None = None
    partial: bool = False
    state: bool = False
    everywhere: bool = False

    def covers(self, difference: Difference) -> bool:
        """Tell whether this rule explains a difference."""
        exchange = difference.exchange
        return (
            (not self.codes or exchange.code in self.codes)
            and fnmatchcase(exchange.file, self.files)
            and fnmatchcase(difference.where, self.where)
            and (self.when is None or self.when(difference))
        )


def _delayed_send(difference: Difference) -> bool:
    exchange = difference.exchange
    text = exchange.field("i") or exchange.field("properties") or ""
    return "DELAY\x01" in text or "TIMER_D" in text


def _half_send(difference: Difference) -> bool:
    exchange = difference.exchange
    return "TRAN_MSG\x01true" in (exchange.field("i") or exchange.field("properties") or "")


def _empty_queue(difference: Difference) -> bool:
    exchange = difference.exchange
    return exchange.captured.code == 22 and exchange.ours.fields.get("offset") == "0"


def _answered(captured: int, ours: int) -> Callable[[Difference], bool]:
    def when(difference: Difference) -> bool:
        exchange = difference.exchange
        return (exchange.captured.code, exchange.ours.code) == (captured, ours)

    return when


RULES: tuple[Rule, ...] = (
    Rule(
        "serializer",
        "An answer comes in the serializer of its request; RocketMQ answers in its own setting.",
        where="serializer",
        everywhere=True,
    ),
    Rule(
        "language",
        "Answers say that they come from PYTHON, not from JAVA.",
        where="language",
        everywhere=True,
    ),
    Rule(
        "capability",
        "The answer to a heartbeat says in one more field that this is inorder; RocketMQ clients "
        "ignore it.",
        codes=frozenset((34,)),
        where="field.inorder",
        everywhere=True,
    ),
    Rule(
        "users-off",
        "Where access is not controlled, requests about users are refused with 16, which says how "
        "to change that; RocketMQ answers 1.",
        codes=frozenset((3005,)),
        where="code",
        when=_answered(1, 16),
    ),
    Rule(
        "timer-precision",
        "A message with a time comes at its millisecond, so its recall handle names that; RocketMQ "
        "rounds to the second.",
        codes=SENDS,
        where="field.recallHandle",
    ),
    Rule(
        "recall-allowed",
        "Recalls are allowed unless recallMessageEnable=false; RocketMQ's default is false.",
        codes=frozenset((370,)),
        where="code",
        when=_answered(16, 0),
    ),
    Rule(
        "timer-counts",
        "Topics in which no message waits for its time are left out.",
        codes=frozenset((61,)),
        where="body.timingCount.*",
        when=lambda d: d.ours == ABSENT,
    ),
    Rule(
        "batch-properties",
        "The messages of a batch are stored with their own properties. Up to 5.3.3 RocketMQ "
        "appends those of the request, so that all get one UNIQ_KEY (its bug 9416, since fixed).",
        codes=PULLS,
        where="body.*.property.*",
        when=lambda d: d.ours == ABSENT and d.where.endswith(("CLUSTER", "MSG_REGION", "TRACE_ON")),
    ),
    Rule(
        "empty-text",
        "An empty text in a binary header stays empty; Java reads null and fails with 1.",
        codes=SENDS,
        where="code",
        when=lambda d: not d.exchange.field("b"),
    ),
    Rule(
        "group-name",
        "A group with an impossible name is refused with 29, as later releases of RocketMQ do.",
        codes=frozenset((200,)),
        where="code",
        when=_answered(0, 29),
    ),
    Rule(
        "group-name-after",
        "So a group with such a name, or without a name, is not in the list.",
        codes=frozenset((201,)),
        where="body.subscriptionGroupTable.*",
        when=lambda d: d.ours == ABSENT and not d.where.rpartition(".")[2].isidentifier(),
    ),
    Rule(
        "given-up-transactions",
        "The topic of given-up transactions exists once there is one, as it does in RocketMQ.",
        where="body.*.TRANS_CHECK_MAX_TIME_TOPIC",
        state=True,
    ),
    Rule(
        "halves-elsewhere",
        "Other conversations had begun transactions before: the answer to a transactional message "
        "has its offset in the queue of halves.",
        codes=SENDS,
        where="field.queueOffset",
        state=True,
        when=_half_send,
    ),
    Rule(
        "modes-elsewhere",
        "Other conversations had set request modes before.",
        codes=frozenset((402,)),
        where="body.messageRequestModeMap.*",
        state=True,
    ),
    Rule(
        "sql-in-between",
        "A heartbeat registers a subscription and its SQL92 filter in one step. RocketMQ takes "
        "two, and answers a pull that comes in between with 28.",
        codes=PULLS,
        where="code",
        when=lambda d: d.exchange.captured.code == 28 and d.exchange.ours.code in (0, 20),
    ),
    Rule(
        "empty-queue-start",
        "A group without an offset starts an empty queue at its end (0 here). RocketMQ answers 22, "
        "the client then asks for the end, and a message stored in between is never consumed.",
        codes=frozenset((14,)),
        where="code",
        when=_empty_queue,
    ),
    Rule(
        "commit-beyond-the-end",
        "An offset beyond the end of a queue is not stored: 29. RocketMQ stores any number, and "
        "the messages up to it are never consumed.",
        codes=frozenset((15,)),
        where="code",
        when=_answered(0, 29),
    ),
    Rule(
        "late-acknowledgement",
        "An acknowledgement of a popped message that is not out any more is refused with 208: "
        "success says that the message does not come again. RocketMQ answers success to any.",
        codes=frozenset((200051,)),
        where="code",
        when=_answered(0, 208),
    ),
    Rule(
        "remote-config",
        "Settings are changed over the wire only if the broker was started with remote_config; "
        "else 16. RocketMQ lets anybody who can connect change them.",
        codes=frozenset((25,)),
        where="code",
        when=_answered(0, 16),
    ),
    Rule(
        "namesrv-config",
        "Settings of the name server are not changed over the wire: 16.",
        codes=frozenset((318,)),
        where="code",
        when=_answered(0, 16),
        partial=True,
    ),
    Rule(
        "compressed-register",
        "A compressed registration is read. A broker of 5.3.3 compresses it without saying so, and "
        "a name server of 5.3.3 then fails with 1.",
        codes=frozenset((103,)),
        files="broker-namesrv-compressed",
        where="code",
        when=_answered(1, 0),
    ),
    Rule(
        "woken-at-once",
        "A waiting pull is answered in the tick that stores a message. Here RocketMQ checked the "
        "pull only after the client had unregistered, and refused it with 24.",
        codes=PULLS,
        files="java53-reqrep",
        where="code",
        when=lambda d: (d.exchange.captured.code, d.exchange.ours.code) == (24, 0),
    ),
    Rule(
        "batch-1",
        "The C++ client marks a batch with batch=1, which Java reads as false: RocketMQ stores the "
        "encoded batch as one message. inorder stores the messages.",
        codes=frozenset((10,)),
        files="cpp-prod",
        where="field.*",
        when=lambda d: d.exchange.field("batch") == "1",
    ),
    Rule(
        "batch-1-after",
        "The queue of that batch is longer by two messages from then on.",
        codes=frozenset((10,)),
        files="cpp-prod",
        where="field.queueOffset",
        state=True,
    ),
    Rule(
        "delayed-elsewhere",
        "Other conversations had sent messages of that level, or with a time, before: the answer "
        "to a delayed message has its offset in the queue of its level or of timers.",
        codes=SENDS,
        where="field.queueOffset",
        state=True,
        when=_delayed_send,
    ),
    Rule(
        "delay-offsets-elsewhere",
        "The offsets of the levels depend on delayed messages of other conversations.",
        codes=frozenset((45,)),
        where="body.offsetTable.*",
        state=True,
        # If the replay takes its time, one of this conversation may be due meanwhile.
        when=lambda d: d.ours == ABSENT or int(d.ours) < int(d.captured),
    ),
    Rule(
        "delayed-before",
        "Messages that a delayed delivery had stored before the capture are put there by a plain "
        "send, which may not carry the properties of a delay.",
        codes=PULLS,
        files="probe-*",
        state=True,
        where="body.*.property.*",
        when=lambda d: d.where.rpartition(".")[2].startswith(("DELAY", "TIMER_")),
    ),
    Rule(
        "registered-before",
        "The registration that brought the topic was left out of the capture.",
        codes=frozenset((105,)),
        files="broker-namesrv",
        where="code",
        state=True,
        when=_answered(0, 17),
    ),
    Rule(
        "deleted-elsewhere",
        "The topic had been deleted by the admin tool in another conversation.",
        codes=frozenset((105,)),
        files="java53-admin-target",
        where="code",
        state=True,
        when=_answered(17, 0),
    ),
    Rule(
        "perm-elsewhere",
        "The admin tool had taken and given back the write permission of all topics in another "
        "conversation, which leaves 6 (327), where the template had 7.",
        codes=frozenset((105,)),
        files="probe-bin",
        where="body.queueDatas.*",
        state=True,
        when=lambda d: d.exchange.field("topic") == "TBW102",
    ),
    Rule(
        "group-elsewhere",
        "A group of the broker itself was missing after the broker's restart.",
        codes=frozenset((201,)),
        files="probe-bin",
        state=True,
        where="body.subscriptionGroupTable.CID_RMQ_SYS_REVIVE_GROUP",
    ),
    Rule(
        "topic-is-no-group",
        "The groups of a topic are groups. RocketMQ 5.3.3 adds the topic's own name once a group "
        "has subscribed to it, and its tools then show a group that does not exist.",
        codes=frozenset((300,)),
        where="body.groupList.*",
        when=lambda d: d.where == f"body.groupList.{d.exchange.field('topic')}",
    ),
    Rule(
        "put-rate",
        "The rate of a topic is that of the last minute; when its messages came is not captured.",
        codes=frozenset((202,)),
        where="body.topicPutTps",
        state=True,
    ),
    Rule(
        "online-elsewhere",
        "The clients that the admin tool asked about were connected in other conversations.",
        codes=frozenset((203, 204, 223, 307, 309)),
        where="code",
        state=True,
        when=lambda d: d.exchange.captured.code == 0 and d.exchange.ours.code in (1, 206),
    ),
    Rule(
        "online-elsewhere-all",
        "Likewise when it asked for all producers, and for all groups of a topic.",
        codes=frozenset((300, 328)),
        where="body.*",
        state=True,
        when=lambda d: d.ours == ABSENT,
    ),
    Rule(
        "reset-by-client",
        "RocketMQ had been told to reset offsets by asking the clients, and then answers 1 for an "
        "unknown group. inorder resets on the server, as RocketMQ does by default, and answers 26.",
        codes=frozenset((222,)),
        files="mqadmin-reset-by-client",
        where="code",
        when=_answered(1, 26),
    ),
    Rule(
        "statistics-windows",
        "The windows of a statistic end now, and each message of a topic counts as one request. "
        "RocketMQ takes samples every ten seconds, ten minutes and hour, and counts requests.",
        codes=frozenset((315,)),
        where="body.stats*",
    ),
    Rule(
        "pulled-elsewhere",
        "The groups had pulled in other conversations.",
        codes=frozenset((315,)),
        files="mqadmin",
        where="code",
        state=True,
        when=_answered(0, 1),
    ),
    Rule(
        "progress-elsewhere",
        "The progress of all groups is that of all other conversations, too.",
        codes=frozenset((317,)),
        where="body.*",
        state=True,
    ),
    Rule(
        "commit-beyond-the-end-after",
        "An offset that was refused before, for a queue that does not exist, is not there.",
        codes=frozenset((308,)),
        where="body.correctionOffsets.99",
        state=True,
    ),
    Rule(
        "reset-elsewhere",
        "These pulls met a reset of offsets that the admin tool had asked for in another "
        "conversation (222).",
        codes=PULLS,
        files="java53-admin-target",
        where="code",
        state=True,
        when=lambda d: d.exchange.captured.remark == "OFFSET_RESET",
    ),
)


def rule_for(difference: Difference) -> Rule | None:
    """Return the first rule that explains a difference."""
    return next((rule for rule in RULES if rule.covers(difference)), None)


def is_later(exchange: Exchange) -> bool:
    """Tell whether the request's code comes later."""
    return exchange.request.peer == BROKER and exchange.code in LATER
