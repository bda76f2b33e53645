"""Members of a group on a real broker in simulated time: they come, go, die, lose their locks."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from inorder.checker import (
    Handled,
    HandledResult,
    Kind,
    Report,
    Rules,
    Sent,
    Stored,
    check,
    queue_name,
)
from inorder.client.api import BrokerApi
from inorder.client.consume.assignment import Member
from inorder.client.consume.consumer import Consumer
from inorder.client.consume.leases import Leases
from inorder.client.consume.queue import AssignedQueue
from inorder.client.consume.release import Releaser
from inorder.client.consume.rules import leases
from inorder.client.consume.rules.assignment import AverageByCircle
from inorder.client.consume.rules.commits import Begin
from inorder.client.consume.rules.outcomes import Handled as Batch
from inorder.client.consume.rules.outcomes import Outcome
from inorder.client.identity import Identity
from inorder.client.session import Session
from inorder.config import ClientConfig, ConsumerConfig
from inorder.model import GroupQueue, ReceivedMessage, TopicQueue
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.header import Command
from inorder.wire.record import Record, encode
from inorder.wire.requests.connections import DirectResult, RunningInfo, decode_consumer_status
from tests.integration.consumerkit import (
    GROUP,
    TOPIC,
    Kit,
    begin,
    consumer_of,
    leases_and_locks,
    play,
)
from tests.kit.simcluster import BROKER_HOST, NAMESRV
from tests.kit.simloop import Node

pytestmark = pytest.mark.slow

QUEUE = TopicQueue(TOPIC, "broker-a", 0)


class Crew:
    """Consumers of one group that note what they handle, for the order checker."""

    def __init__(self, kit: Kit, *, handler_seconds: float = 0.002, order: str | None = "queue"):
        self.kit = kit
        self.seconds = handler_seconds
        self.order = order
        self.handled: list[Handled] = []
        self.open: dict[str, ReceivedMessage] = {}

    async def join(self, config: ClientConfig | None = None, **options) -> tuple[Node, Consumer]:
        node, session = await self.kit.client(config)
        consumer = Consumer(session, group=GROUP, **{"consume_from": "first", **options})

        @consumer.on(TOPIC, order=self.order)
        async def handle(message: ReceivedMessage) -> None:
            start_ns = self._now_ns()
            await asyncio.sleep(self.seconds)
            self.kit.got.append(message)
            self.handled.append(
                Handled(
                    node.host, queue_name(message.queue), message.offset, message.message_id,
                    message.key, start_ns, self._now_ns(), HandledResult.DONE,
                )
            )  # fmt: skip

        await self.kit.start(node, session, consumer)
        return node, consumer

    def _now_ns(self) -> int:
        return int(self.kit.loop.time() * 1e9)

    def judge(self, rules: Rules | None = None) -> None:
        """Ask the order checker: everything once, in order, never two at a time."""
        report = self.report(rules or Rules())
        assert report.ok, str(report)

    def report(self, rules: Rules) -> Report:
        """Return what the order checker says."""
        ids = {m.message_id: m for m in self.kit.got}
        stored = [Stored(queue_name(m.queue), m.offset, m.message_id, m.key) for m in ids.values()]
        sent = [
            Sent("p", m.key, int(m.body), m.message_id, queue=queue_name(m.queue), offset=m.offset)
            for m in ids.values()
        ]
        return check([*sent, *stored, *self.handled], rules=rules)


async def feed(kit: Kit, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        await kit.producer.send(TOPIC, b"%d" % number, key=f"k{number % 13}")
        await asyncio.sleep(0.001)


def shares(*consumers: Consumer) -> list[int]:
    return [sum(q.topic == TOPIC for q in c.assignment()) for c in consumers]


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(
    ("order", "stock"),
    [("queue", False), ("queue", True), (None, False)],
    ids=["lease", "lock", "without order"],
)
def test_three_members_come_and_go_while_messages_flow(seed: int, order: str | None, stock: bool):
    """Clean hand-overs: none lost; in order: none twice, never two handlers of a queue."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit, order=order)
        sending = asyncio.create_task(feed(kit, 400))
        _, first = await crew.join()
        await asyncio.sleep(0.1)
        _, second = await crew.join()
        _, third = await crew.join()
        await kit.until(lambda: sorted(shares(first, second, third)) == [2, 3, 3])
        await first.close()
        await kit.until(lambda: sorted(shares(second, third)) == [4, 4])
        await sending
        await second.close()
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 400)
        await third.close()
        if order:
            assert max(Counter(m.message_id for m in kit.got).values()) == 1
            crew.judge()

    play(story, seed=seed, queues=8, stock=stock)


