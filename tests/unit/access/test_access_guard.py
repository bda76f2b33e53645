"""The guard by itself: candidates of signatures, bounds, and what it remembers."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.access import service
from inorder.access.codes import BROKER
from inorder.access.rules import User
from inorder.access.service import Accounts, Admission, Changed, Guard, Reason, Refused
from inorder.access.storage import AccessFile
from inorder.clock import SystemClock
from inorder.config import AccessConfig
from inorder.wire.extensions import BOUND, COUNTER, SESSION
from inorder.wire.header import Command
from inorder.wire.signature import AK, SIGNATURE, bound, content, sign
from tests.golden.wire.test_captured_frames import command_of, rows
from tests.integration.accesskit import entry
from tests.kit.disk import FakeFiles
from tests.unit.access.test_access_storage import PATH

SECRET = b"a-long-enough-secret"


class Peer:
    def __init__(self, number: int = 1) -> None:
        self.id = number
        self.peer = "10.1.2.3:5000"
        self.peer_host = bytes((10, 1, 2, 3, 0, 0, 0x13, 0x88))


def guard(level: str = "enforce") -> Guard:
    accounts = Accounts(AccessFile(FakeFiles(), PATH), SystemClock())
    accounts.put_user(User("alice", SECRET), by="test", peer="")
    accounts.put_entries(
        "alice", [entry("Topic:A", "Pub,Sub"), entry("Group:g", "Sub")], by="test", peer=""
    )
    return Guard(accounts, AccessConfig(level=level), BROKER, BROKER.keys(), draw=bytes)


def query(**more: str) -> dict[str, str]:
    return {"topic": "A", "key": "k", AK: "alice", **more}


@pytest.mark.parametrize(
    ("unsigned", "accepted"),
    [
        ("_UNIQUE_KEY_QUERY", True),
        ("__ZONE_NAME", True),
        ("SecurityToken", True),
        ("topic2", False),
        ("a", False),
    ],
)
def test_fields_that_some_clients_do_not_sign(unsigned: str, accepted: bool) -> None:
    """Only those of the list are left out of the content; any other field must be signed."""
    fields = query()
    fields[SIGNATURE] = sign(SECRET, content(fields, b""))
    fields[unsigned] = "true"
    found = guard().admit(Peer(), Command.request(12, fields))
    assert isinstance(found, Admission) is accepted


@pytest.mark.parametrize("name", ["rocketmq-cpp-0.4.4", "ali-ons-3.12.0"])
def test_captured_frames_of_stock_clients_are_admitted(name: str) -> None:
    """Each signed frame, with its user there; with one byte changed it is refused."""
    commands = [command_of(frame) for _, frame in rows(name)]
    signed = [one for one in commands if SIGNATURE in one.fields and not one.is_response]
    secrets = {one.fields[AK]: b"12345678" for one in signed if one.fields[AK]}
    made = guard()
    for user, secret in secrets.items():
        made.accounts.put_user(User(user, secret, is_super=True), by="test", peer="")
    counted = 0
    for command in signed:
        if command.code not in BROKER:
            continue
        counted += 1
        found = made.admit(Peer(), command)
        assert isinstance(found, Admission) is bool(command.fields[AK]), command
        command.body = bytes(command.body) + b"x"
        assert isinstance(made.admit(Peer(), command), Refused)
    assert counted


def send(user: str, topic: str, secret: bytes = SECRET) -> Command:
    fields = {"b": topic, AK: user}
    fields[SIGNATURE] = sign(secret, content(fields, b""))
    return Command.request(310, fields)


def test_unknown_users_cost_as_many_hashes_as_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the time tells nothing; nor does the answer."""
    made = guard()
    made.accounts.put_user(User("off", SECRET, enabled=False), by="test", peer="")
    compared: list[int] = []
    real = service.hmac.compare_digest
    monkeypatch.setattr(
        service.hmac, "compare_digest", lambda a, b: compared.append(len(a)) or real(a, b)
    )
    answers = set()
    for user, secret in (("alice", b"wrong"), ("nobody", SECRET), ("off", SECRET)):
        compared.clear()
        found = made.admit(Peer(), send(user, "A", secret))
        assert isinstance(found, Refused)
        answers.add((found.remark, tuple(compared)))
    assert answers == {("check signature failed.", (28,))}
    assert made.refusals == {Reason.SIGNATURE: 1, Reason.UNKNOWN: 1, Reason.DISABLED: 1}


