"""Requests that are well-formed and mean harm: judged by what they leave behind."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from inorder.config import BrokerConfig, NetConfig
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.wire import frame as frame_module
from inorder.wire.header import Command
from tests.integration.brokerkit import pull_fields, running, send_fields
from tests.kit.disk import FakeFiles


def test_an_answer_nobody_asked_for_is_not_taken_for_a_request() -> None:
    """A send or pull with the flag of an answer stores nothing, also in its usual JSON form."""

    async def story() -> None:
        async with running() as rig:
            await rig.send(b"first")
            for code, fields in ((310, send_fields()), (11, pull_fields())):
                for flag in (1, 3):
                    rig.connection.notify(Command(code, 0, flag, fields, None, b"x"))
            assert (await rig.ask(31_999)).code == 3
            answer = await rig.ask(30, {"topic": "Orders", "queueId": "1"})
            assert answer.fields["offset"] == "1"

    asyncio.run(story())


def test_an_answer_larger_than_a_frame_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered with an error; its connection stays."""

    async def story() -> None:
        async with running() as rig:
            await rig.send(b"x")
            monkeypatch.setattr(frame_module, "FRAME_BYTES_MAX", 1000)
            answer = await rig.ask(21)
            assert answer.code == 1
            assert "limit" in (answer.remark or "")
            assert (await rig.ask(31_999)).code == 3

    asyncio.run(story())


def test_wrong_utf8_in_a_pull_closes_its_connection_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The short cut of pulls leaves it to the general way to say what is wrong."""

    async def story() -> None:
        async with running() as rig:
            peer = await Connection.open(rig.broker.address, NetConfig())
            assert peer._transport is not None
            header = b'{"code":11,"opaque":1,"extFields":{"topic":"\xf0("}}'
            peer._transport.write(frame_module.frame(0, header, b""))
            await peer.wait_closed()
            assert (await rig.ask(31_999)).code == 3

    asyncio.run(story())
    assert not [entry for entry in caplog.records if entry.exc_info]


def test_a_name_of_70_000_characters_is_one_short_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a peer calls a topic or group, no line is long, or looks like two."""
    name = "orders\n12:00:00 ERROR forged \x1b[31m" + "x" * 70_000

    async def story() -> None:
        async with running() as rig:
            for code, fields in (
                (215, {"topic": name}),
                (207, {"groupName": name, "cleanOffset": "true"}),
                (222, {"topic": name, "group": name, "timestamp": "0", "isForce": "true"}),
                (310, send_fields(b=name)),
                (11, pull_fields(topic=name, consumerGroup=name)),
                (31_999, {}),
            ):
                await rig.ask(code, fields)

    with caplog.at_level("DEBUG"):
        asyncio.run(story())
    assert any("deleted" in line for line in caplog.messages)
    assert [line for line in caplog.messages if len(line) > 1500 or not line.isprintable()] == []


def test_refused_requests_are_logged_once_for_each_client_and_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A code that is not served, and a message that is not taken, are in the broker's log."""

    async def story() -> None:
        async with running() as rig:
            for _ in range(20):
                assert (await rig.ask(31_999)).code == 3
                assert (await rig.send(b"x", i="DELAY\x01soon\x02")).code == 13

    asyncio.run(story())
    lines = [line for line in caplog.messages if "refused" in line]
    assert len(lines) == 2
    assert "code=31999 answered=3" in lines[0]
    assert "code=310 answered=13: DELAY=soon" in lines[1]


@pytest.mark.slow
def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    """Pulls beyond what fits wait; when the peer reads again, all of them are answered in order."""

    async def story() -> None:
        net = NetConfig(write_buffer_bytes_max=256 * 1024)
        async with running(net=net) as rig:
            for _ in range(32):
                await rig.send(b"x" * 8000)
            peer = await Connection.open(rig.broker.address, replace(net, outstanding_max=2000))
            assert peer._transport is not None
            peer._transport.pause_reading()
            pulls = [
                asyncio.ensure_future(peer.request(Command.request(11, pull_fields()), 20_000))
                for _ in range(200)
            ]
            await asyncio.sleep(0.3)
            most = max(one.unsent_bytes for one in rig.broker.server.connections)
            assert most < 4 * net.write_buffer_bytes_max
            peer._transport.resume_reading()
            answers = await asyncio.gather(*pulls)
            assert {answer.code for answer in answers} == {0}
            peer.close()

    asyncio.run(story())


