"""Where offsets are kept: the local file and its backup."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from inorder.client.consume.commits import LocalOffsets
from inorder.client.consume.rules.commits import NO_OFFSET
from inorder.errors import ConfigError
from inorder.model import TopicQueue
from tests.kit.disk import FakeFiles

FIRST, SECOND = TopicQueue("t", "b", 0), TopicQueue("t", "b", 1)
PATH = Path("/home/me/.rocketmq_offsets/10.0.0.1@DEFAULT/g/offsets.json")


def store_of(files: FakeFiles) -> LocalOffsets:
    return LocalOffsets(files, Path("/home/me/.rocketmq_offsets"), "10.0.0.1@DEFAULT", "g")


def write(files: FakeFiles, path: Path, text: bytes) -> None:
    file = files.open(path, create=True, size=0)
    file.truncate(0)
    file.pwrite(text, 0)
    file.close()


def read(files: FakeFiles, path: Path) -> bytes:
    file = files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def test_what_was_saved_is_read_by_the_next_start():
    """Other queues of the file stay; a queue that is not in it is not stored."""
    files = FakeFiles()

    async def story() -> None:
        store = store_of(files)
        assert await store.read(FIRST) == NO_OFFSET
        assert await store.save({FIRST: 5}) == {FIRST: 5}
        await store.save({SECOND: 7})
        again = store_of(files)
        assert [await again.read(queue) for queue in (FIRST, SECOND)] == [5, 7]
        assert await again.move(FIRST, 2)
        assert await again.read(FIRST) == 2

    asyncio.run(story())
    assert b'{"brokerName":"b","queueId":0,"topic":"t"}' in read(files, PATH).replace(
        b"\t", b""
    ).replace(b"\n", b"")


def test_the_version_before_is_the_backup_and_is_read_if_the_file_is_damaged():
    """As RocketMQ's own store does; both damaged is an error that says so."""
    files = FakeFiles()

    async def story() -> None:
        store = store_of(files)
        await store.save({FIRST: 5})
        await store.save({FIRST: 6})
        write(files, PATH, b"{damaged")
        assert await store.read(FIRST) == 5
        write(files, PATH.with_name("offsets.json.bak"), b"{damaged")
        with pytest.raises(ConfigError):
            await store.read(FIRST)

    asyncio.run(story())


def test_a_power_cut_leaves_one_version_or_the_other():
    """The new file is on disk before it takes the place of the old one."""
    for seed in range(20):
        files = FakeFiles()

        async def story(files: FakeFiles = files) -> None:
            store = store_of(files)
            for offset in range(1, 5):
                await store.save({FIRST: offset})

        asyncio.run(story())
        after = files.crash(random.Random(seed))
        assert asyncio.run(store_of(after).read(FIRST)) in (NO_OFFSET, 1, 2, 3, 4)
