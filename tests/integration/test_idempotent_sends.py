"""Numbered sends against a running broker: duplicates, gaps, fencing, batches, names."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from inorder.errors import KeyMapChanged, ProducerGap, ProducerStale, broker_error
from inorder.wire.header import Command
from tests.integration.brokerkit import SMALL, Rig, running, send_fields
from tests.integration.idempotentkit import Sender, batch, properties, stored_numbers
from tests.kit.disk import FakeFiles

GAP, UNKNOWN, STALE, MISMATCH = 7100, 7101, 7102, 7103


def run(test: Callable[[Rig, Sender], Awaitable[None]], **settings: object) -> None:
    """Run a test against a broker over a connection that has said hello."""

    async def whole() -> None:
        async with running(**settings) as rig:  # type: ignore[arg-type]
            sender = Sender(rig)
            assert (await sender.hello()).code == 0
            await test(rig, sender)

    asyncio.run(whole())


def test_hello_tells_what_the_broker_speaks() -> None:
    """The answer to a hello carries the capability, the incarnation and the memory."""

    async def test(rig: Rig, sender: Sender) -> None:
        answer = await sender.hello(5)
        assert answer.fields == {"inorder": "2", "highest": "5", "memory": "0", "batches": "1"}

    run(test)


@pytest.mark.parametrize("serializer", [0, 1])
def test_a_resend_gets_its_first_answer(serializer: int) -> None:
    """A number that is stored is not stored again; offset and id are those of the first time."""

    async def test(rig: Rig, sender: Sender) -> None:
        first = [await sender.send(number, serializer=serializer) for number in range(3)]
        again = [await sender.send(number, serializer=serializer) for number in range(3)]
        for one, other in zip(first, again, strict=True):
            assert (one.code, other.code) == (0, 0)
            assert one.fields == other.fields
        assert stored_numbers(rig) == [0, 1, 2]

    run(test)


def test_the_long_form_obeys_the_same_rules() -> None:
    """Code 10 is numbered, checked and mapped as 310 is, on the hot path too."""

    async def test(rig: Rig, sender: Sender) -> None:
        await _map_topic(rig, MAP)

        async def send(number: int, version: str) -> Command:
            fields = {
                "producerGroup": "PG", "topic": "Orders", "defaultTopic": "TBW102", "mv": version,
                "defaultTopicQueueNums": "4", "queueId": "1", "sysFlag": "0", "flag": "0",
                "bornTimestamp": "1", "properties": properties(number), "batch": "false",
            }  # fmt: skip
            return await sender.ask(10, fields, b"x")

        first = [await send(number, "4") for number in range(3)]
        assert [answer.code for answer in first] == [0, 0, 0]
        assert (await send(1, "3")).fields == first[1].fields
        assert (await send(3, "3")).code == 7110
        assert (await send(4, "4")).code == GAP
        assert stored_numbers(rig) == [0, 1, 2]

    run(test)


def test_a_gap_is_refused_and_nothing_is_stored() -> None:
    """A later number waits for the ones before it; the answer names the one that is expected."""

    async def test(rig: Rig, sender: Sender) -> None:
        await sender.send(0)
        refused = await sender.send(2)
        assert (refused.code, refused.fields["expected"]) == (GAP, "1")
        error = broker_error(refused.code, refused.remark, refused.fields)
        assert isinstance(error, ProducerGap)
        assert error.expected == 1
        for number in (1, 2):
            assert (await sender.send(number)).code == 0
        assert stored_numbers(rig) == [0, 1, 2]

    run(test)


def test_nothing_known_and_not_the_first_is_told_so() -> None:
    """A number above 0 from a producer that is not known on the queue is refused as unknown."""

    async def test(rig: Rig, sender: Sender) -> None:
        assert (await sender.send(3)).code == UNKNOWN
        assert stored_numbers(rig) == []

    run(test)


def test_a_number_used_for_another_message_is_an_error() -> None:
    """A duplicate whose UNIQ_KEY differs is another message: refused, not acknowledged (A3)."""

    async def test(rig: Rig, sender: Sender) -> None:
        await sender.send(0, unique="AAAA")
        assert (await sender.send(0, unique="BBBB")).code == MISMATCH
        assert stored_numbers(rig) == [0]

    run(test)


def test_without_a_hello_nothing_is_taken() -> None:
    """A numbered send over a connection that has not said hello is refused as stale."""

    async def test(rig: Rig, sender: Sender) -> None:
        other = await Sender.connect(rig)
        assert (await other.send(0)).code == STALE
        assert stored_numbers(rig) == []

    run(test)


def test_the_older_connection_is_fenced_off() -> None:
    """After a hello over another connection a late copy over the first is refused (A3)."""

    async def test(rig: Rig, sender: Sender) -> None:
        await sender.send(0)
        newer = await Sender.connect(rig)
        await newer.hello(2)
        late = await sender.send(1, unique="m6")
        assert late.code == STALE
        assert late.fields["highest"] == "2"
        assert (await newer.send(1, unique="m7")).code == 0
        back = await sender.hello(1)
        error = broker_error(back.code, back.remark, back.fields)
        assert isinstance(error, ProducerStale)
        assert error.highest == 2
        assert stored_numbers(rig) == [0, 1]

    run(test)


def test_numbers_are_counted_per_queue() -> None:
    """Each queue has its own numbers."""

    async def test(rig: Rig, sender: Sender) -> None:
        for queue_id in ("0", "1", "2"):
            for number in range(2):
                assert (await sender.send(number, e=queue_id)).code == 0
        assert [stored_numbers(rig, queue_id=queue_id) for queue_id in range(3)] == [[0, 1]] * 3

    run(test)


def test_a_refused_message_keeps_its_number_free() -> None:
    """A refusal by an ordinary check does not use the number up."""

    async def test(rig: Rig, sender: Sender) -> None:
        await sender.send(0)
        text = properties(1)
        empty = await sender.ask(310, {**send_fields(), "i": text}, b"")
        assert empty.code == 1
        assert (await sender.send(1)).code == 0
        assert stored_numbers(rig) == [0, 1]

    run(test)


def test_a_resent_batch_stores_only_what_is_missing() -> None:
    """Items that are stored are answered from memory, the tail is appended."""

    async def test(rig: Rig, sender: Sender) -> None:
        first = await sender.send_batch([0, 1])
        assert first.code == 0
        other = await Sender.connect(rig)
        await other.hello(producer="another")
        await other.send(0, producer="another")
        mixed = await sender.send_batch([0, 1, 2, 3])
        assert mixed.code == 0
        assert mixed.fields["queueOffset"] == "0"
        assert mixed.fields["offsets"] == "0,1,3,4"
        assert mixed.fields["msgId"].split(",")[:2] == first.fields["msgId"].split(",")
        again = await sender.send_batch([0, 1, 2, 3])
        assert again.fields == mixed.fields
        assert stored_numbers(rig) == [0, 1, 0, 2, 3]

    run(test)


def test_a_batch_with_a_hole_is_refused_whole() -> None:
    """Numbers of a batch must follow one another, and its first must be in turn."""

    async def test(rig: Rig, sender: Sender) -> None:
        assert (await sender.send_batch([0, 2])).code == 13
        assert (await sender.send_batch([1, 2])).code == UNKNOWN
        await sender.send(0)
        assert (await sender.send_batch([2, 3])).code == GAP
        assert stored_numbers(rig) == [0]

    run(test)


def test_a_batch_of_two_producers_or_partly_without_numbers_is_refused() -> None:
    """A batch is numbered by one producer, all of it."""

    async def test(rig: Rig, sender: Sender) -> None:
        body = batch([0]) + batch([1]).replace(b"INORDER_PID", b"XXORDER_PID")
        answer = await sender.ask(320, {**send_fields(), "m": "true", "i": ""}, body)
        assert answer.code == 13
        assert stored_numbers(rig) == []

    run(test)


def test_a_named_producer_grows_with_gaps() -> None:
    """Names its predecessor each time; at or below the last is a duplicate, else a gap (A2)."""

    async def test(rig: Rig, sender: Sender) -> None:
        await sender.hello(named=True, producer="job")

        async def send(number: int, before: int) -> tuple[int, str | None]:
            answer = await sender.send(number, before=before, producer="job")
            return answer.code, answer.fields.get("expected", answer.fields.get("queueOffset"))

        assert await send(10, -1) == (0, "0")
        # 20 is refused somewhere, 30 was pipelined behind it: it must not be stored.
        assert await send(30, 20) == (GAP, "10")
        assert await send(20, 10) == (0, "1")
        assert await send(30, 20) == (0, "2")
        assert await send(20, 10) == (0, "1")
        assert await send(15, 10) == (0, "-1")
        assert stored_numbers(rig) == [10, 20, 30]

    run(test)


def test_a_named_resend_need_not_have_the_same_id() -> None:
    """A pipeline that runs again makes new ids: the name and the number are what counts."""

    async def test(rig: Rig, sender: Sender) -> None:
        await sender.hello(named=True, producer="job")
        first = await sender.send(5, before=-1, producer="job", unique="AAAA")
        again = await sender.send(5, before=-1, producer="job", unique="BBBB")
        assert again.fields == first.fields

    run(test)


def test_state_tells_where_messages_lie() -> None:
    """From a number on, in runs; between them lie messages of others."""

    async def test(rig: Rig, sender: Sender) -> None:
        await sender.send(0)
        await sender.send_batch([1, 2, 3])
        await rig.send(b"of another")
        await sender.send(4)
        assert (await sender.state(since=1))["offsets"] == "1:3,5:1"
        assert "offsets" not in await sender.state(since=5)

    run(test)


def test_where_messages_lie_is_told_when_they_are_safe() -> None:
    """The answer is a receipt: under sync flush it comes after the sync."""

    async def test(rig: Rig, sender: Sender) -> None:
        store, gate = rig.broker.store, threading.Event()
        real = store.sync

        def sync() -> int:
            gate.wait(30)
            return real()

        store.sync = sync  # type: ignore[method-assign]
        try:
            sending = asyncio.ensure_future(sender.send_batch([0, 1]))
            while (await sender.state())["last"] != "1":  # noqa: ASYNC110 - the broker's state
                await asyncio.sleep(0.005)
            asking = asyncio.ensure_future(sender.state(since=0))
            await asyncio.sleep(0.05)
            assert not asking.done()
            gate.set()
            assert (await asking)["offsets"] == "0:2"
            assert (await sending).code == 0
        finally:
            gate.set()

    run(test, store=replace(SMALL, sync_flush=True))


@pytest.mark.parametrize("size_max", [1000, 40])
def test_a_refusal_of_a_batch_names_the_message(size_max: int) -> None:
    """One that is too large by itself, or that no batch may hold; otherwise none is named."""

    async def test(rig: Rig, sender: Sender) -> None:
        bodies = [b"a", b"b" * 50, b"c"] if size_max < 50 else [b"a", b"b", b"c"]
        delay = "" if size_max < 50 else "DELAY\x013\x02"
        items = [
            (body, ((delay if number == 1 else "") + properties(number)).encode())
            for number, body in enumerate(bodies)
        ]
        body = b"".join(
            struct.pack(">iiiii", 22 + len(one) + len(raw), 0, 0, 0, len(one)) + one
            + struct.pack(">h", len(raw)) + raw
            for one, raw in items
        )  # fmt: skip
        answer = await sender.ask(320, send_fields(m="true", i=""), body)
        assert (answer.code, answer.fields["index"]) == (13, "1")
        assert stored_numbers(rig) == []
        many = await sender.send_batch(list(range(40)))
        assert (many.code, many.fields.get("index")) == (13, None)

    run(test, store=replace(SMALL, message_bytes_max=size_max))


def test_state_tells_what_is_stored() -> None:
    """The next number of an anonymous producer; nothing of one that is not known."""

    async def test(rig: Rig, sender: Sender) -> None:
        assert await sender.state() == {"known": "false", "expected": "0", "last": "-1"}
        await sender.send(0)
        await sender.send(1)
        assert await sender.state() == {"known": "true", "expected": "2", "last": "1"}

    run(test)


def test_a_retry_topic_takes_copies_as_they_are() -> None:
    """A RocketMQ consumer's copy to %RETRY% has the numbers of its origin: they do not count."""

    async def test(rig: Rig, sender: Sender) -> None:
        await rig.ask(200, body=b'{"groupName":"CG","retryQueueNums":1,"retryMaxTimes":16}')
        answer = await rig.send(b"copy", b="%RETRY%CG", e="0", i=properties(7))
        assert answer.code == 0

    run(test)


