"""Session, producer and pull consumer against a scripted server on the simulated network."""

from __future__ import annotations

import asyncio

import pytest

from inorder.client.consume.pullconsumer import PullConsumer
from inorder.client.consume.rules.pulls import PullStatus
from inorder.client.rules.nameservers import parse_name_servers
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.errors import (
    AlreadyClosed,
    ConfigError,
    MessageIllegal,
    NoPermission,
    TopicNotRouted,
    TransportError,
    UsageError,
)
from inorder.model import TopicQueue
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.header import Command
from inorder.wire.properties import parse
from tests.kit.simloop import SimLoop, run
from tests.unit.client.scripted import (
    ADDRESS,
    HOST,
    PORT,
    QUEUES,
    Scripted,
    over_the_wire,
    refuse,
    session,
    silence,
)


def test_a_sent_message_comes_back_as_it_was():
    """Body, key, tag, keys and properties make the round trip."""

    async def scenario(_: Scripted, client: Session) -> None:
        producer = Producer(client)
        receipt = await producer.send(
            "t", b"hello", key="k", tag="blue", keys=["a", "b"], properties={"x": "1"}
        )
        consumer = PullConsumer(client, group="g")
        result = await consumer.pull(receipt.queue, receipt.offset)
        (message,) = result.messages
        assert result.status is PullStatus.FOUND
        assert (message.body, message.key, message.tag) == (b"hello", "k", "blue")
        assert message.properties["KEYS"] == "a b"
        assert message.properties["x"] == "1"
        assert message.message_id == receipt.message_id

    over_the_wire(scenario)


def test_concurrent_sends_of_a_key_are_stored_in_the_order_of_the_calls():
    """Also the very first ones, which wait for the route."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        sends = [producer.send("t", b"%d" % n, key="k") for n in range(20)]
        receipts = await asyncio.gather(*sends)
        assert [receipt.offset for receipt in receipts] == list(range(20))
        assert sorted(server.bodies()) == [[], [b"%d" % n for n in range(20)]]

    over_the_wire(scenario)


def test_producers_of_one_session_never_share_an_id():
    """Their messages are told apart by it."""

    async def scenario(_: Scripted, client: Session) -> None:
        producers = [Producer(client, group=f"g{n}") for n in range(3)]
        sends = [producer.send("t", b"x") for producer in producers for _ in range(5)]
        assert len({receipt.message_id for receipt in await asyncio.gather(*sends)}) == 15

    over_the_wire(scenario)


def test_order_survives_refusals_and_lost_answers():
    """Busy answers and silence are retried in place; nothing overtakes."""

    async def scenario(server: Scripted, client: Session) -> None:
        def store_silently(command: Command) -> None:
            server.store(command)

        server.answers[RequestCode.SEND_MESSAGE_V2] = [
            refuse(ResponseCode.SYSTEM_BUSY),
            silence,
            store_silently,
            server.store,
            refuse(ResponseCode.SERVICE_NOT_AVAILABLE),
        ]
        producer = Producer(client)
        await asyncio.gather(*(producer.send("t", b"%d" % n, key="k") for n in range(5)))
        stored = max(server.bodies(), key=len)
        assert list(dict.fromkeys(stored)) == [b"%d" % n for n in range(5)]
        assert len(stored) == 6
        copies = [
            parse(record.properties)["UNIQ_KEY"] for q in server.queues.values() for record in q
        ]
        assert len(set(copies)) == 5
        assert producer.statistics().retries == 4

    over_the_wire(scenario)


def test_order_survives_dropped_connections():
    """A reset at any moment is followed by a retry on a new connection."""

    async def scenario(server: Scripted, client: Session) -> None:
        loop = server.loop

        async def vandalise() -> None:
            while True:
                await asyncio.sleep(0.05)
                for connection in loop.network.connections(HOST):
                    connection.drop()

        vandal = asyncio.create_task(vandalise())
        producer = Producer(client)
        await asyncio.gather(*(producer.send("t", b"%d" % n, key=f"k{n % 3}") for n in range(60)))
        vandal.cancel()
        for queue in server.bodies():
            for key in range(3):
                mine = [int(body) for body in dict.fromkeys(queue) if int(body) % 3 == key]
                assert mine == sorted(mine)
        assert {int(body) for queue in server.bodies() for body in queue} == set(range(60))

    over_the_wire(scenario)


def test_a_final_refusal_is_raised_at_once():
    """What will not get better is not retried."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.answers[RequestCode.SEND_MESSAGE_V2] = [refuse(ResponseCode.NO_PERMISSION)]
        with pytest.raises(NoPermission):
            await Producer(client).send("t", b"x")
        assert server.count(RequestCode.SEND_MESSAGE_V2) == 1

    over_the_wire(scenario)


def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown():
    """The first try may have been stored, so the error says that nobody knows."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.answers[RequestCode.SEND_MESSAGE_V2] = [silence, refuse(ResponseCode.NO_PERMISSION)]
        with pytest.raises(TransportError):
            await Producer(client).send("t", b"x")

    over_the_wire(scenario)


def test_a_send_gives_up_when_its_time_is_up():
    """Nobody answers: the error comes within the limit."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.answers[RequestCode.SEND_MESSAGE_V2] = [silence] * 100
        start = server.loop.time()
        with pytest.raises(TransportError):
            await Producer(client).send("t", b"x", timeout=2)
        assert 1 < server.loop.time() - start <= 2.1

    over_the_wire(scenario)