@leases_and_locks
def test_a_clean_hand_over_takes_milliseconds(stock: bool):
    """The broker tells the group of the unlock; the next owner locks and begins at once."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit)
        _, first = await crew.join()
        await kit.until(lambda: shares(first) == [4])
        _, second = await crew.join()
        await kit.until(lambda: shares(first, second) == [2, 2], seconds=1)
        begun = kit.loop.time()
        await first.close()
        await kit.until(lambda: shares(second) == [4])
        assert kit.loop.time() - begun < 0.2

    play(story, queues=4, stock=stock)


@leases_and_locks
def test_a_member_that_leaves_waits_for_its_handler_and_the_next_owner_for_the_commit(stock: bool):
    """Join while a handler runs: the queue moves when it ended, and begins behind it (O8, O9)."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit, handler_seconds=40)
        await kit.send(8)
        _, first = await crew.join()
        await kit.until(lambda: first.statistics().running == 4)
        _, second = await crew.join()
        await asyncio.sleep(30)  # 20 s is where RocketMQ forces the unlock
        assert shares(first) == [2]
        assert second.statistics().running == 0
        await kit.until(lambda: len(kit.got) == 8, seconds=1000)
        crew.judge()

    play(story, queues=4, stock=stock)


@leases_and_locks
def test_a_killed_member_is_replaced_and_nothing_is_lost(stock: bool):
    """kill -9: its queues move when its locks have run out; what was not committed comes again."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit)
        node, first = await crew.join()
        _, second = await crew.join()
        await kit.until(lambda: shares(first, second) == [2, 2])
        sending = asyncio.create_task(feed(kit, 200))
        await asyncio.sleep(0.1)
        kit.loop.kill(node)
        await sending
        begun = kit.loop.time()
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 200)
        assert kit.loop.time() - begun < (35 if stock else 2)
        crew.judge(Rules(handled_once=False))

    play(story, queues=4, stock=stock)


@leases_and_locks
def test_a_member_that_is_cut_off_stops_handling_before_another_one_begins(stock: bool):
    """A partition of minutes: never two handlers of a queue at a time, nothing lost."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit, handler_seconds=0.05)
        node, first = await crew.join()
        _, second = await crew.join()
        await kit.until(lambda: shares(first, second) == [2, 2])
        await feed(kit, 300)
        kit.loop.network.partition(node.host, BROKER_HOST)
        await asyncio.sleep(150)
        kit.loop.network.heal()
        await kit.until(lambda: sorted(shares(first, second)) == [2, 2])
        await feed(kit, 50, start=300)
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 350)
        crew.judge(Rules(handled_once=False))

    play(story, queues=4, stock=stock)


@leases_and_locks
@pytest.mark.parametrize("planted", [False, True])
def test_who_trusts_a_lock_for_ever_is_found_out(
    planted: bool, stock: bool, monkeypatch: pytest.MonkeyPatch
):
    """A consumer that is cut off with a long backlog stops after 30 s, under a lease after 1 s. Let
    it go on, as a bug would, and the checker sees it beside the next owner (P2)."""
    if planted:
        monkeypatch.setattr(leases, "LOCK_TRUSTED_MS", 1 << 40)
        monkeypatch.setattr(leases.Terms, "trusted_ms", 1 << 40)
        monkeypatch.setattr(leases.Terms, "renew_ms", 333)
        monkeypatch.setattr(AssignedQueue, "mark_unconfirmed", lambda self, now_ms: None)

    async def story(kit: Kit) -> Report:
        crew = Crew(kit, handler_seconds=2)
        node, first = await crew.join()
        await kit.until(lambda: shares(first) == [4])
        await feed(kit, 300)
        await kit.until(lambda: first.statistics().cached_messages > 200)
        await crew.join()
        kit.loop.network.partition(node.host, BROKER_HOST)
        await asyncio.sleep(130)
        report = crew.report(Rules(handled_once=False, complete_handled=False))
        kit.loop.kill(node)
        return report

    report = play(story, queues=4, stock=stock)
    overlaps = sum(finding.kind is Kind.OVERLAP for finding in report.findings)
    assert (overlaps > 0) == planted


