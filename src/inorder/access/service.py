"""The guard of a server: who sent a request, and may they do that?

    Accounts   the users and rules of a server, their file, and every change of them
    Guard      admits a request, or says why not

A request is judged by what was decoded and will be served, never by another reading of its bytes.
The steps: the user and the signature, the session if the request names one, the row of the code,
each need, and whether client ids, groups and producers belong to somebody else. An unknown user, a
disabled one and a wrong signature get one answer in about the same time.

At the level `log` a request that `enforce` would refuse is counted and passes; only requests about
users and rules themselves are refused. The verdict on (user, resource, actions) is remembered until
users or rules change. A held request remembers the admission that it began with and is judged
again when it ends (`still`). Why: decision 55.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from inorder.access.codes import (
    CLUSTER,
    ENFORCED_ALWAYS,
    INNER,
    SESSION_CODES,
    SUPER,
    Brought,
    Lookups,
    Need,
    NoLookups,
    Row,
    Special,
    What,
)
from inorder.access.inner import INIT_LINE, INNER_LINE, first_user, inner_user
from inorder.access.plainbook import merged
from inorder.access.plainfiles import PlainWatch
from inorder.access.rules import (
    SECRET_CHARS_GOOD,
    Action,
    Book,
    Counters,
    Entry,
    Kind,
    PolicyType,
    Resource,
    User,
    Verdict,
    action_names,
    decide,
    reachable,
    refused,
)
from inorder.errors import BrokerError, ConfigError, InorderError, NoPermission, StoreError
from inorder.logs import get_logger
from inorder.wire.extensions import BOUND, COUNTER, SESSION
from inorder.wire.names import TRACE_TOPIC
from inorder.wire.signature import AK, SIGNATURE, Keys, bound_content, contents

if TYPE_CHECKING:
    from inorder.access.storage import AccessFile
    from inorder.clock import Clock
    from inorder.config import AccessConfig
    from inorder.wire.header import Command

log = get_logger(__name__)

VERDICTS_MAX: Final = 10_000
BROUGHT_MAX: Final = 4096
"""Client ids, groups and producers that one connection may bring."""
NAME_KEPT_MAX: Final = 512
"""Characters of a name that is remembered; a frame has room for a million."""
OWNED_MAX: Final = 400_000
"""Client ids and producers of all users together."""
OWNED_OF_USER_MAX: Final = 50_000
"""Those of one user: nobody can take the room of all others."""
LOOK_MS: Final = 1000
"""How often the file is looked at for a change by somebody else."""
PLAIN_LOOK_MS: Final = 5000
"""How often RocketMQ's ACL files are, where they are read; RocketMQ looks as often."""
COUNTED_MAX: Final = 256
"""Pairs of user and code of which refusals are counted apart."""
REMARK_CHARS_MAX: Final = 300
SIGNATURE_CHARS_MAX: Final = 64
COUNTER_CHARS_MAX: Final = 19
NO_NAME: Final = "username cannot be null."
WRONG: Final = "check signature failed."
_DUMMY: Final = User("", b"nobody has this secret")


class Peer(Protocol):
    """A connection, as far as the guard must know it."""

    id: int
    peer: str
    peer_host: bytes


class Reason(Enum):
    """Why a request is refused; counted, and not told where it would help to guess."""

    NO_NAME = "no credentials"
    UNKNOWN = "unknown user"
    DISABLED = "disabled user"
    SIGNATURE = "wrong signature"
    SESSION = "wrong session or counter"
    NO_SESSION = "a session is required"
    NO_ROW = "no rule for the code"
    UNREADABLE = "resource not readable"
    NOT_SUPER = "needs a super user"
    NOT_INNER = "needs the credentials of a server"
    POLICY = "no matching policy"
    DENY = "denied by a policy"
    TAKEN = "belongs to another user"