def test_an_unknown_topic_is_sent_by_way_of_the_template():
    """The route of TBW102 serves until the topic is there."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.topics = {"TBW102"}
        receipt = await Producer(client).send("new", b"x", key="k")
        assert receipt.queue.topic == "new"

    over_the_wire(scenario)


def test_a_topic_that_nobody_serves_is_said_so():
    """After the time is up, the error names the topic and the name servers."""

    async def scenario(server: Scripted, client: Session) -> None:
        server.topics = set()
        with pytest.raises(TopicNotRouted, match=r"TBW102.*create it"):
            await Producer(client).send("t", b"x", timeout=0.3)

    over_the_wire(scenario)


def test_a_known_route_outlives_the_name_servers_memory():
    """While a broker is away its topics have no route; the known one is kept."""

    async def scenario(server: Scripted, client: Session) -> None:
        await client.route("t")
        server.topics = set()
        assert (await client.refresh_route("t")).queues

    over_the_wire(scenario)


def test_callers_share_one_route_request():
    """A hundred sends ask once."""

    async def scenario(server: Scripted, client: Session) -> None:
        await asyncio.gather(*(client.route("t") for _ in range(100)))
        assert server.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1

    over_the_wire(scenario)


def test_routes_are_refreshed_and_heartbeats_sent():
    """Every 30 s, to each known broker, and a farewell at the end."""

    async def main(loop: SimLoop) -> None:
        server = Scripted(loop)
        await server.start()
        async with session(loop) as client, Producer(client, group="pg"):
            await client.route("t")
            await asyncio.sleep(100)
            assert server.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 4
            assert server.count(RequestCode.HEART_BEAT) == 3
            beats = [r for r in server.requests if r.code == RequestCode.HEART_BEAT]
            assert all(b'"groupName":"pg"' in beat.body for beat in beats)
            client.add_producer("other")
        assert server.requests[-1].code == RequestCode.UNREGISTER_CLIENT

    run(main)


def test_the_session_goes_on_to_the_next_name_server_and_stays_there():
    """The first is down: the second answers, and is asked first from then on."""

    async def main(loop: SimLoop) -> None:
        server = Scripted(loop)
        await server.start()
        async with session(loop, f"10.0.0.66:{PORT};{ADDRESS}") as client:
            await client.route("t")
            assert client.statistics().name_server == ADDRESS
            await client.refresh_route("t")

    run(main)


def test_all_name_servers_down_is_a_transport_error():
    """The last failure is raised."""

    async def main(loop: SimLoop) -> None:
        async with session(loop, "10.0.0.66:1;10.0.0.67:1") as client:
            with pytest.raises(TransportError, match=r"10\.0\.0\.67"):
                await client.route("t")

    run(main)


def test_pull_all_reads_from_the_oldest_to_the_present_end():
    """In several pulls, each message once, in order."""

    async def scenario(_: Scripted, client: Session) -> None:
        producer = Producer(client)
        receipts = [await producer.send("t", b"%d" % n, key="k") for n in range(10)]
        consumer = PullConsumer(client, group="g")
        read = [message async for message in consumer.pull_all(receipts[0].queue)]
        assert [message.offset for message in read] == list(range(10))
        late = [message async for message in consumer.pull_all(receipts[0].queue, 8)]
        assert [message.body for message in late] == [b"8", b"9"]
        assert await consumer.queues("t") == [TopicQueue("t", "broker-a", n) for n in range(QUEUES)]

    over_the_wire(scenario)


def test_tags_are_compared_exactly():
    """Brokers compare hashes; "Aa" and "BB" have the same one."""

    async def scenario(_: Scripted, client: Session) -> None:
        producer = Producer(client)
        for tag in ("Aa", "BB", "Aa"):
            receipt = await producer.send("t", b"x", key="k", tag=tag)
        consumer = PullConsumer(client, group="g")
        read = [message async for message in consumer.pull_all(receipt.queue, tag="BB")]
        assert [message.tag for message in read] == ["BB"]

    over_the_wire(scenario)


def test_an_offset_that_was_never_committed_is_none():
    """QUERY_NOT_FOUND is no error here."""

    async def scenario(_: Scripted, client: Session) -> None:
        consumer = PullConsumer(client, group="g")
        assert await consumer.committed(TopicQueue("t", "broker-a", 0)) is None

    over_the_wire(scenario)


def test_what_cannot_be_sent_is_refused_before_it_leaves():
    """Empty and huge bodies, reserved properties, a text for keys."""

    async def scenario(server: Scripted, client: Session) -> None:
        producer = Producer(client)
        with pytest.raises(MessageIllegal, match="empty"):
            await producer.send("t", b"")
        with pytest.raises(MessageIllegal, match="message_bytes_max"):
            await producer.send("t", b"x" * (4 * 1024 * 1024 + 1))
        with pytest.raises(UsageError, match="TAGS"):
            await producer.send("t", b"x", properties={"TAGS": "a"})
        with pytest.raises(UsageError, match="list of words"):
            await producer.send("t", b"x", keys="word")
        await producer.close()
        with pytest.raises(AlreadyClosed):
            await producer.send("t", b"x")
        assert not server.requests

    over_the_wire(scenario)


def test_name_server_lists():
    """Semicolons, as RocketMQ writes them; what is no address is refused."""
    assert parse_name_servers("a:1; b:2;") == ["a:1", "b:2"]
    for wrong in ("", ";", "a", "a:b"):
        with pytest.raises(ConfigError):
            parse_name_servers(wrong)


def test_a_closed_session_cannot_be_started_again():
    """Make a new one."""

    async def main(loop: SimLoop) -> None:
        client = session(loop)
        await client.close()
        await client.close()
        with pytest.raises(AlreadyClosed):
            await client.start()

    run(main)
