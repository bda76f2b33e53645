"""Every error that inorder raises, and how each maps to RocketMQ's response codes.

    InorderError
    ├─ ConfigError                                      before anything starts
    ├─ UsageError          NotStarted, AlreadyClosed    the caller's mistake
    ├─ BatchIncomplete(outcomes)                        some messages of a batch were not stored
    ├─ SendsFailed(count)                               failures that no caller has read
    ├─ ProtocolError       LocalProtocolError, RemoteProtocolError
    ├─ TransportError      ConnectFailed, ConnectionLost, RequestTimeout, TooManyOutstanding (of
    │                      sends: NoRoom), OutcomeUnknown (a send may be stored): SendTimedOut
    ├─ MessagesLost                                     acknowledged, and gone with the log's end
    ├─ PredecessorFailed                                a message before this one failed
    ├─ RouteError          TopicNotRouted, NoWritableQueue
    ├─ KeyMapConflict                                   two key maps of one version: repair it
    ├─ BrokerError(code, remark)  one class per response code that callers tell apart
    │  ├─ NoPermission: AccessDenied                    the user is not known, or may not do this
    │  └─ ProducerGap(expected), ProducerUnknown, ProducerStale(highest), ProducerMismatch,
    │     ProducersFull, KeyMapChanged(version, map)    idempotent sends and key maps: inorder's
    │  └─ LeaseLost(holder, epoch), LeasesFull, ResizeUnderWay(version, plan_id), GroupNotDone,
    │     BrokerNameTaken
    └─ StoreError          CorruptRecord, RecordTooLarge, StoreBusy, DiskFull, NoDescriptors,
                           StoreLocked, StoreFailed, WriteInDoubt

A message says what happened, to which object, and what to do next. `retriable` says whether the
same call may succeed later without a change by the caller. A ProtocolError of the peer closes the
connection; a BrokerError never does. Which error says whether a failed send is stored: decision 41.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import ClassVar


class InorderError(Exception):
    """The root: everything that inorder raises on purpose."""

    retriable: ClassVar[bool] = False


class ConfigError(InorderError):
    """A setting is unknown, malformed or contradicts another; nothing was started."""


class UsageError(InorderError):
    """The caller used an object in a way that it does not support."""


class NotStarted(UsageError):
    """The object must be started first."""


class AlreadyClosed(UsageError):
    """The object was closed; make a new one."""


class BatchIncomplete(InorderError):
    """Some messages of a batch were not stored, or nobody knows.

    `outcomes` holds, for each message in its place, its SendReceipt or the error.
    """

    def __init__(self, message: str, outcomes: Sequence[object]) -> None:
        self.outcomes = tuple(outcomes)
        super().__init__(message)


class SendsFailed(InorderError):
    """`count` messages of `send_nowait` failed, and no caller has read their futures.

    Raised by `flush` and `close`, once for each. The futures still have the errors.
    """

    def __init__(self, message: str, count: int) -> None:
        self.count = count
        super().__init__(message)


class ProtocolError(InorderError):
    """Bytes or fields break the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """A value cannot be sent, because the protocol cannot carry it."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow; the connection is closed."""


class TransportError(InorderError):
    """The network or the peer failed; the outcome of a request in flight is unknown."""

    retriable = True


class ConnectFailed(TransportError):
    """No connection could be made."""


class ConnectionLost(TransportError):
    """The connection closed while requests were in flight."""


class RequestTimeout(TransportError):
    """No answer came in time; the request may or may not have been carried out."""


class TooManyOutstanding(TransportError):
    """More requests are in flight than the limit allows."""


class NoRoom(TooManyOutstanding):
    """The producer has too many messages or bytes without an outcome: it took no more."""

    def __init__(self, message: str, count: int = 1) -> None:
        self.count = count
        super().__init__(message)


class OutcomeUnknown(TransportError):
    """A message may or may not be stored; `code` is the broker's, if any.

    Sent again, it may be stored twice. A named producer may send it again: same number, once.
    """

    retriable = False

    def __init__(self, message: str, code: int | None = None) -> None:
        self.code = code
        super().__init__(message)


class SendTimedOut(OutcomeUnknown, RequestTimeout):
    """The time of a send was up before its outcome was known: it may or may not be stored."""


class MessagesLost(InorderError):
    """Messages that were acknowledged are gone: the broker lost the end of its log."""


class PredecessorFailed(InorderError):
    """An earlier message of the batch or of the named producer failed: this one is not stored.

    Send again from the first one that failed; of a named producer with the same numbers.
    """


class KeyMapConflict(InorderError):
    """Brokers of a topic use different key maps of one version, so no key has a place.

    Nothing was sent. `inorder topic repair` gives the topic one map.
    """


class RouteError(InorderError):
    """The name server does not know where to go."""

    retriable = True


class TopicNotRouted(RouteError):
    """No broker serves the topic."""


class NoWritableQueue(RouteError):
    """The topic has no queue that may be written to."""


