"""Messages of single calls in one request: A18 of the contract, against a scripted broker."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from dataclasses import replace
from typing import Any

import pytest

from inorder.client.send.producer import Producer
from inorder.client.send.queues import IN_FLIGHT, UNSENT, Send
from inorder.client.send.sender import extended_ms
from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.errors import (
    AlreadyClosed,
    MessageIllegal,
    NoPermission,
    OutcomeUnknown,
    RequestTimeout,
    SendTimedOut,
    UsageError,
)
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.ordering.keymap import KeyMap
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.extensions import ExtensionAnswer, ExtensionCode
from inorder.wire.header import Command
from inorder.wire.properties import parse
from inorder.wire.requests.sends import SendMessage
from tests.kit.simloop import SimLoop, run
from tests.unit.client.scripted import refuse, session, silence
from tests.unit.client.send.numbering import Numbering, numbered, until

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
K = {"key": "k"}


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def burst(
    producer: Producer, server: Numbering, first: int, end: int, **how: Any
) -> list[asyncio.Future[SendReceipt]]:
    """Send one message, and the others while it is on its way."""
    server.hold = True
    futures = [producer.send_nowait("t", b"%d" % first, **{**K, **how})]
    await until(lambda: server.held)
    futures += [producer.send_nowait("t", b"%d" % n, **{**K, **how}) for n in range(first + 1, end)]
    server.hold = False
    server.let_go()
    return futures


def test_what_piles_up_while_a_request_is_on_its_way_shares_the_next():
    """One request for all of it; each message has its number and its receipt."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        receipts = await asyncio.gather(*await burst(producer, server, 0, 100))
        assert server.sent() == [bodies(0), bodies(*range(1, 100))]
        assert server.stored() == bodies(*range(100))
        assert [one.offset for one in receipts] == list(range(100))
        stored = server.queues[receipts[0].queue.index]
        found = [parse(record.properties) for record in stored]
        assert [int(one["INORDER_SEQ"]) for one in found] == list(range(100))
        assert [one["UNIQ_KEY"] for one in found] == [one.message_id for one in receipts]
        statistics = producer.statistics()
        assert (statistics.sent, statistics.waiting) == (100, 0)

    numbered(scenario, batches=True)


def test_a_lone_send_goes_at_once_and_by_itself():
    """So does each send whose caller waits at the call: nothing is held back for it."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        futures = [asyncio.ensure_future(producer.send("t", b"%d" % n, key="k")) for n in range(3)]
        await until(lambda: len(server.held) == 3)
        server.hold = False
        server.let_go()
        await asyncio.gather(*futures)
        assert not server.count(BATCH)

    numbered(scenario, batches=True)


def test_a_caller_who_waits_takes_the_waiting_ones_along():
    """`send` behind messages of `send_nowait` does not wait for the answer on its way."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [producer.send_nowait("t", b"%d" % n, key="k") for n in (1, 2)]
        await asyncio.sleep(0.1)
        assert len(server.held) == 1
        last = asyncio.ensure_future(producer.send("t", b"3", key="k"))
        await until(lambda: len(server.held) == 2)
        server.hold = False
        server.let_go()
        await asyncio.gather(last, *futures)
        assert server.sent() == [bodies(0), bodies(1, 2, 3)]

    numbered(scenario, batches=True)


def test_full_requests_do_not_wait_and_1024_messages_are_in_flight_at_most():
    """A broker remembers the answers of as many."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [producer.send_nowait("t", b"%d" % n, key="k") for n in range(1, 2000)]
        await until(lambda: len(server.held) >= 4)
        await asyncio.sleep(0.2)
        held = [bytes(command.body).count(b"UNIQ_KEY") for _, command in server.held]
        assert held == [0, 256, 256, 256, 255]  # a single message has its id in the header
        server.hold = False
        server.let_go()
        await asyncio.gather(*futures)
        assert server.stored()[1:] == bodies(*range(2000))

    numbered(scenario, batches=True)


def test_a_broker_without_the_capability_gets_them_one_by_one():
    """An older broker of inorder does not name the message that it refuses."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await asyncio.gather(*await burst(producer, server, 0, 50))
        assert server.stored() == bodies(*range(50))
        assert not server.count(BATCH)

    numbered(scenario)


