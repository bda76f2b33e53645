"""Two brokers with one name and id: the second is refused while the first is connected."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.broker.broker import Broker
from inorder.client.send.producer import Producer
from inorder.client.session import Session
from inorder.clock import SystemClock
from inorder.config import BrokerConfig, NameServerConfig
from inorder.disk import OsFiles
from inorder.errors import BrokerNameTaken
from inorder.model import DataVersion, TopicConfig
from inorder.nameserver.rules import Registration
from inorder.nameserver.server import NameServer
from inorder.wire.ids import show_address
from tests.integration.brokerkit import SMALL
from tests.integration.test_serve_process import TIMEOUT_S, inorder, ready

pytestmark = pytest.mark.slow


IMPOSTOR = Registration(
    cluster="DefaultCluster", broker_name="broker-a", address="127.0.0.1:1", broker_id=0,
    ha_address="", channel="impostor", version=DataVersion(0, 1, 1),
    topics={name: TopicConfig(name) for name in ("TBW102", "broker-a")}, timeout_ms=120_000,
    identity="another",
)  # fmt: skip


class Town:
    """Name servers and brokers on this machine, each broker with a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[NameServer] = []
        self.brokers: list[Broker] = []
        self.namesrv = ""

    async def start_names(self, port: int = 0) -> str:
        """Start another name server."""
        data = str(self.folder / f"names{len(self.names)}")
        server = NameServer(NameServerConfig(port=port, data=data), SystemClock(), OsFiles())
        address = show_address(*await server.start())
        self.names.append(server)
        self.namesrv = ";".join(filter(None, (self.namesrv, address)))
        return address

    async def start(self, folder: str, *, port: int = 0, **settings: object) -> Broker:
        """Start a broker on a folder. Raises what `Broker.start` does."""
        config = BrokerConfig(
            data=str(self.folder / folder),
            port=port,
            namesrv=self.namesrv,
            host="127.0.0.1",
            store=SMALL,
        )
        broker = Broker(replace(config, **settings), SystemClock(), OsFiles())  # type: ignore[arg-type]
        await broker.start()
        self.brokers.append(broker)
        return broker

    def routed(self, number: int = 0) -> dict[int, str]:
        """Return the addresses that a name server has under the name."""
        return self.names[number].routes.members("DefaultCluster", "broker-a").addresses

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that comes about by itself."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in a server
                await asyncio.sleep(0.02)


def play(tmp_path: Path, story: Callable[[Town], Awaitable[None]]) -> None:
    """Run a story; whatever was started is stopped."""

    async def main() -> None:
        town = Town(tmp_path)
        await town.start_names()
        try:
            await story(town)
        finally:
            for broker in town.brokers:
                await broker.stop()
            for names in town.names:
                await names.stop()

    asyncio.run(main())


@pytest.mark.parametrize("copied", [False, True])
def test_a_second_broker_of_a_name_does_not_start(
    tmp_path: Path, copied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Another directory, or a copy of the first: refused, both sides say so, nothing is lost."""

    async def story(town: Town) -> None:
        first = await town.start("one")
        if copied:
            shutil.copytree(town.folder / "one", town.folder / "two")
            (town.folder / "two" / "lock").unlink(missing_ok=True)
        async with Producer(town.namesrv) as producer:
            receipts = [await producer.send("orders", b"%d" % n, key="k") for n in range(20)]
            with caplog.at_level(logging.WARNING), pytest.raises(BrokerNameTaken) as caught:
                await town.start("two")
            assert ("copy" in str(caught.value)) == copied
            receipts += [await producer.send("orders", b"%d" % n, key="k") for n in range(20)]
        assert town.routed() == {0: first.address}
        assert [one.offset for one in receipts] == list(range(40))
        for side in ("inorder.nameserver", "inorder.broker"):
            said = [one for one in caplog.records if one.name.startswith(side)]
            assert any(first.address in one.getMessage() for one in said), side

    play(tmp_path, story)


def test_a_restart_and_a_move_work_as_before(tmp_path: Path) -> None:
    """Stopped, or killed: the same directory at another port, and another one with its name."""

    async def story(town: Town) -> None:
        for folder in ("one", "one", "two"):
            broker = await town.start(folder)
            assert town.routed() == {0: broker.address}
            await broker.stop()
            town.brokers.remove(broker)
        slave = await town.start("three", broker_id=1)
        master = await town.start("two")
        assert town.routed() == {0: master.address, 1: slave.address}

    play(tmp_path, story)


def test_a_broker_that_serves_goes_on_when_a_name_server_heard_another_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, tries again, and is registered as soon as the other is gone."""

    async def story(town: Town) -> None:
        first = await town.start("one")
        port = int(town.namesrv.rpartition(":")[2])
        await town.names.pop().stop()
        await town.until(lambda: not first.registration.statistics().up)
        with caplog.at_level(logging.CRITICAL):
            await town.start_names(port)
            # No await in between: it hears the impostor first.
            town.names[0].routes.register(IMPOSTOR, now_ms=0)
            await town.until(lambda: any("goes on serving" in r.message for r in caplog.records))
        assert town.routed() == {0: IMPOSTOR.address}
        session = Session(town.namesrv)
        api = await session.broker_at(first.address)
        assert "orders" not in await api.topics(), "it answers"
        await session.close()
        town.names[0].routes.channel_lost(IMPOSTOR.channel)
        await town.until(lambda: town.routed() == {0: first.address})

    play(tmp_path, story)


def test_a_process_with_a_taken_name_ends_and_says_why(tmp_path: Path) -> None:
    """`inorder broker` beside one of its name: an exit code, and one line that names both."""
    with inorder("nameserver", "--port", "0", cwd=tmp_path) as names:
        namesrv = ready(names)["namesrv"]
        words = ("broker", "--port", "0", "--namesrv", namesrv, "--data")
        with inorder(*words, "one", cwd=tmp_path) as first:
            address = ready(first)["broker"]
            with inorder(*words, "two", cwd=tmp_path) as second:
                out, err = second.communicate(timeout=TIMEOUT_S)
                assert second.returncode != 0
                assert "ready" not in out
                assert address in err
                assert "another name" in err
                assert "Traceback" not in err
            assert first.poll() is None
