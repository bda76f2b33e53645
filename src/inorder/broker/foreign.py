"""Refusing a directory of Apache RocketMQ that we cannot read, before anything is written to it.

The rules are in `state/foreign.py`. Here the directory is looked at, and only read, without its
lock: whatever cannot be read is left to the start itself, which says so.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from inorder.broker.state.foreign import NOT_HERE, TOPICS_SHOWN, problems
from inorder.errors import RemoteProtocolError, StoreError
from inorder.wire.requests.topics import TopicTable

if TYPE_CHECKING:
    from inorder.disk import Files


def refuse_foreign(files: Files, root: Path) -> None:
    """Look for queues that we cannot read.

    Raises:
        StoreError: there are some; nothing was changed.
    """
    found = problems(
        _attributes(files, root / "config" / "topics.json"),
        _with_files(files, root / "batchconsumequeue"),
        _with_files(files, root / "compaction" / "compactionLog"),
        ours=files.exists(root / "inorder" / "positions"),
    )
    if found:
        more = "" if len(found) <= TOPICS_SHOWN else f"; and {len(found) - TOPICS_SHOWN} more"
        raise StoreError(
            f"{root} holds queues of Apache RocketMQ that inorder cannot read, and nothing of it "
            f"was changed: {'; '.join(found[:TOPICS_SHOWN])}{more}. Leave the directory to "
            "RocketMQ, or delete these topics there, with their queues, and try again"
        )


def _attributes(files: Files, path: Path) -> dict[str, dict[str, str]]:
    for one in (path, path.with_name(path.name + ".bak")):
        with contextlib.suppress(OSError, RemoteProtocolError):
            content = _read(files, one)
            if not any(value.encode() in content for value in NOT_HERE.values()):
                return {}
            topics = TopicTable.decode(content).topics
            return {name: config.attributes for name, config in topics.items()}
    return {}


def _read(files: Files, path: Path) -> bytes:
    file = files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _with_files(files: Files, folder: Path) -> list[str]:
    """Return the topics below a folder of `<topic>/<queue id>/<file>` that have a file."""
    return [
        topic
        for topic in files.listdir(folder)
        if files.is_dir(folder / topic)
        and any(
            files.listdir(folder / topic / queue)
            for queue in files.listdir(folder / topic)
            if files.is_dir(folder / topic / queue)
        )
    ]