def test_by_map_and_chosen_by_the_caller_never_share():
    """Nor do messages with other flags; a message without a key may join either."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.key_map = KeyMap(1, (("broker-a", 0), ("broker-a", 1)))
        server.kv["t"] = server.key_map.encode()
        target = (await producer.send("t", b"first", key="k")).queue
        server.hold = True
        ways = [K, K, {"queue": target}, {"queue": target, "key": "k"}, K, K]
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [producer.send_nowait("t", b"x", **how) for how in ways]
        server.hold = False
        server.let_go()
        await asyncio.gather(*futures)
        said = [
            (len(one), request.fields.get("mv"), request.fields.get("mq"))
            for one, request in zip(server.sent(), sends(server), strict=True)
        ]
        assert said == [
            (1, "1", None), (1, "1", None), (2, "1", None), (2, None, "1"), (2, "1", None),
        ]  # fmt: skip

    numbered(scenario, batches=True)


def sends(server: Numbering) -> list[Any]:
    return [request for request in server.requests if request.code in (SEND, BATCH)]


def test_a_request_has_one_sysflag_and_nothing_delayed():
    """Compressed bodies share requests with each other; a delayed message goes by itself."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        big = b"y" * 9000
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [
            producer.send_nowait("t", body, key="k", delay_level=level)
            for body, level in ((b"1", 0), (b"2", 0), (big, 0), (big, 0), (b"3", 2), (b"4", 0))
        ]
        server.hold = False
        server.let_go()
        await asyncio.gather(*futures)
        small = zlib.decompress(server.sent()[2][0])
        assert small == big
        assert [len(one) for one in server.sent()] == [1, 2, 2, 1, 1]
        flags = [SendMessage.from_fields_v2(one.fields).sys_flag for one in sends(server)]
        assert [bool(flag) for flag in flags] == [False, False, True, False, False]

    numbered(scenario, batches=True)


@pytest.mark.parametrize("named", [True, False])
def test_a_message_that_is_refused_for_itself_fails_alone(named: bool):
    """The broker names it. If it does not, each goes by itself."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.poison, server.names_poison = b"7", named
        futures = await burst(producer, server, 0, 20)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [n for n, one in enumerate(outcomes) if isinstance(one, MessageIllegal)] == [7]
        others = [n for n in range(20) if n != 7]
        assert server.stored() == bodies(*others)
        assert [one.offset for one in outcomes if isinstance(one, SendReceipt)] == list(range(19))

    numbered(scenario, batches=True)


def test_a_refusal_of_all_fails_each():
    """A broker without write permission refuses the request, and then each message."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[BATCH] = [refuse(ResponseCode.NO_PERMISSION)]
        server.answers[SEND] = [server.store, *[refuse(ResponseCode.NO_PERMISSION)] * 4]
        futures = await burst(producer, server, 0, 5)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(one) for one in outcomes] == [SendReceipt, *[NoPermission] * 4]

    numbered(scenario, batches=True)


