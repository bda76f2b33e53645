"""A broker that controls access: who is refused, and that nothing changed then."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from inorder.access.rules import User
from inorder.model import TopicQueue
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import BOUND, COUNTER, SESSION
from inorder.wire.frame import frame
from inorder.wire.header import Command
from inorder.wire.requests.groups import ClientHeartbeat, ConsumerData
from inorder.wire.requests.leases import LockBatchBody
from inorder.wire.requests.pulls import parse_subscription
from inorder.wire.signature import AK, SIGNATURE, bound, content, sign
from tests.integration.accesskit import (
    ROOT,
    SECRETS,
    SETTINGS,
    Caller,
    allow,
    connect,
    entry,
    guarded,
    long_names,
    pull_of,
    send_of,
    signed,
    stored,
    until,
)


def test_a_signed_send_is_stored_and_an_unsigned_one_is_not() -> None:
    """Without a name, with an empty one, and with a wrong secret: 16, and nothing is stored."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:Orders", "Pub"))
            answer = await caller.ask("alice", 310, send_of("Orders"), b"1")
            assert answer.code == 0, answer
            assert stored(broker) == {("Orders", 1): 1}
            nobody = await caller.raw(Command.request(310, send_of("Orders"), b"2"))
            assert nobody.code == 16
            assert str(nobody.remark).startswith("username cannot be null")
            empty = {AK: "", **send_of("Orders")}
            empty[SIGNATURE] = sign(b"", content(empty, b"2"))
            assert (await caller.raw(Command.request(310, empty, b"2"))).code == 16
            for user, secret in (("alice", "another-secret"), ("nobody", None), ("bob", "")):
                answer = await caller.ask(user, 310, send_of("Orders"), b"2", secret=secret)
                assert answer.code == 16
                assert str(answer.remark).startswith("check signature failed")
            assert stored(broker) == {("Orders", 1): 1}

    asyncio.run(main())


def test_a_changed_frame_is_refused() -> None:
    """One byte of the body, one value or the signature changed: 16, nothing is stored."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:*", "Pub"))
            good = signed("alice", 310, send_of("Orders"), b"body")
            await caller.raw(good)
            for change in ("body", "value", "signature", "moved"):
                bad = signed("alice", 310, send_of("Orders"), b"body")
                if change == "body":
                    bad.body = b"bodz"
                elif change == "value":
                    bad.fields["e"] = "0"
                elif change == "moved":
                    bad.fields["e"], bad.fields["f"] = bad.fields["f"], bad.fields["e"]
                else:
                    bad.fields[SIGNATURE] = bad.fields[SIGNATURE][:-2] + "x="
                assert (await caller.raw(bad)).code == 16, change
            assert stored(broker) == {("Orders", 1): 1}

    asyncio.run(main())


@pytest.mark.parametrize("serializer", [0, 1])
def test_disabled_and_deleted_users_are_refused(serializer: int) -> None:
    """All in the words of a wrong signature, in both header encodings."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:*", "Pub"), enabled=False)
            allow(broker, "bob", entry("Topic:*", "Pub"))
            ask = caller.ask
            assert (await ask("bob", 310, send_of("A"), b"1", serializer=serializer)).code == 0
            assert broker.accounts is not None
            broker.accounts.delete_user("bob", by="test", peer="")
            for user in ("alice", "bob", "nobody"):
                answer = await ask(user, 310, send_of("A"), b"1", serializer=serializer)
                assert answer.code == 16
                assert str(answer.remark).startswith("check signature failed")
            assert stored(broker) == {("A", 1): 1}

    asyncio.run(main())


