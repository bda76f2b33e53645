"""The ACL files of a RocketMQ installation, found and read again when their content changes.

    HOME/conf/acl/**/*.yml, *.yaml     in the order of their paths
    HOME/conf/plain_acl.yml            last: an account that stands in both is that of acl/

As in RocketMQ, files are looked for below its home, and `tools.yml` (the keys of mqadmin) does not
count. Here the content counts, not the time of change: a copy with an old date is seen, a touched
file is not. A change counts when two looks see the same: half of a file may allow more than the
whole. A file that cannot be read or understood changes nothing: the accounts of before stay, and
one line in the log says why. At the start it is an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inorder.access.plainacl import PlainAccounts, Remark, accounts, decode
from inorder.access.plainbook import book_of
from inorder.access.rules import Book, Version
from inorder.errors import ConfigError
from inorder.logs import get_logger

log = get_logger(__name__)

FILES_MAX: Final = 1000
BYTES_MAX: Final = 8 * 1024 * 1024
"""Of all files together; they are read whole, every few seconds."""
DEPTH_MAX: Final = 8
ENDINGS: Final = (".yml", ".yaml")
TOOLS: Final = "tools.yml"
REMARKS_SHOWN: Final = 20
_READABLE_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True, slots=True)
class Source:
    """One file as it was read."""

    name: str
    """Its path below the home, as messages show it."""
    content: bytes
    open_to_others: bool
    """Whether other users of the machine can read it."""


def read_home(home: Path) -> tuple[Source, ...]:
    """Read the files of a home; raises ConfigError: there is no `conf`, or a file is unreadable."""
    try:
        return _read_home(home)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None


def _read_home(home: Path) -> tuple[Source, ...]:
    conf = home / "conf"
    if not conf.is_dir():
        raise ConfigError(
            f"{conf} is no directory: the home of RocketMQ's ACL files holds conf/plain_acl.yml "
            "and conf/acl/"
        )
    sources: list[Source] = []
    left = BYTES_MAX
    for path in [*_below(conf / "acl", 0), conf / "plain_acl.yml"]:
        if len(sources) >= FILES_MAX:
            raise ConfigError(f"more than {FILES_MAX} ACL files below {conf}")
        name = str(path.relative_to(home))
        found = read_file(path, name, left, missing_is_empty=path.parent == conf)
        left -= len(found.content)
        sources.append(found)
    return tuple(sources)


def read_file(path: Path, name: str, bytes_max: int, *, missing_is_empty: bool = False) -> Source:
    """Read a file whole; raises ConfigError if it is no plain file, too large or unreadable."""
    try:
        # Without waiting: a pipe that somebody put there must not stop the broker.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if missing_is_empty and error.errno == errno.ENOENT:
            return Source(name, b"", False)
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{name} is no plain file")
        try:
            content = file.read(bytes_max + 1)
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    if len(content) > bytes_max:
        raise ConfigError(f"{name}: the ACL files have more than {BYTES_MAX} bytes together")
    return Source(name, content, bool(mode & _READABLE_BY_OTHERS))


def _below(folder: Path, depth: int) -> list[Path]:
    """Return the ACL files of a folder; links to folders are not followed, links to files are."""
    if depth > DEPTH_MAX:
        raise ConfigError(f"{folder} lies too deep: ACL files lie in at most {DEPTH_MAX} folders")
    found: list[Path] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.name.startswith("."):  # what editors and Kubernetes keep beside the files
                continue
            path = folder / entry.name
            if entry.is_dir(follow_symlinks=False):
                found += _below(path, depth + 1)
            elif entry.name.endswith(ENDINGS) and entry.name != TOOLS:
                found.append(path)
            if len(found) > FILES_MAX:
                raise ConfigError(f"more than {FILES_MAX} ACL files below {folder}")
    return found


def read_accounts(sources: tuple[Source, ...]) -> PlainAccounts:
    """Return the accounts of files; raises ConfigError with file, line and column."""
    return accounts((one.name, decode(one.content, one.name)) for one in sources)


def read_given(paths: Sequence[Path]) -> tuple[Book, tuple[Remark, ...]]:
    """Return users and rules of files and of homes, and what is not kept; raises ConfigError."""
    sources: list[Source] = []
    for path in paths:
        if path.is_dir():
            sources += read_home(path)
        else:
            sources.append(read_file(path, str(path), BYTES_MAX))
    return book_of(read_accounts(tuple(sources)))


class PlainWatch:
    """The accounts of a home, as of the last time that all files could be read."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._seen = b""
        self._unsettled = b""
        self._broken = b""
        self._complaint = ""
        self._accounts = PlainAccounts({}, ())
        self.book = Book()
        """The accounts as users and rules; its version rises with every change."""
        self.remarks: tuple[Remark, ...] = ()
        """Each line that is not kept as it stands."""

    @property
    def is_unsettled(self) -> bool:
        """Return whether a change was seen once; it counts if the next look sees the same."""
        return self._unsettled != self._broken

    @property
    def complaint(self) -> str:
        """Return why the present files do not count; empty if they do."""
        return self._complaint

    def file_of(self, name: str) -> str:
        """Return the file that an account stands in."""
        account = self._accounts.accounts.get(name)
        return "an ACL file" if account is None else account.place.file

    def load(self, now_ms: int) -> None:
        """Read the files at the start; raises ConfigError."""
        sources = read_home(self._home)
        self._take(sources, read_accounts(sources), now_ms)

    def poll(self, now_ms: int) -> bool:
        """Read the files again; return whether the accounts are other ones now."""
        try:
            sources = read_home(self._home)
        except ConfigError as error:
            self._complain(str(error))
            return False
        digest = _digest(sources)
        if digest == self._seen:
            self._content()
            return False
        if digest != self._unsettled:
            self._unsettled = digest  # somebody may be writing it: a half may allow more
            return False
        if digest == self._broken:
            return False
        try:
            found = read_accounts(sources)
        except ConfigError as error:
            self._broken = digest
            self._complain(str(error))
            return False
        self._content()
        self._take(sources, found, now_ms)
        return True

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            log.error("the ACL files are not taken, those of before count: %s", complaint)

    def _content(self) -> None:
        self._unsettled = self._broken = b""
        if self._complaint:
            self._complaint = ""
            log.warning("the ACL files can be read again home=%s", self._home)

    def _take(self, sources: tuple[Source, ...], found: PlainAccounts, now_ms: int) -> None:
        self._seen = _digest(sources)
        self._accounts = found
        before = self.book.version
        version = Version(max(now_ms, before.changed_at_ms), before.counter + 1)
        self.book, self.remarks = book_of(found, version)
        log.info(
            "took the ACL files home=%s files=%d users=%d",
            self._home, sum(1 for one in sources if one.content), len(self.book.users),
        )  # fmt: skip
        for remark in self.remarks[:REMARKS_SHOWN]:
            log.warning("an ACL file is not kept as it stands: %s", remark)
        if len(self.remarks) > REMARKS_SHOWN:
            log.warning(
                "%d more lines are not kept as they stand: `inorder acl import --dry-run` lists "
                "them",
                len(self.remarks) - REMARKS_SHOWN,
            )
        for one in sources:
            if one.open_to_others:
                log.warning(
                    "other users of this machine can read the secrets in %s: chmod 600", one.name
                )


def _digest(sources: tuple[Source, ...]) -> bytes:
    total = hashlib.sha256()
    for one in sources:
        for part in (one.name.encode(errors="surrogateescape"), one.content):
            total.update(len(part).to_bytes(8, "big"))
            total.update(part)
    return total.digest()