def test_a_busy_broker_gets_the_request_again_and_nothing_overtakes():
    """All of it, and what came meanwhile."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[BATCH] = [refuse(ResponseCode.SYSTEM_BUSY)] * 2
        futures = await burst(producer, server, 0, 30)
        await asyncio.gather(*futures)
        assert server.stored() == bodies(*range(30))

    numbered(scenario, batches=True)


def test_what_a_busy_broker_gives_to_another_one_is_stored_there_alone():
    """Messages without a key leave a refused request, those with a key before them stay."""

    async def main(loop: SimLoop) -> None:
        busy, other = Numbering(loop), Numbering(loop, "10.0.0.2", "broker-b")
        busy.batches = other.batches = 1
        busy.others.append(other)
        await busy.start()
        await other.start()
        async with session(loop) as client:
            producer = Producer(client)
            places = {k: (await producer.send("t", b"first", key=k)).queue for k in "abcdefgh"}
            await asyncio.gather(*(producer.send("t", b"first") for _ in range(4)))
            key = next(k for k in places if places[k].broker == "broker-a")
            busy.hold = other.hold = True
            futures = [producer.send_nowait("t", b"ahead") for _ in range(4)]
            futures.append(producer.send_nowait("t", b"ahead", key=key))
            await until(lambda: len(busy.held) > 1 and len(other.held) > 1)
            numbers = range(40)
            futures += [
                producer.send_nowait("t", b"%d" % n, key=None if n % 3 else key) for n in numbers
            ]
            busy.answers[BATCH] = [refuse(ResponseCode.SYSTEM_BUSY)] * 4
            busy.hold = False
            busy.let_go()
            await asyncio.sleep(0.05)
            other.hold = False
            other.let_go()
            receipts = await asyncio.gather(*futures)
        stored = [
            one.body for server in (busy, other) for queue in server.queues.values()
            for one in queue if one.body.isdigit()
        ]  # fmt: skip
        assert sorted(stored, key=int) == bodies(*numbers)
        assert len({(one.queue, one.offset) for one in receipts}) == len(receipts)
        at_home = [one.body for one in busy.queues[places[key].index] if one.body in keyed]
        assert at_home == keyed

    keyed = bodies(*range(0, 40, 3))
    for seed in range(5):
        run(main, seed)


def test_what_is_stored_is_not_sent_again_after_a_lost_answer():
    """PRODUCER_STATE tells where it lies, and that is its receipt."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[BATCH] = [server.lose_answer]
        futures = await burst(producer, server, 0, 10)
        receipts = await asyncio.gather(*futures)
        assert [one.offset for one in receipts] == list(range(10))
        assert server.sent() == [bodies(0), bodies(*range(1, 10))]
        assert server.count(ExtensionCode.PRODUCER_STATE) == 1

    numbered(scenario, batches=True)


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SYSTEM_BUSY])
def test_a_broker_that_cannot_tell_yet_is_asked_again_after_pauses(code: int):
    """Its disk is slow, for instance: the connection is kept, and no storm of requests follows."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[BATCH] = [server.lose_answer]
        server.answers[ExtensionCode.PRODUCER_STATE] = [refuse(code)] * 1000
        futures = await burst(producer, server, 0, 10)
        await asyncio.sleep(2)
        assert server.count(ExtensionCode.PRODUCER_HELLO) == 2
        assert 2 < server.count(ExtensionCode.PRODUCER_STATE) < 15
        server.answers[ExtensionCode.PRODUCER_STATE] = []
        receipts = await asyncio.wait_for(asyncio.gather(*futures), 2)
        assert [one.offset for one in receipts] == list(range(10))
        assert server.sent() == [bodies(0), bodies(*range(1, 10))]

    numbered(scenario, batches=True)


def test_what_was_lost_is_sent_again_in_its_place():
    """The connection broke before the broker read the request."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[BATCH] = [server.lose_request]
        await asyncio.gather(*await burst(producer, server, 0, 10))
        assert server.stored() == bodies(*range(10))

    numbered(scenario, batches=True)


def test_a_request_that_asks_for_a_new_hello_is_sent_again_as_a_whole():
    """The connection is given up in the middle of the refusal; the loop hears of no exception."""

    async def scenario(server: Numbering, client: Session) -> None:
        wrong: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: wrong.append(told))
        producer = Producer(client)
        server.answers[BATCH] = [refuse(ExtensionAnswer.PRODUCER_STALE)]
        await asyncio.gather(*await burst(producer, server, 0, 10))
        assert server.stored() == bodies(*range(10))
        assert wrong == []

    numbered(scenario, batches=True)