def test_a_duplicate_is_found_in_a_queue_that_was_closed() -> None:
    """The first answer is given also when the queue is gone from the topic's count (A4)."""

    async def test(rig: Rig, sender: Sender) -> None:
        first = await sender.send(0, e="3")
        fields = {
            "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "1", "order": "false",
            "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
        }  # fmt: skip
        assert (await rig.ask(17, fields)).code == 0
        again = await sender.send(0, e="3")
        assert again.fields == first.fields
        assert (await sender.send(1, e="3")).code == 29

    run(test)


MAP = "4/broker-a:0-7"


async def _map_topic(rig: Rig, text: str) -> None:
    fields = {
        "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "8", "order": "false",
        "writeQueueNums": "8", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "attributes": f"+inorder.keymap={text}",
    }  # fmt: skip
    answer = await rig.ask(17, fields)
    assert answer.code == 0, answer.remark


def test_an_older_map_version_is_refused_but_a_duplicate_is_not() -> None:
    """The duplicate check comes first: a stored number gets its first answer under any map (A4)."""

    async def test(rig: Rig, sender: Sender) -> None:
        await _map_topic(rig, "3/broker-a:0-7")
        first = await sender.send(0, mv="3")
        assert first.code == 0
        plan = {"topic": "Orders", "planId": "p", "version": "4", "map": MAP}
        for code in (7140, 7141, 7142):
            answer = await rig.ask(code, plan)
            assert answer.code == 0, answer.remark
        assert (await sender.send(0, mv="3")).fields == first.fields
        refused = await sender.send(1, mv="3")
        error = broker_error(refused.code, refused.remark, refused.fields)
        assert isinstance(error, KeyMapChanged)
        assert (error.version, error.map) == (4, MAP)
        assert (await sender.send(1, mv="4")).code == 0
        assert (await sender.send(2)).code == 0, "a RocketMQ producer knows no map"
        assert stored_numbers(rig) == [0, 1, 2]

    run(test)