FAILED_LOGINS: Final = frozenset((Reason.UNKNOWN, Reason.DISABLED, Reason.SIGNATURE))
"""Refusals that somebody gets who guesses; limits count them."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is refused, or would be: what the audit needs of it. It holds no secret."""

    reason: Reason
    remark: str
    code: int
    user: str
    """The name that the request gave, known or not."""
    peer: str
    oneway: bool
    resource: str = ""
    enforced: bool = True
    """Whether it was refused; false at the level `log`."""
    action: str = ""
    rule: str = ""
    """The entry that decided; empty if none did."""
    request_id: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of users or rules: what the audit needs of it. It holds no secret."""

    what: str
    subject: str
    by: str
    peer: str


class Admission(NamedTuple):
    """A request that may be served: who sent it, and by which rights."""

    user: User
    inner: bool
    epoch: int
    needs: tuple[Need, ...]
    host: bytes
    passed: bool = False
    """It would be refused at the level `enforce`; nothing is judged again."""


class Watcher(Protocol):
    """Somebody who hears of refusals and changes, such as the audit log."""

    def refused(self, refusal: Refused) -> None:
        """Hear of a refusal."""
        ...

    def changed(self, change: Changed) -> None:
        """Hear of a change."""
        ...


class Accounts:
    """The users and rules of one server. A change is on disk before it counts.

    Accounts of RocketMQ's ACL files come in addition. Whoever changes one takes it over into our
    own file, with its rules; from then on that counts, whatever its file says.
    """

    def __init__(self, file: AccessFile, clock: Clock, plain: PlainWatch | None = None) -> None:
        """`plain` has read RocketMQ's ACL files; None: there are none."""
        self._file = file
        self._clock = clock
        self._seen = file.look()
        self._next_look_ms = 0
        self._next_plain_ms = 0
        self._plain = plain
        self._listeners: list[Callable[[], None]] = []
        self.watchers: list[Watcher] = []
        self.trouble = ""
        """Why the file that lies there is not used; empty: it is."""
        self.epoch = 1
        """Changes with every change of users or rules."""
        self._own = file.load() or Book()
        self.book = self._merged()
        """All users and rules that count."""

    def __repr__(self) -> str:
        return f"Accounts({len(self.book.users)} users, epoch={self.epoch})"

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function after every change."""
        self._listeners.append(listener)

    def look(self, *, now: bool = False) -> None:
        """Take the file if somebody replaced it; one that cannot be used leaves the old rules."""
        now_ms = self._clock.monotonic_ms()
        if self._plain is not None and (now or now_ms >= self._next_plain_ms):
            self._look_at_plain(self._plain)
            settling = self._plain.is_unsettled
            self._next_plain_ms = now_ms + (LOOK_MS if settling else PLAIN_LOOK_MS)
        if now_ms < self._next_look_ms and not now:
            return
        self._next_look_ms = now_ms + LOOK_MS
        try:
            found = self._file.look()
            if found is None or found == self._seen:
                return
            book = self._file.load()
        except (StoreError, OSError) as error:
            if str(error) != self.trouble:
                self.trouble = str(error)
                log.error("the users and rules stay as they were: %s", error)
            return
        self._seen = found
        self.trouble = ""
        if book is not None and book != self._own:
            self._put(book)
            log.warning("users and rules were read again file=%s", self._file.path)
            self._tell(Changed("file read again", str(self._file.path.name), "", ""))

    def _look_at_plain(self, plain: PlainWatch) -> None:
        if plain.poll(self._clock.now_ms()):
            self._put(self._own)
            self._tell(Changed("ACL files read again", f"{len(plain.book.users)} users", "", ""))

    @property
    def plain_trouble(self) -> str:
        """Return why RocketMQ's ACL files, as they lie there, are not used; empty: they are."""
        return "" if self._plain is None else self._plain.complaint

    def _merged(self) -> Book:
        return self._own if self._plain is None else merged(self._own, self._plain.book)

    def is_plain(self, name: str) -> bool:
        """Return whether a user is an account of RocketMQ's ACL files."""
        return (
            self._plain is not None
            and name in self._plain.book.users
            and name not in self._own.users
        )

    def _with(self, name: str) -> Book:
        """Return our own users and rules, with an account of the ACL files that is to change."""
        if self._plain is None or not self.is_plain(name):
            return self._own
        now_ms = self._clock.now_ms()
        log.warning(
            "user=%s is taken over from %s, which no longer counts for it",
            name, self._plain.file_of(name),
        )  # fmt: skip
        book = self._own.with_user(self._plain.book.users[name], now_ms)
        return book.with_entries(name, self._plain.book.entries.get(name, ()), now_ms)

    def put_user(self, user: User, *, by: str, peer: str) -> None:
        """Create or change a user."""
        what = "user changed" if user.name in self._own.users else "user created"
        self._change(self._with(user.name).with_user(user, self._clock.now_ms()))
        if len(user.secret) < SECRET_CHARS_GOOD:
            log.warning("the secret of user=%s is short; give it 16 characters or more", user.name)
        self._tell(Changed(what, user.name, by, peer))

    def delete_user(self, name: str, *, by: str, peer: str) -> None:
        """Delete a user with all rules; an unknown one is no error."""
        if self._plain is not None and self.is_plain(name):
            raise NoPermission(
                f"User:{name} stands in {self._plain.file_of(name)}; delete it there"
            )
        if name in self._own.users:
            self._change(self._own.without_user(name, self._clock.now_ms()))
            self._tell(Changed("user deleted", name, by, peer))

    def put_entries(self, name: str, entries: Iterable[Entry], *, by: str, peer: str) -> None:
        """Add rules of a user, or replace those for the same resources."""
        self._change(self._with(name).with_entries(name, entries, self._clock.now_ms()))
        self._tell(Changed("rules changed", name, by, peer))

    def delete_entries(
        self, name: str, resource: Resource | None, policy: PolicyType, *, by: str, peer: str
    ) -> None:
        """Delete the rule for a resource, or all rules of a user."""
        self._change(self._with(name).without_entries(name, resource, policy, self._clock.now_ms()))
        self._tell(Changed("rules deleted", name, by, peer))

    def replace(self, book: Book, *, by: str, peer: str) -> bool:
        """Take all users and rules of another server if they are newer."""
        if book.version <= self._own.version:
            return False
        self._change(book)
        self._tell(Changed("taken from a broker", f"{len(book.users)} users", by, peer))
        return True

    def _change(self, book: Book) -> None:
        try:
            self._file.save(book)
        except OSError as error:
            raise StoreError(f"users and rules were not saved: {error}") from None
        self._seen = self._file.look()
        self.trouble = ""
        self._put(book)

    def _put(self, own: Book) -> None:
        self._own = own
        self.book = self._merged()
        self.epoch += 1
        for listener in self._listeners:
            listener()

    def _tell(self, change: Changed) -> None:
        log.info("%s: %s by user=%s peer=%s", change.what, change.subject, change.by, change.peer)
        for watcher in self.watchers:
            watcher.changed(change)


