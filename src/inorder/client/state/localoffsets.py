"""The offsets of a broadcast consumer in a file, as RocketMQ's LocalFileOffsetStore writes them.

The file is `<directory>/<client id>/<group>/offsets.json`, fastjson's JSON with objects as keys.
The version before it is kept beside it as `offsets.json.bak`, and is read if the file is missing,
empty or damaged. This module has the text only; a shell reads and writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inorder.errors import ConfigError, RemoteProtocolError, UsageError
from inorder.model import TopicQueue
from inorder.wire.fastjson import dumps, loads

FILE_NAME: Final = "offsets.json"
BACKUP_SUFFIX: Final = ".bak"

_OFFSET_MAX: Final = 2**63 - 1


def path_parts(client_id: str, group: str) -> tuple[str, str, str]:
    """Return where the file is below the directory.

    Raises UsageError: a name would lead out of the directory.
    """
    for name in (client_id, group):
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise UsageError(f"{name!r} cannot be the name of a directory for offsets")
    return client_id, group, FILE_NAME


def format_offsets(offsets: Mapping[TopicQueue, int]) -> bytes:
    """Return the text of the file."""
    table = {
        (("brokerName", queue.broker), ("queueId", queue.index), ("topic", queue.topic)): offset
        for queue, offset in sorted(offsets.items())
    }
    return dumps({"offsetTable": table}, pretty=True)


def parse_offsets(text: bytes) -> dict[TopicQueue, int]:
    """Return the offsets of a text.

    Raises RemoteProtocolError: it is damaged.
    """
    value = loads(text)
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if table is None:
        table = {}
    if not isinstance(table, dict):
        raise RemoteProtocolError("offsetTable is no map")
    return dict(_entry(key, offset) for key, offset in table.items())


def read_offsets(main: bytes | None, backup: bytes | None) -> tuple[dict[TopicQueue, int], bool]:
    """Return the offsets of the file or else of its backup, and whether the backup was used.

    Both missing or empty: none. A missing file is None.

    Raises ConfigError: the file cannot be used, and the backup that is there neither.
    """
    if main:
        try:
            return parse_offsets(main), False
        except RemoteProtocolError as error:
            if not backup:
                raise ConfigError(
                    f"the offset file is damaged and has no backup, move it away: {error}"
                ) from None
    if not backup:
        return {}, False
    try:
        return parse_offsets(backup), True
    except RemoteProtocolError as error:
        raise ConfigError(
            f"the offset file and its backup are damaged, move both away: {error}"
        ) from None


def merge_offsets(
    in_file: Mapping[TopicQueue, int], noted: Mapping[TopicQueue, int]
) -> dict[TopicQueue, int]:
    """Return what to write: what the file has of other queues stays."""
    return {**in_file, **noted}


def _entry(key: Any, offset: Any) -> tuple[TopicQueue, int]:
    bean = dict(key) if isinstance(key, tuple) else {}
    topic, broker, index = bean.get("topic"), bean.get("brokerName"), bean.get("queueId")
    if (
        not (isinstance(topic, str) and isinstance(broker, str) and type(index) is int)
        or type(offset) is not int
        or not 0 <= offset <= _OFFSET_MAX
    ):
        raise RemoteProtocolError(f"no queue and offset: {key!r}: {offset!r}")
    return TopicQueue(topic, broker, index), offset