@leases_and_locks
@pytest.mark.parametrize("planted", [False, True])
def test_who_unlocks_before_the_commit_is_found_out(
    planted: bool, stock: bool, monkeypatch: pytest.MonkeyPatch
):
    """Release is commit, then unlock. Turn it round, as RocketMQ does (O9, O10), and messages are
    handled twice at a clean hand-over (P5)."""
    if planted:
        commit, leased_release = Releaser._last_commit, Leases.release

        async def unlock_first(self, assigned, steps):
            await self._locks.release(assigned.queue)
            await asyncio.sleep(0.05)
            return await commit(self, assigned, steps)

        async def release_first(self, queue, epoch, last):
            await leased_release(self, queue, epoch, None)

        monkeypatch.setattr(Releaser, "_last_commit", unlock_first)
        monkeypatch.setattr(Leases, "release", release_first)

    async def story(kit: Kit) -> int:
        crew = Crew(kit)
        _, first = await crew.join()
        sending = asyncio.create_task(feed(kit, 300))
        await asyncio.sleep(0.2)
        _, second = await crew.join()
        await kit.until(lambda: shares(first, second) == [2, 2])
        await sending
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 300)
        return max(Counter(m.message_id for m in kit.got).values())

    assert (play(story, queues=4, stock=stock) > 1) == planted


@leases_and_locks
def test_a_broker_restart_is_survived(stock: bool):
    """After kill -9 of the broker the consumer is a member again, with its locks, and goes on."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit)
        _, consumer = await crew.join()
        await kit.send(20)
        await kit.until(lambda: len(kit.got) == 20)
        await asyncio.sleep(6)
        kit.cluster.kill_broker()
        await kit.cluster.start_broker()
        begun = kit.loop.time()
        async with asyncio.timeout(60):
            for number in range(20, 40):
                await kit.producer.send(TOPIC, b"%d" % number, key=f"k{number % 5}", timeout=30)
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 40)
        assert kit.loop.time() - begun < 45
        assert shares(consumer) == [4]

    play(story, queues=4, stock=stock)


@leases_and_locks
def test_no_handler_starts_while_the_broker_is_away(stock: bool):
    """Its locks may be forgotten: what is cached waits until they are confirmed (O13)."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit, handler_seconds=0.1)
        await crew.join()
        await kit.send(200, key="k")
        await kit.until(lambda: len(kit.got) > 20)
        kit.cluster.kill_broker()
        await asyncio.sleep(0.2)  # the handler that runs ends
        count = len(kit.got)
        await asyncio.sleep(5)
        assert len(kit.got) == count
        await kit.cluster.start_broker()
        await kit.until(lambda: len({m.message_id for m in kit.got}) == 200)
        crew.judge(Rules(handled_once=False))

    play(story, stock=stock)


def test_new_queues_are_found():
    """A topic that grows is shared anew; what the new queues hold from their beginning is read."""

    async def story(kit: Kit) -> None:
        from inorder.model import TopicConfig

        crew = Crew(kit)
        _, consumer = await crew.join(consume_from="last")
        await kit.until(lambda: shares(consumer) == [1])
        await kit.api.create_topic(TopicConfig(TOPIC, 3, 3))
        await kit.until(lambda: shares(consumer) == [3], seconds=100)

    play(story)


def test_a_topic_that_comes_later_is_read_from_its_beginning():
    """All that it holds is news to the group, also with consume_from="last"."""

    async def story(kit: Kit) -> None:
        node, session = await kit.client()
        consumer = Consumer(session, group=GROUP, consume_from="last")

        @consumer.on("later")
        async def handle(message: ReceivedMessage) -> None:
            kit.got.append(message)

        await kit.start(node, session, consumer)
        await asyncio.sleep(30)
        for number in range(5):
            await kit.producer.send("later", b"%d" % number, key="k")
        await kit.until(lambda: len(kit.got) == 5, seconds=40)
        assert kit.bodies() == [b"0", b"1", b"2", b"3", b"4"]

    play(story)


