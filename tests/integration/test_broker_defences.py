"""Requests that are well-formed and mean harm: judged by what they leave behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from inorder.broker import broker as broker_module
from inorder.config import BrokerConfig, NetConfig
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.testing.disk import FakeFiles
from inorder.wire import frame as frame_module
from inorder.wire.command import Command
from tests.integration.brokerkit import pull_fields, running, send_fields


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
            monkeypatch.setattr(broker_module, "SLOW_SAVE_MS", 0)
            monkeypatch.setattr(broker_module, "SAVE_WAIT_MS_MAX", 100)
            snapshot, saved = rig.broker._groups_file, []
            save = snapshot.save

            def slow_save(content: bytes) -> None:
                loop = asyncio.get_running_loop()
                end = loop.time() + 0.02
                while loop.time() < end:
                    pass
                saved.append(len(content))
                save(content)

            monkeypatch.setattr(snapshot, "save", slow_save)
            for number in range(60):
                await rig.pull(consumerGroup=f"group{number}")
            assert len(saved) < 20
            await asyncio.sleep(0.3)
            assert b"group59" in files.read(snapshot.path)

    asyncio.run(story())


def test_a_topic_with_messages_is_known_after_a_crash_even_if_its_file_is_old() -> None:
    """What was acknowledged can be pulled although topics.json does not name the topic."""

    async def story() -> None:
        files = FakeFiles()
        async with running(files, stop=False) as rig:
            rig.broker._save_after_ms[rig.broker._topics_file] = 1 << 60
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
