"""Where a consumer keeps how far it is: at the brokers, or (broadcasting) in a file of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from inorder.client.api import BrokerApi
from inorder.client.session import Session
from inorder.client.state.localoffsets import (
    BACKUP_SUFFIX,
    format_offsets,
    merge_offsets,
    path_parts,
    read_offsets,
)
from inorder.client.state.startoffset import NOT_READ, NOT_STORED
from inorder.disk import Files
from inorder.errors import InorderError, NotFound
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.wire.requests.offsets import ResetOffset

log = get_logger(__name__)


class OffsetStore(Protocol):
    """Reads and saves offsets."""

    def check(self) -> None:
        """Raise ConfigError if nothing can be read from it, ever."""
        ...

    async def read(self, queue: TopicQueue) -> int:
        """Return an offset, NOT_STORED or NOT_READ."""
        ...

    async def save(self, offsets: Mapping[TopicQueue, int]) -> dict[TopicQueue, int]:
        """Save offsets; return those that were taken."""
        ...

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set an offset, also a lower one; tell whether it is set."""
        ...


class RemoteOffsets:
    """The offsets of a group, at the broker of each queue."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    def check(self) -> None:
        """Do nothing: brokers are asked when they are needed."""

    async def read(self, queue: TopicQueue) -> int:
        """Return an offset, NOT_STORED or NOT_READ."""
        try:
            api = await self._session.reader_of(queue)
            return await api.query_offset(self._group, queue)
        except NotFound:
            return NOT_STORED
        except InorderError as error:
            log.info("offset not read group=%s queue=%s error=%s", self._group, queue, error)
            return NOT_READ

    async def save(self, offsets: Mapping[TopicQueue, int]) -> dict[TopicQueue, int]:
        """Save offsets, one after the other, each answered; return those that were taken.

        What the group has is never lowered: who lost a queue unawares may be behind its next owner.
        Our broker compares; Apache RocketMQ takes any number, so there we look first.
        """
        taken = {}
        for queue, offset in offsets.items():
            try:
                api = await self._session.reader_of(queue)
                if await self._is_behind(api, queue, offset):
                    log.info("group=%s is beyond offset %d of %s", self._group, offset, queue)
                else:
                    await api.update_offset(
                        self._group, queue, offset, only_up=api.compares_offsets
                    )
            except InorderError as error:
                log.info("offset not saved group=%s queue=%s error=%s", self._group, queue, error)
            else:
                taken[queue] = offset
        return taken

    async def _is_behind(self, api: BrokerApi, queue: TopicQueue, offset: int) -> bool:
        """Tell whether a broker that does not compare has a higher offset than this."""
        if api.compares_offsets:
            return False
        try:
            stored = await api.query_offset(self._group, queue, set_zero_if_not_found=False)
        except NotFound:
            return False
        return stored > offset

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set an offset, also a lower one; tell whether it is set.

        RocketMQ takes any number. Our broker lets no commit of a locked queue go back: there it is
        an explicit reset.
        """
        try:
            api = await self._session.reader_of(queue)
            await api.update_offset(self._group, queue, offset)
            if await api.query_offset(self._group, queue) != offset:
                reset = ResetOffset(queue.topic, self._group, -1, True, queue.index, offset)
                await api.reset_offset(reset)
        except InorderError as error:
            log.info("offset not moved group=%s queue=%s error=%s", self._group, queue, error)
            return False
        return True


class LocalOffsets:
    """The offsets of a broadcasting consumer: RocketMQ's JSON file and its backup."""

    def __init__(self, files: Files, directory: Path, client_id: str, group: str) -> None:
        self._files = files
        self._path = directory.joinpath(*path_parts(client_id, group))
        self._backup = self._path.with_name(self._path.name + BACKUP_SUFFIX)

    def check(self) -> None:
        """Raise ConfigError if the files are damaged."""
        self._load()

    async def read(self, queue: TopicQueue) -> int:
        """Return an offset or NOT_STORED. Raises ConfigError if the files are damaged."""
        return self._load().get(queue, NOT_STORED)

    async def save(self, offsets: Mapping[TopicQueue, int]) -> dict[TopicQueue, int]:
        """Write the file anew, and keep the one before it."""
        known = self._load()
        text = format_offsets(merge_offsets(known, offsets))
        self._files.makedirs(self._path.parent)
        new = self._path.with_name(self._path.name + ".tmp")
        self._files.remove(new)
        with contextlib.closing(self._files.open(new, create=True, size=0)) as file:
            file.pwrite(text, 0)
            file.fdatasync()
        if self._files.exists(self._path):
            self._files.rename(self._path, self._backup)
        self._files.rename(new, self._path)
        return dict(offsets)

    async def move(self, queue: TopicQueue, offset: int) -> bool:
        """Set an offset, also a lower one."""
        return bool(await self.save({queue: offset}))

    def _load(self) -> dict[TopicQueue, int]:
        offsets, from_backup = read_offsets(self._read(self._path), self._read(self._backup))
        if from_backup:
            log.warning("offsets are read from the backup file=%s", self._backup)
        return offsets

    def _read(self, path: Path) -> bytes | None:
        if not self._files.exists(path):
            return None
        with contextlib.closing(self._files.open(path)) as file:
            return file.pread(file.size(), 0)