def test_a_held_pull_ends_when_the_password_changes() -> None:
    """The hold ends with 16 and brings no message."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:Orders", "Sub"), entry("Group:g", "Sub"))
            allow(broker, "bob", entry("Topic:Orders", "Pub"))
            sender = await caller.open()
            await sender.ask("bob", 310, send_of("Orders"), b"1")
            held = asyncio.create_task(
                caller.ask(
                    "alice", 11,
                    pull_of("Orders", "g", sysFlag="6", queueOffset="1",
                            suspendTimeoutMillis="20000"),
                )
            )  # fmt: skip
            await until(lambda: len(broker.waits) == 1)
            assert broker.accounts is not None
            broker.accounts.put_user(User("alice", b"quite-another-secret"), by="t", peer="")
            await sender.ask("bob", 310, send_of("Orders"), b"secret")
            answer = await held
            assert answer.code == 16
            assert not answer.body

    asyncio.run(main())


def test_a_consumer_cannot_reach_other_topics() -> None:
    """Send, pull, lite pull, pop, peek, acknowledge: 16, and nothing of B changes."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Sub"), entry("Group:g", "Sub"))
            await caller.ask("root", 310, send_of("B"), b"1")
            before = stored(broker)
            pop = {
                "consumerGroup": "g", "topic": "B", "queueId": "1", "maxMsgNums": "1",
                "invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0",
            }  # fmt: skip
            ack = {
                "consumerGroup": "g", "topic": "B", "queueId": "1", "offset": "0",
                "extraInfo": "0 1 10000 0 0 broker-a 1 0",
            }  # fmt: skip
            batch = json.dumps({
                "acks": [{"c": "g", "t": "B", "q": 1, "rq": 0, "pt": 1, "so": 0, "b": "AQ=="}]
            }).encode()  # fmt: skip
            for code, fields, body in (
                (310, send_of("B"), b"x"),
                (10, long_names(send_of("B")), b"x"),
                (11, pull_of("B", "g"), b""),
                (361, pull_of("B", "g"), b""),
                (200050, pop, b""),
                (200052, pop, b""),
                (200051, ack, b""),
                (200151, {}, batch),
                (200053, {**ack, "invisibleTime": "1"}, b""),
                (12, {"topic": "B", "key": "k", "maxNum": "1", "beginTimestamp": "0",
                      "endTimestamp": "9999999999999"}, b""),
                (33, {"offset": "0"}, b""),
                (36, {"offset": "0", "group": "g", "delayLevel": "0"}, b""),
                (30, {"topic": "B", "queueId": "1"}, b""),
            ):  # fmt: skip
                answer = await caller.ask("alice", code, fields, body)
                assert answer.code == 16, (code, answer)
            assert stored(broker) == before
            assert not broker.pop_table.messages
            assert broker.offsets.query("g", "B", 1) == -1

    asyncio.run(main())


def test_a_group_cannot_touch_another_group() -> None:
    """Commit, lock, unlock, reset, clone, park, leases: 16, and nothing of h changes."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Sub"), entry("Group:g", "Sub"))
            await caller.ask("root", 310, send_of("A"), b"1")
            await caller.ask("root", 200, {}, b'{"groupName":"h"}')
            lock = LockBatchBody("client-h", "h", (TopicQueue("A", "broker-a", 1),)).encode()
            assert (await caller.ask("root", 41, {}, lock)).code == 0
            held = broker.leases.held("h")
            commit = {
                "consumerGroup": "h", "topic": "A", "queueId": "1", "commitOffset": "1",
            }  # fmt: skip
            owner = {"group": "h", "clientId": "c", "instance": "i"}
            one = {**owner, "topic": "A", "queueId": "1", "epoch": "1"}
            for code, fields, body in (
                (15, commit, b""),
                (41, {}, lock),
                (42, {}, lock),
                (222, {"topic": "A", "group": "h", "timestamp": "-1", "isForce": "true"}, b""),
                (314, {"srcGroup": "g", "destGroup": "h", "topic": "A"}, b""),
                (207, {"groupName": "h"}, b""),
                (200, {}, b'{"groupName":"h","consumeEnable":false}'),
                (7120, {**owner, "leaseMs": "10000", "graceMs": "0"}, b'{"queues":[["A",1]]}'),
                (7121, one, b""),
                (7122, owner, b'{"commits":[["A",1,1,1,1]]}'),
                (7124, {"group": "h", "topic": "A", "queueId": "1"}, b""),
                (7130, one, b'{"items":[[0,"k"]]}'),
                (7134, {"group": "h"}, b'{"keys":[["A",1,"k"]]}'),
                (7137, {"group": "h", "reason": "r"}, b'{"keys":[["A",1,"k"]]}'),
                (35, {"clientID": "client-h", "consumerGroup": "h"}, b""),
            ):
                answer = await caller.ask("alice", code, fields, body)
                assert answer.code == 16, (code, answer)
            assert broker.offsets.query("h", "A", 1) == -1
            assert broker.leases.held("h") == held
            assert held
            assert "h" in broker.groups

    asyncio.run(main())


def test_the_group_in_a_retry_topic_counts() -> None:
    """A send to %RETRY%h needs h, whatever producer group the request names."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Group:g", "Sub"), entry("Topic:*", "Pub"))
            await caller.ask("root", 200, {}, b'{"groupName":"h"}')
            answer = await caller.ask("alice", 310, send_of("%RETRY%h", a="g", e="0"), b"x")
            assert answer.code == 16
            assert "%RETRY%h" not in {topic for topic, _ in stored(broker)}
            answer = await caller.ask("alice", 310, send_of("%RETRY%g", a="h", e="0"), b"x")
            assert answer.code == 0, answer

    asyncio.run(main())