class BrokerError(InorderError):
    """The broker or name server answered with an error code."""

    code: int = 1
    says: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Further values of a reply: attribute and field, a number or a text."""

    def __init__(self, remark: str = "", *, code: int | None = None, **said: int | str) -> None:
        assert said.keys() <= dict(self.says).keys(), f"{type(self)} does not tell {[*said]}"
        if code is not None:
            self.code = code
        vars(self).update(said)
        if self.says:
            self.fields = {wire: str(getattr(self, name)) for name, wire in self.says}
        self.remark = remark
        super().__init__(remark or f"response code {self.code}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code}, remark={self.remark!r})"


class SystemError_(BrokerError):
    """SYSTEM_ERROR: anything unexpected, and many 'not found' answers.

    Of a send it is raised only if the broker says that nothing was stored, else OutcomeUnknown.
    """

    code = 1


class StoredInPart(SystemError_):
    """The first messages of a batch are stored, the others refused; only a broker raises it."""


class SystemBusy(BrokerError):
    """SYSTEM_BUSY: overload; try again later."""

    code = 2
    retriable = True


class CodeNotSupported(BrokerError):
    """REQUEST_CODE_NOT_SUPPORTED."""

    code = 3


def not_supported(code: int) -> str:
    """Return RocketMQ's remark for a request code that nothing handles."""
    return f" request type {code} not supported"


class FlushTimeout(BrokerError):
    """FLUSH_DISK_TIMEOUT: stored, but not yet known to be on disk."""

    code = 10


class MessageIllegal(BrokerError):
    """MESSAGE_ILLEGAL: a size or property limit, or a kind of message not served here."""

    code = 13


class ItemIllegal(MessageIllegal):
    """MESSAGE_ILLEGAL because of one message of a batch; only a broker raises it."""

    index: int = -1
    says = (("index", "index"),)


class ServiceNotAvailable(BrokerError):
    """SERVICE_NOT_AVAILABLE: the store takes no writes at the moment."""

    code = 14
    retriable = True


class NoPermission(BrokerError):
    """NO_PERMISSION."""

    code = 16


class AccessDenied(NoPermission):
    """NO_PERMISSION by access control: the user is not known, or may not do this."""


DENIALS = (
    "check signature failed",
    "has no permission to access",
    "username cannot be null",
    "is not found",
    "is disabled",
    "Authentication failed",
    "No accessKey is configured",
    "No acl config for",
    "Need admin permission",
    "No permission for",
    "No default permission for",
    "may send bound requests only",
    "session is not of this connection",
    "is no super user",
    "is no server",
    "belongs to another user",
)
"""What servers with access control say, RocketMQ's (4.4 to 5.4) and ours; capitals do not count."""


def is_denial(code: int, remark: str | None) -> bool:
    """Return whether access control refused a request, and not another rule."""
    said = (remark or "").lower()
    return code == NoPermission.code and any(one.lower() in said for one in DENIALS)


class TopicNotFound(BrokerError):
    """TOPIC_NOT_EXIST."""

    code = 17


class OffsetOutOfRange(BrokerError):
    """PULL_OFFSET_MOVED: the offset lies outside of the stored messages."""

    code = 21


class NotFound(BrokerError):
    """QUERY_NOT_FOUND: no offset, no key, no value."""

    code = 22


class SubscriptionParseFailed(BrokerError):
    """SUBSCRIPTION_PARSE_FAILED."""

    code = 23


class SubscriptionNotFound(BrokerError):
    """SUBSCRIPTION_NOT_EXIST: a pull before the heartbeat."""

    code = 24
    retriable = True


class SubscriptionNotLatest(BrokerError):
    """SUBSCRIPTION_NOT_LATEST: a pull with a newer subscription than the heartbeat's."""

    code = 25
    retriable = True


class GroupNotFound(BrokerError):
    """SUBSCRIPTION_GROUP_NOT_EXIST."""

    code = 26


class FilterNotFound(BrokerError):
    """FILTER_DATA_NOT_EXIST: the heartbeat's SQL filter is missing, or is no expression."""

    code = 27
    retriable = True


class FilterNotLatest(BrokerError):
    """FILTER_DATA_NOT_LATEST: a pull with a newer SQL filter than the heartbeat's."""

    code = 28
    retriable = True


class InvalidParameter(BrokerError):
    """INVALID_PARAMETER."""

    code = 29


class ConsumerNotOnline(BrokerError):
    """CONSUMER_NOT_ONLINE."""

    code = 206


class IllegalOperation(BrokerError):
    """ILLEGAL_OPERATION: it is not allowed now.

    A recall of a message whose time has come, or with a wrong handle; the end of a transaction that
    only the answer to a question may end now.
    """

    code = 604


class ProducerGap(BrokerError):
    """PRODUCER_GAP: not the next number of its queue; `expected` is. Nothing was stored.

    For a named producer `expected` is the last number stored, which the send must name as its
    predecessor; -1 if there is none.
    """

    code = 7100
    says = (("expected", "expected"),)
    expected: int = 0