@dataclass(slots=True)
class _Connection:
    """What the guard remembers of one connection."""

    session: str = ""
    counters: Counters = field(default_factory=Counters)
    uses_session: bool = False
    brought: dict[Brought, str] = field(default_factory=dict)


class Guard:
    """Judges every request of a server."""

    def __init__(
        self,
        accounts: Accounts,
        config: AccessConfig,
        rows: Mapping[int, Row],
        served: Collection[int],
        *,
        draw: Callable[[int], bytes],
        lookups: Lookups | None = None,
        cluster: str = "",
        own_topics: frozenset[str] = frozenset((TRACE_TOPIC,)),
        certified: Callable[[Peer], str | None] = lambda _: None,
    ) -> None:
        """`draw` gives random bytes; `own_topics` are system topics to which clients send.

        `certified` returns the user that a checked certificate of the peer names; such a user need
        not sign.
        """
        self.accounts = accounts
        self.level = config.effective_level
        self._enforces = self.level == "enforce"
        self._rows = rows
        self._served = served
        self._draw = draw
        self._lookups = lookups or NoLookups()
        self._cluster = cluster
        self._own_topics = own_topics
        self._certified = certified
        self._inner = inner_user(config.inner_credentials)
        self._inner_name = "" if self._inner is None else self._inner.name
        self._connections: dict[int, _Connection] = {}
        self._owners: dict[Brought, tuple[str, int]] = {}
        self._owned_by: dict[str, int] = {}
        self._keys: dict[str, Keys] = {}
        self._inner_keys = None if self._inner is None else Keys(self._inner.secret)
        self._verdicts: dict[tuple[str, Need, bytes], Verdict] = {}
        self.admitted = 0
        self.refusals: dict[Reason, int] = {}
        self.counted: dict[tuple[str, int], int] = {}
        """Refusals, or what would be one, by user and code."""
        accounts.on_change(self._forget)
        self._forget()

    def __repr__(self) -> str:
        return f"Guard({self.level}, {self.accounts!r})"

    # -- requests --------------------------------------------------------------------------------

    def admit(self, connection: Peer, command: Command) -> Admission | Refused:
        """Judge a request; it must be the very one that is served then."""
        self.accounts.look()
        try:
            return self._judge(connection, command)
        except _Refusal as refusal:
            return self._refuse(connection, command, refusal)

    def _judge(self, connection: Peer, command: Command) -> Admission:
        known = self._connections.get(connection.id)
        user, inner = self._authenticate(connection, known, command)
        row = self._rows.get(command.code)
        needs: tuple[Need, ...] = ()
        if row is None:
            if command.code in self._served:
                raise _Refusal(Reason.NO_ROW, f"request code {command.code} has no rule")
        else:
            needs = self._check(row, command, user, connection.peer_host, connection, inner=inner)
            if row.brings is not None:
                self._bring(connection, row.brings(command), user.name)
        self.admitted += 1
        return Admission(user, inner, self.accounts.epoch, needs, connection.peer_host)

    def screen(self, connection: Peer, command: Command) -> bool:
        """Return whether the body of a long request is worth receiving, by its header alone."""
        if not self._enforces:
            return True
        name = command.fields.get(AK) or self._certified(connection) or ""
        return name in self.accounts.book.users or (bool(name) and name == self._inner_name)

    def still(self, admission: Admission) -> NoPermission | None:
        """Judge a request that was held once more; None: it may go on."""
        self.accounts.look()
        if admission.passed or admission.epoch == self.accounts.epoch or admission.inner:
            return None
        user = self.accounts.book.users.get(admission.user.name)
        if user is None or not user.enabled or user.secret != admission.user.secret:
            return NoPermission(WRONG)
        try:
            self._check_needs(user, admission.needs, admission.host)
        except _Refusal as refusal:
            return NoPermission(refusal.remark)
        return None

    # -- who -------------------------------------------------------------------------------------

    def _authenticate(
        self, connection: Peer, known: _Connection | None, command: Command
    ) -> tuple[User, bool]:
        fields = command.fields
        name, given = fields.get(AK), fields.get(SIGNATURE)
        if name is None and given is None:
            certified = self.accounts.book.users.get(self._certified(connection) or "")
            if certified is not None and certified.enabled:
                return certified, False
        if not name or not given:
            raise _Refusal(Reason.NO_NAME, NO_NAME)
        user = self.accounts.book.users.get(name)
        inner = self._inner if self._inner is not None and self._inner.name == name else None
        candidates = [one for one in (inner, user) if one is not None]
        wanted = given[:SIGNATURE_CHARS_MAX].encode("utf-8", "replace")
        for one in candidates or [_DUMMY]:
            if self._signed_by(one, command, wanted) and candidates and one.enabled:
                self._check_session(known, command, one)
                if user is None or (one is inner and not user.is_super):
                    return one, True
                return user, False
        reason = Reason.SIGNATURE
        if not candidates:
            reason = Reason.UNKNOWN
        elif user is not None and not user.enabled and inner is None:
            reason = Reason.DISABLED
        raise _Refusal(reason, WRONG)

    def _signed_by(self, user: User, command: Command, wanted: bytes) -> bool:
        """Compare with every content that a client may have signed."""
        # hot: 2 us for a send of 256 B.
        keys = self._keys_of(user)
        for one in contents(command.fields, command.body):
            if hmac.compare_digest(keys.sign(one), wanted):
                return True
        return False

    def _keys_of(self, user: User) -> Keys:
        """Return the keys of a user; they are forgotten with every change of users."""
        if user is self._inner and self._inner_keys is not None:
            return self._inner_keys
        keys = self._keys.get(user.name)
        if keys is None:
            keys = self._keys[user.name] = Keys(user.secret)
        return keys

    def _check_session(self, known: _Connection | None, command: Command, user: User) -> None:
        """Check session, counter and mark, where one of them is given."""
        fields = command.fields
        session, counter, mark = fields.get(SESSION), fields.get(COUNTER), fields.get(BOUND)
        if session is None and counter is None and mark is None:
            if user.session_required and (
                command.code not in SESSION_CODES or (known is not None and known.uses_session)
            ):
                raise _Refusal(Reason.NO_SESSION, "the user may send bound requests only.")
            return
        if (
            known is None
            or not known.session
            or not session
            or not counter
            or not mark
            or len(counter) > COUNTER_CHARS_MAX
            or not (counter.isascii() and counter.isdigit())
            or int(counter) >= 1 << 63
        ):
            raise _Refusal(Reason.SESSION, "the session is not of this connection.")
        number = int(counter)
        covered = bound_content(known.session, number, command.code, fields, len(command.body))
        wanted = self._keys_of(user).mark(covered)
        if (
            not hmac.compare_digest(session.encode("utf-8", "replace"), known.session.encode())
            or not hmac.compare_digest(mark.encode("utf-8", "replace"), wanted)
            or not known.counters.take(number)
        ):
            raise _Refusal(Reason.SESSION, "the session is not of this connection.")
        known.uses_session = True

    def session_of(self, connection: Peer) -> str:
        """Return the session of a connection, for an answer to a client of inorder."""
        known = self._known(connection)
        if not known.session:
            known.session = self._draw(16).hex()
        return known.session

    # -- what ------------------------------------------------------------------------------------

    def _check(
        self, row: Row, command: Command, user: User, host: bytes, connection: Peer, *, inner: bool
    ) -> tuple[Need, ...]:
        needs = row.needs
        if isinstance(needs, Special):
            if user.is_super and not inner:
                return ()
            if needs is SUPER:
                raise _Refusal(Reason.NOT_SUPER, f"User:{user.name} is no super user.")
            if needs is INNER and not inner:
                raise _Refusal(Reason.NOT_INNER, f"User:{user.name} is no server.")
            return ()
        if user.is_super:
            return ()
        try:
            found = tuple(needs(command, self._lookups))
        except InorderError as error:
            remark = error.remark if isinstance(error, BrokerError) else str(error)
            raise _Refusal(Reason.UNREADABLE, remark) from None
        for one in found:
            if one.kind is Kind.CLUSTER:
                found = self._with_cluster(found, command)
                break
        self._check_needs(user, found, host)
        return found

    def _with_cluster(self, needs: tuple[Need, ...], command: Command) -> tuple[Need, ...]:
        cluster = self._cluster or command.fields.get("clusterName") or CLUSTER
        return tuple(
            one._replace(name=cluster) if one.kind is Kind.CLUSTER else one for one in needs
        )

    def _check_needs(self, user: User, needs: tuple[Need, ...], host: bytes) -> None:
        if user.is_super:
            return
        for need in needs:
            verdict = self._verdict(user, need, host)
            if not verdict.allowed:
                reason = Reason.POLICY if verdict.entry is None else Reason.DENY
                error = refused(user.name, need.kind, need.name, _shown(host), verdict)
                resource = f"{need.kind.name.capitalize()}:{need.name}"
                raise _Refusal(
                    reason, error.remark, resource,
                    ",".join(action_names(need.actions)),
                    "" if verdict.entry is None else f"{verdict.entry.resource} Deny",
                )  # fmt: skip

    def _verdict(self, user: User, need: Need, host: bytes) -> Verdict:
        address = host[:-4]
        key = (user.name, need, address)
        found = self._verdicts.get(key)
        if found is None:
            if not reachable(need.kind, need.name, need.actions, own_topics=self._own_topics):
                found = Verdict(False)
            else:
                actions = need.actions
                if need.kind is Kind.TOPIC and need.name in self._own_topics:
                    actions = Action.PUB
                entries = self.accounts.book.entries.get(user.name, ())
                found = decide(entries, need.kind, need.name, actions, address)
            if len(need.name) > NAME_KEPT_MAX:
                return found
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            self._verdicts[key] = found
        return found

    # -- whose -----------------------------------------------------------------------------------

    def _known(self, connection: Peer) -> _Connection:
        known = self._connections.get(connection.id)
        if known is None:
            known = self._connections[connection.id] = _Connection()
        return known

    def _bring(self, connection: Peer, brought: Iterable[Brought], user: str) -> None:
        """Note whose client ids, groups and producers these are; refuse what is another user's."""
        try:
            names = list(dict.fromkeys(brought))
        except InorderError as error:
            raise _Refusal(Reason.UNREADABLE, str(error)) from None
        known = self._known(connection)
        for one in names:
            owner = known.brought.get(one) or self._owner(one)
            if owner and owner != user:
                what = f"{one[0].name.capitalize()}:{one[1]}"
                raise _Refusal(Reason.TAKEN, f"{what} belongs to another user.", what)
        new = [one for one in names if one not in known.brought]
        if any(len(name) > NAME_KEPT_MAX for _, name in new):
            raise _Refusal(Reason.UNREADABLE, "a client id, group or producer has too long a name.")
        if (
            len(known.brought) + len(new) > BROUGHT_MAX
            or len(self._owners) + len(new) > OWNED_MAX
            or self._owned_by.get(user, 0) + len(new) > OWNED_OF_USER_MAX
        ):
            raise _Refusal(Reason.TAKEN, "too many client ids, groups or producers here.")
        for one in new:
            known.brought[one] = user
            if one[0] is not What.GROUP:
                self._own(one, user)

    def _owner(self, one: Brought) -> str:
        """Return whose a client id or a producer is; empty: nobody's."""
        owner = self._owners.get(one, ("", 0))[0]
        if not owner and one[0] is What.PRODUCER:
            owner = self._owners.get((What.NAMED_PRODUCER, one[1]), ("", 0))[0]
        return owner if owner in self.accounts.book.users or owner == self._inner_name else ""

    def _own(self, one: Brought, user: str) -> None:
        owner, count = self._owners.get(one, ("", 0))
        if owner != user:  # a new name, or that of a user who is deleted
            self._owned_by[user] = self._owned_by.get(user, 0) + 1
            if owner:
                self._disown(owner)
            count = 0
        self._owners[one] = user, count + 1

    def _disown(self, user: str) -> None:
        left = self._owned_by[user] - 1
        if left:
            self._owned_by[user] = left
        else:
            del self._owned_by[user]

    def connection_lost(self, connection: Peer) -> None:
        """Forget a connection; what only it has brought is free again, but for named producers."""
        known = self._connections.pop(connection.id, None)
        if known is None:
            return
        for one, user in known.brought.items():
            owner, count = self._owners.get(one, ("", 0))
            if owner != user:
                continue  # a group; or a user who was deleted meanwhile, and a new owner
            if count > 1 or one[0] is What.NAMED_PRODUCER:
                self._owners[one] = user, count - 1
            else:
                del self._owners[one]
                self._disown(user)

    def member_may(self, connection: Peer, group: str, need: Need) -> bool:
        """Return whether the user who brought a group on a connection may do something."""
        known = self._connections.get(connection.id)
        name = None if known is None else known.brought.get((What.GROUP, group))
        user = None if name is None else self.accounts.book.users.get(name)
        if user is None or not user.enabled:
            return not self._enforces
        try:
            self._check_needs(user, (need,), connection.peer_host)
        except _Refusal:
            return not self._enforces
        return True

    # -- refusals --------------------------------------------------------------------------------

    def _refuse(self, connection: Peer, command: Command, refusal: _Refusal) -> Admission | Refused:
        enforced = self._enforces or command.code in ENFORCED_ALWAYS
        name = command.fields.get(AK, "")[:REMARK_CHARS_MAX]
        self.refusals[refusal.reason] = self.refusals.get(refusal.reason, 0) + 1
        key = (name if name in self.accounts.book.users else "", command.code)
        if key in self.counted or len(self.counted) < COUNTED_MAX:
            self.counted[key] = self.counted.get(key, 0) + 1
        told = Refused(
            refusal.reason,
            refusal.remark[:REMARK_CHARS_MAX],
            command.code,
            name,
            connection.peer,
            command.is_oneway,
            refusal.resource[:REMARK_CHARS_MAX],
            enforced,
            refusal.action,
            refusal.rule[:REMARK_CHARS_MAX],
            command.request_id,
        )
        for watcher in self.accounts.watchers:
            watcher.refused(told)
        if enforced:
            return told
        user = self.accounts.book.users.get(name, _DUMMY)
        return Admission(user, False, self.accounts.epoch, (), connection.peer_host, passed=True)

    def _forget(self) -> None:
        self._verdicts.clear()
        self._keys.clear()

    def statistics(self) -> dict[str, str]:
        """Return what operators see: the level, and how many requests were refused and why."""
        found = {
            "accessLevel": self.level,
            "accessAdmitted": str(self.admitted),
            "accessRefused": str(sum(self.refusals.values())),
        }
        for reason, count in self.refusals.items():
            found[f"accessRefused_{reason.name.lower()}"] = str(count)
        for (user, code), count in sorted(self.counted.items()):
            found[f"accessRefused_{user or 'nobody'}_{code}"] = str(count)
        if self.accounts.trouble:
            found["accessTrouble"] = self.accounts.trouble
        if self.accounts.plain_trouble:
            found["accessPlainTrouble"] = self.accounts.plain_trouble
        return found