def test_one_forbidden_member_refuses_the_whole() -> None:
    """A heartbeat, a list of locks and a batch of acknowledgements count as a whole."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Sub"), entry("Group:g", "Sub"))
            await caller.ask("root", 310, send_of("A"), b"1")
            wanted = (parse_subscription("A", "*"),)
            beat = ClientHeartbeat(
                "client", (ConsumerData("g", subscriptions=wanted),
                           ConsumerData("h", subscriptions=wanted)),
            ).encode()  # fmt: skip
            assert (await caller.ask("alice", 34, {}, beat)).code == 16
            assert broker.members.group("g") is None
            assert "g" not in broker.groups
            queues = (TopicQueue("A", "broker-a", 1), TopicQueue("B", "broker-a", 1))
            lock = LockBatchBody("client", "g", queues).encode()
            assert (await caller.ask("alice", 41, {}, lock)).code == 16
            assert not broker.leases.held("g")
            good = ClientHeartbeat("client", (ConsumerData("g", subscriptions=wanted),)).encode()
            assert (await caller.ask("alice", 34, {}, good)).code == 0
            assert broker.members.group("g") is not None

    asyncio.run(main())


def test_operators_requests_need_a_super_user() -> None:
    """Settings, topics, groups and cleaning: 16 for a normal user, nothing changes."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub,Sub"), entry("Group:g", "Sub"))
            await caller.ask("root", 310, send_of("A"), b"1")
            topics, groups = list(broker.topics), list(broker.groups)
            create = {
                "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1",
                "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
            }  # fmt: skip
            for code, fields, body in (
                (25, {}, b"autoCreateTopicEnable=false\n"),
                (26, {}, b""),
                (17, create, b""),
                (18, {}, b'{"topicConfigList":[{"topicName":"New"}]}'),
                (200, {}, b'{"groupName":"new"}'),
                (225, {}, b'{"groupConfigList":[{"groupName":"new"}]}'),
                (207, {"groupName": "g"}, b""),
                (215, {"topic": "A"}, b""),
                (21, {}, b""), (45, {}, b""), (201, {}, b""), (28, {}, b""),
                (306, {}, b""), (316, {}, b""), (329, {}, b""), (315, {}, b""),
                (7102, {"producerId": "p"}, b""), (7103, {}, b""), (7123, {}, b""),
                (3004, {"username": "root"}, b""), (3005, {}, b""), (3010, {}, b""),
            ):  # fmt: skip
                answer = await caller.ask("alice", code, fields, body)
                assert answer.code == 16, (code, answer)
            assert (list(broker.topics), list(broker.groups)) == (topics, groups)
            assert broker.config.auto_create_topics

    asyncio.run(main())


def test_no_answer_and_no_log_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Settings, users and rules as a super user sees them, and every log line."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub"))
            for code, fields in (
                (26, {}), (28, {}), (3004, {"username": "alice"}), (3005, {}), (3009, {}),
                (3009, {"subject": "User:alice"}), (3010, {}),
            ):  # fmt: skip
                answer = await caller.ask("root", code, fields)
                text = str(answer.fields) + str(answer.remark) + bytes(answer.body).decode()
                assert not [one for one in SECRETS.values() if one in text], (code, text)
            assert repr(broker.config).count("secret") == 0
            await caller.ask("alice", 11, pull_of("B", "g"))

    with caplog.at_level("DEBUG"):
        asyncio.run(main())
    assert not [one for one in SECRETS.values() if one in caplog.text]


