"""Key-value config, in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from inorder.disk import OsFiles
from inorder.errors import RemoteProtocolError, SystemError_
from inorder.nameserver import rules as nameserver_rules
from inorder.nameserver.rules import KvTable
from inorder.nameserver.storage import KvFile


def test_values_come_and_go_and_the_namespace_stays() -> None:
    """As in RocketMQ an emptied namespace is empty, not unknown."""
    table = KvTable()
    assert table.namespace("NS") is None
    table.put("NS", "k", "v")
    table.put("NS", "k", "w")
    assert (table.get("NS", "k"), table.get("NS", "x"), table.get("X", "k")) == ("w", None, None)
    assert table.delete("NS", "k")
    assert not table.delete("NS", "k")
    assert table.namespace("NS") == {}


def test_the_text_is_rocketmqs() -> None:
    """A RocketMQ name server can read the file, and we can read its."""
    table = KvTable()
    table.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4;broker-b:4")
    text = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}'
    assert table.encode() == text
    assert KvTable.decode(text).namespace("ORDER_TOPIC_CONFIG") == {
        "orders": "broker-a:4;broker-b:4"
    }


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b'{"configTable":[]}', b'{"configTable":{"a":1}}',
             b'{"configTable":{"a":{"b":1}}}', b"\xff\xfe", b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_config_is_refused(text: bytes) -> None:
    """Damage is noticed as a whole, never read in part."""
    with pytest.raises(RemoteProtocolError):
        KvTable.decode(text)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long or too many values are refused; old ones may still change."""
    table = KvTable()
    with pytest.raises(SystemError_, match="chars"):
        table.put("NS", "k", "x" * (nameserver_rules.TEXT_CHARS_MAX + 1))
    monkeypatch.setattr(nameserver_rules, "ENTRIES_MAX", 1)
    table.put("NS", "k", "v")
    with pytest.raises(SystemError_, match="delete some"):
        table.put("NS", "other", "v")
    table.put("NS", "k", "changed")
    assert repr(table) == "KvTable(namespaces=1, values=1)"


@pytest.fixture
def file(tmp_path: Path) -> KvFile:
    """Return a file with two generations: first "old", then "new"."""
    made = KvFile(OsFiles(), tmp_path / "namesrv")
    table = KvTable()
    for value in ("old", "new"):
        table.put("NS", "k", value)
        made.save(table)
    return made


def test_the_last_save_is_what_is_loaded(file: KvFile) -> None:
    """The newest generation wins, the one before is the backup, nothing else is left."""
    assert file.load().get("NS", "k") == "new"
    assert (
        KvTable.decode(file.path.with_name("kvConfig.json.bak").read_bytes()).get("NS", "k")
        == "old"
    )
    names = sorted(path.name for path in file.path.parent.iterdir())
    assert names == ["kvConfig.json", "kvConfig.json.bak"]


def test_a_damaged_file_is_renamed_and_the_backup_used(
    file: KvFile, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is deleted: a person can look at the damaged one."""
    file.path.write_bytes(b'{"configTable":{"NS"')
    assert file.load().get("NS", "k") == "old"
    assert file.path.with_name("kvConfig.json.corrupt").read_bytes() == b'{"configTable":{"NS"'
    assert "is damaged" in caplog.text


def test_a_crash_between_the_two_renames_loses_nothing(file: KvFile) -> None:
    """Only the backup exists in that moment, and it is whole."""
    file.path.rename(file.path.with_name("kvConfig.json.bak"))
    assert file.load().get("NS", "k") == "new"


def test_a_stale_longer_temporary_file_does_no_harm(file: KvFile) -> None:
    """What a crash left half written is overwritten and cut."""
    file.path.with_name("kvConfig.json.tmp").write_bytes(b"x" * 10_000)
    table = file.load()
    table.put("NS", "k", "newer")
    file.save(table)
    assert file.load().get("NS", "k") == "newer"


def test_without_any_file_the_table_is_empty(tmp_path: Path) -> None:
    """A first start needs no file; two damaged ones do not stop a name server either."""
    file = KvFile(OsFiles(), tmp_path)
    assert len(file.load()) == 0
    file.path.write_bytes(b"x")
    file.path.with_name("kvConfig.json.bak").write_bytes(b"y")
    assert len(file.load()) == 0