def test_a_send_without_a_number_is_checked_for_its_map_too() -> None:
    """The version counts for every send that carries one, also where there is no map."""

    async def test(rig: Rig, sender: Sender) -> None:
        refused = await rig.send(b"x", mv="1")
        assert (refused.code, refused.fields["version"], refused.fields["map"]) == (7110, "0", "")
        await _map_topic(rig, MAP)
        assert (await rig.send(b"x", mv="1")).code == 7110
        assert (await rig.send(b"x", mv="4")).code == 0

    run(test)


def test_a_mapped_topic_keeps_its_queue_count() -> None:
    """Code 17 with another count would move keys; it is refused and names `topic resize` (A6)."""

    async def test(rig: Rig, sender: Sender) -> None:
        await _map_topic(rig, MAP)
        fields = {
            "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "4", "order": "false",
            "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
        }  # fmt: skip
        refused = await rig.ask(17, fields)
        assert refused.code == 29
        assert "topic resize" in (refused.remark or "")
        kept = rig.broker.topics.get("Orders")
        assert kept is not None
        assert kept.write_queues == 8
        same = {**fields, "readQueueNums": "8", "writeQueueNums": "8", "perm": "4"}
        assert (await rig.ask(17, same)).code == 0, "other changes are fine"

    run(test)


def test_attributes_of_a_map_survive_a_restart() -> None:
    """The map is in topics.json."""

    async def test() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            await _map_topic(rig, MAP)
        async with running(files) as rig:
            assert (await rig.send(b"x", mv="3")).fields["map"] == MAP

    asyncio.run(test())