def test_an_unknown_outcome_is_asked_for_when_the_last_request_is_answered():
    """Also if that takes longer than the pause, and no other message waits."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)

        def store_and_not_know(command: Command) -> Command:
            server.answer(command)
            return command.reply(ResponseCode.SYSTEM_ERROR, "who knows")

        server.answers[BATCH] = [store_and_not_know]
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [producer.send_nowait("t", b"%d" % n, key="k") for n in range(1, 513)]
        await until(lambda: len(server.held) == 3)
        server.let_go(2)
        await asyncio.sleep(0.2)
        server.hold = False
        server.let_go()
        receipts = await asyncio.wait_for(asyncio.gather(*futures), 1)
        assert [one.offset for one in receipts] == list(range(513))

    numbered(scenario, batches=True)


def test_a_flag_that_no_request_can_carry_fails_no_neighbour():
    """A hook has put it into one message, which is refused at the call."""

    def hook(message: Message) -> Message:
        return replace(message, flag=2**31) if message.body == b"3" else message

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client, before_send=hook)
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        for n in range(1, 6):
            with pytest.raises(UsageError) if n == 3 else contextlib.nullcontext():
                futures.append(producer.send_nowait("t", b"%d" % n, key="k"))
        server.hold = False
        server.let_go()
        await asyncio.gather(*futures)
        assert server.stored() == bodies(0, 1, 2, 4, 5)

    numbered(scenario, batches=True)


@pytest.mark.parametrize("count", [0, 2, 9])
def test_an_unknown_answer_fails_nobody_and_the_rest_goes_on(count: int):
    """A18: some of it is stored. Those get their receipts, the others are stored once, in order."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        some = server.store_some(count) if count else refuse(ResponseCode.SYSTEM_ERROR)
        server.answers[BATCH] = [some]
        futures = await burst(producer, server, 0, 10)
        receipts = await asyncio.gather(*futures)
        assert [one.offset for one in receipts] == list(range(10))
        assert server.stored() == bodies(*range(10))
        again = [body for one in server.sent()[2:] for body in one]
        assert again == bodies(*range(1 + count, 10))

    numbered(scenario, batches=True)


def test_a_message_whose_outcome_stays_unknown_fails_alone():
    """After an unknown answer each goes by itself, so the others do not share its fate."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[BATCH] = [refuse(ResponseCode.SYSTEM_ERROR)]
        server.answers[SEND] = [server.store, server.store, refuse(ResponseCode.SYSTEM_ERROR)]
        futures = await burst(producer, server, 0, 6)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(one) for one in outcomes] == [
            SendReceipt, SendReceipt, OutcomeUnknown, SendReceipt, SendReceipt, SendReceipt,
        ]  # fmt: skip
        assert server.stored() == bodies(0, 1, 3, 4, 5)

    numbered(scenario, batches=True)


def test_each_keeps_its_own_deadline_and_may_be_cancelled():
    """One whose caller is gone before it is written is left out."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        limits = [5, 0.2, 5, 5]
        futures += [
            producer.send_nowait("t", b"%d" % n, key="k", timeout=limit)
            for n, limit in enumerate(limits, 1)
        ]
        futures[3].cancel()
        await asyncio.sleep(0.5)
        server.hold = False
        server.let_go()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(outcomes[2], RequestTimeout)
        assert not isinstance(outcomes[2], SendTimedOut)
        assert isinstance(outcomes[3], asyncio.CancelledError)
        assert server.stored() == bodies(0, 1, 4)
        assert producer.statistics().waiting == 0

    numbered(scenario, batches=True)