@pytest.mark.slow
def test_a_table_that_is_slow_to_save_is_not_saved_with_every_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names made by the dozen cost a few saves; a little later the file has all of them."""

    async def story() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            snapshot, saved, go = rig.broker._groups_file, [], threading.Event()
            save = snapshot.save

            def slow_save(content: bytes) -> None:
                go.wait(10)
                saved.append(len(content))
                save(content)

            monkeypatch.setattr(snapshot, "save", slow_save)
            for number in range(60):
                await rig.pull(consumerGroup=f"group{number}")
            go.set()
            await rig.broker.saving.saved()
            assert len(saved) <= 2
            assert b"group59" in files.read(snapshot.path)

    asyncio.run(story())


def test_a_topic_made_by_a_send_keeps_its_queues_over_a_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill before topics.json is written does not forget how many queues a new topic has."""

    async def story() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            monkeypatch.setattr(rig.broker._topics_file, "save", _full_disk)
            assert (await rig.send(b"first", b="Fresh", d="5", e="0")).code == 0
            assert (await rig.send(b"first", b="Other", d="3", e="0")).code == 0
        async with running(files.kill()) as rig:
            fresh, other = rig.broker.topics.get("Fresh"), rig.broker.topics.get("Other")
            assert fresh is not None
            assert other is not None
            assert (fresh.write_queues, other.write_queues) == (5, 3)

    asyncio.run(story())


def test_a_topic_deleted_after_it_was_made_does_not_come_back_with_a_kill() -> None:
    """The note of a new topic counts only until topics.json was saved with a later change."""

    async def story() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            assert (await rig.send(b"x", b="Brief", e="0")).code == 0
            assert (await rig.ask(215, {"topic": "Brief"})).code == 0
        async with running(files.kill()) as rig:
            assert rig.broker.topics.get("Brief") is None

    asyncio.run(story())


def test_a_request_that_changes_a_table_is_answered_when_it_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic created by an admin is in its file when the answer comes; others do not wait."""

    async def story() -> None:
        files = FakeFiles()
        async with running(files) as rig:
            snapshot, go = rig.broker._topics_file, threading.Event()
            save = snapshot.save

            def slow_save(content: bytes) -> None:
                go.wait(10)
                save(content)

            monkeypatch.setattr(snapshot, "save", slow_save)
            created = asyncio.ensure_future(
                rig.ask(
                    17,
                    {
                        "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "1",
                        "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
                        "order": "false",
                    },
                )
            )  # fmt: skip
            assert (await rig.send(b"x", b="Meanwhile")).code == 0
            assert not created.done()
            go.set()
            assert (await created).code == 0
            assert b'"Made"' in files.read(snapshot.path)

    asyncio.run(story())


def _full_disk(content: bytes) -> None:
    raise OSError(28, "no space")


def test_a_topic_with_messages_is_known_after_a_crash_even_if_its_file_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was acknowledged can be pulled although topics.json does not name the topic."""

    async def story() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            monkeypatch.setattr(rig.broker._topics_file, "save", _full_disk)
            monkeypatch.setattr(rig.broker._topic_notes, "add", lambda *_, **__: None)
            assert (await rig.send(b"kept", b="Late", e="2")).code == 0
            await asyncio.sleep(0.05)
        async with running(files.kill()) as rig:
            assert isinstance(rig.broker.topics.get("Late"), TopicConfig)
            answer = await rig.pull(topic="Late", queueId="2")
            assert answer.code == 0
            assert b"kept" in bytes(answer.body)

    asyncio.run(story())


def test_a_huge_number_of_messages_does_not_make_a_pull_scan_more() -> None:
    """How many entries one pull examines is the broker's to say."""

    async def story() -> None:
        async with running(filter_scan_max=40) as rig:
            for _ in range(100):
                await rig.send(b"x")
            answer = await rig.pull(subscription="other", maxMsgNums=str(2**31 - 1))
            assert answer.code == 20
            assert answer.fields["nextBeginOffset"] == "40"

    asyncio.run(story())


def test_numbers_of_settings_are_read_whole() -> None:
    """A number that only begins within its range is refused."""

    async def story() -> None:
        async with running(remote_config=True) as rig:
            text = b"brokerPermission=" + b"0" * 19 + b"79999"
            assert (await rig.ask(25, body=text)).code == 1
            assert rig.broker.config.perm == BrokerConfig().perm

    asyncio.run(story())


def test_local_errors_do_not_close_the_connection() -> None:
    """A property that we cannot write again is our trouble: the request is answered."""

    async def story() -> None:
        async with running() as rig:
            fields = send_fields(b="%RETRY%CG", e="0", i="a\x01b\x01c\x02", j="99", l="1")
            answer = await rig.ask(310, fields, b"x")
            assert answer.code in (0, 1)
            assert not rig.connection.closed

    asyncio.run(story())
