"""The file of users and rules on disk: crashes, permissions, keys."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from inorder.access.inner import first_user, inner_user, signer
from inorder.access.rules import User
from inorder.access.service import Accounts
from inorder.access.storage import AccessFile, new_secret, open_file
from inorder.clock import SystemClock
from inorder.disk import OsFiles
from inorder.errors import ConfigError, StoreError
from inorder.wire.header import Command
from inorder.wire.signature import AK, SIGNATURE, content, sign
from tests.kit.disk import FakeFiles, Fault, Killed

PATH = Path("/data/inorder/access.json")


def fresh() -> FakeFiles:
    """Return a disk with a data directory."""
    files = FakeFiles()
    files.makedirs(PATH.parents[1])
    files.fsync_dir(Path("/"))
    return files


def names(files: FakeFiles) -> set[str]:
    book = AccessFile(files, PATH).load()
    return set() if book is None else set(book.users)


def created(files: FakeFiles, name: str) -> None:
    accounts = Accounts(AccessFile(files, PATH), SystemClock())
    accounts.put_user(User(name, b"a-long-enough-secret"), by="test", peer="")


CHANGES = 8
"""More than one save makes."""


@pytest.mark.parametrize("nth", range(1, CHANGES + 1))
def test_a_kill_leaves_the_old_users_or_the_new(nth: int) -> None:
    """Whatever change is the last one, and whatever of it survives a power cut."""
    for seed in range(20):
        files = fresh()
        created(files, "first")
        files.fail(Fault("change", nth, error=None, kept_bytes=seed))
        done = True
        try:
            created(files, "second")
        except Killed:
            done = False
        for left in (files.kill(), files.crash(Random(seed))):
            found = names(left)
            assert found in ({"first"}, {"first", "second"})
            assert not done or found == {"first", "second"}
            assert done or nth < CHANGES
            created(left, "third")
            assert "third" in names(left)


def test_a_change_that_is_not_saved_does_not_count() -> None:
    """A full disk refuses it, and the old users stay in memory and on disk."""
    files = fresh()
    accounts = Accounts(AccessFile(files, PATH), SystemClock())
    accounts.put_user(User("first", b"a-long-enough-secret"), by="test", peer="")
    before, epoch = accounts.book, accounts.epoch
    files.fail(Fault("write", 1))
    with pytest.raises(StoreError):
        accounts.put_user(User("second", b"a-long-enough-secret"), by="test", peer="")
    assert (accounts.book, accounts.epoch) == (before, epoch)
    assert names(files) == {"first"}


def test_no_copy_of_deleted_users_stays(tmp_path: Path) -> None:
    """There is one file, private, and no backup."""
    path = tmp_path / "inorder" / "access.json"
    accounts = Accounts(AccessFile(OsFiles(), path), SystemClock())
    for name in ("alice", "mallory"):
        accounts.put_user(User(name, b"a-long-enough-secret"), by="test", peer="")
    accounts.delete_user("mallory", by="test", peer="")
    assert [one.name for one in path.parent.iterdir()] == ["access.json"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"mallory" not in path.read_bytes()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """At the start; the error says what to do."""
    path = tmp_path / "access.json"
    path.write_bytes(b'{"format":1,"version":[0,0],"users":[],"entries":[]}')
    path.chmod(mode)
    with pytest.raises(StoreError, match="chmod 600"):
        AccessFile(OsFiles(), path).load()
    path.chmod(0o600)
    assert AccessFile(OsFiles(), path).load() is not None
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with pytest.raises(StoreError, match="no link"):
        AccessFile(OsFiles(), link).load()


def test_a_key_encrypts_the_secrets(tmp_path: Path) -> None:
    """It lies elsewhere, is private, and has 32 bytes; else the start says so."""
    key, path = tmp_path / "key", tmp_path / "data" / "inorder" / "access.json"
    key.write_text("ab" * 32 + "\n")
    key.chmod(0o600)
    accounts = Accounts(open_file(OsFiles(), path, str(key)), SystemClock())
    accounts.put_user(User("alice", b"a-long-enough-secret"), by="test", peer="")
    assert b"a-long-enough-secret" not in path.read_bytes()
    again = Accounts(open_file(OsFiles(), path, str(key)), SystemClock())
    assert again.book == accounts.book
    with pytest.raises(StoreError, match=r"access\.key_file"):
        Accounts(open_file(OsFiles(), path, ""), SystemClock())
    inside = path.parent / "key"
    inside.write_text("ab" * 32)
    wrong = [(str(inside), "beside the secrets"), (str(tmp_path / "none"), "cannot be read")]
    key.write_text("ab")
    wrong.append((str(key), "is no key"))
    for name, said in wrong:
        with pytest.raises(ConfigError, match=said):
            open_file(OsFiles(), path, name)
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others"):
        open_file(OsFiles(), path, str(key))


def test_credentials_among_servers() -> None:
    """RocketMQ's lines; what a server sends is signed with them."""
    line = '{"accessKey":"server","secretKey":"a-long-inner-secret"}'
    assert inner_user("") is None
    assert first_user(" ") is None
    made = signer(line)(Command.request(103, {"a": "b"}, b"body"))
    assert made.fields[AK] == "server"
    wanted = sign(b"a-long-inner-secret", content(made.fields, b"body"))
    assert made.fields[SIGNATURE] == wanted
    assert signer(line)(made).fields[SIGNATURE] == wanted  # twice is the same
    assert signer("")(Command.request(103, {})).fields == {}
    for text in ("{", "[]", '{"accessKey":"x"}', '{"accessKey":"a b","secretKey":"long-enough"}',
                 '{"accessKey":"x","secretKey":"12345678"}'):  # fmt: skip
        with pytest.raises(ConfigError):
            inner_user(text)


def test_a_new_secret_is_long_and_new() -> None:
    """16 random bytes."""
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(one) for one in made} == {32}
