"""The verifier of data directories finds damage of every kind, and none where there is none."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from inorder.broker.broker import Broker
from inorder.client.api import BrokerApi
from inorder.clock import SystemClock
from inorder.config import BrokerConfig, StoreConfig
from inorder.disk import OsFiles
from inorder.model import TopicQueue
from tests.crash.load import GROUP, TOPICS, Book, Sender, connect, make_topics, pull
from tests.crash.verify import Contents, verify
from tests.integration.brokerkit import until

STORE = StoreConfig(
    segment_bytes=32 * 1024, queue_file_bytes=20 * 10, index_slots=50, index_entries=200,
    message_bytes_max=16 * 1024,
)  # fmt: skip


async def write(root: Path) -> None:
    """Run a broker on the directory and stop it."""
    broker = Broker(BrokerConfig(port=0, data=str(root), store=STORE), SystemClock(), OsFiles())
    await broker.start()
    connection = await connect(broker.address)
    api = BrokerApi(connection)
    await make_topics(api)
    book = Book()
    task = asyncio.create_task(Sender("p", book, 1).run(connection, window=8))
    await until(lambda: book.acknowledged >= 300)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await api.pull_message(pull((TOPICS[0], 0), 0, 0))
    await api.update_offset(GROUP, TopicQueue(TOPICS[0], "broker-a", 0), 1)
    connection.close()
    await broker.stop()


def look(root: Path) -> Contents:
    return verify(
        root, segment_bytes=STORE.segment_bytes, queue_file_bytes=STORE.queue_file_bytes,
        index_slots=STORE.index_slots, index_entries=STORE.index_entries,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pristine") / "data"
    asyncio.run(write(root))
    return root


def first(root: Path, folder: str) -> Path:
    return min(path for path in (root / folder).rglob("*") if path.is_file())


def last(root: Path, folder: str) -> Path:
    return max(path for path in (root / folder).rglob("*") if path.is_file())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def commit_beyond(root: Path) -> None:
    path = root / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace("0:1", "0:99999"))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


SLOTS_AT = 40
ENTRIES_AT = SLOTS_AT + 4 * STORE.index_slots

DAMAGES: dict[str, Callable[[Path], None]] = {
    "a body": lambda root: flip(first(root, "commitlog"), 92),
    "a queue offset": lambda root: flip(first(root, "commitlog"), 27),
    "behind the log": lambda root: flip(last(root, "commitlog"), STORE.segment_bytes - 1),
    "a short log file": lambda root: shorten(first(root, "commitlog")),
    "a queue entry": lambda root: flip(first(root, "consumequeue"), 7),
    "a tag hash": lambda root: flip(first(root, "consumequeue"), 19),
    "behind a queue": lambda root: flip(last(root, "consumequeue"), STORE.queue_file_bytes - 1),
    "a queue file that is gone": lambda root: last(root, "consumequeue").unlink(),
    "an index entry": lambda root: flip(first(root, "index"), ENTRIES_AT + 20 + 3),
    "a chain": lambda root: flip(last(root, "index"), ENTRIES_AT + 20 + 19),
    "a slot": lambda root: flip(first(root, "index"), SLOTS_AT + 3),
    "an index header": lambda root: flip(first(root, "index"), 39),
    "an index file that is gone": lambda root: first(root, "index").unlink(),
    "a committed offset": commit_beyond,
}


@pytest.mark.slow
def test_a_clean_directory_has_no_problems(pristine: Path) -> None:
    """It is read to its end, over several files of each kind."""
    found = look(pristine)
    assert found.problems == []
    assert len(found.records) >= 300
    assert found.segments > 1
    assert found.index_files > 1
    assert found.committed
    assert struct.unpack(">i", first(pristine, "index").read_bytes()[36:40])[0] > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(pristine: Path, tmp_path: Path, name: str) -> None:
    """One bit, one byte, one file is enough."""
    root = tmp_path / "data"
    copy(pristine, root)
    DAMAGES[name](root)
    assert look(root).problems


def copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