class _Refusal(Exception):
    """A request is not admitted."""

    def __init__(
        self, reason: Reason, remark: str, resource: str = "", action: str = "", rule: str = ""
    ) -> None:
        super().__init__(remark)
        self.reason = reason
        self.remark = remark
        self.resource = resource
        self.action = action
        self.rule = rule


def _shown(host: bytes) -> str:
    try:
        return str(ip_address(host[:-4]))
    except ValueError:
        return "?"


# -- starting -------------------------------------------------------------------------------------


def check_settings(config: AccessConfig, *, needs_inner: bool) -> None:
    """Refuse half a configuration. Raises ConfigError with the line that is missing."""
    if config.authentication != config.authorization and config.level != "off":
        given, missing = "authenticationEnabled", "authorizationEnabled"
        if config.authorization:
            given, missing = missing, given
        raise ConfigError(f"{given}=true needs the line {missing}=true beside it")
    if config.level == "off" and (config.authentication or config.authorization):
        raise ConfigError(
            "access.level=off contradicts authenticationEnabled=true; leave one of them out"
        )
    if config.level == "off" and config.acl_enable:
        raise ConfigError("access.level=off contradicts aclEnable=true; leave one of them out")
    if config.acl_enable and not config.rocketmq_home:
        raise ConfigError(
            "aclEnable=true needs the home of the ACL files: give rocketmqHome=DIR or ROCKETMQ_HOME"
        )
    first_user(config.init_user)
    inner_user(config.inner_credentials)
    # With aclEnable alone this is a broker of RocketMQ 4, whose name servers check nothing.
    needs_inner = needs_inner and not config.only_plain
    if config.effective_level == "enforce" and needs_inner and not config.inner_credentials:
        raise ConfigError(
            "access is enforced, and brokers and name servers cannot speak with each other "
            f"without the line {INNER_LINE} in the settings file of each"
        )


def open_accounts(
    file: AccessFile, config: AccessConfig, clock: Clock, *, needs_super: bool,
    watchers: Iterable[Watcher] = (),
) -> Accounts:  # fmt: skip
    """Load the users; create the first one. Raises ConfigError: nobody could change anything."""
    plain = None
    if config.acl_enable:
        plain = PlainWatch(Path(config.rocketmq_home))
        plain.load(clock.now_ms())
    accounts = Accounts(file, clock, plain)
    accounts.watchers += watchers
    needs_super = needs_super and not config.only_plain
    first = first_user(config.init_user)
    if first is not None and (
        first.name not in accounts.book.users or accounts.is_plain(first.name)
    ):
        accounts.put_user(first, by="initAuthenticationUser", peer="")
    if needs_super and config.effective_level == "enforce" and not accounts.book.has_super:
        raise ConfigError(
            "access is enforced, and there is no super user: run `inorder user create --data DIR "
            f"--super NAME` once, or give the line {INIT_LINE} in the settings "
            "file"
        )
    if not file.is_sealed:
        log.warning(
            "secrets of users are not encrypted in file=%s (mode 600); set access.key_file",
            file.path,
        )
    return accounts