def test_another_allocation():
    """A strategy that is given is used."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit)
        _, first = await crew.join(allocation=AverageByCircle())
        _, second = await crew.join(allocation=AverageByCircle())
        await kit.until(lambda: shares(first, second) == [2, 2])
        indexes = {q.index for q in first.assignment() if q.topic == TOPIC}
        assert indexes in ({0, 2}, {1, 3})

    play(story, queues=4)


def test_broadcasting_gives_everything_to_everyone_and_keeps_offsets_in_files(tmp_path):
    """Each member gets all messages, and writes its file; failures are dropped."""

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=ConsumerConfig(offsets_dir=str(tmp_path)))
        seen: dict[str, list[bytes]] = {}

        async def member(name: str) -> tuple[Node, Session, Consumer]:
            node, session = await kit.client(config)
            consumer = Consumer(
                session, group=GROUP, consume_from="first", message_model="broadcasting"
            )

            @consumer.on(TOPIC, order=None)
            async def handle(message: ReceivedMessage) -> None:
                seen.setdefault(name, []).append(message.body)
                if message.body == b"1":
                    raise ValueError("dropped")

            await kit.start(node, session, consumer)
            return node, session, consumer

        _, _, first = await member("a")
        await member("b")
        await kit.send(6)
        await kit.until(lambda: [len(seen.get(n, ())) for n in "ab"] == [6, 6])
        assert first.statistics().dropped == 1
        await first.close()
        (path,) = list(tmp_path.glob("10.0.1.2@*/billing/offsets.json"))
        assert b'"offsetTable"' in path.read_bytes()
        assert b'"queueId":0' in path.read_bytes()

    play(story, queues=2)


def test_a_broadcasting_consumer_goes_on_where_its_file_says(tmp_path):
    """Its client id is the same after a restart, so its file is found again."""

    async def story(kit: Kit) -> None:
        config = ClientConfig(consumer=ConsumerConfig(offsets_dir=str(tmp_path)))

        async def consume(count: int) -> None:
            node = kit.loop.node("10.0.9.9")
            identity = Identity("10.0.9.9", 1, kit.loop.random.getrandbits(32), "DEFAULT")
            session = Session(NAMESRV, config=config, clock=kit.cluster.clock, identity=identity)
            consumer = Consumer(
                session, group=GROUP, consume_from="first", message_model="broadcasting"
            )

            @consumer.on(TOPIC)
            async def handle(message: ReceivedMessage) -> None:
                kit.got.append(message)

            await node.run(consumer.start())
            await kit.until(lambda: len(kit.got) == count)
            await node.run(consumer.close())
            await node.run(session.close())

        await kit.send(3, key="k")
        await consume(3)
        await kit.send(2, key="k")
        await consume(5)
        assert [m.offset for m in kit.got] == [0, 1, 2, 3, 4]

    play(story)


def test_a_lock_that_another_client_took_ends_the_ownership():
    """Renewal says no: the queue is dropped with its cache, and begun anew when free (O25)."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit)
        _, consumer = await crew.join()
        await kit.send(3, key="k")
        await kit.until(lambda: len(kit.got) == 3)
        await consumer.commit()
        client_id = next(iter(kit.started))[1].client_id
        await kit.api.unlock(client_id, GROUP, [QUEUE])
        assert await kit.api.lock("stranger", GROUP, [QUEUE]) == (QUEUE,)
        await asyncio.sleep(25)
        await kit.send(2, key="k")
        await asyncio.sleep(2)
        assert len(kit.got) == 3
        await kit.api.unlock("stranger", GROUP, [QUEUE])
        await kit.until(lambda: len(kit.got) == 5)
        assert [m.offset for m in kit.got] == [0, 1, 2, 3, 4]

    play(story, stock=True)


def test_locks_are_renewed_by_a_timer(monkeypatch: pytest.MonkeyPatch):
    """RocketMQ's times: 1 s after the start, then every 20 s, all queues in one request."""
    asked: list[tuple[float, int]] = []
    lock = BrokerApi.lock

    async def story(kit: Kit) -> None:
        async def noted(self: BrokerApi, *request) -> tuple[TopicQueue, ...]:
            asked.append((kit.loop.time(), len(request[2])))
            return await lock(self, *request)

        monkeypatch.setattr(BrokerApi, "lock", noted)
        _, consumer = await Crew(kit).join()
        await kit.until(lambda: shares(consumer) == [4])
        await asyncio.sleep(45)

    play(story, queues=4, stock=True)
    began, _ = asked[0]
    assert [(round(at - began), count) for at, count in asked] == [(0, 4), (1, 4), (21, 4), (41, 4)]


@leases_and_locks
def test_a_queue_that_cannot_be_begun_is_given_back(stock: bool, monkeypatch: pytest.MonkeyPatch):
    """Where to begin was not to be had: others may try, and so does the next round."""
    locate, asked = Member._locate, []

    async def first_in_vain(self: Member, queue: TopicQueue, begin: Begin) -> int | None:
        asked.append(queue)
        return None if len(asked) == 1 else await locate(self, queue, begin)

    monkeypatch.setattr(Member, "_locate", first_in_vain)

    async def story(kit: Kit) -> None:
        await kit.send(3)
        await Crew(kit).join()
        await kit.until(lambda: asked == [QUEUE])
        await kit.until(
            lambda: not kit.cluster.broker.locks.is_locked(GroupQueue.of(GROUP, QUEUE)), seconds=0.5
        )
        await kit.until(lambda: len(kit.got) == 3, seconds=3)

    play(story, stock=stock)


async def ask_client(kit: Kit, command: Command) -> Command:
    """Send a request from the broker to the consumer's client."""
    online = kit.cluster.broker.members.group(GROUP)
    connection = online.connection_of(kit.started[0][1].client_id)
    return await connection.request(command, 5000)


