"""Every request code of the broker and of the name server, as each kind of user."""

from __future__ import annotations

import asyncio
import json

import pytest

from inorder.access import codes
from inorder.access.codes import BROKER, LOGIN, NAME_SERVER, SUPER, Special
from inorder.access.service import Guard, Refused
from inorder.broker.router import SERVED
from inorder.model import TopicQueue
from inorder.nameserver.handlers import HANDLERS
from inorder.ordering import keymap
from inorder.wire.header import Command
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData
from inorder.wire.requests.leases import LockBatchBody
from inorder.wire.requests.pulls import parse_subscription
from tests.integration.accesskit import (
    INNER,
    Caller,
    allow,
    entry,
    guarded,
    guarded_names,
    send_of,
    signed,
)

T, G = "T", "g"
_EVERYTHING = {
    **send_of(T), "topic": T, "consumerGroup": G, "group": G, "groupName": G, "srcGroup": G,
    "destGroup": G, "compareGroup": G, "queueId": "1", "queueOffset": "0", "maxMsgNums": "1",
    "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
    "subscription": "*", "clientId": "c", "clientID": "c", "instance": "i", "epoch": "1",
    "producerId": "p", "producerGroup": "PG", "incarnation": "1", "offset": "0", "key": T,
    "msgId": "7F00000100002A9F0000000000000000", "commitLogOffset": "0", "term": "1",
    "namespace": keymap.NAMESPACE, "brokerName": "b", "clusterName": "DefaultCluster",
    "planId": "1", "version": "1", "map": "m", "username": "x", "cluster": "DefaultCluster",
    "recallHandle": "h", "defaultTopic": "TBW102", "extraInfo": "0 1 1 0 0 b 1 0",
}  # fmt: skip
"""Fields for any code; what it does not know it ignores."""
_SUBSCRIBED = (parse_subscription(T, "*"),)
_BODIES = {
    34: ClientHeartbeat("c", (ConsumerData(G, subscriptions=_SUBSCRIBED),)).encode(),
    41: LockBatchBody("c", G, (TopicQueue(T, "broker-a", 1),)).encode(),
    42: LockBatchBody("c", G, (TopicQueue(T, "broker-a", 1),)).encode(),
    18: b'{"topicConfigList":[{"topicName":"T"}]}',
    200: b'{"groupName":"g"}',
    225: b'{"groupConfigList":[{"groupName":"g"}]}',
    400: b'{"topic":"T","consumerGroup":"g","clientId":"c"}',
    401: b'{"topic":"T","consumerGroup":"g","mode":"PULL"}',
    200151: json.dumps(
        {"acks": [{"c": G, "t": T, "q": 1, "rq": 0, "pt": 1, "so": 0, "b": "AQ=="}]}
    ).encode(),
    7120: b'{"queues":[["T",1]]}',
    7122: b'{"commits":[["T",1,1,1,1]]}',
    7134: b'{"keys":[["T",1,"k"]]}',
    7137: b'{"keys":[["T",1,"k"]]}',
}
ALL_RIGHTS = (entry("Topic:T", "All"), entry("Group:g", "All"), entry("Cluster:*", "All"))


def request(user: str, code: int) -> Command:
    return signed(user, code, _EVERYTHING, _BODIES.get(code, b""))


def judged(guard: Guard, caller: Caller, command: Command) -> bool:
    """Return whether the guard itself lets a request pass; nothing is served."""

    class Peer:
        id = 77
        peer = "10.0.0.1:5000"
        peer_host = bytes((10, 0, 0, 1, 0, 0, 0x13, 0x88))

    found = guard.admit(Peer(), command)
    guard.connection_lost(Peer())
    return not isinstance(found, Refused)


def test_every_code_that_is_served_has_a_row() -> None:
    """A new code without a row fails here, and is refused with 16."""
    assert sorted(SERVED - BROKER.keys()) == []
    assert sorted(HANDLERS.keys() - NAME_SERVER.keys()) == []
    assert sorted(BROKER.keys() - SERVED) == []
    assert sorted(NAME_SERVER.keys() - HANDLERS.keys()) == []


def test_a_served_code_without_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a super user: a forgotten row is no open door."""
    rows = dict(BROKER)
    del rows[26]
    monkeypatch.setattr(codes, "BROKER", rows)

    async def main() -> None:
        async with guarded() as (_, caller):
            assert (await caller.ask("root", 26)).code == 16
            assert (await caller.ask("root", 28)).code == 0

    asyncio.run(main())


UNKNOWN_HALF = {37}
"""There is no such transaction, so its topic cannot be read."""
NOBODYS_MESSAGE = 33
"""There is no message at the position, so no topic is touched."""


@pytest.mark.parametrize("server", ["broker", "name server"])
def test_each_code_as_each_kind_of_user(server: str) -> None:
    """Nobody; a user without rules; one with rules for all that it names; a super user."""

    async def main() -> None:
        async with guarded() as (broker, at_broker), guarded_names() as (names, at_names, _):
            allow(broker, "alice")
            allow(broker, "bob", *ALL_RIGHTS)
            if server == "broker":
                guard, rows, caller = broker.guard, BROKER, at_broker
            else:
                assert names.guard is not None
                assert broker.accounts is not None
                names.guard.accounts.replace(broker.accounts.book, by="t", peer="")
                guard, rows, caller = names.guard, NAME_SERVER, at_names
            assert guard is not None
            wrong = []
            for code, row in sorted(rows.items()):
                special = isinstance(row.needs, Special)
                fields = dict(_EVERYTHING)
                unsigned = Command.request(code, fields, _BODIES.get(code, b""))
                seen = (
                    judged(guard, caller, unsigned),
                    judged(guard, caller, request("alice", code)),
                    judged(guard, caller, request("bob", code)),
                    judged(guard, caller, request("root", code)),
                    judged(guard, caller, request(INNER[0], code)),
                )
                login = row.needs is LOGIN or code == NOBODYS_MESSAGE
                wanted = (
                    False,
                    login,
                    login or (not special and code not in UNKNOWN_HALF),
                    True,
                    row.needs is not SUPER,
                )
                if seen != wanted:
                    wrong.append((int(code), seen, wanted))
            assert wrong == []

    asyncio.run(main())


def test_a_refused_code_is_answered_16_over_the_wire() -> None:
    """The same as bytes: every code by a user without rules, and by nobody."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice")
            for code, row in sorted(BROKER.items()):
                if row.needs is LOGIN or code == NOBODYS_MESSAGE:
                    continue
                answer = await caller.raw(request("alice", code))
                assert answer.code == 16, (code, answer)
                unsigned = Command.request(code, dict(_EVERYTHING), _BODIES.get(code, b""))
                assert (await caller.raw(unsigned)).code == 16, code

    asyncio.run(main())


def test_a_request_that_does_not_say_what_it_is_about_is_refused() -> None:
    """Missing fields and bodies that cannot be read: 16 for a user with all rules."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "bob", entry("*", "All"))
            for code in (10, 310, 320, 11, 361, 34, 41, 36, 37, 15, 200, 18, 200151, 7120, 7122):
                answer = await caller.ask("bob", code, {}, b"{[")
                assert answer.code == 16, (code, answer)

    asyncio.run(main())