class ProducerUnknown(BrokerError):
    """PRODUCER_UNKNOWN: the broker knows nothing of this producer, or of this number, any more."""

    code = 7101


class ProducerStale(BrokerError):
    """PRODUCER_STALE: a newer incarnation has said hello (`highest`), or none did here."""

    code = 7102
    says = (("highest", "highest"),)
    highest: int = 0


class ProducerMismatch(BrokerError):
    """PRODUCER_MISMATCH: the number belongs to another message. Nothing was stored."""

    code = 7103


class ProducersFull(BrokerError):
    """PRODUCERS_FULL: there is no room for another named producer; drop one that is not used."""

    code = 7104


class KeyMapChanged(BrokerError):
    """KEY_MAP_CHANGED: the topic's key map has another version. Nothing was stored.

    `map` is the broker's map as text, empty if it has none; then `version` is 0.
    """

    code = 7110
    retriable = True
    says = (("version", "version"), ("map", "map"))
    version: int = 0
    map: str = ""


class LeaseLost(BrokerError):
    """LEASE_LOST: the queue has another owner or epoch by now. Nothing was done.

    `holder` is the client id of its owner, empty if it has none; `epoch` the owner's, else 0.
    """

    code = 7120
    says = (("holder", "holder"), ("epoch", "epoch"))
    holder: str = ""
    epoch: int = 0


class LeasesFull(BrokerError):
    """LEASES_FULL: the broker has no room for another lease, or for its finished map."""

    code = 7121
    retriable = True


class SubscriptionsDiffer(BrokerError):
    """SUBSCRIPTIONS_DIFFER: the broker refuses members whose topics or tags differ from the others.

    `groups` names the groups that the client did not join, separated by commas.
    """

    code = 7160
    says = (("groups", "subsDiffer"), ("capability", "inorder"))
    groups: str = ""
    capability: int = 0


class ResizeUnderWay(BrokerError):
    """RESIZE_UNDER_WAY: another resize of the topic was decided. Nothing was done.

    It is the plan `plan_id` to version `version`; finish it first (`resize --resume`).
    """

    code = 7140
    says = (("version", "version"), ("plan_id", "planId"))
    version: int = 0
    plan_id: str = ""


class GroupNotDone(BrokerError):
    """GROUP_NOT_DONE: the group has yet to finish messages of an earlier version of the map."""

    code = 7141
    retriable = True


class BrokerNameTaken(BrokerError):
    """BROKER_NAME_TAKEN: another broker with this name and id is connected to the name server.

    Give one of them another name, or stop it.
    """

    code = 7150


BROKER_ERRORS: dict[int, type[BrokerError]] = {
    cls.code: cls
    for cls in (
        SystemError_, SystemBusy, CodeNotSupported, FlushTimeout, MessageIllegal,
        ServiceNotAvailable, NoPermission, TopicNotFound, OffsetOutOfRange, NotFound,
        SubscriptionParseFailed, SubscriptionNotFound, SubscriptionNotLatest, GroupNotFound,
        InvalidParameter, ConsumerNotOnline, IllegalOperation, ProducerGap, ProducerUnknown,
        ProducerStale, ProducerMismatch, ProducersFull, KeyMapChanged, LeaseLost, LeasesFull,
        SubscriptionsDiffer, ResizeUnderWay, GroupNotDone, BrokerNameTaken,
    )
}  # fmt: skip


def broker_error(
    code: int, remark: str | None, fields: Mapping[str, str] | None = None
) -> BrokerError:
    """Return the exception for a response code, with values from the reply's fields."""
    kind = AccessDenied if is_denial(code, remark) else BROKER_ERRORS.get(code, BrokerError)
    said: dict[str, int | str] = {}
    for name, wire in kind.says:
        with contextlib.suppress(
            ValueError
        ):  # a reply with malformed fields is still a reply with this code
            said[name] = type(getattr(kind, name))((fields or {}).get(wire, ""))
    return kind(remark or "", code=code, **said)


class StoreError(InorderError):
    """A file operation of the store failed or was refused."""


class CorruptRecord(StoreError):
    """Bytes that should be a record are not; they are never served."""


class RecordTooLarge(StoreError):
    """A record exceeds the configured limit or the size of a segment."""


class StoreBusy(StoreError):
    """Too much waits to be written; try again later."""

    retriable = True


class DiskFull(StoreError):
    """The disk has no room; nothing of the failed write is kept."""

    retriable = True


class NoDescriptors(StoreError):
    """The process may open no more files (`ulimit -n`); nothing was touched, it is tried again."""

    retriable = True


class StoreLocked(StoreError):
    """Another process uses the directory."""


class StoreFailed(StoreError):
    """A write or sync failed in a way that cannot be undone; the store accepts no more writes."""


class WriteInDoubt(StoreFailed):
    """A write failed and could not be undone: its bytes may come back at the next start."""