def test_a_normal_user_makes_no_super_user() -> None:
    """3001 to 3008 by a normal user change nothing; the subject in the body counts."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice")
            assert broker.accounts is not None
            before = broker.accounts.book
            user = b'{"username":"evil","password":"long-enough-1","userType":"Super"}'
            acl = json.dumps({
                "subject": "User:alice",
                "policies": [{"entries": [{"resource": "*", "actions": ["All"],
                                           "decision": "Allow"}]}],
            }).encode()  # fmt: skip
            for code, fields, body in (
                (3001, {"username": "evil"}, user),
                (3002, {"username": "alice"}, b'{"userType":"Super"}'),
                (3003, {"username": "root"}, b""),
                (3006, {"subject": "User:root"}, acl),
                (3007, {"subject": "User:alice"}, acl),
                (3008, {"subject": "User:root"}, b""),
            ):
                assert (await caller.ask("alice", code, fields, body)).code == 16, code
            assert broker.accounts.book is before

    asyncio.run(main())


def test_a_recoded_frame_has_the_rights_of_its_new_code() -> None:
    """A signed pull re-coded as a lite pull, and a send as a reply or a batch."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Sub"), entry("Group:g", "Sub"))
            pull = signed("alice", 11, pull_of("B", "g"))
            pull.code = 361
            assert (await caller.raw(pull)).code == 16
            send = signed("alice", 310, send_of("A"), b"1")
            for code in (310, 320, 325):
                send.code = code
                assert (await caller.raw(send)).code == 16
            heart = ClientHeartbeat("c", ()).encode()
            beat = signed("alice", 34, {}, heart)
            beat.code = 200
            assert (await caller.raw(beat)).code == 16
            assert stored(broker) == {}
            assert "c" not in broker.groups

    asyncio.run(main())


def bind(  # noqa: PLR0917 - what is covered, in its order
    user: str, session: str, counter: int, code: int, fields: dict[str, str], body: bytes = b""
) -> Command:
    """Return a request as a client of inorder signs it."""
    marked = {**fields, AK: user, SESSION: session, COUNTER: str(counter)}
    secret = SECRETS[user].encode()
    marked[BOUND] = bound(secret, session, counter, code, marked, len(body))
    marked[SIGNATURE] = sign(secret, content(marked, body))
    return Command.request(code, marked, body)


async def session_of(caller: Caller, user: str) -> str:
    """Learn the session by a heartbeat."""
    beat = await caller.ask(user, 34, {}, ClientHeartbeat(f"client-of-{user}", ()).encode())
    assert beat.code == 0
    return beat.fields[SESSION]


def test_a_bound_request_is_of_use_once_and_on_its_connection() -> None:
    """A repeat, another connection, another code or another counter: 16; stock repeats pass."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub"))
            session = await session_of(caller, "alice")
            first = bind("alice", session, 1, 310, send_of("A"), b"1")
            assert (await caller.raw(first)).code == 0
            assert (await caller.raw(first)).code == 16
            other = await caller.open()
            assert (await other.raw(bind("alice", session, 2, 310, send_of("A"), b"1"))).code == 16
            recoded = bind("alice", session, 3, 310, send_of("A"), b"1")
            recoded.code = 320
            assert (await caller.raw(recoded)).code == 16
            late = bind("alice", session, 2000, 310, send_of("A"), b"1")
            assert (await caller.raw(late)).code == 0
            assert (await caller.raw(bind("alice", session, 977, 310, send_of("A")))).code != 16
            assert (await caller.raw(bind("alice", session, 900, 310, send_of("A")))).code == 16
            stripped = bind("alice", session, 4000, 310, send_of("A"), b"1")
            for name in (SESSION, COUNTER, BOUND):
                del stripped.fields[name]
            assert (await caller.raw(stripped)).code == 16
            assert stored(broker)[("A", 1)] == 2
            # A stock client's frame can be repeated: only TLS closes that (decision 55).
            stock = signed("alice", 310, send_of("A"), b"1")
            assert (await other.raw(stock)).code == (await other.raw(stock)).code == 0

    asyncio.run(main())


def test_a_user_who_must_bind_sends_nothing_unbound() -> None:
    """After the first answers of a connection every request needs the session."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub"), session_required=True)
            assert (await caller.ask("alice", 310, send_of("A"), b"1")).code == 16
            session = await session_of(caller, "alice")
            assert (await caller.raw(bind("alice", session, 0, 310, send_of("A"), b"1"))).code == 0
            assert (await caller.ask("alice", 34, {}, ClientHeartbeat("c", ()).encode())).code == 16
            assert stored(broker) == {("A", 1): 1}

    asyncio.run(main())