def test_a_key_map_that_changes_moves_what_is_not_stored():
    """The whole request is refused; its messages go to their new queues, in order."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.key_map = KeyMap(1, (("broker-a", 0),))
        server.kv["t"] = server.key_map.encode()
        await producer.send("t", b"first", key="k")
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [producer.send_nowait("t", b"%d" % n, key="k") for n in range(1, 20)]
        server.hold = False
        server.let_go()
        server.key_map = KeyMap(2, (("broker-a", 1),))
        server.kv["t"] = server.key_map.encode()
        receipts = await asyncio.gather(*futures)
        assert {one.queue for one in receipts[1:]} == {TopicQueue("t", "broker-a", 1)}
        assert [one.body for one in server.queues[1]] == bodies(*range(1, 20))

    numbered(scenario, batches=True)


def test_a_forgotten_producer_goes_on_under_a_new_id():
    """With all the messages of the refused request, in order."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        server.answers[BATCH] = [refuse(ExtensionAnswer.PRODUCER_UNKNOWN)]
        await asyncio.gather(*await burst(producer, server, 0, 10))
        assert server.stored() == bodies(*range(10))
        ids = {parse(record.properties)["INORDER_PID"] for record in max(
            server.queues.values(), key=len)}  # fmt: skip
        assert len(ids) == 2

    numbered(scenario, batches=True)


def test_linger_lets_messages_wait_for_others():
    """For as long as it says; a caller who waits at the call is not held up."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        began = client.clock.monotonic_ms()
        futures = []
        for n in range(5):
            futures.append(producer.send_nowait("t", b"%d" % n, key="k"))
            await asyncio.sleep(0.01)
        await asyncio.gather(*futures)
        assert 100 <= client.clock.monotonic_ms() - began < 300
        assert server.sent() == [[b"first"], bodies(*range(5))]
        began = client.clock.monotonic_ms()
        await producer.send("t", b"last", key="k")
        assert client.clock.monotonic_ms() - began < 100

    numbered(scenario, batches=True, config=ClientConfig(linger_ms=100))


def test_submit_waits_for_room():
    """A loop of thousands keeps to the limit; the order is that of the calls."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        most, futures = 0, []
        for n in range(500):
            futures.append(await producer.submit("t", b"%d" % n, key="k"))
            most = max(most, producer.statistics().waiting)
        await producer.flush()
        assert most <= 50
        assert server.stored() == bodies(*range(500))
        assert [one.result().offset for one in futures] == list(range(500))

    numbered(scenario, batches=True, config=ClientConfig(sends_waiting_max=50))


def test_several_tasks_that_submit_get_their_turns():
    """All of them come through, each in its own order."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)

        async def work(name: str) -> None:
            for n in range(40):
                await producer.submit("t", b"%s-%d" % (name.encode(), n), key=name)

        await asyncio.gather(*map(work, "abcd"))
        await producer.flush()
        for name in "abcd":
            wanted = [b"%s-%d" % (name.encode(), n) for n in range(40)]
            stored = [record.body for records in server.queues.values() for record in records]
            assert [body for body in stored if body.startswith(name.encode())] == wanted

    numbered(scenario, batches=True, config=ClientConfig(sends_waiting_max=7))


def test_submit_gives_up_when_there_is_no_room_in_time():
    """As a blocking call does."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        for n in range(3):
            await producer.submit("t", b"%d" % n, key="k")
        with pytest.raises(Exception, match="sends_waiting_max"):
            await producer.submit("t", b"3", key="k", timeout=0.2)
        server.hold = False
        server.let_go()
        await producer.flush()
        assert server.stored() == [b"first", *bodies(0, 1, 2)]

    numbered(scenario, batches=True, config=ClientConfig(sends_waiting_max=3))


def test_quiet_times_do_not_tell_how_much_a_broker_stores():
    """A few messages at a time are stored at once. Then a thousand wait for a slow broker, and
    no more: the last of them would be too late.
    """

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        for _ in range(10):
            await asyncio.gather(*(producer.send_nowait("t", b"few", key="k") for _ in range(200)))
        server.hold = True

        async def many() -> list[asyncio.Future[SendReceipt]]:
            return [await producer.submit("t", b"%d" % n, key="k") for n in range(2900)]

        submitting = asyncio.ensure_future(many())
        while not submitting.done() or producer.statistics().waiting:
            await asyncio.sleep(0.2)
            server.let_go(1)
        await asyncio.gather(*await submitting)
        assert server.stored()[2000:] == bodies(*range(2900))

    config = ClientConfig(send_timeout_ms=2000, request_timeout_ms=1500)
    numbered(scenario, batches=True, config=config)