def test_signatures_that_are_none_are_compared_as_bytes() -> None:
    """Text that is not ASCII, and very long, is refused without an exception."""
    made = guard()
    for text in ("é" * 28, "x" * 1_000_000, "\udc80", " "):
        command = send("alice", "A")
        command.fields[SIGNATURE] = text
        assert isinstance(made.admit(Peer(), command), Refused)


def bind(session: str, counter: int, *, code: int = 310, **fields: str) -> Command:
    """Return a send of alice; the mark and the signature are right for these values."""
    fields = {"b": "A", "e": "3", AK: "alice", SESSION: session, COUNTER: str(counter), **fields}
    fields[BOUND] = bound(SECRET, session, counter, code, fields, 4)
    command = Command.request(code, fields, b"body")
    return resign(command)


def resign(command: Command) -> Command:
    """Sign again: whoever knows the secret, or moves what the signature does not cover."""
    command.fields[SIGNATURE] = sign(SECRET, content(command.fields, command.body))
    return command


def test_a_mark_holds_for_its_connection_its_request_and_once() -> None:
    """Each field of a session that is there is checked, and none goes without the others."""
    made = guard()
    peer, other = Peer(1), Peer(2)
    made._draw = lambda size: bytes(range(size))
    session = made.session_of(peer)
    made._draw = bytes
    foreign = made.session_of(other)

    def reason(command: Command, at: Peer = peer) -> Reason | None:
        found = made.admit(at, command)
        return found.reason if isinstance(found, Refused) else None

    assert reason(bind(session, 1)) is None
    assert reason(bind(session, 1)) is Reason.SESSION
    assert reason(bind(session, 2), other) is Reason.SESSION
    assert reason(bind(foreign, 2)) is Reason.SESSION
    assert reason(bind(session, 2), Peer(3)) is Reason.SESSION
    for name in (SESSION, COUNTER, BOUND):
        for text in (None, "", "0", "é", "\udc80", "9" * 30):
            command = bind(session, 2)
            if text is None:
                del command.fields[name]
            else:
                command.fields[name] = text
            assert reason(resign(command)) is Reason.SESSION, (name, text)
    recoded = bind(session, 2)
    recoded.code = 11
    assert reason(recoded) is Reason.SESSION
    renamed = bind(session, 2)
    renamed.fields["f"] = renamed.fields.pop("e")
    assert reason(renamed) is Reason.SESSION
    moved = bind(session, 2, f="12", g="3")
    moved.fields.update(f="1", g="23")
    assert reason(moved) is Reason.SESSION
    borrowed = bind(session, 2, n="some")
    borrowed.fields["n"], borrowed.body = "somebo", b"dy"  # the last value, beside the body
    assert reason(borrowed) is Reason.SESSION
    assert reason(bind(session, 2)) is None
    assert reason(bind(session, 2000)) is None
    assert reason(bind(session, 977)) is None
    assert reason(bind(session, 976)) is Reason.SESSION


def test_a_changed_secret_counts_at_once() -> None:
    """For signatures and marks, though keys are kept prepared."""
    made = guard()
    session = made.session_of(Peer())
    assert isinstance(made.admit(Peer(), bind(session, 1)), Admission)
    made.accounts.put_user(User("alice", b"another-long-secret"), by="test", peer="")
    for command in (bind(session, 2), send("alice", "A")):
        found = made.admit(Peer(), command)
        assert isinstance(found, Refused)
        assert found.reason is Reason.SIGNATURE
    assert isinstance(made.admit(Peer(), send("alice", "A", b"another-long-secret")), Admission)


def test_a_server_and_a_user_of_one_name_have_their_own_secrets() -> None:
    """Each signs with its own, in any order."""
    made = guard()
    inner = '{"accessKey":"alice","secretKey":"the-secret-of-servers"}'
    made = Guard(
        made.accounts, AccessConfig(level="enforce", inner_credentials=inner), BROKER,
        BROKER.keys(), draw=bytes,
    )  # fmt: skip
    for secret in (SECRET, b"the-secret-of-servers", SECRET):
        found = made.admit(Peer(), send("alice", "A", secret))
        assert isinstance(found, Admission)
        assert found.inner == (secret != SECRET)
    assert isinstance(made.admit(Peer(), send("alice", "A", b"neither")), Refused)