def test_what_a_user_brought_belongs_to_that_user() -> None:
    """Another user's locks, commits and producer hello under the same names are refused."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            for user in ("alice", "bob"):
                allow(broker, user, entry("Topic:A", "Pub,Sub"), entry("Group:g", "Sub"))
            await caller.ask("root", 310, send_of("A"), b"1")
            wanted = (parse_subscription("A", "*"),)
            beat = ClientHeartbeat("c1", (ConsumerData("g", subscriptions=wanted),)).encode()
            assert (await caller.ask("alice", 34, {}, beat)).code == 0
            lock = LockBatchBody("c1", "g", (TopicQueue("A", "broker-a", 1),)).encode()
            assert (await caller.ask("alice", 41, {}, lock)).code == 0
            hello = {"producerId": "p", "incarnation": "1"}
            assert (await caller.ask("alice", 7100, hello)).code == 0
            other = await caller.open()
            held = broker.leases.held("g")
            for code, fields, body in (
                (34, {}, beat),
                (42, {}, lock),
                (41, {}, lock),
                (35, {"clientID": "c1", "consumerGroup": "g"}, b""),
                (7100, {"producerId": "p", "incarnation": "9"}, b""),
                (7101, {"producerId": "p", "topic": "A", "queueId": "1"}, b""),
            ):
                answer = await other.ask("bob", code, fields, body)
                assert answer.code == 16, (code, answer)
            commit = {"consumerGroup": "g", "topic": "A", "queueId": "1", "commitOffset": "1"}
            assert (await caller.ask("bob", 15, commit)).code == 16
            assert broker.leases.held("g") == held
            caller.connection.close()
            await until(lambda: broker.members.group("g") is None)
            assert (await other.ask("bob", 34, {}, beat)).code == 0

    asyncio.run(main())


def test_at_the_level_log_everything_passes_and_is_counted() -> None:
    """The counters are those of `enforce` on the same traffic; users stay protected."""

    async def play(level: str) -> tuple[dict[str, int], list[int]]:
        async with guarded(access=replace(SETTINGS, level=level)) as (broker, caller):
            allow(broker, "alice", entry("Topic:A", "Pub"))
            codes = [
                (await caller.ask("alice", 310, send_of("A"), b"1")).code,
                (await caller.ask("alice", 310, send_of("B"), b"1")).code,
                (await caller.ask("nobody", 310, send_of("A"), b"1")).code,
                (await caller.raw(Command.request(310, send_of("A"), b"1"))).code,
                (await caller.ask("alice", 25, {}, b"")).code,
                (await caller.ask("alice", 3005)).code,
                (await caller.raw(Command.request(3001, {"username": "x"}, b"{}"))).code,
            ]
            assert broker.guard is not None
            return {one.name: count for one, count in broker.guard.refusals.items()}, codes

    async def main() -> None:
        enforced, refused = await play("enforce")
        logged, passed = await play("log")
        assert enforced == logged
        assert refused == [0, 16, 16, 16, 16, 16, 16]
        assert passed == [0, 0, 0, 0, 0, 16, 16]

    asyncio.run(main())


def test_a_refusal_is_one_escaped_line(caplog: pytest.LogCaptureFixture) -> None:
    """Line breaks and escape sequences of a name reach neither the log nor another line."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice")
            await caller.ask("alice", 11, pull_of("A\r\n2026 root logged in\x1b[31m", "g"))
            evil = Command.request(310, {AK: "x\r\ny\x1b", SIGNATURE: "é"}, b"")
            assert (await caller.raw(evil)).code == 16

    with caplog.at_level("DEBUG"):
        asyncio.run(main())
    assert not [record for record in caplog.records if set(record.getMessage()) & set("\r\n\x1b")]