def test_submits_of_many_tasks_keep_the_order_of_the_calls():
    """Also where one of them lets the loop read its sockets: the others stay behind it."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        submits = [producer.submit("t", b"%d" % n, key="k") for n in range(300)]
        await asyncio.gather(*await asyncio.gather(*submits))
        assert server.stored() == [b"first", *bodies(*range(300))]

    numbered(scenario, batches=True)


def test_a_message_cancelled_while_the_loop_takes_it_leaves_its_room_once():
    """Another thread cancels it between two looks at it."""

    class Waiter(asyncio.Future[SendReceipt]):
        looks = 0

        def done(self) -> bool:
            self.looks += 1
            return self.looks > 1

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        waiters = [Waiter() for _ in range(3)]
        waiters[0].looks = 1
        made = (None, None, (), None, None, None, None, None, None)
        sends = [producer._make(one, "ID", 0, "t", b"x", *made) for one in waiters]
        producer._room.add(3, 3)
        producer._take_many(sends)
        await producer.flush()
        assert (producer._room.messages, producer._room.bytes) == (0, 0)

    numbered(scenario, batches=True)


def test_a_cancelled_submit_leaves_its_room_to_the_next():
    """It is cancelled in the moment in which it is let in."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        first = await producer.submit("t", b"0", key="k")
        gone, other = (
            asyncio.ensure_future(producer.submit("t", b"%d" % n, key="k")) for n in (1, 2)
        )
        await until(lambda: len(producer._submitting) == 2)
        first.add_done_callback(lambda _: gone.cancel())
        server.hold = False
        server.let_go()
        await asyncio.wait_for(await asyncio.wait_for(other, 1), 1)
        assert gone.cancelled()
        assert server.stored() == [b"first", *bodies(0, 2)]

    numbered(scenario, batches=True, config=ClientConfig(sends_waiting_max=1))


def test_close_tells_all_that_wait_for_room():
    """They do not wait until their time is over."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        await producer.submit("t", b"0", key="k")
        waiting = [
            asyncio.ensure_future(producer.submit("t", b"%d" % n, key="k")) for n in range(1, 4)
        ]
        await until(lambda: len(producer._submitting) == 3)
        closing = asyncio.ensure_future(producer.close())
        server.hold = False
        server.let_go()
        await closing
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
        assert [type(one) for one in found] == [AlreadyClosed] * 3

    numbered(scenario, batches=True, config=ClientConfig(sends_waiting_max=1))


def test_a_close_that_is_given_up_leaves_no_future_without_an_outcome():
    """By Ctrl-C or a time limit: what is on its way is unknown, the rest is not sent."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [producer.send_nowait("t", b"%d" % n, key="k") for n in (1, 2)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.1)
        outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 0.1)
        assert [type(one) for one in outcomes] == [OutcomeUnknown, AlreadyClosed, AlreadyClosed]
        assert producer.statistics().waiting == 0

    numbered(scenario, batches=True)


def test_a_close_that_is_given_up_ends_what_has_no_route():
    """Neither the name server nor a broker answers yet."""

    async def scenario(server: Numbering, client: Session) -> None:
        server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [silence] * 100
        producer = Producer(client)
        await producer.start()
        future = producer.send_nowait("other", b"0", key="k")
        batch = asyncio.ensure_future(producer.send_batch([Message("other", b"1", "k")]))
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.1)
        outcomes = await asyncio.wait_for(
            asyncio.gather(future, batch, return_exceptions=True), 0.1
        )
        assert [type(one) for one in outcomes] == [AlreadyClosed, AlreadyClosed]

    numbered(scenario, batches=True)


