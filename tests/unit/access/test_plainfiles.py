"""The files of a RocketMQ installation: which are read, when they count, what is an error."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from inorder.access import plainfiles
from inorder.access.plainfiles import PlainWatch, read_home
from inorder.access.rules import Action
from inorder.errors import ConfigError

ACCOUNT = "accounts:\n- accessKey: {}\n  secretKey: a-long-secret\n  defaultTopicPerm: {}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a home with one file and one account."""
    (tmp_path / "conf" / "acl").mkdir(parents=True)
    put(tmp_path, "plain_acl.yml", ACCOUNT.format("appuser1", "PUB"))
    return tmp_path


def put(home: Path, name: str, text: str) -> Path:
    """Write a file below `conf` that its owner alone can read."""
    path = home / "conf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def look(watch: PlainWatch) -> bool:
    """Look twice, as a broker does after a change."""
    return watch.poll(1) or watch.poll(1)


def loaded(home: Path) -> PlainWatch:
    """Return a watch that has read the files."""
    watch = PlainWatch(home)
    watch.load(1)
    return watch


def test_files_of_acl_come_first_in_the_order_of_their_paths(home: Path) -> None:
    """With those in folders; not the keys of mqadmin, not hidden files, not other endings."""
    for name in (
        "acl/b.yml",
        "acl/a.yaml",
        "acl/in/c.yml",
        "acl/tools.yml",
        "acl/.d.yml",
        "acl/e.txt",
    ):
        put(home, name, "")
    assert [one.name for one in read_home(home)] == [
        "conf/acl/a.yaml", "conf/acl/b.yml", "conf/acl/in/c.yml", "conf/plain_acl.yml",
    ]  # fmt: skip


def test_an_account_in_two_files_is_that_of_acl(home: Path) -> None:
    """The first file counts."""
    put(home, "acl/a.yml", ACCOUNT.format("appuser1", "SUB"))
    watch = loaded(home)
    assert [str(one.actions) for one in watch.book.entries["appuser1"]][-1] == str(Action.SUB)
    assert [one.place.file for one in watch.remarks] == ["conf/plain_acl.yml"]


def test_a_home_needs_no_file(tmp_path: Path) -> None:
    """RocketMQ makes an empty one; no file means no accounts."""
    (tmp_path / "conf").mkdir()
    assert loaded(tmp_path).book.users == {}


def test_without_conf_the_start_fails(tmp_path: Path) -> None:
    """A wrong path must not look like an installation without accounts."""
    with pytest.raises(ConfigError, match="conf is no directory"):
        loaded(tmp_path)


def test_a_broken_file_fails_the_start(home: Path) -> None:
    """With its name and place."""
    put(home, "acl/a.yml", "accounts: {")
    with pytest.raises(ConfigError, match=r"conf/acl/a\.yml, line 1, column 11"):
        loaded(home)


def test_a_change_of_content_counts_whatever_the_dates_say(home: Path) -> None:
    """A file with the date and the size of before is read; one that was only touched is not."""
    path = home / "conf" / "plain_acl.yml"
    watch, before = loaded(home), path.stat()
    path.write_text(ACCOUNT.format("appuser2", "PUB"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert look(watch)
    assert list(watch.book.users) == ["appuser2"]
    os.utime(path, (1, 1))
    assert not look(watch)


def test_a_new_file_and_a_file_that_is_gone_count(home: Path) -> None:
    """Both change the accounts."""
    watch = loaded(home)
    path = put(home, "acl/new.yml", ACCOUNT.format("appuser2", "SUB"))
    assert look(watch)
    assert set(watch.book.users) == {"appuser1", "appuser2"}
    path.unlink()
    assert look(watch)
    assert set(watch.book.users) == {"appuser1"}


def test_a_broken_file_keeps_the_old_accounts_and_is_told_once(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is whole again; half written is broken."""
    watch = loaded(home)
    with caplog.at_level(logging.WARNING):
        put(home, "plain_acl.yml", "accounts:\n- accessKey: appuser2\n  secretKey")
        assert [watch.poll(1) for _ in range(4)] == [False] * 4
        assert [one.levelname for one in caplog.records] == ["ERROR"]
        assert "conf/plain_acl.yml, line 3" in watch.complaint
        assert set(watch.book.users) == {"appuser1"}
        put(home, "plain_acl.yml", ACCOUNT.format("appuser2", "PUB"))
        assert look(watch)
    assert watch.complaint == ""
    assert set(watch.book.users) == {"appuser2"}


def test_a_file_counts_when_two_looks_see_the_same(home: Path) -> None:
    """The first half of it, which may be whole YAML and deny less, never counts."""
    watch = loaded(home)
    whole = ACCOUNT.format("appuser1", "PUB|SUB") + "  topicPerms:\n  - a=PUB\n  - b=DENY\n"
    put(home, "plain_acl.yml", whole.removesuffix("  - b=DENY\n"))
    assert not watch.poll(1)
    assert watch.is_unsettled
    put(home, "plain_acl.yml", whole)
    assert not watch.poll(1)
    assert watch.poll(1)
    assert not watch.is_unsettled
    assert "Topic:b" in {str(one.resource) for one in watch.book.entries["appuser1"]}


def test_a_file_that_is_whole_again_as_before_changes_nothing(home: Path) -> None:
    """The complaint goes, the accounts stay."""
    watch = loaded(home)
    put(home, "plain_acl.yml", "accounts: [")
    assert not look(watch)
    put(home, "plain_acl.yml", ACCOUNT.format("appuser1", "PUB"))
    assert not look(watch)
    assert watch.complaint == ""


def test_a_pipe_does_not_stop_the_broker(home: Path) -> None:
    """What is no plain file is refused at once; the old accounts stay."""
    watch = loaded(home)
    path = home / "conf" / "plain_acl.yml"
    path.unlink()
    os.mkfifo(path)
    assert not look(watch)
    assert watch.complaint == "conf/plain_acl.yml is no plain file"


def test_links_to_files_are_followed_and_links_to_folders_are_not(home: Path) -> None:
    """Kubernetes mounts files as links; a link to a folder may be a circle."""
    target = put(home, "acl/..data/x.yml", ACCOUNT.format("appuser3", "PUB"))
    (home / "conf" / "acl" / "x.yml").symlink_to(target)
    (home / "conf" / "acl" / "circle").symlink_to(home / "conf" / "acl")
    assert set(loaded(home).book.users) == {"appuser1", "appuser3"}


def test_there_is_a_limit_for_all_files_together(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it nothing is read, and the old accounts stay."""
    watch = loaded(home)
    monkeypatch.setattr(plainfiles, "BYTES_MAX", 200)
    put(home, "acl/a.yml", "#" * 150)
    assert not look(watch)
    assert "more than 200 bytes" in watch.complaint


def test_a_file_that_others_can_read_is_warned_of(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ's own are readable by all, so it is no error."""
    (home / "conf" / "plain_acl.yml").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        loaded(home)
    assert [one.getMessage() for one in caplog.records] == [
        "other users of this machine can read the secrets in conf/plain_acl.yml: chmod 600"
    ]


def test_no_log_line_has_a_secret(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not when files are taken, not when they are refused."""
    with caplog.at_level(logging.DEBUG):
        watch = loaded(home)
        put(home, "plain_acl.yml", ACCOUNT.format("appuser1", "PUB") + "  bad: x\n")
        look(watch)
    assert "a-long-secret" not in caplog.text
