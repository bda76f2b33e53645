"""Where credentials come from, what is refused, and that no secret is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from inorder import Credentials
from inorder.client.identity import chosen_credentials
from inorder.credentials import FILE_BYTES_MAX
from inorder.errors import ConfigError, UsageError

SECRET = "tell-nobody"


def private(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o600)
    return path


def test_the_secret_is_not_in_the_repr() -> None:
    """Neither is the token."""
    assert repr(Credentials("alice", SECRET, "token")) == "Credentials('alice')"
    assert f"{Credentials('alice', SECRET)}" == "Credentials('alice')"


def test_credentials_are_values() -> None:
    """Equal ones share a session, and processes may pass them on."""
    one = Credentials("alice", SECRET)
    assert one == Credentials("alice", SECRET) != Credentials("alice", "other")
    assert len({one, Credentials("alice", SECRET)}) == 1
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    "keys", [("", SECRET), ("alice", ""), (None, SECRET), ("alice", b"bytes"), ("", "")]
)
def test_an_empty_key_or_secret_is_refused(keys: tuple[str, str]) -> None:
    """Anybody can compute a signature with an empty secret."""
    with pytest.raises(UsageError, match="must be a text that is not empty") as refused:
        Credentials(*keys)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        f"access_key = alice\nsecret_key = {SECRET}\n",
        f'# who\naccess_key = "alice"\n\nsecret_key = "{SECRET}"',
        f"---\naccessKey: alice\nsecretKey: {SECRET}\n",
        f"AccessKey=alice\r\nSecretKey='{SECRET}'\r\n",
    ],
)
def test_a_file_is_read_in_every_spelling(tmp_path: Path, text: str) -> None:
    """Ours, TOML, RocketMQ's tools.yml and its key file."""
    assert Credentials.from_file(private(tmp_path / "k", text)) == Credentials("alice", SECRET)


def test_a_secret_may_hold_anything(tmp_path: Path) -> None:
    """Signs that separate name and value, spaces, quotes, letters beyond ASCII; and a token."""
    text = "access_key = a:b\nsecret_key = =x: 'é y\nsecurity_token = t\n"
    found = Credentials.from_file(private(tmp_path / "k", text))
    assert found == Credentials("a:b", "=x: 'é y", "t")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"access_key = alice\n{SECRET}\n", "line 2: write"),
        (f"access_key = alice\nsecret = {SECRET}\n", "line 2: write"),
        (f"secret_key = {SECRET}\nsecret_key = {SECRET}\n", "line 2: write"),
        ("access_key = alice\n", "has no secret_key"),
        (f"access_key =\nsecret_key = {SECRET}\n", "has no access_key"),
        (b"access_key = \xff\n", "no text in UTF-8"),
        ("#" * (FILE_BYTES_MAX + 1), "is larger than"),
    ],
)
def test_a_bad_file_is_told_without_its_content(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    """The error names file and line, never what is on the line."""
    with pytest.raises(ConfigError, match=says) as refused:
        Credentials.from_file(private(tmp_path / "keys", text))
    assert "keys" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "alice" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """The error says what to run."""
    file = private(tmp_path / "k", f"access_key = alice\nsecret_key = {SECRET}\n")
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        Credentials.from_file(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """So is a folder."""
    with pytest.raises(ConfigError, match="none: No such file"):
        Credentials.from_file(tmp_path / "none")
    with pytest.raises(ConfigError, match="directory"):
        Credentials.from_file(tmp_path)


def test_the_environment_names_keys_or_a_file(tmp_path: Path) -> None:
    """Nothing there: nobody signs."""
    keys = {"INORDER_ACCESS_KEY": "alice", "INORDER_SECRET_KEY": SECRET}
    alice = Credentials("alice", SECRET)
    assert Credentials.from_environment({}) is None
    assert Credentials.from_environment(dict.fromkeys(keys, "")) is None
    assert Credentials.from_environment(keys) == alice
    token = keys | {"INORDER_SECURITY_TOKEN": "t"}
    assert Credentials.from_environment(token) == Credentials("alice", SECRET, "t")
    file = private(tmp_path / "k", f"access_key = alice\nsecret_key = {SECRET}\n")
    assert Credentials.from_environment({"INORDER_CREDENTIALS_FILE": str(file)}) == alice


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"INORDER_ACCESS_KEY": "alice"}, "INORDER_SECRET_KEY is not set"),
        ({"INORDER_SECRET_KEY": SECRET}, "INORDER_ACCESS_KEY is not set"),
        ({"INORDER_ACCESS_KEY": "a", "INORDER_CREDENTIALS_FILE": "f"}, "are both set"),
    ],
)
def test_half_an_environment_is_refused(environment: dict[str, str], says: str) -> None:
    """A client never falls back to not signing."""
    with pytest.raises(ConfigError, match=says) as refused:
        Credentials.from_environment(environment)
    assert SECRET not in str(refused.value)


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it must be Credentials."""
    monkeypatch.setenv("INORDER_ACCESS_KEY", "bob")
    monkeypatch.setenv("INORDER_SECRET_KEY", SECRET)
    assert chosen_credentials(None) == Credentials("bob", SECRET)
    assert chosen_credentials(Credentials("alice", "x")) == Credentials("alice", "x")
    with pytest.raises(UsageError, match=r"takes inorder\.Credentials, not tuple"):
        chosen_credentials(("alice", SECRET))  # type: ignore[arg-type]