def test_a_oneway_request_is_refused_in_silence() -> None:
    """It is counted and changes nothing."""

    async def main() -> None:
        async with guarded() as (broker, caller):
            allow(broker, "alice")
            command = signed("alice", 310, send_of("A"), b"1", oneway=True)
            caller.connection.notify(command)
            assert (await caller.ask("alice", 46, {}, b"{}")).code != 16
            assert stored(broker) == {}
            assert broker.guard is not None
            assert sum(broker.guard.refusals.values()) == 1

    asyncio.run(main())


def raw_header(fields: str, code: str = '"code":310', end: str = "") -> bytes:
    return f'{{{code},"extFields":{{{fields}}},"flag":0,"opaque":7,"version":0{end}}}'.encode()


@pytest.mark.parametrize("serializer_code", ["310", "11"])
def test_two_readings_of_one_header_are_one(serializer_code: str) -> None:
    """A name that stands twice counts as it was judged: nothing reaches the other topic."""

    async def main() -> None:
        async with guarded() as (broker, _):
            allow(broker, "alice", entry("Topic:A", "Pub,Sub"), entry("Group:g", "Sub"))
            assert broker.accounts is not None
            host, _, port = broker.address.rpartition(":")
            for doubled in (("B", "A"), ("A", "B")):
                if serializer_code == "310":
                    fields, name = send_of(doubled[1]), "b"
                else:
                    fields, name = pull_of(doubled[1], "g", queueId="1"), "topic"
                fields[AK] = "alice"
                fields[SIGNATURE] = sign(SECRETS["alice"].encode(), content(fields, b"x"))
                text = json.dumps(fields)[1:-1]
                header = raw_header(f'"{name}":"{doubled[0]}",{text}', f'"code":{serializer_code}')
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(frame(0, header, b"x"))
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
                writer.close()
                assert (b'"code":16' in answer) is (doubled[1] == "B"), answer
                assert "B" not in broker.topics
            if serializer_code == "310":
                assert stored(broker) == {("A", 1): 1}

    asyncio.run(main())


def test_a_code_that_stands_twice_is_served_as_it_was_judged() -> None:
    """The first digits of a header do not choose the way past the guard."""

    async def main() -> None:
        async with guarded() as (broker, _):
            allow(broker, "alice", entry("Topic:A", "Sub"), entry("Group:g", "Sub"))
            fields = {**send_of("A"), **pull_of("A", "g"), AK: "alice"}
            fields[SIGNATURE] = sign(SECRETS["alice"].encode(), content(fields, b"x"))
            host, _, port = broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            header = raw_header(json.dumps(fields)[1:-1], end=',"code":11')
            writer.write(frame(0, header, b"x"))
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            writer.close()
            assert stored(broker) == {}

    asyncio.run(main())


def test_handlers_and_consumers_see_no_credentials() -> None:
    """What the broker passes on to a consumer has neither the name nor the signature."""

    async def main() -> None:
        async with guarded(shutdown_timeout_ms=100) as (broker, caller):
            wanted = (parse_subscription("A", "*"),)
            beat = ClientHeartbeat("c1", (ConsumerData("g", subscriptions=wanted),)).encode()
            passed: list[Command] = []
            consumer = await connect(broker.address, passed)
            assert (await consumer.ask("root", 34, {}, beat)).code == 0
            asked = asyncio.create_task(
                caller.ask("root", 307, {"consumerGroup": "g", "clientId": "c1"})
            )
            await until(lambda: any(one.code == 307 for one in passed))
            (seen,) = [one for one in passed if one.code == 307]
            assert not {AK, SIGNATURE, SESSION} & seen.fields.keys()
            asked.cancel()

    asyncio.run(main())


def test_root_is_there_and_the_codes_are_named() -> None:
    """The first super user comes from the setting and may do everything."""

    async def main() -> None:
        async with guarded() as (_, caller):
            assert (await caller.ask(ROOT[0], RequestCode.GET_BROKER_CONFIG)).code == 0
            assert (await caller.ask(ROOT[0], 99999)).code == 3
            assert (await caller.raw(Command.request(99999, {}))).code == 16

    asyncio.run(main())
