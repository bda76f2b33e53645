"""Accounts of RocketMQ's ACL files beside the users of our own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.access.rules import Action, Entry, PolicyType, User, parse_resource
from inorder.access.service import (
    LOOK_MS,
    PLAIN_LOOK_MS,
    Accounts,
    Changed,
    Refused,
    check_settings,
    open_accounts,
)
from inorder.access.storage import AccessFile
from inorder.config import AccessConfig
from inorder.errors import ConfigError, NoPermission
from inorder.testing.clock import FakeClock
from tests.kit.disk import FakeFiles

TEXT = """\
accounts:
- accessKey: appuser1
  secretKey: long-enough-1
  defaultTopicPerm: SUB
  topicPerms: [orders=PUB]
- accessKey: operator
  secretKey: long-enough-2
  admin: true
"""
BY = {"by": "root", "peer": "10.1.1.7:5"}


class Stage:
    """A home of RocketMQ, a disk and a clock."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.files = FakeFiles()
        self.clock = FakeClock()
        self.config = AccessConfig(acl_enable=True, rocketmq_home=str(home))
        (home / "conf").mkdir()
        self.write(TEXT)

    def write(self, text: str) -> None:
        """Write the ACL file."""
        path = self.home / "conf" / "plain_acl.yml"
        path.write_text(text)
        path.chmod(0o600)

    def open(self) -> Accounts:
        """Open the accounts as a start does."""
        file = AccessFile(self.files, Path("/data/inorder/access.json"))
        return open_accounts(file, self.config, self.clock, needs_super=True)


def twice(accounts: Accounts) -> None:
    """Look twice: a change counts when two looks see the same."""
    accounts.look(now=True)
    accounts.look(now=True)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Make a stage."""
    return Stage(tmp_path)


def test_accounts_of_the_files_are_users(stage: Stage) -> None:
    """An admin is a super user; nothing is written into our own file."""
    book = stage.open().book
    assert book.users == {
        "appuser1": User("appuser1", b"long-enough-1"),
        "operator": User("operator", b"long-enough-2", is_super=True),
    }
    assert not stage.files.exists(Path("/data/inorder/access.json"))


def test_without_an_admin_the_broker_starts(stage: Stage) -> None:
    """RocketMQ 4 needs none, and an admin can be put into the file at any time."""
    stage.write(TEXT.replace("admin: true", "admin: false"))
    assert not stage.open().book.has_super


def test_a_change_of_the_files_counts_within_seconds(stage: Stage) -> None:
    """Everybody who listens hears of it, and what was remembered is forgotten."""
    accounts, heard = stage.open(), list[str]()
    accounts.on_change(lambda: heard.append("changed"))
    accounts.look()
    before = accounts.epoch, accounts.book.version
    stage.write(TEXT.replace("operator", "somebody"))
    accounts.look()
    assert heard == []
    stage.clock.advance(PLAIN_LOOK_MS)
    accounts.look()
    assert heard == []
    stage.clock.advance(LOOK_MS)
    accounts.look()
    assert heard == ["changed"]
    assert set(accounts.book.users) == {"appuser1", "somebody"}
    assert accounts.epoch > before[0]
    assert accounts.book.version > before[1]


def test_a_broken_file_keeps_the_accounts_and_is_shown(stage: Stage) -> None:
    """Until it is whole."""
    accounts = stage.open()
    stage.write("accounts: [")
    twice(accounts)
    assert set(accounts.book.users) == {"appuser1", "operator"}
    assert "line 1, column 11" in accounts.plain_trouble


def test_a_change_takes_an_account_over_with_its_rules(stage: Stage) -> None:
    """Here it is disabled: it stays so, whatever the file says, also after a restart."""
    accounts = stage.open()
    rules = accounts.book.entries["appuser1"]
    accounts.put_user(User("appuser1", b"long-enough-1", enabled=False), **BY)
    stage.write(TEXT.replace("long-enough-1", "another-secret"))
    twice(accounts)
    for one in (accounts, stage.open()):
        assert one.book.users["appuser1"] == User("appuser1", b"long-enough-1", enabled=False)
        assert one.book.entries["appuser1"] == rules
        assert not one.is_plain("appuser1")


def test_new_rules_of_an_account_come_to_those_that_it_has(stage: Stage) -> None:
    """And one of them can be deleted."""
    accounts = stage.open()
    before = accounts.book.entries["appuser1"]
    group = Entry(parse_resource("Group:billing"), Action.SUB, True)
    accounts.put_entries("appuser1", [group], **BY)
    assert set(accounts.book.entries["appuser1"]) == {*before, group}
    accounts.delete_entries("appuser1", group.resource, PolicyType.CUSTOM, **BY)
    assert accounts.book.entries["appuser1"] == before


def test_an_account_is_deleted_in_its_file(stage: Stage) -> None:
    """Deleted here it would come back with the next look."""
    accounts = stage.open()
    with pytest.raises(NoPermission, match=r"stands in conf/plain_acl\.yml; delete it there"):
        accounts.delete_user("appuser1", **BY)
    assert "appuser1" in accounts.book.users


def test_a_deleted_user_of_ours_is_the_account_again(stage: Stage) -> None:
    """What was taken over is given back."""
    accounts = stage.open()
    accounts.put_user(User("appuser1", b"another-secret"), **BY)
    accounts.delete_user("appuser1", **BY)
    assert accounts.book.users["appuser1"].secret == b"long-enough-1"


def test_those_who_watch_hear_of_new_files(stage: Stage) -> None:
    """The audit log has a line for it."""

    class Ear:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def refused(self, refusal: Refused) -> None:
            """Nothing is refused here."""

        def changed(self, change: Changed) -> None:
            self.heard.append(change.what)

    accounts, ear = stage.open(), Ear()
    accounts.watchers.append(ear)
    stage.write(TEXT + "# changed\n")
    twice(accounts)
    assert ear.heard == ["ACL files read again"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AccessConfig(acl_enable=True), "rocketmqHome=DIR"),
        (AccessConfig(acl_enable=True, rocketmq_home="x", level="off"), "contradicts aclEnable"),
    ],
)
def test_half_a_configuration_does_not_start(config: AccessConfig, words: str) -> None:
    """The error names the line that is missing."""
    with pytest.raises(ConfigError, match=words):
        check_settings(config, needs_inner=False)


def test_the_switch_of_rocketmq_4_alone_enforces_without_credentials_of_servers() -> None:
    """Name servers of RocketMQ 4 check nothing, so its broker.conf has no such line."""
    config = AccessConfig(acl_enable=True, rocketmq_home="x")
    assert config.effective_level == "enforce"
    check_settings(config, needs_inner=True)
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials"):
        check_settings(
            AccessConfig(acl_enable=True, rocketmq_home="x", level="enforce"), needs_inner=True
        )


def test_a_home_that_is_none_does_not_start(stage: Stage, tmp_path: Path) -> None:
    """A wrong path must not be an installation without accounts."""
    stage.config = AccessConfig(acl_enable=True, rocketmq_home=str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="conf is no directory"):
        stage.open()


def test_the_first_super_user_is_made_beside_an_account_of_that_name(stage: Stage) -> None:
    """An ACL file cannot take the name away."""
    init = '{"username":"appuser1","password":"a-long-secret"}'
    stage.config = AccessConfig(acl_enable=True, rocketmq_home=str(stage.home), init_user=init)
    assert stage.open().book.users["appuser1"].is_super
    assert stage.open().book.users["appuser1"].secret == b"a-long-secret"
