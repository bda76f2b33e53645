"""Directories of RocketMQ with queues that we cannot read, and ours that say they had some."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.broker.broker import Broker
from inorder.clock import SystemClock
from inorder.config import BrokerConfig
from inorder.disk import OsFiles
from inorder.errors import StoreError
from inorder.settings import load
from tests.integration.brokerkit import SMALL, pull_fields, running

pytestmark = pytest.mark.slow

COUNT = 100
ENTRY = struct.Struct(">qiqqqhii")
"""position, size, tag code, store time, first offset, messages, compacted offset, reserved"""


def config(data: Path) -> BrokerConfig:
    return BrokerConfig(port=0, data=str(data), store=SMALL)


def filled(data: Path) -> None:
    """Make a directory with 100 messages in queue 0 of Orders, stopped cleanly."""

    async def main() -> None:
        async with running(OsFiles(), data=str(data)) as rig:
            for number in range(COUNT):
                assert (await rig.send(b"%d" % number, e="0")).code == 0

    asyncio.run(main())


def say(data: Path, **attributes: str) -> None:
    """Give Orders attributes in topics.json, behind the broker's back."""
    path = data / "config" / "topics.json"
    content = json.loads(path.read_text())
    named = {name.replace("_", "."): value for name, value in attributes.items()}
    content["topicConfigTable"]["Orders"]["attributes"] = named
    path.write_text(json.dumps(content))
    path.with_name("topics.json.bak").unlink(missing_ok=True)


def batched(data: Path) -> None:
    """Turn queue 0 into a batch queue, as RocketMQ 5 keeps it: an entry for 20 messages."""
    folder = data / "batchconsumequeue" / "Orders" / "0"
    folder.mkdir(parents=True)
    entries = b"".join(ENTRY.pack(n * 4000, 4000, 0, 1, n * 20, 20, 0, 0) for n in range(5))
    assert len(entries) == 5 * 46
    (folder / "00000000000000000000").write_bytes(entries.ljust(46 * 100, b"\0"))
    shutil.rmtree(data / "consumequeue" / "Orders")


def picture(data: Path) -> dict[str, tuple[int, bytes]]:
    """Return every name below a directory with its time of change and its bytes."""
    return {
        str(path.relative_to(data)): (
            path.stat().st_mtime_ns,
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in sorted(data.rglob("*"))
    }


def refused(data: Path) -> str:
    """Start a broker, which must fail and change nothing; return why."""
    before = picture(data)
    with pytest.raises(StoreError) as caught:
        asyncio.run(Broker(config(data), SystemClock(), OsFiles()).start())  # type: ignore[arg-type]
    assert picture(data) == before
    return str(caught.value)


@pytest.mark.parametrize("opened_before", [False, True])
def test_a_directory_with_batch_queues_is_refused_untouched(
    tmp_path: Path, opened_before: bool
) -> None:
    """Also if an earlier version of ours opened it: the files of the queues tell."""
    filled(tmp_path)
    say(tmp_path, queue_type="BatchCQ")
    batched(tmp_path)
    if not opened_before:
        shutil.rmtree(tmp_path / "inorder")
    why = refused(tmp_path)
    assert "topic Orders has batch queues" in why
    assert "nothing of it was changed" in why


def test_a_directory_with_compacted_topics_is_refused_untouched(tmp_path: Path) -> None:
    """An empty folder, as RocketMQ makes it at every stop, is none."""
    filled(tmp_path)
    (tmp_path / "compaction" / "compactionLog").mkdir(parents=True)
    asyncio.run(_starts(tmp_path))
    log = tmp_path / "compaction" / "compactionLog" / "Orders" / "0"
    log.mkdir(parents=True)
    (log / "00000000000000000000").write_bytes(b"x")
    assert "topic Orders is compacted" in refused(tmp_path)


@pytest.mark.parametrize("copy", ["topics.json", "topics.json.bak"])
def test_the_attribute_alone_refuses_a_directory_that_was_never_ours(
    tmp_path: Path, copy: str
) -> None:
    """Its queues may be anywhere; also if only the older copy of the file can be read."""
    filled(tmp_path)
    say(tmp_path, queue_type="BatchCQ")
    shutil.rmtree(tmp_path / "inorder")
    if copy != "topics.json":
        (tmp_path / "config" / "topics.json").rename(tmp_path / "config" / copy)
    assert "attribute queue.type=BatchCQ" in refused(tmp_path)


@pytest.mark.parametrize(
    "attributes", [{"queue_type": "BatchCQ"}, {"cleanup_policy": "COMPACTION"}]
)
def test_a_directory_of_ours_that_carries_the_attribute_gets_rid_of_it(
    tmp_path: Path, attributes: dict[str, str]
) -> None:
    """Its queues are plain: all messages are there, and RocketMQ can open it again."""
    filled(tmp_path)
    say(tmp_path, message_type="NORMAL", **attributes)
    asyncio.run(_starts(tmp_path))
    saved = json.loads((tmp_path / "config" / "topics.json").read_text())
    orders = saved["topicConfigTable"]["Orders"]
    assert orders["attributes"] == {"message.type": "NORMAL"}
    asyncio.run(_starts(tmp_path))


async def _starts(data: Path) -> None:
    async with running(OsFiles(), data=str(data)) as rig:
        found = 0
        while (answer := await rig.ask(11, pull_fields(queueId="0", queueOffset=str(found)))).body:
            found = int(answer.fields["nextBeginOffset"])
        assert found == COUNT


def test_an_index_may_have_fewer_entries_than_slots(tmp_path: Path) -> None:
    """As RocketMQ takes it: keys are found over many files, also after a restart."""
    flags: dict[str, bool | int | float | str] = {"maxIndexNum": 20, "maxHashSlotNum": 500}
    assert load(BrokerConfig, flags=flags).store.index_slots == 500
    store = replace(SMALL, index_slots=500, index_entries=20)

    async def main(*, sends: int) -> None:
        async with running(OsFiles(), store=store, data=str(tmp_path)) as rig:
            for number in range(sends):
                assert (await rig.send(b"x", i=f"KEYS\x01k{number}\x02")).code == 0
            for number in range(60):
                hits = rig.broker.store.query_keys("Orders", f"k{number}", 10, 0, 1 << 60)
                assert len(hits.positions) == 1

    asyncio.run(main(sends=60))
    assert len(list((tmp_path / "index").iterdir())) > 2
    asyncio.run(main(sends=0))


def test_such_a_topic_is_not_made() -> None:
    """Refused with 29, and nothing is there afterwards."""

    async def main() -> None:
        async with running() as rig:
            fields = {
                "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "perm": "6",
                "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG", "order": "false",
            }  # fmt: skip
            for attribute in ("queue.type=BatchCQ", "cleanup.policy=COMPACTION"):
                answer = await rig.ask(17, fields | {"attributes": f"+{attribute}"})
                assert (answer.code, attribute in str(answer.remark)) == (29, True)
                assert rig.broker.topics.get("New") is None

    asyncio.run(main())