@pytest.mark.parametrize(
    ("state", "written_ms", "heard_ms", "how", "away_ms", "until_ms"),
    [
        (IN_FLIGHT, 900, 950, "", 0, 3900),  # it goes on answering: the time of a request
        (IN_FLIGHT, 900, 900, "", 0, 1000),  # nothing came since
        (IN_FLIGHT, 900, 900, "patient", 0, 3900),  # nobody waits
        (IN_FLIGHT, 900, 900, "patient", 2000, 3900),
        (IN_FLIGHT, 900, 900, "patient", 4000, 5000),  # and its broker is away
        (IN_FLIGHT, 900, 900, "patient firm", 4000, 1000),
        (IN_FLIGHT, 900, 950, "firm", 0, 1000),  # the caller set the limit
        (UNSENT, 0, 950, "", 0, 1000),  # it is not on its way
        (UNSENT, 0, 950, "patient", 2000, 3000),  # its broker is away, and nobody waits
        (UNSENT, 0, 950, "", 2000, 1000),  # a caller waits
        (UNSENT, 0, 950, "patient firm", 2000, 1000),
    ],
)
def test_when_a_send_gets_more_time(  # noqa: PLR0917 - a table
    state: int, written_ms: int, heard_ms: int, how: str, away_ms: int, until_ms: int
):
    """If its broker answers others, or is away and nobody waits; not if its caller set a limit."""
    send = Send.__new__(Send)
    send.state, send.written_ms, send.deadline_ms = state, written_ms, 1000
    send.firm, send.patient = "firm" in how, "patient" in how
    assert extended_ms(send, heard_ms, 3000, away_ms) == until_ms


def test_the_latest_request_to_a_slow_broker_has_its_time_like_those_before_it():
    """All are answered within a request's time; the last one is written just before its time is
    up, and nothing came since. Its messages do not fail while older requests are waited for.
    """

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        futures = [producer.send_nowait("t", b"%d" % n, key="k") for n in range(1 + 19 * 256)]
        while not all(one.done() for one in futures):
            await asyncio.sleep(0.5)
            server.let_go(1)
            await asyncio.sleep(0.01)
        receipts = await asyncio.gather(*futures)
        assert [one.offset for one in receipts] == list(range(1, 2 + 19 * 256))

    numbered(scenario, batches=True, config=ClientConfig())


def test_messages_outlast_a_broker_that_stops_answering_when_their_time_is_nearly_up():
    """As they outlast one whose connection is lost: it is given up first."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        futures = [producer.send_nowait("t", b"0", key="k")]
        await until(lambda: server.held)
        futures += [producer.send_nowait("t", b"%d" % n, key="k") for n in range(1, 10)]
        await asyncio.sleep(0.8)
        server.let_go()
        await until(lambda: server.held)  # those behind it are written now
        await asyncio.sleep(1.5)
        server.hold = False
        await asyncio.gather(*futures)
        assert server.stored() == [b"first", *bodies(*range(10))]

    config = ClientConfig(send_timeout_ms=1000, request_timeout_ms=900)
    numbered(scenario, batches=True, config=config)


def test_a_broker_that_never_answers_does_not_keep_messages_for_ever():
    """It takes connections and requests; each try has its time, all together have a bound."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.hold = True
        began = client.clock.monotonic_ms()
        futures = [producer.send_nowait("t", b"%d" % n, key="k") for n in range(600)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(one) for one in outcomes} <= {SendTimedOut, RequestTimeout}
        assert 2900 <= client.clock.monotonic_ms() - began < 3700

    config = ClientConfig(send_timeout_ms=1000, request_timeout_ms=500)
    numbered(scenario, batches=True, config=config)


def test_messages_outlast_an_outage_about_as_long_as_their_time():
    """Those of `send_nowait`: the broker is away for longer than `send_timeout_ms`."""

    async def scenario(server: Numbering, client: Session) -> None:
        producer = Producer(client)
        await producer.send("t", b"first", key="k")
        server.answers[ExtensionCode.PRODUCER_HELLO] = [silence, silence]
        server.answers[BATCH] = [server.lose_request]
        futures = await burst(producer, server, 0, 10)
        await asyncio.gather(*futures)
        assert server.stored()[1:] == bodies(*range(10))

    config = ClientConfig(send_timeout_ms=1000, request_timeout_ms=600)
    numbered(scenario, batches=True, config=config)