def test_a_certificate_may_name_the_user() -> None:
    """Without a signature, and only if the user is there and enabled; a wrong signature counts."""
    made = guard()
    named = {1: "alice", 2: "nobody", 3: None}
    made._certified = lambda peer: named[peer.id]
    unsigned = Command.request(310, {"b": "A"})
    assert [isinstance(made.admit(Peer(one), unsigned), Admission) for one in named] == [
        True, False, False,
    ]  # fmt: skip
    assert isinstance(made.admit(Peer(1), Command.request(310, {"b": "B"})), Refused)
    assert isinstance(made.admit(Peer(1), send("alice", "A", b"wrong")), Refused)
    assert isinstance(made.admit(Peer(1), Command.request(310, {"b": "A", AK: ""})), Refused)
    made.accounts.put_user(User("alice", SECRET, enabled=False), by="test", peer="")
    assert isinstance(made.admit(Peer(1), unsigned), Refused)


def test_verdicts_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until users or rules change."""
    monkeypatch.setattr(service, "VERDICTS_MAX", 10)
    made = guard()
    for number in range(100):
        made.admit(Peer(), send("alice", f"T{number}"))
        assert len(made._verdicts) <= 10
    assert isinstance(made.admit(Peer(), send("alice", "B")), Refused)
    made.accounts.put_entries("alice", [entry("Topic:B", "Pub")], by="test", peer="")
    held = made.admit(Peer(), send("alice", "B"))
    assert isinstance(held, Admission)
    assert made.still(held) is None
    made.accounts.put_entries("alice", [entry("Topic:B", "Sub")], by="test", peer="")
    refusal = made.still(held)
    assert refusal is not None
    assert "no matched policies" in refusal.remark


def test_what_connections_bring_is_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many producers are refused; a lost connection leaves nothing."""
    monkeypatch.setattr(service, "BROUGHT_MAX", 3)
    made = guard()

    def hello(producer: str, peer: Peer) -> bool:
        fields = {"producerId": producer, "incarnation": "1", AK: "alice"}
        fields[SIGNATURE] = sign(SECRET, content(fields, b""))
        return isinstance(made.admit(peer, Command.request(7100, fields)), Admission)

    peer = Peer(1)
    assert [hello(f"p{number}", peer) for number in range(5)] == [True, True, True, False, False]
    assert hello("p1", Peer(2))
    made.connection_lost(peer)
    assert made._owners
    made.connection_lost(Peer(2))
    assert (made._owners, made._connections) == ({}, {})
    made.connection_lost(Peer(3))


def test_watchers_hear_of_refusals_and_changes_without_secrets() -> None:
    """The audit log is one."""
    heard: list[Any] = []

    class Watcher:
        def refused(self, refusal: Refused) -> None:
            heard.append(refusal)

        def changed(self, change: Changed) -> None:
            heard.append(change)

    made = guard("log")
    made.accounts.watchers.append(Watcher())
    assert isinstance(made.admit(Peer(), send("alice", "B" * 5000)), Admission)
    made.accounts.delete_user("alice", by="root", peer="10.1.2.3:5000")
    refusal, change = heard
    assert (refusal.reason, refusal.user, refusal.enforced) == (Reason.POLICY, "alice", False)
    assert len(refusal.remark) <= 300
    assert change == Changed("user deleted", "alice", "root", "10.1.2.3:5000")
    assert SECRET.decode() not in repr(heard)


def test_statistics_say_who_would_be_refused() -> None:
    """By user and code, and bounded; names that nobody has count as nobody."""
    made = guard("log")
    for number in range(1000):
        made.admit(Peer(), send(f"guess{number}", "A"))
    made.admit(Peer(), send("alice", "B"))
    shown = made.statistics()
    assert shown["accessLevel"] == "log"
    assert (shown["accessRefused_nobody_310"], shown["accessRefused_alice_310"]) == ("1000", "1")
    assert shown["accessRefused"] == "1001"
    assert len(made.counted) == 2