@pytest.fixture
def fields() -> dict[str, str]:
    return {"consumerGroup": GROUP, "group": GROUP, "topic": TOPIC, "clientId": "x"}


def test_what_a_broker_asks_is_answered(fields: dict[str, str]):
    """221: how far; 307: what it does; 309: one message now; another group: an error."""

    async def story(kit: Kit) -> None:
        crew = Crew(kit)
        await crew.join()
        await kit.send(3, key="k")
        await kit.until(lambda: len(kit.got) == 3)

        status = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        answer = await ask_client(kit, Command.request(status, fields))
        assert decode_consumer_status(answer.body) == {QUEUE: 3}

        running = RequestCode.GET_CONSUMER_RUNNING_INFO
        info = RunningInfo.decode((await ask_client(kit, Command.request(running, fields))).body)
        assert info.queues[QUEUE].commit_offset == 3
        assert info.queues[QUEUE].locked
        assert info.topics[TOPIC].failed_total == 0
        assert {s.topic for s in info.subscriptions} == {TOPIC, f"%RETRY%{GROUP}"}
        assert info.properties["PROP_CONSUMEORDERLY"] == "true"

        record = encode(Record(TOPIC, 0, 77, 0, b"direct", b""))
        direct = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, bytes(record))
        result = DirectResult.decode((await ask_client(kit, direct)).body)
        assert result.result == "CR_SUCCESS"
        assert kit.bodies()[-1] == b"direct"

        other = Command.request(running, fields | {"consumerGroup": "nobody"})
        answer = await ask_client(kit, other)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "nobody" in (answer.remark or "")

    play(story)


@pytest.mark.parametrize(
    ("order", "auto_commit", "said", "result"),
    [
        ("queue", True, None, "CR_SUCCESS"),
        ("queue", True, Outcome.SUSPEND, "CR_LATER"),
        ("queue", False, Outcome.COMMIT, "CR_COMMIT"),
        ("queue", False, Outcome.ROLLBACK, "CR_ROLLBACK"),
        ("key", True, None, "CR_SUCCESS"),
        (None, True, None, "CR_SUCCESS"),
        (None, True, Batch(0), "CR_LATER"),
        (None, True, Outcome.SUSPEND, "CR_LATER"),
        (None, True, ValueError("no"), "CR_THROW_EXCEPTION"),
    ],
)
def test_a_message_consumed_directly_tells_how_the_consumer_is_set(
    fields: dict[str, str], order: str | None, auto_commit: bool, said: object, result: str
):
    """309: `order` and `autoCommit` as the handler was registered, and what it said."""

    async def story(kit: Kit) -> None:
        consumer = await consumer_of(kit)

        @consumer.on(TOPIC, order=order, auto_commit=auto_commit)
        async def handle(message: ReceivedMessage) -> object:
            if isinstance(said, Exception):
                raise said
            return said

        await begin(kit, consumer)
        record = encode(Record(TOPIC, 0, 77, 0, b"direct", b""))
        direct = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, bytes(record))
        found = DirectResult.decode((await ask_client(kit, direct)).body)
        expected = (result, order is not None, auto_commit)
        assert (found.result, found.order, found.auto_commit) == expected

    play(story)


def test_an_operator_resets_the_offset():
    """Through the broker: the consumer goes on at the new offset, also backwards."""

    async def story(kit: Kit) -> None:
        from inorder.wire.requests.offsets import ResetOffset

        crew = Crew(kit)
        await crew.join()
        await kit.send(6, key="k")
        await kit.until(lambda: len(kit.got) == 6)
        await kit.api.reset_offset(ResetOffset(TOPIC, GROUP, -1, True, 0, 2))
        await kit.until(lambda: len(kit.got) == 10, seconds=60)
        assert [m.offset for m in kit.got[6:]] == [2, 3, 4, 5]

    play(story)


def test_the_api_of_locks_and_members():
    """lock, renew, refuse, unlock; members by id: what the consumer stands on."""

    async def story(kit: Kit) -> None:
        api: BrokerApi = kit.api
        assert await api.lock("a", GROUP, [QUEUE]) == (QUEUE,)
        assert await api.lock("a", GROUP, [QUEUE]) == (QUEUE,)
        assert await api.lock("b", GROUP, [QUEUE]) == ()
        await api.unlock("b", GROUP, [QUEUE])
        assert await api.lock("b", GROUP, [QUEUE]) == ()
        await api.unlock("a", GROUP, [QUEUE])
        assert await api.lock("b", GROUP, [QUEUE]) == (QUEUE,)

    play(story)
